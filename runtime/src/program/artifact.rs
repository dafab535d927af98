//! A program as bytes: a fixed header, then the program in postcard.
//!
//! | bytes | what |
//! | --- | --- |
//! | 8 | magic |
//! | 4 | format version |
//! | 4 | CPU features required |
//! | 8 | length of the payload |
//! | 32 | BLAKE3 of the payload type's source text (the schema) |
//! | 32 | BLAKE3 of the payload |
//!
//! Reading checks all of them and then every number inside, so that hostile bytes end in an error.

use serde::{Deserialize, Serialize};

use super::Program;
use crate::error::{Result, RuntimeError};

const MAGIC: [u8; 8] = *b"DTLCPROG";
const VERSION: u32 = 4;
const HEADER_BYTES: usize = 88;

/// A set of CPU features (and the architecture) that machine code needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuFeatures(pub u32);

/// Bit, name and whether this machine has it, for every feature we know.
macro_rules! feature_table {
    ($($name:tt),*) => {
        /// Names in the order of their bits; bit 0 is the architecture.
        const FEATURE_NAMES: &[&str] = &["x86-64", $($name),*];

        #[cfg(target_arch = "x86_64")]
        fn detected() -> Vec<bool> {
            vec![true, $(std::arch::is_x86_feature_detected!($name)),*]
        }
    };
}

feature_table!(
    "sse3",
    "ssse3",
    "sse4.1",
    "sse4.2",
    "popcnt",
    "avx",
    "avx2",
    "fma",
    "bmi1",
    "bmi2",
    "lzcnt",
    "avx512f",
    "avx512dq",
    "avx512vl",
    "avx512bw",
    "avx512vbmi",
    "avx512bitalg",
    "avx512bf16"
);

#[cfg(not(target_arch = "x86_64"))]
fn detected() -> Vec<bool> {
    vec![false; FEATURE_NAMES.len()]
}

impl CpuFeatures {
    /// The set of the named features, always with `x86-64`; names are spelled as Rust's
    /// `is_x86_feature_detected!` spells them.
    ///
    /// # Errors
    /// A name that is not known.
    pub fn from_names(names: &[&str]) -> Result<Self> {
        names.iter().try_fold(Self(1), |set, name| {
            match FEATURE_NAMES.iter().position(|known| known == name) {
                Some(bit) => Ok(Self(set.0 | 1 << bit)),
                None => Err(RuntimeError::Bug(format!("unknown CPU feature `{name}`"))),
            }
        })
    }

    /// What this machine has.
    #[must_use]
    pub fn host() -> Self {
        let bits = detected().into_iter().enumerate().map(|(bit, present)| u32::from(present) << bit);
        Self(bits.fold(0, |set, bit| set | bit))
    }

    /// The features in this set that `machine` lacks.
    #[must_use]
    pub fn missing_on(self, machine: Self) -> Vec<&'static str> {
        let lacking = self.0 & !machine.0;
        let names = FEATURE_NAMES.iter().enumerate();
        let mut missing: Vec<&str> =
            names.filter(|(bit, _)| lacking >> bit & 1 == 1).map(|(_, name)| *name).collect();
        if lacking >> FEATURE_NAMES.len() != 0 {
            missing.push("a feature this runtime does not know");
        }
        missing
    }
}

impl Program {
    /// The program as bytes.
    ///
    /// # Errors
    /// A program that isn't valid: a bug of the compiler.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.validate()
            .map_err(|reason| RuntimeError::Bug(format!("the assembled program is not valid: {reason}")))?;
        let payload = postcard::to_stdvec(self)
            .map_err(|error| RuntimeError::Bug(format!("the program can't be written: {error}")))?;
        let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.cpu_features.0.to_le_bytes());
        bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&schema());
        bytes.extend_from_slice(blake3::hash(&payload).as_bytes());
        bytes.extend_from_slice(&payload);
        Ok(bytes)
    }

    /// Reads a program that [`Program::to_bytes`] wrote, and checks that it can run here.
    ///
    /// # Errors
    /// Bytes that are no program, or one of another version, damaged, for another machine, or
    /// with a number in it that does not fit the rest.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let payload = checked_payload(bytes).map_err(RuntimeError::Artifact)?;
        let (program, rest): (Self, _) = postcard::take_from_bytes(payload)
            .map_err(|error| RuntimeError::Artifact(format!("its contents can't be read: {error}")))?;
        if !rest.is_empty() {
            return Err(RuntimeError::Artifact(format!(
                "{} bytes are left over behind its contents",
                rest.len()
            )));
        }
        if program.cpu_features.0 != word(bytes, 12) {
            return Err(RuntimeError::Artifact(
                "its header and its contents name different CPU features".into(),
            ));
        }
        program.validate().map_err(RuntimeError::Artifact)?;
        Ok(program)
    }
}

/// The payload behind a header that is right in all that can be seen without reading the payload.
fn checked_payload(bytes: &[u8]) -> std::result::Result<&[u8], String> {
    if bytes.len() < HEADER_BYTES || bytes[..8] != MAGIC {
        return Err("it does not start as a program does".into());
    }
    let version = word(bytes, 8);
    if version != VERSION {
        return Err(format!("its format is version {version}, this runtime reads version {VERSION}"));
    }
    if bytes[24..56] != schema() {
        return Err("it was written by another build of dtlc; compile it again".into());
    }
    let payload = &bytes[HEADER_BYTES..];
    let length = u64::from(word(bytes, 16)) | u64::from(word(bytes, 20)) << 32;
    if length != payload.len() as u64 {
        return Err(format!("it should hold {length} bytes behind its header and holds {}", payload.len()));
    }
    if bytes[56..88] != *blake3::hash(payload).as_bytes() {
        return Err("it is damaged: its checksum does not match".into());
    }
    let missing = CpuFeatures(word(bytes, 12)).missing_on(CpuFeatures::host());
    if !missing.is_empty() {
        return Err(format!("it was compiled for a CPU with {}, which this one lacks", missing.join(", ")));
    }
    Ok(payload)
}

/// The little-endian word at `offset`, which lies within the header.
fn word(bytes: &[u8], offset: usize) -> u32 {
    (0..4).fold(0, |word, index| word | u32::from(bytes[offset + index]) << (8 * index))
}

/// Changes whenever the types that make up a program change.
fn schema() -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    let sources = [
        include_str!("mod.rs"),
        include_str!("layout.rs"),
        include_str!("instruction.rs"),
        include_str!("device.rs"),
    ];
    for source in sources {
        hasher.update(source.as_bytes());
    }
    *hasher.finalize().as_bytes()
}
