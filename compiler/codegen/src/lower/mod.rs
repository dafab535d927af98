//! Lowers one fused kernel of a `scheduled` program to the kernel IR, stage `scheduled` → `kernels`.
//!
//! A kernel's body is a graph of values over named dimensions. Lowering chooses loops for the dims
//! of what is stored, and evaluates each stored value at the loops' indices: views become other indices,
//! elementwise functions become registers, reductions become earlier passes over a row. It knows
//! neither where tensors lie nor how loops run fast; that is the assembler's and the emitters' part.

mod evaluate;
mod loops;

pub(crate) use loops::element;
mod space;

use crate::kir::{Kernel, KirError, Register};
use cranelift_entity::SecondaryMap;
use dtlc_ir::{Axis, Dim, Program, Region, Value};
use std::fmt;

/// A number that a kernel is given at run time: a sum of a constant and multiples of variables.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Integer {
    /// The constant.
    pub constant: i64,
    /// Variables with their coefficients, in order.
    pub terms: Vec<(Unknown, i64)>,
}

/// What is known only at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unknown {
    /// The rank's coordinate on an axis of the mesh.
    Coordinate(Axis),
    /// The index of the loop over this dim that the kernel stands in.
    LoopIndex(Dim),
    /// The number of the step, from 1.
    Step,
    /// The lower half of the run's seed.
    SeedLow,
    /// The upper half of the run's seed.
    SeedHigh,
}

/// What the source calls the value in a register, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterOrigin {
    /// The value's name, a path of layers with dots between.
    pub name: Option<String>,
    /// The file as the user named it.
    pub file: String,
    /// Line, from 1; 0 where the compiler itself is the origin.
    pub line: u32,
}

/// For registers that hold a value of the source, which. It names things for people and changes no kernel.
pub type Origins = SecondaryMap<Register, Option<RegisterOrigin>>;

/// A kernel with what it must be given. Tensor parameters are the body's parameters, then its yields.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The loops.
    pub kernel: Kernel,
    /// What its registers hold.
    pub origins: Origins,
    /// Integer parameters, in order.
    pub integers: Vec<Integer>,
}

/// Why a kernel could not be lowered: always a bug of ours.
#[derive(Clone, Debug)]
pub struct LowerError {
    /// The kernel's name.
    pub kernel: String,
    /// What was not foreseen.
    pub message: String,
}

impl fmt::Display for LowerError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "bug in dtlc: kernel `{}` can't be lowered: {}", self.kernel, self.message)
    }
}

impl std::error::Error for LowerError {}

impl From<KirError> for LowerError {
    fn from(error: KirError) -> LowerError {
        LowerError { kernel: String::new(), message: error.to_string() }
    }
}

/// Lowers the body of an [`dtlc_ir::Op::Fused`]. `accumulate` says for each yield whether it is added to what is
/// there; `loops` are the dims of the scans that the kernel stands in.
///
/// # Errors
/// A body that fusion should not have made.
pub fn lower_kernel(
    program: &Program,
    name: &str,
    body: &Region,
    accumulate: &[bool],
    loops: &[Dim],
) -> Result<Lowered, LowerError> {
    loops::lower(program, name, body, accumulate, loops)
        .map_err(|error| LowerError { kernel: name.to_owned(), ..error })
}

/// The global coordinate along `dim` of the first element that a rank holds of a value.
pub(crate) fn shard_start(program: &Program, value: Value, dim: Dim) -> Integer {
    let ty = program.ty(value);
    let mut start = Integer::default();
    let mut stride = ty.local_size(program, dim) as i64;
    let axes: Vec<Axis> = ty.placement.axes_of(dim).collect();
    for &axis in axes.iter().rev() {
        start.terms.push((Unknown::Coordinate(axis), stride));
        stride *= program.mesh.axes[axis].size as i64;
    }
    start
}

/// A fault of fusion.
fn unforeseen<T>(message: impl Into<String>) -> Result<T, LowerError> {
    Err(LowerError { kernel: String::new(), message: message.into() })
}
