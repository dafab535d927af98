//! Which work of a kernel each thread does.
//!
//! The loops of a kernel come apart into *parts*: a chain of loops whose iterations are independent, spread over the
//! grid, and what is done in each. Where that is private to an iteration, a thread does it (elementwise work, many columns; of few
//! columns the rows are shared out);
//! where iterations of a vector loop meet in an accumulator or around a store of the row, a *unit* does it together: a
//! warp for short rows, else a block. Every part strides over the grid, so any number of blocks gives the same bits.

use super::columns::are_few;
use crate::kir::{AxisId, AxisKind, Index, Kernel, Loop, Span, Statement, TensorId, Term, Variable};
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
    /// The threads of a block, each of which has some rows of the columns that the iterations are.
    Columns,
}

impl Worker {
    /// Threads that work together.
    pub(super) fn threads(self) -> u64 {
        match self {
            Self::Thread => 1,
            Self::Warp => WARP,
            Self::Block | Self::Columns => BLOCK,
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
    let mut part = Part { levels, worker: Worker::Thread };
    part.worker = match longest {
        _ if kernel.axes[nest.axis].kind == AxisKind::Vector => {
            let columns = part.axes(kernel).iter().map(|(_, extent)| extent).product();
            if are_few(kernel, nest, columns) { Worker::Columns } else { Worker::Thread }
        }
        None => Worker::Thread,
        Some(iterations) if iterations <= WARP_ITERATIONS => Worker::Warp,
        Some(_) => Worker::Block,
    };
    parts.push(part);
}

/// Whether the loops in a loop's body can be spread over the grid, each on its own.
fn comes_apart<'kernel>(kernel: &Kernel, nest: &'kernel Loop, levels: &[&'kernel Loop]) -> bool {
    let mut loops: SmallVec<[&Loop; 4]> = SmallVec::new();
    for statement in &nest.body {
        match statement {
            Statement::Let { .. } | Statement::Load { .. } => {}
            Statement::Loop(inner) => loops.push(inner),
            Statement::Store { .. }
            | Statement::Accumulate { .. }
            | Statement::Start(_)
            | Statement::Combine { .. }
            | Statement::Total { .. } => return false,
        }
    }
    let is_free = |inner: &&&'kernel Loop| match kernel.axes[inner.axis].kind {
        AxisKind::Vector => !leaves_accumulator(inner),
        AxisKind::Serial => is_independent(kernel, inner, levels),
    };
    kernel.axes[nest.axis].kind == AxisKind::Serial
        && !loops.is_empty()
        && loops.iter().filter(is_free).count() == loops.len()
        && meet_nowhere(kernel, &loops, levels)
}

/// An access of a loop: the tensor, where, and whether it writes.
type Touch<'kernel> = (TensorId, &'kernel Index, bool);

fn touches(statements: &[Statement]) -> Vec<Touch<'_>> {
    let mut touches = Vec::new();
    each_statement(statements, &mut |statement| match statement {
        Statement::Load { tensor, index, .. } => touches.push((*tensor, index, false)),
        Statement::Store { tensor, index, .. } | Statement::Accumulate { tensor, index, .. } => {
            touches.push((*tensor, index, true));
        }
        Statement::Loop(_)
        | Statement::Let { .. }
        | Statement::Start(_)
        | Statement::Combine { .. }
        | Statement::Total { .. } => {}
    });
    touches
}

/// Whether no element that one of these neighbouring loops writes is touched by another, or read above them.
fn meet_nowhere(kernel: &Kernel, loops: &[&Loop], levels: &[&Loop]) -> bool {
    let above = levels.iter().flat_map(|level| &level.body);
    let read_above: Vec<TensorId> = above
        .filter_map(|statement| match statement {
            Statement::Load { tensor, .. } => Some(*tensor),
            Statement::Loop(_)
            | Statement::Let { .. }
            | Statement::Store { .. }
            | Statement::Accumulate { .. }
            | Statement::Start(_)
            | Statement::Combine { .. }
            | Statement::Total { .. } => None,
        })
        .collect();
    let touched: Vec<Vec<Touch<'_>>> = loops.iter().map(|nest| touches(&nest.body)).collect();
    let walked: SmallVec<[AxisId; 4]> = levels.iter().map(|level| level.axis).collect();
    touched.iter().enumerate().all(|(position, own)| {
        own.iter().filter(|(_, _, writes)| *writes).all(|(tensor, index, _)| {
            let others = touched.iter().enumerate().filter(|(other, _)| *other != position);
            let mut same = others.flat_map(|(_, others)| others).filter(|(other, _, _)| other == tensor);
            !read_above.contains(tensor)
                && same.all(|(_, other, _)| windows_are_apart(kernel, index, other, &walked))
        })
    })
}

/// Whether two indices differ whatever the loops inside of `walked` do.
fn windows_are_apart(kernel: &Kernel, left: &Index, right: &Index, walked: &[AxisId]) -> bool {
    let of = |index| Window::of(kernel, index, |axis, _| !walked.contains(&axis));
    match (of(left), of(right)) {
        (Some(left), Some(right)) => {
            left.outside == right.outside && (left.high < right.low || right.high < left.low)
        }
        (None, _) | (_, None) => false,
    }
}

/// The elements that an index reaches while some of its variables vary, and the terms of the others.
struct Window {
    low: i128,
    high: i128,
    outside: SmallVec<[Term; 4]>,
}

impl Window {
    /// `is_inside` says of an axis and the magnitude of its coefficient whether it varies. None where data decides.
    fn of(kernel: &Kernel, index: &Index, is_inside: impl Fn(AxisId, i128) -> bool) -> Option<Self> {
        let start = i128::from(index.constant_part());
        let mut window = Self { low: start, high: start, outside: SmallVec::new() };
        for term in index.terms() {
            let coefficient = i128::from(term.coefficient);
            match term.variable {
                Variable::Axis(axis) if is_inside(axis, coefficient.abs()) => {
                    let reach = coefficient * last(kernel, axis);
                    window.low += reach.min(0);
                    window.high += reach.max(0);
                }
                Variable::Axis(_) | Variable::Integer(_) => window.outside.push(*term),
                Variable::Data { .. } => return None,
            }
        }
        Some(window)
    }
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
    let mut accesses = touches(&nest.body);
    for level in levels {
        let own = level.body.iter().filter(|statement| !matches!(statement, Statement::Loop(_)));
        accesses.extend(own.flat_map(|statement| touches(std::slice::from_ref(statement))));
    }
    let is_written = |tensor: TensorId| accesses.iter().any(|&(other, _, writes)| other == tensor && writes);
    kernel.tensors.keys().filter(|&tensor| is_written(tensor)).all(|tensor| {
        let touched = accesses.iter().filter(|(other, _, _)| *other == tensor);
        let indices: SmallVec<[&Index; 4]> = touched.map(|(_, index, _)| *index).collect();
        tell_apart(kernel, &indices, nest.axis)
    })
}

/// Whether equal elements among these indices mean equal values of `axis`: what an iteration touches lies in a window
/// narrower than the step to the next, and every coarser variable steps over all that finer ones reach.
fn tell_apart(kernel: &Kernel, indices: &[&Index], axis: AxisId) -> bool {
    let step = indices.first().map_or(0, |index| i128::from(index.coefficient(axis)).abs());
    let is_finer = |other: AxisId, coefficient: i128| other != axis && coefficient <= step;
    let windows: Option<SmallVec<[Window; 4]>> =
        indices.iter().map(|index| Window::of(kernel, index, is_finer)).collect();
    let Some(windows) = windows else { return false };
    let Some(first) = windows.first() else { return true };
    let low = windows.iter().map(|window| window.low).fold(first.low, i128::min);
    let high = windows.iter().map(|window| window.high).fold(first.high, i128::max);
    let steps = first.outside.iter().filter_map(|term| match term.variable {
        Variable::Axis(axis) => Some((i128::from(term.coefficient).abs(), last(kernel, axis))),
        // The same for all iterations.
        Variable::Integer(_) | Variable::Data { .. } => None,
    });
    let mut steps: SmallVec<[(i128, i128); 4]> = steps.collect();
    steps.sort_unstable();
    let mut reach = high - low;
    step != 0
        && windows.iter().all(|window| window.outside == first.outside)
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
