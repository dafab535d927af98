//! Instructions that call a hand-written kernel: products, attention, embedding.

use super::{Assembler, Result};
use dtlc_ir::memory::Write;
use dtlc_ir::{Attention, DType, Dim, Factors, Inst, Packing, Value};
use dtlc_kernels::signature::{
    self, Accumulation, AttentionBackwardSpec, AttentionSpec, Causality, ContractionDim, Documents,
    HeadStrides, InvalidSpec, MatmulSpec, ScatterAddSpec, TakeSpec,
};
use dtlc_runtime::program as target;

/// The dims of an attention by their part in it, with those that nest taken as one.
struct Heads {
    batch: Option<Nest>,
    kv_head: Option<Nest>,
    group: Option<Nest>,
}

/// Dims that run together as one index.
#[derive(Clone, Copy)]
struct Nest {
    innermost: Dim,
    extent: u64,
}

impl Assembler<'_> {
    pub(super) fn matmul(
        &mut self,
        inst: &Inst,
        factors: Factors,
        [a, b, c]: [Value; 3],
        epilogue: Option<target::Epilogue>,
    ) -> Result<target::Operation> {
        let mut dims: Vec<Dim> = self.program.ty(c).dims.to_vec();
        let contracted = self.program.ty(a).dims.iter().filter(|dim| !dims.contains(dim));
        dims.extend(contracted.copied().collect::<Vec<_>>());
        let stride = |value, dim| self.stride(value, dim).map(|stride| stride as isize);
        let of = |dim: &Dim| {
            let holder = if self.program.ty(c).has(*dim) { c } else { a };
            let extent = self.extent(holder, *dim) as usize;
            ContractionDim { extent, a: stride(a, *dim), b: stride(b, *dim), c: stride(c, *dim) }
        };
        let dims: Vec<ContractionDim> = dims.iter().map(of).collect();
        let (ta, tb, tc) = (self.float(inst, a)?, self.float(inst, b)?, self.float(inst, c)?);
        let mut spec = MatmulSpec::contract(&dims, ta, tb, tc).map_err(|error| self.invalid(inst, &error))?;
        spec.factors = match factors {
            Factors::AsStored => signature::Factors::AsStored,
            Factors::Tf32 => signature::Factors::Tf32,
        };
        if self.adds(c) {
            spec.accumulation = Accumulation::Add;
        }
        self.needs_scratch(spec.scratch_bytes());
        if epilogue.is_some() && spec.accumulation != Accumulation::Overwrite {
            return Err(
                self.unforeseen(inst, "a kernel goes on with a product that is added to what is there")
            );
        }
        let [a, b, c] = [self.buffer(a)?, self.buffer(b)?, self.buffer(c)?];
        Ok(target::Operation::Matmul { spec, a, b, c, epilogue: epilogue.map(Box::new) })
    }

    fn adds(&self, value: Value) -> bool {
        self.memory.place(value).is_some_and(|place| place.write == Write::Accumulate)
    }

    pub(super) fn needs_scratch(&mut self, bytes: usize) {
        self.scratch = self.scratch.max(bytes as u64);
    }

    fn invalid(&self, inst: &Inst, error: &InvalidSpec) -> super::AssembleError {
        self.unforeseen(inst, error.reason)
    }

    pub(super) fn attention(&mut self, inst: &Inst, attention: &Attention) -> Result<target::Operation> {
        let ([q, k, v], documents) = self.with_documents(inst, attention)?;
        let (o, lse) = (inst.results[0], inst.results[1]);
        let heads = self.heads(inst, attention, q, k)?;
        let spec = self.attention_spec(inst, attention, &heads, ([q, k, v, o, lse], documents))?;
        self.needs_scratch(spec.scratch_bytes());
        Ok(target::Operation::Attention(Box::new(target::AttentionCall {
            spec,
            q: self.buffer(q)?,
            k: self.buffer(k)?,
            v: self.buffer(v)?,
            o: self.buffer(o)?,
            lse: self.buffer(lse)?,
            documents: self.document_buffers(documents)?,
            q_offset: self.shard_start(q, attention.query),
            k_offset: self.shard_start(k, attention.key),
        })))
    }

    pub(super) fn attention_gradient(
        &mut self,
        inst: &Inst,
        attention: &Attention,
    ) -> Result<target::Operation> {
        let ([q, k, v, o, lse, o_gradient], documents) = self.with_documents(inst, attention)?;
        let [q_gradient, k_gradient, v_gradient] = *inst.results.as_slice() else {
            return Err(self.unforeseen(inst, "not three results"));
        };
        let heads = self.heads(inst, attention, q, k)?;
        let spec = AttentionBackwardSpec {
            forward: self.attention_spec(inst, attention, &heads, ([q, k, v, o, lse], documents))?,
            o_gradient: self.head_strides(&heads, o_gradient, attention.query),
            q_gradient: self.head_strides(&heads, q_gradient, attention.query),
            k_gradient: self.head_strides(&heads, k_gradient, attention.key),
            v_gradient: self.head_strides(&heads, v_gradient, attention.key),
        };
        spec.check().map_err(|error| self.invalid(inst, &error))?;
        self.needs_scratch(spec.scratch_bytes());
        Ok(target::Operation::AttentionBackward(Box::new(target::AttentionBackwardCall {
            spec,
            q: self.buffer(q)?,
            k: self.buffer(k)?,
            v: self.buffer(v)?,
            o: self.buffer(o)?,
            lse: self.buffer(lse)?,
            documents: self.document_buffers(documents)?,
            o_gradient: self.buffer(o_gradient)?,
            q_gradient: self.buffer(q_gradient)?,
            k_gradient: self.buffer(k_gradient)?,
            v_gradient: self.buffer(v_gradient)?,
            q_offset: self.shard_start(q, attention.query),
            k_offset: self.shard_start(k, attention.key),
        })))
    }

    /// The first `N` arguments of an attention or its gradient, and behind them the documents of queries and keys.
    fn with_documents<const N: usize>(
        &self,
        inst: &Inst,
        attention: &Attention,
    ) -> Result<([Value; N], Option<[Value; 2]>)> {
        match (attention.packing, inst.args.split_first_chunk::<N>()) {
            (Packing::Whole, Some((tensors, []))) => Ok((*tensors, None)),
            (Packing::Documents, Some((tensors, &[of_queries, of_keys]))) => {
                Ok((*tensors, Some([of_queries, of_keys])))
            }
            (Packing::Whole | Packing::Documents, _) => Err(self.unforeseen(inst, "other arguments")),
        }
    }

    fn document_buffers(&mut self, documents: Option<[Value; 2]>) -> Result<Option<target::DocumentBuffers>> {
        let Some([q, k]) = documents else { return Ok(None) };
        Ok(Some(target::DocumentBuffers { q: self.buffer(q)?, k: self.buffer(k)? }))
    }

    fn attention_spec(
        &self,
        inst: &Inst,
        attention: &Attention,
        heads: &Heads,
        ([q, k, v, o, lse], documents): ([Value; 5], Option<[Value; 2]>),
    ) -> Result<AttentionSpec> {
        let extent = |nest: &Option<Nest>| nest.map_or(1, |nest| nest.extent as usize);
        let spec = AttentionSpec {
            batch: extent(&heads.batch),
            kv_heads: extent(&heads.kv_head),
            group: extent(&heads.group),
            q_len: self.extent(q, attention.query) as usize,
            k_len: self.extent(k, attention.key) as usize,
            head_dim: self.extent(q, attention.head) as usize,
            value_dim: self.extent(v, attention.value) as usize,
            q: self.head_strides(heads, q, attention.query),
            k: self.head_strides(heads, k, attention.key),
            v: self.head_strides(heads, v, attention.key),
            o: self.head_strides(heads, o, attention.query),
            lse: self.head_strides(heads, lse, attention.query),
            documents: documents.map(|[of_queries, of_keys]| Documents {
                q: self.head_strides(heads, of_queries, attention.query),
                k: self.head_strides(heads, of_keys, attention.key),
            }),
            element: self.float(inst, q)?,
            causality: if attention.causal { Causality::Causal } else { Causality::Bidirectional },
            window: attention.window,
            softcap: attention.softcap.map(|cap| cap as f32),
            scale: attention.scale as f32,
        };
        let innermost = |value: Value, dim: Dim| self.program.ty(value).dims.last() == Some(&dim);
        let ends = [(q, attention.head), (k, attention.head), (v, attention.value), (o, attention.value)];
        if !ends.into_iter().all(|(value, dim)| innermost(value, dim)) {
            return Err(self.unforeseen(inst, "the head dimension is not innermost"));
        }
        spec.check().map_err(|error| self.invalid(inst, &error))?;
        Ok(spec)
    }

    fn head_strides(&self, heads: &Heads, value: Value, sequence: Dim) -> HeadStrides {
        let stride = |dim: Dim| self.stride(value, dim).unwrap_or(0) as isize;
        let of = |nest: &Option<Nest>| nest.map_or(0, |nest| stride(nest.innermost));
        HeadStrides {
            batch: of(&heads.batch),
            sequence: stride(sequence),
            kv_head: of(&heads.kv_head),
            group: of(&heads.group),
        }
    }

    /// Sorts the dims of the queries into batch, key heads and query heads per key head.
    fn heads(&self, inst: &Inst, attention: &Attention, q: Value, k: Value) -> Result<Heads> {
        let ours = |dim: &&Dim| **dim != attention.query && **dim != attention.head;
        let dims: Vec<Dim> = self.program.ty(q).dims.iter().filter(ours).copied().collect();
        let (shared, own): (Vec<Dim>, Vec<Dim>) = dims.iter().partition(|&&dim| self.program.ty(k).has(dim));
        let values: Vec<Value> = inst.args.iter().chain(&inst.results).copied().collect();
        let shared = self.nests(&shared, &values);
        let own = self.nests(&own, &values);
        let (batch, kv_head) = match *shared.as_slice() {
            [] => (None, None),
            [only] => (None, Some(only)),
            [batch, kv_head] => (Some(batch), Some(kv_head)),
            _ => return Err(self.unforeseen(inst, "more than two kinds of batch dimensions")),
        };
        let group = match *own.as_slice() {
            [] => None,
            [only] => Some(only),
            _ => return Err(self.unforeseen(inst, "more than one kind of query heads")),
        };
        Ok(Heads { batch, kv_head, group })
    }

    /// Joins neighbours that nest in every value that has them.
    fn nests(&self, dims: &[Dim], values: &[Value]) -> Vec<Nest> {
        let mut nests: Vec<Nest> = Vec::new();
        for &dim in dims {
            let extent = values.iter().find(|&&value| self.program.ty(value).has(dim));
            let extent = extent.map_or(1, |&value| self.extent(value, dim));
            if let Some(last) = nests.last_mut() {
                let nest =
                    |&value: &Value| match (self.stride(value, last.innermost), self.stride(value, dim)) {
                        (Some(major), Some(minor)) => major == minor * extent,
                        (None, None) => true,
                        (Some(_), None) | (None, Some(_)) => false,
                    };
                if values.iter().all(nest) {
                    *last = Nest { innermost: dim, extent: last.extent * extent };
                    continue;
                }
            }
            nests.push(Nest { innermost: dim, extent });
        }
        nests
    }

    pub(super) fn take(&mut self, inst: &Inst, dim: Dim) -> Result<target::Operation> {
        let (table, ids, output) = (inst.args[0], inst.args[1], inst.results[0]);
        self.check_rows(inst, dim, table, ids, output)?;
        let tokens = self.local_elements(ids);
        let spec = TakeSpec {
            tokens: tokens as usize,
            vocabulary: self.extent(table, dim) as usize,
            width: (self.local_elements(output) / tokens.max(1)) as usize,
            element: self.float(inst, table)?,
        };
        Ok(target::Operation::Take {
            spec,
            table: self.buffer(table)?,
            ids: self.buffer(ids)?,
            output: self.buffer(output)?,
            offset: self.shard_start(table, dim),
        })
    }

    pub(super) fn scatter_add(&mut self, inst: &Inst, dim: Dim) -> Result<target::Operation> {
        let (source, ids, output) = (inst.args[0], inst.args[1], inst.results[0]);
        self.check_rows(inst, dim, output, ids, source)?;
        let tokens = self.local_elements(ids);
        let accumulation = if self.adds(output) { Accumulation::Add } else { Accumulation::Overwrite };
        let spec = ScatterAddSpec {
            tokens: tokens as usize,
            vocabulary: self.extent(output, dim) as usize,
            width: (self.local_elements(source) / tokens.max(1)) as usize,
            source: self.float(inst, source)?,
            output: self.float(inst, output)?,
            accumulation,
        };
        self.needs_scratch(spec.scratch_bytes());
        Ok(target::Operation::ScatterAdd {
            spec,
            source: self.buffer(source)?,
            ids: self.buffer(ids)?,
            output: self.buffer(output)?,
            offset: self.shard_start(output, dim),
        })
    }

    /// A table has `dim` outermost, and rows stand in the order of the ids.
    fn check_rows(&self, inst: &Inst, dim: Dim, table: Value, ids: Value, rows: Value) -> Result<()> {
        let (table, ids, rows) = (self.program.ty(table), self.program.ty(ids), self.program.ty(rows));
        let ordered = rows.dims.starts_with(&ids.dims) && rows.dims[ids.dims.len()..] == table.dims[1..];
        let integers = matches!(ids.dtype, DType::I32 | DType::U32);
        if table.dims.first() != Some(&dim) || !ordered || !integers {
            return Err(self.unforeseen(inst, "a table whose rows are not contiguous"));
        }
        Ok(())
    }
}
