//! The whole compiler on one file, from source to a running session.

use dtlc_codegen::assemble::{Assembled, assemble};
use dtlc_codegen::cranelift::TargetFeatures;
use dtlc_ir::{DType, Program, text};
use dtlc_lang::{Compiled, Loaded, Options, PlanChoice, compile};
use dtlc_passes::memory::plan_memory;
use dtlc_passes::partition::{PlacementRequest, merge_collectives, partition, plan_reshards};
use dtlc_passes::{
    Gradients, Position, accumulate, differentiate, fuse, lower, rematerialise, simplify, update,
};

/// What a step computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The loss and all gradients.
    Gradients,
    /// A training step.
    Train,
}

/// Compiles up to planned and merged collectives.
pub fn planned(path: &str, plan: PlanChoice, overrides: &[(&str, &str)], mode: Mode) -> Program {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let overrides = overrides.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    let nothing = |_: &str, _: &[&str]| Loaded::Missing;
    let compiled = compile(&nothing, path, &bytes, &Options { plan, overrides });
    let Compiled { sources, model, plan, .. } =
        compiled.unwrap_or_else(|rejected| panic!("{:#?}", rejected.diagnostics));
    let locate = |span| {
        let at = sources.position(span);
        Position { file: path.to_string(), line: at.line, column: at.column }
    };
    let lowered = lower(&model, plan.as_ref(), &locate).unwrap_or_else(|error| panic!("{error:?}"));
    let mut program = lowered.program;
    simplify(&mut program, Gradients::ToCome);
    differentiate(&mut program, DType::F32).unwrap_or_else(|error| panic!("{error:?}"));
    if mode == Mode::Train {
        update(&mut program, plan.as_ref().expect("a plan")).unwrap_or_else(|error| panic!("{error:?}"));
    }
    simplify(&mut program, Gradients::Taken);
    if let Some(micro) = lowered.micro {
        accumulate(&mut program, micro).unwrap_or_else(|error| panic!("{error:?}"));
    }
    simplify(&mut program, Gradients::Taken);
    let mut request = PlacementRequest::default();
    if let Some(plan) = &plan {
        request = PlacementRequest::from_plan(plan, &model, |dim| lowered.dims[dim].to_vec());
        request.add_pins(&program, &lowered.pins);
    }
    let partitioned = partition(program, &request).unwrap_or_else(|errors| panic!("{errors:#?}"));
    let mut program = partitioned.program;
    plan_reshards(&mut program).unwrap_or_else(|errors| panic!("{errors:#?}"));
    rematerialise(&mut program, plan.as_ref().map_or(&[], |plan| &plan.remat));
    merge_collectives(&mut program);
    program
}

/// Fuses, plans and assembles.
pub fn assembled(mut program: Program) -> Assembled {
    fuse(&mut program);
    let memory = plan_memory(&program);
    let features = TargetFeatures::host().expect("the host's features are known");
    assemble(&program, &memory, features)
        .unwrap_or_else(|error| panic!("{error}\n{}", text::print_step(&program)))
}
