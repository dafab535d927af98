//! Parses the memory plan in the text of a scheduled program.

use super::parse::{Pair, Result, Rule, Tables, exactly, fail, first, named, number, only};
use crate::memory::{MemoryPlan, Place, Space, Write};
use smallvec::SmallVec;

/// The plan; a value's place may stand there once.
pub(super) fn plan(tables: &Tables, pair: Pair<'_>) -> Result<MemoryPlan> {
    let mut plan = MemoryPlan::default();
    for part in pair.into_inner() {
        match part.as_rule() {
            Rule::space_size => {
                let [space, bytes] = exactly(part)?;
                let size = match named(&space, &Space::ALL, Space::name)? {
                    Space::State => &mut plan.state_bytes,
                    Space::Arena => &mut plan.arena_bytes,
                    Space::Input => &mut plan.input_bytes,
                };
                *size = number(&bytes)?;
            }
            Rule::peak => plan.peak = tables.values(only(part)?)?,
            Rule::place => {
                let [name] = first(part.clone())?;
                let value = tables.value(&name)?;
                if plan.places[value].replace(place(part)?).is_some() {
                    return fail(&name, "this value has a place already");
                }
            }
            _ => return fail(&part, "unexpected in a memory plan"),
        }
    }
    Ok(plan)
}

fn place(pair: Pair<'_>) -> Result<Place> {
    let [_, space, offset, bytes] = first(pair.clone())?;
    let mut place = Place {
        space: named(&space, &Space::ALL, Space::name)?,
        offset: number(&offset)?,
        bytes: number(&bytes)?,
        strides: SmallVec::new(),
        write: Write::Replace,
    };
    for part in pair.into_inner().skip(4) {
        match part.as_rule() {
            Rule::stride => {
                let [bytes, depth] = exactly(part)?;
                place.strides.push((number(&depth)?, number(&bytes)?));
            }
            Rule::accumulate => place.write = Write::Accumulate,
            _ => return fail(&part, "unexpected in a place"),
        }
    }
    Ok(place)
}
