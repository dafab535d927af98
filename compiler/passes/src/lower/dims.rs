//! Dimensions at lowering: products of the language become their atoms, and the global batch becomes
//! micro-batches times the batch of one.

use crate::error::{PassError, PassErrorKind};
use cranelift_entity::SecondaryMap;
use dtlc_ir::{Builder, Dim, Program, Type, Value};
use dtlc_lang::model::{DimId, Model};
use dtlc_lang::plan::{self, Plan};
use smallvec::{SmallVec, smallvec};

/// The atoms of a dimension of the language, major first.
pub type Atoms = SmallVec<[Dim; 2]>;

/// The IR's dimensions for those of the model.
pub struct DimMap {
    /// Atoms of each dimension that the model has.
    pub atoms: SecondaryMap<DimId, Atoms>,
    /// The dimension of micro-batches, the major atom of the batch; none if there is one micro-batch.
    pub micro: Option<Dim>,
}

impl DimMap {
    /// Adds the dimensions of `model` to `program`.
    pub fn new(program: &mut Program, model: &Model, plan: Option<&Plan>) -> Result<DimMap, PassError> {
        let micro_batches = micro_batches(model, plan)?;
        let mut map = DimMap { atoms: SecondaryMap::new(), micro: None };
        for (dim, info) in model.dims.iter().filter(|(_, info)| info.factors.is_empty()) {
            let split = model.batch == Some(dim) && micro_batches > 1;
            let size = if split { info.size / micro_batches } else { info.size };
            map.atoms[dim] = smallvec![program.add_dim(info.name.clone(), size)];
        }
        if let Some(batch) = model.batch.filter(|_| micro_batches > 1) {
            let micro = program.fresh_dim("M", micro_batches);
            map.micro = Some(micro);
            map.atoms[batch].insert(0, micro);
        }
        for dim in model.dims.keys() {
            let atoms: Atoms = model.atoms(dim).iter().flat_map(|&atom| map.atoms[atom].clone()).collect();
            map.atoms[dim] = atoms;
        }
        Ok(map)
    }

    /// The atoms of several dimensions in order.
    pub fn expand(&self, dims: &[DimId]) -> SmallVec<[Dim; 6]> {
        dims.iter().flat_map(|&dim| self.atoms[dim].iter().copied()).collect()
    }
}

/// How many micro-batches each rank works through in a step.
fn micro_batches(model: &Model, plan: Option<&Plan>) -> Result<u64, PassError> {
    let Some((plan, batch)) = plan.and_then(|plan| plan.batch.as_ref().map(|batch| (plan, batch))) else {
        return Ok(1);
    };
    let ways: u64 = batch_axes(model, plan).iter().map(|axis| axis_size(plan, axis)).product();
    let Some(micro) = batch.micro else { return Ok(1) };
    let together = micro * ways;
    if together == 0 || batch.global % together != 0 {
        let text = format!(
            "a global batch of {} does not divide into micro-batches of {micro} on {ways} rank(s) along the batch",
            batch.global
        );
        let help = format!("make `global` a multiple of {together}");
        return Err(PassError::at_span(PassErrorKind::Batch, batch.span, text).with_help(help));
    }
    Ok(batch.global / together)
}

/// The axes that some rule places the batch of activations on.
fn batch_axes(model: &Model, plan: &Plan) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for rule in plan.steps.iter().flat_map(|step| &step.rules) {
        if let plan::Rule::Place { roles, dim, axes, .. } = rule
            && Some(*dim) == model.batch
            && (roles.is_empty() || roles.contains(&plan::Role::Acts))
        {
            found.extend(axes.iter().filter(|axis| !found.contains(axis)).cloned().collect::<Vec<_>>());
        }
    }
    found
}

/// The size of `dp` or `dp.inner`; 1 where the plan has no such axis, which is reported elsewhere.
fn axis_size(plan: &Plan, name: &str) -> u64 {
    let (axis, part) = name.split_once('.').map_or((name, None), |(axis, part)| (axis, Some(part)));
    let Some(axis) = plan.mesh.iter().find(|candidate| candidate.name == axis) else { return 1 };
    match part {
        None => axis.size,
        Some(part) => axis.parts.iter().find(|(name, _)| name == part).map_or(1, |(_, size)| *size),
    }
}

/// Makes the adjacent `from` of `value` into `to`, elements in the same order.
pub fn reshape(builder: &mut Builder, value: Value, from: &[Dim], to: &[Dim]) -> Value {
    if from == to {
        return value;
    }
    let size = |builder: &Builder, dim: Dim| builder.program.dims[dim].size;
    let same_sizes = from.len() == to.len()
        && from
            .iter()
            .zip(to)
            .all(|(&from, &to)| size(builder, from) == size(builder, to) && !has(builder, value, to));
    if same_sizes {
        return from.iter().zip(to).fold(value, |value, (&from, &to)| builder.rename(value, from, to));
    }
    let value = adjacent(builder, value, from);
    match (from, to) {
        ([from], to) => builder.split(value, *from, to),
        (from, [to]) => builder.merge(value, from, *to),
        (from, to) => {
            let whole = merged(builder, from);
            let value = builder.merge(value, from, whole);
            builder.split(value, whole, to)
        }
    }
}

/// The one dimension that `atoms` are, or a new one as large as they are together.
pub fn merged(builder: &mut Builder, atoms: &[Dim]) -> Dim {
    match atoms {
        [dim] => *dim,
        atoms => {
            let names: Vec<&str> = atoms.iter().map(|&dim| builder.program.dims[dim].name.as_str()).collect();
            let (name, size) =
                (names.join("_"), atoms.iter().map(|&dim| builder.program.dims[dim].size).product());
            builder.program.fresh_dim(&name, size)
        }
    }
}

fn has(builder: &Builder, value: Value, dim: Dim) -> bool {
    builder.ty(value).has(dim)
}

/// `value` permuted, if it must be, so that `dims` stand side by side in that order.
fn adjacent(builder: &mut Builder, value: Value, dims: &[Dim]) -> Value {
    let ty = builder.ty(value).clone();
    let Some(at) = ty.dims.iter().position(|dim| dims.contains(dim)) else { return value };
    if ty.dims[at..].starts_with(dims) {
        return value;
    }
    let kept = |range: &[Dim]| range.iter().copied().filter(|dim| !dims.contains(dim)).collect::<Vec<_>>();
    let order = kept(&ty.dims[..at]).into_iter().chain(dims.iter().copied()).chain(kept(&ty.dims[at..]));
    builder.conform(value, &Type::new(ty.dtype, order))
}
