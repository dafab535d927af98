//! The element types and dimensions of an operation's results. Placements play no part here.
//!
//! Some operations leave the order of a result's dimensions open, or whether a dimension that both
//! arguments of a `dot` have is summed: there the declared types decide, as long as they can.

use crate::dim::Dim;
use crate::op::{Attention, Factors, Literal, Op, ScalarOp};
use crate::program::Program;
use crate::types::{DType, ReduceOp, Type};

/// What an operation without a region makes of arguments of types `args`: one replicated type a result.
///
/// `declared` are the types that the results have; `loops` the dimensions of the enclosing scans.
///
/// # Errors
/// The rule that the operation breaks.
pub fn infer(
    program: &Program,
    op: &Op,
    args: &[&Type],
    declared: &[&Type],
    loops: &[Dim],
) -> Result<Vec<Type>, String> {
    let site = Site { program, declared, loops };
    match op {
        Op::Constant(literal) => site.constant(*literal, args),
        Op::Iota { dim } => site.iota(*dim, args),
        Op::Map(op) => site.map(*op, args),
        Op::Reduce { op, dims } => site.reduce(*op, dims, only(args)?),
        Op::Dot(factors) => site.dot(*factors, args),
        Op::Rename { from, to } => {
            site.same_size(*from, *to)?;
            one(site.replaced(only(args)?, &[*from], &[*to])?)
        }
        Op::Split { dim, into } => {
            site.product(into, *dim)?;
            one(site.replaced(only(args)?, &[*dim], into)?)
        }
        Op::Merge { dims, into } => {
            site.product(dims, *into)?;
            one(site.replaced(only(args)?, dims, &[*into])?)
        }
        Op::Slice { dim, start, into } => {
            site.within(*start, *into, *dim)?;
            one(site.replaced(only(args)?, &[*dim], into.as_slice())?)
        }
        Op::Pad { dim, start, into } => {
            site.within(*start, *dim, *into)?;
            one(site.padded(only(args)?, *dim, *into)?)
        }
        Op::Concat { pieces, into } => site.concat(pieces, *into, args),
        Op::Take { dim } => site.take(*dim, args),
        Op::ScatterAdd { dim } => site.scatter_add(*dim, args),
        Op::Random { stream: _, dims } => site.random(dims, only(args)?),
        Op::StopGradient | Op::Reshard(_) | Op::LocalSlice => one(plain(only(args)?)),
        Op::Collective(_) | Op::Done => Ok(args.iter().map(|ty| plain(ty)).collect()),
        Op::Attention(attention) => site.attention(attention, args),
        Op::AttentionGradient(attention) => site.attention_gradient(attention, args),
        Op::Scan(_) | Op::Fused(_) => Err("the types of its body decide".into()),
    }
}

fn one(ty: Type) -> Result<Vec<Type>, String> {
    Ok(vec![ty])
}

fn plain(ty: &Type) -> Type {
    Type::new(ty.dtype, ty.dims.iter().copied())
}

fn only<'t>(args: &[&'t Type]) -> Result<&'t Type, String> {
    match args {
        [arg] => Ok(arg),
        _ => Err(format!("takes 1 argument, has {}", args.len())),
    }
}

fn pair<'t>(args: &[&'t Type]) -> Result<[&'t Type; 2], String> {
    match args {
        [first, second] => Ok([first, second]),
        _ => Err(format!("takes 2 arguments, has {}", args.len())),
    }
}

fn require(holds: bool, message: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(message()) }
}

fn is_integer(dtype: DType) -> bool {
    match dtype {
        DType::I32 | DType::U32 => true,
        DType::F32 | DType::Bf16 | DType::F16 | DType::Bool => false,
    }
}

struct Site<'a> {
    program: &'a Program,
    declared: &'a [&'a Type],
    loops: &'a [Dim],
}

impl Site<'_> {
    fn name(&self, dim: Dim) -> &str {
        &self.program.dims[dim].name
    }

    fn size(&self, dim: Dim) -> u64 {
        self.program.dims[dim].size
    }

    fn same_size(&self, one: Dim, other: Dim) -> Result<(), String> {
        require(self.size(one) == self.size(other), || {
            format!("`{}` and `{}` differ in size", self.name(one), self.name(other))
        })
    }

    fn product(&self, factors: &[Dim], whole: Dim) -> Result<(), String> {
        let product = factors.iter().try_fold(1_u64, |product, &dim| product.checked_mul(self.size(dim)));
        require(product == Some(self.size(whole)) && !factors.is_empty(), || {
            format!("the product of the factors isn't the size of `{}`", self.name(whole))
        })
    }

    /// A part of `part`'s size (one element if there is none) from `start` on lies in `whole`.
    fn within(&self, start: u64, part: Option<Dim>, whole: Dim) -> Result<(), String> {
        let end = part.map_or(1, |part| self.size(part)).checked_add(start);
        require(end.is_some_and(|end| end <= self.size(whole)), || {
            format!("the part ends beyond `{}`", self.name(whole))
        })
    }

    /// `ty` with `come` in the place of `gone`, which stand side by side in it.
    fn replaced(&self, ty: &Type, gone: &[Dim], come: &[Dim]) -> Result<Type, String> {
        let first = gone.first().and_then(|&dim| ty.position(dim));
        let at = first.filter(|&at| ty.dims[at..].starts_with(gone));
        let Some(at) = at else {
            let names: Vec<&str> = gone.iter().map(|&dim| self.name(dim)).collect();
            return Err(format!("the argument lacks `{}`, side by side", names.join(", ")));
        };
        let dims = ty.dims[..at].iter().chain(come).chain(&ty.dims[at + gone.len()..]);
        Ok(Type::new(ty.dtype, dims.copied()))
    }

    /// `dims` in the order that the declared result `index` has them in, if it has the same ones.
    fn arranged(&self, index: usize, dtype: DType, dims: &[Dim]) -> Type {
        match self.declared.get(index) {
            Some(ty) if ty.dims.len() == dims.len() && dims.iter().all(|&dim| ty.has(dim)) => {
                Type::new(dtype, ty.dims.iter().copied())
            }
            Some(_) | None => Type::new(dtype, dims.iter().copied()),
        }
    }

    fn declares(&self, dim: Dim) -> bool {
        self.declared.first().is_some_and(|ty| ty.has(dim))
    }

    fn declared_dtype(&self) -> DType {
        self.declared.first().map_or(DType::F32, |ty| ty.dtype)
    }

    fn constant(&self, literal: Literal, args: &[&Type]) -> Result<Vec<Type>, String> {
        require(args.is_empty(), || "takes no argument".into())?;
        let dtype = self.declared_dtype();
        let fits = match literal {
            Literal::Float(_) => dtype.is_float(),
            Literal::Int(_) => is_integer(dtype),
            Literal::Bool(_) => dtype == DType::Bool,
        };
        require(fits, || format!("the literal isn't of type {}", dtype.name()))?;
        one(Type::scalar(dtype))
    }

    fn iota(&self, dim: Dim, args: &[&Type]) -> Result<Vec<Type>, String> {
        require(args.is_empty(), || "takes no argument".into())?;
        if !self.declares(dim) && self.loops.contains(&dim) {
            return one(Type::scalar(DType::I32));
        }
        one(Type::new(DType::I32, [dim]))
    }

    fn map(&self, op: ScalarOp, args: &[&Type]) -> Result<Vec<Type>, String> {
        require(args.len() == op.arity(), || format!("takes {} arguments, has {}", op.arity(), args.len()))?;
        let dtype = scalar_type(op, args, self.declared_dtype())?;
        let mut dims: Vec<Dim> = Vec::new();
        for &dim in args.iter().flat_map(|arg| &arg.dims) {
            if !dims.contains(&dim) {
                dims.push(dim);
            }
        }
        // A result may have dims that no argument has.
        match self.declared.first() {
            Some(ty) if dims.iter().all(|&dim| ty.has(dim)) => one(Type::new(dtype, ty.dims.iter().copied())),
            Some(_) | None => one(Type::new(dtype, dims)),
        }
    }

    /// Sums of halves may be wanted in f32, in which they are computed.
    fn sum_type(&self, dtype: DType) -> DType {
        match (dtype, self.declared_dtype()) {
            (DType::Bf16 | DType::F16, DType::F32) => DType::F32,
            (dtype, _) => dtype,
        }
    }

    fn reduce(&self, op: ReduceOp, dims: &[Dim], arg: &Type) -> Result<Vec<Type>, String> {
        for &dim in dims {
            require(arg.has(dim), || format!("the argument lacks `{}`", self.name(dim)))?;
        }
        require(arg.dtype != DType::Bool, || "reduces numbers".into())?;
        let dtype = match op {
            ReduceOp::Sum => self.sum_type(arg.dtype),
            ReduceOp::Max => arg.dtype,
        };
        let kept: Vec<Dim> = arg.dims.iter().copied().filter(|dim| !dims.contains(dim)).collect();
        one(self.arranged(0, dtype, &kept))
    }

    fn dot(&self, factors: Factors, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [left, right] = pair(args)?;
        require(left.dtype == right.dtype && left.dtype.is_float(), || {
            "multiplies two tensors of one float type".into()
        })?;
        require(factors == Factors::AsStored || left.dtype == DType::F32, || {
            "only factors of f32 are rounded to tf32".into()
        })?;
        let batch = left.dims.iter().filter(|&&dim| right.has(dim) && self.declares(dim));
        let free_left = left.dims.iter().filter(|&&dim| !right.has(dim));
        let free_right = right.dims.iter().filter(|&&dim| !left.has(dim));
        let dims: Vec<Dim> = batch.chain(free_left).chain(free_right).copied().collect();
        one(self.arranged(0, self.sum_type(left.dtype), &dims))
    }

    fn padded(&self, ty: &Type, dim: Option<Dim>, into: Dim) -> Result<Type, String> {
        match dim {
            Some(dim) => self.replaced(ty, &[dim], &[into]),
            None => {
                // Where the new dimension stands is open; the others keep their order.
                let at = self.declared.first().and_then(|ty| ty.position(into)).unwrap_or(0);
                let mut dims = ty.dims.clone();
                dims.insert(at.min(dims.len()), into);
                Ok(Type::new(ty.dtype, dims))
            }
        }
    }

    fn concat(&self, pieces: &[Option<Dim>], into: Dim, args: &[&Type]) -> Result<Vec<Type>, String> {
        require(pieces.len() == args.len() && !args.is_empty(), || "takes one argument a piece".into())?;
        let total: u64 = pieces.iter().map(|piece| piece.map_or(1, |piece| self.size(piece))).sum();
        require(total == self.size(into), || format!("the pieces don't fill `{}`", self.name(into)))?;
        let first = self.padded(args[0], pieces[0], into)?;
        for (arg, piece) in args.iter().zip(pieces) {
            let padded = self.padded(arg, *piece, into)?;
            require(padded == first, || "the pieces have different types".into())?;
        }
        one(first)
    }

    fn take(&self, dim: Dim, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [table, indices] = pair(args)?;
        require(table.has(dim), || format!("the table lacks `{}`", self.name(dim)))?;
        require(is_integer(indices.dtype), || "indices are integers".into())?;
        require(!indices.has(dim), || format!("the indices have `{}`", self.name(dim)))?;
        let fresh = indices.dims.iter().filter(|&&other| !table.has(other));
        let dims: Vec<Dim> = table.dims.iter().filter(|&&other| other != dim).chain(fresh).copied().collect();
        one(self.arranged(0, table.dtype, &dims))
    }

    fn scatter_add(&self, dim: Dim, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [updates, indices] = pair(args)?;
        require(is_integer(indices.dtype), || "indices are integers".into())?;
        require(updates.dtype != DType::Bool, || "adds numbers".into())?;
        require(!updates.has(dim), || format!("the updates have `{}`", self.name(dim)))?;
        for &index in &indices.dims {
            require(updates.has(index), || format!("the updates lack `{}`", self.name(index)))?;
        }
        let kept = updates.dims.iter().filter(|&&other| !indices.has(other) || self.declares(other));
        let dims: Vec<Dim> = kept.copied().chain([dim]).collect();
        one(self.arranged(0, self.sum_type(updates.dtype), &dims))
    }

    fn random(&self, dims: &[Dim], step: &Type) -> Result<Vec<Type>, String> {
        require(step.dtype == DType::U32 && step.dims.is_empty(), || "the step is a u32".into())?;
        let result: Vec<Dim> = dims.iter().copied().filter(|&dim| self.declares(dim)).collect();
        for &dim in dims {
            require(result.contains(&dim) || self.loops.contains(&dim), || {
                format!("`{}` is neither in the result nor looped over", self.name(dim))
            })?;
        }
        one(self.arranged(0, DType::F32, &result))
    }

    fn attention(&self, attention: &Attention, args: &[&Type]) -> Result<Vec<Type>, String> {
        let ([query, key, values], documents) = with_documents(attention, args)?;
        self.attention_arguments(attention, query, key, values)?;
        self.documents(attention, documents, query, key)?;
        let swap = |&dim: &Dim| if dim == attention.head { attention.value } else { dim };
        let output: Vec<Dim> = query.dims.iter().map(swap).collect();
        let lse: Vec<Dim> = query.dims.iter().copied().filter(|&dim| dim != attention.head).collect();
        Ok(vec![self.arranged(0, query.dtype, &output), self.arranged(1, DType::F32, &lse)])
    }

    fn attention_arguments(
        &self,
        attention: &Attention,
        query: &Type,
        key: &Type,
        values: &Type,
    ) -> Result<(), String> {
        let Attention { query: s, key: t, head, value, .. } = *attention;
        require(query.dtype.is_float() && key.dtype == query.dtype && values.dtype == query.dtype, || {
            "queries, keys and values have one float type".into()
        })?;
        require(query.has(s) && query.has(head) && !query.has(t), || "wrong dims of the queries".into())?;
        require(key.has(t) && key.has(head) && !key.has(s), || "wrong dims of the keys".into())?;
        require(values.has(t) && values.has(value) && !values.has(s), || "wrong dims of the values".into())?;
        require(head == value || !query.has(value), || "the queries have the dim of the values".into())?;
        let batch = |ty: &Type, own: Dim| {
            let mut dims: Vec<Dim> = ty.dims.iter().copied().filter(|&dim| dim != t && dim != own).collect();
            dims.sort_unstable();
            dims
        };
        let shared = batch(key, head);
        require(shared == batch(values, value) && shared.iter().all(|&dim| query.has(dim)), || {
            "queries, keys and values differ in batch dims".into()
        })?;
        if attention.causal { self.same_size(s, t) } else { Ok(()) }
    }

    /// The documents of queries have their positions, those of keys theirs, and both nothing else but batch dims.
    fn documents(
        &self,
        attention: &Attention,
        documents: &[&Type],
        query: &Type,
        key: &Type,
    ) -> Result<(), String> {
        let Attention { query: s, key: t, head, .. } = *attention;
        for (ty, own) in documents.iter().zip([s, t]) {
            require(ty.dtype == DType::U32, || "documents are numbers of type u32".into())?;
            let batch = |&dim: &Dim| dim != head && query.has(dim) && key.has(dim);
            require(ty.has(own) && ty.dims.iter().all(|dim| *dim == own || batch(dim)), || {
                format!("wrong dims of the documents along `{}`", self.name(own))
            })?;
        }
        Ok(())
    }

    fn attention_gradient(&self, attention: &Attention, args: &[&Type]) -> Result<Vec<Type>, String> {
        let ([query, key, values, output, lse, d_output], documents) = with_documents(attention, args)?;
        let site = Site { declared: &[output, lse], ..*self };
        let forward = site.attention(attention, &[&[query, key, values], documents].concat())?;
        require(forward[0] == plain(output) && forward[1] == plain(lse), || {
            "the output or the log-sum-exp has another type than the forward result".into()
        })?;
        let same =
            d_output.dims.len() == output.dims.len() && d_output.dims.iter().all(|&dim| output.has(dim));
        require(same && d_output.dtype.is_float(), || "the output's gradient differs in dims".into())?;
        let like = |index: usize, ty: &Type| {
            let dtype = self.declared.get(index).map_or(ty.dtype, |declared| declared.dtype);
            self.arranged(index, if dtype == DType::F32 { dtype } else { ty.dtype }, &ty.dims)
        };
        Ok(vec![like(0, query), like(1, key), like(2, values)])
    }
}

/// The first `N` arguments of an attention or its gradient, and behind them the documents that it names.
fn with_documents<'a, 't, const N: usize>(
    attention: &Attention,
    args: &'a [&'t Type],
) -> Result<([&'t Type; N], &'a [&'t Type]), String> {
    let count = N + attention.packing.operands();
    match args.split_first_chunk::<N>() {
        Some((first, documents)) if args.len() == count => Ok((*first, documents)),
        Some(_) | None => Err(format!("takes {count} arguments, has {}", args.len())),
    }
}

/// The element type of a scalar function's result.
fn scalar_type(op: ScalarOp, args: &[&Type], declared: DType) -> Result<DType, String> {
    use ScalarOp::*;
    let first = args[0].dtype;
    let alike = args.iter().all(|arg| arg.dtype == first);
    let (fits, result, wants) = match op {
        Neg | Abs => (first != DType::Bool, first, "a number"),
        Exp | Log | Sqrt | Rsqrt | Tanh | Sigmoid | Erf | Sin | Cos | Floor => {
            (first.is_float(), first, "a float")
        }
        Cast => (true, declared, "anything"),
        Add | Sub | Mul | Div | Rem | Min | Max => {
            (alike && first != DType::Bool, first, "two numbers of one type")
        }
        Pow => (alike && first.is_float(), first, "two floats of one type"),
        Equal | NotEqual => (alike, DType::Bool, "two values of one type"),
        Less | LessEqual | Greater | GreaterEqual => {
            (alike && first != DType::Bool, DType::Bool, "two numbers of one type")
        }
        Not | And | Or => (alike && first == DType::Bool, DType::Bool, "truth values"),
        Select => {
            let branches = [args[1].dtype, args[2].dtype];
            (
                first == DType::Bool && branches[0] == branches[1],
                branches[0],
                "a truth value and two values of one type",
            )
        }
    };
    require(fits, || format!("takes {wants}"))?;
    Ok(result)
}
