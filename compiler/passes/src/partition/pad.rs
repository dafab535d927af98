//! Masks pads. Where the axes of a dimension do not divide it, the last ranks hold elements that aren't
//! there; before a sum or a maximum over them they are replaced by what changes nothing.

use super::factors::Factor;
use super::propagate::Chosen;
use super::realise::Realiser;
use dtlc_ir::{DType, Dim, Inst, Literal, Op, Placement, ReduceOp, ScalarOp, Type, Value};

impl Realiser<'_> {
    /// Masks the arguments of an instruction along every padded dimension that it sums over.
    pub(super) fn mask_pads(&mut self, inst: &mut Inst, factors: &[Factor], chosen: &[Chosen]) {
        for choice in chosen {
            let factor = &factors[choice.factor];
            if !factor.is_contracted() {
                continue;
            }
            for index in 0..inst.args.len() {
                let Some(dim) = factor.args[index] else { continue };
                if self.is_padded(inst.args[index], dim) {
                    inst.args[index] = self.mask(inst.args[index], dim, factor.reduce, inst);
                }
            }
        }
    }

    fn is_padded(&self, value: Value, dim: Dim) -> bool {
        let ty = self.program.ty(value);
        let ways = self.program.mesh.group_size(ty.placement.axes_of(dim));
        ty.dtype.is_float() && !self.program.dims[dim].size.is_multiple_of(ways)
    }

    /// `select(iota[dim] < size, value, identity)`.
    fn mask(&mut self, value: Value, dim: Dim, reduce: ReduceOp, inst: &Inst) -> Value {
        let ty = self.program.ty(value).clone();
        let (origin, phase) = (self.program.values[inst.results[0]].origin, inst.phase);
        let mut along = Placement::replicated();
        ty.placement.axes_of(dim).for_each(|axis| along.add_shard(dim, axis));
        let size = self.program.dims[dim].size as i64;
        let identity = match reduce {
            ReduceOp::Sum => 0.0,
            ReduceOp::Max => f64::NEG_INFINITY,
        };
        let integers = Type::new(DType::I32, [dim]).with_placement(along.clone());
        let truths = Type::new(DType::Bool, [dim]).with_placement(along);
        let coordinate = self.new_value(Op::Iota { dim }, &[], integers, origin, phase);
        let bound =
            self.new_value(Op::Constant(Literal::Int(size)), &[], Type::scalar(DType::I32), origin, phase);
        let inside = self.new_value(Op::Map(ScalarOp::Less), &[coordinate, bound], truths, origin, phase);
        let scalar = Type::scalar(ty.dtype);
        let identity = self.new_value(Op::Constant(Literal::Float(identity)), &[], scalar, origin, phase);
        self.new_value(Op::Map(ScalarOp::Select), &[inside, value, identity], ty, origin, phase)
    }
}
