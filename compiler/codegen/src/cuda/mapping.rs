//! Which work of a kernel each thread does.
//!
//! The loops of a kernel come apart into *parts*: a chain of loops whose iterations are independent, spread over the
//! grid, and what is done in each. Where that is private to an iteration, a thread does it (elementwise work, columns);
//! where iterations of a vector loop meet in an accumulator or around a store of the row, a *unit* does it together: a
//! warp for short rows, else a block. Every part strides over the grid, so any number of blocks gives the same bits.

use crate::kir::{AxisId, AxisKind, Index, Kernel, Loop, Span, Statement, TensorId, Term, Variable};
use cranelift_entity::EntitySet;
use smallvec::SmallVec;

/// Threads of a block.
pub(super) const BLOCK: u64 = 256;
/// Threads of a warp.
pub(super) const WARP: u64 = 32;
/// The most iterations of a vector loop that a warp works through on its own.
const WARP_ITERATIONS: u64 = 512;

/// Independent work.
pub(super) struct Part<'kernel> {
    /// The loops that are spread over the grid, outermost first. All but the last hold no effects, only values
    /// and loops; the body of the last is what is done together.
    pub levels: SmallVec<[&'kernel Loop; 4]>,
    /// By whom.
    pub worker: Worker,
}

/// Who does an iteration of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worker {
    /// One thread.
    Thread,
    /// The lanes of a warp.
    Warp,
    /// The threads of a block.
    Block,
}

impl Worker {
    /// Threads that work together.
    pub(super) fn threads(self) -> u64 {
        match self {
            Self::Thread => 1,
            Self::Warp => WARP,
            Self::Block => BLOCK,
        }
    }
}

impl Part<'_> {
    /// The body that is done together.
    pub(super) fn leaf(&self) -> &Loop {
        self.levels[self.levels.len() - 1]
    }

    /// The axes that number the iterations, outermost first, with their extents. A loop over tiles whose inner axis
    /// is spread too is not among them: the inner axis runs over its whole extent.
    pub(super) fn axes(&self, kernel: &Kernel) -> SmallVec<[(AxisId, u64); 4]> {
        let tiles = |axis: AxisId| {
            self.levels.iter().any(
                |level| matches!(kernel.axes[level.axis].span, Span::Tile { outer, .. } if outer == axis),
            )
        };
        let axes = self.levels.iter().map(|level| level.axis).filter(|&axis| !tiles(axis));
        axes.map(|axis| (axis, kernel.axes[axis].extent)).collect()
    }
}

/// The parts of a valid kernel, in the order of its text.
pub(super) fn parts(kernel: &Kernel) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    collect(kernel, &kernel.outer, &SmallVec::new(), &mut parts);
    parts
}

fn collect<'kernel>(
    kernel: &'kernel Kernel,
    nest: &'kernel Loop,
    around: &SmallVec<[&'kernel Loop; 4]>,
    parts: &mut Vec<Part<'kernel>>,
) {
    let mut levels = around.clone();
    levels.push(nest);
    if comes_apart(kernel, nest, &levels) {
        for statement in &nest.body {
            if let Statement::Loop(inner) = statement {
                collect(kernel, inner, &levels, parts);
            }
        }
        return;
    }
    let longest = nest.body.iter().filter_map(|statement| longest_vector_loop(kernel, statement)).max();
    let worker = match longest {
        _ if kernel.axes[nest.axis].kind == AxisKind::Vector => Worker::Thread,
        None => Worker::Thread,
        Some(iterations) if iterations <= WARP_ITERATIONS => Worker::Warp,
        Some(_) => Worker::Block,
    };
    parts.push(Part { levels, worker });
}

/// Whether the loops in a loop's body can be spread over the grid, each on its own.
fn comes_apart<'kernel>(kernel: &Kernel, nest: &'kernel Loop, levels: &[&'kernel Loop]) -> bool {
    let mut loops = 0;
    for statement in &nest.body {
        match statement {
            Statement::Let { .. } | Statement::Load { .. } => {}
            Statement::Loop(inner) => {
                loops += 1;
                let is_free = kernel.axes[inner.axis].kind == AxisKind::Vector && !leaves_accumulator(inner)
                    || kernel.axes[inner.axis].kind == AxisKind::Serial
                        && is_independent(kernel, inner, levels);
                if !is_free {
                    return false;
                }
            }
            Statement::Store { .. }
            | Statement::Accumulate { .. }
            | Statement::Start(_)
            | Statement::Combine { .. }
            | Statement::Total { .. } => return false,
        }
    }
    loops > 0 && kernel.axes[nest.axis].kind == AxisKind::Serial
}

/// Whether something in a loop enters an accumulator of outside.
fn leaves_accumulator(nest: &Loop) -> bool {
    let mut started = SmallVec::<[_; 4]>::new();
    let mut combined = SmallVec::<[_; 4]>::new();
    each_statement(&nest.body, &mut |statement| {
        if let Statement::Start(accumulator) = statement {
            started.push(*accumulator);
        }
        if let Statement::Combine { accumulator, .. } = statement {
            combined.push(*accumulator);
        }
    });
    combined.iter().any(|accumulator| !started.contains(accumulator))
}

/// Whether the iterations of a serial loop can run in any order and at once: each writes elements of its own, and reads
/// none that another writes.
fn is_independent<'kernel>(kernel: &Kernel, nest: &'kernel Loop, levels: &[&'kernel Loop]) -> bool {
    let axis = &kernel.axes[nest.axis];
    if leaves_accumulator(nest) || matches!(axis.span, Span::Tile { .. }) {
        return false;
    }
    if axis.extent == 1 {
        return true;
    }
    let mut accesses: Vec<(TensorId, &Index)> = Vec::new();
    let mut written: EntitySet<TensorId> = EntitySet::new();
    let mut access = |statement: &'kernel Statement| {
        if let Statement::Store { tensor, index, .. } | Statement::Accumulate { tensor, index, .. } =
            statement
        {
            written.insert(*tensor);
            accesses.push((*tensor, index));
        }
        if let Statement::Load { tensor, index, .. } = statement {
            accesses.push((*tensor, index));
        }
    };
    levels.iter().flat_map(|level| &level.body).for_each(&mut access);
    each_statement(&nest.body, &mut access);
    kernel.tensors.keys().filter(|&tensor| written.contains(tensor)).all(|tensor| {
        let touched = accesses.iter().filter(|(other, _)| *other == tensor);
        let indices: SmallVec<[&Index; 4]> = touched.map(|(_, index)| *index).collect();
        tell_apart(kernel, &indices, nest.axis)
    })
}

/// Whether equal elements among these indices mean equal values of `axis`: what an iteration touches lies in a window
/// narrower than the step to the next, and every coarser variable steps over all that finer ones reach.
fn tell_apart(kernel: &Kernel, indices: &[&Index], axis: AxisId) -> bool {
    let step = indices.first().map_or(0, |index| index.coefficient(axis));
    let size = i128::from(step.unsigned_abs());
    let Some(first) = indices.first() else { return true };
    let is_finer = |term: &Term| i128::from(term.coefficient.unsigned_abs()) <= size;
    let own = Variable::Axis(axis);
    let coarser = |index: &Index| -> SmallVec<[Term; 4]> {
        let varies = |term: &&Term| {
            term.variable != own && (!is_finer(term) || matches!(term.variable, Variable::Integer(_)))
        };
        index.terms().iter().filter(varies).copied().collect()
    };
    let mut window: Option<(i128, i128)> = None;
    for index in indices {
        if index.coefficient(axis) != step || step == 0 || coarser(index) != coarser(first) {
            return false;
        }
        let start = i128::from(index.constant_part());
        let (mut low, mut high) = (start, start);
        for term in index.terms().iter().filter(|term| term.variable != own && is_finer(term)) {
            match term.variable {
                Variable::Axis(finer) => {
                    let reach = i128::from(term.coefficient) * last(kernel, finer);
                    (low, high) = (low + reach.min(0), high + reach.max(0));
                }
                // The same for all iterations, and for all indices.
                Variable::Integer(_) => {}
                Variable::Data { .. } => return false,
            }
        }
        window = Some(window.map_or((low, high), |(least, most)| (least.min(low), most.max(high))));
    }
    let width = window.map_or(0, |(low, high)| high - low);
    let mut reach = width + size * last(kernel, axis);
    let mut steps: SmallVec<[(i128, i128); 4]> = SmallVec::new();
    for term in coarser(first) {
        match term.variable {
            Variable::Axis(axis) => {
                steps.push((i128::from(term.coefficient.unsigned_abs()), last(kernel, axis)))
            }
            Variable::Integer(_) => {}
            Variable::Data { .. } => return false,
        }
    }
    steps.sort_unstable();
    width < size
        && steps.into_iter().all(|(step, last)| {
            let is_beyond = step > reach;
            reach += step * last;
            is_beyond
        })
}

/// The last value of an axis.
fn last(kernel: &Kernel, axis: AxisId) -> i128 {
    i128::from(kernel.axes[axis].extent) - 1
}

/// Iterations of the longest vector loop at or in a statement.
fn longest_vector_loop(kernel: &Kernel, statement: &Statement) -> Option<u64> {
    let Statement::Loop(nest) = statement else { return None };
    let axis = &kernel.axes[nest.axis];
    let own = match (axis.kind, axis.span) {
        (AxisKind::Vector, Span::Whole) => Some(axis.extent),
        (AxisKind::Vector, Span::Tile { size, .. }) => Some(size.min(axis.extent)),
        (AxisKind::Serial, _) => None,
    };
    nest.body.iter().filter_map(|inner| longest_vector_loop(kernel, inner)).chain(own).max()
}

/// Calls `visit` for every statement, those of inner loops included.
pub(super) fn each_statement<'kernel>(
    statements: &'kernel [Statement],
    visit: &mut dyn FnMut(&'kernel Statement),
) {
    for statement in statements {
        visit(statement);
        if let Statement::Loop(nest) = statement {
            each_statement(&nest.body, visit);
        }
    }
}
