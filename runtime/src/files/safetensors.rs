//! Reads and writes safetensors files, tensor by tensor.
//!
//! The header's JSON is parsed by the `safetensors` crate; what it says is held against the file's
//! length before anything is allocated. A file is written whole or not at all.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::digest::add_file;
use super::output::{Purpose, write_whole};
use crate::error::{Result, RuntimeError};
use crate::program::DType;
use crate::tensor::{FileType, HostTensor, convert};

/// Headers longer than this are refused, as the format's own reader does.
const HEADER_LIMIT: u64 = 100_000_000;

/// Where a tensor lies in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Element type.
    pub dtype: FileType,
    /// Sizes, outermost first.
    pub shape: Vec<u64>,
    /// Offset of its first byte in the file.
    offset: u64,
    /// Number of bytes.
    bytes: usize,
}

/// A file that is open for reading.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: File,
    /// Tensors by name, in order of name.
    entries: IndexMap<String, Entry>,
    metadata: BTreeMap<String, String>,
}

impl TensorFile {
    /// Opens a file and checks that its header fits it.
    ///
    /// # Errors
    /// It can't be read or is not a whole safetensors file.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| RuntimeError::file(path, &error);
        let malformed = |reason: &dyn std::fmt::Display| {
            RuntimeError::file(path, &format!("not a whole safetensors file: {reason}"))
        };
        let file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let mut prefix = [0; 8];
        file.read_exact_at(&mut prefix, 0).map_err(|_| malformed(&"it is shorter than its header"))?;
        let header_length = u64::from_le_bytes(prefix);
        if header_length > HEADER_LIMIT || header_length + 8 > length {
            return Err(malformed(&format!("a header of {header_length} bytes in {length}")));
        }
        let mut header = vec![0; header_length as usize];
        file.read_exact_at(&mut header, 8).map_err(failed)?;
        let header: Metadata = serde_json::from_slice(&header).map_err(|error| malformed(&error))?;
        let start = 8 + header_length;
        if (header.data_len() as u64).checked_add(start) != Some(length) {
            let data = header.data_len();
            return Err(malformed(&format!(
                "its header describes {data} bytes, it holds {}",
                length - start
            )));
        }
        let metadata = header.metadata().iter().flatten().map(|(key, value)| (key.clone(), value.clone()));
        let metadata = metadata.collect();
        let mut entries = IndexMap::new();
        for (name, info) in header.tensors() {
            let dtype = file_type(info.dtype).ok_or_else(|| {
                malformed(&format!("`{name}` has the type {:?}, which is not read", info.dtype))
            })?;
            let (begin, end) = info.data_offsets;
            let shape = info.shape.iter().map(|&size| size as u64).collect();
            entries.insert(name, Entry { dtype, shape, offset: start + begin as u64, bytes: end - begin });
        }
        entries.sort_keys();
        Ok(Self { path: path.to_owned(), file, entries, metadata })
    }

    /// The file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its tensors by name, in order of name.
    #[must_use]
    pub fn entries(&self) -> &IndexMap<String, Entry> {
        &self.entries
    }

    /// Its free-form metadata.
    #[must_use]
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Adds all that the file holds to a digest.
    ///
    /// # Errors
    /// It can't be read.
    pub(super) fn add_to(&self, hasher: &mut blake3::Hasher) -> Result<()> {
        add_file(hasher, &self.file, &self.path)
    }

    /// The bytes of one of its tensors, converted to a type.
    ///
    /// # Errors
    /// The file can't be read, or the values do not fit the type.
    pub fn read(&self, name: &str, dtype: DType) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.read_onto(name, dtype, &mut bytes)?;
        Ok(bytes)
    }

    /// Appends the bytes of one of its tensors, converted to a type: a buffer that is used for many tensors takes memory
    /// from the system once.
    ///
    /// # Errors
    /// As [`TensorFile::read`].
    pub fn read_onto(&self, name: &str, dtype: DType, onto: &mut Vec<u8>) -> Result<()> {
        let entry = self.entry(name)?;
        self.read_range(name, dtype, 0..entry.bytes / entry.dtype.bytes(), onto)
    }

    /// A range of the elements of one of its tensors, converted to a type.
    ///
    /// # Errors
    /// The file can't be read, or the values do not fit the type.
    pub fn read_part(&self, name: &str, dtype: DType, range: Range<usize>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.read_range(name, dtype, range, &mut bytes)?;
        Ok(bytes)
    }

    fn read_range(&self, name: &str, dtype: DType, range: Range<usize>, onto: &mut Vec<u8>) -> Result<()> {
        let entry = self.entry(name)?;
        let width = entry.dtype.bytes();
        if range.end * width > entry.bytes {
            return Err(RuntimeError::Bug(format!("elements {range:?} of `{name}` are not there")));
        }
        let before = onto.len();
        onto.resize(before + range.len() * width, 0);
        let offset = entry.offset + (range.start * width) as u64;
        let read = self.file.read_exact_at(&mut onto[before..], offset);
        read.map_err(|error| RuntimeError::file(&self.path, &error))?;
        if entry.dtype != FileType::Program(dtype) {
            let converted = convert(entry.dtype, &onto[before..], dtype)
                .map_err(|error| RuntimeError::file(&self.path, &format!("`{name}`: {error}")))?;
            onto.truncate(before);
            onto.extend(converted);
        }
        Ok(())
    }

    fn entry(&self, name: &str) -> Result<&Entry> {
        let missing = || RuntimeError::file(&self.path, &format!("there is no tensor `{name}`"));
        self.entries.get(name).ok_or_else(missing)
    }
}

/// Reads all tensors of a file, those of types that programs don't have as the nearest that they do.
///
/// # Errors
/// The file can't be read, or an integer does not fit 32 bits.
pub fn read_all(path: &Path) -> Result<IndexMap<String, HostTensor>> {
    let file = TensorFile::open(path)?;
    file.entries()
        .iter()
        .map(|(name, entry)| {
            let dtype = match entry.dtype {
                FileType::Program(dtype) => dtype,
                FileType::F64 => DType::F32,
                FileType::I64 => DType::I32,
                FileType::U64 | FileType::U16 | FileType::U8 => DType::U32,
            };
            let bytes = file.read(name, dtype)?;
            Ok((name.clone(), HostTensor { dtype, shape: entry.shape.clone(), bytes }))
        })
        .collect()
}

/// A tensor to be written; its elements are asked for when its turn comes.
pub struct Item<'a> {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Sizes, outermost first.
    pub shape: Vec<u64>,
    /// Gives its bytes.
    pub bytes: Box<dyn Fn() -> Result<Vec<u8>> + 'a>,
}

impl<'a> Item<'a> {
    /// An item for a tensor that is there already.
    #[must_use]
    pub fn of(name: &str, tensor: &'a HostTensor) -> Self {
        let bytes = Box::new(|| Ok(tensor.bytes.clone()));
        Self { name: name.to_owned(), dtype: tensor.dtype, shape: tensor.shape.clone(), bytes }
    }
}

/// Writes a file, so that a crash leaves what was there before or all of the new.
///
/// # Errors
/// The system refuses, two items have one name, or an item's bytes can't be had.
pub fn write(path: &Path, mut items: Vec<Item<'_>>, metadata: &BTreeMap<String, String>) -> Result<()> {
    sort(&mut items);
    let header = header(&items, metadata)?;
    write_whole(path, Purpose::Document, |file| write_items(path, file, &header, &items))
}

/// Asks for every item's bytes in the order of a file, and writes none: they go to another process, which does.
///
/// # Errors
/// An item's bytes can't be had.
pub fn give(mut items: Vec<Item<'_>>) -> Result<()> {
    sort(&mut items);
    items.iter().try_for_each(|item| (item.bytes)().map(drop))
}

/// Wide types first keeps every tensor aligned to its type.
fn sort(items: &mut [Item<'_>]) {
    items.sort_by(|a, b| b.dtype.bytes().cmp(&a.dtype.bytes()).then_with(|| a.name.cmp(&b.name)));
}

fn header(items: &[Item<'_>], metadata: &BTreeMap<String, String>) -> Result<Vec<u8>> {
    let mut map = serde_json::Map::new();
    if !metadata.is_empty() {
        map.insert("__metadata__".into(), serde_json::json!(metadata));
    }
    let mut offset = 0;
    for item in items {
        let end = offset + item.shape.iter().product::<u64>() * item.dtype.bytes();
        let entry = serde_json::json!({
            "dtype": type_name(item.dtype), "shape": item.shape, "data_offsets": [offset, end]
        });
        if map.insert(item.name.clone(), entry).is_some() {
            return Err(RuntimeError::Bug(format!("two tensors are named `{}`", item.name)));
        }
        offset = end;
    }
    let mut header = serde_json::Value::Object(map).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok(header)
}

fn write_items(path: &Path, file: &mut File, header: &[u8], items: &[Item<'_>]) -> Result<()> {
    let failed = |error: std::io::Error| RuntimeError::file(path, &error);
    let mut writer = BufWriter::new(file);
    writer.write_all(&(header.len() as u64).to_le_bytes()).map_err(failed)?;
    writer.write_all(header).map_err(failed)?;
    for item in items {
        writer.write_all(&(item.bytes)()?).map_err(failed)?;
    }
    writer.flush().map_err(failed)
}

fn file_type(dtype: Dtype) -> Option<FileType> {
    Some(match dtype {
        Dtype::F32 => FileType::Program(DType::F32),
        Dtype::BF16 => FileType::Program(DType::Bf16),
        Dtype::I32 => FileType::Program(DType::I32),
        Dtype::U32 => FileType::Program(DType::U32),
        Dtype::BOOL => FileType::Program(DType::Bool),
        Dtype::F16 => FileType::Program(DType::F16),
        Dtype::F64 => FileType::F64,
        Dtype::I64 => FileType::I64,
        Dtype::U64 => FileType::U64,
        Dtype::U16 => FileType::U16,
        Dtype::U8 => FileType::U8,
        // 8-bit and smaller floats, and types added to the format later.
        _ => return None,
    })
}

fn type_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::Bf16 => "BF16",
        DType::F16 => "F16",
        DType::I32 => "I32",
        DType::U32 => "U32",
        DType::Bool => "BOOL",
    }
}
