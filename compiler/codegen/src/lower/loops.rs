//! Builds the loops of a kernel around what it evaluates: one point after another, rows with reductions, or
//! a reduction of columns.

use super::evaluate::{Evaluator, Indices, with};
use super::space::{LoopDim, loops};
use super::{LowerError, Lowered, unforeseen};
use crate::kir::{Access, AccumulatorId, AxisKind, Combination, ElementType, Index, ScalarType, TensorId};
use dtlc_ir::{DType, Dim, Inst, Op, Program, ReduceOp, Region, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// Most elements of a tile where a kernel has one loop only.
const TILE: u64 = 1024;
/// A short loop is cut into about this many tiles, since each of its elements may be a long sum.
const TILES: u64 = 8;
/// Elements of a tile are a multiple of this: a cache line of f32.
const LINE: u64 = 16;

/// A value that the kernel stores.
struct Stored {
    value: Value,
    tensor: TensorId,
    accumulate: bool,
}

struct Lowering<'a> {
    evaluator: Evaluator<'a>,
    stored: Vec<Stored>,
    axes: usize,
}

pub(super) fn lower(
    program: &Program,
    name: &str,
    body: &Region,
    accumulate: &[bool],
    scans: &[Dim],
) -> Result<Lowered, LowerError> {
    let mut evaluator = Evaluator::new(program, name, body, scans);
    for (position, &param) in body.params.iter().enumerate() {
        let ty = program.ty(param);
        let name = tensor_name(program, param, position);
        let tensor =
            evaluator.builder.tensor(&name, element(ty.dtype), Access::Read, ty.local_elements(program));
        evaluator.tensors.insert(param, tensor);
    }
    let mut stored = Vec::new();
    for (position, &value) in body.yields.iter().enumerate() {
        let ty = program.ty(value);
        let accumulate = accumulate.get(position).copied().unwrap_or(false);
        let access = if accumulate { Access::ReadWrite } else { Access::Write };
        let name = tensor_name(program, value, body.params.len() + position);
        let tensor = evaluator.builder.tensor(&name, element(ty.dtype), access, ty.local_elements(program));
        stored.push(Stored { value, tensor, accumulate });
    }
    let mut lowering = Lowering { evaluator, stored, axes: 0 };
    lowering.build()?;
    let Evaluator { builder, integers, origins, .. } = lowering.evaluator;
    Ok(Lowered { kernel: builder.finish()?, origins, integers })
}

/// How an element type is stored.
pub(crate) fn element(dtype: DType) -> ElementType {
    match dtype {
        DType::F32 => ElementType::F32,
        DType::Bf16 => ElementType::Bf16,
        DType::F16 => ElementType::F16,
        DType::I32 => ElementType::I32,
        DType::U32 => ElementType::U32,
        DType::Bool => ElementType::Bool,
    }
}

fn tensor_name(program: &Program, value: Value, position: usize) -> String {
    let name = program.values[value].name.as_deref().unwrap_or("t");
    let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format!("{plain}_{position}")
}

impl<'a> Lowering<'a> {
    fn build(&mut self) -> Result<(), LowerError> {
        let program = self.evaluator.program;
        let reductions: Vec<&'a Inst> =
            self.evaluator.body.insts.iter().filter(|inst| matches!(inst.op, Op::Reduce { .. })).collect();
        let Some(&first) = reductions.first() else { return self.without_reductions() };
        let kept = &program.ty(first.results[0]).dims;
        if program.ty(first.args[0]).dims.starts_with(kept) {
            self.rows(first.args[0], kept.len(), &reductions)
        } else if reductions.len() == 1 && self.stored.len() == 1 && self.stored[0].value == first.results[0]
        {
            self.columns(first)
        } else {
            unforeseen("a reduction of columns among other work")
        }
    }

    /// One point after another; or rows, where some of what is stored is there once a row.
    fn without_reductions(&mut self) -> Result<(), LowerError> {
        let program = self.evaluator.program;
        let count = |value: &Value| program.ty(*value).dims.len();
        let stored = || self.stored.iter().map(|stored| stored.value);
        let (Some(least), Some(model)) =
            (stored().map(|value| count(&value)).min(), stored().max_by_key(count))
        else {
            return unforeseen("nothing is stored");
        };
        if least < count(&model) { self.rows(model, least, &[]) } else { self.pointwise(model) }
    }

    fn pointwise(&mut self, model: Value) -> Result<(), LowerError> {
        let program = self.evaluator.program;
        let dims: Vec<Dim> = program.ty(model).dims.to_vec();
        let all = loops(program, self.evaluator.body, &dims, model);
        self.nest(&all, Vec::new(), &mut |this, indices| this.store(indices, &|_| true), 0)
    }

    /// Runs `inside` in loops over `all`; the innermost loop is the vector loop. `open` counts the loops that
    /// stand around already.
    fn nest(
        &mut self,
        all: &[LoopDim],
        indices: Indices,
        inside: &mut dyn FnMut(&mut Self, &Indices) -> Result<(), LowerError>,
        open: usize,
    ) -> Result<(), LowerError> {
        match all {
            [] if open == 0 => self.around_once(&mut |this| inside(this, &indices)),
            [] => inside(self, &indices),
            [only] if open == 0 && only.cuts.len() == 2 => self.tiles(only, indices, inside),
            [first, ..] if open == 0 && (first.cuts.len() > 2 || all.len() == 1) => {
                self.around_once(&mut |this| this.nest(all, indices.clone(), inside, 1))
            }
            [first, rest @ ..] => {
                let kind = if rest.is_empty() { AxisKind::Vector } else { AxisKind::Serial };
                for cut in first.cuts.windows(2) {
                    let indices = self.open(first, kind, cut[0], cut[1] - cut[0], &indices);
                    if !rest.is_empty() {
                        self.hoist(&indices)?;
                    }
                    self.nest(rest, indices, inside, open + 1)?;
                    self.evaluator.leave();
                }
                Ok(())
            }
        }
    }

    /// Opens a loop over a part of `over`; returns the indices in it.
    fn open(
        &mut self,
        over: &LoopDim,
        kind: AxisKind,
        start: u64,
        extent: u64,
        indices: &Indices,
    ) -> Indices {
        let name = self.axis_name(over);
        let axis = self.evaluator.builder.axis(&name, extent, kind);
        self.evaluator.enter(axis, extent);
        bind(over, indices, Index::from(axis).offset(start as i64))
    }

    /// A single loop, cut into tiles that threads can share.
    fn tiles(
        &mut self,
        over: &LoopDim,
        indices: Indices,
        inside: &mut dyn FnMut(&mut Self, &Indices) -> Result<(), LowerError>,
    ) -> Result<(), LowerError> {
        let name = self.axis_name(over);
        let length = over.extent.div_ceil(TILES).next_multiple_of(LINE).min(TILE);
        let (tile, axis) = self.evaluator.builder.tiled_axis(&name, over.extent, length, AxisKind::Vector);
        self.evaluator.enter(tile, over.extent.div_ceil(length));
        self.hoist(&indices)?;
        self.evaluator.enter(axis, over.extent);
        inside(self, &bind(over, &indices, Index::from(axis)))?;
        self.evaluator.leave();
        self.evaluator.leave();
        Ok(())
    }

    /// A parallel loop of one iteration.
    fn around_once(
        &mut self,
        inside: &mut dyn FnMut(&mut Self) -> Result<(), LowerError>,
    ) -> Result<(), LowerError> {
        let axis = self.evaluator.builder.axis("once", 1, AxisKind::Serial);
        self.evaluator.enter(axis, 1);
        self.hoist(&Vec::new())?;
        inside(self)?;
        self.evaluator.leave();
        Ok(())
    }

    fn axis_name(&mut self, over: &LoopDim) -> String {
        self.axes += 1;
        let names: Vec<&str> =
            over.dims.iter().map(|&dim| self.evaluator.program.dims[dim].name.as_str()).collect();
        let plain: String =
            names.join("_").chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        format!("{plain}_{}", self.axes)
    }

    /// Computes, outside of the loops to come, what does not change in them: not what needs a reduction that is not
    /// done yet, and no constants, which an emitter folds into operations.
    fn hoist(&mut self, indices: &Indices) -> Result<(), LowerError> {
        let body = self.evaluator.body;
        for &param in &body.params {
            self.hoist_value(param, indices)?;
        }
        let mut waiting: FxHashSet<Value> = FxHashSet::default();
        for inst in &body.insts {
            let is_reduction = matches!(inst.op, Op::Reduce { .. });
            let waits = is_reduction || inst.args.iter().any(|arg| waiting.contains(arg));
            for &result in &inst.results {
                if waits && !self.evaluator.reduced.contains_key(&result) {
                    waiting.insert(result);
                } else if !matches!(inst.op, Op::Constant(_)) {
                    self.hoist_value(result, indices)?;
                }
            }
        }
        Ok(())
    }

    /// Computes a value if all its dims are bound.
    fn hoist_value(&mut self, value: Value, indices: &Indices) -> Result<(), LowerError> {
        let bound = |dim: &Dim| indices.iter().any(|(other, _)| other == dim);
        if self.evaluator.program.ty(value).dims.iter().all(bound) {
            self.evaluator.evaluate(value, indices)?;
        }
        Ok(())
    }

    /// Stores values at these indices. All are computed before any is stored, since one may lie where an argument
    /// of another does.
    fn store(&mut self, indices: &Indices, which: &dyn Fn(Value) -> bool) -> Result<(), LowerError> {
        let chosen: Vec<usize> =
            (0..self.stored.len()).filter(|&position| which(self.stored[position].value)).collect();
        let registers = chosen
            .iter()
            .map(|&position| self.evaluator.evaluate(self.stored[position].value, indices))
            .collect::<Result<Vec<_>, _>>()?;
        for (position, register) in chosen.into_iter().zip(registers) {
            let Stored { value, tensor, accumulate } = self.stored[position];
            let address = self.evaluator.address(value, indices)?;
            if accumulate {
                self.evaluator.builder.accumulate(tensor, address, Combination::Sum, register);
            } else {
                self.evaluator.builder.store(tensor, address, register);
            }
        }
        Ok(())
    }

    /// Rows: `whole` has all dims, the first `outer` of them number the rows.
    fn rows(&mut self, whole: Value, outer: usize, reductions: &[&'a Inst]) -> Result<(), LowerError> {
        let program = self.evaluator.program;
        let body = self.evaluator.body;
        let dims: Vec<Dim> = program.ty(whole).dims.to_vec();
        let outer_loops = loops(program, body, &dims[..outer], whole);
        let inner_loops = loops(program, body, &dims[outer..], whole);
        let levels = levels(body, reductions);
        self.serial_nest(&outer_loops, Vec::new(), 0, &mut |this, indices| {
            this.evaluator.reduced.clear();
            for level in &levels {
                this.reduce_level(level, &inner_loops, indices)?;
            }
            this.store_row(outer, &inner_loops, indices)
        })
    }

    /// Loops none of which is the vector loop; at least one.
    fn serial_nest(
        &mut self,
        all: &[LoopDim],
        indices: Indices,
        open: usize,
        inside: &mut dyn FnMut(&mut Self, &Indices) -> Result<(), LowerError>,
    ) -> Result<(), LowerError> {
        match all {
            [] if open == 0 => self.around_once(&mut |this| inside(this, &indices)),
            [] => inside(self, &indices),
            [first, ..] if open == 0 && first.cuts.len() > 2 => {
                self.around_once(&mut |this| this.serial_nest(all, indices.clone(), 1, inside))
            }
            [first, rest @ ..] => {
                for cut in first.cuts.windows(2) {
                    let indices = self.open(first, AxisKind::Serial, cut[0], cut[1] - cut[0], &indices);
                    self.hoist(&indices)?;
                    self.serial_nest(rest, indices, open + 1, inside)?;
                    self.evaluator.leave();
                }
                Ok(())
            }
        }
    }

    /// One pass over a row for reductions that don't need each other.
    fn reduce_level(
        &mut self,
        level: &[&'a Inst],
        inner: &[LoopDim],
        indices: &Indices,
    ) -> Result<(), LowerError> {
        self.hoist(indices)?;
        let accumulators: Vec<AccumulatorId> =
            level.iter().map(|inst| self.start(inst)).collect::<Result<_, _>>()?;
        self.nest(
            inner,
            indices.clone(),
            &mut |this, indices| {
                for (inst, &accumulator) in level.iter().zip(&accumulators) {
                    let register = this.evaluator.evaluate(inst.args[0], indices)?;
                    this.evaluator.builder.combine(accumulator, register);
                }
                Ok(())
            },
            1,
        )?;
        for (inst, accumulator) in level.iter().zip(accumulators) {
            let total = self.evaluator.builder.total(accumulator);
            self.evaluator.note_origin(total, inst.results[0]);
            self.evaluator.reduced.insert(inst.results[0], total);
        }
        Ok(())
    }

    fn start(&mut self, inst: &Inst) -> Result<AccumulatorId, LowerError> {
        let (combination, scalar) = match (&inst.op, self.evaluator.program.ty(inst.args[0]).dtype) {
            (Op::Reduce { op: ReduceOp::Sum, .. }, dtype) => (Combination::Sum, scalar(dtype)?),
            (Op::Reduce { op: ReduceOp::Max, .. }, dtype) => (Combination::Maximum, scalar(dtype)?),
            _ => return unforeseen("no reduction"),
        };
        Ok(self.evaluator.builder.start(combination, scalar))
    }

    /// Stores what a row yields: first values of the row as a whole, then those of each of its elements.
    fn store_row(&mut self, outer: usize, inner: &[LoopDim], indices: &Indices) -> Result<(), LowerError> {
        self.hoist(indices)?;
        let program = self.evaluator.program;
        self.store(indices, &|value| program.ty(value).dims.len() <= outer)?;
        if self.stored.iter().all(|stored| program.ty(stored.value).dims.len() <= outer) {
            return Ok(());
        }
        let mut inside = |this: &mut Self, indices: &Indices| {
            this.store(indices, &|value| program.ty(value).dims.len() > outer)
        };
        self.nest(inner, indices.clone(), &mut inside, 1)
    }

    /// A reduction over dims that are not innermost: each kept element sums its own column.
    fn columns(&mut self, inst: &'a Inst) -> Result<(), LowerError> {
        let program = self.evaluator.program;
        let body = self.evaluator.body;
        let kept: Vec<Dim> = program.ty(inst.results[0]).dims.to_vec();
        let reduced: Vec<Dim> =
            program.ty(inst.args[0]).dims.iter().copied().filter(|dim| !kept.contains(dim)).collect();
        let outer = loops(program, body, &kept, inst.results[0]);
        let inner = loops(program, body, &reduced, inst.args[0]);
        self.nest(
            &outer,
            Vec::new(),
            &mut |this, indices| {
                let accumulator = this.start(inst)?;
                this.column(&inner, indices.clone(), inst.args[0], accumulator)?;
                let total = this.evaluator.builder.total(accumulator);
                this.evaluator.note_origin(total, inst.results[0]);
                this.evaluator.reduced.insert(inst.results[0], total);
                this.store(indices, &|_| true)?;
                this.evaluator.reduced.clear();
                Ok(())
            },
            0,
        )
    }

    fn column(
        &mut self,
        inner: &[LoopDim],
        indices: Indices,
        value: Value,
        accumulator: AccumulatorId,
    ) -> Result<(), LowerError> {
        let Some((first, rest)) = inner.split_first() else {
            let register = self.evaluator.evaluate(value, &indices)?;
            self.evaluator.builder.combine(accumulator, register);
            return Ok(());
        };
        for cut in first.cuts.windows(2) {
            let indices = self.open(first, AxisKind::Serial, cut[0], cut[1] - cut[0], &indices);
            self.column(rest, indices, value, accumulator)?;
            self.evaluator.leave();
        }
        Ok(())
    }
}

/// The indices inside a loop: its own is the last dim's, the others are folded into it.
fn bind(over: &LoopDim, indices: &Indices, index: Index) -> Indices {
    let mut bound = indices.clone();
    for (position, &dim) in over.dims.iter().enumerate() {
        let last = position + 1 == over.dims.len();
        bound = with(&bound, dim, if last { index.clone() } else { Index::constant(0) });
    }
    bound
}

fn scalar(dtype: DType) -> Result<ScalarType, LowerError> {
    match dtype {
        DType::F32 | DType::Bf16 | DType::F16 => Ok(ScalarType::F32),
        DType::I32 => Ok(ScalarType::I32),
        DType::U32 => Ok(ScalarType::U32),
        DType::Bool => unforeseen("a reduction of truth values"),
    }
}

/// Reductions by the pass in which they can be done: each needs only those of earlier passes.
fn levels<'a>(body: &Region, reductions: &[&'a Inst]) -> Vec<Vec<&'a Inst>> {
    let mut level_of: FxHashMap<Value, usize> = FxHashMap::default();
    let mut levels: Vec<Vec<&'a Inst>> = Vec::new();
    for inst in &body.insts {
        let below = inst.args.iter().filter_map(|arg| level_of.get(arg)).max().copied();
        let is_reduction = matches!(inst.op, Op::Reduce { .. });
        let own = match (below, is_reduction) {
            (None, false) => continue,
            (None, true) => 0,
            (Some(below), false) => below,
            (Some(below), true) => below + 1,
        };
        level_of.extend(inst.results.iter().map(|&result| (result, own)));
        if let Some(&reduction) = reductions.iter().find(|other| other.results == inst.results) {
            if levels.len() <= own {
                levels.resize(own + 1, Vec::new());
            }
            levels[own].push(reduction);
        }
    }
    levels.retain(|level| !level.is_empty());
    levels
}
