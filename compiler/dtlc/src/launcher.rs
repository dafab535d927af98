//! How many processes a launcher started: what `mpirun`, `srun` and `torchrun` tell each in its environment.

use crate::failure::Failure;

/// Where a launcher tells the number of processes. `needs` tells whether the number is meant for this process: inside of
/// an allocation, but not started by `srun`, Slurm's is not.
struct Launcher {
    name: &'static str,
    size: &'static str,
    needs: Option<&'static str>,
}

const LAUNCHERS: [Launcher; 4] = [
    Launcher { name: "mpirun", size: "OMPI_COMM_WORLD_SIZE", needs: None },
    Launcher { name: "mpiexec", size: "PMI_SIZE", needs: None },
    Launcher { name: "srun", size: "SLURM_NTASKS", needs: Some("SLURM_STEP_ID") },
    Launcher { name: "torchrun", size: "WORLD_SIZE", needs: Some("LOCAL_RANK") },
];

/// Refuses to be one of several processes, each of which would train by itself all that they should train together.
///
/// # Errors
/// A launcher started more than one.
pub fn require_one_process(ranks: u64, variable: impl Fn(&str) -> Option<String>) -> Result<(), Failure> {
    for Launcher { name, size, needs } in LAUNCHERS {
        let told = variable(size).filter(|_| needs.is_none_or(|needs| variable(needs).is_some()));
        let Some(told) = told else { continue };
        if told.trim() != "1" {
            return Err(Failure::Fault(format!(
                "{name} started this as one of {told} processes ({size}={told}); its {ranks} rank(s) are threads of one \
                 process, so start it once: `{size}=1`, or without {name}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::require_one_process;

    #[test]
    fn only_what_a_launcher_meant_for_this_process_counts() {
        let told = |pairs: &'static [(&str, &str)]| {
            require_one_process(4, move |name| {
                pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            })
        };
        for good in [
            &[] as &[(&str, &str)],
            &[("OMPI_COMM_WORLD_SIZE", "1")],
            &[("SLURM_NTASKS", "8")],
            &[("WORLD_SIZE", "2")],
            &[("SLURM_NTASKS", "1"), ("SLURM_STEP_ID", "0")],
        ] {
            assert!(told(good).is_ok(), "{good:?}");
        }
        for bad in [
            &[("OMPI_COMM_WORLD_SIZE", "4")] as &[(&str, &str)],
            &[("PMI_SIZE", "2")],
            &[("SLURM_NTASKS", "8"), ("SLURM_STEP_ID", "0")],
            &[("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")],
            &[("OMPI_COMM_WORLD_SIZE", "many")],
        ] {
            let failure = told(bad).expect_err("several processes");
            assert!(format!("{failure:?}").contains(bad[0].0), "{failure:?}");
        }
    }
}
