//! A kernel as a function: its parts one after another, each a loop over the grid around what a thread or a unit does.

use super::CudaKernel;
use super::index::Width;
use super::live::Live;
use super::mapping::{BLOCK, Part, WARP, Worker, parts};
use super::math::Function;
use super::names::Names;
use super::operation::pointer_name;
use super::text::Text;
use super::vector::Chunk;
use crate::kir::{AccumulatorId, AxisId, Constant, Kernel, Register, Span, Statement, TensorId};
use crate::lower::Origins;
use cranelift_entity::{EntitySet, SecondaryMap};
use std::collections::BTreeSet;

/// A launch of more blocks gains nothing: each strides over the grid.
const MOST_BLOCKS: u64 = 1 << 16;

/// Blocks that a multiprocessor has registers for. Left to itself the assembler spills for the sake of more.
const BLOCKS_AT_ONCE: u32 = 2;

/// The state of emission.
pub(super) struct Emitter<'kernel> {
    pub kernel: &'kernel Kernel,
    pub origins: &'kernel Origins,
    /// For each tensor, the power of two in bytes that its address is a multiple of.
    pub alignments: &'kernel [u64],
    pub names: Names,
    pub functions: BTreeSet<Function>,
    pub width: Width,
    pub text: Text,
    /// Of the present part.
    pub live: Live,
    /// Of the present part.
    pub worker: Worker,
    /// Whether the statements at hand run once a thread, and not once a unit.
    pub is_private: bool,
    /// Accumulators of the unit: each thread has a share until the total is taken.
    pub shared: EntitySet<AccumulatorId>,
    /// What the unit's threads may have done to memory since they last waited for each other.
    pub pending: Pending,
    /// Literals stand where they are used.
    pub constants: SecondaryMap<Register, Option<Constant>>,
    /// Where an axis' value is not in the variable of its name.
    axis_texts: SecondaryMap<AxisId, Option<String>>,
    /// Which column's accumulators are meant, where a thread has those of several.
    pub column: Option<String>,
    /// The tensor whose elements are given instead of read, where there is one.
    pub in_hand: Option<InHand>,
}

/// A tensor whose elements at the present iterations are in variables, as floats.
pub(super) struct InHand {
    pub tensor: TensorId,
    /// The variable of one element.
    pub one: String,
    /// The variable of neighbours.
    pub several: String,
    /// The variable of what else is read of neighbours, ahead of where it is used.
    pub loads: String,
}

/// Accesses that other threads of the unit must see done before what follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pending {
    pub loads: bool,
    pub stores: bool,
    /// Stores of the unit's first thread for the row as a whole.
    pub row_stores: bool,
}

/// Emits a valid kernel as the function `name`.
pub(super) fn emit(kernel: &Kernel, origins: &Origins, alignments: &[u64], name: &str) -> CudaKernel {
    let mut emitter = Emitter::new(kernel, origins, alignments);
    let blocks = emitter.function(name);
    CudaKernel {
        name: name.to_owned(),
        text: emitter.text,
        functions: emitter.functions,
        threads: BLOCK as u32,
        blocks: blocks.clamp(1, MOST_BLOCKS) as u32,
    }
}

impl<'kernel> Emitter<'kernel> {
    /// Nothing is emitted yet.
    pub(super) fn new(
        kernel: &'kernel Kernel,
        origins: &'kernel Origins,
        alignments: &'kernel [u64],
    ) -> Self {
        Self {
            kernel,
            origins,
            alignments,
            names: Names::new(kernel, origins),
            functions: BTreeSet::new(),
            width: Width::of(kernel),
            text: Text::default(),
            live: Live::default(),
            worker: Worker::Thread,
            is_private: false,
            shared: EntitySet::new(),
            pending: Pending::default(),
            constants: SecondaryMap::new(),
            axis_texts: SecondaryMap::new(),
            column: None,
            in_hand: None,
        }
    }
}

impl Emitter<'_> {
    /// Emits the function; gives the blocks that keep all of its parts busy.
    fn function(&mut self, name: &str) -> u64 {
        let mut parameters = Vec::new();
        for (id, tensor) in &self.kernel.tensors {
            parameters.push(format!("{} {}", pointer_name(tensor), self.names.tensor(id)));
        }
        for id in self.kernel.integers.keys() {
            parameters.push(format!("long long {}", self.names.integer(id)));
        }
        self.text.line(format!(
            "extern \"C\" __global__ void __launch_bounds__({BLOCK}, {BLOCKS_AT_ONCE}) {name}("
        ));
        let last = parameters.len().saturating_sub(1);
        for (position, parameter) in parameters.into_iter().enumerate() {
            let end = if position == last { ") {" } else { "," };
            self.text.line(format!("    {parameter}{end}"));
        }
        self.text.deepen();
        let mut blocks = 1;
        for part in parts(self.kernel) {
            blocks = blocks.max(self.part(&part));
        }
        self.text.close();
        blocks
    }

    /// What follows belongs to this part.
    pub(super) fn begin_part(&mut self, part: &Part<'_>) {
        self.live = Live::of(self.kernel, part);
        self.worker = part.worker;
        self.pending = Pending::default();
        self.is_private = matches!(part.worker, Worker::Thread | Worker::Columns);
    }

    /// Emits one part; gives the blocks that keep it busy.
    fn part(&mut self, part: &Part<'_>) -> u64 {
        self.begin_part(part);
        match part.worker {
            Worker::Thread => self.thread_part(part),
            Worker::Warp | Worker::Block => self.unit_part(part),
            Worker::Columns => self.columns_part(part),
        }
    }

    /// Every thread does iterations of its own, chunks of neighbours where memory allows.
    fn thread_part(&mut self, part: &Part<'_>) -> u64 {
        let mut axes = part.axes(self.kernel);
        let is_line = axes.len() == 1;
        let chunk = self.chunk(part.leaf(), is_line);
        let width = chunk.as_ref().map_or(1, Chunk::width);
        let Some((innermost, extent)) = axes.pop() else { return 1 };
        axes.push((innermost, extent / width));
        let count: u64 = axes.iter().map(|(_, extent)| extent).product();
        if count > 0 {
            self.grid(part, &axes, "element", BLOCK, width);
            match &chunk {
                Some(chunk) => self.chunk_body(part.leaf(), chunk, innermost),
                None => self.statements(&part.leaf().body),
            }
            self.text.close();
        }
        let rest = extent % width;
        if rest > 0 {
            // Only a line is cut into chunks that do not come out even.
            let first = extent - rest;
            let name = self.names.axis(innermost).to_owned();
            let kind = self.width.name();
            self.text.open(format!(
                "for ({kind} {name} = {first} + blockIdx.x * {BLOCK} + threadIdx.x; {name} < {extent}; {name} += gridDim.x * {BLOCK}) {{"
            ));
            self.prefix(part, &[innermost]);
            self.statements(&part.leaf().body);
            self.text.close();
        }
        count.div_ceil(BLOCK)
    }

    /// The threads of a unit do each iteration together.
    fn unit_part(&mut self, part: &Part<'_>) -> u64 {
        let axes = part.axes(self.kernel);
        let count: u64 = axes.iter().map(|(_, extent)| extent).product();
        let units = BLOCK / part.worker.threads();
        self.grid(part, &axes, "row", units, 1);
        let lane = match part.worker {
            Worker::Warp => format!("threadIdx.x % {WARP}"),
            Worker::Block | Worker::Thread | Worker::Columns => "threadIdx.x".to_owned(),
        };
        self.text.line(format!("const int lane = {lane};"));
        self.statements(&part.leaf().body);
        self.text.close();
        count.div_ceil(units)
    }

    /// Opens the loop over the grid, defines the axes and computes what stands above the leaf. A block takes `units`
    /// iterations at a time; the innermost axis counts chunks of `width`.
    fn grid(&mut self, part: &Part<'_>, axes: &[(AxisId, u64)], counter: &str, units: u64, width: u64) {
        let kind = self.width.name();
        let count: u64 = axes.iter().map(|(_, extent)| extent).product();
        let within = match units {
            1 => String::new(),
            BLOCK => " + threadIdx.x".to_owned(),
            _ => format!(" + threadIdx.x / {}", BLOCK / units),
        };
        let is_plain = axes.len() == 1 && width == 1;
        let counter = match axes.first() {
            Some(&(axis, _)) if is_plain => self.names.axis(axis).to_owned(),
            Some(_) | None => self.names.fresh(counter),
        };
        let scaled = |base: &str| if units == 1 { base.to_owned() } else { format!("{base} * {units}") };
        let (first, stride) = (scaled("blockIdx.x"), scaled("gridDim.x"));
        self.text.open(format!(
            "for ({kind} {counter} = {first}{within}; {counter} < {count}; {counter} += {stride}) {{"
        ));
        if !is_plain {
            self.define_axes(part, axes, &counter, width);
        }
        let defined: Vec<AxisId> = axes.iter().map(|&(axis, _)| axis).collect();
        self.prefix(part, &defined);
    }

    /// Defines the axes that a part reads by a counter of their iterations; the innermost counts chunks of `width`.
    pub(super) fn define_axes(&mut self, part: &Part<'_>, axes: &[(AxisId, u64)], counter: &str, width: u64) {
        let kind = self.width.name();
        let mut finer = 1;
        for (position, &(axis, extent)) in axes.iter().enumerate().rev() {
            let is_innermost = position + 1 == axes.len();
            if self.is_used(axis, part) {
                let mut value = if finer == 1 { counter.to_owned() } else { format!("{counter} / {finer}") };
                if position > 0 {
                    value = format!("{value} % {extent}");
                }
                if is_innermost && width > 1 {
                    value = if position > 0 {
                        format!("({value}) * {width}")
                    } else {
                        format!("{value} * {width}")
                    };
                }
                let name = self.names.axis(axis);
                self.text.line(format!("const {kind} {name} = {value};"));
            }
            finer *= extent;
        }
    }

    /// Whether a part reads an axis, itself or through the tiles that it lies in.
    fn is_used(&self, axis: AxisId, part: &Part<'_>) -> bool {
        let tile = match self.kernel.axes[axis].span {
            Span::Tile { outer, .. } => Some(outer),
            Span::Whole => None,
        };
        let innermost = part.leaf().axis == axis && self.is_private;
        self.live.axes.contains(axis) || innermost || tile.is_some_and(|tile| self.live.axes.contains(tile))
    }

    /// The tiles' axes and the values above the leaf.
    pub(super) fn prefix(&mut self, part: &Part<'_>, defined: &[AxisId]) {
        let kind = self.width.name();
        for &axis in defined {
            if let Span::Tile { outer, size } = self.kernel.axes[axis].span
                && self.live.axes.contains(outer)
            {
                let line =
                    format!("const {kind} {} = {} / {size};", self.names.axis(outer), self.names.axis(axis));
                self.text.line(line);
            }
        }
        let above = &part.levels[..part.levels.len() - 1];
        for statement in above.iter().flat_map(|level| &level.body) {
            if !matches!(statement, Statement::Loop(_)) {
                self.statement(statement);
            }
        }
    }

    /// The text of an axis' value.
    pub(super) fn axis_text(&self, axis: AxisId) -> &str {
        self.axis_texts[axis].as_deref().unwrap_or_else(|| self.names.axis(axis))
    }

    /// Runs `inside` with the value of `axis` in another variable.
    pub(super) fn with_axis_text<R>(
        &mut self,
        axis: AxisId,
        text: &str,
        inside: impl FnOnce(&mut Self) -> R,
    ) -> R {
        let before = self.axis_texts[axis].replace(text.to_owned());
        let result = inside(self);
        self.axis_texts[axis] = before;
        result
    }
}
