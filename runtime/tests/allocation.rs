//! Running a step allocates nothing, on any thread.

mod support;

use std::alloc::{GlobalAlloc, Layout as Allocation, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use dtlc_kernels::signature::{ContractionDim, Element, MatmulSpec};
use dtlc_runtime::program::*;
use dtlc_runtime::session::Options;
use support::*;

struct Counting;

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Allocation) -> *mut u8 {
        if COUNTING.load(Ordering::Relaxed) {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Allocation) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// All kinds of instruction in a loop, on 4 ranks of 2 threads.
fn program() -> Program {
    let mut program = empty_program(&[("dp", 2), ("tp", 2)]);
    let (rows, columns) = (64usize, 64usize);
    let dim = |a, b, c| ContractionDim { extent: 64, a, b, c };
    let dims = [dim(Some(64), None, Some(64)), dim(Some(1), Some(64), None), dim(None, Some(1), Some(1))];
    let spec = MatmulSpec::contract(&dims, Element::F32, Element::F32, Element::F32).expect("a product");
    program.thread_scratch_bytes = spec.scratch_bytes() as u64;
    let bytes = (rows * columns * 4) as u64;
    let buffer = |index: u64| BufferRef::new(Space::Arena, index * bytes, bytes);
    program.arena_bytes = 4 * bytes;
    let store = BufferRef::new(Space::Arena, 3 * bytes, bytes);
    let integers = vec![Affine::constant(1).plus(Variable::LoopIndex(0), 1)];
    let call = KernelCall { kernel: KernelId(0), pointers: vec![store], integers, floats: Vec::new() };
    let kernel = only_kernel(&mut program, STORE_CODE, call, bytes / 8);
    let tensor =
        |transfer| CollectiveTensor { source: buffer(2), target: buffer(0), dtype: DType::F32, transfer };
    let collective = |kind, transfer| {
        let tensors = vec![tensor(transfer), tensor(transfer)];
        Operation::Collective(Collective {
            flight: FlightId(0),
            kind,
            axes: vec![AxisId(1), AxisId(0)],
            tensors,
        })
    };
    let copy = Operation::Copy {
        source: buffer(0),
        target: buffer(1),
        rows: 64,
        row_bytes: 256,
        source_pitch: 256,
        target_pitch: 256,
    };
    let body = vec![
        at(0, Operation::Fill { target: buffer(0), dtype: DType::F32, value: 1.5 }),
        at(0, copy),
        at(1, Operation::Matmul { spec, a: buffer(0), b: buffer(1), c: buffer(2), epilogue: None }),
        at(1, kernel),
        at(1, collective(CollectiveKind::AllReduce(Reduction::Sum), Transfer::whole(4096))),
        at(
            2,
            collective(
                CollectiveKind::ReduceScatter(Reduction::Sum),
                Transfer::reduce_scatter(16, Part::even(64, 4)),
            ),
        ),
        at(2, collective(CollectiveKind::AllGather, Transfer::all_gather(16, Part::even(64, 4)))),
    ];
    program.instructions =
        vec![at(0, Operation::Loop(Loop { count: 5, order: LoopOrder::Reverse, body: with_dones(body) }))];
    program
}

#[test]
fn a_step_allocates_nothing() {
    let mut session = start(&program(), Options { threads: Some(2), ..Options::default() });
    session.step(1, 0).expect("the step runs");
    COUNTING.store(true, Ordering::SeqCst);
    for step in 2..12 {
        session.step(step, 0).expect("the step runs");
    }
    COUNTING.store(false, Ordering::SeqCst);
    assert_eq!(ALLOCATIONS.load(Ordering::SeqCst), 0);
    // The counter counts.
    COUNTING.store(true, Ordering::SeqCst);
    drop(std::hint::black_box(vec![1u8; 100]));
    COUNTING.store(false, Ordering::SeqCst);
    assert!(ALLOCATIONS.load(Ordering::SeqCst) > 0);
}
