//! Named dimensions and the device mesh: the two things a placement relates.
//!
//! A dimension is an identity, not a number: two dimensions of equal size stay distinct. Product
//! dimensions of the language (`H = KV * G`) never reach the IR; a type lists their atoms instead.

use cranelift_entity::{PrimaryMap, entity_impl};

/// A named dimension of a [`crate::Program`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dim(u32);
entity_impl!(Dim, "dim");

/// What is known of a dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DimInfo {
    /// The name that users and printed IR see; unique in a program.
    pub name: String,
    /// Number of elements in the unsharded mathematics.
    pub size: u64,
    /// Whether a placement may pad it up to a multiple of its axes. Pads take part in no sum.
    pub pad: bool,
}

/// One axis of the mesh, or one part of an axis that was split into sub-axes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Axis(u32);
entity_impl!(Axis, "axis");

/// What is known of a mesh axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisInfo {
    /// The axis as the plan names it, such as `tp`.
    pub name: String,
    /// The sub-axis, where the axis is split: `inner` of `dp.inner`, `0` of `tp.0`.
    pub part: Option<String>,
    /// Number of ranks along it.
    pub size: u64,
}

impl AxisInfo {
    /// The name as written in a plan: `tp`, `dp.inner`.
    pub fn full_name(&self) -> String {
        match &self.part {
            Some(part) => format!("{}.{part}", self.name),
            None => self.name.clone(),
        }
    }
}

/// The mesh of ranks. Ranks are numbered row-major: the last axis varies fastest. The parts of a
/// split axis stand side by side, major part first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mesh {
    /// Axes in the order of the plan.
    pub axes: PrimaryMap<Axis, AxisInfo>,
}

impl Mesh {
    /// Number of ranks.
    pub fn ranks(&self) -> u64 {
        self.axes.values().fold(1, |ranks, axis| ranks.saturating_mul(axis.size))
    }

    /// The product of the sizes of `axes`.
    pub fn group_size(&self, axes: impl IntoIterator<Item = Axis>) -> u64 {
        axes.into_iter().fold(1, |size, axis| size.saturating_mul(self.axes[axis].size))
    }

    /// All parts of the axis that a plan calls `name`, or the single part `name.part`.
    /// Empty where there is no such axis.
    pub fn find(&self, name: &str) -> Vec<Axis> {
        let matches = |info: &AxisInfo| info.name == name || info.full_name() == name;
        self.axes.iter().filter(|(_, info)| matches(info)).map(|(axis, _)| axis).collect()
    }

    /// A group of axes as users see it: `tp` when every part of `tp` is there, `tp.0` for a part,
    /// `dp,tp` for several.
    pub fn display(&self, axes: &[Axis]) -> String {
        let mut sorted: Vec<Axis> = axes.to_vec();
        sorted.sort_unstable();
        self.names(&sorted).join(",")
    }

    /// The same in the order of the axes: an axis whose parts follow each other major first has one name.
    pub fn names(&self, axes: &[Axis]) -> Vec<String> {
        let mut names = Vec::new();
        let mut at = 0;
        while let Some(&axis) = axes.get(at) {
            let info = &self.axes[axis];
            let parts = self.find(&info.name);
            let whole = axes[at..].starts_with(&parts);
            names.push(if whole { info.name.clone() } else { info.full_name() });
            at += if whole { parts.len() } else { 1 };
        }
        names
    }
}
