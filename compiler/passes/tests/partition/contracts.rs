//! Contracts on collectives and memory, and the report that they are checked against.

use crate::llama::llama;
use crate::support::{check, joint, with_update};
use dtlc_lang::plan::Expect;
use dtlc_lang::source::{FileId, Span};
use dtlc_passes::expect::check_contracts;
use dtlc_passes::report::collectives;

const PLAN: &str = "mesh tp 2\ntensor: H=KV*G, KV, F, V -> tp\nsequence: acts S -> tp at Block.x";

fn span() -> Span {
    Span { file: FileId::from_u32(0), start: 0, end: 1 }
}

fn contract(layer: Option<&str>, phase: &str, counts: &[(&str, u64)]) -> Expect {
    Expect::Collectives {
        layer: layer.map(str::to_string),
        phase: Some(phase.to_string()),
        axis: Some("tp".to_string()),
        counts: counts.iter().map(|&(kind, count)| (kind.to_string(), count)).collect(),
        span: span(),
    }
}

#[test]
fn contracts_count_a_run_of_the_block() {
    let program = check(&with_update(joint(&llama(16))), PLAN);
    let twice = [("all_gather", 2), ("reduce_scatter", 2)];
    let kept = [
        contract(Some("Block"), "forward", &twice),
        contract(Some("Block"), "backward", &twice),
        contract(None, "gradient", &[("all_reduce", 1)]),
        Expect::Peak { bytes: 100, span: span() },
    ];
    assert_eq!(check_contracts(&program, &kept, 100), []);
    let broken = [
        contract(Some("Block"), "forward", &[("all_gather", 1), ("reduce_scatter", 2)]),
        contract(Some("Block"), "recompute", &[]),
        Expect::Peak { bytes: 99, span: span() },
    ];
    let figures: Vec<(u64, u64)> = check_contracts(&program, &broken, 100)
        .iter()
        .map(|broken| (broken.expected, broken.found))
        .collect();
    assert_eq!(figures, [(1, 2), (0, 2), (99, 100)]);
}

#[test]
fn the_report_has_sizes_and_reasons() {
    let program = check(&with_update(joint(&llama(16))), PLAN);
    let uses = collectives(&program);
    let gather = uses.iter().find(|call| call.scope == "Block").expect("a gather in the block");
    // B * S * D elements of 4 bytes, of which a rank of two sends its half; two layers.
    assert_eq!((gather.bytes, gather.wire_bytes, gather.per_step, gather.per_run), (1024, 512, 2, 1));
    assert!(gather.why[0].contains("`xn`") && gather.why[0].contains("step `sequence`"), "{:?}", gather.why);
    assert!(gather.why[0].contains("`q`") && gather.why[0].contains("step `tensor`"), "{:?}", gather.why);
    assert!(uses.iter().all(|call| call.why.iter().all(|why| !why.is_empty())));
}
