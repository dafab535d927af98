//! Executables that carry a program: this executable, with the program behind it.
//!
//! ```text
//! executable | header, JSON | program's artifact | bytes of the header, u64 | of the program, u64 | mark
//! ```
//!
//! Nothing is unpacked: a built file reads its own end, and knows by `STAMP` when that is gone. Numbers are little-endian.

use dtlc_runtime::files::values::IndexBound;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// The last bytes of a built file.
const MARK: &[u8; 16] = b"dtlc program 1\r\n";
/// Lies once in each executable; in a built one, it ends in [`BUILT`].
static STAMP: [u8; 32] = *b"dtlc: a program behind this? no.";
/// What a built file's stamp ends in.
const BUILT: &[u8; 4] = b"yes.";
/// The two lengths and the mark.
const TRAILER: u64 = 32;
/// No header is longer.
const HEADER_LIMIT: u64 = 1 << 24;

/// What a built file says of its program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The model.
    pub model: String,
    /// The plan.
    pub plan: String,
    /// Where it runs if nobody says otherwise: a value of `--device`.
    pub device: String,
    /// What integer inputs index.
    pub bounds: Vec<IndexBound>,
}

/// A program with what is said of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// What is said.
    pub header: Header,
    /// The program's artifact.
    pub program: Vec<u8>,
}

impl Bundle {
    /// The bytes of an executable that carries this, made of this one's own.
    ///
    /// # Errors
    /// Those are not of an executable that carries nothing.
    pub fn behind(&self, mut executable: Vec<u8>) -> io::Result<Vec<u8>> {
        let stamp: &[u8] = black_box(&STAMP);
        let mut places = executable.windows(stamp.len()).enumerate().filter(|(_, bytes)| *bytes == stamp);
        let (Some((place, _)), None) = (places.next(), places.next()) else {
            return Err(damaged("it is not as the compiler left it"));
        };
        let end = place + stamp.len();
        executable[end - BUILT.len()..end].copy_from_slice(BUILT);
        let header = serde_json::to_vec(&self.header)?;
        executable.extend_from_slice(&header);
        executable.extend_from_slice(&self.program);
        executable.extend_from_slice(&(header.len() as u64).to_le_bytes());
        executable.extend_from_slice(&(self.program.len() as u64).to_le_bytes());
        executable.extend_from_slice(MARK);
        Ok(executable)
    }

    /// What the running executable, which is that file, carries; none if it is not a built one.
    ///
    /// # Errors
    /// It can't be read, or was built and has been damaged since.
    pub fn of_this(executable: &Path) -> io::Result<Option<Bundle>> {
        match Bundle::of(executable)? {
            None if black_box(&STAMP).ends_with(BUILT) => Err(damaged("its end is not there")),
            found => Ok(found),
        }
    }

    fn of(executable: &Path) -> io::Result<Option<Bundle>> {
        let mut file = File::open(executable)?;
        let length = file.metadata()?.len();
        let Some(end) = length.checked_sub(TRAILER) else { return Ok(None) };
        let mut trailer = [0; TRAILER as usize];
        file.seek(SeekFrom::Start(end))?;
        file.read_exact(&mut trailer)?;
        let (numbers, mark) = trailer.split_at(16);
        if mark != MARK {
            return Ok(None);
        }
        let number = |bytes: Option<&[u8; 8]>| bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let (header, program) = (number(numbers.first_chunk()), number(numbers.last_chunk()));
        let start = header.checked_add(program).and_then(|bytes| end.checked_sub(bytes));
        let start =
            start.filter(|_| header <= HEADER_LIMIT).ok_or_else(|| damaged("its lengths are wrong"))?;
        file.seek(SeekFrom::Start(start))?;
        let mut text = vec![0; header as usize];
        file.read_exact(&mut text)?;
        let header = serde_json::from_slice(&text).map_err(|error| damaged(&error.to_string()))?;
        let mut bytes = Vec::with_capacity(program as usize);
        file.take(program).read_to_end(&mut bytes)?;
        Ok(Some(Bundle { header, program: bytes }))
    }
}

fn damaged(reason: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the program that this file carries is damaged: {reason}"),
    )
}
