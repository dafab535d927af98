//! Odd bytes, deep nesting and large files: reported or taken, never a crash.

use std::time::{Duration, Instant};

use dtlc_lang::{Code, SourceMap, format};

use crate::support::{parse_text, tree};

fn codes(text: &str) -> Vec<Code> {
    parse_text("limits.dtl", text).1.diagnostics.iter().map(|diagnostic| diagnostic.code).collect()
}

fn function(result: &str) -> String {
    format!("fn f(x: [B]) -> [B] {{\n  {result}\n}}\n")
}

#[test]
fn line_ends_and_byte_order_mark_do_not_matter() {
    let unix = "/// Doc.\nlayer A[D] {\n  param w: [D] // note\n}\n";
    let windows = unix.replace('\n', "\r\n");
    assert_eq!(tree(&windows), tree(unix));
    let mut sources = SourceMap::new();
    let id = sources.add_bytes("bom.dtl", &[b"\xef\xbb\xbf", windows.as_bytes()].concat()).expect("UTF-8");
    assert_eq!(
        format(sources.file(id)).as_deref(),
        Ok("/// Doc.\nlayer A[D] {\n  param w: [D]  // note\n}\n")
    );
    assert_eq!(sources.file(id).position(windows.find("param").unwrap_or(0) as u32).line, 3);
}

#[test]
fn bytes_that_are_not_text_are_reported_where_they_stand() {
    let mut sources = SourceMap::new();
    let diagnostic = sources.add_bytes("bad.dtl", b"use a\nuse \xff\n").expect_err("not UTF-8");
    assert_eq!(diagnostic.code, Code::InvalidUtf8);
    assert_eq!(diagnostic.span().map(|span| sources.place(span)).as_deref(), Some("bad.dtl:2:5"));
}

#[test]
fn nesting_is_taken_up_to_the_limit_and_refused_beyond() {
    let nested =
        |open: &str, close: &str, depth: usize| function(&(open.repeat(depth) + "x" + &close.repeat(depth)));
    for (open, close) in
        [("(", ")"), ("f(", ")"), ("{ ", " }"), ("if c { ", " } else { x }"), ("f[K = ", "]")]
    {
        assert_eq!(codes(&nested(open, close, 60)), [], "{open}");
        assert_eq!(codes(&nested(open, close, 100_000)), [Code::TooDeep], "{open}");
    }
    let comment = |depth: usize| "/*".repeat(depth) + &"*/".repeat(depth) + &function("x");
    assert_eq!(codes(&comment(60)), []);
    assert_eq!(codes(&comment(100_000)), [Code::TooDeep]);
}

#[test]
fn chains_are_taken_up_to_the_limit_and_refused_beyond() {
    for link in ["- ", "! ", "x + ", "x == ", "x.a + "] {
        assert_eq!(codes(&function(&(link.repeat(60) + "x"))), [], "{link}");
        assert_eq!(codes(&function(&(link.repeat(50_000) + "x"))), [Code::TooDeep], "{link}");
    }
    assert_eq!(codes(&function(&("x".to_owned() + &".a".repeat(50_000)))), [Code::TooDeep]);
    assert_eq!(codes(&function(&("if c { x } else ".repeat(500) + "{ x }"))), []);
}

#[test]
fn many_errors_are_cut_short() {
    let found = codes(&"layer A[D] {\n  param w\n}\n".repeat(1000));
    assert_eq!(found.len(), 101);
    assert_eq!(found.last(), Some(&Code::TooManyErrors));
}

/// Each took under a second on a busy machine; with anything quadratic in it, minutes.
#[test]
fn time_grows_with_size_only() {
    let size = 200_000;
    let fill = |piece: &str| piece.repeat(size / piece.len());
    let body = |statements: String| format!("fn f(x: [B]) -> [B] {{\n{statements}  x\n}}\n");
    let plan = |entry: String| format!("plan p for M {{\n  {entry}\n}}\n");
    let shapes = [
        fill(include_str!("samples/llama.dtl")),
        format!("layer A[D] {{\n{}}}\n", fill("  param w: [D, K] = normal(0.02) // x\n")),
        body(fill("  let q = rope[S, K](dot[D](x, wq), theta) + 3 * x\n")),
        format!("model A {{\n  dims A{}\n}}\n", fill(", B")),
        function(&format!("f(x{})", fill(", x"))),
        plan(format!("step s: A -> tp at x{}", fill(", x"))),
        plan(format!("step s: A -> tp{}", fill(", x -> tp at y"))),
        plan(format!("expect {{\n{}}}", fill("peak <= 70 GB\n"))),
        format!("layer A[D] {{\n{}}}\n", fill("  param w [D]\n")),
        format!("layer A[D] {{\n{}", fill("  param w: [D]\n")),
        fill("layer A[D] {\n  param w\n}\n"),
        fill("}"),
        fill("{"),
        fill("x "),
        function(&fill("x + ")),
        fill("/* x */ // y\n"),
        function(&format!("\"{}\"", fill("x"))),
    ];
    for text in shapes {
        let start = Instant::now();
        let mut sources = SourceMap::new();
        let id = sources.add("large.dtl", &text);
        let _formatted = format(sources.file(id));
        let elapsed = start.elapsed();
        assert!(elapsed < Duration::from_secs(30), "{elapsed:?} for\n{}", &text[..80]);
    }
}
