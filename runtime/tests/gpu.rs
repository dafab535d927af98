//! The real driver against a library that stands in for NVIDIA's: what is called with what, and what every trouble is told as. That
//! a GPU does what the library promises is not judged here.

#![cfg(target_os = "linux")]

mod support;

use dtlc_emulator::{
    Argument, CudaDriver, DevicePointer, DriverError, Emulator, LaunchShape, ModuleImage, Stream, Swizzle,
    TensorMap,
};
use dtlc_runtime::gpu::{Gpu, Ordinal, Search};
use dtlc_runtime::program::device::*;
use dtlc_runtime::program::*;
use dtlc_runtime::session::{Options, Session};
use std::ffi::{CStr, CString, c_char};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use support::libraries::compile;
use support::*;

const PTX: &str = "
.version 9.0
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
  st.global.u64 [%rd3], %rd2;
  ret;
}
";

/// The library, which all tests of this process share, so that one has it at a time.
struct Fake {
    folder: PathBuf,
    library: libloading::Library,
    _alone: MutexGuard<'static, ()>,
}

impl Fake {
    fn new() -> Fake {
        static ALONE: Mutex<()> = Mutex::new(());
        static FOLDER: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (folder, file) = FOLDER.get_or_init(|| {
            let folder = tempfile::tempdir().expect("a folder of ours");
            // Under this name libraries are looked for by name first: so it is found even where there is a real one.
            let file = compile("cuda.rs", folder.path(), "libcuda.so.1", "libcuda.so", &[]);
            (folder, file)
        });
        // SAFETY: it is ours and does nothing when it is opened.
        let library = unsafe { libloading::Library::new(file) }.expect("it opens");
        let fake = Fake { folder: folder.path().to_owned(), library, _alone: alone };
        for (name, value) in [("version", 13_000), ("devices", 1), ("major", 9), ("minor", 0), ("init", 0)] {
            fake.set(name, value);
        }
        fake.log();
        fake
    }

    fn open(&self, ordinal: Ordinal) -> Result<Gpu, dtlc_runtime::RuntimeError> {
        Gpu::open(&Search::in_folders(vec![self.folder.clone()]), ordinal)
    }

    fn gpu(&self) -> Gpu {
        self.open(Ordinal::Exactly(0)).unwrap_or_else(|error| panic!("{error}"))
    }

    fn set(&self, name: &str, value: i64) {
        let name = CString::new(name).expect("a name");
        // SAFETY: the function is ours and of this type.
        let set = unsafe { self.library.get::<unsafe extern "C" fn(*const c_char, i64)>("fake_set") };
        // SAFETY: as above.
        unsafe { set.expect("it is there")(name.as_ptr(), value) };
    }

    /// Lets the next call of a function fail.
    fn fail(&self, function: &str, code: u32) {
        let name = CString::new(function).expect("a name");
        // SAFETY: as above.
        let fail = unsafe { self.library.get::<unsafe extern "C" fn(*const c_char, u32)>("fake_fail") };
        // SAFETY: as above.
        unsafe { fail.expect("it is there")(name.as_ptr(), code) };
    }

    /// What was called since this was asked last.
    fn log(&self) -> String {
        // SAFETY: as above; the text stays until the next call.
        let log = unsafe { self.library.get::<unsafe extern "C" fn() -> *const c_char>("fake_log") };
        // SAFETY: as above.
        unsafe { CStr::from_ptr(log.expect("it is there")()) }.to_string_lossy().into_owned()
    }
}

fn image<'a>(ptx: &'a str, cubin: &'a [u8]) -> ModuleImage<'a> {
    ModuleImage { name: "test", ptx, cubin }
}

fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no `{part}`: {text}");
    }
}

#[test]
fn a_library_that_is_missing_or_lacks_a_function_is_told() {
    let nowhere = Search::in_folders(vec!["/nowhere".into(), "/elsewhere".into()]);
    let error = Gpu::open(&nowhere, Ordinal::Exactly(0)).err().expect("there is none");
    let folder = tempfile::tempdir().expect("a folder of ours");
    compile("cuda.rs", folder.path(), "libcuda.so.1", "libother.so", &["without_error_string"]);
    assert_eq!(error.exit_status(), 3);
    has(
        &error.to_string(),
        &["libcuda.so.1 was not found; looked in:\n  /nowhere\n  /elsewhere", "580 or later", "--gpus all"],
    );
    let error = Gpu::open(&Search::in_folders(vec![folder.path().to_owned()]), Ordinal::Exactly(0));
    let error = error.err().expect("a function is missing");
    assert_eq!(error.exit_status(), 3);
    has(&error.to_string(), &["too old", "libcuda.so.1 lacks cuGetErrorString\n", "580 or later"]);
    let broken = tempfile::tempdir().expect("a folder of ours");
    std::fs::write(broken.path().join("libcuda.so.1"), "no library").expect("a file of ours");
    let error = Gpu::open(&Search::in_folders(vec![broken.path().to_owned()]), Ordinal::Exactly(0));
    has(&error.err().expect("it can't be opened").to_string(), &["the NVIDIA driver can't be loaded"]);
}

#[test]
fn a_device_that_is_missing_is_told() {
    let fake = Fake::new();
    fake.set("init", 100);
    let error = fake.open(Ordinal::Exactly(0)).err().expect("there is none");
    assert_eq!(error.exit_status(), 3);
    has(&error.to_string(), &["CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected", "libcuda.so.1"]);
    fake.set("init", 0);
    fake.set("devices", 2);
    let error = fake.open(Ordinal::OfProcess(2)).err().expect("there are two");
    has(&error.to_string(), &["GPU 2 is asked for", "shows 2", "nvidia-smi -L"]);
    assert!(fake.open(Ordinal::OfProcess(1)).expect("it is there").name().contains("GPU 1"));
    fake.set("devices", 1);
    assert!(fake.open(Ordinal::OfProcess(3)).expect("the only one").name().contains("GPU 0"));
    let error = fake.open(Ordinal::Exactly(3)).err().expect("there is one");
    has(&error.to_string(), &["GPU 3 is asked for"]);
}

#[test]
fn machine_code_comes_first_then_ptx_and_what_does_not_fit_is_told() {
    let fake = Fake::new();
    let gpu = fake.gpu();
    assert_eq!(
        (gpu.capability(), gpu.name().as_str()),
        ((9, 0), "Pretended GPU (GPU 0, driver for CUDA 13.0)")
    );
    gpu.load(&image(PTX, b"\x7fELF\x09")).expect("machine code for it");
    has(&fake.log(), &["module machine code"]);
    gpu.load(&image(PTX, b"\x7fELF\x0a")).expect("machine code for another, and PTX");
    let module = gpu.load(&image(PTX, b"")).expect("PTX alone");
    assert_eq!(gpu.kernel(module, "other"), Err(DriverError::NoSuchKernel("other".into())));
    let refused =
        |ptx: &str, cubin: &[u8]| gpu.load(&image(ptx, cubin)).expect_err("it does not fit").to_string();
    has(
        &refused(".version 9.0\n.target sm_80\nnothing", b""),
        &[
            "module `test`",
            "CUDA_ERROR_INVALID_PTX: a PTX JIT compilation failed",
            "ptxas fatal: no entry here",
        ],
    );
    has(&refused(&PTX.replace("sm_80", "sm_100"), b""), &["for sm_100 and later", "sm_90"]);
    fake.set("version", 12_090);
    let old = fake.gpu();
    for cubin in [b"".as_slice(), b"\x7fELF\x09"] {
        let error = old.load(&image(PTX, cubin)).expect_err("the driver is too old").to_string();
        has(&error, &["compiled for CUDA 13.0 and the driver is for CUDA 12.9", "580 or later"]);
    }
    old.load(&image(&PTX.replace("9.0", "8.5"), b"")).expect("older PTX");
}

#[test]
fn memory_streams_and_events_reach_the_library_as_they_are() {
    let fake = Fake::new();
    let gpu = fake.gpu();
    let stream = gpu.create_stream().expect("a stream");
    let (first, second) = (gpu.allocate(9 << 20).expect("room"), gpu.allocate(9 << 20).expect("room"));
    let bytes: Vec<u8> = (0..9 << 20).map(|at: u32| (at / 3) as u8).collect();
    gpu.copy_to_device(first, &bytes, stream).expect("it fits");
    gpu.copy_on_device(second, first, 9 << 20, stream).expect("it fits");
    gpu.fill(second.offset(5), 0xee, 3, stream).expect("it fits");
    let mut back = vec![0; 9 << 20];
    gpu.copy_to_host(&mut back, second, stream).expect("it fits");
    let mut expected = bytes;
    expected[5..8].fill(0xee);
    assert!(back == expected, "what went through pinned memory in pieces came back");
    let (from, to) = (gpu.create_event().expect("an event"), gpu.create_event().expect("an event"));
    gpu.record(from, stream).expect("it records");
    gpu.wait(Stream::DEFAULT, from).expect("it waits");
    gpu.record(to, Stream::DEFAULT).expect("it records");
    assert_eq!(gpu.elapsed_ms(from, to), Ok(1.5));
    fake.set("pending", 1);
    assert_eq!(gpu.is_reached(to), Ok(false));
    fake.set("pending", 0);
    assert_eq!(gpu.is_reached(to), Ok(true));
    let memory = gpu.memory().expect("it says");
    assert_eq!((memory.free, memory.total), (123, 1000));

    let outside = gpu.fill(second, 0, (9 << 20) + 1, stream);
    assert_eq!(outside, Err(DriverError::OutOfBounds { what: "a fill", at: second, bytes: (9 << 20) + 1 }));
    assert_eq!(gpu.free(DevicePointer(8)), Err(DriverError::NotAllocated(DevicePointer(8))));
    assert_eq!(gpu.synchronize(Stream(99)), Err(DriverError::BadHandle("stream")));
    fake.fail("cuMemAlloc_v2", 2);
    assert_eq!(gpu.allocate(77), Err(DriverError::OutOfMemory { bytes: 77, free: 123 }));
    gpu.free(first).expect("it is there");
    gpu.destroy_event(from).expect("it is there");
    gpu.destroy_stream(stream).expect("it is there");
    assert_eq!(gpu.record(to, stream), Err(DriverError::BadHandle("stream")));
    drop(gpu);
    has(&fake.log(), &["alive: \nallocated: 0 and 0 pinned"]);
}

#[test]
fn launches_are_checked_and_their_troubles_named() {
    let fake = Fake::new();
    let gpu = fake.gpu();
    let module = gpu.load(&image(PTX, b"")).expect("it loads");
    let kernel = gpu.kernel(module, "store").expect("it is there");
    let target = gpu.allocate(64).expect("room");
    let shape = LaunchShape { grid: [2, 3, 4], block: [8, 1, 1], shared_bytes: 100_000 };
    let arguments = [Argument::Pointer(target), Argument::U64(0x1122_3344_5566_7788)];
    fake.log();
    gpu.launch(kernel, shape, &arguments, Stream::DEFAULT).expect("it starts");
    let log = fake.log();
    // Grid, block and shared memory in the driver's order; the attribute is CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES.
    has(&log, &[", 8, 100000)", ", 2, 3, 4, 8, 1, 1, 100000, "]);
    gpu.launch(kernel, shape, &arguments, Stream::DEFAULT).expect("it starts");
    assert!(!fake.log().contains("cuFuncSetAttribute"), "what was allowed once stays so");
    let mut words = [0; 64];
    gpu.copy_to_host(&mut words, target, Stream::DEFAULT).expect("it is there");
    assert_eq!(words, *0x1122_3344_5566_7788_u64.to_le_bytes().repeat(8));

    for wrong in [&arguments[..1], &[Argument::Pointer(target), Argument::U32(1)]] {
        let error = gpu.launch(kernel, shape, wrong, Stream::DEFAULT).expect_err("not its arguments");
        assert!(matches!(error, DriverError::BadLaunch { .. }), "{error}");
    }
    let far = [Argument::Pointer(target.offset(8)), Argument::U64(0)];
    let error = gpu.launch(kernel, shape, &far, Stream::DEFAULT).expect_err("too far");
    assert!(matches!(error, DriverError::Crashed(_)), "{error:?}");
    has(
        &error.to_string(),
        &["launching kernel `store`", "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access"],
    );
    fake.fail("cuStreamSynchronize", 700);
    let error = gpu.synchronize(Stream::DEFAULT).expect_err("a fault that shows late");
    has(&error.to_string(), &["on stream 0, which was last given `store`", "CUDA_ERROR_ILLEGAL_ADDRESS"]);
    fake.fail("cuStreamSynchronize", 46);
    let error = gpu.synchronize(Stream::DEFAULT).expect_err("a failure without a name");
    has(&error.to_string(), &["error 46"]);
    gpu.unload(module).expect("it is there");
    let gone = gpu.launch(kernel, shape, &arguments, Stream::DEFAULT);
    assert_eq!(gone, Err(DriverError::BadHandle("kernel")));
}

#[test]
fn tensor_maps_are_the_librarys() {
    let fake = Fake::new();
    let gpu = fake.gpu();
    let map = TensorMap {
        base: DevicePointer(0x7000),
        sizes: vec![100, 60, 7],
        strides: vec![208, 208 * 64],
        box_sizes: vec![64, 32, 1],
        swizzle: Swizzle::Bytes128,
    };
    let bytes = gpu.tensor_map(&map).expect("there is such a map");
    let words: Vec<u64> =
        bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("eight"))).collect();
    // As the driver's header numbers them: bf16, over 128 bytes, read 128 bytes at once.
    assert_eq!(words, [9, 3, 2, 0x7000, 100, 60, 7, 208, 208 * 64, 64, 32, 1, 0, 0, 0, 0]);
    let odd = TensorMap { base: DevicePointer(0x7008), ..map.clone() };
    let error = gpu.tensor_map(&odd).expect_err("it begins between pieces").to_string();
    has(&error, &["a tensor map can't be made: a tensor at 0x7008, which is not a multiple of 16"]);
    fake.fail("cuTensorMapEncodeTiled", 1);
    let error = gpu.tensor_map(&map).expect_err("the library refuses").to_string();
    has(&error, &["making a map of TensorMap", "CUDA_ERROR_INVALID_VALUE"]);
    fake.set("major", 8);
    let error = fake.gpu().tensor_map(&map).expect_err("the device is too old").to_string();
    has(&error, &["older than 9.0"]);
}

/// A program of one rank whose kernel stores 10 times the step plus the seed in two places of a loop.
fn program() -> Program {
    let mut program = empty_program(&[("dp", 1)]);
    let pointer = BufferRef::new(Space::Arena, 0, 64).moved(Variable::LoopIndex(0), 64);
    let integer = Affine::constant(7)
        .plus(Variable::Step, 10)
        .plus(Variable::SeedLow, 1)
        .plus(Variable::LoopIndex(0), 1 << 32);
    let layout = Layout::replicated(DType::U32, &[("word", 32)]);
    let source = output(&mut program, "out", layout.clone(), 0);
    let target = output(&mut program, "moved", layout, 4096);
    let floats = vec![(0, DType::F32, LocationId(0))];
    let call = KernelCall { kernel: KernelId(0), pointers: vec![pointer], integers: vec![integer], floats };
    let kernel = only_kernel(&mut program, STORE_CODE, call, 8);
    let kind = CollectiveKind::Permute(Permutation { sources: vec![0] });
    let tensors = vec![CollectiveTensor { source, target, dtype: DType::F32, transfer: Transfer::whole(32) }];
    let collective = Collective { flight: FlightId(0), kind, axes: vec![AxisId(0)], tensors };
    let body = vec![at(1, kernel)];
    program.instructions = with_dones(vec![
        at(0, Operation::Loop(Loop { count: 2, order: LoopOrder::Forward, body })),
        at(2, Operation::Collective(collective)),
    ]);
    let arguments = vec![LaunchArgument::Pointer(0), LaunchArgument::Integer(0)];
    let launch = Launch { function: 0, grid: [1, 1, 1], block: [8, 1, 1], shared_bytes: 0, arguments };
    let cubins = Vec::new();
    program.device = Some(DeviceSection {
        modules: vec![DeviceModule { name: "store".into(), capability: None, ptx: PTX.into(), cubins }],
        functions: vec![DeviceFunction { name: "store".into(), module: 0 }],
        calls: vec![DeviceCall {
            work: Work::Kernel(KernelId(0)),
            scratch_bytes: 0,
            launches: vec![launch],
            alternatives: Vec::new(),
        }],
    });
    program
}

#[test]
fn a_session_runs_and_replays_its_graph_as_on_the_emulator() {
    let results = |driver: Arc<dyn CudaDriver>| {
        let mut session = Session::start_on(driver, program(), Options::default()).expect("it starts");
        let mut found = Vec::new();
        for step in 1..=4 {
            session.step(step, 100 * step).unwrap_or_else(|error| panic!("{error}"));
            let outputs = session.program().outputs.iter();
            found.extend(outputs.map(|output| session.output(output).expect("it can be read")));
        }
        found
    };
    let fake = Fake::new();
    let found = results(Arc::new(fake.gpu()));
    assert_eq!(found, results(Arc::new(Emulator::default())));
    let log = fake.log();
    let count = |function: &str| log.lines().filter(|line| line.starts_with(&format!("{function}("))).count();
    // Two launches in the first step and two that are recorded; then both are changed before each of two replays.
    assert_eq!((count("cuLaunchKernel"), count("cuGraphExecKernelNodeSetParams_v2")), (4, 4));
    assert_eq!((count("cuGraphInstantiateWithFlags"), count("cuGraphLaunch")), (1, 3));
    has(&log, &["alive: \nallocated: 0 and 0 pinned"]);
}
