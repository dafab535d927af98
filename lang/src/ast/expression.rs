//! Types, blocks and expressions of the syntax tree.
//!
//! From the parser to names and types. Resolves nothing: `causal`, a dimension and a variable are all names here.

use super::{Dims, Ident};
use crate::source::Span;

/// A type as written.
#[derive(Clone, Debug, PartialEq)]
pub struct Type {
    /// Where.
    pub span: Span,
    /// Which.
    pub kind: TypeKind,
}

/// The forms of a type.
#[derive(Clone, Debug, PartialEq)]
pub enum TypeKind {
    /// `u32[B, S]`, `f32[]`, or `[B, S, D]` in the model's float type.
    Tensor {
        /// The element type's name, where written.
        dtype: Option<Ident>,
        /// The dimensions in memory order.
        dims: Vec<TypeDim>,
    },
    /// `f32`, `i32`, `bool`, `dim`: a compile-time or scalar value.
    Scalar(Ident),
    /// `([B, S], f32[])`
    Tuple(Vec<Type>),
    /// Not a type; already reported.
    Error,
}

/// One place in a tensor type.
#[derive(Clone, Debug, PartialEq)]
pub enum TypeDim {
    /// `D` or `H@tp`
    Named(PlacedDim),
    /// `..`: any further dimensions.
    Rest(Span),
    /// Not a dimension; already reported.
    Error(Span),
}

/// A dimension and, where written, the mesh axes it lives on.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedDim {
    /// Where.
    pub span: Span,
    /// The dimension.
    pub name: Ident,
    /// `@tp` or `@(dp, cp)`, major axis first; empty where not written.
    pub axes: Vec<AxisRef>,
}

/// A mesh axis or a part of one: `tp`, `dp.inner`, `tp.0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisRef {
    /// Where.
    pub span: Span,
    /// The axis.
    pub name: Ident,
    /// Its part: a name, or a number counted from the major end.
    pub part: Option<Ident>,
}

/// `{ let …; result }`
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// Braces included.
    pub span: Span,
    /// What comes before the result.
    pub statements: Vec<Statement>,
    /// The value of the block.
    pub result: Box<Expr>,
}

/// A statement of a block.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// `let x = …`
    Let(Let),
    /// `require condition`
    Require(Require),
    /// `dims J = K / 2`: dimensions of a body; equal declarations over equal dimensions share one.
    Dims(Dims),
    /// Not a statement; already reported.
    Error(Span),
}

/// `let pattern: type = value`
#[derive(Clone, Debug, PartialEq)]
pub struct Let {
    /// The whole statement.
    pub span: Span,
    /// What is bound.
    pub pattern: Pattern,
    /// The type it is said to have; may carry placements.
    pub ty: Option<Type>,
    /// The value.
    pub value: Expr,
}

/// `require condition`: what must hold of numbers known at compile time.
#[derive(Clone, Debug, PartialEq)]
pub struct Require {
    /// The whole statement.
    pub span: Span,
    /// What must hold.
    pub condition: Expr,
}

/// The left side of a `let`.
#[derive(Clone, Debug, PartialEq)]
pub enum Pattern {
    /// `x`
    Name(Ident),
    /// `(a, b)`
    Tuple(Span, Vec<Ident>),
}

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Expr {
    /// Where; parentheses around it are not part of it.
    pub span: Span,
    /// Which.
    pub kind: ExprKind,
}

/// The forms of an expression.
#[derive(Clone, Debug, PartialEq)]
pub enum ExprKind {
    /// A variable, hyper-parameter, dimension or function.
    Name(Ident),
    /// `128`, `0xffffffff`
    Integer(u64),
    /// `1e-5`, `2.0`
    Float(f64),
    /// `true`, `false`
    Bool(bool),
    /// `"…"`
    String(String),
    /// `embed.weight`
    Field {
        /// What has the field.
        base: Box<Expr>,
        /// The field.
        field: Ident,
    },
    /// `dot[D](x, wq)`, `norm(x)`, `iota[S]`; dims, arguments or both.
    Apply {
        /// What is applied.
        callee: Box<Expr>,
        /// `[D]`, where written.
        dims: Option<DimArguments>,
        /// `(x, wq)`, where written.
        arguments: Option<Vec<Argument>>,
    },
    /// `-x`, `!x`
    Unary {
        /// Which.
        operator: UnaryOperator,
        /// On what.
        operand: Box<Expr>,
    },
    /// `a + b`
    Binary {
        /// Which.
        operator: BinaryOperator,
        /// Where the operator stands.
        operator_span: Span,
        /// Left operand.
        left: Box<Expr>,
        /// Right operand.
        right: Box<Expr>,
    },
    /// `(a, b)`
    Tuple(Vec<Expr>),
    /// `if c { … } else if d { … } else { … }`; conditions are known at compile time.
    If {
        /// Each condition with its block, tried in order.
        branches: Vec<(Expr, Block)>,
        /// The value where no condition holds.
        otherwise: Block,
    },
    /// `{ … }`
    Block(Block),
    /// Not an expression; already reported.
    Error,
}

/// Operators before their operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnaryOperator {
    /// `-`
    Negate,
    /// `!`
    Not,
}

/// Operators between their operands, in groups of rising precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinaryOperator {
    /// `||`
    Or,
    /// `&&`
    And,
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterEqual,
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `/`
    Divide,
    /// `%`
    Remainder,
}

impl UnaryOperator {
    /// As written.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Negate => "-",
            Self::Not => "!",
        }
    }
}

impl BinaryOperator {
    /// As written.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Or => "||",
            Self::And => "&&",
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessEqual => "<=",
            Self::Greater => ">",
            Self::GreaterEqual => ">=",
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Remainder => "%",
        }
    }
}

/// What stands in brackets after a name: `[D]`, `[D -> V]`, `[K -> R, J]`, `[R = 0]`.
#[derive(Clone, Debug, PartialEq)]
pub struct DimArguments {
    /// Brackets included.
    pub span: Span,
    /// All, or those before the arrow.
    pub from: Vec<DimArgument>,
    /// Those after the arrow, where there is one.
    pub to: Option<Vec<DimArgument>>,
}

/// One dimension argument.
#[derive(Clone, Debug, PartialEq)]
pub enum DimArgument {
    /// `D`
    Name(Ident),
    /// `R = 0`, `F = 4 * D`
    Bind {
        /// Where.
        span: Span,
        /// The dimension.
        name: Ident,
        /// What it is set to.
        value: Expr,
    },
    /// `..`
    Rest(Span),
    /// `4 * D`, `128`: a size in place of a name.
    Value(Expr),
}

/// An argument of a call: `x` or `eps = 1e-5`.
#[derive(Clone, Debug, PartialEq)]
pub struct Argument {
    /// Where.
    pub span: Span,
    /// The parameter's name, where written.
    pub name: Option<Ident>,
    /// The value.
    pub value: Expr,
}

impl Expr {
    /// The name, where the expression is just a name.
    pub fn as_name(&self) -> Option<&Ident> {
        match &self.kind {
            ExprKind::Name(name) => Some(name),
            _ => None,
        }
    }
}

impl DimArgument {
    /// Where.
    pub fn span(&self) -> Span {
        match self {
            Self::Name(name) => name.span,
            Self::Bind { span, .. } | Self::Rest(span) => *span,
            Self::Value(value) => value.span,
        }
    }
}

impl TypeDim {
    /// Where.
    pub fn span(&self) -> Span {
        match self {
            Self::Named(dim) => dim.span,
            Self::Rest(span) | Self::Error(span) => *span,
        }
    }
}

impl Pattern {
    /// Where.
    pub fn span(&self) -> Span {
        match self {
            Self::Name(name) => name.span,
            Self::Tuple(span, _) => *span,
        }
    }
}
