//! What started this process: alone, or by `mpirun`, `srun` or `torchrun` as one of several, which tell each in its
//! environment. From there to a connection with the others.
//!
//! Rank `r` of the launcher runs rank `r` of the plan. A launcher of one process starts all ranks as threads, as nobody does.

use crate::failure::Failure;
use dtlc_runtime::processes::Transport;
use dtlc_runtime::processes::rendezvous::{Party, Place, meet};
use dtlc_runtime::program::Program;
use std::sync::Arc;
use std::time::Duration;

/// Where a launcher tells what a process is.
#[derive(Debug)]
struct Launcher {
    name: &'static str,
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
    /// What has to be there too for the rest to be meant for this process.
    needs: &'static str,
}

/// Those that start others' processes come last: `srun` may start the helpers of the rest.
const LAUNCHERS: [Launcher; 4] = [
    Launcher {
        name: "torchrun",
        rank: "RANK",
        size: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_size: "LOCAL_WORLD_SIZE",
        needs: "LOCAL_RANK",
    },
    Launcher {
        name: "mpirun",
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
        needs: "OMPI_COMM_WORLD_SIZE",
    },
    Launcher {
        name: "mpiexec",
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_size: "MPI_LOCALNRANKS",
        needs: "PMI_SIZE",
    },
    Launcher {
        name: "srun",
        rank: "SLURM_PROCID",
        size: "SLURM_STEP_NUM_TASKS",
        local_rank: "SLURM_LOCALID",
        local_size: "SLURM_STEP_TASKS_PER_NODE",
        needs: "SLURM_PROCID",
    },
];

/// Whoever sets PyTorch's variables by hand or in its own way, as Kubernetes does, with a process on each machine.
const BY_HAND: Launcher = Launcher {
    name: "a launcher",
    rank: "RANK",
    size: "WORLD_SIZE",
    local_rank: "LOCAL_RANK",
    local_size: "LOCAL_WORLD_SIZE",
    needs: "RANK",
};

/// Slurm where a task is not told of its step, but of its job, whose tasks are as many.
const SLURM_JOB: Launcher =
    Launcher { size: "SLURM_NTASKS", local_size: "SLURM_TASKS_PER_NODE", ..LAUNCHERS[3] };

/// Slurm's steps that are not started by `srun`, such as the one that runs a batch script, have numbers from here on.
const OWN_STEPS: u64 = 0xffff_fff0;

/// Names that tell one run from another, so that processes of two never meet.
const RUN_NAMES: [&str; 6] = [
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "PMIX_NAMESPACE",
    "MASTER_PORT",
];

/// Ports that rank 0 may take, from the first one on.
const PORTS: usize = 8;
/// Where nobody names a port, it is one of these, by the run's name; below those that systems hand out by themselves.
const OWN_PORTS: std::ops::Range<u16> = 20_000..32_000;

/// One of several processes that a launcher started.
#[derive(Debug)]
pub struct Launched {
    launcher: &'static Launcher,
    rank: usize,
    ranks: usize,
    /// Its number among those on this machine, which is the number of its device.
    pub local_rank: u32,
    /// How many there are on this machine; as far as the launcher says.
    local_ranks: usize,
    place: Option<Place>,
    run: String,
}

impl Launched {
    /// What the environment says; nothing where this is the only process.
    ///
    /// # Errors
    /// It contradicts itself, or a variable has a value that it can't have.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, Failure> {
        let Some((launcher, ranks)) = Launcher::of(&variable)? else { return Ok(None) };
        let rank = launcher.number(launcher.rank, &variable)?;
        if rank >= ranks {
            let Launcher { name, rank: rank_name, size, .. } = launcher;
            let text = format!("{name} tells {rank_name}={rank} and {size}={ranks}: there is no such rank");
            return Err(Failure::Fault(text));
        }
        let run: Vec<String> = RUN_NAMES.iter().filter_map(|name| variable(name)).collect();
        let run = run.join("/");
        let mut launched = Self { launcher, rank, ranks, local_rank: 0, local_ranks: 1, place: None, run };
        if let Some(told) = variable(launcher.local_rank) {
            let number = told.trim().parse().ok();
            launched.local_rank = number.ok_or_else(|| launcher.unusable(launcher.local_rank, &told))?;
        }
        launched.local_ranks = match variable(launcher.local_size) {
            Some(told) => leading_number(&told)
                .filter(|&number| number > 0)
                .ok_or_else(|| launcher.unusable(launcher.local_size, &told))?,
            None => launched.local_rank as usize + 1,
        };
        launched.place = launched.find_place(variable)?;
        Ok(Some(launched))
    }

    /// What this process's environment says.
    ///
    /// # Errors
    /// As [`Launched::read`].
    pub fn here() -> Result<Option<Self>, Failure> {
        Self::read(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// Threads for this process's rank: its part of the machine's cores.
    #[must_use]
    pub fn threads(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        (cores / self.local_ranks).max(1)
    }

    /// Refuses a number of processes that the plan is not for.
    ///
    /// # Errors
    /// It is not.
    pub fn require(&self, ranks: u64) -> Result<(), Failure> {
        let Launcher { name, size, .. } = self.launcher;
        let there = self.ranks;
        if there as u64 == ranks {
            return Ok(());
        }
        Err(Failure::Fault(format!(
            "{name} started {there} processes ({size}={there}), and the plan is for {ranks} rank(s), one a process: start \
             {ranks}, or take a plan whose mesh has {there} ranks; started alone, all ranks are threads of one process"
        )))
    }

    /// Meets the processes that run the other ranks of a program, whose artifact they all have.
    ///
    /// # Errors
    /// The plan is for another number, or someone does not come within `timeout`.
    pub fn join(
        &self,
        program: &Program,
        artifact: &[u8],
        timeout: Duration,
    ) -> Result<Arc<dyn Transport>, Failure> {
        self.require(program.mesh.ranks())?;
        let mut key = blake3::Hasher::new();
        key.update(artifact).update(format!("\n{} {}", self.ranks, self.run).as_bytes());
        let key = *key.finalize().as_bytes();
        #[cfg(feature = "mpi")]
        if ["mpirun", "mpiexec"].contains(&self.launcher.name) {
            return Ok(Arc::new(dtlc_runtime::processes::mpi::Mpi::start(&key, timeout)?));
        }
        let Some(place) = &self.place else {
            return Err(Failure::Fault(format!(
                "{} does not say where rank 0 is: set MASTER_ADDR to its host and MASTER_PORT to a free port there, the same \
                 for all",
                self.launcher.name
            )));
        };
        // No message is longer than all that a rank has of one kind.
        let limit = program.state_bytes.max(program.arena_bytes).max(program.input_bytes) + (1 << 20);
        let party = Party { rank: self.rank, ranks: self.ranks, key };
        Ok(Arc::new(meet(place, &party, limit, timeout)?))
    }

    /// Where rank 0 is to be found: where the variables of PyTorch's launcher say, else on the first host of Slurm's step,
    /// else here, if all are here.
    fn find_place(&self, variable: impl Fn(&str) -> Option<String>) -> Result<Option<Place>, Failure> {
        let host = match variable("MASTER_ADDR") {
            Some(host) if host.trim().is_empty() => return Err(self.launcher.unusable("MASTER_ADDR", &host)),
            Some(host) => Some(host),
            None => {
                let is_slurm = self.launcher.rank == SLURM_JOB.rank;
                let step = is_slurm.then(|| variable("SLURM_STEP_NODELIST")).flatten();
                step.as_deref().and_then(first_host)
            }
        };
        let given = match variable("MASTER_PORT") {
            Some(told) => match told.trim().parse::<u16>() {
                Ok(port) if port > 0 => Some(port),
                Ok(_) | Err(_) => return Err(self.launcher.unusable("MASTER_PORT", &told)),
            },
            None => None,
        };
        let host = host.or_else(|| (self.local_ranks == self.ranks).then(|| "127.0.0.1".to_owned()));
        let Some(host) = host else { return Ok(None) };
        // There torchrun itself listens, where it says so.
        let shared = variable("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|told| told == "True");
        let first = match given {
            Some(port) => port.saturating_add(u16::from(shared)),
            None => {
                let [low, high, ..] = *blake3::hash(self.run.as_bytes()).as_bytes();
                OWN_PORTS.start + u16::from_le_bytes([low, high]) % (OWN_PORTS.end - OWN_PORTS.start)
            }
        };
        Ok(Some(Place { host, ports: (first..=u16::MAX).take(PORTS).collect() }))
    }
}

impl Launcher {
    /// Who started this process as one of several, and how many there are; nobody where it is the only one.
    ///
    /// What is meant for this process alone comes first. `RANK` and `WORLD_SIZE` may be those of a process around this one, so
    /// they count where no other launcher says that there are several.
    fn of(variable: &impl Fn(&str) -> Option<String>) -> Result<Option<(&'static Self, usize)>, Failure> {
        let here = |launcher: &&Self| variable(launcher.size).is_some() && variable(launcher.needs).is_some();
        if let Some(launcher) = LAUNCHERS.iter().find(here) {
            let ranks = launcher.number(launcher.size, variable)?;
            if ranks != 1 {
                return Ok(Some((launcher, ranks)));
            }
            if launcher.size == BY_HAND.size {
                return Ok(None);
            }
        }
        if variable(BY_HAND.size).is_some() || variable(BY_HAND.rank).is_some() {
            let ranks = BY_HAND.number(BY_HAND.size, variable)?;
            if ranks != 1 {
                return Ok(Some((&BY_HAND, ranks)));
            }
        }
        Self::of_slurm_job(variable)
    }

    /// A task of Slurm that knows its job's number of tasks only. A batch script knows it as well, as the task 0 that it is,
    /// and is the only process: a step of `srun` or another task it can't be.
    fn of_slurm_job(
        variable: &impl Fn(&str) -> Option<String>,
    ) -> Result<Option<(&'static Self, usize)>, Failure> {
        let [rank, size, step] = [SLURM_JOB.rank, SLURM_JOB.size, LAUNCHERS[3].size].map(variable);
        if rank.is_none() || size.is_none() || step.is_some() {
            return Ok(None);
        }
        let step = variable("SLURM_STEP_ID").and_then(|told| told.trim().parse::<u64>().ok());
        let is_task = step.is_some_and(|step| step < OWN_STEPS);
        let ranks = SLURM_JOB.number(SLURM_JOB.size, variable)?;
        let is_one_of_several = ranks != 1 && (is_task || SLURM_JOB.number(SLURM_JOB.rank, variable)? > 0);
        Ok(is_one_of_several.then_some((&SLURM_JOB, ranks)))
    }

    /// The number that a variable holds.
    fn number(&self, name: &str, variable: &impl Fn(&str) -> Option<String>) -> Result<usize, Failure> {
        let Some(told) = variable(name) else {
            let other = if name == self.size { self.rank } else { self.size };
            let text = format!("{} tells {other} and not {name}; started alone, neither is set", self.name);
            return Err(Failure::Fault(text));
        };
        told.trim().parse().map_err(|_| self.unusable(name, &told))
    }

    /// The failure that a variable has a value that it can't have.
    fn unusable(&self, name: &str, told: &str) -> Failure {
        let wanted = match name {
            "MASTER_ADDR" => "the name of no host",
            "MASTER_PORT" => "no port: a number from 1 to 65535",
            _ => "no number",
        };
        Failure::Fault(format!("{} tells {name}=`{told}`, which is {wanted}", self.name))
    }
}

/// Refuses to be one of several processes, each of which would do by itself what `command` does.
///
/// # Errors
/// A launcher started more than one.
pub fn require_one_process(command: &str) -> Result<(), Failure> {
    match Launched::here()? {
        None => Ok(()),
        Some(Launched { launcher: Launcher { name, size, .. }, ranks, .. }) => Err(Failure::Fault(format!(
            "{name} started this as one of {ranks} processes ({size}={ranks}), each of which would do the same: `{command}` \
             runs all ranks as threads of one process, so start it once"
        ))),
    }
}

/// The number that a text begins with: Slurm writes `4(x2)` for two machines with four each.
fn leading_number(text: &str) -> Option<usize> {
    let text = text.trim();
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// The first host of a list as Slurm writes it: `gpu[003-006,9],login1` begins with `gpu003`.
fn first_host(list: &str) -> Option<String> {
    let end = list.find(',').unwrap_or(list.len());
    let host = match list[..list.find(']').unwrap_or(end)].split_once('[') {
        Some((name, numbers)) if !name.contains(',') => {
            let first = numbers.split([',', '-']).next()?;
            let behind = list[list.find(']')? + 1..].split(',').next()?;
            format!("{name}{first}{behind}")
        }
        Some(_) | None => list[..end].to_owned(),
    };
    (!host.is_empty()).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::{Launched, first_host};
    use crate::failure::Failure;

    fn read(pairs: &[(&str, &str)]) -> Result<Option<Launched>, Failure> {
        let told =
            |name: &str| pairs.iter().find(|(known, _)| *known == name).map(|(_, it)| (*it).to_owned());
        Launched::read(told)
    }

    fn read_good(pairs: &[(&str, &str)]) -> Option<Launched> {
        read(pairs).unwrap_or_else(|failure| panic!("{failure:?}"))
    }

    #[test]
    fn only_what_a_launcher_meant_for_this_process_counts() {
        for alone in [
            &[] as &[(&str, &str)],
            &[("OMPI_COMM_WORLD_SIZE", "1"), ("OMPI_COMM_WORLD_RANK", "0")],
            &[("SLURM_NTASKS", "8"), ("SLURM_PROCID", "0")],
            &[("WORLD_SIZE", "1"), ("RANK", "0")],
            &[("WORLD_SIZE", "1")],
            // A batch script of Slurm, whatever it calls its step.
            &[("SLURM_NTASKS", "8"), ("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "4294967291")],
            // torchrun with one process, in a step of several.
            &[
                ("WORLD_SIZE", "1"),
                ("RANK", "0"),
                ("LOCAL_RANK", "0"),
                ("SLURM_STEP_NUM_TASKS", "2"),
                ("SLURM_PROCID", "1"),
            ],
            &[("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_NTASKS", "8"), ("SLURM_PROCID", "0")],
        ] {
            assert!(read_good(alone).is_none(), "{alone:?}");
        }
        for (wrong, named) in [
            (&[("OMPI_COMM_WORLD_SIZE", "many")] as &[(&str, &str)], "OMPI_COMM_WORLD_SIZE=`many`"),
            (&[("PMI_SIZE", "2")], "PMI_SIZE and not PMI_RANK"),
            (&[("PMI_SIZE", "2"), ("PMI_RANK", "2")], "PMI_RANK=2 and PMI_SIZE=2"),
            (&[("WORLD_SIZE", "4"), ("LOCAL_RANK", "0"), ("RANK", "-1")], "RANK=`-1`"),
            (&[("WORLD_SIZE", "4")], "WORLD_SIZE and not RANK"),
            (&[("RANK", "0")], "RANK and not WORLD_SIZE"),
            (&[("WORLD_SIZE", "abc"), ("RANK", "0")], "WORLD_SIZE=`abc`"),
            (&[("WORLD_SIZE", ""), ("RANK", "0")], "WORLD_SIZE=``"),
            (&[("WORLD_SIZE", "0"), ("RANK", "0")], "no such rank"),
            (&[("WORLD_SIZE", "2"), ("RANK", "0"), ("LOCAL_RANK", "x")], "LOCAL_RANK=`x`"),
            (&[("WORLD_SIZE", "2"), ("RANK", "0"), ("LOCAL_WORLD_SIZE", "0")], "LOCAL_WORLD_SIZE=`0`"),
            (&[("WORLD_SIZE", "2"), ("RANK", "0"), ("MASTER_PORT", "x")], "MASTER_PORT=`x`"),
            (&[("WORLD_SIZE", "2"), ("RANK", "0"), ("MASTER_PORT", "99999")], "MASTER_PORT=`99999`"),
            (&[("WORLD_SIZE", "2"), ("RANK", "0"), ("MASTER_PORT", "")], "MASTER_PORT=``"),
            (&[("WORLD_SIZE", "2"), ("RANK", "0"), ("MASTER_ADDR", "")], "MASTER_ADDR=``"),
            (&[("SLURM_NTASKS", "many"), ("SLURM_PROCID", "1")], "SLURM_NTASKS=`many`"),
        ] {
            let failure = read(wrong).expect_err("it contradicts itself");
            assert!(failure.status() == 3 && failure.text().contains(named), "{failure:?}");
        }
    }

    #[test]
    fn each_launcher_says_who_this_is_and_where_the_others_are() {
        let torch = [
            ("RANK", "5"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "4"),
            ("MASTER_ADDR", "node0"),
            ("MASTER_PORT", "29500"),
            // It was started by srun in turn, once a machine.
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "1"),
        ];
        let it = read_good(&torch).expect("several");
        assert_eq!((it.launcher.name, it.rank, it.ranks, it.local_rank), ("torchrun", 5, 8, 1));
        assert_eq!(it.place.expect("a place").to_string(), "node0:29500 to 29507");
        let shared = [&torch[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
        let place = read_good(&shared).and_then(|it| it.place).expect("a place");
        assert_eq!(place.ports.first(), Some(&29501), "torchrun listens there itself");

        let slurm = [
            ("SLURM_STEP_NUM_TASKS", "8"),
            ("SLURM_STEP_ID", "3"),
            ("SLURM_JOB_ID", "17"),
            ("SLURM_PROCID", "6"),
            ("SLURM_LOCALID", "2"),
            ("SLURM_STEP_TASKS_PER_NODE", "4(x2)"),
            ("SLURM_STEP_NODELIST", "gpu[007-008]"),
        ];
        let it = read_good(&slurm).expect("several");
        assert_eq!((it.rank, it.ranks, it.local_rank, it.local_ranks), (6, 8, 2, 4));
        let place = it.place.expect("a place");
        assert_eq!(place.host, "gpu007");
        assert!(place.ports.len() == 8 && place.ports[0] >= 20_000, "{place}");
    }

    #[test]
    fn a_process_that_is_told_half_is_still_one_of_several() {
        // As Kubernetes tells it: a process on each machine.
        let kubernetes =
            [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "job-master-0"), ("MASTER_PORT", "23456")];
        let it = read_good(&kubernetes).expect("several");
        assert_eq!((it.rank, it.ranks, it.local_rank, it.local_ranks), (1, 2, 0, 1));
        assert_eq!(it.place.expect("a place").to_string(), "job-master-0:23456 to 23463");
        // There, mpirun starts one of its own, and one of several.
        let one = [&kubernetes[..], &[("PMI_SIZE", "1"), ("PMI_RANK", "0")]].concat();
        assert_eq!(read_good(&one).expect("several").launcher.name, "a launcher");
        let four = [&kubernetes[..], &[("PMI_SIZE", "4"), ("PMI_RANK", "3")]].concat();
        assert_eq!(read_good(&four).map(|it| (it.launcher.name, it.rank, it.ranks)), Some(("mpiexec", 3, 4)));
        for slurm in [
            &[("SLURM_NTASKS", "2"), ("SLURM_PROCID", "1")] as &[(&str, &str)],
            &[("SLURM_NTASKS", "2"), ("SLURM_PROCID", "1"), ("SLURM_STEP_ID", "0")],
            &[("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_PROCID", "1")],
        ] {
            let it = read_good(slurm).expect("several");
            assert_eq!((it.launcher.name, it.rank, it.ranks), ("srun", 1, 2), "{slurm:?}");
        }
        let first = [("SLURM_NTASKS", "2"), ("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "0")];
        assert_eq!(read_good(&first).map(|it| it.ranks), Some(2));
    }

    #[test]
    fn another_number_than_the_plans_is_refused_and_ranks_elsewhere_need_a_place() {
        let mpi = [
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        let it = read_good(&mpi).expect("several");
        assert_eq!(it.place.as_ref().expect("a place").host, "127.0.0.1");
        assert!(it.require(2).is_ok());
        let refused = format!("{:?}", it.require(4).expect_err("another number"));
        for part in ["mpirun started 2", "OMPI_COMM_WORLD_SIZE=2", "for 4 rank"] {
            assert!(refused.contains(part), "no `{part}` in {refused}");
        }
        let apart = [&mpi[..3], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "1")]].concat();
        assert!(read_good(&apart).expect("several").place.is_none(), "the other is on another machine");
    }

    #[test]
    fn the_first_of_a_list_of_hosts_is_found() {
        for (list, first) in [
            ("node1", "node1"),
            ("node1,node2", "node1"),
            ("gpu[003-006,9],login1", "gpu003"),
            ("gpu[4,7]", "gpu4"),
            ("a,gpu[4,7]", "a"),
            ("rack2-node[12-13]-ib", "rack2-node12-ib"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(first), "{list}");
        }
        assert_eq!(first_host(""), None);
    }
}
