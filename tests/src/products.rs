//! Hand-written programs in which something goes on with a product's results, and how many of those join a kernel.

use dtlc_ir::text::parse;
use dtlc_ir::{Op, Program, Region};
use dtlc_passes::fuse;

/// The case whose kernel has several loops.
const IN_PIECES: &str = "what comes in pieces";

/// A program of its own for each way to go on with a product.
pub struct Case {
    /// What it is about.
    pub name: &'static str,
    /// The step, collectives planned, not yet fused.
    pub program: Program,
    /// Products that begin a kernel once it is fused, those in loops included.
    pub joined: usize,
    /// Those of them whose kernel a device can't run where the results are made.
    pub apart: usize,
    /// Greatest error, relative to a tensor's largest element.
    pub tolerance: f64,
}

/// All cases.
///
/// # Panics
/// One of them does not parse.
#[must_use]
pub fn cases() -> Vec<Case> {
    let own = [
        ("a state is written over", 1, UPDATE),
        ("what a loop carries", 1, CARRIED),
        ("bf16 with other types stored", 1, BFLOAT),
        ("batches", 1, BATCHES),
        (IN_PIECES, 1, PIECES),
        ("a sum over a loop", 0, ACCUMULATED),
        ("random numbers of the step", 1, RANDOM),
    ];
    let own = own.map(|(name, joined, program)| (name, joined, program.to_owned()));
    let alike = ALIKE.map(|(name, joined, body)| (name, joined, usual(body)));
    let case = |(name, joined, body): (&'static str, usize, String)| {
        let source = format!("program \"case\" {{\n{body}\n}}");
        let program = parse(&source).unwrap_or_else(|error| panic!("{name}: {error}\n{source}"));
        let tolerance = if body.contains("bf16") { 2e-2 } else { 2e-5 };
        Case { name, program, joined, apart: usize::from(name == IN_PIECES), tolerance }
    };
    alike.into_iter().chain(own).map(case).collect()
}

/// Products that begin a kernel once a program is fused.
#[must_use]
pub fn joined(program: &Program) -> usize {
    let mut fused = program.clone();
    fuse(&mut fused);
    count(&fused.main)
}

fn count(region: &Region) -> usize {
    let of = |op: &Op| match op {
        Op::Fused(body) => usize::from(body.product().is_some()),
        Op::Scan(scan) => count(&scan.body),
        _ => 0,
    };
    region.insts.iter().map(|inst| of(&inst.op)).sum()
}

/// A program of these instructions, which make `y`, and perhaps `z`.
fn usual(body: &str) -> String {
    let (outputs, yields) =
        if body.contains("%z:") { ("y = %y, z = %z", "%y, %z") } else { ("y = %y", "%y") };
    format!(
        "  dims {{ S = 21, D = 40, F = 24, H = 12 }}
  states {{ w = %w, weight, constant(0.0); b = %b, weight, constant(0.0); k = %k, weight, constant(0.0); }}
  inputs {{ x = %x, g = %g, r = %r }}
  outputs {{ {outputs} }}
  main(%w: f32[D, F] param, %b: f32[F] param, %k: f32[] param, %x: f32[S, D], %g: f32[S, F], %r: f32[S]) {{
{body}
    yield {yields}
  }}"
    )
}

/// Names, products that join a kernel, and instructions.
const ALIKE: [(&str, usize, &str); 10] = [
    (
        "a bias and a function",
        1,
        "%p: f32[S, F] = dot %x, %w forward
         %a: f32[S, F] = add %p, %b forward
         %y: f32[S, F] = tanh %a forward",
    ),
    (
        "what it reads besides",
        1,
        "%p: f32[S, F] = dot %x, %w forward
         %s: f32[S, F] = sigmoid %g forward
         %t: f32[S, F] = mul %s, %g forward
         %y: f32[S, F] = mul %t, %p forward
         %z: f32[S, F] = mul %s, %p forward",
    ),
    (
        "its results are wanted too",
        1,
        "%z: f32[S, F] = dot %x, %w forward
         %y: f32[S, F] = exp %z forward",
    ),
    (
        "its results are kept beside what dies",
        1,
        "%u: f32[S, F] = dot %x, %w forward
         %v: f32[S, F] = dot %x, %w forward
         %p: f32[S, F] = dot %x, %w forward
         %a: f32[S, F] = mul %p, %u forward
         %c: f32[S, F] = sub %v, %g forward
         %y: f32[S, F] = mul %a, %c forward
         %z: f32[D, F] = dot %x, %p forward",
    ),
    (
        "scalars and rows beside it",
        1,
        "%p: f32[S, F] = dot %x, %w forward
         %a: f32[S, F] = mul %p, %r forward
         %y: f32[S, F] = add %a, %k forward",
    ),
    (
        "two products in one sum",
        1,
        "%p: f32[S, F] = dot %x, %w forward
         %e: f32[S, D] = exp %x forward
         %q: f32[S, F] = dot %e, %w forward
         %y: f32[S, F] = add %p, %q forward",
    ),
    (
        "a view of its results",
        0,
        "%p: f32[S, F] = dot %x, %w forward
         %a: f32[S, H] = slice[F from 0 -> H] %p forward
         %c: f32[S, H] = slice[F from 12 -> H] %p forward
         %y: f32[S, H] = mul %a, %c forward",
    ),
    (
        "a reduction of its results",
        0,
        "%p: f32[S, F] = dot %x, %w forward
         %m: f32[S] = reduce_max[F] %p forward
         %y: f32[S, F] = sub %p, %m forward",
    ),
    (
        "what it reads is used by the kernel",
        1,
        "%p: f32[S, D] = exp %x forward
         %q: f32[F, S] = dot %w, %p forward
         %a: f32[S] = slice[D from 1] %p forward
         %y: f32[F, S] = mul %q, %a forward",
    ),
    (
        "another product on the way",
        1,
        "%p: f32[S, F] = dot %x, %w forward
         %a: f32[S, D] = dot %p, %w forward
         %c: f32[S, F] = dot %a, %w forward
         %y: f32[S, F] = mul %p, %c forward",
    ),
];

const UPDATE: &str = r#"
  dims { S = 21, D = 40, F = 24 }
  states { w = %w -> %v, weight, constant(0.0); }
  inputs { x = %x, g = %g }
  outputs { }
  main(%w: f32[D, F] param, %x: f32[S, D], %g: f32[S, F]) {
    %p: f32[D, F] = dot %x, %g update
    %e: f32[] = const 0.125 update
    %c: f32[D, F] = mul %p, %e update
    %v: f32[D, F] = sub %w, %c update
    yield %v
  }"#;

const CARRIED: &str = r#"
  dims { L = 3, S = 20, D = 32, E = 48 }
  states { w = %w, weight, constant(0.0); u = %u, weight, constant(0.0); }
  inputs { x = %x }
  outputs { y = %y, z = %z }
  main(%w: f32[L, D, E] param, %u: f32[L, E, D] param, %x: f32[S, D]) {
    %y: f32[S, D], %z: f32[L, S, D] = scan[L, carries 1, stacks 2, outputs (stack)] %x, %w, %u forward (%c: f32[S, D], %v: f32[D, E], %t: f32[E, D]) {
      %p: f32[S, E] = dot %c, %v forward
      %q: f32[S, D] = dot %p, %t forward
      %n: f32[S, D] = add %c, %q forward
      %r: f32[S, D] = sigmoid %n forward
      yield %r, %n
    }
    yield %y, %z
  }"#;

const BFLOAT: &str = r#"
  dims { S = 70, D = 64, F = 96 }
  states { w = %w, weight, constant(0.0); b = %b, weight, constant(0.0); }
  inputs { x = %x, g = %g }
  outputs { y = %y, z = %z }
  main(%w: bf16[D, F] param, %b: f32[F] param, %x: bf16[S, D], %g: bf16[S, F]) {
    %p: bf16[S, F] = dot %x, %w forward
    %h: f32[S, F] = cast %p forward
    %a: f32[S, F] = add %h, %b forward
    %t: f32[S, F] = cast %g forward
    %y: f32[S, F] = mul %a, %t forward
    %z: bf16[S, F] = cast %y forward
    yield %y, %z
  }"#;

const BATCHES: &str = r#"
  dims { B = 3, S = 21, D = 40, T = 24 }
  states { k = %k, weight, constant(0.0); }
  inputs { x = %x, g = %g }
  outputs { y = %y }
  main(%k: f32[T] param, %x: f32[B, S, D], %g: f32[B, T, D]) {
    %p: f32[B, S, T] = dot %x, %g forward
    %y: f32[B, S, T] = mul %p, %k forward
    yield %y
  }"#;

const PIECES: &str = r#"
  dims { S = 21, D = 40, F = 24, G = 16, H = 8 }
  states { w = %w, weight, constant(0.0); }
  inputs { x = %x, g = %g, h = %h }
  outputs { y = %y }
  main(%w: f32[D, F] param, %x: f32[S, D], %g: f32[S, G], %h: f32[S, H]) {
    %p: f32[S, F] = dot %x, %w forward
    %c: f32[S, F] = concat[G, H -> F] %g, %h forward
    %y: f32[S, F] = mul %p, %c forward
    yield %y
  }"#;

const ACCUMULATED: &str = r#"
  dims { M = 3, S = 21, D = 40, F = 24 }
  states { k = %k, weight, constant(0.0); }
  inputs { e = %e, x = %x, g = %g }
  outputs { y = %y }
  main(%k: f32[] param, %e: f32[D, F], %x: f32[M, S, D], %g: f32[M, S, F]) {
    %y: f32[D, F] = scan[M, carries 1, stacks 2] %e, %x, %g forward (%c: f32[D, F], %v: f32[S, D], %t: f32[S, F]) {
      %p: f32[D, F] = dot %v, %t forward
      %s: f32[D, F] = add %c, %p forward
      yield %s
    }
    yield %y
  }"#;

const RANDOM: &str = r#"
  dims { S = 21, D = 40, F = 24 }
  states { w = %w, weight, constant(0.0); }
  inputs { step = %step, x = %x }
  outputs { y = %y }
  main(%w: f32[D, F] param, %step: u32[], %x: f32[S, D]) {
    %p: f32[S, F] = dot %x, %w forward
    %u: f32[S, F] = random[stream 5 over S, F] %step forward
    %y: f32[S, F] = mul %p, %u forward
    yield %y
  }"#;
