//! Counts operations: what a generator never makes, no run of it judges.

use dtlc_ir::{Op, Program, Region};
use std::collections::BTreeMap;

/// How often each operation stands in some programs, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Counts by [`Op::name`].
    pub operations: BTreeMap<String, u64>,
}

impl Coverage {
    /// Counts what a program holds.
    pub fn add(&mut self, program: &Program) {
        self.region(&program.main);
    }

    /// Adds other counts.
    pub fn join(&mut self, other: &Coverage) {
        for (name, count) in &other.operations {
            *self.operations.entry(name.clone()).or_default() += count;
        }
    }

    /// The operations of `other` that are not here.
    pub fn missing<'a>(&self, other: &'a Coverage) -> Vec<&'a str> {
        let names = other.operations.keys().map(String::as_str);
        names.filter(|name| !self.operations.contains_key(*name)).collect()
    }

    fn region(&mut self, region: &Region) {
        for inst in &region.insts {
            let name = match &inst.op {
                Op::Collective(collective) if collective.kind.reduces() => {
                    format!("{} {}", inst.op.name(), collective.reduce.name())
                }
                op => op.name().to_owned(),
            };
            *self.operations.entry(name).or_default() += 1;
            if let Some(body) = inst.op.region() {
                self.region(body);
            }
        }
    }
}
