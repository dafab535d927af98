//! Reductions: `sum`, `max`, `mean`, and the mean over a condition, which is one sum over one count.

use super::super::context::Elaborator;
use super::super::types::{element_name, is_float};
use super::super::value::Value;
use super::Call;
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::model::{DimId, Element, Elementwise, NodeId, Operation, Reduction, TensorType};
use crate::source::Span;

impl<'p> Elaborator<'p> {
    pub(super) fn reduction(&mut self, call: &Call<'_, 'p>) -> Option<Value> {
        let node = self.tensor_argument(call, 0)?;
        let over = match call.dims {
            Some(_) => self.plain_dims(call)?,
            None => self.ty(node).dims.clone(),
        };
        for &dim in &over {
            self.has_dim(call, 0, node, dim)?;
        }
        let element = self.ty(node).element;
        let mean = call.name.name == "mean";
        if element == Element::Bool || (mean && !is_float(element)) {
            let found = self.type_text(&self.ty(node).clone());
            self.report(
                Diagnostic::error(Code::ElementMismatch, format!("`{}` of {found}", call.name.name))
                    .label(call.positional[0].1, format!("this is {found}"))
                    .hint("f32(…)"),
            );
            return None;
        }
        if let (true, Some(condition)) = (mean, call.named.first()) {
            let value = self.expression(call.env, &condition.value);
            return self.mean_over(call, node, over, value, condition.span);
        }
        let with = if call.name.name == "max" { Reduction::Max } else { Reduction::Sum };
        if over.is_empty() {
            return Some(Value::Node(node));
        }
        let reduced = self.reduce(with, node, &over, call.span);
        if !mean {
            return Some(Value::Node(reduced));
        }
        Some(Value::Node(self.divide_by(reduced, self.elements(&over) as f64, call.span)))
    }

    /// A reduction of a node that has the dims.
    fn reduce(&mut self, with: Reduction, node: NodeId, over: &[DimId], span: Span) -> NodeId {
        let ty = self.ty(node);
        let dims = ty.dims.iter().copied().filter(|dim| !over.contains(dim)).collect();
        let ty = TensorType { element: ty.element, dims };
        self.push(Operation::Reduce { with, over: over.to_vec() }, vec![node], ty, span)
    }

    fn divide_by(&mut self, node: NodeId, number: f64, span: Span) -> NodeId {
        let ty = self.ty(node).clone();
        let scalar = TensorType { element: ty.element, dims: Vec::new() };
        let divisor = self.push(Operation::Number(number), Vec::new(), scalar, span);
        self.push(Operation::Elementwise(Elementwise::Div), vec![node, divisor], ty, span)
    }

    /// `mean(x, over = condition)`: the sum where the condition holds over how often it does, in f32 and divided once.
    /// Where it never holds the mean is 0.
    fn mean_over(
        &mut self,
        call: &Call<'_, 'p>,
        node: NodeId,
        over: Vec<DimId>,
        condition: Value,
        span: Span,
    ) -> Option<Value> {
        let condition = self.condition_of_mean(condition, node, span)?;
        let ty = self.ty(node).clone();
        let f32 = |dims: &[DimId]| TensorType { element: Element::F32, dims: dims.to_vec() };
        let wide = if ty.element == Element::F32 {
            node
        } else {
            self.push(Operation::Cast, vec![node], f32(&ty.dims), call.span)
        };
        let zero = self.push(Operation::Number(0.0), Vec::new(), f32(&[]), span);
        let one = self.push(Operation::Number(1.0), Vec::new(), f32(&[]), span);
        let select = Operation::Elementwise(Elementwise::Select);
        let kept = self.push(select.clone(), vec![condition, wide, zero], f32(&ty.dims), call.span);
        let total = if over.is_empty() { kept } else { self.reduce(Reduction::Sum, kept, &over, call.span) };
        let counted_dims = self.ty(condition).dims.clone();
        let ones = self.push(select, vec![condition, one, zero], f32(&counted_dims), span);
        let (counted, other): (Vec<DimId>, Vec<DimId>) =
            over.iter().partition(|&dim| counted_dims.contains(dim));
        let count = if counted.is_empty() { ones } else { self.reduce(Reduction::Sum, ones, &counted, span) };
        let count_ty = self.ty(count).clone();
        let count = self.push(Operation::Elementwise(Elementwise::Max), vec![count, one], count_ty, span);
        let mean_ty = self.ty(total).clone();
        let mut mean =
            self.push(Operation::Elementwise(Elementwise::Div), vec![total, count], mean_ty, call.span);
        if !other.is_empty() {
            mean = self.divide_by(mean, self.elements(&other) as f64, call.span);
        }
        if ty.element != Element::F32 {
            let narrow = TensorType { element: ty.element, dims: self.ty(mean).dims.clone() };
            mean = self.push(Operation::Cast, vec![mean], narrow, call.span);
        }
        Some(Value::Node(mean))
    }

    fn condition_of_mean(&mut self, condition: Value, node: NodeId, span: Span) -> Option<NodeId> {
        let Value::Node(condition) = condition else {
            if condition != Value::Error {
                let found = self.value_text(&condition);
                self.report(
                    Diagnostic::error(Code::WrongValue, format!("`over` takes a condition, not {found}"))
                        .label(span, format!("this is {found}"))
                        .hint("over = labels != 0xffffffff"),
                );
            }
            return None;
        };
        let ty = self.ty(condition).clone();
        if ty.element != Element::Bool {
            let title = format!("`over` takes a condition, not {}", element_name(ty.element));
            self.report(
                Diagnostic::error(Code::ElementMismatch, title)
                    .label(span, format!("this is {}", self.type_text(&ty)))
                    .hint("over = labels != 0xffffffff"),
            );
            return None;
        }
        let whole = self.ty(node).clone();
        let extra: Vec<DimId> = ty.dims.iter().copied().filter(|dim| !whole.dims.contains(dim)).collect();
        if extra.is_empty() {
            return Some(condition);
        }
        let title = format!("the condition has dimensions that {} lacks", self.type_text(&whole));
        let diagnostic = Diagnostic::error(Code::DimMismatch, title)
            .label(span, format!("this is {}", self.type_text(&ty)));
        let diagnostic = self.explain_difference(diagnostic, &[], &extra);
        self.report(diagnostic);
        None
    }
}
