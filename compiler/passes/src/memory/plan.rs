//! Walks the regions of a program, gives every stored value a storage, and packs storages into blocks.

use super::in_place::may_overwrite;
use super::liveness::{Liveness, aliases};
use super::pack::{Item, aligned, pack};
use crate::uses::captures;
use cranelift_entity::{PrimaryMap, SecondaryMap, entity_impl};
use dtlc_ir::memory::{MemoryPlan, Place, Space, Write};
use dtlc_ir::{Inst, Op, Program, Region, Scan, ScanOutput, Value};
use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

/// A piece of memory that one or more values are stored in.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct StorageId(u32);
entity_impl!(StorageId, "storage");

/// The part of the arena that a region has for itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Block(u32);
entity_impl!(Block, "block");

enum Home {
    /// A fixed offset in a space that isn't planned.
    Fixed(Space),
    /// A block of the arena, and the positions in its region between which it is in use.
    Block { block: Block, first: usize, last: usize },
}

struct Storage {
    home: Home,
    bytes: u64,
    /// In its space or block.
    offset: u64,
    value: Value,
}

#[derive(Default)]
struct BlockInfo {
    /// The block it lies in with the position of its loop; none for the main region.
    parent: Option<(Block, usize)>,
    /// In the parent.
    offset: u64,
    bytes: u64,
}

/// Where a value lies, in terms of a storage.
#[derive(Clone, PartialEq)]
struct Slot {
    storage: StorageId,
    offset: u64,
    strides: SmallVec<[(u32, u64); 2]>,
    write: Write,
}

/// Where a region should store what it yields, if it can.
enum Destination {
    /// In place of this parameter, once nobody reads it.
    Over(Value),
    /// There, in any case.
    At(Slot),
    /// Wherever it is.
    Anywhere,
}

struct Planner<'a> {
    program: &'a Program,
    storages: PrimaryMap<StorageId, Storage>,
    blocks: PrimaryMap<Block, BlockInfo>,
    slots: SecondaryMap<Value, Option<Slot>>,
}

/// The region that is being planned.
struct Frame<'a> {
    region: &'a Region,
    liveness: Liveness,
    block: Block,
    depth: u32,
    /// For the value that defines a yield, where it should go.
    destinations: FxHashMap<Value, Destination>,
}

/// See [`super::plan_memory`].
pub(super) fn plan(program: &Program) -> MemoryPlan {
    let mut planner = Planner {
        program,
        storages: PrimaryMap::new(),
        blocks: PrimaryMap::new(),
        slots: SecondaryMap::new(),
    };
    let main = planner.blocks.push(BlockInfo::default());
    let state_bytes = planner.fix(program.states.iter().map(|state| state.value), Space::State);
    let input_bytes = planner.fix(program.inputs.iter().map(|input| input.value), Space::Input);
    let destinations = program.main.yields.iter().map(|_| Destination::Anywhere).collect::<Vec<_>>();
    let destinations = planner.state_destinations(destinations);
    planner.region(&program.main, main, 0, destinations);
    planner.finish(main, state_bytes, input_bytes)
}

impl<'a> Planner<'a> {
    /// Lays values end to end in a space of their own; returns its size.
    fn fix(&mut self, values: impl Iterator<Item = Value>, space: Space) -> u64 {
        let mut offset = 0;
        for value in values {
            let bytes = self.bytes(value);
            let storage = self.storages.push(Storage { home: Home::Fixed(space), bytes, offset, value });
            self.slots[value] = Some(whole(storage));
            offset += aligned(bytes);
        }
        offset
    }

    fn state_destinations(&self, mut destinations: Vec<Destination>) -> Vec<Destination> {
        for state in &self.program.states {
            let position = self.program.main.yields.iter().position(|&value| Some(value) == state.updated);
            if let Some(position) = position {
                destinations[position] = Destination::Over(state.value);
            }
        }
        destinations
    }

    fn bytes(&self, value: Value) -> u64 {
        self.program.ty(value).local_bytes(self.program)
    }

    /// Plans a region whose parameters have their slots already.
    fn region(&mut self, region: &'a Region, block: Block, depth: u32, destinations: Vec<Destination>) {
        let mut roots: FxHashMap<Value, Value> = FxHashMap::default();
        for (alias, of) in region.insts.iter().flat_map(aliases) {
            let root = roots.get(&of).copied().unwrap_or(of);
            roots.insert(alias, root);
        }
        let root = |value: &Value| roots.get(value).copied().unwrap_or(*value);
        let destinations = region.yields.iter().map(root).zip(destinations).collect();
        let mut frame = Frame { region, liveness: Liveness::of(region), block, depth, destinations };
        for (position, inst) in region.insts.iter().enumerate() {
            self.instruction(&mut frame, position, inst);
        }
        self.close(&frame);
    }

    fn instruction(&mut self, frame: &mut Frame<'a>, position: usize, inst: &'a Inst) {
        match &inst.op {
            Op::Scan(scan) => self.scan(frame, position, inst, scan),
            _ if aliases(inst).next().is_some() => {
                aliases(inst).for_each(|(alias, of)| self.slots[alias] = self.slots[of].clone());
            }
            _ => {
                let mut taken: SmallVec<[Value; 2]> = SmallVec::new();
                for number in 0..inst.results.len() {
                    self.result(frame, position, inst, number, &mut taken);
                }
                match &inst.op {
                    Op::Collective(_) => self.keep_sources(frame, position, inst),
                    Op::Fused(body) => self.product_of_kernel(frame, position, inst, body),
                    _ => {}
                }
            }
        }
    }

    /// Where the results of the product that a kernel begins with are put until the rest goes on with them, if they are: as that is
    /// yielded, else where a yield like them goes, which nothing that the kernel reads may share, else in a place of the instruction's
    /// own.
    fn product_of_kernel(&mut self, frame: &Frame<'a>, position: usize, inst: &Inst, body: &Region) {
        let Some(product) = body.product() else { return };
        let product = product.results[0];
        let storage = |value: &Value| self.slots[*value].as_ref().map(|slot| slot.storage);
        let is_free = |result: &Value| inst.args.iter().all(|arg| storage(arg) != storage(result));
        let yields = || body.yields.iter().zip(&inst.results);
        let yielded = yields().find(|(inner, _)| **inner == product);
        let alike = |inner: Value| {
            let (one, other) = (self.program.ty(inner), self.program.ty(product));
            one.dtype == other.dtype && one.dims == other.dims && self.bytes(inner) == self.bytes(product)
        };
        let place = yielded.or_else(|| yields().find(|(inner, result)| alike(**inner) && is_free(result)));
        self.slots[product] = match place {
            Some((_, &result)) => self.slots[result].clone(),
            None => Some(whole(self.new_storage(frame.block, product, position, position))),
        };
    }

    /// A collective reads its arguments until it is done.
    fn keep_sources(&mut self, frame: &Frame<'a>, position: usize, inst: &Inst) {
        let later = frame.region.insts[position..].iter();
        let done =
            later.take_while(|other| other.op != Op::Done || other.args[..] != inst.results[..]).count();
        for arg in &inst.args {
            if let Some(slot) = &self.slots[*arg] {
                self.extend(slot.storage, frame.block, position + done);
            }
        }
    }

    /// Gives the result of an instruction that is no loop its slot.
    fn result(
        &mut self,
        frame: &mut Frame<'a>,
        position: usize,
        inst: &Inst,
        number: usize,
        taken: &mut SmallVec<[Value; 2]>,
    ) {
        let result = inst.results[number];
        let slot = match frame.destinations.get(&result) {
            Some(Destination::At(slot)) => Some(slot.clone()),
            Some(&Destination::Over(param))
                if self.is_free_for(frame, position, inst, number, param, taken) =>
            {
                taken.push(param);
                self.slots[param].clone()
            }
            Some(Destination::Over(_) | Destination::Anywhere) | None => {
                self.reusable_argument(frame, position, inst, number, taken).map(|arg| {
                    taken.push(arg);
                    whole(self.slots[arg].as_ref().map_or(StorageId(0), |slot| slot.storage))
                })
            }
        };
        let until = frame.liveness.last_use(result).unwrap_or(position);
        self.slots[result] = Some(match slot {
            Some(slot) => {
                self.extend(slot.storage, frame.block, until);
                slot
            }
            None => whole(self.new_storage(frame.block, result, position, until)),
        });
    }

    /// Whether the parameter that a yield should replace is no longer needed.
    fn is_free_for(
        &self,
        frame: &Frame<'a>,
        position: usize,
        inst: &Inst,
        number: usize,
        param: Value,
        taken: &[Value],
    ) -> bool {
        match frame.liveness.last_use(param) {
            None => true,
            Some(last) if last < position => true,
            Some(last) => {
                last == position
                    && !taken.contains(&param)
                    && self.is_only_reader(inst, param)
                    && may_overwrite(self.program, inst, param, number)
            }
        }
    }

    /// Whether `arg` is an argument, and no other argument lies in the same memory.
    fn is_only_reader(&self, inst: &Inst, arg: Value) -> bool {
        let storage = |value: Value| self.slots[value].as_ref().map(|slot| slot.storage);
        inst.args.contains(&arg)
            && inst.args.iter().filter(|&&other| storage(other) == storage(arg)).count() == 1
    }

    /// An argument that dies here and whose storage the result may take over.
    fn reusable_argument(
        &self,
        frame: &Frame<'a>,
        position: usize,
        inst: &Inst,
        number: usize,
        taken: &[Value],
    ) -> Option<Value> {
        inst.args.iter().copied().find(|&arg| {
            let dies = frame.liveness.last_use(arg) == Some(position) && !taken.contains(&arg);
            dies && self.is_own_whole_storage(frame.block, arg, position)
                && self.is_only_reader(inst, arg)
                && may_overwrite(self.program, inst, arg, number)
        })
    }

    /// Whether a value has a storage of this region for itself that nobody needs after `position`.
    fn is_own_whole_storage(&self, block: Block, value: Value, position: usize) -> bool {
        let Some(slot) = &self.slots[value] else { return false };
        let storage = &self.storages[slot.storage];
        let ours = match storage.home {
            Home::Block { block: home, last, .. } => home == block && last <= position,
            Home::Fixed(_) => false,
        };
        ours && *slot == whole(slot.storage) && storage.bytes == self.bytes(value)
    }

    fn scan(&mut self, frame: &mut Frame<'a>, position: usize, inst: &'a Inst, scan: &'a Scan) {
        let block =
            self.blocks.push(BlockInfo { parent: Some((frame.block, position)), ..BlockInfo::default() });
        let captured = captures(&scan.body);
        let mut destinations = Vec::new();
        for carry in 0..scan.carries {
            let slot = self.looped(frame, position, inst, carry, carry, &captured);
            self.slots[scan.body.params[carry]] = Some(slot);
            destinations.push(Destination::Over(scan.body.params[carry]));
        }
        for stack in 0..scan.stacks {
            let param = scan.body.params[scan.carries + stack];
            let slot = self.slots[inst.args[scan.carries + stack]].clone();
            self.slots[param] = slot.map(|slot| self.slice(slot, frame.depth, param, Write::Replace));
        }
        let mut accumulated = scan.carries + scan.stacks;
        for (number, output) in scan.outputs.iter().enumerate() {
            let result = scan.carries + number;
            let yielded = scan.body.yields[result];
            let slot = if output.has_initial() {
                accumulated += 1;
                self.looped(frame, position, inst, result, accumulated - 1, &captured)
            } else {
                self.fresh_result(frame, position, inst.results[result])
            };
            destinations.push(Destination::At(match output {
                ScanOutput::Stack => self.slice(slot, frame.depth, yielded, Write::Replace),
                ScanOutput::Accumulate => self.slice(slot, frame.depth, yielded, Write::Accumulate),
                ScanOutput::Sum => Slot { write: Write::Accumulate, ..slot },
            }));
        }
        self.region(&scan.body, block, frame.depth + 1, destinations);
    }

    /// The slot of a result that starts as an argument: the argument's own where it may be overwritten.
    fn looped(
        &mut self,
        frame: &mut Frame<'a>,
        position: usize,
        inst: &Inst,
        result: usize,
        arg: usize,
        captured: &[Value],
    ) -> Slot {
        let (result, arg) = (inst.results[result], inst.args[arg]);
        let only_use = frame.liveness.uses_at(arg, position) == 1 && !captured.contains(&arg);
        let dies = frame.liveness.last_use(arg) == Some(position) && only_use;
        let over = match frame.destinations.get(&result) {
            Some(&Destination::Over(param)) => match frame.liveness.last_use(param) {
                Some(last) => last < position || (last == position && param == arg && only_use),
                None => true,
            }
            .then_some(param),
            Some(Destination::At(_) | Destination::Anywhere) | None => None,
        };
        let slot = match (over, frame.destinations.get(&result)) {
            (Some(param), _) => self.slots[param].clone(),
            (None, Some(Destination::At(slot))) => Some(Slot { write: Write::Replace, ..slot.clone() }),
            (None, _) if dies && self.is_own_whole_storage(frame.block, arg, position) => {
                self.slots[arg].clone()
            }
            (None, _) => None,
        };
        let until = frame.liveness.last_use(result).unwrap_or(position);
        let slot = match slot {
            Some(slot) => {
                self.extend(slot.storage, frame.block, until);
                slot
            }
            None => whole(self.new_storage(frame.block, result, position, until)),
        };
        self.slots[result] = Some(slot.clone());
        slot
    }

    fn fresh_result(&mut self, frame: &mut Frame<'a>, position: usize, result: Value) -> Slot {
        let until = frame.liveness.last_use(result).unwrap_or(position);
        let slot = match frame.destinations.get(&result) {
            Some(Destination::At(slot)) => Slot { write: Write::Replace, ..slot.clone() },
            _ => whole(self.new_storage(frame.block, result, position, until)),
        };
        self.slots[result] = Some(slot.clone());
        slot
    }

    /// The part of a stack that belongs to one iteration of a loop at `depth`.
    fn slice(&self, mut slot: Slot, depth: u32, element: Value, write: Write) -> Slot {
        slot.strides.push((depth, self.bytes(element)));
        slot.write = write;
        slot
    }

    fn new_storage(&mut self, block: Block, value: Value, first: usize, last: usize) -> StorageId {
        let home = Home::Block { block, first, last: last.max(first) };
        self.storages.push(Storage { home, bytes: self.bytes(value), offset: 0, value })
    }

    /// Keeps a storage of this block alive until `until`.
    fn extend(&mut self, storage: StorageId, block: Block, until: usize) {
        if let Home::Block { block: home, last, .. } = &mut self.storages[storage].home
            && *home == block
        {
            *last = (*last).max(until);
        }
    }

    /// Packs what lives in a region's block, and gives the block its size.
    fn close(&mut self, frame: &Frame<'a>) {
        let mut items = Vec::new();
        let mut storages = Vec::new();
        let mut blocks = Vec::new();
        for (id, storage) in &self.storages {
            if let Home::Block { block, first, last } = storage.home
                && block == frame.block
            {
                items.push(Item { bytes: storage.bytes, first, last });
                storages.push(id);
            }
        }
        for (id, info) in &self.blocks {
            if let Some((parent, position)) = info.parent
                && parent == frame.block
            {
                items.push(Item { bytes: info.bytes, first: position, last: position });
                blocks.push(id);
            }
        }
        let (offsets, bytes) = pack(&items);
        for (&id, &offset) in storages.iter().zip(&offsets) {
            self.storages[id].offset = offset;
        }
        for (&id, &offset) in blocks.iter().zip(&offsets[storages.len()..]) {
            self.blocks[id].offset = offset;
        }
        self.blocks[frame.block].bytes = bytes;
        debug_assert!(frame.region.yields.iter().all(|&value| self.slots[value].is_some()));
    }

    fn finish(self, main: Block, state_bytes: u64, input_bytes: u64) -> MemoryPlan {
        let mut places = SecondaryMap::new();
        for value in self.program.values.keys() {
            if let Some(slot) = &self.slots[value] {
                places[value] = Some(self.resolve(slot, self.bytes(value)));
            }
        }
        MemoryPlan {
            state_bytes,
            arena_bytes: self.blocks[main].bytes,
            input_bytes,
            places,
            peak: self.peak(main),
        }
    }

    fn resolve(&self, slot: &Slot, bytes: u64) -> Place {
        let storage = &self.storages[slot.storage];
        let (space, base) = match storage.home {
            Home::Fixed(space) => (space, 0),
            Home::Block { block, .. } => (Space::Arena, self.block_start(block)),
        };
        let offset = base + storage.offset + slot.offset;
        Place { space, offset, bytes, strides: slot.strides.clone(), write: slot.write }
    }

    fn block_start(&self, block: Block) -> u64 {
        let info = &self.blocks[block];
        info.offset + info.parent.map_or(0, |(parent, _)| self.block_start(parent))
    }

    /// What is alive at the position where most is.
    fn peak(&self, main: Block) -> Vec<Value> {
        let (_, mut alive) = self.fullest(main);
        let key = |id: &StorageId| (std::cmp::Reverse(self.storages[*id].bytes), self.storages[*id].value);
        alive.sort_by_key(key);
        alive.iter().map(|&id| self.storages[id].value).collect()
    }

    fn fullest(&self, block: Block) -> (u64, Vec<StorageId>) {
        let mut at: std::collections::BTreeMap<usize, (u64, Vec<StorageId>)> = Default::default();
        for (_, storage) in &self.storages {
            if let Home::Block { block: home, first, .. } = storage.home
                && home == block
            {
                at.entry(first).or_default();
            }
        }
        for (id, info) in &self.blocks {
            if let Some((parent, position)) = info.parent
                && parent == block
            {
                at.insert(position, self.fullest(id));
            }
        }
        for (id, storage) in &self.storages {
            if let Home::Block { block: home, first, last } = storage.home
                && home == block
            {
                for (_, (bytes, alive)) in at.range_mut(first..=last) {
                    *bytes += storage.bytes;
                    alive.push(id);
                }
            }
        }
        at.into_values().max_by_key(|(bytes, _)| *bytes).unwrap_or_default()
    }
}

fn whole(storage: StorageId) -> Slot {
    Slot { storage, offset: 0, strides: smallvec![], write: Write::Replace }
}
