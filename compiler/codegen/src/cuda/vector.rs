//! Chunks of neighbouring elements: which accesses of a loop's body are one of 16 bytes, and the body over a chunk.

use super::emit::Emitter;
use super::operation::{combination_name, element_name, narrowed, widened};
use crate::kir::{AxisId, AxisKind, Index, Loop, Span, Statement, TensorId, Variable};

/// How a loop's body is done for several neighbouring iterations at once.
pub(super) struct Chunk {
    width: u64,
    /// For each statement of the body, the variable that holds the chunk's elements where they are one access.
    packs: Vec<Option<String>>,
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
        let is_straight = nest.body.iter().all(|statement| !matches!(statement, Statement::Loop(_)));
        if self.kernel.axes[nest.axis].kind == AxisKind::Serial || !is_straight {
            return None;
        }
        for width in [8, 4] {
            if !self.comes_out_even(nest.axis, width, may_end_uneven) {
                continue;
            }
            let wide: Vec<Option<TensorId>> =
                nest.body.iter().map(|statement| self.wide(nest, statement, width)).collect();
            let bytes = |tensor: &TensorId| self.kernel.tensors[*tensor].element.bytes();
            // Eight at once are for elements of two bytes or one.
            let least = wide.iter().flatten().map(bytes).min();
            if least.is_some_and(|least| width == 4 || least <= 2) {
                let names = wide.iter().map(|tensor| {
                    let name = self.names.tensor((*tensor)?).to_owned();
                    Some(self.names.fresh(&format!("{name}_pack")))
                });
                let packs = names.collect();
                return Some(Chunk { width, packs });
            }
        }
        None
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
            let (Some(pack), Some((tensor, index, is_read))) = (pack, access(statement)) else { continue };
            let element = element_name(self.kernel.tensors[tensor].element);
            let address = self.address(tensor, index);
            if is_read {
                self.text.line(format!("auto {pack} = dtl::load_pack<{width}>({address});"));
            } else {
                self.text.line(format!("dtl::pack<{element}, {width}> {pack};"));
            }
        }
        self.text.line("#pragma unroll");
        let at = self.names.fresh("at");
        self.text.open(format!("for (int {at} = 0; {at} < {width}; ++{at}) {{"));
        let inside = format!("{} + {at}", self.names.axis(axis));
        self.with_axis_text(axis, &format!("({inside})"), |this| {
            for (statement, pack) in nest.body.iter().zip(packs) {
                match pack {
                    Some(pack) => this.element_of(statement, &format!("{pack}.at[{at}]")),
                    None => this.statement(statement),
                }
            }
        });
        self.text.close();
        for (statement, pack) in nest.body.iter().zip(packs) {
            if let Some(pack) = pack
                && let Statement::Store { tensor, index, .. } | Statement::Accumulate { tensor, index, .. } =
                    statement
            {
                let address = self.address(*tensor, index);
                self.text.line(format!("dtl::store_pack({address}, {pack});"));
            }
        }
    }

    /// A statement whose tensor's element is already in, or still goes to, a variable.
    fn element_of(&mut self, statement: &Statement, place: &str) {
        match statement {
            Statement::Load { register, tensor, .. } => {
                let value = widened(self.kernel.tensors[*tensor].element, place);
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
fn access(statement: &Statement) -> Option<(TensorId, &Index, bool)> {
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
