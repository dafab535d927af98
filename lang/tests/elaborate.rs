//! Examples and the standard library elaborate; parameter counts and paths are what they should be.

use dtlc_lang::render::{Colour, render_all};
use dtlc_lang::{Compiled, Loaded, Options, PlanChoice, compile};

fn no_files(_: &str, _: &[&str]) -> Loaded {
    Loaded::Missing
}

fn read(path: &str) -> Vec<u8> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../");
    std::fs::read(format!("{root}{path}")).unwrap()
}

fn compiled(path: &str, plan: PlanChoice) -> Compiled {
    let options = Options { plan, overrides: Vec::new() };
    match compile(&no_files, path, &read(path), &options) {
        Ok(compiled) => compiled,
        Err(rejected) => panic!("{}", render_all(&rejected.diagnostics, &rejected.sources, Colour::Never)),
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
