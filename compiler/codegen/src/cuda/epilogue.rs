//! A kernel as the epilogue of a matrix product: its body for results that are in hand where the product makes them, instead of a loop over the grid
//! that reads them. From a valid [`Kernel`] to the text that the library's product takes, by way of the emitter; how the product goes about it
//! stands there.

use super::emit::{Emitter, InHand};
use super::live::Live;
use super::mapping::{Part, Worker, parts};
use super::operation::{element_name, pointer_name};
use super::prelude;
use super::text::Places;
use super::vector::Chunk;
use crate::kir::{AxisId, ElementType, Index, Kernel, Statement, TensorId, Variable, validate};
use crate::lower::Origins;
use dtlc_kernels::cuda::{Epilogue, Keeps};

/// The kernel as an epilogue of the product whose results are its tensor `sums`; `alignments` are as for [`emit`](super::emit), and `keeps` says
/// whether anything else reads the results. None where the kernel is more than work on each result: where it has several parts, sums or loops
/// inside of an iteration; where it writes to `sums`, or reads it elsewhere than at the iteration's own number; and where it is not valid,
/// which whoever emits it as a function is told.
pub fn epilogue(
    kernel: &Kernel,
    origins: &Origins,
    alignments: &[u64],
    sums: TensorId,
    keeps: Keeps,
) -> Option<Epilogue> {
    validate(kernel).ok()?;
    let part = elementwise_part(kernel, sums)?;
    // As many as the product stores at once: sixteen bytes of its results.
    let width = 16 / kernel.tensors[sums].element.bytes();
    let mut emitter = Emitter::new(kernel, origins, alignments);
    let [one, several, loads] = ["result", "results", "loads"].map(|name| emitter.names.fresh(name));
    emitter.in_hand = Some(InHand { tensor: sums, one, several, loads });
    emitter.begin_part(&part);
    emitter.structure(&part, width);
    let text = emitter.text.print(Places::Comments);
    Some(Epilogue {
        source: format!("{}\n{text}", prelude::text(&emitter.functions)),
        pointers: kernel.tensors.values().map(pointer_name).collect(),
        integers: kernel.integers.len(),
        keeps,
    })
}

/// The only part of a kernel that does each element of `sums` in an iteration of its own, in one thread.
fn elementwise_part(kernel: &Kernel, sums: TensorId) -> Option<Part<'_>> {
    let [part] = <[Part<'_>; 1]>::try_from(parts(kernel)).ok()?;
    let axes = part.axes(kernel);
    let own_number = number_of(&axes);
    let is_plain = |statement: &Statement| match statement {
        Statement::Let { .. } => true,
        Statement::Load { tensor, index, .. } => {
            *tensor != sums || of_several_values(kernel, index) == of_several_values(kernel, &own_number)
        }
        Statement::Store { tensor, .. } | Statement::Accumulate { tensor, .. } => *tensor != sums,
        Statement::Loop(_) | Statement::Start(_) | Statement::Combine { .. } | Statement::Total { .. } => {
            false
        }
    };
    let (leaf, above) = part.levels.split_last()?;
    // What a level above holds beside values is the loop to the next.
    let values = above.iter().flat_map(|level| &level.body);
    let mut values = values.filter(|statement| !matches!(statement, Statement::Loop(_)));
    let is_float = match kernel.tensors[sums].element {
        ElementType::F32 | ElementType::Bf16 | ElementType::F16 => true,
        ElementType::I32 | ElementType::U32 | ElementType::Bool => false,
    };
    let iterations: u64 = axes.iter().map(|(_, extent)| extent).product();
    let is_elementwise = part.worker == Worker::Thread
        && is_float
        && kernel.tensors[sums].length == iterations
        && values.all(is_plain)
        && leaf.body.iter().all(is_plain);
    is_elementwise.then_some(part)
}

/// The number of an iteration of these axes, outermost first.
fn number_of(axes: &[(AxisId, u64)]) -> Index {
    let mut finer = 1;
    axes.iter().rev().fold(Index::constant(0), |number, &(axis, extent)| {
        let number = number.plus(finer, axis);
        finer *= extent as i64;
        number
    })
}

/// An index without the axes that are always 0.
fn of_several_values(kernel: &Kernel, index: &Index) -> Index {
    let terms = index.terms().iter().filter(|term| match term.variable {
        Variable::Axis(axis) => kernel.axes[axis].extent > 1,
        Variable::Integer(_) | Variable::Data { .. } => true,
    });
    terms
        .fold(Index::constant(index.constant_part()), |kept, term| kept.plus(term.coefficient, term.variable))
}

impl Emitter<'_> {
    /// The struct that the library's product takes, for a part and chunks of this width.
    fn structure(&mut self, part: &Part<'_>, width: u64) {
        let axes = part.axes(self.kernel);
        let chunk = self.chunk_of(part.leaf(), width, axes.len() == 1);
        // What numbers the results, in the order of memory.
        let element = match axes.as_slice() {
            [(only, _)] => self.names.axis(*only).to_owned(),
            _ => self.names.fresh("element"),
        };
        self.text.line(format!("// Kernel {} on results of a product.", self.kernel.name));
        self.text.open("struct Epilogue {");
        for (id, tensor) in &self.kernel.tensors {
            self.text.line(format!("{} {};", pointer_name(tensor), self.names.tensor(id)));
        }
        for id in self.kernel.integers.keys() {
            self.text.line(format!("long long {};", self.names.integer(id)));
        }
        self.text.line("");
        let width = chunk.as_ref().map_or(1, Chunk::width);
        self.text.line(format!("static constexpr int WIDTH = {width};"));
        self.text.line("struct Results { float at[WIDTH]; };");
        self.text.line("");
        self.loads(part, &element, chunk.as_ref());
        self.text.line("");
        self.operator(part, &element, None);
        if let Some(chunk) = &chunk {
            self.text.line("");
            self.operator(part, &element, Some(chunk));
        }
        self.text.close_with("};");
    }

    /// What a chunk needs beside results, and how it is read.
    fn loads(&mut self, part: &Part<'_>, element: &str, chunk: Option<&Chunk>) {
        let ahead = chunk.map_or(Vec::new(), |chunk| self.read_ahead(part.leaf(), chunk));
        let width = chunk.map_or(1, Chunk::width);
        self.text.open("struct Loads {");
        for (variable, tensor, _) in &ahead {
            let kind = element_name(self.kernel.tensors[*tensor].element);
            let (_, member) = variable.split_once('.').unwrap_or(("", variable));
            self.text.line(format!("dtl::pack<{kind}, {width}> {member};"));
        }
        self.text.close_with("};");
        self.text.line("");
        self.text.open(format!("DTL_INLINE Loads load({} {element}) const {{", self.width.name()));
        if !ahead.is_empty() {
            let all =
                std::mem::replace(&mut self.live, Live::of_indices(ahead.iter().map(|(_, _, index)| *index)));
            self.axes(part, element);
            self.live = all;
        }
        let loads = ahead
            .iter()
            .map(|(_, tensor, index)| format!("dtl::load_pack<{width}>({})", self.address(*tensor, index)));
        let loads: Vec<String> = loads.collect();
        self.text.line(format!("return Loads{{{}}};", loads.join(", ")));
        self.text.close();
    }

    /// The axes that a part needs at this element, and what stands above its leaf.
    fn axes(&mut self, part: &Part<'_>, element: &str) {
        let axes = part.axes(self.kernel);
        if axes.len() > 1 {
            self.define_axes(part, &axes, element, 1);
        }
        let defined: Vec<AxisId> = axes.iter().map(|&(axis, _)| axis).collect();
        self.prefix(part, &defined);
    }

    /// What is done with one result, or with those of a chunk.
    fn operator(&mut self, part: &Part<'_>, element: &str, chunk: Option<&Chunk>) {
        let Some(InHand { one, several, loads, .. }) = &self.in_hand else { return };
        let given = match chunk {
            None => format!("float {one}"),
            Some(_) => format!("const Results& {several}, Loads {loads}"),
        };
        let kind = self.width.name();
        self.text.open(format!("DTL_INLINE void operator()({kind} {element}, {given}) const {{"));
        self.axes(part, element);
        match (chunk, part.axes(self.kernel).last()) {
            (Some(chunk), Some(&(innermost, _))) => self.chunk_body(part.leaf(), chunk, innermost),
            (Some(_) | None, _) => self.statements(&part.leaf().body),
        }
        self.text.close();
    }
}
