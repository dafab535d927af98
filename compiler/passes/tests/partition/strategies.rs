//! A Llama under the known strategies: the same numbers as on one device, and their collectives.

use crate::llama::{llama, tied};
use crate::support::{calls, check, joint, with_update};
use dtlc_ir::Program;

const TENSOR: &str = "tensor: H=KV*G, KV, F, V -> tp";
const SEQUENCE: &str = "sequence: acts S -> tp at Block.x";

fn step() -> Program {
    with_update(joint(&llama(16)))
}

#[test]
fn one_rank_moves_nothing() {
    let program = check(&step(), &format!("mesh dp 1, tp 1\ndata: acts B -> dp\n{TENSOR}\n{SEQUENCE}"));
    assert_eq!(dtlc_passes::report::collectives(&program), []);
}

#[test]
fn tensor_parallelism_sums_twice_a_block_and_direction() {
    let program = check(&step(), &format!("mesh tp 2\n{TENSOR}"));
    assert_eq!(calls(&program, "Block", "forward"), ["all_reduce tp", "all_reduce tp"]);
    assert_eq!(calls(&program, "Block", "backward"), ["all_reduce tp", "all_reduce tp"]);
    assert_eq!(calls(&program, "Block", "recompute"), [""; 0]);
}

#[test]
fn sequence_parallelism_gathers_and_scatters_twice() {
    let program = check(&step(), &format!("mesh tp 2\n{TENSOR}\n{SEQUENCE}"));
    let twice = ["all_gather tp", "reduce_scatter tp", "all_gather tp", "reduce_scatter tp"];
    assert_eq!(calls(&program, "Block", "forward"), twice);
    assert_eq!(calls(&program, "Block", "backward"), twice);
    assert_eq!(calls(&program, "Block", "recompute"), ["all_gather tp", "all_gather tp"]);
    assert_eq!(calls(&program, "step", "gradient"), ["all_reduce tp"]);
}

/// Plans of every strategy, alone and together.
fn plans() -> Vec<String> {
    let data = "data: acts B -> dp";
    let zero = |level: usize| {
        let roles = ["opt", "opt, grads", "opt, grads, params"][level - 1];
        format!("zero: store {roles} largest -> dp")
    };
    vec![
        format!("mesh dp 2\n{data}"),
        format!("mesh dp 4\n{data}"),
        format!("mesh tp 4\n{TENSOR}"),
        format!("mesh tp 4\n{TENSOR}\n{SEQUENCE}"),
        format!("mesh dp 2, tp 2\n{data}\n{TENSOR}"),
        format!("mesh dp 2, tp 2\n{data}\n{TENSOR}\n{SEQUENCE}"),
        format!("mesh dp 2\n{data}\n{}", zero(1)),
        format!("mesh dp 2\n{data}\n{}", zero(2)),
        format!("mesh dp 2\n{data}\n{}", zero(3)),
        format!("mesh dp 4\n{data}\n{}", zero(3)),
        format!("mesh dp 2, tp 2\n{data}\n{TENSOR}\n{SEQUENCE}\n{}", zero(3)),
        format!("mesh dp 2, tp 4\n{data}\n{TENSOR}\n{SEQUENCE}\n{}", zero(2)),
        format!("mesh dp.outer 2, dp.inner 2\n{data}\nhsdp: store opt, grads, params largest -> dp.inner"),
    ]
}

#[test]
fn every_strategy_computes_the_same() {
    let step = step();
    plans().iter().for_each(|plan| {
        check(&step, plan);
    });
}

#[test]
fn tied_weights_and_positions_compute_the_same() {
    let step = with_update(joint(&tied(16)));
    plans().iter().for_each(|plan| {
        check(&step, plan);
    });
}

#[test]
fn pads_take_part_in_no_sum() {
    let step = with_update(joint(&llama(15)));
    let tensor = "tensor: H=KV*G, KV, F -> tp; V -> tp pad";
    check(&step, &format!("mesh tp 2\n{tensor}"));
    check(&step, &format!("mesh tp 4\n{tensor}\n{SEQUENCE}"));
    check(&step, "mesh dp 3\ndata: acts B -> dp pad");
}
