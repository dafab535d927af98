//! What rounding does to a plan's results: from its program before fusion and the numbers that a session starts from to results that
//! differ in how each value was rounded.
//!
//! The reference interpreter computes them rank by rank, so they have the roundings that a plan adds. Judges nothing.

use crate::failure::Failure;
use dtlc_ir::interpret::{Options, Outcome, Rounding, Tensor, interpret_ranks};
use dtlc_ir::{DType, Program, Value};
use dtlc_runtime::files::weights::{holders, unstack};
use dtlc_runtime::program::StateId;
use dtlc_runtime::session::Session;
use dtlc_runtime::tensor::HostTensor;
use indexmap::IndexMap;

/// A normal error is larger than so many times the root mean square of three others once in a thousand (Student's t, three degrees of
/// freedom, both sides).
pub const STUDENT: f64 = 12.924;

/// Results by name, as a session has them.
pub type Results = IndexMap<String, HostTensor>;

/// A step that can be interpreted.
pub struct Interpreted<'a> {
    program: &'a Program,
    session: &'a Session,
    seed: u64,
    arguments: Vec<Tensor>,
}

impl<'a> Interpreted<'a> {
    /// Step 1 of `session` on these inputs. `program` is what the session's was made from, before fusion.
    ///
    /// # Errors
    /// The session can't tell its state, or the two don't fit: a bug.
    pub fn first_step(
        program: &'a Program,
        session: &'a Session,
        inputs: &Results,
        seed: u64,
    ) -> Result<Interpreted<'a>, Failure> {
        let mut arguments = Vec::new();
        for (index, state) in program.states.iter().enumerate() {
            arguments.push(tensor(program, state.value, &session.state(StateId(index as u32))?)?);
        }
        for input in &program.inputs {
            arguments.push(match (inputs.get(&input.name), input.name.as_str()) {
                (Some(given), _) => tensor(program, input.value, given)?,
                (None, "step") => Tensor::from_fn([], |_| 1.0),
                (None, other) => return Err(Failure::Bug(format!("no input `{other}` to interpret"))),
            });
        }
        Ok(Interpreted { program, session, seed, arguments })
    }

    /// Its outputs, the loss and gradients, so rounded.
    ///
    /// # Errors
    /// A bug.
    pub fn outputs(&self, rounding: Rounding) -> Result<Results, Failure> {
        let outcome = self.run(rounding)?;
        let mut results = Results::new();
        for (output, named) in self.program.outputs.iter().zip(&self.session.program().outputs) {
            let yielded = outcome.output(self.program, &output.name);
            let whole = self.host(yielded, output.value, &named.layout.global_shape())?;
            results.extend(unstack(&named.name, whole));
        }
        Ok(results)
    }

    /// Its updated parameters, so rounded; of those with a master copy, that.
    ///
    /// # Errors
    /// A bug.
    pub fn parameters(&self, rounding: Rounding) -> Result<Results, Failure> {
        let outcome = self.run(rounding)?;
        let held = &self.session.program().state;
        let mut results = Results::new();
        for (StateId(holder), name) in holders(self.session.program()) {
            let source = holder as usize;
            let state = &self.program.states[source];
            let updated = state.updated.unwrap_or(state.value);
            let yielded = outcome.state(self.program, &state.path).or(self.arguments.get(source));
            let whole = self.host(yielded, updated, &held[source].layout.global_shape())?;
            results.extend(unstack(&name, whole));
        }
        Ok(results)
    }

    fn run(&self, rounding: Rounding) -> Result<Outcome, Failure> {
        let options = Options { seed: self.seed, rounding };
        interpret_ranks(self.program, &self.arguments, &options)
            .map_err(|fault| Failure::Bug(format!("the interpreter refuses the step: {fault}")))
    }

    fn host(&self, tensor: Option<&Tensor>, value: Value, shape: &[u64]) -> Result<HostTensor, Failure> {
        let missing = || Failure::Bug("a result that the interpreter has not".to_owned());
        let ordered = tensor.ok_or_else(missing)?.ordered(&self.program.ty(value).dims);
        let numbers: Vec<f32> = ordered.data.iter().map(|&number| number as f32).collect();
        Ok(HostTensor::from_f32(shape, &numbers))
    }
}

fn tensor(program: &Program, value: Value, host: &HostTensor) -> Result<Tensor, Failure> {
    let ty = program.ty(value);
    let numbers: Vec<f64> = match ty.dtype {
        DType::F32 | DType::Bf16 | DType::F16 => host.to_f32().into_iter().map(f64::from).collect(),
        DType::U32 => words(host).map(|word| f64::from(u32::from_le_bytes(word))).collect(),
        DType::I32 => words(host).map(|word| f64::from(i32::from_le_bytes(word))).collect(),
        DType::Bool => host.bytes.iter().map(|&byte| f64::from(byte)).collect(),
    };
    let shape = ty.dims.iter().map(|&dim| (dim, program.dims[dim].size as usize));
    if shape.clone().map(|(_, size)| size).product::<usize>() != numbers.len() {
        let name = program.display_value(value);
        return Err(Failure::Bug(format!("%{name} has another size in the session")));
    }
    Ok(Tensor::from_fn(shape, |index| numbers[index]))
}

fn words(host: &HostTensor) -> impl Iterator<Item = [u8; 4]> {
    host.bytes.as_chunks::<4>().0.iter().copied()
}
