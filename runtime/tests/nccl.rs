//! The wrapper of NCCL against a library that stands in for it, on GPUs that stand in too: what is called with what, and how ranks
//! that fail, stay away or disagree end. That NCCL itself does what it promises is not judged here.

#![cfg(target_os = "linux")]

mod support;

use dtlc_emulator::{CudaDriver, DevicePointer, Stream};
use dtlc_runtime::RuntimeError;
use dtlc_runtime::gpu::{Gpu, Ordinal, Search};
use dtlc_runtime::nccl::{Call, Communicator, Message, Nccl, Place, UniqueId};
use dtlc_runtime::program::{AxisId, DType, Mesh, MeshAxis, Reduction};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use support::libraries::compile;

const LONG: Duration = Duration::from_secs(60);
const PLACE: Place<'static> = Place { collective: "all_reduce", location: "model.dtl:7:3 (wq)" };

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

    /// Starts a collective and waits until `target` is no longer as it was.
    fn run(
        &self,
        group: &mut Communicator,
        call: &Call<'_>,
        target: DevicePointer,
        count: usize,
    ) -> Vec<f32> {
        group.start(call, Stream::DEFAULT, PLACE).unwrap_or_else(|error| panic!("{error}"));
        let is_done = || Ok(self.values(target, count).iter().all(|value| !value.is_nan()));
        group.wait(PLACE, is_done, || false).unwrap_or_else(|error| panic!("{error}"));
        self.values(target, count)
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
                let world = nccl.join(Arc::clone(&gpu), id, (rank, ranks), name, patience);
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
fn each_collective_moves_what_it_says() {
    let results = world(3, LONG, |rank| {
        let Rank { gpu, world: mut group } = rank;
        let index = group.index();
        let rank = Memory(gpu);
        let own = index as f32;
        let (dtype, elements) = (DType::F32, 2);
        let source = rank.buffer(&[own + 1.0, 10.0 * own, -own, 5.0, own, 7.0]);
        let room = || rank.buffer(&[f32::NAN; 6]);
        let [sum, most, part, all, turned, next] = std::array::from_fn(|_| room());
        let reduction = Reduction::Sum;
        let summed = Call::AllReduce { source, target: sum, elements, dtype, reduction };
        let greatest = Call::AllReduce { source, target: most, elements, dtype, reduction: Reduction::Max };
        let scattered = Call::ReduceScatter { source, target: part, elements, dtype, reduction };
        let gathered = Call::AllGather { source, target: all, elements, dtype };
        let exchanged = Call::AllToAll { source, target: turned, bytes: 8 };
        let messages = [
            Message::Send { peer: (index + 1) % 3, source, bytes: 4 },
            Message::Receive { peer: (index + 2) % 3, target: next, bytes: 4 },
        ];
        let calls = [
            (summed, sum, 2),
            (greatest, most, 2),
            (scattered, part, 2),
            (gathered, all, 6),
            (exchanged, turned, 6),
            (Call::Exchange(&messages), next, 1),
        ];
        calls.map(|(call, target, count)| rank.run(&mut group, &call, target, count))
    });
    for (index, [sum, most, part, all, turned, next]) in results.iter().enumerate() {
        assert_eq!(*sum, [6.0, 30.0]);
        assert_eq!(*most, [3.0, 20.0]);
        assert_eq!(*part, [vec![6.0, 30.0], vec![-3.0, 15.0], vec![3.0, 21.0]][index]);
        assert_eq!(*all, [1.0, 0.0, 2.0, 10.0, 3.0, 20.0]);
        let turns = [vec![1.0, 0.0, 2.0, 10.0, 3.0, 20.0], vec![-0.0, 5.0, -1.0, 5.0, -2.0, 5.0]];
        let turns = [&turns[..], &[vec![0.0, 7.0, 1.0, 7.0, 2.0, 7.0]]].concat();
        assert_eq!(*turned, turns[index]);
        assert_eq!(*next, [((index + 2) % 3) as f32 + 1.0]);
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
            let mut group = whole.over(&mesh, &[axis]).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(group.members(), 2);
            let (source, target) = (rank.buffer(&[own]), rank.buffer(&[f32::NAN; 2]));
            let call = Call::AllGather { source, target, elements: 1, dtype: DType::F32 };
            rank.run(&mut group, &call, target, 2)
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

/// Each of two ranks starts a sum, the second perhaps not or of another size, and tells how it ends.
fn ends(patience: Duration, second: Option<usize>, failed: bool) -> Vec<Result<(), RuntimeError>> {
    world(2, patience, |Rank { gpu, world: mut group }| {
        let rank = Memory(gpu);
        let (source, target) = (rank.buffer(&[1.0; 2]), rank.buffer(&[f32::NAN; 2]));
        let elements = if group.index() == 0 { Some(2) } else { second };
        let call = |elements| Call::AllReduce {
            source,
            target,
            elements,
            dtype: DType::F32,
            reduction: Reduction::Sum,
        };
        if let Some(elements) = elements {
            group.start(&call(elements), Stream::DEFAULT, PLACE)?;
        }
        let own = group.index();
        let ended = group.wait(PLACE, || Ok(false), || failed && own == 0);
        let again = group.start(&call(2), Stream::DEFAULT, PLACE).expect_err("it was aborted").to_string();
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
    let late = "did not end within 0.3 s";
    let freed = "fails: remote process exited or there was a network error (in world";
    assert!(
        ended.iter().any(|end| end.as_ref().is_err_and(|error| error.to_string().contains(late))),
        "{ended:?}"
    );
    for (rank, ended) in ended.iter().enumerate() {
        let text = format!("{ended:?}");
        assert!(text.contains(late) || text.contains(freed), "{text}");
        told(ended, &[&format!("rank {rank}: all_reduce at model.dtl:7:3 (wq)")]);
    }
}

#[test]
fn a_failure_elsewhere_and_a_disagreement_free_the_others() {
    let ended = ends(LONG, Some(2), true);
    told(&ended[0], &["rank 0: all_reduce at model.dtl:7:3 (wq) was left, since another rank has failed"]);
    told(&ended[1], &["rank 1: all_reduce at model.dtl:7:3 (wq) fails: remote process exited"]);
    for ended in ends(LONG, Some(1), false) {
        told(&ended, &["all_reduce at model.dtl:7:3 (wq) fails: "]);
    }
}

#[test]
fn a_start_that_not_all_come_to_ends() {
    let nccl = Nccl::open(&search()).unwrap_or_else(|error| panic!("{error}"));
    let gpu = Arc::new(Gpu::open(&search(), Ordinal::Exactly(0)).unwrap_or_else(|error| panic!("{error}")));
    let id = nccl.unique_id().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(nccl.version(), 22_800);
    let joined = nccl.join(gpu, id, (1, 2), "rank 1 (dp 1)".into(), Duration::from_millis(50));
    told(&joined.map(drop), &["rank 1 (dp 1): the start of NCCL", "did not end within 0.05 s"]);
}
