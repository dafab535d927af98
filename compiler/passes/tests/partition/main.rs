//! The partitioner: N ranks compute what one does, and the collectives are those that the strategy is
//! known for.

mod accumulation;
mod block;
mod llama;
mod strategies;
mod support;
