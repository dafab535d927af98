//! Prints the speed of the matrix product and of attention on one thread: `cargo run --release -p
//! dtlc-kernels --example bench`. Products stand beside what multiply-adds in registers reach in the same moments.

use std::time::Instant;

use dtlc_kernels::{
    attention::{BackwardTensors, ForwardTensors, attention, attention_backward},
    matmul::matmul,
    signature::{
        AttentionBackwardSpec, AttentionSpec, Causality, ContractionDim, Element, Factors, HeadStrides,
        MatmulSpec, Part, SCRATCH_ALIGNMENT,
    },
};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [] => {
            products();
            attentions();
        }
        ["products"] => products(),
        ["attention", heads, length, head_dim] => {
            let number = |word: &str| word.parse().expect("a number");
            let shape = Shape {
                kv_heads: number(heads),
                group: 1,
                length: number(length),
                head_dim: number(head_dim),
                causality: Causality::Causal,
                element: Element::F32,
            };
            let (forward, backward) = attention_seconds(&shape);
            println!("{}", forward + backward);
        }
        _ => eprintln!(
            "bench, bench products for those alone, or bench attention HEADS POSITIONS HEAD for the seconds of a \
             forward and a backward pass"
        ),
    }
}

/// The products of a linear layer, forward and in both gradients, at the sizes of `examples/peers.dtl`.
fn products() {
    const TOKENS: usize = 2048;
    let layers =
        [(256, 256), (256, 688), (688, 256), (256, 4096), (512, 512), (512, 1376), (1376, 512), (512, 8192)];
    let kinds = [
        ("F32", Element::F32, Factors::AsStored),
        ("Tf32", Element::F32, Factors::Tf32),
        ("Bf16", Element::Bf16, Factors::AsStored),
    ];
    for (kind, element, factors) in kinds {
        for (inputs, outputs) in layers {
            for (name, m, n, k, a_transposed, b_transposed) in [
                ("A B", TOKENS, outputs, inputs, false, false),
                ("A Bt", TOKENS, inputs, outputs, false, true),
                ("At B", inputs, outputs, TOKENS, true, false),
            ] {
                let spec = MatmulSpec { factors, ..product(m, n, k, element, a_transposed, b_transposed) };
                let bytes = element.bytes();
                let (a, b) = (Memory::new(m * k * bytes), Memory::new(k * n * bytes));
                let (c, scratch) = (Memory::new(m * n * bytes), Memory::new(spec.scratch_bytes()));
                let (seconds, peak) = beside_peak(|| {
                    // SAFETY: the buffers have the sizes that the spec states.
                    unsafe {
                        matmul(&spec, a.pointer(), b.pointer(), c.pointer(), scratch.pointer(), Part::WHOLE)
                    };
                });
                let speed = spec.floating_point_operations() as f64 / seconds / 1e9;
                println!(
                    "matmul {kind:4} {name:5} {m:5} {n:5} {k:5}: {speed:6.1} GFLOP/s, {:.2} of f32 peak",
                    speed / peak
                );
            }
        }
    }
}

fn attentions() {
    for element in [Element::F32, Element::Bf16] {
        for (length, head_dim, causality) in [
            (256, 32, Causality::Causal),
            (512, 64, Causality::Causal),
            (1024, 64, Causality::Causal),
            (2048, 64, Causality::Causal),
            (1024, 128, Causality::Bidirectional),
        ] {
            let shape = Shape { kv_heads: 2, group: 2, length, head_dim, causality, element };
            let (ahead, back) = attention_seconds(&shape);
            let share = if causality == Causality::Causal { 0.5 } else { 1.0 };
            let operations = share * (2 * length * length * head_dim * 4) as f64;
            println!(
                "attention {element:?} {causality:?} length {length} head {head_dim}: forward {:6.1}, backward {:6.1} GFLOP/s of visible scores",
                2.0 * operations / ahead / 1e9,
                5.0 * operations / back / 1e9,
            );
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

/// The attention of one sequence.
struct Shape {
    kv_heads: usize,
    group: usize,
    length: usize,
    head_dim: usize,
    causality: Causality,
    element: Element,
}

/// Seconds of a forward and of a backward pass.
fn attention_seconds(shape: &Shape) -> (f64, f64) {
    let &Shape { kv_heads, group, length, head_dim, causality, element } = shape;
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
        documents: None,
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
        q_documents: std::ptr::null(),
        k_documents: std::ptr::null(),
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
        q_documents: std::ptr::null(),
        k_documents: std::ptr::null(),
        q_offset: 0,
        k_offset: 0,
    };
    // SAFETY: the buffers have the sizes that the spec states.
    let ahead = least_seconds(|| unsafe { attention(forward, &inputs, scratch.pointer(), Part::WHOLE) });
    // SAFETY: as above.
    let back =
        least_seconds(|| unsafe { attention_backward(&spec, &gradients, scratch.pointer(), Part::WHOLE) });
    (ahead, back)
}

/// The least seconds of a call, and the most GFLOP/s of f32 multiply-adds in registers, in turn.
fn beside_peak(mut run: impl FnMut()) -> (f64, f64) {
    const STEPS: usize = 200_000;
    run();
    let start = Instant::now();
    let (mut seconds, mut peak) = (f64::INFINITY, 0f64);
    while start.elapsed().as_secs_f64() < 0.3 {
        let before = Instant::now();
        run();
        seconds = seconds.min(before.elapsed().as_secs_f64());
        let before = Instant::now();
        let operations = multiply_adds(STEPS);
        peak = peak.max(operations / before.elapsed().as_secs_f64() / 1e9);
    }
    (seconds, peak)
}

/// Runs independent multiply-adds in registers; returns the number of operations.
fn multiply_adds(steps: usize) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: AVX-512 is there.
        return unsafe { multiply_adds_avx512(steps) };
    }
    println!("the peak is measured with AVX-512 only");
    f64::INFINITY
}

/// # Safety
/// The host must have AVX-512 F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn multiply_adds_avx512(steps: usize) -> f64 {
    use std::arch::x86_64::*;
    const CHAINS: usize = 16;
    let (factor, mut sums) = (_mm512_set1_ps(std::hint::black_box(0.5)), [_mm512_set1_ps(1.0); CHAINS]);
    for _ in 0..steps / CHAINS {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, factor, factor);
        }
    }
    std::hint::black_box(sums);
    (steps / CHAINS * CHAINS * 16 * 2) as f64
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
