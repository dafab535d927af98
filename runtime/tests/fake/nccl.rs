//! A library with the functions of NCCL that the runtime calls, for ranks that are threads of one process and whose GPUs' memory is the
//! host's. A collective is done when its last member has asked for it. Written from NCCL's published signatures, apart from the bindings
//! that the runtime uses. Compiled by the test that opens it.

#![allow(non_snake_case)]

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard};

type Code = u32;
type Handle = *mut Member;

/// A rank's place in a group.
pub struct Member {
    group: String,
    rank: usize,
    ranks: usize,
    /// Collectives and splits asked for so far.
    asked: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId {
    internal: [c_char; 128],
}

/// The head of NCCL's configuration, which has been the same in all versions.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

#[derive(Clone, PartialEq, Debug)]
enum Kind {
    AllReduce { elements: usize, dtype: c_uint, max: bool },
    AllGather { bytes: usize },
    ReduceScatter { elements: usize, dtype: c_uint, max: bool },
    Messages,
}

/// What a member asked for; messages are peer, address, bytes.
#[derive(Clone)]
struct Asked {
    kind: Kind,
    source: usize,
    target: usize,
    sends: Vec<(usize, usize, usize)>,
    receives: Vec<(usize, usize, usize)>,
}

#[derive(Default)]
struct State {
    ids: u64,
    /// What the members of a group have asked for, by its number.
    asked: HashMap<(String, usize), HashMap<usize, Asked>>,
    /// Groups of which a member has left, or that disagree.
    broken: HashMap<String, Code>,
    /// Who has joined, so that a start is under way until all have.
    joined: HashMap<String, usize>,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

thread_local! {
    /// The messages of the call that is being put together on this thread.
    static MESSAGES: std::cell::RefCell<Option<(Handle, Asked)>> = const { std::cell::RefCell::new(None) };
}

const SUCCESS: Code = 0;
const INVALID_ARGUMENT: Code = 4;
const REMOTE: Code = 6;
const IN_PROGRESS: Code = 7;

fn bytes_of(dtype: c_uint) -> usize {
    match dtype {
        0 | 1 => 1,
        6 | 9 => 2,
        4 | 5 | 8 => 8,
        _ => 4,
    }
}

/// Reduces floats or integers of 32 bits from all sources.
unsafe fn reduce(sources: &[usize], target: usize, elements: usize, dtype: c_uint, max: bool) {
    for at in 0..elements {
        unsafe {
            if dtype == 7 {
                let values = sources.iter().map(|source| (*source as *const f32).add(at).read_unaligned());
                let value = if max { values.fold(f32::NEG_INFINITY, f32::max) } else { values.sum() };
                (target as *mut f32).add(at).write_unaligned(value);
            } else {
                let values = sources.iter().map(|source| (*source as *const u32).add(at).read_unaligned());
                let value = if max { values.max().unwrap_or(0) } else { values.sum() };
                (target as *mut u32).add(at).write_unaligned(value);
            }
        }
    }
}

/// Does what all members have asked for.
unsafe fn perform(all: &HashMap<usize, Asked>) -> Code {
    let ranks = all.len();
    if (1..ranks).any(|rank| all[&rank].kind != all[&0].kind) {
        return INVALID_ARGUMENT;
    }
    let sources: Vec<usize> = (0..ranks).map(|rank| all[&rank].source).collect();
    unsafe {
        match all[&0].kind {
            Kind::AllReduce { elements, dtype, max } => {
                let bytes = elements * bytes_of(dtype);
                let mut result = vec![0_u8; bytes];
                reduce(&sources, result.as_mut_ptr() as usize, elements, dtype, max);
                all.values().for_each(|one| std::ptr::copy(result.as_ptr(), one.target as *mut u8, bytes));
            }
            Kind::ReduceScatter { elements, dtype, max } => {
                for (rank, one) in all {
                    let block = rank * elements * bytes_of(dtype);
                    let blocks: Vec<usize> = sources.iter().map(|source| source + block).collect();
                    reduce(&blocks, one.target, elements, dtype, max);
                }
            }
            Kind::AllGather { bytes } => {
                for one in all.values() {
                    for (rank, source) in sources.iter().enumerate() {
                        std::ptr::copy(*source as *const u8, (one.target + rank * bytes) as *mut u8, bytes);
                    }
                }
            }
            Kind::Messages => {
                for (rank, one) in all {
                    for (peer, target, bytes) in &one.receives {
                        let sent = all[peer].sends.iter().find(|(to, _, sent)| to == rank && sent == bytes);
                        let Some((_, source, _)) = sent else { return INVALID_ARGUMENT };
                        std::ptr::copy(*source as *const u8, *target as *mut u8, *bytes);
                    }
                }
            }
        }
    }
    SUCCESS
}

unsafe fn ask(comm: Handle, asked: Asked) -> Code {
    let member = unsafe { &mut *comm };
    let mut state = state();
    let key = (member.group.clone(), member.asked);
    member.asked += 1;
    let all = state.asked.entry(key.clone()).or_default();
    all.insert(member.rank, asked);
    if all.len() < member.ranks {
        return SUCCESS;
    }
    let all = state.asked.remove(&key).unwrap_or_default();
    let code = unsafe { perform(&all) };
    if code != SUCCESS {
        state.broken.insert(member.group.clone(), code);
    }
    SUCCESS
}

fn one(kind: Kind, source: *const c_void, target: *mut c_void) -> Asked {
    Asked { kind, source: source as usize, target: target as usize, sends: Vec::new(), receives: Vec::new() }
}

fn is_good(config: *mut Config) -> bool {
    let config = unsafe { &*config };
    config.magic == 0xcafe_beef && config.blocking == 0 && config.size >= size_of::<Config>()
}

fn join(group: String, rank: usize, ranks: usize) -> Handle {
    *state().joined.entry(group.clone()).or_default() += 1;
    Box::into_raw(Box::new(Member { group, rank, ranks, asked: 0 }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> Code {
    unsafe { *version = 22_800 };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> Code {
    let mut state = state();
    state.ids += 1;
    let mut internal = [0; 128];
    internal[127] = state.ids as c_char;
    unsafe { *id = UniqueId { internal } };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut Handle,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
    config: *mut Config,
) -> Code {
    if !is_good(config) || rank >= ranks {
        return INVALID_ARGUMENT;
    }
    unsafe { *comm = join(format!("world {}", id.internal[127]), rank as usize, ranks as usize) };
    IN_PROGRESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommSplit(
    comm: Handle,
    color: c_int,
    key: c_int,
    new: *mut Handle,
    config: *mut Config,
) -> Code {
    if !is_good(config) {
        return INVALID_ARGUMENT;
    }
    let member = unsafe { &mut *comm };
    let group = format!("{} split {} color {color}", member.group, member.asked);
    member.asked += 1;
    // The test's groups have two members each.
    unsafe { *new = join(group, key as usize, 2) };
    IN_PROGRESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(comm: Handle, code: *mut Code) -> Code {
    let member = unsafe { &*comm };
    let state = state();
    let is_whole = state.joined.get(&member.group).copied().unwrap_or(0) >= member.ranks;
    let now = if is_whole { SUCCESS } else { IN_PROGRESS };
    unsafe { *code = state.broken.get(&member.group).copied().unwrap_or(now) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommFinalize(_: Handle) -> Code {
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDestroy(comm: Handle) -> Code {
    drop(unsafe { Box::from_raw(comm) });
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(comm: Handle) -> Code {
    let member = unsafe { Box::from_raw(comm) };
    state().broken.insert(member.group.clone(), REMOTE);
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllReduce(
    source: *const c_void,
    target: *mut c_void,
    elements: usize,
    dtype: c_uint,
    op: c_uint,
    comm: Handle,
    _: *mut c_void,
) -> Code {
    unsafe { ask(comm, one(Kind::AllReduce { elements, dtype, max: op == 2 }, source, target)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduceScatter(
    source: *const c_void,
    target: *mut c_void,
    elements: usize,
    dtype: c_uint,
    op: c_uint,
    comm: Handle,
    _: *mut c_void,
) -> Code {
    unsafe { ask(comm, one(Kind::ReduceScatter { elements, dtype, max: op == 2 }, source, target)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllGather(
    source: *const c_void,
    target: *mut c_void,
    elements: usize,
    dtype: c_uint,
    comm: Handle,
    _: *mut c_void,
) -> Code {
    unsafe { ask(comm, one(Kind::AllGather { bytes: elements * bytes_of(dtype) }, source, target)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupStart() -> Code {
    MESSAGES.with(|messages| *messages.borrow_mut() = Some((std::ptr::null_mut(), empty())));
    SUCCESS
}

fn empty() -> Asked {
    one(Kind::Messages, std::ptr::null(), std::ptr::null_mut())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclSend(
    source: *const c_void,
    count: usize,
    dtype: c_uint,
    peer: c_int,
    comm: Handle,
    _: *mut c_void,
) -> Code {
    message(comm, |asked| asked.sends.push((peer as usize, source as usize, count * bytes_of(dtype))))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRecv(
    target: *mut c_void,
    count: usize,
    dtype: c_uint,
    peer: c_int,
    comm: Handle,
    _: *mut c_void,
) -> Code {
    message(comm, |asked| asked.receives.push((peer as usize, target as usize, count * bytes_of(dtype))))
}

/// Adds a message to the call of this thread; outside of one it is refused, as it could wait for ever.
fn message(comm: Handle, add: impl FnOnce(&mut Asked)) -> Code {
    MESSAGES.with(|messages| match &mut *messages.borrow_mut() {
        Some((known, asked)) => {
            *known = comm;
            add(asked);
            SUCCESS
        }
        None => INVALID_ARGUMENT,
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupEnd() -> Code {
    let messages = MESSAGES.with(|messages| messages.borrow_mut().take());
    match messages {
        Some((comm, asked)) if !comm.is_null() => unsafe { ask(comm, asked) },
        Some(_) => SUCCESS,
        None => INVALID_ARGUMENT,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: Code) -> *const c_char {
    match code {
        REMOTE => c"remote process exited or there was a network error".as_ptr(),
        INVALID_ARGUMENT => c"invalid argument".as_ptr(),
        _ => c"some error".as_ptr(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetLastError(comm: Handle) -> *const c_char {
    let text = CString::new(format!("in {}", unsafe { &*comm }.group)).unwrap_or_default();
    // A test asks a few times only.
    text.into_raw()
}
