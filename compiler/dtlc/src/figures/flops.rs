//! Counts the work of matrix products and attention on one rank.

use super::Flops;
use dtlc_ir::{Attention, Dim, Inst, Op, Phase, Program, Region, Value};

/// The work of a step of a program with placements.
pub fn flops(program: &Program) -> Flops {
    let mut total = Flops { model: 0, hardware: 0 };
    visit(program, &program.main, 1, &mut total);
    total
}

fn visit(program: &Program, region: &Region, trips: u64, total: &mut Flops) {
    for inst in &region.insts {
        let (model, hardware) = match &inst.op {
            Op::Scan(scan) => {
                visit(program, &scan.body, trips.saturating_mul(program.dims[scan.dim].size), total);
                continue;
            }
            Op::Dot(_) => {
                let work = product(program, inst);
                (work, work)
            }
            Op::Attention(attention) => {
                let work = products_of_attention(program, inst, attention, 1, 1);
                (work, work)
            }
            // Gradients of both factors of both products; the scores are computed again.
            Op::AttentionGradient(attention) => (
                products_of_attention(program, inst, attention, 2, 2),
                products_of_attention(program, inst, attention, 3, 2),
            ),
            Op::Constant(_) | Op::Iota { .. } | Op::Map(_) | Op::Reduce { .. } | Op::Rename { .. } => {
                continue;
            }
            Op::Split { .. } | Op::Merge { .. } | Op::Slice { .. } | Op::Pad { .. } | Op::Concat { .. } => {
                continue;
            }
            Op::Take { .. } | Op::ScatterAdd { .. } | Op::Random { .. } | Op::StopGradient => continue,
            Op::Reshard(_) | Op::LocalSlice | Op::Collective(_) | Op::Done | Op::Fused(_) => continue,
        };
        if inst.phase != Phase::Recompute {
            total.model = total.model.saturating_add(model.saturating_mul(trips));
        }
        total.hardware = total.hardware.saturating_add(hardware.saturating_mul(trips));
    }
}

/// Two operations for each combination of the dims that the arguments have.
fn product(program: &Program, inst: &Inst) -> u64 {
    let mut dims: Vec<(Dim, u64)> = Vec::new();
    for &arg in &inst.args {
        let ty = program.ty(arg);
        for &dim in &ty.dims {
            if dims.iter().all(|(known, _)| *known != dim) {
                dims.push((dim, ty.local_size(program, dim)));
            }
        }
    }
    dims.iter().fold(2u64, |work, (_, size)| work.saturating_mul(*size))
}

/// The products of attention: `by_head` that contract or make the head dim, `by_value` for the values' dim.
fn products_of_attention(
    program: &Program,
    inst: &Inst,
    attention: &Attention,
    by_head: u64,
    by_value: u64,
) -> u64 {
    let (query, key, value) = (inst.args[0], inst.args[1], inst.args[2]);
    let head = size(program, query, attention.head);
    let width = size(program, value, attention.value);
    let rows = program.ty(query).local_elements(program) / head.max(1);
    let keys = size(program, key, attention.key) as f64;
    let seen = match (attention.causal, attention.window) {
        (false, None) => keys,
        (true, None) => keys / 2.0,
        (causal, Some(window)) => {
            let window = (window as f64).min(keys);
            let before = window - window * window / (2.0 * keys.max(1.0));
            if causal { before } else { before + keys / 2.0 }
        }
    };
    let pairs = (rows as f64 * seen) as u64;
    pairs.saturating_mul(2).saturating_mul(head * by_head + width * by_value)
}

fn size(program: &Program, value: Value, dim: Dim) -> u64 {
    program.ty(value).local_size(program, dim)
}
