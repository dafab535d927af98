//! The CUDA emitter on the kernels of the examples: what it prints, what NVRTC makes of that, and what the emulator computes.

#[path = "../../compiler/codegen/tests/support/device.rs"]
mod device;

use device::{Bench, Placing, nvrtc, targets_apart};
use dtlc_codegen::assemble::KernelListing;
use dtlc_codegen::cuda::nvrtc::{Architecture, Job, KernelReport, Report};
use dtlc_codegen::cuda::{self, CudaKernel, Places};
use dtlc_codegen::device::{Module, device_modules};
use dtlc_codegen::kir::{Arithmetic, Buffer, ElementType, Kernel, interpret};
use dtlc_codegen::lower::Origins;
use dtlc_tests::chain::{Mode, assembled};
use dtlc_tests::cuda::{examples, plans, without_numbers};
use half::f16;
use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};

/// The models that are small enough to run every kernel of.
const GOLDEN: [&str; 2] = ["../examples/golden/gpt2.dtl", "../examples/golden/llama.dtl"];
/// Kernels of a file that NVRTC is given.
const KERNELS_OF_A_FILE: usize = 24;

/// The kernels of a file under a plan.
fn listings(path: &str, plan: &str) -> Vec<KernelListing> {
    assembled(path, plan, Mode::Train).kernels
}

/// The kernels of these examples under all of their plans, each once: names do not count.
fn kernels_of(examples: &[impl AsRef<str>]) -> Vec<KernelListing> {
    let mut found = BTreeMap::new();
    for example in examples.iter().map(AsRef::as_ref) {
        for plan in plans(example) {
            for listing in listings(example, &plan) {
                let mut plain = listing.kernel.clone();
                plain.tensors.values_mut().enumerate().for_each(|(n, tensor)| tensor.name = format!("t{n}"));
                plain.axes.values_mut().enumerate().for_each(|(n, axis)| axis.name = format!("a{n}"));
                let kernel =
                    emit(&KernelListing { kernel: plain, origins: Origins::new(), ..listing.clone() }, "k");
                found.entry(cuda::file(&[kernel], Places::Comments)).or_insert(listing);
            }
        }
    }
    found.into_values().collect()
}

/// The library's kernels that these examples launch under any of their plans, one of those that differ in numbers only.
fn library_kernels(examples: &[impl AsRef<str>]) -> Vec<Module> {
    let mut found = BTreeMap::new();
    for example in examples.iter().map(AsRef::as_ref) {
        for plan in plans(example) {
            let program = assembled(example, &plan, Mode::Train);
            let modules =
                device_modules(&program, &Architecture::ALL).unwrap_or_else(|error| panic!("{error}"));
            for module in modules.into_iter().filter(|module| module.source.starts_with("#define KERNEL")) {
                found.entry(without_numbers(&module.source)).or_insert(module);
            }
        }
    }
    found.into_values().collect()
}

fn emit(listing: &KernelListing, name: &str) -> CudaKernel {
    cuda::emit(&listing.kernel, &listing.origins, &listing.alignments, name)
        .unwrap_or_else(|error| panic!("{error}\n{}", listing.kernel))
}

/// Set where this process fills the cache for another.
const HELPER: &str = "DTLC_TEST_HELPER";

/// NVRTC compiles one file at a time in a process. So another process of this test starts at the last file and leaves
/// what it has compiled in the cache; the two meet in the middle.
fn helper(test: &str) -> Child {
    let own = std::env::current_exe().expect("the path of this test");
    let mut command = Command::new(own);
    command.args([test, "--exact"]).env(HELPER, "1").stdout(Stdio::null());
    command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

#[test]
fn every_kernel_of_the_examples_compiles_without_warnings_and_stays_in_registers() {
    let Some(nvrtc) = nvrtc() else { return };
    let is_helper = std::env::var_os(HELPER).is_some();
    let name = "every_kernel_of_the_examples_compiles_without_warnings_and_stays_in_registers";
    let helper = (!is_helper).then(|| helper(name));
    let kernels: Vec<CudaKernel> = kernels_of(&examples())
        .iter()
        .enumerate()
        .map(|(number, listing)| emit(listing, &format!("kernel{number}")))
        .collect();
    assert!(kernels.len() > 500, "{} kernels only", kernels.len());
    let files: Vec<String> =
        kernels.chunks(KERNELS_OF_A_FILE).map(|kernels| cuda::file(kernels, Places::Directives)).collect();
    let mut jobs: Vec<Job<'_>> = files
        .iter()
        .flat_map(|source| Architecture::ALL.map(|architecture| Job { source, architecture }))
        .collect();
    let generated = jobs.len();
    let library = library_kernels(&examples());
    println!("{} kernels of the library, {} generated", library.len(), kernels.len());
    assert!(library.len() > 150, "{} kernels of the library only", library.len());
    jobs.extend(library.iter().flat_map(|Module { source, only, .. }| {
        let architectures = Architecture::ALL.into_iter().filter(|it| only.is_none_or(|only| only == *it));
        architectures.map(move |architecture| Job { source, architecture })
    }));
    if is_helper {
        jobs.reverse();
    }
    let binaries = nvrtc.compile_all(&jobs).unwrap_or_else(|error| panic!("{error}"));
    if is_helper {
        return;
    }
    if let Some(mut helper) = helper {
        let status = helper.wait().expect("the end of the helper");
        assert!(status.success(), "the helper ended with {status}");
    }
    let reports: Vec<(Architecture, Report)> =
        jobs.iter().zip(&binaries).map(|(job, binary)| (job.architecture, binary.report())).collect();
    let reported: usize = reports.iter().map(|(_, report)| report.kernels.len()).sum();
    let compiled = Architecture::ALL.len() * kernels.len() + jobs.len() - generated;
    assert_eq!(reported, compiled, "kernels without a report");
    let faults: Vec<String> =
        reports.iter().flat_map(|(architecture, report)| faults(*architecture, report, &kernels)).collect();
    assert!(faults.is_empty(), "{} faults in {} kernels\n{}", faults.len(), kernels.len(), faults.join("\n"));
    for (job, binary) in jobs.iter().zip(&binaries) {
        let architecture = job.architecture.name();
        assert!(binary.cubin.starts_with(b"\x7fELF"), "{architecture}: no machine code");
        assert!(binary.ptx.contains(".entry"), "{architecture}: no PTX");
    }
    // What follows runs kernels from PTX for sm_80, which stands for both.
    for binaries in binaries[..generated].chunks(Architecture::ALL.len()) {
        let apart = targets_apart(&binaries[0].ptx, &binaries[1].ptx);
        assert_eq!(apart, None, "sm_90a gets other code than sm_80: run it from both");
    }
}

/// What the tests above and those of `device` lean on: that code which asks for its architecture is seen.
#[test]
fn code_for_one_architecture_only_is_noticed() {
    let Some(nvrtc) = nvrtc() else { return };
    let ptx = |source: &str| {
        let of = |architecture| nvrtc.compile_ptx(Job { source, architecture });
        [Architecture::Sm80, Architecture::Sm90a].map(|it| of(it).unwrap_or_else(|error| panic!("{error}")))
    };
    let [first, second] = ptx("extern \"C\" __global__ void k(int *x) { *x = 1; }");
    assert_eq!(targets_apart(&first, &second), None);
    let [first, second] = ptx("extern \"C\" __global__ void k(int *x) { *x = __CUDA_ARCH__; }");
    let apart = targets_apart(&first, &second).expect("other code");
    assert!(apart.contains("800") && apart.contains("900"), "{apart}");
    let [first, second] =
        ptx("extern \"C\" __global__ void k(int *x) {\n#if __CUDA_ARCH__ >= 900\n*x = 1;\n#endif\n}");
    assert!(targets_apart(&first, &second).is_some());
}

/// Warnings, and kernels that use local memory.
fn faults(architecture: Architecture, report: &Report, kernels: &[CudaKernel]) -> Vec<String> {
    let architecture = architecture.name();
    let warnings = report.warnings.iter().map(|warning| format!("{architecture}: {warning}"));
    let spilled = report.kernels.iter().filter(|kernel| !kernel.is_in_registers() || kernel.registers == 0);
    let with_text = |kernel: &KernelReport| {
        let text = kernels.iter().find(|emitted| emitted.name == kernel.name).map(CudaKernel::to_string);
        format!("{architecture}: {kernel:?}\n{}", text.unwrap_or_default())
    };
    warnings.chain(spilled.map(with_text)).collect()
}

#[test]
fn the_kernels_of_a_megatron_block_are_printed_the_same() {
    let listings = listings(GOLDEN[1], "tp2_sp");
    let of_block = |listing: &&KernelListing| listing.kernel.name.starts_with("layers_");
    let print = || {
        let numbered = listings.iter().filter(of_block).enumerate();
        let kernels: Vec<CudaKernel> = numbered
            .map(|(number, listing)| emit(listing, &format!("{}_{number}", listing.kernel.name)))
            .collect();
        cuda::file(&kernels, Places::Comments)
    };
    let text = print();
    assert_eq!(text, print());
    insta::assert_snapshot!(text);
}

/// Random numbers for each tensor, of a size at which nothing under- or overflows.
fn inputs(kernel: &Kernel, seed: u64) -> Vec<Buffer> {
    let mut state = seed;
    let mut word = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    let mut float = || word() as f32 / (1 << 30) as f32 - 0.75;
    let tensors = kernel.tensors.values().map(|tensor| (tensor.element, 0..tensor.length));
    let buffer = |(element, count): (ElementType, std::ops::Range<u64>)| match element {
        ElementType::F32 => Buffer::F32(count.map(|_| float()).collect()),
        ElementType::Bf16 => Buffer::Bf16(count.map(|_| (float().to_bits() >> 16) as u16).collect()),
        ElementType::F16 => Buffer::F16(count.map(|_| f16::from_f32(float()).to_bits()).collect()),
        ElementType::I32 => Buffer::I32(count.map(|_| (float() * 100.0) as i32).collect()),
        ElementType::U32 => Buffer::U32(count.map(|_| (float().abs() * 100.0) as u32).collect()),
        ElementType::Bool => Buffer::Bool(count.map(|_| u8::from(float() > 0.0)).collect()),
    };
    tensors.map(buffer).collect()
}

/// The first element that is off by more than `tolerance` of the largest in its tensor.
fn difference(found: &[Buffer], expected: &[Buffer], tolerance: f32) -> Option<String> {
    let numbers = |buffer: &Buffer| -> Vec<f32> {
        match buffer {
            Buffer::F32(data) => data.clone(),
            Buffer::Bf16(data) => data.iter().map(|&bits| f32::from_bits(u32::from(bits) << 16)).collect(),
            Buffer::F16(data) => data.iter().map(|&bits| f16::from_bits(bits).to_f32()).collect(),
            Buffer::I32(data) => data.iter().map(|&value| value as f32).collect(),
            Buffer::U32(data) => data.iter().map(|&value| value as f32).collect(),
            Buffer::Bool(data) => data.iter().map(|&value| f32::from(value)).collect(),
        }
    };
    for (position, (found, expected)) in found.iter().zip(expected).enumerate() {
        // A sum that lies between two halves may be rounded to either.
        let tolerance = match expected {
            Buffer::Bf16(_) => 1.0 / 128.0,
            Buffer::F16(_) => 1.0 / 1024.0,
            Buffer::F32(_) | Buffer::I32(_) | Buffer::U32(_) | Buffer::Bool(_) => tolerance,
        };
        let (found, expected) = (numbers(found), numbers(expected));
        let largest = expected
            .iter()
            .filter(|value| value.is_finite())
            .fold(1.0f32, |most, value| most.max(value.abs()));
        for (element, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let near = found.to_bits() == expected.to_bits()
                || found.is_nan() && expected.is_nan()
                || (found - expected).abs() <= tolerance * largest;
            if !near {
                return Some(format!("tensor {position}, element {element}: {found}, not {expected}"));
            }
        }
    }
    None
}

/// Sums are taken in another order than the interpreter's, which keeps them in f64; all else has its bits. A thread adds
/// 64 numbers at most before the tree of its block, so the error is below 100 roundings of the largest partial sum.
#[test]
fn the_kernels_of_the_golden_models_compute_what_the_interpreter_does() {
    let Some(nvrtc) = nvrtc() else { return };
    let listings = kernels_of(&GOLDEN);
    let kernels: Vec<Kernel> = listings.into_iter().map(|listing| listing.kernel).collect();
    for (part, kernels) in kernels.chunks(KERNELS_OF_A_FILE).enumerate() {
        let bench = Bench::new(nvrtc, kernels, Placing::Aligned);
        for (number, kernel) in kernels.iter().enumerate() {
            let buffers = inputs(kernel, (part * 1000 + number) as u64);
            let middle = |range: Option<(i64, i64)>| range.map_or(7, |(low, high)| (low + high) / 2);
            let integers: Vec<i64> = kernel.integers.values().map(|integer| middle(integer.range)).collect();
            let mut expected = buffers.clone();
            let arithmetic = Arithmetic::Target { is_fused: true };
            interpret(kernel, arithmetic, &mut expected, &integers, 0..kernel.parallel_extent())
                .unwrap_or_else(|error| panic!("{error}"));
            let found = bench.run(kernel, number, &buffers, &integers, None);
            if let Some(difference) = difference(&found, &expected, 1e-5) {
                panic!("{difference}\n{kernel}\n{}", bench.emitted(number));
            }
        }
    }
}
