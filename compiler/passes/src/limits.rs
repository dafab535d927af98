//! What one rank can hold, address and loop over: a `scheduled` program is held to it before its memory is planned.
//!
//! Sizes of a language go further than those of a machine. Behind this check sums of a few sizes stay in range.
//! Changes nothing.

use crate::error::{PassError, PassErrorKind};
use dtlc_ir::memory::MemoryPlan;
use dtlc_ir::{Op, Program, Region, Value};

/// Bytes of a tensor on one rank, and of all that a rank holds.
pub const MOST_BYTES: u64 = 1 << 46;
/// Dimensions of a tensor.
pub const MOST_DIMS: usize = 32;
/// Loops in each other.
pub const MOST_LOOPS: usize = 8;
/// Iterations of a loop.
pub const MOST_ITERATIONS: u64 = u32::MAX as u64;

/// Sizes that a report lists.
const MOST_SHOWN: usize = 8;

/// Checks every value and every loop.
///
/// # Errors
/// The first that is too large.
pub fn check_limits(program: &Program) -> Result<(), PassError> {
    for state in &program.states {
        let bytes = program.ty(state.value).elements(program).saturating_mul(4);
        if bytes > MOST_BYTES {
            return Err(too_large(program, state.value, bytes, "in all"));
        }
    }
    check_region(program, &program.main, 0)
}

/// Checks what a rank holds in all.
///
/// # Errors
/// It is too much; the largest buffer is named.
pub fn check_memory(program: &Program, memory: &MemoryPlan) -> Result<(), PassError> {
    let bytes = memory.peak_bytes();
    if bytes <= MOST_BYTES {
        return Ok(());
    }
    let text = format!("a rank needs {bytes} bytes, and none can have more than {MOST_BYTES}");
    let states = program.states.iter().map(|state| state.value);
    let arena = memory.peak.iter().copied();
    let largest = states.chain(arena).max_by_key(|&value| program.ty(value).local_bytes(program));
    Err(match largest {
        Some(value) => PassError::at_value(PassErrorKind::TooLarge, program, value, text),
        None => PassError::nowhere(PassErrorKind::TooLarge, text),
    })
}

fn check_region(program: &Program, region: &Region, depth: usize) -> Result<(), PassError> {
    for &value in &region.params {
        check_value(program, value)?;
    }
    for inst in &region.insts {
        for &value in &inst.results {
            check_value(program, value)?;
        }
        let mut inner = depth;
        if let Op::Scan(scan) = &inst.op {
            inner += 1;
            let (name, size) = (&program.dims[scan.dim].name, program.dims[scan.dim].size);
            let text = if size > MOST_ITERATIONS {
                Some(format!("{size} iterations over `{name}`, and {MOST_ITERATIONS} can be counted"))
            } else {
                (inner > MOST_LOOPS).then(|| format!("more than {MOST_LOOPS} loops in each other"))
            };
            if let Some(text) = text {
                return Err(match inst.results.first() {
                    Some(&value) => PassError::at_value(PassErrorKind::Limit, program, value, text),
                    None => PassError::nowhere(PassErrorKind::Limit, text),
                });
            }
        }
        if let Some(body) = inst.op.region() {
            check_region(program, body, inner)?;
        }
    }
    Ok(())
}

fn check_value(program: &Program, value: Value) -> Result<(), PassError> {
    let ty = program.ty(value);
    if ty.dims.len() > MOST_DIMS {
        let text = format!("a tensor of {} dimensions, and {MOST_DIMS} are the most", ty.dims.len());
        return Err(PassError::at_value(PassErrorKind::Limit, program, value, text));
    }
    match ty.local_bytes(program) {
        bytes if bytes > MOST_BYTES => Err(too_large(program, value, bytes, "on each rank")),
        _ => Ok(()),
    }
}

fn too_large(program: &Program, value: Value, bytes: u64, scope: &str) -> PassError {
    let ty = program.ty(value);
    let size = |&dim| format!("{} = {}", program.dims[dim].name, program.dims[dim].size);
    let mut sizes = ty.dims.iter().take(MOST_SHOWN).map(size).collect::<Vec<_>>();
    if ty.dims.len() > MOST_SHOWN {
        sizes.push("…".to_owned());
    }
    let sizes = sizes.join(", ");
    let bytes = if bytes == u64::MAX { "2^64 bytes or more".to_owned() } else { format!("{bytes} bytes") };
    let text = format!("{bytes} {scope} for one tensor, and {MOST_BYTES} are the most ({sizes})");
    PassError::at_value(PassErrorKind::TooLarge, program, value, text)
}
