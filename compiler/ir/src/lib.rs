//! The intermediate representation: one set of operations and types that every stage from
//! `logical` to `scheduled` uses.
//!
//! A [`Program`] is the computation of one training step (or one evaluation) in named dimensions.
//! What is legal differs by stage (see `verify`); the data types do not. This crate knows neither the
//! language nor devices.

mod build;
mod dim;
mod fault;
mod infer;
pub mod interpret;
pub mod memory;
mod op;
mod program;
mod random;
pub mod text;
mod types;
pub mod verify;

pub use dim::{Axis, AxisInfo, Dim, DimInfo, Mesh};
pub use fault::Fault;
pub use infer::infer;
pub use op::{
    Attention, Collective, CollectiveKind, Factors, Literal, Op, Packing, Reason, ScalarOp, Scan, ScanOutput,
};
pub use program::{
    Binding, Builder, Initializer, Input, Inst, Origin, OriginInfo, Output, ParameterKind, Phase, Program,
    Region, Role, Scope, ScopeInfo, State, StateKind, Value, ValueInfo,
};
pub use random::{STREAM_STEP, philox, random_bits, uniform};
pub use types::{DType, FloatFormat, Partial, Placement, ReduceOp, Shard, Type};
