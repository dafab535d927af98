//! Prints the speed of the matrix product and of attention on one thread: `cargo run --release -p
//! dtlc-kernels --example bench`.

use std::time::Instant;

use dtlc_kernels::{
    attention::{BackwardTensors, ForwardTensors, attention, attention_backward},
    matmul::matmul,
    signature::{
        AttentionBackwardSpec, AttentionSpec, Causality, ContractionDim, Element, HeadStrides, MatmulSpec,
        Part, SCRATCH_ALIGNMENT,
    },
};

fn main() {
    let sizes = [
        (128, 128, 128),
        (512, 512, 64),
        (256, 1024, 256),
        (1024, 1024, 1024),
        (512, 4096, 1024),
        (2048, 512, 2048),
    ];
    for element in [Element::F32, Element::Bf16] {
        for (m, n, k) in sizes {
            for (name, a_transposed, b_transposed) in
                [("A B", false, false), ("A Bt", false, true), ("At B", true, false)]
            {
                let spec = product(m, n, k, element, a_transposed, b_transposed);
                let bytes = element.bytes();
                let (a, b) = (Memory::new(m * k * bytes), Memory::new(k * n * bytes));
                let (c, scratch) = (Memory::new(m * n * bytes), Memory::new(spec.scratch_bytes()));
                let seconds = least_seconds(|| {
                    // SAFETY: the buffers have the sizes that the spec states.
                    unsafe {
                        matmul(&spec, a.pointer(), b.pointer(), c.pointer(), scratch.pointer(), Part::WHOLE)
                    };
                });
                let speed = spec.floating_point_operations() as f64 / seconds / 1e9;
                println!("matmul {element:?} {name:5} {m:5} {n:5} {k:5}: {speed:6.1} GFLOP/s");
            }
        }
    }
    for element in [Element::F32, Element::Bf16] {
        for (length, head_dim, causality) in [
            (256, 32, Causality::Causal),
            (1024, 64, Causality::Causal),
            (1024, 128, Causality::Bidirectional),
            (2048, 128, Causality::Causal),
        ] {
            attention_speed(length, head_dim, causality, element);
        }
    }
}

fn product(
    m: usize,
    n: usize,
    k: usize,
    element: Element,
    a_transposed: bool,
    b_transposed: bool,
) -> MatmulSpec {
    let strides = |transposed: bool, rows: usize, columns: usize| {
        if transposed { (1, rows as isize) } else { (columns as isize, 1) }
    };
    let (a, b) = (strides(a_transposed, m, k), strides(b_transposed, k, n));
    let dims = [
        ContractionDim { extent: m, a: Some(a.0), b: None, c: Some(n as isize) },
        ContractionDim { extent: n, a: None, b: Some(b.1), c: Some(1) },
        ContractionDim { extent: k, a: Some(a.1), b: Some(b.0), c: None },
    ];
    MatmulSpec::contract(&dims, element, element, element).expect("a valid product")
}

fn attention_speed(length: usize, head_dim: usize, causality: Causality, element: Element) {
    let (kv_heads, group) = (2, 2);
    let query = HeadStrides::dense(length, kv_heads, group, head_dim);
    let key = HeadStrides { group: 0, ..HeadStrides::dense(length, kv_heads, 1, head_dim) };
    let forward = AttentionSpec {
        batch: 1,
        kv_heads,
        group,
        q_len: length,
        k_len: length,
        head_dim,
        value_dim: head_dim,
        q: query,
        k: key,
        v: key,
        o: query,
        lse: HeadStrides::dense(length, kv_heads, group, 1),
        element,
        causality,
        window: None,
        softcap: None,
        scale: 0.1,
    };
    let spec = AttentionBackwardSpec {
        forward,
        o_gradient: query,
        q_gradient: query,
        k_gradient: key,
        v_gradient: key,
    };
    let forward = &spec.forward;
    let memory = |heads: usize| Memory::new(length * heads * head_dim * 4);
    let [q, o, o_gradient, q_gradient] = [(); 4].map(|()| memory(kv_heads * group));
    let [k, v, k_gradient, v_gradient] = [(); 4].map(|()| memory(kv_heads));
    let lse = memory(kv_heads * group);
    let scratch = Memory::new(forward.scratch_bytes().max(spec.scratch_bytes()));
    let inputs = ForwardTensors {
        q: q.pointer(),
        k: k.pointer(),
        v: v.pointer(),
        o: o.pointer(),
        lse: lse.pointer().cast(),
        q_offset: 0,
        k_offset: 0,
    };
    let gradients = BackwardTensors {
        q: q.pointer(),
        k: k.pointer(),
        v: v.pointer(),
        o: o.pointer(),
        lse: lse.pointer().cast(),
        o_gradient: o_gradient.pointer(),
        q_gradient: q_gradient.pointer(),
        k_gradient: k_gradient.pointer(),
        v_gradient: v_gradient.pointer(),
        q_offset: 0,
        k_offset: 0,
    };
    // SAFETY: the buffers have the sizes that the spec states.
    let ahead = least_seconds(|| unsafe { attention(forward, &inputs, scratch.pointer(), Part::WHOLE) });
    // SAFETY: as above.
    let back =
        least_seconds(|| unsafe { attention_backward(&spec, &gradients, scratch.pointer(), Part::WHOLE) });
    let share = if causality == Causality::Causal { 0.5 } else { 1.0 };
    let operations = share * (2 * length * length * head_dim * kv_heads * group) as f64;
    println!(
        "attention {element:?} {causality:?} length {length} head {head_dim}: forward {:6.1}, backward {:6.1} GFLOP/s of visible scores",
        2.0 * operations / ahead / 1e9,
        5.0 * operations / back / 1e9,
    );
}

/// The least of several times of a call.
fn least_seconds(mut run: impl FnMut()) -> f64 {
    run();
    let start = Instant::now();
    let mut least = f64::INFINITY;
    while start.elapsed().as_secs_f64() < 0.15 {
        let before = Instant::now();
        run();
        least = least.min(before.elapsed().as_secs_f64());
    }
    least
}

/// Zeroed aligned memory.
struct Memory(Vec<[u8; SCRATCH_ALIGNMENT]>);

impl Memory {
    fn new(bytes: usize) -> Memory {
        Memory(vec![[0; SCRATCH_ALIGNMENT]; bytes.div_ceil(SCRATCH_ALIGNMENT) + 1])
    }

    fn pointer(&self) -> *mut u8 {
        let start = self.0.as_ptr().cast::<u8>();
        start.wrapping_add(start.align_offset(SCRATCH_ALIGNMENT)).cast_mut()
    }
}
