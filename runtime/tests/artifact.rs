//! Program bytes: what is written reads back, and anything else is an error, never a panic.

mod support;

use dtlc_kernels::cuda::MappedTensor;
use dtlc_kernels::signature::{Accumulation, ContractionDim, Element, MatmulSpec, ScatterAddSpec, TakeSpec};
use dtlc_runtime::RuntimeError;
use dtlc_runtime::program::device::*;
use dtlc_runtime::program::text::Detail;
use dtlc_runtime::program::*;
use std::slice;
use support::*;

const HEADER_BYTES: usize = 88;

/// A state tensor of a stack, and its master copy.
fn state() -> Vec<StateTensor> {
    let tensor = StateTensor {
        path: "layers.wq".into(),
        role: Role::Optimizer("m".into()),
        names: vec![TensorName::stacked("layers.{}.wq"), TensorName::plain("layers.wq")],
        layout: Layout::replicated(DType::Bf16, &[("l", 3), ("d", 8)]).placed(1, AxisId(1)),
        offset: 64,
        initial: Initial::Normal { mean: 0.0, deviation: 0.02 },
    };
    let master = StateTensor {
        role: Role::Master,
        offset: 128,
        initial: Initial::CopyOf(StateId(0)),
        ..tensor.clone()
    };
    vec![tensor, master]
}

/// A take and a scatter-add over 4 rows and a table of 10, and the product of two 4 × 4 matrices.
fn descriptors() -> (TakeSpec, ScatterAddSpec, MatmulSpec) {
    let (tokens, vocabulary, width) = (4, 10, 8);
    let take = TakeSpec { tokens, vocabulary, width, element: Element::F32 };
    let (source, output, accumulation) = (Element::F32, Element::F32, Accumulation::Add);
    let scatter = ScatterAddSpec { tokens, vocabulary, width, source, output, accumulation };
    let dim = |a, b, c| ContractionDim { extent: 4, a, b, c };
    let dims = [dim(Some(4), None, Some(4)), dim(Some(1), Some(4), None), dim(None, Some(1), Some(1))];
    let product = MatmulSpec::contract(&dims, Element::F32, Element::F32, Element::F32).expect("a product");
    (take, scatter, product)
}

/// A program with every kind of entry.
fn rich_program() -> Program {
    let mut program = empty_program(&[("dp", 2), ("tp", 2)]);
    program.state = state();
    let ids = input(&mut program, "ids", Layout::replicated(DType::U32, &[("t", 4)]), 0);
    let rows = output(&mut program, "rows", Layout::replicated(DType::F32, &[("t", 4), ("d", 8)]), 0);
    let table = BufferRef::new(Space::State, 1024, 320).moved(Variable::LoopIndex(0), 320);
    let square = BufferRef::new(Space::Arena, 4096, 64).moved(Variable::MeshCoordinate(AxisId(0)), 64);
    let offset = Affine::constant(3).plus(Variable::MeshCoordinate(AxisId(1)), 10);
    let (take, scatter, product) = descriptors();
    program.thread_scratch_bytes = product.scratch_bytes().max(scatter.scratch_bytes()) as u64;
    let call = KernelCall {
        kernel: KernelId(0),
        pointers: vec![square.clone()],
        integers: vec![offset.clone()],
        floats: vec![(0, DType::F32, LocationId(0))],
    };
    let kernel = only_kernel(&mut program, STORE_CODE, call, 8);
    let goes_on = Epilogue {
        location: LocationId(2),
        position: 0,
        sums: Sums::Passing,
        call: KernelCall {
            kernel: KernelId(0),
            pointers: vec![square.clone()],
            integers: vec![offset.clone()],
            floats: vec![(0, DType::F32, LocationId(0))],
        },
    };
    let (from, to) = (rows.clone(), square.clone());
    let swapped = Permutation { sources: vec![1, 0] };
    let body = vec![
        at(0, kernel),
        at(
            0,
            Operation::Take {
                spec: take,
                table: table.clone(),
                ids: ids.clone(),
                output: rows.clone(),
                offset: offset.clone(),
            },
        ),
        at(0, Operation::ScatterAdd { spec: scatter, source: rows.clone(), ids, output: table, offset }),
        at(
            1,
            Operation::Matmul {
                spec: product,
                a: square.clone(),
                b: square.clone(),
                c: square.clone(),
                epilogue: Some(Box::new(goes_on)),
            },
        ),
        at(
            1,
            Operation::Copy {
                source: from,
                target: to,
                rows: 2,
                row_bytes: 8,
                source_pitch: 32,
                target_pitch: 16,
            },
        ),
        at(1, Operation::Fill { target: square, dtype: DType::F32, value: f64::NEG_INFINITY }),
        at(2, collective(&rows, CollectiveKind::AllGather, Transfer::all_gather(4, Part::even(4, 2)))),
        at(2, collective(&rows, CollectiveKind::Permute(swapped), Transfer::whole(16))),
    ];
    program.instructions =
        vec![at(0, Operation::Loop(Loop { count: 3, order: LoopOrder::Reverse, body: with_dones(body) }))];
    program.device = Some(device(&program));
    program
}

const MAP: MappedTensor =
    MappedTensor { buffer: 0, sizes: [64, 8, 1], strides: [128, 128], box_sizes: [64, 8, 1] };

/// What a device would need for the program; no code is read here.
fn device(program: &Program) -> DeviceSection {
    let launch = Launch {
        function: 1,
        grid: [3, 1, 1],
        block: [32, 4, 1],
        shared_bytes: 1024,
        arguments: vec![LaunchArgument::Pointer(0), LaunchArgument::Constant(-1)],
    };
    let mut calls = Vec::new();
    let Operation::Loop(Loop { body, .. }) = &program.instructions[0].operation else { panic!("a loop") };
    for work in body.iter().filter_map(|instruction| Work::of(slice::from_ref(instruction))) {
        calls.push(DeviceCall {
            work,
            scratch_bytes: 512,
            launches: vec![launch.clone()],
            alternatives: Vec::new(),
        });
    }
    let argument = [LaunchArgument::Integer(0), LaunchArgument::Scratch(511)];
    calls[1].launches[0].arguments.extend(argument);
    let launch = Launch { function: 2, arguments: vec![LaunchArgument::Map(MAP)], ..launch };
    calls[1].alternatives.push(Alternative { position: 0, launch });
    let function = |name: &str, module| DeviceFunction { name: name.into(), module };
    let cubins = vec![Cubin { capability: [9, 0], bytes: b"\x7fELF".to_vec() }];
    DeviceSection {
        modules: vec![
            DeviceModule {
                name: "kernels0".into(),
                capability: None,
                ptx: ".version 9.0\n\n\"}".into(),
                cubins,
            },
            DeviceModule { name: "rest".into(), capability: None, ptx: String::new(), cubins: Vec::new() },
            DeviceModule {
                name: "some".into(),
                capability: Some([9, 0]),
                ptx: String::new(),
                cubins: Vec::new(),
            },
        ],
        functions: vec![function("first", 0), function("second", 1), function("third", 2)],
        calls,
    }
}

/// A collective over the second axis.
fn collective(source: &BufferRef, kind: CollectiveKind, transfer: Transfer) -> Operation {
    let tensor = CollectiveTensor {
        source: source.clone(),
        target: BufferRef::new(Space::Arena, 8192, 256),
        dtype: DType::F32,
        transfer,
    };
    Operation::Collective(Collective {
        flight: FlightId(0),
        kind,
        axes: vec![AxisId(1)],
        tensors: vec![tensor],
    })
}

/// Puts a payload behind a header that fits it.
fn sealed(bytes: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut sealed = bytes[..HEADER_BYTES].to_vec();
    sealed[16..24].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    sealed[56..88].copy_from_slice(blake3::hash(payload).as_bytes());
    sealed.extend_from_slice(payload);
    sealed
}

#[test]
fn a_program_reads_back() {
    let program = rich_program();
    let bytes = program.to_bytes().expect("it is valid");
    assert_eq!(Program::from_bytes(&bytes), Ok(program));
}

#[test]
fn a_program_reads_back_from_its_text() {
    let program = rich_program();
    let text = program.to_text(Detail::Full).expect("it can be written");
    assert_eq!(Program::from_text(&text), Ok(program.clone()), "{text}");
    // Places in the source and machine code are no part of what a step does.
    let step = program.to_text(Detail::Step).expect("it can be written");
    assert!(!step.contains("location") && !step.contains("\"code\""), "{step}");
}

#[test]
fn a_text_with_a_fault_is_refused() {
    let text = rich_program().to_text(Detail::Full).expect("it can be written");
    for length in (0..text.trim_end().len()).step_by(7) {
        assert!(matches!(Program::from_text(&text[..length]), Err(RuntimeError::Artifact(_))), "{length}");
    }
    for (right, wrong) in
        [("\"axes\": [1]", "\"axes\": [7]"), ("\"kernel\": 0", "\"kernel\": 9"), ("    \"", "    \"x")]
    {
        let other = text.replacen(right, wrong, 1);
        assert_ne!(other, text, "{right}");
        assert!(matches!(Program::from_text(&other), Err(RuntimeError::Artifact(_))), "{wrong}");
    }
}

#[test]
fn bytes_cut_short_are_refused() {
    let bytes = rich_program().to_bytes().expect("it is valid");
    for length in 0..bytes.len() {
        assert!(matches!(Program::from_bytes(&bytes[..length]), Err(RuntimeError::Artifact(_))), "{length}");
    }
    let payload = &bytes[HEADER_BYTES..];
    for length in 0..payload.len() {
        let cut = sealed(&bytes, &payload[..length]);
        assert!(matches!(Program::from_bytes(&cut), Err(RuntimeError::Artifact(_))), "{length}");
    }
    let longer = sealed(&bytes, &[payload, &[0]].concat());
    assert!(matches!(Program::from_bytes(&longer), Err(RuntimeError::Artifact(_))));
}

#[test]
fn a_flipped_bit_is_damage() {
    let bytes = rich_program().to_bytes().expect("it is valid");
    for index in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[index] ^= 1 << (index % 8);
        assert!(matches!(Program::from_bytes(&damaged), Err(RuntimeError::Artifact(_))), "byte {index}");
    }
}

#[test]
fn a_forged_payload_is_refused_or_valid() {
    let bytes = rich_program().to_bytes().expect("it is valid");
    let payload = &bytes[HEADER_BYTES..];
    let mut random = 88_172_645_463_325_252u64;
    let mut next = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % below as u64) as usize
    };
    let mut refused = 0;
    for _ in 0..30_000 {
        let mut forged = payload.to_vec();
        for _ in 0..=next(3) {
            let index = next(forged.len());
            match next(4) {
                0 => forged[index] = next(256) as u8,
                1 => forged.insert(index, 0xff),
                2 => drop(forged.remove(index)),
                _ => forged[index] |= 0x80,
            }
        }
        match Program::from_bytes(&sealed(&bytes, &forged)) {
            // What passes is what writing accepts too.
            Ok(program) => assert!(program.validate().is_ok()),
            Err(RuntimeError::Artifact(_)) => refused += 1,
            Err(error) => panic!("another error: {error}"),
        }
    }
    assert!(refused > 15_000, "only {refused} forgeries were refused");
}

#[test]
fn loops_nested_without_end_are_refused() {
    let mut program = empty_program(&[]);
    let loop_of = |body| Operation::Loop(Loop { count: 1, order: LoopOrder::Forward, body });
    program.instructions = vec![at(0, loop_of(Vec::new()))];
    let bytes = program.to_bytes().expect("it is valid");
    let payload = &bytes[HEADER_BYTES..];
    // The last bytes are: one instruction, location 0, loop, count 1, forward, an empty body.
    assert!(payload.ends_with(&[1, 0, 0, 1, 0, 0]));
    let mut forged = payload[..payload.len() - 1].to_vec();
    for _ in 0..1_000_000 {
        forged.extend([1, 0, 0, 1, 0]);
    }
    forged.push(0);
    let error = Program::from_bytes(&sealed(&bytes, &forged)).expect_err("far too deep");
    assert!(matches!(error, RuntimeError::Artifact(_)));
    for depth in 0..12 {
        let mut nested = vec![at(0, loop_of(Vec::new()))];
        for _ in 0..depth {
            nested = vec![at(0, loop_of(nested))];
        }
        program.instructions = nested;
        assert_eq!(program.to_bytes().is_ok(), depth < 8, "depth {depth}");
    }
}

#[test]
fn another_machine_is_named_by_its_features() {
    let mut program = empty_program(&[]);
    program.cpu_features = CpuFeatures(1 << 31);
    let bytes = program.to_bytes().expect("it is valid");
    let error = Program::from_bytes(&bytes).expect_err("no machine has it").to_string();
    assert!(error.contains("does not know"), "{error}");
    let known = CpuFeatures::from_names(&["avx2", "fma"]).expect("known names");
    assert_eq!(known.missing_on(CpuFeatures(1)), ["avx2", "fma"]);
    assert!(CpuFeatures::from_names(&["avx3"]).is_err());
}

/// Checks that a change of the code for devices makes the program invalid.
fn device_refused(change: impl FnOnce(&mut DeviceSection)) {
    refused(|program| change(program.device.as_mut().expect("there is one")));
}

#[test]
fn code_for_devices_that_does_not_fit_is_refused() {
    device_refused(|device| device.functions[0].module = 3);
    device_refused(|device| device.functions[0].name = "second".into());
    device_refused(|device| drop(device.calls.remove(2)));
    device_refused(|device| device.calls[0].work = Work::Kernel(KernelId(1)));
    device_refused(|device| device.calls[0].scratch_bytes = u64::MAX);
    device_refused(|device| device.calls[1].scratch_bytes = 511);
    let launch = |change: fn(&mut Launch)| device_refused(|device| change(&mut device.calls[1].launches[0]));
    launch(|launch| launch.function = 2);
    launch(|launch| launch.function = 3);
    launch(|launch| launch.grid[0] = 0);
    launch(|launch| launch.grid[1] = 65_536);
    launch(|launch| launch.block[0] = 1024);
    launch(|launch| launch.block = [1, 1, 65]);
    launch(|launch| launch.shared_bytes = 1 << 20);
    launch(|launch| launch.arguments.push(LaunchArgument::Pointer(3)));
    launch(|launch| launch.arguments.push(LaunchArgument::Integer(1)));
    launch(|launch| launch.arguments.push(LaunchArgument::Scratch(512)));
    launch(|launch| launch.arguments = vec![LaunchArgument::Constant(0); 5000]);

    let other = |change: fn(&mut Vec<Alternative>)| {
        device_refused(|device| change(&mut device.calls[1].alternatives))
    };
    launch(|launch| launch.arguments.push(LaunchArgument::Map(MAP)));
    other(|all| all[0].position = 1);
    other(|all| all.push(all[0].clone()));
    other(|all| all[0].launch.function = 0);
    other(|all| all[0].launch.grid[0] = 0);
    other(|all| all[0].launch.arguments.push(LaunchArgument::Scratch(512)));
    let map = |change: fn(&mut MappedTensor)| {
        device_refused(|device| {
            let mut map = MAP;
            change(&mut map);
            device.calls[1].alternatives[0].launch.arguments = vec![LaunchArgument::Map(map)];
        });
    };
    map(|map| map.buffer = 3);
    map(|map| map.sizes[1] = 0);
    map(|map| map.strides[0] = 8);
    map(|map| map.box_sizes[0] = 32);
    map(|map| map.box_sizes[1] = 257);
}

/// Checks that a change makes the program invalid.
fn refused(change: impl FnOnce(&mut Program)) {
    let mut program = rich_program();
    change(&mut program);
    assert!(program.validate().is_err());
}

/// The instruction with this index in the loop of [`rich_program`].
fn instruction(program: &mut Program, index: usize) -> &mut Operation {
    let Operation::Loop(outer) = &mut program.instructions[0].operation else { panic!("a loop") };
    &mut outer.body[index].operation
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    refused(|program| program.state[0].offset = program.state_bytes - 10);
    refused(|program| program.state[0].offset = u64::MAX);
    refused(|program| program.state[0].layout.dimensions[1].padded = 9);
    refused(|program| program.state[0].layout.dimensions[0].size = 0);
    refused(|program| program.state[0].layout.placements[0].axis = AxisId(2));
    refused(|program| program.state[0].names[0].first = vec![0, 0]);
    refused(|program| program.state[0].initial = Initial::CopyOf(StateId(1)));
    refused(|program| program.state[1].initial = Initial::CopyOf(StateId(7)));
    refused(|program| program.inputs[0].offset = 1);
    refused(|program| program.outputs[0].buffer.bytes = 4);
    refused(|program| program.mesh.axes[0].size = 0);
    refused(|program| program.mesh.axes[1].name = "dp".into());
    refused(|program| program.kernels[0].code_bytes += 1);
    refused(|program| program.arena_bytes = u64::MAX);
    refused(|program| program.instructions[0].location = LocationId(3));
    refused(|program| program.thread_scratch_bytes = 0);
}

#[test]
fn operands_that_leave_their_buffers_are_refused() {
    refused(|program| {
        let Operation::Kernel(call) = instruction(program, 0) else { panic!("a kernel") };
        call.pointers[0].terms[0].stride = 1 << 20;
    });
    refused(|program| {
        let Operation::Kernel(call) = instruction(program, 0) else { panic!("a kernel") };
        call.integers[0].terms[0].variable = Variable::LoopIndex(1);
    });
    refused(|program| {
        let Operation::Take { spec, .. } = instruction(program, 1) else { panic!("a take") };
        spec.vocabulary += 1;
    });
    refused(|program| {
        let Operation::ScatterAdd { spec, .. } = instruction(program, 2) else { panic!("a scatter") };
        spec.width = usize::MAX;
    });
    refused(|program| {
        let Operation::Matmul { spec, .. } = instruction(program, 3) else { panic!("a product") };
        spec.a_row_stride = -4;
    });
    refused(|program| {
        let Operation::Matmul { spec, .. } = instruction(program, 3) else { panic!("a product") };
        spec.m = 5;
    });
    refused(|program| epilogue(program).position = 1);
    refused(|program| epilogue(program).location = LocationId(3));
    refused(|program| epilogue(program).call.integers.clear());
    refused(|program| epilogue(program).call.pointers[0].bytes -= 4);
    refused(|program| {
        let Operation::Copy { rows, .. } = instruction(program, 4) else { panic!("a copy") };
        *rows = u64::MAX;
    });
    refused(|program| {
        let Operation::Fill { target, .. } = instruction(program, 5) else { panic!("a fill") };
        target.bytes = 63;
    });
    refused(|program| {
        let Operation::Collective(collective) = instruction(program, 6) else { panic!("a collective") };
        collective.tensors[0].transfer.target.block = 200;
    });
    refused(|program| {
        let Operation::Collective(collective) = instruction(program, 6) else { panic!("a collective") };
        collective.axes = vec![AxisId(1), AxisId(1)];
    });
    refused(|program| *instruction(program, 7) = Operation::Done(FlightId(5)));
    refused(|program| *instruction(program, 9) = instruction(program, 7).clone());
    refused(|program| *instruction(program, 7) = instruction(program, 5).clone());
    refused(|program| *instruction(program, 8) = instruction(program, 6).clone());
    refused(|program| {
        let Operation::Collective(collective) = instruction(program, 8) else { panic!("a collective") };
        collective.kind = CollectiveKind::Permute(Permutation { sources: vec![1, 1] });
    });
}

/// What goes on with the product of the program.
fn epilogue(program: &mut Program) -> &mut Epilogue {
    let Operation::Matmul { epilogue, .. } = instruction(program, 3) else { panic!("a product") };
    epilogue.as_mut().expect("it has one")
}
