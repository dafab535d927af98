//! Hand-built programs on an emulated device: what kernels get, and how faults are told. PTX is written out, so no compiler
//! is needed; programs that are compiled for devices are judged in the workspace's tests.

#![cfg(target_arch = "x86_64")]

mod support;

use dtlc_emulator::{Emulator, EmulatorOptions};
use dtlc_kernels::cuda::MappedTensor;
use dtlc_runtime::RuntimeError;
use dtlc_runtime::program::device::*;
use dtlc_runtime::program::*;
use dtlc_runtime::session::{ArenaStart, Graphs, Options, Session, Watch};
use dtlc_runtime::tensor::HostTensor;
use std::sync::Arc;
use std::time::Duration;
use support::*;

/// Stores its second argument to the 8-byte element of its first that the thread's number says, plus `{skip}` bytes.
const STORE: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry store(.param .u64 target, .param .u64 value) {
  .reg .b64 %rd<4>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [target];
  ld.param.u64 %rd2, [value];
  cvta.to.global.u64 %rd1, %rd1;
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd3, %r1, 8;
  add.s64 %rd3, %rd1, %rd3;
  st.global.u64 [%rd3+{skip}], %rd2;
  ret;
}
";

/// A program of one kernel that stores `integer` to 8 elements of 8 bytes at `pointer`, `skip` bytes too far on a device.
fn storing(mesh: &[(&str, u32)], pointer: BufferRef, integer: Affine, skip: u64) -> (Program, Operation) {
    let mut program = empty_program(mesh);
    let floats = vec![(0, DType::F32, LocationId(1))];
    let call = KernelCall { kernel: KernelId(0), pointers: vec![pointer], integers: vec![integer], floats };
    let kernel = only_kernel(&mut program, STORE_CODE, call, 8);
    let ptx = STORE.replace("{skip}", &skip.to_string());
    let launch = Launch {
        function: 0,
        grid: [1, 1, 1],
        block: [8, 1, 1],
        shared_bytes: 0,
        arguments: vec![LaunchArgument::Pointer(0), LaunchArgument::Integer(0)],
    };
    let work = Work::Kernel(KernelId(0));
    program.device = Some(DeviceSection {
        modules: vec![DeviceModule { name: "store".into(), capability: None, ptx, cubins: Vec::new() }],
        functions: vec![DeviceFunction { name: "store".into(), module: 0 }],
        calls: vec![DeviceCall { work, scratch_bytes: 0, launches: vec![launch], alternatives: Vec::new() }],
    });
    (program, kernel)
}

fn on_device(program: &Program, options: Options) -> Result<Session, RuntimeError> {
    Session::start_on(Arc::new(Emulator::default()), program.clone(), options)
}

/// A layout of a shard of `words` integers on each rank.
fn words_of_ranks(program: &Program, words: u64) -> Layout {
    let axes = 0..program.mesh.axes.len() as u32;
    let layout = Layout::replicated(DType::U32, &[("rank", program.mesh.ranks()), ("word", words)]);
    axes.map(AxisId).fold(layout, |layout, axis| layout.placed(0, axis))
}

#[test]
fn kernels_get_the_same_addresses_and_integers_as_on_the_cpu() {
    let pointer = BufferRef::new(Space::Arena, 0, 64).moved(Variable::LoopIndex(0), 64);
    let integer = Affine::constant(7)
        .plus(Variable::Step, 10)
        .plus(Variable::SeedHigh, 100)
        .plus(Variable::LoopIndex(0), 1000)
        .plus(Variable::MeshCoordinate(AxisId(0)), 10_000);
    let (mut program, kernel) = storing(&[("dp", 3)], pointer, integer, 0);
    let layout = words_of_ranks(&program, 96);
    let written = output(&mut program, "out", layout.clone(), 0);
    let copied = output(&mut program, "copied", layout.clone(), 4096);
    let given = input(&mut program, "given", layout.clone(), 512);
    output(&mut program, "given", layout, 8192);
    let copy = |source: &BufferRef, offset| {
        let target = BufferRef { space: Space::Arena, offset, ..source.clone() };
        let (row_bytes, source) = (source.bytes, source.clone());
        let (source_pitch, target_pitch) = (row_bytes, row_bytes);
        at(0, Operation::Copy { source, target, rows: 1, row_bytes, source_pitch, target_pitch })
    };
    let body = vec![at(1, kernel)];
    program.instructions = vec![
        at(0, Operation::Fill { target: written.clone(), dtype: DType::I32, value: -1.0 }),
        at(0, Operation::Loop(Loop { count: 5, order: LoopOrder::Reverse, body })),
        copy(&written, copied.offset),
        copy(&given, 8192),
    ];
    let results = |mut session: Session| -> Vec<HostTensor> {
        let numbers: Vec<u32> = (0..3 * 96).collect();
        session.set_input("given", &HostTensor::from_u32(&[3, 96], &numbers)).expect("it fits");
        session.step(2, 3 << 32).expect("the step runs");
        let outputs = session.program().outputs.iter();
        outputs.map(|output| session.output(output).expect("it can be read")).collect()
    };
    let options = Options { arena: ArenaStart::Poisoned, ..Options::default() };
    let expected = results(start(&program, options));
    let found = results(on_device(&program, options).expect("it starts"));
    assert_eq!(expected, found);
}

/// A program of one rank whose kernel takes the step, the seed and a loop's index, with a collective of its own.
fn changing() -> Program {
    let pointer = BufferRef::new(Space::Arena, 0, 64).moved(Variable::LoopIndex(0), 64);
    let integer = Affine::constant(7)
        .plus(Variable::Step, 10)
        .plus(Variable::SeedLow, 100_000)
        .plus(Variable::LoopIndex(0), 1000);
    let (mut program, kernel) = storing(&[("dp", 1)], pointer, integer, 0);
    let layout = words_of_ranks(&program, 48);
    let source = output(&mut program, "out", layout.clone(), 0);
    let target = output(&mut program, "moved", layout, 4096);
    let kind = CollectiveKind::Permute(Permutation { sources: vec![0] });
    let tensors = vec![CollectiveTensor { source, target, dtype: DType::F32, transfer: Transfer::whole(48) }];
    let collective = Collective { flight: FlightId(0), kind, axes: vec![AxisId(0)], tensors };
    let body = vec![at(1, kernel)];
    program.instructions = with_dones(vec![
        at(0, Operation::Loop(Loop { count: 3, order: LoopOrder::Forward, body })),
        at(2, Operation::Collective(collective)),
    ]);
    program
}

#[test]
fn a_step_as_a_graph_gives_the_same_bits() {
    let program = changing();
    let results = |graphs: Graphs| {
        let device = Arc::new(Emulator::default());
        let options = Options { graphs, ..Options::default() };
        let mut session = Session::start_on(device.clone(), program.clone(), options).expect("it starts");
        let mut found = Vec::new();
        for step in 1..=5 {
            session.step(step, 40 + step).expect("the step runs");
            let outputs = session.program().outputs.iter();
            found.extend(outputs.map(|output| session.output(output).expect("it can be read")));
        }
        (found, device.graph_launches())
    };
    let (expected, none) = results(Graphs::Never);
    let (found, graphs) = results(Graphs::Record);
    assert_eq!(expected, found);
    assert_eq!((none, graphs), (0, 4), "all steps but the first are one graph");
    let distinct: std::collections::BTreeSet<_> =
        expected.iter().map(|tensor| tensor.bytes.clone()).collect();
    assert_eq!(distinct.len(), 5, "each step computes something else");
}

/// As [`STORE`], to which a thousand is added, for devices of 9.0, with a map that it does not use.
const STORE_IN_BULK: &str = "
.version 8.0
.target sm_90a
.address_size 64
.visible .entry store_in_bulk(.param .align 64 .b8 map[128], .param .u64 target, .param .u64 value) {
  .reg .b64 %rd<4>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [target];
  ld.param.u64 %rd2, [value];
  add.s64 %rd2, %rd2, 1000;
  cvta.to.global.u64 %rd1, %rd1;
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd3, %r1, 8;
  add.s64 %rd3, %rd1, %rd3;
  st.global.u64 [%rd3], %rd2;
  ret;
}
";

#[test]
fn an_alternative_runs_on_its_devices_where_its_maps_can_be_made() {
    // Two of three places begin at multiples of 16 bytes.
    let pointer = BufferRef::new(Space::Arena, 0, 64).moved(Variable::LoopIndex(0), 72);
    let integer = Affine::constant(7).plus(Variable::Step, 10).plus(Variable::LoopIndex(0), 100);
    let (mut program, kernel) = storing(&[], pointer, integer, 0);
    output(&mut program, "out", Layout::replicated(DType::U32, &[("word", 54)]), 0);
    let body = vec![at(1, kernel)];
    program.instructions = vec![at(0, Operation::Loop(Loop { count: 3, order: LoopOrder::Forward, body }))];
    let section = program.device.as_mut().expect("there is code");
    section.modules.push(DeviceModule {
        name: "bulk".into(),
        capability: Some([9, 0]),
        ptx: STORE_IN_BULK.into(),
        cubins: Vec::new(),
    });
    section.functions.push(DeviceFunction { name: "store_in_bulk".into(), module: 1 });
    let map = MappedTensor { buffer: 0, sizes: [64, 8, 1], strides: [128, 128], box_sizes: [64, 8, 1] };
    let mut launch = Launch { function: 1, ..section.calls[0].launches[0].clone() };
    launch.arguments.insert(0, LaunchArgument::Map(map));
    section.calls[0].alternatives.push(Alternative { position: 0, launch });
    let stored = |capability, graphs| -> Vec<Vec<u32>> {
        let device = Arc::new(Emulator::new(EmulatorOptions { capability, ..EmulatorOptions::default() }));
        let options = Options { graphs, arena: ArenaStart::Poisoned, ..Options::default() };
        let mut session = Session::start_on(device, program.clone(), options).expect("it starts");
        let steps = (1..=4).map(|step| {
            session.step(step, 0).expect("the step runs");
            let words = session.output(&program.outputs[0]).expect("it can be read");
            [0, 18, 36]
                .map(|word| u32::from_le_bytes(words.bytes[4 * word..][..4].try_into().expect("four")))
                .to_vec()
        });
        steps.collect()
    };
    let expected = |more: u32| {
        let of_step = |step: u32| vec![7 + 10 * step + more, 107 + 10 * step, 207 + 10 * step + more];
        (1..=4).map(of_step).collect::<Vec<_>>()
    };
    for graphs in [Graphs::Never, Graphs::Record] {
        assert_eq!(stored((8, 0), graphs), expected(0));
        assert_eq!(stored((9, 0), graphs), expected(1000));
        assert_eq!(stored((10, 0), graphs), expected(0));
    }
}

#[test]
fn a_fault_in_a_graph_names_rank_and_kernel() {
    // The kernel stores where its integer says: within the arena in three steps, and behind it in the fourth.
    let pointer = BufferRef::new(Space::Arena, 0, 64);
    let (mut program, kernel) =
        storing(&[], pointer, Affine::constant(-8192 * 3).plus(Variable::Step, 8192 * 3), 0);
    let device = program.device.as_mut().expect("there is code");
    device.modules[0].ptx =
        STORE.replace("{skip}", "0").replace("st.global", "add.s64 %rd3, %rd3, %rd2;\n  st.global");
    program.instructions = vec![at(1, kernel)];
    let mut session = on_device(&program, Options::default()).expect("it starts");
    for step in 1..=3 {
        session.step(step, 0).expect("it stores within the arena");
    }
    let error = session.step(4, 0).expect_err("it stores too far").to_string();
    for part in ["rank 0", "kernel `store`", "PTX line 15", "out of bounds"] {
        assert!(error.contains(part), "no `{part}`: {error}");
    }
}

#[test]
fn state_lives_on_a_device_from_step_to_step() {
    let pointer = BufferRef::new(Space::State, 64, 64);
    let (mut program, kernel) = storing(&[("dp", 2)], pointer, Affine::default().plus(Variable::Step, 1), 0);
    let names = vec![TensorName::plain("kept")];
    let layout = words_of_ranks(&program, 32);
    let (role, initial) = (Role::Parameter, Initial::Constant(5.0));
    program.state = vec![StateTensor { path: "kept".into(), role, names, layout, offset: 0, initial }];
    program.instructions = vec![at(0, kernel)];
    let mut session = on_device(&program, Options::default()).expect("it starts");
    let state = |session: &Session| session.state(StateId(0)).expect("it can be read").to_f32();
    assert_eq!(state(&session), [0.0; 64]);
    session.initialise(1).expect("it starts");
    assert_eq!(state(&session), [5.0; 64]);
    session.step(9, 0).expect("the step runs");
    let words = state(&session);
    assert_eq!((words[15], words[16], words[17], words[31], words[48]), (5.0, 9.0, 0.0, 0.0, 9.0));
    session.set_state(StateId(0), &HostTensor::from_u32(&[2, 32], &[3; 64])).expect("it fits");
    assert_eq!(state(&session), [3.0; 64]);
}

#[test]
fn a_fault_in_a_kernel_names_rank_place_kernel_and_line() {
    let pointer = BufferRef::new(Space::Arena, (1 << 16) - 64, 64);
    let far = Affine::default();
    let (mut program, kernel) = storing(&[("dp", 2)], pointer, far, 16);
    program.instructions = vec![at(1, kernel)];
    let mut session = on_device(&program, Options::default()).expect("it starts");
    let error = session.step(1, 0).expect_err("it stores too far");
    let text = error.to_string();
    assert!(matches!(error, RuntimeError::Bug(_)), "{text}");
    for part in
        ["rank ", "(dp ", "at test.dtl:7:3 (second)", "kernel `store`", "thread (6, 0, 0)", "PTX line 14"]
    {
        assert!(text.contains(part), "no `{part}`: {text}");
    }
    assert_eq!(session.step(2, 0), Err(error), "no further step");
}

#[test]
fn what_nothing_has_written_cannot_be_read() {
    let pointer = BufferRef::new(Space::Arena, 0, 64);
    let (mut program, kernel) = storing(&[], pointer, Affine::constant(1), 0);
    let layout = Layout::replicated(DType::U32, &[("word", 32)]);
    output(&mut program, "out", layout, 0);
    program.instructions = vec![at(0, kernel)];
    let mut session = on_device(&program, Options::default()).expect("it starts");
    session.step(1, 0).expect("the step runs");
    let error = session.output(&program.outputs[0]).expect_err("half of it was never written").to_string();
    assert!(error.contains("which nothing has written"), "{error}");
}

#[test]
fn values_that_are_not_finite_are_found_on_a_device() {
    let pointer = BufferRef::new(Space::Arena, 0, 64);
    let nan = Affine::constant(0x3f80_0000).plus(Variable::MeshCoordinate(AxisId(0)), 0x7fc0_0000 << 32);
    let (mut program, kernel) = storing(&[("dp", 2)], pointer, nan, 0);
    program.instructions = vec![at(1, kernel)];
    let watch = Watch { finite: true, ..Watch::default() };
    let mut session = on_device(&program, Options { watch, ..Options::default() }).expect("it starts");
    let error = session.step(5, 0).expect_err("a NaN").to_string();
    assert!(
        error.contains("step 5: rank 1 (dp 1) computes NaN at test.dtl:7:3 (second) (element 1"),
        "{error}"
    );
}

#[test]
fn a_rank_that_stays_away_is_named_on_a_device_too() {
    let pointer = BufferRef::new(Space::Arena, 0, 64);
    let (mut program, kernel) = storing(&[("dp", 2)], pointer.clone(), Affine::constant(1), 0);
    let (transfer, dtype) = (Transfer::whole(16), DType::F32);
    let target = BufferRef { offset: 64, ..pointer.clone() };
    let tensors = vec![CollectiveTensor { source: pointer, target, dtype, transfer }];
    let kind = CollectiveKind::Permute(Permutation { sources: vec![1, 0] });
    let collective = Collective { flight: FlightId(0), kind, axes: vec![AxisId(0)], tensors };
    program.instructions = with_dones(vec![at(0, kernel), at(1, Operation::Collective(collective))]);
    let mut session = on_device(&program, Options::default()).expect("it starts");
    session.step(1, 0).expect("both come");
    let stall = |rank, location: LocationId| {
        if rank == 1 && location.0 == 0 {
            loop {
                std::thread::park();
            }
        }
    };
    let watch = Watch { probe: Some(stall), ..Watch::default() };
    let options = Options { watch, timeout: Duration::from_millis(150), ..Options::default() };
    let mut session = on_device(&program, options).expect("it starts");
    let error = session.step(1, 0).expect_err("a rank stalls");
    assert_eq!(error.exit_status(), 3);
    let text = error.to_string();
    assert!(text.contains("rank 1 (dp 1) did not arrive at test.dtl:7:3 (second)"), "{text}");
}

#[test]
fn what_a_device_cannot_hold_or_was_not_compiled_for_it_is_refused() {
    let (program, _) = storing(&[("dp", 2)], BufferRef::new(Space::Arena, 0, 64), Affine::default(), 0);
    let memory_bytes = 2 * program.device_bytes() - 1;
    let small = Emulator::new(EmulatorOptions { memory_bytes, ..EmulatorOptions::default() });
    let error = Session::start_on(Arc::new(small), program.clone(), Options::default());
    let error = error.err().expect("there is no room");
    assert_eq!(error.exit_status(), 3, "{error}");
    assert!(error.to_string().contains("bytes of device memory are asked for"), "{error}");

    let broken = Program { device: program.device.clone().map(without_code), ..program.clone() };
    let error = on_device(&broken, Options::default()).err().expect("the PTX can't be read").to_string();
    assert!(error.contains("module `store` can't be loaded"), "{error}");
    let none = Program { device: None, ..program };
    let error = on_device(&none, Options::default()).err().expect("there is no code");
    assert!(error.to_string().contains("without code for devices"), "{error}");
}

fn without_code(mut section: DeviceSection) -> DeviceSection {
    section.modules[0].ptx = "nothing".into();
    section
}
