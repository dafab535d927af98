//! Chunks of neighbouring elements: which accesses of a loop's body are one of 16 bytes, and the body over a chunk.

use super::emit::{Emitter, InHand};
use super::mapping::Worker;
use super::operation::{combination_name, element_name, narrowed, widened};
use crate::kir::{AxisId, AxisKind, Index, Loop, Span, Statement, TensorId, Variable};

/// How a loop's body is done for several neighbouring iterations at once.
pub(super) struct Chunk {
    width: u64,
    /// For each statement of the body, what holds the chunk's elements where they are one access.
    packs: Vec<Option<Pack>>,
}

/// What holds a chunk's elements of a tensor.
struct Pack {
    variable: String,
    source: Source,
}

/// Where the elements in a pack come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The chunk's body reads them or, if it only writes them, makes them.
    Body,
    /// They are read ahead of it.
    Ahead,
    /// They are in hand without being read.
    Hand,
}

impl Chunk {
    /// Iterations.
    pub(super) fn width(&self) -> u64 {
        self.width
    }
}

/// The bytes of the widest access.
const WIDEST: u64 = 16;

impl Emitter<'_> {
    /// How to do the body of a vector loop in chunks, if that gives wide accesses. `may_end_uneven` where whoever asks
    /// takes care of what is left behind the last whole chunk.
    pub(super) fn chunk(&mut self, nest: &Loop, may_end_uneven: bool) -> Option<Chunk> {
        let width = self.width_of_chunks(nest, may_end_uneven)?;
        Some(self.chunk_in(nest, width))
    }

    /// How many iterations at once give wide accesses, if any do.
    pub(super) fn width_of_chunks(&self, nest: &Loop, may_end_uneven: bool) -> Option<u64> {
        [8, 4].into_iter().find(|&width| {
            let bytes = |tensor: TensorId| self.kernel.tensors[tensor].element.bytes();
            let least = self.wide_accesses(nest, width).into_iter().flatten().map(bytes).min();
            // Eight at once are for elements of two bytes or one.
            let is_worth_it = least.is_some_and(|least| width == 4 || least <= 2);
            is_worth_it && self.can_be_in_chunks(nest, width, may_end_uneven)
        })
    }

    /// How to do the body of a vector loop in chunks of this width, if it can be done in such, whether or not that gives wide accesses.
    pub(super) fn chunk_of(&mut self, nest: &Loop, width: u64, may_end_uneven: bool) -> Option<Chunk> {
        self.can_be_in_chunks(nest, width, may_end_uneven).then(|| self.chunk_in(nest, width))
    }

    fn can_be_in_chunks(&self, nest: &Loop, width: u64, may_end_uneven: bool) -> bool {
        let is_straight = nest.body.iter().all(|statement| !matches!(statement, Statement::Loop(_)));
        let is_vector = self.kernel.axes[nest.axis].kind == AxisKind::Vector;
        is_vector && is_straight && self.comes_out_even(nest.axis, width, may_end_uneven)
    }

    /// For each statement of a body, the tensor whose elements of a chunk are one access.
    fn wide_accesses(&self, nest: &Loop, width: u64) -> Vec<Option<TensorId>> {
        nest.body.iter().map(|statement| self.wide(nest, statement, width)).collect()
    }

    /// How to do a body that can be done in chunks of this width in such.
    pub(super) fn chunk_in(&mut self, nest: &Loop, width: u64) -> Chunk {
        let wide = self.wide_accesses(nest, width);
        let packs = nest.body.iter().zip(wide);
        let packs = packs.map(|(statement, tensor)| Some(self.pack(statement, tensor?)));
        Chunk { width, packs: packs.collect() }
    }

    fn pack(&mut self, statement: &Statement, tensor: TensorId) -> Pack {
        if let Some(InHand { tensor: in_hand, several, .. }) = &self.in_hand
            && *in_hand == tensor
        {
            return Pack { variable: several.clone(), source: Source::Hand };
        }
        let name = format!("{}_pack", self.names.tensor(tensor));
        let name = self.names.fresh(&name);
        match (&self.in_hand, access(statement)) {
            // What data decides is only known in the body.
            (Some(in_hand), Some((_, index, true))) if index.data_registers().next().is_none() => {
                Pack { variable: format!("{}.{name}", in_hand.loads), source: Source::Ahead }
            }
            (Some(_) | None, _) => Pack { variable: name, source: Source::Body },
        }
    }

    /// What a body reads ahead: for each pack of that, its variable, its tensor and where the chunk's first element is.
    pub(super) fn read_ahead<'a>(
        &self,
        nest: &'a Loop,
        chunk: &'a Chunk,
    ) -> Vec<(&'a str, TensorId, &'a Index)> {
        let packs = nest.body.iter().zip(&chunk.packs);
        let ahead = packs.filter_map(|(statement, pack)| {
            let pack = pack.as_ref().filter(|pack| pack.source == Source::Ahead)?;
            let (tensor, index, _) = access(statement)?;
            Some((pack.variable.as_str(), tensor, index))
        });
        ahead.collect()
    }

    /// Whether a tensor's elements are given instead of read.
    fn is_in_hand(&self, tensor: TensorId) -> bool {
        self.in_hand.as_ref().is_some_and(|in_hand| in_hand.tensor == tensor)
    }

    fn comes_out_even(&self, axis: AxisId, width: u64, may_end_uneven: bool) -> bool {
        let axis = &self.kernel.axes[axis];
        let is_end_even = may_end_uneven && axis.extent >= width || axis.extent.is_multiple_of(width);
        is_end_even
            && match axis.span {
                Span::Whole => true,
                // A chunk lies in one tile, unless nobody asks in which.
                Span::Tile { outer, size } => {
                    size.is_multiple_of(width) || may_end_uneven && !self.live.axes.contains(outer)
                }
            }
    }

    /// The tensor of a statement that reads or writes `width` neighbours at once, aligned.
    fn wide(&self, nest: &Loop, statement: &Statement, width: u64) -> Option<TensorId> {
        let (tensor, index) = match statement {
            Statement::Load { register, tensor, index } if self.live.registers.contains(*register) => {
                (*tensor, index)
            }
            Statement::Store { tensor, index, .. } | Statement::Accumulate { tensor, index, .. } => {
                (*tensor, index)
            }
            Statement::Load { .. }
            | Statement::Loop(_)
            | Statement::Let { .. }
            | Statement::Start(_)
            | Statement::Combine { .. }
            | Statement::Total { .. } => return None,
        };
        if self.is_in_hand(tensor) {
            return Some(tensor);
        }
        let bytes = width * self.kernel.tensors[tensor].element.bytes();
        let alignment = self.alignments.get(tensor.as_u32() as usize).copied().unwrap_or(1);
        let is_aligned = alignment >= bytes.min(WIDEST) && starts_aligned(index, nest.axis, width);
        (is_aligned && self.is_alone(nest, tensor)).then_some(tensor)
    }

    /// Whether a body that writes a tensor touches it once only; reads may be many.
    fn is_alone(&self, nest: &Loop, tensor: TensorId) -> bool {
        let mut accesses = 0;
        let mut writes = 0;
        for statement in &nest.body {
            let (touched, is_write) = match statement {
                Statement::Load { tensor, .. } => (*tensor, false),
                Statement::Store { tensor, .. } | Statement::Accumulate { tensor, .. } => (*tensor, true),
                Statement::Loop(_)
                | Statement::Let { .. }
                | Statement::Start(_)
                | Statement::Combine { .. }
                | Statement::Total { .. } => continue,
            };
            if touched == tensor {
                accesses += 1;
                writes += usize::from(is_write);
            }
        }
        writes == 0 || accesses == 1
    }

    /// The body for the iterations of a chunk: wide loads, the work element by element, wide stores.
    pub(super) fn chunk_body(&mut self, nest: &Loop, chunk: &Chunk, axis: AxisId) {
        let Chunk { width, packs } = chunk;
        for (statement, pack) in nest.body.iter().zip(packs) {
            let (Some(Pack { variable, source: Source::Body }), Some((tensor, index, is_read))) =
                (pack, access(statement))
            else {
                continue;
            };
            let element = element_name(self.kernel.tensors[tensor].element);
            let address = self.address(tensor, index);
            if is_read {
                self.text.line(format!("auto {variable} = dtl::load_pack<{width}>({address});"));
            } else {
                self.text.line(format!("dtl::pack<{element}, {width}> {variable};"));
            }
        }
        self.text.line("#pragma unroll");
        let at = self.names.fresh("at");
        self.text.open(format!("for (int {at} = 0; {at} < {width}; ++{at}) {{"));
        let inside = format!("{} + {at}", self.names.axis(axis));
        self.column = (self.worker == Worker::Columns).then(|| at.clone());
        self.with_axis_text(axis, &format!("({inside})"), |this| {
            for (statement, pack) in nest.body.iter().zip(packs) {
                match pack {
                    Some(pack) => this.element_of(statement, &format!("{}.at[{at}]", pack.variable)),
                    None => this.statement(statement),
                }
            }
        });
        self.column = None;
        self.text.close();
        for (statement, pack) in nest.body.iter().zip(packs) {
            if let Some(Pack { variable, .. }) = pack
                && let Statement::Store { tensor, index, .. } | Statement::Accumulate { tensor, index, .. } =
                    statement
            {
                let address = self.address(*tensor, index);
                self.text.line(format!("dtl::store_pack({address}, {variable});"));
            }
        }
    }

    /// A statement whose tensor's element is already in, or still goes to, a variable.
    fn element_of(&mut self, statement: &Statement, place: &str) {
        match statement {
            Statement::Load { register, tensor, .. } => {
                let value = match self.is_in_hand(*tensor) {
                    true => place.to_owned(),
                    false => widened(self.kernel.tensors[*tensor].element, place),
                };
                self.define(*register, &value);
            }
            Statement::Store { tensor, value, .. } => {
                let narrow = narrowed(self.kernel.tensors[*tensor].element, &self.operand(*value));
                self.text.line_at(self.origins[*value].as_ref(), format!("{place} = {narrow};"));
            }
            Statement::Accumulate { tensor, combination, value, .. } => {
                let element = self.kernel.tensors[*tensor].element;
                let combination = combination_name(*combination);
                let sum = format!("{combination}::of({}, {})", self.operand(*value), widened(element, place));
                let narrow = narrowed(element, &sum);
                self.text.line_at(self.origins[*value].as_ref(), format!("{place} = {narrow};"));
            }
            Statement::Loop(_)
            | Statement::Let { .. }
            | Statement::Start(_)
            | Statement::Combine { .. }
            | Statement::Total { .. } => self.statement(statement),
        }
    }
}

/// Whether an index is a multiple of `width` wherever the loop's variable is one, and grows by 1 with it.
fn starts_aligned(index: &Index, axis: AxisId, width: u64) -> bool {
    let is_multiple = |number: i64| number.unsigned_abs().is_multiple_of(width);
    let of_others = index.terms().iter().filter(|term| term.variable != Variable::Axis(axis));
    index.coefficient(axis) == 1
        && is_multiple(index.constant_part())
        && of_others.into_iter().all(|term| is_multiple(term.coefficient))
}

/// What a statement touches, and whether it reads it.
pub(super) fn access(statement: &Statement) -> Option<(TensorId, &Index, bool)> {
    match statement {
        Statement::Load { tensor, index, .. } | Statement::Accumulate { tensor, index, .. } => {
            Some((*tensor, index, true))
        }
        Statement::Store { tensor, index, .. } => Some((*tensor, index, false)),
        Statement::Loop(_)
        | Statement::Let { .. }
        | Statement::Start(_)
        | Statement::Combine { .. }
        | Statement::Total { .. } => None,
    }
}
