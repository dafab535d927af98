//! The CUDA emitter on the kernels of the examples: what it prints, and what NVRTC makes of that.

use dtlc_codegen::assemble::KernelListing;
use dtlc_codegen::cuda::nvrtc::{Architecture, Cache, Job, Nvrtc, Search};
use dtlc_codegen::cuda::{self, CudaKernel, Places};
use dtlc_codegen::lower::Origins;
use dtlc_tests::chain::{Mode, assembled};
use dtlc_tests::cuda::plans;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

/// Every example with a plan.
const EXAMPLES: [&str; 6] = ["bert", "bytes", "gpt2", "llama3", "golden/gpt2", "golden/llama"];
/// Kernels of a file that NVRTC is given.
const KERNELS_OF_A_FILE: usize = 24;

/// The library; without it a test fails where everything must run, and is skipped elsewhere.
fn nvrtc() -> Option<Nvrtc> {
    let cache = Cache::new(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("nvrtc"));
    match Nvrtc::load(&Search::of_environment(), Some(cache)) {
        Ok(nvrtc) => Some(nvrtc),
        Err(error) if std::env::var_os("CI").is_some_and(|value| value == "true") => panic!("{error}"),
        Err(error) => {
            // Not through `eprintln`, which a test that passes keeps to itself.
            let _ = writeln!(std::io::stderr(), "SKIPPED: {error}");
            None
        }
    }
}

/// The kernels of a file under a plan.
fn listings(example: &str, plan: &str) -> Vec<KernelListing> {
    assembled(&format!("../examples/{example}.dtl"), plan, Mode::Train).kernels
}

/// The kernels of all examples under all of their plans, each once: names do not count.
fn every_kernel() -> Vec<KernelListing> {
    let mut found = BTreeMap::new();
    for example in EXAMPLES {
        for plan in plans(&format!("../examples/{example}.dtl")) {
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

fn emit(listing: &KernelListing, name: &str) -> CudaKernel {
    cuda::emit(&listing.kernel, &listing.origins, &listing.alignments, name)
        .unwrap_or_else(|error| panic!("{error}\n{}", listing.kernel))
}

#[test]
fn every_kernel_of_the_examples_compiles_without_warnings_and_stays_in_registers() {
    let Some(nvrtc) = nvrtc() else { return };
    let kernels: Vec<CudaKernel> = every_kernel()
        .iter()
        .enumerate()
        .map(|(number, listing)| emit(listing, &format!("kernel{number}")))
        .collect();
    assert!(kernels.len() > 100, "{} kernels only", kernels.len());
    let files: Vec<String> =
        kernels.chunks(KERNELS_OF_A_FILE).map(|kernels| cuda::file(kernels, Places::Directives)).collect();
    let jobs: Vec<Job<'_>> = files
        .iter()
        .flat_map(|source| Architecture::ALL.map(|architecture| Job { source, architecture }))
        .collect();
    let binaries = nvrtc.compile_all(&jobs).unwrap_or_else(|error| panic!("{error}"));
    let mut faults = Vec::new();
    let mut reported = 0;
    for (job, binary) in jobs.iter().zip(&binaries) {
        let report = binary.report();
        let architecture = job.architecture.name();
        faults.extend(report.warnings.iter().map(|warning| format!("{architecture}: {warning}")));
        reported += report.kernels.len();
        for kernel in
            report.kernels.iter().filter(|kernel| !kernel.is_in_registers() || kernel.registers == 0)
        {
            let text = kernels.iter().find(|emitted| emitted.name == kernel.name);
            let text = text.map(|emitted| emitted.to_string()).unwrap_or_default();
            faults.push(format!("{architecture}: {kernel:?}\n{text}"));
        }
        assert!(binary.cubin.starts_with(b"\x7fELF"), "{architecture}: no machine code");
        assert!(binary.ptx.contains(".entry"), "{architecture}: no PTX");
    }
    assert_eq!(reported, Architecture::ALL.len() * kernels.len(), "kernels without a report");
    assert!(faults.is_empty(), "{} faults in {} kernels\n{}", faults.len(), kernels.len(), faults.join("\n"));
}

#[test]
fn the_kernels_of_a_megatron_block_are_printed_the_same() {
    let listings = listings("golden/llama", "tp2_sp");
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
