//! What the processor that runs a kernel is known to have.

use cranelift_codegen::isa::{OwnedTargetIsa, lookup_by_name};
use cranelift_codegen::settings::{self, Configurable};

/// Features beyond the ones that every kernel needs (SSSE3 and SSE4.1, on processors since 2008).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetFeatures {
    /// Three-operand forms of the 128-bit instructions.
    pub avx: bool,
    /// Broadcasts and integer forms of the same.
    pub avx2: bool,
    /// Fused multiply-add.
    pub fma: bool,
}

impl TargetFeatures {
    /// What every x86-64 processor that runs kernels has.
    pub const BASELINE: Self = Self { avx: false, avx2: false, fma: false };

    /// What this processor has.
    ///
    /// # Errors
    /// On a processor that can't run kernels.
    pub fn host() -> Result<Self, String> {
        #[cfg(target_arch = "x86_64")]
        {
            if !(is_x86_feature_detected!("ssse3") && is_x86_feature_detected!("sse4.1")) {
                return Err("kernels need SSSE3 and SSE4.1".to_owned());
            }
            let avx = is_x86_feature_detected!("avx");
            Ok(Self {
                avx,
                avx2: avx && is_x86_feature_detected!("avx2"),
                fma: avx && is_x86_feature_detected!("fma"),
            })
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            Err("kernels are generated for x86-64 only".to_owned())
        }
    }

    /// The features that code compiled for them needs, by the names of `is_x86_feature_detected!`.
    pub fn names(self) -> Vec<&'static str> {
        let optional = [(self.avx, "avx"), (self.avx2, "avx2"), (self.fma, "fma")];
        let present = optional.into_iter().filter(|(has, _)| *has);
        ["ssse3", "sse4.1"].into_iter().chain(present.map(|(_, name)| name)).collect()
    }

    pub(super) fn isa(self) -> Result<OwnedTargetIsa, String> {
        let mut flags = settings::builder();
        for (flag, value) in [("opt_level", "none"), ("unwind_info", "false")] {
            flags.set(flag, value).map_err(|error| error.to_string())?;
        }
        let mut isa = lookup_by_name("x86_64-unknown-linux-gnu").map_err(|error| error.to_string())?;
        let optional = [(self.avx, "has_avx"), (self.avx2, "has_avx2"), (self.fma, "has_fma")];
        let present = optional.into_iter().filter(|(has, _)| *has);
        for flag in ["has_sse3", "has_ssse3", "has_sse41"].into_iter().chain(present.map(|(_, flag)| flag)) {
            isa.enable(flag).map_err(|error| error.to_string())?;
        }
        isa.finish(settings::Flags::new(flags)).map_err(|error| error.to_string())
    }
}
