//! The planner: any placement to any other, never holding more on the way than at the ends.

use crate::support::Numbers;
use dtlc_ir::interpret::{Options, Tensor, interpret, interpret_ranks};
use dtlc_ir::{
    Axis, AxisInfo, Builder, DType, Dim, Input, Op, Output, Phase, Placement, Program, Reason, ReduceOp,
    Type, text, verify,
};
use dtlc_passes::partition::plan_reshards;

/// A program that brings a tensor from one random placement to another. Partial ends come from sums over
/// dims of their own.
fn random(numbers: &mut Numbers) -> Program {
    let mut program = Program::new("movement");
    let axes: Vec<Axis> = ["x", "y", "z"]
        .iter()
        .zip([2, 2, 3])
        .map(|(name, size)| program.mesh.axes.push(AxisInfo { name: name.to_string(), part: None, size }))
        .collect();
    let dims: Vec<Dim> = ["A", "B", "C"].iter().map(|name| program.add_dim(*name, 12)).collect();
    let (mut whole, mut from, mut to) = (Placement::default(), Placement::default(), Placement::default());
    let mut summed: Vec<Dim> = Vec::new();
    for axis in shuffled(&axes, numbers) {
        match numbers.below(5) {
            0 => {}
            1 => {
                let dim = program.add_dim(format!("P{}", axis.as_u32()), program.mesh.axes[axis].size);
                whole.add_shard(dim, axis);
                from.add_partial(axis, ReduceOp::Sum);
                summed.push(dim);
            }
            _ => {
                let dim = dims[numbers.below(3)];
                whole.add_shard(dim, axis);
                from.add_shard(dim, axis);
            }
        }
    }
    let placed = shuffled(&axes, numbers).into_iter().filter(|_| numbers.below(4) > 0);
    let placed: Vec<Axis> = placed.collect();
    placed.into_iter().for_each(|axis| to.add_shard(dims[numbers.below(3)], axis));
    let ty = Type::new(DType::F32, dims.clone());
    let mut input = Type::new(DType::F32, dims.iter().chain(&summed).copied());
    input.placement = whole;
    let input = program.add_value(input, program.no_origin());
    program.inputs.push(Input { name: "input".to_string(), value: input });
    let mut builder = Builder::new(&mut program, Phase::Forward);
    let source = if summed.is_empty() {
        input
    } else {
        let op = Op::Reduce { op: ReduceOp::Sum, dims: summed.into() };
        builder.push_one(op, &[input], ty.with_placement(from))
    };
    let reason = Reason { text: "a test".to_string(), leave_to_gather: false };
    let moved = builder.push_one(Op::Reshard(reason), &[source], ty.with_placement(to));
    let insts = builder.region.insts;
    program.main.params = vec![input];
    program.main.insts = insts;
    program.main.yields = vec![moved];
    program.outputs.push(Output { name: "moved".to_string(), value: moved });
    program
}

fn shuffled(axes: &[Axis], numbers: &mut Numbers) -> Vec<Axis> {
    let mut order = axes.to_vec();
    for index in (1..order.len()).rev() {
        order.swap(index, numbers.below(index + 1));
    }
    order
}

#[test]
fn any_placement_becomes_any_other_in_the_memory_of_the_ends() {
    let mut numbers = Numbers(7);
    for case in 0..150 {
        let program = random(&mut numbers);
        let mut planned = program.clone();
        plan_reshards(&mut planned)
            .unwrap_or_else(|errors| panic!("{errors:?}\n{}", text::print_step(&program)));
        let shown = || format!("case {case}\n{}\n{}", text::print_step(&program), text::print_step(&planned));
        verify::sharded(&planned).unwrap_or_else(|fault| panic!("{fault}\n{}", shown()));
        let reshard = program.main.insts.last().expect("a reshard");
        let ends = [reshard.args[0], reshard.results[0]];
        let largest = ends.map(|value| program.ty(value).local_elements(&program)).into_iter().max();
        for inst in &planned.main.insts {
            if !matches!(inst.op, Op::Reduce { .. }) {
                let held = planned.ty(inst.results[0]).local_elements(&planned);
                assert!(Some(held) <= largest, "{}", shown());
            }
        }
        let input = program.ty(program.inputs[0].value);
        let shape = input.dims.iter().map(|&dim| (dim, program.dims[dim].size as usize));
        let tensor = Tensor::from_fn(shape, |index| ((index * 31) % 17) as f64);
        let options = Options::default();
        let many = interpret_ranks(&planned, std::slice::from_ref(&tensor), &options)
            .unwrap_or_else(|fault| panic!("{fault}\n{}", shown()));
        let mut single = program.clone();
        single.mesh = Default::default();
        for info in single.values.values_mut() {
            info.ty.placement = Placement::default();
        }
        let one =
            interpret(&single, &[tensor], &options).unwrap_or_else(|fault| panic!("{fault}\n{}", shown()));
        assert_eq!(one.yields, many.yields, "{}", shown());
    }
}
