//! The examples under `examples/golden` against numbers made by JAX and PyTorch in f64.

use dtlc_lang::PlanChoice;
use dtlc_runtime::files::weights::load_weights;
use dtlc_runtime::session::{ArenaStart, Options, Session};
use dtlc_runtime::train::evaluate;
use dtlc_tests::chain::{Mode, assembled, joint};
use dtlc_tests::golden::{Golden, relative_error};
use indexmap::IndexMap;

#[test]
fn llama_gradients_on_one_rank() {
    let golden = Golden::open("llama");
    let program =
        joint("../examples/golden/llama.dtl", PlanChoice::None, &[("B", "8"), ("S", "64")], Mode::Gradients);
    let made = assembled(program);
    let options = Options { arena: ArenaStart::Poisoned, ..Options::default() };
    let mut session = Session::start(made.program, options).unwrap_or_else(|error| panic!("{error}"));
    let folder = tempfile::tempdir().expect("a folder");
    load_weights(&mut session, &[golden.write_weights(folder.path())])
        .unwrap_or_else(|error| panic!("{error}"));
    let (tokens, labels) = golden.batch(0);
    let inputs = IndexMap::from([("tokens".to_string(), tokens), ("labels".to_string(), labels)]);
    let outputs = evaluate(&mut session, &inputs, 0).unwrap_or_else(|error| panic!("{error}"));
    let loss = f64::from(outputs["loss"].to_f32()[0]);
    let expected = golden.numbers("losses")[0];
    println!("loss {loss} expected {expected}; {:?}", outputs.keys().collect::<Vec<_>>());
    assert!((loss - expected).abs() / expected < 1e-5, "loss {loss}, not {expected}");
    for (name, gradient) in golden.gradients() {
        let got = outputs.get(&format!("grad.{name}")).unwrap_or_else(|| panic!("no grad.{name}"));
        let error = relative_error(&gradient.to_f32(), &got.to_f32());
        println!("{name}: {error:.2e}");
        assert!(error < 1e-5, "{name}: {error}");
    }
}
