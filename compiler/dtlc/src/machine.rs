//! From a typed model and plan to ranks that run: compiles, goes through the bytes of the artifact, starts a session.

use crate::device::{Processor, Target};
use crate::failure::Failure;
use crate::figures::{Figures, refusals};
use crate::launcher::Launched;
use crate::pipeline::{Compilation, Mode, Stage, compile, compile_parts};
use dtlc_ir::{Dim, DimInfo, Literal, Op, Program as IrProgram, Region, ScalarOp, Value};
use dtlc_lang::model::Model;
use dtlc_lang::plan::Plan;
use dtlc_lang::{Compiled, SourceMap};
use dtlc_runtime::files::values::IndexBound;
use dtlc_runtime::program::Program;
use dtlc_runtime::session::{Options, Session, Watch};

/// Compiles a program and starts its ranks, with all state at zero.
///
/// # Errors
/// The model or the plan is at fault, this machine can't run it, or a bug. Training is held to what the plan promises.
pub fn start(
    compiled: &Compiled,
    mode: Mode,
    (processor, target): (&Processor, &Target),
    watch: Watch,
) -> Result<Session, Failure> {
    let options = Options { watch, ..Options::default() };
    launch(&artifact(compiled, mode, target, watch)?, processor, options, None)
}

/// Compiles a program to its artifact, with code for a target. Where every value is watched, no product's result passes unseen.
///
/// # Errors
/// The model or the plan is at fault, or a bug. Training is held to what the plan promises.
pub fn artifact(compiled: &Compiled, mode: Mode, target: &Target, watch: Watch) -> Result<Vec<u8>, Failure> {
    let compilation =
        compile(compiled, mode, Stage::Program).map_err(|trouble| trouble.into_failure(&compiled.sources))?;
    if mode == Mode::Train {
        let refused = refusals(compiled, &compilation, &Figures::new(compiled, &compilation)?)?;
        if !refused.is_empty() {
            return Err(Failure::Input { diagnostics: refused, sources: compiled.sources.clone() });
        }
    }
    bytes_of(compilation, target, watch)
}

/// The same for a model and plan of one's own making, which is held to nothing.
///
/// # Errors
/// As [`start`].
pub fn start_parts(
    sources: &SourceMap,
    model: &Model,
    plan: Option<&Plan>,
    mode: Mode,
    (processor, target): (&Processor, &Target),
) -> Result<Session, Failure> {
    let compilation = compile_parts(sources, model, plan, mode, Stage::Program)
        .map_err(|trouble| trouble.into_failure(sources))?;
    launch(&bytes_of(compilation, target, Watch::default())?, processor, Options::default(), None)
}

fn bytes_of(compilation: Compilation, target: &Target, watch: Watch) -> Result<Vec<u8>, Failure> {
    let mut assembled =
        compilation.assembled.ok_or_else(|| Failure::Bug("a compilation without a program".to_owned()))?;
    if watch.finite {
        assembled.program.take_epilogues_apart();
    }
    target.complete(&mut assembled)?;
    Ok(assembled.program.to_bytes()?)
}

/// Starts what was written: the bytes of an artifact. One of several processes first meets the others.
///
/// # Errors
/// This machine can't run it, or the others don't come.
pub fn launch(
    artifact: &[u8],
    processor: &Processor,
    options: Options,
    launched: Option<&Launched>,
) -> Result<Session, Failure> {
    let program = Program::from_bytes(artifact)?;
    let Some(launched) = launched else { return processor.start(None, program, options) };
    let others = launched.join(&program, artifact, options.timeout)?;
    let options = Options { threads: Some(launched.threads()), ..options };
    processor.start(Some(others), program, options)
}

/// What the integer inputs of a model index.
///
/// # Errors
/// The model or the plan is at fault, or a bug.
pub fn bounds(compiled: &Compiled) -> Result<Vec<IndexBound>, Failure> {
    let compilation = compile(compiled, Mode::Evaluate, Stage::Logical)
        .map_err(|trouble| trouble.into_failure(&compiled.sources))?;
    Ok(index_bounds(&compilation.logical))
}

/// What integer inputs index: a table that they take rows of, or the positions of a dimension that they are compared
/// with. Constants that an input is compared with are its marks, which may stand beside indices.
#[must_use]
pub fn index_bounds(program: &IrProgram) -> Vec<IndexBound> {
    let mut bounds = Vec::new();
    for input in &program.inputs {
        let mut found = Found::new(program, input.value);
        found.walk(&program.main);
        if let Some(dim) = found.dim {
            let DimInfo { name, size, .. } = &program.dims[dim];
            let (input, dim) = (input.name.clone(), name.clone());
            bounds.push(IndexBound { input, dim, below: *size, marks: found.marks });
        }
    }
    bounds
}

/// What is found on the way of an input through the program.
struct Found<'a> {
    program: &'a IrProgram,
    /// Values with the input's numbers.
    aliases: Vec<Value>,
    /// Values that count the positions of a dimension.
    counts: Vec<(Value, Dim)>,
    /// Constants.
    constants: Vec<(Value, u32)>,
    /// The smallest dimension that the input indexes.
    dim: Option<Dim>,
    marks: Vec<u32>,
}

impl<'a> Found<'a> {
    fn new(program: &'a IrProgram, input: Value) -> Self {
        let (counts, constants, marks) = (Vec::new(), Vec::new(), Vec::new());
        Self { program, aliases: vec![input], counts, constants, dim: None, marks }
    }

    fn walk(&mut self, region: &Region) {
        for inst in &region.insts {
            if let Op::Scan(scan) = &inst.op {
                // Its carries and slices are the body's first parameters, in the order of the arguments.
                for (&outer, &inner) in inst.args.iter().zip(&scan.body.params) {
                    self.follow(outer, &[inner]);
                }
                self.walk(&scan.body);
                continue;
            }
            if let Op::Take { dim } = &inst.op
                && inst.args.get(1).is_some_and(|ids| self.aliases.contains(ids))
            {
                self.indexes(*dim);
            } else if let Op::Iota { dim } = &inst.op {
                self.counts.extend(inst.results.iter().map(|&value| (value, *dim)));
            } else if let Op::Constant(Literal::Int(number)) = &inst.op {
                // A mark of -1 is that of 0xffffffff.
                self.constants.extend(inst.results.iter().map(|&value| (value, *number as u32)));
            } else if let (Op::Map(ScalarOp::Equal | ScalarOp::NotEqual), &[left, right]) =
                (&inst.op, inst.args.as_slice())
            {
                self.compared(left, right);
                self.compared(right, left);
            } else if keeps_numbers(&inst.op)
                && let Some(&first) = inst.args.first()
            {
                self.follow(first, &inst.results);
            }
        }
    }

    /// What `from` is, so are `to`.
    fn follow(&mut self, from: Value, to: &[Value]) {
        if self.aliases.contains(&from) {
            self.aliases.extend(to);
        }
        if let Some(&(_, dim)) = self.counts.iter().find(|(value, _)| *value == from) {
            self.counts.extend(to.iter().map(|&value| (value, dim)));
        }
        if let Some(&(_, number)) = self.constants.iter().find(|(value, _)| *value == from) {
            self.constants.extend(to.iter().map(|&value| (value, number)));
        }
    }

    fn compared(&mut self, value: Value, with: Value) {
        if !self.aliases.contains(&value) {
            return;
        }
        if let Some(&(_, dim)) = self.counts.iter().find(|(value, _)| *value == with) {
            self.indexes(dim);
        }
        if let Some(&(_, number)) = self.constants.iter().find(|(value, _)| *value == with)
            && !self.marks.contains(&number)
        {
            self.marks.push(number);
        }
    }

    fn indexes(&mut self, dim: Dim) {
        let size = |dim: Dim| self.program.dims[dim].size;
        if self.dim.is_none_or(|known| size(dim) < size(known)) {
            self.dim = Some(dim);
        }
    }
}

fn keeps_numbers(op: &Op) -> bool {
    let is_cast = matches!(op, Op::Map(ScalarOp::Cast));
    is_cast || matches!(op, Op::Rename { .. } | Op::Split { .. } | Op::Merge { .. } | Op::Slice { .. })
}
