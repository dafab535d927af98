//! A word that threads wait on: they spin for a moment, then sleep in the kernel (futex).

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long a sleeping thread goes without looking whether it should give up.
const NAP: Duration = Duration::from_millis(20);

/// Rounds of spinning before sleeping, where each waiting thread has a core of its own: some tenths of a millisecond, more
/// than what one thread does alone between two loops that all share, since waking a sleeper takes tens of microseconds.
pub const SPIN_ROUNDS: u32 = 20_000;

/// A counter alone on its cache lines, with a way to wait for it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Signal {
    value: AtomicU32,
    sleepers: AtomicU32,
}

impl Signal {
    /// Its value; what was written before the value was set is visible after.
    pub fn get(&self) -> u32 {
        self.value.load(Ordering::Acquire)
    }

    /// Sets the value and wakes who waits.
    pub fn set(&self, value: u32) {
        self.value.store(value, Ordering::SeqCst);
        self.wake();
    }

    /// Adds 1, wrapping, and wakes who waits.
    pub fn increment(&self) {
        self.value.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    /// Waits until `reached` holds for the value. `spin` rounds are spent spinning. `give_up` is
    /// asked from time to time, and true ends the wait. Returns whether the value was reached.
    pub fn wait(&self, spin: u32, reached: impl Fn(u32) -> bool, mut give_up: impl FnMut() -> bool) -> bool {
        for _ in 0..spin {
            if reached(self.get()) {
                return true;
            }
            std::hint::spin_loop();
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let result = loop {
            let value = self.value.load(Ordering::SeqCst);
            if reached(value) {
                break true;
            }
            if give_up() {
                break false;
            }
            self.sleep(value);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Sleeps until woken, for a nap at most, unless the value is no longer `value`.
    fn sleep(&self, value: u32) {
        let nap = libc::timespec { tv_sec: 0, tv_nsec: NAP.subsec_nanos().into() };
        let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word and the time outlive the call; a wake-up without cause is handled by the loop.
        unsafe { libc::syscall(libc::SYS_futex, self.value.as_ptr(), operation, value, &raw const nap) };
    }

    fn wake(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
            // SAFETY: waking reads only the word's address.
            unsafe { libc::syscall(libc::SYS_futex, self.value.as_ptr(), operation, i32::MAX) };
        }
    }
}
