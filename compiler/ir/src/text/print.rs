//! Prints a program, or parts of one, as text.

use super::names::{Names, definitions, quote, word};
use super::print_op::op_text;
use crate::dim::Axis;
use crate::memory::{MemoryPlan, Place, Space, Write};
use crate::op::Op;
use crate::program::{
    Initializer, Inst, Origin, ParameterKind, Phase, Program, Region, Role, Scope, StateKind, Value,
};
use crate::types::Type;

/// Where an instruction stands: its index in the main region, then in the body of that scan, and so on.
pub type InstPath = Vec<usize>;

/// The whole program. [`super::parse`] reads it back.
pub fn print(program: &Program) -> String {
    let names = Names::new(program);
    let mut printer = Printer::new(program, &names, Detail::Full);
    printer.tables();
    printer.indent = 1;
    printer.line("main(");
    printer.region(&program.main, &mut Vec::new());
    printer.indent = 0;
    printer.line("}");
    printer.text
}

/// The instructions of the step alone, without tables, source positions, and phases other than as
/// headings. Not for reading back.
pub fn print_step(program: &Program) -> String {
    instructions(program, Detail::Step)
}

/// The same without the arithmetic of the optimizer between what it reads and each state's new value: it is element by
/// element, so it lies where the state lies.
pub fn print_placements(program: &Program) -> String {
    instructions(program, Detail::Placements)
}

fn instructions(program: &Program, detail: Detail) -> String {
    let names = Names::new(program);
    let mut printer = Printer::new(program, &names, detail);
    printer.line("main(");
    printer.region(&program.main, &mut Vec::new());
    printer.text
}

/// The lines around the instruction at `path`, with `message` under it. For faults: the program may
/// be wrong in any way.
pub fn print_around(program: &Program, path: &[usize], message: &str) -> String {
    const LINES: usize = 6;
    let names = Names::new(program);
    let mut printer = Printer::new(program, &names, Detail::Full);
    printer.mark = Some((path.to_vec(), message.to_string()));
    printer.line("main(");
    printer.region(&program.main, &mut Vec::new());
    let lines: Vec<&str> = printer.text.lines().collect();
    let at = printer.marked_line.unwrap_or(0);
    let window = at.saturating_sub(LINES)..(at + LINES).min(lines.len());
    lines[window].join("\n")
}

/// One instruction without its body, source position and phase.
pub fn print_inst(program: &Program, names: &Names, inst: &Inst) -> String {
    Printer::new(program, names, Detail::Step).inst_head(inst)
}

/// A type with its placement: `bf16[B@dp, S, D] partial(sum: tp)`.
pub fn print_type(program: &Program, ty: &Type) -> String {
    let dims: Vec<String> = ty
        .dims
        .iter()
        .map(|&dim| {
            let mut text = word(&program.dims[dim].name);
            for axis in ty.placement.axes_of(dim) {
                text.push('@');
                text.push_str(&axis_text(program, axis));
            }
            text
        })
        .collect();
    let mut text = format!("{}[{}]", ty.dtype.name(), dims.join(", "));
    let partials: Vec<String> = ty
        .placement
        .partials()
        .iter()
        .map(|partial| format!("{}: {}", partial.op.name(), axis_text(program, partial.axis)))
        .collect();
    if !partials.is_empty() {
        text.push_str(&format!(" partial({})", partials.join(", ")));
    }
    text
}

/// `tp.0`.
pub(super) fn axis_text(program: &Program, axis: Axis) -> String {
    let info = &program.mesh.axes[axis];
    let plain = |text: &str| {
        let all = text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if all && !text.is_empty() { text.to_string() } else { quote(text) }
    };
    match &info.part {
        Some(part) => format!("{}.{}", plain(&info.name), plain(part)),
        None => plain(&info.name),
    }
}

/// How much a printer says of each instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Detail {
    /// Everything.
    Full,
    /// What it computes.
    Step,
    /// The same, of the update only what moves, sums up or is kept.
    Placements,
}

struct Printer<'a> {
    program: &'a Program,
    names: &'a Names,
    detail: Detail,
    text: String,
    indent: usize,
    phase: Option<Phase>,
    /// Where to print a message under an instruction.
    mark: Option<(InstPath, String)>,
    marked_line: Option<usize>,
}

impl<'a> Printer<'a> {
    fn new(program: &'a Program, names: &'a Names, detail: Detail) -> Printer<'a> {
        let text = String::new();
        Printer { program, names, detail, text, indent: 0, phase: None, mark: None, marked_line: None }
    }

    fn line(&mut self, line: &str) {
        self.text.extend(std::iter::repeat_n("  ", self.indent));
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn block(&mut self, name: &str, lines: Vec<String>) {
        if !lines.is_empty() {
            self.line(&format!("{name} {{"));
            self.indent += 1;
            lines.iter().for_each(|line| self.line(line));
            self.indent -= 1;
            self.line("}");
        }
    }

    fn inline(&mut self, name: &str, entries: Vec<String>) {
        if !entries.is_empty() {
            self.line(&format!("{name} {{ {} }}", entries.join(", ")));
        }
    }

    fn tables(&mut self) {
        let program = self.program;
        self.line(&format!("program {} {{", word(&program.name)));
        self.indent = 1;
        let axes = program
            .mesh
            .axes
            .iter()
            .map(|(axis, info)| format!("{}: {}", axis_text(program, axis), info.size));
        self.inline("mesh", axes.collect());
        let dims = program.dims.values().map(|info| {
            format!("{} = {}{}", word(&info.name), info.size, if info.pad { " pad" } else { "" })
        });
        self.inline("dims", dims.collect());
        self.block("scopes", program.scopes.keys().map(|scope| self.scope_entry(scope)).collect());
        self.block("states", (0..program.states.len()).map(|index| self.state(index)).collect());
        let port = |name: &str, value| format!("{} = {}", word(name), self.value(value));
        let inputs = program.inputs.iter().map(|input| port(&input.name, input.value)).collect();
        let outputs = program.outputs.iter().map(|output| port(&output.name, output.value)).collect();
        self.inline("inputs", inputs);
        self.inline("outputs", outputs);
        let bindings = program.bindings.iter().filter(|binding| self.names.is_defined(binding.value));
        let bindings = bindings.map(|binding| {
            let scope = self.names.scope(binding.scope);
            let within = if scope.is_empty() { String::new() } else { format!(" in {}", word(scope)) };
            format!("{}{within} = {};", word(&binding.name), self.value(binding.value))
        });
        self.block("bindings", bindings.collect());
        self.block("memory", program.memory.as_ref().map_or_else(Vec::new, |plan| self.memory(plan)));
    }

    /// The sizes of the spaces, what is alive at the peak, and the place of each value in the order of the text.
    fn memory(&self, plan: &MemoryPlan) -> Vec<String> {
        let sizes = Space::ALL.map(|space| format!("{} bytes {};", space.name(), plan.bytes_of(space)));
        let mut lines = Vec::from(sizes);
        lines.push(format!("{};", format!("peak {}", self.values(&plan.peak)).trim_end()));
        let mut values = Vec::new();
        definitions(&self.program.main, &mut values);
        let places = values.into_iter().filter_map(|value| Some((value, plan.place(value)?)));
        lines.extend(places.map(|(value, place)| {
            let Place { space, offset, bytes, strides, write } = place;
            let mut text = format!("{} = {} at {offset} bytes {bytes}", self.value(value), space.name());
            for (depth, stride) in strides {
                text.push_str(&format!(", {stride} a turn of loop {depth}"));
            }
            match write {
                Write::Replace => text + ";",
                Write::Accumulate => text + ", accumulate;",
            }
        }));
        lines
    }

    fn scope_entry(&self, scope: Scope) -> String {
        let info = &self.program.scopes[scope];
        let key = |scope: Scope| match self.names.scope(scope) {
            "" => "/".to_string(),
            path => word(path),
        };
        let within = info.parent.map_or(String::new(), |parent| format!(" in {}", key(parent)));
        format!("{}: {}{within}", key(scope), word(&info.layer))
    }

    fn state(&self, index: usize) -> String {
        let state = &self.program.states[index];
        let mut text = format!("{} = {}", word(&state.path), self.value(state.value));
        if let Some(updated) = state.updated {
            text.push_str(&format!(" -> {}", self.value(updated)));
        }
        let kind = match &state.kind {
            StateKind::Parameter(ParameterKind::Weight) => "weight".to_string(),
            StateKind::Parameter(ParameterKind::Norm) => "norm".to_string(),
            StateKind::Parameter(ParameterKind::Bias) => "bias".to_string(),
            StateKind::Master(of) => format!("master of {}", self.state_reference(*of)),
            StateKind::Optimizer { parameter, name } => {
                format!("optimizer {} of {}", word(name), self.state_reference(*parameter))
            }
        };
        let init = match state.init {
            Initializer::Constant(value) => format!("constant({value:?})"),
            Initializer::Normal(deviation) => format!("normal({deviation:?})"),
            Initializer::Uniform(low, high) => format!("uniform({low:?}, {high:?})"),
            Initializer::CopyOf(of) => format!("copy of {}", self.state_reference(of)),
        };
        text.push_str(&format!(", {kind}, {init}"));
        if let Some(stack) = state.stack {
            text.push_str(&format!(", stack {}", word(&self.program.dims[stack].name)));
        }
        if !state.names.is_empty() {
            let names: Vec<String> = state.names.iter().map(|name| word(name)).collect();
            text.push_str(&format!(", names {}", names.join(" ")));
        }
        text + ";"
    }

    /// A state by its path, or by its index where the path doesn't tell.
    fn state_reference(&self, index: usize) -> String {
        let states = &self.program.states;
        match states.get(index) {
            Some(state) if states.iter().position(|other| other.path == state.path) == Some(index) => {
                word(&state.path)
            }
            Some(_) | None => format!("#{index}"),
        }
    }

    /// Prints the parameters, the body and the closing brace; the head and `(` stand already.
    fn region(&mut self, region: &Region, path: &mut InstPath) {
        self.indent += 1;
        for &param in &region.params {
            let mut line = self.definition(param);
            let origin = self.program.values[param].origin;
            if self.detail == Detail::Full && !self.is_compilers(origin) {
                line.push_str(&self.location(origin));
            }
            self.line(&(line + ","));
        }
        self.indent -= 1;
        self.line(") {");
        self.indent += 1;
        for (index, inst) in region.insts.iter().enumerate() {
            if self.detail == Detail::Placements && self.is_update_arithmetic(inst) {
                continue;
            }
            path.push(index);
            self.inst(inst, path);
            path.pop();
        }
        self.line(format!("yield {}", self.values(&region.yields)).trim_end());
        self.indent -= 1;
        self.line("}");
    }

    /// Whether it computes, element by element, what no state keeps.
    fn is_update_arithmetic(&self, inst: &Inst) -> bool {
        let kept = |value: &Value| self.program.states.iter().any(|state| state.updated == Some(*value));
        inst.phase == Phase::Update
            && matches!(inst.op, Op::Constant(_) | Op::Map(_))
            && !inst.results.iter().any(kept)
    }

    fn inst(&mut self, inst: &Inst, path: &mut InstPath) {
        let mut head = self.inst_head(inst);
        match self.detail {
            Detail::Full => {
                if let Some(&first) = inst.results.first() {
                    let origin = self.program.values[first].origin;
                    if !self.is_compilers(origin) {
                        head.push_str(&self.location(origin));
                    }
                }
                head.push_str(&format!(" {}", inst.phase.name()));
            }
            Detail::Step | Detail::Placements => {
                if self.phase != Some(inst.phase) {
                    self.phase = Some(inst.phase);
                    self.line(&format!("// {}", inst.phase.name()));
                }
            }
        }
        match inst.op.region() {
            Some(body) => {
                self.line(&(head + " ("));
                self.marked(path);
                self.region(body, path);
            }
            None => {
                self.line(&head);
                self.marked(path);
            }
        }
    }

    /// Prints the message that belongs under the line just printed.
    fn marked(&mut self, path: &InstPath) {
        if let Some((_, message)) = self.mark.take_if(|(at, _)| at == path) {
            self.marked_line = Some(self.text.lines().count());
            for (index, line) in message.lines().enumerate() {
                self.line(&format!("{}{line}", if index == 0 { "// ^ " } else { "//   " }));
            }
        }
    }

    /// `%y: f32[D] = neg %x because "..."`.
    fn inst_head(&self, inst: &Inst) -> String {
        let mut text = String::new();
        for (index, &result) in inst.results.iter().enumerate() {
            text.push_str(if index == 0 { "" } else { ", " });
            text.push_str(&self.definition(result));
            let origin = self.program.values[result].origin;
            let first = self.program.values[inst.results[0]].origin;
            if self.detail == Detail::Full && self.program.origins[origin] != self.program.origins[first] {
                text.push_str(&self.location(origin));
            }
        }
        text.push_str(if inst.results.is_empty() { "" } else { " = " });
        text.push_str(&op_text(self.program, &inst.op));
        if !inst.args.is_empty() {
            text.push_str(&format!(" {}", self.values(&inst.args)));
        }
        for reason in inst.op.reasons() {
            let leave = if reason.leave_to_gather { " with leave" } else { "" };
            text.push_str(&format!(" because {}{leave}", quote(&reason.text)));
        }
        text
    }

    /// `%x: f32[D] param of %y`, without the source position.
    fn definition(&self, value: Value) -> String {
        let info = &self.program.values[value];
        let mut text = format!("{}: {}", self.value(value), print_type(self.program, &info.ty));
        if info.role != Role::Activation {
            text.push_str(&format!(" {}", info.role.name()));
        }
        if let Some(of) = info.gradient_of
            && self.names.is_defined(of)
            && self.detail == Detail::Full
        {
            text.push_str(&format!(" of {}", self.value(of)));
        }
        text
    }

    /// Whether the compiler itself is the origin, in the root scope.
    fn is_compilers(&self, origin: Origin) -> bool {
        self.program.origins[origin] == self.program.origins[self.program.no_origin()]
    }

    /// ` loc(model.dtl:12:7 layers.attn)`.
    fn location(&self, origin: Origin) -> String {
        if self.is_compilers(origin) {
            return " loc(none)".to_string();
        }
        let info = &self.program.origins[origin];
        let plain = |c: char| c.is_ascii_alphanumeric() || "_./-<>".contains(c);
        let bare = !info.file.is_empty() && info.file.chars().all(plain);
        let file = if bare { info.file.clone() } else { quote(&info.file) };
        let scope = self.names.scope(info.scope);
        let within = if scope.is_empty() { String::new() } else { format!(" {}", word(scope)) };
        format!(" loc({file}:{}:{}{within})", info.line, info.column)
    }

    fn value(&self, value: Value) -> String {
        format!("%{}", self.names.value(value))
    }

    fn values(&self, values: &[Value]) -> String {
        values.iter().map(|&value| self.value(value)).collect::<Vec<_>>().join(", ")
    }
}
