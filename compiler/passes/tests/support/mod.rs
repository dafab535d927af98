//! Small programs and reproducible numbers for the tests of passes.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod llama;

use dtlc_ir::interpret::{Options, Outcome, Tensor, interpret};
use dtlc_ir::{
    Builder, DType, Dim, Initializer, Input, Op, Output, ParameterKind, Phase, Program, ReduceOp, Region,
    Role, Scan, ScanOutput, State, StateKind, Type, Value,
};

/// A program under construction in a test: its main region stays open in `region`.
pub struct Sketch {
    pub program: Program,
    pub region: Region,
}

impl Sketch {
    pub fn new() -> Sketch {
        Sketch { program: Program::new("test"), region: Region::default() }
    }

    pub fn dims<const N: usize>(&mut self, dims: [(&str, u64); N]) -> [Dim; N] {
        dims.map(|(name, size)| self.program.add_dim(name, size))
    }

    pub fn parameter(&mut self, path: &str, ty: Type) -> Value {
        let value = self.program.add_value(ty, self.program.no_origin());
        let info = &mut self.program.values[value];
        (info.role, info.name) = (Role::Parameter, Some(path.to_string()));
        self.program.states.push(State {
            path: path.to_string(),
            names: Vec::new(),
            kind: StateKind::Parameter(ParameterKind::Weight),
            init: Initializer::Normal(1.0),
            stack: None,
            value,
            updated: None,
        });
        value
    }

    pub fn weight(&mut self, path: &str, dims: &[Dim]) -> Value {
        self.parameter(path, Type::new(DType::F32, dims.iter().copied()))
    }

    pub fn input(&mut self, name: &str, dtype: DType, dims: &[Dim]) -> Value {
        let value = self.program.add_value(Type::new(dtype, dims.iter().copied()), self.program.no_origin());
        self.program.values[value].name = Some(name.to_string());
        self.program.inputs.push(Input { name: name.to_string(), value });
        value
    }

    /// Appends to the main region.
    pub fn build<T>(&mut self, append: impl FnOnce(&mut Builder) -> T) -> T {
        let mut builder = Builder::new(&mut self.program, Phase::Forward);
        builder.region = std::mem::take(&mut self.region);
        let made = append(&mut builder);
        self.region = builder.region;
        made
    }

    /// Ends with an output `loss`: the sum of all elements of `value`, each times another number.
    pub fn weighted_loss(mut self, value: Value) -> Program {
        let ty = self.program.ty(value).clone();
        let weights = self.input("weights", DType::F32, &ty.dims);
        let loss = self.build(|builder| {
            let product = builder.mul(value, weights);
            sum(builder, product)
        });
        self.finish([("loss", loss)])
    }

    pub fn finish<const N: usize>(self, outputs: [(&str, Value); N]) -> Program {
        let Sketch { mut program, region } = self;
        program.main.insts = region.insts;
        let output = |(name, value): (&str, Value)| Output { name: name.to_string(), value };
        program.outputs = outputs.into_iter().map(output).collect();
        let states = program.states.iter().map(|state| state.value);
        program.main.params = states.chain(program.inputs.iter().map(|input| input.value)).collect();
        program.main.yields = program.outputs.iter().map(|output| output.value).collect();
        program
    }
}

/// The sum of all elements.
pub fn sum(builder: &mut Builder, value: Value) -> Value {
    let dims = builder.ty(value).dims.clone();
    if dims.is_empty() { value } else { builder.reduce(ReduceOp::Sum, value, &dims) }
}

/// Appends a scan with carries of the initial values' types, and stacked outputs in front of whose dims the
/// scan's dim stands.
pub fn scan(
    builder: &mut Builder,
    dim: Dim,
    carries: &[Value],
    stacks: &[Value],
    body: impl FnOnce(&mut Builder, &[Value]) -> Vec<Value>,
) -> Vec<Value> {
    let mut inner = Builder::new(&mut *builder.program, builder.phase);
    for (index, &arg) in carries.iter().chain(stacks).enumerate() {
        let mut info = inner.program.values[arg].clone();
        if index >= carries.len() {
            info.ty.dims.retain(|other| *other != dim);
        }
        let param = inner.program.values.push(info);
        inner.region.params.push(param);
    }
    let params = inner.region.params.clone();
    inner.region.yields = body(&mut inner, &params);
    let body = inner.region;
    let outputs = vec![ScanOutput::Stack; body.yields.len() - carries.len()];
    let types: Vec<Type> = body
        .yields
        .iter()
        .enumerate()
        .map(|(index, &value)| {
            let ty = builder.ty(value);
            let stacked = (index >= carries.len()).then_some(dim);
            Type::new(ty.dtype, stacked.into_iter().chain(ty.dims.iter().copied()))
        })
        .collect();
    let scan = Scan { dim, reverse: false, body, carries: carries.len(), stacks: stacks.len(), outputs };
    let args: Vec<Value> = carries.iter().chain(stacks).copied().collect();
    builder.push(Op::Scan(scan), &args, types).to_vec()
}

/// Numbers between `low` and `high` that look random and are always the same.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self, low: f64, high: f64) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        low + (high - low) * ((self.0 >> 11) as f64 / (1u64 << 53) as f64)
    }
}

/// Arguments for a program: floats between `low` and `high`, integers below 3, a step counter of 7.
pub fn arguments(program: &Program, low: f64, high: f64) -> Vec<Tensor> {
    let mut numbers = Numbers(17);
    let tensor = |&param: &Value| {
        let ty = program.ty(param);
        let shape = ty.dims.iter().map(|&dim| (dim, program.dims[dim].size as usize));
        let step = program.inputs.iter().any(|input| input.value == param && input.name == "step");
        Tensor::from_fn(shape.collect::<Vec<_>>(), |_| match ty.dtype {
            _ if step => 7.0,
            DType::F32 | DType::Bf16 | DType::F16 => numbers.next(low, high),
            DType::I32 | DType::U32 => numbers.next(0.0, 3.0).floor(),
            DType::Bool => numbers.next(0.0, 2.0).floor(),
        })
    };
    program.main.params.iter().map(tensor).collect()
}

/// Runs a program after verifying its structure.
pub fn run(program: &Program, arguments: &[Tensor]) -> Outcome {
    if let Err(fault) = dtlc_ir::verify::structure(program) {
        panic!("{fault:?}\n{}", dtlc_ir::text::print(program));
    }
    match interpret(program, arguments, &Options::default()) {
        Ok(outcome) => outcome,
        Err(fault) => panic!("{fault:?}\n{}", dtlc_ir::text::print(program)),
    }
}

pub fn output(program: &Program, arguments: &[Tensor], name: &str) -> Vec<f64> {
    run(program, arguments).output(program, name).expect("the output exists").data.clone()
}

/// The largest difference, over the largest magnitude of `right`.
pub fn difference(left: &[f64], right: &[f64]) -> f64 {
    assert_eq!(left.len(), right.len());
    let largest = right.iter().fold(1e-12, |largest: f64, value| largest.max(value.abs()));
    left.iter().zip(right).fold(0.0, |worst: f64, (left, right)| worst.max((left - right).abs())) / largest
}
