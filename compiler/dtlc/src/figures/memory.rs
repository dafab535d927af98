//! Says what a rank's memory holds when it holds most, by kind and by source line.

use super::{place, scheduled};
use crate::failure::Failure;
use crate::pipeline::Compilation;
use dtlc_ir::memory::MemoryPlan;
use dtlc_ir::text::print_type;
use dtlc_ir::{Program, Role, StateKind, Value};
use indexmap::IndexMap;
use serde::Serialize;

/// Bytes of a rank.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// All that a step touches.
    pub peak: u64,
    /// Stored parameters.
    pub params: u64,
    /// Stored gradients of parameters: buffers that last until the update.
    pub grads: u64,
    /// Stored optimizer state, master weights included.
    pub optimizer: u64,
    /// Values of the forward and backward pass that are alive at the peak, and the inputs.
    pub activations: u64,
    /// The rest: gathered copies, gradients on their way, packing buffers, gaps.
    pub workspace: u64,
    /// The buffers that are there at the peak, by the line that they come from; largest first.
    pub by_line: Vec<LineBytes>,
}

/// The buffers of one place in the source.
#[derive(Clone, Debug, Serialize)]
pub struct LineBytes {
    /// `file:line:column`.
    pub span: String,
    /// All buffers from there.
    pub bytes: u64,
    /// What they hold.
    pub values: Vec<String>,
}

impl Memory {
    /// The memory of a compilation.
    ///
    /// # Errors
    /// A compilation that did not go to its end: a bug.
    pub fn new(compilation: &Compilation) -> Result<Self, Failure> {
        let scheduled = scheduled(compilation)?;
        let program = &scheduled.program;
        let missing = || Failure::Bug("a schedule without a memory plan".to_owned());
        let plan = program.memory.as_ref().ok_or_else(missing)?;
        let peak = peak_bytes(compilation, plan);
        let stored = |wanted: fn(&StateKind) -> bool| -> u64 {
            let states = program.states.iter().filter(|state| wanted(&state.kind));
            states.map(|state| program.ty(state.value).local_bytes(program)).sum()
        };
        let params = stored(|kind| matches!(kind, StateKind::Parameter(_)));
        let optimizer = stored(|kind| !matches!(kind, StateKind::Parameter(_)));
        let grads = compilation.sharded.as_ref().map_or(0, |sharded| {
            sharded.gradient_stores.iter().map(|ty| ty.local_bytes(&sharded.program)).sum()
        });
        let active = plan.peak.iter().filter(|&&value| program.values[value].role == Role::Activation);
        let bytes = active.filter_map(|&value| plan.place(value)).map(|place| place.bytes).sum::<u64>();
        let activations = bytes + plan.input_bytes;
        // Stored gradients may share memory with activations that are gone before the last of them is there.
        let rest = peak.saturating_sub(params + grads + optimizer);
        let activations = activations.min(rest);
        let workspace = rest - activations;
        let by_line = by_line(program, plan);
        Ok(Self { peak, params, grads, optimizer, activations, workspace, by_line })
    }
}

/// All bytes that a rank touches, scratch of its threads included where the program is assembled.
fn peak_bytes(compilation: &Compilation, plan: &MemoryPlan) -> u64 {
    let Some(assembled) = &compilation.assembled else { return plan.peak_bytes() };
    let program = &assembled.program;
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    program.rank_bytes((cores / program.mesh.ranks().max(1)).max(1))
}

fn by_line(program: &Program, plan: &MemoryPlan) -> Vec<LineBytes> {
    let mut lines: IndexMap<String, LineBytes> = IndexMap::new();
    let mut add = |value: Value| {
        let span = place(&program.origins[program.values[value].origin]);
        let bytes = program.ty(value).local_bytes(program);
        let fresh = || LineBytes { span: span.clone(), bytes: 0, values: Vec::new() };
        let line = lines.entry(span.clone()).or_insert_with(fresh);
        line.bytes += bytes;
        let info = &program.values[value];
        let name = info.name.clone().unwrap_or_else(|| print_type(program, &info.ty));
        if !line.values.contains(&name) {
            line.values.push(name);
        }
    };
    let states = program.states.iter().map(|state| state.value);
    let inputs = program.inputs.iter().map(|input| input.value);
    states.chain(inputs).chain(plan.peak.iter().copied()).for_each(&mut add);
    let mut lines: Vec<LineBytes> = lines.into_values().collect();
    // Stable: equal sizes stay in the program's order.
    lines.sort_by_key(|line| std::cmp::Reverse(line.bytes));
    lines
}
