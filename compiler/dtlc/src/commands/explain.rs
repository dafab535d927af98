//! `dtlc explain`: placements, collectives, memory and work of a plan; or a diagnostic's long text.

use crate::cli::Explain;
use crate::diagnose::remarks;
use crate::failure::{Failure, show_diagnostics};
use crate::figures::{Figures, annotated, bytes, count, refusals, scaled, shortened};
use crate::load::{SourceText, options};
use crate::output::Output;
use crate::pipeline::{Compilation, Mode, Stage, compile};
use dtlc_lang::suggest::did_you_mean;
use dtlc_lang::{Code, Compiled, SourceMap};
use serde_json::json;
use std::fmt::Write;

/// Lines of memory that people are shown; JSON has all.
const LINES: usize = 12;

/// Explains a file under a plan, or a code.
///
/// # Errors
/// The file is at fault or breaks what its plan promises, or there is no such code.
pub fn run(arguments: &Explain, output: &Output) -> Result<(), Failure> {
    let subject = arguments.subject.to_string_lossy();
    if is_code(&subject) && !arguments.subject.exists() {
        return explain_code(&subject, output);
    }
    let source = SourceText::read(&arguments.subject)?;
    let compiled = source.compile(&options(&arguments.choice))?;
    let mode = Mode::of_plan(compiled.plan.as_ref());
    let compilation = compile(&compiled, mode, Stage::Program)
        .map_err(|trouble| trouble.into_failure(&compiled.sources))?;
    let figures = Figures::new(&compiled, &compilation)?;
    let refused = refusals(&compiled, &compilation, &figures)?;
    if !refused.is_empty() {
        return Err(Failure::Input { diagnostics: refused, sources: compiled.sources });
    }
    let remarks = remarks(&compiled, &compilation);
    if !remarks.is_empty() {
        show_diagnostics(&remarks, &compiled.sources, output);
    }
    if output.json {
        return output.json(&figures);
    }
    let overridden: Vec<String> = arguments.choice.define.iter().map(|(name, _)| name.clone()).collect();
    let model = annotated(&compiled, &compilation, &figures, &overridden)?;
    output.text(&canonical(&format!("{model}\n{}", report(&compiled, &compilation, &figures)))?)
}

/// The annotated file as `fmt` writes it: what was added makes lines longer, and has the indent of the line above.
fn canonical(text: &str) -> Result<String, Failure> {
    let mut sources = SourceMap::new();
    let file = sources.add("explained.dtl", text);
    dtlc_lang::format(sources.file(file))
        .map_err(|_| Failure::Bug("what `explain` would print is no legal input".to_owned()))
}

/// `E` and four digits.
fn is_code(subject: &str) -> bool {
    let digits = subject.strip_prefix(['E', 'e']);
    digits.is_some_and(|digits| digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

fn explain_code(number: &str, output: &Output) -> Result<(), Failure> {
    let Some(code) = Code::from_number(number) else {
        let near = did_you_mean(number, Code::ALL.iter().map(|code| code.number()));
        let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        return Err(Failure::Usage(format!("there is no diagnostic {number}{near}")));
    };
    if output.json {
        let (title, text) = (code.title(), code.explanation());
        return output.json(&json!({ "code": code.number(), "title": title, "text": text }));
    }
    output.text(&format!("{}: {}\n\n{}\n", code.number(), code.title(), code.explanation().trim_end()))
}

/// The figures as comments, so that the whole output is legal input.
fn report(compiled: &Compiled, compilation: &Compilation, figures: &Figures) -> String {
    let mut text = String::new();
    let plan = compiled.plan.as_ref().map_or("no plan", |plan| plan.name.as_str());
    let mesh: Vec<String> = figures.mesh.iter().map(|(axis, size)| format!("{axis} {size}")).collect();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "// {} under {plan}: {} rank(s) {}",
        compiled.model.name,
        figures.ranks,
        mesh.join(" x ")
    );
    let _ = writeln!(text, "// parameters: {}", count(figures.params));
    let units = ["", "k", "M", "G", "T", "P", "E"];
    let (model, hardware) = (scaled(figures.flops.model, &units), scaled(figures.flops.hardware, &units));
    let _ = writeln!(
        text,
        "// FLOPs of a step on a rank (products and attention; causal attention as half): model {model}, hardware {hardware}"
    );
    memory_text(&mut text, figures);
    collectives_text(&mut text, figures);
    let pipeline = &figures.pipeline;
    let _ =
        writeln!(text, "// pipeline: {} stage, {} micro-batch(es)", pipeline.stages, pipeline.microbatches);
    for (path, rule) in compilation.sharded.iter().flat_map(|sharded| &sharded.left_whole) {
        let _ = writeln!(text, "// stored whole, as nothing divides it: {path} ({rule})");
    }
    text
}

fn memory_text(text: &mut String, figures: &Figures) {
    let memory = &figures.memory;
    let _ = writeln!(text, "//\n// memory of a rank: {} at the peak", bytes(memory.peak));
    for (name, size) in [
        ("parameters", memory.params),
        ("gradients", memory.grads),
        ("optimizer", memory.optimizer),
        ("activations", memory.activations),
        ("workspace", memory.workspace),
    ] {
        let _ = writeln!(text, "//   {:>10}  {name}", bytes(size));
    }
    let _ = writeln!(text, "// the largest of it, by line:");
    for line in memory.by_line.iter().take(LINES) {
        let values = line.values.iter().take(4).map(String::as_str).collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "//   {:>10}  {}  {values}", bytes(line.bytes), line.span);
    }
    for one in &figures.chunked {
        let _ = writeln!(
            text,
            "// `{}` ({}) is never whole: nothing needs all of it at once, and it would take {}. It is computed in {} chunks of `{}`",
            one.name,
            one.span,
            bytes(one.bytes),
            one.chunks,
            one.dim
        );
    }
}

fn collectives_text(text: &mut String, figures: &Figures) {
    if figures.collectives.is_empty() {
        let _ = writeln!(text, "//\n// collectives: none");
        return;
    }
    let _ = writeln!(
        text,
        "//\n// collectives: per run of the scope, per step, bytes of a call, bytes on the wire"
    );
    for one in &figures.collectives {
        let _ = writeln!(
            text,
            "//   {:<9} {:<14} {:<6} {:<10} {:>3} {:>5} {:>10} {:>10}  {}: {}",
            one.phase,
            one.kind,
            one.axis,
            one.scope,
            one.per_run,
            one.per_step,
            bytes(one.bytes),
            bytes(one.wire_bytes),
            one.span,
            shortened(&one.reasons)
        );
    }
}
