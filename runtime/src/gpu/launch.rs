//! Starting kernels: their arguments as the library wants them, and the shared memory that must be asked for first.

use std::ffi::c_void;
use std::sync::Arc;

use super::Gpu;
use super::calls::{check, cuFuncSetAttribute, cuLaunchKernel};
use super::tables::{Kernel, Node};
use cudarc::driver::sys::{CUfunction_attribute, CUresult};
use dtlc_emulator::{Argument, DriverError, KernelHandle, LaunchShape, Stream};

/// Parameters that fit without an allocation.
const MOST: usize = 32;

impl Gpu {
    pub(super) fn start(
        &self,
        kernel: KernelHandle,
        shape: LaunchShape,
        arguments: &[Argument],
        stream: Stream,
    ) -> Result<(), DriverError> {
        self.enter()?;
        let mut tables = self.tables();
        let raw = tables.stream(stream)?.raw;
        let found = tables.kernel(kernel)?;
        allow_shared_memory(found, shape.shared_bytes)?;
        let found = found.clone();
        let (grid, block) = (shape.grid, shape.block);
        packed(&found, arguments, |pointers| {
            let none = std::ptr::null_mut();
            // SAFETY: kernel and stream are alive; `packed` has checked the arguments, which the library copies.
            unsafe {
                cuLaunchKernel(
                    found.function,
                    grid[0],
                    grid[1],
                    grid[2],
                    block[0],
                    block[1],
                    block[2],
                    shape.shared_bytes,
                    raw,
                    pointers,
                    none,
                )
            }
        })?;
        tables.stream(stream)?.last = Some(Arc::clone(&found.name));
        if tables.captures.is_empty() {
            return Ok(());
        }
        if let Some((id, nodes)) = self.capture_of(raw)?
            && let [node] = nodes[..]
        {
            tables.captures.entry(id).or_default().push(Node { node, kernel: found, shape });
        }
        Ok(())
    }
}

/// Asks for dynamic shared memory beyond what each kernel may have.
fn allow_shared_memory(kernel: &mut Kernel, bytes: u32) -> Result<(), DriverError> {
    if bytes <= kernel.shared_bytes {
        return Ok(());
    }
    let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: the kernel's module is loaded.
    let allowed = unsafe { cuFuncSetAttribute(kernel.function, attribute, bytes as i32) };
    check(allowed, || format!("asking for {bytes} bytes of shared memory for kernel `{}`", kernel.name))?;
    kernel.shared_bytes = bytes;
    Ok(())
}

/// Calls with a pointer to each argument, if they are what the kernel takes.
pub(super) fn packed(
    kernel: &Kernel,
    arguments: &[Argument],
    call: impl FnOnce(*mut *mut c_void) -> CUresult,
) -> Result<(), DriverError> {
    let wrong = |reason: String| DriverError::BadLaunch { kernel: kernel.name.to_string(), reason };
    if arguments.len() != kernel.parameters.len() {
        return Err(wrong(format!("{} arguments; it takes {}", arguments.len(), kernel.parameters.len())));
    }
    for (index, (argument, bytes)) in arguments.iter().zip(&*kernel.parameters).enumerate() {
        if size(argument) != *bytes {
            return Err(wrong(format!("argument {index} has {} bytes; it takes {bytes}", size(argument))));
        }
    }
    let mut few = [std::ptr::null_mut(); MOST];
    let mut many = Vec::new();
    let pointers = match few.get_mut(..arguments.len()) {
        Some(few) => few,
        None => {
            many.resize(arguments.len(), std::ptr::null_mut());
            &mut many[..]
        }
    };
    for (pointer, argument) in pointers.iter_mut().zip(arguments) {
        *pointer = place(argument).cast_mut();
    }
    check(call(pointers.as_mut_ptr()), || format!("launching kernel `{}`", kernel.name))
}

fn size(argument: &Argument) -> usize {
    match argument {
        Argument::U32(_) | Argument::I32(_) | Argument::F32(_) => 4,
        Argument::Pointer(_) | Argument::U64(_) | Argument::I64(_) | Argument::F64(_) => 8,
        Argument::Bytes(bytes) => bytes.len(),
    }
}

/// Where an argument lies as it is passed.
fn place(argument: &Argument) -> *const c_void {
    match argument {
        Argument::Pointer(value) => std::ptr::from_ref(&value.0).cast(),
        Argument::U32(value) => std::ptr::from_ref(value).cast(),
        Argument::I32(value) => std::ptr::from_ref(value).cast(),
        Argument::U64(value) => std::ptr::from_ref(value).cast(),
        Argument::I64(value) => std::ptr::from_ref(value).cast(),
        Argument::F32(value) => std::ptr::from_ref(value).cast(),
        Argument::F64(value) => std::ptr::from_ref(value).cast(),
        Argument::Bytes(bytes) => bytes.as_ptr().cast(),
    }
}
