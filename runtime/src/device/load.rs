//! A program's code on a device: modules loaded, functions found by name, launches ready to start.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::{Result, RuntimeError};
use crate::program::Program;
use crate::program::device::{Cubin, LaunchArgument, Work};
use dtlc_emulator::{CudaDriver, DriverError, KernelHandle, LaunchShape, ModuleHandle, ModuleImage};
use dtlc_kernels::cuda;

/// A launch whose kernel is loaded.
#[derive(Clone, Debug)]
pub struct ReadyLaunch {
    pub kernel: KernelHandle,
    pub shape: LaunchShape,
    pub arguments: Box<[LaunchArgument]>,
}

/// A program's code on a device, for all ranks there.
pub struct Loaded {
    driver: Arc<dyn CudaDriver>,
    modules: Vec<ModuleHandle>,
    /// In the order of the section's functions.
    functions: Vec<KernelHandle>,
    names: HashMap<String, KernelHandle>,
    /// In the order of the section's calls.
    calls: Vec<Arc<[ReadyLaunch]>>,
}

impl Loaded {
    /// Loads what a program has for devices.
    ///
    /// # Errors
    /// It has nothing, or the device does not take it.
    pub fn new(driver: Arc<dyn CudaDriver>, program: &Program) -> Result<Self> {
        let section = program.device.as_ref();
        let nothing = || RuntimeError::Bug("the program was compiled without code for devices".into());
        let section = section.ok_or_else(nothing)?;
        let fault = |error: DriverError| RuntimeError::of_device("the program's code", &error);
        let (major, minor) = driver.capability();
        let fits = |cubin: &&Cubin| cubin.capability == [major, minor];
        let mut loaded = Self {
            driver,
            modules: Vec::new(),
            functions: Vec::new(),
            names: HashMap::new(),
            calls: Vec::new(),
        };
        for module in &section.modules {
            let cubin = module.cubins.iter().find(fits).map_or(&[][..], |cubin| &cubin.bytes);
            let image = ModuleImage { name: &module.name, ptx: &module.ptx, cubin };
            let module = loaded.driver.load(&image).map_err(fault)?;
            loaded.modules.push(module);
        }
        for function in &section.functions {
            let module = loaded.modules[function.module as usize];
            let handle = loaded.driver.kernel(module, &function.name).map_err(fault)?;
            loaded.functions.push(handle);
            loaded.names.insert(function.name.clone(), handle);
        }
        for call in &section.calls {
            let launch = |launch: &crate::program::device::Launch| ReadyLaunch {
                kernel: loaded.functions[launch.function as usize],
                shape: LaunchShape {
                    grid: launch.grid,
                    block: launch.block,
                    shared_bytes: launch.shared_bytes,
                },
                arguments: launch.arguments.clone().into(),
            };
            let launches = call.launches.iter().map(launch).collect();
            loaded.calls.push(launches);
        }
        Ok(loaded)
    }

    /// The device.
    pub fn driver(&self) -> &Arc<dyn CudaDriver> {
        &self.driver
    }

    /// How the device performs some work of the same program.
    pub fn launches(&self, program: &Program, work: &Work) -> Option<Arc<[ReadyLaunch]>> {
        let calls = &program.device.as_ref()?.calls;
        let position = calls.iter().position(|call| call.work == *work)?;
        self.calls.get(position).cloned()
    }

    /// Launches that the kernels' library describes, on the functions that were compiled for it.
    pub fn ready(&self, call: &cuda::DeviceCall) -> std::result::Result<Arc<[ReadyLaunch]>, DriverError> {
        let launch = |launch: &cuda::DeviceLaunch| {
            let kernel = self.names.get(&launch.name).copied();
            let kernel = kernel.ok_or_else(|| DriverError::NoSuchKernel(launch.name.clone()))?;
            let shape =
                LaunchShape { grid: launch.grid, block: launch.block, shared_bytes: launch.shared_bytes };
            let arguments = launch.arguments.iter().map(|&argument| argument.into()).collect();
            Ok(ReadyLaunch { kernel, shape, arguments })
        };
        call.launches.iter().map(launch).collect()
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        for &module in &self.modules {
            // A device that is broken was reported when it broke.
            let _ = self.driver.unload(module);
        }
    }
}
