//! Sessions of several ranks, each a process with a GPU of its own, that exchange through NCCL: libraries that stand in for NVIDIA's move
//! the bytes and run no kernel, so nothing is added here. Each process is a thread. What is added is judged in the workspace's tests, between
//! emulated devices.

#![cfg(target_os = "linux")]

mod support;

use dtlc_emulator::Emulator;
use dtlc_runtime::RuntimeError;
use dtlc_runtime::gpu::{Gpu, Ordinal, Search};
use dtlc_runtime::network::{Broken, Call, Network};
use dtlc_runtime::processes::Transport;
use dtlc_runtime::program::device::DeviceSection;
use dtlc_runtime::program::*;
use dtlc_runtime::session::{Options, Session, Watch};
use dtlc_runtime::tensor::HostTensor;
use std::ffi::{CString, c_char};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};
use support::libraries::compile;
use support::*;

const SOON: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(60);

/// Folders with the stand-ins, of the driver and of NCCL; there are four GPUs.
fn folders() -> &'static [PathBuf; 2] {
    static FOLDERS: OnceLock<(tempfile::TempDir, [PathBuf; 2])> = OnceLock::new();
    let made = FOLDERS.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder of ours");
        let folders = ["driver", "nccl"].map(|name| folder.path().join(name));
        let driver = compile("cuda.rs", &folders[0], "libcuda.so.1", "libcuda.so", &[]);
        compile("nccl.rs", &folders[1], "libnccl.so.2", "libnccl.so", &[]);
        // SAFETY: the library is ours and does nothing when it is opened; its function is of this type.
        unsafe {
            let library = libloading::Library::new(driver).expect("it opens");
            let set =
                library.get::<unsafe extern "C" fn(*const c_char, i64)>("fake_set").expect("it is there");
            let name = CString::new("devices").expect("a name");
            set(name.as_ptr(), 4);
            std::mem::forget(library);
        }
        (folder, folders)
    });
    &made.1
}

/// The GPU of this number.
fn gpu(number: usize) -> Arc<Gpu> {
    let search = Search::in_folders(vec![folders()[0].clone()]);
    Arc::new(Gpu::open(&search, Ordinal::Exactly(number as u32)).unwrap_or_else(|error| panic!("{error}")))
}

fn nccl() -> Search {
    Search::in_folders(vec![folders()[1].clone()])
}

/// Everything that moves without a kernel, on four ranks: over one axis, over the other, over both in either order; in a loop too.
fn moving() -> Program {
    let mut program = empty_program(&[("a", 2), ("b", 2)]);
    program.device = Some(DeviceSection { modules: Vec::new(), functions: Vec::new(), calls: Vec::new() });
    let layout =
        |dims: &[(&str, u64)]| Layout::replicated(DType::F32, dims).placed(0, AxisId(0)).placed(0, AxisId(1));
    let source = input(&mut program, "in", layout(&[("rank", 4), ("x", 64)]), 0);
    let (one, two) = (vec![AxisId(0)], vec![AxisId(1)]);
    let both = vec![AxisId(1), AxisId(0)];
    let gather = |members| Transfer::all_gather(1, Part::even(64, members));
    let turned = Transfer::all_to_all(1, Part::even(1, 4), Part::even(16, 4), Position::SplitOutside);
    let permute = CollectiveKind::Permute(Permutation { sources: vec![1, 0] });
    let cases = [
        (CollectiveKind::AllGather, one.clone(), gather(2), 128),
        (CollectiveKind::AllGather, both.clone(), gather(4), 256),
        (CollectiveKind::AllToAll, both, turned, 64),
        (permute, two, Transfer::whole(64), 64),
        (CollectiveKind::AllGather, one, Transfer::all_gather(1, Part { block: 64, whole: 100 }), 100),
    ];
    let mut body = Vec::new();
    for (number, (kind, axes, transfer, elements)) in cases.into_iter().enumerate() {
        let out = layout(&[("rank", 4), ("x", elements)]);
        let target = output(&mut program, &format!("out{number}"), out, 4096 * number as u64);
        let tensors = vec![CollectiveTensor { source: source.clone(), target, dtype: DType::F32, transfer }];
        body.push(at(1, Operation::Collective(Collective { flight: FlightId(0), kind, axes, tensors })));
    }
    let body = with_dones(body);
    program.instructions = vec![at(0, Operation::Loop(Loop { count: 2, order: LoopOrder::Forward, body }))];
    program
}

/// What ranks have after two steps; nothing where another process has it.
fn outputs(session: &mut Session) -> Vec<Vec<u8>> {
    let numbers: Vec<f32> = (0..256).map(|number| number as f32 + 0.5).collect();
    session.set_input("in", &HostTensor::from_f32(&[4, 64], &numbers)).expect("it fits");
    (1..=2).for_each(|step| session.step(step, 0).unwrap_or_else(|error| panic!("{error}")));
    let outputs = session.program().outputs.iter();
    let collect = |output| session.collect_output(output).unwrap_or_else(|error| panic!("{error}"));
    outputs.filter_map(|output| Some(collect(output)?.bytes)).collect()
}

/// The same where each rank has the GPU that `gpu_of` says, and the remark of each.
fn over_gpus(search: &Search, gpu_of: impl Fn(usize) -> usize + Sync) -> (Vec<Vec<u8>>, Vec<Option<String>>) {
    let results = spread(4, |transport| {
        let gpu = gpu(gpu_of(transport.rank()));
        let session = Session::start_on_gpus(transport, gpu, search, moving(), Options::default());
        let mut session = session.unwrap_or_else(|error| panic!("{error}"));
        let found = outputs(&mut session);
        session.part();
        (found, session.remark().map(str::to_owned))
    });
    let (found, remarks): (Vec<_>, Vec<_>) = results.into_iter().unzip();
    (found.concat(), remarks)
}

#[test]
fn ranks_with_a_gpu_each_exchange_through_nccl() {
    let expected = outputs(&mut start(&moving(), Options::default()));
    let (found, remarks) = over_gpus(&nccl(), |rank| rank);
    assert_eq!(expected, found);
    assert_eq!(remarks, [None, None, None, None]);
}

#[test]
fn ranks_that_can_not_exchange_through_the_host_and_say_why() {
    let expected = outputs(&mut start(&moving(), Options::default()));
    let nowhere = Search::in_folders(vec!["/nowhere".into()]);
    let missing =
        "rank 0 can't use NCCL: NCCL is missing: libnccl.so.2 was not found; looked in:\n  /nowhere\n";
    let (nccl, shared) = (nccl(), "rank 0 and rank 2 share a GPU");
    for (search, gpus, why) in [(&nowhere, 4, missing), (&nccl, 2, shared)] {
        let (found, remarks) = over_gpus(search, |rank| rank % gpus);
        assert_eq!(expected, found);
        for remark in remarks {
            let remark = remark.expect("it is said");
            assert!(remark.contains("through the host's memory") && remark.contains(why), "{remark}");
        }
    }
}

/// A program of three ranks that each take what the next one has.
fn turning() -> Program {
    let mut program = empty_program(&[("dp", 3)]);
    program.device = moving().device;
    let [source, target] = [0, 64].map(|offset| BufferRef::new(Space::Arena, offset, 64));
    let fill = Operation::Fill { target: source.clone(), dtype: DType::F32, value: 0.0 };
    let kind = CollectiveKind::Permute(Permutation { sources: vec![1, 2, 0] });
    let tensor = CollectiveTensor { source, target, dtype: DType::F32, transfer: Transfer::whole(16) };
    let collective = Collective { flight: FlightId(0), kind, axes: vec![AxisId(0)], tensors: vec![tensor] };
    program.instructions = with_dones(vec![at(0, fill), at(1, Operation::Collective(collective))]);
    program
}

/// What the others say when rank 2 of three does not go along with the second step.
fn told(timeout: Duration, watch: Watch, rank_2: impl Fn(Session) + Sync) -> Vec<String> {
    let start = Instant::now();
    let results = spread(3, |transport: Arc<dyn Transport>| {
        let rank = transport.rank();
        let options = Options { timeout, watch, ..Options::default() };
        let session = Session::start_on_gpus(transport, gpu(rank), &nccl(), turning(), options);
        let mut session = session.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(session.remark(), None);
        let first = session.step(1, 0);
        if rank == 2 {
            first.unwrap_or_else(|error| panic!("{error}"));
            rank_2(session);
            return None;
        }
        // What rank 2 does behind the first step may be told before this process has seen the end of that.
        let ended = first.and_then(|()| session.step(2, 0));
        let error: RuntimeError = ended.expect_err("rank 2 does not come");
        assert_eq!(error.exit_status(), 3, "{error}");
        session.fail(&error.to_string());
        Some(error.to_string())
    });
    assert!(start.elapsed() < LONG, "the others wait for what never comes");
    results.into_iter().flatten().collect()
}

#[test]
fn a_rank_that_stays_away_ends_the_others_in_time() {
    let texts = told(SOON, Watch::default(), |session| {
        std::thread::sleep(2 * SOON);
        // Its own process says where it was instead.
        let mut session = session;
        let text = session.step(2, 0).expect_err("the others have failed").to_string();
        let where_it_is = "some member did not come\nrank 2 (dp 2) is in no instruction";
        assert!(text.contains("rank ") && text.contains(where_it_is), "{text}");
    });
    let own = |rank: usize| {
        format!(
            "rank {rank} (dp {rank}): permute at test.dtl:7:3 (second) did not end within 1 s; some member"
        )
    };
    assert!(texts.iter().any(|text| text.contains(&own(0)) || text.contains(&own(1))), "{texts:?}");
    // The other is late itself, is told, or sees that its peer has left.
    let place = "permute at test.dtl:7:3 (second)";
    assert!(texts.len() == 2 && texts.iter().all(|text| text.contains(place)), "{texts:?}");
}

#[test]
fn a_process_that_ends_frees_the_others_at_once() {
    for text in told(LONG, Watch::default(), drop) {
        let first_hand = "rank 2 (dp 2) is gone: its process ended without a word; rank ";
        // The others may not have come so far.
        let place = text.contains(" is at test.dtl:") || text.ends_with("is in no instruction");
        assert!(text.contains(first_hand) && place, "{text}");
    }
}

#[test]
fn a_process_that_fails_says_why() {
    for text in told(LONG, Watch::default(), |session| session.fail("the disk is full")) {
        assert!(text.contains("rank 2 failed: the disk is full"), "{text}");
    }
}

#[test]
fn a_rank_that_panics_frees_the_others() {
    // Not in the first step, in which all go along.
    static SEEN: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let probe = |rank, location: LocationId| {
        if rank == 2 && location.0 == 1 {
            let seen = SEEN.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            assert!(seen < 2, "part of a test");
        }
    };
    let watch = Watch { probe: Some(probe), ..Watch::default() };
    for text in told(LONG, watch, |mut session| {
        let error = session.step(2, 0).expect_err("it panics").to_string();
        session.fail(&error);
    }) {
        assert!(text.contains("rank 2 (dp 2) panicked at test.dtl:7:3 (second)"), "{text}");
    }
}

/// Messages that never end by themselves, as of a rank whose device waits for another.
#[derive(Default)]
struct Stuck {
    ended: Mutex<bool>,
    changed: Condvar,
}

impl Network for Stuck {
    fn exchange(&self, _: &Call<'_>) -> Result<(), Broken> {
        let ended = self.ended.lock().expect("no panic");
        drop(self.changed.wait_while(ended, |ended| !*ended).expect("no panic"));
        Ok(())
    }

    fn look(&self) -> Result<(), Broken> {
        Err(Broken::Here(RuntimeError::Fault("it takes too long".to_owned())))
    }

    fn abort(&self) {
        *self.ended.lock().expect("no panic") = true;
        self.changed.notify_all();
    }
}

#[test]
fn what_a_rank_cannot_see_while_it_waits_is_seen_for_it() {
    let start = Instant::now();
    // None may end before the others, who would see that.
    let ends = spread(3, |transport| {
        let others = Arc::clone(&transport);
        let device = Arc::new(Emulator::default());
        let network = Arc::new(Stuck::default());
        let options = Options { timeout: LONG, ..Options::default() };
        let session = Session::start_on_network(transport, network, device, turning(), options);
        (others, session.expect("it starts").step(1, 0))
    });
    for (_, end) in ends {
        assert_eq!(end, Err(RuntimeError::Fault("it takes too long".to_owned())));
    }
    assert!(start.elapsed() < LONG, "nothing ended what the ranks waited for");
}
