//! Cuts a file into pieces, parses each with its rule, and goes on after an error.
//!
//! From tokens to items. The conversion of a parsed piece to tree nodes is in [`super::item`], [`super::expression`] and
//! [`super::plan`]; the wording of errors in [`super::message`].

use std::cell::{Cell, RefCell};

use pest::Parser;
use pest::error::InputLocation;
use pest::iterators::Pair;

use super::grammar::{DtlParser, Rule};
use super::{MAX_ERRORS, message};
use crate::ast::{
    Block, Docs, Expr, ExprKind, Function, Item, Layer, Member, MemberBranch, MemberIf, Model, Optimizer,
    Plan, Statement,
};
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::lex::{MAX_DEPTH, Token, TokenKind};
use crate::source::{SourceFile, Span};

/// The words that begin an item.
pub(super) const ITEM_KEYWORDS: [&str; 6] = ["use", "layer", "model", "optimizer", "fn", "plan"];

/// The state of parsing one file.
pub(super) struct Pieces<'a> {
    pub(super) file: &'a SourceFile,
    /// Tokens with comments, for documentation.
    all: &'a [Token],
    /// Tokens without comments; `newlines_before` counts across comments.
    tokens: Vec<Token>,
    /// For an opening bracket, the index of its partner; only set in items whose brackets match.
    partners: Vec<usize>,
    /// Index of the next token.
    cursor: usize,
    /// Index one past the item's last token.
    end: usize,
    /// Byte at which the piece being converted starts; pest counts from there.
    base: usize,
    /// How deep the expression being converted lies in others.
    pub(super) expression_depth: Cell<u32>,
    diagnostics: RefCell<Vec<Diagnostic>>,
}

/// Where a piece stands, for the search of the next one after an error.
#[derive(Clone, Copy)]
struct Body {
    /// Index of its closing brace.
    close: usize,
    /// Depth of its pieces.
    depth: u32,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(file: &'a SourceFile, all: &'a [Token]) -> Self {
        let mut tokens: Vec<Token> = Vec::with_capacity(all.len());
        let mut newlines = 0u8;
        for token in all {
            newlines = (newlines + token.newlines_before).min(2);
            if !token.is_comment() {
                tokens.push(Token { newlines_before: newlines, ..*token });
                newlines = 0;
            }
        }
        Self {
            file,
            all,
            partners: vec![usize::MAX; tokens.len()],
            tokens,
            cursor: 0,
            end: 0,
            base: 0,
            expression_depth: Cell::new(0),
            diagnostics: RefCell::default(),
        }
    }

    pub(super) fn into_diagnostics(self) -> Vec<Diagnostic> {
        self.diagnostics.into_inner()
    }

    pub(super) fn report(&self, diagnostic: Diagnostic) {
        self.diagnostics.borrow_mut().push(diagnostic);
    }

    /// All items of the file.
    pub(super) fn file(&mut self) -> Vec<Item> {
        let mut starts = self.item_starts();
        if starts.first().is_none_or(|&first| first > 0) && !self.tokens.is_empty() {
            starts.insert(0, 0);
        }
        starts.push(self.tokens.len());
        let mut items = Vec::new();
        for window in starts.windows(2) {
            self.cursor = window[0];
            self.end = window[1];
            if self.match_brackets() {
                let item = self.item();
                items.push(item);
                self.after_item();
            } else {
                items.push(Item::Error(self.range(window[0], window[1])));
            }
        }
        items
    }

    /// Indices of the tokens that begin items: keywords outside all brackets, and where the file's brackets do not
    /// match also keywords in the first column, so that one open brace does not swallow the rest.
    fn item_starts(&self) -> Vec<usize> {
        let balanced = self.brackets_balance();
        let mut starts = Vec::new();
        for (index, token) in self.tokens.iter().enumerate() {
            let keyword = token.kind == TokenKind::Word && ITEM_KEYWORDS.contains(&self.text(index));
            // After one of these a keyword is a misplaced name, or a segment of a path.
            let named = index > 0
                && ["::", "layer", "model", "optimizer", "plan", "fn", "for"].contains(&self.text(index - 1));
            if !keyword || named {
                continue;
            }
            let first_column =
                token.start == 0 || self.file.text.as_bytes()[token.start as usize - 1] == b'\n';
            if (balanced && token.depth == 0) || (!balanced && first_column) {
                starts.push(index);
            }
        }
        starts
    }

    fn brackets_balance(&self) -> bool {
        let mut open = Vec::new();
        for (index, token) in self.tokens.iter().enumerate() {
            match token.kind {
                TokenKind::Open => open.push(index),
                TokenKind::Close => match open.pop() {
                    Some(opening) if pair_matches(self.text(opening), self.text(index)) => {}
                    _ => return false,
                },
                _ => {}
            }
        }
        open.is_empty()
    }

    /// Finds each bracket's partner in the item and sets depths relative to it; reports what has none.
    fn match_brackets(&mut self) -> bool {
        let mut open: Vec<usize> = Vec::new();
        for index in self.cursor..self.end {
            let depth = open.len() as u32;
            self.tokens[index].depth = depth;
            match self.tokens[index].kind {
                TokenKind::Open => {
                    if depth >= MAX_DEPTH {
                        self.report(
                            Diagnostic::error(
                                Code::TooDeep,
                                format!("brackets nested more than {MAX_DEPTH} deep"),
                            )
                            .label(self.span_of(index), "one too many")
                            .hint("name an inner part with `let`"),
                        );
                        return false;
                    }
                    open.push(index);
                }
                TokenKind::Close => match open.pop() {
                    Some(opening) if pair_matches(self.text(opening), self.text(index)) => {
                        self.partners[opening] = index;
                        self.tokens[index].depth = depth - 1;
                    }
                    opening => {
                        self.report_unmatched_close(index, opening);
                        return false;
                    }
                },
                _ => {}
            }
        }
        if let Some(&opening) = open.last() {
            self.report_unclosed(opening);
            return false;
        }
        true
    }

    fn report_unclosed(&self, opening: usize) {
        let close = closing(self.text(opening));
        let end = self.span_of(self.end - 1).at_end();
        self.report(
            Diagnostic::error(Code::UnclosedBracket, format!("`{}` is not closed", self.text(opening)))
                .label(self.span_of(opening), "opened here")
                .label(end, format!("no `{close}` up to here"))
                .hint(format!("add `{close}`")),
        );
    }

    fn report_unmatched_close(&self, index: usize, opening: Option<usize>) {
        let found = self.text(index);
        let diagnostic = Diagnostic::error(
            Code::UnclosedBracket,
            match opening {
                Some(opening) => format!("`{}` is closed by `{found}`", self.text(opening)),
                None => format!("`{found}` closes nothing"),
            },
        )
        .label(self.span_of(index), format!("this `{found}`"));
        self.report(match opening {
            Some(opening) => {
                let close = closing(self.text(opening));
                diagnostic
                    .label(self.span_of(opening), format!("needs `{close}`"))
                    .hint(format!("add `{close}` before `{found}`, or change one of them"))
            }
            None => diagnostic.hint_edit(format!("remove `{found}`"), self.span_of(index), ""),
        });
    }

    fn item(&mut self) -> Item {
        let start = self.cursor;
        let docs = self.docs(start);
        let item = match self.text(start) {
            "use" => self.piece(Rule::use_item).map(|pair| Item::Use(self.use_item(pair, docs))),
            "layer" => self.layer(docs).map(Item::Layer),
            "model" => self.model(docs).map(Item::Model),
            "optimizer" => self.optimizer(docs).map(Item::Optimizer),
            "fn" => self.function(docs).map(Item::Function),
            "plan" => self.plan(docs).map(Item::Plan),
            _ => {
                self.report(message::not_an_item(self, start));
                None
            }
        };
        item.unwrap_or_else(|| {
            self.cursor = self.end;
            Item::Error(self.range(start, self.end))
        })
    }

    /// Whatever stands between an item and the next keyword belongs to nothing.
    fn after_item(&mut self) {
        if self.cursor < self.end {
            self.report(message::not_an_item(self, self.cursor));
            self.cursor = self.end;
        }
    }

    fn layer(&mut self, docs: Docs) -> Option<Layer> {
        let start = self.cursor;
        let head = self.piece(Rule::layer_head)?;
        let (name, dims, hypers) = self.head(head);
        let members = self.members()?;
        Some(Layer { span: self.range(start, self.cursor), docs, name, dims, hypers, members })
    }

    fn model(&mut self, docs: Docs) -> Option<Model> {
        let start = self.cursor;
        let head = self.piece(Rule::model_head)?;
        let (name, _, hypers) = self.head(head);
        let members = self.members()?;
        Some(Model { span: self.range(start, self.cursor), docs, name, hypers, members })
    }

    fn optimizer(&mut self, docs: Docs) -> Option<Optimizer> {
        let start = self.cursor;
        let head = self.piece(Rule::optimizer_head)?;
        let (name, _, hypers) = self.head(head);
        let members = self.members()?;
        Some(Optimizer { span: self.range(start, self.cursor), docs, name, hypers, members })
    }

    fn plan(&mut self, docs: Docs) -> Option<Plan> {
        let start = self.cursor;
        let head = self.piece(Rule::plan_head)?;
        let (name, model) = self.plan_head(head);
        let body = self.open_body()?;
        let mut items = Vec::new();
        while self.cursor < body.close {
            let item = self.plan_entry(body);
            items.push(item);
        }
        self.cursor = body.close + 1;
        Some(Plan { span: self.range(start, self.cursor), docs, name, model, items })
    }

    fn plan_entry(&mut self, body: Body) -> crate::ast::PlanItem {
        use crate::ast::PlanItem;
        let start = self.cursor;
        let word = self.text(start);
        let Some(rule) = super::plan::entry_rule(word) else {
            self.report(message::not_a_plan_entry(self, start));
            self.resynchronise(body, start + 1);
            return PlanItem::Error(self.range(start, self.cursor));
        };
        let item = self.piece(rule).map(|pair| self.plan_item(pair));
        self.finish(body, start, item, PlanItem::Error)
    }

    /// `{ members }`
    fn members(&mut self) -> Option<Vec<Member>> {
        let body = self.open_body()?;
        let mut members = Vec::new();
        while self.cursor < body.close {
            let start = self.cursor;
            let member = self.member();
            members.push(self.finish(body, start, member, Member::Error));
        }
        self.cursor = body.close + 1;
        Some(members)
    }

    fn member(&mut self) -> Option<Member> {
        let start = self.cursor;
        let docs = self.docs(start);
        match self.text(start) {
            "fn" => self.function(docs).map(Member::Function),
            "if" => self.member_if().map(Member::If),
            "dims" => self.piece(Rule::dims_member).map(|pair| Member::Dims(self.dims_member(pair, docs))),
            "param" => {
                self.piece(Rule::param_member).map(|pair| Member::Param(self.param_member(pair, docs)))
            }
            "state" if self.token_text(start + 1) != "=" => {
                self.piece(Rule::state_member).map(|pair| Member::State(self.state_member(pair, docs)))
            }
            _ => self
                .piece(Rule::sublayer_member)
                .map(|pair| Member::SubLayer(self.sublayer_member(pair, docs))),
        }
    }

    fn member_if(&mut self) -> Option<MemberIf> {
        let start = self.cursor;
        let mut branches = Vec::new();
        let mut otherwise = None;
        loop {
            let head = self.piece(Rule::if_head)?;
            let condition = self.only_expression(head);
            let members = self.members()?;
            branches.push(MemberBranch { condition, members });
            if self.token_text(self.cursor) != "else" {
                break;
            }
            self.cursor += 1;
            if self.token_text(self.cursor) != "if" {
                otherwise = Some(self.members()?);
                break;
            }
        }
        Some(MemberIf { span: self.range(start, self.cursor), branches, otherwise })
    }

    fn function(&mut self, docs: Docs) -> Option<Function> {
        let start = self.cursor;
        let head = self.piece(Rule::function_head)?;
        let (name, dims, parameters, result) = self.function_head(head);
        let body = self.body_block()?;
        let span = self.range(start, self.cursor);
        Some(Function { span, docs, name, dims, parameters, result, body })
    }

    /// The body of a function, statement by statement.
    fn body_block(&mut self) -> Option<Block> {
        let start = self.cursor;
        let body = self.open_body()?;
        let mut statements = Vec::new();
        let mut result = None;
        while self.cursor < body.close {
            let start = self.cursor;
            if self.text(start) == "let" {
                let statement =
                    self.piece(Rule::let_statement).map(|pair| Statement::Let(self.let_statement(pair)));
                statements.push(self.finish(body, start, statement, Statement::Error));
                continue;
            }
            if self.text(start) == "require" {
                let statement = self
                    .piece(Rule::require_statement)
                    .map(|pair| Statement::Require(self.require_statement(pair)));
                statements.push(self.finish(body, start, statement, Statement::Error));
                continue;
            }
            if self.text(start) == "dims" {
                let docs = self.docs(start);
                let statement =
                    self.piece(Rule::dims_member).map(|pair| Statement::Dims(self.dims_member(pair, docs)));
                statements.push(self.finish(body, start, statement, Statement::Error));
                continue;
            }
            let value = self.piece(Rule::expression).map(|pair| self.expression(pair));
            let failed = |span| Expr { span, kind: ExprKind::Error };
            let value = self.finish(body, start, value, failed);
            if self.cursor < body.close && value.kind != ExprKind::Error {
                self.report(message::value_not_last(value.span));
                statements.push(Statement::Error(value.span));
            } else {
                result = Some(value);
            }
        }
        self.cursor = body.close + 1;
        let span = self.range(start, self.cursor);
        let result = result.unwrap_or_else(|| {
            if !statements.iter().any(|statement| matches!(statement, Statement::Error(_))) {
                self.report(message::no_result(self.span_of(body.close), &statements));
            }
            Expr { span: self.span_of(body.close).at_start(), kind: ExprKind::Error }
        });
        Some(Block { span, statements, result: Box::new(result) })
    }

    /// Steps over `{`; reports where there is none.
    fn open_body(&mut self) -> Option<Body> {
        if self.token_text(self.cursor) != "{" {
            self.report(message::expected_body(self, self.cursor));
            return None;
        }
        let close = self.partners[self.cursor];
        let depth = self.tokens[self.cursor].depth + 1;
        self.cursor += 1;
        Some(Body { close, depth })
    }

    /// Ends a piece: it must be followed by a new line or the body's end. After an error, moves on to the next piece.
    fn finish<T>(&mut self, body: Body, start: usize, piece: Option<T>, error: impl Fn(Span) -> T) -> T {
        if let Some(piece) = piece {
            let next = self.cursor;
            if next < body.close && self.tokens[next].newlines_before == 0 {
                self.report(message::not_on_a_new_line(self, next));
                self.resynchronise(body, next);
            }
            return piece;
        }
        let from = self.cursor.max(start + 1);
        self.resynchronise(body, from);
        error(self.range(start, self.cursor))
    }

    /// Reports a piece inside an expression that follows another on the same line.
    pub(super) fn require_new_line(&self, span: Span) {
        let index = self.tokens.partition_point(|token| token.start < span.start);
        if self.tokens.get(index).is_some_and(|token| token.newlines_before == 0) {
            self.report(message::not_on_a_new_line(self, index));
        }
    }

    /// Moves to the first token from `from` on that begins a line of the body, or to the body's end.
    fn resynchronise(&mut self, body: Body, from: usize) {
        self.cursor = (from..body.close)
            .find(|&index| {
                let token = &self.tokens[index];
                token.depth == body.depth
                    && token.newlines_before > 0
                    && matches!(token.kind, TokenKind::Word | TokenKind::Open)
            })
            .unwrap_or(body.close);
    }

    /// Parses one piece at the cursor and steps over it; reports an error and moves to the token at fault.
    fn piece(&mut self, rule: Rule) -> Option<Pair<'a, Rule>> {
        if self.diagnostics.borrow().len() > MAX_ERRORS {
            return None;
        }
        let last = self.end.checked_sub(1)?;
        self.base = self.tokens.get(self.cursor)?.start as usize;
        let file: &'a SourceFile = self.file;
        let text = &file.text[self.base..self.tokens[last].end as usize];
        match DtlParser::parse(rule, text) {
            Ok(mut pairs) => {
                let pair = pairs.next()?;
                let end = self.span(&pair).end;
                self.cursor = self.tokens.partition_point(|token| token.start < end);
                Some(pair)
            }
            Err(error) => {
                let offset = match error.location {
                    InputLocation::Pos(offset) | InputLocation::Span((offset, _)) => offset,
                };
                let offset = (self.base + offset) as u32;
                let found = self.tokens.partition_point(|token| token.end <= offset);
                self.report(message::unexpected(self, rule, &error, self.cursor, found));
                self.cursor = found.min(self.end);
                None
            }
        }
    }

    /// The span of a parsed pair, without the blanks and comments that pest lets trail.
    pub(super) fn span(&self, pair: &Pair<'_, Rule>) -> Span {
        let span = pair.as_span();
        let start = (self.base + span.start()) as u32;
        let end = (self.base + span.end()) as u32;
        let after = self.tokens.partition_point(|token| token.start < end);
        let end = after.checked_sub(1).map_or(end, |last| self.tokens[last].end.min(end));
        Span::new(self.file.id, start, end.max(start))
    }

    /// The lines of documentation right above a token.
    fn docs(&self, index: usize) -> Docs {
        let start = self.tokens[index].start;
        let before = self.all.partition_point(|token| token.start < start);
        let mut lines: Vec<String> = self.all[..before]
            .iter()
            .rev()
            .take_while(|token| {
                token.kind == TokenKind::DocComment
                    && (token.newlines_before > 0 || token.start == self.all[0].start)
            })
            .map(|token| {
                let text = &self.file.text[token.start as usize + 3..token.end as usize];
                text.strip_prefix(' ').unwrap_or(text).trim_end().to_owned()
            })
            .collect();
        lines.reverse();
        Docs { lines }
    }

    /// The text of a token of the file.
    pub(super) fn text(&self, index: usize) -> &'a str {
        let file: &'a SourceFile = self.file;
        self.tokens.get(index).map_or("", |token| &file.text[token.start as usize..token.end as usize])
    }

    /// The text of a token of the current item; empty past its end.
    pub(super) fn token_text(&self, index: usize) -> &'a str {
        if index < self.end { self.text(index) } else { "" }
    }

    /// The kind of a token of the current item.
    pub(super) fn token_kind(&self, index: usize) -> Option<TokenKind> {
        (index < self.end).then(|| self.tokens[index].kind)
    }

    /// The span of a token; past the last one, the end of the text before.
    pub(super) fn span_of(&self, index: usize) -> Span {
        match self.tokens.get(index) {
            Some(token) => Span::new(self.file.id, token.start, token.end),
            None => self
                .tokens
                .last()
                .map_or(self.file.span().at_end(), |last| Span::new(self.file.id, last.end, last.end)),
        }
    }

    /// From the first token to the one before the last index.
    fn range(&self, first: usize, end: usize) -> Span {
        self.span_of(first).to(self.span_of(end.saturating_sub(1).max(first)))
    }
}

fn pair_matches(open: &str, close: &str) -> bool {
    closing(open) == close
}

fn closing(open: &str) -> &'static str {
    match open {
        "(" => ")",
        "[" => "]",
        _ => "}",
    }
}
