//! `atom` and `red`: one lane after another, the lowest first.

use super::access::{addresses, resolve};
use super::block::Executor;
use super::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use super::lanes::{File, Lane};
use super::warp::Warp;
use super::{Ran, each, throw};
use crate::code::{Atomic, AtomicKind, LANES, Ordering, Slot};
use crate::fault::{Access, FaultKind};
use crate::memory::Fault;
use crate::ptx::{Space, Type};

impl Executor<'_> {
    pub fn atomic(&mut self, warp: &mut Warp, line: u32, mask: u32, atomic: &Atomic) -> Ran<()> {
        let bytes = atomic.ty.bytes();
        let file = warp.file();
        let addresses = addresses(file, atomic.base, atomic.offset);
        let a = read(file, atomic.a, bytes);
        let b = atomic.b.map(|slot| read(file, slot, bytes));
        if matches!(atomic.space, Space::Shared | Space::Generic) {
            self.shared.begin(warp.index, line, Access::Atomic, Ordering::Strong);
        }
        let mut result = [0; LANES];
        for lane in each(mask) {
            let change = |old| changed(atomic.kind, atomic.ty, old, a[lane], b.map(|b| b[lane]));
            let (space, address) = resolve(atomic.space, addresses[lane]);
            match self.update(lane as u32, (space, address), bytes, change) {
                Ok(old) => result[lane] = old,
                Err(kind) => return throw(1 << lane, kind),
            }
        }
        if let Some(to) = atomic.to {
            match bytes {
                8 => u64::write(warp.file(), to, &result, mask),
                4 => u32::write(warp.file(), to, &result.map(|bits| bits as u32), mask),
                _ => u16::write(warp.file(), to, &result.map(|bits| bits as u16), mask),
            }
        }
        Ok(())
    }

    fn update(
        &mut self,
        lane: u32,
        (space, address): (Space, u64),
        bytes: usize,
        change: impl Fn(u64) -> u64,
    ) -> Result<u64, Fault> {
        if address % bytes as u64 != 0 {
            return Err(Box::new(FaultKind::Misaligned { space, address, align: bytes }));
        }
        match (space, bytes) {
            (Space::Shared, 8) => {
                let old =
                    self.shared.update(lane, address, |old| change(u64::from_le_bytes(old)).to_le_bytes())?;
                Ok(u64::from_le_bytes(old))
            }
            (Space::Shared, 4) => {
                let change = |old| (change(u64::from(u32::from_le_bytes(old))) as u32).to_le_bytes();
                Ok(u64::from(u32::from_le_bytes(self.shared.update(lane, address, change)?)))
            }
            (Space::Shared, _) => {
                let change = |old| (change(u64::from(u16::from_le_bytes(old))) as u16).to_le_bytes();
                Ok(u64::from(u16::from_le_bytes(self.shared.update(lane, address, change)?)))
            }
            (Space::Global | Space::Const | Space::Generic, _) => {
                let mut old = [0; 8];
                old[..bytes].copy_from_slice(self.launch.global.read(address, bytes)?);
                let old = u64::from_le_bytes(old);
                let new = change(old).to_le_bytes();
                self.launch.global.write(address, bytes)?.copy_from_slice(&new[..bytes]);
                Ok(old)
            }
            (Space::Local | Space::Param, _) => {
                Err(Box::new(FaultKind::BadOperand("an atomic operation on memory of one thread".to_owned())))
            }
        }
    }
}

fn read(file: &File, slot: Slot, bytes: usize) -> [u64; LANES] {
    if bytes == 8 { u64::read(file, slot) } else { u32::read(file, slot).map(u64::from) }
}

/// What memory holds afterwards.
fn changed(kind: AtomicKind, ty: Type, old: u64, a: u64, b: Option<u64>) -> u64 {
    match kind {
        AtomicKind::Add => sum(ty, old, a),
        AtomicKind::Minimum => {
            if less(ty, a, old) {
                a
            } else {
                old
            }
        }
        AtomicKind::Maximum => {
            if less(ty, old, a) {
                a
            } else {
                old
            }
        }
        AtomicKind::And => old & a,
        AtomicKind::Or => old | a,
        AtomicKind::ExclusiveOr => old ^ a,
        AtomicKind::Exchange => a,
        AtomicKind::CompareExchange => {
            if old == cut(ty, a) {
                b.unwrap_or(old)
            } else {
                old
            }
        }
        AtomicKind::Increment => {
            if old >= a {
                0
            } else {
                old + 1
            }
        }
        AtomicKind::Decrement => {
            if old == 0 || old > a {
                a
            } else {
                old - 1
            }
        }
    }
}

fn cut(ty: Type, bits: u64) -> u64 {
    match ty.bytes() {
        2 => bits & 0xffff,
        4 => bits & 0xffff_ffff,
        _ => bits,
    }
}

fn less(ty: Type, a: u64, b: u64) -> bool {
    match ty {
        Type::S32 => (a as i32) < b as i32,
        Type::S64 => (a as i64) < b as i64,
        _ => cut(ty, a) < cut(ty, b),
    }
}

fn sum(ty: Type, a: u64, b: u64) -> u64 {
    let f16 = |a: u64, b: u64| u64::from(f32_to_f16(f16_to_f32(a as u16) + f16_to_f32(b as u16)));
    let bf16 = |a: u64, b: u64| u64::from(f32_to_bf16(bf16_to_f32(a as u16) + bf16_to_f32(b as u16)));
    match ty {
        Type::F32 => u64::from((f32::from_bits(a as u32) + f32::from_bits(b as u32)).to_bits()),
        Type::F64 => (f64::from_bits(a) + f64::from_bits(b)).to_bits(),
        Type::F16 => f16(a, b),
        Type::F16x2 => f16(a, b) | f16(a >> 16, b >> 16) << 16,
        Type::Bf16 => bf16(a, b),
        Type::Bf16x2 => bf16(a, b) | bf16(a >> 16, b >> 16) << 16,
        _ => a.wrapping_add(b),
    }
}
