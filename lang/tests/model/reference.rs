//! The parts of the reference that are made from the grammar and from the standard library: `docs/grammar.md` and
//! `docs/stdlib.md`.
//!
//! `DTLC_UPDATE=1 cargo test -p dtlc-lang --test model reference` writes them anew.

use crate::support::{in_project, read};
use dtlc_lang::elaborate::STDLIB;
use std::collections::BTreeMap;

const GRAMMAR: &str = "# The grammar

Made from `grammar/dtl.pest`, which has what is left out here: spaces, comments, and where a line must end. Words of the
language stand in quotes; `?` may be left out, `*` is any number of times, `+` at least once, `|` either.

```
";

const LIBRARY: &str = "# The standard library

Made from `stdlib/`, which is written in `.dtl` and worth reading. `[I -> O]` are a layer's dimensions, in parentheses its
hyper-parameters with their defaults; below stand its parameters and functions.
";

#[test]
fn the_generated_parts_are_fresh() {
    let grammar = String::from_utf8(read("grammar/dtl.pest")).expect("UTF-8");
    for (path, text) in [("docs/grammar.md", grammar_page(&grammar)), ("docs/stdlib.md", library_page())] {
        if std::env::var_os("DTLC_UPDATE").is_some() {
            std::fs::write(in_project(path), &text).expect("the page can be written");
        }
        let kept = String::from_utf8(read(path)).expect("UTF-8");
        assert_eq!(kept, text, "{path} is stale; DTLC_UPDATE=1 writes it");
    }
}

#[test]
fn lookaheads_and_helpers_are_left_out() {
    let grammar = "kw_a = @{ \"a\" ~ !rest }\ncomma = { \",\" }\nend = _{ !kw_a ~ &(x | \"}\") }\n\
                   // ---- items\nx = ${ kw_a ~ (!comma ~ y ~ comma)* ~ y{0, 3}? ~ end }\ny = _{ \"b\" | !x ~ \"c\" }\n";
    let page = grammar_page(grammar);
    let rules: Vec<&str> = page.lines().filter(|line| line.contains(" = ")).collect();
    assert_eq!(rules, ["x = \"a\" (y \",\")* y{0, 3}?", "y = \"b\" | \"c\""]);
}

/// Every rule from the first section on that is not about words and signs.
fn grammar_page(grammar: &str) -> String {
    let rules = rules(grammar);
    let signs: BTreeMap<&str, String> =
        rules.iter().filter_map(|(name, body)| Some((*name, sign(name, body)?))).collect();
    let (_, sections) = grammar.split_once("// ---- items").expect("a section of items");
    let mut page = GRAMMAR.to_owned();
    for line in format!("// ---- items{sections}").lines() {
        if let Some(title) = line.strip_prefix("// ---- ") {
            page += &format!("{}// {title}\n", if page.ends_with("```\n") { "" } else { "\n" });
        } else if let Some((name, _)) = line.split_once(" = ").or(line.split_once("= "))
            && let Some((name, body)) = rules.iter().find(|(known, _)| *known == name.trim())
        {
            let body = printed(body, &signs);
            if !body.is_empty() && !signs.contains_key(name) {
                page += &format!("{name} = {body}\n");
            }
        }
    }
    page + "```\n"
}

/// Names and bodies, in order.
fn rules(grammar: &str) -> Vec<(&str, Vec<&str>)> {
    let mut rules = Vec::new();
    let mut tokens = tokens(grammar).into_iter().peekable();
    while let Some(name) = tokens.next() {
        if tokens.next_if_eq(&"=").is_none() {
            continue;
        }
        // The kind of rule, then its body in braces.
        while tokens.next_if(|token| *token != "{").is_some() {}
        tokens.next();
        let (mut depth, mut body) = (1, Vec::new());
        for token in tokens.by_ref() {
            depth += i32::from(token == "{") - i32::from(token == "}");
            if depth == 0 {
                break;
            }
            body.push(token);
        }
        rules.push((name, body));
    }
    rules
}

/// Texts in quotes, words, and single signs; comments are dropped.
fn tokens(grammar: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = grammar.trim_start();
    while let Some(first) = rest.chars().next() {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let length = match first {
            '/' => rest.find('\n').unwrap_or(rest.len()),
            '"' => {
                let mut escaped = false;
                let end = rest[1..].find(|c| {
                    let ends = c == '"' && !escaped;
                    escaped = c == '\\' && !escaped;
                    ends
                });
                end.map_or(rest.len(), |end| end + 2)
            }
            _ if word(first) => rest.find(|c| !word(c)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        if first != '/' {
            tokens.push(&rest[..length]);
        }
        rest = rest[length..].trim_start();
    }
    tokens
}

/// A rule that is one text, or `kw_…`: as that text.
fn sign(name: &str, body: &[&str]) -> Option<String> {
    let text = body.first().filter(|token| token.starts_with('"'))?;
    let plain = body.len() == 1 || name.starts_with("kw_") || (body.len() == 4 && body[2] == "!");
    (plain && !body.contains(&"|")).then(|| (*text).to_owned())
}

/// A body without lookaheads, `~`, and what is nothing without them.
fn printed(body: &[&str], signs: &BTreeMap<&str, String>) -> String {
    let mut alternatives = vec![String::new()];
    let mut index = 0;
    while index < body.len() {
        let token = body[index];
        let last = alternatives.last_mut().expect("there is one");
        match token {
            "!" | "&" => index = end_of(body, index + 1),
            "~" => index += 1,
            "|" => {
                alternatives.push(String::new());
                index += 1;
            }
            "(" => {
                let end = end_of(body, index);
                let inner = printed(&body[index + 1..closing(body, index)], signs);
                let repeat: String = body[closing(body, index) + 1..end].concat();
                if !inner.is_empty() {
                    append(last, &format!("({inner}){}", repeat.replace(',', ", ")));
                }
                index = end;
            }
            "?" | "*" | "+" => {
                last.push_str(token);
                index += 1;
            }
            "{" => {
                let close = closing(body, index);
                last.push_str(&body[index..=close].concat().replace(',', ", "));
                index = close + 1;
            }
            name => {
                if !matches!(name, "member_end" | "entry_end" | "end" | "blank" | "SOI" | "EOI") {
                    append(last, signs.get(name).map_or(name, String::as_str));
                    index += 1;
                } else {
                    index = end_of(body, index);
                }
            }
        }
    }
    alternatives.retain(|alternative| !alternative.is_empty());
    alternatives.join(" | ")
}

fn append(text: &mut String, word: &str) {
    text.push_str(if text.is_empty() { "" } else { " " });
    text.push_str(word);
}

/// Behind what begins at `index`, its repetition included.
fn end_of(body: &[&str], index: usize) -> usize {
    let mut end = if body[index] == "(" { closing(body, index) + 1 } else { index + 1 };
    while let Some(&("?" | "*" | "+" | "{")) = body.get(end) {
        end = if body[end] == "{" { closing(body, end) + 1 } else { end + 1 };
    }
    end
}

/// The bracket that closes the one at `index`.
fn closing(body: &[&str], index: usize) -> usize {
    let mut depth = 0;
    let closes = |token: &&str| {
        depth += i32::from(["(", "{"].contains(token)) - i32::from([")", "}"].contains(token));
        depth == 0
    };
    index + body[index..].iter().position(closes).expect("brackets are closed")
}

/// Every item of every module, with its documentation and the heads of what is in it.
fn library_page() -> String {
    let mut page = LIBRARY.to_owned();
    for (module, text) in STDLIB {
        page += &format!("\n## `std::{module}`\n\n");
        let about = text.lines().take_while(|line| line.starts_with("//"));
        let about: Vec<&str> = about.map(|line| line.trim_start_matches('/').trim()).collect();
        page += &format!("{}\n", about.join("\n"));
        for item in items(text) {
            page += &format!("\n```\n{}\n```\n", item.heads.join("\n"));
            if !item.documentation.is_empty() {
                page += &format!("\n{}\n", item.documentation.join("\n"));
            }
        }
    }
    page
}

#[derive(Default)]
struct Item<'a> {
    documentation: Vec<&'a str>,
    heads: Vec<String>,
}

/// Whether the last item is a layer, whose members stand two spaces in; a function's body stands there too.
fn in_layer(items: &[Item]) -> bool {
    items.last().and_then(|item| item.heads.first()).is_some_and(|head| head.starts_with("layer "))
}

/// Whether a line begins a condition, dimensions or a sub-layer.
fn is_member(line: &str) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let (name, _) = line.trim_start().split_once(" = ").unwrap_or_default();
    // Deeper stand the arguments of a call that takes several lines.
    let is_layer = !name.is_empty() && name.chars().all(word) && !line.starts_with("     ");
    line.starts_with("  if ") || line.starts_with("  dims ") || is_layer
}

/// The items of a file in canonical form: what is indented belongs to the item above.
fn items(text: &str) -> Vec<Item<'_>> {
    let mut items: Vec<Item> = Vec::new();
    let mut documentation = Vec::new();
    let mut head: Option<String> = None;
    for line in text.lines() {
        let trimmed = line.trim();
        if let Some(part) = &mut head {
            // A list that takes several lines.
            let glue = if part.ends_with('(') || trimmed.starts_with(')') { "" } else { " " };
            part.push_str(glue);
            part.push_str(trimmed);
        } else if let Some(line) = line.strip_prefix("///") {
            documentation.push(line.trim());
        } else if ["layer ", "fn ", "optimizer "].iter().any(|word| line.starts_with(word)) {
            items.push(Item { documentation: std::mem::take(&mut documentation), heads: Vec::new() });
            head = Some(line.to_owned());
        } else if ["param ", "fn ", "state "].iter().any(|word| trimmed.starts_with(word)) {
            let depth = if trimmed.starts_with("fn ") { 2 } else { line.len() - line.trim_start().len() };
            head = Some(format!("{}{trimmed}", " ".repeat(depth)));
        } else if in_layer(&items) && is_member(line) {
            head = Some(line.to_owned());
        }
        let complete =
            head.as_ref().is_some_and(|head| head.matches('(').count() == head.matches(')').count());
        if complete && let Some(text) = head.take() {
            let text = text.strip_suffix(" {").unwrap_or(&text).to_owned();
            items.last_mut().expect("heads stand in items").heads.push(text);
        }
    }
    items
}
