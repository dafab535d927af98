//! Gradient of a scan: a scan over the same dimension the other way round.
//!
//! ```text
//! forward   carries, slices            → carries, outputs (+ one stack per value that the backward reads)
//! backward  cotangents of the carries,   slices of the outputs' cotangents,     → cotangents of the initial
//!           running cotangents of what   of the forward's stacks and of what      carries, of what the body
//!           the body captures            it saved                                 captures, and of its stacks
//! ```

use super::Tape;
use crate::cheap::is_cheap;
use crate::error::PassError;
use crate::regions::{copy, substitute};
use crate::uses::{captures, visit_region};
use dtlc_ir::{Builder, Inst, Op, Phase, Program, Region, Scan, ScanOutput, Type, Value, ValueInfo};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

/// Appends the backward scan of `inst` and lets the forward one save what that reads.
pub fn scan(tape: &mut Tape, builder: &mut Builder, inst: &mut Inst) -> Result<(), PassError> {
    let (args, results) = (inst.args.clone(), inst.results.clone());
    let Op::Scan(forward) = &mut inst.op else { return Err(PassError::bug("not a scan")) };
    let mut reversal = Reversal::open(tape, builder, forward, &results);
    let outputs = reversal.body(tape, builder, forward)?;
    let slices = reversal.save(builder, forward, &args, &mut inst.results);
    reversal.close(tape, builder, forward, &args, &results, outputs, slices);
    Ok(())
}

/// A backward scan under construction.
struct Reversal {
    /// Positions of the forward carries that have a cotangent.
    carries: Vec<usize>,
    /// Outer values that have a cotangent, with what it was before.
    captured: Vec<(Value, Option<Value>)>,
    /// Outputs that have a cotangent: position among the yields, cotangent of the whole stack.
    outputs: Vec<(usize, Value)>,
    /// Initial carries, then stacks.
    args: Vec<Value>,
    /// The body.
    region: Region,
}

impl Reversal {
    /// Makes the parameters of the body.
    fn open(tape: &mut Tape, builder: &mut Builder, forward: &Scan, results: &[Value]) -> Reversal {
        let params = &forward.body.params;
        let carries: Vec<usize> =
            (0..forward.carries).filter(|&index| tape.is_active(params[index])).collect();
        let mut captured = captures(&forward.body);
        captured.retain(|&value| tape.is_active(value));
        let captured: Vec<_> =
            captured.into_iter().map(|value| (value, tape.cotangents[value].take())).collect();
        let outputs = forward.carries..forward.body.yields.len();
        let outputs =
            outputs.filter_map(|index| tape.cotangents[results[index]].map(|cotangent| (index, cotangent)));
        let outputs: Vec<(usize, Value)> = outputs.collect();

        let mut args = Vec::new();
        let mut region = Region::default();
        for &index in &carries {
            args.push(tape.finish(builder, results[index]));
            region.params.push(cotangent_param(tape, builder, params[index]));
        }
        for &(value, _) in &captured {
            args.push(builder.fill(0.0, &tape.cotangent_type(builder.program, value)));
            region.params.push(cotangent_param(tape, builder, value));
        }
        for &(index, cotangent) in &outputs {
            args.push(cotangent);
            region.params.push(cotangent_param(tape, builder, forward.body.yields[index]));
        }
        Reversal { carries, captured, outputs, args, region }
    }

    /// Fills the body. Returns the positions of the forward's stacks that have a cotangent.
    fn body(
        &mut self,
        tape: &mut Tape,
        builder: &mut Builder,
        forward: &mut Scan,
    ) -> Result<Vec<usize>, PassError> {
        let mut inner = Builder::new(&mut *builder.program, Phase::Backward);
        inner.origin = builder.origin;
        inner.region = std::mem::take(&mut self.region);
        let mut params = inner.region.params.clone().into_iter();
        let seeds: Vec<Value> = params.by_ref().take(self.carries.len()).collect();
        for (&(value, _), param) in self.captured.iter().zip(params.by_ref()) {
            tape.cotangents[value] = Some(param);
        }
        let yielded = self.carries.iter().copied().chain(self.outputs.iter().map(|&(index, _)| index));
        for (index, seed) in yielded.zip(seeds.into_iter().chain(params)) {
            tape.add(&mut inner, forward.body.yields[index], seed);
        }
        tape.reverse(&mut inner, &mut forward.body.insts)?;
        for &index in &self.carries {
            let next = tape.finish(&mut inner, forward.body.params[index]);
            inner.region.yields.push(next);
        }
        for &(value, _) in &self.captured {
            let next = tape.finish(&mut inner, value);
            inner.region.yields.push(next);
        }
        let stacks = forward.carries..forward.carries + forward.stacks;
        let stacks = stacks.filter(|&index| tape.cotangents[forward.body.params[index]].is_some());
        let stacks: Vec<usize> = stacks.collect();
        inner
            .region
            .yields
            .extend(stacks.iter().filter_map(|&index| tape.cotangents[forward.body.params[index]]));
        self.region = inner.region;
        Ok(stacks)
    }

    /// Gives the body what it reads of the forward body: what is cheap computed again, slices of the same stacks,
    /// and the rest through new stacked outputs of the forward scan. Returns the number of stacks.
    fn save(
        &mut self,
        builder: &mut Builder,
        forward: &mut Scan,
        args: &[Value],
        results: &mut SmallVec<[Value; 2]>,
    ) -> usize {
        let (read, mut again) = self.reads(builder.program, forward);
        let mut copies: FxHashMap<Value, Value> = FxHashMap::default();
        let insts = forward.body.insts.iter().filter(|inst| !is_cheap(builder.program, inst));
        let defined: Vec<Value> = insts.flat_map(|inst| inst.results.iter().copied()).collect();
        for value in
            forward.body.params.clone().into_iter().chain(defined).filter(|value| read.contains(value))
        {
            let info = builder.program.values[value].clone();
            let copied = builder.program.values.push(info.clone());
            copies.insert(value, copied);
            self.region.params.push(copied);
            let position = forward.body.params.iter().position(|&param| param == value);
            if let Some(index) = position.filter(|&index| index >= forward.carries) {
                self.args.push(args[index]);
                continue;
            }
            let stacked =
                Type::new(info.ty.dtype, std::iter::once(forward.dim).chain(info.ty.dims.iter().copied()));
            let stack = builder.program.values.push(ValueInfo { ty: stacked, ..info });
            forward.body.yields.push(value);
            forward.outputs.push(ScanOutput::Stack);
            results.push(stack);
            self.args.push(stack);
        }
        for inst in &mut again {
            copy(builder.program, inst, &mut copies);
            inst.phase = Phase::Backward;
        }
        substitute(&mut self.region, &copies);
        self.region.insts.splice(0..0, again);
        self.args.len() - self.carries.len() - self.captured.len()
    }

    /// The values that the body reads, and the forward instructions that it repeats for them.
    fn reads(&self, program: &Program, forward: &Scan) -> (FxHashSet<Value>, Vec<Inst>) {
        let mut read: FxHashSet<Value> = FxHashSet::default();
        visit_region(&self.region, &mut |value| {
            read.insert(value);
        });
        let mut again = Vec::new();
        for inst in forward.body.insts.iter().rev() {
            if is_cheap(program, inst) && read.contains(&inst.results[0]) {
                read.extend(&inst.args);
                again.push(inst.clone());
            }
        }
        again.reverse();
        (read, again)
    }

    /// Appends the scan and hands out its results.
    #[expect(clippy::too_many_arguments, reason = "the two scans' interfaces side by side")]
    fn close(
        self,
        tape: &mut Tape,
        builder: &mut Builder,
        forward: &Scan,
        args: &[Value],
        results: &[Value],
        outputs: Vec<usize>,
        stacks: usize,
    ) {
        let carries = self.carries.len() + self.captured.len();
        let mut types: Vec<Type> =
            self.region.params[..carries].iter().map(|&p| builder.ty(p).clone()).collect();
        types.extend(outputs.iter().map(|&index| tape.cotangent_type(builder.program, args[index])));
        let backward = Scan {
            dim: forward.dim,
            reverse: !forward.reverse,
            body: self.region,
            carries,
            stacks,
            outputs: vec![ScanOutput::Stack; outputs.len()],
        };
        let made = builder.push_scan(backward, &self.args, types);
        let mut made = made.into_iter();
        for (&(value, before), sum) in self.captured.iter().zip(made.clone().skip(self.carries.len())) {
            tape.cotangents[value] = before;
            tape.add(builder, value, sum);
        }
        for (&index, initial) in self.carries.iter().zip(made.by_ref()) {
            tape.add(builder, args[index], initial);
        }
        for (&index, stack) in outputs.iter().zip(made.skip(self.captured.len())) {
            tape.add(builder, args[index], stack);
        }
        let mut init = forward.carries + forward.stacks;
        for (output, &result) in forward.outputs.iter().zip(&results[forward.carries..]) {
            if output.has_initial() {
                if let Some(cotangent) = tape.cotangents[result] {
                    tape.add(builder, args[init], cotangent);
                }
                init += 1;
            }
        }
    }
}

/// A parameter of a backward body that holds the cotangent of `value`.
fn cotangent_param(tape: &Tape, builder: &mut Builder, value: Value) -> Value {
    let ty = tape.cotangent_type(builder.program, value);
    let param = builder.program.add_value(ty, builder.origin);
    tape.mark(builder.program, param, value);
    param
}
