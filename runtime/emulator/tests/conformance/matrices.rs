//! Matrix instructions, one warp. Where elements lie is written down here element by element, after the tables of PTX's reference.

use crate::support::{Bench, Numbers};
use dtlc_emulator::{Argument, LaunchShape};
use half::{bf16, f16};

/// Row and column of element `i` of A (16 rows) that a lane holds, for elements of 16 bits.
fn a16(lane: usize, i: usize) -> (usize, usize) {
    let (group, t) = (lane >> 2, lane % 4);
    let row = if i < 2 || (4..6).contains(&i) { group } else { group + 8 };
    (row, t * 2 + (i & 1) + if i >= 4 { 8 } else { 0 })
}

fn b16(lane: usize, i: usize) -> (usize, usize) {
    (lane % 4 * 2 + (i & 1) + if i >= 2 { 8 } else { 0 }, lane >> 2)
}

fn a32(lane: usize, i: usize) -> (usize, usize) {
    let row = if i.is_multiple_of(2) { lane >> 2 } else { (lane >> 2) + 8 };
    (row, lane % 4 + if i >= 2 { 4 } else { 0 })
}

fn b32(lane: usize, i: usize) -> (usize, usize) {
    (lane % 4 + 4 * i, lane >> 2)
}

fn a8(lane: usize, i: usize) -> (usize, usize) {
    let row = if i < 4 || (8..12).contains(&i) { lane >> 2 } else { (lane >> 2) + 8 };
    (row, lane % 4 * 4 + (i & 3) + if i >= 8 { 16 } else { 0 })
}

fn b8(lane: usize, i: usize) -> (usize, usize) {
    (lane % 4 * 4 + (i & 3) + if i >= 4 { 16 } else { 0 }, lane >> 2)
}

fn c32(lane: usize, i: usize) -> (usize, usize) {
    (if i < 2 { lane >> 2 } else { (lane >> 2) + 8 }, lane % 4 * 2 + (i & 1))
}

type Place = fn(usize, usize) -> (usize, usize);

/// A form of `mma.sync`: its name, depth, bits of an element, places, an element from its bits.
struct Form {
    name: &'static str,
    depth: usize,
    bits: usize,
    a: Place,
    b: Place,
    read: fn(u32) -> f64,
}

const FORMS: [Form; 10] = [
    Form { name: "m16n8k16.row.col.f32.bf16.bf16.f32", depth: 16, bits: 16, a: a16, b: b16, read: bf16_of },
    Form { name: "m16n8k8.row.col.f32.bf16.bf16.f32", depth: 8, bits: 16, a: a16, b: b16, read: bf16_of },
    Form { name: "m16n8k16.row.col.f32.f16.f16.f32", depth: 16, bits: 16, a: a16, b: b16, read: f16_of },
    Form { name: "m16n8k8.row.col.f32.f16.f16.f32", depth: 8, bits: 16, a: a16, b: b16, read: f16_of },
    Form { name: "m16n8k8.row.col.f32.tf32.tf32.f32", depth: 8, bits: 32, a: a32, b: b32, read: tf32_of },
    Form { name: "m16n8k4.row.col.f32.tf32.tf32.f32", depth: 4, bits: 32, a: a32, b: b32, read: tf32_of },
    Form { name: "m16n8k32.row.col.s32.s8.s8.s32", depth: 32, bits: 8, a: a8, b: b8, read: s8_of },
    Form { name: "m16n8k16.row.col.s32.s8.s8.s32", depth: 16, bits: 8, a: a8, b: b8, read: s8_of },
    Form { name: "m16n8k32.row.col.s32.u8.u8.s32", depth: 32, bits: 8, a: a8, b: b8, read: u8_of },
    Form { name: "m16n8k16.row.col.f16.f16.f16.f16", depth: 16, bits: 16, a: a16, b: b16, read: f16_of },
];

fn bf16_of(bits: u32) -> f64 {
    bf16::from_bits(bits as u16).to_f64()
}

fn f16_of(bits: u32) -> f64 {
    f16::from_bits(bits as u16).to_f64()
}

fn tf32_of(bits: u32) -> f64 {
    f64::from(f32::from_bits(bits & 0xffff_e000))
}

fn s8_of(bits: u32) -> f64 {
    f64::from(bits as u8 as i8)
}

fn u8_of(bits: u32) -> f64 {
    f64::from(bits as u8)
}

fn registers(count: usize, name: &str) -> String {
    (0..count).map(|index| format!("%{name}{index}")).collect::<Vec<_>>().join(",")
}

/// A kernel that loads fragments word by word from p0, runs `body`, and stores `%d0`… to p1.
fn fragments(inputs: &[(&str, usize)], outputs: usize, body: &str) -> String {
    let total: usize = inputs.iter().map(|(_, count)| count).sum();
    let mut loads = String::new();
    let mut at = 0;
    for (name, count) in inputs {
        for index in 0..*count {
            loads += &format!("ld.global.b32 %{name}{index}, [%in+{}];\n", 4 * at);
            at += 1;
        }
    }
    let stores: String =
        (0..outputs).map(|index| format!("st.global.b32 [%out+{}], %d{index};\n", 4 * index)).collect();
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p0, .param .u64 p1) {{\n\
         .reg .b32 %a<8>, %b<8>, %c<8>, %d<8>, %t, %r<4>; .reg .b64 %in, %out, %by;\n\
         .shared .align 16 .b8 tile[1024];\n\
         mov.u32 %t, %tid.x;\n\
         ld.param.u64 %in, [p0]; mul.wide.u32 %by, %t, {}; add.s64 %in, %in, %by;\n\
         ld.param.u64 %out, [p1]; mul.wide.u32 %by, %t, {}; add.s64 %out, %out, %by;\n\
         {loads}{body}\n{stores}ret;\n}}\n",
        4 * total,
        4 * outputs,
    )
}

fn run(text: &str, words: &[u32], outputs: usize) -> Vec<u32> {
    let bench = Bench::new(text);
    let (input, out) = (bench.buffer(words), bench.room::<u32>(32 * outputs));
    bench.run("k", LaunchShape::linear(1, 32), &[Argument::Pointer(input), Argument::Pointer(out)]);
    bench.values(out, 32 * outputs)
}

/// A product as it is run: how many registers each fragment has, and the words of all lanes.
struct Case<'a> {
    form: &'a Form,
    a_count: usize,
    sums: usize,
    words: Vec<u32>,
}

impl Case<'_> {
    fn new(form: &Form) -> Case<'_> {
        let a_count = 16 * form.depth * form.bits / 1024;
        let sums = if form.name.ends_with("f16.f16") { 2 } else { 4 };
        let mut case = Case { form, a_count, sums, words: Vec::new() };
        let mut numbers = Numbers(form.name.len() as u64);
        let total = case.total();
        case.words = (0..32 * total).map(|index| case.word(&mut numbers, index % total)).collect();
        case
    }

    fn total(&self) -> usize {
        self.a_count + self.a_count / 2 + self.sums
    }

    fn short_sum(&self) -> bool {
        self.sums == 2
    }

    /// A word of a fragment, or of the sums behind them.
    fn word(&self, numbers: &mut Numbers, index: usize) -> u32 {
        let fragment = index < self.a_count + self.a_count / 2;
        let brain = self.form.name.contains("bf16");
        let half = |numbers: &mut Numbers| {
            let value = numbers.float();
            u32::from(if brain { bf16::from_f32(value).to_bits() } else { f16::from_f32(value).to_bits() })
        };
        match (self.form.bits, fragment) {
            (8, true) => numbers.next() as u32,
            (8, false) => numbers.next() as u32 % 1000,
            (16, true) => half(numbers) | half(numbers) << 16,
            (16, false) if self.short_sum() => half(numbers) | half(numbers) << 16,
            _ => numbers.float().to_bits(),
        }
    }

    fn run(&self) -> Vec<u32> {
        let (a, b) = (self.a_count, self.a_count / 2);
        let [d, rows, columns, c] = [(self.sums, "d"), (a, "a"), (b, "b"), (self.sums, "c")]
            .map(|(count, name)| registers(count, name));
        let body =
            format!("mma.sync.aligned.{} {{{d}}}, {{{rows}}}, {{{columns}}}, {{{c}}};", self.form.name);
        run(&fragments(&[("a", a), ("b", b), ("c", self.sums)], self.sums, &body), &self.words, self.sums)
    }

    /// The matrices A and B, element by element.
    fn matrices(&self) -> (Vec<Vec<f64>>, Vec<Vec<f64>>) {
        let per_word = 32 / self.form.bits;
        let element = |lane: usize, start: usize, i: usize| {
            let word = self.words[lane * self.total() + start + i / per_word];
            let bits = word >> (self.form.bits * (i % per_word));
            (self.form.read)(bits & (u32::MAX >> (32 - self.form.bits)))
        };
        let (mut a, mut b) = (vec![vec![0.0; 32]; 16], vec![vec![0.0; 8]; 32]);
        for lane in 0..32 {
            for i in 0..self.a_count * per_word {
                let (row, column) = (self.form.a)(lane, i);
                a[row][column] = element(lane, 0, i);
            }
            for i in 0..self.a_count / 2 * per_word {
                let (row, column) = (self.form.b)(lane, i);
                b[row][column] = element(lane, self.a_count, i);
            }
        }
        (a, b)
    }

    /// An element of the sums, of four that a lane has, as a number.
    fn sum(&self, word: u32, i: usize) -> f64 {
        match (self.form.bits, self.short_sum()) {
            (8, _) => f64::from(word as i32),
            (_, true) => f16_of(word >> (16 * (i & 1))),
            _ => f64::from(f32::from_bits(word)),
        }
    }
}

#[test]
fn products() {
    for form in &FORMS {
        let case = Case::new(form);
        let found = case.run();
        let (a, b) = case.matrices();
        // Integers are exact; an f16 sum has eleven bits; else some roundings in f32.
        let bound = match (form.bits, case.short_sum()) {
            (8, _) => 0.0,
            (_, true) => 8.0 / 1024.0,
            _ => 1e-5,
        };
        for lane in 0..32 {
            for i in 0..4 {
                let (row, column) = c32(lane, i);
                let product: f64 = (0..form.depth).map(|k| a[row][k] * b[k][column]).sum();
                let register = if case.short_sum() { i / 2 } else { i };
                let start = case.words[(lane + 1) * case.total() - case.sums + register];
                let end = case.sum(found[lane * case.sums + register], i);
                let gap = (end - case.sum(start, i) - product).abs();
                assert!(gap <= bound, "{} lane {lane} element {i}: {end}", form.name);
            }
        }
    }
}

#[test]
fn loads_and_stores_of_matrices() {
    // The tile holds halves 0, 1, 2, …: four matrices of eight rows of eight, one after another.
    let fill = "mov.u32 %r0, tile; shl.b32 %r1, %t, 5; add.u32 %r0, %r0, %r1;\n\
                st.shared.v4.b32 [%r0], {%a0, %a1, %a2, %a3}; st.shared.v4.b32 [%r0+16], {%a4, %a5, %a6, %a7}; bar.warp.sync -1;\n\
                mov.u32 %r0, tile; shl.b32 %r1, %t, 4; add.u32 %r0, %r0, %r1;";
    // Two tiles of 512 bytes: each lane fills 32 bytes, four matrices of 128 bytes are read.
    let words: Vec<u32> = (0..256).map(|index| (2 * index) | (2 * index + 1) << 16).collect();
    for (count, rows) in [(1, "x1"), (2, "x2"), (4, "x4")] {
        for transposed in [false, true] {
            let trans = if transposed { ".trans" } else { "" };
            let body = format!(
                "{fill} ldmatrix.sync.aligned.m8n8.{rows}{trans}.shared.b16 {{{}}}, [%r0];",
                registers(count, "d")
            );
            let found = run(&fragments(&[("a", 8)], count, &body), &words, count);
            for lane in 0..32 {
                for matrix in 0..count {
                    let element = |row: usize, column: usize| (64 * matrix + 8 * row + column) as u32;
                    let (row, column) = (lane / 4, lane % 4 * 2);
                    let expected = if transposed {
                        element(column, row) | element(column + 1, row) << 16
                    } else {
                        element(row, column) | element(row, column + 1) << 16
                    };
                    assert_eq!(found[lane * count + matrix], expected, "{body} lane {lane}");
                }
            }
        }
    }
}

#[test]
fn transposition_in_registers() {
    let words: Vec<u32> = (0..32).map(|index| (2 * index) | (2 * index + 1) << 16).collect();
    let text = fragments(&[("a", 1)], 1, "movmatrix.sync.aligned.m8n8.trans.b16 %d0, %a0;");
    let found = run(&text, &words, 1);
    for (lane, found) in found.into_iter().enumerate() {
        let element = |row: usize, column: usize| (8 * row + column) as u32;
        let (row, column) = (lane / 4, lane % 4 * 2);
        assert_eq!(found, element(column, row) | element(column + 1, row) << 16);
    }
}

#[test]
fn a_stored_matrix_is_loaded_again() {
    let words: Vec<u32> = (0..128).collect();
    for trans in ["", ".trans"] {
        let body = format!(
            "mov.u32 %r0, tile; shl.b32 %r1, %t, 4; add.u32 %r0, %r0, %r1;\n\
             stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%r0], {{%a0,%a1,%a2,%a3}}; bar.warp.sync -1;\n\
             ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%d0,%d1,%d2,%d3}}, [%r0];"
        );
        assert_eq!(run(&fragments(&[("a", 4)], 4, &body), &words, 4), words);
    }
}
