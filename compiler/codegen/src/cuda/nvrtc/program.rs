//! The calls into NVRTC, each checked. A program is destroyed however its compilation ends.

use super::{Binary, Job, NvrtcError};
use cudarc::nvrtc::{result, sys};
use std::ffi::{CStr, CString, c_char};

/// Major and minor version of the loaded library.
pub(super) fn version() -> Result<(i32, i32), NvrtcError> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both pointers are to integers of ours.
    let outcome = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    outcome.result().map_err(|error| failed("tell its version", error))?;
    Ok((major, minor))
}

/// Compiles one file.
pub(super) fn compile(job: Job<'_>, options: &[String]) -> Result<Binary, NvrtcError> {
    let source = CString::new(job.source).map_err(|_| NvrtcError::Call {
        what: "take the source",
        message: "it holds a character 0".to_owned(),
    })?;
    // An absolute name, or the working directory would be in what is compiled.
    let program = result::create_program(&source, Some(c"/./kernels.cu"))
        .map_err(|error| failed("take the source", error))?;
    let program = Program { handle: program, _source: source };
    // SAFETY: the handle came from `create_program` and is destroyed only when `program` is dropped.
    let compiled = unsafe { result::compile_program(program.handle, options) };
    // SAFETY: as above.
    let log = unsafe { result::get_program_log(program.handle) };
    let log = text(&log.map_err(|error| failed("give its log", error))?);
    if let Err(error) = compiled {
        let is_refusal = error.0 == sys::nvrtcResult::NVRTC_ERROR_COMPILATION;
        return Err(match is_refusal {
            true => NvrtcError::Refused { architecture: job.architecture, log },
            false => failed("compile", error),
        });
    }
    // SAFETY: as above.
    let ptx = unsafe { result::get_ptx(program.handle) };
    let ptx = text(&ptx.map_err(|error| failed("give PTX", error))?);
    Ok(Binary { ptx, cubin: program.cubin()?, log })
}

/// A program of the library.
struct Program {
    handle: sys::nvrtcProgram,
    /// The library may refer to it.
    _source: CString,
}

impl Program {
    /// The machine code.
    fn cubin(&self) -> Result<Vec<u8>, NvrtcError> {
        let mut size = 0;
        // SAFETY: the handle is alive, the pointer is to an integer of ours.
        let outcome = unsafe { sys::nvrtcGetCUBINSize(self.handle, &mut size) };
        outcome.result().map_err(|error| failed("give the size of machine code", error))?;
        let mut cubin = vec![0u8; size];
        // SAFETY: the library writes as many bytes as it has just said.
        let outcome = unsafe { sys::nvrtcGetCUBIN(self.handle, cubin.as_mut_ptr().cast::<c_char>()) };
        outcome.result().map_err(|error| failed("give machine code", error))?;
        Ok(cubin)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the handle is alive, and nothing uses it any more. That it can't be destroyed leaks it at worst.
        let _ = unsafe { result::destroy_program(self.handle) };
    }
}

/// Text that ends where the library's does, with a 0.
fn text(characters: &[c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().map(|&character| character.cast_unsigned()).collect();
    let text = CStr::from_bytes_until_nul(&bytes).map_or(bytes.as_slice(), CStr::to_bytes);
    String::from_utf8_lossy(text).into_owned()
}

fn failed(what: &'static str, error: result::NvrtcError) -> NvrtcError {
    NvrtcError::Call { what, message: error.to_string() }
}
