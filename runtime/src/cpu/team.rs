//! The threads of one rank: a leader, which runs the program, and helpers that share its loops.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::signal::Signal;

/// What one part of a job does: the part's index and the index of the thread that runs it.
type Job<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// A job without its lifetime, and its number of parts.
type ErasedJob = (*const (dyn Fn(usize, usize) + Sync), usize);

/// A rank's threads. The leader is thread 0.
pub struct Team {
    threads: usize,
    spin: u32,
    /// The job in progress; written by the leader while helpers wait, read by them while it waits.
    job: UnsafeCell<Option<ErasedJob>>,
    /// For each thread, the next of the parts that are its first.
    claims: Box<[Claim]>,
    /// Counts jobs; helpers wait on it.
    started: Signal,
    /// Counts helpers' finished jobs; the leader waits on it.
    finished: Signal,
    panicked: AtomicBool,
    closed: AtomicBool,
}

// SAFETY: `job` is the only part that isn't synchronised by itself. The leader writes it before it
// raises `started` and again only after all helpers raised `finished`, so access never overlaps.
unsafe impl Sync for Team {}
// SAFETY: the pointer in `job` is only set during `run`, whose caller keeps its target alive.
unsafe impl Send for Team {}

/// A counter alone on its cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Claim(AtomicUsize);

/// A part of a job panicked.
#[derive(Debug)]
pub struct Panicked;

impl Team {
    /// A team of `threads` threads that spin for `spin` rounds before they sleep.
    #[must_use]
    pub fn new(threads: usize, spin: u32) -> Self {
        Self {
            threads,
            spin,
            job: UnsafeCell::new(None),
            claims: (0..threads).map(|_| Claim::default()).collect(),
            started: Signal::default(),
            finished: Signal::default(),
            panicked: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    /// Number of threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `job` once for each part in `0..parts`, on all threads, and returns when all are done.
    /// Only the leader calls it, and not from within a job.
    ///
    /// # Errors
    /// A part panicked.
    pub fn run(&self, parts: usize, job: Job<'_>) -> Result<(), Panicked> {
        if self.threads == 1 || parts <= 1 {
            let all = || (0..parts).for_each(|part| job(part, 0));
            return catch_unwind(AssertUnwindSafe(all)).map_err(|_| Panicked);
        }
        let finished_before = self.finished.get();
        // SAFETY: helpers are waiting, so nobody reads the cell. The job's lifetime is erased; this
        // function does not return before all helpers have finished with it.
        unsafe { *self.job.get() = Some((std::mem::transmute::<Job<'_>, Job<'static>>(job), parts)) };
        for (thread, claim) in self.claims.iter().enumerate() {
            claim.0.store(self.share(parts, thread).start, Ordering::Relaxed);
        }
        self.started.increment();
        self.take_parts(0);
        let helpers = self.threads as u32 - 1;
        let all_finished = |count: u32| count.wrapping_sub(finished_before) == helpers;
        self.finished.wait(self.spin, all_finished, || false);
        if self.panicked.swap(false, Ordering::Relaxed) { Err(Panicked) } else { Ok(()) }
    }

    /// What a helper does until the team is closed.
    pub fn help(&self, thread: usize) {
        let mut seen = 0;
        loop {
            self.started.wait(self.spin, |count| count != seen, || false);
            if self.closed.load(Ordering::Acquire) {
                return;
            }
            // A helper takes part in every job, so it never falls more than one behind.
            seen = seen.wrapping_add(1);
            self.take_parts(thread);
            self.finished.increment();
        }
    }

    /// Sends the helpers home.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.started.increment();
    }

    /// The parts that a thread takes first: neighbours, and the same ones in each job, so that it finds in its own cache
    /// what it wrote in the job before.
    fn share(&self, parts: usize, thread: usize) -> Range<usize> {
        parts * thread / self.threads..parts * (thread + 1) / self.threads
    }

    /// Runs the thread's own parts, then what others have not come to.
    fn take_parts(&self, thread: usize) {
        // SAFETY: between `started` and `finished` the leader leaves the cell alone.
        let Some((job, parts)) = (unsafe { *self.job.get() }) else { return };
        // SAFETY: `run` keeps the job alive until all threads have returned from here.
        let job = unsafe { &*job };
        let work = || {
            for owner in (thread..self.threads).chain(0..thread) {
                let end = self.share(parts, owner).end;
                loop {
                    let part = self.claims[owner].0.fetch_add(1, Ordering::Relaxed);
                    if part >= end {
                        break;
                    }
                    job(part, thread);
                }
            }
        };
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            self.panicked.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `lead` with a team of `threads` threads.
    fn with_team(threads: usize, lead: impl FnOnce(&Team)) {
        let team = Team::new(threads, 100);
        std::thread::scope(|scope| {
            for thread in 1..threads {
                let team = &team;
                scope.spawn(move || team.help(thread));
            }
            lead(&team);
            team.close();
        });
    }

    #[test]
    fn each_part_runs_once() {
        for threads in [1, 2, 5] {
            with_team(threads, |team| {
                for parts in [0, 1, 2, 7, 100] {
                    let counts: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
                    let job = |part: usize, thread: usize| {
                        assert!(thread < threads);
                        counts[part].fetch_add(1, Ordering::Relaxed);
                    };
                    assert!(team.run(parts, &job).is_ok());
                    assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
                }
            });
        }
    }

    #[test]
    fn a_panic_is_reported_and_the_team_goes_on() {
        for threads in [1, 3] {
            with_team(threads, |team| {
                assert!(team.run(8, &|part, _| assert!(part != 5, "this panic is part of a test")).is_err());
                assert!(team.run(8, &|_, _| ()).is_ok());
            });
        }
    }
}
