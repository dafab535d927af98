//! Random parameters and inputs, equal for every sharding.

use crate::failure::Failure;
use dtlc_ir::philox;
use dtlc_runtime::files::values::IndexBound;
use dtlc_runtime::program::{DType, Initial, Program, Role, StateId};
use dtlc_runtime::session::Session;
use dtlc_runtime::tensor::HostTensor;
use indexmap::IndexMap;

/// What is added to parameters that start constant: ones and zeros would hide what is scaled or added once too often.
const NOISE: f32 = 0.1;
/// One label in so many is marked as one that does not count.
const IGNORED: u64 = 8;
/// Bound on integers that index nothing.
const NO_TABLE: u64 = 16;

/// The parameters as a session starts with them, constant ones with noise.
///
/// # Errors
/// A bug.
pub fn weights(session: &mut Session, seed: u64) -> Result<IndexMap<String, HostTensor>, Failure> {
    let program = session.program().clone();
    let mut weights = IndexMap::new();
    for (index, tensor) in program.state.iter().enumerate() {
        if tensor.role != Role::Parameter {
            continue;
        }
        let whole = session.state(StateId(index as u32))?;
        let mut values = whole.to_f32();
        if let Initial::Constant(_) = tensor.initial {
            let noise = numbers(seed, index as u32);
            values.iter_mut().zip(noise).for_each(|(value, number)| *value += NOISE * (2.0 * number - 1.0));
        }
        weights.insert(tensor.path.clone(), HostTensor::from_f32(&whole.shape, &values));
    }
    Ok(weights)
}

/// A value for every input. Integers stay below the size of the table that they index.
#[must_use]
pub fn inputs(
    program: &Program,
    bounds: &[IndexBound],
    ignored: bool,
    seed: u64,
) -> IndexMap<String, HostTensor> {
    let smallest = bounds.iter().map(|bound| bound.below).min().unwrap_or(NO_TABLE);
    let mut inputs = IndexMap::new();
    for (index, input) in program.inputs.iter().enumerate() {
        let shape = input.layout.global_shape();
        let count = input.layout.global_elements();
        // Streams of inputs stand behind those of parameters.
        let drawn: Vec<f32> = numbers(seed, u32::MAX - index as u32).take(count as usize).collect();
        let known = bounds.iter().find(|bound| bound.input == input.name);
        let bound = known.map_or(smallest, |known| known.below);
        let is_label = ignored && known.is_none_or(|known| known.marks.contains(&u32::MAX));
        let integer = |(position, number): (usize, &f32)| {
            let marked = is_label && position as u64 % IGNORED == IGNORED - 1;
            if marked { u32::MAX } else { (f64::from(*number) * bound as f64) as u32 }
        };
        let tensor = match input.layout.dtype {
            DType::F32 | DType::Bf16 | DType::F16 => {
                let centred: Vec<f32> = drawn.iter().map(|number| 2.0 * number - 1.0).collect();
                HostTensor::from_f32(&shape, &centred)
            }
            DType::U32 | DType::I32 => {
                let integers: Vec<u32> = drawn.iter().enumerate().map(integer).collect();
                let tensor = HostTensor::from_u32(&shape, &integers);
                HostTensor { dtype: input.layout.dtype, ..tensor }
            }
            DType::Bool => {
                let bytes = drawn.iter().map(|&number| u8::from(number < 0.5)).collect();
                HostTensor { dtype: DType::Bool, shape, bytes }
            }
        };
        inputs.insert(input.name.clone(), tensor);
    }
    inputs
}

/// Gives a session parameters, with what starts as a copy of them, and inputs.
///
/// # Errors
/// What does not fit: a bug.
pub fn set(
    session: &mut Session,
    weights: &IndexMap<String, HostTensor>,
    inputs: &IndexMap<String, HostTensor>,
) -> Result<(), Failure> {
    let state: Vec<(String, Role)> =
        session.program().state.iter().map(|tensor| (tensor.path.clone(), tensor.role.clone())).collect();
    for (index, (path, role)) in state.iter().enumerate() {
        let is_copy = matches!(role, Role::Parameter | Role::Master);
        // A master copy is named after its parameter.
        let owner = path.strip_suffix(".master").unwrap_or(path);
        let value = weights.get(path).or_else(|| weights.get(owner));
        if let Some(value) = value.filter(|_| is_copy) {
            session.set_state(StateId(index as u32), value)?;
        }
    }
    for (name, tensor) in inputs {
        session.set_input(name, tensor)?;
    }
    Ok(())
}

/// Numbers in [0, 1): one stream for each tensor.
fn numbers(seed: u64, stream: u32) -> impl Iterator<Item = f32> {
    let key = [seed as u32, (seed >> 32) as u32];
    (0u32..).flat_map(move |counter| philox([counter, stream, 0, 0], key)).map(|word| {
        // 24 bits, so that the fraction is exact in f32 and below 1.
        (word >> 8) as f32 / (1u32 << 24) as f32
    })
}
