//! Products with epilogues, kernels that are done where the product makes its results: held to a plain definition bit for bit, and to the two launches
//! that they take the place of.

use crate::bench::{Bench, Placing, compiled, without_alternatives};
use crate::epilogue_kernels::{
    accumulated, activated, biased, by_heads, dropped, gated, residual, with_turned_sums,
};
use crate::library::{bytes, of_bytes};
use crate::matmul::{Batch, Case, F32, Innermost, OPERANDS, Shape, plain};
use crate::support::{Numbers, Stored};
use crate::tensor_cores::{ARCHITECTURES, ROW_MAJOR, large_shapes, plain_bf16};
use dtlc_codegen::assemble::KernelListing;
use dtlc_codegen::cuda::nvrtc::Architecture;
use dtlc_codegen::cuda::{self, Places};
use dtlc_codegen::kir::{
    Access, Arithmetic, Buffer, ElementType, IntegerParameter, Kernel, TensorId, TensorParameter, interpret,
};
use dtlc_codegen::lower::{Origins, RegisterOrigin};
use dtlc_kernels::cuda::{DeviceArgument, DeviceCall, DeviceLaunch, Epilogue, Keeps, matmul};
use dtlc_kernels::signature::{Accumulation, Element, Factors, MatmulSpec};
use dtlc_tests::chain::{Mode, assembled};
use half::{bf16, f16};
use std::collections::BTreeSet;

/// Whose kernels are tried as epilogues.
const MODEL: &str = "../examples/golden/gpt2.dtl";

/// A kernel made for outputs of so many lines, each of so many elements beside each other, of this type. The tensor of the results is `sums`.
pub type MakeKernel = fn([u64; 2], ElementType) -> Kernel;

/// A product and the kernel that uses its results.
pub struct Fused {
    pub product: Case,
    pub kernel: Kernel,
    /// What the kernel's tensors hold before.
    pub contents: Vec<Buffer>,
    pub integers: Vec<i64>,
    pub keeps: Keeps,
    /// The kernel's tensor that lies where another does.
    pub over: Option<[&'static str; 2]>,
    /// What the kernel's tensors begin at multiples of.
    pub alignment: u64,
}

/// The operation's buffers: A, B and C, then the kernel's tensors.
pub type Memory = Vec<Vec<u8>>;

impl Fused {
    /// Factors are small whole numbers, so that a sum of products is the same in any order.
    pub fn new(shape: &Shape, innermost: [Innermost; 3], kernel: MakeKernel, numbers: &mut Numbers) -> Fused {
        let mut product = Case::dense(shape, innermost, numbers);
        for factor in [&mut product.a, &mut product.b] {
            (0..factor.len()).for_each(|index| factor.set(index, numbers.below(5) as f64 - 2.0));
        }
        let width = match innermost[2] {
            Innermost::Lines => shape.m,
            Innermost::Others => shape.n,
        };
        let lines = product.spec.batch_extent() * shape.m * shape.n / width;
        let kernel = kernel([lines as u64, width as u64], element_type(product.spec.c));
        let contents = kernel.tensors.values().map(|tensor| content(tensor, numbers)).collect();
        let integers = kernel.integers.keys().map(|_| numbers.below(1000) as i64).collect();
        Fused { product, kernel, contents, integers, keeps: Keeps::Nothing, over: None, alignment: 256 }
    }

    fn tensor(&self, name: &str) -> TensorId {
        let named = |(_, tensor): &(TensorId, &TensorParameter)| tensor.name == name;
        self.kernel.tensors.iter().find(named).unwrap_or_else(|| panic!("no tensor `{name}`")).0
    }

    /// The buffer in which a tensor lies.
    fn buffer(&self, tensor: TensorId) -> u32 {
        let own = |tensor: TensorId| 3 + tensor.as_u32();
        match self.over {
            Some([upper, lower]) if tensor == self.tensor(upper) => match lower {
                "sums" => 2,
                _ => own(self.tensor(lower)),
            },
            Some(_) | None => own(tensor),
        }
    }

    fn alignments(&self) -> Vec<u64> {
        self.kernel.tensors.values().map(|tensor| self.alignment.max(tensor.element.bytes())).collect()
    }

    /// The kernel as an epilogue.
    pub fn epilogue(&self) -> Epilogue {
        cuda::epilogue(&self.kernel, &Origins::new(), &self.alignments(), self.tensor("sums"), self.keeps)
            .unwrap_or_else(|| panic!("no epilogue:\n{}", self.kernel))
    }

    /// The product with its epilogue. The buffer of the epilogue's sums is one that nothing may touch.
    pub fn call(&self) -> DeviceCall {
        let call =
            matmul(&self.product.spec, Some(&self.epilogue())).unwrap_or_else(|error| panic!("{error}"));
        self.placed(call)
    }

    /// The product and then the kernel.
    fn two_launches(&self) -> DeviceCall {
        let kernel = cuda::emit(&self.kernel, &Origins::new(), &self.alignments(), "following")
            .unwrap_or_else(|error| panic!("{error}"));
        let tensors = self.kernel.tensors.keys().map(|tensor| match tensor == self.tensor("sums") {
            true => 2,
            false => 3 + tensor.as_u32(),
        });
        let integers = (0..self.integers.len() as u32).map(DeviceArgument::Integer);
        let mut call = matmul(&self.product.spec, None).unwrap_or_else(|error| panic!("{error}"));
        call.launches.push(DeviceLaunch {
            name: kernel.name.clone(),
            source: cuda::file(std::slice::from_ref(&kernel), Places::Comments),
            grid: [kernel.blocks, 1, 1],
            block: [kernel.threads, 1, 1],
            shared_bytes: 0,
            arguments: tensors.map(DeviceArgument::Pointer).chain(integers).collect(),
            alternative: None,
        });
        self.placed(call)
    }

    /// The call with the tensor that lies over another in that one's buffer.
    fn placed(&self, mut call: DeviceCall) -> DeviceCall {
        let Some([upper, _]) = self.over else { return call };
        let tensor = self.tensor(upper);
        let (own, place) = (DeviceArgument::Pointer(3 + tensor.as_u32()), self.buffer(tensor));
        for launch in &mut call.launches {
            let alternative = launch.alternative.as_deref_mut().map(|launch| &mut launch.arguments);
            let arguments = alternative.into_iter().chain([&mut launch.arguments]).flatten();
            arguments.filter(|argument| **argument == own).for_each(|argument| {
                *argument = DeviceArgument::Pointer(place);
            });
        }
        call
    }

    /// The operation's buffers before it.
    pub fn memory(&self) -> Memory {
        let untouched = vec![0xff; self.product.c.len() * self.product.spec.c.bytes()];
        let product = [self.product.a.bytes(), self.product.b.bytes(), untouched];
        product.into_iter().chain(self.contents.iter().map(bytes)).collect()
    }

    /// What a call makes of the memory.
    fn run(&self, call: &DeviceCall, bench: &mut Bench, placing: Placing) -> Result<Memory, String> {
        let mut memory = self.memory();
        bench.run(call, &mut memory, &self.integers, placing).map_err(|error| error.to_string())?;
        Ok(memory)
    }

    /// What it should make of it: the plain product, and what the kernel's interpreter makes of that.
    fn expected(&self) -> Memory {
        let sums = plain_product(&self.product);
        let mut memory = self.memory();
        if self.keeps == Keeps::Results {
            memory[2] = sums.bytes();
        }
        let mut buffers = self.contents.clone();
        let own = &mut buffers[self.tensor("sums").as_u32() as usize];
        *own = of_bytes(own, &sums.bytes());
        let arithmetic = Arithmetic::Target { is_fused: true };
        interpret(&self.kernel, arithmetic, &mut buffers, &self.integers, 0..self.kernel.parallel_extent())
            .unwrap_or_else(|error| panic!("{error}"));
        for (id, tensor) in &self.kernel.tensors {
            if tensor.access != Access::Read {
                memory[self.buffer(id) as usize] = bytes(&buffers[id.as_u32() as usize]);
            }
        }
        memory
    }

    /// The first buffer that is not as it should be.
    pub fn judge(&self, call: &DeviceCall, bench: &mut Bench, placing: Placing) -> Option<String> {
        match self.run(call, bench, placing) {
            Ok(found) => self.difference(&found),
            Err(error) => Some(error),
        }
    }

    /// The first of the operation's buffers that is not as it should be.
    pub fn difference(&self, found: &[Vec<u8>]) -> Option<String> {
        first_difference(found, &self.expected())
    }

    /// Holds the call to what is expected, as any device makes it and as those do that have an alternative.
    fn check(&self, bench: &mut Bench, placing: Placing) {
        let call = self.call();
        let mut calls = vec![without_alternatives(call.clone())];
        if bench.chosen(&call.launches[0], placing).name != calls[0].launches[0].name {
            calls.push(call);
        }
        for call in calls {
            if let Some(difference) = self.judge(&call, bench, placing) {
                let sources = call.launches.iter().map(|launch| launch.source.as_str());
                panic!("{difference}\n{}\n{}", self.kernel, sources.collect::<Vec<_>>().join("\n"));
            }
        }
    }

    /// Holds the call to the two that it takes the place of, with factors whose products are rounded.
    fn check_against_two(mut self, bench: &mut Bench, numbers: &mut Numbers) {
        let spec = &self.product.spec;
        self.product.a = Stored::random(spec.a, self.product.a.len(), numbers);
        self.product.b = Stored::random(spec.b, self.product.b.len(), numbers);
        let mut run = |call: DeviceCall| {
            self.run(&call, bench, Placing::Aligned).unwrap_or_else(|error| panic!("{error}"))
        };
        let (mut fused, two) = (run(self.call()), run(self.two_launches()));
        if self.keeps == Keeps::Nothing && self.over.is_none_or(|[_, lower]| lower != "sums") {
            assert!(fused[2].iter().all(|byte| *byte == 0xff), "C is written");
            fused[2].clone_from(&two[2]);
        }
        assert_eq!(first_difference(&fused, &two), None, "{}", self.kernel);
    }
}

fn first_difference(found: &[Vec<u8>], expected: &[Vec<u8>]) -> Option<String> {
    found.iter().zip(expected).enumerate().find_map(|(buffer, (found, expected))| {
        let byte = found.iter().zip(expected).position(|(found, expected)| found != expected)?;
        Some(format!("buffer {buffer} differs from byte {byte} on"))
    })
}

fn element_type(element: Element) -> ElementType {
    match element {
        Element::F32 => ElementType::F32,
        Element::Bf16 => ElementType::Bf16,
        Element::F16 => ElementType::F16,
    }
}

/// What is read is at random, of what is not no bit is one that a kernel makes.
fn content(tensor: &TensorParameter, numbers: &mut Numbers) -> Buffer {
    let count = 0..tensor.length;
    let is_read = tensor.access != Access::Write && tensor.name != "sums";
    match tensor.element {
        ElementType::F32 if is_read => Buffer::F32(count.map(|_| numbers.signed() as f32).collect()),
        ElementType::F32 => Buffer::F32(count.map(|_| f32::from_bits(u32::MAX)).collect()),
        ElementType::Bf16 if is_read => {
            Buffer::Bf16(count.map(|_| bf16::from_f64(numbers.signed()).to_bits()).collect())
        }
        ElementType::Bf16 => Buffer::Bf16(count.map(|_| u16::MAX).collect()),
        ElementType::F16 if is_read => {
            Buffer::F16(count.map(|_| f16::from_f64(numbers.signed()).to_bits()).collect())
        }
        ElementType::F16 => Buffer::F16(count.map(|_| u16::MAX).collect()),
        ElementType::U32 => Buffer::U32(count.map(|_| numbers.below(7) as u32).collect()),
        ElementType::I32 => Buffer::I32(count.map(|_| numbers.below(7) as i32).collect()),
        ElementType::Bool => Buffer::Bool(count.map(|_| numbers.below(2) as u8).collect()),
    }
}

/// C as its definition has it: of sums that are exact, each is scaled and rounded once for each.
fn plain_product(case: &Case) -> Stored {
    let spec = &case.spec;
    let batch = spec.batch.iter().map(|each| (each.extent, [each.stride_a, each.stride_b, each.stride_c]));
    let terms = spec.contraction.iter().map(|each| (each.extent, [each.stride_a, each.stride_b, 0]));
    let terms = offsets(terms.collect());
    let mut result = case.c.clone();
    for [a, b, c] in offsets(batch.collect()) {
        for row in 0..spec.m as isize {
            for column in 0..spec.n as isize {
                let (a, b) = (a + row * spec.a_row_stride, b + column * spec.b_column_stride);
                let products = terms
                    .iter()
                    .map(|[in_a, in_b, _]| case.a.get((a + in_a) as usize) * case.b.get((b + in_b) as usize));
                let sum = products.sum::<f64>() as f32;
                let place = c + row * spec.c_row_stride + column * spec.c_column_stride;
                result.set(place as usize, f64::from(spec.scale * sum));
            }
        }
    }
    result
}

/// Where the iterations of nested loops are, outermost first, in three tensors.
fn offsets(loops: Vec<(usize, [isize; 3])>) -> Vec<[isize; 3]> {
    loops.into_iter().fold(vec![[0; 3]], |outer, (extent, strides)| {
        let inner = |at: [isize; 3]| {
            (0..extent as isize).map(move |number| [0, 1, 2].map(|which| at[which] + number * strides[which]))
        };
        outer.into_iter().flat_map(inner).collect()
    })
}

/// Products of bf16 with every kernel: whole and odd sizes, both orders of the output, several products, and one row.
fn on_tensor_cores(numbers: &mut Numbers) -> Vec<Fused> {
    let transposed = [Innermost::Others, Innermost::Others, Innermost::Lines];
    let wide = [Element::Bf16, Element::Bf16, Element::F32];
    let batch = vec![Batch::Both(3), Batch::OnlyB(2)];
    let mut of = |shape: Shape, innermost, kernel| Fused::new(&shape, innermost, kernel, numbers);
    vec![
        of(plain_bf16(72, 80, 232), ROW_MAJOR, biased),
        Fused { over: Some(["y", "x"]), ..of(plain_bf16(70, 67, 40), [Innermost::Others; 3], residual) },
        Fused { over: Some(["y", "sums"]), ..of(plain_bf16(72, 80, 104), transposed, dropped) },
        of(Shape { batch, scale: -0.3, ..plain_bf16(16, 24, 32) }, ROW_MAJOR, accumulated),
        of(Shape { scale: 0.1, ..plain_bf16(1, 203, 40) }, [Innermost::Others; 3], activated),
        of(Shape { elements: wide, scale: 0.01, ..plain_bf16(65, 72, 104) }, ROW_MAJOR, gated),
        Fused { keeps: Keeps::Results, ..of(plain_bf16(66, 80, 72), ROW_MAJOR, by_heads::<20>) },
        Fused { keeps: Keeps::Results, ..of(plain_bf16(66, 80, 72), ROW_MAJOR, by_heads::<16>) },
    ]
}

#[test]
fn on_the_tensor_cores() {
    ARCHITECTURES.into_iter().for_each(|architecture| {
        let Some(mut bench) = Bench::new(architecture) else { return };
        for fused in on_tensor_cores(&mut Numbers(31)) {
            fused.check(&mut bench, Placing::Aligned);
        }
    });
}

#[test]
fn on_the_ordinary_cores() {
    let Some(mut bench) = Bench::new(Architecture::Sm80) else { return };
    let mut numbers = Numbers(32);
    let mixed = [Element::F32, Element::Bf16, Element::Bf16];
    let batch = vec![Batch::Both(2), Batch::OnlyA(2)];
    let cases: [(Shape, [Innermost; 3], MakeKernel, Keeps); 3] = [
        (plain(70, 67, 35), [Innermost::Others; 3], gated, Keeps::Nothing),
        (Shape { batch, scale: -0.3, ..plain(20, 65, 19) }, ROW_MAJOR, accumulated, Keeps::Results),
        (
            Shape { elements: mixed, ..plain(40, 33, 150) },
            [Innermost::Others, Innermost::Others, Innermost::Lines],
            dropped,
            Keeps::Nothing,
        ),
    ];
    for (shape, innermost, kernel, keeps) in cases {
        let fused = Fused { keeps, ..Fused::new(&shape, innermost, kernel, &mut numbers) };
        fused.check(&mut bench, Placing::Aligned);
        fused.check_against_two(&mut bench, &mut numbers);
    }
}

/// Results of parts of sums: the epilogue is with the launch that adds them up.
#[test]
fn of_sums_in_parts() {
    ARCHITECTURES.into_iter().for_each(|architecture| {
        let Some(mut bench) = Bench::new(architecture) else { return };
        let shape = Shape { batch: vec![Batch::Both(2)], scale: 0.1, ..plain_bf16(40, 67, 1032) };
        let fused = in_parts(&shape, gated);
        fused.check(&mut bench, Placing::Aligned);
        fused.check_against_two(&mut bench, &mut Numbers(34));
    });
}

pub fn in_parts(shape: &Shape, kernel: MakeKernel) -> Fused {
    let fused = Fused::new(shape, [Innermost::Others; 3], kernel, &mut Numbers(33));
    let call = fused.call();
    assert_eq!(call.launches.len(), 2);
    assert!(!call.launches[0].source.contains("struct Epilogue"), "parts are no results");
    fused
}

/// The bits of two launches, where sums are rounded.
#[test]
fn as_two_launches() {
    ARCHITECTURES.into_iter().for_each(|architecture| {
        let Some(mut bench) = Bench::new(architecture) else { return };
        let mut numbers = Numbers(35);
        let transposed = [Innermost::Others, Innermost::Others, Innermost::Lines];
        let fused = Fused::new(&plain_bf16(72, 80, 200), transposed, gated, &mut numbers);
        fused.check_against_two(&mut bench, &mut numbers);
    });
}

/// The larger tiles, of which a warp stores more strips than two.
#[test]
fn of_products_that_fill_a_device() {
    ARCHITECTURES.into_iter().zip(large_shapes()).for_each(|(architecture, (shape, tiles))| {
        let Some(mut bench) = Bench::new(architecture) else { return };
        let mut numbers = Numbers(39);
        let shape = Shape { contraction: vec![8], ..shape };
        let fused = Fused::new(&shape, ROW_MAJOR, residual, &mut numbers);
        assert!(fused.call().launches[0].source.contains(tiles));
        fused.check_against_two(&mut bench, &mut numbers);
    });
}

/// Where nothing begins at a multiple of 16 bytes: the kernel's tensors by what is said of them, kept results by their address.
#[test]
fn of_tensors_that_begin_between_vectors() {
    let Some(mut bench) = Bench::new(Architecture::Sm80) else { return };
    between_vectors().check(&mut bench, Placing::Behind(4));
}

pub fn between_vectors() -> Fused {
    let fused = Fused::new(&plain_bf16(16, 24, 40), ROW_MAJOR, gated, &mut Numbers(36));
    Fused { keeps: Keeps::Results, alignment: 4, ..fused }
}

/// In registers, and 16 bytes at once where they can be, on every device and with every tile.
#[test]
fn epilogues_compile_for_every_architecture() {
    if crate::library::nvrtc().is_none() {
        return;
    }
    let [(wide, wide_tiles), (large, large_tiles)] = large_shapes();
    let as_tf32 = |shape: &Shape| Shape { elements: F32, factors: Factors::Tf32, ..shape.clone() };
    let shapes = [
        (as_tf32(&wide), 4096, wide_tiles),
        (as_tf32(&large), 4096, large_tiles),
        (wide, 4096, wide_tiles),
        (large, 4096, large_tiles),
        (plain_bf16(64, 64, 64), 64, "TILE_COLUMNS = 64"),
        (plain_bf16(64, 64, 64), 4096, "PARTS = 8"),
        (Shape { batch: vec![Batch::Both(128)], ..plain(128, 128, 64) }, 4096, "TILE_COLUMNS = 128"),
    ];
    for (shape, terms, tiles) in shapes {
        let launch = long_product(&shape, terms, gated);
        assert!(launch.source.contains(tiles), "{shape:?}");
        for architecture in Architecture::ALL {
            in_registers(&launch, architecture, &shape);
        }
        if let Some(alternative) = &launch.alternative {
            in_registers(alternative, Architecture::Sm90a, &shape);
        }
    }
}

/// What makes the results of a product with an epilogue and of so many terms.
fn long_product(shape: &Shape, terms: usize, kernel: MakeKernel) -> DeviceLaunch {
    let mut case = Case::dense(shape, ROW_MAJOR, &mut Numbers(37));
    case.spec.contraction[0].extent = terms;
    let kernel = kernel([(case.c.len() / shape.n) as u64, shape.n as u64], element_type(case.spec.c));
    let (sums, _) = kernel.tensors.iter().next().expect("its first tensor");
    let epilogue = cuda::epilogue(&kernel, &Origins::new(), &[256; 8], sums, Keeps::Nothing);
    let call =
        matmul(&case.spec, Some(&epilogue.expect("it is one"))).unwrap_or_else(|error| panic!("{error}"));
    call.launches.into_iter().next_back().expect("a launch")
}

fn in_registers(launch: &DeviceLaunch, architecture: Architecture, shape: &Shape) {
    let binary = compiled(launch, architecture);
    let registers = binary.report().kernels[0].registers;
    println!("{} for {}: {registers} registers", launch.name, architecture.name());
    assert!(!binary.ptx.contains(".local"), "{shape:?}");
    let on_tensor_cores = shape.elements != F32 || shape.factors == Factors::Tf32;
    let is_wide = on_tensor_cores && !launch.name.starts_with("matmul_parts");
    for access in ["ld.global.v4", "st.global.v4"] {
        assert_eq!(binary.ptx.contains(access), is_wide, "{access}: {shape:?}");
    }
}

/// Kernels that are more than work on each result, and products that have no such results.
#[test]
fn what_is_no_epilogue() {
    let epilogue = |kernel: &Kernel, name: &str| {
        let named = |(_, tensor): &(TensorId, &TensorParameter)| tensor.name == name;
        let (sums, _) = kernel.tensors.iter().find(named).expect("it has such a tensor");
        cuda::epilogue(kernel, &Origins::new(), &[256; 8], sums, Keeps::Nothing)
    };
    let kernel = gated([12, 16], ElementType::F32);
    let sound = epilogue(&kernel, "sums").expect("it is one");
    assert!(epilogue(&kernel, "y").is_none(), "what it writes");
    assert!(epilogue(&biased([12, 16], ElementType::F32), "bias").is_none(), "read in every row");
    assert!(epilogue(&with_turned_sums([16, 16], ElementType::F32), "sums").is_none(), "turned");
    let whole_numbers = accumulated([12, 16], ElementType::F32);
    assert!(epilogue(&whole_numbers, "ids").is_none(), "no floats");
    let mut longer = kernel.clone();
    let tensor = longer.tensors.values_mut().next().expect("its first tensor");
    tensor.length += 1;
    assert!(epilogue(&longer, "sums").is_none(), "results that it leaves alone");

    let mut numbers = Numbers(38);
    let refused = |spec: &MatmulSpec| matmul(spec, Some(&sound)).expect_err("it is refused").to_string();
    let added = Shape { accumulation: Accumulation::Add, ..plain(12, 16, 8) };
    let spec = Case::dense(&added, ROW_MAJOR, &mut numbers).spec;
    assert!(refused(&spec).contains("adds to C"));
    let spec = Case::padded(&plain(12, 13, 8), ROW_MAJOR, 8, &mut numbers).spec;
    assert!(refused(&spec).contains("not dense"));
    for c in OPERANDS {
        let shape = Shape { batch: vec![Batch::Both(2), Batch::OnlyA(1)], ..plain(12, 16, 8) };
        let spec = Case::dense(&shape, [ROW_MAJOR[0], ROW_MAJOR[1], c], &mut numbers).spec;
        assert!(matmul(&spec, Some(&sound)).is_ok());
    }
}

/// What is done leads back to its lines in the source.
#[test]
fn an_epilogue_names_its_source() {
    let kernel = gated([12, 16], ElementType::F32);
    let mut origins = Origins::new();
    let named = [("mlp.up", 6), ("mlp.gate", 7)];
    for (register, (name, line)) in kernel.registers.keys().zip(named) {
        let origin = RegisterOrigin { name: Some(name.to_owned()), file: "model.dtl".to_owned(), line };
        origins[register] = Some(origin);
    }
    let (sums, _) = kernel.tensors.iter().next().expect("its tensors");
    let epilogue = cuda::epilogue(&kernel, &origins, &[256; 8], sums, Keeps::Nothing).expect("it is one");
    let named: Vec<&str> = epilogue.source.lines().filter(|line| line.contains("// model.dtl:")).collect();
    let expected = [
        "const float up = result;  // model.dtl:6",
        "const float gate = dtl::widen(x[16 * line + d]);  // model.dtl:7",
        "const float up = results.at[at];  // model.dtl:6",
        "const float gate = dtl::widen(loads.x_pack.at[at]);  // model.dtl:7",
    ];
    assert_eq!(named.into_iter().map(str::trim).collect::<Vec<_>>(), expected, "{}", epilogue.source);
}

/// Kernels of a model as fusion makes them, each on its first tensor that could be a product's results: one of each name, which says what it is from.
#[test]
fn of_kernels_of_a_model() {
    let Some(mut bench) = Bench::new(Architecture::Sm90a) else { return };
    let mut numbers = Numbers(40);
    let mut names = BTreeSet::new();
    for KernelListing { mut kernel, origins, .. } in assembled(MODEL, "one", Mode::Train).kernels {
        let is_epilogue =
            |sums: &TensorId| cuda::epilogue(&kernel, &origins, &[256; 64], *sums, Keeps::Nothing).is_some();
        let Some(sums) = kernel.tensors.keys().find(is_epilogue) else { continue };
        if !names.insert(kernel.name.clone()) {
            continue;
        }
        kernel.tensors[sums].name = "sums".to_owned();
        let contents = kernel.tensors.values().map(|tensor| content(tensor, &mut numbers)).collect();
        let lowest = |integer: &IntegerParameter| integer.range.map_or(3, |(low, _)| low);
        let integers = kernel.integers.values().map(lowest).collect();
        let (keeps, over, alignment) = (Keeps::Nothing, None, 256);
        let product = product_of(&kernel.tensors[sums], &mut numbers);
        let fused = Fused { product, kernel, contents, integers, keeps, over, alignment };
        fused.check(&mut bench, Placing::Aligned);
    }
    println!("{names:?}");
    assert!(names.len() > 5, "{names:?}");
}

/// A product with as many results as the tensor has elements.
fn product_of(tensor: &TensorParameter, numbers: &mut Numbers) -> Case {
    let c = match tensor.element {
        ElementType::Bf16 => Element::Bf16,
        ElementType::F16 => Element::F16,
        ElementType::F32 | ElementType::I32 | ElementType::U32 | ElementType::Bool => Element::F32,
    };
    let factor = if c == Element::F16 { c } else { Element::Bf16 };
    let elements = [factor, factor, c];
    let columns = 64.min(1 << tensor.length.trailing_zeros());
    let shape = Shape { elements, ..plain(tensor.length as usize / columns, columns, 8) };
    Fused::new(&shape, ROW_MAJOR, biased, numbers).product
}
