//! Sums down columns: what a bias or the weight of a norm gets for a gradient. A thread for each column would keep few threads busy, and
//! read little at once; so the threads of a block share out the rows of a few columns that are neighbours, and then combine what each has.

use super::emit::Emitter;
use super::mapping::{BLOCK, Part};
use super::operation::combination_name;
use super::vector::access;
use crate::kir::{AccumulatorId, AxisId, AxisKind, Kernel, Loop, Span, Statement};

/// Fewer rows are not worth sharing out.
const LEAST_ROWS: u64 = 64;
/// From so many columns on each has a thread: they are as many as the largest device runs at once.
const MANY_COLUMNS: u64 = 1 << 17;
/// About twice as many blocks as multiprocessors.
const ENOUGH_BLOCKS: u64 = 264;
/// The bytes of a row that are worth reading from memory.
const LEAST_BYTES: u64 = 32;
/// Rows that a thread reads ahead of adding them.
const ROWS_AHEAD: u64 = 4;

/// The body of a loop over columns.
struct Columns<'kernel> {
    axis: AxisId,
    starts: Vec<AccumulatorId>,
    /// Loops over rows.
    loops: Vec<&'kernel Loop>,
    /// What is done with the totals, for each column.
    rest: &'kernel [Statement],
}

impl<'kernel> Columns<'kernel> {
    /// Takes a loop over columns apart, if that is what it is: values start, rows enter them in straight loops that store nothing, then comes
    /// what holds no loop.
    fn of(kernel: &Kernel, leaf: &'kernel Loop) -> Option<Self> {
        let end = leaf.body.iter().rposition(|statement| matches!(statement, Statement::Loop(_)))? + 1;
        let (head, rest) = leaf.body.split_at(end);
        let mut columns = Self { axis: leaf.axis, starts: Vec::new(), loops: Vec::new(), rest };
        for statement in head {
            match statement {
                Statement::Start(accumulator) => columns.starts.push(*accumulator),
                Statement::Loop(rows) if are_rows(kernel, rows) => columns.loops.push(rows),
                Statement::Loop(_)
                | Statement::Let { .. }
                | Statement::Load { .. }
                | Statement::Store { .. }
                | Statement::Accumulate { .. }
                | Statement::Combine { .. }
                | Statement::Total { .. } => return None,
            }
        }
        Some(columns)
    }

    /// Such a body for neighbouring columns at once.
    fn body(&self, statements: &[Statement]) -> Loop {
        Loop { axis: self.axis, body: statements.to_vec() }
    }
}

fn are_rows(kernel: &Kernel, rows: &Loop) -> bool {
    let axis = &kernel.axes[rows.axis];
    let only_combines = rows.body.iter().all(|statement| match statement {
        Statement::Let { .. } | Statement::Load { .. } | Statement::Combine { .. } => true,
        Statement::Loop(_)
        | Statement::Store { .. }
        | Statement::Accumulate { .. }
        | Statement::Start(_)
        | Statement::Total { .. } => false,
    });
    axis.kind == AxisKind::Serial && axis.span == Span::Whole && axis.extent >= LEAST_ROWS && only_combines
}

/// Whether a loop sums down so few columns, in all iterations of what is around it, that their rows are to be shared out.
pub(super) fn are_few(kernel: &Kernel, leaf: &Loop, columns: u64) -> bool {
    columns < MANY_COLUMNS && Columns::of(kernel, leaf).is_some()
}

impl Emitter<'_> {
    /// A block takes columns beside each other, in chunks where memory allows, and its threads their rows in turn.
    pub(super) fn columns_part(&mut self, part: &Part<'_>) -> u64 {
        let mut axes = part.axes(self.kernel);
        let (Some(columns), Some((innermost, extent))) = (Columns::of(self.kernel, part.leaf()), axes.pop())
        else {
            return 1;
        };
        let bodies: Vec<Loop> = columns.loops.iter().map(|rows| columns.body(&rows.body)).collect();
        let width = bodies.first().and_then(|body| self.width_of_chunks(body, false)).unwrap_or(1);
        axes.push((innermost, extent / width));
        let count: u64 = axes.iter().map(|(_, extent)| extent).product();
        let across = self.across(&columns, count, width);
        let (lane, down, first) =
            (self.names.fresh("lane"), self.names.fresh("down"), self.names.fresh("first"));
        let kind = self.width.name();
        self.text.line(format!("const int {lane} = threadIdx.x % {across};"));
        self.text.line(format!("const int {down} = threadIdx.x / {across};"));
        // All threads of a block go round together, since they wait for each other.
        self.text.open(format!(
            "for ({kind} {first} = blockIdx.x * {across}; {first} < {count}; {first} += gridDim.x * {across}) {{"
        ));
        let column = self.names.fresh("column");
        self.text
            .line(format!("const {kind} {column} = dtl::least<{kind}>({first} + {lane}, {});", count - 1));
        self.define_axes(part, &axes, &column, width);
        let defined: Vec<AxisId> = axes.iter().map(|&(axis, _)| axis).collect();
        self.prefix(part, &defined);
        for &accumulator in &columns.starts {
            self.start(accumulator, Some(width));
        }
        for (rows, body) in columns.loops.iter().zip(&bodies) {
            if self.has_effects(rows) {
                self.text.line(format!("#pragma unroll {ROWS_AHEAD}"));
                self.open_loop(rows, &down, &format!("{}", BLOCK / across));
                self.columns_body(body, width);
                self.text.close();
            }
        }
        self.total_columns(&columns, across);
        self.text.open(format!("if ({down} == 0 && {first} + {lane} < {count}) {{"));
        self.columns_body(&columns.body(columns.rest), width);
        self.text.close();
        self.text.close();
        count.div_ceil(across)
    }

    /// How many chunks a block has beside each other: as many as leave enough blocks, each thread some rows, and are worth reading.
    fn across(&self, columns: &Columns<'_>, count: u64, width: u64) -> u64 {
        let rows = columns.loops.iter().map(|rows| self.kernel.axes[rows.axis].extent).min().unwrap_or(1);
        // Rows store nothing.
        let read = columns.loops.iter().flat_map(|rows| &rows.body).find_map(access);
        let bytes = read.map_or(1, |(tensor, _, _)| self.kernel.tensors[tensor].element.bytes());
        let least = LEAST_BYTES.div_ceil(width * bytes).max(BLOCK * 2 / rows).next_power_of_two();
        let mut across = 32;
        while across > least && count.div_ceil(across) < ENOUGH_BLOCKS {
            across /= 2;
        }
        across
    }

    /// What is done for the columns of a chunk, which comes out even wherever it is one of several.
    fn columns_body(&mut self, body: &Loop, width: u64) {
        let chunk = self.chunk_in(body, width);
        self.chunk_body(body, &chunk, body.axis);
    }

    fn total_columns(&mut self, columns: &Columns<'_>, across: u64) {
        for &accumulator in &columns.starts {
            if self.live.accumulators.contains(accumulator) {
                let combination = combination_name(self.kernel.accumulators[accumulator].combination);
                let name = self.names.accumulator(accumulator);
                let line = format!("dtl::columns_total<{combination}, {across}, {BLOCK}>({name});");
                self.text.line(line);
            }
        }
    }
}
