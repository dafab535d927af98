//! Loading code: machine code where it is of the GPU's architecture, else the PTX, which the driver compiles.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use super::calls::{
    check, cuFuncGetParamInfo, cuModuleGetFunction, cuModuleLoadDataEx, cuModuleUnload, meaning,
};
use super::tables::Kernel;
use super::{Gpu, version_text};
use cudarc::driver::sys::{CUjit_option, CUmodule, CUresult};
use dtlc_emulator::{DriverError, KernelHandle, ModuleHandle, ModuleImage};

/// Room for what the driver's compiler says.
const LOG_BYTES: usize = 16 << 10;

impl Gpu {
    pub(super) fn load_module(&self, image: &ModuleImage<'_>) -> Result<ModuleHandle, DriverError> {
        self.enter()?;
        let refused = |reason: String| DriverError::Device(format!("module `{}`: {reason}", image.name));
        let needed = toolkit_of(image.ptx).unwrap_or(0);
        let has_machine_code = !image.cubin.is_empty();
        // Machine code of a toolkit runs with each driver of its major version, PTX with those that are not older.
        let is_too_old =
            if has_machine_code { self.version / 1000 < needed / 1000 } else { self.version < needed };
        if is_too_old {
            return Err(refused(format!(
                "it was compiled for CUDA {} and the driver is for CUDA {}; install a newer driver, 580 or later",
                version_text(needed),
                version_text(self.version)
            )));
        }
        let mut module = std::ptr::null_mut();
        if has_machine_code {
            // SAFETY: the image is a whole file of machine code, which says its own length.
            let loaded = unsafe { load(&mut module, image.cubin.as_ptr().cast(), None) };
            if loaded != CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU {
                let what = || format!("loading machine code of module `{}`", image.name);
                return check(loaded, what).map(|()| self.keep_module(module));
            }
        }
        self.load_ptx(image, module)
    }

    fn load_ptx(&self, image: &ModuleImage<'_>, mut module: CUmodule) -> Result<ModuleHandle, DriverError> {
        let refused = |reason: String| DriverError::Device(format!("module `{}`: {reason}", image.name));
        let (major, minor) = self.capability;
        if let Some(wanted) = architecture_of(image.ptx)
            && wanted > major * 10 + minor
        {
            return Err(refused(format!(
                "it is for sm_{wanted} and later; {} is sm_{major}{minor}",
                self.name
            )));
        }
        let text = CString::new(image.ptx).map_err(|_| refused("its PTX holds a character 0".to_owned()))?;
        let mut log = vec![0_u8; LOG_BYTES];
        // SAFETY: the text ends with 0, and the log has room for as much as is said.
        let loaded = unsafe { load(&mut module, text.as_ptr().cast(), Some(&mut log)) };
        if loaded == CUresult::CUDA_SUCCESS {
            return Ok(self.keep_module(module));
        }
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
        let log = String::from_utf8_lossy(&log[..end]);
        let said = if log.trim().is_empty() { String::new() } else { format!("\n{}", log.trim_end()) };
        Err(refused(format!("the driver does not take its PTX: {}{said}", meaning(loaded))))
    }

    fn keep_module(&self, module: CUmodule) -> ModuleHandle {
        let mut tables = self.tables();
        tables.modules.push(Some(module));
        ModuleHandle(tables.modules.len() as u64 - 1)
    }

    pub(super) fn unload_module(&self, module: ModuleHandle) -> Result<(), DriverError> {
        self.enter()?;
        let mut tables = self.tables();
        let raw = tables.module(module)?;
        tables.modules[module.0 as usize] = None;
        // SAFETY: the module is loaded, and no handle leads to it any more.
        check(unsafe { cuModuleUnload(raw) }, || "unloading a module".to_owned())
    }

    pub(super) fn find_kernel(&self, module: ModuleHandle, name: &str) -> Result<KernelHandle, DriverError> {
        self.enter()?;
        let mut tables = self.tables();
        let raw = tables.module(module)?;
        let none = || DriverError::NoSuchKernel(name.to_owned());
        let text = CString::new(name).map_err(|_| none())?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded, the name ends with 0, the pointer is to a pointer of ours.
        let found = unsafe { cuModuleGetFunction(&raw mut function, raw, text.as_ptr()) };
        if found == CUresult::CUDA_ERROR_NOT_FOUND {
            return Err(none());
        }
        check(found, || format!("looking for kernel `{name}`"))?;
        let mut parameters = Vec::new();
        loop {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: the function is the module's, the pointers are to integers of ours.
            let told =
                unsafe { cuFuncGetParamInfo(function, parameters.len(), &raw mut offset, &raw mut size) };
            if told == CUresult::CUDA_ERROR_INVALID_VALUE {
                break;
            }
            check(told, || format!("asking for the parameters of kernel `{name}`"))?;
            parameters.push(size);
        }
        let (name, parameters) = (Arc::from(name), parameters.into());
        tables.kernels.push(Kernel { function, name, parameters, module, shared_bytes: 48 << 10 });
        Ok(KernelHandle(tables.kernels.len() as u64 - 1))
    }
}

/// Loads an image; with a log, what is said of errors goes there.
///
/// # Safety
/// The image is whole, and the context is current.
unsafe fn load(module: &mut CUmodule, image: *const c_void, log: Option<&mut [u8]>) -> CUresult {
    let Some(log) = log else {
        // SAFETY: the caller's; there are no options.
        return unsafe { cuModuleLoadDataEx(module, image, 0, std::ptr::null_mut(), std::ptr::null_mut()) };
    };
    let mut options = [
        CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
        CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        CUjit_option::CU_JIT_GENERATE_LINE_INFO,
    ];
    let number = |number: usize| std::ptr::without_provenance_mut::<c_void>(number);
    let mut values = [log.as_mut_ptr().cast::<c_void>(), number(log.len()), number(1)];
    let (count, options, values) = (options.len() as u32, options.as_mut_ptr(), values.as_mut_ptr());
    // SAFETY: the caller's; there are as many values as options, and the log is as long as they say.
    unsafe { cuModuleLoadDataEx(module, image, count, options, values) }
}

/// The directive of a PTX text, without its name.
fn directive<'a>(ptx: &'a str, name: &str) -> Option<&'a str> {
    ptx.lines().find_map(|line| line.trim().strip_prefix(name)).map(str::trim)
}

/// The version of CUDA, as the driver tells its own, that a PTX text came with: the first whose driver takes it.
fn toolkit_of(ptx: &str) -> Option<i32> {
    let (major, minor) = directive(ptx, ".version")?.split_once('.')?;
    let (major, minor): (i32, i32) = (major.parse().ok()?, minor.parse().ok()?);
    Some(match (major, minor) {
        (..=6, _) => 0,
        (7, _) => 11_000 + minor * 10,
        (8, ..=5) => 12_000 + minor * 10,
        (8, _) => 12_000 + (minor + 1) * 10,
        _ => (major + 4) * 1000 + minor * 10,
    })
}

/// The lowest compute capability, as one number, that a PTX text is for.
fn architecture_of(ptx: &str) -> Option<u32> {
    let target = directive(ptx, ".target")?;
    let digits: String =
        target.chars().skip_while(|it| !it.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{architecture_of, toolkit_of};

    #[test]
    fn a_text_says_what_driver_and_architecture_it_needs() {
        let text = |version: &str| format!("//\n.version {version}\n.target sm_90a\n.address_size 64\n");
        for (version, toolkit) in
            [("9.0", 13_000), ("9.1", 13_010), ("8.5", 12_050), ("8.8", 12_090), ("7.8", 11_080)]
        {
            assert_eq!(toolkit_of(&text(version)), Some(toolkit), "{version}");
        }
        assert_eq!(architecture_of(&text("9.0")), Some(90));
        assert_eq!((toolkit_of("nothing"), architecture_of("nothing")), (None, None));
    }
}
