//! Matrix instructions: fragments in registers to matrices and back, `mma.sync`, `ldmatrix`, `stmatrix`, `movmatrix`.
//!
//! Where an element lies follows PTX's tables: in a group of four lanes that share a row, register `r` of A holds row
//! `group + 8 * (r % 2)` and the columns of chunk `r / 2`; B has columns for groups and chunks of rows. Sums are taken in f32 along the depth
//! in order, which hardware does not promise.

use super::block::Executor;
use super::half::{bf16_to_f32, f16_to_f32, f32_to_f16};
use super::lanes::{File, Lane, vectorised};
use super::warp::Warp;
use super::{Ran, throw};
use crate::code::{AddressBase, LANES, MatrixForm, MatrixProduct, Ordering, Slot};
use crate::fault::{Access, FaultKind};
use crate::ptx::Space;

/// The greatest depth of an instruction.
const DEPTH: usize = 32;

type MatrixA = [[f32; DEPTH]; 16];
type MatrixB = [[f32; 8]; DEPTH];

vectorised! {
    /// `mma.sync`: a matrix of 16 by 8.
    fn multiply(file: &mut File, p: &MatrixProduct) {
        if matches!(p.form, MatrixForm::S8 | MatrixForm::U8) {
            return multiply_integers(file, p);
        }
        let mut a: MatrixA = [[0.0; DEPTH]; 16];
        let mut b: MatrixB = [[0.0; 8]; DEPTH];
        gather(file, p, &mut a, &mut b);
        let mut sums = read_sums(file, p);
        for (row, sums) in a.iter().zip(&mut sums) {
            let mut row_sums = *sums;
            for (a, b) in row.iter().zip(&b).take(p.depth as usize) {
                for (sum, b) in row_sums.iter_mut().zip(b) {
                    *sum = a.mul_add(*b, *sum);
                }
            }
            *sums = row_sums;
        }
        write_sums(file, p, &sums);
    }
}

/// Elements that a register holds.
fn packed(form: MatrixForm) -> usize {
    match form {
        MatrixForm::F16 | MatrixForm::Bf16 | MatrixForm::F16Sum => 2,
        MatrixForm::Tf32 => 1,
        MatrixForm::S8 | MatrixForm::U8 => 4,
    }
}

#[inline(always)]
fn element(form: MatrixForm, word: u32, index: usize) -> f32 {
    match form {
        MatrixForm::F16 | MatrixForm::F16Sum => f16_to_f32((word >> (16 * index)) as u16),
        MatrixForm::Bf16 => bf16_to_f32((word >> (16 * index)) as u16),
        // Hardware does not look at the last bits.
        MatrixForm::Tf32 => f32::from_bits(word & !0x1fff),
        MatrixForm::S8 => f32::from((word >> (8 * index)) as i8),
        MatrixForm::U8 => f32::from((word >> (8 * index)) as u8),
    }
}

#[inline(always)]
fn gather(file: &File, p: &MatrixProduct, a: &mut MatrixA, b: &mut MatrixB) {
    let packed = packed(p.form);
    for (register, slot) in p.a.iter().enumerate() {
        let words = u32::read(file, *slot);
        for (lane, word) in words.iter().enumerate() {
            let row = lane / 4 + 8 * (register % 2);
            let column = (register / 2 * 4 + lane % 4) * packed;
            for index in 0..packed {
                a[row][column + index] = element(p.form, *word, index);
            }
        }
    }
    for (register, slot) in p.b.iter().enumerate() {
        let words = u32::read(file, *slot);
        for (lane, word) in words.iter().enumerate() {
            let row = (register * 4 + lane % 4) * packed;
            for index in 0..packed {
                b[row + index][lane / 4] = element(p.form, *word, index);
            }
        }
    }
}

#[inline(always)]
fn read_sums(file: &File, p: &MatrixProduct) -> [[f32; 8]; 16] {
    let mut sums = [[0.0; 8]; 16];
    for (register, slot) in p.c.iter().enumerate() {
        let words = u32::read(file, *slot);
        for (lane, word) in words.iter().enumerate() {
            let column = lane % 4 * 2;
            if p.form == MatrixForm::F16Sum {
                let row = &mut sums[lane / 4 + 8 * register];
                row[column] = f16_to_f32(*word as u16);
                row[column + 1] = f16_to_f32((word >> 16) as u16);
            } else {
                sums[lane / 4 + 8 * (register / 2)][column + register % 2] = f32::from_bits(*word);
            }
        }
    }
    sums
}

#[inline(always)]
fn write_sums(file: &mut File, p: &MatrixProduct, sums: &[[f32; 8]; 16]) {
    for (register, slot) in p.d.iter().enumerate() {
        let mut words = [0; LANES];
        for (lane, word) in words.iter_mut().enumerate() {
            let column = lane % 4 * 2;
            *word = if p.form == MatrixForm::F16Sum {
                let row = &sums[lane / 4 + 8 * register];
                u32::from(f32_to_f16(row[column])) | u32::from(f32_to_f16(row[column + 1])) << 16
            } else {
                sums[lane / 4 + 8 * (register / 2)][column + register % 2].to_bits()
            };
        }
        u32::write(file, *slot, &words, u32::MAX);
    }
}

/// Products of bytes fit f32 exactly; their sums are taken as integers.
fn multiply_integers(file: &mut File, p: &MatrixProduct) {
    let mut a: MatrixA = [[0.0; DEPTH]; 16];
    let mut b: MatrixB = [[0.0; 8]; DEPTH];
    gather(file, p, &mut a, &mut b);
    let sources: Vec<[i32; LANES]> = p.c.iter().map(|slot| i32::read(file, *slot)).collect();
    for (register, (slot, source)) in p.d.iter().zip(&sources).enumerate() {
        let mut words = *source;
        for (lane, word) in words.iter_mut().enumerate() {
            let (row, column) = (lane / 4 + 8 * (register / 2), lane % 4 * 2 + register % 2);
            for depth in 0..p.depth as usize {
                *word = word.wrapping_add((a[row][depth] * b[depth][column]) as i32);
            }
        }
        i32::write(file, *slot, &words, u32::MAX);
    }
}

/// `movmatrix`: each lane holds two elements of a row.
pub(super) fn transpose(file: &mut File, to: Slot, from: Slot) {
    let words = u32::read(file, from);
    let element = |row: usize, column: usize| words[row * 4 + column / 2] >> (16 * (column % 2)) & 0xffff;
    let mut result = [0; LANES];
    for (lane, word) in result.iter_mut().enumerate() {
        let (row, column) = (lane / 4, lane % 4 * 2);
        *word = element(column, row) | element(column + 1, row) << 16;
    }
    u32::write(file, to, &result, u32::MAX);
}

/// All 32 lanes must run an instruction on matrices.
pub(super) fn whole_warp(opcode: &'static str, mask: u32) -> Ran<()> {
    if mask == u32::MAX {
        return Ok(());
    }
    throw(mask, FaultKind::DivergentLanes { opcode, named: u32::MAX, running: mask })
}

/// Stands for all lanes at once where one lane gives the address and others take the bytes.
const EVERY_LANE: u32 = 32;

impl Executor<'_> {
    /// The row addresses of so many matrices, one a lane.
    fn rows(&mut self, warp: &mut Warp, base: AddressBase, offset: i64, count: usize) -> Ran<Vec<u64>> {
        let addresses = super::access::addresses(warp.file(), base, offset);
        for (lane, address) in addresses.iter().enumerate().take(8 * count) {
            if address % 16 != 0 {
                let kind = FaultKind::Misaligned { space: Space::Shared, address: *address, align: 16 };
                return throw(1 << lane, kind);
            }
        }
        Ok(addresses[..8 * count].to_vec())
    }

    pub fn load_matrix(
        &mut self,
        warp: &mut Warp,
        line: u32,
        to: &[Slot],
        transposed: bool,
        (base, offset): (AddressBase, i64),
    ) -> Ran<()> {
        let rows = self.rows(warp, base, offset, to.len())?;
        self.shared.begin(warp.index, line, Access::Read, Ordering::Weak);
        for (matrix, slot) in to.iter().enumerate() {
            let mut elements = [[0_u16; 8]; 8];
            for (row, elements) in elements.iter_mut().enumerate() {
                let lane = matrix * 8 + row;
                match self.shared.read(EVERY_LANE, rows[lane], 16) {
                    Ok(bytes) => bytemuck::cast_slice_mut::<u16, u8>(elements).copy_from_slice(bytes),
                    Err(kind) => return throw(1 << lane, kind),
                }
            }
            let mut words = [0; LANES];
            for (lane, word) in words.iter_mut().enumerate() {
                let (row, column) = (lane / 4, lane % 4 * 2);
                let pair = if transposed {
                    [elements[column][row], elements[column + 1][row]]
                } else {
                    [elements[row][column], elements[row][column + 1]]
                };
                *word = u32::from(pair[0]) | u32::from(pair[1]) << 16;
            }
            u32::write(warp.file(), *slot, &words, u32::MAX);
        }
        Ok(())
    }

    pub fn store_matrix(
        &mut self,
        warp: &mut Warp,
        line: u32,
        from: &[Slot],
        transposed: bool,
        (base, offset): (AddressBase, i64),
    ) -> Ran<()> {
        let rows = self.rows(warp, base, offset, from.len())?;
        self.shared.begin(warp.index, line, Access::Write, Ordering::Weak);
        for (matrix, slot) in from.iter().enumerate() {
            let words = u32::read(warp.file(), *slot);
            let mut elements = [[0_u16; 8]; 8];
            for (lane, word) in words.iter().enumerate() {
                let (row, column) = (lane / 4, lane % 4 * 2);
                for (index, half) in [*word as u16, (word >> 16) as u16].into_iter().enumerate() {
                    if transposed {
                        elements[column + index][row] = half;
                    } else {
                        elements[row][column + index] = half;
                    }
                }
            }
            for (row, elements) in elements.iter().enumerate() {
                let lane = matrix * 8 + row;
                let bytes: &[u8] = bytemuck::cast_slice(elements);
                if let Err(kind) = self.shared.write(lane as u32, rows[lane], bytes) {
                    return throw(1 << lane, kind);
                }
            }
        }
        Ok(())
    }
}
