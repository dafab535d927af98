//! Compiles kernels for a GPU and runs them on an emulated one, every access checked.

#![allow(dead_code, reason = "each suite uses a part")]

use dtlc_codegen::cuda::nvrtc::{Architecture, Cache, Job, Nvrtc, Search};
use dtlc_codegen::cuda::{self, CudaKernel, Places};
use dtlc_codegen::kir::{Buffer, ElementType, Kernel};
use dtlc_codegen::lower::Origins;
use dtlc_emulator::{Argument, CudaDriver, Emulator, LaunchShape, ModuleHandle, ModuleImage, Stream};
use std::io::Write;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The library; without it a test fails where everything must run, and is skipped elsewhere.
pub fn nvrtc() -> Option<&'static Nvrtc> {
    static LIBRARY: OnceLock<Option<Nvrtc>> = OnceLock::new();
    let load = || {
        let cache = Cache::new(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("nvrtc"));
        match Nvrtc::load(&Search::of_environment(), Some(cache)) {
            Ok(nvrtc) => Some(nvrtc),
            Err(error) => {
                missing(&error.to_string());
                None
            }
        }
    };
    LIBRARY.get_or_init(load).as_ref()
}

/// What a test needs is not there: it fails where everything must run, and is skipped elsewhere.
///
/// # Panics
/// Where everything must run.
pub fn missing(reason: &str) {
    if std::env::var_os("CI").is_some_and(|value| value == "true") {
        panic!("{reason}");
    }
    // Not through `eprintln`, which a test that passes keeps to itself.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {reason}");
}

/// PTX for sm_80, which must be the code that sm_90a gets too, but for the line that names the target: then what an emulated device
/// computes from one it computes from the other. Code that is different has to be run from both.
///
/// # Panics
/// Where it differs.
pub fn same_for_sm_90a<'a>(nvrtc: &Nvrtc, source: &str, ptx: &'a str) -> &'a str {
    let architecture = Architecture::Sm90a;
    let later =
        nvrtc.compile_ptx(Job { source, architecture }).unwrap_or_else(|error| panic!("{error}\n{source}"));
    assert_eq!(
        targets_apart(ptx, &later),
        None,
        "sm_90a gets other code than sm_80: run it from both\n{source}"
    );
    ptx
}

/// The first line in which PTX for sm_80 and for sm_90a differs, beside the one that names the target.
pub fn targets_apart(first: &str, second: &str) -> Option<String> {
    let named = [".target sm_80", ".target sm_90a"];
    let mut lines = first.lines().zip(second.lines()).filter(|&(first, second)| [first, second] != named);
    let apart = lines.find(|(first, second)| first != second);
    let lengths = [first, second].map(|ptx| ptx.lines().count());
    let text = apart.map(|(first, second)| format!("`{first}`, `{second}`"));
    text.or_else(|| (lengths[0] != lengths[1]).then(|| format!("{} lines, {}", lengths[0], lengths[1])))
}

/// Where the elements of every tensor begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placing {
    /// Where neighbours can be read as one.
    Aligned,
    /// An element behind such a place.
    Odd,
}

impl Placing {
    /// What the emitter may rely on.
    fn alignments(self, kernel: &Kernel) -> Vec<u64> {
        let of = |element: ElementType| match self {
            Placing::Aligned => 64,
            Placing::Odd => element.bytes(),
        };
        kernel.tensors.values().map(|tensor| of(tensor.element)).collect()
    }
}

/// Kernels on an emulated device.
pub struct Bench {
    device: Emulator,
    module: ModuleHandle,
    emitted: Vec<CudaKernel>,
    placing: Placing,
}

impl Bench {
    /// Emits, compiles and loads kernels.
    pub fn new(nvrtc: &Nvrtc, kernels: &[Kernel], placing: Placing) -> Bench {
        let emit = |(number, kernel): (usize, &Kernel)| {
            cuda::emit(kernel, &Origins::new(), &placing.alignments(kernel), &format!("kernel{number}"))
                .unwrap_or_else(|error| panic!("{error}\n{kernel}"))
        };
        let emitted: Vec<CudaKernel> = kernels.iter().enumerate().map(emit).collect();
        let source = cuda::file(&emitted, Places::Comments);
        let binary = nvrtc
            .compile(Job { source: &source, architecture: Architecture::Sm80 })
            .unwrap_or_else(|error| panic!("{error}\n{source}"));
        assert_eq!(binary.report().warnings, [""; 0], "{source}");
        let device = Emulator::default();
        let ptx = same_for_sm_90a(nvrtc, &source, &binary.ptx);
        let image = ModuleImage { name: "kernels", ptx, cubin: &[] };
        let module = device.load(&image).unwrap_or_else(|error| panic!("{error}"));
        Bench { device, module, emitted, placing }
    }

    /// A kernel's text.
    pub fn emitted(&self, number: usize) -> &CudaKernel {
        &self.emitted[number]
    }

    /// Runs a kernel on copies of these buffers, over as many blocks as it wants or over `blocks`.
    pub fn run(
        &self,
        kernel: &Kernel,
        number: usize,
        buffers: &[Buffer],
        integers: &[i64],
        blocks: Option<u32>,
    ) -> Vec<Buffer> {
        let emitted = &self.emitted[number];
        let fail = |error: dtlc_emulator::DriverError| -> ! { panic!("{error}\n{kernel}\n{emitted}") };
        let stream = Stream::DEFAULT;
        let mut places = Vec::new();
        for buffer in buffers {
            let bytes = bytes(buffer);
            let skipped = match self.placing {
                Placing::Aligned => 0,
                Placing::Odd => (bytes.len() / buffer.len().max(1)) as u64,
            };
            let start =
                self.device.allocate(skipped + bytes.len() as u64).unwrap_or_else(|error| fail(error));
            let place = start.offset(skipped);
            self.device.copy_to_device(place, &bytes, stream).unwrap_or_else(|error| fail(error));
            places.push((start, place));
        }
        let pointers = places.iter().map(|&(_, place)| Argument::Pointer(place));
        let arguments: Vec<Argument> =
            pointers.chain(integers.iter().map(|&integer| Argument::I64(integer))).collect();
        let shape = LaunchShape::linear(blocks.unwrap_or(emitted.blocks), emitted.threads);
        let handle = self.device.kernel(self.module, &emitted.name).unwrap_or_else(|error| fail(error));
        self.device.launch(handle, shape, &arguments, stream).unwrap_or_else(|error| fail(error));
        let mut results = Vec::new();
        for (buffer, (start, place)) in buffers.iter().zip(places) {
            let mut bytes = bytes(buffer);
            self.device.copy_to_host(&mut bytes, place, stream).unwrap_or_else(|error| fail(error));
            self.device.free(start).unwrap_or_else(|error| fail(error));
            results.push(of_bytes(buffer, &bytes));
        }
        results
    }
}

/// The elements as they lie in memory.
pub fn bytes(buffer: &Buffer) -> Vec<u8> {
    match buffer {
        Buffer::F32(data) => data.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Buffer::Bf16(data) | Buffer::F16(data) => data.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Buffer::I32(data) => data.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Buffer::U32(data) => data.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Buffer::Bool(data) => data.clone(),
    }
}

/// A buffer like `model` with these bytes.
pub fn of_bytes(model: &Buffer, bytes: &[u8]) -> Buffer {
    let words = bytes.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]);
    let halves = bytes.chunks_exact(2).map(|half| u16::from_le_bytes([half[0], half[1]]));
    match model {
        Buffer::F32(_) => Buffer::F32(words.map(f32::from_le_bytes).collect()),
        Buffer::Bf16(_) => Buffer::Bf16(halves.collect()),
        Buffer::F16(_) => Buffer::F16(halves.collect()),
        Buffer::I32(_) => Buffer::I32(words.map(i32::from_le_bytes).collect()),
        Buffer::U32(_) => Buffer::U32(words.map(u32::from_le_bytes).collect()),
        Buffer::Bool(_) => Buffer::Bool(bytes.to_vec()),
    }
}
