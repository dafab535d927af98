//! Who multiplies in a product on the tensor cores: single warps, or four together on devices that have that.

use crate::cuda::group::{LeftFactor, add_group_product, by_target};

/// The files that multiply, for tiles of so many columns.
pub(super) fn multipliers(columns: usize) -> String {
    by_target(&group_multiplier(columns), include_str!("../matmul_warp.cuh"))
}

/// The file of four together, for a source that no other target has.
pub(super) fn group_multiplier(columns: usize) -> String {
    let left = LeftFactor::Shared("Left::TERMS_ARE_NEIGHBOURS ? 0 : 1");
    let product = add_group_product(columns, &left, "Right::TERMS_ARE_NEIGHBOURS ? 0 : 1");
    format!("{product}\n{}", include_str!("../matmul_group.cuh"))
}
