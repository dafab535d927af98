//! Random programs with every operation and every table entry. They mean nothing; only their text does.

use super::numbers::Numbers;
use cranelift_entity::EntityRef;
use dtlc_ir::*;

pub fn random_program(seed: u64) -> Program {
    let mut make = Make { numbers: Numbers::new(seed), program: Program::new("p"), visible: Vec::new() };
    make.tables();
    let states = make.numbers.below(4);
    let inputs = 1 + make.numbers.below(3);
    let params: Vec<Value> = (0..states + inputs).map(|_| make.value()).collect();
    make.visible.extend(&params);
    make.program.main = make.region(params.clone(), 2);
    make.ports(&params, states);
    // Numbers out of order and values that nothing defines must not matter.
    make.value();
    make.program
}

const NAMES: [&str; 8] = ["x", "q", "norm.w", "two words", "\"", "back\\slash\n", "1", "forward"];

struct Make {
    numbers: Numbers,
    program: Program,
    visible: Vec<Value>,
}

impl Make {
    fn name(&mut self) -> String {
        self.numbers.pick(&NAMES).to_string()
    }

    fn tables(&mut self) {
        self.program.name = self.name();
        for name in ["dp", "tp", "a b"] {
            let part = self.numbers.pick(&[None, Some("0".to_string()), Some("in ner".to_string())]);
            self.program.mesh.axes.push(AxisInfo {
                name: name.into(),
                part,
                size: 1 + self.numbers.next() % 4,
            });
        }
        for index in 0..6 {
            let name = self.name();
            let dim = self.program.fresh_dim(&name, index + 1);
            self.program.dims[dim].pad = self.numbers.chance(20);
        }
        for _ in 0..self.numbers.below(4) {
            let parent = Some(Scope::new(self.numbers.below(self.program.scopes.len())));
            let (instance, layer) = (self.name(), self.name());
            self.program.scopes.push(ScopeInfo { parent, instance, layer });
        }
        for _ in 0..3 {
            let scope = Scope::new(self.numbers.below(self.program.scopes.len()));
            let file = self.numbers.pick(&["a.dtl", "dir/b-c.dtl", "a b.dtl", "", "c:d", "none"]).to_string();
            let (line, column) = (self.numbers.below(3) as u32, self.numbers.below(3) as u32);
            self.program.origins.push(OriginInfo { file, line, column, scope });
        }
    }

    fn dim(&mut self) -> Dim {
        Dim::new(self.numbers.below(self.program.dims.len()))
    }

    fn dims<A: FromIterator<Dim>>(&mut self) -> A {
        let count = self.numbers.below(4);
        (0..count).map(|_| self.dim()).collect()
    }

    fn axis(&mut self) -> Axis {
        Axis::new(self.numbers.below(self.program.mesh.axes.len()))
    }

    fn value(&mut self) -> Value {
        let mut dims: Vec<Dim> = self.dims();
        dims.sort();
        dims.dedup();
        if self.numbers.chance(50) {
            dims.reverse();
        }
        let mut ty = Type::new(self.numbers.pick(&DType::ALL), dims.clone());
        for axis in self.program.mesh.axes.keys().collect::<Vec<_>>() {
            match (self.numbers.below(4), dims.is_empty()) {
                (0, false) => ty.placement.add_shard(self.numbers.pick(&dims), axis),
                (1, _) => {
                    let op = self.numbers.pick(&[ReduceOp::Sum, ReduceOp::Max]);
                    ty.placement.add_partial(axis, op);
                }
                (_, _) => {}
            }
        }
        let origin = Origin::new(self.numbers.below(self.program.origins.len()));
        let value = self.program.add_value(ty, origin);
        let name = self.name();
        let gradient_of = Value::new(self.numbers.below(value.index() + 1));
        let roles = [Role::Activation, Role::Parameter, Role::Gradient, Role::Optimizer];
        let info = &mut self.program.values[value];
        info.name = self.numbers.chance(40).then_some(name);
        info.role = self.numbers.pick(&roles);
        info.gradient_of = self.numbers.chance(20).then_some(gradient_of).filter(|&of| of != value);
        value
    }

    fn region(&mut self, params: Vec<Value>, depth: usize) -> Region {
        let outer = self.visible.len();
        self.visible.extend(&params);
        let mut region = Region { params, ..Region::default() };
        for _ in 0..self.numbers.below(12) {
            let inst = self.inst(depth);
            self.visible.extend(&inst.results);
            region.insts.push(inst);
        }
        region.yields = self.uses();
        self.visible.truncate(outer);
        region
    }

    fn uses<A: FromIterator<Value>>(&mut self) -> A {
        let count = if self.visible.is_empty() { 0 } else { self.numbers.below(4) };
        (0..count).map(|_| self.numbers.pick(&self.visible)).collect()
    }

    fn inst(&mut self, depth: usize) -> Inst {
        let op = self.op(depth);
        let args = self.uses();
        let results = (0..self.numbers.below(3)).map(|_| self.value()).collect();
        Inst { op, args, results, phase: self.numbers.pick(&Phase::ALL) }
    }

    fn op(&mut self, depth: usize) -> Op {
        let start = self.numbers.next() % 5;
        match self.numbers.below(23) {
            0 => Op::Constant(self.numbers.pick(&[
                Literal::Float(-1.5e-30),
                Literal::Float(f64::INFINITY),
                Literal::Float(3.0),
                Literal::Int(-7),
                Literal::Bool(false),
            ])),
            1 => Op::Iota { dim: self.dim() },
            2 => Op::Reduce { op: self.numbers.pick(&[ReduceOp::Sum, ReduceOp::Max]), dims: self.dims() },
            3 => Op::Dot(self.numbers.pick(&[Factors::AsStored, Factors::Tf32])),
            4 => Op::Rename { from: self.dim(), to: self.dim() },
            5 => Op::Split { dim: self.dim(), into: self.dims() },
            6 => Op::Merge { dims: self.dims(), into: self.dim() },
            7 => Op::Slice { dim: self.dim(), start, into: self.maybe_dim() },
            8 => Op::Pad { dim: self.maybe_dim(), start, into: self.dim() },
            9 => {
                let pieces = (0..self.numbers.below(4)).map(|_| self.maybe_dim()).collect();
                Op::Concat { pieces, into: self.dim() }
            }
            10 => Op::Take { dim: self.dim() },
            11 => Op::ScatterAdd { dim: self.dim() },
            12 => Op::Random { stream: self.numbers.next() as u32, dims: self.dims() },
            13 => Op::StopGradient,
            14 => Op::Attention(self.attention()),
            15 => Op::AttentionGradient(self.attention()),
            16 => Op::Reshard(self.reason()),
            17 => Op::LocalSlice,
            18 => Op::Collective(self.collective()),
            21 => Op::Done,
            20 if depth > 0 => {
                let params = (0..self.numbers.below(3)).map(|_| self.value()).collect();
                Op::Fused(self.region(params, depth - 1))
            }
            19 if depth > 0 => Op::Scan(self.scan(depth)),
            _ => Op::Map(self.numbers.pick(&ScalarOp::ALL)),
        }
    }

    fn maybe_dim(&mut self) -> Option<Dim> {
        let dim = self.dim();
        self.numbers.chance(70).then_some(dim)
    }

    fn attention(&mut self) -> Attention {
        Attention {
            query: self.dim(),
            key: self.dim(),
            head: self.dim(),
            value: self.dim(),
            causal: self.numbers.chance(50),
            window: self.numbers.chance(50).then_some(3),
            packing: self.numbers.pick(&[Packing::Whole, Packing::Documents]),
            softcap: self.numbers.chance(50).then_some(30.0),
            scale: 0.125,
        }
    }

    fn reason(&mut self) -> Reason {
        Reason { text: self.name(), leave_to_gather: self.numbers.chance(50) }
    }

    fn collective(&mut self) -> Collective {
        let reasons = (0..self.numbers.below(3)).map(|_| self.reason()).collect();
        let axes = (0..1 + self.numbers.below(2)).map(|_| self.axis()).collect();
        let kind = self.numbers.pick(&CollectiveKind::ALL);
        let reduce = self.numbers.pick(&[ReduceOp::Sum, ReduceOp::Max]);
        Collective { kind, axes, reduce: if kind.reduces() { reduce } else { ReduceOp::Sum }, reasons }
    }

    fn scan(&mut self, depth: usize) -> Scan {
        let params = (0..self.numbers.below(3)).map(|_| self.value()).collect();
        let body = self.region(params, depth - 1);
        let outputs = (0..self.numbers.below(3))
            .map(|_| self.numbers.pick(&[ScanOutput::Stack, ScanOutput::Accumulate, ScanOutput::Sum]))
            .collect();
        let (carries, stacks) = (self.numbers.below(3), self.numbers.below(3));
        Scan { dim: self.dim(), reverse: self.numbers.chance(50), body, carries, stacks, outputs }
    }

    fn ports(&mut self, params: &[Value], states: usize) {
        for index in 0..states {
            let kinds = [
                StateKind::Parameter(ParameterKind::Weight),
                StateKind::Parameter(ParameterKind::Norm),
                StateKind::Parameter(ParameterKind::Bias),
                StateKind::Master(self.numbers.below(states + 1)),
                StateKind::Optimizer { parameter: self.numbers.below(states), name: self.name() },
            ];
            let inits = [
                Initializer::Constant(1.0),
                Initializer::Normal(0.02),
                Initializer::Uniform(-1.0, 1.0),
                Initializer::CopyOf(self.numbers.below(states)),
            ];
            let alias = self.name();
            let state = State {
                path: self.name(),
                names: self.numbers.chance(50).then_some(alias).into_iter().collect(),
                kind: self.numbers.pick(&kinds),
                init: self.numbers.pick(&inits),
                stack: self.maybe_dim(),
                value: params[index],
                updated: self.numbers.pick(&[None, Some(params[0])]),
            };
            self.program.states.push(state);
        }
        for &value in &params[states..] {
            let name = self.name();
            self.program.inputs.push(Input { name, value });
        }
        for _ in 0..2 {
            let (name, value) = (self.name(), self.numbers.pick(params));
            self.program.outputs.push(Output { name, value });
            let (name, value) = (self.name(), Value::new(self.numbers.below(self.program.values.len())));
            let scope = Scope::new(self.numbers.below(self.program.scopes.len()));
            self.program.bindings.push(Binding { scope, name, value });
        }
    }
}
