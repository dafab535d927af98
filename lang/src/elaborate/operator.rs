//! Scalar functions applied element by element: operators, broadcasting by name, and the functions of one to three
//! arguments. What is known at compile time is computed here.
//!
//! From [`Value`]s to [`Value`]s.

use super::context::Elaborator;
use super::types::{element_name, is_float};
use super::value::{FoldError, Folded, Number, Value, fold};
use crate::ast::BinaryOperator;
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::model::{DimId, Element, Elementwise, NodeId, Operation, TensorType};
use crate::source::Span;

/// A value with where it is written.
pub(super) type Placed = (Value, Span);

impl Elaborator<'_> {
    /// `-x`
    pub fn negate(&mut self, value: Value, span: Span) -> Value {
        match value {
            Value::Number(Number::Int(number)) => Value::Number(Number::Int(-number)),
            Value::Number(Number::Float(number)) => Value::Number(Number::Float(-number)),
            Value::Node(node) => match self.ty(node).element {
                Element::Float | Element::F32 | Element::Bf16 | Element::F16 | Element::I32 => {
                    let ty = self.ty(node).clone();
                    Value::Node(self.push(Operation::Elementwise(Elementwise::Neg), vec![node], ty, span))
                }
                Element::U32 | Element::Bool => self.wrong_operand("-", &value, span, "a signed number"),
            },
            Value::Truth(_) | Value::Tuple(_) => self.wrong_operand("-", &value, span, "a number"),
            Value::Error => Value::Error,
        }
    }

    /// `!x`
    pub fn not(&mut self, value: Value, span: Span) -> Value {
        match value {
            Value::Truth(truth) => Value::Truth(!truth),
            Value::Node(node) if self.ty(node).element == Element::Bool => {
                let ty = self.ty(node).clone();
                Value::Node(self.push(Operation::Elementwise(Elementwise::Not), vec![node], ty, span))
            }
            Value::Error => Value::Error,
            Value::Node(_) | Value::Number(_) | Value::Tuple(_) => {
                self.wrong_operand("!", &value, span, "true or false")
            }
        }
    }

    fn wrong_operand(&mut self, operator: &str, value: &Value, span: Span, wanted: &str) -> Value {
        let found = self.value_text(value);
        self.report(
            Diagnostic::error(Code::ElementMismatch, format!("`{operator}` takes {wanted}, not {found}"))
                .label(span, format!("this is {found}")),
        )
    }

    /// `left operator right`
    pub fn binary(&mut self, operator: BinaryOperator, left: Placed, right: Placed, span: Span) -> Value {
        match (&left.0, &right.0) {
            (Value::Error, _) | (_, Value::Error) => Value::Error,
            (Value::Number(l), Value::Number(r)) if !is_logic(operator) => {
                self.folded(operator, *l, *r, span)
            }
            (Value::Truth(l), Value::Truth(r)) => self.fold_truths(operator, *l, *r, span),
            (Value::Number(_) | Value::Truth(_) | Value::Tuple(_) | Value::Node(_), _) => {
                self.binary_nodes(operator, left, right, span)
            }
        }
    }

    fn folded(&mut self, operator: BinaryOperator, left: Number, right: Number, span: Span) -> Value {
        match fold(operator, left, right) {
            Ok(Folded::Number(number)) => Value::Number(number),
            Ok(Folded::Truth(truth)) => Value::Truth(truth),
            Err(FoldError::Inexact) => {
                let (l, r) = (left.as_f64(), right.as_f64());
                self.report(
                    Diagnostic::error(Code::InvalidSize, format!("{l} is not divisible by {r}"))
                        .label(span, "both are integers")
                        .why("integers divide exactly or not at all")
                        .hint(format!("{l:?} / {r:?}")),
                )
            }
            Err(FoldError::ByZero) => self.report(
                Diagnostic::error(Code::WrongValue, "division by zero").label(span, "known at compile time"),
            ),
            Err(FoldError::Overflow) => self.report(
                Diagnostic::error(Code::WrongValue, "the result is out of range")
                    .label(span, "known at compile time"),
            ),
        }
    }

    fn fold_truths(&mut self, operator: BinaryOperator, left: bool, right: bool, span: Span) -> Value {
        match operator {
            BinaryOperator::And => Value::Truth(left && right),
            BinaryOperator::Or => Value::Truth(left || right),
            BinaryOperator::Equal => Value::Truth(left == right),
            BinaryOperator::NotEqual => Value::Truth(left != right),
            BinaryOperator::Less
            | BinaryOperator::LessEqual
            | BinaryOperator::Greater
            | BinaryOperator::GreaterEqual
            | BinaryOperator::Add
            | BinaryOperator::Subtract
            | BinaryOperator::Multiply
            | BinaryOperator::Divide
            | BinaryOperator::Remainder => {
                self.wrong_operand(operator.symbol(), &Value::Truth(left), span, "numbers")
            }
        }
    }

    fn binary_nodes(&mut self, operator: BinaryOperator, left: Placed, right: Placed, span: Span) -> Value {
        let Some((l, r)) = self.operands(operator.symbol(), &left, &right) else { return Value::Error };
        let element = self.ty(l).element;
        let number = element != Element::Bool;
        let (function, result, fits) = match operator {
            BinaryOperator::Or => (Elementwise::Or, Element::Bool, !number),
            BinaryOperator::And => (Elementwise::And, Element::Bool, !number),
            BinaryOperator::Equal => (Elementwise::Equal, Element::Bool, true),
            BinaryOperator::NotEqual => (Elementwise::NotEqual, Element::Bool, true),
            BinaryOperator::Less => (Elementwise::Less, Element::Bool, number),
            BinaryOperator::LessEqual => (Elementwise::LessEqual, Element::Bool, number),
            BinaryOperator::Greater => (Elementwise::Greater, Element::Bool, number),
            BinaryOperator::GreaterEqual => (Elementwise::GreaterEqual, Element::Bool, number),
            BinaryOperator::Add => (Elementwise::Add, element, number),
            BinaryOperator::Subtract => (Elementwise::Sub, element, number),
            BinaryOperator::Multiply => (Elementwise::Mul, element, number),
            BinaryOperator::Divide => (Elementwise::Div, element, number),
            BinaryOperator::Remainder => (Elementwise::Rem, element, number),
        };
        if !fits {
            let wanted = if is_logic(operator) { "true or false" } else { "numbers" };
            return self.wrong_operand(operator.symbol(), &Value::Node(l), span, wanted);
        }
        let outer = result == Element::Bool;
        let what = format!("`{}`", operator.symbol());
        let Some(dims) = self.broadcast(&what, &[(l, left.1), (r, right.1)], outer) else {
            return Value::Error;
        };
        self.node(Operation::Elementwise(function), vec![l, r], result, dims, span)
    }

    /// Both operands as nodes of one element type.
    pub fn operands(&mut self, what: &str, left: &Placed, right: &Placed) -> Option<(NodeId, NodeId)> {
        match (&left.0, &right.0) {
            (Value::Node(l), Value::Node(r)) => {
                let (le, re) = (self.ty(*l).element, self.ty(*r).element);
                if le == re {
                    return Some((*l, *r));
                }
                let (lt, rt) = (self.type_text(self.ty(*l)), self.type_text(self.ty(*r)));
                // The more precise side is rarely the one to give up.
                let cast = if le == Element::F32 || re == Element::F32 { "f32" } else { element_name(le) };
                self.report(
                    Diagnostic::error(Code::ElementMismatch, format!("`{what}` of {lt} and {rt}"))
                        .label(left.1, format!("this is {lt}"))
                        .label(right.1, format!("this is {rt}"))
                        .why("numbers are never converted silently")
                        .hint(format!("{cast}(…) of the other side")),
                );
                None
            }
            (Value::Node(node), other) => {
                let (node, element) = (*node, self.ty(*node).element);
                Some((node, self.adopted(what, other, element, right.1)?))
            }
            (other, Value::Node(node)) => {
                let (node, element) = (*node, self.ty(*node).element);
                Some((self.adopted(what, other, element, left.1)?, node))
            }
            (Value::Number(_), Value::Number(_)) => {
                let l = self.adopted(what, &left.0, Element::F32, left.1)?;
                Some((l, self.adopted(what, &right.0, Element::F32, right.1)?))
            }
            (other, Value::Truth(_) | Value::Number(_) | Value::Tuple(_) | Value::Error) => {
                self.wrong_operand(what, &other.clone(), left.1, "two values of one kind");
                None
            }
        }
    }

    /// A compile-time value as a node of an element type.
    pub fn adopted(&mut self, what: &str, value: &Value, element: Element, span: Span) -> Option<NodeId> {
        match value {
            Value::Node(node) => Some(*node),
            Value::Number(number) => self.literal(*number, element, span),
            Value::Truth(truth) if element == Element::Bool => {
                let ty = TensorType { element, dims: Vec::new() };
                Some(self.push(Operation::Truth(*truth), Vec::new(), ty, span))
            }
            Value::Error => None,
            Value::Truth(_) | Value::Tuple(_) => {
                self.wrong_operand(what, value, span, &format!("{} here", element_name(element)));
                None
            }
        }
    }

    /// The dims of an element-by-element result: those of the operand that has all, else of each in turn. Two operands
    /// of which each has dims that the other lacks may only combine where they have none in common, or where `outer`
    /// allows it, since a result so much larger than both is rarely meant.
    pub fn broadcast(&mut self, what: &str, operands: &[(NodeId, Span)], outer: bool) -> Option<Vec<DimId>> {
        let mut dims: Vec<DimId> = Vec::new();
        for (index, &(node, span)) in operands.iter().enumerate() {
            let new = self.ty(node).dims.clone();
            let contains = |whole: &[DimId], part: &[DimId]| part.iter().all(|dim| whole.contains(dim));
            if contains(&dims, &new) {
                continue;
            }
            if contains(&new, &dims) {
                dims = new;
                continue;
            }
            let common = new.iter().any(|dim| dims.contains(dim));
            if common && !outer {
                let (first, first_span) = operands[index.saturating_sub(1)];
                self.disjoint(what, (first, first_span), (node, span), &dims);
                return None;
            }
            let more: Vec<DimId> = new.into_iter().filter(|dim| !dims.contains(dim)).collect();
            dims.extend(more);
        }
        Some(dims)
    }

    fn disjoint(&mut self, what: &str, left: (NodeId, Span), right: (NodeId, Span), left_dims: &[DimId]) {
        let right_dims = self.ty(right.0).dims.clone();
        let (lt, rt) = (self.type_text(self.ty(left.0)), self.type_text(self.ty(right.0)));
        let missing: Vec<DimId> = left_dims.iter().copied().filter(|dim| !right_dims.contains(dim)).collect();
        let extra: Vec<DimId> = right_dims.iter().copied().filter(|dim| !left_dims.contains(dim)).collect();
        let diagnostic = Diagnostic::error(Code::OperandDims, format!("{what} of {lt} and {rt}"))
            .label(left.1, format!("this is {lt}"))
            .label(right.1, format!("this is {rt}"));
        let diagnostic = self
            .explain_difference(diagnostic, &missing, &extra)
            .note("one operand must have all the dimensions of the other, or share none with it".to_owned());
        self.report(diagnostic);
    }

    /// A function of one float: `exp(x)`.
    pub fn unary_function(&mut self, function: Elementwise, name: &str, value: &Placed, span: Span) -> Value {
        match &value.0 {
            Value::Error => Value::Error,
            Value::Number(number) => match evaluate(function, number.as_f64()) {
                Some(result) => Value::Number(Number::Float(result)),
                None => self.report(
                    Diagnostic::error(
                        Code::WrongValue,
                        format!("`{name}({})` is no number", number.as_f64()),
                    )
                    .label(span, "known at compile time"),
                ),
            },
            Value::Node(node) => {
                let ty = self.ty(*node).clone();
                let signed = function == Elementwise::Abs && ty.element == Element::I32;
                if !is_float(ty.element) && !signed {
                    return self.wrong_operand(name, &value.0, value.1, "floats");
                }
                Value::Node(self.push(Operation::Elementwise(function), vec![*node], ty, span))
            }
            Value::Truth(_) | Value::Tuple(_) => self.wrong_operand(name, &value.0, value.1, "floats"),
        }
    }

    /// A function of two numbers: `max(a, b)`, `pow(a, b)`.
    pub fn binary_function(
        &mut self,
        function: Elementwise,
        name: &str,
        left: &Placed,
        right: &Placed,
        span: Span,
    ) -> Value {
        if let (Value::Number(l), Value::Number(r)) = (&left.0, &right.0) {
            return self.binary_constants(function, name, *l, *r, span);
        }
        if left.0 == Value::Error || right.0 == Value::Error {
            return Value::Error;
        }
        let Some((l, r)) = self.operands(name, left, right) else { return Value::Error };
        let element = self.ty(l).element;
        let fits = is_float(element) || (function != Elementwise::Pow && element != Element::Bool);
        if !fits {
            return self.wrong_operand(name, &Value::Node(l), left.1, "numbers");
        }
        let what = format!("`{name}`");
        let Some(dims) = self.broadcast(&what, &[(l, left.1), (r, right.1)], false) else {
            return Value::Error;
        };
        self.node(Operation::Elementwise(function), vec![l, r], element, dims, span)
    }

    fn binary_constants(
        &mut self,
        function: Elementwise,
        name: &str,
        l: Number,
        r: Number,
        span: Span,
    ) -> Value {
        if let (Elementwise::Min | Elementwise::Max, Number::Int(a), Number::Int(b)) = (function, l, r) {
            let result = if function == Elementwise::Min { a.min(b) } else { a.max(b) };
            return Value::Number(Number::Int(result));
        }
        let (l, r) = (l.as_f64(), r.as_f64());
        let result = match function {
            Elementwise::Min => l.min(r),
            Elementwise::Max => l.max(r),
            _ => l.powf(r),
        };
        if result.is_finite() {
            return Value::Number(Number::Float(result));
        }
        self.report(
            Diagnostic::error(Code::WrongValue, format!("`{name}({l}, {r})` is no number"))
                .label(span, "known at compile time"),
        )
    }

    /// `select(condition, a, b)`
    pub fn select(&mut self, condition: &Placed, left: &Placed, right: &Placed, span: Span) -> Value {
        if [condition, left, right].iter().any(|(value, _)| *value == Value::Error) {
            return Value::Error;
        }
        if let Value::Truth(truth) = condition.0 {
            return if truth { left.0.clone() } else { right.0.clone() };
        }
        let test = match condition.0 {
            Value::Node(node) if self.ty(node).element == Element::Bool => node,
            _ => return self.wrong_operand("select", &condition.0, condition.1, "a condition first"),
        };
        let both_truths = matches!((&left.0, &right.0), (Value::Truth(_), Value::Truth(_)));
        let operands = if both_truths {
            let l = self.adopted("select", &left.0, Element::Bool, left.1);
            let r = self.adopted("select", &right.0, Element::Bool, right.1);
            l.zip(r)
        } else {
            self.operands("select", left, right)
        };
        let Some((l, r)) = operands else { return Value::Error };
        let element = self.ty(l).element;
        let placed = [(l, left.1), (r, right.1), (test, condition.1)];
        let Some(dims) = self.broadcast("`select`", &placed, true) else { return Value::Error };
        self.node(Operation::Elementwise(Elementwise::Select), vec![test, l, r], element, dims, span)
    }

    /// Conversion to another element type.
    pub fn cast(&mut self, element: Element, value: &Placed, span: Span) -> Value {
        match &value.0 {
            Value::Node(node) => {
                let mut ty = self.ty(*node).clone();
                if ty.element == element {
                    return value.0.clone();
                }
                ty.element = element;
                Value::Node(self.push(Operation::Cast, vec![*node], ty, span))
            }
            Value::Number(number) => match element {
                Element::Float | Element::F32 | Element::Bf16 | Element::F16 => {
                    Value::Number(Number::Float(number.as_f64()))
                }
                Element::I32 | Element::U32 => Value::Number(Number::Int(number.as_f64().trunc() as i128)),
                Element::Bool => Value::Truth(number.as_f64() != 0.0),
            },
            Value::Truth(truth) => match element {
                Element::Bool => value.0.clone(),
                Element::Float | Element::F32 | Element::Bf16 | Element::F16 => {
                    Value::Number(Number::Float(f64::from(u8::from(*truth))))
                }
                Element::I32 | Element::U32 => Value::Number(Number::Int(i128::from(*truth))),
            },
            Value::Tuple(_) => self.wrong_operand(element_name(element), &value.0, value.1, "one value"),
            Value::Error => Value::Error,
        }
    }
}

fn is_logic(operator: BinaryOperator) -> bool {
    matches!(operator, BinaryOperator::And | BinaryOperator::Or)
}

/// A function of one number at compile time; none where it has no finite value.
fn evaluate(function: Elementwise, x: f64) -> Option<f64> {
    let result = match function {
        Elementwise::Abs => x.abs(),
        Elementwise::Exp => x.exp(),
        Elementwise::Log => x.ln(),
        Elementwise::Sqrt => x.sqrt(),
        Elementwise::Rsqrt => 1.0 / x.sqrt(),
        Elementwise::Tanh => x.tanh(),
        Elementwise::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Elementwise::Sin => x.sin(),
        Elementwise::Cos => x.cos(),
        Elementwise::Floor => x.floor(),
        // Not needed on constants; the caller says that it is no number known now.
        Elementwise::Erf => return None,
        Elementwise::Neg
        | Elementwise::Not
        | Elementwise::Add
        | Elementwise::Sub
        | Elementwise::Mul
        | Elementwise::Div
        | Elementwise::Rem
        | Elementwise::Pow
        | Elementwise::Min
        | Elementwise::Max
        | Elementwise::Equal
        | Elementwise::NotEqual
        | Elementwise::Less
        | Elementwise::LessEqual
        | Elementwise::Greater
        | Elementwise::GreaterEqual
        | Elementwise::And
        | Elementwise::Or
        | Elementwise::Select => return None,
    };
    result.is_finite().then_some(result)
}
