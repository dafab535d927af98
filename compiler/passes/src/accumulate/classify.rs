//! How each value depends on the micro-batch, with the dimension of micro-batches seen as an axis in time.
//!
//! A value that has the dimension varies. What a reduction or product sums over it is a partial result: each
//! micro-batch contributes, and the sum is there when the last one is done. Partial results stay partial through
//! what is linear in them. Whatever else uses one needs the sum, so it belongs to the level after: the values
//! of level `n` can be computed once `n` loops over the micro-batches are done.

use crate::error::{PassError, PassErrorKind};
use crate::uses::captures;
use cranelift_entity::SecondaryMap;
use dtlc_ir::{DType, Dim, Inst, Op, Phase, Program, ReduceOp, Region, ScalarOp, Scan, Value};

/// How a value depends on the micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The same for all.
    Fixed,
    /// One for each.
    Varying,
    /// Combined over all of them.
    Partial(ReduceOp),
}

/// A class, with the number of loops that have to be done before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fact {
    /// The class.
    pub class: Class,
    /// The level.
    pub level: usize,
}

impl Fact {
    /// The level from which on all of the value is there.
    fn complete(self) -> usize {
        match self.class {
            Class::Fixed | Class::Varying => self.level,
            Class::Partial(_) => self.level + 1,
        }
    }
}

/// What is known of each value.
pub type Facts = SecondaryMap<Value, Option<Fact>>;

/// Whether an instruction has to run once for each micro-batch.
pub fn is_rolled(facts: &Facts, inst: &Inst) -> bool {
    let rolled = |value: &Value| facts[*value].is_some_and(|fact| fact.class != Class::Fixed);
    inst.results.iter().any(rolled)
}

/// The level that an instruction belongs to.
pub fn level_of(facts: &Facts, inst: &Inst) -> usize {
    inst.results.iter().filter_map(|&result| facts[result]).map(|fact| fact.level).max().unwrap_or(0)
}

/// Classifies every value of a program.
///
/// # Errors
/// Micro-batches meet in a way that is no sum, where only a sum will do.
pub fn classify(program: &Program, micro: Dim) -> Result<Facts, PassError> {
    let mut classifier = Classifier { program, micro, facts: SecondaryMap::new() };
    for &param in &program.main.params {
        let class = if program.ty(param).has(micro) { Class::Varying } else { Class::Fixed };
        classifier.facts[param] = Some(Fact { class, level: 0 });
    }
    classifier.main(&program.main)?;
    Ok(classifier.facts)
}

/// The error of a program whose micro-batches cannot be worked through one by one.
pub fn not_a_sum(program: &Program, value: Value) -> PassError {
    let what = program.values[value].name.as_ref().map_or("a sum".to_string(), |name| format!("`{name}`"));
    let text = format!(
        "the loss is not a sum over micro-batches: it needs {what} over all of them before each can be differentiated"
    );
    PassError::at_value(PassErrorKind::NotASum, program, value, text).with_help(
        "`mean(…, over = …)` divides by a count that is known before; without `micro` any loss will do",
    )
}

/// The class of a value as seen from an instruction of level `level`: by then older partial results are complete.
pub fn class_at(facts: &Facts, value: Value, level: usize) -> Class {
    match facts[value] {
        None => Class::Fixed,
        Some(Fact { class: Class::Partial(_), level: own }) if own < level => Class::Fixed,
        Some(fact) => fact.class,
    }
}

struct Classifier<'program> {
    program: &'program Program,
    micro: Dim,
    facts: Facts,
}

impl Classifier<'_> {
    fn level(&self, value: Value) -> usize {
        self.facts[value].map_or(0, |fact| fact.level)
    }

    fn complete(&self, value: Value) -> usize {
        self.facts[value].map_or(0, Fact::complete)
    }

    fn has_micro(&self, value: Value) -> bool {
        self.program.ty(value).has(self.micro)
    }

    fn main(&mut self, region: &Region) -> Result<(), PassError> {
        for inst in &region.insts {
            let (earliest, complete) = self.levels(inst);
            if let Op::Scan(scan) = &inst.op {
                self.scan(scan, inst, earliest)?;
                continue;
            }
            let fact = match self.contraction(inst)? {
                Some(class) => Fact { class, level: complete },
                None => {
                    let mut args = inst.args.iter();
                    let partial = args.any(|&arg| class_at(&self.facts, arg, earliest) != Class::Fixed);
                    if partial
                        && inst.phase != Phase::Update
                        && self.is_linear(inst, Terms::Partial, earliest)
                    {
                        Fact { class: Class::Partial(ReduceOp::Sum), level: earliest }
                    } else {
                        Fact { class: Class::Fixed, level: complete }
                    }
                }
            };
            self.set(inst, fact);
        }
        Ok(())
    }

    /// The first level at which an instruction can use its arguments, partial ones among them, and the
    /// first at which all are complete. A scan takes only its initial carries partial.
    fn levels(&self, inst: &Inst) -> (usize, usize) {
        let complete = |values: &[Value]| values.iter().map(|&value| self.complete(value)).max().unwrap_or(0);
        let linear = match &inst.op {
            Op::Scan(scan) => scan.carries,
            _ => inst.args.len(),
        };
        let mut earliest = inst.args[..linear].iter().map(|&arg| self.level(arg)).max().unwrap_or(0);
        if let Op::Scan(scan) = &inst.op {
            earliest = earliest.max(complete(&inst.args[linear..])).max(complete(&captures(&scan.body)));
        }
        (earliest, complete(&inst.args))
    }

    fn set(&mut self, inst: &Inst, fact: Fact) {
        for &result in &inst.results {
            let class = if self.has_micro(result) { Class::Varying } else { fact.class };
            self.facts[result] = Some(Fact { class, ..fact });
        }
    }

    /// The class of what varies or is combined over micro-batches right here; none for the rest.
    fn contraction(&self, inst: &Inst) -> Result<Option<Class>, PassError> {
        let keeps = inst.results.iter().any(|&result| self.has_micro(result));
        let reads = inst.args.iter().any(|&arg| self.has_micro(arg));
        if mentions(&inst.op, self.micro) {
            return Err(not_a_sum(self.program, inst.results[0]));
        }
        Ok(match (&inst.op, keeps, reads) {
            (_, false, false) => None,
            (Op::Reduce { op, .. }, false, true) => Some(Class::Partial(*op)),
            (Op::AttentionGradient(_), _, true) => Some(Class::Partial(ReduceOp::Sum)),
            (_, true, _) => Some(Class::Varying),
            (_, false, true) => Some(Class::Partial(ReduceOp::Sum)),
        })
    }

    /// Whether an instruction of level `level` is linear in its partial arguments together.
    fn is_linear(&self, inst: &Inst, terms: Terms, level: usize) -> bool {
        let class = |index: usize| class_at(&self.facts, inst.args[index], level);
        let partial = |index: usize| class(index) == Class::Partial(ReduceOp::Sum);
        let term = |index: usize| partial(index) || (terms == Terms::Any && class(index) == Class::Fixed);
        let only = |wanted: usize| (0..inst.args.len()).all(|index| partial(index) == (index == wanted));
        match &inst.op {
            Op::Map(ScalarOp::Add | ScalarOp::Sub) => term(0) && term(1),
            Op::Map(ScalarOp::Neg) | Op::StopGradient => partial(0),
            Op::Map(ScalarOp::Cast) => partial(0) && (terms == Terms::Any || self.keeps_all(inst)),
            Op::Map(ScalarOp::Mul) => only(0) || only(1),
            Op::Map(ScalarOp::Div) => only(0),
            Op::Map(ScalarOp::Select) => class(0) == Class::Fixed && term(1) && term(2),
            Op::Reduce { op, .. } => *op == ReduceOp::Sum && partial(0),
            Op::Rename { .. } | Op::Split { .. } | Op::Merge { .. } | Op::Slice { .. } => partial(0),
            Op::Pad { .. } => partial(0) && terms == Terms::Any,
            Op::Dot(_) => terms == Terms::Any && (only(0) || only(1)),
            Op::Take { .. } | Op::ScatterAdd { .. } => terms == Terms::Any && only(0),
            Op::Concat { .. } => terms == Terms::Any && (0..inst.args.len()).all(term),
            Op::Constant(_)
            | Op::Iota { .. }
            | Op::Map(_)
            | Op::Random { .. }
            | Op::Attention(_)
            | Op::AttentionGradient(_)
            | Op::Scan(_)
            | Op::Reshard(_)
            | Op::LocalSlice
            | Op::Collective(_)
            | Op::Done
            | Op::Fused(_) => false,
        }
    }

    /// Whether a cast neither rounds nor repeats elements: a sum of its results is as good as one of its arguments.
    fn keeps_all(&self, inst: &Inst) -> bool {
        let (from, to) = (self.program.ty(inst.args[0]), self.program.ty(inst.results[0]));
        from.dims.len() == to.dims.len() && (from.dtype == to.dtype || to.dtype == DType::F32)
    }

    /// The body of a scan is all of one level: a partial result cannot be completed in there.
    fn scan(&mut self, scan: &Scan, inst: &Inst, level: usize) -> Result<(), PassError> {
        if scan.outputs.iter().any(|output| output.has_initial()) {
            return Err(PassError::bug("an accumulating scan before accumulation"));
        }
        for (index, (&param, &arg)) in scan.body.params.iter().zip(&inst.args).enumerate() {
            let class = class_at(&self.facts, arg, level);
            let sum = index < scan.carries && class == Class::Partial(ReduceOp::Sum);
            if matches!(class, Class::Partial(_)) && !sum {
                return Err(not_a_sum(self.program, arg));
            }
            self.facts[param] = Some(Fact { class, level });
        }
        for value in captures(&scan.body) {
            if let Class::Partial(_) = class_at(&self.facts, value, level) {
                return Err(not_a_sum(self.program, value));
            }
        }
        loop {
            self.body(&scan.body, level)?;
            let mut changed = false;
            for (&param, &next) in scan.body.params[..scan.carries].iter().zip(&scan.body.yields) {
                changed |= self.join_carry(param, next, level)?;
            }
            if !changed {
                break;
            }
        }
        for (index, (&result, &value)) in inst.results.iter().zip(&scan.body.yields).enumerate() {
            let carried = scan.body.params.get(index).filter(|_| index < scan.carries);
            let class = class_at(&self.facts, *carried.unwrap_or(&value), level);
            self.facts[result] = Some(Fact { class, level });
        }
        Ok(())
    }

    /// A carry to which iterations add partial results is one.
    fn join_carry(&mut self, param: Value, next: Value, level: usize) -> Result<bool, PassError> {
        let [before, after] = [param, next].map(|value| class_at(&self.facts, value, level));
        match (before, after) {
            (Class::Fixed, Class::Partial(ReduceOp::Sum)) => {
                self.facts[param] = Some(Fact { class: after, level });
                Ok(true)
            }
            (_, Class::Partial(ReduceOp::Max)) => Err(not_a_sum(self.program, next)),
            _ => Ok(false),
        }
    }

    fn body(&mut self, region: &Region, level: usize) -> Result<(), PassError> {
        for inst in &region.insts {
            if let Op::Scan(scan) = &inst.op {
                self.scan(scan, inst, level)?;
                continue;
            }
            let is_partial = |&arg: &Value| matches!(class_at(&self.facts, arg, level), Class::Partial(_));
            let partial = inst.args.iter().copied().find(is_partial);
            let class = match (self.contraction(inst)?, partial) {
                (Some(class), None) => class,
                (None, None) => Class::Fixed,
                (None, Some(_)) if self.is_linear(inst, Terms::Any, level) => Class::Partial(ReduceOp::Sum),
                (_, Some(value)) => return Err(not_a_sum(self.program, value)),
            };
            self.set(inst, Fact { class, level });
        }
        Ok(())
    }
}

/// Which terms a sum with a partial one may have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Terms {
    /// Partial ones alone, and only what makes the sum no larger: the rest can wait.
    Partial,
    /// Fixed ones too: each micro-batch adds an equal share of them.
    Any,
}

/// Whether an operation names the dimension in a way that makes micro-batches meet.
fn mentions(op: &Op, micro: Dim) -> bool {
    match op {
        Op::Rename { from, to } => *from == micro || *to == micro,
        Op::Split { dim, into } => *dim == micro || into.contains(&micro),
        Op::Merge { dims, into } => *into == micro || dims.contains(&micro),
        Op::Slice { dim, into, .. } => *dim == micro || *into == Some(micro),
        Op::Pad { dim, into, .. } => *dim == Some(micro) || *into == micro,
        Op::Concat { pieces, into } => *into == micro || pieces.contains(&Some(micro)),
        Op::Take { dim } | Op::ScatterAdd { dim } => *dim == micro,
        Op::Attention(attention) | Op::AttentionGradient(attention) => {
            [attention.query, attention.key, attention.head, attention.value].contains(&micro)
        }
        Op::Scan(scan) => scan.dim == micro,
        Op::Constant(_)
        | Op::Iota { .. }
        | Op::Map(_)
        | Op::Reduce { .. }
        | Op::Dot(_)
        | Op::Random { .. }
        | Op::StopGradient
        | Op::Reshard(_)
        | Op::LocalSlice
        | Op::Collective(_)
        | Op::Done
        | Op::Fused(_) => false,
    }
}
