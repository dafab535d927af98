//! The loop shape of a kernel, and which instruction fits which shape.

use dtlc_ir::{Dim, Inst, Op, Program, ScalarOp, Value};

/// A loop: a dimension, and how much of it each rank holds. Equal dimensions that are split differently are
/// different loops.
pub(super) type Extent = (Dim, u64);

/// The loops that a kernel will run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// One point after another, over these dims.
    Pointwise(Vec<Extent>),
    /// For each point of `outer`, several passes over `inner`: what lies between them are reductions
    /// over `inner`, and values that have the dims of `outer` only.
    Row {
        /// Dims of a row's number.
        outer: Vec<Extent>,
        /// Dims within a row, all of them reduced by its reductions.
        inner: Vec<Extent>,
    },
    /// One reduction over dims that are not the innermost.
    Column,
}

impl Shape {
    /// All dims of the iteration, outermost first; nothing for a column.
    fn full(&self) -> Vec<Extent> {
        match self {
            Shape::Pointwise(dims) => dims.clone(),
            Shape::Row { outer, inner } => outer.iter().chain(inner).copied().collect(),
            Shape::Column => Vec::new(),
        }
    }

    /// The shape of a kernel for this instruction alone.
    pub(super) fn of(program: &Program, inst: &Inst) -> Shape {
        let result = extents_of(program, inst.results[0]);
        match &inst.op {
            Op::Reduce { .. } => match reduced_suffix(program, inst) {
                Some(inner) => Shape::Row { outer: result, inner },
                None => Shape::Column,
            },
            _ => Shape::Pointwise(result),
        }
    }

    /// The shape that serves two kernels at once, if there is one.
    pub(super) fn join(&self, other: &Shape) -> Option<Shape> {
        if self == other && *self != Shape::Column {
            return Some(self.clone());
        }
        match (self, other) {
            (row @ Shape::Row { .. }, Shape::Pointwise(dims))
            | (Shape::Pointwise(dims), row @ Shape::Row { .. })
                if row.full() == *dims =>
            {
                Some(row.clone())
            }
            _ => None,
        }
    }

    /// The shape that results when a kernel of this shape takes in `inst`, which it uses; none where it
    /// does not fit. `stored` says that others use the result too, so that each point is computed once.
    pub(super) fn admit(&self, program: &Program, inst: &Inst, stored: bool) -> Option<Shape> {
        let dims = extents_of(program, inst.results[0]);
        if matches!(inst.op, Op::Reduce { .. }) {
            return self.admit_reduction(program, inst, dims);
        }
        match self {
            Shape::Pointwise(full) if *full == dims => Some(self.clone()),
            Shape::Pointwise(full) if !dims.is_empty() && full.starts_with(&dims) => {
                Some(Shape::Row { inner: full[dims.len()..].to_vec(), outer: dims })
            }
            Shape::Row { outer, .. } if *outer == dims || self.full() == dims => Some(self.clone()),
            Shape::Pointwise(_) | Shape::Row { .. } | Shape::Column => (!stored).then(|| self.clone()),
        }
    }

    fn admit_reduction(&self, program: &Program, inst: &Inst, outer: Vec<Extent>) -> Option<Shape> {
        let inner = reduced_suffix(program, inst)?;
        let row = Shape::Row { outer: outer.clone(), inner };
        match self {
            Shape::Pointwise(dims) if *dims == row.full() && !outer.is_empty() => Some(row),
            Shape::Pointwise(dims) if *dims == outer => Some(row),
            Shape::Row { .. } if *self == row => Some(row),
            Shape::Pointwise(_) | Shape::Row { .. } | Shape::Column => None,
        }
    }
}

/// The dims of a value in memory order, with what a rank holds of each.
pub(super) fn extents_of(program: &Program, value: Value) -> Vec<Extent> {
    let ty = program.ty(value);
    ty.dims.iter().map(|&dim| (dim, ty.local_size(program, dim))).collect()
}

/// The reduced dims of a reduction, if they are the innermost of its argument.
fn reduced_suffix(program: &Program, inst: &Inst) -> Option<Vec<Extent>> {
    let argument = extents_of(program, inst.args[0]);
    let kept = extents_of(program, inst.results[0]);
    argument.starts_with(&kept).then(|| argument[kept.len()..].to_vec())
}

/// Whether an instruction can stand inside a kernel.
pub(super) fn is_fusible(op: &Op) -> bool {
    match op {
        Op::Constant(_) | Op::Iota { .. } | Op::Random { .. } | Op::Map(_) | Op::Reduce { .. } => true,
        Op::Rename { .. } | Op::Split { .. } | Op::Slice { .. } | Op::Pad { .. } | Op::Concat { .. } => true,
        Op::LocalSlice => true,
        Op::Merge { .. } | Op::Dot(_) | Op::Take { .. } | Op::ScatterAdd { .. } | Op::StopGradient => false,
        Op::Attention(_) | Op::AttentionGradient(_) | Op::Scan(_) | Op::Reshard(_) => false,
        Op::Collective(_) | Op::Done | Op::Fused(_) => false,
    }
}

/// Whether an instruction only looks at the memory of its argument under other dims.
pub(crate) fn is_alias(op: &Op) -> bool {
    matches!(op, Op::Rename { .. } | Op::Split { .. } | Op::Merge { .. } | Op::StopGradient)
}

/// Whether doing the work again costs less than storing and loading its result.
pub(super) fn is_cheap(op: &Op) -> bool {
    match op {
        Op::Map(function) => is_cheap_function(*function),
        Op::Constant(_) | Op::Iota { .. } | Op::Rename { .. } | Op::Split { .. } | Op::Slice { .. } => true,
        Op::LocalSlice => true,
        Op::Random { .. } | Op::Reduce { .. } | Op::Merge { .. } | Op::Pad { .. } | Op::Concat { .. } => {
            false
        }
        Op::Dot(_) | Op::Take { .. } | Op::ScatterAdd { .. } | Op::StopGradient | Op::Attention(_) => false,
        Op::AttentionGradient(_)
        | Op::Scan(_)
        | Op::Reshard(_)
        | Op::Collective(_)
        | Op::Done
        | Op::Fused(_) => false,
    }
}

fn is_cheap_function(function: ScalarOp) -> bool {
    use ScalarOp::*;
    match function {
        Neg | Abs | Floor | Not | Cast | Add | Sub | Mul | Min | Max | Equal | NotEqual | Less
        | LessEqual | Greater | GreaterEqual | And | Or | Select => true,
        Exp | Log | Sqrt | Rsqrt | Tanh | Sigmoid | Erf | Sin | Cos | Div | Rem | Pow => false,
    }
}
