//! Programs from text, plans as short strings, and the comparison of N ranks with one.

use dtlc_ir::interpret::{Options, Tensor, interpret, interpret_ranks};
use dtlc_ir::{
    AxisInfo, Builder, DType, Dim, Initializer, Mesh, Output, Phase, Program, ReduceOp, Role, ScalarOp,
    State, StateKind, Value, text, verify,
};
use dtlc_lang::plan::{Path, Policy, Remat};
use dtlc_lang::{FileId, Span};
use dtlc_passes::partition::{
    PlacementError, PlacementRequest, RuleKind, RuleRequest, StepRequest, merge_collectives, partition,
    plan_reshards,
};
use dtlc_passes::rematerialise;
use dtlc_passes::report::{CollectiveUse, collectives};
use dtlc_passes::{Gradients, differentiate, simplify};

/// A program in text, differentiated.
pub fn joint(source: &str) -> Program {
    let mut program = text::parse(source).unwrap_or_else(|error| panic!("{error:?}"));
    differentiate(&mut program, DType::F32, 1).unwrap_or_else(|error| panic!("{error:?}"));
    simplify(&mut program, Gradients::Taken);
    program
}

/// A request from lines such as `mesh dp 2, tp 4` and `tensor: H, F -> tp; acts S -> tp at Block.x`. Products
/// are written with their atoms: `H=KV*G`.
pub fn request(program: &Program, source: &str) -> PlacementRequest {
    let mut request = PlacementRequest::default();
    for line in source.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(axes) = line.strip_prefix("mesh ") {
            request.mesh = mesh(axes);
            continue;
        }
        let (name, rules) = line.split_once(": ").expect("step: rules");
        let rules = rules.split("; ").flat_map(|rule| rule_requests(program, rule)).collect();
        request.steps.push(StepRequest { name: name.to_string(), rules });
    }
    request
}

fn mesh(source: &str) -> Mesh {
    let mut mesh = Mesh::default();
    for axis in source.split(", ") {
        let (name, size) = axis.split_once(' ').expect("axis size");
        let (name, part) = match name.split_once('.') {
            Some((name, part)) => (name, Some(part.to_string())),
            None => (name, None),
        };
        mesh.axes.push(AxisInfo { name: name.to_string(), part, size: size.parse().expect("a number") });
    }
    mesh
}

fn rule_requests(program: &Program, source: &str) -> Vec<RuleRequest> {
    let (source, at) = match source.split_once(" at ") {
        Some((rule, at)) => (rule, vec![at.split('.').map(str::to_string).collect()]),
        None => (source, Vec::new()),
    };
    let (left, right) = source.split_once(" -> ").expect("a rule has an arrow");
    let (axes, kind) = match right.strip_suffix(" pad") {
        Some(axes) => (axes, RuleKind::PlacePadded),
        None if left.starts_with("store ") => (right, RuleKind::Store),
        None => (right, RuleKind::Place),
    };
    let axes: Vec<String> = axes.split(' ').map(str::to_string).collect();
    let mut words: Vec<&str> = left.trim_start_matches("store ").split(' ').collect();
    let roles: Vec<Role> = std::iter::from_fn(|| {
        let role = role(words.first()?)?;
        words.remove(0);
        Some(role)
    })
    .collect();
    words
        .iter()
        .map(|word| RuleRequest {
            kind,
            axes: axes.clone(),
            roles: roles.clone(),
            at: at.clone(),
            ..rule_of(program, word.trim_end_matches(','))
        })
        .collect()
}

fn rule_of(program: &Program, word: &str) -> RuleRequest {
    let (name, atoms) = word.split_once('=').unwrap_or((word, word));
    let find = |name: &str| program.find_dim(name).unwrap_or_else(|| panic!("no dim {name}"));
    let dims: Vec<Dim> = if name == "largest" { Vec::new() } else { atoms.split('*').map(find).collect() };
    RuleRequest::place(name, &dims, &[])
}

fn role(word: &str) -> Option<Role> {
    match word.trim_end_matches(',') {
        "acts" => Some(Role::Activation),
        "params" => Some(Role::Parameter),
        "grads" => Some(Role::Gradient),
        "opt" => Some(Role::Optimizer),
        _ => None,
    }
}

/// Partitions and lowers; compares each stage on all ranks with one device.
pub fn check(program: &Program, plan: &str) -> Program {
    check_request(program, &request(program, plan), plan)
}

/// The same for a request; `plan` is its name.
pub fn check_request(program: &Program, request: &PlacementRequest, plan: &str) -> Program {
    let fail = |errors: Vec<PlacementError>| -> Program { panic!("{plan}: {errors:#?}") };
    let mut sharded = partition(program.clone(), request).map_or_else(fail, |made| made.program);
    compare(program, &sharded, plan, "sharded");
    plan_reshards(&mut sharded).unwrap_or_else(|errors| panic!("{plan}: {errors:#?}"));
    compare(program, &sharded, plan, "planned");
    for policy in [Policy::None, Policy::Full, Policy::Save(vec![path(&["Block", "h"])])] {
        let mut other = sharded.clone();
        let span = Span::new(FileId::from_u32(0), 0, 0);
        rematerialise(&mut other, &[Remat { layer: path(&["Block"]), policy: policy.clone(), span }]);
        merge_collectives(&mut other);
        compare(program, &other, plan, &format!("rematerialised under {policy:?}"));
    }
    merge_collectives(&mut sharded);
    compare(program, &sharded, plan, "merged");
    sharded
}

fn path(segments: &[&str]) -> Path {
    let segments = segments.iter().map(|segment| segment.to_string()).collect();
    Path { segments, span: Span::new(FileId::from_u32(0), 0, 0) }
}

fn compare(joint: &Program, sharded: &Program, plan: &str, stage: &str) {
    if let Err(fault) = verify::sharded(sharded) {
        panic!("{plan}, {stage}: {fault}\n{}", text::print_step(sharded));
    }
    let arguments = arguments(joint);
    let options = Options::default();
    let fault = |fault| panic!("{plan}, {stage}: {fault:?}\n{}", text::print_step(sharded));
    let one = interpret(joint, &arguments, &options).unwrap_or_else(fault);
    let many = interpret_ranks(sharded, &arguments, &options).unwrap_or_else(fault);
    let names = joint.states.iter().filter(|state| state.updated.is_some()).map(|state| &state.path);
    let names: Vec<&String> = names.chain(joint.outputs.iter().map(|output| &output.name)).collect();
    assert_eq!(one.yields.len(), many.yields.len());
    for (index, (left, right)) in one.yields.iter().zip(&many.yields).enumerate() {
        let right = right.ordered(left.dims());
        let scale = left.data.iter().fold(1e-3f64, |most, value| most.max(value.abs()));
        for (left, right) in left.data.iter().zip(&right.data) {
            let error = (left - right).abs() / scale;
            let name = names[index];
            assert!(
                error < 1e-9,
                "{plan}, {stage}: {name} is {right}, not {left}\n{}",
                text::print_step(sharded)
            );
        }
    }
}

/// Arguments for all states and inputs: numbers that depend on nothing but their position.
fn arguments(program: &Program) -> Vec<Tensor> {
    let states = program.states.iter().map(|state| (state.value, state.path.as_str()));
    let inputs = program.inputs.iter().map(|input| (input.value, input.name.as_str()));
    states
        .chain(inputs)
        .enumerate()
        .map(|(number, (value, name))| {
            // Second moments are not negative, and steps count from 1.
            let least = if name.ends_with(".v") || name == "step" { 0.501 } else { 0.0 };
            let ty = program.ty(value);
            let shape = ty.dims.iter().map(|&dim| (dim, program.dims[dim].size as usize));
            let float = ty.dtype.is_float();
            Tensor::from_fn(shape, |index| {
                let noise = ((index * 7919 + number * 104_729 + 13) % 1009) as f64 / 1009.0;
                if float { noise - 0.5 + least } else { (noise * 7.0 + 2.0 * least).floor() }
            })
        })
        .collect()
}

/// The collectives that match, as `kind axis` for each call a run of their scope, in order.
pub fn calls(program: &Program, scope: &str, phase: &str) -> Vec<String> {
    let matches = |call: &&CollectiveUse| call.scope == scope && call.phase.name() == phase;
    let uses = collectives(program);
    uses.iter().filter(matches).map(|call| format!("{} {}", call.kind.name(), call.axis)).collect()
}

fn sum_of_squares(builder: &mut Builder, gradients: &[(usize, Value)]) -> Value {
    let mut total: Option<Value> = None;
    for &(_, gradient) in gradients {
        let square = builder.mul(gradient, gradient);
        let dims = builder.ty(square).dims.clone();
        let sum = builder.reduce(ReduceOp::Sum, square, &dims);
        total = Some(total.map_or(sum, |total| builder.add(total, sum)));
    }
    total.expect("a parameter")
}

/// Adds clipping by the global norm and a step of momentum on each parameter, as `update` lays them out.
pub fn with_update(mut program: Program) -> Program {
    let gradients: Vec<(usize, Value)> = program
        .states
        .iter()
        .enumerate()
        .filter_map(|(index, state)| {
            let name = format!("grad.{}", state.path);
            let output = program.outputs.iter().find(|output| output.name == name)?;
            Some((index, output.value))
        })
        .collect();
    program.outputs.retain(|output| !output.name.starts_with("grad."));
    let mut insts = std::mem::take(&mut program.main.insts);
    let mut builder = Builder::new(&mut program, Phase::Update);
    builder.role = Role::Optimizer;
    let squares = sum_of_squares(&mut builder, &gradients);
    let norm = builder.map(ScalarOp::Sqrt, &[squares]);
    let [one, rate, decay] = [1.0, 0.1, 0.9].map(|number| builder.number(number, DType::F32));
    let above = builder.add(norm, one);
    let factor = builder.div(one, above);
    for (index, gradient) in gradients {
        let (current, path) =
            (builder.program.states[index].value, builder.program.states[index].path.clone());
        let ty = builder.ty(current).clone();
        let momentum = builder.program.add_value(ty, builder.origin);
        builder.program.values[momentum].role = Role::Optimizer;
        let clipped = builder.mul(gradient, factor);
        let kept = builder.mul(momentum, decay);
        let next = builder.add(kept, clipped);
        let step = builder.mul(next, rate);
        let updated = builder.sub(current, step);
        builder.program.values[updated].role = Role::Parameter;
        builder.program.states[index].updated = Some(updated);
        let state = State {
            path: format!("{path}.m"),
            names: Vec::new(),
            kind: StateKind::Optimizer { parameter: index, name: "m".to_string() },
            init: Initializer::Constant(0.0),
            stack: builder.program.states[index].stack,
            value: momentum,
            updated: Some(next),
        };
        builder.program.states.push(state);
    }
    insts.append(&mut builder.region.insts);
    program.main.insts = insts;
    program.outputs.push(Output { name: "grad_norm".to_string(), value: norm });
    let states = program.states.iter().map(|state| state.value);
    program.main.params = states.chain(program.inputs.iter().map(|input| input.value)).collect();
    let updated = program.states.iter().filter_map(|state| state.updated);
    program.main.yields = updated.chain(program.outputs.iter().map(|output| output.value)).collect();
    program
}

/// Numbers from a linear congruence.
pub struct Numbers(pub u64);

impl Numbers {
    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    /// One of several.
    pub fn one_of<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}
