//! Runs a planned program on a backend, the CPU's or one that a test brings, and holds every result against the
//! reference interpreter.

use dtlc_codegen::assemble::{Assembled, assemble};
use dtlc_codegen::cranelift::TargetFeatures;
use dtlc_ir::interpret::{Options, Rounding, Tensor, interpret, interpret_ranks};
use dtlc_ir::{DType, Program, Type, text};
use dtlc_passes::{fuse, memory::plan_memory, start_collectives};
use dtlc_runtime::program::StateId;
use dtlc_runtime::session::{ArenaStart, Options as SessionOptions, Session};
use dtlc_runtime::tensor::HostTensor;
use std::time::Duration;

/// Starts an assembled program somewhere.
pub type Start = fn(Assembled) -> Result<Session, String>;

/// Starts an assembled program on the CPU.
///
/// # Errors
/// The program is not valid, or can't be started.
pub fn on_cpu(assembled: Assembled) -> Result<Session, String> {
    Session::start(reread(&assembled)?, options()).map_err(|error| error.to_string())
}

/// The program as its bytes have it.
///
/// # Errors
/// The program is not valid.
pub fn reread(assembled: &Assembled) -> Result<dtlc_runtime::program::Program, String> {
    let bytes = assembled.program.to_bytes().map_err(|error| error.to_string())?;
    dtlc_runtime::program::Program::from_bytes(&bytes).map_err(|error| error.to_string())
}

/// How tests run programs: what was never written is no number.
pub fn options() -> SessionOptions {
    SessionOptions {
        timeout: Duration::from_secs(20),
        arena: ArenaStart::Poisoned,
        ..SessionOptions::default()
    }
}

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
        DType::F16 => dtlc_ir::interpret::stored(number, dtype),
        DType::F32 | DType::I32 | DType::U32 | DType::Bool => f64::from(number as f32),
    }
}

/// Runs one step of `program` (with its collectives planned, not yet fused) on the CPU and compares outputs
/// and updated state with the interpreter, which runs it before and after fusion too.
///
/// # Panics
/// Where anything differs by more than `tolerance`, relative to the largest element of its tensor.
pub fn check(program: &Program, bound: u32, tolerance: f64) {
    check_on(program, bound, tolerance, on_cpu);
}

/// [`check`] somewhere else.
///
/// # Panics
/// As [`check`].
pub fn check_on(program: &Program, bound: u32, tolerance: f64, on: Start) {
    let arguments = arguments(program, bound);
    let options = Options { seed: 5, rounding: Rounding::None };
    let expected = interpret(program, &arguments, &options).unwrap_or_else(|fault| panic!("{fault}"));
    let mut fused = program.clone();
    fuse(&mut fused);
    start_collectives(&mut fused);
    let again = interpret_ranks(&fused, &arguments, &options)
        .unwrap_or_else(|fault| panic!("{fault}\n{}", text::print_step(&fused)));
    for (left, right) in expected.yields.iter().zip(&again.yields) {
        compare("fused", left, &right.ordered(left.dims()).data, 1e-9, &fused);
    }
    let got = start(&fused, on).and_then(|mut session| step_of(&mut session, &fused, &arguments, 1, 5));
    let got = got.unwrap_or_else(|error| panic!("{error}\n{}", text::print_step(&fused)));
    for ((&value, left), right) in program.main.yields.iter().zip(&expected.yields).zip(&got) {
        let updated = program.states.iter().find(|state| state.updated == Some(value));
        let output = program.outputs.iter().find(|output| output.value == value);
        let name = updated.map(|state| &state.path).or(output.map(|output| &output.name));
        let name = name.map_or("?", String::as_str);
        compare(name, &left.ordered(&program.ty(value).dims), &right.data, tolerance, &fused);
    }
}

/// What the main region of a fused program yields on the backend, each tensor with the dims of its type.
///
/// # Errors
/// The program can't be assembled or run.
pub fn run(fused: &Program, arguments: &[Tensor], step: u64, seed: u64) -> Result<Vec<Tensor>, String> {
    let mut session = start(fused, on_cpu)?;
    step_of(&mut session, fused, arguments, step, seed)
}

/// The same twice, in one session.
///
/// # Errors
/// As [`run`].
pub fn run_twice(
    fused: &Program,
    arguments: &[Tensor],
    step: u64,
    seed: u64,
    on: Start,
) -> Result<[Vec<Tensor>; 2], String> {
    let mut session = start(fused, on)?;
    let first = step_of(&mut session, fused, arguments, step, seed)?;
    Ok([first, step_of(&mut session, fused, arguments, step, seed)?])
}

fn start(fused: &Program, on: Start) -> Result<Session, String> {
    let fused = Program { memory: Some(plan_memory(fused)), ..fused.clone() };
    let features = TargetFeatures::host()?;
    on(assemble(&fused, features).map_err(|error| error.to_string())?)
}

fn step_of(
    session: &mut Session,
    program: &Program,
    arguments: &[Tensor],
    step: u64,
    seed: u64,
) -> Result<Vec<Tensor>, String> {
    for (index, tensor) in arguments.iter().enumerate() {
        match index.checked_sub(program.states.len()) {
            None => {
                let host = host(program, program.ty(program.states[index].value), tensor);
                session.set_state(StateId(index as u32), &host).map_err(|error| error.to_string())?;
            }
            Some(input) if program.inputs[input].name != "step" => {
                let input = &program.inputs[input];
                let host = host(program, program.ty(input.value), tensor);
                session.set_input(&input.name, &host).map_err(|error| error.to_string())?;
            }
            Some(_) => {}
        }
    }
    session.step(step, seed).map_err(|error| error.to_string())?;
    let mut tensors = Vec::new();
    for (position, &value) in program.main.yields.iter().enumerate() {
        let updated = program.states.iter().position(|state| state.updated == Some(value));
        let got = match updated {
            Some(state) => session.state(StateId(state as u32)),
            None => {
                let output = position - (program.main.yields.len() - program.outputs.len());
                session.output(&session.program().outputs[output])
            }
        };
        let got = got.map_err(|error| error.to_string())?;
        let shape = program.ty(value).dims.iter().map(|&dim| (dim, program.dims[dim].size as usize));
        let numbers = got.to_f32();
        if numbers.len() != shape.clone().map(|(_, size)| size).product::<usize>() {
            return Err(format!("a result of {} elements", numbers.len()));
        }
        tensors.push(Tensor::from_fn(shape, |index| f64::from(numbers[index])));
    }
    Ok(tensors)
}

fn host(program: &Program, ty: &Type, tensor: &Tensor) -> HostTensor {
    let shape: Vec<u64> = ty.dims.iter().map(|&dim| program.dims[dim].size).collect();
    let ordered = tensor.ordered(&ty.dims);
    match ty.dtype {
        DType::F32 | DType::Bf16 | DType::F16 => {
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
