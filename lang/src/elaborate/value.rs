//! What names and expressions mean while a model is elaborated: compile-time numbers, nodes, tuples.
//!
//! Pure data with the arithmetic of compile-time numbers. Makes no nodes and reports nothing.

use crate::ast::{self, BinaryOperator};
use crate::model::{DimId, NodeId, ParamId, ScopeId};
use crate::source::{FileId, Span};
use indexmap::IndexMap;

/// A number known at compile time. A literal takes the element type of what it meets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    /// Written without a point, or the size of a dimension.
    Int(i128),
    /// Written with a point or exponent, or the result of a function.
    Float(f64),
}

impl Number {
    /// As a float.
    pub fn as_f64(self) -> f64 {
        match self {
            Number::Int(value) => value as f64,
            Number::Float(value) => value,
        }
    }
}

/// Why compile-time arithmetic has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FoldError {
    /// Integers that do not divide.
    Inexact,
    /// Division by zero.
    ByZero,
    /// Beyond the numbers that there are.
    Overflow,
}

/// The value of an expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// Computed when the model runs.
    Node(NodeId),
    /// Known now.
    Number(Number),
    /// A truth value known now.
    Truth(bool),
    /// Several values.
    Tuple(Vec<Value>),
    /// Already reported; whatever uses it is silent.
    Error,
}

/// Either a number or a truth value.
pub(super) enum Folded {
    /// A number.
    Number(Number),
    /// Of a comparison.
    Truth(bool),
}

/// `left operator right` on compile-time numbers.
pub(super) fn fold(operator: BinaryOperator, left: Number, right: Number) -> Result<Folded, FoldError> {
    use BinaryOperator as B;
    let (l, r) = (left.as_f64(), right.as_f64());
    Ok(match operator {
        B::Equal => Folded::Truth(l == r),
        B::NotEqual => Folded::Truth(l != r),
        B::Less => Folded::Truth(l < r),
        B::LessEqual => Folded::Truth(l <= r),
        B::Greater => Folded::Truth(l > r),
        B::GreaterEqual => Folded::Truth(l >= r),
        B::And | B::Or => Folded::Truth(false),
        B::Add | B::Subtract | B::Multiply | B::Divide | B::Remainder => {
            Folded::Number(arithmetic(operator, left, right)?)
        }
    })
}

fn arithmetic(operator: BinaryOperator, left: Number, right: Number) -> Result<Number, FoldError> {
    match (left, right) {
        (Number::Int(left), Number::Int(right)) => integers(operator, left, right).map(Number::Int),
        (Number::Int(_) | Number::Float(_), Number::Int(_) | Number::Float(_)) => {
            floats(operator, left.as_f64(), right.as_f64()).map(Number::Float)
        }
    }
}

fn integers(operator: BinaryOperator, left: i128, right: i128) -> Result<i128, FoldError> {
    use BinaryOperator as B;
    let result = match operator {
        B::Subtract => left.checked_sub(right),
        B::Multiply => left.checked_mul(right),
        B::Divide | B::Remainder if right == 0 => return Err(FoldError::ByZero),
        B::Divide if left % right != 0 => return Err(FoldError::Inexact),
        B::Divide => left.checked_div(right),
        B::Remainder => left.checked_rem_euclid(right),
        B::Add
        | B::Or
        | B::And
        | B::Equal
        | B::NotEqual
        | B::Less
        | B::LessEqual
        | B::Greater
        | B::GreaterEqual => left.checked_add(right),
    };
    result.ok_or(FoldError::Overflow)
}

fn floats(operator: BinaryOperator, left: f64, right: f64) -> Result<f64, FoldError> {
    use BinaryOperator as B;
    let result = match operator {
        B::Subtract => left - right,
        B::Multiply => left * right,
        B::Divide if right == 0.0 => return Err(FoldError::ByZero),
        B::Divide => left / right,
        B::Remainder if right == 0.0 => return Err(FoldError::ByZero),
        B::Remainder => left - right * (left / right).floor(),
        B::Add
        | B::Or
        | B::And
        | B::Equal
        | B::NotEqual
        | B::Less
        | B::LessEqual
        | B::Greater
        | B::GreaterEqual => left + right,
    };
    if result.is_finite() { Ok(result) } else { Err(FoldError::Overflow) }
}

/// An instance in the elaborator's list.
pub(super) type InstanceId = usize;

/// A sub-layer of an instance: entries that run one after the other.
#[derive(Clone, Debug)]
pub(super) struct SubLayer {
    /// The entries; one that failed is none.
    pub entries: Vec<Option<Entry>>,
}

/// One entry of a stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// The dimension that it is repeated over.
    pub repeat: Option<DimId>,
    /// The layer.
    pub instance: InstanceId,
}

/// A layer, model or optimizer with its dimensions and hyper-parameters filled in.
#[derive(Clone, Debug)]
pub(super) struct Instance<'p> {
    /// The item's name.
    pub name: &'p str,
    /// The file that it is written in.
    pub file: FileId,
    /// Its scope in the model.
    pub scope: ScopeId,
    /// Whether dims of function types that it lacks are bound by arguments; not in a model.
    pub binds_dims: bool,
    /// Its dimensions by name.
    pub dims: IndexMap<String, DimId>,
    /// Its hyper-parameters by name.
    pub hypers: IndexMap<String, Value>,
    /// Its parameters by name; one that failed is none.
    pub params: IndexMap<String, Option<ParamId>>,
    /// Its sub-layers by name.
    pub layers: IndexMap<String, SubLayer>,
    /// The functions it has under these hyper-parameters.
    pub functions: Vec<&'p ast::Function>,
    /// Whether some of its members could not be parsed, so that a name it lacks may be one of theirs.
    pub broken: bool,
    /// The states it has: of an optimizer.
    pub states: Vec<&'p ast::State>,
}

impl<'p> Instance<'p> {
    /// The function of a name, or the main one.
    pub fn function(&self, name: Option<&str>) -> Option<&'p ast::Function> {
        self.functions
            .iter()
            .copied()
            .find(|function| function.name.as_ref().map(|it| it.name.as_str()) == name)
    }

    /// The names of its functions, for suggestions.
    pub fn function_names(&self) -> impl Iterator<Item = &'p str> + '_ {
        self.functions.iter().filter_map(|function| function.name.as_ref().map(|it| it.name.as_str()))
    }
}

/// What the body of a function can see.
#[derive(Clone, Debug)]
pub(super) struct Env {
    /// The file that it is written in.
    pub file: FileId,
    /// The instance whose function it is.
    pub owner: Option<InstanceId>,
    /// Dimensions by name.
    pub dims: IndexMap<String, DimId>,
    /// What `..` stands for.
    pub rest: Option<Vec<DimId>>,
    /// Parameters and `let`s; the last of a name counts.
    pub values: Vec<(String, Value)>,
    /// Whether `let`s are names that a plan can select: in the functions of layers.
    pub named: bool,
}

impl Env {
    /// One without names.
    pub fn new(file: FileId) -> Env {
        Env { file, owner: None, dims: IndexMap::new(), rest: None, values: Vec::new(), named: false }
    }

    /// The value of a name.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.values.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value)
    }
}

/// One step of how the present body came to be elaborated.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    /// `layer `Block``, `function `rope``.
    pub what: String,
    /// Where it is used.
    pub span: Span,
    /// Its own names of dimensions.
    pub dims: Vec<(String, DimId)>,
    /// The item, to find cycles.
    pub item: Span,
}
