//! What the four warps of a group do together: `wgmma.mma_async` and its fences and waits.
//!
//! Each warp makes the 16 rows of its own. A product reads shared memory and writes its sums when it is waited for, not before; from its issue
//! until then its registers must not be used and what it reads must not be written, so that a wait that is missing or too short
//! shows. The four warps run the same instructions for groups in the same order; what some of them never come to is a fault.
//!
//! Sums are taken in f32 along the depth in order, which hardware does not promise.

use super::block::Executor;
use super::descriptor::Descriptor;
use super::half::{bf16_to_f32, f16_to_f32};
use super::lanes::{File, Lane, vectorised};
use super::matrix::whole_warp;
use super::warp::Warp;
use super::{Ran, throw};
use crate::code::{Group, GroupProduct, LANES, LeftFactor, Major, MatrixForm, Ordering, SLOT_WORDS, Slot};
use crate::fault::{Access, FaultKind};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

const DEPTH: usize = 16;
/// Rows of a product that a warp makes.
const ROWS: usize = 16;
/// Stands for all lanes, since none of them reads for itself.
const EVERY_LANE: u32 = 32;

/// A product that is under way.
#[derive(Clone, Debug)]
struct Pending {
    product: Arc<GroupProduct>,
    /// Where the frame's registers begin.
    registers: usize,
    left: u64,
    right: u64,
    adds: bool,
}

impl Pending {
    /// Where a register lies in all of the warp's.
    fn place(&self, slot: Slot) -> usize {
        self.registers + slot as usize * SLOT_WORDS
    }

    fn uses(&self, place: usize) -> bool {
        let left = match &self.product.left {
            LeftFactor::Registers(slots) => &slots[..],
            LeftFactor::Shared { .. } => &[],
        };
        self.product.sums.iter().chain(left).any(|slot| self.place(*slot) == place)
    }

    /// Whether this may follow a product under way: with the same sums, or with other registers.
    fn may_follow(&self, other: &Pending) -> bool {
        let sums = |pending: &Pending| pending.product.sums.iter().map(|slot| pending.place(*slot)).collect();
        let (own, others): (Vec<usize>, Vec<usize>) = (sums(self), sums(other));
        let left_is_free = match &self.product.left {
            LeftFactor::Registers(slots) => slots.iter().all(|slot| !others.contains(&self.place(*slot))),
            LeftFactor::Shared { .. } => true,
        };
        left_is_free && (own == others || !own.iter().any(|place| other.uses(*place)))
    }

    /// The chunks of shared memory that this warp of the group reads, the left factor's first.
    fn chunks(&self, warp: u32) -> Result<Vec<u64>, String> {
        let mut chunks = Vec::new();
        if let LeftFactor::Shared { major, .. } = self.product.left {
            chunks.extend(Descriptor::of(self.left)?.chunks(major, warp as usize % 4 * ROWS, ROWS));
        }
        chunks.extend(Descriptor::of(self.right)?.chunks(self.product.right_major, 0, self.product.columns));
        Ok(chunks)
    }
}

/// A warp's products under way, and what was done to registers since its last fence.
#[derive(Debug, Default)]
pub(super) struct Products {
    fenced: bool,
    touched: BTreeSet<usize>,
    /// Products that no group holds yet.
    open: Vec<Pending>,
    /// The oldest first.
    groups: VecDeque<Vec<Pending>>,
}

impl Products {
    fn under_way(&self) -> impl Iterator<Item = &Pending> {
        self.groups.iter().flatten().chain(&self.open)
    }
}

/// What warps of a group must agree on: the line of an instruction and its operands.
type Meeting = (u32, [u64; 3]);

/// For each group of four warps, which instructions for groups some of them have run and others not yet.
#[derive(Debug, Default)]
pub(super) struct Meetings {
    groups: [Group4; 8],
}

#[derive(Debug, Default)]
struct Group4 {
    /// Meetings to which some have come, with those.
    open: VecDeque<(Meeting, u32)>,
    /// Meetings that are over.
    done: usize,
    /// To how many each warp has come.
    met: [usize; 4],
}

impl Meetings {
    fn come(&mut self, warp: u32, meeting: Meeting) -> Result<(), FaultKind> {
        let group = &mut self.groups[warp as usize / 4 % 8];
        let member = warp as usize % 4;
        let index = group.met[member] - group.done;
        group.met[member] += 1;
        match group.open.get_mut(index) {
            Some((other, arrived)) if *other == meeting => *arrived |= 1 << member,
            Some(((line, _), arrived)) => {
                return Err(FaultKind::GroupDiffers { line: *line, arrived: *arrived });
            }
            None => group.open.push_back((meeting, 1 << member)),
        }
        while group.open.front().is_some_and(|(_, arrived)| *arrived == 0b1111) {
            group.open.pop_front();
            group.done += 1;
        }
        Ok(())
    }

    /// A warp that has run what others of its group have not.
    pub fn incomplete(&self) -> Option<(u32, FaultKind)> {
        self.groups.iter().enumerate().find_map(|(index, group)| {
            let ((line, _), arrived) = group.open.front()?;
            let warp = index as u32 * 4 + arrived.trailing_zeros();
            Some((warp, FaultKind::GroupDiffers { line: *line, arrived: *arrived }))
        })
    }
}

impl Executor<'_> {
    pub fn group(&mut self, warp: &mut Warp, line: u32, mask: u32, operation: &Group) -> Ran<()> {
        match operation {
            Group::Publish => {
                if mask == warp.alive() {
                    self.shared.publish(warp.index);
                }
                self.shared.publish_barriers(warp.index, mask);
                return Ok(());
            }
            Group::Touch(slots) => return touch(warp, mask, slots),
            Group::Fence | Group::Commit | Group::Wait { .. } | Group::Product(_) | Group::Registers => {}
        }
        let opcode = if matches!(operation, Group::Registers) { "setmaxnreg" } else { "wgmma" };
        whole_warp(opcode, mask)?;
        match operation {
            Group::Fence => {
                self.come(warp, (line, [0; 3]))?;
                warp.products.fenced = true;
                warp.products.touched.clear();
            }
            Group::Commit => {
                self.come(warp, (line, [0; 3]))?;
                let group = std::mem::take(&mut warp.products.open);
                warp.products.groups.push_back(group);
            }
            Group::Wait { left } => {
                self.come(warp, (line, [0; 3]))?;
                while warp.products.groups.len() > *left as usize {
                    for pending in warp.products.groups.pop_front().into_iter().flatten() {
                        self.end_product(warp, line, &pending)?;
                    }
                }
            }
            Group::Product(product) => self.begin_product(warp, line, product)?,
            Group::Registers => self.come(warp, (line, [0; 3]))?,
            Group::Publish | Group::Touch(_) => {}
        }
        Ok(())
    }

    fn come(&mut self, warp: &Warp, meeting: Meeting) -> Ran<()> {
        self.meetings.come(warp.index, meeting).or_else(|kind| throw(1, kind))
    }

    fn begin_product(&mut self, warp: &mut Warp, line: u32, product: &Arc<GroupProduct>) -> Ran<()> {
        let left = match product.left {
            LeftFactor::Shared { descriptor, .. } => descriptor_of(warp, descriptor)?,
            LeftFactor::Registers(_) => 0,
        };
        let right = descriptor_of(warp, product.right)?;
        let adds = match warp.predicate(product.adds) {
            0 => false,
            u32::MAX => true,
            some => {
                let kind = FaultKind::BadOperand("a `wgmma` that lanes don't agree to add".to_owned());
                return throw(some, kind);
            }
        };
        self.come(warp, (line, [left, right, u64::from(adds)]))?;
        let registers = warp.frames.last().map_or(0, |frame| frame.registers);
        let pending = Pending { product: Arc::clone(product), registers, left, right, adds };
        let products = &warp.products;
        if !products.fenced || products.touched.iter().any(|place| pending.uses(*place)) {
            return throw(1, FaultKind::RegistersNotFenced);
        }
        if products.under_way().any(|other| !pending.may_follow(other)) {
            return throw(1, FaultKind::ProductNotAwaited);
        }
        self.shared.begin(warp.index, line, Access::Read, Ordering::Weak);
        for chunk in pending.chunks(warp.index).or_else(|reason| throw(1, FaultKind::BadOperand(reason)))? {
            self.shared.begin_product_read(EVERY_LANE, chunk).or_else(|kind| throw(1, kind))?;
        }
        warp.products.open.push(pending);
        Ok(())
    }

    /// The product takes place.
    fn end_product(&mut self, warp: &mut Warp, line: u32, pending: &Pending) -> Ran<()> {
        let product = &*pending.product;
        self.shared.begin(warp.index, line, Access::Read, Ordering::Weak);
        let mut numbers = Vec::new();
        for chunk in pending.chunks(warp.index).or_else(|reason| throw(1, FaultKind::BadOperand(reason)))? {
            let bytes = self.shared.end_product_read(EVERY_LANE, chunk).or_else(|kind| throw(1, kind))?;
            numbers.extend(
                bytes.as_chunks::<2>().0.iter().map(|half| number(product.form, u16::from_le_bytes(*half))),
            );
        }
        let file = &mut warp.registers[pending.registers..];
        let of_left = if matches!(product.left, LeftFactor::Shared { .. }) { ROWS * DEPTH } else { 0 };
        let mut left = match &product.left {
            LeftFactor::Shared { major, .. } => matrix(*major, &numbers[..of_left], ROWS),
            LeftFactor::Registers(slots) => left_of_registers(file, product.form, slots),
        };
        if product.negated {
            left.iter_mut().for_each(|number| *number = -*number);
        }
        let right = matrix(product.right_major, &numbers[of_left..], product.columns);
        multiply(self.launch.isa, file, product, &left, &right, pending.adds);
        Ok(())
    }
}

fn touch(warp: &mut Warp, mask: u32, slots: &[Slot]) -> Ran<()> {
    let registers = warp.frames.last().map_or(0, |frame| frame.registers);
    for slot in slots {
        let place = registers + *slot as usize * SLOT_WORDS;
        if warp.products.under_way().any(|pending| pending.uses(place)) {
            return throw(mask, FaultKind::ProductNotAwaited);
        }
        warp.products.touched.insert(place);
    }
    Ok(())
}

/// A descriptor, which must be the same in all lanes.
fn descriptor_of(warp: &mut Warp, slot: Slot) -> Ran<u64> {
    let lanes = u64::read(warp.file(), slot);
    match lanes.iter().position(|lane| *lane != lanes[0]) {
        None => Ok(lanes[0]),
        Some(lane) => {
            let reason = "a matrix descriptor that is not the same in all lanes";
            throw(1 << lane, FaultKind::BadOperand(reason.to_owned()))
        }
    }
}

fn number(form: MatrixForm, bits: u16) -> f32 {
    if form == MatrixForm::F16 { f16_to_f32(bits) } else { bf16_to_f32(bits) }
}

/// A factor, term by term, from the numbers of its chunks.
fn matrix(major: Major, numbers: &[f32], lines: usize) -> Vec<f32> {
    let mut result = vec![0.0; lines * DEPTH];
    for (index, number) in numbers.iter().enumerate() {
        let (chunk, inside) = (index / 8, index % 8);
        let (line, term) = match major {
            Major::Terms => (chunk / 2, chunk % 2 * 8 + inside),
            Major::Lines => (chunk / DEPTH * 8 + inside, chunk % DEPTH),
        };
        result[term * lines + line] = *number;
    }
    result
}

/// The left factor, term by term, from four registers of two numbers each, which lie as for `mma` of m16k16.
fn left_of_registers(file: &File, form: MatrixForm, slots: &[Slot]) -> Vec<f32> {
    let mut result = vec![0.0; ROWS * DEPTH];
    for (register, slot) in slots.iter().enumerate() {
        for (lane, word) in u32::read(file, *slot).iter().enumerate() {
            let (row, term) = (lane / 4 + 8 * (register % 2), register / 2 * 8 + lane % 4 * 2);
            result[term * ROWS + row] = number(form, *word as u16);
            result[(term + 1) * ROWS + row] = number(form, (*word >> 16) as u16);
        }
    }
    result
}

/// Row and column of a lane's number in a register of the sums.
fn place_of_sum(register: usize, lane: usize) -> (usize, usize) {
    (lane / 4 + register / 2 % 2 * 8, register / 4 * 8 + lane % 4 * 2 + register % 2)
}

vectorised! {
    /// Adds a warp's 16 rows of a product to its sums.
    fn multiply(file: &mut File, product: &GroupProduct, left: &[f32], right: &[f32], adds: bool) {
        let columns = product.columns;
        let mut sums = vec![0.0; ROWS * columns];
        if adds {
            for (register, slot) in product.sums.iter().enumerate() {
                for (lane, word) in u32::read(file, *slot).iter().enumerate() {
                    let (row, column) = place_of_sum(register, lane);
                    sums[row * columns + column] = f32::from_bits(*word);
                }
            }
        }
        for (left, right) in left.chunks_exact(ROWS).zip(right.chunks_exact(columns)) {
            for (factor, sums) in left.iter().zip(sums.chunks_exact_mut(columns)) {
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = factor.mul_add(*right, *sum);
                }
            }
        }
        for (register, slot) in product.sums.iter().enumerate() {
            let mut words = [0; LANES];
            for (lane, word) in words.iter_mut().enumerate() {
                let (row, column) = place_of_sum(register, lane);
                *word = sums[row * columns + column].to_bits();
            }
            u32::write(file, *slot, &words, u32::MAX);
        }
    }
}
