//! The training loop: reports, stopping, resuming; and single evaluations.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};

use dtlc_runtime::RuntimeError;
use dtlc_runtime::files::checkpoint;
use dtlc_runtime::files::data::{Data, DataOptions};
use dtlc_runtime::program::*;
use dtlc_runtime::session::{Options, Session};
use dtlc_runtime::tensor::HostTensor;
use dtlc_runtime::train::{Checkpoints, Ending, StepReport, TrainOptions, evaluate, train};
use indexmap::IndexMap;
use support::*;

/// A "model" whose state doubles at each step (as a sum over two ranks) and whose loss is the state.
fn doubling_program() -> Program {
    let mut program = empty_program(&[("dp", 2)]);
    let layout = Layout::replicated(DType::U32, &[("b", 2), ("s", 4)]).placed(0, AxisId(0));
    input(&mut program, "tokens", layout, 0);
    let weight = BufferRef::new(Space::State, 0, 4);
    program.state.push(StateTensor {
        path: "w".into(),
        role: Role::Parameter,
        names: vec![TensorName::plain("w")],
        layout: Layout::replicated(DType::F32, &[]),
        offset: 0,
        initial: Initial::Constant(1.0),
    });
    program.outputs.push(Output {
        name: TensorName::plain("loss"),
        layout: Layout::replicated(DType::F32, &[]),
        buffer: weight.clone(),
    });
    let tensor = CollectiveTensor {
        source: weight.clone(),
        target: weight,
        dtype: DType::F32,
        transfer: Transfer::whole(1),
    };
    let kind = CollectiveKind::AllReduce(Reduction::Sum);
    let collective = Collective { flight: FlightId(0), kind, axes: vec![AxisId(0)], tensors: vec![tensor] };
    program.instructions = with_dones(vec![at(0, Operation::Collective(collective))]);
    program
}

fn started() -> (Session, Data, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("text"), "some text to be cut into windows").expect("written");
    let program = doubling_program();
    let options = DataOptions::for_vocabulary(256, 0);
    let data = Data::open(&[folder.path().join("text")], &program, options).expect("it opens");
    let mut session = start(&program, Options::default());
    session.initialise(0).expect("the state starts");
    (session, data, folder)
}

fn options(first_step: u64, last_step: u64, checkpoints: Option<Checkpoints>) -> TrainOptions {
    TrainOptions { first_step, last_step, seed: 1, origin: 0, checkpoints }
}

#[test]
fn each_step_is_reported_and_a_resumed_run_goes_on() {
    let (mut session, data, folder) = started();
    let checkpoints = Some(Checkpoints { folder: folder.path().join("checkpoints"), interval: 2 });
    let stop = AtomicBool::new(false);
    let mut reports: Vec<StepReport> = Vec::new();
    let options_before = options(1, 3, checkpoints.clone());
    let ending = train(&mut session, &data, &options_before, &stop, |report| reports.push(*report));
    assert_eq!(ending, Ok(Ending::Finished));
    let losses: Vec<Option<f32>> = reports.iter().map(|report| report.loss).collect();
    assert_eq!(losses, [Some(2.0), Some(4.0), Some(8.0)]);
    assert_eq!((reports[2].step, reports[2].tokens, reports[2].grad_norm), (3, 8, None));
    assert_eq!(reports[0].peak_bytes, session.rank_bytes());
    let (mut session, data, _other) = started();
    let folder = folder.path().join("checkpoints");
    let newest = checkpoint::newest(&folder).expect("the folder reads").expect("there is one");
    let progress = checkpoint::load(&mut session, &newest).expect("it loads");
    assert_eq!((progress.step, progress.seed), (3, 1));
    assert!(checkpoint::path_of(&folder, 2).exists());
    let options = options(progress.step + 1, 4, None);
    assert_eq!(train(&mut session, &data, &options, &stop, |_| ()), Ok(Ending::Finished));
    assert_eq!(session.scalar("loss"), Ok(Some(16.0)));
}

#[test]
fn a_stop_ends_the_step_and_leaves_a_checkpoint() {
    let (mut session, data, folder) = started();
    let folder = folder.path().join("checkpoints");
    let stop = AtomicBool::new(false);
    let checkpoints = Some(Checkpoints { folder: folder.clone(), interval: 0 });
    let ending = train(&mut session, &data, &options(1, 100, checkpoints), &stop, |report| {
        stop.store(report.step == 5, Ordering::Relaxed);
    });
    assert_eq!(ending, Ok(Ending::Stopped { step: 5 }));
    let newest = checkpoint::newest(&folder).expect("the folder reads");
    assert_eq!(newest, Some(checkpoint::path_of(&folder, 5)));
}

#[test]
fn an_evaluation_needs_exactly_the_inputs() {
    let (mut session, _, _folder) = started();
    let tokens = HostTensor::from_u32(&[2, 4], &[7; 8]);
    let inputs: IndexMap<String, HostTensor> = [("tokens".to_owned(), tokens.clone())].into();
    let outputs = evaluate(&mut session, &inputs, 0).expect("it runs");
    assert_eq!(outputs["loss"].to_f32(), [2.0]);
    let wrong: IndexMap<String, HostTensor> = [("token".to_owned(), tokens)].into();
    let Err(RuntimeError::Input(lines)) = evaluate(&mut session, &wrong, 0) else { panic!("an input fault") };
    assert_eq!(lines.len(), 2, "{lines:?}");
}
