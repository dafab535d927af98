//! What a kernel did wrong while it ran: the kind, and where: kernel, block, thread, PTX line and source line.

use crate::ptx::Space;
use std::fmt;

/// A place of a program's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// The file as `.file` names it.
    pub file: String,
    /// The line, counted from one.
    pub line: u32,
}

/// A fault of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchFault {
    /// The kernel that was launched.
    pub kernel: String,
    /// The block in the grid.
    pub block: [u32; 3],
    /// The first thread at fault in its block.
    pub thread: [u32; 3],
    /// The line of the PTX text.
    pub ptx_line: u32,
    /// The source line, where the PTX says one.
    pub source: Option<SourceLine>,
    /// What happened.
    pub kind: FaultKind,
}

/// Whether memory is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Written.
    Write,
    /// Read and written by an atomic operation.
    Atomic,
}

/// What a barrier in shared memory does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MbarrierFault {
    /// There is none at the address.
    NotMade,
    /// Its bytes are accessed, or it is made or given up, while it is in use.
    InUse,
    /// A copy is to tell it, and its maker has run no fence since it was made.
    NotPublished {
        /// The warp that made it.
        maker: u32,
    },
    /// So many arrivals a phase.
    Count(u32),
    /// More arrivals than the phase has left, or none.
    Arrivals {
        /// How many arrive.
        count: u32,
        /// How many are left.
        pending: u32,
    },
    /// More bytes are under way than it can count.
    Bytes(i64),
}

/// What a kernel did wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// An access outside of every allocation, or outside of the variable space.
    OutOfBounds {
        /// Where.
        space: Space,
        /// What it did.
        access: Access,
        /// The address, in the space.
        address: u64,
        /// How many bytes.
        bytes: usize,
    },
    /// A write to memory that kernels may only read.
    ReadOnly {
        /// The address.
        address: u64,
    },
    /// An address that isn't a multiple of the access's size.
    Misaligned {
        /// Where.
        space: Space,
        /// The address, in the space.
        address: u64,
        /// What it must be a multiple of.
        align: usize,
    },
    /// A read of bytes that nothing has written.
    Uninitialised {
        /// Where.
        space: Space,
        /// The address of the access, in the space.
        address: u64,
        /// How many bytes it reads.
        bytes: usize,
    },
    /// An access to shared memory that an asynchronous copy is still to write.
    CopyNotAwaited {
        /// The address, in shared space.
        address: u64,
        /// What it did.
        access: Access,
    },
    /// Two accesses to the same bytes of shared memory, at least one a write, with nothing that orders them.
    Race {
        /// The address, in shared space.
        address: u64,
        /// What this access does.
        access: Access,
        /// What the other did.
        other: Access,
        /// The other's warp in the block.
        other_warp: u32,
        /// The other's lane, where it is known.
        other_lane: Option<u32>,
        /// The other's PTX line.
        other_line: u32,
    },
    /// Two lanes of one instruction write different values to the same bytes.
    LanesConflict {
        /// The address, in shared space.
        address: u64,
        /// The other lane.
        other_lane: u32,
    },
    /// A register that a product of a group under way uses is read or written.
    ProductNotAwaited,
    /// A product of a group uses registers that were read or written since the last `wgmma.fence`.
    RegistersNotFenced,
    /// A product of a group reads, or a bulk copy writes, shared memory that a thread wrote with no `fence.proxy.async` behind the write.
    NotPublished {
        /// The address, in shared space.
        address: u64,
        /// The warp that wrote it.
        writer: u32,
    },
    /// Shared memory is written that a product of a group under way reads.
    ReadUnderWay {
        /// The address, in shared space.
        address: u64,
    },
    /// An instruction that a barrier in shared memory does not allow.
    Mbarrier {
        /// The barrier's address, in shared space.
        address: u64,
        /// What is wrong.
        fault: MbarrierFault,
    },
    /// A warp waits for a phase of a barrier in shared memory that can't end any more.
    PhaseOpen {
        /// The barrier's address, in shared space.
        address: u64,
        /// Arrivals that the phase lacks.
        arrivals: u32,
        /// Bytes that are expected and did not come; negative where more came than were expected.
        bytes: i64,
    },
    /// A block ends while nobody has waited for a bulk copy.
    CopyLeft {
        /// Where it goes, in shared space.
        address: u64,
    },
    /// Warps of a group that don't run the same instructions for groups.
    GroupDiffers {
        /// The PTX line of the instruction that some of them run.
        line: u32,
        /// Which of the four warps have come to it.
        arrived: u32,
    },
    /// A barrier that a part of a warp reaches while another part is elsewhere.
    DivergentBarrier {
        /// The lanes at the barrier.
        arrived: u32,
        /// The lanes that are alive.
        alive: u32,
    },
    /// Warps that wait at barriers which can't open any more.
    Deadlock {
        /// How many warps wait.
        waiting: u32,
        /// How many have ended.
        ended: u32,
    },
    /// A shuffle, vote, reduction or matrix instruction whose named lanes aren't those that run it.
    DivergentLanes {
        /// The instruction.
        opcode: &'static str,
        /// The lanes it names.
        named: u32,
        /// The lanes that run it.
        running: u32,
    },
    /// A shuffle that reads from a lane that does not take part.
    InactiveSource {
        /// The lane that is read.
        lane: u32,
    },
    /// A value that the instruction does not allow.
    BadOperand(String),
    /// A trap.
    Trap,
    /// Calls nested too deep, or local memory used up.
    StackOverflow,
    /// More instructions than the launch may take.
    BudgetSpent {
        /// The budget, in instructions of warps.
        instructions: u64,
    },
    /// What should not happen.
    Internal(&'static str),
}

impl fmt::Display for Access {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Access::Read => "read",
            Access::Write => "write",
            Access::Atomic => "atomic operation",
        })
    }
}

fn space_name(space: Space) -> &'static str {
    match space {
        Space::Global => "global",
        Space::Const => "constant",
        Space::Shared => "shared",
        Space::Local => "local",
        Space::Param => "parameter",
        Space::Generic => "generic",
    }
}

impl fmt::Display for MbarrierFault {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MbarrierFault::NotMade => to.write_str("there is none"),
            MbarrierFault::InUse => {
                to.write_str("its bytes are accessed, or made or given up, while it is in use")
            }
            MbarrierFault::NotPublished { maker } => {
                write!(
                    to,
                    "a bulk copy is to tell it, and warp {maker}, which made it, has run no fence since"
                )
            }
            MbarrierFault::Count(count) => write!(to, "{count} arrivals a phase; there are 1 to 1048575"),
            MbarrierFault::Arrivals { count, pending } => {
                write!(to, "{count} arrivals where the phase has {pending} left")
            }
            MbarrierFault::Bytes(bytes) => write!(to, "{bytes} bytes under way; it counts to 1048575"),
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultKind::OutOfBounds { space, access, address, bytes } => {
                write!(
                    to,
                    "a {access} of {bytes} bytes of {} memory at {address:#x}, out of bounds",
                    space_name(*space)
                )
            }
            FaultKind::ReadOnly { address } => write!(to, "a write to constant memory at {address:#x}"),
            FaultKind::Misaligned { space, address, align } => {
                write!(to, "{} address {address:#x} is not a multiple of {align}", space_name(*space))
            }
            FaultKind::Uninitialised { space, address, bytes } => {
                write!(
                    to,
                    "a read of {bytes} bytes of {} memory at {address:#x}, which nothing has written",
                    space_name(*space)
                )
            }
            FaultKind::CopyNotAwaited { address, access } => {
                write!(
                    to,
                    "a {access} of shared memory at {address:#x}, to which an asynchronous copy is under way"
                )
            }
            FaultKind::Race { address, access, other, other_warp, other_lane, other_line } => {
                write!(
                    to,
                    "a race in shared memory at {address:#x}: this {access} and a {other} by warp {other_warp}"
                )?;
                if let Some(lane) = other_lane {
                    write!(to, " lane {lane}")?;
                }
                write!(to, " at PTX line {other_line}, with no barrier between")
            }
            FaultKind::LanesConflict { address, other_lane } => {
                write!(
                    to,
                    "this thread and lane {other_lane} of its warp write different values to shared memory at {address:#x}"
                )
            }
            FaultKind::ProductNotAwaited => {
                write!(to, "a register that a `wgmma` under way uses, with no `wgmma.wait_group` before")
            }
            FaultKind::RegistersNotFenced => {
                write!(to, "a `wgmma` on registers that were used since the last `wgmma.fence`")
            }
            FaultKind::NotPublished { address, writer } => {
                write!(
                    to,
                    "a `wgmma` reads or a bulk copy writes shared memory at {address:#x}, which warp {writer} wrote with no `fence.proxy.async` behind"
                )
            }
            FaultKind::ReadUnderWay { address } => {
                write!(to, "a write of shared memory at {address:#x}, which a `wgmma` under way reads")
            }
            FaultKind::Mbarrier { address, fault } => {
                write!(to, "the mbarrier of shared memory at {address:#x}: {fault}")
            }
            FaultKind::PhaseOpen { address, arrivals, bytes } => {
                write!(
                    to,
                    "a wait for a phase of the mbarrier at {address:#x} that can't end: it lacks {arrivals} arrivals and {bytes} bytes"
                )
            }
            FaultKind::CopyLeft { address } => {
                write!(
                    to,
                    "the block ends with a bulk copy to shared memory at {address:#x} for which nobody has waited"
                )
            }
            FaultKind::GroupDiffers { line, arrived } => {
                write!(
                    to,
                    "warps {arrived:#06b} of a group of four come to PTX line {line}, and the others not, or with other operands"
                )
            }
            FaultKind::DivergentBarrier { arrived, alive } => {
                write!(
                    to,
                    "a barrier reached by lanes {arrived:#010x} of a warp whose lanes {alive:#010x} are alive"
                )
            }
            FaultKind::Deadlock { waiting, ended } => {
                write!(to, "{waiting} warps wait at a barrier that can't open; {ended} warps have ended")
            }
            FaultKind::DivergentLanes { opcode, named, running } => {
                write!(to, "`{opcode}` names lanes {named:#010x} and runs on lanes {running:#010x}")
            }
            FaultKind::InactiveSource { lane } => {
                write!(to, "a shuffle reads lane {lane}, which does not take part")
            }
            FaultKind::BadOperand(reason) => to.write_str(reason),
            FaultKind::Trap => to.write_str("a trap"),
            FaultKind::StackOverflow => to.write_str("calls nested too deep"),
            FaultKind::BudgetSpent { instructions } => {
                write!(
                    to,
                    "the launch has run its budget of {instructions} warp instructions and is not done"
                )
            }
            FaultKind::Internal(reason) => write!(to, "bug in dtlc: {reason}"),
        }
    }
}

impl fmt::Display for LaunchFault {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [bx, by, bz] = self.block;
        let [tx, ty, tz] = self.thread;
        write!(
            to,
            "kernel `{}`, block ({bx}, {by}, {bz}), thread ({tx}, {ty}, {tz}), PTX line {}",
            self.kernel, self.ptx_line
        )?;
        if let Some(source) = &self.source {
            write!(to, " ({}:{})", source.file, source.line)?;
        }
        write!(to, ": {}", self.kind)
    }
}

impl std::error::Error for LaunchFault {}
