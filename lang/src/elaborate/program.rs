//! Files and the names in them: parses the root file and all that it imports, and resolves every `use`.
//!
//! From text to items by name. Elaborates nothing.

use super::stdlib;
use crate::ast::{self, Ident, Item, UseNames};
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::source::{FileId, Loaded, Loader, SourceMap, Span};
use crate::suggest::did_you_mean;
use cranelift_entity::EntityRef;
use indexmap::IndexMap;

/// Where an item stands: a module and a position in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ItemRef {
    module: usize,
    item: usize,
}

/// A parsed file.
#[derive(Debug)]
struct Module {
    /// `std::nn`, or the name that the loader gave.
    name: String,
    ast: ast::File,
    /// Its own items, then imported ones.
    scope: IndexMap<String, ItemRef>,
}

/// All files of a compilation.
#[derive(Debug)]
pub(super) struct Program {
    modules: Vec<Module>,
    by_file: Vec<Option<usize>>,
}

/// A file whose imports are being followed, with the `use` that led to it.
struct Loading<'a> {
    sources: &'a mut SourceMap,
    loader: &'a dyn Loader,
    modules: Vec<Module>,
    /// Modules on the way from the root to the present one.
    path: Vec<usize>,
    /// Per import: the module with the `use`, the name here, where, and what it means.
    imports: Vec<Import>,
    diagnostics: Vec<Diagnostic>,
}

struct Import {
    module: usize,
    target: usize,
    name: Ident,
    alias: Ident,
}

impl Program {
    /// Parses `root` and what it imports, and with it the modules of the standard library in `also`.
    pub fn load(
        sources: &mut SourceMap,
        loader: &dyn Loader,
        root: FileId,
        also: &[&str],
    ) -> (Program, Vec<Diagnostic>) {
        let mut loading = Loading {
            sources,
            loader,
            modules: Vec::new(),
            path: Vec::new(),
            imports: Vec::new(),
            diagnostics: Vec::new(),
        };
        let name = loading.sources.file(root).name.clone();
        loading.add(name, root);
        for name in also {
            loading.standard(name);
        }
        loading.finish()
    }

    /// The items of the root file.
    pub fn root_items(&self) -> impl Iterator<Item = &Item> {
        self.modules.first().into_iter().flat_map(|module| &module.ast.items)
    }

    /// The root file.
    pub fn root(&self) -> Option<FileId> {
        self.modules.first().map(|module| module.ast.id)
    }

    /// What `name` means in a file.
    pub fn lookup(&self, file: FileId, name: &str) -> Option<(FileId, &Item)> {
        let module = self.module(file)?;
        let found = module.scope.get(name)?;
        let target = &self.modules[found.module];
        Some((target.ast.id, &target.ast.items[found.item]))
    }

    /// An item of a module of the standard library.
    pub fn standard(&self, module: &str, name: &str) -> Option<(FileId, &Item)> {
        let module = self.modules.iter().find(|it| it.name.strip_prefix("std::") == Some(module))?;
        self.lookup(module.ast.id, name)
    }

    /// The optimizers or functions of a module of the standard library.
    pub fn standard_names(&self, module: &str) -> Vec<&str> {
        let optimizers = module == "optim";
        let wanted = |item: &&Item| matches!(item, Item::Optimizer(_)) == optimizers;
        let module = self.modules.iter().find(|it| it.name.strip_prefix("std::") == Some(module));
        module
            .into_iter()
            .flat_map(|it| &it.ast.items)
            .filter(wanted)
            .filter_map(item_name)
            .map(|it| it.name.as_str())
            .collect()
    }

    /// Every name that a file sees.
    pub fn names(&self, file: FileId) -> impl Iterator<Item = &str> {
        self.module(file).into_iter().flat_map(|module| module.scope.keys().map(String::as_str))
    }

    /// Whether some of a file's items could not be parsed.
    pub fn has_broken_items(&self, file: FileId) -> bool {
        self.module(file)
            .is_some_and(|module| module.ast.items.iter().any(|item| matches!(item, Item::Error(_))))
    }

    fn module(&self, file: FileId) -> Option<&Module> {
        self.by_file.get(file.index()).copied().flatten().map(|index| &self.modules[index])
    }
}

/// The name under which others see an item.
pub(super) fn item_name(item: &Item) -> Option<&Ident> {
    match item {
        Item::Layer(item) => Some(&item.name),
        Item::Model(item) => Some(&item.name),
        Item::Optimizer(item) => Some(&item.name),
        Item::Function(item) => item.name.as_ref(),
        Item::Use(_) | Item::Plan(_) | Item::Error(_) => None,
    }
}

/// The module of the standard library that has an item of this name.
pub(super) fn standard_home(name: &str) -> Option<&'static str> {
    stdlib::FILES.iter().find_map(|&(module, text)| {
        let declares = text.lines().any(|line| {
            ["layer ", "fn ", "optimizer "].iter().any(|keyword| {
                let rest = line.strip_prefix(keyword).and_then(|rest| rest.strip_prefix(name));
                rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
            })
        });
        declares.then_some(module)
    })
}

impl Loading<'_> {
    fn add(&mut self, name: String, file: FileId) -> usize {
        let parsed = crate::parse::parse(self.sources.file(file));
        self.diagnostics.extend(parsed.diagnostics);
        let ast = parsed.file;
        let index = self.modules.len();
        let uses: Vec<ast::Use> = ast.items.iter().filter_map(as_use).cloned().collect();
        self.modules.push(Module { name, ast, scope: IndexMap::new() });
        self.declare(index);
        self.path.push(index);
        for item in &uses {
            self.follow(index, item);
        }
        self.path.pop();
        index
    }

    /// The module's own names.
    fn declare(&mut self, module: usize) {
        let mut clashes = Vec::new();
        let mut scope: IndexMap<String, ItemRef> = IndexMap::new();
        let mut plans: Vec<&Ident> = Vec::new();
        let items = &self.modules[module].ast.items;
        for (index, item) in items.iter().enumerate() {
            if let Item::Plan(plan) = item {
                if let Some(first) = plans.iter().find(|known| known.name == plan.name.name) {
                    clashes.push(duplicate(&plan.name, first.span));
                }
                plans.push(&plan.name);
            }
            let Some(name) = item_name(item) else { continue };
            if let Some(first) = scope.get(&name.name).and_then(|it| item_name(&items[it.item])) {
                clashes.push(duplicate(name, first.span));
                continue;
            }
            scope.insert(name.name.clone(), ItemRef { module, item: index });
        }
        self.diagnostics.extend(clashes);
        self.modules[module].scope = scope;
    }

    fn follow(&mut self, module: usize, item: &ast::Use) {
        let (path, names) = match &item.names {
            UseNames::Group(names) => {
                let names =
                    names.iter().map(|name| (name.name.clone(), name.alias.clone())).collect::<Vec<_>>();
                (&item.path[..], names)
            }
            UseNames::Last { alias } => match item.path.split_last() {
                Some((last, path)) => (path, vec![(last.clone(), alias.clone())]),
                None => return,
            },
        };
        if path.is_empty() {
            let diagnostic = Diagnostic::error(Code::UnresolvedImport, "import without a file")
                .label(item.span, "names no file")
                .why("an import names a file, then the items wanted from it")
                .hint("use std::nn::Linear");
            self.diagnostics.push(diagnostic);
            return;
        }
        let Some(target) = self.resolve(module, path, item.span) else { return };
        for (name, alias) in names {
            let alias = alias.unwrap_or_else(|| name.clone());
            self.imports.push(Import { module, target, name, alias });
        }
    }

    fn resolve(&mut self, module: usize, path: &[Ident], span: Span) -> Option<usize> {
        let segments: Vec<&str> = path.iter().map(|it| it.name.as_str()).collect();
        if segments.first() == Some(&"std") {
            let name = segments[1..].join("::");
            return match self.standard(&name) {
                Some(target) => self.acyclic(target, span),
                None => {
                    let known = stdlib::FILES.iter().map(|(name, _)| *name);
                    let near = did_you_mean(&name, known.clone());
                    let all: Vec<&str> = known.collect();
                    let mut diagnostic = Diagnostic::error(
                        Code::UnresolvedImport,
                        format!("the standard library has no `{name}`"),
                    )
                    .label(span, "not found")
                    .note(format!("modules of `std`: {}", all.join(", ")));
                    if let (Some(near), [_, first, ..], Some(last)) = (near, path, path.last()) {
                        let module = Span::new(span.file, first.span.start, last.span.end);
                        diagnostic = diagnostic.hint_edit(format!("std::{near}"), module, near);
                    }
                    self.diagnostics.push(diagnostic);
                    None
                }
            };
        }
        let from = self.sources.file(self.modules[module].ast.id).name.clone();
        let failed = match self.loader.load(&from, &segments) {
            Loaded::Found { name, bytes } => return self.found(name, &bytes, span),
            Loaded::Missing => "no such file".to_owned(),
            Loaded::Failed(why) => why,
        };
        let title = format!("`{}` can't be imported", segments.join("::"));
        let diagnostic = Diagnostic::error(Code::UnresolvedImport, title)
            .label(span, failed)
            .why(format!("`{}` is looked up beside the importing file", segments.join("/") + ".dtl"));
        self.diagnostics.push(diagnostic);
        None
    }

    fn found(&mut self, name: String, bytes: &[u8], span: Span) -> Option<usize> {
        if let Some(known) = self.modules.iter().position(|module| module.name == name) {
            return self.acyclic(known, span);
        }
        match self.sources.add_bytes(name.clone(), bytes) {
            Ok(file) => Some(self.add(name, file)),
            Err(diagnostic) => {
                self.diagnostics.push(*diagnostic);
                None
            }
        }
    }

    fn standard(&mut self, name: &str) -> Option<usize> {
        let full = format!("std::{name}");
        if let Some(known) = self.modules.iter().position(|module| module.name == full) {
            return Some(known);
        }
        let text = stdlib::text(name)?;
        let file = self.sources.add(format!("stdlib/{name}.dtl"), text);
        Some(self.add(full, file))
    }

    fn acyclic(&mut self, target: usize, span: Span) -> Option<usize> {
        let Some(start) = self.path.iter().position(|&it| it == target) else { return Some(target) };
        let circle: Vec<&str> =
            self.path[start..].iter().chain([&target]).map(|&it| self.modules[it].name.as_str()).collect();
        let diagnostic = Diagnostic::error(Code::CyclicImport, "files import each other")
            .label(span, "closes the circle")
            .why(format!("the circle is {}", circle.join(" → ")))
            .hint("move what both need into a third file");
        self.diagnostics.push(diagnostic);
        None
    }

    /// Gives imported names their meaning: after all files are known.
    fn finish(mut self) -> (Program, Vec<Diagnostic>) {
        for import in std::mem::take(&mut self.imports) {
            let target = &self.modules[import.target];
            let own = target.scope.get(&import.name.name).filter(|it| it.module == import.target).copied();
            match own {
                Some(item) => {
                    let scope = &mut self.modules[import.module].scope;
                    if let Some(known) = scope.get(&import.alias.name).copied() {
                        if known == item {
                            continue;
                        }
                        let first = item_name(&self.modules[known.module].ast.items[known.item]);
                        let first = first.map_or(import.alias.span, |it| it.span);
                        self.diagnostics.push(duplicate(&import.alias, first));
                        continue;
                    }
                    scope.insert(import.alias.name.clone(), item);
                }
                None => {
                    let names: Vec<&str> =
                        target.ast.items.iter().filter_map(item_name).map(|it| it.name.as_str()).collect();
                    self.diagnostics.push(unknown_import(&import.name, &target.name, &names));
                }
            }
        }
        let mut by_file = Vec::new();
        for (index, module) in self.modules.iter().enumerate() {
            let file = module.ast.id.index();
            by_file.resize(by_file.len().max(file + 1), None);
            by_file[file] = Some(index);
        }
        (Program { modules: self.modules, by_file }, self.diagnostics)
    }
}

fn as_use(item: &Item) -> Option<&ast::Use> {
    match item {
        Item::Use(item) => Some(item),
        Item::Layer(_)
        | Item::Model(_)
        | Item::Optimizer(_)
        | Item::Function(_)
        | Item::Plan(_)
        | Item::Error(_) => None,
    }
}

fn duplicate(name: &Ident, first: Span) -> Diagnostic {
    Diagnostic::error(Code::DuplicateName, format!("`{}` is declared twice", name.name))
        .label(name.span, "declared again")
        .label(first, "first declared here")
}

fn unknown_import(name: &Ident, module: &str, names: &[&str]) -> Diagnostic {
    let title = format!("`{module}` has no `{}`", name.name);
    let diagnostic = Diagnostic::error(Code::UnknownImport, title).label(name.span, "not found there");
    let diagnostic = match (did_you_mean(&name.name, names.iter().copied()), standard_home(&name.name)) {
        (Some(near), _) => diagnostic.hint_edit(near.to_owned(), name.span, near),
        (None, Some(home)) => diagnostic.hint(format!("use std::{home}::{}", name.name)),
        (None, None) => diagnostic,
    };
    diagnostic.note(format!("it has {}", names.join(", ")))
}
