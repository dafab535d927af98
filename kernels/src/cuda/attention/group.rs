//! Who multiplies in attention on the tensor cores: single warps, or the four of a block together on devices that have that.

use crate::cuda::group::{LeftFactor, add_group_product, by_target};
use std::collections::BTreeSet;

/// The files that multiply, for tiles of so many columns and outputs of so many features.
pub(super) fn multipliers(columns: usize, features: &[usize]) -> String {
    let mut groups = add_group_product(columns, &LeftFactor::Shared("0"), "0");
    for width in features.iter().collect::<BTreeSet<_>>() {
        groups.push('\n');
        groups.push_str(&add_group_product(*width, &LeftFactor::Registers, "1"));
    }
    groups.push('\n');
    groups.push_str(include_str!("../attention_group.cuh"));
    by_target(&groups, include_str!("../attention_warp.cuh"))
}
