//! Who multiplies in attention on the tensor cores: single warps, or the four of a block together on devices that have that.

use crate::cuda::group::{LeftFactor, add_group_product, by_target};
use std::collections::BTreeSet;

/// The forward kernel's loop where four multiply together.
pub(super) const GROUP_LOOP: &str = include_str!("../attention_forward_group.cuh");

/// The files that multiply, for tiles of so many columns and outputs of so many features.
pub(super) fn multipliers(columns: usize, features: &[usize]) -> String {
    by_target(&group_multipliers(columns, features), include_str!("../attention_warp.cuh"))
}

/// Those of four together, for a source that no other target has.
pub(super) fn group_multipliers(columns: usize, features: &[usize]) -> String {
    let mut groups = add_group_product(columns, &LeftFactor::Shared("0"), "0");
    for width in features.iter().collect::<BTreeSet<_>>() {
        groups.push('\n');
        groups.push_str(&add_group_product(*width, &LeftFactor::Registers, "1"));
    }
    groups.push('\n');
    groups.push_str(include_str!("../attention_group.cuh"));
    groups
}

/// The forward kernel's loop.
pub(super) fn forward_loop() -> String {
    by_target(GROUP_LOOP, include_str!("../attention_forward_warp.cuh"))
}
