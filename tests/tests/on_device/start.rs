//! Starts an assembled program on an emulated device of its own.

use crate::library::nvrtc;
use dtlc_codegen::assemble::Assembled;
use dtlc_codegen::device::add_device_code;
use dtlc_emulator::Emulator;
use dtlc_runtime::session::{ArenaStart, Options, Session};
use dtlc_tests::backend::{options, reread};
use std::sync::Arc;

/// With an arena that nothing has written to, so that the emulator notices a read of it.
pub fn on_device(mut assembled: Assembled) -> Result<Session, String> {
    let nvrtc = nvrtc().ok_or("there is no NVRTC")?;
    add_device_code(&mut assembled, nvrtc, &[]).map_err(|error| error.to_string())?;
    let options = Options { arena: ArenaStart::AsLeft, ..options() };
    let device = Arc::new(Emulator::default());
    Session::start_on(device, reread(&assembled)?, options).map_err(|error| error.to_string())
}
