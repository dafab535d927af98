//! What an overlapped collective reads and writes is touched by nothing else meanwhile.
//!
//! The program is put together by hand, so that work stands between each collective's start and its done.

use crate::{programs, switch};
use dtlc_emulator::{
    Argument, CudaDriver, DevicePointer, DriverError, Emulator, Event, Graph, KernelHandle, LaunchShape,
    MemoryInfo, ModuleHandle, ModuleImage, Stream, TENSOR_MAP_BYTES, TensorMap,
};
use dtlc_runtime::RuntimeError;
use dtlc_runtime::program::device::DeviceSection;
use dtlc_runtime::program::*;
use dtlc_runtime::session::{Options, Session};
use dtlc_runtime::tensor::HostTensor;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Elements of a bucket on one rank.
const ELEMENTS: u64 = 1000;
const BYTES: u64 = ELEMENTS * 4;

/// Two buckets on two ranks: each is filled, gathered while the other is at work, read where it was gathered, and filled
/// anew while the other rank may still read it.
fn two_buckets() -> Program {
    let layout = |dims: &[(&str, u64)]| Layout::replicated(DType::F32, dims).placed(0, AxisId(0));
    let mut program = empty();
    let arena = |offset, bytes| BufferRef::new(Space::Arena, offset * BYTES, bytes * BYTES);
    let bucket = |number| arena(number, 1);
    let whole = |number| arena(2 + 2 * number, 2);
    let read = |number| arena(6 + 2 * number, 2);
    let copy = |source: BufferRef, target| {
        let row_bytes = source.bytes;
        let (source_pitch, target_pitch) = (row_bytes, row_bytes);
        Operation::Copy { source, target, rows: 1, row_bytes, source_pitch, target_pitch }
    };
    let mut order: [Vec<Operation>; 2] = [Vec::new(), Vec::new()];
    let mut ends: [Vec<Operation>; 2] = [Vec::new(), Vec::new()];
    for number in 0..2 {
        let offset = number * BYTES;
        let input = layout(&[("rank", 2), ("x", ELEMENTS)]);
        program.inputs.push(Input { name: format!("in{number}"), layout: input, offset });
        let (name, buffer) = (TensorName::plain(&format!("out{number}")), read(number));
        program.outputs.push(Output { name, layout: layout(&[("rank", 2), ("x", 2 * ELEMENTS)]), buffer });
        let transfer = Transfer::all_gather(1, Part::even(ELEMENTS, 2));
        let (source, target) = (bucket(number), whole(number));
        let tensors = vec![CollectiveTensor { source, target, dtype: DType::F32, transfer }];
        let (kind, axes) = (CollectiveKind::AllGather, vec![AxisId(0)]);
        let flight = FlightId(number as u32);
        order[number as usize] = vec![
            copy(BufferRef::new(Space::Input, offset, BYTES), bucket(number)),
            Operation::Collective(Collective { flight, kind, axes, tensors }),
        ];
        ends[number as usize] = vec![
            Operation::Done(flight),
            copy(whole(number), read(number)),
            Operation::Fill { target: bucket(number), dtype: DType::I32, value: -1.0 },
        ];
    }
    let all = order.into_iter().chain(ends).flatten().enumerate();
    let at = |(line, operation)| Instruction { location: LocationId(line as u32), operation };
    program.instructions = all.map(at).collect();
    program
}

/// A program of two ranks that does nothing, with room for the buckets and ten places in its source.
fn empty() -> Program {
    let mesh = Mesh { axes: vec![MeshAxis { name: "dp".into(), size: 2 }] };
    let place = |line| Location { file: "buckets.dtl".into(), line, column: 1, text: String::new() };
    Program {
        name: "buckets".into(),
        mesh,
        cpu_features: CpuFeatures::default(),
        arena_bytes: 10 * BYTES,
        state_bytes: 0,
        input_bytes: 2 * BYTES,
        thread_scratch_bytes: 0,
        state: Vec::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        kernels: Vec::new(),
        code: Vec::new(),
        locations: (1..=10).map(place).collect(),
        instructions: Vec::new(),
        device: Some(DeviceSection { modules: Vec::new(), functions: Vec::new(), calls: Vec::new() }),
    }
}

fn given(number: usize) -> Vec<f32> {
    (0..2 * ELEMENTS).map(|index| (index as f32) + 0.5 * number as f32).collect()
}

/// Two steps on a device, and what was gathered.
fn run(driver: Arc<dyn CudaDriver>) -> Result<Vec<Vec<f32>>, RuntimeError> {
    two_steps(&mut Session::start_on(driver, two_buckets(), Options::default())?)
}

fn two_steps(session: &mut Session) -> Result<Vec<Vec<f32>>, RuntimeError> {
    for number in 0..2 {
        let tensor = HostTensor::from_f32(&[2, ELEMENTS], &given(number));
        session.set_input(&format!("in{number}"), &tensor)?;
    }
    session.step(1, 0)?;
    session.step(2, 0)?;
    let outputs = session.program().outputs.iter();
    let gathered = outputs.map(|output| Ok(session.collect_output(output)?.map(|it| it.to_f32())));
    Ok(gathered.collect::<Result<Vec<_>, RuntimeError>>()?.into_iter().flatten().collect())
}

fn assert_gathered(gathered: &[Vec<f32>]) {
    for (number, gathered) in gathered.iter().enumerate() {
        let expected = given(number);
        assert!(*gathered == [&*expected, &*expected].concat(), "bucket {number}");
    }
}

#[test]
fn ds_8061_what_a_collective_reads_is_ordered_by_events() {
    let device = Arc::new(Forgetful::new(None));
    let gathered = run(device.clone()).unwrap_or_else(|error| panic!("{error}"));
    assert_gathered(&gathered);
    // For each rank and step, the owner's writes are waited for, and for each bucket what both ranks offer and what both move.
    let waits = device.waits.lock().expect("no thread panicked").clone();
    let each: Vec<usize> = (1..=4).map(|stream| waits.get(&Stream(stream)).copied().unwrap_or(0)).collect();
    assert_eq!(each, [10, 8, 10, 8], "waits of each rank's two streams in two steps");
}

#[test]
fn ds_5545_each_event_that_is_not_waited_for_is_caught() {
    let mut caught = 0;
    for (stream, waits) in [(1, 5), (2, 4), (3, 5), (4, 4)] {
        for wait in 0..waits {
            let device = Arc::new(Forgetful::new(Some((Stream(stream), wait))));
            let error = run(device).err();
            let error = error.unwrap_or_else(|| panic!("wait {wait} of stream {stream} is not missed"));
            let text = error.to_string();
            assert_eq!(error.exit_status(), 4, "{text}");
            for part in ["rank ", "at buckets.dtl:", "no event orders the two"] {
                assert!(text.contains(part), "wait {wait} of stream {stream}, no `{part}`: {text}");
            }
            caught += 1;
        }
    }
    assert_eq!(caught, 18);
}

/// Two steps of two ranks that have a device each and exchange between those, and what was gathered; of the ranks' failures, the first.
fn run_apart(devices: [Arc<dyn CudaDriver>; 2]) -> Result<Vec<Vec<f32>>, RuntimeError> {
    let results = switch::spread(devices.into(), |process| {
        let (transport, network, device) = (process.transport, process.network, process.device);
        let mut session =
            Session::start_on_network(transport, network, device, two_buckets(), Options::default())?;
        let ended = two_steps(&mut session).inspect_err(|error| session.fail(&error.to_string()))?;
        session.part();
        Ok(ended)
    });
    // Who is only told of another's failure has no bug of its own.
    let is_bug =
        |result: &Result<_, RuntimeError>| result.as_ref().is_err_and(|error| error.exit_status() == 4);
    let first = results.iter().position(is_bug).unwrap_or(0);
    results.into_iter().nth(first).expect("there are two")
}

#[test]
fn each_event_between_devices_that_is_not_waited_for_is_caught() {
    let whole = |forgotten| Arc::new(Forgetful::new(forgotten));
    let devices = [whole(None), whole(None)];
    let gathered =
        run_apart([devices[0].clone(), devices[1].clone()]).unwrap_or_else(|error| panic!("{error}"));
    assert_gathered(&gathered);
    // The owner's writes, and for each bucket what is offered and what is moved, by the rank itself.
    let waits = devices.map(|device| device.waits.lock().expect("no thread panicked").clone());
    let each = waits.each_ref().map(|waits| [1, 2].map(|stream| waits.get(&Stream(stream)).copied()));
    assert_eq!(each, [[Some(6), Some(4)]; 2], "waits of each rank's two streams in two steps");
    for rank in 0..2 {
        for (stream, waits) in [(1, 3), (2, 2)] {
            for wait in 0..waits {
                let mut devices = [whole(None), whole(None)];
                devices[rank] = whole(Some((Stream(stream), wait)));
                let error = run_apart(devices.map(|device| device as _)).err();
                let error = error.unwrap_or_else(|| panic!("wait {wait} of stream {stream} is not missed"));
                let text = error.to_string();
                assert!(text.contains("no event orders the two"), "wait {wait} of stream {stream}: {text}");
            }
        }
    }
}

/// Two steps of two processes with a device each that exchange through the hosts, and what the first one says, whose device this is.
fn run_through_hosts(first: &Arc<Forgetful>) -> Result<Vec<Vec<f32>>, RuntimeError> {
    let results = programs::spread(2, |transport| {
        let is_first = transport.rank() == 0;
        let device = if is_first { Arc::clone(first) } else { Arc::new(Forgetful::new(None)) };
        let mut session =
            Session::start_on_among(Some(transport), device, two_buckets(), Options::default())?;
        two_steps(&mut session).inspect_err(|error| session.fail(&error.to_string()))
    });
    results.into_iter().next().expect("two")
}

#[test]
fn ds_5545_between_processes_too() {
    let device = Arc::new(Forgetful::new(None));
    assert_gathered(&run_through_hosts(&device).unwrap_or_else(|error| panic!("{error}")));
    let waits = device.waits.lock().expect("no thread panicked").clone();
    let each = [1, 2].map(|stream| waits.get(&Stream(stream)).copied().unwrap_or(0));
    assert_eq!(each, [6, 4], "waits of the rank's two streams in two steps");
    // Not the second of the rank's work, for what came first: the host waits for the movement stream until the second message is
    // fetched.
    for (stream, wait) in [(1, 0), (1, 2), (2, 0), (2, 1)] {
        let result = run_through_hosts(&Arc::new(Forgetful::new(Some((Stream(stream), wait)))));
        let error = result.err().unwrap_or_else(|| panic!("wait {wait} of stream {stream} is not missed"));
        let text = error.to_string();
        assert!(text.contains("no event orders the two"), "wait {wait} of stream {stream}: {text}");
    }
}

/// An emulated device that forgets one wait: the one of this number on a stream.
struct Forgetful {
    device: Emulator,
    forgotten: Option<(Stream, usize)>,
    /// Waits of each stream so far.
    waits: Mutex<HashMap<Stream, usize>>,
}

impl Forgetful {
    fn new(forgotten: Option<(Stream, usize)>) -> Forgetful {
        Forgetful { device: Emulator::default(), forgotten, waits: Mutex::new(HashMap::new()) }
    }
}

type Answer<T> = Result<T, DriverError>;

impl CudaDriver for Forgetful {
    fn wait(&self, stream: Stream, event: Event) -> Answer<()> {
        let mut waits = self.waits.lock().expect("no thread panicked");
        let number = waits.entry(stream).or_insert(0);
        let is_forgotten = self.forgotten == Some((stream, *number));
        *number += 1;
        if is_forgotten { Ok(()) } else { self.device.wait(stream, event) }
    }
    fn name(&self) -> String {
        self.device.name()
    }
    fn capability(&self) -> (u32, u32) {
        self.device.capability()
    }
    fn allocate(&self, bytes: u64) -> Answer<DevicePointer> {
        self.device.allocate(bytes)
    }
    fn memory(&self) -> Answer<MemoryInfo> {
        self.device.memory()
    }
    fn free(&self, pointer: DevicePointer) -> Answer<()> {
        self.device.free(pointer)
    }
    fn copy_to_device(&self, to: DevicePointer, from: &[u8], stream: Stream) -> Answer<()> {
        self.device.copy_to_device(to, from, stream)
    }
    fn copy_to_host(&self, to: &mut [u8], from: DevicePointer, stream: Stream) -> Answer<()> {
        self.device.copy_to_host(to, from, stream)
    }
    fn copy_on_device(&self, to: DevicePointer, from: DevicePointer, bytes: u64, on: Stream) -> Answer<()> {
        self.device.copy_on_device(to, from, bytes, on)
    }
    fn fill(&self, to: DevicePointer, value: u8, bytes: u64, stream: Stream) -> Answer<()> {
        self.device.fill(to, value, bytes, stream)
    }
    fn load(&self, image: &ModuleImage<'_>) -> Answer<ModuleHandle> {
        self.device.load(image)
    }
    fn unload(&self, module: ModuleHandle) -> Answer<()> {
        self.device.unload(module)
    }
    fn kernel(&self, module: ModuleHandle, name: &str) -> Answer<KernelHandle> {
        self.device.kernel(module, name)
    }
    fn tensor_map(&self, map: &TensorMap) -> Answer<[u8; TENSOR_MAP_BYTES]> {
        self.device.tensor_map(map)
    }
    fn launch(&self, kernel: KernelHandle, shape: LaunchShape, with: &[Argument], on: Stream) -> Answer<()> {
        self.device.launch(kernel, shape, with, on)
    }
    fn create_stream(&self) -> Answer<Stream> {
        self.device.create_stream()
    }
    fn create_event(&self) -> Answer<Event> {
        self.device.create_event()
    }
    fn destroy_stream(&self, stream: Stream) -> Answer<()> {
        self.device.destroy_stream(stream)
    }
    fn destroy_event(&self, event: Event) -> Answer<()> {
        self.device.destroy_event(event)
    }
    fn record(&self, event: Event, stream: Stream) -> Answer<()> {
        self.device.record(event, stream)
    }
    fn elapsed_ms(&self, from: Event, to: Event) -> Answer<f32> {
        self.device.elapsed_ms(from, to)
    }
    fn synchronize(&self, stream: Stream) -> Answer<()> {
        self.device.synchronize(stream)
    }
    fn begin_capture(&self, stream: Stream) -> Answer<()> {
        self.device.begin_capture(stream)
    }
    fn end_capture(&self, stream: Stream) -> Answer<Graph> {
        self.device.end_capture(stream)
    }
    fn set_arguments(&self, graph: Graph, launch: usize, arguments: &[Argument]) -> Answer<()> {
        self.device.set_arguments(graph, launch, arguments)
    }
    fn launch_graph(&self, graph: Graph, stream: Stream) -> Answer<()> {
        self.device.launch_graph(graph, stream)
    }
    fn destroy_graph(&self, graph: Graph) -> Answer<()> {
        self.device.destroy_graph(graph)
    }
}
