//! Every diagnostic with a small source that provokes it: `*.md` beside this file, one section a code.
//!
//! A section has a `dtl` block (the file `case.dtl`, or a sentence about a file that is made here), `sh` where the
//! command is not `dtlc check case.dtl`, the report, and the hint applied: as an edit where the diagnostic has one, else
//! as a `diff` of the file, or as a second command. What is left is without mistakes. `DTLC_UPDATE=1` writes the reports
//! anew; read the difference before it is kept.

use dtlc_lang::Code;
use dtlc_runtime::files::weights::save_tensors;
use dtlc_runtime::tensor::HostTensor;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const DOCUMENTS: [&str; 5] = ["syntax.md", "names.md", "types.md", "plans.md", "costs.md"];

/// Reports are read in terminals of this width.
const COLUMNS: usize = 80;

/// What provokes it is a bug, and gets mended.
const OURS: Code = Code::Fault;

/// Says that something could be left out; with it nothing fails.
const WARNING: Code = Code::NoEffect;

/// One section of a document.
struct Section {
    number: String,
    source: Option<String>,
    commands: Vec<String>,
    report: String,
    /// Old and new text, in order.
    edits: Vec<(String, String)>,
}

#[test]
fn reports_are_as_shown() {
    for name in DOCUMENTS {
        let text = read(&path(name));
        let mut renewed = text.clone();
        for section in sections(&text) {
            let report = report(&section);
            let head = format!("## {}\n", section.number);
            renewed = with_report(&renewed, &head, &report);
        }
        if std::env::var_os("DTLC_UPDATE").is_some() {
            fs::write(path(name), renewed).expect("the document can be written");
        } else {
            assert_eq!(text, renewed, "reports of {name} changed; DTLC_UPDATE=1 writes them");
        }
    }
}

#[test]
fn every_code_has_a_section_and_a_page() {
    let sections = all();
    for &code in Code::ALL {
        let shown = sections.iter().filter(|section| section.number == code.number()).count();
        assert_eq!(shown, usize::from(code != OURS), "sections of {}", code.number());
        let output = Command::new(env!("CARGO_BIN_EXE_dtlc")).args(["explain", code.number()]).output();
        let output = output.expect("dtlc runs");
        let page = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && page.contains(code.title()), "{page}");
        assert!(page.ends_with('\n') && page.lines().count() >= 3, "{page}");
    }
}

#[test]
fn reports_fit_a_terminal_and_are_of_one_code() {
    for section in all() {
        let number = &section.number;
        for line in section.report.lines() {
            assert!(line.chars().count() <= COLUMNS, "{number} is too wide: {line}");
        }
        let codes = section.report.lines().filter(|line| *line == number.as_str()).count();
        assert_eq!(codes, 1, "{number} is not what its section shows:\n{}", section.report);
        let head = if section.is_warning() { "\n  ⚠ " } else { "\n  × " };
        assert_eq!(section.report.matches(head).count(), 1, "{number}:\n{}", section.report);
    }
}

#[test]
fn hints_are_right() {
    let mut faults = Vec::new();
    for section in all() {
        if let Err(fault) = mended(&section) {
            faults.push(format!("{}: {fault}", section.number));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

/// Applies the section's hint; says what is wrong with it, if anything is.
fn mended(section: &Section) -> Result<(), String> {
    // A file that is only described is not mended either.
    if section.source.is_none() {
        return Ok(());
    }
    let folder = folder(section);
    let failed = run(folder.path(), &format!("{} --json", section.command()));
    let printed = if section.is_warning() { &failed.stdout } else { &failed.stderr };
    let diagnostics: Value = serde_json::from_slice(printed).map_err(|error| error.to_string())?;
    let hint = &diagnostics["diagnostics"][0]["hint"];
    let text = hint["text"].as_str().unwrap_or_default();
    let command = section.commands.get(1).map_or_else(|| section.command(), String::as_str);
    let case = folder.path().join("case.dtl");
    if hint["edit"].is_object() {
        let edit = &hint["edit"];
        let at = |key: &str| edit[key].as_u64().unwrap_or_default() as usize;
        let mut source = read(&case);
        source.replace_range(at("start")..at("end"), edit["text"].as_str().unwrap_or_default());
        fs::write(&case, source).map_err(|error| error.to_string())?;
    } else if !section.edits.is_empty() {
        let mut source = read(&case);
        for (old, new) in &section.edits {
            if source.matches(old.as_str()).count() != 1 {
                return Err(format!("not once in the source: {old}"));
            }
            source = source.replace(old.as_str(), new);
        }
        fs::write(&case, source).map_err(|error| error.to_string())?;
    } else if section.commands.len() < 2 {
        // A file that is only described is not mended either.
        let described = section.source.is_none();
        return if text.is_empty() || described { Ok(()) } else { Err(format!("nobody applies `{text}`")) };
    }
    let mut new: Vec<&str> = section.edits.iter().map(|(_, new)| new.as_str()).collect();
    new.extend(section.commands.get(1).map(String::as_str));
    if !hint["edit"].is_object() && !text.is_empty() && !applies(&new.join("\n"), text) {
        return Err(format!("the hint is `{text}`, and this is not it: {new:#?}"));
    }
    let output = run(folder.path(), command);
    match output.status.success() && (output.stderr.is_empty() || !section.is_warning()) {
        true => Ok(()),
        false => Err(format!("the hint is no help:\n{}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// Whether what is new has a word of the hint's code: of what stands in backticks, else of all in front of a comment.
/// Hints may show a form, `select(condition, a, b)`, so not every word of them has to be there.
fn applies(new: &str, hint: &str) -> bool {
    let quoted: Vec<&str> = hint.split('`').skip(1).step_by(2).collect();
    let code = if quoted.is_empty() { hint.split("    //").collect() } else { quoted };
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let words = code[0].split(|c| !word(c)).filter(|word| word.len() > 1);
    words.chain([code[0]]).any(|word| new.to_lowercase().contains(&word.to_lowercase()))
}

impl Section {
    /// What provokes the diagnostic.
    fn command(&self) -> &str {
        self.commands.first().map_or("dtlc check case.dtl", String::as_str)
    }

    fn is_warning(&self) -> bool {
        self.number == WARNING.number()
    }
}

fn report(section: &Section) -> String {
    let folder = folder(section);
    let output = run(folder.path(), section.command());
    let status = i32::from(!section.is_warning());
    assert_eq!(output.status.code(), Some(status), "{}: {output:?}", section.number);
    let printed = String::from_utf8(output.stderr).expect("UTF-8");
    if section.source.is_some() {
        return printed;
    }
    // What is made to go wrong at large goes wrong in other ways too.
    let lines: Vec<&str> = printed.lines().collect();
    let start = lines.iter().position(|line| *line == section.number).unwrap_or(0);
    let is_code = |line: &&str| line.len() == 5 && Code::from_number(line).is_some();
    let end = lines[start + 1..].iter().position(is_code).map_or(lines.len(), |end| start + 1 + end);
    lines[start..end].join("\n")
}

/// A folder with the section's file and those that sections only describe.
fn folder(section: &Section) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).expect("written");
    if let Some(source) = &section.source {
        write("case.dtl", source.as_bytes());
    }
    let command = section.command();
    let made = |name: &str| command.split(' ').any(|word| word == name);
    if made("deep.dtl") {
        let nested = format!("fn f(x: [B]) -> [B] {{\n  {}x{}\n}}\n", "(\n".repeat(100), ")\n".repeat(100));
        write("deep.dtl", nested.as_bytes());
    }
    if made("latin.dtl") {
        write("latin.dtl", b"// \xdcber Schichten\nlayer A[D] {}\n");
    }
    if made("large.dtl") {
        let file = fs::File::create(folder.path().join("large.dtl")).expect("created");
        file.set_len(65 << 20).expect("made large without writing it");
    }
    if made("noise.dtl") {
        write("noise.dtl", "layer [\n}\n".repeat(300).as_bytes());
    }
    if made("ring.dtl") {
        for (name, other) in [("ring", "round"), ("round", "ring")] {
            let text = format!("use {other}::f_{other}\n\nfn f_{name}(x: [..]) -> [..] {{ x }}\n");
            write(&format!("{name}.dtl"), text.as_bytes());
        }
    }
    if made("doubling.dtl") {
        let mut text = "fn f0(x: [..]) -> [..] { x + x }\n".to_owned();
        for level in 1..60 {
            text += &format!("fn f{level}(x: [..]) -> [..] {{ f{0}(f{0}(x)) }}\n", level - 1);
        }
        text += "model M {\n  dims B\n  fn loss(x: [B]) -> f32[] { sum(f32(f59(x))) }\n}\n";
        write("doubling.dtl", text.as_bytes());
    }
    if made("short.safetensors") {
        let tensors = [("x".to_owned(), HostTensor::from_f32(&[8, 3], &[0.5; 24]))].into();
        save_tensors(&folder.path().join("short.safetensors"), &tensors).expect("written");
    }
    folder
}

fn run(folder: &Path, command: &str) -> Output {
    let mut words = command.split(' ');
    assert_eq!(words.next(), Some("dtlc"), "{command}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_dtlc"));
    command.args(words).current_dir(folder).output().expect("dtlc runs")
}

fn all() -> Vec<Section> {
    DOCUMENTS.iter().flat_map(|name| sections(&read(&path(name)))).collect()
}

fn sections(document: &str) -> Vec<Section> {
    let texts = document.split("\n## ").skip(1);
    texts.map(section).collect()
}

fn section(text: &str) -> Section {
    let number = text.lines().next().unwrap_or_default().to_owned();
    let mut section =
        Section { number, source: None, commands: Vec::new(), report: String::new(), edits: Vec::new() };
    let mut parts = text.split("```");
    parts.next();
    // What stands in fences is every second part.
    for block in parts.step_by(2) {
        let (kind, content) = block.split_once('\n').unwrap_or((block, ""));
        match kind {
            "dtl" => section.source = Some(content.to_owned()),
            "sh" => section.commands.push(content.trim().to_owned()),
            "text" => section.report = content.to_owned(),
            "diff" => section.edits.push(edit(content)),
            other => panic!("{}: a block of {other}", section.number),
        }
    }
    section
}

/// The lines with `-` and those with `+`.
fn edit(block: &str) -> (String, String) {
    let of = |sign: char| block.lines().filter_map(|line| line.strip_prefix(sign)).collect::<Vec<_>>();
    (of('-').join("\n"), of('+').join("\n"))
}

/// A document with the report of one section put in its place: behind the source and the command, in front of the hint.
fn with_report(document: &str, head: &str, report: &str) -> String {
    let at = document.find(head).map(|at| at + head.len()).expect("the section");
    let end = document[at..].find("\n## ").map_or(document.len(), |end| at + end);
    let section = &document[at..end];
    let block = format!("```text\n{}\n```\n", report.trim_end());
    let section = match section.split_once("```text\n") {
        Some((before, after)) => {
            let after = after.split_once("\n```\n").map_or("", |(_, after)| after);
            format!("{before}{block}{after}")
        }
        None => {
            let mut parts: Vec<&str> = section.split_inclusive("\n```\n").collect();
            let command = parts.iter().position(|part| part.contains("```sh\n"));
            let place =
                command.or(parts.iter().position(|part| part.contains("```dtl\n"))).map_or(0, |it| it + 1);
            let block = format!("\n{block}");
            parts.insert(place, &block);
            parts.concat()
        }
    };
    format!("{}{section}{}", &document[..at], &document[end..])
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gallery").join(name)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
