//! Wrong programs are refused, each for the rule that it breaks.

mod placement;
mod structure;
mod support;

use crate::support::program;
use dtlc_ir::verify::sharded;

#[test]
fn a_fault_shows_the_instruction() {
    let program = program(
        "%x: f32[A@dp, B]",
        "%y: f32[A@dp, B] = exp %x forward %z: f32[B] = reduce_sum[A] %y forward yield %z",
    );
    let expected = "bug in dtlc, found by `verify sharded`: the result comes out as f32[] partial(sum: dp), but says f32[]
main(
  %x: f32[A@dp, B],
) {
  %y: f32[A@dp, B] = exp %x forward
  %z: f32[B] = reduce_sum[A] %y forward
  // ^ the result comes out as f32[] partial(sum: dp), but says f32[]
  yield %z
}";
    assert_eq!(sharded(&program).unwrap_err().to_string(), expected);
}
