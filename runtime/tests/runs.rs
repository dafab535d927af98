//! Which products a device may make at once: none writes what another one reads or writes, wherever loops and ranks move them.

mod support;

use dtlc_kernels::signature::{ContractionDim, Element, MatmulSpec};
use dtlc_runtime::program::*;
use support::*;

/// A piece of the arena; a product of 4 by 4 numbers has 64 bytes.
fn arena(offset: u64) -> BufferRef {
    BufferRef::new(Space::Arena, offset, 64)
}

fn product([a, b, c]: [BufferRef; 3]) -> Instruction {
    let dim = |extent, a, b, c| ContractionDim { extent, a, b, c };
    let dims =
        [dim(4, Some(4), None, Some(4)), dim(4, None, Some(1), Some(1)), dim(4, Some(1), Some(4), None)];
    let spec = MatmulSpec::contract(&dims, Element::F32, Element::F32, Element::F32).expect("a product");
    at(0, Operation::Matmul { spec, a, b, c, epilogue: None })
}

/// The same, whose result goes on in the only kernel: with one tensor that it reads and one that it writes.
fn going_on(buffers: [BufferRef; 3], read: BufferRef, written: BufferRef) -> Instruction {
    let Instruction { location, operation: Operation::Matmul { spec, a, b, c, .. } } = product(buffers)
    else {
        panic!("a product")
    };
    let call = KernelCall {
        kernel: KernelId(0),
        pointers: vec![read, c.clone(), written],
        integers: Vec::new(),
        floats: Vec::new(),
    };
    let epilogue = Epilogue { location, call, position: 1, sums: Sums::Passing };
    Instruction {
        location,
        operation: Operation::Matmul { spec, a, b, c, epilogue: Some(Box::new(epilogue)) },
    }
}

/// The lengths of the runs that a list falls into, in a loop of three runs on two ranks.
fn lengths(body: &[Instruction]) -> Vec<usize> {
    let mut program = empty_program(&[("dp", 2)]);
    let call = KernelCall {
        kernel: KernelId(0),
        pointers: vec![arena(0), arena(0), arena(0)],
        integers: Vec::new(),
        floats: Vec::new(),
    };
    only_kernel(&mut program, b"\xc3", call, 1);
    program.kernels[0].reads = 2;
    program.runs(body, &[3]).into_iter().map(<[Instruction]>::len).collect()
}

#[test]
fn factors_are_shared_and_results_are_not() {
    let [x, first, second] = [0, 64, 128].map(arena);
    let of = |c: &BufferRef| product([x.clone(), x.clone(), c.clone()]);
    assert_eq!(lengths(&[of(&first), of(&second)]), [2]);
    // One place for both results; half of one.
    assert_eq!(lengths(&[of(&first), of(&first)]), [1, 1]);
    assert_eq!(lengths(&[of(&first), of(&arena(96))]), [1, 1]);
    // The result is a factor of the next; it lies where a factor of the one before did.
    let next = product([x.clone(), first.clone(), second.clone()]);
    assert_eq!(lengths(&[of(&first), next.clone()]), [1, 1]);
    assert_eq!(lengths(&[next, of(&first)]), [1, 1]);
    // The same bytes of another space.
    assert_eq!(lengths(&[of(&first), of(&BufferRef::new(Space::State, 64, 64))]), [2]);
    // Whatever else there is stands alone, and between.
    let fill = at(0, Operation::Fill { target: arena(640), dtype: DType::F32, value: 0.0 });
    assert_eq!(lengths(&[fill.clone(), of(&first), fill, of(&second)]), [1, 1, 1, 1]);
}

#[test]
fn what_goes_on_with_results_counts() {
    let [x, first, second, angles] = [0, 64, 128, 192].map(arena);
    let of = |c: &BufferRef, read: u64, written: u64| {
        going_on([x.clone(), x.clone(), c.clone()], arena(read), arena(written))
    };
    assert_eq!(lengths(&[of(&first, 192, 256), of(&second, 192, 320)]), [2]);
    assert_eq!(lengths(&[of(&first, 192, 256), of(&second, 192, 256)]), [1, 1]);
    assert_eq!(lengths(&[of(&first, 192, 256), of(&second, 256, 320)]), [1, 1]);
    assert_eq!(lengths(&[of(&first, 192, 256), of(&second, 64, 320)]), [1, 1]);
    let over_angles = product([x.clone(), x.clone(), angles]);
    assert_eq!(lengths(&[of(&first, 192, 256), over_angles]), [1, 1]);
}

#[test]
fn what_loops_and_ranks_move_is_looked_at_everywhere() {
    let moved = |offset, stride| arena(offset).moved(Variable::LoopIndex(0), stride);
    let of = |c: BufferRef| product([arena(4096), arena(4096), c]);
    // Side by side in each of three places: neither is ever where the other is.
    assert_eq!(lengths(&[of(moved(0, 128)), of(moved(64, 128))]), [2]);
    // At other paces they may meet, unless one is past the other's last place.
    assert_eq!(lengths(&[of(moved(0, 128)), of(moved(64, 64))]), [1, 1]);
    assert_eq!(lengths(&[of(moved(0, 128)), of(moved(256, 64))]), [1, 1]);
    assert_eq!(lengths(&[of(moved(0, 128)), of(moved(320, 64))]), [2]);
    let by_rank = |offset| arena(offset).moved(Variable::MeshCoordinate(AxisId(0)), 64);
    assert_eq!(lengths(&[of(by_rank(0)), of(arena(64))]), [1, 1]);
    assert_eq!(lengths(&[of(by_rank(0)), of(arena(128))]), [2]);
}

#[test]
fn a_run_has_an_end() {
    let of = |number: u64| product([arena(0), arena(0), arena(64 + 64 * number)]);
    let body: Vec<Instruction> = (0..19).map(of).collect();
    assert_eq!(lengths(&body), [8, 8, 3]);
}
