//! The wording of syntax errors: what was expected, what was found, the likely slip, what to write.
//!
//! From pest's failure or a refused node to a [`Diagnostic`]. Decides nothing about what is legal.

use pest::error::{Error, ErrorVariant};

use super::grammar::Rule;
use super::pieces::{ITEM_KEYWORDS, Pieces};
use super::plan::ENTRY_KEYWORDS;
use super::rule_name::{Likelihood, rule_name};
use crate::ast::Statement;
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::lex::TokenKind;
use crate::source::Span;
use crate::suggest::did_you_mean;

/// Units of memory, as they are written.
const UNITS: [&str; 9] = ["B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"];

/// A piece that its rule does not take. `start` is the piece's first token, `found` the one at fault.
pub(super) fn unexpected(
    pieces: &Pieces<'_>,
    rule: Rule,
    error: &Error<Rule>,
    start: usize,
    found: usize,
) -> Diagnostic {
    let expected = expected_rules(error);
    let shown = found_text(pieces, found);
    let list = listed(&expected);
    let title = if list.is_empty() {
        format!("unexpected {shown}")
    } else {
        format!("expected {list}, found {shown}")
    };
    let label = if list.is_empty() { "not expected here".to_owned() } else { format!("expected {list}") };
    let diagnostic = Diagnostic::error(Code::UnexpectedToken, title).label(pieces.span_of(found), label);
    let diagnostic = match piece_name(rule) {
        Some(name) if found > start => diagnostic.label(pieces.span_of(start), format!("in this {name}")),
        _ => diagnostic,
    };
    likely_slip(pieces, diagnostic, &expected, found)
}

/// Text outside all items.
pub(super) fn not_an_item(pieces: &Pieces<'_>, index: usize) -> Diagnostic {
    let found = pieces.text(index);
    let span = pieces.span_of(index);
    let diagnostic = Diagnostic::error(
        Code::UnknownItem,
        format!("expected an item, found {}", found_text(pieces, index)),
    )
    .label(span, "no item begins like this")
    .why("a file is a list of `use`, `layer`, `model`, `optimizer`, `fn` and `plan`");
    match did_you_mean(found, ITEM_KEYWORDS) {
        Some(near) => diagnostic.hint_edit(near, span, near),
        None => diagnostic,
    }
}

/// An entry of a plan that does not begin with a known word.
pub(super) fn not_a_plan_entry(pieces: &Pieces<'_>, index: usize) -> Diagnostic {
    let found = pieces.text(index);
    let span = pieces.span_of(index);
    let diagnostic = Diagnostic::error(
        Code::UnknownPlanItem,
        format!("expected an entry of a plan, found {}", found_text(pieces, index)),
    )
    .label(span, "no entry begins like this")
    .note(format!("entries are {}", quoted(&ENTRY_KEYWORDS, "and")));
    match did_you_mean(found, ENTRY_KEYWORDS) {
        Some(near) => diagnostic.hint_edit(near, span, near),
        None => diagnostic,
    }
}

/// A head without its body.
pub(super) fn expected_body(pieces: &Pieces<'_>, index: usize) -> Diagnostic {
    Diagnostic::error(Code::UnexpectedToken, format!("expected `{{`, found {}", found_text(pieces, index)))
        .label(pieces.span_of(index), "the body should begin here")
        .hint("{ … }")
}

/// A piece that follows another on the same line.
pub(super) fn not_on_a_new_line(pieces: &Pieces<'_>, index: usize) -> Diagnostic {
    let diagnostic = Diagnostic::error(
        Code::UnexpectedToken,
        format!("expected the end of the line, found {}", found_text(pieces, index)),
    )
    .label(pieces.span_of(index), "what stands before is complete")
    .why("each member, statement and entry begins a line of its own");
    let after_number = index > 0 && pieces.token_kind(index - 1) == Some(TokenKind::Number);
    match pieces.text(index) {
        unit if after_number && did_you_mean(unit, UNITS).is_some() => {
            let near = did_you_mean(unit, UNITS).unwrap_or(unit);
            diagnostic.hint_edit(format!("write `{near}`"), pieces.span_of(index), near)
        }
        ";" => diagnostic.hint_edit("remove `;`: a line's end is enough", pieces.span_of(index), ""),
        _ => diagnostic,
    }
}

/// An expression before the end of a block.
pub(super) fn value_not_last(span: Span) -> Diagnostic {
    Diagnostic::error(Code::NoResult, "value that nothing uses")
        .label(span, "only the last expression of a block is its result")
        .why("functions have no effects, so a value that is not bound does nothing")
        .hint("let name = …")
}

/// A block that ends in a statement.
pub(super) fn no_result(close: Span, statements: &[Statement]) -> Diagnostic {
    let diagnostic = Diagnostic::error(Code::NoResult, "function without a result")
        .label(close, "the result should stand before this")
        .why("the last expression of a body is what the function gives back");
    match statements.last() {
        Some(Statement::Let(last)) => {
            diagnostic.label(last.span, "a `let` only binds a name").hint("name the value after it")
        }
        Some(Statement::Require(_) | Statement::Dims(_) | Statement::Error(_)) | None => {
            diagnostic.hint("{ x }")
        }
    }
}

/// A number where a type lists dimensions.
pub(super) fn size_in_type(span: Span, number: &str) -> Diagnostic {
    Diagnostic::error(Code::PositionalAxis, "dimension without a name")
        .label(span, format!("`{number}` is a size"))
        .why("operations find dimensions by name, so each one has a name and its size is given once")
        .hint(format!("dims N = {number}    // and `N` here"))
}

/// A number where a layer or function declares dimensions.
pub(super) fn size_in_declaration(span: Span, number: &str) -> Diagnostic {
    Diagnostic::error(Code::PositionalAxis, "declared dimension without a name")
        .label(span, format!("`{number}` is a size"))
        .why("what is declared here is bound where the layer or function is used, so any size fits")
        .hint("[D]")
}

/// A number that its type can't hold.
pub(super) fn number_out_of_range(span: Span, text: &str) -> Diagnostic {
    let shown: String = if text.len() > 24 { format!("{}…", &text[..24]) } else { text.to_owned() };
    Diagnostic::error(Code::InvalidNumber, format!("`{shown}` is out of range"))
        .label(span, "too large")
        .why("integers have 64 bits, other numbers are finite and of double precision")
}

/// An expression with too many levels.
pub(super) fn expression_too_deep(span: Span, limit: u32) -> Diagnostic {
    Diagnostic::error(Code::TooDeep, format!("expression of more than {limit} levels"))
        .label(span, "too deep")
        .hint("let part = …")
}

/// The grammar and the parser disagree.
pub(super) fn fault(span: Span) -> Diagnostic {
    Diagnostic::error(Code::Fault, "bug in dtlc: parsed text without its parts")
        .label(span, "while reading this")
        .why("the parser expects parts here that the grammar did not give it; please report this")
}

/// The type of a hyper-parameter that is given a default and no type: `(eps = 1e-5)`.
fn type_of_default(pieces: &Pieces<'_>, equals: usize) -> Option<&'static str> {
    let mut depth = 0i32;
    let opening = (0..equals).rev().map(|index| pieces.token_text(index)).find(|text| {
        depth += match *text {
            "(" | "[" | "{" => -1,
            ")" | "]" | "}" => 1,
            _ => 0,
        };
        depth < 0
    });
    let in_parentheses = opening == Some("(");
    match pieces.token_text(equals + 1) {
        "true" | "false" => in_parentheses.then_some("bool"),
        number if pieces.token_kind(equals + 1) == Some(TokenKind::Number) => {
            let fraction = number.contains('.') || (number.contains('e') && !number.starts_with("0x"));
            in_parentheses.then_some(if fraction { "f32" } else { "i32" })
        }
        _ => None,
    }
}

/// Adds the hint for the usual slips.
fn likely_slip(pieces: &Pieces<'_>, diagnostic: Diagnostic, expected: &[Rule], found: usize) -> Diagnostic {
    let span = pieces.span_of(found);
    let text = pieces.token_text(found);
    let has = |rule| expected.contains(&rule);
    match text {
        "=" if has(Rule::colon) => match type_of_default(pieces, found) {
            Some(ty) => diagnostic.hint_edit(format!("write `: {ty} =`"), span, format!(": {ty} =")),
            None => diagnostic.hint_edit("write `:`", span, ":"),
        },
        ":" if has(Rule::equals) && !has(Rule::comma) => diagnostic.hint_edit("write `=`", span, "="),
        ":" if has(Rule::close_paren) || has(Rule::comma) => {
            diagnostic.hint_edit("arguments are named with `=`: `eps = 1e-5`", span, "=")
        }
        "=" if has(Rule::arrow) => diagnostic.hint_edit("write `->`", span, "->"),
        ":" if has(Rule::arrow) => diagnostic.hint_edit("a result type follows `->`", span, "->"),
        "{" if has(Rule::arrow) => diagnostic.hint("fn (x: [B, S, D]) -> [B, S, D] { … }"),
        ";" => diagnostic.hint_edit("remove `;`: a line's end is enough", span, ""),
        "&" => diagnostic,
        "require" if has(Rule::ident) => {
            diagnostic.why("a condition stands in a function's body: `fn (…) { require D > 0 … }`")
        }
        _ if has(Rule::ident) && pieces.token_kind(found) == Some(TokenKind::Word) => {
            diagnostic.why(format!("`{text}` is a word of the language and can't be a name"))
        }
        _ if has(Rule::kw_else) => diagnostic.why("an `if` is a value, so it needs an `else`"),
        _ => diagnostic,
    }
}

fn expected_rules(error: &Error<Rule>) -> Vec<Rule> {
    match &error.variant {
        ErrorVariant::ParsingError { positives, .. } => positives.clone(),
        ErrorVariant::CustomError { .. } => Vec::new(),
    }
}

fn found_text(pieces: &Pieces<'_>, index: usize) -> String {
    match pieces.text(index) {
        "" => "the end of the file".to_owned(),
        text if text.chars().count() > 40 => "a long text".to_owned(),
        text => format!("`{text}`"),
    }
}

/// `a, b or c`, at most six of them; what could stand almost anywhere only where there is nothing else.
fn listed(expected: &[Rule]) -> String {
    let mut telling: Vec<&'static str> = Vec::new();
    let mut anywhere: Vec<&'static str> = Vec::new();
    let closing = [Rule::comma, Rule::close_paren, Rule::close_square, Rule::close_brace];
    let in_list = expected.iter().any(|rule| closing.contains(rule));
    for &rule in expected {
        // What is complete could also be applied to more; that is rarely what is missing.
        if in_list && matches!(rule, Rule::open_paren | Rule::open_square) {
            continue;
        }
        let Some((name, likelihood)) = rule_name(rule) else {
            continue;
        };
        let names = match likelihood {
            Likelihood::Telling => &mut telling,
            Likelihood::Anywhere => &mut anywhere,
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut names = if telling.is_empty() { anywhere } else { telling };
    names.truncate(6);
    joined(&names, "or")
}

fn quoted(words: &[&str], last: &str) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    joined(&words.iter().map(String::as_str).collect::<Vec<_>>(), last)
}

fn joined(words: &[&str], last: &str) -> String {
    match words {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [first @ .., end] => format!("{} {last} {end}", first.join(", ")),
    }
}

/// What a piece is called in a label.
fn piece_name(rule: Rule) -> Option<&'static str> {
    Some(match rule {
        Rule::use_item => "import",
        Rule::layer_head => "layer",
        Rule::model_head => "model",
        Rule::optimizer_head => "optimizer",
        Rule::function_head => "function",
        Rule::plan_head => "plan",
        Rule::param_member => "parameter",
        Rule::let_statement | Rule::require_statement => "statement",
        Rule::step_item => "step",
        Rule::mesh_item => "mesh",
        Rule::expect_item => "contract",
        Rule::plan_optimizer | Rule::settings_item => "list of settings",
        _ => return None,
    })
}
