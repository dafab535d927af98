//! Collectives between their start and their done: what they read and what they bring keeps its memory.

use dtlc_ir::memory::Place;
use dtlc_ir::{Op, Program, Value, text, verify};
use dtlc_passes::memory::plan_memory;
use dtlc_passes::start_collectives;

/// A gather, work that needs as much memory as what is gathered, and the use of both.
const PROGRAM: &str = r#"program "test" {
  mesh { dp: 2 }
  dims { A = 1024 }
  scopes { /: Model }
  inputs { x = %x }
  outputs { one = %one, other = %other }
  main(%x: f32[A@dp]) {
    %made: f32[A@dp] = fused %x forward (%i: f32[A@dp]) { %v: f32[A@dp] = neg %i forward yield %v }
    %all: f32[A] = all_gather[dp] %made because "a test" forward
    %work: f32[A@dp] = fused %x forward (%k: f32[A@dp]) { %w: f32[A@dp] = exp %k forward yield %w }
    %one: f32[A] = fused %all forward (%j: f32[A]) { %n: f32[A] = neg %j forward yield %n }
    %other: f32[A@dp] = fused %work forward (%l: f32[A@dp]) { %m: f32[A@dp] = neg %l forward yield %m }
    yield %one, %other
  }
}"#;

fn started() -> Program {
    let mut program = text::parse(PROGRAM).unwrap_or_else(|error| panic!("{error}"));
    start_collectives(&mut program);
    program
}

fn place(program: &Program, value: Value) -> Place {
    plan_memory(program).place(value).expect("it is stored").clone()
}

fn overlap(one: &Place, other: &Place) -> bool {
    let end = |place: &Place| place.offset + place.bytes;
    one.space == other.space && one.offset < end(other) && other.offset < end(one)
}

#[test]
fn a_done_stands_behind_each_start_and_takes_no_memory() {
    let program = started();
    let insts = &program.main.insts;
    assert!(matches!(insts[1].op, Op::Collective(_)) && insts[2].op == Op::Done, "{}", text::print(&program));
    verify::scheduled(&program).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(place(&program, insts[1].results[0]), place(&program, insts[2].results[0]));
    // Nothing reads what was gathered from any more.
    assert!(overlap(&place(&program, insts[1].args[0]), &place(&program, insts[3].results[0])));
}

#[test]
fn a_later_done_keeps_both_ends_of_the_collective() {
    let mut program = started();
    program.main.insts.swap(2, 3);
    verify::scheduled(&program).unwrap_or_else(|fault| panic!("{fault}"));
    let insts = &program.main.insts;
    assert!(insts[3].op == Op::Done);
    let work = place(&program, insts[2].results[0]);
    assert!(!overlap(&place(&program, insts[1].args[0]), &work), "{}", text::print(&program));
    assert!(!overlap(&place(&program, insts[1].results[0]), &work), "{}", text::print(&program));
}
