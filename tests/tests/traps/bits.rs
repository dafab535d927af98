//! Traps in which the number of ranks, a checkpoint or a pad shows in the numbers.

use crate::support::{
    Tensors, assert_close, assert_same_bits, compile, evaluate, figures, rows, session, states, step, wave,
};
use dtlc::pipeline::Mode;
use dtlc_runtime::files::checkpoint::{Progress, load, save};
use dtlc_runtime::session::Session;
use dtlc_runtime::tensor::HostTensor;

#[test]
fn pt_168058_dropout_and_initial_values_do_not_depend_on_the_ranks() {
    let model = "
use std::dropout::dropout

model M {
  dims B, S, D = 6
  param weight: [S, D]

  fn loss(x: f32[B, S, D]) -> (f32[], f32[B, S, D], f32[B, S]) {
    let kept = dropout(float(x), 0.4)
    (mean(f32(kept * weight)), f32(kept), f32(random[B, S]))
  }
}
";
    let batch = "batch { seq 8, global 4 }";
    let one = format!("mesh {{ x: 1 }}\n{batch}");
    let mut source = format!("{model}\nplan one for M {{\n{one}\n}}\n");
    let mut names = vec![];
    for ranks in [2, 4] {
        for (name, step) in [("rows", "step s: acts B -> x"), ("columns", "step s: S -> x"), ("whole", "")] {
            let name = format!("{name}{ranks}");
            source += &format!("\nplan {name} for M {{\nmesh {{ x: {ranks} }}\n{step}\n{batch}\n}}\n");
            names.push(name);
        }
    }
    source += &format!(
        "\nplan both for M {{\nmesh {{ x: 2, y: 2 }}\nstep s: acts B -> x\nstep t: S -> y\n{batch}\n}}\n"
    );
    source +=
        "\nplan micro for M {\nmesh { x: 2 }\nstep s: acts B -> x\nbatch { seq 8, global 4, micro 1 }\n}\n";
    names.extend(["both".to_owned(), "micro".to_owned()]);
    let inputs: Tensors = [("x".to_owned(), wave(&[4, 8, 6], 7))].into();
    let draw = |plan: &str| -> (Tensors, Tensors) {
        let mut session = session(&source, plan, Mode::Gradients);
        let initial = states(&session);
        let outputs = step(&mut session, 5, &inputs);
        let drawn = outputs.into_iter().filter(|(name, _)| name != "loss" && !name.starts_with("grad."));
        // Micro-batches are a dimension of their own in front of the batch; the elements are in the same order.
        let flat = |tensor: HostTensor| HostTensor { shape: vec![tensor.elements()], ..tensor };
        (initial, drawn.map(|(name, tensor)| (name, flat(tensor))).collect())
    };
    let (initial, drawn) = draw("one");
    assert_eq!(drawn.len(), 2, "{:?}", drawn.keys());
    let zeros = drawn.values().next().map(|kept| kept.to_f32().iter().filter(|&&it| it == 0.0).count());
    assert!(zeros.is_some_and(|zeros| (40..120).contains(&zeros)), "{zeros:?} of 192 are dropped");
    for name in &names {
        let (others_initial, others_drawn) = draw(name);
        assert_same_bits(&initial, &others_initial, name);
        assert_same_bits(&drawn, &others_drawn, name);
    }
}

#[test]
fn pt_106395_sums_of_bf16_keep_a_bound_that_does_not_grow_with_the_ranks() {
    // A product summed over ranks, and a gradient summed over ranks.
    let model = "
model M {
  dims B, F = 64, O = 16
  param w: [F, O]

  fn loss(x: f32[B, F], pull: f32[B, O]) -> (f32[], f32[B, O]) {
    let y = dot[F](float(x), w)
    (sum(f32(y) * pull), f32(y))
  }
}
";
    let precision = "precision { compute bf16, params bf16, grads bf16, master f32, reduce f32 }";
    let mut source =
        format!("{model}\nplan one for M {{\nmesh {{ r: 1 }}\nbatch {{ global 8 }}\n{precision}\n}}\n");
    for ranks in [2, 4, 8] {
        for (name, rule) in [("tp", "F -> r"), ("dp", "acts B -> r")] {
            source += &format!(
                "\nplan {name}{ranks} for M {{\nmesh {{ r: {ranks} }}\nstep s: {rule}\nbatch {{ global 8 }}\n{precision}\n}}\n"
            );
        }
    }
    // Rank 0 has a large part and every other one a part below half of its last digit: adding them one by one in bf16
    // would lose them all.
    let x: Vec<f32> = (0..8 * 64)
        .map(|index| if index % 64 < 8 { 32.0 } else { 0.0625 + (index % 5) as f32 / 64.0 })
        .collect();
    let pull: Vec<f32> =
        (0..8 * 16).map(|index| if index < 16 { 256.0 } else { 0.75 + (index % 3) as f32 / 8.0 }).collect();
    let inputs: Tensors = [
        ("x".to_owned(), HostTensor::from_f32(&[8, 64], &x)),
        ("pull".to_owned(), HostTensor::from_f32(&[8, 16], &pull)),
    ]
    .into();
    let w: Vec<f32> = (0..64 * 16).map(|index| 1.0 + (index % 3) as f32 / 4.0).collect();
    for plan in ["one", "tp2", "tp4", "tp8", "dp2", "dp4", "dp8"] {
        let mut session = session(&source, plan, Mode::Gradients);
        let state = dtlc_runtime::program::StateId(0);
        session.set_state(state, &HostTensor::from_f32(&[64, 16], &w)).expect("the weight fits");
        let outputs = step(&mut session, 1, &inputs);
        let y = outputs.iter().find(|(_, tensor)| tensor.shape == [8, 16]).expect("y").1.to_f32();
        for (index, &got) in y.iter().enumerate() {
            let (row, column) = (index / 16, index % 16);
            let terms = (0..64).map(|f| f64::from(x[row * 64 + f]) * f64::from(w[f * 16 + column]));
            within(terms, got, &format!("{plan}: y[{row}, {column}]"));
        }
        for (index, &got) in outputs["grad.w"].to_f32().iter().enumerate() {
            let (f, column) = (index / 16, index % 16);
            let terms = (0..8).map(|row| f64::from(x[row * 64 + f]) * f64::from(pull[row * 16 + column]));
            within(terms, got, &format!("{plan}: grad.w[{f}, {column}]"));
        }
    }
}

/// The bound, on any number of ranks: each rank rounds its part once and the sum, taken in f32, is rounded once, to 8
/// bits each; half of the last bit of both is 2⁻⁹ (Σ|part| + |sum|), at most 2⁻⁸ Σ|term|. The roundings of f32 are
/// far below an eighth of that.
fn within(terms: impl Iterator<Item = f64>, got: f32, what: &str) {
    let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
    let bound = (size + sum.abs()) / 512.0 * 1.125;
    assert!((f64::from(got) - sum).abs() <= bound, "{what} is {got}, not {sum} within {bound}");
}

/// Tied, odd, with norms, biases and rotary positions.
const MODEL: &str = "
use std::attention::GroupedQuery
use std::loss::cross_entropy
use std::nn::{Embedding, LayerNorm, SwiGlu}

layer Block[D, KV, G, K, F] {
  norm_attn = LayerNorm[D]
  attn = GroupedQuery[D, KV, G, K](bias = true)
  norm_mlp = LayerNorm[D]
  mlp = SwiGlu[D, F]

  fn (x: [B, S, D]) -> [B, S, D] {
    let h = x + attn(norm_attn(x))
    h + mlp(norm_mlp(h))
  }
}

model M {
  dims B, S, D = 8, KV = 2, G = 2, H = KV * G, K = 4, F = 12, V = 21, L = 2

  embed = Embedding[V, D](deviation = 1.0)
  layers = repeat[L] Block[D, KV, G, K, F]
  norm = LayerNorm[D]

  fn loss(tokens: u32[B, S], labels: u32[B, S]) -> f32[] {
    let logits = embed.logits(norm(layers(embed(tokens))))
    mean(cross_entropy[V](logits, labels), over = labels != 0xffffffff)
  }
}
";

#[test]
fn ds_2898_a_checkpoint_loads_under_any_plan() {
    let shared = "batch { seq 8, global 4 }\n\
                  precision { compute bf16, params bf16, grads f32, master f32, reduce f32 }\n\
                  optimizer adamw { lr 0.01, decay 0.1 on weight, clip 1.0 }";
    let shapes = [
        ("one", "mesh { dp: 1 }"),
        ("dp2", "mesh { dp: 2 }\nstep d: acts B -> dp"),
        ("tp2", "mesh { tp: 2 }\nstep t: H, KV, F -> tp\nstep v: V -> tp pad"),
        (
            "tp4_sp",
            "mesh { tp: 4 }\nstep t: H, KV, F -> tp\nstep v: V -> tp pad\nstep s: acts S -> tp at Block.x",
        ),
        ("zero1", "mesh { dp: 4 }\nstep d: acts B -> dp\nstep zero(1): over dp"),
        ("zero3", "mesh { dp: 2 }\nstep d: acts B -> dp\nstep zero(3): over dp"),
        (
            "all",
            "mesh { dp: { outer: 2, inner: 2 }, tp: 2 }\nstep d: acts B -> dp\nstep t: H, KV, F -> tp\n\
             step v: V -> tp pad\nstep zero(3): over dp.inner",
        ),
    ];
    let mut source = MODEL.to_owned();
    for (name, entries) in shapes {
        source += &format!("\nplan {name} for M {{\n{entries}\n{shared}\n}}\n");
    }
    let inputs = rows(8, 21, &[8, 8, 5, 3]);
    let folder = tempfile::tempdir().expect("a folder");
    let progress = Progress { step: 2, seed: 7 };
    let mut sessions: Vec<Session> =
        shapes.iter().map(|(name, _)| session(&source, name, Mode::Train)).collect();
    let mut written = Vec::new();
    for ((name, _), writer) in shapes.iter().zip(&mut sessions) {
        step(writer, 1, &inputs);
        step(writer, 2, &inputs);
        let states = states(writer);
        assert!(states.keys().any(|key| key.starts_with("Optimizer(\"v\")")), "{:?}", states.keys());
        assert!(states.keys().any(|key| key.starts_with("Master")), "{:?}", states.keys());
        written
            .push((states, save(writer, &folder.path().join(name), progress, "data").expect("it is saved")));
    }
    // Each plan's state in each plan. Bits differ between plans, so a load that did nothing would show.
    for ((from, _), (expected, path)) in shapes.iter().zip(&written) {
        for ((to, _), reader) in shapes.iter().zip(&mut sessions) {
            assert_eq!(load(reader, path), Ok(progress), "{from} in {to}");
            assert_same_bits(expected, &states(reader), &format!("{from} in {to}"));
        }
    }
}

#[test]
fn ds_4851_a_part_kept_for_the_backward_pass_changes_nothing() {
    let mesh = "mesh { dp: { outer: 2, inner: 2 }, tp: 2 }\nstep d: acts B -> dp\nstep t: H, KV, F -> tp";
    let zero = "step zero(3): over dp";
    let keep = "step keep: store backward: largest -> dp.inner";
    let precisions = ["", "precision { compute bf16, params bf16, grads f32, master f32, reduce f32 }"];
    for precision in precisions {
        let shared = format!(
            "batch {{ seq 8, global 8, micro 1 }}\n{precision}\noptimizer adamw {{ lr 0.01, decay 0.1 on weight, clip 1.0 }}"
        );
        let plans = [
            ("zero3", String::new()),
            ("hpz", keep.to_owned()),
            ("hpz_full", format!("{keep}\nremat Block: full")),
            ("hpz_save", format!("{keep}\nremat Block: save attn.out")),
            ("two_steps", "step a: store backward: largest -> dp.inner at Block\nstep b: store backward: largest -> dp.inner at embed, norm".to_owned()),
        ];
        let mut source = MODEL.to_owned();
        for (name, entries) in &plans {
            source += &format!("\nplan {name} for M {{\n{mesh}\n{zero}\n{entries}\n{shared}\n}}\n");
        }
        let inputs = rows(8, 21, &[8, 8, 5, 3, 1, 8, 2, 7]);
        let train = |plan: &str| {
            let mut session = session(&source, plan, Mode::Train);
            let outputs: Vec<Tensors> = (1..=3).map(|number| step(&mut session, number, &inputs)).collect();
            (outputs, states(&session))
        };
        let (outputs, trained) = train("zero3");
        let crosses = |plan: &str, phase: &str| -> u64 {
            let calls = figures(&source, plan).collectives;
            let of_phase = calls.iter().filter(|call| call.phase == phase && call.kind == "all_gather");
            of_phase.filter(|call| call.axis != "dp.inner" && call.axis != "tp").map(|call| call.bytes).sum()
        };
        assert!(crosses("zero3", "backward") > 0, "every gather of the backward pass goes over all of dp");
        for (plan, _) in &plans[1..] {
            let (others_outputs, others_trained) = train(plan);
            for (expected, got) in outputs.iter().zip(&others_outputs) {
                assert_same_bits(expected, got, plan);
            }
            assert_same_bits(&trained, &others_trained, plan);
            assert_eq!(crosses(plan, "backward"), 0, "{plan}: the backward pass stays within dp.inner");
            assert_eq!(crosses(plan, "recompute"), 0, "{plan}: so does what is computed again");
            assert_eq!(crosses(plan, "forward"), crosses("zero3", "forward"), "{plan}");
        }
    }
}

#[test]
fn a_part_is_kept_of_what_is_stored_in_parts() {
    let plan = "mesh { dp: { outer: 2, inner: 2 } }\nstep d: acts B -> dp\nstep zero(2): over dp\n\
                step k: store backward: largest -> dp.inner\nbatch { seq 8, global 4 }\noptimizer sgd { lr 0.1 }";
    let source = format!("{MODEL}\nplan p for M {{\n{plan}\n}}\n");
    let Err(report) = compile(&source, "p", Mode::Train) else { panic!("parameters are whole everywhere") };
    assert!(report.contains("no parameter is stored in parts over dp.inner"), "{report}");
    assert!(compile(&source.replace("zero(2)", "zero(3)"), "p", Mode::Train).is_ok());
}

#[test]
fn a_part_is_kept_of_what_its_use_splits_as_far_as_it_goes() {
    let model = "
use std::loss::cross_entropy
use std::nn::{Embedding, Linear}

layer Block[D, O] {
  map = Linear[D -> O]
  fn (x: [B, S, D]) -> [B, S, D] {
    x + rename[O -> D](map(x))
  }
}

model M {
  dims B, S, D = 4, O = 4, V = 21
  embed = Embedding[V, D]
  blocks = repeat[2] Block[D, O]

  fn loss(tokens: u32[B, S], labels: u32[B, S]) -> f32[] {
    mean(cross_entropy[V](embed.logits(blocks(embed(tokens))), labels))
  }
}
";
    // The weight rests as [D@tp, O@dp] and is used as [D, O@tp], which leaves one column for a rank.
    let rest = "mesh { dp: 2, tp: 4 }\nstep width: params D -> tp\nstep rest: store params: largest -> dp\n\
                batch { seq 8, global 4 }\noptimizer sgd { lr 0.1 }";
    let keep = "step keep: store backward: largest -> dp";
    let source =
        format!("{model}\nplan rest for M {{\n{rest}\n}}\n\nplan kept for M {{\n{rest}\n{keep}\n}}\n");
    let inputs = rows(8, 21, &[8, 8, 5, 3]);
    let [rest, kept] = ["rest", "kept"].map(|plan| evaluate(&source, plan, &inputs));
    assert_same_bits(&rest, &kept, "kept");
}

#[test]
fn mega_1754_vocabulary_pads_are_in_nothing() {
    let model = MODEL.replace("V = 21", "V = 50257").replace("L = 2", "L = 1");
    let shared = "batch { seq 4, global 2 }\noptimizer adamw { lr 0.01, decay 0.1 on weight, clip 0.5 }";
    let plan = |ranks: u64| format!("mesh {{ tp: {ranks} }}\nstep v: V -> tp pad\n{shared}");
    let one = format!("mesh {{ tp: 1 }}\n{shared}");
    let mut source = format!("{model}\nplan one for M {{\n{one}\n}}\n");
    for ranks in [2, 8] {
        source += &format!("\nplan tp{ranks} for M {{\n{}\n}}\n", plan(ranks));
    }
    let mut inputs = rows(4, 50257, &[4, 3]);
    // The last row of the table, which shares its rank with the pads.
    let tokens = [50256u32, 7, 25129, 50256, 0, 43975, 50249, 1];
    inputs.insert("tokens".to_owned(), HostTensor::from_u32(&[2, 4], &tokens));
    let gradients = evaluate(&source, "one", &inputs);
    let (mut expected, folder) = (None, tempfile::tempdir().expect("a folder"));
    for plan in ["one", "tp2", "tp8"] {
        assert_close(&gradients, &evaluate(&source, plan, &inputs), 2e-5, plan);
        let mut session = session(&source, plan, Mode::Train);
        let outputs = step(&mut session, 1, &inputs);
        let numbers: Tensors =
            ["loss", "grad_norm"].map(|name| (name.to_owned(), outputs[name].clone())).into();
        let path = save(&session, folder.path(), Progress { step: 1, seed: 7 }, "data").expect("it is saved");
        let saved = dtlc_runtime::files::safetensors::read_all(&path).expect("it reads");
        assert_eq!(saved["param.embed.weight"].shape, [50257, 8], "{plan}");
        let (first, checkpoint) = expected.get_or_insert_with(|| (numbers.clone(), saved.clone()));
        assert_close(first, &numbers, 1e-6, plan);
        // Adam's step is about the learning rate wherever the gradient is not zero, so its states are what is compared.
        let moments = |tensors: &Tensors| -> Tensors {
            let named = tensors.iter().filter(|(name, _)| name.starts_with("optimizer."));
            named.map(|(name, tensor)| (name.clone(), tensor.clone())).collect()
        };
        assert_close(&moments(checkpoint), &moments(&saved), 5e-5, plan);
    }
}
