//! Compile time follows neither layers nor ranks: what is allocated on the way from a file to its `program` stage is counted,
//! since that is the same on every run and grows with all that the compiler makes.
//!
//! `scripts/bench-compile` measures the time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use dtlc::pipeline::{self, Mode, Stage};
use dtlc_lang::{Loaded, Options, PlanChoice};

/// Counts what this thread allocates.
struct Counting;

thread_local! {
    /// Allocations, and their bytes.
    static ALLOCATED: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

// SAFETY: everything is left to the system's allocator; the counters do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.with(|counters| {
            let (count, bytes) = counters.get();
            counters.set((count + 1, bytes + layout.size() as u64));
        });
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Compiles the plan for 405 billion parameters with other sizes; returns allocations and bytes.
fn work(layers: u64, ranks: (u64, u64)) -> (u64, u64) {
    let path = "../examples/llama3.dtl";
    let (data, tensor) = ranks;
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let text = replaced(&text, "mesh { dp: 2048, tp: 8 }", &format!("mesh {{ dp: {data}, tp: {tensor} }}"));
    let text = replaced(&text, "global 2048 }", &format!("global {data} }}"));
    let plan = PlanChoice::Named("b405_tp8_dp2048".to_owned());
    let options = Options { plan, overrides: vec![("L".to_owned(), layers.to_string())] };
    let nothing = |_: &str, _: &[&str]| Loaded::Missing;
    let before = ALLOCATED.get();
    let compiled = dtlc_lang::compile(&nothing, path, text.as_bytes(), &options)
        .unwrap_or_else(|rejected| panic!("{:#?}", rejected.diagnostics));
    let compilation = pipeline::compile(&compiled, Mode::Train, Stage::Program)
        .unwrap_or_else(|trouble| panic!("{trouble:#?}"));
    let after = ALLOCATED.get();
    assert!(compilation.assembled.is_some(), "the last stage was asked for");
    (after.0 - before.0, after.1 - before.1)
}

fn replaced(text: &str, old: &str, new: &str) -> String {
    assert_eq!(text.matches(old).count(), 1, "`{old}` in examples/llama3.dtl");
    text.replace(old, new)
}

fn at_most_a_fifth_more(large: (u64, u64), small: (u64, u64)) {
    for (large, small) in [(large.0, small.0), (large.1, small.1)] {
        assert!(large * 5 <= small * 6, "{large} against {small}");
    }
}

#[test]
fn many_layers_cost_what_few_do() {
    at_most_a_fifth_more(work(128, (2048, 8)), work(2, (2048, 8)));
}

#[test]
fn many_ranks_cost_what_few_do() {
    at_most_a_fifth_more(work(126, (2048, 8)), work(126, (2, 4)));
}

/// A model whose hidden value is made in many steps, each of which reads the one before twice.
fn chain(steps: usize) -> String {
    let step = |index: usize| format!("    let y{} = y{index} * 1.01 + y{index}\n", index + 1);
    let steps_text: String = (0..steps).map(step).collect();
    format!(
        "model M {{\n  dims B, D = 8\n  param w: [D]\n  fn loss(x: [B, D]) -> f32[] {{\n    let y0 = x * w\n{steps_text}    \
         mean(f32(y{steps}))\n  }}\n}}\n"
    )
}

#[test]
fn a_chain_of_elementwise_code_costs_what_it_is_long() {
    let work = |steps: usize| {
        let nothing = |_: &str, _: &[&str]| Loaded::Missing;
        let options = Options { plan: PlanChoice::None, overrides: Vec::new() };
        let compiled = dtlc_lang::compile(&nothing, "chain.dtl", chain(steps).as_bytes(), &options)
            .unwrap_or_else(|rejected| panic!("{:#?}", rejected.diagnostics));
        let before = ALLOCATED.get();
        let compilation = pipeline::compile(&compiled, Mode::Gradients, Stage::Program)
            .unwrap_or_else(|trouble| panic!("{trouble:#?}"));
        assert!(compilation.assembled.is_some(), "the last stage was asked for");
        ALLOCATED.get().0 - before.0
    };
    let (short, long) = (work(40), work(160));
    assert!(long <= 5 * short, "{long} allocations for 160 steps, {short} for 40");
}
