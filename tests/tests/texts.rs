//! Every stage's text reads back as what it was printed from: of the examples under all their plans, and of random models.
//!
//! `DTLC_CASES=N` takes N random models, `DTLC_SEED=S` starts at another seed.

use dtlc::pipeline::{self, Mode, Stage};
use dtlc_codegen::kir;
use dtlc_ir::text as ir;
use dtlc_lang::{Loaded, Options, PlanChoice, check_all, compile, text as model};
use dtlc_runtime::program::Program;
use dtlc_runtime::program::text::Detail;
use dtlc_tests::random::Case;

const EXAMPLES: [&str; 7] = ["bytes", "gpt2", "bert", "llama3", "golden/llama", "golden/gpt2", "papers/zero"];
/// Random models in CI, and the first seed.
const CASES: u64 = 40;
const FIRST: u64 = 7000;

fn nothing(_: &str, _: &[&str]) -> Loaded {
    Loaded::Missing
}

/// Whether the file compiles; what it compiles to must survive.
fn round_trip(name: &str, source: &[u8], plan: &str, last: Stage) -> bool {
    let options = Options { plan: PlanChoice::Named(plan.to_owned()), overrides: Vec::new() };
    let Ok(typed) = compile(&nothing, name, source, &options) else { return false };
    let text = model::print(&typed.model);
    let read = model::parse(&text).unwrap_or_else(|error| panic!("{name}, {plan}, model: {error}\n{text}"));
    assert!(
        read == typed.model,
        "{name}, {plan}: the model is read otherwise\n{text}\n{}",
        model::print(&read)
    );

    let mode = Mode::of_plan(typed.plan.as_ref());
    let Ok(compilation) = pipeline::compile(&typed, mode, last) else { return false };
    let stages = [
        Some(&compilation.logical),
        compilation.joint.as_ref(),
        compilation.sharded.as_ref().map(|sharded| &sharded.program),
        compilation.scheduled.as_ref().map(|scheduled| &scheduled.program),
    ];
    for program in stages.into_iter().flatten() {
        let text = ir::print(program);
        let read = ir::parse(&text).unwrap_or_else(|error| panic!("{name}, {plan}: {error}\n{text}"));
        assert!(read == ir::canonical(program), "{name}, {plan}: the program is read otherwise\n{text}");
        assert_eq!(ir::print(&read), text, "{name}, {plan}");
    }
    let scheduled = compilation.scheduled.as_ref().is_some_and(|it| it.program.memory.is_some());
    assert_eq!(scheduled, last >= Stage::Scheduled, "{name}, {plan}: a schedule has a memory plan");

    let Some(assembled) = compilation.assembled else { return true };
    for listing in &assembled.kernels {
        assert_eq!(kir::parse(&listing.kernel.to_string()).as_ref(), Ok(&listing.kernel), "{name}, {plan}");
    }
    let text = assembled.program.to_text(Detail::Full).unwrap_or_else(|error| panic!("{name}: {error:?}"));
    let read = Program::from_text(&text).unwrap_or_else(|error| panic!("{name}, {plan}: {error:?}\n{text}"));
    assert!(read == assembled.program, "{name}, {plan}: the program is read otherwise\n{text}");
    true
}

#[test]
fn of_every_example_and_plan() {
    for example in EXAMPLES {
        let name = format!("{}/../examples/{example}.dtl", env!("CARGO_MANIFEST_DIR"));
        let source = std::fs::read(&name).unwrap_or_else(|error| panic!("{name}: {error}"));
        let plans = check_all(&nothing, &name, &source).plans;
        assert!(!plans.is_empty(), "{name}");
        for (number, (plan, _)) in plans.iter().enumerate() {
            // Machine code takes the time, and what plans of a model change of it is covered by the random ones.
            let last = if number == 0 { Stage::Program } else { Stage::Scheduled };
            assert!(round_trip(&name, &source, plan, last), "{name}, {plan} does not compile");
        }
    }
}

#[test]
fn of_random_models() {
    let setting = |name: &str, default: u64| {
        std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
    };
    let (first, count) = (setting("DTLC_SEED", FIRST), setting("DTLC_CASES", CASES));
    let survive = |seed: &u64| {
        let source = Case::generate(*seed).source();
        round_trip(&format!("seed {seed}"), source.as_bytes(), "many", Stage::Program)
    };
    let compiled = (first..first + count).filter(survive).count() as u64;
    assert!(compiled * 3 >= count * 2, "only {compiled} of {count} random models compile");
}
