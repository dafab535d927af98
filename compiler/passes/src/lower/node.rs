//! Nodes of the typed model as instructions.

use super::dims::{merged, reshape};
use super::{Lowerer, dtype};
use crate::error::{PassError, PassErrorKind};
use crate::interface::step_input;
use cranelift_entity::EntityRef;
use dtlc_ir::{
    Attention, Binding, Builder, DType, Dim, Factors, Literal, Op, Packing, ReduceOp, Role, ScalarOp, Scan,
    Scope, Type, Value,
};
use dtlc_lang::model::{self, Block, DimId, Elementwise, Node, NodeId, Operation, ParamId, Reduction};
use smallvec::{SmallVec, smallvec};

type Results = SmallVec<[Value; 2]>;

impl Lowerer<'_> {
    /// Lowers the nodes of a block in order.
    pub(super) fn block(&mut self, builder: &mut Builder, block: &Block) -> Result<(), PassError> {
        let model = self.model;
        for &id in &block.nodes {
            let node = &model.graph.nodes[id];
            builder.origin = self.origin(builder.program, node.span, node.scope);
            // A carry is bound by the scan around it.
            if !matches!(node.operation, Operation::Carry(_)) {
                self.nodes[id] = self.node(builder, node)?;
            }
        }
        Ok(())
    }

    fn node(&mut self, builder: &mut Builder, node: &Node) -> Result<Results, PassError> {
        let args: SmallVec<[Value; 4]> = match node.operation {
            Operation::Project(_) => SmallVec::new(),
            _ => node.args.iter().map(|&arg| self.value(arg)).collect::<Result<_, _>>()?,
        };
        let ty = dtype(node.ty.element, self.float);
        let value = match &node.operation {
            Operation::Input(index) => builder.program.inputs[*index].value,
            Operation::Param(param) => self.param(builder, *param, ty)?,
            Operation::Number(number) => builder.number(*number, ty),
            Operation::Truth(truth) => builder.constant(Literal::Bool(*truth), ty),
            Operation::Iota(dim) => self.iota(builder, *dim, ty),
            Operation::Elementwise(function) => elementwise(builder, *function, &args, ty),
            Operation::Cast => builder.cast(args[0], ty),
            Operation::Dot { over } => self.dot(builder, &args, over, ty),
            Operation::Reduce { with, over } => self.reduce(builder, *with, args[0], over, ty),
            Operation::Take(dim) => self.take(builder, &args, *dim),
            Operation::Slice { dim, start, into } => self.slice(builder, args[0], *dim, *start, *into),
            Operation::Concat { pieces, into } => self.concat(builder, &args, pieces, *into, ty),
            Operation::Split { dim, into } => {
                let to = self.dims.expand(into);
                reshape(builder, args[0], &self.dims.atoms[*dim], &to)
            }
            Operation::Merge { dims, into } => {
                let from = self.dims.expand(dims);
                reshape(builder, args[0], &from, &self.dims.atoms[*into])
            }
            Operation::Rename { from, to } => {
                reshape(builder, args[0], &self.dims.atoms[*from], &self.dims.atoms[*to])
            }
            Operation::StopGradient => {
                let same = builder.ty(args[0]).clone();
                builder.push_one(Op::StopGradient, &args, same)
            }
            Operation::Random => self.random(builder, node, ty),
            Operation::Attention(attention) => self.attention(builder, node, attention, &args, ty)?,
            Operation::Repeat { dim, body } => return self.repeat(builder, *dim, body, &args),
            Operation::Project(index) => {
                let source = *node.args.first().ok_or_else(|| PassError::bug("a projection of nothing"))?;
                *self.nodes[source]
                    .get(*index)
                    .ok_or_else(|| PassError::bug("a projection beyond the results"))?
            }
            Operation::Carry(_) => return Err(PassError::bug("a carry outside of a repeat")),
        };
        Ok(smallvec![value])
    }

    fn param(&self, builder: &mut Builder, param: ParamId, dtype: DType) -> Result<Value, PassError> {
        let value =
            self.params[param].ok_or_else(|| PassError::bug("a parameter that was never declared"))?;
        builder.role = Role::Parameter;
        let used = builder.cast(value, dtype);
        builder.role = Role::Activation;
        Ok(used)
    }

    /// The coordinate along a product is the sum of its atoms' coordinates times what lies below them.
    fn iota(&self, builder: &mut Builder, dim: DimId, dtype: DType) -> Value {
        let mut total: Option<Value> = None;
        for &atom in &self.dims.atoms[dim] {
            let size = builder.program.dims[atom].size;
            let coordinate = if self.loops.contains(&atom) {
                builder.push_one(Op::Iota { dim: atom }, &[], Type::scalar(DType::I32))
            } else {
                builder.iota(atom)
            };
            total = Some(match total {
                None => coordinate,
                Some(major) => {
                    let size = builder.integer(size as i64, DType::I32);
                    let major = builder.mul(major, size);
                    builder.add(major, coordinate)
                }
            });
        }
        let total = total.unwrap_or_else(|| builder.integer(0, DType::I32));
        builder.cast(total, dtype)
    }

    fn dot(&self, builder: &mut Builder, args: &[Value], over: &[DimId], dtype: DType) -> Value {
        let (mut left, mut right) = (args[0], args[1]);
        if builder.ty(left).dtype != builder.ty(right).dtype {
            left = builder.cast(left, dtype);
            right = builder.cast(right, dtype);
        }
        // Halves fit tf32 as they are.
        let is_f32 = builder.ty(left).dtype == DType::F32;
        let factors = if is_f32 { self.factors } else { Factors::AsStored };
        let product = builder.dot_of(factors, left, right, &self.dims.expand(over));
        summed(builder, product, dtype)
    }

    fn reduce(
        &self,
        builder: &mut Builder,
        with: Reduction,
        arg: Value,
        over: &[DimId],
        dtype: DType,
    ) -> Value {
        let arg = if builder.ty(arg).dtype.is_float() { arg } else { builder.cast(arg, dtype) };
        let op = match with {
            Reduction::Sum => ReduceOp::Sum,
            Reduction::Max => ReduceOp::Max,
        };
        let value = builder.reduce(op, arg, &self.dims.expand(over));
        match op {
            ReduceOp::Sum => summed(builder, value, dtype),
            ReduceOp::Max => builder.cast(value, dtype),
        }
    }

    fn take(&self, builder: &mut Builder, args: &[Value], dim: DimId) -> Value {
        let (table, dim) = self.single(builder, args[0], dim);
        builder.take(table, args[1], dim)
    }

    fn slice(&self, builder: &mut Builder, arg: Value, dim: DimId, start: u64, into: Option<DimId>) -> Value {
        let (whole, dim) = self.single(builder, arg, dim);
        let Some(into) = into else { return builder.slice(whole, dim, start, None) };
        let atoms = &self.dims.atoms[into];
        let piece = merged(builder, atoms);
        let value = builder.slice(whole, dim, start, Some(piece));
        reshape(builder, value, &[piece], atoms)
    }

    fn concat(
        &self,
        builder: &mut Builder,
        args: &[Value],
        pieces: &[Option<DimId>],
        into: DimId,
        dtype: DType,
    ) -> Value {
        let mut values = Vec::new();
        let mut dims = Vec::new();
        for (&arg, piece) in args.iter().zip(pieces) {
            let arg = builder.cast(arg, dtype);
            let (value, dim) = match piece {
                Some(piece) => {
                    let (value, dim) = self.single(builder, arg, *piece);
                    (value, Some(dim))
                }
                None => (arg, None),
            };
            values.push(value);
            dims.push(dim);
        }
        let atoms = &self.dims.atoms[into];
        let whole = merged(builder, atoms);
        let value = builder.concat(&values, &dims, whole);
        reshape(builder, value, &[whole], atoms)
    }

    /// `value` with the atoms of `dim` merged, and the dimension that they are then.
    fn single(&self, builder: &mut Builder, value: Value, dim: DimId) -> (Value, Dim) {
        let atoms = &self.dims.atoms[dim];
        let whole = merged(builder, atoms);
        (reshape(builder, value, atoms, &[whole]), whole)
    }

    fn random(&mut self, builder: &mut Builder, node: &Node, dtype: DType) -> Value {
        let step = step_input(builder.program);
        let own = self.dims.expand(&node.ty.dims);
        let dims = self.loops.iter().chain(&own).copied().collect();
        let stream = self.streams;
        self.streams += 1;
        let uniform = builder.push_one(Op::Random { stream, dims }, &[step], Type::new(DType::F32, own));
        builder.cast(uniform, dtype)
    }

    fn attention(
        &mut self,
        builder: &mut Builder,
        node: &Node,
        written: &model::Attention,
        args: &[Value],
        dtype: DType,
    ) -> Result<Value, PassError> {
        let atom = |dim: DimId| match self.dims.atoms[dim].as_slice() {
            [atom] => Ok(*atom),
            _ => {
                let name = &self.model.dims[dim].name;
                let text = format!("`attention` over `{name}`, which is a product of dimensions");
                Err(PassError::at_span(PassErrorKind::Dimension, node.span, text))
            }
        };
        let (query, head, value) = (atom(written.query)?, atom(written.head)?, atom(written.value)?);
        let mut key = atom(written.key)?;
        let [q, mut k, mut v] = [0, 1, 2].map(|index| builder.cast(args[index], dtype));
        if key == query {
            let info = builder.program.dims[query].clone();
            key = *self.keys.entry(query).or_insert_with(|| builder.program.fresh_dim(&info.name, info.size));
            k = builder.rename(k, query, key);
            v = builder.rename(v, query, key);
        }
        let [q, k, v] = [(q, head), (k, head), (v, value)].map(|(it, dim)| innermost(builder, it, dim));
        let mut operands = vec![q, k, v];
        let mut packing = Packing::Whole;
        if written.documents {
            let of_keys =
                if written.key == written.query { builder.rename(args[4], query, key) } else { args[4] };
            let groups = batch_dims(builder, [q, k], [query, head]);
            let documents = [(args[3], query), (of_keys, key)];
            operands.extend(documents.map(|(it, own)| documents_of(builder, it, own, &groups)));
            packing = Packing::Documents;
        }
        let attention = Attention {
            query,
            key,
            head,
            value,
            causal: written.causal,
            window: written.window,
            packing,
            softcap: written.softcap,
            scale: written.scale,
        };
        let of_query = builder.ty(q).clone();
        let out = of_query.dims.iter().map(|&dim| if dim == head { value } else { dim });
        let out = Type::new(dtype, out);
        let lse = Type::new(DType::F32, of_query.dims.iter().copied().filter(|&dim| dim != head));
        Ok(builder.push(Op::Attention(attention), &operands, [out, lse])[0])
    }

    fn repeat(
        &mut self,
        builder: &mut Builder,
        dim: DimId,
        body: &Block,
        args: &[Value],
    ) -> Result<Results, PassError> {
        let layer = merged(builder, &self.dims.atoms[dim]);
        let carries: Vec<(NodeId, usize)> = carry_nodes(self.model, body);
        let types: Vec<Type> = self.carry_types(builder, args, &carries);
        let inits: Vec<Value> = args.iter().zip(&types).map(|(&arg, ty)| builder.conform(arg, ty)).collect();

        let (origin, program) = (builder.origin, &mut *builder.program);
        let mut inner = Builder::new(program, builder.phase);
        inner.region.params = types.iter().map(|ty| inner.program.add_value(ty.clone(), origin)).collect();
        for &(node, index) in &carries {
            self.nodes[node] = smallvec![inner.region.params[index]];
        }
        let outer = self.slice_params(&mut inner, dim, layer, body);
        self.loops.push(layer);
        self.block(&mut inner, body)?;
        self.loops.pop();
        inner.origin = origin;
        for (&node, ty) in body.results.iter().zip(&types) {
            let value = inner.conform(self.value(node)?, ty);
            inner.region.yields.push(value);
        }
        let body = inner.region;
        let scan = Scan {
            dim: layer,
            reverse: false,
            body,
            carries: types.len(),
            stacks: outer.len(),
            outputs: Vec::new(),
        };
        let stacks = outer.iter().map(|&(param, stack)| {
            self.params[param] = Some(stack);
            stack
        });
        let all: Vec<Value> = inits.into_iter().chain(stacks).collect();
        Ok(builder.push_scan(scan, &all, types))
    }

    /// The type of each carry: its node's, but in the order that the initial value has its dims in.
    fn carry_types(&self, builder: &Builder, args: &[Value], carries: &[(NodeId, usize)]) -> Vec<Type> {
        let mut types: Vec<Type> = args.iter().map(|&arg| builder.ty(arg).clone()).collect();
        for &(node, index) in carries {
            let written = &self.model.graph.nodes[node].ty;
            let dims = self.dims.expand(&written.dims);
            let ty = &mut types[index];
            ty.dtype = dtype(written.element, self.float);
            if ty.dims.len() != dims.len() {
                ty.dims = dims;
            }
        }
        types
    }

    /// Gives the body a slice of each parameter that is stacked along `dim` and used in it. Returns them
    /// with the stacks as the enclosing region sees them.
    fn slice_params(
        &mut self,
        inner: &mut Builder,
        dim: DimId,
        layer: Dim,
        body: &Block,
    ) -> Vec<(ParamId, Value)> {
        let mut used = Vec::new();
        used_params(self.model, body, &mut used);
        let mut outer = Vec::new();
        for param in used {
            let Some(stack) = self.params[param] else { continue };
            if !self.model.params[param].stack.contains(&dim) || !inner.ty(stack).has(layer) {
                continue;
            }
            let info = inner.program.values[stack].clone();
            let dims = info.ty.dims.iter().copied().filter(|&other| other != layer);
            let slice = inner.program.add_value(Type::new(info.ty.dtype, dims), info.origin);
            inner.program.values[slice].role = Role::Parameter;
            inner.program.values[slice].name = info.name;
            let scope = Scope::new(self.model.params[param].scope.index());
            let name = self.model.params[param].name.clone();
            inner.program.bindings.push(Binding { scope, name, value: slice });
            inner.region.params.push(slice);
            self.params[param] = Some(slice);
            outer.push((param, stack));
        }
        outer
    }
}

/// A sum, just appended, as `dtype`: one of halves can be left in f32, in which it is computed.
fn summed(builder: &mut Builder, sum: Value, dtype: DType) -> Value {
    let ty = &mut builder.program.values[sum].ty;
    if ty.dtype.is_half() && dtype == DType::F32 {
        ty.dtype = dtype;
    }
    builder.cast(sum, dtype)
}

/// The carries of a block with their positions.
fn carry_nodes(model: &model::Model, body: &Block) -> Vec<(NodeId, usize)> {
    let position = |&node: &NodeId| match model.graph.nodes[node].operation {
        Operation::Carry(index) => Some((node, index)),
        _ => None,
    };
    body.nodes.iter().filter_map(position).collect()
}

/// Every parameter used in a block or one inside it, once each, in order of first use.
fn used_params(model: &model::Model, body: &Block, used: &mut Vec<ParamId>) {
    for &node in &body.nodes {
        match &model.graph.nodes[node].operation {
            Operation::Param(param) if !used.contains(param) => used.push(*param),
            Operation::Repeat { body, .. } => used_params(model, body, used),
            _ => {}
        }
    }
}

/// Applies a scalar function, with arguments converted to the element type that they share.
pub(crate) fn elementwise(
    builder: &mut Builder,
    function: Elementwise,
    args: &[Value],
    dtype: DType,
) -> Value {
    let op = scalar_op(function);
    let operands = if dtype == DType::Bool { joined(builder, args) } else { dtype };
    let args: SmallVec<[Value; 4]> = args
        .iter()
        .enumerate()
        .map(|(index, &arg)| {
            let condition = op == ScalarOp::Select && index == 0;
            builder.cast(arg, if condition { DType::Bool } else { operands })
        })
        .collect();
    builder.map(op, &args)
}

/// The widest element type among the arguments.
fn joined(builder: &Builder, args: &[Value]) -> DType {
    let has = |dtype: DType| args.iter().any(|&arg| builder.ty(arg).dtype == dtype);
    let order = [DType::F32, DType::Bf16, DType::F16, DType::U32, DType::I32];
    order.into_iter().find(|&dtype| has(dtype)).unwrap_or(DType::Bool)
}

fn scalar_op(function: Elementwise) -> ScalarOp {
    match function {
        Elementwise::Neg => ScalarOp::Neg,
        Elementwise::Abs => ScalarOp::Abs,
        Elementwise::Exp => ScalarOp::Exp,
        Elementwise::Log => ScalarOp::Log,
        Elementwise::Sqrt => ScalarOp::Sqrt,
        Elementwise::Rsqrt => ScalarOp::Rsqrt,
        Elementwise::Tanh => ScalarOp::Tanh,
        Elementwise::Sigmoid => ScalarOp::Sigmoid,
        Elementwise::Erf => ScalarOp::Erf,
        Elementwise::Sin => ScalarOp::Sin,
        Elementwise::Cos => ScalarOp::Cos,
        Elementwise::Floor => ScalarOp::Floor,
        Elementwise::Not => ScalarOp::Not,
        Elementwise::Add => ScalarOp::Add,
        Elementwise::Sub => ScalarOp::Sub,
        Elementwise::Mul => ScalarOp::Mul,
        Elementwise::Div => ScalarOp::Div,
        Elementwise::Rem => ScalarOp::Rem,
        Elementwise::Pow => ScalarOp::Pow,
        Elementwise::Min => ScalarOp::Min,
        Elementwise::Max => ScalarOp::Max,
        Elementwise::Equal => ScalarOp::Equal,
        Elementwise::NotEqual => ScalarOp::NotEqual,
        Elementwise::Less => ScalarOp::Less,
        Elementwise::LessEqual => ScalarOp::LessEqual,
        Elementwise::Greater => ScalarOp::Greater,
        Elementwise::GreaterEqual => ScalarOp::GreaterEqual,
        Elementwise::And => ScalarOp::And,
        Elementwise::Or => ScalarOp::Or,
        Elementwise::Select => ScalarOp::Select,
    }
}

/// The batch dims of queries and keys, outside and inside of the queries' positions.
fn batch_dims(builder: &Builder, [q, k]: [Value; 2], [query, head]: [Dim; 2]) -> [Vec<Dim>; 2] {
    let mut groups = [Vec::new(), Vec::new()];
    let mut group = 0;
    for &dim in &builder.ty(q).dims {
        if dim == query {
            group = 1;
        } else if dim != head && builder.ty(k).has(dim) {
            groups[group].push(dim);
        }
    }
    groups
}

/// Documents of positions along `own`: as kernels step through neighbouring batch dims as one, either none of a group or all, in their order.
fn documents_of(builder: &mut Builder, documents: Value, own: Dim, groups: &[Vec<Dim>; 2]) -> Value {
    let ty = builder.ty(documents).clone();
    let [outside, inside] = groups.each_ref().map(|group| {
        let is_used = group.iter().any(|&dim| ty.has(dim));
        if is_used { group.clone() } else { Vec::new() }
    });
    let dims: Vec<Dim> = [outside, vec![own], inside].concat();
    if dims.len() == ty.dims.len() && dims.len() <= 2 {
        // One batch dim may stand on either side of the positions.
        return documents;
    }
    builder.conform(documents, &Type::new(ty.dtype, dims))
}

/// The value with `dim` innermost, as kernels read rows of it.
fn innermost(builder: &mut Builder, value: Value, dim: Dim) -> Value {
    let mut ty = builder.ty(value).clone();
    ty.dims.sort_by_key(|&other| other == dim);
    builder.conform(value, &ty)
}
