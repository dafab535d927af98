//! `wgmma`, by which four warps multiply together: functions of one instruction, whose operands are as many as its sums. Only sm_90a has it,
//! so that a source with them has another text for all other devices, chosen by the compiler's target: launches are the same for all.

use std::fmt::Write;

/// Where 64 lines of a left factor come from, 16 terms of each. Whether lines are neighbours in memory, rather than terms, is an
/// expression of C++ that is 1 or 0.
pub(super) enum LeftFactor {
    /// A descriptor of shared memory, and whether lines are neighbours there.
    Shared(&'static str),
    /// A `Fragment`.
    Registers,
}

/// One text for sm_90a, and one for all other devices.
pub(super) fn by_target(groups: &str, warps: &str) -> String {
    format!(
        "// Only this target has products of four warps.\n#ifdef __CUDA_ARCH_FEAT_SM90_ALL\n\n{groups}\n#else\n\n{warps}\n#endif\n"
    )
}

/// `add_group_product` for so many lines of the right factor, of which `right_is_turned` says whether lines are neighbours.
pub(super) fn add_group_product(columns: usize, left: &LeftFactor, right_is_turned: &str) -> String {
    let count = columns / 2;
    let (mut places, mut sums) = (String::new(), String::new());
    for index in 0..count {
        let comma = if index + 1 == count { "" } else { ", " };
        // Writing to a string does not fail.
        let _ = write!(places, "%{index}{comma}");
        let _ = write!(sums, "\"+f\"(sums[{}][{}]){comma}", index / 4, index % 4);
    }
    let (parameter, given) = match left {
        LeftFactor::Shared(_) => ("unsigned long long left", "\"l\"(left)"),
        LeftFactor::Registers => (
            "const Fragment& left",
            "\"r\"(left.at[0]), \"r\"(left.at[1]), \"r\"(left.at[2]), \"r\"(left.at[3])",
        ),
    };
    let turned = match left {
        LeftFactor::Shared(left_is_turned) => format!("\"n\"({left_is_turned}), \"n\"({right_is_turned})"),
        LeftFactor::Registers => format!("\"n\"({right_is_turned})"),
    };
    let place = |operand: usize| format!("%{}", count + operand);
    let operands = match left {
        LeftFactor::Shared(_) => [place(0), place(1), format!("{}, {}", place(2), place(3))],
        LeftFactor::Registers => {
            [format!("{{{}, {}, {}, {}}}", place(0), place(1), place(2), place(3)), place(4), place(5)]
        }
    };
    let [left_place, right_place, turns] = operands;
    format!(
        "// Begins to add the product of 64 lines and {columns} by 16 terms: of eight columns a lane holds the four sums that `add_product` says.\n\
         DTL_INLINE void add_group_product(float (&sums)[{}][4], {parameter}, unsigned long long right) {{\n    \
         asm volatile(\n        \"{{.reg .pred adds; setp.ne.b32 adds, 1, 0; \"\n        \
         \"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.\" FACTOR_NAME \".\" FACTOR_NAME \" {{{places}}}, \"\n        \
         \"{left_place}, {right_place}, adds, 1, 1, {turns};}}\"\n        \
         : {sums}\n        \
         : {given}, \"l\"(right), {turned}\n        \
         : \"memory\");\n}}\n",
        columns / 8,
    )
}
