//! One process for each rank, as a launcher starts them: the same losses, gradients and checkpoints as with threads, and
//! what all of them say where one fails, is killed or never comes.

use crate::devices::with_compiler;
use crate::support::Dtlc;
use dtlc_runtime::files::safetensors::read_all;
use dtlc_runtime::files::weights::save_tensors;
use dtlc_runtime::tensor::HostTensor;
use indexmap::IndexMap;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// None of these runs takes so long, unless it hangs.
const LONG: Duration = Duration::from_secs(240);

/// What a process left: its exit status, standard output and standard error.
type Outcome = (i32, String, String);

/// Processes that are ended with the test, however that ends.
struct World {
    children: Vec<Child>,
}

impl Drop for World {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It has ended, or ends now.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl World {
    /// Waits until all have ended.
    fn outcomes(mut self) -> Vec<Outcome> {
        let readers: Vec<_> = self
            .children
            .iter_mut()
            .map(|child| (text_of(child.stdout.take()), text_of(child.stderr.take())))
            .collect();
        let start = Instant::now();
        let mut statuses = Vec::new();
        for (rank, child) in self.children.iter_mut().enumerate() {
            let status = loop {
                match child.try_wait().expect("it can be asked") {
                    Some(status) => break status.code().unwrap_or(-1),
                    None if start.elapsed() < LONG => std::thread::sleep(Duration::from_millis(5)),
                    None => panic!("rank {rank} hangs"),
                }
            };
            statuses.push(status);
        }
        let text = |reader: std::thread::JoinHandle<String>| reader.join().expect("no panic");
        statuses.into_iter().zip(readers).map(|(status, (out, err))| (status, text(out), text(err))).collect()
    }
}

/// Reads all of a pipe beside the test.
fn text_of(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = Vec::new();
        // Who is killed leaves what it wrote so far.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut text));
        String::from_utf8_lossy(&text).into_owned()
    })
}

/// Starts some ranks of a world of `size`, with what `torchrun` tells each.
fn launch(size: usize, ranks: impl Iterator<Item = usize>, command: impl Fn() -> Command) -> World {
    let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    let port = free.expect("a free port").port().to_string();
    launch_with(ranks, command, |rank| {
        vec![
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", size.to_string()),
            ("LOCAL_RANK", rank.to_string()),
            ("LOCAL_WORLD_SIZE", size.to_string()),
            ("MASTER_ADDR", "127.0.0.1".to_owned()),
            ("MASTER_PORT", port.clone()),
        ]
    })
}

/// Starts ranks, each with variables of its own.
fn launch_with(
    ranks: impl Iterator<Item = usize>,
    command: impl Fn() -> Command,
    told: impl Fn(usize) -> Vec<(&'static str, String)>,
) -> World {
    World { children: ranks.map(|rank| piped(command().envs(told(rank)))).collect() }
}

/// A file that is built runs in a folder.
fn built(file: &Path, folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(file);
    command.args(arguments).current_dir(folder);
    command
}

fn new() -> Dtlc {
    let dtlc = Dtlc::new();
    dtlc.write("text.txt", "the quick brown fox jumps over the lazy dog. ".repeat(40));
    let tiny = std::fs::read_to_string(dtlc.path("tiny.dtl")).expect("the model");
    let plan = "\nplan zero for Tiny {\n  mesh { dp: 2 }\n  step data: acts B -> dp\n  step zero(3): over dp\n  batch { seq 8, \
                global 4 }\n  optimizer adamw { lr 1e-2 }\n}\n";
    dtlc.write("tiny.dtl", tiny + plan);
    dtlc
}

fn trainer() -> Dtlc {
    let dtlc = new();
    dtlc.expect(0, &["build", "tiny.dtl", "-p", "tp2", "-o", "trainer"]);
    dtlc
}

/// The losses and gradient norms of a run's JSON lines, to the last bit.
fn figures(lines: &str) -> Vec<(String, String)> {
    let figure = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).expect("a line is JSON");
        (line["loss"].to_string(), line["grad_norm"].to_string())
    };
    lines.lines().map(figure).collect()
}

/// What rank 0 of a world that ended well printed; the others print nothing.
fn printed(outcomes: &[Outcome]) -> String {
    for (rank, (status, stdout, stderr)) in outcomes.iter().enumerate() {
        assert_eq!(*status, 0, "rank {rank}: {stderr}");
        assert!(rank == 0 || (stdout.is_empty() && stderr.is_empty()), "rank {rank}: {stdout}{stderr}");
    }
    outcomes[0].1.clone()
}

fn checkpoint(dtlc: &Dtlc, folder: &str, step: u64) -> Vec<u8> {
    std::fs::read(dtlc.path(&format!("{folder}/step-{step:08}.safetensors"))).expect("a checkpoint")
}

#[test]
fn four_processes_train_and_go_on_as_four_threads_do() {
    let dtlc = trainer();
    let options = ["--data", "text.txt", "--seed", "3", "--json", "--steps"];
    let threads = |rest: &[&str]| {
        let (status, stdout, stderr) = World {
            children: vec![piped(&mut built(
                &dtlc.path("trainer"),
                dtlc.folder.path(),
                &[&options[..], rest].concat(),
            ))],
        }
        .outcomes()
        .remove(0);
        assert_eq!(status, 0, "{stderr}");
        stdout
    };
    let processes = |rest: &[&str]| {
        let command = || built(&dtlc.path("trainer"), dtlc.folder.path(), &[&options[..], rest].concat());
        printed(&launch(4, 0..4, command).outcomes())
    };
    let expected = threads(&["4", "--checkpoint", "threads", "--every", "1"]);
    let first = processes(&["2", "--checkpoint", "processes", "--every", "1"]);
    let rest = processes(&["4", "--checkpoint", "processes", "--resume"]);
    assert_eq!(figures(&expected).len(), 4);
    assert_eq!(figures(&expected), [figures(&first), figures(&rest)].concat());
    // With Adam's moments of the first step, these are the gradients.
    for step in [1, 2, 4] {
        let same = checkpoint(&dtlc, "threads", step) == checkpoint(&dtlc, "processes", step);
        assert!(same, "step {step} is saved as other bytes");
    }
}

fn piped(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

#[test]
fn two_processes_share_out_what_rests() {
    let dtlc = new();
    let train =
        ["train", "tiny.dtl", "-p", "zero", "--data", "text.txt", "--json", "--steps", "3", "--checkpoint"];
    let expected = dtlc.expect(0, &[&train[..], &["threads"]].concat()).stdout;
    // As `srun` tells it, which names a host and no port.
    let told = |rank: usize| {
        let told = [
            ("SLURM_JOB_ID", std::process::id().to_string()),
            ("SLURM_STEP_ID", "0".to_owned()),
            ("SLURM_STEP_NUM_TASKS", "2".to_owned()),
            ("SLURM_STEP_TASKS_PER_NODE", "2".to_owned()),
            ("SLURM_STEP_NODELIST", "localhost".to_owned()),
            ("SLURM_PROCID", rank.to_string()),
            ("SLURM_LOCALID", rank.to_string()),
        ];
        told.to_vec()
    };
    let command = || dtlc.command(&[&train[..], &["processes"]].concat());
    let found = printed(&launch_with(0..2, command, told).outcomes());
    assert_eq!(figures(&expected), figures(&found));
    assert!(checkpoint(&dtlc, "threads", 3) == checkpoint(&dtlc, "processes", 3), "other bytes");
}

#[test]
fn four_processes_with_a_device_each_train_as_four_ranks_of_one() {
    let Some(dtlc) = with_compiler() else { return };
    let build = ["build", "tiny.dtl", "-p", "tp2", "--target", "cuda:sm_80", "-o", "gpu"];
    let outcome = dtlc.command(&build).env("XDG_CACHE_HOME", dtlc.path("cache")).output().expect("it starts");
    assert!(outcome.status.success(), "{}", String::from_utf8_lossy(&outcome.stderr));
    let options = ["--device", "emu", "--data", "text.txt", "--json", "--steps", "2", "--checkpoint"];
    let command =
        |folder: &str| built(&dtlc.path("gpu"), dtlc.folder.path(), &[&options[..], &[folder]].concat());
    let expected = printed(&World { children: vec![piped(&mut command("ranks"))] }.outcomes());
    let found = printed(&launch(4, 0..4, || command("processes")).outcomes());
    assert_eq!(figures(&expected).len(), 2);
    assert_eq!(figures(&expected), figures(&found));
    assert!(checkpoint(&dtlc, "ranks", 2) == checkpoint(&dtlc, "processes", 2), "other bytes");
}

#[test]
fn another_number_of_processes_is_refused_by_all() {
    let dtlc = trainer();
    let options = ["--data", "text.txt", "--steps", "1"];
    let outcomes = launch(2, 0..2, || built(&dtlc.path("trainer"), dtlc.folder.path(), &options)).outcomes();
    let train = ["train", "tiny.dtl", "-p", "tp2", "--data", "text.txt", "--steps", "1"];
    let trained = launch(3, 1..2, || dtlc.command(&train)).outcomes();
    for ((status, stdout, stderr), size) in outcomes.iter().zip([2, 2]).chain(trained.iter().zip([3])) {
        let parts =
            [format!("torchrun started {size}"), format!("WORLD_SIZE={size}"), "4 rank(s)".to_owned()];
        let named = parts.iter().all(|part| stderr.contains(part));
        assert!(*status == 3 && stdout.is_empty() && named, "{status} {stderr}");
    }
    // What does not train is done once.
    let verify = launch(4, 0..1, || dtlc.command(&["verify", "tiny.dtl", "-p", "tp2"])).outcomes();
    assert!(verify[0].0 == 3 && verify[0].2.contains("`dtlc verify`"), "{verify:?}");
}

#[test]
fn a_rank_that_never_comes_is_named_when_time_is_up() {
    let dtlc = trainer();
    let options = ["--data", "text.txt", "--steps", "1", "--timeout", "2"];
    let outcomes =
        launch(4, [0, 1, 3].into_iter(), || built(&dtlc.path("trainer"), dtlc.folder.path(), &options))
            .outcomes();
    for (status, _, stderr) in &outcomes {
        assert_eq!(*status, 3, "{stderr}");
    }
    assert!(outcomes[0].2.contains("rank(s) 2 did not come to 127.0.0.1:"), "{}", outcomes[0].2);
    assert!(outcomes[1].2.contains("rank 0 at 127.0.0.1:"), "{}", outcomes[1].2);
}

/// Starts a world that trains for longer than anyone waits, and lets `act` act once its first step is done.
fn interrupted(dtlc: &Dtlc, act: impl FnOnce(&mut World, &mut dyn BufRead)) -> Vec<Outcome> {
    let options = ["--data", "text.txt", "--steps", "1000000", "--json", "--checkpoint", "run"];
    let mut world = launch(4, 0..4, || built(&dtlc.path("trainer"), dtlc.folder.path(), &options));
    let mut lines = BufReader::new(world.children[0].stdout.take().expect("a pipe"));
    let mut line = String::new();
    lines.read_line(&mut line).expect("the first step");
    assert!(line.contains("\"step\":1"), "{line}");
    act(&mut world, &mut lines);
    drop(lines);
    world.outcomes()
}

#[test]
fn a_process_that_is_killed_frees_the_others() {
    let dtlc = trainer();
    let outcomes = interrupted(&dtlc, |world, _| world.children[2].kill().expect("it is killed"));
    for (rank, (status, _, stderr)) in outcomes.iter().enumerate().filter(|(rank, _)| *rank != 2) {
        assert!(*status == 3 && stderr.contains("rank 2"), "rank {rank}: {status} {stderr}");
        assert!(stderr.contains("is gone"), "rank {rank}: {stderr}");
    }
}

#[test]
fn an_interrupt_of_one_ends_all_after_the_same_step() {
    let dtlc = trainer();
    let outcomes = interrupted(&dtlc, |world, lines| {
        let interrupt = Command::new("kill").args(["-INT", &world.children[1].id().to_string()]).status();
        assert!(interrupt.expect("kill runs").success());
        // Until there are no more.
        lines.read_to_string(&mut String::new()).expect("the rest");
    });
    for (rank, (status, _, stderr)) in outcomes.iter().enumerate() {
        assert_eq!(*status, 130, "rank {rank}: {stderr}");
    }
    let saved = std::fs::read_dir(dtlc.path("run")).expect("a folder").count();
    assert_eq!(saved, 2, "a lock and a checkpoint");
}

#[test]
fn nobody_trains_on_where_nobody_reads() {
    let dtlc = trainer();
    for (rank, (status, _, stderr)) in interrupted(&dtlc, |_, _| {}).iter().enumerate() {
        assert_eq!(*status, 130, "rank {rank}: {stderr}");
    }
}

#[test]
fn what_one_process_finds_at_fault_ends_all() {
    let dtlc = trainer();
    // One rank has other data, another none.
    for (name, status_of_it, said) in [("other.txt", 1, "--data"), ("missing.txt", 1, "missing.txt")] {
        dtlc.write("other.txt", "the quick brown dog jumps over the lazy fox. ".repeat(40));
        let turn = std::sync::atomic::AtomicUsize::new(0);
        let outcomes = launch(4, 0..4, || {
            let last = turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 3;
            let options = ["--data", if last { name } else { "text.txt" }, "--steps", "2"];
            built(&dtlc.path("trainer"), dtlc.folder.path(), &options)
        })
        .outcomes();
        assert_eq!(outcomes[3].0, status_of_it, "{}", outcomes[3].2);
        for (rank, (status, stdout, stderr)) in outcomes.iter().enumerate() {
            assert!((1..=3).contains(status) && stdout.is_empty(), "rank {rank}: {status} {stdout}");
            assert!(
                stderr.contains(said) && stderr.contains("rank 3") == (rank != 3 || name == "other.txt"),
                "rank {rank}: {stderr}"
            );
        }
    }
}

#[test]
fn processes_that_read_other_files_never_train_together() {
    let dtlc = new();
    let tokens = |first: u32| -> IndexMap<String, HostTensor> {
        let values: Vec<u32> = (0..2 * 36).map(|index| (index * 7 + first) % 256).collect();
        [("tokens".to_owned(), HostTensor::from_u32(&[2, 4, 9], &values))].into()
    };
    for (rank, first) in [("0", 0), ("1", 1)] {
        save_tensors(&dtlc.path(&format!("steps{rank}.safetensors")), &tokens(first)).expect("it is written");
        let words: Vec<u8> = (0..400u16).flat_map(|word| (word % 200 + first as u16).to_le_bytes()).collect();
        dtlc.write(&format!("tokens{rank}.bin"), words);
        let train = ["train", "tiny.dtl", "-p", "one", "--data", "text.txt", "--steps", "1", "--seed", rank];
        dtlc.expect(0, &[&train[..], &["--checkpoint", &format!("run{rank}")]].concat());
        let mut weights =
            read_all(&dtlc.path(&format!("run{rank}/step-00000001.safetensors"))).expect("a checkpoint");
        weights.retain(|name, _| name.starts_with("param."));
        save_tensors(&dtlc.path(&format!("weights{rank}.safetensors")), &weights).expect("it is written");
    }
    // Checkpoints of one step and seed, and not of one run.
    let train = ["train", "tiny.dtl", "-p", "one", "--data", "tokens0.bin", "--steps", "1", "--seed", "0"];
    std::fs::remove_dir_all(dtlc.path("run1")).expect("a folder");
    dtlc.expect(0, &[&train[..], &["--checkpoint", "run1"]].concat());
    for (options, said) in [
        ("--data steps#.safetensors --steps 1", "differ in their data"),
        ("--data tokens#.bin --steps 1", "differ in their data"),
        ("--data text.txt --steps 1 --weights weights#.safetensors", "differ in what they start from"),
        ("--data text.txt --steps 2 --checkpoint run# --resume", "differ in what they start from"),
        ("--data text.txt --steps 1 --seed #", "differ in the seed"),
    ] {
        let turn = std::sync::atomic::AtomicUsize::new(0);
        let outcomes = launch(2, 0..2, || {
            let rank = turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed).to_string();
            let options = options.replace('#', &rank);
            let options: Vec<&str> = options.split(' ').collect();
            dtlc.command(&[&["train", "tiny.dtl", "-p", "zero"][..], &options].concat())
        })
        .outcomes();
        for (rank, (status, stdout, stderr)) in outcomes.iter().enumerate() {
            assert!(*status == 1 && stdout.is_empty(), "{options}, rank {rank}: {status} {stdout}{stderr}");
            assert!(stderr.contains(said), "{options}, rank {rank}: {stderr}");
        }
    }
}

#[test]
fn processes_that_nobody_told_of_their_machine_train_together() {
    let dtlc = new();
    let train = ["train", "tiny.dtl", "-p", "zero", "--data", "text.txt", "--json", "--steps", "2"];
    let expected = dtlc.expect(0, &train).stdout;
    let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    let port = free.expect("a free port").port().to_string();
    let told = |rank: usize| {
        let (rank, size, host) = (rank.to_string(), "2".to_owned(), "127.0.0.1".to_owned());
        vec![("RANK", rank), ("WORLD_SIZE", size), ("MASTER_ADDR", host), ("MASTER_PORT", port.clone())]
    };
    let found = printed(&launch_with(0..2, || dtlc.command(&train), told).outcomes());
    assert_eq!(figures(&expected), figures(&found));
}

#[test]
fn the_first_value_that_is_not_finite_ends_all_and_names_its_rank() {
    let dtlc = new();
    let hot =
        std::fs::read_to_string(dtlc.path("tiny.dtl")).expect("the model").replace("lr 1e-2", "lr 1e38");
    dtlc.write("tiny.dtl", hot);
    let train = ["train", "tiny.dtl", "-p", "zero", "--data", "text.txt", "--steps", "4", "--check-finite"];
    for (rank, (status, _, stderr)) in launch(2, 0..2, || dtlc.command(&train)).outcomes().iter().enumerate()
    {
        let named = stderr.contains("(dp 0) computes") || stderr.contains("(dp 1) computes");
        assert!(*status == 3 && named, "rank {rank}: {status} {stderr}");
    }
}
