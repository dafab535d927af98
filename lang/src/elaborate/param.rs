//! Parameters: their type, kind, initialiser and names.

use super::context::Elaborator;
use super::path::{ParamNames, have_one_name};
use super::value::{Env, InstanceId, Value};
use crate::ast::{self, Argument, Expr, ExprKind, Ident};
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::model::{Binding, DimId, Element, Init, Param, ParamKind, Target};

impl<'p> Elaborator<'p> {
    pub fn param_member(&mut self, id: InstanceId, param: &'p ast::Param) {
        if self.taken(id, &param.name) {
            return;
        }
        let env = self.env_of(id);
        let ty = self.written_type(&env, &param.ty).filter(|ty| self.trainable(ty.element, param));
        let kind = match param.kind {
            None | Some(ast::ParamKind::Weight) => ParamKind::Weight,
            Some(ast::ParamKind::Norm) => ParamKind::Norm,
            Some(ast::ParamKind::Bias) => ParamKind::Bias,
        };
        let init = match &param.init {
            Some(init) => self.initialiser(&env, init),
            None => Some(match kind {
                ParamKind::Weight => Init::Normal(0.02),
                ParamKind::Norm => Init::Constant(1.0),
                ParamKind::Bias => Init::Constant(0.0),
            }),
        };
        let declared = match (ty, init) {
            (Some(ty), Some(init)) => {
                let stack = self.repeats.clone();
                let whole: Vec<DimId> = stack.iter().chain(&ty.dims).copied().collect();
                self.tensor(ty.element, whole, param.ty.span).map(|_| {
                    let names = self.param_names(&param.name.name, param.checkpoint_name.as_ref());
                    self.check_file_name(&names, &stack, param);
                    let declared = self.params.push(Param {
                        path: names.plain,
                        numbered: names.numbered,
                        alias: names.alias,
                        stack,
                        dims: ty.dims,
                        element: ty.element,
                        kind,
                        init,
                        scope: self.scope,
                        name: param.name.name.clone(),
                        span: param.name.span,
                    });
                    let target = Target::Param(declared);
                    self.bindings.push(Binding { scope: self.scope, name: param.name.name.clone(), target });
                    self.pin(&env, &param.ty, target);
                    declared
                })
            }
            (Some(_) | None, Some(_) | None) => None,
        };
        self.instances[id].params.insert(param.name.name.clone(), declared);
    }

    /// Whether a parameter of this type can be trained; else a report.
    fn trainable(&mut self, element: Element, param: &ast::Param) -> bool {
        let word = match element {
            Element::Float | Element::F32 | Element::Bf16 | Element::F16 => return true,
            Element::I32 => "i32",
            Element::U32 => "u32",
            Element::Bool => "bool",
        };
        self.report(
            Diagnostic::error(Code::ElementMismatch, format!("`{word}` can't be trained"))
                .label(param.ty.span, "the type of a parameter")
                .why("a parameter moves against its gradient, and only numbers with a fraction have one")
                .hint("a parameter of floats, or an input of `loss`"),
        );
        false
    }

    /// Reports a parameter that has another's name in files.
    fn check_file_name(&mut self, names: &ParamNames, stack: &[DimId], param: &ast::Param) {
        let name = names.alias.as_ref().unwrap_or(&names.numbered);
        let sizes = |stack: &[DimId]| stack.iter().map(|&dim| self.dims[dim].size).collect::<Vec<_>>();
        let own = (name.as_str(), &sizes(stack)[..]);
        let is_same = |other: &&Param| {
            let name = other.alias.as_ref().unwrap_or(&other.numbered);
            have_one_name(own, (name, &sizes(&other.stack)))
        };
        let Some(other) = self.params.values().find(is_same) else { return };
        let (path, first) = (other.path.clone(), other.span);
        let written = self.path.iter().rev().find_map(|segment| segment.checkpoint.as_ref());
        let written = param.checkpoint_name.as_ref().or(written).map(|written| written.span);
        let title = format!("`{}` and `{path}` are both called `{name}` in files", names.plain);
        let mut diagnostic = Diagnostic::error(Code::DuplicateName, title)
            .label(written.unwrap_or(param.name.span), "the second");
        if written.is_none() {
            diagnostic = diagnostic.label(first, "the first");
        }
        self.report(
            diagnostic.why("weights and checkpoints hold parameters by name: `as` has to keep them apart"),
        );
    }

    fn initialiser(&mut self, env: &Env, init: &'p Expr) -> Option<Init> {
        let (name, arguments): (Option<&Ident>, &'p [Argument]) = match &init.kind {
            ExprKind::Name(name) => (Some(name), &[]),
            ExprKind::Apply { callee, dims: None, arguments: Some(arguments) } => {
                (callee.as_name(), arguments)
            }
            ExprKind::Error => return None,
            _ => (None, &[]),
        };
        let mut numbers = Vec::new();
        for argument in arguments {
            match self.expression(env, &argument.value) {
                Value::Number(number) => numbers.push(number.as_f64()),
                Value::Error => return None,
                Value::Node(_) | Value::Truth(_) | Value::Tuple(_) => {
                    self.report(
                        Diagnostic::error(Code::NotCompileTime, "not a number known at compile time")
                            .label(argument.span, "an initialiser takes numbers"),
                    );
                    return None;
                }
            }
        }
        // Parameters start as f32, so what is beyond its range can't be meant.
        if let Some(number) = numbers.iter().find(|number| number.abs() > f64::from(f32::MAX)) {
            self.report(
                Diagnostic::error(Code::InvalidInitialiser, format!("{number:e} is beyond the range of f32"))
                    .label(init.span, "can't be how a parameter starts"),
            );
            return None;
        }
        match (name.map(|name| name.name.as_str()), &numbers[..]) {
            (Some("zeros"), []) => Some(Init::Constant(0.0)),
            (Some("ones"), []) => Some(Init::Constant(1.0)),
            (Some("constant"), [value]) => Some(Init::Constant(*value)),
            (Some("normal"), [deviation]) if *deviation >= 0.0 => Some(Init::Normal(*deviation)),
            (Some("uniform"), [low, high]) if low <= high => Some(Init::Uniform(*low, *high)),
            _ => {
                self.report(
                    Diagnostic::error(Code::InvalidInitialiser, "not an initialiser")
                        .label(init.span, "can't be how a parameter starts")
                        .hint("zeros, ones, constant(0.5), normal(0.02) or uniform(-0.1, 0.1)"),
                );
                None
            }
        }
    }
}
