//! The whole front end: from any bytes as a `.dtl` file to stage `sharded` under each of its plans.

use super::language::show;
use dtlc::failure::Failure;
use dtlc::pipeline::{self, Mode, Stage};
use dtlc_lang::{Checked, Loaded, Options, PlanChoice, Rejected, check_all, compile};

/// Plans of a file that are compiled.
const PLANS: usize = 4;

/// Any bytes compile, or are refused with diagnostics that can be shown; what `check` finds good, each plan takes.
///
/// # Panics
/// Where that is not so, or the compiler finds a bug in itself.
pub fn front_end(bytes: &[u8]) {
    let Checked { sources, diagnostics, models, plans, .. } = check_all(&nothing, "fuzz.dtl", bytes);
    show(&diagnostics, &sources);
    let mut choices: Vec<PlanChoice> =
        plans.into_iter().take(PLANS).map(|(plan, _)| PlanChoice::Named(plan)).collect();
    if choices.is_empty() && models.len() == 1 {
        choices.push(PlanChoice::None);
    }
    for plan in choices {
        let options = Options { plan, overrides: Vec::new() };
        let compiled = match compile(&nothing, "fuzz.dtl", bytes, &options) {
            Ok(compiled) => compiled,
            Err(rejected) => {
                let Rejected { sources, diagnostics: found } = *rejected;
                assert!(!found.is_empty(), "refused without a reason");
                assert!(!diagnostics.is_empty(), "`check` finds nothing where `compile` finds {found:?}");
                show(&found, &sources);
                continue;
            }
        };
        let mode = Mode::of_plan(compiled.plan.as_ref());
        let Err(trouble) = pipeline::compile(&compiled, mode, Stage::Sharded) else { continue };
        match trouble.into_failure(&compiled.sources) {
            Failure::Input { diagnostics, sources } => {
                assert!(!diagnostics.is_empty(), "refused without a reason");
                show(&diagnostics, &sources);
            }
            other => panic!("{:?}: {other:?}", options.plan),
        }
    }
}

/// There are no files but those of the standard library, which the language has in itself.
fn nothing(_: &str, _: &[&str]) -> Loaded {
    Loaded::Missing
}
