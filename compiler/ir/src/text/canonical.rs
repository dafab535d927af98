//! Renumbers a program as its text would be numbered.

use super::names::definitions;
use crate::program::{Origin, OriginInfo, Program, Region, Value, ValueInfo};
use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{PrimaryMap, SecondaryMap};
use rustc_hash::FxHashMap;

/// The same program with values and origins numbered in the order of the text, without the values
/// that nothing defines, the bindings of such values, and `gradient_of` such values.
pub fn canonical(program: &Program) -> Program {
    let mut order = Vec::new();
    definitions(&program.main, &mut order);
    let mut numbers: SecondaryMap<Value, PackedOption<Value>> = SecondaryMap::new();
    for (position, &value) in order.iter().enumerate() {
        numbers[value] = Value::from_u32(position as u32).into();
    }
    let renumber = |value: Value| numbers[value].expand();
    let mut origins = Origins::new(program);
    let mut values = PrimaryMap::new();
    for &value in &order {
        let info = &program.values[value];
        values.push(ValueInfo {
            origin: origins.intern(&program.origins[info.origin]),
            gradient_of: info.gradient_of.and_then(renumber),
            ..info.clone()
        });
    }
    let mut result = Program { values, origins: origins.table, ..program.clone() };
    // Uses of what nothing defines stay as they are: the verifier reports them.
    let keep = |value: &mut Value| *value = renumber(*value).unwrap_or(*value);
    rename_region(&mut result.main, &keep);
    for state in &mut result.states {
        keep(&mut state.value);
        state.updated.iter_mut().for_each(keep);
    }
    result.inputs.iter_mut().for_each(|input| keep(&mut input.value));
    result.outputs.iter_mut().for_each(|output| keep(&mut output.value));
    result.bindings.retain_mut(|binding| match renumber(binding.value) {
        Some(value) => {
            binding.value = value;
            true
        }
        None => false,
    });
    if let (Some(from), Some(to)) = (&program.memory, &mut result.memory) {
        to.places.clear();
        for &value in &order {
            let mut number = value;
            keep(&mut number);
            to.places[number] = from.places[value].clone();
        }
        to.peak.iter_mut().for_each(keep);
    }
    result
}

/// A table of distinct origins that starts with the compiler's own.
pub(super) struct Origins {
    pub(super) table: PrimaryMap<Origin, OriginInfo>,
    known: FxHashMap<OriginInfo, Origin>,
}

impl Origins {
    pub(super) fn new(program: &Program) -> Origins {
        let mut origins = Origins { table: PrimaryMap::new(), known: FxHashMap::default() };
        origins.intern(&program.origins[program.no_origin()]);
        origins
    }

    pub(super) fn intern(&mut self, info: &OriginInfo) -> Origin {
        *self.known.entry(info.clone()).or_insert_with(|| self.table.push(info.clone()))
    }
}

fn rename_region(region: &mut Region, rename: &impl Fn(&mut Value)) {
    region.params.iter_mut().for_each(rename);
    for inst in &mut region.insts {
        inst.args.iter_mut().for_each(rename);
        inst.results.iter_mut().for_each(rename);
        if let Some(body) = inst.op.region_mut() {
            rename_region(body, rename);
        }
    }
    region.yields.iter_mut().for_each(rename);
}
