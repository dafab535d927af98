//! Flash attention of bf16 and f16 on the tensor cores, forward and backward: heads of every width, whole chunks of them and parts, lengths and
//! windows across tiles, groups of up to eight, wherever the tensors begin.

use crate::attention::{PLAIN, calls, check, is_on_tensor_cores};
use crate::bench::{Bench, Placing, compiled};
use crate::support::Numbers;
use crate::support::attention::{Case, Packing, Shape};
use crate::tensor_cores::ARCHITECTURES;
use dtlc_codegen::cuda::nvrtc::Architecture;
use dtlc_kernels::cuda::DeviceCall;
use dtlc_kernels::signature::{Causality, Element};

/// One causal head of bf16.
pub const NARROW: Shape = Shape { element: Element::Bf16, ..PLAIN };
/// Strides with which a tensor is read and written 16 bytes at once.
pub const CHUNKS: usize = 8;

/// Which of the tensors whose positions are read or written 16 bytes at once are so.
fn alignments(call: &DeviceCall) -> Vec<bool> {
    let launch = call.launches.last().expect("a launch");
    let stated = launch.source.split("IS_ALIGNED = ").skip(1);
    stated.map(|behind| behind.starts_with("true")).collect()
}

/// Lengths, heads and groups that nothing divides, windows, caps, and blocks that see nothing.
pub fn odd_shapes() -> [Shape; 7] {
    let long = Shape { q_len: 130, k_len: 150, ..NARROW };
    let both = Causality::Bidirectional;
    [
        Shape { q_len: 1, k_len: 1, head_dim: 1, value_dim: 1, ..NARROW },
        Shape { batch: 2, kv_heads: 2, group: 3, q_len: 33, k_len: 40, head_dim: 7, value_dim: 5, ..NARROW },
        Shape { head_dim: 24, value_dim: 20, window: Some(70), softcap: Some(2.0), q_offset: 30, ..long },
        Shape { group: 8, q_len: 65, k_len: 129, head_dim: 48, value_dim: 64, q_offset: 64, ..NARROW },
        // Queries that see nothing, some of them in blocks that see nothing.
        Shape { k_len: 100, q_offset: 930, k_offset: 940, group: 2, softcap: Some(0.7), ..long },
        Shape { q_offset: 400, window: Some(300), head_dim: 72, value_dim: 16, ..long },
        Shape { causality: both, window: Some(40), k_offset: -25, head_dim: 100, value_dim: 128, ..long },
    ]
}

#[test]
fn odd_shapes_of_every_kind_on_tensor_cores() {
    ARCHITECTURES.into_iter().for_each(odd_shapes_of_every_kind);
}

fn odd_shapes_of_every_kind(architecture: Architecture) {
    let Some(mut bench) = Bench::new(architecture) else { return };
    let mut numbers = Numbers(21);
    let both = Causality::Bidirectional;
    let wide = [
        Shape { q_len: 70, causality: both, window: Some(u64::MAX), head_dim: 256, value_dim: 192, ..NARROW },
        Shape { q_len: 9, k_len: 70, causality: both, head_dim: 130, value_dim: 70, kv_heads: 2, ..NARROW },
    ];
    let shapes = odd_shapes().into_iter().chain(wide);
    for (number, shape) in shapes.enumerate() {
        // In turns as chunks and number by number.
        let step = if number % 2 == 0 { CHUNKS } else { 1 };
        let case = Case::stepping(shape, step, &mut numbers);
        assert!(calls(&case).iter().all(is_on_tensor_cores));
        check(&case, &mut bench, Placing::Aligned);
    }
}

/// In f16 the same text names another type: whole chunks and parts, one row of tiles and several, with all that can be asked for.
#[test]
fn attention_of_f16() {
    ARCHITECTURES.into_iter().for_each(of_f16);
}

fn of_f16(architecture: Architecture) {
    let Some(mut bench) = Bench::new(architecture) else { return };
    let mut numbers = Numbers(25);
    let (element, causality) = (Element::F16, Causality::Bidirectional);
    let asked = Shape { window: Some(40), softcap: Some(2.0), group: 2, ..PLAIN };
    let shapes = [
        (Shape { element, q_len: 70, k_len: 90, q_offset: 20, head_dim: 72, value_dim: 40, ..asked }, CHUNKS),
        (Shape { element, causality, q_len: 33, k_len: 70, head_dim: 20, value_dim: 13, ..PLAIN }, 1),
    ];
    for (shape, step) in shapes {
        let case = Case::stepping(shape, step, &mut numbers);
        assert!(calls(&case).iter().all(is_on_tensor_cores));
        check(&case, &mut bench, Placing::Aligned);
    }
}

/// What the descriptor says is aligned may begin anywhere.
#[test]
fn tensors_that_begin_between_chunks() {
    ARCHITECTURES.into_iter().for_each(between_chunks);
}

fn between_chunks(architecture: Architecture) {
    let Some(mut bench) = Bench::new(architecture) else { return };
    let shape = Shape { group: 2, kv_heads: 2, head_dim: 32, value_dim: 24, ..NARROW };
    let case = Case::stepping(shape, CHUNKS, &mut Numbers(22));
    let [forward, backward] = calls(&case);
    // All but log-sum-exps, whose positions are not chunks.
    assert_eq!(alignments(&forward)[..4], [true; 4]);
    assert_eq!(alignments(&backward)[5..], [true; 4]);
    for bytes in [4, 8, 16] {
        check(&case, &mut bench, Placing::Behind(bytes));
    }
}

#[test]
fn a_long_head_on_a_later_architecture() {
    let Some(mut bench) = Bench::new(Architecture::Sm100a) else { return };
    let shape = Shape { q_len: 257, k_len: 257, head_dim: 64, value_dim: 64, window: Some(100), ..NARROW };
    check(&Case::stepping(shape, CHUNKS, &mut Numbers(23)), &mut bench, Placing::Aligned);
}

/// Heads of the usual widths, of which 16 bytes are copied and stored at once, with all that can be asked for and without.
#[test]
fn attention_on_tensor_cores_compiles_for_every_architecture() {
    if crate::library::nvrtc().is_none() {
        return;
    }
    let long = Shape { q_len: 300, k_len: 300, group: 4, kv_heads: 2, ..NARROW };
    let plain = Shape { head_dim: 128, value_dim: 128, ..long };
    let packed = Packing::Runs(90);
    let asked = Shape { softcap: Some(30.0), window: Some(1000), packing: packed, ..plain };
    let shapes = [
        Shape { head_dim: 64, value_dim: 64, packing: packed, ..plain },
        plain,
        asked,
        Shape { head_dim: 256, value_dim: 256, ..asked },
        Shape { element: Element::F16, head_dim: 64, value_dim: 64, ..asked },
    ];
    for shape in shapes {
        // The text of f16 is that of bf16 but for a name.
        let (half, architectures) = match shape.element {
            Element::F16 => ("f16", &ARCHITECTURES[..]),
            Element::Bf16 | Element::F32 => ("bf16", &Architecture::ALL[..]),
        };
        let case = Case::stepping(shape, CHUNKS, &mut Numbers(24));
        for launch in calls(&case).iter().flat_map(|call| &call.launches) {
            for &architecture in architectures {
                println!("{shape:?} {} for {}", launch.name, architecture.name());
                let binary = compiled(launch, architecture);
                println!("{} registers", binary.report().kernels[0].registers);
                if launch.source.contains("mma.sync") {
                    let ptx = binary.ptx;
                    let is_group = architecture == Architecture::Sm90a;
                    assert_eq!(ptx.contains("wgmma.mma_async.sync.aligned.m64n"), is_group, "{shape:?}");
                    for of_warps in [
                        &format!("mma.sync.aligned.m16n8k16.row.col.f32.{half}.{half}.f32"),
                        "ldmatrix.sync.aligned.m8n8.x4.shared",
                        "ldmatrix.sync.aligned.m8n8.x4.trans",
                    ] {
                        assert_ne!(ptx.contains(of_warps), is_group, "{shape:?}");
                    }
                    assert!(ptx.contains("cp.async.cg.shared.global"), "{shape:?}");
                    assert!(ptx.contains("st.global.v4"), "{shape:?}");
                    assert!(!ptx.contains(".local"), "{shape:?}");
                }
            }
        }
    }
}
