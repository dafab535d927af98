//! Whatever placement the verifier accepts computes what one device does: every operation under random
//! placements of its arguments and, for each, every placement of its result.

mod numbers;

use dtlc_ir::interpret::{Options, Tensor, interpret, interpret_ranks};
use dtlc_ir::text::{parse, print_step};
use dtlc_ir::verify::sharded;
use dtlc_ir::{Axis, DType, Dim, Input, Output, Placement, Program, ReduceOp, Value};
use numbers::Numbers;

/// Arguments as `dtype[dims]`, the operation without its arguments, the first result; the second and third.
type Case = (&'static [&'static str], &'static str, &'static [&'static str]);

const CASES: [Case; 34] = [
    (&[], "const 1.5", &["f32[]"]),
    (&[], "iota[A]", &["i32[A]"]),
    (&["f32[A, B]"], "neg", &["f32[A, B]"]),
    (&["f32[A, B]"], "exp", &["f32[B, A]"]),
    (&["f32[A]"], "cast", &["bf16[A, B]"]),
    (&["f32[A]"], "cast", &["i32[A]"]),
    (&["f32[A, B]", "f32[B]"], "add", &["f32[A, B]"]),
    (&["f32[A, B]", "f32[B]"], "sub", &["f32[A, B]"]),
    (&["f32[A, B]", "f32[B]"], "mul", &["f32[A, B]"]),
    (&["f32[A]", "f32[B]"], "div", &["f32[A, B]"]),
    (&["f32[A]", "f32[A]"], "max", &["f32[A]"]),
    (&["f32[A]", "f32[A]"], "less", &["bool[A]"]),
    (&["bool[B]", "f32[A, B]", "f32[A]"], "select", &["f32[A, B]"]),
    (&["f32[A, B]"], "reduce_sum[A]", &["f32[B]"]),
    (&["f32[A, B]"], "reduce_sum[A, B]", &["f32[]"]),
    (&["f32[A, B]"], "reduce_max[A]", &["f32[B]"]),
    (&["f32[A, B]", "f32[B, C]"], "dot", &["f32[A, C]"]),
    (&["f32[A, B, C]", "f32[C, A]"], "dot", &["f32[A, B]"]),
    (&["f32[A]", "f32[B]"], "dot", &["f32[B, A]"]),
    (&["f32[A, B]"], "rename[A -> C]", &["f32[C, B]"]),
    (&["f32[D, C]"], "split[D -> A, B]", &["f32[A, B, C]"]),
    (&["f32[E, C]"], "split[E -> N, A]", &["f32[N, A, C]"]),
    (&["f32[N, A, C]"], "merge[N, A -> E]", &["f32[E, C]"]),
    (&["f32[A, B]"], "slice[A from 1 -> N]", &["f32[N, B]"]),
    (&["f32[A, B]"], "slice[A from 3]", &["f32[B]"]),
    (&["f32[N, B]"], "pad[N -> A from 1]", &["f32[A, B]"]),
    (&["f32[B]"], "pad[-> A from 2]", &["f32[A, B]"]),
    (&["f32[A, B]", "f32[C, B]"], "concat[A, C -> E]", &["f32[E, B]"]),
    (&["f32[A, B]", "u32[C]"], "take[A]", &["f32[B, C]"]),
    (&["f32[A, B]", "u32[B]"], "take[A]", &["f32[B]"]),
    (&["f32[C, B]", "u32[C]"], "scatter_add[A]", &["f32[A, B]"]),
    (&["f32[B]", "u32[B]"], "scatter_add[A]", &["f32[A, B]"]),
    (&["u32[]"], "random[stream 1 over A, B]", &["f32[A, B]"]),
    (
        &["f32[A, S, B, K]", "f32[A, T, K]", "f32[A, T, K]"],
        "attention[query S, key T, head K, value K, scale 0.7, causal]",
        &["f32[A, S, B, K]", "f32[A, S, B]"],
    ),
];

const GRADIENT: Case = (
    &[
        "f32[A, S, B, K]",
        "f32[A, T, K]",
        "f32[A, T, K]",
        "f32[A, S, B, K]",
        "f32[A, S, B]",
        "f32[A, S, B, K]",
    ],
    "attention_gradient[query S, key T, head K, value K, scale 0.7, causal]",
    &["f32[A, S, B, K]", "f32[A, T, K]", "f32[A, T, K]"],
);

/// A program in which each float argument is the sum of a parameter over a dim of its own, so that it can
/// be partial, and each result is made whole at the end.
struct Subject {
    program: Program,
    /// For each argument: itself, its parameter, and the parameter's own dim where it is a sum.
    args: Vec<(Value, Value, Option<Dim>)>,
    results: Vec<Value>,
}

fn subject((args, op, results): Case) -> Subject {
    let (mut params, mut sums, mut names) = (String::new(), String::new(), Vec::new());
    let mut dims = "A = 4, B = 4, C = 4, D = 16, E = 8, N = 2, S = 4, T = 4, K = 2".to_string();
    for (index, ty) in args.iter().enumerate() {
        names.push(format!("%a{index}"));
        if ty.starts_with("f32") {
            dims.push_str(&format!(", X{index} = 4"));
            let long = ty.replace("f32[", &format!("f32[X{index}, ")).replace(", ]", "]");
            params.push_str(&format!("%p{index}: {long}, "));
            sums.push_str(&format!("%a{index}: {ty} = reduce_sum[X{index}] %p{index} forward\n"));
        } else {
            params.push_str(&format!("%a{index}: {ty}, "));
        }
    }
    let definitions: Vec<String> =
        results.iter().enumerate().map(|(index, ty)| format!("%r{index}: {ty}")).collect();
    let whole: Vec<String> = results
        .iter()
        .enumerate()
        .map(|(index, ty)| format!("%w{index}: {ty} = reshard %r{index} because \"whole\" forward\n"))
        .collect();
    let yields: Vec<String> = (0..results.len()).map(|index| format!("%w{index}")).collect();
    let text = format!(
        "program p {{ mesh {{ a: 2, b: 2 }} dims {{ {dims} }} main({params}) {{ {sums}
            {} = {op} {} forward\n{} yield {} }} }}",
        definitions.join(", "),
        names.join(", "),
        whole.concat(),
        yields.join(", "),
    );
    let mut program = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    for &value in &program.main.params {
        program.inputs.push(Input { name: program.display_value(value), value });
    }
    for &value in &program.main.yields {
        program.outputs.push(Output { name: program.display_value(value), value });
    }
    let named = |name: String| {
        program.values.keys().find(|&value| program.values[value].name.as_ref() == Some(&name))
    };
    let args = (0..args.len())
        .map(|index| {
            let arg = named(format!("a{index}")).expect("an argument");
            let sum = named(format!("p{index}")).map(|param| (param, program.find_dim(&format!("X{index}"))));
            sum.map_or((arg, arg, None), |(param, dim)| (arg, param, dim))
        })
        .collect();
    let results = (0..results.len()).map(|index| named(format!("r{index}")).expect("a result")).collect();
    Subject { program, args, results }
}

/// What a type says of an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
enum On {
    Nothing,
    Shard(Dim),
    Partial(ReduceOp),
}

fn axes() -> [Axis; 2] {
    [0, 1].map(Axis::from_u32)
}

fn placement(on: [On; 2], swapped: bool) -> Placement {
    let mut placement = Placement::replicated();
    for index in if swapped { [1, 0] } else { [0, 1] } {
        match on[index] {
            On::Nothing => {}
            On::Shard(dim) => placement.add_shard(dim, axes()[index]),
            On::Partial(op) => placement.add_partial(axes()[index], op),
        }
    }
    placement
}

/// Every placement that a type with `dims` can have.
fn placements(dims: &[Dim]) -> Vec<Placement> {
    let partials = [On::Nothing, On::Partial(ReduceOp::Sum), On::Partial(ReduceOp::Max)];
    let options: Vec<On> = partials.into_iter().chain(dims.iter().map(|&dim| On::Shard(dim))).collect();
    let mut all: Vec<Placement> = Vec::new();
    for &a in &options {
        for &b in &options {
            for swapped in [false, true] {
                let placement = placement([a, b], swapped);
                if !all.contains(&placement) {
                    all.push(placement);
                }
            }
        }
    }
    all
}

impl Subject {
    /// Gives the arguments random placements, partial in so many percent. Mostly, dims are split alike.
    fn place_arguments(&mut self, numbers: &mut Numbers, partial: usize) {
        let alike = numbers.chance(75);
        let shared: Vec<On> = axes()
            .iter()
            .map(|_| match numbers.chance(70) {
                true => On::Shard(Dim::from_u32(numbers.below(9) as u32)),
                false => On::Nothing,
            })
            .collect();
        let swapped = numbers.chance(30);
        for index in 0..self.args.len() {
            let (arg, param, own) = self.args[index];
            let dims = self.program.ty(arg).dims.clone();
            let mut on = [0, 1].map(|axis| match (alike, dims.is_empty()) {
                (true, _) => match shared[axis] {
                    On::Shard(dim) if !dims.contains(&dim) => On::Nothing,
                    shared => shared,
                },
                (false, false) if numbers.chance(50) => On::Shard(numbers.pick(&dims)),
                (false, _) => On::Nothing,
            });
            for on in &mut on {
                if own.is_some() && *on == On::Nothing && numbers.chance(partial) {
                    *on = On::Partial(ReduceOp::Sum);
                }
            }
            let mut whole = on;
            for on in &mut whole {
                if let (On::Partial(_), Some(own)) = (*on, own) {
                    *on = On::Shard(own);
                }
            }
            self.program.values[arg].ty.placement = placement(on, swapped);
            self.program.values[param].ty.placement = placement(whole, swapped);
        }
    }

    fn place(&mut self, value: Value, placement: &Placement) {
        self.program.values[value].ty.placement = placement.clone();
    }

    fn arguments(&self, numbers: &mut Numbers) -> Vec<Tensor> {
        let program = &self.program;
        let tensor = |&param: &Value| {
            let ty = program.ty(param);
            let shape = ty.dims.iter().map(|&dim| (dim, program.dims[dim].size as usize));
            Tensor::from_fn(shape, |_| match ty.dtype {
                DType::F32 | DType::Bf16 | DType::F16 => numbers.below(1000) as f64 / 500.0 - 1.0,
                DType::I32 | DType::U32 => numbers.below(5) as f64,
                DType::Bool => numbers.below(2) as f64,
            })
        };
        program.main.params.iter().map(tensor).collect()
    }

    /// Compares all ranks with one device.
    fn check(&self, numbers: &mut Numbers) {
        let (arguments, options) = (self.arguments(numbers), Options::default());
        let show = || print_step(&self.program);
        let one = interpret(&self.program, &arguments, &options).unwrap_or_else(|fault| panic!("{fault}"));
        let all = interpret_ranks(&self.program, &arguments, &options)
            .unwrap_or_else(|fault| panic!("{fault}\n{}", show()));
        for (one, all) in one.yields.iter().zip(&all.yields) {
            let close = |(one, all): (&f64, &f64)| {
                (one - all).abs() < 1e-9 || (one.is_nan() && all.is_nan()) || one == all
            };
            let (left, right) = (&one.data, &all.data);
            assert!(left.iter().zip(right).all(close), "{left:?}\n{right:?}\n{}", show());
        }
    }
}

/// Checks `rounds` random placements of the arguments under every placement of the results that lies in
/// `results`; returns how many programs the verifier accepted.
fn accepted(case: Case, rounds: usize, numbers: &mut Numbers) -> usize {
    let mut subject = subject(case);
    let mut accepted = 0;
    for _ in 0..rounds {
        subject.place_arguments(numbers, 30);
        // One result at a time: the others are right or the program is refused anyway.
        let choices: Vec<Vec<Placement>> =
            subject.results.iter().map(|&result| placements(&subject.program.ty(result).dims)).collect();
        for first in &choices[0] {
            subject.place(subject.results[0], first);
            for rest in 0..if choices.len() > 1 { 12 } else { 1 } {
                for (index, choices) in choices.iter().enumerate().skip(1) {
                    // What the first result says, where the dims allow it, or anything.
                    let like = choices.iter().find(|choice| *choice == first).filter(|_| rest % 2 == 0);
                    let choice = like.cloned().unwrap_or_else(|| numbers.pick(choices));
                    subject.place(subject.results[index], &choice);
                }
                if sharded(&subject.program).is_ok() {
                    accepted += 1;
                    subject.check(numbers);
                }
            }
        }
    }
    accepted
}

#[test]
fn accepted_placements_compute_what_one_device_does() {
    let mut numbers = Numbers::new(1);
    for case in CASES {
        let count = accepted(case, 80, &mut numbers);
        assert!(count >= 10, "only {count} placements of {} were accepted", case.1);
    }
}

#[test]
fn accepted_placements_of_attention_gradients_compute_what_one_device_does() {
    let mut numbers = Numbers::new(2);
    let mut subject = subject(GRADIENT);
    let mut accepted = 0;
    for _ in 0..400 {
        subject.place_arguments(&mut numbers, 0);
        let [dq, dk, dv] = subject.results[..] else { panic!("three results") };
        let query = subject.program.ty(subject.args[0].0).placement.clone();
        subject.place(dq, &query);
        for choice in placements(&subject.program.ty(dk).dims.clone()) {
            subject.place(dk, &choice);
            subject.place(dv, &choice);
            if sharded(&subject.program).is_ok() {
                accepted += 1;
                subject.check(&mut numbers);
            }
        }
    }
    assert!(accepted >= 20, "only {accepted} were accepted");
}
