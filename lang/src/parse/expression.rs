//! From parsed pairs to tree nodes: types, statements and expressions, with operator precedence.
//!
//! Refuses what the grammar lets pass so that the error can say more: numbers as dimensions, numbers out of range,
//! expressions too deep for later stages to walk.

use std::sync::LazyLock;

use pest::iterators::Pair;
use pest::pratt_parser::{Assoc, Op, PrattParser};

use super::grammar::Rule;
use super::item::unquoted;
use super::message;
use super::pieces::Pieces;
use crate::ast::{
    Argument, AxisRef, BinaryOperator, Block, DimArgument, DimArguments, Docs, Expr, ExprKind, Ident, Let,
    Pattern, PlacedDim, Require, Statement, Type, TypeDim, TypeKind, UnaryOperator,
};
use crate::source::Span;

/// Operators, calls and parentheses around one another, at most; later stages walk trees by recursion.
const MAX_EXPRESSION_DEPTH: u32 = 200;

static PRECEDENCE: LazyLock<PrattParser<Rule>> = LazyLock::new(|| {
    let left = |rule| Op::infix(rule, Assoc::Left);
    PrattParser::new()
        .op(left(Rule::or))
        .op(left(Rule::and))
        .op(left(Rule::equal)
            | left(Rule::not_equal)
            | left(Rule::less)
            | left(Rule::less_equal)
            | left(Rule::greater)
            | left(Rule::greater_equal))
        .op(left(Rule::add) | left(Rule::subtract))
        .op(left(Rule::multiply) | left(Rule::divide) | left(Rule::remainder))
        .op(Op::prefix(Rule::negate) | Op::prefix(Rule::not))
});

impl Pieces<'_> {
    pub(super) fn fault_type(&self, span: Span) -> Type {
        self.report(message::fault(span));
        Type { span, kind: TypeKind::Error }
    }

    pub(super) fn fault_expression(&self, span: Span) -> Expr {
        self.report(message::fault(span));
        Expr { span, kind: ExprKind::Error }
    }

    pub(super) fn ty(&self, pair: Pair<'_, Rule>) -> Type {
        let span = self.span(&pair);
        let Some(inner) = pair.into_inner().next() else {
            return self.fault_type(span);
        };
        let kind = match inner.as_rule() {
            Rule::tuple_type => TypeKind::Tuple(
                inner
                    .into_inner()
                    .filter(|child| child.as_rule() == Rule::ty)
                    .map(|child| self.ty(child))
                    .collect(),
            ),
            Rule::tensor_type => self.tensor_type(inner),
            _ => TypeKind::Scalar(self.name_of(&inner)),
        };
        Type { span, kind }
    }

    fn tensor_type(&self, pair: Pair<'_, Rule>) -> TypeKind {
        let mut dtype = None;
        let mut dims = Vec::new();
        for child in pair.into_inner() {
            match child.as_rule() {
                Rule::ident => dtype = Some(self.ident(&child)),
                Rule::shape => dims = child.into_inner().filter_map(|dim| self.type_dim(dim)).collect(),
                _ => {}
            }
        }
        TypeKind::Tensor { dtype, dims }
    }

    fn type_dim(&self, pair: Pair<'_, Rule>) -> Option<TypeDim> {
        let span = self.span(&pair);
        match pair.as_rule() {
            Rule::rest => Some(TypeDim::Rest(span)),
            Rule::number => {
                self.report(message::size_in_type(span, pair.as_str()));
                Some(TypeDim::Error(span))
            }
            Rule::placed_dim => {
                let name = self.name_of(&pair);
                let axes = pair
                    .into_inner()
                    .find(|child| child.as_rule() == Rule::axes)
                    .map_or_else(Vec::new, |child| self.axes(child));
                Some(TypeDim::Named(PlacedDim { span, name, axes }))
            }
            _ => None,
        }
    }

    pub(super) fn axes(&self, pair: Pair<'_, Rule>) -> Vec<AxisRef> {
        pair.into_inner()
            .filter(|child| child.as_rule() == Rule::axis)
            .map(|child| AxisRef {
                span: self.span(&child),
                name: self.name_of(&child),
                part: child
                    .into_inner()
                    .find(|part| part.as_rule() == Rule::axis_part)
                    .map(|part| self.ident(&part)),
            })
            .collect()
    }

    pub(super) fn block(&self, pair: Pair<'_, Rule>) -> Block {
        let span = self.span(&pair);
        let mut statements = Vec::new();
        let mut result = None;
        for child in pair.into_inner() {
            let is_line = matches!(
                child.as_rule(),
                Rule::let_statement | Rule::require_statement | Rule::dims_member | Rule::expression
            );
            if is_line && !statements.is_empty() {
                self.require_new_line(self.span(&child));
            }
            match child.as_rule() {
                Rule::let_statement => statements.push(Statement::Let(self.let_statement(child))),
                Rule::require_statement => statements.push(Statement::Require(self.require_statement(child))),
                Rule::dims_member => {
                    statements.push(Statement::Dims(self.dims_member(child, Docs::default())))
                }
                Rule::expression => result = Some(self.expression(child)),
                _ => {}
            }
        }
        let result = Box::new(result.unwrap_or_else(|| self.fault_expression(span)));
        Block { span, statements, result }
    }

    pub(super) fn let_statement(&self, pair: Pair<'_, Rule>) -> Let {
        let span = self.span(&pair);
        let mut pattern = Pattern::Tuple(span, Vec::new());
        let mut ty = None;
        let mut value = None;
        for child in pair.into_inner() {
            match child.as_rule() {
                Rule::pattern => pattern = self.pattern(child),
                Rule::ty => ty = Some(self.ty(child)),
                Rule::expression => value = Some(self.expression(child)),
                _ => {}
            }
        }
        let value = value.unwrap_or_else(|| self.fault_expression(span));
        Let { span, pattern, ty, value }
    }

    pub(super) fn require_statement(&self, pair: Pair<'_, Rule>) -> Require {
        let span = self.span(&pair);
        let condition = pair.into_inner().find(|child| child.as_rule() == Rule::expression);
        let condition = condition.map_or_else(|| self.fault_expression(span), |child| self.expression(child));
        Require { span, condition }
    }

    fn pattern(&self, pair: Pair<'_, Rule>) -> Pattern {
        let span = self.span(&pair);
        if pair.as_str().starts_with('(') {
            Pattern::Tuple(span, self.idents(pair))
        } else {
            Pattern::Name(self.name_of(&pair))
        }
    }

    /// The expression inside a pair that has just one.
    pub(super) fn only_expression(&self, pair: Pair<'_, Rule>) -> Expr {
        let span = self.span(&pair);
        pair.into_inner()
            .find(|child| child.as_rule() == Rule::expression)
            .map_or_else(|| self.fault_expression(span), |child| self.expression(child))
    }

    pub(super) fn expression(&self, pair: Pair<'_, Rule>) -> Expr {
        let span = self.span(&pair);
        let operators = pair.clone().into_inner().filter(|child| child.as_rule() != Rule::operand).count();
        self.deeper(operators as u32 + 1, span, || {
            PRECEDENCE
                .map_primary(|operand| self.operand(operand))
                .map_prefix(|operator, operand| self.unary(&operator, operand))
                .map_infix(|left, operator, right| self.binary(left, &operator, right))
                .parse(pair.into_inner())
        })
    }

    /// Runs a conversion some levels down, or reports that this is too deep.
    fn deeper(&self, levels: u32, span: Span, convert: impl FnOnce() -> Expr) -> Expr {
        let outer = self.expression_depth.get();
        let depth = outer.saturating_add(levels);
        if depth > MAX_EXPRESSION_DEPTH {
            self.report(message::expression_too_deep(span, MAX_EXPRESSION_DEPTH));
            return Expr { span, kind: ExprKind::Error };
        }
        self.expression_depth.set(depth);
        let converted = convert();
        self.expression_depth.set(outer);
        converted
    }

    fn unary(&self, operator: &Pair<'_, Rule>, operand: Expr) -> Expr {
        let span = self.span(operator).to(operand.span);
        let operator = match operator.as_rule() {
            Rule::negate => UnaryOperator::Negate,
            _ => UnaryOperator::Not,
        };
        let operand = Box::new(operand);
        Expr { span, kind: ExprKind::Unary { operator, operand } }
    }

    fn binary(&self, left: Expr, operator: &Pair<'_, Rule>, right: Expr) -> Expr {
        let span = left.span.to(right.span);
        let operator_span = self.span(operator);
        let Some(operator) = binary_operator(operator.as_rule()) else {
            return self.fault_expression(span);
        };
        let (left, right) = (Box::new(left), Box::new(right));
        Expr { span, kind: ExprKind::Binary { operator, operator_span, left, right } }
    }

    /// An atom and what is applied to it.
    fn operand(&self, pair: Pair<'_, Rule>) -> Expr {
        let span = self.span(&pair);
        let mut parts = pair.into_inner();
        let Some(atom) = parts.next() else {
            return self.fault_expression(span);
        };
        let postfixes: Vec<_> = parts.collect();
        self.deeper(postfixes.len() as u32, span, || {
            let mut expr = self.atom(atom);
            for postfix in postfixes {
                expr = self.postfix(expr, postfix);
            }
            expr
        })
    }

    fn postfix(&self, base: Expr, pair: Pair<'_, Rule>) -> Expr {
        let span = base.span.to(self.span(&pair));
        let kind = match pair.as_rule() {
            Rule::field => ExprKind::Field { base: Box::new(base), field: self.name_of(&pair) },
            Rule::dim_arguments => ExprKind::Apply {
                callee: Box::new(base),
                dims: Some(self.dim_arguments(pair)),
                arguments: None,
            },
            _ => {
                let arguments = Some(self.arguments(pair));
                match base.kind {
                    // `dot[D]` and then `(x, wq)`: one application.
                    ExprKind::Apply { callee, dims, arguments: None } => {
                        ExprKind::Apply { callee, dims, arguments }
                    }
                    _ => ExprKind::Apply { callee: Box::new(base), dims: None, arguments },
                }
            }
        };
        Expr { span, kind }
    }

    fn atom(&self, pair: Pair<'_, Rule>) -> Expr {
        let span = self.span(&pair);
        let kind = match pair.as_rule() {
            Rule::name => ExprKind::Name(self.name_of(&pair)),
            Rule::boolean => ExprKind::Bool(pair.as_str() == "true"),
            Rule::string => ExprKind::String(unquoted(pair.as_str())),
            Rule::number => return self.number(&pair),
            Rule::block => ExprKind::Block(self.block(pair)),
            Rule::if_expression => return self.if_expression(pair),
            Rule::parenthesised => return self.parenthesised(pair),
            _ => return self.fault_expression(span),
        };
        Expr { span, kind }
    }

    pub(super) fn number(&self, pair: &Pair<'_, Rule>) -> Expr {
        let span = self.span(pair);
        let text: String = pair.as_str().chars().filter(|&c| c != '_').collect();
        let kind = match parse_number(&text) {
            Some(kind) => kind,
            None => {
                self.report(message::number_out_of_range(span, pair.as_str()));
                ExprKind::Error
            }
        };
        Expr { span, kind }
    }

    /// One expression in parentheses is itself, several are a tuple.
    fn parenthesised(&self, pair: Pair<'_, Rule>) -> Expr {
        let span = self.span(&pair);
        let mut values: Vec<Expr> = pair
            .into_inner()
            .filter(|child| child.as_rule() == Rule::expression)
            .map(|child| self.expression(child))
            .collect();
        match values.pop() {
            Some(only) if values.is_empty() => only,
            Some(last) => {
                values.push(last);
                Expr { span, kind: ExprKind::Tuple(values) }
            }
            None => self.fault_expression(span),
        }
    }

    fn if_expression(&self, pair: Pair<'_, Rule>) -> Expr {
        let span = self.span(&pair);
        let mut branches = Vec::new();
        let mut condition = None;
        let mut otherwise = None;
        for child in pair.into_inner() {
            match child.as_rule() {
                Rule::if_head => condition = Some(self.only_expression(child)),
                Rule::block => match condition.take() {
                    Some(condition) => branches.push((condition, self.block(child))),
                    None => otherwise = Some(self.block(child)),
                },
                _ => {}
            }
        }
        match otherwise {
            Some(otherwise) => Expr { span, kind: ExprKind::If { branches, otherwise } },
            None => self.fault_expression(span),
        }
    }

    pub(super) fn dim_arguments(&self, pair: Pair<'_, Rule>) -> DimArguments {
        let span = self.span(&pair);
        let mut lists =
            pair.into_inner().filter(|child| child.as_rule() == Rule::dim_argument_list).map(|list| {
                list.into_inner()
                    .filter(|child| child.as_rule() == Rule::dim_argument)
                    .map(|child| self.dim_argument(child))
                    .collect()
            });
        DimArguments { span, from: lists.next().unwrap_or_default(), to: lists.next() }
    }

    fn dim_argument(&self, pair: Pair<'_, Rule>) -> DimArgument {
        let span = self.span(&pair);
        let mut name: Option<Ident> = None;
        let mut value = None;
        for child in pair.into_inner() {
            match child.as_rule() {
                Rule::rest => return DimArgument::Rest(span),
                Rule::ident => name = Some(self.ident(&child)),
                Rule::expression => value = Some(self.expression(child)),
                _ => {}
            }
        }
        let value = value.unwrap_or_else(|| self.fault_expression(span));
        match (name, value.kind) {
            (Some(name), kind) => DimArgument::Bind { span, name, value: Expr { span: value.span, kind } },
            (None, ExprKind::Name(name)) => DimArgument::Name(name),
            (None, kind) => DimArgument::Value(Expr { span: value.span, kind }),
        }
    }

    pub(super) fn arguments(&self, pair: Pair<'_, Rule>) -> Vec<Argument> {
        pair.into_inner()
            .filter(|child| child.as_rule() == Rule::argument)
            .map(|child| Argument {
                span: self.span(&child),
                name: self.idents(child.clone()).into_iter().next(),
                value: self.only_expression(child),
            })
            .collect()
    }
}

/// A number without its underscores; `None` where it does not fit.
pub(super) fn parse_number(text: &str) -> Option<ExprKind> {
    if let Some(hex) = text.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok().map(ExprKind::Integer);
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok().map(ExprKind::Integer);
    }
    text.parse::<f64>().ok().filter(|value| value.is_finite()).map(ExprKind::Float)
}

fn binary_operator(rule: Rule) -> Option<BinaryOperator> {
    Some(match rule {
        Rule::or => BinaryOperator::Or,
        Rule::and => BinaryOperator::And,
        Rule::equal => BinaryOperator::Equal,
        Rule::not_equal => BinaryOperator::NotEqual,
        Rule::less => BinaryOperator::Less,
        Rule::less_equal => BinaryOperator::LessEqual,
        Rule::greater => BinaryOperator::Greater,
        Rule::greater_equal => BinaryOperator::GreaterEqual,
        Rule::add => BinaryOperator::Add,
        Rule::subtract => BinaryOperator::Subtract,
        Rule::multiply => BinaryOperator::Multiply,
        Rule::divide => BinaryOperator::Divide,
        Rule::remainder => BinaryOperator::Remainder,
        _ => return None,
    })
}
