//! Operations that move elements or make coordinates: `iota`, `random`, `slice`, `concat`, `stack`, `split`, `merge`,
//! `rename`, and `stop_gradient`, which does nothing to them.

use super::super::context::Elaborator;
use super::super::types::{element_name, same_dims};
use super::super::value::{Number, Value};
use super::Call;
use crate::ast::{DimArgument, DimArguments};
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::model::{DimId, Element, NodeId, Operation};

impl<'p> Elaborator<'p> {
    pub(super) fn iota(&mut self, call: &Call<'_, 'p>) -> Option<Value> {
        let [dim] = self.plain_dims(call)?[..] else { return self.wrong_dims(call) };
        // In a stack of layers the coordinate along the stack is the number of the layer.
        let dims = if self.repeats.contains(&dim) { Vec::new() } else { vec![dim] };
        Some(self.node(Operation::Iota(dim), Vec::new(), Element::I32, dims, call.span))
    }

    pub(super) fn random(&mut self, call: &Call<'_, 'p>) -> Option<Value> {
        let dims = self.plain_dims(call)?;
        Some(self.node(Operation::Random, Vec::new(), Element::F32, dims, call.span))
    }

    pub(super) fn stop_gradient(&mut self, call: &Call<'_, 'p>) -> Option<Value> {
        let node = self.tensor_argument(call, 0)?;
        let ty = self.ty(node).clone();
        Some(Value::Node(self.push(Operation::StopGradient, vec![node], ty, call.span)))
    }

    /// `slice[K -> J](x, start = 0)`, or one element with `slice[R = 0](x)`.
    pub(super) fn slice(&mut self, call: &Call<'_, 'p>) -> Option<Value> {
        let node = self.tensor_argument(call, 0)?;
        let (dim, into, start) = match call.dims {
            Some(DimArguments { from, to: None, .. }) => match &from[..] {
                [DimArgument::Bind { name, value, .. }] => {
                    let dim = self.dim(call.env, name)?;
                    (dim, None, self.size(call.env, value)?)
                }
                _ => return self.wrong_dims(call),
            },
            Some(_) => {
                let (from, to) = self.arrow_dims(call)?;
                let (&[from], &[to]) = (&from[..], &to[..]) else { return self.wrong_dims(call) };
                (from, Some(to), self.start(call)?)
            }
            None => return self.wrong_dims(call),
        };
        self.has_dim(call, 0, node, dim)?;
        let size = into.map_or(1, |into| self.dims[into].size);
        let whole = self.dims[dim].size;
        let open = self.is_stand_in(&[dim]) || into.is_some_and(|into| self.is_stand_in(&[into]));
        if start < 0 || (!open && start + i128::from(size) > i128::from(whole)) {
            let name = self.dims[dim].name.clone();
            self.report(
                Diagnostic::error(Code::InvalidSize, format!("the slice leaves `{name}`"))
                    .label(call.span, format!("elements {start} to {} of {whole}", start + i128::from(size))),
            );
            return None;
        }
        let start = u64::try_from(start).ok()?;
        let dims = self.replaced(node, dim, into.as_slice());
        let element = self.ty(node).element;
        Some(self.node(Operation::Slice { dim, start, into }, vec![node], element, dims, call.span))
    }

    fn start(&mut self, call: &Call<'_, 'p>) -> Option<i128> {
        let Some(start) = call.named.first() else { return Some(0) };
        match self.expression(call.env, &start.value) {
            Value::Number(Number::Int(start)) => Some(start),
            Value::Error => None,
            Value::Number(Number::Float(_)) | Value::Node(_) | Value::Truth(_) | Value::Tuple(_) => {
                self.report(
                    Diagnostic::error(Code::NotCompileTime, "`start` is an integer known at compile time")
                        .label(start.span, "not one"),
                );
                None
            }
        }
    }

    /// The dims of a node with one replaced.
    fn replaced(&self, node: NodeId, dim: DimId, by: &[DimId]) -> Vec<DimId> {
        let dims = self.ty(node).dims.iter();
        dims.flat_map(|&it| if it == dim { by.to_vec() } else { vec![it] }).collect()
    }

    pub(super) fn concat(&mut self, call: &Call<'_, 'p>) -> Option<Value> {
        let (from, to) = self.arrow_dims(call)?;
        let &[into] = &to[..] else { return self.wrong_dims(call) };
        let count = call.positional.len();
        let pieces: Vec<DimId> = match &from[..] {
            &[one] => vec![one; count],
            several if several.len() == count => several.to_vec(),
            _ => return self.wrong_dims(call),
        };
        let total: u64 = pieces.iter().map(|&piece| self.dims[piece].size).sum();
        if count == 0
            || (total != self.dims[into].size && !self.is_stand_in(&pieces) && !self.is_stand_in(&[into]))
        {
            return self.sizes_disagree(call, &pieces, " + ", &[into], " + ");
        }
        let nodes = self.pieces(call)?;
        for (index, (&node, &piece)) in nodes.iter().zip(&pieces).enumerate() {
            self.has_dim(call, index, node, piece)?;
        }
        let dims = self.replaced(nodes[0], pieces[0], &[into]);
        self.equal_pieces(call, &nodes, |elaborator, index| {
            elaborator.replaced(nodes[index], pieces[index], &[into])
        })?;
        let pieces = pieces.into_iter().map(Some).collect();
        let element = self.ty(nodes[0]).element;
        Some(self.node(Operation::Concat { pieces, into }, nodes, element, dims, call.span))
    }

    pub(super) fn stack(&mut self, call: &Call<'_, 'p>) -> Option<Value> {
        let [into] = self.plain_dims(call)?[..] else { return self.wrong_dims(call) };
        let count = call.positional.len() as u64;
        if count == 0 || (self.dims[into].size != count && !self.is_stand_in(&[into])) {
            let (name, size) = (self.dims[into].name.clone(), self.dims[into].size);
            self.report(
                Diagnostic::error(Code::InvalidSize, format!("`{name}` has {size} elements, not {count}"))
                    .label(call.span, format!("a stack of {count}"))
                    .label(self.dims[into].span, format!("`{name}` is declared here")),
            );
            return None;
        }
        let nodes = self.pieces(call)?;
        self.equal_pieces(call, &nodes, |elaborator, index| elaborator.ty(nodes[index]).dims.clone())?;
        let first = self.ty(nodes[0]).clone();
        let dims = first.dims.iter().copied().chain([into]).collect();
        let pieces = vec![None; nodes.len()];
        Some(self.node(Operation::Concat { pieces, into }, nodes, first.element, dims, call.span))
    }

    fn pieces(&mut self, call: &Call<'_, 'p>) -> Option<Vec<NodeId>> {
        (0..call.positional.len()).map(|index| self.tensor_argument(call, index)).collect()
    }

    /// Checks that pieces have one element type and, as `dims` gives them, equal dims.
    fn equal_pieces(
        &mut self,
        call: &Call<'_, 'p>,
        nodes: &[NodeId],
        dims: impl Fn(&Self, usize) -> Vec<DimId>,
    ) -> Option<()> {
        let (first, element) = (dims(self, 0), self.ty(nodes[0]).element);
        for (index, &node) in nodes.iter().enumerate().skip(1) {
            let other = dims(self, index);
            let equal_element = self.ty(node).element == element;
            if equal_element && same_dims(&first, &other) {
                continue;
            }
            let (a, b) = (self.type_text(&self.ty(nodes[0]).clone()), self.type_text(&self.ty(node).clone()));
            let code = if equal_element { Code::DimMismatch } else { Code::ElementMismatch };
            let mut diagnostic = Diagnostic::error(code, format!("pieces {a} and {b} do not fit together"))
                .label(call.positional[index].1, format!("this is {b}"))
                .label(call.positional[0].1, format!("the first is {a}"));
            if equal_element {
                let missing: Vec<DimId> = first.iter().copied().filter(|dim| !other.contains(dim)).collect();
                let extra: Vec<DimId> = other.iter().copied().filter(|dim| !first.contains(dim)).collect();
                diagnostic = self.explain_difference(diagnostic, &missing, &extra);
            } else {
                diagnostic = diagnostic.hint(format!("{}(…)", element_name(element)));
            }
            self.report(diagnostic);
            return None;
        }
        Some(())
    }

    pub(super) fn split(&mut self, call: &Call<'_, 'p>) -> Option<Value> {
        let node = self.tensor_argument(call, 0)?;
        let (from, into) = self.arrow_dims(call)?;
        let &[dim] = &from[..] else { return self.wrong_dims(call) };
        self.has_dim(call, 0, node, dim)?;
        self.equal_products(call, &[dim], &into)?;
        let dims = self.replaced(node, dim, &into);
        let element = self.ty(node).element;
        Some(self.node(Operation::Split { dim, into }, vec![node], element, dims, call.span))
    }

    pub(super) fn merge(&mut self, call: &Call<'_, 'p>) -> Option<Value> {
        let node = self.tensor_argument(call, 0)?;
        let (from, to) = self.arrow_dims(call)?;
        let &[into] = &to[..] else { return self.wrong_dims(call) };
        for &dim in &from {
            self.has_dim(call, 0, node, dim)?;
        }
        self.equal_products(call, &from, &[into])?;
        let Some(&first) = from.first() else { return self.wrong_dims(call) };
        let kept = self.ty(node).dims.iter().copied().filter(|dim| *dim == first || !from.contains(dim));
        let dims = kept.map(|dim| if dim == first { into } else { dim }).collect();
        let element = self.ty(node).element;
        Some(self.node(Operation::Merge { dims: from, into }, vec![node], element, dims, call.span))
    }

    fn equal_products(&mut self, call: &Call<'_, 'p>, left: &[DimId], right: &[DimId]) -> Option<()> {
        if self.elements(left) == self.elements(right) || self.is_stand_in(left) || self.is_stand_in(right) {
            return Some(());
        }
        self.sizes_disagree(call, left, " * ", right, " * ")
    }

    fn sizes_disagree<T>(
        &mut self,
        call: &Call<'_, 'p>,
        left: &[DimId],
        left_joined: &str,
        right: &[DimId],
        right_joined: &str,
    ) -> Option<T> {
        let join = |dims: &[DimId], with: &str| {
            let parts = dims.iter().map(|&dim| format!("{} ({})", self.dims[dim].name, self.dims[dim].size));
            parts.collect::<Vec<_>>().join(with)
        };
        let (l, r) = (join(left, left_joined), join(right, right_joined));
        let place = call.dims.map_or(call.span, |dims| dims.span);
        self.report(
            Diagnostic::error(Code::InvalidSize, format!("{l} is not {r}"))
                .label(place, "sizes do not agree")
                .hint(super::usage(&call.name.name)),
        );
        None
    }

    pub(super) fn rename(&mut self, call: &Call<'_, 'p>) -> Option<Value> {
        let node = self.tensor_argument(call, 0)?;
        let (from, to) = self.arrow_dims(call)?;
        let (&[from], &[to]) = (&from[..], &to[..]) else { return self.wrong_dims(call) };
        self.has_dim(call, 0, node, from)?;
        self.equal_products(call, &[from], &[to])?;
        let dims = self.replaced(node, from, &[to]);
        let element = self.ty(node).element;
        Some(self.node(Operation::Rename { from, to }, vec![node], element, dims, call.span))
    }
}
