//! The interface of a program's main region: its parameters and yields follow from the lists of states,
//! inputs and outputs, which passes change.

use dtlc_ir::{DType, Input, Program, Type, Value};

/// Sets the main region's parameters and yields from the program's lists.
pub fn seal(program: &mut Program) {
    let states = program.states.iter().map(|state| state.value);
    program.main.params = states.chain(program.inputs.iter().map(|input| input.value)).collect();
    let updated = program.states.iter().filter_map(|state| state.updated);
    program.main.yields = updated.chain(program.outputs.iter().map(|output| output.value)).collect();
}

/// The step counter (`u32[]`, from 1), which becomes an input when it is first asked for.
pub fn step_input(program: &mut Program) -> Value {
    if let Some(input) = program.inputs.iter().find(|input| input.name == "step") {
        return input.value;
    }
    let value = program.add_value(Type::scalar(DType::U32), program.no_origin());
    program.values[value].name = Some("step".to_string());
    program.inputs.push(Input { name: "step".to_string(), value });
    value
}
