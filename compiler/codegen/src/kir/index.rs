//! Affine 64-bit expressions over loop variables and integer parameters: tensor indices, coordinates, random counters.

use super::{AxisId, IntegerId, Register};

/// `constant + Σ coefficient · variable`, in normal form: each variable once, in order, no coefficient 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Index {
    constant: i64,
    terms: Vec<Term>,
}

/// One product of an [`Index`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Term {
    /// Multiplies the variable.
    pub coefficient: i64,
    /// What varies.
    pub variable: Variable,
}

/// What an [`Index`] may depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Variable {
    /// The variable of an enclosing loop.
    Axis(AxisId),
    /// An integer parameter.
    Integer(IntegerId),
    /// A number read from data (a token, a label): the register's bits as unsigned, brought down to `bound - 1` where
    /// greater, so that no data can lead outside a tensor. `bound` is at least 1.
    Data {
        /// An `i32` or `u32`.
        register: Register,
        /// One more than the greatest value taken.
        bound: u32,
    },
}

impl Index {
    /// A number.
    pub fn constant(constant: i64) -> Self {
        Self { constant, terms: Vec::new() }
    }

    /// `self + coefficient · variable`.
    pub fn plus(mut self, coefficient: i64, variable: impl Into<Variable>) -> Self {
        self.add(Term { coefficient, variable: variable.into() });
        self
    }

    /// `self + constant`.
    pub fn offset(mut self, constant: i64) -> Self {
        self.constant = self.constant.wrapping_add(constant);
        self
    }

    /// `self + other`.
    pub fn sum(mut self, other: &Self) -> Self {
        for &term in &other.terms {
            self.add(term);
        }
        self.offset(other.constant)
    }

    /// `self · factor`.
    pub fn scaled(&self, factor: i64) -> Self {
        let mut scaled = Self::constant(self.constant.wrapping_mul(factor));
        for term in &self.terms {
            scaled.add(Term { coefficient: term.coefficient.wrapping_mul(factor), variable: term.variable });
        }
        scaled
    }

    /// The part that does not vary.
    pub fn constant_part(&self) -> i64 {
        self.constant
    }

    /// The products, ordered by variable.
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// What multiplies `variable`; 0 where it doesn't occur.
    pub fn coefficient(&self, variable: impl Into<Variable>) -> i64 {
        let variable = variable.into();
        let term = self.terms.iter().find(|term| term.variable == variable);
        term.map_or(0, |term| term.coefficient)
    }

    /// The registers of its [`Variable::Data`] terms.
    pub fn data_registers(&self) -> impl Iterator<Item = Register> + '_ {
        self.terms.iter().filter_map(|term| match term.variable {
            Variable::Data { register, .. } => Some(register),
            Variable::Integer(_) | Variable::Axis(_) => None,
        })
    }

    fn add(&mut self, added: Term) {
        let found = self.terms.binary_search_by_key(&added.variable, |term| term.variable);
        match found {
            Ok(position) => {
                let term = &mut self.terms[position];
                term.coefficient = term.coefficient.wrapping_add(added.coefficient);
                if term.coefficient == 0 {
                    self.terms.remove(position);
                }
            }
            Err(position) if added.coefficient != 0 => self.terms.insert(position, added),
            Err(_) => {}
        }
    }
}

impl From<AxisId> for Variable {
    fn from(axis: AxisId) -> Self {
        Self::Axis(axis)
    }
}

impl From<IntegerId> for Variable {
    fn from(integer: IntegerId) -> Self {
        Self::Integer(integer)
    }
}

impl<V: Into<Variable>> From<V> for Index {
    fn from(variable: V) -> Self {
        Self::constant(0).plus(1, variable)
    }
}
