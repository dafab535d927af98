//! Builds the loops over chunks.

use super::group::{Group, Kind};
use crate::regions::ordered;
use crate::uses::for_each_use;
use dtlc_ir::{
    Builder, DType, Dim, Inst, Op, Phase, Program, Region, ScalarOp, Scan, ScanOutput, Type, Value,
};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

/// Replaces the instructions of a group by its loops, each over chunks of `rows` rows.
pub(super) fn roll(program: &mut Program, region: &mut Region, group: &Group, rows: u64) {
    let insts = std::mem::take(&mut region.insts);
    let outside = Region { params: region.params.clone(), insts, yields: region.yields.clone() };
    let product =
        outside.insts.iter().flat_map(|inst| &inst.results).find(|value| group.large.contains(value));
    let placed = product.map(|&value| program.ty(value).clone()).unwrap_or_else(|| Type::scalar(DType::F32));
    let pieces = Pieces::new(program, &placed, group.dim, rows);
    let roll = Roll { group, region: &outside, pieces, free: free(&outside, group) };
    let count = group.loops.iter().flatten().max().map_or(0, |last| last + 1);
    // Types are asked for before the first loop takes rows out of them.
    let types: Vec<Type> = program.values.values().map(|info| info.ty.clone()).collect();
    let mut units: Vec<(usize, Inst)> = Vec::new();
    for level in 0..count {
        let Some(first) = group.loops.iter().position(|own| *own == Some(level)) else { continue };
        let made = roll.build(program, &types, level);
        units.extend(made.into_iter().map(|inst| (first, inst)));
    }
    let stays = outside.insts.iter().enumerate().filter(|(index, _)| group.loops[*index].is_none());
    units.extend(stays.map(|(index, inst)| (index, inst.clone())));
    region.insts = ordered(units);
}

/// Lets a loop's sum that is added to a carry of the region, and nothing else, start from that carry.
pub(super) fn start_from_carries(program: &Program, region: &mut Region, group: &Group) {
    let mut uses: FxHashMap<Value, usize> = FxHashMap::default();
    region.yields.iter().for_each(|&value| *uses.entry(value).or_default() += 1);
    for inst in &region.insts {
        for_each_use(inst, &mut |value| *uses.entry(value).or_default() += 1);
    }
    let alone = |value: &Value| uses.get(value) == Some(&1);
    for at in (0..region.insts.len()).rev() {
        let add = &region.insts[at];
        let (Op::Map(ScalarOp::Add), [one, other]) = (&add.op, &add.args[..]) else { continue };
        let (carry, sum) = if region.params.contains(one) { (*one, *other) } else { (*other, *one) };
        let result = add.results[0];
        let alike = program.ty(carry) == program.ty(sum) && program.ty(sum) == program.ty(result);
        let is_sum = matches!(group.kind(sum), Kind::Sum(_));
        if !is_sum || !region.params.contains(&carry) || !alike || !alone(&carry) || !alone(&sum) {
            continue;
        }
        let summed = region.insts.iter_mut().find_map(|inst| {
            let number = inst.results.iter().position(|&made| made == sum)?;
            let Op::Scan(scan) = &inst.op else { return None };
            (number < scan.carries).then_some((inst, number))
        });
        if let Some((inst, number)) = summed {
            inst.args[number] = carry;
            inst.results[number] = result;
            region.insts.remove(at);
        }
    }
}

/// The dims that a dim comes apart into.
struct Pieces {
    dim: Dim,
    /// One element for each rank that it is split over.
    ranks: Option<Dim>,
    /// One element for each chunk of a rank: what the loops iterate over.
    chunks: Dim,
    /// The rows of a chunk.
    rows: Dim,
}

impl Pieces {
    fn new(program: &mut Program, placed: &Type, dim: Dim, rows: u64) -> Pieces {
        let name = program.dims[dim].name.clone();
        let local = placed.local_size(program, dim);
        let ways = program.dims[dim].size / local;
        Pieces {
            dim,
            ranks: (ways > 1).then(|| program.fresh_dim(&format!("{name}.ranks"), ways)),
            chunks: program.fresh_dim(&format!("{name}.chunks"), local / rows),
            rows: program.fresh_dim(&format!("{name}.rows"), rows),
        }
    }

    /// The type of a chunk of a value.
    fn chunk(&self, ty: &Type) -> Type {
        self.apart(ty, &self.ranks.into_iter().chain([self.rows]).collect::<Vec<_>>())
    }

    /// The type of all chunks of a value.
    fn stack(&self, ty: &Type) -> Type {
        self.apart(ty, &self.all())
    }

    fn all(&self) -> SmallVec<[Dim; 4]> {
        self.ranks.into_iter().chain([self.chunks, self.rows]).collect()
    }

    fn apart(&self, ty: &Type, into: &[Dim]) -> Type {
        let Some(at) = ty.position(self.dim) else { return ty.clone() };
        let mut apart = ty.clone();
        apart.dims.remove(at);
        apart.dims.insert_many(at, into.iter().copied());
        let axes: SmallVec<[_; 4]> = ty.placement.axes_of(self.dim).collect();
        axes.iter().for_each(|&axis| apart.placement.remove_axis(axis));
        if let Some(ranks) = self.ranks {
            axes.iter().for_each(|&axis| apart.placement.add_shard(ranks, axis));
        }
        apart
    }

    /// An operation on a chunk.
    fn on_chunk(&self, op: &Op) -> Op {
        let mut op = op.clone();
        if let Op::Reduce { dims, .. } = &mut op
            && let Some(at) = dims.iter().position(|&dim| dim == self.dim)
        {
            dims.remove(at);
            dims.extend(self.ranks.into_iter().chain([self.rows]));
        }
        op
    }
}

/// Values that are made of constants and coordinates alone: each loop makes its own.
fn free(region: &Region, group: &Group) -> FxHashSet<Value> {
    let mut free: FxHashSet<Value> = FxHashSet::default();
    for inst in &region.insts {
        let made_of_nothing = match &inst.op {
            Op::Constant(_) => true,
            Op::Iota { dim } => *dim != group.dim,
            Op::Map(_) => inst.args.iter().all(|arg| free.contains(arg)),
            _ => false,
        };
        if made_of_nothing {
            free.extend(&inst.results);
        }
    }
    free
}

struct Roll<'a> {
    group: &'a Group,
    region: &'a Region,
    pieces: Pieces,
    free: FxHashSet<Value>,
}

/// A loop under construction.
#[derive(Default)]
struct Loop {
    /// What stands before it.
    before: Vec<Inst>,
    body: Vec<Inst>,
    /// What stands in the body for values outside.
    inner: FxHashMap<Value, Value>,
    /// All chunks of what comes in, with the slice in the body.
    slices: Vec<(Value, Value)>,
    /// What goes out, with what the body yields for it.
    stacks: Vec<(Value, Value)>,
    /// What is summed, with the start, the carry, and the carry's next value.
    sums: Vec<(Value, [Value; 3])>,
}

impl Roll<'_> {
    /// The loop of a level, with what has to stand around it.
    fn build(&self, program: &mut Program, types: &[Type], level: u32) -> Vec<Inst> {
        let mut made = Loop::default();
        let own = |index: &usize| self.group.loops[*index] == Some(level);
        let members: Vec<&Inst> =
            (0..self.region.insts.len()).filter(own).map(|index| &self.region.insts[index]).collect();
        for inst in &members {
            self.member(program, types, &mut made, inst, level);
        }
        let phase = members.first().map_or(Phase::Forward, |inst| inst.phase);
        self.finish(program, types, made, phase)
    }

    /// Lets the body compute rows of a member.
    fn member(&self, program: &mut Program, types: &[Type], made: &mut Loop, inst: &Inst, level: u32) {
        let args = inst.args.iter().map(|&arg| self.inner(program, types, made, arg, level)).collect();
        let mut results: SmallVec<[Value; 2]> = SmallVec::new();
        for &result in &inst.results {
            let is_sum = matches!(self.group.kind(result), Kind::Sum(_));
            let leaves = is_sum || self.group.is_needed_outside(self.region, result, level);
            let inner = if leaves { program.values.push(program.values[result].clone()) } else { result };
            program.values[inner].ty = self.pieces.chunk(&types[result.as_u32() as usize]);
            made.inner.insert(result, inner);
            results.push(inner);
            if is_sum {
                // Each chunk rounds once more, so the running sum is f32.
                program.values[inner].ty.dtype = DType::F32;
                made.sums.push((result, [inner; 3]));
            } else if leaves {
                made.stacks.push((result, inner));
            }
        }
        made.body.push(Inst { op: self.pieces.on_chunk(&inst.op), args, results, phase: inst.phase });
    }

    /// What the body of a loop reads for a value.
    fn inner(
        &self,
        program: &mut Program,
        types: &[Type],
        made: &mut Loop,
        value: Value,
        level: u32,
    ) -> Value {
        if let Some(&inner) = made.inner.get(&value) {
            return inner;
        }
        let has_rows = types[value.as_u32() as usize].has(self.group.dim);
        let again = match self.group.kind(value) {
            Kind::Rows(_) => self.group.large.contains(&value),
            Kind::Outside(_) | Kind::Sum(_) => self.free.contains(&value),
        };
        let inner = match (again, has_rows) {
            (true, _) => self.again(program, types, made, value, level),
            (false, true) => self.slice(program, types, made, value),
            (false, false) => value,
        };
        made.inner.insert(value, inner);
        inner
    }

    /// Computes rows of a value once more.
    fn again(
        &self,
        program: &mut Program,
        types: &[Type],
        made: &mut Loop,
        value: Value,
        level: u32,
    ) -> Value {
        let Some(maker) = self.region.insts.iter().find(|inst| inst.results.contains(&value)) else {
            return value;
        };
        let args = maker.args.iter().map(|&arg| self.inner(program, types, made, arg, level)).collect();
        let copy = program.values.push(program.values[value].clone());
        program.values[copy].ty = self.pieces.chunk(&types[value.as_u32() as usize]);
        let phase = if self.free.contains(&value) { maker.phase } else { Phase::Recompute };
        let results = SmallVec::from_slice(&[copy]);
        made.body.push(Inst { op: self.pieces.on_chunk(&maker.op), args, results, phase });
        copy
    }

    /// Hands the loop a value by chunks.
    fn slice(&self, program: &mut Program, types: &[Type], made: &mut Loop, value: Value) -> Value {
        let info = program.values[value].clone();
        let ty = &types[value.as_u32() as usize];
        let [stack, slice] = [self.pieces.stack(ty), self.pieces.chunk(ty)].map(|ty| {
            let mut part = info.clone();
            part.ty = ty;
            program.values.push(part)
        });
        let op = Op::Split { dim: self.pieces.dim, into: self.pieces.all() };
        let maker = self.region.insts.iter().find(|inst| inst.results.contains(&value));
        let phase = maker.map_or(Phase::Forward, |inst| inst.phase);
        let (args, results) = (SmallVec::from_slice(&[value]), SmallVec::from_slice(&[stack]));
        made.before.push(Inst { op, args, results, phase });
        made.slices.push((stack, slice));
        slice
    }

    /// Closes a loop: running sums, the loop itself, and what its results are outside.
    fn finish(&self, program: &mut Program, types: &[Type], mut made: Loop, phase: Phase) -> Vec<Inst> {
        self.run_sums(program, &mut made, phase);
        let sums = made.sums.iter().map(|(_, sum)| sum);
        let [inits, carries, nexts]: [Vec<Value>; 3] =
            [0, 1, 2].map(|at| sums.clone().map(|sum| sum[at]).collect());
        let params = carries.iter().copied().chain(made.slices.iter().map(|slice| slice.1)).collect();
        let yields = nexts.into_iter().chain(made.stacks.iter().map(|stack| stack.1)).collect();
        let scan = Scan {
            dim: self.pieces.chunks,
            reverse: false,
            carries: carries.len(),
            stacks: made.slices.len(),
            outputs: vec![ScanOutput::Stack; made.stacks.len()],
            body: Region { params, insts: made.body, yields },
        };
        let mut results: SmallVec<[Value; 2]> = SmallVec::new();
        let mut after = Vec::new();
        let outer = made.sums.iter().map(|(outer, _)| (outer, Op::Map(ScalarOp::Cast)));
        let merge = Op::Merge { dims: self.pieces.all(), into: self.pieces.dim };
        let outer = outer.chain(made.stacks.iter().map(|(outer, _)| (outer, merge.clone())));
        for (&outer, op) in outer {
            let mut info = program.values[outer].clone();
            info.ty = match op {
                Op::Merge { .. } => self.pieces.stack(&types[outer.as_u32() as usize]),
                _ => Type { dtype: DType::F32, ..info.ty },
            };
            if info.ty == program.values[outer].ty {
                results.push(outer);
                continue;
            }
            let result = program.values.push(info);
            results.push(result);
            let (args, results) = (SmallVec::from_slice(&[result]), SmallVec::from_slice(&[outer]));
            after.push(Inst { op, args, results, phase });
        }
        let args = inits.into_iter().chain(made.slices.iter().map(|slice| slice.0)).collect();
        made.before.push(Inst { op: Op::Scan(scan), args, results, phase });
        made.before.extend(after);
        made.before
    }

    /// Carries each sum from chunk to chunk.
    fn run_sums(&self, program: &mut Program, made: &mut Loop, phase: Phase) {
        let mut before = std::mem::take(&mut made.before);
        for (outer, sum) in &mut made.sums {
            let info = program.values[sum[0]].clone();
            let mut outside = Builder::new(program, phase);
            (outside.origin, outside.role) = (info.origin, info.role);
            let init = outside.fill(0.0, &info.ty);
            before.append(&mut outside.region.insts);
            let [carry, next] = [(); 2].map(|()| program.values.push(program.values[*outer].clone()));
            for value in [carry, next] {
                program.values[value].ty = info.ty.clone();
            }
            let results = SmallVec::from_slice(&[next]);
            let args = SmallVec::from_slice(&[carry, sum[0]]);
            made.body.push(Inst { op: Op::Map(ScalarOp::Add), args, results, phase });
            *sum = [init, carry, next];
        }
        made.before = before;
    }
}
