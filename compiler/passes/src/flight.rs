//! Collectives come apart into a start and a done: the last change to a program before its memory is planned.
//!
//! ```text
//! before   %1: f32[S, D] = all_gather[tp] %0
//! after    %2: f32[S, D] = all_gather[tp] %0        in flight
//!          %1: f32[S, D] = done %2
//! ```
//!
//! Each done stands right behind its start. What overlaps a collective with other work only has to move it down, as
//! far as the first instruction that reads a result: the memory plan keeps both ends until the done, wherever it
//! stands.

use dtlc_ir::{Inst, Op, Program, Region};

/// Puts a done behind every collective of a program at stage `scheduled`.
pub fn start_collectives(program: &mut Program) {
    let mut main = std::mem::take(&mut program.main);
    start(program, &mut main);
    program.main = main;
}

fn start(program: &mut Program, region: &mut Region) {
    let mut insts = Vec::with_capacity(region.insts.len());
    for mut inst in std::mem::take(&mut region.insts) {
        if let Op::Scan(scan) = &mut inst.op {
            start(program, &mut scan.body);
        }
        let mut done = None;
        if let Op::Collective(_) = inst.op {
            let results = inst.results.clone();
            for result in &mut inst.results {
                *result = program.values.push(program.values[*result].clone());
            }
            let args = inst.results.iter().copied().collect();
            done = Some(Inst { op: Op::Done, args, results, phase: inst.phase });
        }
        insts.push(inst);
        insts.extend(done);
    }
    region.insts = insts;
}
