//! The interface of a program's main region: its parameters and yields follow from the lists of states,
//! inputs and outputs, which passes change.

use dtlc_ir::Program;

/// Sets the main region's parameters and yields from the program's lists.
pub fn seal(program: &mut Program) {
    let states = program.states.iter().map(|state| state.value);
    program.main.params = states.chain(program.inputs.iter().map(|input| input.value)).collect();
    let updated = program.states.iter().filter_map(|state| state.updated);
    program.main.yields = updated.chain(program.outputs.iter().map(|output| output.value)).collect();
}
