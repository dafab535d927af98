//! Bad input to the command, one kind a test: sources and sizes. Each ends with 1 and a diagnostic that names the cause,
//! never with a panic or a bug of ours.

use crate::support::{Dtlc, Outcome, source};

/// The tests' model.
fn tiny() -> String {
    std::fs::read_to_string(source("tests/files/tiny.dtl")).expect("the model")
}

/// Runs a command that has to refuse its input for all the `reasons`.
fn refused(dtlc: &Dtlc, arguments: &[&str], reasons: &[&str]) -> Outcome {
    let outcome = dtlc.expect(1, arguments);
    for reason in reasons {
        assert!(outcome.stderr.contains(reason), "{arguments:?} without `{reason}`:\n{}", outcome.stderr);
    }
    assert!(!outcome.stderr.contains("bug in dtlc"), "{}", outcome.stderr);
    outcome
}

/// Checks an edited model, which has to be refused.
fn edited(from: &str, to: &str, reasons: &[&str]) {
    let dtlc = Dtlc::new();
    let text = tiny();
    assert!(text.contains(from), "the model has no `{from}`");
    dtlc.write("edited.dtl", text.replace(from, to));
    refused(&dtlc, &["check", "edited.dtl"], reasons);
}

#[test]
fn unknown_names() {
    edited("tanh(up(x))", "tanh(upp(x))", &["E0201", "upp"]);
    edited("Block[D, F]\n  head", "Blok[D, F]\n  head", &["E0201", "Block"]);
    edited("head = Linear[D -> V]", "head = Linear[D -> Q]", &["E0207", "Q"]);
    edited("std::nn::{Embedding", "std::nn::{Embeding", &["E0204", "Embedding"]);
    edited("use std::nn", "use std::n", &["E0203"]);
    edited("plan one for Tiny", "plan one for Tine", &["E0402", "Tiny"]);
    edited("optimizer adamw", "optimizer adamv", &["adamw"]);
    edited("acts B -> dp", "acts B -> pd", &["E0403", "dp"]);
}

#[test]
fn wrong_ranks() {
    edited("labels: u32[B, S]", "labels: u32[B, S, D]", &["E0"]);
    edited("embed = Embedding[V, D]", "embed = Embedding[V]", &["E0309"]);
    edited("fn (x: [B, S, D]) -> [B, S, D]", "fn (x: [B, S, D]) -> [B, S]", &["E0301"]);
}

#[test]
fn dimensions_that_do_not_divide() {
    edited("F = 32", "F = 33", &["E0407", "33"]);
    edited("L = 2", "L = D / 3", &["E0307", "16"]);
    edited("mesh { dp: 2, tp: 2 }", "mesh { dp: 3, tp: 2 }", &["E0408"]);
}

#[test]
fn contradictory_and_unused_rules() {
    edited("F, V -> tp", "F, V -> tp, F -> dp", &["E04"]);
    edited("step data: acts B -> dp", "step data: acts B -> dp at nowhere", &["E04", "nowhere"]);
    edited("step data: acts B -> dp", "step data: acts L -> dp", &["E0410"]);
    edited("batch { seq 8, global 4 }", "batch { seq 8, seq 9, global 4 }", &["E0413"]);
    edited("  mesh {", "  mesh { dp: 2 }\n  mesh {", &["E0413"]);
    edited("  batch {", "  remat full\n  remat none\n  batch {", &["E0413"]);
    edited("  batch {", "  step again: F -> tp\n  step again: F -> tp\n  batch {", &["E0413"]);
    edited("  optimizer adamw {", "  optimizer adamw { clip 0,", &["E0409", "zero"]);
}

#[test]
fn contracts_and_policies_of_what_is_in_no_stack() {
    let contract = "per Block forward on tp: 1 all_reduce";
    for layer in ["Linear", "Embedding", "embed", "head", "layers.up"] {
        let none = format!("{contract}\n    per {layer}: none");
        edited(contract, &none, &["E0415", &format!("per `{layer}`"), "per Block"]);
    }
    for layer in ["Embedding", "head"] {
        let remat = format!("  remat {layer}: full\n  batch {{");
        edited("  batch {", &remat, &["E0404", &format!("`{layer}` stands in no stack"), "remat Block"]);
    }
    let dtlc = Dtlc::new();
    for layer in ["Block", "layers", "Block.up"] {
        dtlc.write("good.dtl", tiny().replace("  batch {", &format!("  remat {layer}: full\n  batch {{")));
        dtlc.expect(0, &["check", "good.dtl"]);
    }
    // Without a stack there is nothing to count, and nothing to keep.
    let flat = tiny().replace("repeat[L] Block", "Block").replace(", L = 2", "");
    dtlc.write("flat.dtl", &flat);
    refused(&dtlc, &["check", "flat.dtl"], &["E0415", "per `Block`", "step: "]);
    let flat = flat.replace("    per Block forward on tp: 1 all_reduce\n", "");
    dtlc.write("flat.dtl", flat.replace("  batch {", "  remat full\n  batch {"));
    let outcome = dtlc.expect(0, &["check", "flat.dtl"]);
    assert!(outcome.stderr.contains("E0416") && outcome.stderr.contains("no stack"), "{}", outcome.stderr);
}

#[test]
fn parameters_of_one_name_or_without_gradients() {
    edited(
        "embed = Embedding[V, D]",
        "embed = Embedding[V, D] as \"head\"",
        &["E0202", "`head.weight`", "`embed.weight`"],
    );
    edited("head = Linear[D -> V]", "head = Linear[D -> V] as \"embed\"", &["E0202", "`embed.weight`"]);
    edited(
        "embed = Embedding[V, D]",
        "embed = Embedding[V, D] as \"weight: layers.1.up.offset\"",
        &["E0202", "both called"],
    );
    let dtlc = Dtlc::new();
    dtlc.write(
        "good.dtl",
        tiny().replace("embed = Embedding[V, D]", "embed = Embedding[V, D] as \"layers.2.up\""),
    );
    dtlc.expect(0, &["check", "good.dtl"]);
    for element in ["i32", "u32", "bool"] {
        let param = format!("embed = Embedding[V, D]\n  param q: {element}[D]");
        edited("embed = Embedding[V, D]", &param, &["E0302", &format!("`{element}` can't be trained")]);
    }
}

#[test]
fn cyclic_imports_and_layers() {
    let dtlc = Dtlc::new();
    dtlc.write("a.dtl", "use b::B\nlayer A[D] {\n  b = B[D]\n  fn (x: [D]) -> [D] { b(x) }\n}\n");
    dtlc.write("b.dtl", "use a::A\nlayer B[D] {\n  a = A[D]\n  fn (x: [D]) -> [D] { a(x) }\n}\n");
    refused(&dtlc, &["check", "a.dtl"], &["E0205"]);
    dtlc.write("self.dtl", "use self::A\nlayer A[D] { fn (x: [D]) -> [D] { x } }\n");
    refused(&dtlc, &["check", "self.dtl"], &["E0205"]);
    edited("  up = Linear", "  again = Block[D, F]\n  up = Linear", &["E0206"]);
    edited("    let hidden", "    let hidden0 = loop_of(x)\n    let hidden", &["E0201"]);
}

#[test]
fn absurd_sizes() {
    let dtlc = Dtlc::new();
    let above = (1u64 << 63).to_string();
    let below = ((1u64 << 63) - 1).to_string();
    for (name, size, reason) in [
        ("seq", "99999999999", "E0311"),
        ("F", &above, "E0412"),
        ("F", "99999999999999999999", "E0412"),
        ("F", &below, "E0311"),
        ("D", &below, "E0311"),
        ("L", &below, "E0311"),
        ("L", "1099511627776", "E0311"),
        ("seq", &below, "E0311"),
        ("global", &below, "E0311"),
        ("micro", &below, "E0408"),
    ] {
        for command in ["check", "explain", "verify"] {
            let define = format!("{name}={size}");
            refused(&dtlc, &[command, "tiny.dtl", "-p", "one", "-D", &define], &[reason]);
        }
    }
    let small = ["-D", "D=1", "-D", "F=1", "-D", "L=8589934592"];
    refused(&dtlc, &[&["check", "tiny.dtl", "-p", "one"][..], &small].concat(), &["E0312", "iterations"]);
    for size in [&below, "1099511627776", "4294967296"] {
        refused(&dtlc, &["check", "tiny.dtl", "-p", "tp2", "-D", &format!("tp={size}")], &["E0414"]);
    }
}

/// A model with a parameter of so many dimensions of 2.
fn nested(dims: usize) -> String {
    let names: Vec<String> = (0..dims).map(|dim| format!("D{dim}")).collect();
    let sizes: Vec<String> = names.iter().map(|name| format!("{name} = 2")).collect();
    let (names, sizes) = (names.join(", "), sizes.join(", "));
    format!(
        "model M {{\n  dims B, S, {sizes}\n  param w: [{names}] = normal(1.0)\n  fn loss(x: [B, S]) -> f32[] {{\n    \
         mean(f32(x * sum[{names}](w)))\n  }}\n}}\nplan p for M {{\n  batch {{ seq 8, global 4 }}\n  optimizer adamw \
         {{ lr 1e-2 }}\n}}\n"
    )
}

#[test]
fn products_of_many_dimensions() {
    let dtlc = Dtlc::new();
    for (dims, reason) in [(40, "E0312"), (60, "E0311"), (64, "E0311")] {
        dtlc.write("nested.dtl", nested(dims));
        for command in ["check", "explain", "verify"] {
            refused(&dtlc, &[command, "nested.dtl"], &[reason]);
        }
    }
    dtlc.write("nested.dtl", nested(16));
    dtlc.expect(0, &["check", "nested.dtl"]);
}

#[test]
fn numbers_out_of_range() {
    for number in ["1e300", "1e999", "1.0 / 0.0", "log(0.0)", "sqrt(0.0 - 1.0)", "0.0 - 1.0"] {
        let dtlc = Dtlc::new();
        let model = "model M {\n  dims B, S, D = 4\n  param w: [D] = normal(NUMBER)\n  fn loss(x: [B, S, D]) -> \
                     f32[] {\n    mean(f32(x * w))\n  }\n}\n";
        dtlc.write("wide.dtl", model.replace("NUMBER", number));
        refused(&dtlc, &["check", "wide.dtl"], &["wide.dtl:3:"]);
    }
}

#[test]
fn deep_nesting() {
    let dtlc = Dtlc::new();
    for depth in [300, 100_000] {
        for (open, close) in [("(", ")"), ("-", ""), ("tanh(", ")"), ("if true { ", " } else { x }")] {
            let deep = format!("{}x{}", open.repeat(depth), close.repeat(depth));
            dtlc.write("deep.dtl", tiny().replace("tanh(up(x))", &deep));
            for command in ["check", "fmt"] {
                refused(&dtlc, &[command, "deep.dtl"], &["E0106"]);
            }
        }
    }
    let open = "/*".repeat(100_000);
    dtlc.write("deep.dtl", format!("{open}\n{}", tiny()));
    refused(&dtlc, &["check", "deep.dtl"], &["E0103"]);
    // Loops in each other: a stack of a stack of a stack.
    let mut text = "layer L0[D] {\n  fn (x: [D]) -> [D] { x + 1.0 }\n}\n".to_owned();
    for depth in 1..12 {
        let inner = depth - 1;
        text += &format!(
            "layer L{depth}[D] {{\n  inner = repeat[3] L{inner}[D]\n  fn (x: [D]) -> [D] {{ inner(x) }}\n}}\n"
        );
    }
    text += "model M {\n  dims B, S, D = 4\n  param w: [D]\n  top = L11[D]\n  fn loss(x: [B, S]) -> f32[] \
             {\n    mean(f32(sum[D](top(w)) * x))\n  }\n}\n";
    dtlc.write("loops.dtl", text);
    refused(&dtlc, &["check", "loops.dtl"], &["E0312"]);
}

#[test]
fn files_of_ten_megabytes() {
    let dtlc = Dtlc::new();
    let size = 10 << 20;
    let comment = format!("// {}\n", "a comment that goes on ".repeat(4));
    dtlc.write("large.dtl", comment.repeat(size / comment.len()) + &tiny());
    dtlc.expect(0, &["check", "large.dtl"]);
    for (name, text) in [
        ("words.dtl", "word ".repeat(size / 5)),
        ("brackets.dtl", "[".repeat(size)),
        ("line.dtl", format!("model M {{ {} }}", "x".repeat(size))),
        ("lines.dtl", "model M {\n".repeat(size / 10)),
    ] {
        dtlc.write(name, text);
        let outcome = refused(&dtlc, &["check", name], &["E01"]);
        assert!(outcome.stderr.len() < 1 << 20, "{name}: {} bytes of report", outcome.stderr.len());
    }
}

#[test]
fn invalid_utf8_and_control_characters() {
    let dtlc = Dtlc::new();
    let mut binary: Vec<u8> = (0..=255).cycle().take(4096).collect();
    dtlc.write("binary.dtl", &binary);
    binary.retain(|byte| byte.is_ascii());
    dtlc.write("control.dtl", &binary);
    let text = tiny().replace("let hidden", "let\u{1b}[31m \u{202e}hidden\u{7}");
    dtlc.write("escape.dtl", text);
    for (name, code) in [("binary.dtl", "E0110"), ("control.dtl", "E01"), ("escape.dtl", "E01")] {
        for command in ["check", "fmt", "emit"] {
            let arguments = [&[command, name][..], if command == "emit" { &["--stage", "ast"] } else { &[] }];
            let outcome = refused(&dtlc, &arguments.concat(), &[code]);
            let bad = |character: char| {
                (character.is_control() && character != '\n' && character != '\t') || character == '\u{202e}'
            };
            assert!(!outcome.stderr.contains(bad), "{name}: {:?}", outcome.stderr);
        }
    }
}

#[test]
fn byte_order_marks_and_other_line_ends() {
    let dtlc = Dtlc::new();
    let windows = format!("\u{feff}{}", tiny().replace('\n', "\r\n"));
    dtlc.write("windows.dtl", &windows);
    let printed = dtlc.expect(0, &["check", "windows.dtl"]).stdout;
    assert!(printed.contains("no mistakes"), "{printed}");
    dtlc.expect(0, &["fmt", "windows.dtl"]);
    dtlc.expect(0, &["fmt", "--check", "windows.dtl"]);
    dtlc.expect(0, &["check", "windows.dtl"]);
    dtlc.write("wrong.dtl", windows.replace("tanh(up", "tahn(up"));
    let outcome = refused(&dtlc, &["check", "wrong.dtl"], &["wrong.dtl:12:18"]);
    assert!(!outcome.stderr.contains('\r'), "{:?}", outcome.stderr);
    for (text, code) in [("", "E0402"), ("\u{feff}", "E0402"), ("\r\n\r", "E0"), ("\u{feff}\u{feff}", "E01")]
    {
        dtlc.write("almost.dtl", text);
        refused(&dtlc, &["explain", "almost.dtl"], &[code]);
    }
}

#[test]
fn sizes_from_the_command_line() {
    let dtlc = Dtlc::new();
    for flag in ["F=0", "F=-1", "F=many", "F=1e3"] {
        let outcome = refused(&dtlc, &["check", "tiny.dtl", "-D", flag], &["E0412", &format!("-D {flag}")]);
        assert!(!outcome.stderr.contains("tiny.dtl:1:1"), "points at the file: {}", outcome.stderr);
    }
    refused(&dtlc, &["check", "tiny.dtl", "-D", "Q=8"], &["E0412", "-D Q=8"]);
    refused(
        &dtlc,
        &["explain", "tiny.dtl", "-p", "one", "-D", "B=2", "-D", "global=4"],
        &["E0412", "global"],
    );
    refused(&dtlc, &["explain", "tiny.dtl", "-p", "one", "-D", "S=2", "-D", "seq=4"], &["E0412", "seq"]);
    dtlc.expect(0, &["explain", "tiny.dtl", "-p", "one", "-D", "B=4", "-D", "global=4"]);
    // Only one of the plans has the axis.
    let printed = dtlc.expect(0, &["check", "tiny.dtl", "-D", "tp=8"]).stdout;
    assert!(printed.contains("one: 1 rank(s)") && printed.contains("tp2: 16 rank(s)"), "{printed}");
}

#[test]
fn what_is_printed_has_the_sizes_of_the_command_line() {
    let dtlc = Dtlc::new();
    let arguments =
        ["-p", "tp2", "-D", "F=64", "-D", "tp=4", "-D", "S=16", "-D", "global=8", "-D", "micro=2"];
    let printed = dtlc.expect(0, &[&["explain", "tiny.dtl"][..], &arguments].concat()).stdout;
    for part in ["F = 64", "dp: 2, tp: 4", "seq 16", "global 8", "micro 2"] {
        assert!(printed.contains(part), "without `{part}`:\n{printed}");
    }
    dtlc.write("again.dtl", &printed);
    let (first, second) = (
        dtlc.json(&[&["explain", "tiny.dtl"][..], &arguments].concat()),
        dtlc.json(&["explain", "again.dtl", "-p", "tp2"]),
    );
    assert_eq!((&first["memory"]["peak"], &first["flops"]), (&second["memory"]["peak"], &second["flops"]));
}

#[test]
fn mistakes_of_model_and_plan_at_once() {
    let text = tiny().replace("tanh(up(x))", "tahn(up(x))").replace("acts B -> dp", "acts B -> pd");
    let text = text.replace("optimizer adamw { lr 1e-2 }", "optimizer adamw { lr 1e-2, beta 3 }");
    let dtlc = Dtlc::new();
    dtlc.write("wrong.dtl", text);
    refused(&dtlc, &["check", "wrong.dtl"], &["tahn", "`pd`", "beta"]);
    refused(&dtlc, &["explain", "wrong.dtl", "-p", "tp2"], &["tahn", "`pd`", "beta"]);
}

#[test]
fn a_broken_contract_is_told_once_in_units_for_people() {
    let dtlc = Dtlc::new();
    dtlc.write("broken.dtl", tiny().replace("1 all_reduce", "2 all_gather, 3 reduce_scatter"));
    let outcome = refused(&dtlc, &["check", "broken.dtl"], &["all_gather", "reduce_scatter", "all_reduce"]);
    assert_eq!(outcome.stderr.matches("E0502").count(), 1, "{}", outcome.stderr);
    dtlc.write(
        "large.dtl",
        tiny().replace("peak <= 10 MB", "peak <= 10 kB").replace("  expect", "  memory 10 kB\n  expect"),
    );
    refused(&dtlc, &["check", "large.dtl"], &["E0501", "E0502", "kB over", "at most 10.00 kB"]);
}
