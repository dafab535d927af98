//! Dimensions: their names, sizes and factors, and what a dimension's definition means.
//!
//! From the expressions of `dims` and of arguments in brackets to [`DimId`]s. Knows nothing of tensors.

use super::context::{Elaborator, Purpose};
use super::value::{Env, FoldError, Folded, Number, Value, fold};
use crate::ast::{BinaryOperator, Expr, ExprKind, Ident};
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::model::{DimId, Dimension};
use crate::source::Span;
use crate::suggest::did_you_mean;

/// The size of every dim of an item that is checked by itself. It has many divisors.
pub(super) const STAND_IN: u64 = 720;

/// More elements than this no tensor has, since offsets are 63 bits.
pub(super) const MOST_ELEMENTS: u64 = i64::MAX as u64;

impl Elaborator<'_> {
    /// A new dimension; its name gets a number behind it where it is taken.
    pub fn new_dim(&mut self, name: &str, size: u64, open: bool, factors: Vec<DimId>, span: Span) -> DimId {
        let mut unique = name.to_owned();
        let mut number = 1;
        while !self.dim_names.insert(unique.clone()) {
            number += 1;
            unique = format!("{name}{number}");
        }
        self.dims.push(Dimension { name: unique, size, open, factors, span })
    }

    /// Whether sizes of these dims are only stand-ins, so that comparing them says nothing.
    pub fn is_stand_in(&self, dims: &[DimId]) -> bool {
        self.purpose == Purpose::Generic || dims.iter().any(|&dim| self.dims[dim].open)
    }

    /// The product of dims, one dimension for equal factors.
    pub fn product(&mut self, name: &str, factors: Vec<DimId>, span: Span) -> Option<DimId> {
        if let Some(&known) = self.products.get(&factors) {
            return Some(known);
        }
        let mut size = 1u64;
        for &factor in &factors {
            size = size.saturating_mul(self.dims[factor].size);
        }
        let size = self.checked_size(name, i128::from(size), span)?;
        let open = factors.iter().any(|&factor| self.dims[factor].open);
        let dim = self.new_dim(name, size, open, factors.clone(), span);
        self.products.insert(factors, dim);
        Some(dim)
    }

    /// The atoms of a dimension, major first.
    pub fn atoms(&self, dim: DimId) -> Vec<DimId> {
        let factors = &self.dims[dim].factors;
        if factors.is_empty() {
            return vec![dim];
        }
        factors.iter().flat_map(|&factor| self.atoms(factor)).collect()
    }

    /// Number of elements over dims; saturates.
    pub fn elements(&self, dims: &[DimId]) -> u64 {
        dims.iter().fold(1u64, |total, &dim| total.saturating_mul(self.dims[dim].size))
    }

    /// The dimension of a name, else a report.
    pub fn dim(&mut self, env: &Env, name: &Ident) -> Option<DimId> {
        if let Some(&dim) = env.dims.get(&name.name) {
            return Some(dim);
        }
        let known: Vec<&str> = env.dims.keys().map(String::as_str).collect();
        let mut diagnostic =
            Diagnostic::error(Code::UnknownDim, format!("no dimension `{}` here", name.name))
                .label(name.span, "not declared");
        if let Some(near) = did_you_mean(&name.name, known.iter().copied()) {
            diagnostic = diagnostic.hint_edit(near.to_owned(), name.span, near);
        } else {
            diagnostic = diagnostic.hint(format!("dims {} = …", name.name));
        }
        if !known.is_empty() {
            diagnostic = diagnostic.note(format!("dimensions here: {}", known.join(", ")));
        }
        self.report(diagnostic);
        None
    }

    /// The dimension that a definition `name = value` makes in a layer or function: the same for equal
    /// declarations over equal dims, so that two uses of a function share it.
    pub fn local_dim(&mut self, env: &Env, name: &str, declared: Span, value: &Expr) -> Option<DimId> {
        if let Some(factors) = self.factors(env, value) {
            return self.product(name, factors, declared);
        }
        let size = self.size(env, value)?;
        let size = self.checked_size(name, size, value.span)?;
        let mut parents = Vec::new();
        self.mentioned(env, value, &mut parents);
        let open = parents.iter().any(|&dim| self.dims[dim].open);
        let key = (declared, parents, vec![size]);
        if let Some(&known) = self.local_dims.get(&key) {
            return Some(known);
        }
        let dim = self.new_dim(name, size, open, Vec::new(), declared);
        self.local_dims.insert(key, dim);
        Some(dim)
    }

    /// The factors of a product of two or more distinct dimensions, where an expression is just that.
    pub fn factors(&self, env: &Env, value: &Expr) -> Option<Vec<DimId>> {
        let mut factors = Vec::new();
        collect_factors(env, value, &mut factors)?;
        let mut atoms: Vec<DimId> = factors.iter().flat_map(|&factor| self.atoms(factor)).collect();
        let count = atoms.len();
        atoms.sort_unstable();
        atoms.dedup();
        (factors.len() >= 2 && atoms.len() == count).then_some(factors)
    }

    /// Dims that an expression names.
    fn mentioned(&self, env: &Env, value: &Expr, into: &mut Vec<DimId>) {
        match &value.kind {
            ExprKind::Name(name) => {
                if let Some(&dim) = env.dims.get(&name.name).filter(|dim| !into.contains(dim)) {
                    into.push(dim);
                }
            }
            ExprKind::Unary { operand, .. } => self.mentioned(env, operand, into),
            ExprKind::Binary { left, right, .. } => {
                self.mentioned(env, left, into);
                self.mentioned(env, right, into);
            }
            ExprKind::Integer(_)
            | ExprKind::Float(_)
            | ExprKind::Bool(_)
            | ExprKind::String(_)
            | ExprKind::Field { .. }
            | ExprKind::Apply { .. }
            | ExprKind::Tuple(_)
            | ExprKind::If { .. }
            | ExprKind::Block(_)
            | ExprKind::Error => {}
        }
    }

    /// The value of a size expression: integers, dimensions and integer hyper-parameters.
    pub fn size(&mut self, env: &Env, value: &Expr) -> Option<i128> {
        match &value.kind {
            ExprKind::Integer(number) => Some(i128::from(*number)),
            ExprKind::Name(name) => self.named_size(env, name),
            ExprKind::Binary { operator, operator_span, left, right } => {
                self.enter(value.span)?;
                let left_size = self.size(env, left);
                let right_size = self.size(env, right);
                self.leave();
                self.size_of_operation(*operator, *operator_span, (left_size?, left), (right_size?, right))
            }
            ExprKind::Error => None,
            ExprKind::Float(_)
            | ExprKind::Bool(_)
            | ExprKind::String(_)
            | ExprKind::Field { .. }
            | ExprKind::Apply { .. }
            | ExprKind::Unary { .. }
            | ExprKind::Tuple(_)
            | ExprKind::If { .. }
            | ExprKind::Block(_) => {
                self.report(
                    Diagnostic::error(Code::InvalidSize, "not a size")
                        .label(value.span, "can't be the size of a dimension")
                        .why("sizes are integers, dimensions and `+ - * /` of them"),
                );
                None
            }
        }
    }

    fn named_size(&mut self, env: &Env, name: &Ident) -> Option<i128> {
        if let Some(&dim) = env.dims.get(&name.name) {
            return Some(i128::from(self.dims[dim].size));
        }
        let hyper = env.owner.and_then(|owner| self.instances[owner].hypers.get(&name.name));
        match env.value(&name.name).or(hyper) {
            Some(Value::Number(Number::Int(value))) => Some(*value),
            Some(Value::Error) => None,
            Some(Value::Number(Number::Float(_)) | Value::Node(_) | Value::Truth(_) | Value::Tuple(_)) => {
                self.report(
                    Diagnostic::error(Code::InvalidSize, format!("`{}` is not a size", name.name))
                        .label(name.span, "neither a dimension nor an integer known at compile time"),
                );
                None
            }
            None => self.dim(env, name).map(|dim| i128::from(self.dims[dim].size)),
        }
    }

    fn size_of_operation(
        &mut self,
        operator: BinaryOperator,
        span: Span,
        (left, left_expr): (i128, &Expr),
        (right, right_expr): (i128, &Expr),
    ) -> Option<i128> {
        match fold(operator, Number::Int(left), Number::Int(right)) {
            Ok(Folded::Number(Number::Int(value))) => Some(value),
            Ok(Folded::Number(Number::Float(_)) | Folded::Truth(_)) => {
                self.report(
                    Diagnostic::error(Code::InvalidSize, format!("`{}` gives no size", operator.symbol()))
                        .label(span, "not an operation on sizes"),
                );
                None
            }
            // A stand-in says nothing about divisors.
            Err(FoldError::Inexact) if self.purpose == Purpose::Generic => Some((left / right).max(1)),
            Err(FoldError::Inexact) => {
                self.report(
                    Diagnostic::error(Code::InvalidSize, format!("{left} is not divisible by {right}"))
                        .label(left_expr.span, format!("this is {left}"))
                        .label(right_expr.span, format!("this is {right}"))
                        .why("a dimension is divided exactly or not at all: no element may be lost"),
                );
                None
            }
            Err(FoldError::ByZero | FoldError::Overflow) => {
                self.report(
                    Diagnostic::error(Code::InvalidSize, "this size can't be computed")
                        .label(span, format!("{left} {} {right}", operator.symbol())),
                );
                None
            }
        }
    }

    /// A size within bounds, else a report.
    pub fn checked_size(&mut self, name: &str, size: i128, span: Span) -> Option<u64> {
        match u64::try_from(size) {
            Ok(size) if size > 0 && size <= MOST_ELEMENTS => Some(size),
            Ok(_) | Err(_) => {
                self.report(
                    Diagnostic::error(Code::InvalidSize, format!("`{name}` can't have {size} elements"))
                        .label(span, "size")
                        .why("a dimension has at least one element and fewer than 2^63"),
                );
                None
            }
        }
    }
}

fn collect_factors(env: &Env, value: &Expr, into: &mut Vec<DimId>) -> Option<()> {
    match &value.kind {
        ExprKind::Name(name) => {
            into.push(*env.dims.get(&name.name)?);
            Some(())
        }
        ExprKind::Binary { operator: BinaryOperator::Multiply, left, right, .. } => {
            collect_factors(env, left, into)?;
            collect_factors(env, right, into)
        }
        ExprKind::Binary { .. }
        | ExprKind::Integer(_)
        | ExprKind::Float(_)
        | ExprKind::Bool(_)
        | ExprKind::String(_)
        | ExprKind::Field { .. }
        | ExprKind::Apply { .. }
        | ExprKind::Unary { .. }
        | ExprKind::Tuple(_)
        | ExprKind::If { .. }
        | ExprKind::Block(_)
        | ExprKind::Error => None,
    }
}
