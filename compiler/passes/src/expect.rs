//! Checks a plan's contracts against the program that came out: collective counts and peak memory.

use crate::report::{CollectiveUse, collectives, counted_layers};
use dtlc_ir::{CollectiveKind, Program};
use dtlc_lang::plan::Expect;
use dtlc_lang::source::Span;

/// A contract that doesn't hold.
#[derive(Clone, Debug, PartialEq)]
pub struct BrokenContract {
    /// Both figures, as one sentence.
    pub message: String,
    /// The contract.
    pub span: Span,
    /// What the plan states.
    pub expected: u64,
    /// What the program does.
    pub found: u64,
    /// The collectives counted, for a contract about them.
    pub counted: Vec<CollectiveUse>,
}

const KINDS: [CollectiveKind; 5] = [
    CollectiveKind::AllGather,
    CollectiveKind::ReduceScatter,
    CollectiveKind::AllReduce,
    CollectiveKind::AllToAll,
    CollectiveKind::Permute,
];

/// A contract about a layer that collectives are not counted for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uncounted {
    /// The layer.
    pub layer: String,
    /// The contract.
    pub span: Span,
    /// The layers that they are counted for.
    pub counted: Vec<String>,
}

/// The contracts that would hold or fail for nothing: only a layer whose runs are a loop has calls of its own, those of all
/// others are the step's.
pub fn uncounted(program: &Program, contracts: &[Expect]) -> Vec<Uncounted> {
    let counted = counted_layers(program);
    let of_layer = |contract: &Expect| match contract {
        Expect::Collectives { layer: Some(layer), span, .. } if !counted.contains(layer) => {
            Some(Uncounted { layer: layer.clone(), span: *span, counted: counted.clone() })
        }
        Expect::Collectives { .. } | Expect::Peak { .. } => None,
    };
    contracts.iter().filter_map(of_layer).collect()
}

/// Checks all contracts of a plan on a lowered program that needs `peak` bytes on a rank. Returns those broken.
pub fn check_contracts(program: &Program, contracts: &[Expect], peak: u64) -> Vec<BrokenContract> {
    let uses = collectives(program);
    let mut broken = Vec::new();
    for contract in contracts {
        match contract {
            Expect::Peak { bytes, span } => broken.extend((peak > *bytes).then(|| BrokenContract {
                message: format!("the peak is {peak} bytes, and the plan expects at most {bytes}"),
                span: *span,
                expected: *bytes,
                found: peak,
                counted: Vec::new(),
            })),
            Expect::Collectives { layer, phase, axis, counts, span } => {
                let scope = layer.as_deref().unwrap_or("step");
                let counted: Vec<&CollectiveUse> = uses
                    .iter()
                    .filter(|call| call.scope == scope)
                    .filter(|call| phase.as_deref().is_none_or(|phase| call.phase.name() == phase))
                    .filter(|call| axis.as_deref().is_none_or(|axis| is_on(&call.axis, axis)))
                    .collect();
                let place = place(scope, phase.as_deref(), axis.as_deref());
                broken.extend(check_counts(&counted, counts, &place, *span));
            }
        }
    }
    broken
}

/// Every kind whose number differs; those not named are expected not to be there.
fn check_counts(
    counted: &[&CollectiveUse],
    counts: &[(String, u64)],
    place: &str,
    span: Span,
) -> Vec<BrokenContract> {
    let mut broken = Vec::new();
    for kind in KINDS {
        let of_kind: Vec<&CollectiveUse> = counted.iter().copied().filter(|call| call.kind == kind).collect();
        let found: u64 = of_kind.iter().map(|call| call.per_run).sum();
        let named = counts.iter().filter(|(name, _)| name == kind.name());
        let expected: u64 = named.map(|(_, count)| count).sum();
        if found != expected {
            let name = kind.name();
            broken.push(BrokenContract {
                message: format!("{found} {name} {place}, and the plan expects {expected}"),
                span,
                expected,
                found,
                counted: of_kind.into_iter().cloned().collect(),
            });
        }
    }
    broken
}

fn place(scope: &str, phase: Option<&str>, axis: Option<&str>) -> String {
    let phase = phase.map_or(String::new(), |phase| format!(" {phase}"));
    let axis = axis.map_or(String::new(), |axis| format!(" on {axis}"));
    format!("per {scope}{phase}{axis}")
}

/// Whether a collective over `axes` (`tp`, `dp,tp`, `tp.0`) counts for an axis named in a contract.
fn is_on(axes: &str, axis: &str) -> bool {
    axes.split(',').any(|name| name == axis || name.split('.').next() == Some(axis))
}
