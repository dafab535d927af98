//! Which vector instructions the host has, and the macro that compiles one loop for each of them.

/// Instruction set that a kernel's inner loops use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// [`Isa::Avx512`] with dot products of pairs of bf16.
    Avx512Bf16,
    /// AVX-512 F, BW, DQ and VL: 16 f32 lanes.
    Avx512,
    /// AVX2 and FMA: 8 f32 lanes.
    Avx2,
    /// What the target's baseline offers.
    Baseline,
}

impl Isa {
    /// The best set that this host has.
    pub fn detect() -> Isa {
        Isa::available()[0]
    }

    /// Every set that this host has, best first.
    pub fn available() -> &'static [Isa] {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if avx2 && avx512 && is_x86_feature_detected!("avx512bf16") {
                return &[Isa::Avx512Bf16, Isa::Avx512, Isa::Avx2, Isa::Baseline];
            }
            if avx2 && avx512 {
                return &[Isa::Avx512, Isa::Avx2, Isa::Baseline];
            }
            if avx2 {
                return &[Isa::Avx2, Isa::Baseline];
            }
        }
        &[Isa::Baseline]
    }
}

/// Defines `fn name(isa, arguments)` that runs `body(arguments)` compiled for `isa`. `body` must be
/// `#[inline(always)]`, so that its loops are vectorised with the caller's features. The defined function is
/// unsafe: `isa` must be available.
macro_rules! for_each_isa {
    (
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident $(<$generic:ident: $bound:path>)?
        ($($argument:ident: $kind:ty),* $(,)?) $(-> $result:ty)? = $body:ident
    ) => {
        $(#[$attribute])*
        ///
        /// # Safety
        /// `isa` must be one of [`crate::isa::Isa::available`], and what the body asks for must hold.
        $visibility unsafe fn $name $(<$generic: $bound>)? (
            isa: $crate::isa::Isa,
            $($argument: $kind),*
        ) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            unsafe fn avx512 $(<$generic: $bound>)? ($($argument: $kind),*) $(-> $result)? {
                // SAFETY: the caller's promise is passed on.
                unsafe { $body $(::<$generic>)? ($($argument),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2 $(<$generic: $bound>)? ($($argument: $kind),*) $(-> $result)? {
                // SAFETY: the caller's promise is passed on.
                unsafe { $body $(::<$generic>)? ($($argument),*) }
            }
            // SAFETY: the caller promises that the host has `isa` and that the body's own demands hold.
            unsafe {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    $crate::isa::Isa::Avx512Bf16 | $crate::isa::Isa::Avx512 => avx512 $(::<$generic>)? ($($argument),*),
                    #[cfg(target_arch = "x86_64")]
                    $crate::isa::Isa::Avx2 => avx2 $(::<$generic>)? ($($argument),*),
                    #[cfg(not(target_arch = "x86_64"))]
                    $crate::isa::Isa::Avx512Bf16 | $crate::isa::Isa::Avx512 | $crate::isa::Isa::Avx2 => $body $(::<$generic>)? ($($argument),*),
                    $crate::isa::Isa::Baseline => $body $(::<$generic>)? ($($argument),*),
                }
            }
        }
    };
}

pub(crate) use for_each_isa;
