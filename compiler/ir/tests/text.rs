//! The text of a program reads back as the same program.

mod numbers;
mod random;

use dtlc_ir::text::{canonical, parse, print, print_around, print_step};
use dtlc_ir::verify::{instructions, scheduled, sharded, structure};
use numbers::Numbers;
use random::random_program;

const EVERY_OP: &str = include_str!("samples/every_op.ir");

#[test]
fn a_sample_with_every_operation_prints_as_written() {
    let program = parse(EVERY_OP).unwrap();
    assert_eq!(print(&program), EVERY_OP);
    assert_eq!(canonical(&program), program);
}

#[test]
fn random_programs_survive_the_round_trip() {
    for seed in 0..500 {
        let program = random_program(seed);
        let text = print(&program);
        let parsed = parse(&text).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"));
        assert_eq!(parsed, canonical(&program), "seed {seed}\n{text}");
        assert_eq!(print(&parsed), text, "seed {seed}");
    }
}

#[test]
fn undefined_values_leave_no_trace_in_the_text() {
    let mut program = parse(EVERY_OP).unwrap();
    let unused = program.add_value(dtlc_ir::Type::scalar(dtlc_ir::DType::F32), program.no_origin());
    program.bindings.push(dtlc_ir::Binding {
        scope: program.bindings[0].scope,
        name: "unused".into(),
        value: unused,
    });
    assert_eq!(print(&program), EVERY_OP);
}

#[test]
fn the_step_alone_has_phases_as_headings() {
    let program = parse(EVERY_OP).unwrap();
    let step = print_step(&program);
    assert!(step.starts_with("main(\n  %embed: bf16[V@tp.0@tp.1, D] param,\n"), "{step}");
    assert!(step.contains("  // backward\n  %dq: bf16[B@dp, S, KV, G, K], %dk"), "{step}");
    assert!(!step.contains("loc("), "{step}");
}

#[test]
fn a_message_stands_under_its_instruction() {
    let program = parse(EVERY_OP).unwrap();
    let scan = program.main.insts.iter().position(|inst| inst.op.region().is_some()).unwrap();
    let text = print_around(&program, &[scan, 1], "this is wrong\nin two lines");
    let expected = "    %hout: f32[B] = neg %hin loc(model.dtl:20:1 layers) backward\n    // ^ this is wrong\n    //   in two lines\n";
    assert!(text.contains(expected), "{text}");
    assert!(!text.contains("%embed:"), "{text}");
}

#[test]
fn errors_say_where() {
    let cases = [
        ("program p {", "1:12: expected"),
        ("program p { main() { yield %x } }", "1:28: nothing defines this value: `%x`"),
        ("program p { main(%x: f32[A]) { yield } }", "1:26: no dimension has this name: `A`"),
        (
            "program p { dims { A = 2, A = 3 } main() { yield } }",
            "1:27: this dimension is there already: `A`",
        ),
        (
            "program p { dims { A = 99999999999999999999 } main() { yield } }",
            "1:24: this number is out of range",
        ),
        (
            "program p { dims { A = 2 }\n main(%x: f32[A@tp]) { yield } }",
            "2:17: the mesh has no such axis: `tp`",
        ),
        (
            "program p { dims { A = 2 }\n main(%x: f32[A, A]) { yield } }",
            "2:18: a dimension stands once in a type: `A`",
        ),
        (
            "program p { mesh { tp: 2 }\n main(%x: f32[] partial(sum: tp, max: tp)) { yield } }",
            "2:39: an axis stands once in `partial`: `tp`",
        ),
        ("program p { main(%x: f32[], %x: f32[]) { yield } }", "1:29: this value is there already: `%x`"),
        ("program p { main() { %x: f32[] = nonsense forward yield } }", "1:34: unknown word: `nonsense`"),
        ("program p { main() { %x: f32[] = reshard forward yield } }", "1:34: a reshard has one reason"),
        (
            "program p { dims { A = 2 } main() { scan[A, carries 0, stacks 0] forward yield } }",
            "this has a body",
        ),
        ("program p { main() { %x: f32[] = const 1.0 forward () { yield } yield } }", "this has no body"),
    ];
    for (text, expected) in cases {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}\n{error}");
    }
}

/// `text` with a few of its words gone, doubled, or in each other's place.
fn garbled(text: &str, numbers: &mut Numbers) -> String {
    let mut words: Vec<&str> = text.split_inclusive([' ', ',', '[', '(', '\n']).collect();
    for _ in 0..1 + numbers.below(3) {
        let (one, other) = (numbers.below(words.len()), numbers.below(words.len()));
        match numbers.below(4) {
            0 => drop(words.remove(one)),
            1 => words.insert(one, words[one]),
            2 => words.swap(one, other),
            _ => words[one] = words[other],
        }
    }
    words.concat()
}

#[test]
fn no_text_makes_parser_or_verifier_panic() {
    let mut numbers = Numbers::new(5);
    let mut parsed = 0;
    for round in 0..1500 {
        let text = match round % 3 {
            0 => print(&random_program(round)),
            _ => EVERY_OP.to_string(),
        };
        let Ok(program) = parse(&garbled(&text, &mut numbers)) else { continue };
        parsed += 1;
        print(&program);
        // Most programs fail; what matters is that they fail as faults.
        for result in [structure(&program), sharded(&program).map(|_| ()), scheduled(&program).map(|_| ())] {
            result.err().map(|fault| fault.to_string()).unwrap_or_default();
        }
        instructions(&program).err().map(|fault| fault.to_string()).unwrap_or_default();
    }
    assert!(parsed > 150, "only {parsed} garbled texts parsed");
}
