//! Hand-written programs on the CPU backend against the interpreter: each kernel shape that fusion can make.

use dtlc_ir::text::parse;
use dtlc_tests::backend::check;
use dtlc_tests::products::{Case, cases, joined};

fn run(body: &str) {
    let source = format!("program \"case\" {{\n{body}\n}}");
    let program = parse(&source).unwrap_or_else(|error| panic!("{error}\n{source}"));
    check(&program, 7, 2e-5);
}

#[test]
fn rows_with_two_reductions_and_a_scale() {
    run(r#"
  dims { B = 3, S = 5, D = 37 }
  scopes { /: Model }
  states { g = %g, weight, constant(0.0); }
  inputs { x = %x }
  outputs { y = %y, m = %m }
  main(%g: f32[D] param, %x: f32[B, S, D]) {
    %m: f32[B, S] = reduce_max[D] %x forward
    %c: f32[B, S, D] = sub %x, %m forward
    %q: f32[B, S, D] = mul %c, %c forward
    %s: f32[B, S] = reduce_sum[D] %q forward
    %e: f32[] = const 0.001 forward
    %t: f32[B, S] = add %s, %e forward
    %r: f32[B, S] = rsqrt %t forward
    %n: f32[B, S, D] = mul %c, %r forward
    %y: f32[B, S, D] = mul %n, %g forward
    yield %y, %m
  }"#);
}

#[test]
fn columns_and_a_whole_sum() {
    run(r#"
  dims { B = 3, S = 5, D = 37 }
  scopes { /: Model }
  states { g = %g, weight, constant(0.0); }
  inputs { x = %x }
  outputs { c = %c, t = %t, k = %k }
  main(%g: f32[D] param, %x: f32[B, S, D]) {
    %y: f32[B, S, D] = mul %x, %g forward
    %c: f32[D] = reduce_sum[B, S] %y forward
    %k: f32[S] = reduce_sum[B, D] %y forward
    %q: f32[B, S, D] = mul %y, %y forward
    %t: f32[] = reduce_sum[B, S, D] %q forward
    yield %c, %t, %k
  }"#);
}

#[test]
fn kernels_that_go_on_with_a_product() {
    for Case { name, program, joined: expected, tolerance, .. } in cases() {
        println!("{name}");
        assert_eq!(joined(&program), expected, "{name}");
        check(&program, 7, tolerance);
    }
}
