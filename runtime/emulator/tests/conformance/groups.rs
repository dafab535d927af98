//! `wgmma`, one group of four warps. Where a factor's elements lie is written down here as shapes and strides of elements with a swizzle over
//! bits of the byte's address, after the tables of canonical layouts; that of the sums after PTX's figure. What must be noticed follows.

use crate::support::{Bench, Numbers};
use dtlc_emulator::{
    Access, Argument, CudaDriver, Emulator, EmulatorOptions, FaultKind, LaunchFault, LaunchShape, ModuleImage,
};
use half::{bf16, f16};

const TERMS: usize = 16;

/// Which index runs along memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Major {
    Terms,
    Lines,
}

/// A factor in shared memory.
#[derive(Clone, Copy, Debug)]
struct Factor {
    major: Major,
    /// The descriptor's layout: 0, or 1, 2, 3 for a swizzle over 128, 64, 32 bytes.
    layout: u64,
    lines: usize,
    /// The first byte.
    base: usize,
    /// The first term of those in the rows.
    first_term: usize,
}

impl Factor {
    /// Bytes of a row of chunks, and bits of the swizzle.
    fn row(self) -> (usize, usize) {
        [(16, 0), (128, 3), (64, 2), (32, 1)][self.layout as usize]
    }

    /// Leading and stride offset, in bytes.
    fn offsets(self) -> (usize, usize) {
        let (row, _) = self.row();
        match (self.major, self.layout) {
            // Core matrices of 128 bytes: the two of a line's terms side by side, and a gap behind them.
            (Major::Terms, 0) => (128, 384),
            (Major::Terms, _) => (16, 8 * row),
            (Major::Lines, 0) => (128, 256),
            (Major::Lines, _) => (16 * row, 8 * row),
        }
    }

    fn place(self, line: usize, term: usize) -> usize {
        let (row, bits) = self.row();
        let (leading, stride) = self.offsets();
        let term = term + self.first_term;
        let byte = match (self.major, self.layout) {
            (Major::Terms, 0) => line % 8 * 16 + line / 8 * stride + term % 8 * 2 + term / 8 * leading,
            (Major::Terms, _) => line % 8 * row + line / 8 * stride + term * 2,
            (Major::Lines, 0) => line % 8 * 2 + line / 8 * stride + term % 8 * 16 + term / 8 * leading,
            (Major::Lines, _) => {
                let in_row = row / 2;
                line % in_row * 2 + line / in_row * leading + term % 8 * row + term / 8 * stride
            }
        };
        let byte = self.base + byte;
        let swizzled = byte >> 7 & ((1 << bits) - 1);
        byte ^ swizzled << 4
    }

    fn descriptor(self) -> u64 {
        let (leading, stride) = self.offsets();
        let start = self.base + 2 * self.first_term;
        (start >> 4) as u64 | (leading as u64 >> 4) << 16 | (stride as u64 >> 4) << 32 | self.layout << 62
    }

    fn transposed(self) -> u32 {
        u32::from(self.major == Major::Lines)
    }
}

/// A product of a group, and text that a test may change.
struct Case {
    left: Factor,
    right: Factor,
    types: &'static str,
    adds: bool,
    signs: [i32; 2],
    /// The left factor comes in registers.
    in_registers: bool,
}

impl Case {
    fn new(left: (Major, u64), right: (Major, u64), columns: usize) -> Case {
        let factor = |(major, layout), lines, base| Factor { major, layout, lines, base, first_term: 0 };
        Case {
            left: factor(left, 64, 0),
            right: factor(right, columns, 16384),
            types: "bf16.bf16",
            adds: true,
            signs: [1, 1],
            in_registers: false,
        }
    }

    fn plain() -> Case {
        Case::new((Major::Terms, 1), (Major::Lines, 1), 64)
    }

    fn with_left_in_registers() -> Case {
        Case { in_registers: true, ..Case::plain() }
    }

    fn encode(&self, value: f32) -> u16 {
        if self.types == "bf16.bf16" {
            bf16::from_f32(value).to_bits()
        } else {
            f16::from_f32(value).to_bits()
        }
    }

    fn decode(&self, bits: u16) -> f64 {
        if self.types == "bf16.bf16" { bf16::from_bits(bits).to_f64() } else { f16::from_bits(bits).to_f64() }
    }

    /// The kernel: fills shared memory from p0, reads sums from p1, multiplies and stores to p1.
    fn text(&self) -> String {
        let (columns, sums) = (self.right.lines, self.right.lines / 2);
        let registers = (0..sums).map(|index| format!("%s{index}")).collect::<Vec<_>>().join(", ");
        let at = |index: usize| format!("[%io+{}]", 512 * index);
        let loads: String =
            (0..sums).map(|index| format!("ld.global.f32 %s{index}, {};\n", at(index))).collect();
        let stores: String =
            (0..sums).map(|index| format!("st.global.f32 {}, %s{index};\n", at(index))).collect();
        let a_loads: String =
            (0..4).map(|index| format!("ld.global.b32 %a{index}, [%fr+{}];\n", 512 * index)).collect();
        let [a_sign, b_sign] = self.signs;
        let (left, transposes) = if self.in_registers {
            ("{%a0, %a1, %a2, %a3}".to_owned(), format!("{}", self.right.transposed()))
        } else {
            ("%left".to_owned(), format!("{}, {}", self.left.transposed(), self.right.transposed()))
        };
        format!(
            ".version 8.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 tile[];\n\
             .visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u32 bytes, .param .u32 scale) {{\n\
             .reg .f32 %s<{sums}>; .reg .b32 %a<4>, %t, %i, %n, %v, %to; .reg .b64 %in, %io, %fr, %by, %left, %right;\n\
             .reg .pred %p, %adds;\n\
             mov.u32 %t, %tid.x; ld.param.u64 %in, [p0]; ld.param.u64 %io, [p1]; ld.param.u64 %fr, [p2];\n\
             ld.param.u32 %n, [bytes];\n\
             mul.wide.u32 %by, %t, 4; add.s64 %io, %io, %by; add.s64 %in, %in, %by; add.s64 %fr, %fr, %by;\n\
             shl.b32 %i, %t, 2; mov.u32 %to, tile; add.u32 %to, %to, %i;\n\
             fill: ld.global.b32 %v, [%in]; st.shared.b32 [%to], %v; add.s64 %in, %in, 512; add.u32 %to, %to, 512;\n\
             add.u32 %i, %i, 512; setp.lt.u32 %p, %i, %n; @%p bra fill;\n\
             {loads}{a_loads}\
             mov.b64 %left, {:#x}; mov.b64 %right, {:#x}; ld.param.u32 %i, [scale]; setp.ne.b32 %adds, %i, 0;\n\
             fence.proxy.async;\nbar.sync 0;\nwgmma.fence.sync.aligned;\n\
             wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{} {{{registers}}}, {left}, %right, %adds, {a_sign}, {b_sign}, {transposes};\n\
             wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n{stores}ret;\n}}\n",
            self.left.descriptor(),
            self.right.descriptor(),
            self.types,
        )
    }

    /// Runs a text over random factors and sums: sums before and after as they lie, and the factors by line and term.
    fn run(&self, text: &str) -> Result<Run, FaultKind> {
        let device = Emulator::new(EmulatorOptions {
            capability: (9, 0),
            budget: 1 << 20,
            ..EmulatorOptions::default()
        });
        let module = device.load(&ModuleImage { name: "group", ptx: text, cubin: &[] });
        let bench = Bench { module: module.unwrap_or_else(|error| panic!("{error}")), device };
        let mut numbers = Numbers(31);
        let mut image = vec![0_u8; 81920];
        let mut matrices = Vec::new();
        for factor in [self.left, self.right] {
            let mut matrix = vec![[0.0; TERMS]; factor.lines];
            for (line, row) in matrix.iter_mut().enumerate() {
                for (term, value) in row.iter_mut().enumerate() {
                    let bits = self.encode(numbers.float());
                    *value = self.decode(bits);
                    let place = factor.place(line, term);
                    image[place..place + 2].copy_from_slice(&bits.to_le_bytes());
                }
            }
            matrices.push(matrix);
        }
        let before = numbers.floats(64 * self.right.lines);
        // The left factor as registers hold it: register, then thread.
        let pair = |row: usize, term: usize| {
            let half = |term: usize| u32::from(self.encode(matrices[0][row][term] as f32));
            half(term) | half(term + 1) << 16
        };
        let fragments: Vec<u32> = (0..4 * 128)
            .map(|index| {
                let (register, warp, lane) = (index / 128, index % 128 / 32, index % 32);
                pair(warp * 16 + (lane >> 2) + 8 * (register & 1), 8 * (register >> 1) + lane % 4 * 2)
            })
            .collect();
        let [input, sums, left] = [bench.buffer(&image), bench.buffer(&before), bench.buffer(&fragments)];
        let mut arguments = [input, sums, left].map(Argument::Pointer).to_vec();
        arguments.extend([Argument::U32(image.len() as u32), Argument::U32(u32::from(self.adds))]);
        let shape = LaunchShape { shared_bytes: image.len() as u32, ..LaunchShape::linear(1, 128) };
        match bench.try_run("k", shape, &arguments) {
            Ok(()) => {}
            Err(dtlc_emulator::DriverError::Fault(fault)) => return Err(fault_kind(*fault)),
            Err(other) => panic!("{other}"),
        }
        let after = bench.values(sums, before.len());
        Ok(Run { matrices, before, after })
    }

    /// The first sum that is not what the definition says.
    fn difference(&self, run: &Run) -> Option<String> {
        (0..run.after.len()).find_map(|index| {
            let (register, warp, lane) = (index / 128, index % 128 / 32, index % 32);
            let row = warp * 16 + (lane >> 2) + if register & 2 == 2 { 8 } else { 0 };
            let column = (register >> 2) * 8 + lane % 4 * 2 + (register & 1);
            let sign = f64::from(self.signs[0] * self.signs[1]);
            let product: f64 =
                (0..TERMS).map(|term| run.matrices[0][row][term] * run.matrices[1][column][term]).sum();
            let start = if self.adds { f64::from(run.before[index]) } else { 0.0 };
            let (found, expected) = (f64::from(run.after[index]), start + sign * product);
            // 17 roundings of sums below 17.
            let is_near = (found - expected).abs() <= 17.0 * 17.0 * f64::from(f32::EPSILON);
            (!is_near).then(|| format!("row {row} column {column}: {found}, not {expected}"))
        })
    }

    fn check(&self) {
        let run =
            self.run(&self.text()).unwrap_or_else(|kind| panic!("{:?} {:?}: {kind}", self.left, self.right));
        assert_eq!(self.difference(&run), None, "{:?} {:?}", self.left, self.right);
    }
}

fn fault_kind(fault: LaunchFault) -> FaultKind {
    assert!(fault.ptx_line > 0 || matches!(fault.kind, FaultKind::GroupDiffers { .. }), "{fault}");
    fault.kind
}

struct Run {
    matrices: Vec<Vec<[f64; TERMS]>>,
    before: Vec<f32>,
    after: Vec<f32>,
}

#[test]
fn every_layout_of_both_factors() {
    for major in [Major::Terms, Major::Lines] {
        for layout in 0..4 {
            Case::new((major, layout), (Major::Terms, 1), 64).check();
            Case::new((Major::Lines, 1), (major, layout), 128).check();
        }
    }
}

#[test]
fn every_size() {
    for columns in [8, 24, 40, 136, 192, 256] {
        Case::new((Major::Terms, 2), (Major::Lines, 0), columns).check();
        Case::new((Major::Terms, 2), (Major::Terms, 2), columns).check();
    }
}

#[test]
fn a_start_inside_of_rows() {
    for (layout, first_term) in [(1, 16), (1, 32), (1, 48), (2, 16)] {
        let mut case = Case::new((Major::Terms, layout), (Major::Terms, layout), 32);
        (case.left.first_term, case.right.first_term) = (first_term, first_term);
        case.check();
    }
}

#[test]
fn signs_types_and_sums_that_are_replaced() {
    for signs in [[1, -1], [-1, 1], [-1, -1]] {
        Case { signs, ..Case::plain() }.check();
    }
    Case { adds: false, ..Case::plain() }.check();
    Case { types: "f16.f16", ..Case::plain() }.check();
    for types in ["f16.f16", "bf16.bf16"] {
        Case { types, ..Case::with_left_in_registers() }.check();
    }
    Case { signs: [-1, 1], adds: false, ..Case::with_left_in_registers() }.check();
    let wide = Case::new((Major::Terms, 1), (Major::Lines, 3), 176);
    Case { in_registers: true, ..wide }.check();
}

/// Seeds a fault into the text, which passes without it.
fn seeded(case: &Case, from: &str, to: &str) -> Result<Option<String>, FaultKind> {
    case.check();
    let text = case.text();
    assert_eq!(text.matches(from).count(), 1, "`{from}` in\n{text}");
    let run = case.run(&text.replace(from, to))?;
    Ok(case.difference(&run))
}

macro_rules! caught {
    ($name:ident, $from:expr => $to:expr, $expected:pat) => {
        caught!(Case::plain(), $name, $from => $to, $expected);
    };
    ($case:expr, $name:ident, $from:expr => $to:expr, $expected:pat) => {
        #[test]
        fn $name() {
            let found = seeded(&$case, $from, $to);
            assert!(matches!(found, $expected), "{found:?}");
        }
    };
}

use FaultKind as Kind;

caught!(no_fence_of_registers, "wgmma.fence.sync.aligned;" => "", Err(Kind::RegistersNotFenced));
caught!(a_register_written_behind_the_fence, "wgmma.fence.sync.aligned;" => "wgmma.fence.sync.aligned; mov.f32 %s3, %s4;",
    Err(Kind::RegistersNotFenced));
caught!(no_wait, "wgmma.wait_group.sync.aligned 0;" => "", Err(Kind::ProductNotAwaited));
caught!(a_wait_that_leaves_one, "wait_group.sync.aligned 0;" => "wait_group.sync.aligned 1;", Err(Kind::ProductNotAwaited));
caught!(no_commit, "wgmma.commit_group.sync.aligned;" => "", Err(Kind::ProductNotAwaited));
caught!(no_fence_of_the_proxy, "fence.proxy.async;" => "", Err(Kind::NotPublished { .. }));
caught!(a_fence_of_the_proxy_for_device_memory, "fence.proxy.async;" => "fence.proxy.async.global;", Err(Kind::NotPublished { .. }));
caught!(a_fence_of_the_proxy_by_half_a_warp, "fence.proxy.async;" => "setp.lt.u32 %p, %t, 48; @%p fence.proxy.async;",
    Err(Kind::NotPublished { .. }));
caught!(no_barrier, "bar.sync 0;" => "", Err(Kind::Uninitialised { .. } | Kind::Race { access: Access::Read, .. }));
caught!(memory_written_under_way, "wgmma.commit_group.sync.aligned;" => "wgmma.commit_group.sync.aligned; st.shared.b32 [tile], %t;",
    Err(Kind::ReadUnderWay { .. }));
caught!(memory_written_by_another_warp_before_a_barrier, "wgmma.wait_group.sync.aligned 0;\n" =>
    "wgmma.wait_group.sync.aligned 0; setp.eq.u32 %p, %t, 96; @%p st.shared.b32 [tile+16384], %t;\n",
    Err(Kind::Race { .. } | Kind::ReadUnderWay { .. }));
caught!(half_a_warp, "wgmma.commit_group" => "setp.lt.u32 %p, %t, 112; @%p wgmma.commit_group", Err(Kind::DivergentLanes { .. }));
caught!(three_warps_of_the_group, "wgmma.fence.sync" => "setp.gt.u32 %p, %t, 95; @%p ret; wgmma.fence.sync",
    Err(Kind::GroupDiffers { arrived: 0b0111, .. }));
caught!(descriptors_that_differ_by_warp, "fence.proxy.async;" => "fence.proxy.async; setp.gt.u32 %p, %t, 95; @%p add.u64 %left, %left, 2;",
    Err(Kind::GroupDiffers { .. }));
caught!(descriptors_that_differ_by_lane, "fence.proxy.async;" => "fence.proxy.async; setp.eq.u32 %p, %t, 9; @%p add.u64 %left, %left, 2;",
    Err(Kind::BadOperand(_)));
caught!(sums_of_another_shape_under_way, "wgmma.commit_group" =>
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%s0, %s1, %s2, %s3}, %left, %right, %adds, 1, 1, 0, 1; wgmma.commit_group",
    Err(Kind::ProductNotAwaited));
caught!(another_swizzle, "fence.proxy.async;" => "fence.proxy.async; xor.b64 %left, %left, 0xc000000000000000;", Ok(Some(_)));
caught!(no_swizzle, "fence.proxy.async;" => "fence.proxy.async; and.b64 %right, %right, 0x3fffffffffffffff;", Ok(Some(_)));
caught!(another_stride, "fence.proxy.async;" => "fence.proxy.async; add.u64 %right, %right, 0x2000000000;", Ok(Some(_)));
caught!(a_base_offset, "fence.proxy.async;" => "fence.proxy.async; add.u64 %right, %right, 0x2000000000000;", Err(Kind::BadOperand(_)));
caught!(a_matrix_past_the_end, "fence.proxy.async;" => "fence.proxy.async; add.u64 %right, %right, 0x2000;", Err(Kind::OutOfBounds { .. }));
caught!(the_other_transpose, "1, 1, 0, 1;" => "1, 1, 0, 0;", Ok(Some(_)));
caught!(Case::with_left_in_registers(), a_left_register_written_behind_the_fence,
    "wgmma.fence.sync.aligned;" => "wgmma.fence.sync.aligned; mov.b32 %a1, %a2;", Err(Kind::RegistersNotFenced));
caught!(Case::with_left_in_registers(), a_left_register_written_under_way,
    "wgmma.commit_group" => "mov.b32 %a1, %a2; wgmma.commit_group", Err(Kind::ProductNotAwaited));
caught!(Case::with_left_in_registers(), a_left_register_read_under_way,
    "wgmma.wait_group" => "mov.b32 %v, %a3; wgmma.wait_group", Err(Kind::ProductNotAwaited));
caught!(Case::with_left_in_registers(), a_left_register_written_after_a_wait_that_leaves_one,
    "wgmma.wait_group.sync.aligned 0;" => "wgmma.wait_group.sync.aligned 1; mov.b32 %a0, 0;", Err(Kind::ProductNotAwaited));
caught!(Case::with_left_in_registers(), left_registers_in_another_order, "{%a0, %a1, %a2, %a3}" => "{%a0, %a2, %a1, %a3}", Ok(Some(_)));
