//! Training data: which tokens each step sees. The same for any mesh.
//!
//! Text and token files are cut into windows of one sequence each, visited in an order that the
//! seed chooses; a safetensors file gives its steps in order. The whole batch is made here and the
//! session gives each rank its shard.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use super::digest::{add_file, number};
use super::order::Order;
use super::steps::StepData;
use super::text::read_text;
use super::values::IndexBound;
use crate::error::{Result, RuntimeError};
use crate::program::{DType, Input, Program};
use crate::session::Session;

/// The input that takes tokens.
pub(super) const TOKENS: &str = "tokens";
/// The input that takes the token behind each token.
pub(super) const LABELS: &str = "labels";

/// Bytes of a token in a `.bin` file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenWidth {
    /// Two, little-endian.
    U16,
    /// Four, little-endian.
    U32,
}

/// How to read data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOptions {
    /// Chooses the order of windows.
    pub seed: u64,
    /// Tokens must be below this, if it is known.
    pub vocabulary: Option<u64>,
    /// Width of tokens in `.bin` files.
    pub width: TokenWidth,
}

impl DataOptions {
    /// Options for a vocabulary: tokens that fit 16 bits are stored in 16.
    #[must_use]
    pub fn for_vocabulary(vocabulary: u64, seed: u64) -> Self {
        let width = if vocabulary <= 1 << 16 { TokenWidth::U16 } else { TokenWidth::U32 };
        Self { seed, vocabulary: Some(vocabulary), width }
    }
}

/// Data for the steps of a program.
#[derive(Debug)]
pub struct Data {
    supply: Supply,
    /// Reading all of it takes a while, so that is done once.
    digest: OnceLock<u64>,
}

#[derive(Debug)]
enum Supply {
    /// A stream of tokens.
    Tokens(TokenData),
    /// Tensors with a leading step dimension.
    Steps(StepData),
}

impl Data {
    /// Opens what the user gave: text files and folders, `.bin` files of tokens, or `.safetensors`
    /// files, one kind only.
    ///
    /// # Errors
    /// Something can't be read, kinds are mixed, or the data can't feed the program's inputs.
    pub fn open(paths: &[PathBuf], program: &Program, options: DataOptions) -> Result<Self> {
        let has = |path: &PathBuf, extension: &str| {
            path.extension().is_some_and(|found| found == extension) && !path.is_dir()
        };
        let all = |extension: &str| paths.iter().all(|path| has(path, extension));
        if paths.is_empty() {
            return Err(RuntimeError::input("there is no data"));
        }
        if all("safetensors") {
            return Ok(Self::of(Supply::Steps(StepData::open(paths, program)?)));
        }
        let source = if all("bin") {
            TokenSource::open_files(paths, options.width)?
        } else if paths.iter().any(|path| has(path, "safetensors") || has(path, "bin")) {
            return Err(RuntimeError::input(
                "text, token files and safetensors files can't be mixed as data",
            ));
        } else {
            let mut bytes = Vec::new();
            paths.iter().try_for_each(|path| read_text(path, &mut bytes))?;
            if bytes.is_empty() {
                let names: Vec<String> = paths.iter().map(|path| format!("`{}`", path.display())).collect();
                let names = names.join(", ");
                return Err(RuntimeError::input(format!(
                    "there is no text in {names}; in a folder, hidden files and those that are not UTF-8 do not count"
                )));
            }
            TokenSource::Bytes(bytes)
        };
        Ok(Self::of(Supply::Tokens(TokenData::new(source, program, options)?)))
    }

    fn of(supply: Supply) -> Self {
        Self { supply, digest: OnceLock::new() }
    }

    /// Holds integers of safetensors files to what they index; tokens are held to the vocabulary.
    #[must_use]
    pub fn held_to(mut self, bounds: Vec<IndexBound>) -> Self {
        if let Supply::Steps(data) = &mut self.supply {
            data.bounds = bounds;
        }
        self
    }

    /// A digest of all of it, so that processes with other data, or a run that goes on with other, can say so.
    ///
    /// # Errors
    /// It can't be read.
    pub fn digest(&self) -> Result<u64> {
        if let Some(&known) = self.digest.get() {
            return Ok(known);
        }
        let mut hasher = blake3::Hasher::new();
        match &self.supply {
            Supply::Tokens(data) => data.source.describe(&mut hasher)?,
            Supply::Steps(data) => data.describe(&mut hasher)?,
        }
        Ok(*self.digest.get_or_init(|| number(&hasher)))
    }

    /// The same as text, for a checkpoint.
    ///
    /// # Errors
    /// As [`Data::digest`].
    pub fn fingerprint(&self) -> Result<String> {
        Ok(format!("{:016x}", self.digest()?))
    }

    /// How many steps there are; `None` if they go on for ever.
    #[must_use]
    pub fn steps(&self) -> Option<u64> {
        match &self.supply {
            Supply::Tokens(_) => None,
            Supply::Steps(data) => Some(data.steps()),
        }
    }

    /// Gives all inputs their values for a step, the first being 1.
    ///
    /// # Errors
    /// The data ends before the step, can't be read, or has a token outside the vocabulary.
    pub fn feed(&self, session: &mut Session, step: u64) -> Result<()> {
        let batch = match &self.supply {
            Supply::Tokens(data) => data.batch(session.program(), step)?,
            Supply::Steps(data) => data.batch(session.program(), step)?,
        };
        let inputs = session.program().inputs.clone();
        inputs.iter().zip(batch).try_for_each(|(input, bytes)| session.set_input_bytes(input, &bytes))?;
        Ok(())
    }
}

/// Where tokens come from.
#[derive(Debug)]
enum TokenSource {
    Bytes(Vec<u8>),
    Files { files: Vec<TokenFile>, width: usize },
}

#[derive(Debug)]
struct TokenFile {
    path: PathBuf,
    file: File,
    tokens: u64,
}

impl TokenSource {
    fn open_files(paths: &[PathBuf], width: TokenWidth) -> Result<Self> {
        let width = match width {
            TokenWidth::U16 => 2,
            TokenWidth::U32 => 4,
        };
        let open = |path: &PathBuf| {
            let failed = |error: std::io::Error| RuntimeError::file(path, &error);
            let file = File::open(path).map_err(failed)?;
            let bytes = file.metadata().map_err(failed)?.len();
            if bytes % width as u64 != 0 {
                let reason = format!("its {bytes} bytes are no whole number of {width}-byte tokens");
                return Err(RuntimeError::file(path, &reason));
            }
            Ok(TokenFile { path: path.clone(), file, tokens: bytes / width as u64 })
        };
        Ok(Self::Files { files: paths.iter().map(open).collect::<Result<_>>()?, width })
    }

    fn describe(&self, hasher: &mut blake3::Hasher) -> Result<()> {
        match self {
            Self::Bytes(bytes) => {
                hasher.update(bytes);
            }
            Self::Files { files, width } => {
                hasher.update(format!("tokens of {width}\n").as_bytes());
                for TokenFile { file, path, .. } in files {
                    add_file(hasher, file, path)?;
                }
            }
        }
        Ok(())
    }

    fn tokens(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Files { files, .. } => files.iter().map(|file| file.tokens).sum(),
        }
    }

    /// `count` tokens from `start`, which are there.
    fn read(&self, start: u64, count: usize) -> Result<Vec<u32>> {
        match self {
            Self::Bytes(bytes) => {
                Ok(bytes[start as usize..][..count].iter().map(|&byte| byte.into()).collect())
            }
            Self::Files { files, width } => read_token_files(files, *width, start, count),
        }
    }
}

/// Reads tokens that may span several files.
fn read_token_files(files: &[TokenFile], width: usize, start: u64, count: usize) -> Result<Vec<u32>> {
    let mut tokens = Vec::with_capacity(count);
    let mut first = 0;
    for file in files {
        let from = (start + tokens.len() as u64).saturating_sub(first);
        let here = file.tokens.saturating_sub(from).min((count - tokens.len()) as u64) as usize;
        let mut bytes = vec![0; here * width];
        let read = file.file.read_exact_at(&mut bytes, from * width as u64);
        read.map_err(|error| RuntimeError::file(&file.path, &error))?;
        let token = |bytes: &[u8]| bytes.iter().rev().fold(0, |token, &byte| token << 8 | u32::from(byte));
        tokens.extend(bytes.chunks_exact(width).map(token));
        first += file.tokens;
    }
    Ok(tokens)
}

/// A stream of tokens cut into windows.
#[derive(Debug)]
pub struct TokenData {
    source: TokenSource,
    order: Order,
    /// Sequences in a step.
    rows: u64,
    /// Tokens in a sequence.
    length: u64,
    vocabulary: Option<u64>,
}

impl TokenData {
    fn new(source: TokenSource, program: &Program, options: DataOptions) -> Result<Self> {
        let tokens = program.inputs.iter().find(|input| input.name == TOKENS);
        let (Some(tokens), true) = (tokens, program.inputs.iter().all(is_token_input)) else {
            let names: Vec<String> = program.inputs.iter().map(|input| format!("`{}`", input.name)).collect();
            return Err(RuntimeError::input(format!(
                "tokens can feed the inputs `{TOKENS}` and `{LABELS}` (u32 or i32) only; the model has {}",
                names.join(", ")
            )));
        };
        let length = tokens.layout.global_shape().last().copied().unwrap_or(1);
        let rows = tokens.layout.global_elements() / length;
        // Each window needs one token more, the last label.
        let windows = source.tokens().saturating_sub(1) / length;
        if windows == 0 {
            let found = source.tokens();
            return Err(RuntimeError::input(format!(
                "the data has {found} tokens, a sequence needs {}",
                length + 1
            )));
        }
        let order = Order::new(windows, options.seed);
        Ok(Self { source, order, rows, length, vocabulary: options.vocabulary })
    }

    /// The bytes of each input for a step.
    fn batch(&self, program: &Program, step: u64) -> Result<Vec<Vec<u8>>> {
        let (mut tokens, mut labels) = (Vec::new(), Vec::new());
        for row in 0..self.rows {
            let position = step.saturating_sub(1).wrapping_mul(self.rows).wrapping_add(row);
            let start = self.order.at(position) * self.length;
            let window = self.source.read(start, self.length as usize + 1)?;
            self.check_vocabulary(&window, start)?;
            tokens.extend(window[..self.length as usize].iter().flat_map(|token| token.to_le_bytes()));
            labels.extend(window[1..].iter().flat_map(|token| token.to_le_bytes()));
        }
        let of_input = |input: &Input| if input.name == TOKENS { tokens.clone() } else { labels.clone() };
        Ok(program.inputs.iter().map(of_input).collect())
    }

    fn check_vocabulary(&self, window: &[u32], start: u64) -> Result<()> {
        let Some(vocabulary) = self.vocabulary else { return Ok(()) };
        match window.iter().position(|&token| u64::from(token) >= vocabulary) {
            Some(index) => Err(RuntimeError::input(format!(
                "token {} at position {} of the data is outside the vocabulary of {vocabulary}",
                window[index],
                start + index as u64
            ))),
            None => Ok(()),
        }
    }
}

fn is_token_input(input: &Input) -> bool {
    let integers = matches!(input.layout.dtype, DType::U32 | DType::I32);
    integers && (input.name == TOKENS || input.name == LABELS)
}
