//! Targets of what comes from files between and behind the stages: the IR's text, artifacts, safetensors.

use dtlc_ir::{text, verify};
use dtlc_runtime::RuntimeError;
use dtlc_runtime::files::safetensors::{TensorFile, read_all};
use dtlc_runtime::program::{DType, Program};
use dtlc_runtime::session::{Options, Session};
use std::io::Write;

/// Bytes of an artifact before its payload.
pub(super) const HEADER_BYTES: usize = 88;
/// Sessions of more are not started: each rank is a thread.
const MOST_RANKS: u64 = 8;
/// Nor are those of more bytes a rank.
const MOST_BYTES: u64 = 1 << 24;

/// Any text parses to a program that prints and parses to itself, or is refused; the verifiers take whatever parses.
///
/// # Panics
/// Where that is not so.
pub fn ir_text(bytes: &[u8]) {
    let Ok(source) = std::str::from_utf8(bytes) else { return };
    let program = match text::parse(source) {
        Ok(program) => program,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let printed = text::print(&program);
    let again =
        text::parse(&printed).unwrap_or_else(|error| panic!("{error}\nin what was printed:\n{printed}"));
    assert_eq!(text::print(&again), printed, "printed otherwise once it is read");
    let faults = [
        verify::logical(&program).err(),
        verify::joint(&program).err(),
        verify::sharded(&program).err(),
        verify::scheduled(&program).err(),
    ];
    assert!(faults.iter().flatten().all(|fault| !fault.to_string().is_empty()));
}

/// Any bytes load as a program that is written as it was read, or are refused. Since damage is found by its digest, the
/// bytes are tried again under a digest that fits them. What loads also starts; it is not run, as code is code.
///
/// # Panics
/// Where that is not so.
pub fn program(bytes: &[u8]) {
    load(bytes);
    if let Some(sealed) = seal(bytes) {
        load(&sealed);
    }
}

/// The same bytes with a header whose length and digest fit.
pub(super) fn seal(bytes: &[u8]) -> Option<Vec<u8>> {
    let payload = bytes.get(HEADER_BYTES..)?;
    let mut sealed = bytes.to_vec();
    sealed[16..24].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    sealed[56..HEADER_BYTES].copy_from_slice(blake3::hash(payload).as_bytes());
    Some(sealed)
}

fn load(bytes: &[u8]) {
    let program = match Program::from_bytes(bytes) {
        Ok(program) => program,
        Err(RuntimeError::Artifact(_)) => return,
        Err(other) => panic!("refused as something else: {other:?}"),
    };
    let written = program.to_bytes().expect("what was read is valid");
    let again = Program::from_bytes(&written).expect("what was written is valid");
    // Bytes are compared, not programs: a fill with not-a-number is not equal to itself.
    assert_eq!(again.to_bytes().as_ref(), Ok(&written), "written otherwise than read");
    if program.mesh.ranks() <= MOST_RANKS && program.rank_bytes(1) <= MOST_BYTES {
        match Session::start(program, Options { threads: Some(1), ..Options::default() }) {
            Ok(_) | Err(RuntimeError::Fault(_) | RuntimeError::Artifact(_) | RuntimeError::Input(_)) => {}
            Err(other) => panic!("valid, and does not start: {other:?}"),
        }
    }
}

/// Any file of tensors opens and gives all its tensors, or is refused.
///
/// # Panics
/// Where that is not so.
pub fn tensors(bytes: &[u8]) {
    let mut file = tempfile::NamedTempFile::new().expect("a file can be made");
    file.write_all(bytes).expect("it can be written");
    let Ok(opened) = TensorFile::open(file.path()) else { return };
    for (name, entry) in opened.entries() {
        let elements: u64 = entry.shape.iter().product();
        for dtype in [DType::F32, DType::Bf16, DType::F16, DType::I32, DType::U32, DType::Bool] {
            if let Ok(read) = opened.read(name, dtype) {
                assert_eq!(read.len() as u64, elements * dtype.bytes(), "`{name}` as {}", dtype.name());
            }
        }
    }
    if let Ok(all) = read_all(file.path()) {
        assert_eq!(all.len(), opened.entries().len());
    }
}
