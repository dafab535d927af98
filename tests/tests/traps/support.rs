//! What the traps share: texts compiled under a plan, ranks that run them, and exact comparison.

use dtlc::failure::Failure;
use dtlc::figures::{Figures, refusals};
use dtlc::pipeline::{self, Compilation, Mode, Stage};
use dtlc_lang::render::{Colour, render_all};
use dtlc_lang::{Compiled, Loaded, Options, PlanChoice};
use dtlc_runtime::program::{Program, StateId};
use dtlc_runtime::session::{ArenaStart, Options as SessionOptions, Session};
use dtlc_runtime::tensor::HostTensor;
use indexmap::IndexMap;
use std::fmt::Write;

/// Tensors by name.
pub type Tensors = IndexMap<String, HostTensor>;

/// A plan for model `M`.
pub struct Plan {
    pub name: &'static str,
    pub entries: &'static str,
}

/// A model and its plans as one file.
pub fn file(model: &str, plans: &[Plan]) -> String {
    let mut text = model.to_owned();
    for Plan { name, entries } in plans {
        let _ = writeln!(text, "\nplan {name} for M {{\n{entries}\n}}");
    }
    text
}

/// Compiles a text to the end.
///
/// # Errors
/// The report that a user would see.
pub fn compile(source: &str, plan: &str, mode: Mode) -> Result<(Compiled, Compilation), String> {
    let nothing = |_: &str, _: &[&str]| Loaded::Missing;
    let options = Options { plan: PlanChoice::Named(plan.to_owned()), overrides: Vec::new() };
    let typed = dtlc_lang::compile(&nothing, "case.dtl", source.as_bytes(), &options)
        .map_err(|rejected| render_all(&rejected.diagnostics, &rejected.sources, Colour::Never))?;
    match pipeline::compile(&typed, mode, Stage::Program) {
        Ok(compilation) => Ok((typed, compilation)),
        Err(trouble) => Err(report(&trouble.into_failure(&typed.sources))),
    }
}

/// What the plan promised and does not keep, as a user would see it.
pub fn broken_promises(source: &str, plan: &str) -> String {
    let (compiled, compilation) = compiled(source, plan, Mode::Train);
    let figures = Figures::new(&compiled, &compilation).unwrap_or_else(|failure| panic!("{failure:?}"));
    let refused = refusals(&compiled, &compilation, &figures).unwrap_or_else(|failure| panic!("{failure:?}"));
    render_all(&refused, &compiled.sources, Colour::Never)
}

/// What `explain` knows.
pub fn figures(source: &str, plan: &str) -> Figures {
    let (compiled, compilation) = compiled(source, plan, Mode::Train);
    Figures::new(&compiled, &compilation).unwrap_or_else(|failure| panic!("{failure:?}"))
}

/// [`compile`] of what has to compile.
pub fn compiled(source: &str, plan: &str, mode: Mode) -> (Compiled, Compilation) {
    compile(source, plan, mode).unwrap_or_else(|report| panic!("{plan}: {report}\n{source}"))
}

fn report(failure: &Failure) -> String {
    match failure {
        Failure::Input { diagnostics, sources } => render_all(diagnostics, sources, Colour::Never),
        other => format!("{other:?}"),
    }
}

/// The ranks of a plan, with the initial values of a seed, memory poisoned so that a read of pads or of what was never
/// written shows.
pub fn session(source: &str, plan: &str, mode: Mode) -> Session {
    let (_, compilation) = compiled(source, plan, mode);
    let assembled = compilation.assembled.expect("the last stage was asked for");
    let bytes = assembled.program.to_bytes().unwrap_or_else(|error| panic!("{plan}: {error}"));
    let program = Program::from_bytes(&bytes).unwrap_or_else(|error| panic!("{plan}: {error}"));
    let options = SessionOptions { arena: ArenaStart::Poisoned, ..SessionOptions::default() };
    let mut session = Session::start(program, options).unwrap_or_else(|error| panic!("{plan}: {error}"));
    session.initialise(3).unwrap_or_else(|error| panic!("{plan}: {error}"));
    session
}

/// The outputs of a step.
pub fn step(session: &mut Session, number: u64, inputs: &Tensors) -> Tensors {
    for (name, tensor) in inputs {
        session.set_input(name, tensor).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    session.step(number, 7).unwrap_or_else(|error| panic!("{error}"));
    dtlc_runtime::train::outputs(session).unwrap_or_else(|error| panic!("{error}"))
}

/// Loss, outputs and gradients of one evaluation.
pub fn evaluate(source: &str, plan: &str, inputs: &Tensors) -> Tensors {
    step(&mut session(source, plan, Mode::Gradients), 1, inputs)
}

/// All state by role and path: parameters, master weights, the optimizer's.
pub fn states(session: &Session) -> Tensors {
    let named = session.program().state.iter().enumerate().map(|(index, state)| {
        (
            format!("{:?} {}", state.role, state.path),
            session.state(StateId(index as u32)).expect("it can be read"),
        )
    });
    named.collect()
}

/// Tokens and labels of some rows: tokens spread over the vocabulary, labels valid in the first `valid[row]` positions.
pub fn rows(positions: usize, vocabulary: u32, valid: &[usize]) -> Tensors {
    let shape = [valid.len() as u64, positions as u64];
    let cells = || (0..valid.len()).flat_map(|row| (0..positions).map(move |column| (row, column)));
    let number = |row: usize, column: usize, by: u32| (row as u32 * 17 + column as u32 * 5 + by) % vocabulary;
    let tokens: Vec<u32> = cells().map(|(row, column)| number(row, column, 1)).collect();
    let label = |(row, column)| if column < valid[row] { number(row, column, 3) } else { u32::MAX };
    let labels: Vec<u32> = cells().map(label).collect();
    [("tokens", tokens), ("labels", labels)]
        .map(|(name, numbers)| (name.to_owned(), HostTensor::from_u32(&shape, &numbers)))
        .into()
}

/// Numbers between -0.5 and 0.5 that repeat late.
pub fn wave(shape: &[u64], step: usize) -> HostTensor {
    let count: u64 = shape.iter().product();
    let values: Vec<f32> =
        (0..count as usize).map(|index| ((index * step + 3) % 101) as f32 / 100.0 - 0.5).collect();
    HostTensor::from_f32(shape, &values)
}

/// Every tensor within `tolerance` of the largest element of the expected one, which a gradient of all zeros fails to
/// be by being not zero.
pub fn assert_close(expected: &Tensors, got: &Tensors, tolerance: f32, what: &str) {
    assert_eq!(expected.keys().collect::<Vec<_>>(), got.keys().collect::<Vec<_>>(), "{what}");
    for (name, tensor) in expected {
        let (left, right) = (tensor.to_f32(), got[name].to_f32());
        assert_eq!(left.len(), right.len(), "{what}: {name}");
        let scale = left.iter().fold(0f32, |most, value| most.max(value.abs()));
        for (index, (left, right)) in left.iter().zip(&right).enumerate() {
            let near = (left - right).abs() <= tolerance * scale;
            assert!(near, "{what}: {name}[{index}] is {right}, not {left}");
        }
    }
}

/// Every tensor the same to the bit.
pub fn assert_same_bits(expected: &Tensors, got: &Tensors, what: &str) {
    assert_eq!(expected.keys().collect::<Vec<_>>(), got.keys().collect::<Vec<_>>(), "{what}");
    for (name, tensor) in expected {
        assert_eq!(tensor.shape, got[name].shape, "{what}: {name}");
        let at = tensor.bytes.iter().zip(&got[name].bytes).position(|(left, right)| left != right);
        assert_eq!(at, None, "{what}: {name} differs from this byte on");
    }
}
