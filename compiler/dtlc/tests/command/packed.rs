//! Training on sequences of several documents, as docs/language.md shows it.

use crate::support::{Dtlc, source};
use dtlc_runtime::files::weights::save_tensors;
use dtlc_runtime::tensor::HostTensor;
use indexmap::IndexMap;

const COUNTED: &str = "let inside = documents[S](tokens, 10)";

/// The model of the reference.
fn model() -> String {
    let document = std::fs::read_to_string(source("../../docs/language.md")).expect("the reference");
    let mut blocks = document.split("```dtl\n").skip(1).filter_map(|block| block.split("```").next());
    blocks.find(|block| block.contains("model Packed")).expect("it has the model").to_owned()
}

fn losses(dtlc: &Dtlc, arguments: &[&str]) -> Vec<f64> {
    let lines =
        dtlc.expect(0, &[&["train", "packed.dtl", "--json", "--steps", "3"], arguments].concat()).stdout;
    let loss = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON")["loss"].as_f64();
    lines.lines().map(|text| loss(text).expect("a loss")).collect()
}

#[test]
fn a_packed_model_trains_on_text_the_same_on_two_ranks() {
    let dtlc = Dtlc::new();
    dtlc.write("packed.dtl", model());
    dtlc.write("text", "a line\nand another one\n\n".repeat(60));
    let one = losses(&dtlc, &["-p", "one", "--data", "text"]);
    let pair = losses(&dtlc, &["-p", "pair", "--data", "text"]);
    assert!(one[2] < one[0], "{one:?}");
    for (one, pair) in one.iter().zip(&pair) {
        assert!((one - pair).abs() < 1e-5 * one, "{one} and {pair}");
    }
}

/// Documents that a file gives are those that the model counts, whatever their numbers, and no documents are others.
#[test]
fn documents_come_from_a_file_too() {
    let dtlc = Dtlc::new();
    let tokens: Vec<u32> = (0..3 * 8 * 64).map(|index| index * index % 11 + 5).collect();
    let mut numbers = Vec::new();
    for sequence in tokens.chunks(64) {
        let mut ended = 0;
        for &token in sequence {
            numbers.push(1000 - ended);
            ended += u32::from(token == 10);
        }
    }
    let labels = tokens.iter().map(|token| token + 1).collect();
    let named = [("tokens", tokens), ("labels", labels), ("documents", numbers)];
    let tensors: IndexMap<String, HostTensor> =
        named.map(|(name, values)| (name.to_owned(), HostTensor::from_u32(&[3, 8, 64], &values))).into();
    save_tensors(&dtlc.path("given.safetensors"), &tensors).expect("the data are written");
    let without = tensors.into_iter().filter(|(name, _)| name != "documents").collect();
    save_tensors(&dtlc.path("counted.safetensors"), &without).expect("the data are written");

    let counted = model();
    let given = counted.replace("labels: u32[B, S])", "labels: u32[B, S], inside: u32[B, S])");
    let given = given
        .replace(COUNTED, "")
        .replace("inside: u32", "documents: u32")
        .replace(", inside))", ", documents))");
    let whole = counted.replace(COUNTED, "let inside = 0 * tokens");
    let train = |text: &str, data: &str| {
        dtlc.write("packed.dtl", text);
        losses(&dtlc, &["-p", "one", "--data", data])
    };
    let expected = train(&counted, "counted.safetensors");
    assert_eq!(train(&given, "given.safetensors"), expected);
    assert_ne!(train(&whole, "counted.safetensors"), expected);
}
