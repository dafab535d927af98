//! The wrapper of NCCL against a library that stands in for it, on GPUs that stand in too: what is called with what, and how ranks
//! that fail, stay away or disagree end. That NCCL itself does what it promises is not judged here.

#![cfg(target_os = "linux")]

mod support;

use dtlc_emulator::{CudaDriver, DevicePointer, Stream};
use dtlc_runtime::RuntimeError;
use dtlc_runtime::gpu::{Gpu, Ordinal, Search};
use dtlc_runtime::nccl::{Communicator, Nccl, UniqueId};
use dtlc_runtime::network::{Message, Route};
use dtlc_runtime::program::{AxisId, Mesh, MeshAxis};
use std::path::PathBuf;
use std::sync::{Arc, Barrier, OnceLock};
use std::time::Duration;
use support::libraries::compile;

const LONG: Duration = Duration::from_secs(60);
const PLACE: &str = "all_reduce at model.dtl:7:3 (wq)";

/// A folder with both libraries.
fn folder() -> &'static PathBuf {
    static FOLDER: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let made = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder of ours");
        compile("cuda.rs", folder.path(), "libcuda.so.1", "libcuda.so", &[]);
        compile("nccl.rs", folder.path(), "libnccl.so.2", "libnccl.so", &[]);
        let path = folder.path().to_owned();
        (folder, path)
    });
    &made.1
}

fn search() -> Search {
    Search::in_folders(vec![folder().clone()])
}

/// A rank of a world, as a thread has it.
struct Rank {
    gpu: Arc<Gpu>,
    world: Communicator,
}

/// A GPU's memory.
struct Memory(Arc<Gpu>);

impl Memory {
    fn buffer(&self, values: &[f32]) -> DevicePointer {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let pointer = self.0.allocate(bytes.len() as u64).expect("room");
        self.0.copy_to_device(pointer, &bytes, Stream::DEFAULT).expect("it fits");
        pointer
    }

    fn values(&self, pointer: DevicePointer, count: usize) -> Vec<f32> {
        let mut bytes = vec![0; 4 * count];
        self.0.copy_to_host(&mut bytes, pointer, Stream::DEFAULT).expect("it is there");
        let value = |chunk: &[u8]| f32::from_le_bytes(chunk.try_into().expect("four bytes"));
        bytes.chunks(4).map(value).collect()
    }
}

/// Lets each rank of a world do something, as a thread of its own.
fn world<T: Send>(ranks: usize, patience: Duration, each: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    let nccl = Nccl::open(&search()).unwrap_or_else(|error| panic!("{error}"));
    let id: UniqueId = nccl.unique_id().unwrap_or_else(|error| panic!("{error}"));
    let gpu = Arc::new(Gpu::open(&search(), Ordinal::Exactly(0)).unwrap_or_else(|error| panic!("{error}")));
    std::thread::scope(|scope| {
        let rank = |rank: usize| {
            let (gpu, each) = (Arc::clone(&gpu), &each);
            scope.spawn(move || {
                let name = format!("rank {rank}");
                let world = nccl.join(Arc::clone(&gpu), id, (rank, ranks), name, patience, &|| false);
                each(Rank { gpu, world: world.unwrap_or_else(|error| panic!("{error}")) })
            })
        };
        let threads: Vec<_> = (0..ranks).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn a_missing_library_is_told() {
    let error = Nccl::open(&Search::in_folders(vec!["/nowhere".into()])).expect_err("there is none");
    assert_eq!(error.exit_status(), 3);
    for part in [
        "NCCL is missing",
        "libnccl.so.2 was not found; looked in:\n  /nowhere",
        "pip install",
        "DTLC_CUDA_LIBS",
    ] {
        assert!(error.to_string().contains(part), "no `{part}`: {error}");
    }
}

#[test]
fn messages_go_where_they_say() {
    let results = world(3, LONG, |rank| {
        let Rank { gpu, world: mut group } = rank;
        let index = group.index();
        let rank = Memory(gpu);
        let own = index as f32;
        let mine = rank.buffer(&[own + 1.0, 10.0 * own]);
        let room = rank.buffer(&[f32::NAN; 2]);
        let all = rank.buffer(&[f32::NAN; 6]);
        let mut messages = vec![
            Message { route: Route::To((index + 1) % 3), at: mine, bytes: 4 },
            Message { route: Route::To((index + 1) % 3), at: mine.offset(4), bytes: 4 },
            Message { route: Route::From((index + 2) % 3), at: room, bytes: 4 },
            Message { route: Route::From((index + 2) % 3), at: room.offset(4), bytes: 4 },
        ];
        for root in 0..3 {
            let at = if root == index { mine } else { all.offset(8 * root as u64) };
            messages.push(Message { route: Route::OfAll(root), at, bytes: 8 });
        }
        group.start(&messages, Stream::DEFAULT, PLACE, &|| false).unwrap_or_else(|error| panic!("{error:?}"));
        (rank.values(room, 2), rank.values(all, 6))
    });
    for (index, (next, all)) in results.iter().enumerate() {
        let before = ((index + 2) % 3) as f32;
        assert_eq!(*next, [before + 1.0, 10.0 * before]);
        let mut expected = [1.0, 0.0, 2.0, 10.0, 3.0, 20.0].map(Some);
        expected[2 * index..2 * index + 2].fill(None);
        let found = all.iter().map(|value| (!value.is_nan()).then_some(*value));
        assert!(found.eq(expected), "rank {index}: {all:?}");
    }
}

#[test]
fn each_list_of_axes_has_groups_of_its_own() {
    let axes = ["dp", "tp"].map(|name| MeshAxis { name: name.into(), size: 2 });
    let mesh = Mesh { axes: axes.into() };
    let results = world(4, LONG, |Rank { gpu, world: mut whole }| {
        let rank = Memory(gpu);
        let own = whole.index() as f32;
        [AxisId(0), AxisId(1)].map(|axis| {
            let mut group = whole.over(&mesh, &[axis], &|| false).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(group.members(), 2);
            let all = rank.buffer(&[own; 2]);
            let message =
                |root| Message { route: Route::OfAll(root), at: all.offset(4 * root as u64), bytes: 4 };
            let messages = [0, 1].map(message);
            group
                .start(&messages, Stream::DEFAULT, PLACE, &|| false)
                .unwrap_or_else(|error| panic!("{error:?}"));
            rank.values(all, 2)
        })
    });
    // Ranks are numbered with the last axis fastest.
    let expected = |rank: usize| {
        [
            vec![(rank % 2) as f32, (rank % 2 + 2) as f32],
            vec![(rank / 2 * 2) as f32, (rank / 2 * 2 + 1) as f32],
        ]
    };
    for (rank, found) in results.iter().enumerate() {
        assert_eq!(*found, expected(rank), "rank {rank}");
    }
}

/// Each of two ranks sends to the other, the second perhaps not or of another size, and tells how it ends.
fn ends(patience: Duration, second: Option<usize>, failed: bool) -> Vec<Result<(), RuntimeError>> {
    let both = Barrier::new(2);
    world(2, patience, |Rank { gpu, world: mut group }| {
        // One that leaves must not meet the other's start.
        both.wait();
        let rank = Memory(gpu);
        let (source, target) = (rank.buffer(&[1.0; 2]), rank.buffer(&[f32::NAN; 2]));
        let own = group.index();
        let messages = |bytes| {
            let peer = 1 - own;
            let send = Message { route: Route::To(peer), at: source, bytes };
            [send, Message { route: Route::From(peer), at: target, bytes }]
        };
        let has_failed = || failed && own == 0;
        let mut start = |bytes| {
            let started = group.start(&messages(bytes), Stream::DEFAULT, PLACE, &has_failed);
            started.map_err(RuntimeError::from)
        };
        let ended = match if own == 0 { Some(8) } else { second } {
            Some(bytes) => start(bytes),
            None => {
                std::thread::sleep(2 * patience);
                start(8)
            }
        };
        let again = start(8).expect_err("it was aborted").to_string();
        assert!(again.contains("was left after a failure"), "{again}");
        ended
    })
}

fn told(ended: &Result<(), RuntimeError>, parts: &[&str]) {
    let error = ended.as_ref().expect_err("it ends badly");
    assert_eq!(error.exit_status(), 3);
    for part in parts {
        assert!(error.to_string().contains(part), "no `{part}`: {error}");
    }
}

#[test]
fn a_member_that_stays_away_ends_all_within_the_time_limit() {
    let ended = ends(Duration::from_millis(300), None, false);
    told(&ended[0], &["rank 0: all_reduce at model.dtl:7:3 (wq) did not end within 0.3 s"]);
    told(&ended[1], &["rank 1: all_reduce at model.dtl:7:3 (wq) fails: remote process exited"]);
}

#[test]
fn a_failure_elsewhere_and_a_disagreement_free_the_others() {
    let ended = ends(Duration::from_millis(300), None, true);
    told(&ended[0], &["rank 0: all_reduce at model.dtl:7:3 (wq) was left, since another rank has failed"]);
    told(&ended[1], &["rank 1: all_reduce at model.dtl:7:3 (wq) fails: remote process exited"]);
    for ended in ends(LONG, Some(4), false) {
        told(&ended, &["all_reduce at model.dtl:7:3 (wq) fails: "]);
    }
}

#[test]
fn a_start_that_not_all_come_to_ends() {
    let nccl = Nccl::open(&search()).unwrap_or_else(|error| panic!("{error}"));
    let gpu = Arc::new(Gpu::open(&search(), Ordinal::Exactly(0)).unwrap_or_else(|error| panic!("{error}")));
    let id = nccl.unique_id().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(nccl.version(), 22_800);
    let joined = |patience, has_failed: bool| {
        let (gpu, name) = (Arc::clone(&gpu), "rank 1 (dp 1)".to_owned());
        nccl.join(gpu, id, (1, 2), name, patience, &|| has_failed).map(drop)
    };
    let late = joined(Duration::from_millis(50), false);
    told(&late, &["rank 1 (dp 1): the start of NCCL did not end within 0.05 s"]);
    told(&joined(LONG, true), &["the start of NCCL was left, since another rank has failed"]);
}
