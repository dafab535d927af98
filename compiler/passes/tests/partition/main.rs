//! The partitioner: N ranks compute what one does, and the collectives are those that the strategy is
//! known for.

mod accumulation;
mod block;
mod contracts;
mod errors;
mod examples;
mod llama;
mod movement;
mod random;
mod stores;
mod strategies;
mod support;
