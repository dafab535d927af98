//! The validator refuses each kind of broken kernel, and the parser what it can't read.

use dtlc_codegen::kir::{Index, bounds, parse};

/// A legal kernel with places to break.
const LEGAL: &str = "kernel row_sums {
  tensor x: f32[60] read
  tensor y: f32[4] write
  integer shift in 0..=12
  axis row: 4 serial
  axis d: 12 vector
  for row {
    start @0: f32 sum
    for d {
      %0: f32 = load x[12 row + d + shift]
      combine @0, %0
    }
    %1: f32 = total @0
    store y[row], %1
  }
}";

/// Requires that the legal kernel, with `from` replaced by `to`, is refused with a message that holds `message`.
#[track_caller]
fn refuses(from: &str, to: &str, message: &str) {
    assert!(LEGAL.contains(from), "{from}");
    match parse(&LEGAL.replacen(from, to, 1)) {
        Ok(kernel) => panic!("accepted:\n{kernel}"),
        Err(error) => assert!(error.to_string().contains(message), "{error}"),
    }
}

#[test]
fn a_legal_kernel_is_accepted_and_its_bounds_are_known() {
    let kernel = parse(LEGAL).expect("a legal kernel");
    assert_eq!(kernel.to_string(), LEGAL);
    let axes: Vec<_> = kernel.axes.keys().collect();
    let index = Index::constant(5).plus(-2, axes[0]).plus(3, axes[1]);
    assert_eq!(bounds(&kernel, &index), Some((-1, 38)));
}

#[test]
fn indices_stay_inside_their_tensors() {
    refuses("f32[60]", "f32[59]", "runs from 0 to 59, the tensor has 59");
    refuses("12 row + d", "12 row - d", "runs from -11");
    refuses(" in 0..=12", "", "an integer without a range");
    refuses("in 0..=12", "in 0..=13", "runs from 0 to 60");
}

#[test]
fn access_is_what_is_declared() {
    refuses("[60] read", "[60] write", "`x` is Write only");
    refuses("[4] write", "[4] read", "`y` is Read only");
}

#[test]
fn registers_are_assigned_once_before_they_are_read() {
    refuses("combine @0, %0", "combine @0, %1", "%1 is read where it isn't assigned");
    refuses("store y[row], %1", "store y[row], %0", "%0 is read where it isn't assigned");
    refuses("%1: f32 = total @0", "%0: f32 = total @0", "%0 is assigned twice");
    refuses("%1: f32 = total @0", "%1: i32 = total @0", "its value F32");
}

#[test]
fn accumulators_are_read_where_they_are_started() {
    refuses("%1: f32 = total @0\n", "for d { %1: f32 = total @0 }\n", "outside the list that started it");
    refuses("start @0: f32 sum\n", "for d { start @0: f32 sum }\n", "combined before its start");
    refuses("start @0: f32 sum", "start @0: bool sum", "holds a bool");
}

#[test]
fn loops_nest_as_their_axes_allow() {
    refuses("row: 4 serial", "row: 4 vector", "vector axis `d` inside a vector loop");
    refuses("for d {", "for row {", "walked inside itself");
    refuses("d: 12 vector", "d: 12 vector by 4 of row", "is not the tiles of `d`");
    let twice = LEGAL.replace("shift", "d");
    let error = parse(&twice).expect_err("two meanings of a name").to_string();
    assert!(error.contains("the name `d` stands twice"), "{error}");
    refuses("row: 4", "row: 0", "axis `row` has 0 values");
}

#[test]
fn a_vector_loop_writes_each_element_once() {
    refuses("combine @0, %0", "store y[row], %0", "does not move with vector axis `d`");
}

#[test]
fn unreadable_text_names_its_line() {
    refuses("load x", "lode x", "line 10: a number expected, not `lode`");
    refuses("store y", "store z", "line 14: a tensor expected, not `z`");
    refuses("row_sums {", "row_sums", "line 2: `{` expected");
}
