//! A library with the functions of NCCL that the runtime calls, for ranks that are threads of one process and whose GPUs' memory is the
//! host's. A call is in progress until its last member has made it, at which all is done: streams are not known here. Written from NCCL's
//! published signatures, apart from the bindings that the runtime uses. Compiled by the test that opens it.

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
    /// How many have to join before it is whole: the members themselves, or all that take part in a split.
    joining: (String, usize),
    /// Calls and splits asked for so far.
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

/// What a member asked for: peer or root, address, bytes.
#[derive(Clone, Default)]
struct Asked {
    sends: Vec<(usize, usize, usize)>,
    receives: Vec<(usize, usize, usize)>,
    broadcasts: Vec<(usize, usize, usize)>,
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
    /// Members of each group.
    members: HashMap<String, usize>,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

thread_local! {
    /// The call that is being put together on this thread.
    static CALL: std::cell::RefCell<Option<(Handle, Asked)>> = const { std::cell::RefCell::new(None) };
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

/// Does what all members have asked for.
unsafe fn perform(all: &HashMap<usize, Asked>) -> Code {
    let copy = |from: usize, to: usize, bytes: usize| unsafe {
        std::ptr::copy(from as *const u8, to as *mut u8, bytes);
    };
    for (rank, one) in all {
        for (peer, sender) in all {
            let sent: Vec<_> = sender.sends.iter().filter(|(to, ..)| to == rank).collect();
            let wanted: Vec<_> = one.receives.iter().filter(|(from, ..)| from == peer).collect();
            if sent.len() != wanted.len() {
                return INVALID_ARGUMENT;
            }
            for ((_, from, sent), (_, to, wanted)) in sent.into_iter().zip(wanted) {
                if sent != wanted {
                    return INVALID_ARGUMENT;
                }
                copy(*from, *to, *sent);
            }
        }
        if one.broadcasts.len() != all[&0].broadcasts.len() {
            return INVALID_ARGUMENT;
        }
        for (number, (root, to, bytes)) in one.broadcasts.iter().enumerate() {
            let (of, from, sent) = all[root].broadcasts[number];
            if (of, sent) != (*root, *bytes) {
                return INVALID_ARGUMENT;
            }
            if rank != root {
                copy(from, *to, sent);
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
    let members = state.members[&member.group];
    let all = state.asked.entry(key.clone()).or_default();
    all.insert(member.rank, asked);
    if all.len() < members {
        return IN_PROGRESS;
    }
    let all = state.asked.remove(&key).unwrap_or_default();
    let code = unsafe { perform(&all) };
    if code != SUCCESS {
        state.broken.insert(member.group.clone(), code);
    }
    IN_PROGRESS
}

fn is_good(config: *mut Config) -> bool {
    let config = unsafe { &*config };
    config.magic == 0xcafe_beef && config.blocking == 0 && config.size >= size_of::<Config>()
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
    let group = format!("world {}", id.internal[127]);
    let mut state = state();
    *state.joined.entry(group.clone()).or_default() += 1;
    state.members.insert(group.clone(), ranks as usize);
    let joining = (group.clone(), ranks as usize);
    unsafe { *comm = Box::into_raw(Box::new(Member { group, rank: rank as usize, joining, asked: 0 })) };
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
    let mut state = state();
    let split = format!("{} split {}", member.group, member.asked);
    member.asked += 1;
    let group = format!("{split} color {color}");
    *state.joined.entry(split.clone()).or_default() += 1;
    *state.members.entry(group.clone()).or_default() += 1;
    // The keys are the members' indices.
    let (rank, joining) = (key as usize, (split, state.members[&member.group]));
    unsafe { *new = Box::into_raw(Box::new(Member { group, rank, joining, asked: 0 })) };
    IN_PROGRESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(comm: Handle, code: *mut Code) -> Code {
    let member = unsafe { &*comm };
    let state = state();
    let (joining, all) = &member.joining;
    let is_whole = state.joined.get(joining).copied().unwrap_or(0) >= *all;
    let is_asking = member.asked > 0 && state.asked.contains_key(&(member.group.clone(), member.asked - 1));
    let now = if is_whole && !is_asking { SUCCESS } else { IN_PROGRESS };
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
pub unsafe extern "C" fn ncclGroupStart() -> Code {
    CALL.with(|call| *call.borrow_mut() = Some((std::ptr::null_mut(), Asked::default())));
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBroadcast(
    source: *const c_void,
    target: *mut c_void,
    count: usize,
    dtype: c_uint,
    root: c_int,
    comm: Handle,
    _: *mut c_void,
) -> Code {
    if source != target.cast_const() {
        return INVALID_ARGUMENT;
    }
    message(comm, |asked| asked.broadcasts.push((root as usize, target as usize, count * bytes_of(dtype))))
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
    CALL.with(|call| match &mut *call.borrow_mut() {
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
    match CALL.with(|call| call.borrow_mut().take()) {
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
