//! Who multiplies in a product on the tensor cores: single warps, or four together on devices that have that.

use crate::cuda::group::{LeftFactor, add_group_product, by_target};
use crate::signature::Element;

/// The files that multiply such elements, for tiles of so many columns. Four warps would multiply floats unrounded, and only where terms are neighbours.
pub(super) fn multipliers(element: Element, columns: usize) -> String {
    let warps = include_str!("../matmul_warp.cuh");
    match element {
        Element::F32 => warps.to_owned(),
        Element::Bf16 | Element::F16 => by_target(&group_multiplier(columns), warps),
    }
}

/// The file of four together, for a source that no other target has.
pub(super) fn group_multiplier(columns: usize) -> String {
    let left = LeftFactor::Shared("Left::TERMS_ARE_NEIGHBOURS ? 0 : 1");
    let product = add_group_product(columns, &left, "Right::TERMS_ARE_NEIGHBOURS ? 0 : 1");
    format!("{product}\n{}", include_str!("../matmul_group.cuh"))
}
