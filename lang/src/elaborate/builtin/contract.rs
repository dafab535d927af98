//! `dot`, `take` and `attention`.

use super::super::context::{Elaborator, Purpose};
use super::super::types::{element_name, is_float};
use super::super::value::Value;
use super::Call;
use crate::ast::{Argument, DimArguments};
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::model::{Attention, DimId, Element, NodeId, Operation};

impl<'p> Elaborator<'p> {
    /// `dot[D](x, w)`: dims in brackets are summed over, other common dims are kept.
    pub(super) fn dot(&mut self, call: &Call<'_, 'p>) -> Option<Value> {
        let over = self.plain_dims(call)?;
        let (left, right) = (self.tensor_argument(call, 0)?, self.tensor_argument(call, 1)?);
        for &dim in &over {
            self.has_dim(call, 0, left, dim)?;
            self.has_dim(call, 1, right, dim)?;
        }
        let element = self.floats_of_one_type(call, &[left, right])?;
        let (l, r) = (self.ty(left).dims.clone(), self.ty(right).dims.clone());
        let batch = l.iter().copied().filter(|dim| r.contains(dim) && !over.contains(dim));
        let left_free = l.iter().copied().filter(|dim| !r.contains(dim));
        let right_free = r.iter().copied().filter(|dim| !l.contains(dim));
        let dims = batch.chain(left_free).chain(right_free).collect();
        Some(self.node(Operation::Dot { over }, vec![left, right], element, dims, call.span))
    }

    fn floats_of_one_type(&mut self, call: &Call<'_, 'p>, nodes: &[NodeId]) -> Option<Element> {
        let element = self.ty(nodes[0]).element;
        for (index, &node) in nodes.iter().enumerate() {
            let other = self.ty(node).element;
            if is_float(other) && other == element {
                continue;
            }
            let types: Vec<String> = nodes.iter().map(|&node| self.type_text(self.ty(node))).collect();
            let wanted = if is_float(element) { element_name(element) } else { "float" };
            self.report(
                Diagnostic::error(
                    Code::ElementMismatch,
                    format!("`{}` of {}", call.name.name, types.join(" and ")),
                )
                .label(call.positional[index].1, format!("this is {}", types[index]))
                .why("the operands are floats of one type")
                .hint(format!("{wanted}(…)")),
            );
            return None;
        }
        Some(element)
    }

    /// `take[V](table, indices)`: the rows that indices name; zeros where an index is out of range.
    pub(super) fn take(&mut self, call: &Call<'_, 'p>) -> Option<Value> {
        let [dim] = self.plain_dims(call)?[..] else { return self.wrong_dims(call) };
        let (table, indices) = (self.tensor_argument(call, 0)?, self.tensor_argument(call, 1)?);
        self.has_dim(call, 0, table, dim)?;
        let index_ty = self.ty(indices).clone();
        if !matches!(index_ty.element, Element::I32 | Element::U32) {
            let found = self.type_text(&index_ty);
            self.report(
                Diagnostic::error(Code::ElementMismatch, format!("indices are integers, not {found}"))
                    .label(call.positional[1].1, format!("this is {found}"))
                    .hint("u32(…)"),
            );
            return None;
        }
        let table_ty = self.ty(table).clone();
        let dims = table_ty.dims.iter();
        let dims = dims.flat_map(|&it| if it == dim { index_ty.dims.clone() } else { vec![it] }).collect();
        Some(self.node(Operation::Take(dim), vec![table, indices], table_ty.element, dims, call.span))
    }

    /// `attention[S, K](q, k, v, …)`, or `[S, T, K]` where keys have another dim of positions; `-> W` behind it where
    /// values end in another dim.
    pub(super) fn attention(&mut self, call: &Call<'_, 'p>) -> Option<Value> {
        let (query, key, head, value) = self.attention_dims(call)?;
        let mut nodes =
            (0..3).map(|index| self.tensor_argument(call, index)).collect::<Option<Vec<NodeId>>>()?;
        let &[q, k, v] = &nodes[..] else { return None };
        let value_dim = value.unwrap_or(head);
        for (index, dim) in [(0, query), (0, head), (1, key), (1, head), (2, key), (2, value_dim)] {
            self.has_dim(call, index, nodes[index], dim)?;
        }
        let element = self.floats_of_one_type(call, &nodes)?;
        self.heads(call, (q, &[query, head]), (1, k, &[key, head]))?;
        self.heads(call, (k, &[key, head]), (2, v, &[key, value_dim]))?;
        let mut attention = Attention {
            query,
            key,
            head,
            value: value_dim,
            causal: false,
            window: None,
            documents: false,
            softcap: None,
            scale: 1.0 / (self.dims[head].size as f64).sqrt(),
        };
        self.attention_options(call, &mut attention)?;
        if let Some(argument) = named(call, "documents") {
            nodes.extend(self.documents(call, argument, [q, k], &attention)?);
            attention.documents = true;
        }
        if attention.causal
            && self.dims[query].size != self.dims[key].size
            && !self.is_stand_in(&[query, key])
        {
            self.report(
                Diagnostic::error(Code::InvalidSize, "a causal mask needs as many keys as queries")
                    .label(call.span, "masked by position"),
            );
            return None;
        }
        let dims = self.ty(q).dims.iter().map(|&dim| if dim == head { value_dim } else { dim }).collect();
        Some(self.node(Operation::Attention(attention), nodes, element, dims, call.span))
    }

    fn attention_dims(&mut self, call: &Call<'_, 'p>) -> Option<(DimId, DimId, DimId, Option<DimId>)> {
        let (dims, value) = match call.dims {
            Some(DimArguments { to: Some(_), .. }) => {
                let (dims, to) = self.arrow_dims(call)?;
                let &[value] = &to[..] else { return self.wrong_dims(call) };
                (dims, Some(value))
            }
            Some(_) | None => (self.plain_dims(call)?, None),
        };
        match dims[..] {
            [query, head] => Some((query, query, head, value)),
            [query, key, head] => Some((query, key, head, value)),
            _ => self.wrong_dims(call),
        }
    }

    /// Checks that all of `inner`'s dims but the acting ones are among `outer`'s, products taken apart.
    fn heads(
        &mut self,
        call: &Call<'_, 'p>,
        outer: (NodeId, &[DimId]),
        inner: (usize, NodeId, &[DimId]),
    ) -> Option<()> {
        if self.purpose == Purpose::Generic {
            // A stand-in for the number of heads is no product of the one for key heads.
            return Some(());
        }
        let others = |node: NodeId, acting: &[DimId]| -> Vec<DimId> {
            let dims = self.ty(node).dims.iter().filter(|dim| !acting.contains(dim));
            dims.flat_map(|&dim| self.atoms(dim)).collect()
        };
        let known = others(outer.0, outer.1);
        let (index, node, acting) = inner;
        let extra: Vec<DimId> = others(node, acting).into_iter().filter(|dim| !known.contains(dim)).collect();
        if extra.is_empty() {
            return Some(());
        }
        let (a, b) = (self.type_text(&self.ty(outer.0).clone()), self.type_text(&self.ty(node).clone()));
        let names = self.dim_list(&extra);
        let who = ["queries", "keys", "values"];
        let title = format!("{} {b} have `{names}`, which {} {a} lack", who[index], who[index - 1]);
        let mut diagnostic = Diagnostic::error(Code::DimMismatch, title)
            .label(call.positional[index].1, format!("this is {b}"))
            .label(call.positional[index - 1].1, format!("this is {a}"))
            .why("each query has its keys: heads of keys are heads of queries, or a factor of them");
        if let &[dim] = &extra[..] {
            diagnostic = diagnostic.hint(format!("dims H = {} * G", self.dims[dim].name));
        }
        self.report(diagnostic);
        None
    }

    fn attention_options(&mut self, call: &Call<'_, 'p>, attention: &mut Attention) -> Option<()> {
        for argument in &call.named {
            let Some(name) = &argument.name else { continue };
            match name.name.as_str() {
                "mask" => {
                    attention.causal = self.mask(call, argument)?;
                    continue;
                }
                // Not an option but a value: see `documents`.
                "documents" => continue,
                _ => {}
            }
            let number = match self.expression(call.env, &argument.value) {
                Value::Number(number) => number.as_f64(),
                Value::Error => return None,
                Value::Node(_) | Value::Truth(_) | Value::Tuple(_) => f64::NAN,
            };
            let valid = number >= 0.0 && (name.name != "window" || number.fract() == 0.0);
            if !valid {
                self.report(
                    Diagnostic::error(
                        Code::NotCompileTime,
                        format!("`{}` is a number known at compile time", name.name),
                    )
                    .label(argument.span, "not one, or below zero"),
                );
                return None;
            }
            // Zero switches an option off, so that a layer can hand on what it was given.
            match name.name.as_str() {
                "window" => attention.window = (number > 0.0).then_some(number as u64),
                "softcap" => attention.softcap = (number > 0.0).then_some(number),
                _ => {
                    if number > 0.0 {
                        attention.scale = number;
                    }
                }
            }
        }
        Some(())
    }

    fn mask(&mut self, call: &Call<'_, 'p>, argument: &'p Argument) -> Option<bool> {
        match argument.value.as_name().map(|name| name.name.as_str()) {
            Some("causal") if !self.is_value(call.env, "causal") => return Some(true),
            Some("none") if !self.is_value(call.env, "none") => return Some(false),
            Some(_) | None => {}
        }
        match self.expression(call.env, &argument.value) {
            Value::Truth(causal) => Some(causal),
            Value::Error => None,
            Value::Node(_) | Value::Number(_) | Value::Tuple(_) => {
                self.report(
                    Diagnostic::error(Code::WrongValue, "not a mask")
                        .label(argument.span, "`causal`, `none`, or a truth value for whether it is causal")
                        .hint("mask = causal"),
                );
                None
            }
        }
    }

    /// What says which documents queries and keys belong to: one value for both where they have one dim of positions,
    /// else a pair.
    fn documents(
        &mut self,
        call: &Call<'_, 'p>,
        argument: &'p Argument,
        tensors: [NodeId; 2],
        attention: &Attention,
    ) -> Option<[NodeId; 2]> {
        let nodes = match self.expression(call.env, &argument.value) {
            Value::Node(node) if attention.query == attention.key => [node, node],
            Value::Tuple(values) => match values[..] {
                [Value::Node(of_queries), Value::Node(of_keys)] => [of_queries, of_keys],
                _ => return self.no_documents(argument, attention),
            },
            Value::Error => return None,
            Value::Node(_) | Value::Truth(_) | Value::Number(_) => {
                return self.no_documents(argument, attention);
            }
        };
        for (node, own) in nodes.into_iter().zip([attention.query, attention.key]) {
            self.document_type(argument, node, own, tensors, attention)?;
        }
        Some(nodes)
    }

    fn no_documents<T>(&mut self, argument: &'p Argument, attention: &Attention) -> Option<T> {
        let [query, key] = [attention.query, attention.key].map(|dim| self.dims[dim].name.clone());
        let diagnostic = Diagnostic::error(Code::WrongValue, "not the documents of queries and keys");
        let diagnostic = diagnostic.label(argument.span, "these say which document each position belongs to");
        self.report(if query == key {
            diagnostic.hint("documents = documents")
        } else {
            diagnostic
                .why(format!("queries lie along `{query}` and keys along `{key}`, so each have their own"))
                .hint(format!("documents = (documents, rename[{query} -> {key}](documents))"))
        });
        None
    }

    /// Checks that a value gives a document to each position along `own`.
    fn document_type(
        &mut self,
        argument: &'p Argument,
        node: NodeId,
        own: DimId,
        tensors: [NodeId; 2],
        attention: &Attention,
    ) -> Option<()> {
        let ty = self.ty(node).clone();
        let name = self.dims[own].name.clone();
        let [queries, keys] = tensors.map(|tensor| self.ty(tensor).dims.clone());
        let is_batch = |dim: DimId| dim != attention.head && queries.contains(&dim) && keys.contains(&dim);
        let extra = ty.dims.iter().find(|&&dim| dim != own && !is_batch(dim));
        let (code, why) = if ty.element != Element::U32 {
            (Code::ElementMismatch, "documents are numbers of type u32".to_owned())
        } else if !ty.dims.contains(&own) {
            (Code::MissingDim, format!("there is a document for each position along `{name}`"))
        } else if let Some(&extra) = extra {
            let extra = &self.dims[extra].name;
            (Code::DimMismatch, format!("queries and keys that see each other do not both have `{extra}`"))
        } else {
            return Some(());
        };
        let found = self.type_text(&ty);
        self.report(
            Diagnostic::error(code, format!("{found} can't be the documents along `{name}`"))
                .label(argument.span, format!("this is {found}"))
                .why(why),
        );
        None
    }
}

/// The argument of this name.
fn named<'p>(call: &Call<'_, 'p>, name: &str) -> Option<&'p Argument> {
    let has_name = |argument: &&&Argument| argument.name.as_ref().is_some_and(|it| it.name == name);
    call.named.iter().find(has_name).copied()
}
