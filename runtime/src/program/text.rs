//! A program as text, for people and back: stage `program` of `dtlc emit`.
//!
//! The text is JSON, laid out with one table entry or instruction a line; `number` and `note` say what is what and are
//! passed over in reading. The machine code is hexadecimal, a kernel after the other. Reading it back gives an equal
//! program, checked as an artifact is. What runs is the artifact, never this text.

use super::device::{DeviceModule, DeviceSection};
use super::{Instruction, KernelCall, Location, LocationId, Loop, Operation, Program};
use crate::error::{Result, RuntimeError};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use std::collections::BTreeMap;
use std::io;

type Json<T> = serde_json::Result<T>;

/// How much of a program's text is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// All of it, so that it can be read back.
    Full,
    /// Without machine code and places in the source.
    Step,
}

impl Program {
    /// The program as text.
    ///
    /// # Errors
    /// A program that can't be written: a bug.
    pub fn to_text(&self, detail: Detail) -> Result<String> {
        let mut writer = Writer { program: self, detail, text: String::new() };
        writer
            .program()
            .map_err(|error| RuntimeError::Bug(format!("the program can't be written: {error}")))?;
        Ok(writer.text)
    }

    /// Reads what [`Program::to_text`] wrote in full.
    ///
    /// # Errors
    /// A text that is no program, or one with a number in it that does not fit the rest.
    pub fn from_text(text: &str) -> Result<Self> {
        let program: Self =
            serde_json::from_str(text).map_err(|error| RuntimeError::Artifact(error.to_string()))?;
        program.validate().map_err(RuntimeError::Artifact)?;
        Ok(program)
    }
}

/// A value on one line.
fn value(value: &impl Serialize) -> Json<String> {
    let mut bytes = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut bytes, OneLine))?;
    String::from_utf8(bytes).map_err(serde::ser::Error::custom)
}

/// JSON on one line, with spaces where people set them.
struct OneLine;

impl Formatter for OneLine {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

struct Writer<'a> {
    program: &'a Program,
    detail: Detail,
    text: String,
}

impl Writer<'_> {
    fn program(&mut self) -> Json<()> {
        let Program {
            name,
            mesh,
            cpu_features,
            arena_bytes,
            state_bytes,
            input_bytes,
            thread_scratch_bytes,
            state,
            inputs,
            outputs,
            kernels,
            code,
            locations,
            instructions,
            device,
        } = self.program;
        self.line(0, "{");
        self.field("name", name)?;
        self.field("mesh", mesh)?;
        self.field("cpu_features", cpu_features)?;
        self.field("arena_bytes", arena_bytes)?;
        self.field("state_bytes", state_bytes)?;
        self.field("input_bytes", input_bytes)?;
        self.field("thread_scratch_bytes", thread_scratch_bytes)?;
        self.table("state", state)?;
        self.table("inputs", inputs)?;
        self.table("outputs", outputs)?;
        self.table("kernels", kernels)?;
        if self.detail == Detail::Full {
            self.list(1, "\"code\": [", &self.code(code)?, "],");
            self.table("locations", locations)?;
        }
        let instructions = self.instructions(2, instructions)?;
        let device = device.as_ref().filter(|_| self.detail == Detail::Full);
        self.list(1, "\"instructions\": [", &instructions, if device.is_some() { "]," } else { "]" });
        if let Some(device) = device {
            self.device(device)?;
        }
        self.line(0, "}");
        Ok(())
    }

    /// The code for devices: a line for each line of PTX, function and call.
    fn device(&mut self, device: &DeviceSection) -> Json<()> {
        let DeviceSection { modules, functions, calls } = device;
        let on_lines =
            |entries: &mut dyn Iterator<Item = Json<String>>| entries.collect::<Json<Vec<String>>>();
        self.line(1, "\"device\": {");
        self.line(2, "\"modules\": [");
        for (number, DeviceModule { name, capability, ptx, cubins }) in modules.iter().enumerate() {
            let end = if number + 1 < modules.len() { "}," } else { "}" };
            let (name, capability, cubins) = (value(name)?, value(capability)?, value(cubins)?);
            self.line(3, &format!("{{\"name\": {name}, \"capability\": {capability}, \"cubins\": {cubins},"));
            let lines = on_lines(&mut lines::of(ptx).map(|line| value(&line)))?;
            self.list(3, "\"ptx\": [", &lines, &format!("]{end}"));
        }
        self.line(2, "],");
        let functions = on_lines(&mut functions.iter().map(value))?;
        self.list(2, "\"functions\": [", &functions, "],");
        let calls = on_lines(&mut calls.iter().map(value))?;
        self.list(2, "\"calls\": [", &calls, "]");
        self.line(1, "}");
        Ok(())
    }

    fn line(&mut self, depth: usize, line: &str) {
        self.text.extend(std::iter::repeat_n("  ", depth));
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Entries with a comma behind all but the last; those that stand deeper are lists themselves.
    fn list(&mut self, depth: usize, head: &str, entries: &[String], end: &str) {
        self.line(depth, head);
        for (number, entry) in entries.iter().enumerate() {
            let comma = if number + 1 < entries.len() { "," } else { "" };
            self.line(depth + 1, &format!("{entry}{comma}"));
        }
        self.line(depth, end);
    }

    fn field(&mut self, name: &str, it: &impl Serialize) -> Json<()> {
        self.line(1, &format!("\"{name}\": {},", value(it)?));
        Ok(())
    }

    /// An entry a line, with the number that others know it by.
    fn table<T: Serialize>(&mut self, name: &str, entries: &[T]) -> Json<()> {
        let numbered = entries.iter().enumerate().map(|(number, entry)| {
            let entry = value(entry)?;
            Ok(entry.replacen('{', &format!("{{\"number\": {number}, "), 1))
        });
        let entries = numbered.collect::<Json<Vec<String>>>()?;
        self.list(1, &format!("\"{name}\": ["), &entries, "],");
        Ok(())
    }

    /// The machine code; each kernel begins a line, with its name before.
    fn code(&self, code: &[u8]) -> Json<Vec<String>> {
        let mut starts: BTreeMap<usize, Option<&str>> = BTreeMap::from([(0, None), (code.len(), None)]);
        for kernel in &self.program.kernels {
            let start = kernel.code_offset as usize;
            starts.entry(start.saturating_add(kernel.code_bytes as usize)).or_insert(None);
            starts.insert(start, Some(&kernel.name));
        }
        let starts: Vec<(usize, Option<&str>)> = starts.into_iter().collect();
        let mut lines = Vec::new();
        for window in starts.windows(2) {
            let (start, kernel, end) = (window[0].0, window[0].1, window[1].0);
            lines
                .extend(kernel.map(|kernel| value(&format!("{} {kernel}", machine_code::NAME))).transpose()?);
            let bytes = code.get(start..end).unwrap_or_default();
            let hexadecimal = bytes.chunks(machine_code::LINE).map(machine_code::hexadecimal);
            lines.extend(hexadecimal.map(|line| format!("\"{line}\"")));
        }
        Ok(lines)
    }

    /// A line for each instruction; a loop has the lines of its body inside.
    fn instructions(&self, depth: usize, instructions: &[Instruction]) -> Json<Vec<String>> {
        let texts = instructions.iter().map(|Instruction { location, operation }| {
            let head = match self.detail {
                Detail::Full => format!("{{\"location\": {}, \"operation\": ", value(location)?),
                Detail::Step => "{\"operation\": ".to_owned(),
            };
            let (kernel, text) = match operation {
                Operation::Loop(Loop { count, order, body }) => {
                    let body =
                        self.instructions(depth + 1, body)?.join(&format!(",\n{}", "  ".repeat(depth + 1)));
                    let (inner, outer) = ("  ".repeat(depth + 1), "  ".repeat(depth));
                    let order = value(order)?;
                    let head = format!("\"count\": {count}, \"order\": {order}, \"body\": [");
                    (None, format!("{{\"Loop\": {{{head}\n{inner}{body}\n{outer}]}}}}"))
                }
                Operation::Kernel(call) => {
                    let kernel = self.program.kernels.get(call.kernel.index());
                    let text = value(&Operation::Kernel(self.placed(call)))?;
                    (kernel.map(|kernel| kernel.name.clone()), text)
                }
                Operation::Matmul { epilogue: Some(epilogue), .. } => {
                    let kernel = self.program.kernels.get(epilogue.call.kernel.index());
                    let mut operation = operation.clone();
                    if let Operation::Matmul { epilogue: Some(epilogue), .. } = &mut operation {
                        epilogue.call = self.placed(&epilogue.call);
                    }
                    let mut text = value(&operation)?;
                    if self.detail == Detail::Step {
                        let place = format!("\"location\": {}, ", value(&epilogue.location)?);
                        text = text.replacen(&place, "", 1);
                    }
                    (kernel.map(|kernel| kernel.name.clone()), text)
                }
                Operation::Matmul { epilogue: None, .. }
                | Operation::Attention(_)
                | Operation::AttentionBackward(_)
                | Operation::Take { .. }
                | Operation::ScatterAdd { .. }
                | Operation::Copy { .. }
                | Operation::Fill { .. }
                | Operation::Collective(_)
                | Operation::Done(_) => (None, value(operation)?),
            };
            Ok(format!("{head}{text}{}}}", self.note(*location, kernel)?))
        });
        texts.collect()
    }

    /// A call with the places of its results where those are shown.
    fn placed(&self, call: &KernelCall) -> KernelCall {
        let mut call = call.clone();
        if self.detail == Detail::Step {
            call.floats.iter_mut().for_each(|(_, _, location)| *location = LocationId(0));
        }
        call
    }

    /// The kernel that an instruction calls, and where in the source it comes from.
    fn note(&self, location: LocationId, kernel: Option<String>) -> Json<String> {
        let location = self.program.locations.get(location.index()).filter(|_| self.detail == Detail::Full);
        let notes = kernel.into_iter().chain(location.map(Location::to_string));
        let notes: Vec<String> = notes.filter(|note| !note.is_empty()).collect();
        if notes.is_empty() {
            return Ok(String::new());
        }
        Ok(format!(", \"note\": {}", value(&notes.join(", "))?))
    }
}

/// Numbers that JSON may not have or not keep, such as infinity: where people read them as text, of which each number is
/// read back with the same bits.
pub(super) mod real {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(in crate::program) fn serialize<S: Serializer>(
        value: &f64,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(&format_args!("{value:?}"))
        } else {
            value.serialize(serializer)
        }
    }

    pub(in crate::program) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<f64, D::Error> {
        if deserializer.is_human_readable() {
            String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
        } else {
            f64::deserialize(deserializer)
        }
    }
}

/// How a text of many lines is written: as it is where a machine reads it, else as a list of its lines.
pub(super) mod lines {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// The lines, which joined by line ends are the text.
    pub(in crate::program) fn of(text: &str) -> impl Iterator<Item = &str> {
        text.split('\n')
    }

    pub(in crate::program) fn serialize<S: Serializer>(
        text: &String,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_seq(of(text))
        } else {
            text.serialize(serializer)
        }
    }

    pub(in crate::program) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<String, D::Error> {
        if deserializer.is_human_readable() {
            Ok(Vec::<String>::deserialize(deserializer)?.join("\n"))
        } else {
            String::deserialize(deserializer)
        }
    }
}

/// How machine code, such as [`Program::code`], is written: as bytes where a machine reads it, else as lines of hexadecimal digits.
pub(super) mod machine_code {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// What a line begins with that names the kernel of the lines behind it.
    pub(in crate::program) const NAME: &str = "# kernel";

    /// Bytes of a line.
    pub(in crate::program) const LINE: usize = 64;

    pub(in crate::program) fn serialize<S: Serializer>(
        code: &[u8],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_seq(code.chunks(LINE).map(hexadecimal))
        } else {
            code.serialize(serializer)
        }
    }

    pub(in crate::program) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<u8>, D::Error> {
        if !deserializer.is_human_readable() {
            return Vec::deserialize(deserializer);
        }
        let mut code = Vec::new();
        let lines = Vec::<String>::deserialize(deserializer)?;
        for line in lines.iter().filter(|line| !line.starts_with(NAME)) {
            let digits: Option<Vec<u32>> = line.chars().map(|digit| digit.to_digit(16)).collect();
            let digits = digits.filter(|digits| digits.len().is_multiple_of(2));
            let digits =
                digits.ok_or_else(|| D::Error::custom("machine code is pairs of hexadecimal digits"))?;
            code.extend(digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8));
        }
        Ok(code)
    }

    pub(in crate::program) fn hexadecimal(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
