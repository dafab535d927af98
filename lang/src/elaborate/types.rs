//! Tensor types: from what is written to [`TensorType`], and whether a value fits one.
//!
//! A type lists dimensions in memory order, but two types are equal where they have the same dimensions: operations
//! act by name, so order is layout, not meaning.

use super::context::{Elaborator, Purpose};
use super::dims::MOST_ELEMENTS;
use super::value::{Env, Number, Value};
use crate::ast::{Ident, PlacedDim, Type, TypeDim, TypeKind};
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::model::{DimId, Element, NodeId, Operation, Pin, Target, TensorType};
use crate::source::Span;
use crate::suggest::did_you_mean;

/// Names of element types in source; `float` is the plan's compute precision.
pub(super) const ELEMENTS: [(&str, Element); 7] = [
    ("float", Element::Float),
    ("f32", Element::F32),
    ("bf16", Element::Bf16),
    ("f16", Element::F16),
    ("i32", Element::I32),
    ("u32", Element::U32),
    ("bool", Element::Bool),
];

/// The name of an element type in source.
pub(super) fn element_name(element: Element) -> &'static str {
    match element {
        Element::Float => "float",
        Element::F32 => "f32",
        Element::Bf16 => "bf16",
        Element::F16 => "f16",
        Element::I32 => "i32",
        Element::U32 => "u32",
        Element::Bool => "bool",
    }
}

/// The element type of a name.
pub(super) fn element_of(name: &str) -> Option<Element> {
    ELEMENTS.iter().find(|(known, _)| *known == name).map(|(_, element)| *element)
}

/// Whether numbers of this type have a fraction.
pub(super) fn is_float(element: Element) -> bool {
    match element {
        Element::Float | Element::F32 | Element::Bf16 | Element::F16 => true,
        Element::I32 | Element::U32 | Element::Bool => false,
    }
}

impl Elaborator<'_> {
    /// Dims as a type prints them: `B, S, D`.
    pub fn dim_list(&self, dims: &[DimId]) -> String {
        dims.iter().map(|&dim| self.dims[dim].name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// A type as source: `f32[B, S]`, without an element name for the default.
    pub fn type_text(&self, ty: &TensorType) -> String {
        let element = if ty.element == Element::Float { "" } else { element_name(ty.element) };
        format!("{element}[{}]", self.dim_list(&ty.dims))
    }

    /// The kind of a value, for messages.
    pub fn value_text(&self, value: &Value) -> String {
        match value {
            Value::Node(node) => self.type_text(self.ty(*node)),
            Value::Number(Number::Int(number)) => format!("the number {number}"),
            Value::Number(Number::Float(number)) => format!("the number {number:?}"),
            Value::Truth(truth) => format!("`{truth}`"),
            Value::Tuple(values) => format!("a tuple of {}", values.len()),
            Value::Error => "an error".to_owned(),
        }
    }

    /// A type with these dims, if there can be such a tensor.
    pub fn tensor(&mut self, element: Element, dims: Vec<DimId>, span: Span) -> Option<TensorType> {
        let mut seen: Vec<(DimId, DimId)> = Vec::new();
        for &dim in &dims {
            for atom in self.atoms(dim) {
                if let Some(&(_, other)) = seen.iter().find(|(known, _)| *known == atom) {
                    self.repeated(&dims, dim, other, span);
                    return None;
                }
                seen.push((atom, dim));
            }
        }
        if self.purpose == Purpose::Model && self.elements(&dims) > MOST_ELEMENTS {
            let sizes: Vec<String> = dims
                .iter()
                .map(|&dim| format!("{} = {}", self.dims[dim].name, self.dims[dim].size))
                .collect();
            self.report(
                Diagnostic::error(Code::TooLarge, format!("[{}] is too large", self.dim_list(&dims)))
                    .label(span, "has 2^63 elements or more")
                    .note(format!("sizes: {}", sizes.join(", "))),
            );
            return None;
        }
        Some(TensorType { element, dims })
    }

    fn repeated(&mut self, dims: &[DimId], dim: DimId, other: DimId, span: Span) {
        let list = self.dim_list(dims);
        let (name, other_name) = (self.dims[dim].name.clone(), self.dims[other].name.clone());
        let mut diagnostic = Diagnostic::error(Code::RepeatedDim, format!("[{list}] has `{name}` twice"))
            .why("a name stands once in a type: operations could not tell the two apart");
        if dim == other {
            diagnostic = diagnostic.label(span, "two dimensions with one name").hint(format!(
                "dims {name}2 = {name}    // an alias for one of them, or rename[{name} -> {name}2](…)"
            ));
        } else {
            diagnostic = diagnostic
                .label(span, format!("`{name}` and `{other_name}` share a factor"))
                .note(format!("{} and {}", self.factor_text(dim), self.factor_text(other)))
                .hint(format!(
                    "split[{}](…)",
                    self.split_text(if self.dims[dim].factors.is_empty() { other } else { dim })
                ));
        }
        self.report(diagnostic);
    }

    /// `H = KV * G`, or just the name.
    pub fn factor_text(&self, dim: DimId) -> String {
        let data = &self.dims[dim];
        if data.factors.is_empty() {
            return data.name.clone();
        }
        let names: Vec<&str> = data.factors.iter().map(|&factor| self.dims[factor].name.as_str()).collect();
        format!("{} = {}", data.name, names.join(" * "))
    }

    fn split_text(&self, dim: DimId) -> String {
        format!("{} -> {}", self.dims[dim].name, self.dim_list(&self.dims[dim].factors))
    }

    /// The element type written in a type.
    pub fn element(&mut self, dtype: Option<&Ident>) -> Option<Element> {
        let Some(name) = dtype else { return Some(Element::Float) };
        if let Some(element) = element_of(&name.name) {
            return Some(element);
        }
        let names = ELEMENTS.iter().map(|(name, _)| *name);
        let near = did_you_mean(&name.name, names.clone());
        let mut diagnostic = Diagnostic::error(Code::UnknownName, format!("no element type `{}`", name.name))
            .label(name.span, "not an element type")
            .note(format!("element types: {}", names.collect::<Vec<_>>().join(", ")));
        if let Some(near) = near {
            diagnostic = diagnostic.hint_edit(near, name.span, near);
        }
        self.report(diagnostic);
        None
    }

    /// The tensor type that is written; every name in it must be known. A scalar name is a type without dims.
    pub fn written_type(&mut self, env: &Env, ty: &Type) -> Option<TensorType> {
        match &ty.kind {
            TypeKind::Tensor { dtype, dims } => {
                let element = self.element(dtype.as_ref());
                let dims = self.written_dims(env, dims);
                self.tensor(element?, dims?, ty.span)
            }
            TypeKind::Scalar(name) => {
                let element = self.element(Some(name))?;
                self.tensor(element, Vec::new(), ty.span)
            }
            TypeKind::Tuple(_) => {
                self.report(
                    Diagnostic::error(Code::WrongValue, "a tuple can't stand here")
                        .label(ty.span, "expected the type of one tensor"),
                );
                None
            }
            TypeKind::Error => None,
        }
    }

    fn written_dims(&mut self, env: &Env, dims: &[TypeDim]) -> Option<Vec<DimId>> {
        let mut resolved = Vec::new();
        let mut whole = true;
        for dim in dims {
            match dim {
                TypeDim::Named(named) => match self.dim(env, &named.name) {
                    Some(dim) => resolved.push(dim),
                    None => whole = false,
                },
                TypeDim::Rest(span) => match &env.rest {
                    Some(rest) => resolved.extend(rest),
                    None => {
                        self.report(
                            Diagnostic::error(Code::UnknownDim, "`..` stands for nothing here")
                                .label(*span, "no parameter of this function has a `..`"),
                        );
                        whole = false;
                    }
                },
                TypeDim::Error(_) => whole = false,
            }
        }
        whole.then_some(resolved)
    }

    /// Records the placements written in a type.
    pub fn pin(&mut self, env: &Env, ty: &Type, target: Target) {
        let TypeKind::Tensor { dims, .. } = &ty.kind else { return };
        for dim in dims {
            let TypeDim::Named(PlacedDim { span, name, axes }) = dim else { continue };
            let Some(&dim) = env.dims.get(&name.name).filter(|_| !axes.is_empty()) else { continue };
            let axes = axes.iter().map(axis_text).collect();
            self.pins.push(Pin { target, dim, axes, span: *span });
        }
    }

    /// Makes a value one of type `expected`, or reports. `what` says whose type it is.
    pub fn fit(
        &mut self,
        value: &Value,
        expected: &TensorType,
        span: Span,
        declared: Span,
        what: &str,
    ) -> Option<NodeId> {
        match value {
            Value::Error => None,
            Value::Node(node) => {
                let actual = self.ty(*node).clone();
                if actual.element == expected.element && same_dims(&actual.dims, &expected.dims) {
                    self.lay_out(*node, expected);
                    return Some(*node);
                }
                self.mismatch(&actual, expected, span, declared, what);
                None
            }
            Value::Number(number) if expected.dims.is_empty() => {
                self.literal(*number, expected.element, span)
            }
            Value::Truth(truth) if expected.dims.is_empty() && expected.element == Element::Bool => {
                Some(self.push(Operation::Truth(*truth), Vec::new(), expected.clone(), span))
            }
            Value::Number(_) | Value::Truth(_) | Value::Tuple(_) => {
                let title =
                    format!("expected {}, found {}", self.type_text(expected), self.value_text(value));
                self.report(
                    Diagnostic::error(Code::WrongValue, title)
                        .label(span, format!("this is {}", self.value_text(value)))
                        .label(declared, format!("{what} is {}", self.type_text(expected))),
                );
                None
            }
        }
    }

    /// A product that a type is given takes the type's order of dims in memory.
    fn lay_out(&mut self, node: NodeId, expected: &TensorType) {
        if let Operation::Dot { .. } = self.nodes[node].operation {
            let newest = self.blocks.last().and_then(|block| block.nodes.last()) == Some(&node);
            if newest {
                self.nodes[node].ty.dims = expected.dims.clone();
            }
        }
    }

    fn mismatch(
        &mut self,
        actual: &TensorType,
        expected: &TensorType,
        span: Span,
        declared: Span,
        what: &str,
    ) {
        let (found, wanted) = (self.type_text(actual), self.type_text(expected));
        if same_dims(&actual.dims, &expected.dims) {
            let cast = element_name(expected.element);
            self.report(
                Diagnostic::error(Code::ElementMismatch, format!("expected {wanted}, found {found}"))
                    .label(span, format!("this is {found}"))
                    .label(declared, format!("{what} is {wanted}"))
                    .why("numbers are never converted silently")
                    .hint(format!("{cast}(…)")),
            );
            return;
        }
        let missing: Vec<DimId> =
            expected.dims.iter().copied().filter(|dim| !actual.dims.contains(dim)).collect();
        let extra: Vec<DimId> =
            actual.dims.iter().copied().filter(|dim| !expected.dims.contains(dim)).collect();
        let mut diagnostic =
            Diagnostic::error(Code::DimMismatch, format!("expected {wanted}, found {found}"))
                .label(span, format!("this is {found}"))
                .label(declared, format!("{what} is {wanted}"));
        diagnostic = self.explain_difference(diagnostic, &missing, &extra);
        self.report(diagnostic);
    }

    /// Says which dims differ, where they come from, and what would make them meet.
    pub fn explain_difference(
        &self,
        diagnostic: Diagnostic,
        missing: &[DimId],
        extra: &[DimId],
    ) -> Diagnostic {
        let mut diagnostic = self.compare(diagnostic, missing, extra);
        for &dim in missing.iter().chain(extra).take(4) {
            let data = &self.dims[dim];
            if diagnostic.labels.iter().all(|label| label.span != data.span) {
                let size = if self.is_stand_in(&[dim]) { String::new() } else { format!(" ({})", data.size) };
                diagnostic = diagnostic
                    .label(data.span, format!("`{}`{size} is declared here", self.factor_text(dim)));
            }
        }
        diagnostic
    }

    fn compare(&self, diagnostic: Diagnostic, missing: &[DimId], extra: &[DimId]) -> Diagnostic {
        let (lacks, has) = (self.dim_list(missing), self.dim_list(extra));
        match (missing, extra) {
            ([], _) => diagnostic.why(format!("`{has}` is too many")).hint(format!("sum[{has}](…)")),
            (_, []) => diagnostic.why(format!("`{lacks}` is missing")),
            ([wanted], [found]) => {
                let diagnostic = diagnostic.why(format!("`{has}` and `{lacks}` are different dimensions"));
                let equal = self.dims[*wanted].size == self.dims[*found].size;
                if equal && !self.is_stand_in(&[*wanted, *found]) {
                    return diagnostic.hint(format!("rename[{has} -> {lacks}](…)"));
                }
                diagnostic
            }
            ([whole], _) if self.same_atoms(missing, extra) => diagnostic
                .why(format!("{} is one dimension there", self.factor_text(*whole)))
                .hint(format!("merge[{has} -> {lacks}](…)")),
            (_, _) if self.same_atoms(missing, extra) => diagnostic
                .why(format!("`{has}` is one dimension here"))
                .hint(format!("split[{has} -> {lacks}](…)")),
            (_, _) => diagnostic.why(format!("`{lacks}` is missing and `{has}` is too many")),
        }
    }

    fn same_atoms(&self, left: &[DimId], right: &[DimId]) -> bool {
        let mut left: Vec<DimId> = left.iter().flat_map(|&dim| self.atoms(dim)).collect();
        let mut right: Vec<DimId> = right.iter().flat_map(|&dim| self.atoms(dim)).collect();
        left.sort_unstable();
        right.sort_unstable();
        left == right
    }

    /// A compile-time number as a node of an element type.
    pub fn literal(&mut self, number: Number, element: Element, span: Span) -> Option<NodeId> {
        let fits = match (element, number) {
            (
                Element::Float | Element::F32 | Element::Bf16 | Element::F16,
                Number::Int(_) | Number::Float(_),
            ) => true,
            (Element::I32, Number::Int(value)) => i32::try_from(value).is_ok(),
            (Element::U32, Number::Int(value)) => u32::try_from(value).is_ok(),
            (Element::I32 | Element::U32, Number::Float(_)) | (Element::Bool, _) => false,
        };
        if !fits {
            let text = self.value_text(&Value::Number(number));
            self.report(
                Diagnostic::error(Code::ElementMismatch, format!("{text} is no {}", element_name(element)))
                    .label(span, format!("meets a value of type {}", element_name(element)))
                    .why("a literal takes the element type of what it meets, if that can hold it"),
            );
            return None;
        }
        let ty = TensorType { element, dims: Vec::new() };
        Some(self.push(Operation::Number(number.as_f64()), Vec::new(), ty, span))
    }
}

/// Whether both have the same dimensions, in whatever order.
pub(super) fn same_dims(left: &[DimId], right: &[DimId]) -> bool {
    left.len() == right.len() && left.iter().all(|dim| right.contains(dim))
}

/// An axis as written: `dp` or `dp.inner`.
pub(super) fn axis_text(axis: &crate::ast::AxisRef) -> String {
    match &axis.part {
        Some(part) => format!("{}.{}", axis.name.name, part.name),
        None => axis.name.name.clone(),
    }
}
