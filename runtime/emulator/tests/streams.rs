//! Streams, events and graphs: what nothing orders is a fault, what something orders is none, and a graph does what was recorded.

mod support;

use dtlc_emulator::{
    Argument, CudaDriver, DevicePointer, DriverError, Emulator, EmulatorOptions, Event, LaunchShape,
    ModuleImage, Stream, StreamCheck, StreamRace,
};
use support::Bench;

/// `bump` adds its second argument to 32 words, `even` sets the even ones of 64 bytes to 7.
const KERNELS: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry bump(.param .u64 words, .param .u32 by) {
  .reg .b64 %rd<4>;
  .reg .b32 %r<4>;
  ld.param.u64 %rd1, [words];
  ld.param.u32 %r1, [by];
  cvta.to.global.u64 %rd1, %rd1;
  mov.u32 %r2, %tid.x;
  mul.wide.u32 %rd2, %r2, 4;
  add.s64 %rd3, %rd1, %rd2;
  ld.global.u32 %r3, [%rd3];
  add.s32 %r3, %r3, %r1;
  st.global.u32 [%rd3], %r3;
  ret;
}
.visible .entry even(.param .u64 bytes) {
  .reg .b64 %rd<4>;
  .reg .b32 %r<3>;
  .reg .b16 %h<2>;
  ld.param.u64 %rd1, [bytes];
  cvta.to.global.u64 %rd1, %rd1;
  mov.u32 %r2, %tid.x;
  mul.wide.u32 %rd2, %r2, 2;
  add.s64 %rd3, %rd1, %rd2;
  mov.u16 %h1, 7;
  st.global.u8 [%rd3], %h1;
  ret;
}
";

/// A device with the kernels, two streams, an event, and a buffer of 32 words that are 1, settled.
struct Scene {
    bench: Bench,
    first: Stream,
    second: Stream,
    event: Event,
    words: DevicePointer,
    other: DevicePointer,
}

impl Scene {
    fn new() -> Scene {
        let bench = Bench::new(KERNELS);
        let stream = || bench.device.create_stream().expect("a stream");
        let (first, second) = (stream(), stream());
        let event = bench.device.create_event().expect("an event");
        let (words, other) = (bench.buffer(&[1_u32; 32]), bench.buffer(&[2_u32; 32]));
        bench.device.synchronize(Stream::DEFAULT).expect("it waits");
        Scene { bench, first, second, event, words, other }
    }

    fn bump(&self, words: DevicePointer, by: u32, stream: Stream) -> Result<(), DriverError> {
        let kernel = self.bench.device.kernel(self.bench.module, "bump")?;
        let arguments = [Argument::Pointer(words), Argument::U32(by)];
        self.bench.device.launch(kernel, LaunchShape::linear(1, 32), &arguments, stream)
    }

    fn copy(&self, stream: Stream) -> Result<(), DriverError> {
        self.bench.device.copy_on_device(self.other, self.words, 128, stream)
    }

    /// Lets one stream wait for what another has been asked so far.
    fn order(&self, before: Stream, behind: Stream) {
        self.bench.device.record(self.event, before).expect("it records");
        self.bench.device.wait(behind, self.event).expect("it waits");
    }

    fn words(&self, pointer: DevicePointer) -> Vec<u32> {
        self.bench.device.synchronize(self.first).expect("it waits");
        self.bench.device.synchronize(self.second).expect("it waits");
        self.bench.values(pointer, 32)
    }
}

fn race(result: Result<(), DriverError>) -> StreamRace {
    match result {
        Err(DriverError::Race(race)) => *race,
        other => panic!("a race is expected, not {other:?}"),
    }
}

#[test]
fn a_read_of_what_another_stream_wrote_needs_an_event() {
    let scene = Scene::new();
    scene.bump(scene.words, 1, scene.first).expect("nothing else runs");
    let found = race(scene.copy(scene.second));
    assert_eq!((found.at, found.late.wrote, found.early.wrote), (scene.words, false, true));
    let text = found.to_string();
    for part in ["a copy on the device on stream 2 reads", "kernel `bump` on stream 1 writes", "no event"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let scene = Scene::new();
    scene.bump(scene.words, 1, scene.first).expect("nothing else runs");
    scene.order(scene.first, scene.second);
    scene.copy(scene.second).expect("the event orders them");
    assert_eq!(scene.words(scene.other), [2; 32]);
}

#[test]
fn a_write_of_what_another_stream_reads_needs_an_event() {
    let scene = Scene::new();
    scene.copy(scene.first).expect("nothing else runs");
    let found = race(scene.bump(scene.words, 1, scene.second));
    assert_eq!((found.late.wrote, found.early.wrote), (true, false));
    let scene = Scene::new();
    scene.copy(scene.first).expect("nothing else runs");
    scene.order(scene.first, scene.second);
    scene.bump(scene.words, 1, scene.second).expect("the event orders them");
}

#[test]
fn an_event_orders_what_came_before_it_and_no_more() {
    let scene = Scene::new();
    scene.order(scene.first, scene.second);
    scene.bump(scene.words, 1, scene.first).expect("nothing else runs");
    race(scene.copy(scene.second));
}

#[test]
fn orders_add_up_and_the_host_counts() {
    let scene = Scene::new();
    let third = scene.bench.device.create_stream().expect("a stream");
    scene.bump(scene.words, 1, scene.first).expect("nothing else runs");
    scene.order(scene.first, third);
    scene.order(third, scene.second);
    scene.copy(scene.second).expect("it is ordered through the third stream");
    scene.bench.device.synchronize(scene.second).expect("it waits");
    scene.bump(scene.other, 1, scene.first).expect("the host has waited for the copy");
    assert_eq!(scene.words(scene.other), [3; 32]);
}

#[test]
fn a_writer_must_come_behind_every_reader() {
    let scene = Scene::new();
    let device = &scene.bench.device;
    let third = device.create_stream().expect("a stream");
    let targets = [scene.bench.room::<u32>(32), scene.bench.room::<u32>(32)];
    for (target, stream) in targets.into_iter().zip([scene.first, third]) {
        device.copy_on_device(target, scene.words, 128, stream).expect("two may read");
    }
    scene.order(scene.first, scene.second);
    let found = race(scene.bump(scene.words, 1, scene.second));
    assert_eq!(found.early.stream, third);
}

#[test]
fn neighbouring_bytes_are_nobody_s_business() {
    let scene = Scene::new();
    let device = &scene.bench.device;
    let kernel = device.kernel(scene.bench.module, "even").expect("it is there");
    let shape = LaunchShape::linear(1, 16);
    device.launch(kernel, shape, &[Argument::Pointer(scene.words)], scene.first).expect("even bytes");
    let odd = [Argument::Pointer(scene.words.offset(1))];
    device.launch(kernel, shape, &odd, scene.second).expect("odd bytes");
    device.fill(scene.words.offset(32), 9, 96, scene.second).expect("the bytes behind");
    let third = device.create_stream().expect("a stream");
    let found = race(device.fill(scene.words.offset(31), 9, 1, third));
    assert_eq!(found.at, scene.words.offset(31));
}

#[test]
fn copies_from_the_host_are_ordered_like_all_else() {
    let scene = Scene::new();
    let device = &scene.bench.device;
    device.copy_to_device(scene.words, &[0; 128], scene.first).expect("nothing else runs");
    race(scene.copy(scene.second));
    let mut bytes = [1; 128];
    device.copy_to_host(&mut bytes, scene.words, scene.first).expect("its own stream");
    assert_eq!(bytes, [0; 128]);
}

#[test]
fn the_check_can_be_left_out() {
    let options = EmulatorOptions { streams: StreamCheck::Off, ..EmulatorOptions::default() };
    let device = Emulator::new(options);
    let words = device.allocate(128).expect("there is room");
    let stream = device.create_stream().expect("a stream");
    device.fill(words, 1, 128, Stream::DEFAULT).expect("it fits");
    device.fill(words, 2, 128, stream).expect("nobody looks");
}

#[test]
fn a_graph_does_what_was_recorded_on_all_its_streams() {
    let scene = Scene::new();
    let device = &scene.bench.device;
    device.begin_capture(scene.first).expect("it begins");
    scene.bump(scene.words, 10, scene.first).expect("it is recorded");
    scene.order(scene.first, scene.second);
    scene.copy(scene.second).expect("it is recorded");
    let back = device.create_event().expect("an event");
    device.record(back, scene.second).expect("it is recorded");
    device.wait(scene.first, back).expect("it is recorded");
    scene.bump(scene.other, 100, scene.first).expect("it is recorded");
    let graph = device.end_capture(scene.first).expect("it ends");
    assert_eq!(scene.words(scene.words), [1; 32], "nothing was done yet");
    device.launch_graph(graph, scene.first).expect("it runs");
    assert_eq!((scene.words(scene.words), scene.words(scene.other)), (vec![11; 32], vec![111; 32]));
    let arguments = [Argument::Pointer(scene.other), Argument::U32(1000)];
    device.set_arguments(graph, 1, &arguments).expect("the second launch takes them");
    device.launch_graph(graph, scene.second).expect("on another stream");
    assert_eq!((scene.words(scene.words), scene.words(scene.other)), (vec![21; 32], vec![1021; 32]));
    for (launch, arguments) in [(2, &arguments[..]), (0, &arguments[..1])] {
        device.set_arguments(graph, launch, arguments).expect_err("no such launch, or not its arguments");
    }
    device.destroy_graph(graph).expect("it is there");
    assert_eq!(device.launch_graph(graph, scene.first), Err(DriverError::BadHandle("graph")));
}

#[test]
fn a_race_within_a_graph_and_beside_it_is_found_when_it_runs() {
    let scene = Scene::new();
    let device = &scene.bench.device;
    let back = device.create_event().expect("an event");
    device.begin_capture(scene.first).expect("it begins");
    scene.order(scene.first, scene.second);
    scene.bump(scene.words, 10, scene.first).expect("it is recorded");
    scene.copy(scene.second).expect("it is recorded");
    device.record(back, scene.second).expect("it is recorded");
    device.wait(scene.first, back).expect("it is recorded");
    let graph = device.end_capture(scene.first).expect("it ends");
    race(device.launch_graph(graph, scene.first));

    let scene = Scene::new();
    let device = &scene.bench.device;
    device.begin_capture(scene.first).expect("it begins");
    scene.bump(scene.words, 10, scene.first).expect("it is recorded");
    let graph = device.end_capture(scene.first).expect("it ends");
    scene.bump(scene.words, 10, scene.second).expect("nothing else runs");
    race(device.launch_graph(graph, scene.first));
}

#[test]
fn what_cannot_be_recorded_is_refused() {
    let refused = |result: Result<(), DriverError>, part: &str| match result {
        Err(DriverError::Capture(reason)) => assert!(reason.contains(part), "{part}: {reason}"),
        other => panic!("a refusal is expected, not {other:?}"),
    };
    let scene = Scene::new();
    let device = &scene.bench.device;
    device.begin_capture(scene.first).expect("it begins");
    refused(device.begin_capture(scene.first), "captured already");
    refused(device.synchronize(scene.first), "waiting for a stream can't be recorded");
    refused(device.end_capture(scene.first).map(drop), "waiting for a stream");

    device.begin_capture(scene.first).expect("it begins anew");
    scene.order(scene.first, scene.second);
    scene.copy(scene.second).expect("it is recorded");
    refused(device.end_capture(scene.first).map(drop), "stream 2 is not waited for");

    device.record(scene.event, scene.second).expect("it is not captured any more");
    device.begin_capture(scene.first).expect("it begins anew");
    refused(device.wait(scene.first, scene.event), "from outside the capture");
}

#[test]
fn what_was_given_back_is_gone() {
    let scene = Scene::new();
    let device = &scene.bench.device;
    let before = device.memory().expect("it says");
    let extra = device.allocate(1000).expect("there is room");
    let after = device.memory().expect("it says");
    assert_eq!((before.total, before.free - after.free), (after.total, 1000));
    device.free(extra).expect("it is there");
    let image = ModuleImage { name: "again", ptx: KERNELS, cubin: &[] };
    let module = device.load(&image).expect("it loads");
    let kernel = device.kernel(module, "even").expect("it is there");
    device.unload(module).expect("it is there");
    assert_eq!(device.unload(module), Err(DriverError::BadHandle("module")));
    let launched = device.launch(kernel, LaunchShape::linear(1, 1), &[], Stream::DEFAULT);
    assert_eq!(launched, Err(DriverError::BadHandle("kernel")));
    device.destroy_stream(scene.second).expect("it is there");
    assert_eq!(device.synchronize(scene.second), Err(DriverError::BadHandle("stream")));
    device.destroy_stream(Stream::DEFAULT).expect_err("it stays");
    device.destroy_event(scene.event).expect("it is there");
    assert_eq!(device.record(scene.event, scene.first), Err(DriverError::BadHandle("event")));
}
