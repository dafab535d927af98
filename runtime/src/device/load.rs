//! A program's code on a device: modules loaded, functions found by name, launches ready to start.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::{Result, RuntimeError};
use crate::program::Program;
use crate::program::device::{Cubin, Launch, LaunchArgument, Work};
use dtlc_emulator::{CudaDriver, DriverError, KernelHandle, LaunchShape, ModuleHandle, ModuleImage};
use dtlc_kernels::cuda;

/// A launch whose kernel is loaded.
#[derive(Clone, Debug)]
pub struct ReadyLaunch {
    pub kernel: KernelHandle,
    pub shape: LaunchShape,
    pub arguments: Box<[LaunchArgument]>,
    /// What may run in its place on this device.
    pub alternative: Option<Box<ReadyLaunch>>,
}

/// A program's code on a device, for all ranks there.
pub struct Loaded {
    driver: Arc<dyn CudaDriver>,
    modules: Vec<ModuleHandle>,
    /// In the order of the section's functions; none of those for other devices.
    functions: Vec<Option<KernelHandle>>,
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
        let mut handles = Vec::new();
        for module in &section.modules {
            if module.capability.is_some_and(|only| only != [major, minor]) {
                handles.push(None);
                continue;
            }
            let cubin = module.cubins.iter().find(fits).map_or(&[][..], |cubin| &cubin.bytes);
            let image = ModuleImage { name: &module.name, ptx: &module.ptx, cubin };
            let module = loaded.driver.load(&image).map_err(fault)?;
            loaded.modules.push(module);
            handles.push(Some(module));
        }
        for function in &section.functions {
            let handle = handles[function.module as usize].map(|module| {
                let handle = loaded.driver.kernel(module, &function.name).map_err(fault)?;
                loaded.names.insert(function.name.clone(), handle);
                Ok::<_, RuntimeError>(handle)
            });
            loaded.functions.push(handle.transpose()?);
        }
        for call in &section.calls {
            let launch = |(position, launch): (usize, &Launch)| {
                let missing = || RuntimeError::Bug("a launch is for other devices only".into());
                let alternative = call.alternatives.iter().find(|it| it.position as usize == position);
                let alternative = alternative.and_then(|it| loaded.launch(&it.launch)).map(Box::new);
                Ok(ReadyLaunch { alternative, ..loaded.launch(launch).ok_or_else(missing)? })
            };
            let launches = call.launches.iter().enumerate().map(launch).collect::<Result<_>>()?;
            loaded.calls.push(launches);
        }
        Ok(loaded)
    }

    /// A launch whose kernel this device has.
    fn launch(&self, launch: &Launch) -> Option<ReadyLaunch> {
        let Launch { function, grid, block, shared_bytes, ref arguments } = *launch;
        let shape = LaunchShape { grid, block, shared_bytes };
        let kernel = self.functions[function as usize]?;
        Some(ReadyLaunch { kernel, shape, arguments: arguments.clone().into(), alternative: None })
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
            Ok(ReadyLaunch { kernel, shape, arguments, alternative: None })
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
