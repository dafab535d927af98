//! Lists the collectives of a program, for `explain` and for the contracts of `expect`.

use crate::partition::ring_bytes;
use dtlc_ir::{CollectiveKind, Inst, Op, Origin, Phase, Program, Region, Scope, Value};

/// One call in the program's text, with how often a step makes it.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectiveUse {
    /// Kind.
    pub kind: CollectiveKind,
    /// The axes as users see them: `tp`, `dp,tp`, `tp.0`.
    pub axis: String,
    /// The layer whose loop it stands in, or `step`.
    pub scope: String,
    /// Phase.
    pub phase: Phase,
    /// Calls in one step.
    pub per_step: u64,
    /// Calls in one run of the scope: of the layer once, or of the step.
    pub per_run: u64,
    /// The full (gathered, or not yet reduced) size of one call on a rank, in bytes.
    pub bytes: u64,
    /// What a rank sends for it in a ring, in bytes.
    pub wire_bytes: u64,
    /// Why, one line a tensor.
    pub why: Vec<String>,
    /// Where the first of its tensors is needed.
    pub origin: Origin,
}

/// All collectives of a program, in program order.
pub fn collectives(program: &Program) -> Vec<CollectiveUse> {
    let mut uses = Vec::new();
    let step = Loops { trips: 1, layer: None, layer_trips: 1 };
    visit(program, &program.main, &step, &mut uses);
    uses
}

/// The layers whose loops collectives are counted in, each once.
pub fn counted_layers(program: &Program) -> Vec<String> {
    fn walk(program: &Program, region: &Region, found: &mut Vec<String>) {
        for body in region.insts.iter().filter_map(|inst| inst.op.region()) {
            let layer = layer_of(program, body).map(|layer| program.scopes[layer].layer.clone());
            found.extend(layer.filter(|layer| !found.contains(layer)));
            walk(program, body, found);
        }
    }
    let mut found = Vec::new();
    walk(program, &program.main, &mut found);
    found
}

/// The loops around an instruction.
struct Loops {
    /// Iterations of all of them.
    trips: u64,
    /// The layer that the innermost loop over layers runs.
    layer: Option<Scope>,
    /// Iterations of that loop and those around it.
    layer_trips: u64,
}

fn visit(program: &Program, region: &Region, loops: &Loops, uses: &mut Vec<CollectiveUse>) {
    for inst in &region.insts {
        match &inst.op {
            Op::Scan(scan) => {
                let trips = loops.trips * program.dims[scan.dim].size;
                let layer = layer_of(program, &scan.body);
                let layer_trips = if layer.is_some() { trips } else { loops.layer_trips };
                let inner = Loops { trips, layer: layer.or(loops.layer), layer_trips };
                visit(program, &scan.body, &inner, uses);
            }
            Op::Collective(collective) => {
                let local = |values: &[Value]| -> u64 {
                    values.iter().map(|&value| program.ty(value).local_bytes(program)).sum()
                };
                let bytes = local(&inst.args).max(local(&inst.results));
                let ranks = program.mesh.group_size(collective.axes.iter().copied());
                uses.push(CollectiveUse {
                    kind: collective.kind,
                    axis: program.mesh.display(&collective.axes),
                    scope: loops
                        .layer
                        .map_or("step".to_string(), |layer| program.scopes[layer].layer.clone()),
                    phase: inst.phase,
                    per_step: loops.trips,
                    per_run: loops.trips / loops.layer_trips,
                    bytes,
                    wire_bytes: ring_bytes(collective.kind, ranks, bytes),
                    why: collective.reasons.iter().map(|reason| reason.text.clone()).collect(),
                    origin: origin(program, inst),
                });
            }
            _ => {}
        }
    }
}

fn origin(program: &Program, inst: &Inst) -> Origin {
    inst.results.first().map_or(program.no_origin(), |&result| program.values[result].origin)
}

/// The layer that a loop's body runs: the outermost instance that all its instructions stand in. None for
/// the loop over micro-batches, whose body is the model's.
pub(crate) fn layer_of(program: &Program, body: &Region) -> Option<Scope> {
    let mut common: Option<Vec<Scope>> = None;
    scopes(program, body, &mut |path| match &mut common {
        None => common = Some(path),
        Some(common) => {
            let same = common.iter().zip(&path).take_while(|(left, right)| left == right).count();
            common.truncate(same);
        }
    });
    common.and_then(|path| path.first().copied())
}

/// Calls `found` with the instances around each instruction, outermost first and the model left out.
fn scopes(program: &Program, region: &Region, found: &mut impl FnMut(Vec<Scope>)) {
    for inst in &region.insts {
        if let Some(body) = inst.op.region() {
            scopes(program, body, found);
        }
        for &result in &inst.results {
            let origin = &program.origins[program.values[result].origin];
            if origin.line == 0 {
                continue;
            }
            let around = std::iter::successors(Some(origin.scope), |&scope| program.scopes[scope].parent);
            let mut path: Vec<Scope> =
                around.filter(|&scope| program.scopes[scope].parent.is_some()).collect();
            path.reverse();
            found(path);
        }
    }
}
