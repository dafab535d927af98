//! Hand-built programs on 1 to 8 ranks: loops, kernels, matrix products, copies, fills, state.

mod support;

use dtlc_kernels::signature::{
    AttentionBackwardSpec, AttentionSpec, Causality, ContractionDim, Documents, Element, HeadStrides,
    MatmulSpec,
};
use dtlc_runtime::program::*;
use dtlc_runtime::session::{ArenaStart, Options, Session};
use dtlc_runtime::tensor::HostTensor;
use support::*;

const MESHES: &[&[(&str, u32)]] = &[&[], &[("dp", 2)], &[("dp", 2), ("tp", 2)], &[("dp", 2), ("tp", 4)]];

fn everywhere(program: &Program) -> Layout {
    let mut layout = Layout::replicated(DType::F32, &[("rank", program.mesh.ranks())]);
    for axis in 0..program.mesh.axes.len() {
        layout = layout.placed(0, AxisId(axis as u32));
    }
    layout
}

#[test]
fn a_kernel_gets_coordinates_loop_indices_step_and_seed() {
    for mesh in MESHES {
        let mut program = empty_program(mesh);
        let ranks = program.mesh.ranks();
        // For each rank 3 × 5 iterations of 64 elements of 8 bytes.
        let mut layout = Layout::replicated(
            DType::U32,
            &[("rank", ranks), ("outer", 3), ("inner", 5), ("element", 64), ("half", 2)],
        );
        let mut integer =
            Affine::constant(5).plus(Variable::Step, 1_000_000).plus(Variable::SeedLow, 10_000_000);
        for axis in (0..mesh.len() as u32).map(AxisId) {
            layout = layout.placed(0, axis);
        }
        let mut weight = 100_000;
        for axis in (0..mesh.len() as u32).rev().map(AxisId) {
            integer = integer.plus(Variable::MeshCoordinate(axis), weight);
            weight *= program.mesh.size(axis) as i64;
        }
        integer = integer.plus(Variable::LoopIndex(0), 10_000).plus(Variable::LoopIndex(1), 1_000);
        output(&mut program, "out", layout, 0);
        let pointer = BufferRef::new(Space::Arena, 0, 512)
            .moved(Variable::LoopIndex(0), 5 * 512)
            .moved(Variable::LoopIndex(1), 512);
        let call = KernelCall {
            kernel: KernelId(0),
            pointers: vec![pointer],
            integers: vec![integer],
            floats: Vec::new(),
        };
        let kernel = only_kernel(&mut program, STORE_CODE, call, 64);
        let inner = Loop { count: 5, order: LoopOrder::Reverse, body: vec![at(1, kernel)] };
        let outer = Loop { count: 3, order: LoopOrder::Forward, body: vec![at(0, Operation::Loop(inner))] };
        program.instructions = vec![at(0, Operation::Loop(outer))];

        let mut session = start(&program, Options { threads: Some(2), ..Options::default() });
        session.step(2, 3).expect("the step runs");
        let out = session.output(&program.outputs[0]).expect("it can be read");
        let words: Vec<u64> = out
            .bytes
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
            .collect();
        for (index, &word) in words.iter().enumerate() {
            let (rank, outer, inner) = (index / 64 / 15, index / 64 / 5 % 3, index / 64 % 5);
            let expected = 5 + 2_000_000 + 30_000_000 + 100_000 * rank + 10_000 * outer + 1_000 * inner;
            assert_eq!(word, expected as u64, "rank {rank}, iteration ({outer}, {inner})");
        }
    }
}

#[test]
fn reverse_loops_run_from_the_last_index() {
    let mut program = empty_program(&[]);
    let out = output(&mut program, "out", Layout::replicated(DType::F32, &[("x", 1)]), 0);
    input(&mut program, "in", Layout::replicated(DType::F32, &[("x", 4)]), 0);
    let source = BufferRef::new(Space::Input, 0, 4).moved(Variable::LoopIndex(0), 4);
    let copy =
        Operation::Copy { source, target: out, rows: 1, row_bytes: 4, source_pitch: 0, target_pitch: 0 };
    for (order, last) in [(LoopOrder::Forward, 40.0), (LoopOrder::Reverse, 10.0)] {
        let body = vec![at(1, copy.clone())];
        program.instructions = vec![at(0, Operation::Loop(Loop { count: 4, order, body }))];
        let mut session = start(&program, Options::default());
        session.set_input("in", &HostTensor::from_f32(&[4], &[10.0, 20.0, 30.0, 40.0])).expect("it fits");
        session.step(1, 0).expect("the step runs");
        assert_eq!(values(&session, "out"), [last]);
    }
}

#[test]
fn a_product_with_sharded_columns_is_the_product() {
    let (rows, inner, columns) = (12u64, 20u64, 16u64);
    let numbers = |count: u64, step: u64| -> Vec<f32> {
        (0..count).map(|index| (index * step % 13) as f32 - 6.0).collect()
    };
    let (a, b) = (numbers(rows * inner, 7), numbers(inner * columns, 5));
    for mesh in MESHES {
        let mut program = empty_program(mesh);
        let place = |mut layout: Layout, dimension| {
            for axis in (0..mesh.len() as u32).map(AxisId) {
                layout = layout.placed(dimension, axis);
            }
            layout
        };
        let left = Layout::replicated(DType::F32, &[("m", rows), ("k", inner)]);
        let right = place(Layout::replicated(DType::F32, &[("k", inner), ("n", columns)]), 1);
        let result = place(Layout::replicated(DType::F32, &[("m", rows), ("n", columns)]), 1);
        let local = (columns / program.mesh.ranks()) as isize;
        let dim = |extent: u64, a, b, c| ContractionDim { extent: extent as usize, a, b, c };
        let dims = [
            dim(rows, Some(inner as isize), None, Some(local)),
            dim(inner, Some(1), Some(local), None),
            dim(local as u64, None, Some(1), Some(1)),
        ];
        let spec = MatmulSpec::contract(&dims, Element::F32, Element::F32, Element::F32).expect("a product");
        program.thread_scratch_bytes = spec.scratch_bytes() as u64;
        let left = input(&mut program, "a", left, 0);
        let right = input(&mut program, "b", right, 4096);
        let result = output(&mut program, "c", result, 0);
        program.instructions =
            vec![at(1, Operation::Matmul { spec, a: left, b: right, c: result, epilogue: None })];
        let mut session = start(&program, Options { arena: ArenaStart::Poisoned, ..Options::default() });
        session.set_input("a", &HostTensor::from_f32(&[rows, inner], &a)).expect("it fits");
        session.set_input("b", &HostTensor::from_f32(&[inner, columns], &b)).expect("it fits");
        session.step(1, 0).expect("the step runs");
        let expected = (0..rows * columns).map(|index| {
            let (row, column) = (index / columns, index % columns);
            let product = |k: u64| a[(row * inner + k) as usize] * b[(k * columns + column) as usize];
            (0..inner).map(product).sum::<f32>()
        });
        assert_eq!(values(&session, "c"), expected.collect::<Vec<f32>>());
    }
}

/// Causal attention of 2 packed sequences of 8 keys, 2 × 3 heads of 4 features, over `queries` of the
/// positions, and its gradient.
fn attention_specs(queries: usize) -> (AttentionSpec, AttentionBackwardSpec) {
    let query_strides = HeadStrides::dense(queries, 2, 3, 4);
    let key_strides = HeadStrides { group: 0, ..HeadStrides::dense(8, 2, 1, 4) };
    let forward = AttentionSpec {
        batch: 2,
        kv_heads: 2,
        group: 3,
        q_len: queries,
        k_len: 8,
        head_dim: 4,
        value_dim: 4,
        q: query_strides,
        k: key_strides,
        v: key_strides,
        o: query_strides,
        lse: HeadStrides::dense(queries, 2, 3, 1),
        documents: Some(Documents {
            q: HeadStrides { batch: queries as isize, sequence: 1, ..HeadStrides::default() },
            k: HeadStrides { batch: 8, sequence: 1, ..HeadStrides::default() },
        }),
        element: Element::F32,
        causality: Causality::Causal,
        window: None,
        softcap: None,
        scale: 0.5,
    };
    let backward = AttentionBackwardSpec {
        forward: forward.clone(),
        o_gradient: query_strides,
        q_gradient: query_strides,
        k_gradient: key_strides,
        v_gradient: key_strides,
    };
    (forward, backward)
}

/// Attention over queries sharded by sequence, keys and values whole, and its gradient.
fn attention_program(mesh: &[(&str, u32)]) -> Program {
    let mut program = empty_program(mesh);
    let queries = 8 / program.mesh.ranks();
    let axes = || (0..mesh.len() as u32).map(AxisId);
    let whole = |dims: &[(&str, u64)]| {
        Layout::replicated(DType::F32, &[&[("b", 2), ("s", 8), ("h", 2)], dims].concat())
    };
    let sharded = |dims: &[(&str, u64)]| axes().fold(whole(dims), |layout, axis| layout.placed(1, axis));
    let heads = [("g", 3), ("k", 4)];
    let q = input(&mut program, "q", sharded(&heads), 0);
    let k = input(&mut program, "k", whole(&heads[1..]), 4096);
    let v = input(&mut program, "v", whole(&heads[1..]), 8192);
    let o_gradient = input(&mut program, "do", sharded(&heads), 12288);
    let numbers = Layout::replicated(DType::U32, &[("b", 2), ("s", 8)]);
    let of_queries = axes().fold(numbers.clone(), |layout, axis| layout.placed(1, axis));
    let documents = Some(DocumentBuffers {
        q: input(&mut program, "query_documents", of_queries, 20480),
        k: input(&mut program, "key_documents", numbers, 21504),
    });
    let o = output(&mut program, "o", sharded(&heads), 0);
    let q_gradient = output(&mut program, "dq", sharded(&heads), 4096);
    let lse = output(&mut program, "lse", sharded(&heads[..1]), 8192);
    let (spec, backward) = attention_specs(queries as usize);
    program.thread_scratch_bytes = spec.scratch_bytes().max(backward.scratch_bytes()) as u64;
    let (mut q_offset, mut stride) = (Affine::constant(0), queries as i64);
    for axis in axes().rev() {
        q_offset = q_offset.plus(Variable::MeshCoordinate(axis), stride);
        stride *= program.mesh.size(axis) as i64;
    }
    let k_offset = Affine::constant(0);
    let gradient = |offset| BufferRef::new(Space::Arena, offset, 512);
    let gradients = AttentionBackwardCall {
        spec: backward,
        q: q.clone(),
        k: k.clone(),
        v: v.clone(),
        o: o.clone(),
        lse: lse.clone(),
        documents: documents.clone(),
        o_gradient,
        q_gradient,
        k_gradient: gradient(16384),
        v_gradient: gradient(20480),
        q_offset: q_offset.clone(),
        k_offset: k_offset.clone(),
    };
    let forward = AttentionCall { spec, q, k, v, o, lse, documents, q_offset, k_offset };
    program.instructions = vec![
        at(0, Operation::Attention(Box::new(forward))),
        at(1, Operation::AttentionBackward(Box::new(gradients))),
    ];
    program
}

#[test]
fn attention_sharded_by_sequence_sees_global_positions() {
    let numbers = |count: u64, step: u64| -> Vec<f32> {
        (0..count).map(|index| (index * step % 17) as f32 / 8.0 - 1.0).collect()
    };
    let mut first: Option<Vec<Vec<f32>>> = None;
    for mesh in MESHES {
        let program = attention_program(mesh);
        let options = Options { arena: ArenaStart::Poisoned, threads: Some(2), ..Options::default() };
        let mut session = start(&program, options);
        for (step, input) in program.inputs.iter().enumerate() {
            let (shape, count) = (input.layout.global_shape(), input.layout.global_elements());
            let tensor = match input.layout.dtype {
                // Documents of three positions, of any numbers.
                DType::U32 => {
                    let number = |index| 7 - index % 8 / 3 % 2 * 5;
                    HostTensor::from_u32(&shape, &(0..count as u32).map(number).collect::<Vec<_>>())
                }
                _ => HostTensor::from_f32(&shape, &numbers(count, step as u64 + 5)),
            };
            session.set_input(&input.name, &tensor).expect("it fits");
        }
        session.step(1, 0).expect("the step runs");
        let outputs: Vec<Vec<f32>> = ["o", "dq", "lse"].iter().map(|name| values(&session, name)).collect();
        // The first position of each document sees only itself, so its output is its value.
        let value = numbers(128, 7);
        for (head, position) in (0..6).flat_map(|head| [(head, 0), (head, 3)]) {
            assert_eq!(
                outputs[0][(position * 6 + head) * 4..][..4],
                value[(position * 2 + head / 3) * 4..][..4]
            );
        }
        let expected = first.get_or_insert_with(|| outputs.clone());
        for (ours, expected) in outputs.iter().flatten().zip(expected.iter().flatten()) {
            assert!((ours - expected).abs() <= 1e-6, "{ours} is not {expected} on {mesh:?}");
        }
    }
}

/// What a program's text or bytes may say.
#[test]
fn documents_that_are_not_those_of_the_descriptor_are_refused() {
    let refused = |change: fn(&mut AttentionCall)| {
        let mut program = attention_program(&[]);
        assert!(program.validate().is_ok());
        let Operation::Attention(call) = &mut program.instructions[0].operation else {
            panic!("it is first")
        };
        change(call);
        assert!(program.validate().is_err());
    };
    refused(|call| call.documents = None);
    refused(|call| call.spec.documents = None);
    refused(|call| call.documents.iter_mut().for_each(|documents| documents.k.bytes -= 4));
    refused(|call| call.spec.documents.iter_mut().for_each(|documents| documents.q.sequence = 2));
    refused(|call| call.spec.documents.iter_mut().for_each(|documents| documents.q.group = 1));
}

#[test]
fn fills_write_every_element_in_its_type() {
    let mut program = empty_program(&[("dp", 2)]);
    let fills = [
        (DType::F32, -1.5, 1.5f32.to_bits() | 1 << 31),
        (DType::U32, 4_294_967_295.0, u32::MAX),
        (DType::I32, -2.0, -2i32 as u32),
        (DType::Bf16, 1.0, 0x3f80_3f80),
        (DType::F16, 1.0, 0x3c00_3c00),
        (DType::Bool, 1.0, 0x0101_0101),
    ];
    for (index, (dtype, value, _)) in fills.into_iter().enumerate() {
        let count = 4096 / dtype.bytes();
        let layout = Layout::replicated(dtype, &[("x", count)]);
        let target = output(&mut program, &format!("out{index}"), layout, 4096 * index as u64);
        program.instructions.push(at(0, Operation::Fill { target, dtype, value }));
    }
    let mut session = start(&program, Options { threads: Some(2), ..Options::default() });
    session.step(1, 0).expect("the step runs");
    for (output, (_, _, word)) in program.outputs.iter().zip(fills) {
        let bytes = session.output(output).expect("it can be read").bytes;
        assert!(bytes.chunks_exact(4).all(|chunk| chunk == word.to_le_bytes()), "{output:?}");
    }
}

#[test]
fn state_starts_with_the_same_bits_under_any_sharding() {
    let initials = [
        Initial::Constant(1.0),
        Initial::Normal { mean: 0.0, deviation: 0.02 },
        Initial::Uniform { low: -1.0, high: 1.0 },
    ];
    let mut first: Option<Vec<HostTensor>> = None;
    for mesh in MESHES {
        let mut program = empty_program(mesh);
        for (index, initial) in initials.into_iter().enumerate() {
            let mut layout = Layout::replicated(DType::F32, &[("v", 13), ("d", 6)]);
            let shards = program.mesh.ranks();
            layout.dimensions[0].padded = 13u64.next_multiple_of(shards);
            for axis in (0..mesh.len() as u32).map(AxisId) {
                layout = layout.placed(0, axis);
            }
            program.state.push(StateTensor {
                path: format!("tensor{index}"),
                role: Role::Parameter,
                names: vec![TensorName::plain(&format!("tensor{index}"))],
                layout,
                offset: 1024 * index as u64,
                initial,
            });
        }
        let copy = Layout::replicated(DType::Bf16, &[("v", 13), ("d", 6)]);
        program.state.push(StateTensor {
            path: "tensor1".into(),
            role: Role::Master,
            names: Vec::new(),
            layout: copy,
            offset: 8192,
            initial: Initial::CopyOf(StateId(1)),
        });
        let mut session = start(&program, Options::default());
        session.initialise(42).expect("the state starts");
        let state: Vec<HostTensor> =
            (0..4).map(|id| session.state(StateId(id)).expect("it can be read")).collect();
        let rounded: Vec<f32> =
            state[1].to_f32().iter().map(|&value| half::bf16::from_f32(value).to_f32()).collect();
        assert_eq!(state[3].to_f32(), rounded);
        assert_eq!(&state, first.get_or_insert_with(|| state.clone()));
    }
}

#[test]
fn an_input_that_does_not_fit_is_refused() {
    let mut program = empty_program(&[("dp", 2)]);
    let layout = Layout::replicated(DType::F32, &[("b", 4), ("d", 6)]).placed(0, AxisId(0));
    input(&mut program, "x", layout, 0);
    let mut session = start(&program, Options::default());
    let flat = HostTensor::from_f32(&[24], &[0.0; 24]);
    assert_eq!(session.set_input("x", &flat), Ok(()));
    let swapped = HostTensor::from_f32(&[6, 4], &[0.0; 24]);
    let error = session.set_input("x", &swapped).expect_err("another order").to_string();
    assert!(error.contains("[4, 6]") && error.contains("[6, 4]"), "{error}");
    let error = session.set_input("y", &flat).expect_err("no such input").to_string();
    assert!(error.contains("`y`") && error.contains('x'), "{error}");
    assert!(session.set_input("x", &HostTensor::from_u32(&[4, 6], &[0; 24])).is_err());
}

#[test]
fn each_rank_has_memory_of_its_own() {
    let mut program = empty_program(&[("dp", 2), ("tp", 4)]);
    let layout = everywhere(&program);
    let from = input(&mut program, "in", layout.clone(), 0);
    let to = output(&mut program, "out", layout, 0);
    let copy =
        Operation::Copy { source: from, target: to, rows: 1, row_bytes: 4, source_pitch: 0, target_pitch: 0 };
    program.instructions = vec![at(0, copy)];
    let mut session: Session = start(&program, Options::default());
    let numbers: Vec<f32> = (0..8).map(|rank| rank as f32).collect();
    session.set_input("in", &HostTensor::from_f32(&[8], &numbers)).expect("it fits");
    session.step(1, 0).expect("the step runs");
    assert_eq!(values(&session, "out"), numbers);
}
