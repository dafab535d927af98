//! Hyper-parameters: arguments matched to parameters, and values checked against declared types.
//!
//! All of them are known at compile time.

use super::context::{Elaborator, Purpose};
use super::instance::{Blueprint, Given};
use super::value::{InstanceId, Number, Value};
use crate::ast::{Parameter, Type, TypeKind};
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::model::Element;
use crate::source::Span;
use crate::suggest::did_you_mean;

impl<'p> Elaborator<'p> {
    /// Fills in the hyper-parameters of an instance.
    pub fn hypers(&mut self, id: InstanceId, blueprint: &Blueprint<'p>, given: &[Given<'_>]) {
        let what = format!("{} `{}`", blueprint.kind.name(), blueprint.name.name);
        let chosen = self.assign(blueprint.hypers, given, &what, blueprint.name.span);
        for (parameter, chosen) in blueprint.hypers.iter().zip(chosen) {
            let value = match (chosen, &parameter.default) {
                (Some(index), _) => {
                    let argument = &given[index];
                    self.hyper_value(&parameter.ty, &argument.value, argument.span)
                }
                (None, Some(default)) => {
                    let env = self.env_of(id);
                    let value = self.expression(&env, default);
                    self.hyper_value(&parameter.ty, &value, default.span)
                }
                (None, None) if self.purpose == Purpose::Generic => self.stand_in_hyper(&parameter.ty),
                (None, None) => {
                    let place = self.frames.last().map_or(blueprint.name.span, |frame| frame.span);
                    let title = format!("{what} needs `{}`", parameter.name.name);
                    self.report(
                        Diagnostic::error(Code::WrongArguments, title)
                            .label(place, format!("`{}` is missing", parameter.name.name))
                            .label(parameter.span, "has no default"),
                    )
                }
            };
            self.instances[id].hypers.insert(parameter.name.name.clone(), value);
        }
    }

    /// For each parameter the index of its argument. Reports arguments that have no parameter.
    pub fn assign(
        &mut self,
        parameters: &[Parameter],
        given: &[Given<'_>],
        what: &str,
        declared: Span,
    ) -> Vec<Option<usize>> {
        let mut chosen = vec![None; parameters.len()];
        let mut next = 0;
        for (index, argument) in given.iter().enumerate() {
            let position = match argument.name {
                Some(name) => parameters.iter().position(|it| it.name.name == name.name),
                None => {
                    next += 1;
                    (next <= parameters.len()).then_some(next - 1)
                }
            };
            match position {
                Some(position) if chosen[position].is_none() => chosen[position] = Some(index),
                Some(position) => {
                    let title = format!("`{}` is given twice", parameters[position].name.name);
                    self.report(
                        Diagnostic::error(Code::WrongArguments, title).label(argument.span, "given again"),
                    );
                }
                None => self.surplus(parameters, argument, what, declared),
            }
        }
        chosen
    }

    fn surplus(&mut self, parameters: &[Parameter], argument: &Given<'_>, what: &str, declared: Span) {
        let names: Vec<&str> = parameters.iter().map(|it| it.name.name.as_str()).collect();
        let takes = if names.is_empty() { "no arguments".to_owned() } else { names.join(", ") };
        let diagnostic = match argument.name {
            Some(name) => {
                let title = format!("{what} has no parameter `{}`", name.name);
                let diagnostic = Diagnostic::error(Code::WrongArguments, title).label(name.span, "unknown");
                match did_you_mean(&name.name, names.iter().copied()) {
                    Some(near) => diagnostic.hint_edit(near.to_owned(), name.span, near),
                    None => diagnostic,
                }
            }
            None => Diagnostic::error(Code::WrongArguments, format!("too many arguments for {what}"))
                .label(argument.span, "one too many"),
        };
        self.report(diagnostic.label(declared, format!("takes {takes}")));
    }

    /// A compile-time value of the declared type, else a report.
    pub fn hyper_value(&mut self, ty: &Type, value: &Value, span: Span) -> Value {
        match (&ty.kind, value) {
            (_, Value::Error) | (TypeKind::Error, _) => Value::Error,
            (TypeKind::Tuple(types), Value::Tuple(values)) if types.len() == values.len() => Value::Tuple(
                types.iter().zip(values).map(|(ty, value)| self.hyper_value(ty, value, span)).collect(),
            ),
            (TypeKind::Scalar(name), value) => {
                let Some(element) = self.element(Some(name)) else { return Value::Error };
                match (element, value) {
                    (Element::Float | Element::F32 | Element::Bf16 | Element::F16, Value::Number(number)) => {
                        Value::Number(Number::Float(number.as_f64()))
                    }
                    (Element::I32 | Element::U32, Value::Number(Number::Int(_)))
                    | (Element::Bool, Value::Truth(_)) => value.clone(),
                    _ => self.wrong_hyper(ty, value, span),
                }
            }
            (TypeKind::Tuple(_) | TypeKind::Tensor { .. }, _) => self.wrong_hyper(ty, value, span),
        }
    }

    fn wrong_hyper(&mut self, ty: &Type, value: &Value, span: Span) -> Value {
        let found = self.value_text(value);
        let code = if matches!(value, Value::Node(_)) { Code::NotCompileTime } else { Code::WrongValue };
        self.report(
            Diagnostic::error(code, format!("{found} does not fit this parameter"))
                .label(span, format!("this is {found}"))
                .label(ty.span, "the declared type")
                .why("hyper-parameters are known at compile time: f32, i32, u32, bool, or a tuple of them"),
        )
    }

    /// A value for checking an item by itself.
    pub fn stand_in_hyper(&mut self, ty: &Type) -> Value {
        match &ty.kind {
            TypeKind::Scalar(name) => match self.element(Some(name)) {
                Some(Element::Float | Element::F32 | Element::Bf16 | Element::F16) => {
                    Value::Number(Number::Float(1.0))
                }
                Some(Element::I32 | Element::U32) => Value::Number(Number::Int(1)),
                Some(Element::Bool) => Value::Truth(true),
                None => Value::Error,
            },
            TypeKind::Tuple(types) => Value::Tuple(types.iter().map(|ty| self.stand_in_hyper(ty)).collect()),
            TypeKind::Tensor { .. } | TypeKind::Error => Value::Error,
        }
    }
}
