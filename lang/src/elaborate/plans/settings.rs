//! `batch`, `precision` and `memory` of a plan.

use super::Resolver;
use crate::ast::{MemoryLimit, PlanValue, PlanValueKind, Setting, SettingsItem};
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::model::Element;
use crate::plan::{Batch, Factors, Limit, Plan, Precision, Role, Rule};
use crate::source::Span;
use crate::suggest::did_you_mean;

/// A number format by the names that plans have for them.
enum Format {
    Stored(Element),
    /// Of f32, what products keep.
    Tf32,
}

/// What others call number formats.
const LONG_NAMES: [(&str, &str); 8] = [
    ("float32", "f32"),
    ("float", "f32"),
    ("single", "f32"),
    ("tfloat32", "tf32"),
    ("tensorfloat32", "tf32"),
    ("bfloat16", "bf16"),
    ("float16", "f16"),
    ("half", "f16"),
];

/// The value of an integer setting, where it is one.
pub(super) fn integer_setting(settings: &[Setting], name: &str) -> Option<u64> {
    settings.iter().find(|setting| setting.name.name == name).and_then(|setting| match setting.value.kind {
        PlanValueKind::Integer(value) if value > 0 => Some(value),
        _ => None,
    })
}

impl Resolver<'_> {
    /// Reports settings of unknown names and those that stand twice or are narrowed.
    fn check_names(&mut self, settings: &[Setting], known: &[&str]) {
        for (index, setting) in settings.iter().enumerate() {
            let name = &setting.name.name;
            if let Some(kind) = setting.on.first() {
                self.diagnostics.push(
                    Diagnostic::error(Code::InvalidSetting, format!("`{name}` can't be narrowed"))
                        .label(kind.span, "only an optimizer's `decay` is for kinds of parameter"),
                );
            }
            if let Some(first) = settings[..index].iter().find(|it| it.name.name == *name) {
                self.diagnostics.push(
                    Diagnostic::error(Code::DuplicateEntry, format!("`{name}` is set twice"))
                        .label(setting.span, "set again")
                        .label(first.span, "first set here"),
                );
            }
            if !known.contains(&name.as_str()) {
                let mut diagnostic =
                    Diagnostic::error(Code::InvalidSetting, format!("no setting `{name}` here"))
                        .label(setting.name.span, "unknown")
                        .note(format!("settings: {}", known.join(", ")));
                if let Some(near) = did_you_mean(name, known.iter().copied()) {
                    diagnostic = diagnostic.hint_edit(near, setting.name.span, near);
                }
                self.diagnostics.push(diagnostic);
            }
        }
    }

    pub(super) fn batch(&mut self, item: &SettingsItem) -> Option<Batch> {
        self.check_names(&item.settings, &["seq", "global", "micro"]);
        for setting in &item.settings {
            if !matches!(setting.value.kind, PlanValueKind::Integer(1..) | PlanValueKind::Error) {
                self.diagnostics.push(
                    Diagnostic::error(
                        Code::InvalidSetting,
                        format!("`{}` is a positive integer", setting.name.name),
                    )
                    .label(setting.value.span, "not one")
                    .hint("batch { seq 2048, global 64, micro 2 }"),
                );
            }
        }
        let size = |dim| self.model.dims[dim].size;
        let sequence = self.overrides.get("seq").or_else(|| integer_setting(&item.settings, "seq"));
        let sequence = self.model.sequence.map(size).or(sequence).unwrap_or(1);
        let Some(global) = self.overrides.get("global").or_else(|| integer_setting(&item.settings, "global"))
        else {
            // What is there and no number has been reported.
            if item.settings.iter().all(|setting| setting.name.name != "global") {
                self.diagnostics.push(
                    Diagnostic::error(Code::InvalidBatch, "a batch has a number of sequences")
                        .label(item.span, "`global` is missing")
                        .hint("batch { seq 2048, global 64 }"),
                );
            }
            return None;
        };
        // A size given by name on the command line counts for more than the plan's.
        let global = self.model.batch.map_or(global, size);
        let micro = self.overrides.get("micro").or_else(|| integer_setting(&item.settings, "micro"));
        Some(Batch { sequence, global, micro, span: item.span })
    }

    /// Whether the batch comes out even over ranks and micro-batches.
    pub(super) fn check_batch(&mut self, plan: &Plan) {
        let (Some(batch), Some(dim)) = (&plan.batch, self.model.batch) else { return };
        let mut ranks = 1u64;
        let mut place: Option<Span> = None;
        for rule in plan.steps.iter().flat_map(|step| &step.rules) {
            if let Rule::Place { roles, dim: placed, axes, at, span, .. } = rule {
                let acts = roles.is_empty() || roles.contains(&Role::Acts);
                if acts && *placed == dim && at.is_empty() {
                    ranks = axes.iter().fold(ranks, |total, axis| total.saturating_mul(self.axis_size(axis)));
                    place = Some(*span);
                }
            }
        }
        let micro = batch.micro.unwrap_or(1);
        let unit = ranks.saturating_mul(micro);
        if batch.global.is_multiple_of(unit) {
            return;
        }
        let title =
            format!("{} sequences do not come out over {ranks} ranks, {micro} at a time", batch.global);
        let next = (batch.global / unit + 1).saturating_mul(unit);
        let mut diagnostic = Diagnostic::error(Code::InvalidBatch, title)
            .label(batch.span, format!("{} is no multiple of {ranks} · {micro}", batch.global))
            .why("each rank works on equally many sequences, in equal micro-batches")
            .hint(format!("global {next}"));
        if let Some(place) = place {
            diagnostic = diagnostic.label(place, format!("over {ranks} ranks"));
        }
        self.diagnostics.push(diagnostic);
    }

    pub(super) fn precision(&mut self, item: &SettingsItem) -> Precision {
        const NAMES: [&str; 6] = ["compute", "params", "grads", "master", "reduce", "loss_scale"];
        self.check_names(&item.settings, &NAMES);
        let mut precision = Precision::default();
        let mut master = None;
        // What is no setting was reported, and nothing is to be said of its value.
        for setting in item.settings.iter().filter(|setting| NAMES.contains(&setting.name.name.as_str())) {
            if setting.name.name == "loss_scale" {
                precision.loss_scale = self.loss_scale(setting);
                continue;
            }
            let element = match (self.number_format(setting), setting.name.name.as_str()) {
                (Some(Format::Stored(element)), _) => element,
                (Some(Format::Tf32), "compute") => {
                    precision.factors = Factors::Tf32;
                    Element::F32
                }
                (Some(Format::Tf32), _) => {
                    self.tf32_is_not_stored(setting);
                    continue;
                }
                (None, _) => continue,
            };
            match setting.name.name.as_str() {
                "compute" => precision.compute = element,
                "params" => precision.params = element,
                "grads" => precision.grads = element,
                "reduce" => self.sums_are_f32(element, setting),
                _ => master = Some(element),
            }
        }
        precision.master = master.unwrap_or(precision.params);
        precision
    }

    /// A power of two, so that to multiply and to divide by it rounds nothing.
    fn loss_scale(&mut self, setting: &Setting) -> u64 {
        match setting.value.kind {
            PlanValueKind::Integer(scale) if scale.is_power_of_two() => return scale,
            PlanValueKind::Error => return 1,
            _ => {}
        }
        self.diagnostics.push(
            Diagnostic::error(Code::InvalidSetting, "a loss is scaled by a power of two")
                .label(setting.value.span, "not a power of two from 1 on")
                .why("numbers are multiplied and divided by it without rounding")
                .hint("loss_scale 1024"),
        );
        1
    }

    /// What sums are taken in is no choice: `reduce` says so where a plan wants it written.
    fn sums_are_f32(&mut self, element: Element, setting: &Setting) {
        if element != Element::F32 {
            self.diagnostics.push(
                Diagnostic::error(Code::InvalidSetting, "sums are taken in f32")
                    .label(setting.value.span, "not f32")
                    .why("a sum of many numbers in 16 bits loses the small ones")
                    .note("what travels has the format of its value: `compute` for activations, `grads` for gradients")
                    .hint("reduce f32"),
            );
        }
    }

    fn tf32_is_not_stored(&mut self, setting: &Setting) {
        self.diagnostics.push(
            Diagnostic::error(Code::InvalidSetting, "nothing is stored or summed in tf32")
                .label(setting.value.span, "only for `compute`")
                .why("products read their factors rounded to tf32, and only `compute` is about products; what they read is f32 in memory")
                .hint(format!("{} f32", setting.name.name)),
        );
    }

    fn number_format(&mut self, setting: &Setting) -> Option<Format> {
        let value = &setting.value;
        let name = match &value.kind {
            PlanValueKind::Name(name) => name.name.as_str(),
            PlanValueKind::Error => return None,
            _ => "",
        };
        match name {
            "f32" => return Some(Format::Stored(Element::F32)),
            "bf16" => return Some(Format::Stored(Element::Bf16)),
            "f16" => return Some(Format::Stored(Element::F16)),
            "tf32" => return Some(Format::Tf32),
            _ => {}
        }
        let later = matches!(name, "fp8" | "f8" | "e4m3" | "e5m2");
        let code = if later { Code::NotSupported } else { Code::InvalidSetting };
        let (expected, formats): (_, &[&str]) = match setting.name.name.as_str() {
            "compute" => ("expected `f32`, `tf32`, `bf16` or `f16`", &["f32", "tf32", "bf16", "f16"]),
            "reduce" => ("expected `f32`", &["f32"]),
            _ => ("expected `f32`, `bf16` or `f16`", &["f32", "bf16", "f16"]),
        };
        let long = LONG_NAMES.iter().find(|(long, _)| long.eq_ignore_ascii_case(name));
        let long = long.map(|(_, short)| *short).filter(|short| formats.contains(short));
        let mut diagnostic =
            Diagnostic::error(code, "not a number format of this version").label(value.span, expected);
        // What is meant by those is clear, and no other format.
        if let Some(near) = long.or_else(|| did_you_mean(name, formats.iter().copied())).filter(|_| !later) {
            diagnostic = diagnostic.hint_edit(near, value.span, near);
        }
        self.diagnostics.push(diagnostic);
        None
    }

    pub(super) fn memory(&mut self, item: &MemoryLimit) -> Option<Limit> {
        self.bytes(&item.amount).map(|bytes| Limit { bytes, span: item.span })
    }

    /// An amount of memory in bytes; a number without a unit is bytes.
    pub(super) fn bytes(&mut self, value: &PlanValue) -> Option<u64> {
        let bytes = match &value.kind {
            PlanValueKind::Integer(bytes) => Some(*bytes as f64),
            PlanValueKind::Quantity { number, unit } => unit_bytes(&unit.name).map(|unit| number * unit),
            PlanValueKind::Error => return None,
            _ => None,
        };
        // Above 2^63 the conversion would round to a number that means nothing.
        let bytes = bytes.filter(|bytes| (0.0..9.2e18).contains(bytes)).map(|bytes| bytes as u64);
        if bytes.is_none() {
            self.diagnostics.push(
                Diagnostic::error(Code::InvalidSetting, "not an amount of memory")
                    .label(value.span, "expected a number and a unit")
                    .hint("80 GB or 74.5 GiB"),
            );
        }
        bytes
    }
}

fn unit_bytes(unit: &str) -> Option<f64> {
    Some(match unit {
        "B" => 1.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        "kiB" | "KiB" => 1024.0,
        "MiB" => 1_048_576.0,
        "GiB" => 1_073_741_824.0,
        "TiB" => 1_099_511_627_776.0,
        _ => return None,
    })
}
