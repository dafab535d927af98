//! The machine code of a compiled step for an H200, read back by NVIDIA's disassembler: what stands in for times where no GPU has run it.
//!
//! Holds what only the last stage shows: what four warps multiply together, how much a load takes, and that nothing lies in local memory.

use crate::library::{missing, nvrtc};
use dtlc_codegen::assemble::KernelListing;
use dtlc_codegen::cuda::nvrtc::{Architecture, Job, Search};
use dtlc_codegen::device::{Module, device_modules};
use dtlc_codegen::kir::Kernel;
use dtlc_tests::chain::{Mode, assembled};
use dtlc_tests::cuda::without_numbers;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const ARCHITECTURE: Architecture = Architecture::Sm90a;
/// What is as long as this is worth reading 16 bytes at once.
const LONG: u64 = 1 << 20;

/// The opcodes of each kernel with their modifiers, by the kernel's name.
type Kernels = BTreeMap<String, Vec<String>>;

#[test]
fn a_step_of_the_megatron_block() {
    let (Some(nvrtc), Some(disassembler)) = (nvrtc(), disassembler()) else { return };
    let assembled = assembled("../examples/llama3.dtl", "b70_tp8", Mode::Train);
    let modules = device_modules(&assembled, &[ARCHITECTURE]).unwrap_or_else(|error| panic!("{error}"));
    let count = |stem: &str| modules.iter().filter(|module| module.name.contains(stem)).count();
    assert_eq!(count("_bulk_"), count("_tensor_"), "all that the tensor cores multiply arrives in bulk");
    // One of those that differ in numbers only; and not what other devices run instead of what arrives in bulk.
    let launched = modules.iter().filter(|module| !module.name.contains("_tensor_"));
    let different: BTreeMap<String, &Module> =
        launched.map(|module| (without_numbers(&module.source), module)).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("code.cubin");
    let mut kernels = Kernels::new();
    for module in different.values() {
        let job = Job { source: &module.source, architecture: ARCHITECTURE };
        let binary = nvrtc.compile(job).unwrap_or_else(|error| panic!("{error}"));
        std::fs::write(&path, &binary.cubin).expect("it can be written");
        read(&disassembled(&disassembler, &path), &mut kernels);
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, opcodes) in &kernels {
        let has = |stem: &str, end: &str| {
            opcodes.iter().any(|opcode| opcode.starts_with(stem) && opcode.ends_with(end))
        };
        assert!(!has("LDL", "") && !has("STL", ""), "{name} keeps something in local memory: {opcodes:?}");
        if name.contains("_bulk_") {
            *counts.entry("in bulk").or_default() += 1;
            assert!(has("UTMALDG", ""), "{name} copies no boxes: {opcodes:?}");
            assert!(has("HGMMA", ".F32.BF16"), "{name} multiplies warp by warp: {opcodes:?}");
            assert!(has("STG.E", ".128"), "{name} stores little at once: {opcodes:?}");
        }
        let Some(kernel) = generated(&assembled.kernels, name) else { continue };
        let is_long = kernel.tensors.values().any(|tensor| tensor.length >= LONG);
        if is_long {
            *counts.entry("generated").or_default() += 1;
            let is_wide = has("LDG.E", ".128") || has("STG.E", ".128");
            assert!(is_wide, "{name} reads and writes little at once: {opcodes:?}\n{kernel}");
        }
    }
    assert!(counts["in bulk"] >= 12 && counts["generated"] >= 30, "{counts:?}");
}

/// The kernel that a function was generated from: names end with its number.
fn generated<'a>(listings: &'a [KernelListing], name: &str) -> Option<&'a Kernel> {
    let number: usize = name.rsplit_once("_k")?.1.parse().ok()?;
    Some(&listings.get(number)?.kernel)
}

fn disassembled(disassembler: &Path, path: &Path) -> String {
    let output = Command::new(disassembler).arg("--print-code").arg(path).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("a text")
}

/// Takes opcodes from a disassembly: behind the address of an instruction, and behind its predicate where it has one.
fn read(text: &str, kernels: &mut Kernels) {
    let mut name = String::new();
    for line in text.lines() {
        if let Some(section) = line.trim().strip_prefix(".section\t.text.") {
            name = section.split(',').next().unwrap_or_default().to_owned();
        }
        let Some((_, instruction)) = line.split_once("*/") else { continue };
        let opcode = instruction.split_whitespace().find(|word| !word.starts_with('@'));
        let opcodes = kernels.entry(name.clone()).or_default();
        opcodes.extend(opcode.map(|opcode| opcode.trim_end_matches(';').to_owned()));
    }
}

/// NVIDIA's disassembler, which toolkits and `pip` put beside the folder that has NVRTC.
fn disassembler() -> Option<PathBuf> {
    let search = Search::of_environment();
    let found =
        search.folders().iter().map(|folder| folder.join("../bin/nvdisasm")).find(|path| path.is_file());
    if found.is_none() {
        missing(
            "nvdisasm was not found beside NVRTC; get it with `pip install nvidia-cuda-nvdisasm==13.2.78`",
        );
    }
    found
}
