//! Memory of a rank: one mapping for each space, made once at start and never grown.

use crate::error::{Result, RuntimeError};
use crate::program::Program;

/// Mappings from this size on ask for huge pages, which are this large.
const HUGE_PAGE: usize = 2 << 20;

/// A private, zeroed, page-aligned mapping.
#[derive(Debug)]
pub struct Region {
    address: *mut u8,
    bytes: usize,
}

// SAFETY: a region is plain memory that it alone owns; who may touch it when is decided by those
// who ask for its address.
unsafe impl Send for Region {}
// SAFETY: as above; `&Region` gives out an address and no reference into the memory.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `bytes` bytes of zeros; none if `bytes` is 0.
    ///
    /// # Errors
    /// The system has no room for it.
    pub fn new(bytes: u64, what: &str) -> Result<Self> {
        let no_room =
            |reason: String| RuntimeError::Fault(format!("no room for {bytes} bytes of {what}: {reason}"));
        let bytes = usize::try_from(bytes).map_err(|error| no_room(error.to_string()))?;
        if bytes == 0 {
            return Ok(Self { address: std::ptr::NonNull::<u64>::dangling().as_ptr().cast(), bytes });
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: an anonymous mapping at an address of the system's choice touches no memory of ours.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(no_room(std::io::Error::last_os_error().to_string()));
        }
        if bytes >= HUGE_PAGE {
            // Fewer faults at the first touch and fewer misses of translations later. A system without such pages
            // says no, which changes no result.
            // SAFETY: advice on our own mapping leaves its contents alone.
            unsafe { libc::madvise(address, bytes, libc::MADV_HUGEPAGE) };
        }
        Ok(Self { address: address.cast(), bytes })
    }

    /// The address of the first byte.
    #[must_use]
    pub fn address(&self) -> *mut u8 {
        self.address
    }

    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The contents.
    ///
    /// # Safety
    /// Nobody writes to the region while the slice lives.
    #[must_use]
    pub unsafe fn contents(&self) -> &[u8] {
        // SAFETY: the mapping is `bytes` long and initialised; the caller keeps writers away.
        unsafe { std::slice::from_raw_parts(self.address, self.bytes) }
    }

    /// The contents, to write.
    ///
    /// # Safety
    /// Nobody else touches the region while the slice lives.
    #[must_use]
    pub unsafe fn contents_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is `bytes` long and initialised; the caller keeps others away.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.bytes) }
    }

    /// Makes the region executable and no longer writable.
    ///
    /// # Errors
    /// The system refuses.
    pub fn make_executable(&mut self) -> Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        // SAFETY: the range is exactly our own mapping, and no reference into it lives.
        let status = unsafe { libc::mprotect(self.address.cast(), self.bytes, protection) };
        if status == 0 {
            return Ok(());
        }
        let reason = std::io::Error::last_os_error();
        Err(RuntimeError::Fault(format!("this system does not let us run generated code: {reason}")))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: the mapping is ours alone and this is the last use of it.
            unsafe { libc::munmap(self.address.cast(), self.bytes) };
        }
    }
}

/// Bytes of memory that this machine has, if it says.
#[must_use]
pub fn machine_bytes() -> Option<u64> {
    // SAFETY: both calls only ask the system for a number.
    let (pages, bytes) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    let (pages, bytes) = (u64::try_from(pages).ok()?, u64::try_from(bytes).ok()?);
    Some(pages.saturating_mul(bytes)).filter(|&bytes| bytes > 0)
}

/// All memory of one rank.
#[derive(Debug)]
pub struct RankMemory {
    /// What lives from step to step.
    pub state: Region,
    /// What lives within a step.
    pub arena: Region,
    /// What the caller gives.
    pub input: Region,
    /// Scratch of each thread.
    pub scratch: Vec<Region>,
}

impl RankMemory {
    /// The memory that a program needs for a rank of `threads` threads.
    ///
    /// # Errors
    /// The system has no room for it.
    pub fn new(program: &Program, threads: usize) -> Result<Self> {
        let scratch = (0..threads).map(|_| Region::new(program.thread_scratch_bytes, "scratch"));
        Ok(Self {
            state: Region::new(program.state_bytes, "parameters and optimizer state")?,
            arena: Region::new(program.arena_bytes, "activations")?,
            input: Region::new(program.input_bytes, "inputs")?,
            scratch: scratch.collect::<Result<_>>()?,
        })
    }
}
