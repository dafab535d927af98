//! Ranks that are processes of their own, each a thread here with an emulated device, and a network between the devices: what NCCL is
//! to GPUs. It reads and writes on the streams that it is given, so the devices see whether something orders that with what else they do.

use dtlc_emulator::{CudaDriver, DriverError, Stream};
use dtlc_runtime::RuntimeError;
use dtlc_runtime::network::{Broken, Call, Message, Network, Route};
use dtlc_runtime::processes::Transport;
use dtlc_runtime::processes::rendezvous::{Party, Place, meet};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// What a process has to reach the others.
pub struct Process {
    pub transport: Arc<dyn Transport>,
    pub network: Arc<dyn Network>,
    pub device: Arc<dyn CudaDriver>,
}

/// Runs `body` once for each of some devices, as if each were in a process of its own.
pub fn spread<T: Send>(devices: Vec<Arc<dyn CudaDriver>>, body: impl Fn(Process) -> T + Sync) -> Vec<T> {
    // Worlds of tests that run side by side may come to the same ports, and are told apart by their keys.
    static WORLDS: AtomicU8 = AtomicU8::new(0);
    let key = [WORLDS.fetch_add(1, Ordering::Relaxed); 32];
    let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    let first = free.expect("a free port").port();
    let place = Place { host: "127.0.0.1".into(), ports: (first..=u16::MAX).take(8).collect() };
    let ranks = devices.len();
    let switch = Arc::new(Switch { devices, calls: Mutex::default(), changed: Condvar::new() });
    std::thread::scope(|scope| {
        let process = |rank| {
            let (place, body, switch) = (&place, &body, &switch);
            scope.spawn(move || {
                let party = Party { rank, ranks, key };
                let transport = meet(place, &party, 1 << 24, Duration::from_secs(60)).expect("all come");
                let device = Arc::clone(&switch.devices[rank]);
                let network = Arc::new(Port { rank, switch: Arc::clone(switch) });
                body(Process { transport: Arc::new(transport), network, device })
            })
        };
        let processes: Vec<_> = (0..ranks).map(process).collect();
        processes.into_iter().map(|process| process.join().expect("no panic")).collect()
    })
}

/// What the devices are connected to.
struct Switch {
    devices: Vec<Arc<dyn CudaDriver>>,
    calls: Mutex<Calls>,
    changed: Condvar,
}

#[derive(Default)]
struct Calls {
    /// How many calls each rank has made in a group.
    made: BTreeMap<(usize, Vec<usize>), usize>,
    /// Those of a group's members that belong together, by the group and their number.
    together: BTreeMap<(Vec<usize>, usize), Together>,
}

#[derive(Default)]
struct Together {
    members: BTreeMap<usize, (Vec<Message>, Stream)>,
    done: Option<Result<(), DriverError>>,
}

/// A rank's connection.
struct Port {
    rank: usize,
    switch: Arc<Switch>,
}

impl Network for Port {
    fn exchange(&self, call: &Call<'_>) -> Result<(), Broken> {
        let switch = &self.switch;
        let group = call.ranks.to_vec();
        let mut calls = switch.calls.lock().expect("no panic");
        let number = calls.made.entry((self.rank, group.clone())).or_default();
        let key = (group, *number);
        *number += 1;
        let together = calls.together.entry(key.clone()).or_default();
        let own = call.ranks.iter().position(|&rank| rank == self.rank).expect("a member");
        together.members.insert(own, (call.messages.to_vec(), call.stream));
        if together.members.len() == call.ranks.len() {
            // A thread of its own has waited for no stream, so that nothing is ordered that events don't order.
            let moved = std::thread::scope(|scope| {
                let members = &together.members;
                scope.spawn(|| switch.perform(call.ranks, members)).join().expect("no panic")
            });
            together.done = Some(moved);
            switch.changed.notify_all();
        }
        loop {
            if let Some(done) = &calls.together[&key].done {
                let failed = |error| RuntimeError::of_device(&format!("rank {} exchanges", self.rank), error);
                return done.as_ref().copied().map_err(|error| Broken::Here(failed(error)));
            }
            if (call.has_failed)() {
                return Err(Broken::Elsewhere(RuntimeError::Fault("another rank has failed".to_owned())));
            }
            calls = switch.changed.wait_timeout(calls, Duration::from_millis(5)).expect("no panic").0;
        }
    }

    fn look(&self) -> Result<(), Broken> {
        Ok(())
    }

    fn abort(&self) {}
}

impl Switch {
    /// Moves what the members of a group have asked for.
    fn perform(
        &self,
        ranks: &[usize],
        members: &BTreeMap<usize, (Vec<Message>, Stream)>,
    ) -> Result<(), DriverError> {
        for (&to, (incoming, into)) in members {
            let incoming = incoming.iter().filter(|message| match message.route {
                Route::To(_) => false,
                Route::From(_) => true,
                Route::OfAll(root) => root != to,
            });
            let mut taken = BTreeMap::new();
            for message in incoming {
                let from = match message.route {
                    Route::From(member) | Route::OfAll(member) | Route::To(member) => member,
                };
                let (outgoing, out_of) = &members[&from];
                let mut outgoing = outgoing.iter().filter(|sent| match sent.route {
                    Route::To(peer) => peer == to,
                    Route::OfAll(root) => root == from,
                    Route::From(_) => false,
                });
                // Those between two come in the order in which they are sent.
                let number = taken.entry(from).or_insert(0_usize);
                let sent = outgoing.nth(*number).expect("what is awaited is sent");
                *number += 1;
                assert_eq!(sent.bytes, message.bytes, "a message of another length is awaited");
                let mut bytes = vec![0; sent.bytes];
                self.devices[ranks[from]].copy_to_host(&mut bytes, sent.at, *out_of)?;
                self.devices[ranks[to]].copy_to_device(message.at, &bytes, *into)?;
            }
        }
        Ok(())
    }
}
