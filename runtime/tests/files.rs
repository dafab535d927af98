//! Data, weights and checkpoints: the same under every sharding, and clear errors for files at fault.

mod support;

use std::path::{Path, PathBuf};

use dtlc_runtime::RuntimeError;
use dtlc_runtime::files::checkpoint::{self, Progress};
use dtlc_runtime::files::data::{Data, DataOptions, TokenWidth};
use dtlc_runtime::files::safetensors::{TensorFile, read_all};
use dtlc_runtime::files::weights::{load_weights, parameters, save_tensors};
use dtlc_runtime::program::*;
use dtlc_runtime::session::{Options, Session};
use dtlc_runtime::tensor::HostTensor;
use indexmap::IndexMap;
use support::*;

/// Shardings of the model in [`model`]: mesh, axes of `wq`'s dimension `d`, axes of `embed`'s `v`.
type Sharding = (&'static [(&'static str, u32)], &'static [u32], &'static [u32]);
const SHARDINGS: &[Sharding] = &[
    (&[], &[], &[]),
    (&[("dp", 2)], &[0], &[]),
    (&[("dp", 2), ("tp", 2)], &[1], &[0, 1]),
    (&[("tp", 4)], &[], &[0]),
];

fn placed(mut layout: Layout, dimension: u32, axes: &[u32]) -> Layout {
    for &axis in axes {
        layout = layout.placed(dimension, AxisId(axis));
    }
    layout
}

/// A stack of 2 layers of `wq [d, h, k]`, an embedding of 7 rows padded as the sharding needs, a
/// bf16 copy of it, and Adam's `m`.
fn model(&(mesh, wq_axes, embed_axes): &Sharding) -> Program {
    let mut program = empty_program(mesh);
    let wq = Layout::replicated(DType::F32, &[("l", 2), ("d", 4), ("h", 2), ("k", 3)]);
    let mut embed = placed(Layout::replicated(DType::F32, &[("v", 7), ("d", 4)]), 0, embed_axes);
    embed.dimensions[0].padded = 7u64.next_multiple_of(embed.shards(&program.mesh, 0));
    let state = |path: &str, role, names: &[&str], layout: Layout, offset, initial| StateTensor {
        path: path.into(),
        role,
        names: names.iter().map(|name| TensorName::stacked(name)).collect(),
        layout,
        offset,
        initial,
    };
    let normal = Initial::Normal { mean: 0.0, deviation: 1.0 };
    let wq_names = ["layers.{}.wq", "model.layers.{}.attn.wq"];
    let bf16 = Layout { dtype: DType::Bf16, ..embed.clone() };
    program.state = vec![
        state("layers.attn.wq", Role::Parameter, &wq_names, placed(wq.clone(), 1, wq_axes), 0, normal),
        state("layers.attn.wq", Role::Optimizer("m".into()), &[], wq, 1024, Initial::Constant(0.5)),
        state("embed", Role::Parameter, &["embed"], bf16, 2048, Initial::CopyOf(StateId(3))),
        state("embed", Role::Master, &[], embed, 3072, normal),
    ];
    program
}

fn started(sharding: &Sharding) -> Session {
    let mut session = start(&model(sharding), Options::default());
    session.initialise(5).expect("the state starts");
    session
}

fn numbers(shape: &[u64], factor: f32) -> HostTensor {
    let count: u64 = shape.iter().product();
    HostTensor::from_f32(shape, &(0..count).map(|index| index as f32 * factor).collect::<Vec<f32>>())
}

fn file(folder: &Path, name: &str, tensors: &[(&str, HostTensor)]) -> PathBuf {
    let path = folder.join(name);
    let tensors: IndexMap<String, HostTensor> =
        tensors.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone())).collect();
    save_tensors(&path, &tensors).expect("the file is written");
    path
}

/// A state tensor, whole.
fn state(session: &Session, id: u32) -> HostTensor {
    session.state(StateId(id)).expect("it can be read")
}

#[test]
fn weights_go_round_under_every_sharding_and_naming() {
    let folder = tempfile::tempdir().expect("a folder");
    let (first, second) = (numbers(&[4, 6], 0.1), numbers(&[4, 6], -0.2));
    let stack = HostTensor {
        shape: vec![2, 4, 2, 3],
        bytes: [first.bytes.clone(), second.bytes.clone()].concat(),
        ..first.clone()
    };
    let embed = numbers(&[7, 4], 0.3);
    let layered: &[(&str, HostTensor)] =
        &[("layers.0.wq", first.clone()), ("layers.1.wq", second.clone()), ("embed", embed.clone())];
    let files = [
        file(folder.path(), "layers", layered),
        file(folder.path(), "rolled", &[("layers.attn.wq", stack.clone()), ("embed", embed.clone())]),
        file(
            folder.path(),
            "golden",
            &[
                ("param.model.layers.0.attn.wq", first),
                ("param.model.layers.1.attn.wq", second),
                ("param.embed", embed.clone()),
                ("grad.embed", numbers(&[1], 1.0)),
            ],
        ),
    ];
    for sharding in SHARDINGS {
        for path in &files {
            let mut session = started(sharding);
            load_weights(&mut session, std::slice::from_ref(path)).expect("the weights fit");
            assert_eq!(state(&session, 0), stack);
            assert_eq!(state(&session, 3), embed);
            let rounded: Vec<f32> =
                embed.to_f32().iter().map(|&value| half::bf16::from_f32(value).to_f32()).collect();
            assert_eq!(state(&session, 2).to_f32(), rounded);
            assert_eq!(state(&session, 1).to_f32(), [0.5; 48]);
            let saved = folder.path().join("saved");
            save_tensors(&saved, &parameters(&session).expect("names differ")).expect("it is written");
            let read = read_all(&saved).expect("it reads back");
            assert_eq!(read.keys().collect::<Vec<_>>(), ["embed", "layers.0.wq", "layers.1.wq"]);
            assert_eq!(read["embed"], embed);
            assert_eq!(read["layers.1.wq"].shape, [4, 2, 3]);
        }
    }
}

#[test]
fn halves_are_in_files_as_they_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let tensors = [(DType::F16, "F16"), (DType::Bf16, "BF16")].map(|(dtype, name)| {
        let bytes = [0u16, 1, 0x8001, 0x3c00, 0x7bff, 0x7c00].iter().flat_map(|bits| bits.to_le_bytes());
        (name, HostTensor { dtype, shape: vec![2, 3], bytes: bytes.collect() })
    });
    let path = file(folder.path(), "halves", &tensors);
    let text = String::from_utf8_lossy(&std::fs::read(&path).expect("the file")).into_owned();
    let read = read_all(&path).expect("it reads back");
    for (name, tensor) in tensors {
        assert_eq!(read[name], tensor);
        assert!(text.contains(&format!("\"dtype\":\"{name}\"")), "{text}");
    }
}

#[test]
fn a_stack_may_be_spread_over_files_but_no_name_twice() {
    let folder = tempfile::tempdir().expect("a folder");
    let (first, second) = (numbers(&[4, 6], 0.1), numbers(&[4, 6], -0.2));
    let embed = numbers(&[7, 4], 0.3);
    let files = [
        file(folder.path(), "1", &[("layers.0.wq", first.clone()), ("embed", embed.clone())]),
        file(folder.path(), "2", &[("layers.1.wq", second.clone())]),
    ];
    let mut session = started(&SHARDINGS[2]);
    load_weights(&mut session, &files).expect("the weights fit");
    assert_eq!(state(&session, 0).bytes, [first.bytes, second.bytes].concat());
    let twice = [files[0].clone(), files[1].clone(), file(folder.path(), "3", &[("embed", embed)])];
    let error = load_weights(&mut session, &twice).expect_err("`embed` is there twice").to_string();
    assert!(error.contains("`embed` is in"), "{error}");
}

#[test]
fn all_that_is_wrong_with_weights_is_listed_and_nothing_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = file(
        folder.path(),
        "wrong",
        &[
            ("layers.0.wq", numbers(&[4, 6], 1.0)),
            ("layers.1.wq", numbers(&[6, 4], 1.0)),
            ("lm_head", numbers(&[4, 7], 1.0)),
        ],
    );
    let mut session = started(&SHARDINGS[1]);
    let before = state(&session, 0);
    let error = load_weights(&mut session, &[path]).expect_err("it does not fit");
    assert_eq!(error.exit_status(), 1);
    let RuntimeError::Input(lines) = error else { panic!("an input fault") };
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].contains("`layers.1.wq`") && lines[0].contains("[6, 4]"), "{lines:?}");
    assert!(lines[1].contains("`embed`"), "{lines:?}");
    assert!(lines[2].contains("`lm_head`"), "{lines:?}");
    assert_eq!(state(&session, 0), before);
}

#[test]
fn a_checkpoint_loads_under_another_sharding_with_the_same_bits() {
    let folder = tempfile::tempdir().expect("a folder");
    let progress = Progress { step: 12, seed: u64::MAX };
    for saved_by in SHARDINGS {
        let saver = started(saved_by);
        checkpoint::save(&saver, folder.path(), progress, "data").expect("it is written");
        for loaded_by in SHARDINGS {
            let mut loader = start(&model(loaded_by), Options::default());
            let path = checkpoint::newest(folder.path()).expect("the folder reads").expect("there is one");
            assert_eq!(checkpoint::load(&mut loader, &path), Ok(progress));
            for id in (0..4).map(StateId) {
                assert_eq!(loader.state(id), saver.state(id));
            }
        }
    }
    // A half-written checkpoint is never taken for one.
    std::fs::write(folder.path().join("step-00000099.safetensors.7.tmp"), b"half").expect("it is written");
    let newest = checkpoint::newest(folder.path()).expect("the folder reads").expect("there is one");
    assert!(newest.ends_with("step-00000012.safetensors"));
}

#[test]
fn a_checkpoint_of_another_model_is_refused_with_all_differences() {
    let folder = tempfile::tempdir().expect("a folder");
    let path =
        checkpoint::save(&started(&SHARDINGS[0]), folder.path(), Progress { step: 1, seed: 0 }, "data");
    let mut program = model(&SHARDINGS[0]);
    program.state[1].role = Role::Optimizer("v".into());
    program.state[0].layout.dimensions[1].size = 3;
    let mut session = start(&program, Options::default());
    let error = checkpoint::load(&mut session, &path.expect("it is written")).expect_err("another model");
    let RuntimeError::Input(lines) = error else { panic!("an input fault") };
    assert_eq!(lines.len(), 3, "{lines:?}");
    let weights = file(folder.path(), "weights", &[("embed", numbers(&[7, 4], 1.0))]);
    assert!(matches!(checkpoint::load(&mut session, &weights), Err(RuntimeError::File { .. })));
}

#[test]
fn hostile_safetensors_are_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = file(folder.path(), "good", &[("a", numbers(&[3, 5], 1.0)), ("b", numbers(&[2], 1.0))]);
    let good = std::fs::read(&path).expect("it reads");
    let opens = |bytes: &[u8]| {
        let path = folder.path().join("bad");
        std::fs::write(&path, bytes).expect("it is written");
        match TensorFile::open(&path) {
            Ok(file) => {
                // What opens can be read whole.
                for (name, entry) in file.entries().clone() {
                    let dtype = DType::F32;
                    let read = file.read(&name, dtype);
                    assert!(read.is_err() || entry.shape.iter().product::<u64>() <= 1000);
                }
                true
            }
            Err(error) => {
                assert_eq!(error.exit_status(), 1);
                assert!(error.to_string().contains("bad"), "{error}");
                false
            }
        }
    };
    assert!(opens(&good));
    for length in 0..good.len() {
        assert!(!opens(&good[..length]), "cut to {length}");
    }
    assert!(!opens(&[good.as_slice(), &[0]].concat()));
    let header = |text: &str, data: usize| {
        [&(text.len() as u64).to_le_bytes(), text.as_bytes(), &vec![0; data]].concat()
    };
    assert!(!opens(&u64::MAX.to_le_bytes()));
    assert!(!opens(&header("", 0)));
    assert!(!opens(&header("[]", 0)));
    assert!(!opens(&header(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#, 4)));
    assert!(!opens(&header(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#, 8)));
    assert!(!opens(&header(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#, 4)));
    let huge = format!(r#"{{"a":{{"dtype":"F32","shape":[{0},{0}],"data_offsets":[0,0]}}}}"#, u64::MAX);
    assert!(!opens(&header(&huge, 0)));
    assert!(!opens(&header(r#"{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}"#, 4)));
    for index in 0..good.len() {
        for bit in [0x01, 0x08, 0x80] {
            let mut changed = good.clone();
            changed[index] ^= bit;
            opens(&changed);
        }
    }
}

/// Inputs `tokens` and `labels` of `rows` sequences, the rows over all ranks.
fn token_program(mesh: &[(&str, u32)], rows: u64, length: u64) -> Program {
    let mut program = empty_program(mesh);
    let axes: Vec<u32> = (0..mesh.len() as u32).collect();
    // The batch is two micro-batches.
    let layout = Layout::replicated(DType::U32, &[("m", 2), ("b", rows / 2), ("s", length)]);
    let layout = placed(layout, 1, &axes);
    input(&mut program, "tokens", layout.clone(), 0);
    input(&mut program, "labels", layout.clone(), 8192);
    for (index, name) in ["tokens", "labels"].into_iter().enumerate() {
        let bytes = layout.local_bytes(&program.mesh);
        let buffer = BufferRef::new(Space::Input, 8192 * index as u64, bytes);
        program.outputs.push(Output { name: TensorName::plain(name), layout: layout.clone(), buffer });
    }
    program
}

/// Tokens and labels of each sequence of a step.
type Batch = Vec<(Vec<u32>, Vec<u32>)>;

/// Tokens and labels of a step.
fn batch(data: &Data, session: &mut Session, step: u64, length: usize) -> Batch {
    data.feed(session, step).expect("the data feeds the step");
    let sequences = |name: &str| -> Vec<Vec<u32>> {
        let values: Vec<u32> = values(session, name).iter().map(|&value| value as u32).collect();
        values.chunks(length).map(<[u32]>::to_vec).collect()
    };
    sequences("tokens").into_iter().zip(sequences("labels")).collect()
}

#[test]
fn text_gives_the_same_batches_on_any_mesh_and_each_window_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let text: Vec<u8> =
        (0..320u32).map(|index| b'!' + ((index * index / 3 + index * 5) % 89) as u8).collect();
    std::fs::create_dir(folder.path().join("sub")).expect("a folder");
    std::fs::write(folder.path().join("b.txt"), &text[..100]).expect("written");
    std::fs::write(folder.path().join("sub").join("a.txt"), &text[100..]).expect("written");
    std::fs::write(folder.path().join(".hidden"), b"no").expect("written");
    std::fs::write(folder.path().join("c.bin"), [0xff, 0xfe, 0x80]).expect("written");
    let options = DataOptions { seed: 3, vocabulary: Some(256), width: TokenWidth::U16 };
    let mut first: Option<Vec<Batch>> = None;
    for mesh in [&[][..], &[("dp", 2)], &[("dp", 2), ("tp", 2)]] {
        let program = token_program(mesh, 8, 8);
        let data = Data::open(&[folder.path().to_owned()], &program, options).expect("it opens");
        let mut session = start(&program, Options::default());
        let batches: Vec<_> = (1..=7).map(|step| batch(&data, &mut session, step, 8)).collect();
        // 39 windows of 8 tokens with a label behind each: steps 1 to 5 visit 40, so all of them.
        let mut seen: Vec<Vec<u32>> = Vec::new();
        for (tokens, labels) in batches[..5].iter().flatten().take(39) {
            assert_eq!(tokens[1..], labels[..7]);
            let text: Vec<u32> = text.iter().map(|&byte| byte.into()).collect();
            let start = text.chunks(8).position(|window| window == tokens).expect("a window of the text");
            assert_eq!(labels[7], text[start * 8 + 8]);
            seen.push(tokens.clone());
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 39);
        assert_eq!(&batches, first.get_or_insert_with(|| batches.clone()));
        // Steps don't depend on those before.
        assert_eq!(batch(&data, &mut session, 3, 8), batches[2]);
    }
}

#[test]
fn token_files_are_one_stream_and_stay_in_the_vocabulary() {
    let folder = tempfile::tempdir().expect("a folder");
    let tokens: Vec<u32> = (0..33).map(|index| index * 1000).collect();
    let path = |name: &str| folder.path().join(name);
    let narrow: Vec<u8> = tokens.iter().flat_map(|&token| (token as u16).to_le_bytes()).collect();
    std::fs::write(path("1.bin"), &narrow[..22]).expect("written");
    std::fs::write(path("2.bin"), &narrow[22..]).expect("written");
    let wide: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    std::fs::write(path("wide.bin"), wide).expect("written");
    let program = token_program(&[], 4, 8);
    let mut session = start(&program, Options::default());
    let mut options = DataOptions::for_vocabulary(40_000, 0);
    assert_eq!(options.width, TokenWidth::U16);
    let data = Data::open(&[path("1.bin"), path("2.bin")], &program, options).expect("it opens");
    let mut sequences = batch(&data, &mut session, 1, 8);
    options.width = TokenWidth::U32;
    let other = Data::open(&[path("wide.bin")], &program, options).expect("it opens");
    assert_eq!(batch(&other, &mut session, 1, 8), sequences);
    sequences.sort();
    let stream: Vec<u32> = sequences.into_iter().flat_map(|(tokens, _)| tokens).collect();
    assert_eq!(stream, tokens[..32]);
    options.vocabulary = Some(32_000);
    let data = Data::open(&[path("wide.bin")], &program, options).expect("it opens");
    let error = data.feed(&mut session, 1).expect_err("token 32000").to_string();
    assert!(error.contains("32000"), "{error}");
    std::fs::write(path("odd.bin"), [1, 2, 3]).expect("written");
    assert!(Data::open(&[path("odd.bin")], &program, options).is_err());
    let mixed = [path("1.bin"), path("text")];
    assert!(Data::open(&mixed, &program, options).is_err());
}

#[test]
fn step_files_are_consumed_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = token_program(&[("dp", 2)], 4, 3);
    let mut session = start(&program, Options::default());
    let options = DataOptions::for_vocabulary(256, 0);
    // Two steps of 4 sequences, one token longer than the model's, as signed integers.
    let tokens: Vec<u32> = (0..32).collect();
    let signed = HostTensor { dtype: DType::I32, ..HostTensor::from_u32(&[2, 4, 4], &tokens) };
    let path = file(folder.path(), "steps.safetensors", &[("tokens", signed)]);
    let data = Data::open(std::slice::from_ref(&path), &program, options).expect("it opens");
    assert_eq!(data.steps(), Some(2));
    let second = batch(&data, &mut session, 2, 3);
    assert_eq!(second[1], (vec![20, 21, 22], vec![21, 22, 23]));
    assert!(data.feed(&mut session, 3).is_err());
    // The same as tensors of their own, in two files.
    let own = |step: u32| {
        let cut = |first: u32| -> Vec<u32> {
            (0..4).flat_map(|row| (0..3).map(move |at| 16 * step + 4 * row + at + first)).collect()
        };
        let tokens = HostTensor::from_u32(&[1, 4, 3], &cut(0));
        let labels = HostTensor::from_u32(&[1, 2, 2, 3], &cut(1));
        file(folder.path(), &format!("{step}.safetensors"), &[("tokens", tokens), ("labels", labels)])
    };
    let data = Data::open(&[own(0), own(1)], &program, options).expect("it opens");
    assert_eq!(batch(&data, &mut session, 2, 3), second);
    let lacking =
        file(folder.path(), "x.safetensors", &[("labels", HostTensor::from_u32(&[1, 4, 3], &[0; 12]))]);
    let error = Data::open(&[lacking], &program, options).expect_err("no tokens").to_string();
    assert!(error.contains("`tokens`"), "{error}");
}
