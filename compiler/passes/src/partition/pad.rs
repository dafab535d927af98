//! Pads. Says which dimensions may have them, and masks them: where the axes of a dimension do not divide it, the
//! last ranks hold elements that aren't there, and before a sum or a maximum over them they are replaced by what
//! changes nothing.
//!
//! Pads hold anything: what is computed on them is thrown away, and may be infinite. Only what combines elements along
//! a dimension could let them out. Everything that does so and is no factor (keys of an attention, a cut or a
//! concatenation) has its dimension whole, and whole dimensions have no pads.

use super::factors::Factor;
use super::propagate::Chosen;
use super::realise::Realiser;
use super::request::{PlacementRequest, RuleKind};
use dtlc_ir::{DType, Dim, Inst, Literal, Op, Placement, Program, ReduceOp, Region, ScalarOp, Type, Value};

/// Marks what a plan pads: the dimensions that its rules name, and those that are the same ones renamed, such as the
/// keys of an attention.
pub(super) fn mark(program: &mut Program, request: &PlacementRequest) {
    let rules = request.steps.iter().flat_map(|step| &step.rules);
    let named = rules.filter(|rule| rule.kind == RuleKind::PlacePadded).filter_map(|rule| rule.dims.first());
    let mut padded: Vec<Dim> = named.copied().collect();
    let mut renamed = Vec::new();
    renames(&program.main, &mut renamed);
    while let Some(dim) = padded.pop() {
        if !std::mem::replace(&mut program.dims[dim].pad, true) {
            let other =
                |pair: &[Dim; 2]| pair.contains(&dim).then(|| pair.iter().copied().find(|&it| it != dim));
            padded.extend(renamed.iter().filter_map(other).flatten());
        }
    }
}

fn renames(region: &Region, found: &mut Vec<[Dim; 2]>) {
    for inst in &region.insts {
        if let Op::Rename { from, to } = inst.op {
            found.push([from, to]);
        }
        if let Some(body) = inst.op.region() {
            renames(body, found);
        }
    }
}

impl Realiser<'_> {
    /// Masks the arguments of an instruction along every padded dimension that it sums over.
    pub(super) fn mask_pads(&mut self, inst: &mut Inst, factors: &[Factor], chosen: &[Chosen]) {
        for choice in chosen {
            let factor = &factors[choice.factor];
            if !factor.is_contracted() {
                continue;
            }
            if let Op::Take { dim } = inst.op
                && factor.args[0] == Some(dim)
            {
                self.keep_ids_inside(inst, dim);
                continue;
            }
            for index in 0..inst.args.len() {
                let (arg, Some(dim)) = (inst.args[index], factor.args[index]) else { continue };
                // What is looked up at pads adds nothing once the rows that go with it are masked.
                let counts = self.program.ty(arg).dtype.is_float() || matches!(inst.op, Op::Reduce { .. });
                if counts && self.is_padded(arg, dim) {
                    let identity = identity(factor.reduce, self.program.ty(arg).dtype);
                    inst.args[index] = self.mask(arg, Bound::Coordinate(dim), identity, inst);
                }
            }
        }
    }

    /// An id beyond the table would find a pad: it becomes one that no rank has.
    fn keep_ids_inside(&mut self, inst: &mut Inst, dim: Dim) {
        if self.is_padded(inst.args[0], dim) {
            let nowhere = match self.program.ty(inst.args[1]).dtype {
                DType::U32 => i64::from(u32::MAX),
                DType::F32 | DType::Bf16 | DType::F16 | DType::I32 | DType::Bool => -1,
            };
            inst.args[1] = self.mask(inst.args[1], Bound::Element(dim), Literal::Int(nowhere), inst);
        }
    }

    fn is_padded(&self, value: Value, dim: Dim) -> bool {
        let ways = self.program.mesh.group_size(self.program.ty(value).placement.axes_of(dim));
        !self.program.dims[dim].size.is_multiple_of(ways)
    }

    /// `select(inside, value, outside)`, where what has to be inside its dimension is less than its size.
    fn mask(&mut self, value: Value, bound: Bound, outside: Literal, inst: &Inst) -> Value {
        let ty = self.program.ty(value).clone();
        let (origin, phase) = (self.program.values[inst.results[0]].origin, inst.phase);
        let (dim, number) = match bound {
            Bound::Element(dim) => (dim, value),
            Bound::Coordinate(dim) => {
                let mut along = Placement::replicated();
                ty.placement.axes_of(dim).for_each(|axis| along.add_shard(dim, axis));
                let integers = Type::new(DType::I32, [dim]).with_placement(along);
                (dim, self.new_value(Op::Iota { dim }, &[], integers, origin, phase))
            }
        };
        let numbers = self.program.ty(number).clone();
        let size = Op::Constant(Literal::Int(self.program.dims[dim].size as i64));
        let size = self.new_value(size, &[], Type::scalar(numbers.dtype), origin, phase);
        let truths = Type { dtype: DType::Bool, ..numbers };
        let inside = self.new_value(Op::Map(ScalarOp::Less), &[number, size], truths, origin, phase);
        let outside = self.new_value(Op::Constant(outside), &[], Type::scalar(ty.dtype), origin, phase);
        self.new_value(Op::Map(ScalarOp::Select), &[inside, value, outside], ty, origin, phase)
    }
}

/// What a mask compares with the size of a dimension.
#[derive(Clone, Copy)]
enum Bound {
    /// The place along the dimension.
    Coordinate(Dim),
    /// The elements themselves, which are ids.
    Element(Dim),
}

/// What changes nothing.
fn identity(reduce: ReduceOp, dtype: DType) -> Literal {
    match (reduce, dtype) {
        (ReduceOp::Sum, DType::F32 | DType::Bf16 | DType::F16) => Literal::Float(0.0),
        (ReduceOp::Max, DType::F32 | DType::Bf16 | DType::F16) => Literal::Float(f64::NEG_INFINITY),
        (ReduceOp::Max, DType::I32) => Literal::Int(i64::from(i32::MIN)),
        (ReduceOp::Sum, DType::I32 | DType::U32) | (ReduceOp::Max, DType::U32) => Literal::Int(0),
        (ReduceOp::Sum | ReduceOp::Max, DType::Bool) => Literal::Bool(false),
    }
}
