//! Worlds of several processes, each a thread here with a transport of its own: who may come, who is missed, and what the
//! others say when one fails, ends or stays away.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dtlc_runtime::RuntimeError;
use dtlc_runtime::processes::Transport;
use dtlc_runtime::processes::rendezvous::{Party, Place, meet};
use dtlc_runtime::program::*;
use dtlc_runtime::session::{Options, Session, Watch};
use support::*;

const SOON: Duration = Duration::from_millis(400);
const LONG: Duration = Duration::from_secs(60);

/// A program of `ranks` ranks that meet once, after an instruction that does nothing.
fn program_that_meets(ranks: u32) -> Program {
    let mut program = empty_program(&[("dp", ranks)]);
    let buffer = BufferRef::new(Space::Arena, 0, 64);
    let fill = Operation::Fill { target: buffer.clone(), dtype: DType::F32, value: 1.0 };
    let tensor = CollectiveTensor {
        source: buffer.clone(),
        target: buffer,
        dtype: DType::F32,
        transfer: Transfer::whole(16),
    };
    let kind = CollectiveKind::AllReduce(Reduction::Sum);
    let collective = Collective { flight: FlightId(0), kind, axes: vec![AxisId(0)], tensors: vec![tensor] };
    program.instructions = with_dones(vec![at(0, fill), at(1, Operation::Collective(collective))]);
    program
}

fn session(transport: Arc<dyn Transport>, timeout: Duration, watch: Watch) -> Session {
    let program = program_that_meets(transport.ranks() as u32);
    let options = Options { threads: Some(1), timeout, watch, ..Options::default() };
    Session::start_among(Some(transport), program, options).expect("it starts")
}

/// What the others say when rank 2 of three does not go along with a step.
fn told(timeout: Duration, rank_2: impl Fn(Session) + Sync) -> Vec<RuntimeError> {
    let start = Instant::now();
    let results = spread(3, |transport| {
        let rank = transport.rank();
        let mut session = session(transport, timeout, Watch::default());
        session.step(1, 0).expect("all go along");
        if rank == 2 {
            rank_2(session);
            return None;
        }
        let error = session.step(2, 0).expect_err("rank 2 does not come");
        session.fail(&error.to_string());
        Some(error)
    });
    assert!(start.elapsed() < LONG, "the others wait for what never comes");
    results.into_iter().flatten().collect()
}

#[test]
fn a_rank_that_stays_away_is_named_with_the_place_where_it_is_missed() {
    let errors = told(SOON, |session| {
        std::thread::sleep(3 * SOON);
        drop(session);
    });
    assert_eq!(errors.len(), 2);
    let text = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let wanted = "rank 2 (dp 2) did not arrive at test.dtl:7:3 (second), where rank";
    assert!(text.contains(wanted) && text.contains("it is in another process"), "{text}");
    assert!(errors.iter().all(|error| error.exit_status() == 3), "{text}");
}

#[test]
fn a_process_that_ends_frees_the_others_at_once() {
    for error in told(LONG, drop) {
        let text = error.to_string();
        let first_hand = text.contains("rank 2 (dp 2) is gone") && text.contains("test.dtl:7:3 (second)");
        assert!(first_hand && error.exit_status() == 3, "{text}");
    }
}

#[test]
fn a_process_that_fails_says_why() {
    for error in told(LONG, |session| session.fail("the disk is full")) {
        let text = error.to_string();
        assert!(text.contains("rank 2 failed: the disk is full"), "{text}");
    }
}

#[test]
fn a_rank_that_panics_is_named_in_every_process() {
    let texts = spread(2, |transport| {
        let probe = |rank, location: LocationId| assert!(rank != 1 || location.0 != 1, "part of a test");
        let watch = Watch { probe: Some(probe), ..Watch::default() };
        let mut session = session(transport, LONG, watch);
        let error = session.step(1, 0).expect_err("a rank panics");
        session.fail(&error.to_string());
        error.to_string()
    });
    for text in texts {
        assert!(text.contains("rank 1 (dp 1) panicked at test.dtl:7:3 (second)"), "{text}");
    }
}

#[test]
fn processes_that_differ_or_are_elsewhere_are_told() {
    let results = spread(2, |transport| {
        let rank = transport.rank() as u64;
        let session = session(transport, LONG, Watch::default());
        assert_eq!(session.agree("what is the same", 5), Ok(()));
        assert_eq!(session.any(rank == 1), Ok(true));
        assert_eq!(session.any(false), Ok(false));
        let differs = session.agree("the seed", rank).expect_err("they differ");
        // One settles something while the other asks.
        let elsewhere = if rank == 0 { session.agree("the end", 0) } else { session.any(true).map(drop) };
        session.part();
        (differs.to_string(), elsewhere.expect_err("they are elsewhere").exit_status())
    });
    for (text, status) in results {
        assert!(text.contains("differ in the seed") && status == 4, "{text} {status}");
    }
}

#[test]
fn ranks_that_do_not_come_are_named_and_strangers_are_turned_away() {
    let place = free_place();
    let party = |rank, key| Party { rank, ranks: 4, key: [key; 32] };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| meet(&place, &party(0, 241), 1 << 20, 3 * SOON).map(drop));
        let second = scope.spawn(|| meet(&place, &party(1, 241), 1 << 20, 5 * SOON).map(drop));
        let other = scope.spawn(|| meet(&place, &party(2, 242), 1 << 20, 2 * SOON).map(drop));
        // One that says what it likes, and one that says nothing.
        let strangers: Vec<_> = (0..2)
            .filter_map(|number| {
                std::thread::sleep(SOON / 4);
                let mut stranger = TcpStream::connect((place.host.as_str(), place.ports[0])).ok()?;
                if number == 0 {
                    stranger.write_all(&[0xff; 4096]).ok()?;
                }
                Some(stranger)
            })
            .collect();
        let told = |handle: std::thread::ScopedJoinHandle<'_, Result<(), RuntimeError>>| {
            handle.join().expect("no panic").expect_err("not all come").to_string()
        };
        let text = told(first);
        assert!(text.contains("rank(s) 2, 3") && text.contains("did not come to 127.0.0.1:"), "{text}");
        assert!(text.contains("turned away"), "{text}");
        let text = told(second);
        assert!(text.contains("rank 0 at 127.0.0.1:"), "{text}");
        let text = told(other);
        assert!(text.contains("rank 2 did not find rank 0") && text.contains("not of this run"), "{text}");
        drop(strangers);
    });
}

#[test]
fn a_port_that_is_taken_leads_to_the_next() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let first = taken.local_addr().expect("its address").port();
    let place = Place { host: "localhost".into(), ports: (first..=u16::MAX).take(8).collect() };
    std::thread::scope(|scope| {
        // Who listens there answers with something else.
        scope.spawn(move || {
            let (mut stream, _) = taken.accept().expect("someone calls");
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            let _ = stream.read(&mut [0; 64]);
        });
        for rank in 0..2 {
            let place = &place;
            scope.spawn(move || {
                let party = Party { rank, ranks: 2, key: [243; 32] };
                let transport = meet(place, &party, 1 << 20, LONG).expect("they find each other");
                assert_eq!((transport.rank(), transport.ranks()), (rank, 2));
                transport.part();
            });
        }
    });
}

#[test]
fn what_a_transport_is_asked_for_has_to_fit() {
    // A program for another number of ranks.
    let refused = spread(2, |transport| {
        let started = Session::start_among(Some(transport), program_that_meets(3), Options::default());
        started.err().map(|error| error.to_string()).unwrap_or_default()
    });
    assert!(
        refused.iter().all(|text| text.contains("2 processes") && text.contains("3 rank")),
        "{refused:?}"
    );
    // A message longer than the other end has a reason to expect ends the connection.
    let place = free_place();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let place = &place;
            scope.spawn(move || {
                let party = Party { rank, ranks: 2, key: [244; 32] };
                let transport = meet(place, &party, 16, LONG).expect("they find each other");
                let session = session(Arc::new(transport), LONG, Watch::default());
                let text = session.any(true).expect_err("17 bytes are too many").to_string();
                assert!(text.contains(&format!("rank {} is gone", 1 - rank)), "{text}");
            });
        }
    });
}
