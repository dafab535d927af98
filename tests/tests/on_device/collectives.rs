//! Every collective between ranks on one device, and between processes with a device each, by messages and from device to device, against the
//! CPU's: the same bits.

use crate::library::nvrtc;
use crate::switch::spread;
use dtlc_codegen::assemble::Assembled;
use dtlc_codegen::cuda::nvrtc::Nvrtc;
use dtlc_codegen::device::add_device_code;
use dtlc_emulator::Emulator;
use dtlc_runtime::program::*;
use dtlc_runtime::session::{Options, Session};
use dtlc_runtime::tensor::HostTensor;
use std::sync::Arc;

const MESHES: &[&[(&str, u32)]] = &[&[("a", 1)], &[("a", 2)], &[("a", 2), ("b", 2)], &[("a", 3)]];

/// A program on a mesh that does what `tensors` says over `axes`, from its input `in` to its output `out`.
fn program(
    mesh: &[(&str, u32)],
    axes: &[AxisId],
    kind: CollectiveKind,
    dtype: DType,
    transfers: &[Transfer],
) -> Program {
    let mesh = Mesh { axes: mesh.iter().map(|&(name, size)| MeshAxis { name: name.into(), size }).collect() };
    let mut program = Program {
        name: "collective".into(),
        mesh,
        cpu_features: CpuFeatures::default(),
        arena_bytes: 1 << 14,
        state_bytes: 0,
        input_bytes: 1 << 14,
        thread_scratch_bytes: 0,
        state: Vec::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        kernels: Vec::new(),
        code: Vec::new(),
        locations: vec![Location { file: "c.dtl".into(), line: 1, column: 1, text: String::new() }],
        instructions: Vec::new(),
        device: None,
    };
    let mut tensors = Vec::new();
    for (number, transfer) in transfers.iter().enumerate() {
        let offset = number as u64 * (1 << 12);
        let mut layout =
            Layout::replicated(dtype, &[("rank", program.mesh.ranks()), ("x", (1 << 12) / dtype.bytes())]);
        for axis in (0..program.mesh.axes.len() as u32).map(AxisId) {
            layout = layout.placed(0, axis);
        }
        let source = BufferRef::new(Space::Input, offset, 1 << 12);
        let target = BufferRef::new(Space::Arena, offset, 1 << 12);
        let name = format!("in{number}");
        program.inputs.push(Input { name, layout: layout.clone(), offset });
        let name = TensorName::plain(&format!("out{number}"));
        program.outputs.push(Output { name, layout, buffer: target.clone() });
        // What no block covers is read back too.
        let value = 7.0;
        program.instructions.push(at(Operation::Fill { target: target.clone(), dtype, value }));
        tensors.push(CollectiveTensor { source, target, dtype, transfer: *transfer });
    }
    let flight = FlightId(0);
    let collective = Collective { flight, kind, axes: axes.to_vec(), tensors };
    program.instructions.push(at(Operation::Collective(collective)));
    program.instructions.push(at(Operation::Done(flight)));
    program
}

fn at(operation: Operation) -> Instruction {
    Instruction { location: LocationId(0), operation }
}

/// Numbers whose sum depends on the order they are added in, as bytes of a type; on integers, any bytes do.
fn numbers(dtype: DType, count: u64, seed: u64) -> Vec<u8> {
    let float = |index: u64| (((index + seed) * 2_654_435_761 % 1_000_003) as f32 / 997.0 - 400.0).powi(3);
    let of = |index| match dtype {
        DType::F32 => float(index).to_le_bytes().to_vec(),
        DType::Bf16 => float(index).to_le_bytes()[2..].to_vec(),
        DType::F16 => half::f16::from_f32(float(index) * 1e-4).to_le_bytes().to_vec(),
        DType::I32 | DType::U32 => ((index + seed) as u32).wrapping_mul(2_654_435_761).to_le_bytes().to_vec(),
        DType::Bool => vec![(index + seed).is_multiple_of(3).into()],
    };
    (0..count).flat_map(of).collect()
}

/// What all ranks end up with after three steps; nothing where another process has it.
fn results(mut session: Session) -> Vec<Vec<u8>> {
    let inputs = session.program().inputs.clone();
    for (number, input) in inputs.iter().enumerate() {
        let bytes = numbers(input.layout.dtype, input.layout.global_elements(), number as u64 * 31);
        let tensor = HostTensor { dtype: input.layout.dtype, shape: input.layout.global_shape(), bytes };
        session.set_input(&input.name, &tensor).unwrap_or_else(|error| panic!("{error}"));
    }
    for step in 1..=3 {
        session.step(step, 0).unwrap_or_else(|error| panic!("{error}"));
    }
    let outputs = session.program().outputs.iter();
    let collect = |output| session.collect_output(output).unwrap_or_else(|error| panic!("{error}"));
    let collected = outputs.filter_map(|output| Some(collect(output)?.bytes)).collect();
    session.part();
    collected
}

/// The same where each rank is a process with a device of its own: they exchange by messages, or from device to device.
fn results_of_processes(program: &Program, options: Options, way: Way) -> Vec<Vec<u8>> {
    let devices = (0..program.mesh.ranks()).map(|_| Arc::new(Emulator::default()) as _).collect();
    let found = spread(devices, |process| {
        let (transport, program) = (process.transport, program.clone());
        let session = match way {
            Way::Messages => Session::start_on_among(Some(transport), process.device, program, options),
            Way::Network => {
                Session::start_on_network(transport, process.network, process.device, program, options)
            }
        };
        results(session.expect("it starts"))
    });
    found.concat()
}

#[derive(Clone, Copy)]
enum Way {
    Messages,
    Network,
}

fn check(nvrtc: &Nvrtc, program: Program) {
    let options = Options { threads: Some(1), ..Options::default() };
    let mut assembled = Assembled { program, kernels: Vec::new() };
    add_device_code(&mut assembled, nvrtc, &[]).unwrap_or_else(|error| panic!("{error}"));
    let program = assembled.program;
    let bytes = program.to_bytes().expect("it is valid");
    let read = Program::from_bytes(&bytes).expect("it reads back");
    assert_eq!(read, program);
    let text = program.to_text(text::Detail::Full).expect("it prints");
    assert_eq!(Program::from_text(&text).expect("it parses"), program);
    let on_cpu = results(Session::start(read, options).expect("it starts"));
    let device = Arc::new(Emulator::default());
    let on_device = results(Session::start_on(device, program.clone(), options).expect("it starts"));
    assert!(on_cpu == on_device, "{:?}", program.instructions.last());
    for way in [Way::Messages, Way::Network] {
        assert!(on_cpu == results_of_processes(&program, options, way), "{:?}", program.instructions.last());
    }
}

/// The transfers to try for a kind: the same pieces in one go, in strips, and cut short by pads.
fn transfers(kind: &CollectiveKind, members: u64) -> Vec<Transfer> {
    let cut = Part { block: 5, whole: 5 * members - (members.min(4) - 1) };
    match kind {
        CollectiveKind::AllGather => {
            let strips = Part::even(3, members);
            vec![
                Transfer::all_gather(1, strips),
                Transfer::all_gather(5, strips),
                Transfer::all_gather(2, cut),
            ]
        }
        CollectiveKind::ReduceScatter(_) => {
            let strips = Part::even(4, members);
            let strided = Transfer::reduce_scatter(5, strips);
            vec![Transfer::reduce_scatter(1, strips), strided, Transfer::reduce_scatter(2, cut)]
        }
        CollectiveKind::AllReduce(_) => [1, 64, 333].map(Transfer::whole).to_vec(),
        CollectiveKind::Permute(_) => vec![Transfer::whole(77)],
        CollectiveKind::AllToAll => {
            let (middle, inner) = (Part::even(2, members), Part::even(3, members));
            [Position::SplitOutside, Position::SplitInside]
                .into_iter()
                .flat_map(|position| {
                    [
                        Transfer::all_to_all(2, middle, inner, position),
                        Transfer::all_to_all(2, cut, inner, position),
                    ]
                })
                .collect()
        }
    }
}

#[test]
fn collectives_on_a_device_give_the_bits_of_the_cpu() {
    let Some(nvrtc) = nvrtc() else { return };
    for mesh in MESHES {
        let all: Vec<AxisId> = (0..mesh.len() as u32).map(AxisId).collect();
        let mut groups = vec![all.clone()];
        if all.len() > 1 {
            groups.extend([vec![all[0]], all.iter().rev().copied().collect()]);
        }
        for axes in groups {
            let members: u64 = axes.iter().map(|axis| u64::from(mesh[axis.index()].1)).product();
            let sources = (0..members as u32).map(|index| (index + 1) % members as u32).collect();
            let mut cases = vec![
                (CollectiveKind::AllGather, DType::F32),
                (CollectiveKind::AllToAll, DType::Bf16),
                (CollectiveKind::AllToAll, DType::Bool),
                (CollectiveKind::Permute(Permutation { sources }), DType::U32),
            ];
            for reduction in [Reduction::Sum, Reduction::Max] {
                cases.push((CollectiveKind::ReduceScatter(reduction), DType::F32));
                cases.push((CollectiveKind::AllReduce(reduction), DType::Bf16));
                cases.push((CollectiveKind::AllReduce(reduction), DType::F16));
                cases.push((CollectiveKind::AllReduce(reduction), DType::I32));
            }
            for (kind, dtype) in cases {
                let transfers = transfers(&kind, members);
                check(nvrtc, program(mesh, &axes, kind, dtype, &transfers));
            }
        }
    }
}
