//! Elaboration: from the syntax trees of a file and its imports to the typed [`Model`] and [`Plan`].
//!
//! Names are resolved, layers and functions instantiated and inlined, dimensions and element types checked. Every
//! mistake of the file is reported at once. Knows nothing of placements beyond what the plan says, nor of devices.

mod builtin;
mod call;
mod context;
mod dims;
mod expression;
mod formals;
mod hyper;
mod instance;
mod models;
mod operator;
mod param;
mod path;
mod plans;
mod program;
mod stdlib;
mod types;
mod value;

use crate::ast::{self, Item};
use crate::codes::Code;
use crate::diagnostic::{Diagnostic, sort_diagnostics};
use crate::model::Model;
use crate::plan::Plan;
use crate::source::{FileId, Loader, SourceMap};
use crate::suggest::did_you_mean;
use models::{check_functions, check_item, elaborate_model};
use plans::Overrides;
use program::Program;

pub use stdlib::FILES as STDLIB;

/// Which plan of a file is meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PlanChoice {
    /// The only plan; with none, no plan.
    #[default]
    Only,
    /// No plan, whatever the file has.
    None,
    /// By name.
    Named(String),
}

/// What to compile of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The plan.
    pub plan: PlanChoice,
    /// `-D NAME=VALUE`: sizes of dims and of mesh axes, and `seq`, `global` and `micro` of the batch. They override
    /// what the file says.
    pub overrides: Vec<(String, String)>,
}

/// A typed model, and the plan it was typed under.
#[derive(Debug)]
pub struct Compiled {
    /// All files that took part.
    pub sources: SourceMap,
    /// The model.
    pub model: Model,
    /// The plan.
    pub plan: Option<Plan>,
}

/// What is wrong with a file.
#[derive(Debug)]
pub struct Rejected {
    /// All files that took part.
    pub sources: SourceMap,
    /// At least one error.
    pub diagnostics: Vec<Diagnostic>,
}

/// What `check` finds.
#[derive(Debug)]
pub struct Checked {
    /// All files that took part.
    pub sources: SourceMap,
    /// Everything wrong, in order; empty for a good file.
    pub diagnostics: Vec<Diagnostic>,
    /// The names of the file's models.
    pub models: Vec<String>,
    /// The names of its plans, each with its model's.
    pub plans: Vec<(String, String)>,
    /// What `-D` can set: for each plan, or for each model where there are no plans, in their order.
    pub overridable: Vec<Vec<String>>,
}

/// Compiles one model under one plan. `name` is the file's name for messages, `bytes` its content; what it imports
/// comes through `loader`.
///
/// # Errors
/// Everything wrong with the file as far as this model and plan are concerned.
pub fn compile(
    loader: &dyn Loader,
    name: &str,
    bytes: &[u8],
    options: &Options,
) -> Result<Compiled, Box<Rejected>> {
    let mut session = Session::open(loader, name, bytes);
    let outcome = session.compile(options);
    session.diagnostics.retain(Diagnostic::is_error);
    match outcome {
        Some((model, plan)) if session.diagnostics.is_empty() => {
            Ok(Compiled { sources: session.sources, model, plan })
        }
        Some(_) | None => {
            sort_diagnostics(&mut session.diagnostics);
            Err(Box::new(Rejected { sources: session.sources, diagnostics: session.diagnostics }))
        }
    }
}

/// Checks a whole file: every model by itself and under each of its plans, and every other item with stand-ins for its
/// dims where no model uses it.
///
/// What a plan's sizes break of a `require` is not among it: [`compile`] says that, with the sizes that it is given.
pub fn check_all(loader: &dyn Loader, name: &str, bytes: &[u8]) -> Checked {
    let mut session = Session::open(loader, name, bytes);
    session.check();
    sort_diagnostics(&mut session.diagnostics);
    let Session { sources, program, diagnostics, root } = session;
    let models = program.root_items().filter_map(|item| match item {
        Item::Model(model) => Some(model.name.name.clone()),
        _ => None,
    });
    let plans = plans_of(&program).map(|plan| (plan.name.name.clone(), plan.model.name.clone()));
    let mut overridable: Vec<Vec<String>> = plans_of(&program)
        .map(|plan| match program.lookup(root, &plan.model.name) {
            Some((_, Item::Model(model))) => plans::overridable(Some(plan), model),
            Some(_) | None => Vec::new(),
        })
        .collect();
    if overridable.is_empty() {
        let models = program.root_items().filter_map(|item| match item {
            Item::Model(model) => Some(plans::overridable(None, model)),
            _ => None,
        });
        overridable.extend(models);
    }
    Checked { diagnostics, models: models.collect(), plans: plans.collect(), overridable, sources }
}

/// A parsed file with its imports.
struct Session {
    sources: SourceMap,
    program: Program,
    root: FileId,
    diagnostics: Vec<Diagnostic>,
}

impl Session {
    fn open(loader: &dyn Loader, name: &str, bytes: &[u8]) -> Session {
        let mut sources = SourceMap::new();
        let (root, unreadable) = match sources.add_bytes(name, bytes) {
            Ok(root) => (root, None),
            Err(diagnostic) => (sources.add(name, ""), Some(*diagnostic)),
        };
        let (program, mut diagnostics) = Program::load(&mut sources, loader, root, &["optim", "schedule"]);
        diagnostics.extend(unreadable);
        Session { sources, program, root, diagnostics }
    }

    fn compile(&mut self, options: &Options) -> Option<(Model, Option<Plan>)> {
        if self.diagnostics.iter().any(Diagnostic::is_error) {
            return None;
        }
        let program = &self.program;
        let plan = match choose_plan(program, &options.plan) {
            Ok(plan) => plan,
            Err(diagnostic) => {
                self.diagnostics.push(at_root(*diagnostic, self.root));
                return None;
            }
        };
        let overrides = match Overrides::read(&options.overrides) {
            Ok(overrides) => overrides,
            // They are about the command line, not about a place in the file.
            Err(diagnostics) => {
                self.diagnostics.extend(diagnostics);
                return None;
            }
        };
        let (file, model) = match model_of(program, self.root, plan) {
            Ok(found) => found,
            Err(diagnostic) => {
                self.diagnostics.push(at_root(*diagnostic, self.root));
                return None;
            }
        };
        let (sizes, diagnostics) = plans::sizes(plan, model, &overrides);
        self.diagnostics.extend(diagnostics);
        let elaborated = elaborate_model(program, file, model, &sizes);
        let (model, complete) = (elaborated.model, elaborated.complete);
        self.diagnostics.extend(elaborated.diagnostics);
        let Some(plan) = plan else { return complete.then_some((model, None)) };
        let (plan, diagnostics) = plans::resolve(program, self.root, plan, &model, &overrides);
        self.diagnostics.extend(diagnostics.into_iter().filter(|it| complete || of_plan_alone(it)));
        plan.filter(|_| complete).map(|plan| (model, Some(plan)))
    }

    fn check(&mut self) {
        let program = &self.program;
        let mut found = Vec::new();
        let mut used = rustc_hash::FxHashSet::default();
        let overrides = Overrides::default();
        for item in program.root_items() {
            let Item::Model(model) = item else { continue };
            let (sizes, _) = plans::sizes(None, model, &overrides);
            let elaborated = elaborate_model(program, self.root, model, &sizes);
            let functions = check_functions(program, self.root, model, &sizes);
            // A model that has plans never runs with the sizes that stand in for a plan's here.
            let is_planned = plans_of(program).any(|plan| plan.model.name == model.name.name);
            let is_of_model = |it: &Diagnostic| !is_planned || it.code != Code::Unmet;
            found.extend(elaborated.diagnostics.into_iter().chain(functions).filter(is_of_model));
            used.extend(elaborated.used);
        }
        for plan in plans_of(program) {
            let (file, model) = match model_of(program, self.root, Some(plan)) {
                Ok(found) => found,
                Err(diagnostic) => {
                    found.push(*diagnostic);
                    continue;
                }
            };
            let (sizes, diagnostics) = plans::sizes(Some(plan), model, &overrides);
            found.extend(diagnostics);
            let elaborated = elaborate_model(program, file, model, &sizes);
            used.extend(elaborated.used);
            found.extend(elaborated.diagnostics.into_iter().filter(|it| it.code != Code::Unmet));
            let complete = elaborated.complete;
            let (_, of_plan) = plans::resolve(program, self.root, plan, &elaborated.model, &overrides);
            found.extend(of_plan.into_iter().filter(|it| complete || of_plan_alone(it)));
        }
        for item in program.root_items().filter(|item| !used.contains(&item.span())) {
            match item {
                Item::Optimizer(optimizer) => {
                    found.extend(plans::check_optimizer(program, self.root, optimizer))
                }
                Item::Layer(_) | Item::Function(_) => found.extend(check_item(program, self.root, item)),
                Item::Model(_) | Item::Use(_) | Item::Plan(_) | Item::Error(_) => {}
            }
        }
        // A mistake in a body shows under every plan: once is enough.
        for diagnostic in found {
            let known =
                |other: &Diagnostic| other.code == diagnostic.code && other.span() == diagnostic.span();
            if diagnostic.span().is_none() || !self.diagnostics.iter().any(known) {
                self.diagnostics.push(diagnostic);
            }
        }
    }
}

/// Whether a mistake of a plan is one whatever the model's body says, so that it is shown beside the model's own.
fn of_plan_alone(diagnostic: &Diagnostic) -> bool {
    matches!(
        diagnostic.code,
        Code::UnknownAxis
            | Code::AxisTwice
            | Code::InvalidSetting
            | Code::NotSupported
            | Code::InvalidOptimizer
            | Code::InvalidOverride
            | Code::DuplicateEntry
            | Code::DuplicateName
            | Code::InvalidMesh
            | Code::UnknownDim
            | Code::WrongArguments
            | Code::WrongValue
    )
}

fn plans_of(program: &Program) -> impl Iterator<Item = &ast::Plan> {
    program.root_items().filter_map(|item| match item {
        Item::Plan(plan) => Some(plan),
        _ => None,
    })
}

/// A diagnostic about the command line points at the start of the file.
fn at_root(diagnostic: Diagnostic, root: FileId) -> Diagnostic {
    if diagnostic.labels.is_empty() {
        return diagnostic.label(crate::source::Span::new(root, 0, 0), "this file");
    }
    diagnostic
}

fn choose_plan<'p>(
    program: &'p Program,
    choice: &PlanChoice,
) -> Result<Option<&'p ast::Plan>, Box<Diagnostic>> {
    let plans: Vec<&ast::Plan> = plans_of(program).collect();
    let names: Vec<&str> = plans.iter().map(|plan| plan.name.name.as_str()).collect();
    match choice {
        PlanChoice::None => Ok(None),
        PlanChoice::Only => match plans[..] {
            [] => Ok(None),
            [plan] => Ok(Some(plan)),
            _ => Err(Box::new(
                Diagnostic::error(Code::WhichPlan, "the file has several plans")
                    .why(format!("plans: {}", names.join(", ")))
                    .hint(format!("-p {}", names[0])),
            )),
        },
        PlanChoice::Named(name) => match plans.iter().find(|plan| plan.name.name == *name) {
            Some(plan) => Ok(Some(plan)),
            None => {
                let mut diagnostic =
                    Diagnostic::error(Code::WhichPlan, format!("the file has no plan `{name}`"));
                if !names.is_empty() {
                    diagnostic = diagnostic.why(format!("plans: {}", names.join(", ")));
                }
                if let Some(near) = did_you_mean(name, names.iter().copied()) {
                    diagnostic = diagnostic.hint(format!("-p {near}"));
                }
                Err(Box::new(diagnostic))
            }
        },
    }
}

/// The plan's model, else the only one.
fn model_of<'p>(
    program: &'p Program,
    root: FileId,
    plan: Option<&ast::Plan>,
) -> Result<(FileId, &'p ast::Model), Box<Diagnostic>> {
    let models: Vec<&ast::Model> = program
        .root_items()
        .filter_map(|item| match item {
            Item::Model(model) => Some(model),
            _ => None,
        })
        .collect();
    let Some(plan) = plan else {
        return match models[..] {
            [model] => Ok((root, model)),
            [] => Err(Box::new(
                Diagnostic::error(Code::WhichModel, "the file has no model").hint("model Name { … }"),
            )),
            _ => {
                let names: Vec<&str> = models.iter().map(|model| model.name.name.as_str()).collect();
                Err(Box::new(
                    Diagnostic::error(Code::WhichModel, "the file has several models")
                        .why(format!("models: {}", names.join(", ")))
                        .hint("-p PLAN    // a plan names its model"),
                ))
            }
        };
    };
    match program.lookup(root, &plan.model.name) {
        Some((file, Item::Model(model))) => Ok((file, model)),
        Some(_) | None => {
            let title = format!("no model `{}`", plan.model.name);
            let mut diagnostic =
                Diagnostic::error(Code::WhichModel, title).label(plan.model.span, "not found");
            let names = models.iter().map(|model| model.name.name.as_str());
            if let Some(near) = did_you_mean(&plan.model.name, names) {
                diagnostic = diagnostic.hint_edit(near.to_owned(), plan.model.span, near);
            }
            Err(Box::new(diagnostic))
        }
    }
}
