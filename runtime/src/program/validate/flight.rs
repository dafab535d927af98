//! Every collective is waited for: once, after it starts, in the list of instructions that starts it.

use super::{Check, require};
use crate::program::{FlightId, Instruction, Operation};
use std::collections::BTreeSet;

/// Checks a list of instructions and the loops in it. `seen` are the collectives that started before.
pub(super) fn check_flights(body: &[Instruction], seen: &mut BTreeSet<FlightId>) -> Check {
    let mut flying = BTreeSet::new();
    for instruction in body {
        match &instruction.operation {
            Operation::Collective(collective) => {
                let FlightId(number) = collective.flight;
                require(seen.insert(collective.flight), || format!("two collectives are number {number}"))?;
                flying.insert(collective.flight);
            }
            Operation::Done(flight) => {
                let FlightId(number) = flight;
                let message = || format!("collective {number} is waited for where it is not under way");
                require(flying.remove(flight), message)?;
            }
            Operation::Loop(nested) => check_flights(&nested.body, seen)?,
            Operation::Kernel(_)
            | Operation::Matmul { .. }
            | Operation::Attention(_)
            | Operation::AttentionBackward(_)
            | Operation::Take { .. }
            | Operation::ScatterAdd { .. }
            | Operation::Copy { .. }
            | Operation::Fill { .. } => {}
        }
    }
    match flying.first() {
        Some(FlightId(number)) => Err(format!("nothing waits for collective {number}")),
        None => Ok(()),
    }
}
