//! Who multiplies in a product on the tensor cores: single warps, or four together on devices that have that. One source has both, and the
//! compiler's target decides, so that launches are the same for every device.

use std::fmt::Write;

/// The files that multiply, for tiles of so many columns.
pub(super) fn multipliers(columns: usize) -> String {
    format!(
        "// Only this target has products of four warps.\n#ifdef __CUDA_ARCH_FEAT_SM90_ALL\n\n{}\n{}\n#else\n\n{}\n#endif\n",
        add_group_product(columns),
        include_str!("../matmul_group.cuh"),
        include_str!("../matmul_warp.cuh"),
    )
}

/// The file of four together, for a source that no other target has.
pub(super) fn group_multiplier(columns: usize) -> String {
    format!("{}\n{}", add_group_product(columns), include_str!("../matmul_group.cuh"))
}

/// A function of one instruction, whose operands are as many as its sums.
fn add_group_product(columns: usize) -> String {
    let count = columns / 2;
    let (mut places, mut sums) = (String::new(), String::new());
    for index in 0..count {
        let comma = if index + 1 == count { "" } else { ", " };
        // Writing to a string does not fail.
        let _ = write!(places, "%{index}{comma}");
        let _ = write!(sums, "\"+f\"(sums[{}][{}]){comma}", index / 4, index % 4);
    }
    let [left, right, left_is_turned, right_is_turned] = [0, 1, 2, 3].map(|operand| count + operand);
    format!(
        "// Begins to add the product of 64 lines and {columns} by 16 terms: of eight columns a lane holds the four sums that `add_product` says.\n\
         DTL_INLINE void add_group_product(float (&sums)[{}][4], unsigned long long left, unsigned long long right) {{\n    \
         asm volatile(\n        \"{{.reg .pred adds; setp.ne.b32 adds, 1, 0; \"\n        \
         \"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 {{{places}}}, \"\n        \
         \"%{left}, %{right}, adds, 1, 1, %{left_is_turned}, %{right_is_turned};}}\"\n        \
         : {sums}\n        \
         : \"l\"(left), \"l\"(right), \"n\"(Left::TERMS_ARE_NEIGHBOURS ? 0 : 1), \"n\"(Right::TERMS_ARE_NEIGHBOURS ? 0 : 1)\n        \
         : \"memory\");\n}}\n",
        columns / 8,
    )
}
