//! Memory is a fact: a step of a compiled program allocates nothing, and what a process holds is what was promised.

use dtlc_runtime::session::{Options, Session};
use dtlc_tests::chain::{Mode, assembled};
use dtlc_tests::golden::Golden;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts every allocation of the process, whichever thread asks.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: all memory comes from the system's allocator; counting changes nothing about it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Resident bytes of this process.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
    let pages: u64 = pages.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number");
    pages * 4096
}

/// One test, so that nothing else allocates meanwhile.
#[test]
fn a_step_allocates_nothing_and_resident_memory_keeps_the_promise() {
    let golden = Golden::open("llama");
    for plan in ["one", "zero3_dp2", "dp2_tp2_accum2", "tp2_sp"] {
        let program = assembled("../examples/golden/llama.dtl", plan, Mode::Train).program;
        let before = resident();
        let mut session = Session::start(program, Options::default()).expect("the session starts");
        session.initialise(1).expect("initial values");
        let (tokens, labels) = golden.batch(0);
        session.set_input("tokens", &tokens).expect("tokens");
        session.set_input("labels", &labels).expect("labels");
        session.step(1, 0).expect("a first step");
        let counted = ALLOCATIONS.load(Ordering::Relaxed);
        session.step(2, 0).expect("a second step");
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - counted, 0, "{plan}: allocations in a step");
        let held = resident().saturating_sub(before);
        let promised = session.rank_bytes() * session.ranks() as u64;
        println!("{plan}: {held} bytes held, {promised} promised");
        assert!(held as f64 <= promised as f64 * 1.05, "{plan}: {held} bytes held, {promised} promised");
    }
}
