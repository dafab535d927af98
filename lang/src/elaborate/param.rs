//! Parameters: their type, kind, initialiser and names.

use super::context::Elaborator;
use super::value::{Env, InstanceId, Value};
use crate::ast::{self, Argument, Expr, ExprKind, Ident};
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::model::{Binding, DimId, Init, Param, ParamKind, Target};

impl<'p> Elaborator<'p> {
    pub fn param_member(&mut self, id: InstanceId, param: &'p ast::Param) {
        if self.taken(id, &param.name) {
            return;
        }
        let env = self.env_of(id);
        let ty = self.written_type(&env, &param.ty);
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
