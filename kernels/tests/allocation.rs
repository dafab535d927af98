//! No kernel allocates, not even in its first call.

mod support;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use dtlc_kernels::{
    attention::{BackwardTensors, ForwardTensors, attention, attention_backward},
    collective::{Reduction, reduce},
    embedding::{scatter_add, take},
    matmul::matmul,
    signature::{
        Accumulation, AttentionBackwardSpec, AttentionSpec, Causality, ContractionDim, Element, HeadStrides,
        MatmulSpec, Part, ScatterAddSpec, TakeSpec,
    },
};
use support::{Scratch, Stored};

thread_local! {
    /// Allocations of this thread: the test harness has others, which allocate when they like.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: passes every call on to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
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

/// Panics if `run` allocates.
fn without_allocating(name: &str, run: impl FnOnce()) {
    let before = ALLOCATIONS.get();
    run();
    let count = ALLOCATIONS.get() - before;
    assert_eq!(count, 0, "{name} allocated");
}

#[test]
fn kernels_do_not_allocate() {
    for element in [Element::F32, Element::Bf16, Element::F16] {
        matmul_does_not(element);
        attention_does_not(element);
        embedding_does_not(element);
        let (source, mut sum) = (Stored::zeros(element, 500), Stored::zeros(element, 500));
        let (sources, to) = ([source.pointer(); 2], sum.pointer_mut());
        // SAFETY: every buffer has 500 elements.
        without_allocating("reduce", || unsafe { reduce(to, &sources, element, Reduction::Sum, 0..500) });
    }
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(vec![0u8; 10]));
    assert_eq!(ALLOCATIONS.get() - before, 1, "the counter counts");
}

fn matmul_does_not(element: Element) {
    let (m, n, k) = (200, 300, 600);
    let dims = [
        ContractionDim { extent: m, a: Some(1), b: None, c: Some(n as isize) },
        ContractionDim { extent: n, a: None, b: Some(k as isize), c: Some(1) },
        ContractionDim { extent: k, a: Some(m as isize), b: Some(1), c: None },
    ];
    let spec = MatmulSpec::contract(&dims, element, element, element).expect("valid");
    let (a, b, mut c) =
        (Stored::zeros(element, m * k), Stored::zeros(element, n * k), Stored::zeros(element, m * n));
    let mut scratch = Scratch::new(spec.scratch_bytes());
    let (c, scratch) = (c.pointer_mut(), scratch.pointer());
    without_allocating("matmul", || {
        // SAFETY: the buffers have the sizes that the spec states.
        unsafe { matmul(&spec, a.pointer(), b.pointer(), c, scratch, Part::WHOLE) };
    });
}

fn attention_does_not(element: Element) {
    let strides = HeadStrides::dense(200, 1, 1, 32);
    let lse = HeadStrides::dense(200, 1, 1, 1);
    let forward = AttentionSpec {
        batch: 1,
        kv_heads: 1,
        group: 1,
        q_len: 200,
        k_len: 200,
        head_dim: 32,
        value_dim: 32,
        q: strides,
        k: HeadStrides { group: 0, ..strides },
        v: HeadStrides { group: 0, ..strides },
        o: strides,
        lse,
        documents: None,
        element,
        causality: Causality::Causal,
        window: Some(150),
        softcap: Some(10.0),
        scale: 0.2,
    };
    let key = HeadStrides { group: 0, ..strides };
    let spec = AttentionBackwardSpec {
        forward,
        o_gradient: strides,
        q_gradient: strides,
        k_gradient: key,
        v_gradient: key,
    };
    let [q, k, v, mut o, o_gradient, mut q_gradient, mut k_gradient, mut v_gradient] =
        [(); 8].map(|()| Stored::zeros(element, 200 * 32));
    let mut lse = vec![0.0f32; 200];
    let mut scratch = Scratch::new(spec.forward.scratch_bytes().max(spec.scratch_bytes()));
    let scratch = scratch.pointer();
    let inputs = (q.pointer(), k.pointer(), v.pointer());
    let (o, lse) = (o.pointer_mut(), lse.as_mut_ptr());
    let tensors = ForwardTensors {
        q: inputs.0,
        k: inputs.1,
        v: inputs.2,
        o,
        lse,
        q_documents: std::ptr::null(),
        k_documents: std::ptr::null(),
        q_offset: 0,
        k_offset: 0,
    };
    // SAFETY: the buffers have the sizes that the spec states.
    without_allocating("attention", || unsafe { attention(&spec.forward, &tensors, scratch, Part::WHOLE) });
    let tensors = BackwardTensors {
        q: inputs.0,
        k: inputs.1,
        v: inputs.2,
        o,
        lse,
        o_gradient: o_gradient.pointer(),
        q_gradient: q_gradient.pointer_mut(),
        k_gradient: k_gradient.pointer_mut(),
        v_gradient: v_gradient.pointer_mut(),
        q_documents: std::ptr::null(),
        k_documents: std::ptr::null(),
        q_offset: 0,
        k_offset: 0,
    };
    // SAFETY: the buffers have the sizes that the spec states.
    without_allocating("attention_backward", || unsafe {
        attention_backward(&spec, &tensors, scratch, Part::WHOLE)
    });
}

fn embedding_does_not(element: Element) {
    let (tokens, vocabulary, width) = (100, 20, 70);
    let ids = vec![3u32; tokens];
    let (mut table, mut rows) =
        (Stored::zeros(element, vocabulary * width), Stored::zeros(element, tokens * width));
    let (table, rows) = (table.pointer_mut(), rows.pointer_mut());
    let spec = TakeSpec { tokens, vocabulary, width, element };
    without_allocating("take", || {
        // SAFETY: the buffers have the sizes that the spec states.
        unsafe { take(&spec, table, ids.as_ptr(), rows, 0, Part::WHOLE) };
    });
    let accumulation = Accumulation::Add;
    let spec = ScatterAddSpec { tokens, vocabulary, width, source: element, output: element, accumulation };
    let mut scratch = Scratch::new(spec.scratch_bytes());
    let scratch = scratch.pointer();
    without_allocating("scatter_add", || {
        // SAFETY: the buffers have the sizes that the spec states.
        unsafe { scatter_add(&spec, rows, ids.as_ptr(), table, 0, scratch, Part::WHOLE) };
    });
}
