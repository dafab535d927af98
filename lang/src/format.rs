//! The formatter: canonical text of a file, every comment kept.
//!
//! From tokens and tree to text. Tokens are printed as they stand (trailing commas apart), so the meaning can't change;
//! the tree says where lines begin. The result is also what `emit --stage ast` prints, and it parses back. Rules: two
//! spaces a level, 100 columns, one member or statement a line, items an empty line apart (imports as written), at most
//! one empty line kept elsewhere, no alignment. Files with syntax errors are left alone.

mod doc;
mod spacing;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::ast::{
    self, Block, Expectation, ExprKind, Function, Item, Member, PlanItem, PlanValue, PlanValueKind, Setting,
    Statement,
};
use crate::diagnostic::Diagnostic;
use crate::lex::{Token, TokenKind};
use crate::parse::{Parsed, parse};
use crate::source::{SourceFile, Span};

use doc::Doc;
use spacing::{Context, Gap, Place, Surroundings};

/// The canonical text of a file.
///
/// # Errors
/// The file's syntax errors.
pub fn format(file: &SourceFile) -> Result<String, Vec<Diagnostic>> {
    let parsed = parse(file);
    if parsed.is_ok() { Ok(format_parsed(file, &parsed)) } else { Err(parsed.diagnostics) }
}

/// The canonical text of a file that is parsed already and free of errors.
pub fn format_parsed(file: &SourceFile, parsed: &Parsed) -> String {
    let formatter = Formatter::new(file, parsed);
    let mut text = doc::print(&formatter.file(&parsed.file));
    text.truncate(text.trim_end().len());
    if !text.is_empty() {
        text.push('\n');
    }
    text
}

struct Formatter<'a> {
    text: &'a str,
    tokens: &'a [Token],
    /// For an opening bracket, the index of its partner.
    partners: FxHashMap<usize, usize>,
    /// Blocks inside expressions, by the offset of their brace.
    blocks: FxHashMap<u32, &'a Block>,
    /// Offsets of parentheses that hold a tuple after a setting's name.
    spaced: FxHashSet<u32>,
}

/// A run of tokens that begins a line: `[first, end)` in the token list, and its document.
struct Piece {
    first: usize,
    end: usize,
    doc: Doc,
}

impl<'a> Formatter<'a> {
    fn new(file: &'a SourceFile, parsed: &'a Parsed) -> Self {
        let mut blocks = FxHashMap::default();
        ast::walk::expressions(&parsed.file, &mut |expr| match &expr.kind {
            ExprKind::Block(block) => {
                blocks.insert(block.span.start, block);
            }
            ExprKind::If { branches, otherwise } => {
                for block in branches.iter().map(|(_, block)| block).chain([otherwise]) {
                    blocks.insert(block.span.start, block);
                }
            }
            _ => {}
        });
        Self {
            text: &file.text,
            tokens: &parsed.tokens,
            partners: partners(&parsed.tokens),
            blocks,
            spaced: spaced_tuples(&parsed.file),
        }
    }

    fn file(&self, file: &ast::File) -> Vec<Doc> {
        let mut docs = Vec::new();
        let mut at = 0;
        let mut previous: Option<&Item> = None;
        for item in &file.items {
            let piece = self.item(item);
            let imports = matches!(item, Item::Use(_)) && matches!(previous, Some(Item::Use(_)));
            let gap = match previous {
                None => Gap::First,
                Some(_) if imports => Gap::AsWritten,
                Some(_) => Gap::Empty,
            };
            self.gap(at, piece.first, gap, &mut docs);
            docs.push(piece.doc);
            at = piece.end;
            previous = Some(item);
        }
        let gap = if previous.is_some() { Gap::AsWritten } else { Gap::First };
        self.comments(at, self.tokens.len(), gap, &mut docs);
        docs
    }

    fn item(&self, item: &Item) -> Piece {
        let (first, end) = self.range(item.span());
        let doc = match item {
            Item::Use(_) | Item::Error(_) => self.inline(first, end, Context::Import),
            Item::Layer(layer) => self.with_members(first, end, &layer.members),
            Item::Model(model) => self.with_members(first, end, &model.members),
            Item::Optimizer(optimizer) => self.with_members(first, end, &optimizer.members),
            Item::Function(function) => self.function(first, end, function),
            Item::Plan(plan) => {
                let pieces = plan.items.iter().map(|item| self.plan_item(item)).collect();
                self.head_and_body(first, end, pieces)
            }
        };
        Piece { first, end, doc }
    }

    fn with_members(&self, first: usize, end: usize, members: &[Member]) -> Doc {
        self.head_and_body(first, end, self.members(members))
    }

    fn members(&self, members: &[Member]) -> Vec<Piece> {
        members.iter().map(|member| self.member(member)).collect()
    }

    fn member(&self, member: &Member) -> Piece {
        let (first, end) = self.range(member.span());
        let doc = match member {
            Member::Function(function) => self.function(first, end, function),
            Member::If(member) => self.member_if(first, end, member),
            Member::Dims(_)
            | Member::Param(_)
            | Member::SubLayer(_)
            | Member::State(_)
            | Member::Error(_) => self.inline(first, end, Context::Code),
        };
        Piece { first, end, doc }
    }

    fn member_if(&self, first: usize, end: usize, member: &ast::MemberIf) -> Doc {
        let mut docs = Vec::new();
        let mut at = first;
        let bodies = member.branches.iter().map(|branch| &branch.members).chain(&member.otherwise);
        for members in bodies {
            let open = self.body_brace(at, end);
            let close = self.partner(open);
            if at > first {
                docs.push(Doc::Text(" ".to_owned()));
            }
            docs.push(self.head_and_body(at, close + 1, self.members(members)));
            at = close + 1;
        }
        Doc::Concat(docs)
    }

    fn function(&self, first: usize, end: usize, function: &Function) -> Doc {
        self.head_and_body(first, end, self.statements(&function.body))
    }

    /// The pieces of a block: its statements, and its result from the first token after them.
    fn statements(&self, block: &Block) -> Vec<Piece> {
        let (open, end) = self.range(block.span);
        let mut at = open + 1;
        let mut pieces = Vec::new();
        for statement in &block.statements {
            let span = match statement {
                Statement::Let(statement) => statement.span,
                Statement::Require(statement) => statement.span,
                Statement::Dims(statement) => statement.span,
                Statement::Error(span) => *span,
            };
            let (first, end) = self.range(span);
            pieces.push(Piece { first, end, doc: self.inline(first, end, Context::Code) });
            at = end;
        }
        let first = (at..end).find(|&index| !self.tokens[index].is_comment()).unwrap_or(at);
        let last = (first..end - 1).rev().find(|&index| !self.tokens[index].is_comment()).unwrap_or(first);
        pieces.push(Piece { first, end: last + 1, doc: self.inline(first, last + 1, Context::Code) });
        pieces
    }

    fn plan_item(&self, item: &PlanItem) -> Piece {
        let (first, end) = self.range(item.span());
        let doc = match item {
            PlanItem::Expect(expect) => {
                let pieces = expect.entries.iter().map(|entry| self.expectation(entry)).collect();
                self.head_and_body(first, end, pieces)
            }
            PlanItem::Later(_) => Doc::Text(self.verbatim(first, end)),
            PlanItem::Step(_) | PlanItem::Remat(_) | PlanItem::Allow(_) => {
                self.inline(first, end, Context::Step)
            }
            PlanItem::Settings(_) | PlanItem::Memory(_) | PlanItem::Optimizer(_) => {
                self.inline(first, end, Context::Settings)
            }
            PlanItem::Mesh(_) | PlanItem::Dims(_) | PlanItem::Error(_) => {
                self.inline(first, end, Context::Code)
            }
        };
        Piece { first, end, doc }
    }

    fn expectation(&self, entry: &Expectation) -> Piece {
        let span = match entry {
            Expectation::Collectives(entry) => entry.span,
            Expectation::Bound(entry) => entry.span,
            Expectation::Error(span) => *span,
        };
        let (first, end) = self.range(span);
        Piece { first, end, doc: self.inline(first, end, Context::Settings) }
    }

    /// `head { pieces }`, each piece on its line.
    fn head_and_body(&self, first: usize, end: usize, pieces: Vec<Piece>) -> Doc {
        let open = self.body_brace(first, end);
        let mut docs = vec![self.inline(first, open, Context::Code), Doc::Text(" ".to_owned())];
        docs.extend(self.braces(open, pieces));
        Doc::Concat(docs)
    }

    fn braces(&self, open: usize, pieces: Vec<Piece>) -> Vec<Doc> {
        let close = self.partner(open);
        let mut inner = Vec::new();
        let mut at = open + 1;
        for (index, piece) in pieces.into_iter().enumerate() {
            let gap = if index == 0 { Gap::None } else { Gap::AsWritten };
            self.gap(at, piece.first, gap, &mut inner);
            inner.push(piece.doc);
            at = piece.end;
        }
        let gap = if at == open + 1 { Gap::None } else { Gap::AsWritten };
        self.comments(at, close, gap, &mut inner);
        if inner.is_empty() {
            return vec![Doc::Text("{}".to_owned())];
        }
        let text = |text: &str| Doc::Text(text.to_owned());
        vec![text("{"), Doc::Indent(inner), Doc::HardLine(false), text("}")]
    }

    /// What stands between two pieces: comments, then the new line on which the second begins.
    fn gap(&self, from: usize, to: usize, gap: Gap, docs: &mut Vec<Doc>) {
        let gap = self.comments(from, to, gap, docs);
        match gap {
            Gap::First => {}
            Gap::None => docs.push(Doc::HardLine(false)),
            Gap::Empty => docs.push(Doc::HardLine(true)),
            Gap::AsWritten => docs.push(Doc::HardLine(self.empty_line_before(to))),
        }
    }

    /// Prints the comments between two pieces; gives back how what follows is to be set off from them.
    fn comments(&self, from: usize, to: usize, mut gap: Gap, docs: &mut Vec<Doc>) -> Gap {
        for index in from..to {
            let token = &self.tokens[index];
            if !token.is_comment() {
                continue;
            }
            let text = self.comment(index);
            if token.newlines_before == 0 && index > 0 && gap != Gap::First {
                docs.push(Doc::Trailing(text));
                continue;
            }
            match gap {
                Gap::First => {}
                Gap::None => docs.push(Doc::HardLine(false)),
                Gap::Empty => docs.push(Doc::HardLine(true)),
                Gap::AsWritten => docs.push(Doc::HardLine(token.newlines_before > 1)),
            }
            docs.push(Doc::Own(text));
            gap = Gap::AsWritten;
        }
        gap
    }

    fn empty_line_before(&self, index: usize) -> bool {
        self.tokens[index].newlines_before > 1
    }

    /// A run of tokens on one line if it fits.
    fn inline(&self, first: usize, end: usize, context: Context) -> Doc {
        let mut docs = Vec::new();
        self.run(first, end, Surroundings::new(self, first, end, context, Place::Bare), &mut docs);
        Doc::Concat(docs)
    }

    fn run(&self, first: usize, end: usize, around: Surroundings, docs: &mut Vec<Doc>) {
        let mut index = first;
        let mut previous: Option<usize> = None;
        let mut waiting: Vec<String> = Vec::new();
        while index < end {
            let token = &self.tokens[index];
            if self.is_inner_block_comment(index) {
                waiting.push(self.comment(index));
            } else if token.is_comment() {
                end_of_line(&mut waiting, previous, docs);
                docs.push(self.line_comment(index));
            } else if !self.is_trailing_comma(index, end) {
                let space = previous.and_then(|previous| self.between(previous, index, around));
                let set_off = space.is_none() && previous.is_some() && !waiting.is_empty();
                docs.extend(space);
                docs.extend(set_off.then(|| Doc::Text(" ".to_owned())));
                docs.extend(waiting.drain(..).map(|comment| Doc::Text(comment + " ")));
                let last = if token.kind == TokenKind::Open { self.partner(index) } else { index };
                docs.push(match token.kind {
                    TokenKind::Open => self.bracketed(index, last, around.context),
                    _ => Doc::Text(self.token_text(index).to_owned()),
                });
                previous = Some(last);
                index = last;
            }
            index += 1;
        }
        end_of_line(&mut waiting, previous, docs);
    }

    /// A comma after which its list ends; it is left out.
    fn is_trailing_comma(&self, index: usize, end: usize) -> bool {
        self.token_text(index) == "," && (index + 1..end).all(|later| self.tokens[later].is_comment())
    }

    fn bracketed(&self, open: usize, close: usize, context: Context) -> Doc {
        if let Some(block) = self.blocks.get(&self.tokens[open].start) {
            return self.inner_block(open, close, block);
        }
        let text = |index: usize| Doc::Text(self.token_text(index).to_owned());
        if close == open + 1 {
            return Doc::Group(vec![text(open), text(close)]);
        }
        let edge = || {
            if self.token_text(open) == "{" && context != Context::Import { Doc::Line } else { Doc::SoftLine }
        };
        let mut group = vec![text(open)];
        let first = self.trailing_comments(open + 1, close, &mut group);
        let mut inner = vec![edge()];
        let around = Surroundings::new(self, first, close, context, Place::Bracketed);
        self.run(first, close, around, &mut inner);
        group.extend([Doc::Indent(inner), edge(), text(close)]);
        Doc::Group(group)
    }

    /// Line comments on the line of what stands before `from`; gives back the first token after them.
    fn trailing_comments(&self, from: usize, to: usize, docs: &mut Vec<Doc>) -> usize {
        let is_trailing = |index: &usize| {
            let token = &self.tokens[*index];
            matches!(token.kind, TokenKind::LineComment | TokenKind::DocComment) && token.newlines_before == 0
        };
        let count = (from..to).take_while(is_trailing).count();
        docs.extend((from..from + count).map(|index| Doc::Trailing(self.comment(index))));
        from + count
    }

    /// A block inside an expression: on one line if it only has a result.
    fn inner_block(&self, open: usize, close: usize, block: &Block) -> Doc {
        let pieces = self.statements(block);
        let plain = pieces.len() == 1 && !(open..close).any(|index| self.tokens[index].is_comment());
        if !plain {
            return Doc::Group(self.braces(open, pieces));
        }
        let text = |text: &str| Doc::Text(text.to_owned());
        let mut inner = vec![Doc::Line];
        inner.extend(pieces.into_iter().map(|piece| piece.doc));
        Doc::Group(vec![text("{"), Doc::Indent(inner), Doc::Line, text("}")])
    }

    /// Whether a comment stands before the next token of its run on one line with it.
    fn is_inner_block_comment(&self, index: usize) -> bool {
        let token = &self.tokens[index];
        let ends_line = self.tokens.get(index + 1).is_none_or(|next| next.newlines_before > 0);
        token.kind == TokenKind::BlockComment && (token.newlines_before == 0 || !ends_line)
    }

    /// A comment among the tokens of a run, after which a line must end.
    fn line_comment(&self, index: usize) -> Doc {
        let text = self.comment(index);
        if self.tokens[index].newlines_before > 0 { Doc::Own(text) } else { Doc::Trailing(text) }
    }

    /// A comment's text with plain line ends.
    fn comment(&self, index: usize) -> String {
        self.token_text(index).replace("\r\n", "\n").trim_end().to_owned()
    }

    fn verbatim(&self, first: usize, end: usize) -> String {
        let (start, end) = (self.tokens[first].start as usize, self.tokens[end - 1].end as usize);
        self.text[start..end].replace("\r\n", "\n")
    }

    fn token_text(&self, index: usize) -> &'a str {
        let token = &self.tokens[index];
        &self.text[token.start as usize..token.end as usize]
    }

    /// The tokens of a span.
    fn range(&self, span: Span) -> (usize, usize) {
        let first = self.tokens.partition_point(|token| token.start < span.start);
        let end = self.tokens.partition_point(|token| token.start < span.end);
        (first, end)
    }

    /// The brace that opens the body of what begins at `first`: the first one outside other brackets.
    fn body_brace(&self, first: usize, end: usize) -> usize {
        let mut index = first;
        while index < end && self.token_text(index) != "{" {
            index = match self.tokens[index].kind {
                TokenKind::Open => self.partner(index) + 1,
                _ => index + 1,
            };
        }
        index
    }

    fn partner(&self, open: usize) -> usize {
        self.partners.get(&open).copied().unwrap_or(open)
    }
}

/// Prints block comments after which no token of their line comes: behind a token, else on a line of their own, so that
/// they are read again as what they are printed as.
fn end_of_line(waiting: &mut Vec<String>, previous: Option<usize>, docs: &mut Vec<Doc>) {
    let mut begins = previous.is_none();
    for comment in waiting.drain(..) {
        let begins_line = matches!(docs.last(), Some(Doc::Trailing(_) | Doc::Own(_)));
        docs.push(match (begins_line, begins) {
            (true, _) => Doc::Own(comment),
            (false, true) => Doc::Text(comment),
            (false, false) => Doc::Text(format!(" {comment}")),
        });
        begins = false;
    }
}

fn partners(tokens: &[Token]) -> FxHashMap<usize, usize> {
    let mut open = Vec::new();
    let mut partners = FxHashMap::default();
    for (index, token) in tokens.iter().enumerate() {
        match token.kind {
            TokenKind::Open => open.push(index),
            TokenKind::Close => {
                if let Some(opening) = open.pop() {
                    partners.insert(opening, index);
                }
            }
            _ => {}
        }
    }
    partners
}

/// Where `betas (0.9, 0.95)` has its parenthesis: a value, not a call.
fn spaced_tuples(file: &ast::File) -> FxHashSet<u32> {
    let mut spaced = FxHashSet::default();
    for item in &file.items {
        let Item::Plan(plan) = item else { continue };
        for item in &plan.items {
            let settings: &[Setting] = match item {
                PlanItem::Settings(item) => &item.settings,
                PlanItem::Optimizer(item) => &item.settings,
                _ => &[],
            };
            settings.iter().for_each(|setting| collect_tuples(&setting.value, &mut spaced));
        }
    }
    spaced
}

fn collect_tuples(value: &PlanValue, spaced: &mut FxHashSet<u32>) {
    match &value.kind {
        PlanValueKind::Tuple(values) => {
            spaced.insert(value.span.start);
            values.iter().for_each(|value| collect_tuples(value, spaced));
        }
        PlanValueKind::Call { arguments, .. } => {
            arguments.iter().for_each(|argument| collect_tuples(&argument.value, spaced));
        }
        PlanValueKind::Integer(_)
        | PlanValueKind::Float(_)
        | PlanValueKind::Quantity { .. }
        | PlanValueKind::Bool(_)
        | PlanValueKind::Name(_)
        | PlanValueKind::String(_)
        | PlanValueKind::Error => {}
    }
}
