//! Indices as expressions, in 32 bits where all of a kernel's fit.

use super::emit::Emitter;
use crate::kir::{Index, Kernel, Statement, TensorId, Variable, bounds};
use std::fmt::Write;

/// How an index is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// `int`.
    Narrow,
    /// `long long`.
    Wide,
    /// `unsigned long long`, which wraps.
    Wrapping,
}

impl Width {
    /// The narrowest in which no index into a tensor and no loop of the kernel overflows.
    pub(super) fn of(kernel: &Kernel) -> Self {
        let mut elements: u128 = 1;
        for axis in kernel.axes.values() {
            elements = elements.max(u128::from(axis.extent));
        }
        for part in super::mapping::parts(kernel) {
            let product: u128 = part.axes(kernel).iter().map(|&(_, extent)| u128::from(extent)).product();
            elements = elements.max(product);
        }
        let mut greatest: u128 = 0;
        super::mapping::each_statement(&kernel.outer.body, &mut |statement| {
            if let Statement::Load { index, .. }
            | Statement::Store { index, .. }
            | Statement::Accumulate { index, .. } = statement
            {
                greatest = greatest.max(magnitude(kernel, index));
            }
        });
        // A loop over the grid goes beyond its end by less than a stride.
        if elements < 1 << 30 && greatest < 1 << 31 { Self::Narrow } else { Self::Wide }
    }

    /// The type's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Narrow => "int",
            Self::Wide => "long long",
            Self::Wrapping => "unsigned long long",
        }
    }
}

/// No sum of some of the terms is greater.
fn magnitude(kernel: &Kernel, index: &Index) -> u128 {
    let mut sum = u128::from(index.constant_part().unsigned_abs());
    for term in index.terms() {
        let most = match term.variable {
            Variable::Axis(axis) => u128::from(kernel.axes[axis].extent),
            Variable::Integer(integer) => {
                kernel.integers[integer].range.map_or(u128::from(u64::MAX), |(low, high)| {
                    u128::from(low.unsigned_abs().max(high.unsigned_abs()))
                })
            }
            Variable::Data { bound, .. } => u128::from(bound),
        };
        sum += most * u128::from(term.coefficient.unsigned_abs());
    }
    sum
}

impl Emitter<'_> {
    /// `tensor + index`, an address.
    pub(super) fn address(&self, tensor: TensorId, index: &Index) -> String {
        format!("{} + {}", self.names.tensor(tensor), self.index(index, self.width))
    }

    /// `tensor[index]`.
    pub(super) fn element(&self, tensor: TensorId, index: &Index) -> String {
        format!("{}[{}]", self.names.tensor(tensor), self.index(index, self.width))
    }

    /// The low 32 bits of an index as an `int`.
    pub(super) fn coordinate(&self, index: &Index) -> String {
        let fits = bounds(self.kernel, index).is_some_and(|_| magnitude(self.kernel, index) < 1 << 31);
        let width = if fits { Width::Narrow } else { Width::Wrapping };
        let text = self.index(index, width);
        if fits && self.width == Width::Narrow { text } else { format!("static_cast<int>({text})") }
    }

    /// The sum, in a type of this width.
    pub(super) fn index(&self, index: &Index, width: Width) -> String {
        let mut terms = index.terms().to_vec();
        terms.sort_by_key(|term| std::cmp::Reverse(term.coefficient.unsigned_abs()));
        let mut text = String::new();
        for term in terms {
            let sign = sign(term.coefficient < 0, text.is_empty());
            let factor = match term.coefficient.unsigned_abs() {
                1 => String::new(),
                magnitude => format!("{} * ", literal(magnitude, width)),
            };
            let variable = self.variable(term.variable, width);
            // Writing to a string does not fail.
            let _ = write!(text, "{sign}{factor}{variable}");
        }
        let constant = index.constant_part();
        if constant != 0 || text.is_empty() {
            let sign = sign(constant < 0, text.is_empty());
            let _ = write!(text, "{sign}{}", literal(constant.unsigned_abs(), width));
        }
        text
    }

    fn variable(&self, variable: Variable, width: Width) -> String {
        let (text, is_of_width) = match variable {
            Variable::Axis(axis) => (self.axis_text(axis).to_owned(), self.width == width),
            Variable::Integer(integer) => (self.names.integer(integer).to_owned(), width == Width::Wide),
            Variable::Data { register, bound } => {
                let word = self.word(register);
                (format!("dtl::below({bound}u, {word})"), false)
            }
        };
        if is_of_width { text } else { format!("static_cast<{}>({text})", width.name()) }
    }
}

fn literal(magnitude: u64, width: Width) -> String {
    match width {
        Width::Narrow => format!("{magnitude}"),
        Width::Wide => format!("{magnitude}ll"),
        Width::Wrapping => format!("{magnitude}ull"),
    }
}

fn sign(is_negative: bool, is_first: bool) -> &'static str {
    match (is_negative, is_first) {
        (false, true) => "",
        (true, true) => "-",
        (false, false) => " + ",
        (true, false) => " - ",
    }
}
