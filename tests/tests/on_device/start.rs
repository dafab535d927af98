//! Starts an assembled program on an emulated device of its own.

use crate::library::nvrtc;
use dtlc_codegen::assemble::Assembled;
use dtlc_codegen::device::add_device_code;
use dtlc_emulator::Emulator;
use dtlc_runtime::session::{ArenaStart, Options, Session};
use dtlc_tests::backend::{options, reread};
use std::sync::Arc;

/// With an arena that nothing has written to, so that the emulator notices a read of it.
pub fn on_device(assembled: Assembled) -> Result<Session, String> {
    start(assembled, |ptx| ptx)
}

/// The same with a fault in every kernel that rounds to bf16: towards zero, not to the nearest.
pub fn truncating(assembled: Assembled) -> Result<Session, String> {
    start(assembled, |ptx| ptx.replace(", 32767;", ", 0;"))
}

fn start(mut assembled: Assembled, changed: impl Fn(String) -> String) -> Result<Session, String> {
    let nvrtc = nvrtc().ok_or("there is no NVRTC")?;
    add_device_code(&mut assembled, nvrtc, &[]).map_err(|error| error.to_string())?;
    let modules = assembled.program.device.iter_mut().flat_map(|section| &mut section.modules);
    modules.for_each(|module| module.ptx = changed(std::mem::take(&mut module.ptx)));
    let options = Options { arena: ArenaStart::AsLeft, ..options() };
    let device = Arc::new(Emulator::default());
    Session::start_on(device, reread(&assembled)?, options).map_err(|error| error.to_string())
}
