//! Registers as 32 lanes, and the shape of everything that is computed lane by lane.
//!
//! Functions over lanes are compiled twice: for any x86-64, and with AVX2 and FMA, which is several times faster. Which
//! one runs is found out once a launch.

use crate::code::{LANES, SLOT_WORDS, Slot};

/// The instructions of this processor that the emulator makes use of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// What every x86-64 has.
    Plain,
    /// AVX2 and FMA.
    Vector,
}

impl Isa {
    /// The best that this processor has.
    #[must_use]
    pub fn detect() -> Isa {
        let vector =
            std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma");
        if vector { Isa::Vector } else { Isa::Plain }
    }
}

/// Defines a function that is compiled for each [`Isa`] and takes it as its first argument.
macro_rules! vectorised {
    ($(#[$attribute:meta])* fn $name:ident($($argument:ident: $ty:ty),* $(,)?) $(-> $out:ty)? $body:block) => {
        $(#[$attribute])*
        pub(super) fn $name(isa: $crate::run::lanes::Isa, $($argument: $ty),*) $(-> $out)? {
            #[inline(always)]
            fn body($($argument: $ty),*) $(-> $out)? $body
            #[target_feature(enable = "avx2,fma")]
            fn fast($($argument: $ty),*) $(-> $out)? {
                body($($argument),*)
            }
            match isa {
                // SAFETY: `Isa::Vector` is chosen only where the processor has AVX2 and FMA.
                $crate::run::lanes::Isa::Vector => unsafe { fast($($argument),*) },
                $crate::run::lanes::Isa::Plain => body($($argument),*),
            }
        }
    };
}
pub(super) use vectorised;

/// The registers of a frame.
pub(super) type File = [u64];

/// A type that a register's lanes may be read as.
pub(super) trait Lane: Copy + Default {
    /// The 32 lanes of a register.
    fn read(file: &File, slot: Slot) -> [Self; LANES];
    /// Sets the lanes of the mask.
    fn write(file: &mut File, slot: Slot, values: &[Self; LANES], mask: u32);
}

#[inline(always)]
fn words(file: &File, slot: Slot) -> &[u32] {
    let at = slot as usize * SLOT_WORDS;
    bytemuck::cast_slice(&file[at..at + SLOT_WORDS])
}

#[inline(always)]
fn words_mut(file: &mut File, slot: Slot) -> &mut [u32] {
    let at = slot as usize * SLOT_WORDS;
    bytemuck::cast_slice_mut(&mut file[at..at + SLOT_WORDS])
}

impl Lane for u32 {
    #[inline(always)]
    fn read(file: &File, slot: Slot) -> [u32; LANES] {
        let mut lanes = [0; LANES];
        lanes.copy_from_slice(words(file, slot));
        lanes
    }

    #[inline(always)]
    fn write(file: &mut File, slot: Slot, values: &[u32; LANES], mask: u32) {
        let old = words_mut(file, slot);
        if mask == u32::MAX {
            old.copy_from_slice(values);
            return;
        }
        for (lane, (old, new)) in old.iter_mut().zip(values).enumerate() {
            let keep = (mask >> lane & 1).wrapping_sub(1);
            *old = (*old & keep) | (new & !keep);
        }
    }
}

impl Lane for u64 {
    #[inline(always)]
    fn read(file: &File, slot: Slot) -> [u64; LANES] {
        let at = slot as usize * SLOT_WORDS;
        let mut lanes = [0; LANES];
        lanes.copy_from_slice(&file[at..at + LANES]);
        lanes
    }

    #[inline(always)]
    fn write(file: &mut File, slot: Slot, values: &[u64; LANES], mask: u32) {
        let at = slot as usize * SLOT_WORDS;
        let old = &mut file[at..at + LANES];
        if mask == u32::MAX {
            old.copy_from_slice(values);
            return;
        }
        for (lane, (old, new)) in old.iter_mut().zip(values).enumerate() {
            let keep = u64::from(mask >> lane & 1).wrapping_sub(1);
            *old = (*old & keep) | (new & !keep);
        }
    }
}

/// Types that are another's bits.
macro_rules! lane_as {
    ($ty:ty, $bits:ty, $from:expr, $to:expr) => {
        impl Lane for $ty {
            #[inline(always)]
            fn read(file: &File, slot: Slot) -> [$ty; LANES] {
                <$bits>::read(file, slot).map($from)
            }

            #[inline(always)]
            fn write(file: &mut File, slot: Slot, values: &[$ty; LANES], mask: u32) {
                <$bits>::write(file, slot, &values.map($to), mask);
            }
        }
    };
}

lane_as!(i32, u32, |bits| bits as i32, |value| value as u32);
lane_as!(f32, u32, f32::from_bits, f32::to_bits);
lane_as!(u16, u32, |bits| bits as u16, u32::from);
lane_as!(i16, u32, |bits| bits as i16, |value| u32::from(value as u16));
lane_as!(i64, u64, |bits| bits as i64, |value| value as u64);
lane_as!(f64, u64, f64::from_bits, f64::to_bits);

/// One source: `to = f(a)`.
#[inline(always)]
pub(super) fn map<A: Lane, R: Lane>(file: &mut File, mask: u32, (to, a): (Slot, Slot), f: impl Fn(A) -> R) {
    let a = A::read(file, a);
    let mut result = [R::default(); LANES];
    for lane in 0..LANES {
        result[lane] = f(a[lane]);
    }
    R::write(file, to, &result, mask);
}

/// Two sources: `to = f(a, b)`.
#[inline(always)]
pub(super) fn zip<A: Lane, B: Lane, R: Lane>(
    file: &mut File,
    mask: u32,
    (to, a, b): (Slot, Slot, Slot),
    f: impl Fn(A, B) -> R,
) {
    let (a, b) = (A::read(file, a), B::read(file, b));
    let mut result = [R::default(); LANES];
    for lane in 0..LANES {
        result[lane] = f(a[lane], b[lane]);
    }
    R::write(file, to, &result, mask);
}

/// Three sources: `to = f(a, b, c)`.
#[inline(always)]
pub(super) fn zip3<A: Lane, B: Lane, C: Lane, R: Lane>(
    file: &mut File,
    mask: u32,
    (to, a, b, c): (Slot, Slot, Slot, Slot),
    f: impl Fn(A, B, C) -> R,
) {
    let (a, b, c) = (A::read(file, a), B::read(file, b), C::read(file, c));
    let mut result = [R::default(); LANES];
    for lane in 0..LANES {
        result[lane] = f(a[lane], b[lane], c[lane]);
    }
    R::write(file, to, &result, mask);
}

/// The lanes for which a relation holds, as a mask.
#[inline(always)]
pub(super) fn mask_of(holds: impl Fn(usize) -> bool) -> u32 {
    let mut mask = 0;
    for lane in 0..LANES {
        mask |= u32::from(holds(lane)) << lane;
    }
    mask
}
