//! Loads a program's machine code into executable memory.
//!
//! Pages are writable while the code is copied in and executable after, never both.

use super::memory::Region;
use crate::error::{Result, RuntimeError};
use crate::program::{KernelEntry, Program};

/// A generated kernel: tensor addresses, integers, and the part of its outermost loop to run.
pub type KernelFunction = unsafe extern "C" fn(*const *mut u8, *const i64, i64, i64);

/// The machine code of a program, ready to run while this lives.
#[derive(Debug)]
pub struct LoadedCode {
    region: Region,
    bytes: u64,
}

impl LoadedCode {
    /// Copies the program's code into memory of its own.
    ///
    /// # Errors
    /// The system has no room or refuses executable memory.
    pub fn load(program: &Program) -> Result<Self> {
        let bytes = program.code.len() as u64;
        let mut region = Region::new(bytes, "machine code")?;
        // SAFETY: the region was just made, so nobody else has its address.
        unsafe { region.contents_mut() }.copy_from_slice(&program.code);
        region.make_executable()?;
        Ok(Self { region, bytes })
    }

    /// The function of a kernel of the same program.
    ///
    /// # Errors
    /// Its range lies outside the code, which validation rules out.
    pub fn function(&self, kernel: &KernelEntry) -> Result<KernelFunction> {
        if kernel.code_offset >= self.bytes {
            return Err(RuntimeError::Bug(format!("kernel `{}` lies outside the code", kernel.name)));
        }
        // SAFETY: the offset lies inside the mapping, and the compiler put the entry point of a
        // function of this type there.
        unsafe {
            let entry = self.region.address().add(kernel.code_offset as usize);
            Ok(std::mem::transmute::<*mut u8, KernelFunction>(entry))
        }
    }
}
