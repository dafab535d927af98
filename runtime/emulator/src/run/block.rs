//! A launch: its blocks one after another, and the warps of each in turn until all have ended, wait for ever, or do wrong.

use super::group::Meetings;
use super::lanes::Isa;
use super::warp::{Status, Warp};
use super::{Ran, Thrown};
use crate::code::{Code, LANES, Program, SLOT_WORDS, SharedRegion, Special};
use crate::driver::LaunchShape;
use crate::fault::{FaultKind, LaunchFault};
use crate::memory::{GlobalMemory, RaceCheck, SharedMemory};

/// Instructions that a warp runs before the next has its turn.
const TURN: u64 = 1 << 14;

/// Everything that a launch is given.
pub(crate) struct Launch<'a> {
    pub program: &'a Program,
    pub kernel: usize,
    pub shape: LaunchShape,
    /// The arguments, as the kernel's parameters lie.
    pub params: &'a [u8],
    pub global: &'a mut GlobalMemory,
    pub isa: Isa,
    /// The most instructions of warps that may run.
    pub budget: u64,
    pub races: RaceCheck,
}

/// A launch as it runs.
pub(super) struct Executor<'a> {
    pub launch: Launch<'a>,
    pub shared: SharedMemory,
    pub block: [u32; 3],
    /// Instructions run so far.
    pub spent: u64,
    /// Warps that have arrived at each barrier without waiting.
    pub arrived: [u32; 16],
    /// Which warps of groups have run which of their instructions.
    pub meetings: Meetings,
}

/// Runs a launch, and says how many instructions its warps ran.
///
/// # Errors
/// The first fault.
pub(crate) fn launch(launch: Launch<'_>) -> Result<u64, Box<LaunchFault>> {
    let code = &launch.program.functions[launch.kernel];
    let shape = launch.shape;
    let dynamic = SharedRegion { base: 0, bytes: u64::from(shape.shared_bytes) };
    let regions = std::iter::once(dynamic).filter(|region| region.bytes > 0);
    let shared = SharedMemory::new(regions.chain(code.shared.iter().copied()), launch.races);
    let shared = if launch.program.has_async_proxy { shared.with_products() } else { shared };
    let mut warps = warps_of(shape);
    let meetings = Meetings::default();
    let mut executor = Executor { launch, shared, block: [0; 3], spent: 0, arrived: [0; 16], meetings };
    for z in 0..shape.grid[2] {
        for y in 0..shape.grid[1] {
            for x in 0..shape.grid[0] {
                executor.block = [x, y, z];
                executor.run_block(&mut warps)?;
            }
        }
    }
    Ok(executor.spent)
}

fn warps_of(shape: LaunchShape) -> Vec<Warp> {
    let threads: u32 = shape.block.iter().product();
    let warps = threads.div_ceil(LANES as u32);
    let lanes = |warp: u32| match threads - warp * LANES as u32 {
        left @ 1..=31 => (1 << left) - 1,
        _ => u32::MAX,
    };
    let of_lanes = |warp: u32, axis: usize| {
        std::array::from_fn(|lane| coordinates(shape, warp * LANES as u32 + lane as u32)[axis])
    };
    (0..warps)
        .map(|warp| Warp::new(warp, lanes(warp), std::array::from_fn(|axis| of_lanes(warp, axis))))
        .collect()
}

/// The coordinates of a thread by its number in the block.
fn coordinates(shape: LaunchShape, number: u32) -> [u32; 3] {
    let [x, y, _] = shape.block;
    [number % x, number / x % y, number / x / y]
}

impl Executor<'_> {
    fn run_block(&mut self, warps: &mut [Warp]) -> Result<(), Box<LaunchFault>> {
        self.shared.clear();
        self.arrived = [0; 16];
        self.meetings = Meetings::default();
        let program = self.launch.program;
        let code = &program.functions[self.launch.kernel];
        for warp in warps.iter_mut() {
            warp.clear();
            if let Err(thrown) = self.enter(warp, self.launch.kernel, code, warp.lanes) {
                return Err(self.fault(warp, *thrown));
            }
        }
        loop {
            let mut ran = false;
            for warp in warps.iter_mut() {
                if matches!(&warp.status, Status::Polling(polling) if polling.phases != self.shared.phases())
                {
                    warp.status = Status::Ready;
                }
                if matches!(warp.status, Status::Ready) {
                    ran = true;
                    if let Err(thrown) = self.run_warp(warp, TURN) {
                        return Err(self.fault(warp, *thrown));
                    }
                }
            }
            if warps.iter().all(|warp| matches!(warp.status, Status::Done)) {
                let incomplete = self.incomplete_group(warps);
                return incomplete.or_else(|| self.copy_left(warps)).map_or(Ok(()), Err);
            }
            let opened = self.open_barriers(warps);
            if !ran && !opened {
                return Err(self.incomplete_group(warps).unwrap_or_else(|| self.deadlock(warps)));
            }
        }
    }

    /// The fault of a group of which some warps never came to what the others ran.
    fn incomplete_group(&self, warps: &[Warp]) -> Option<Box<LaunchFault>> {
        let (index, kind) = self.meetings.incomplete()?;
        let warp = warps.get(index as usize)?;
        Some(self.fault(warp, Thrown { lane: 0, kind }))
    }

    /// The fault of a bulk copy that nobody has waited for.
    fn copy_left(&self, warps: &[Warp]) -> Option<Box<LaunchFault>> {
        let kind = FaultKind::CopyLeft { address: self.shared.unseen_copy()? };
        Some(self.fault(warps.first()?, Thrown { lane: 0, kind }))
    }

    fn deadlock(&self, warps: &[Warp]) -> Box<LaunchFault> {
        let polling = warps.iter().filter_map(|warp| match warp.status {
            Status::Polling(polling) => Some((warp, polling.lane, self.open_phase(polling))),
            Status::Ready | Status::Waiting(_) | Status::Done => None,
        });
        // Those that lack arrivals may lack those of a warp that waits for bytes.
        let first =
            polling.min_by_key(|(.., kind)| !matches!(kind, FaultKind::PhaseOpen { arrivals: 0, .. }));
        if let Some((warp, lane, kind)) = first {
            return self.fault(warp, Thrown { lane, kind });
        }
        let waits = |warp: &&Warp| matches!(warp.status, Status::Waiting(_));
        let waiting = warps.iter().filter(waits).count() as u32;
        let kind = FaultKind::Deadlock { waiting, ended: warps.len() as u32 - waiting };
        let first = warps.iter().find(waits).or(warps.first());
        match first {
            Some(warp) => self.fault(warp, Thrown { lane: warp.alive().trailing_zeros().min(31), kind }),
            None => self.fault(&Warp::new(0, 0, [[0; 32]; 3]), Thrown { lane: 0, kind }),
        }
    }

    fn fault(&self, warp: &Warp, thrown: Thrown) -> Box<LaunchFault> {
        let program = self.launch.program;
        let (function, pc) = warp.frames.last().map_or((0, 0), |frame| (frame.function, frame.pc));
        let (ptx_line, source) = program.place(function, pc);
        Box::new(LaunchFault {
            kernel: program.functions[self.launch.kernel].name.clone(),
            block: self.block,
            thread: coordinates(self.launch.shape, warp.index * LANES as u32 + thrown.lane),
            ptx_line,
            source,
            kind: thrown.kind,
        })
    }

    /// A frame of a function, with its special registers filled.
    pub fn enter(&self, warp: &mut Warp, function: usize, code: &Code, lanes: u32) -> Ran<()> {
        if !warp.enter(function, code, lanes) {
            return super::throw(lanes, FaultKind::StackOverflow);
        }
        let (index, threads) = (warp.index, warp.threads);
        let file = warp.file();
        for (slot, special) in &code.specials {
            let words: &mut [u32] =
                bytemuck::cast_slice_mut(&mut file[*slot as usize * SLOT_WORDS..][..SLOT_WORDS]);
            match special {
                Special::Thread(axis) => words.copy_from_slice(&threads[*axis]),
                other => {
                    for (lane, word) in words.iter_mut().enumerate() {
                        *word = self.special(*other, index, lane as u32);
                    }
                }
            }
        }
        Ok(())
    }

    fn special(&self, special: Special, warp: u32, lane: u32) -> u32 {
        let shape = &self.launch.shape;
        let threads: u32 = shape.block.iter().product();
        match special {
            Special::Thread(axis) => coordinates(*shape, warp * LANES as u32 + lane)[axis],
            Special::BlockSize(axis) => shape.block[axis],
            Special::Block(axis) => self.block[axis],
            Special::GridSize(axis) => shape.grid[axis],
            Special::Lane => lane,
            Special::Warp => warp,
            Special::Warps => threads.div_ceil(LANES as u32),
            Special::LanesEqual => 1 << lane,
            Special::LanesBelow => (1 << lane) - 1,
            Special::LanesUpTo => u32::MAX >> (31 - lane),
            Special::LanesAbove => !(u32::MAX >> (31 - lane)),
            Special::LanesFrom => !((1 << lane) - 1),
            Special::Processor | Special::GridId => 0,
            Special::Processors => 1,
            Special::DynamicSharedBytes => shape.shared_bytes,
            Special::TotalSharedBytes => {
                let code = &self.launch.program.functions[self.launch.kernel];
                let fixed: u64 = code.shared.iter().map(|region| region.bytes).sum();
                shape.shared_bytes + fixed as u32
            }
        }
    }
}
