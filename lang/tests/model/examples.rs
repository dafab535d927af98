//! Examples and the standard library elaborate; parameter counts and paths are what they should be.

use crate::support::{compiled, in_project, no_files, read};
use dtlc_lang::render::{Colour, render_all};
use dtlc_lang::{PlanChoice, SourceMap, check_all};

const EXAMPLES: [&str; 7] = [
    "examples/bytes.dtl",
    "examples/gpt2.dtl",
    "examples/bert.dtl",
    "examples/llama3.dtl",
    "examples/golden/llama.dtl",
    "examples/golden/gpt2.dtl",
    "examples/papers/zero.dtl",
];

#[test]
fn examples_check_under_every_plan() {
    for path in EXAMPLES {
        let checked = check_all(&no_files, path, &read(path));
        let report = render_all(&checked.diagnostics, &checked.sources, Colour::Never);
        assert!(checked.diagnostics.is_empty(), "{path}\n{report}");
        assert!(!checked.plans.is_empty(), "{path}");
    }
}

#[test]
fn library_checks_by_itself() {
    for (name, text) in dtlc_lang::elaborate::STDLIB {
        let checked = check_all(&no_files, &format!("stdlib/{name}.dtl"), text.as_bytes());
        let report = render_all(&checked.diagnostics, &checked.sources, Colour::Never);
        assert!(checked.diagnostics.is_empty(), "{name}\n{report}");
    }
}

#[test]
fn examples_and_library_are_in_canonical_form() {
    let library = dtlc_lang::elaborate::STDLIB.iter().map(|(name, _)| format!("stdlib/{name}.dtl"));
    for path in EXAMPLES.into_iter().map(str::to_owned).chain(library) {
        let text = String::from_utf8(read(&path)).expect("UTF-8");
        let mut sources = SourceMap::new();
        let id = sources.add(path.clone(), &text);
        let formatted = dtlc_lang::format(sources.file(id)).expect("no syntax errors");
        if std::env::var_os("DTLC_UPDATE").is_some() {
            std::fs::write(in_project(&path), formatted).expect("the file can be written");
        } else {
            assert_eq!(formatted, text, "{path}");
        }
    }
}

#[test]
fn the_reference_is_right() {
    let document = String::from_utf8(read("docs/language.md")).expect("UTF-8");
    let blocks: Vec<&str> =
        document.split("```dtl\n").skip(1).filter_map(|block| block.split("```").next()).collect();
    assert!(!blocks.is_empty());
    for block in blocks {
        let checked = check_all(&no_files, "language.md", block.as_bytes());
        let report = render_all(&checked.diagnostics, &checked.sources, Colour::Never);
        assert!(checked.diagnostics.is_empty(), "{block}\n{report}");
    }
}

#[test]
fn parameter_counts_are_exact() {
    let counts = [
        ("examples/llama3.dtl", "b8_one", 8_030_261_248),
        ("examples/llama3.dtl", "b70_tp8", 70_553_706_496),
        ("examples/llama3.dtl", "b405_tp8_dp2048", 405_853_388_800),
        ("examples/gpt2.dtl", "one", 124_439_808),
        ("examples/papers/zero.dtl", "stage0", 7_500_029_952),
    ];
    for (path, plan, count) in counts {
        let compiled = compiled(path, PlanChoice::Named(plan.to_owned()));
        assert_eq!(compiled.model.parameter_count(), Some(count), "{path} {plan}");
    }
}

#[test]
fn golden_names() {
    let compiled = compiled("examples/golden/llama.dtl", PlanChoice::None);
    let names: Vec<&str> = compiled.model.params.values().map(|it| it.alias.as_deref().unwrap()).collect();
    let expected = [
        "embed",
        "layers.{}.attn_norm",
        "layers.{}.wq",
        "layers.{}.wk",
        "layers.{}.wv",
        "layers.{}.wo",
        "layers.{}.mlp_norm",
        "layers.{}.w_gate",
        "layers.{}.w_up",
        "layers.{}.w_down",
        "final_norm",
        "lm_head",
    ];
    assert_eq!(names, expected);
}
