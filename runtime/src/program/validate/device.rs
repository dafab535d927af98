//! Checks of a program's part for CUDA devices: every number leads to something, every launch could be started.
//!
//! What it can't check is the code itself, as with machine code.

use super::{BYTES_LIMIT, Check, OPERAND_LIMIT, Program, require};
use crate::device::tensor_map;
use crate::program::device::{Alternative, DeviceCall, DeviceSection, Launch, LaunchArgument};
use dtlc_emulator::DevicePointer;
use std::collections::BTreeSet;

/// The most of each that any device takes.
const GRID_LIMITS: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const BLOCK_LIMITS: [u32; 3] = [1024, 1024, 64];
const BLOCK_THREADS_LIMIT: u64 = 1024;
const SHARED_LIMIT: u32 = 227 << 10;

/// Which devices run a launch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Runs {
    OnAll,
    OnSome,
}

impl Program {
    pub(super) fn check_device(&self) -> Check {
        let Some(section) = &self.device else { return Ok(()) };
        let mut names = BTreeSet::new();
        for function in &section.functions {
            let fault = |reason: &str| format!("device function `{}`: {reason}", function.name);
            require((function.module as usize) < section.modules.len(), || {
                fault("is in a module that does not exist")
            })?;
            require(names.insert(&function.name), || fault("stands twice"))?;
        }
        for call in &section.calls {
            self.check_device_call(section, call)?;
        }
        check_all_there(section, self)
    }

    fn check_device_call(&self, section: &DeviceSection, call: &DeviceCall) -> Check {
        let operands = call.work.operands(self);
        let [pointers, integers] = operands.ok_or("a device call performs a kernel that does not exist")?;
        require(call.scratch_bytes <= BYTES_LIMIT, || "a device call needs impossibly much scratch".into())?;
        let mut replaced = BTreeSet::new();
        for Alternative { position, .. } in &call.alternatives {
            require((*position as usize) < call.launches.len() && replaced.insert(position), || {
                "an alternative is for no launch, or for one that has another".into()
            })?;
        }
        let alternatives = call.alternatives.iter().map(|it| (&it.launch, Runs::OnSome));
        for (launch, runs) in call.launches.iter().map(|it| (it, Runs::OnAll)).chain(alternatives) {
            let function = section.functions.get(launch.function as usize);
            let function = function.ok_or("a launch is of a device function that does not exist")?;
            let fault = |reason: String| format!("device function `{}`: {reason}", function.name);
            check_shape(launch).map_err(fault)?;
            let on_some = section.modules[function.module as usize].capability.is_some();
            require(on_some == (runs == Runs::OnSome), || {
                fault("is for other devices than its launch".into())
            })?;
            require(launch.arguments.len() <= OPERAND_LIMIT, || fault("takes too many arguments".into()))?;
            for argument in &launch.arguments {
                let inside = match *argument {
                    LaunchArgument::Pointer(number) => number < pointers,
                    LaunchArgument::Pointers { first, count } => {
                        first.checked_add(count).is_some_and(|end| end <= pointers)
                    }
                    LaunchArgument::Integer(number) => number < integers,
                    LaunchArgument::Scratch(byte) => byte < call.scratch_bytes,
                    LaunchArgument::Constant(_) => true,
                    LaunchArgument::Map(map) => {
                        tensor_map(&map, DevicePointer(0))
                            .check()
                            .map_err(|error| fault(error.to_string()))?;
                        map.buffer < pointers && runs == Runs::OnSome
                    }
                };
                require(inside, || fault(format!("takes {argument:?}, which there is not")))?;
            }
        }
        Ok(())
    }
}

fn check_shape(launch: &Launch) -> Check {
    let within = |sizes: [u32; 3], limits: [u32; 3]| {
        sizes.into_iter().zip(limits).all(|(size, limit)| (1..=limit).contains(&size))
    };
    let Launch { grid, block, shared_bytes, .. } = launch;
    let threads: u64 = block.iter().map(|&size| u64::from(size)).product();
    require(within(*grid, GRID_LIMITS), || format!("no device starts {grid:?} blocks"))?;
    require(within(*block, BLOCK_LIMITS) && threads <= BLOCK_THREADS_LIMIT, || {
        format!("no device starts blocks of {block:?} threads")
    })?;
    require(*shared_bytes <= SHARED_LIMIT, || format!("no device has {shared_bytes} bytes of shared memory"))
}

/// Everything that the instructions need code for has a call.
fn check_all_there(section: &DeviceSection, program: &Program) -> Check {
    program.works().into_iter().try_for_each(|work| {
        require(section.call(&work).is_some(), || format!("no device call performs {work:?}"))
    })
}
