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
        needs: "SLURM_STEP_ID",
    },
];

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
    /// It contradicts itself.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, Failure> {
        let here =
            |launcher: &&Launcher| variable(launcher.size).is_some() && variable(launcher.needs).is_some();
        let Some(launcher) = LAUNCHERS.iter().find(here) else { return Ok(None) };
        let number = |name: &str| -> Result<usize, Failure> {
            let Some(told) = variable(name) else {
                let Launcher { name: launcher, size, .. } = launcher;
                return Err(Failure::Fault(format!("{launcher} tells {size} and not {name}")));
            };
            told.trim().parse().map_err(|_| {
                Failure::Fault(format!("{} tells {name}=`{told}`, which is no number", launcher.name))
            })
        };
        let ranks = number(launcher.size)?;
        if ranks == 1 {
            return Ok(None);
        }
        let rank = number(launcher.rank)?;
        if rank >= ranks {
            let Launcher { name, rank: rank_name, size, .. } = launcher;
            let text = format!("{name} tells {rank_name}={rank} and {size}={ranks}: there is no such rank");
            return Err(Failure::Fault(text));
        }
        let local_rank = variable(launcher.local_rank).and_then(|told| told.trim().parse().ok());
        let local_ranks = variable(launcher.local_size).and_then(|told| leading_number(&told));
        let run: Vec<String> = RUN_NAMES.iter().filter_map(|name| variable(name)).collect();
        let run = run.join("/");
        let mut launched = Self { launcher, rank, ranks, local_rank: 0, local_ranks: 1, place: None, run };
        launched.local_rank = local_rank.unwrap_or(0);
        launched.local_ranks = local_ranks.unwrap_or(launched.local_rank as usize + 1).max(1);
        launched.place = launched.find_place(variable);
        Ok(Some(launched))
    }

    /// What this process's environment says.
    ///
    /// # Errors
    /// It contradicts itself.
    pub fn here() -> Result<Option<Self>, Failure> {
        Self::read(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
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
    fn find_place(&self, variable: impl Fn(&str) -> Option<String>) -> Option<Place> {
        let host = variable("MASTER_ADDR").or_else(|| {
            let step = (self.launcher.name == "srun").then(|| variable("SLURM_STEP_NODELIST"))?;
            step.as_deref().and_then(first_host)
        });
        let host = host.or_else(|| (self.local_ranks == self.ranks).then(|| "127.0.0.1".to_owned()))?;
        let given = variable("MASTER_PORT").and_then(|port| port.trim().parse::<u16>().ok());
        // There torchrun itself listens, where it says so.
        let shared = variable("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|told| told == "True");
        let first = match given {
            Some(port) => port.saturating_add(u16::from(shared)),
            None => {
                let [low, high, ..] = *blake3::hash(self.run.as_bytes()).as_bytes();
                OWN_PORTS.start + u16::from_le_bytes([low, high]) % (OWN_PORTS.end - OWN_PORTS.start)
            }
        };
        Some(Place { host, ports: (first..=u16::MAX).take(PORTS).collect() })
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
            &[("WORLD_SIZE", "2"), ("RANK", "0")],
            &[("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_NTASKS", "8"), ("SLURM_STEP_ID", "0")],
        ] {
            assert!(read_good(alone).is_none(), "{alone:?}");
        }
        for (wrong, named) in [
            (&[("OMPI_COMM_WORLD_SIZE", "many")] as &[(&str, &str)], "OMPI_COMM_WORLD_SIZE=`many`"),
            (&[("PMI_SIZE", "2")], "PMI_SIZE and not PMI_RANK"),
            (&[("PMI_SIZE", "2"), ("PMI_RANK", "2")], "PMI_RANK=2 and PMI_SIZE=2"),
            (&[("WORLD_SIZE", "4"), ("LOCAL_RANK", "0"), ("RANK", "-1")], "RANK=`-1`"),
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
