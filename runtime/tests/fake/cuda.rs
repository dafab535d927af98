//! A library with the functions of NVIDIA's driver that the runtime calls, which has no GPU: memory is the host's, everything is done when
//! the call returns, and the only kernel that it can run is `store`. Written from the driver's published signatures, apart from the bindings
//! that the runtime uses, so that a wrong order or size of arguments shows. Compiled by the test that opens it.
//!
//! `fake_set` changes what it says of itself, `fake_fail` makes a function fail once, `fake_log` tells what was called.

#![allow(non_snake_case)]

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard};

type Code = u32;
type Handle = *mut c_void;

/// A launch or copy that was recorded, or is done now.
#[derive(Clone)]
enum Work {
    Store { target: u64, value: u64, threads: u32 },
    Copy { to: u64, from: u64, bytes: usize },
    Fill { to: u64, value: u8, bytes: usize },
}

#[derive(Default)]
struct State {
    settings: HashMap<String, i64>,
    failures: HashMap<String, Code>,
    log: Vec<String>,
    next: usize,
    /// How often the context is in use.
    retained: usize,
    /// Every handle that is alive, and what it is.
    alive: BTreeMap<usize, String>,
    allocations: BTreeMap<u64, Vec<u64>>,
    pinned: BTreeMap<usize, Vec<u64>>,
    /// Streams that are captured, and the capture.
    captured: HashMap<usize, usize>,
    /// Events that were recorded in a capture.
    captured_events: HashMap<usize, usize>,
    recorded: HashMap<usize, Vec<(usize, Work)>>,
    /// What was recorded last, kept where whoever asks can read it.
    last_node: HashMap<usize, Box<[usize; 1]>>,
    answer: Option<CString>,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| {
    let settings = [("version", 13000), ("devices", if cfg!(two_devices) { 2 } else { 1 }), ("major", 9), ("minor", 0)];
    let settings = settings.map(|(name, value)| (name.to_owned(), value)).into();
    Mutex::new(State { settings, next: 0x1000, ..State::default() })
});

// SAFETY: the fake's memory belongs to whoever asked for it; the lock guards the rest.
unsafe impl Send for State {}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl State {
    /// Notes a call; the code with which it is to fail, if it is.
    fn call(&mut self, name: &str, arguments: &str) -> Code {
        self.log.push(format!("{name}({arguments})"));
        self.failures.remove(name).unwrap_or(0)
    }

    fn make(&mut self, kind: &str) -> Handle {
        self.next += 16;
        self.alive.insert(self.next, kind.to_owned());
        self.next as Handle
    }

    fn is(&self, handle: Handle, kind: &str) -> bool {
        self.alive.get(&(handle as usize)).is_some_and(|known| known == kind || known.starts_with(&format!("{kind} ")))
    }

    fn destroy(&mut self, handle: Handle, kind: &str) -> Code {
        if !self.is(handle, kind) {
            return 400;
        }
        self.alive.remove(&(handle as usize));
        0
    }

    fn within(&self, at: u64, bytes: usize) -> bool {
        let found = self.allocations.range(..=at).next_back();
        found.is_some_and(|(base, words)| at - base + bytes as u64 <= words.len() as u64 * 8)
    }

    /// Does work of a stream, or records it; the node is what `cuStreamGetCaptureInfo` tells then.
    fn work(&mut self, stream: Handle, work: Work) -> Code {
        if !self.is(stream, "stream") {
            return 400;
        }
        let Some(capture) = self.captured.get(&(stream as usize)).copied() else { return self.perform(&work) };
        let node = self.make("node") as usize;
        self.recorded.entry(capture).or_default().push((node, work));
        self.last_node.insert(capture, Box::new([node]));
        0
    }

    fn perform(&mut self, work: &Work) -> Code {
        let (places, bytes): (Vec<u64>, usize) = match work {
            Work::Store { target, threads, .. } => (vec![*target], *threads as usize * 8),
            Work::Copy { to, from, bytes } => (vec![*to, *from], *bytes),
            Work::Fill { to, bytes, .. } => (vec![*to], *bytes),
        };
        if !places.iter().all(|at| self.within(*at, bytes)) {
            return 700;
        }
        // SAFETY: all places lie in memory that was handed out.
        unsafe {
            match work {
                Work::Store { target, value, threads } => {
                    (0..*threads as usize).for_each(|at| (*target as *mut u64).add(at).write_unaligned(*value));
                }
                Work::Copy { to, from, bytes } => std::ptr::copy(*from as *const u8, *to as *mut u8, *bytes),
                Work::Fill { to, value, bytes } => std::ptr::write_bytes(*to as *mut u8, *value, *bytes),
            }
        }
        0
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_set(name: *const c_char, value: i64) {
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    state().settings.insert(name, value);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_fail(function: *const c_char, code: Code) {
    let name = unsafe { CStr::from_ptr(function) }.to_string_lossy().into_owned();
    state().failures.insert(name, code);
}

/// What was called since this was asked last, a line each, then `alive:` and what was not given back.
#[unsafe(no_mangle)]
pub extern "C" fn fake_log() -> *const c_char {
    let mut state = state();
    let mut lines = std::mem::take(&mut state.log);
    let nodes = |kind: &&String| kind.as_str() != "node";
    lines.push(format!("alive: {}", state.alive.values().filter(nodes).cloned().collect::<Vec<_>>().join(", ")));
    lines.push(format!("allocated: {} and {} pinned", state.allocations.len(), state.pinned.len()));
    let text = CString::new(lines.join("\n")).unwrap_or_default();
    let pointer = text.as_ptr();
    state.answer = Some(text);
    pointer
}

/// Defines a function that notes its call and fails if it is to; else its body says with what it ends.
macro_rules! fake {
    ($name:ident($($argument:ident: $ty:ty),*) $state:ident $body:block) => {
        #[unsafe(no_mangle)]
        #[allow(unused_mut, unused_variables, clippy::missing_safety_doc)]
        pub unsafe extern "C" fn $name($($argument: $ty),*) -> Code {
            let mut $state = state();
            let arguments: &[String] = &[$(format!("{:?}", $argument)),*];
            let failure = $state.call(stringify!($name), &arguments.join(", "));
            if failure != 0 {
                return failure;
            }
            #[allow(unused_unsafe)]
            unsafe { $body }
        }
    };
}

fake!(cuInit(flags: c_uint) state { state.settings.get("init").copied().unwrap_or(0) as Code });
fake!(cuDriverGetVersion(version: *mut c_int) state { *version = state.settings["version"] as c_int; 0 });
fake!(cuDeviceGetCount(count: *mut c_int) state { *count = state.settings["devices"] as c_int; 0 });
fake!(cuDeviceGet(device: *mut c_int, ordinal: c_int) state {
    if i64::from(ordinal) >= state.settings["devices"] { return 101; }
    *device = ordinal;
    0
});
fake!(cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) state {
    let text = b"Pretended GPU\0";
    if (len as usize) < text.len() { return 1; }
    std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, text.len());
    0
});
fake!(cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) state { *uuid = [device as u8 + 1; 16]; 0 });
fake!(cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: c_int) state {
    *value = match attribute { 75 => state.settings["major"], 76 => state.settings["minor"], _ => return 1 } as c_int;
    0
});
fake!(cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) state {
    let there = state.alive.iter().find(|(_, kind)| *kind == "context").map(|(handle, _)| *handle as Handle);
    *context = there.unwrap_or_else(|| state.make("context"));
    state.retained += 1;
    0
});
fake!(cuDevicePrimaryCtxRelease_v2(device: c_int) state {
    if state.retained == 0 { return 201; }
    state.retained -= 1;
    if state.retained == 0 { state.alive.retain(|_, kind| kind != "context"); }
    0
});
fake!(cuCtxSetCurrent(context: Handle) state { if state.is(context, "context") { 0 } else { 201 } });
fake!(cuMemGetInfo_v2(free: *mut usize, total: *mut usize) state { *free = 123; *total = 1000; 0 });
fake!(cuMemAlloc_v2(pointer: *mut c_ulonglong, bytes: usize) state {
    let words = vec![0x5a5a_5a5a_5a5a_5a5a_u64; bytes.div_ceil(8)];
    *pointer = words.as_ptr() as u64;
    state.allocations.insert(*pointer, words);
    0
});
fake!(cuMemFree_v2(pointer: c_ulonglong) state {
    if state.allocations.remove(&pointer).is_some() { 0 } else { 1 }
});
fake!(cuMemHostAlloc(pointer: *mut Handle, bytes: usize, flags: c_uint) state {
    let mut words = vec![0_u64; bytes.div_ceil(8)];
    *pointer = words.as_mut_ptr().cast();
    state.pinned.insert(*pointer as usize, words);
    0
});
fake!(cuMemFreeHost(pointer: Handle) state {
    if state.pinned.remove(&(pointer as usize)).is_some() { 0 } else { 1 }
});
fake!(cuMemcpyHtoDAsync_v2(to: c_ulonglong, from: *const c_void, bytes: usize, stream: Handle) state {
    if !state.within(to, bytes) || !state.pinned.contains_key(&(from as usize)) { return 1; }
    if !state.is(stream, "stream") { return 400; }
    std::ptr::copy_nonoverlapping(from.cast::<u8>(), to as *mut u8, bytes);
    0
});
fake!(cuMemcpyDtoHAsync_v2(to: Handle, from: c_ulonglong, bytes: usize, stream: Handle) state {
    if !state.within(from, bytes) || !state.pinned.contains_key(&(to as usize)) { return 1; }
    if !state.is(stream, "stream") { return 400; }
    std::ptr::copy_nonoverlapping(from as *const u8, to.cast::<u8>(), bytes);
    0
});
fake!(cuMemcpyDtoDAsync_v2(to: c_ulonglong, from: c_ulonglong, bytes: usize, stream: Handle) state {
    state.work(stream, Work::Copy { to, from, bytes })
});
fake!(cuMemsetD8Async(to: c_ulonglong, value: u8, bytes: usize, stream: Handle) state {
    state.work(stream, Work::Fill { to, value, bytes })
});
fake!(cuModuleLoadDataEx(module: *mut Handle, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut Handle) state {
    let head = std::slice::from_raw_parts(image.cast::<u8>(), 4);
    if head == b"\x7fELF" {
        // Machine code says in its fifth byte what it is for.
        if i64::from(*image.cast::<u8>().add(4)) != state.settings["major"] { return 209; }
        *module = state.make("module machine code");
        return 0;
    }
    let text = CStr::from_ptr(image.cast()).to_string_lossy().into_owned();
    if text.contains(".entry") {
        *module = state.make(&format!("module {text}"));
        return 0;
    }
    for at in 0..count as usize {
        // The buffer for errors is option 5, its size option 6.
        if *options.add(at) == 5 {
            let log = b"ptxas fatal: no entry here\0";
            std::ptr::copy_nonoverlapping(log.as_ptr(), (*values.add(at)).cast(), log.len());
        }
    }
    218
});
fake!(cuModuleUnload(module: Handle) state { state.destroy(module, "module") });
fake!(cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) state {
    if !state.is(module, "module") { return 400; }
    if CStr::from_ptr(name) != c"store" { return 500; }
    *function = state.make("function");
    // A function goes with its module.
    let function = *function as usize;
    state.alive.remove(&function);
    0
});
fake!(cuFuncGetParamInfo(function: Handle, index: usize, offset: *mut usize, size: *mut usize) state {
    if index >= 2 { return 1; }
    (*offset, *size) = (index * 8, 8);
    0
});
fake!(cuFuncSetAttribute(function: Handle, attribute: c_uint, value: c_int) state {
    if attribute == 8 && value <= 227 << 10 { 0 } else { 1 }
});
fake!(cuLaunchKernel(
    function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
    stream: Handle, parameters: *mut *mut c_void, extra: *mut *mut c_void
) state {
    if gx * gy * gz == 0 || bx * by * bz == 0 || !extra.is_null() { return 1; }
    let argument = |at: usize| (*parameters.add(at)).cast::<u64>().read();
    state.work(stream, Work::Store { target: argument(0), value: argument(1), threads: bx })
});
// What stands for a map: its type, how boxes lie, the tensor and a box of it.
fake!(cuTensorMapEncodeTiled(
    map: *mut [u64; 16], ty: c_uint, rank: c_uint, base: *mut c_void, sizes: *const u64, strides: *const u64,
    boxes: *const u32, steps: *const u32, interleave: c_uint, swizzle: c_uint, promotion: c_uint, fill: c_uint
) state {
    if map as usize % 64 != 0 || interleave != 0 || fill != 0 { return 1; }
    let rank = rank as usize;
    if (0..rank).any(|axis| *steps.add(axis) != 1) { return 1; }
    let mut words = vec![u64::from(ty), u64::from(swizzle), u64::from(promotion), base as u64];
    words.extend((0..rank).map(|axis| *sizes.add(axis)));
    words.extend((0..rank - 1).map(|axis| *strides.add(axis)));
    words.extend((0..rank).map(|axis| u64::from(*boxes.add(axis))));
    words.resize(16, 0);
    (*map).copy_from_slice(&words);
    0
});
fake!(cuStreamCreate(stream: *mut Handle, flags: c_uint) state {
    if flags != 1 { return 1; }
    *stream = state.make("stream");
    0
});
fake!(cuStreamDestroy_v2(stream: Handle) state { state.destroy(stream, "stream") });
fake!(cuStreamSynchronize(stream: Handle) state {
    if state.captured.contains_key(&(stream as usize)) { return 900; }
    if state.is(stream, "stream") { 0 } else { 400 }
});
fake!(cuEventCreate(event: *mut Handle, flags: c_uint) state { *event = state.make("event"); 0 });
fake!(cuEventDestroy_v2(event: Handle) state { state.destroy(event, "event") });
fake!(cuEventRecord(event: Handle, stream: Handle) state {
    if !state.is(event, "event") || !state.is(stream, "stream") { return 400; }
    match state.captured.get(&(stream as usize)).copied() {
        Some(capture) => state.captured_events.insert(event as usize, capture),
        None => state.captured_events.remove(&(event as usize)),
    };
    0
});
fake!(cuEventSynchronize(event: Handle) state { if state.is(event, "event") { 0 } else { 400 } });
fake!(cuEventQuery(event: Handle) state {
    if !state.is(event, "event") { return 400; }
    if state.settings.get("pending").copied().unwrap_or(0) == 1 { 600 } else { 0 }
});
fake!(cuEventElapsedTime_v2(time: *mut f32, from: Handle, to: Handle) state {
    if !state.is(from, "event") || !state.is(to, "event") { return 400; }
    *time = 1.5;
    0
});
fake!(cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) state {
    if !state.is(event, "event") || !state.is(stream, "stream") || flags != 0 { return 400; }
    if let Some(capture) = state.captured_events.get(&(event as usize)).copied() {
        state.captured.insert(stream as usize, capture);
    }
    0
});
fake!(cuStreamBeginCapture_v2(stream: Handle, mode: c_uint) state {
    if mode != 1 || state.captured.contains_key(&(stream as usize)) { return 900; }
    let capture = state.make("capture") as usize;
    state.captured.insert(stream as usize, capture);
    0
});
fake!(cuStreamGetCaptureInfo_v3(
    stream: Handle, status: *mut c_uint, id: *mut c_ulonglong, graph: *mut Handle, nodes: *mut *const usize,
    edges: *mut *const c_void, count: *mut usize
) state {
    let capture = state.captured.get(&(stream as usize)).copied();
    *status = u32::from(capture.is_some());
    if let Some(capture) = capture {
        *id = capture as c_ulonglong;
        *count = usize::from(state.last_node.contains_key(&capture));
        *nodes = state.last_node.get(&capture).map_or(std::ptr::null(), |node| node.as_ptr());
    }
    0
});
fake!(cuStreamEndCapture(stream: Handle, graph: *mut Handle) state {
    let Some(capture) = state.captured.get(&(stream as usize)).copied() else { return 901 };
    state.captured.retain(|_, of| *of != capture);
    state.captured_events.retain(|_, of| *of != capture);
    state.alive.remove(&capture);
    *graph = state.make("graph");
    let works = state.recorded.remove(&capture).unwrap_or_default();
    state.recorded.insert(*graph as usize, works);
    0
});
fake!(cuGraphInstantiateWithFlags(executable: *mut Handle, graph: Handle, flags: c_ulonglong) state {
    if !state.is(graph, "graph") { return 400; }
    *executable = state.make("executable");
    let works = state.recorded.get(&(graph as usize)).cloned().unwrap_or_default();
    state.recorded.insert(*executable as usize, works);
    0
});
fake!(cuGraphLaunch(executable: Handle, stream: Handle) state {
    if !state.is(executable, "executable") || !state.is(stream, "stream") { return 400; }
    let works = state.recorded.get(&(executable as usize)).cloned().unwrap_or_default();
    works.iter().map(|(_, work)| state.perform(work)).find(|code| *code != 0).unwrap_or(0)
});
fake!(cuGraphDestroy(graph: Handle) state { state.destroy(graph, "graph") });
fake!(cuGraphExecDestroy(executable: Handle) state { state.destroy(executable, "executable") });

/// As the driver's header has it.
#[repr(C)]
pub struct KernelNodeParams {
    function: Handle,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
    kernel: Handle,
    context: Handle,
}

fake!(cuGraphExecKernelNodeSetParams_v2(executable: Handle, node: Handle, params: *const KernelNodeParams) state {
    let params = &*params;
    if !params.extra.is_null() || !params.kernel.is_null() || !params.context.is_null() { return 1; }
    let argument = |at: usize| (*params.parameters.add(at)).cast::<u64>().read();
    let new = Work::Store { target: argument(0), value: argument(1), threads: params.block[0] };
    let works = state.recorded.entry(executable as usize).or_default();
    match works.iter_mut().find(|(known, _)| *known == node as usize) {
        Some((_, work @ Work::Store { .. })) => { *work = new; 0 }
        Some((_, Work::Copy { .. } | Work::Fill { .. })) | None => 1,
    }
});

/// Names and meanings of a few failures.
const FAILURES: [(Code, &CStr, &CStr); 4] = [
    (1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
    (218, c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
    (700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
];

fake!(cuGetErrorName(code: Code, text: *mut *const c_char) state {
    let Some((_, name, _)) = FAILURES.iter().find(|(known, ..)| *known == code) else { return 1 };
    *text = name.as_ptr();
    0
});
#[cfg(not(without_error_string))]
fake!(cuGetErrorString(code: Code, text: *mut *const c_char) state {
    let Some((.., meaning)) = FAILURES.iter().find(|(known, ..)| *known == code) else { return 1 };
    *text = meaning.as_ptr();
    0
});
