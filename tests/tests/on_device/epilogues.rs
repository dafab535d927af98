//! Kernels that go on with a product, as part of its launch where a device can do that.

use crate::library::nvrtc;
use crate::start::on_device;
use dtlc_codegen::assemble::{Assembled, assemble};
use dtlc_codegen::cranelift::TargetFeatures;
use dtlc_codegen::cuda;
use dtlc_codegen::cuda::nvrtc::{Architecture, Job};
use dtlc_codegen::device::add_device_code;
use dtlc_codegen::kir::TensorId;
use dtlc_ir::Program;
use dtlc_kernels::cuda::{DeviceLaunch, Keeps, matmul};
use dtlc_passes::memory::plan_memory;
use dtlc_passes::{fuse, start_collectives};
use dtlc_runtime::program::device::{DeviceCall, DeviceSection, Work, WorkProduct};
use dtlc_runtime::session::Session;
use dtlc_tests::backend::check_on;
use dtlc_tests::chain::{Mode, assembled};
use dtlc_tests::products::{Case, cases};
use std::collections::BTreeMap;

/// The code for devices of a program that is not fused yet.
fn section(program: &Program) -> DeviceSection {
    let mut program = program.clone();
    fuse(&mut program);
    start_collectives(&mut program);
    program.memory = Some(plan_memory(&program));
    let features = TargetFeatures::host().expect("a processor for these tests");
    let mut assembled = assemble(&program, features).unwrap_or_else(|error| panic!("{error}"));
    let nvrtc = nvrtc().expect("it was there before");
    add_device_code(&mut assembled, nvrtc, &[]).unwrap_or_else(|error| panic!("{error}"));
    assembled.program.device.expect("it was added")
}

/// The products of some work with whose results something goes on.
fn goes_on(work: &Work) -> usize {
    work.products().iter().filter(|product| product.epilogue.is_some()).count()
}

/// As programs run whose every value is watched.
fn taken_apart(mut assembled: Assembled) -> Result<Session, String> {
    assembled.program.take_epilogues_apart();
    assert_eq!(assembled.program.works().iter().map(goes_on).sum::<usize>(), 0);
    on_device(assembled)
}

#[test]
fn what_goes_on_with_a_product_gives_what_it_should() {
    if nvrtc().is_none() {
        return;
    }
    for Case { name, program, joined, apart, tolerance } in cases() {
        println!("{name}");
        check_on(&program, 7, tolerance, on_device);
        check_on(&program, 7, tolerance, taken_apart);
        let section = section(&program);
        let calls: Vec<&DeviceCall> = section.calls.iter().filter(|call| goes_on(&call.work) > 0).collect();
        assert_eq!(calls.iter().map(|call| goes_on(&call.work)).sum::<usize>(), joined, "{name}");
        // Products that are not split in parts have one launch, whatever their number.
        assert_eq!(calls.iter().map(|call| call.launches.len() - 1).sum::<usize>(), apart, "{name}");
    }
}

/// The launches of a program's products with what goes on with them, by name.
fn launches(assembled: &Assembled) -> BTreeMap<String, DeviceLaunch> {
    let mut found = BTreeMap::new();
    let works = assembled.program.works();
    for WorkProduct { spec, epilogue } in works.iter().flat_map(Work::products) {
        let Some(rest) = epilogue else { continue };
        let listing = &assembled.kernels[rest.kernel.index()];
        let (sums, keeps) = (TensorId::from_u32(rest.position), Keeps::Nothing);
        let epilogue = cuda::epilogue(&listing.kernel, &listing.origins, &listing.alignments, sums, keeps);
        let epilogue = epilogue.unwrap_or_else(|| panic!("{} is elementwise", listing.kernel.name));
        let call = matmul(spec, Some(&epilogue)).unwrap_or_else(|error| panic!("{}", error.reason));
        found.extend(call.launches.into_iter().map(|launch| (launch.name.clone(), launch)));
    }
    found
}

#[test]
fn what_goes_on_with_the_products_of_a_model_stays_in_registers() {
    let Some(nvrtc) = nvrtc() else { return };
    let launches = launches(&assembled("../examples/peers.dtl", "base_one_bf16", Mode::Train));
    assert!(launches.len() >= 3, "{:?}", launches.keys());
    for (name, launch) in &launches {
        let everywhere = [Architecture::Sm80, Architecture::Sm100a].map(|target| (target, &launch.source));
        let alternative = launch.alternative.as_deref().unwrap_or(launch);
        for (architecture, source) in
            everywhere.into_iter().chain([(Architecture::Sm90a, &alternative.source)])
        {
            let compiled = nvrtc.compile(Job { source, architecture });
            let report = compiled.unwrap_or_else(|error| panic!("{name}: {error}")).report();
            assert!(report.warnings.is_empty(), "{name}: {:?}", report.warnings);
            for kernel in &report.kernels {
                println!("{}: {kernel:?}", architecture.name());
                assert!(kernel.is_in_registers(), "{}: {kernel:?}", architecture.name());
            }
        }
    }
}
