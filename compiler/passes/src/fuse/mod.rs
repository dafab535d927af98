//! Fusion, `sharded` → `scheduled`: gathers the elementwise work between products and collectives into
//! few kernels, each an [`Op::Fused`] instruction, and puts instructions in the order they will run in.
//!
//! ```text
//! before:  %s = sigmoid %a        after:  %y = fused(%a, %b) {
//!          %t = mul %a, %s                  %s = sigmoid %a ; %t = mul %a, %s
//!          %y = mul %t, %b                  yield mul %t, %b }
//! ```
//!
//! A kernel may begin with the product whose results it goes on with, element by element: `fused(%x, %w, %b) { %t = dot %x, %w ;
//! yield add %t, %b }`. What a kernel yields is stored, everything else in it stays in registers. Renames, splits and merges
//! of stored values stay outside: they only look at the same memory differently. It does not decide
//! where anything is stored (`memory`) nor how a kernel's loops run (code generation).

mod emit;
mod group;
mod shape;
mod sum;

pub(crate) use shape::is_alias;

use dtlc_ir::{Op, Program, Region, Value};
use rustc_hash::FxHashSet;

/// Fuses every region of a program.
pub fn fuse(program: &mut Program) {
    let mut main = std::mem::take(&mut program.main);
    fuse_region(program, &mut main, &FxHashSet::default());
    // A value that is yielded twice has become two.
    let updated = program.states.iter_mut().filter_map(|state| state.updated.as_mut());
    let yielded = updated.chain(program.outputs.iter_mut().map(|output| &mut output.value));
    yielded.zip(&main.yields).for_each(|(value, &yielded)| *value = yielded);
    program.main = main;
}

/// `accumulated` are the yields that are added to what is there.
fn fuse_region(program: &mut Program, region: &mut Region, accumulated: &FxHashSet<Value>) {
    for inst in &mut region.insts {
        sum::in_place(program, inst);
        if let Op::Scan(scan) = &mut inst.op {
            let outputs = scan.outputs.iter().zip(&scan.body.yields[scan.carries..]);
            let accumulated = outputs.filter(|(output, _)| output.has_initial()).map(|(_, &value)| value);
            let accumulated = accumulated.collect();
            fuse_region(program, &mut scan.body, &accumulated);
            emit::separate_accumulated(program, scan);
        }
    }
    let grouping = group::form(program, region, accumulated);
    emit::rebuild(program, region, &grouping);
}
