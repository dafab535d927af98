//! Programs put together by hand, for the tests of the runtime.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod libraries;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use dtlc_runtime::processes::Transport;
use dtlc_runtime::processes::rendezvous::{Party, Place, meet};
use dtlc_runtime::program::*;
use dtlc_runtime::session::{Options, Session};

/// Calls of it spin as often as its one integer says.
pub const WAIT_CODE: &[u8] =
    &[0x48, 0x8b, 0x06, 0x48, 0x85, 0xc0, 0x74, 0x07, 0xf3, 0x90, 0x48, 0xff, 0xc8, 0x75, 0xf9, 0xc3];

/// Writes its one integer to each 8-byte element `begin..end` of its one operand.
pub const STORE_CODE: &[u8] = &[
    0x48, 0x8b, 0x3f, 0x48, 0x8b, 0x06, 0x48, 0x39, 0xca, 0x7d, 0x09, 0x48, 0x89, 0x04, 0xd7, 0x48, 0xff,
    0xc2, 0xeb, 0xf2, 0xc3,
];

/// A program that does nothing on a mesh of the given axes, with room in all spaces.
pub fn empty_program(axes: &[(&str, u32)]) -> Program {
    let axes = axes.iter().map(|&(name, size)| MeshAxis { name: name.into(), size }).collect();
    let location =
        |line, text: &str| Location { file: "test.dtl".into(), line, column: 3, text: text.into() };
    Program {
        name: "test".into(),
        mesh: Mesh { axes },
        cpu_features: CpuFeatures::default(),
        arena_bytes: 1 << 16,
        state_bytes: 1 << 16,
        input_bytes: 1 << 16,
        thread_scratch_bytes: 0,
        state: Vec::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        kernels: Vec::new(),
        code: Vec::new(),
        locations: vec![location(1, "first"), location(7, "second"), location(9, "third")],
        instructions: Vec::new(),
        device: None,
    }
}

/// An instruction at one of the three locations.
pub fn at(location: u32, operation: Operation) -> Instruction {
    Instruction { location: LocationId(location), operation }
}

/// Numbers the collectives of a list of instructions, and puts a done behind each.
pub fn with_dones(body: Vec<Instruction>) -> Vec<Instruction> {
    let mut numbered = Vec::new();
    for (index, mut instruction) in body.into_iter().enumerate() {
        let flight = FlightId(index as u32);
        let location = instruction.location;
        let mut done = None;
        if let Operation::Collective(collective) = &mut instruction.operation {
            collective.flight = flight;
            done = Some(Instruction { location, operation: Operation::Done(flight) });
        }
        numbered.push(instruction);
        numbered.extend(done);
    }
    numbered
}

/// An input and a buffer for it.
pub fn input(program: &mut Program, name: &str, layout: Layout, offset: u64) -> BufferRef {
    let bytes = layout.local_bytes(&program.mesh);
    program.inputs.push(Input { name: name.into(), layout, offset });
    BufferRef::new(Space::Input, offset, bytes)
}

/// An output and a buffer in the arena for it.
pub fn output(program: &mut Program, name: &str, layout: Layout, offset: u64) -> BufferRef {
    let buffer = BufferRef::new(Space::Arena, offset, layout.local_bytes(&program.mesh));
    program.outputs.push(Output { name: TensorName::plain(name), layout, buffer: buffer.clone() });
    buffer
}

/// Writes a program, reads it back, and starts it.
pub fn start(program: &Program, options: Options) -> Session {
    let bytes = program.to_bytes().expect("the program is valid");
    let read = Program::from_bytes(&bytes).expect("the program reads back");
    assert_eq!(&read, program);
    Session::start(read, options).expect("the session starts")
}

/// Runs `body` once for each of so many ranks, as if each were a process of its own: they speak over TCP.
pub fn spread<T: Send>(ranks: usize, body: impl Fn(Arc<dyn Transport>) -> T + Sync) -> Vec<T> {
    let place = free_place();
    // Worlds of tests that run side by side may come to the same ports, and are told apart by their keys.
    static WORLDS: AtomicU8 = AtomicU8::new(0);
    let key = [WORLDS.fetch_add(1, Ordering::Relaxed); 32];
    std::thread::scope(|scope| {
        let process = |rank| {
            let (place, body) = (&place, &body);
            scope.spawn(move || {
                let party = Party { rank, ranks, key };
                let transport = meet(place, &party, 1 << 24, Duration::from_secs(60)).expect("all come");
                body(Arc::new(transport))
            })
        };
        let processes: Vec<_> = (0..ranks).map(process).collect();
        processes.into_iter().map(|process| process.join().expect("no panic")).collect()
    })
}

/// A place where nobody listens; should one of its ports be taken in between, there are others.
pub fn free_place() -> Place {
    let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    let first = free.expect("a free port").port();
    Place { host: "127.0.0.1".into(), ports: (first..=u16::MAX).take(8).collect() }
}

/// The values of an output.
pub fn values(session: &Session, name: &str) -> Vec<f32> {
    let output = session.program().outputs.iter().find(|output| output.name.template == name);
    session.output(output.expect("the output is there")).expect("it can be read").to_f32()
}

/// A kernel of the given code as the program's only one, and its call.
pub fn only_kernel(program: &mut Program, code: &[u8], call: KernelCall, extent: u64) -> Operation {
    program.code = code.to_vec();
    program.kernels = vec![KernelEntry {
        name: "kernel".into(),
        code_offset: 0,
        code_bytes: code.len() as u64,
        extent,
        grain: 1,
        pointers: call.pointers.len() as u32,
        reads: 0,
        integers: call.integers.len() as u32,
    }];
    Operation::Kernel(call)
}
