//! Runs a planned program on the CPU backend and holds every result against the reference interpreter.

use dtlc_codegen::assemble::assemble;
use dtlc_codegen::cranelift::TargetFeatures;
use dtlc_ir::interpret::{Options, Rounding, Tensor, interpret, interpret_ranks};
use dtlc_ir::{DType, Program, Type, text};
use dtlc_passes::{fuse, memory::plan_memory};
use dtlc_runtime::program::StateId;
use dtlc_runtime::session::{ArenaStart, Options as SessionOptions, Session};
use dtlc_runtime::tensor::HostTensor;
use std::time::Duration;

/// Arguments for all states and inputs: numbers that depend on nothing but their position. Integers lie
/// in `0..bound`; the step is 1.
pub fn arguments(program: &Program, bound: u32) -> Vec<Tensor> {
    let states = program.states.iter().map(|state| (state.value, state.path.as_str()));
    let inputs = program.inputs.iter().map(|input| (input.value, input.name.as_str()));
    let made = states.chain(inputs).enumerate().map(|(number, (value, name))| {
        let ty = program.ty(value);
        let shape = ty.dims.iter().map(|&dim| (dim, program.dims[dim].size as usize));
        let float = ty.dtype.is_float();
        Tensor::from_fn(shape, |index| {
            let noise = ((index * 7919 + number * 104_729 + 13) % 1009) as f64 / 1009.0;
            match (name, float) {
                ("step", _) => 1.0,
                (_, true) => stored(noise - 0.5, ty.dtype),
                (_, false) => (noise * f64::from(bound)).floor(),
            }
        })
    });
    made.collect()
}

/// A number as a tensor of this type can hold it.
fn stored(number: f64, dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => f64::from(f32::from_bits((number as f32).to_bits() & 0xffff_0000)),
        DType::F32 | DType::I32 | DType::U32 | DType::Bool => f64::from(number as f32),
    }
}

/// Runs one step of `program` (with its collectives planned, not yet fused) on the backend and compares outputs
/// and updated state with the interpreter, which runs it before and after fusion too.
///
/// # Panics
/// Where anything differs by more than `tolerance`, relative to the largest element of its tensor.
pub fn check(program: &Program, bound: u32, tolerance: f64) {
    let arguments = arguments(program, bound);
    let options = Options { seed: 5, rounding: Rounding::None };
    let expected = interpret(program, &arguments, &options).unwrap_or_else(|fault| panic!("{fault}"));
    let mut fused = program.clone();
    fuse(&mut fused);
    let again = interpret_ranks(&fused, &arguments, &options)
        .unwrap_or_else(|fault| panic!("{fault}\n{}", text::print_step(&fused)));
    for (left, right) in expected.yields.iter().zip(&again.yields) {
        compare("fused", left, &right.ordered(left.dims()).data, 1e-9, &fused);
    }
    let memory = plan_memory(&fused);
    let features = TargetFeatures::host().expect("the host's features are known");
    let assembled = assemble(&fused, &memory, features)
        .unwrap_or_else(|error| panic!("{error}\n{}", text::print_step(&fused)));
    let bytes = assembled.program.to_bytes().unwrap_or_else(|error| panic!("{error}"));
    let loaded = dtlc_runtime::program::Program::from_bytes(&bytes).expect("the artifact loads");
    let options =
        SessionOptions { threads: None, timeout: Duration::from_secs(20), arena: ArenaStart::Poisoned };
    let mut session = Session::start(loaded, options).expect("the session starts");
    for (index, tensor) in arguments.iter().enumerate() {
        match index.checked_sub(program.states.len()) {
            None => {
                let host = host(program, program.ty(program.states[index].value), tensor);
                session.set_state(StateId(index as u32), &host).expect("the state fits");
            }
            Some(input) if program.inputs[input].name != "step" => {
                let input = &program.inputs[input];
                let host = host(program, program.ty(input.value), tensor);
                session.set_input(&input.name, &host).expect("the input fits");
            }
            Some(_) => {}
        }
    }
    session.step(1, 5).unwrap_or_else(|error| panic!("{error}"));
    for (position, (&value, left)) in program.main.yields.iter().zip(&expected.yields).enumerate() {
        let updated = program.states.iter().position(|state| state.updated == Some(value));
        let (name, got) = match updated {
            Some(state) => (program.states[state].path.clone(), session.state(StateId(state as u32))),
            None => {
                let output = position - (program.main.yields.len() - program.outputs.len());
                (program.outputs[output].name.clone(), session.output(&session.program().outputs[output]))
            }
        };
        let got: Vec<f64> = got.to_f32().into_iter().map(f64::from).collect();
        let dims = &program.ty(value).dims;
        compare(&name, &left.ordered(dims), &got, tolerance, &fused);
    }
}

fn host(program: &Program, ty: &Type, tensor: &Tensor) -> HostTensor {
    let shape: Vec<u64> = ty.dims.iter().map(|&dim| program.dims[dim].size).collect();
    let ordered = tensor.ordered(&ty.dims);
    match ty.dtype {
        DType::F32 | DType::Bf16 => {
            let values: Vec<f32> = ordered.data.iter().map(|&number| number as f32).collect();
            HostTensor::from_f32(&shape, &values)
        }
        DType::I32 | DType::U32 | DType::Bool => {
            let values: Vec<u32> = ordered.data.iter().map(|&number| number as u32).collect();
            HostTensor::from_u32(&shape, &values)
        }
    }
}

fn compare(name: &str, expected: &Tensor, got: &[f64], tolerance: f64, program: &Program) {
    assert_eq!(expected.data.len(), got.len(), "{name}");
    let scale = expected.data.iter().fold(1e-3f64, |most, value| most.max(value.abs()));
    for (index, (left, right)) in expected.data.iter().zip(got).enumerate() {
        let error = (left - right).abs() / scale;
        assert!(
            error < tolerance || left == right,
            "{name}[{index}] is {right}, not {left}\n{}",
            text::print_step(program)
        );
    }
}
