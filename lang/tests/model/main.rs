//! The semantic half of the language: models and plans from text, and reports of what is wrong with them.

mod dumps;
mod errors;
mod examples;
mod limits;
mod mutate;
mod options;
mod reference;
mod support;
mod text;
