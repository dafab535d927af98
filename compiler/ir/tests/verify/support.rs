//! Programs from a few lines of text, and whether a stage takes them.

use dtlc_ir::text::parse;
use dtlc_ir::verify::{joint, logical, scheduled, sharded, structure};
use dtlc_ir::{Fault, Input, Output, Program};

/// A stage whose rules are asked for.
#[derive(Clone, Copy, Debug)]
pub enum Stage {
    Structure,
    Logical,
    Joint,
    Sharded,
    Scheduled,
}

/// The axes and dimensions that programs name.
pub const TABLES: &str = "mesh { dp: 2, tp: 2, cp: 2 }
    dims { A = 4, B = 4, C = 8, D = 16, N = 3, P = 5 pad, S = 8, T = 8, K = 2 }";

/// Parses a main region and makes its parameters inputs and its yields outputs.
pub fn program(params: &str, body: &str) -> Program {
    let text = format!("program test {{ {TABLES} main({params}) {{ {body} }} }}");
    let mut program = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    for (index, &value) in program.main.params.iter().enumerate() {
        program.inputs.push(Input { name: index.to_string(), value });
    }
    for (index, &value) in program.main.yields.iter().enumerate() {
        program.outputs.push(Output { name: index.to_string(), value });
    }
    program
}

fn verify(stage: Stage, program: &Program) -> Result<(), Fault> {
    match stage {
        Stage::Structure => structure(program),
        Stage::Logical => logical(program).map(|_| ()),
        Stage::Joint => joint(program).map(|_| ()),
        Stage::Sharded => sharded(program).map(|_| ()),
        Stage::Scheduled => scheduled(program).map(|_| ()),
    }
}

/// Each program (parameters, body) is refused by a stage with a message that contains the last text.
pub fn refused(stage: Stage, cases: &[(&str, &str, &str)]) {
    for &(params, body, expected) in cases {
        let fault = verify(stage, &program(params, body)).expect_err(body);
        assert!(fault.message.contains(expected), "{body}\nexpected {expected}\n{fault}");
        assert!(fault.to_string().starts_with("bug in dtlc, found by `verify"), "{fault}");
    }
}

/// Each program is taken by a stage.
pub fn accepted(stage: Stage, cases: &[(&str, &str)]) {
    for &(params, body) in cases {
        verify(stage, &program(params, body)).unwrap_or_else(|fault| panic!("{body}\n{fault}"));
    }
}
