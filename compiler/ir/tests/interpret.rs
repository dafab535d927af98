//! Each operation of the interpreter against results worked out by hand.

use dtlc_ir::interpret::{Options, Rounding, Tensor, interpret};
use dtlc_ir::text::parse;
use dtlc_ir::{Program, random_bits, uniform};

/// Parses `main` with dims of one-letter names after their sizes.
fn program(main: &str) -> Program {
    let dims = "dims { A = 2, B = 3, C = 2, D = 6, E = 1, F = 5, S = 3, T = 3, K = 1, G = 2, N = 2 }";
    let text = format!("program test {{ {dims} {main} }}");
    parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Runs `body` on `args`; `params` are their definitions.
fn run(params: &str, body: &str, args: &[&[f64]], options: &Options) -> Vec<Vec<f64>> {
    let program = program(&format!("main({params}) {{ {body} }}"));
    let args: Vec<Tensor> = args
        .iter()
        .zip(&program.main.params)
        .map(|(data, &param)| {
            let shape = program.ty(param).dims.iter().map(|&dim| (dim, program.dims[dim].size as usize));
            Tensor::from_fn(shape, |index| data[index])
        })
        .collect();
    let outcome = interpret(&program, &args, options).unwrap_or_else(|fault| panic!("{fault}"));
    outcome.yields.into_iter().map(|tensor| tensor.data).collect()
}

fn check(params: &str, body: &str, args: &[&[f64]], expected: &[&[f64]]) {
    let results = run(params, body, args, &Options::default());
    assert_eq!(results.len(), expected.len(), "{body}");
    for (result, expected) in results.iter().zip(expected) {
        let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12 || a == b;
        assert!(
            result.len() == expected.len() && result.iter().zip(*expected).all(close),
            "{body}\n  result {result:?}\nexpected {expected:?}"
        );
    }
}

#[test]
fn constants_and_coordinates() {
    check("", "%x: f32[] = const 1.5 forward yield %x", &[], &[&[1.5]]);
    check("", "%x: bool[] = const true forward yield %x", &[], &[&[1.0]]);
    check("", "%x: i32[B] = iota[B] forward yield %x", &[], &[&[0.0, 1.0, 2.0]]);
}

#[test]
fn map_broadcasts_by_name_and_permutes() {
    let args: [&[f64]; 2] = [&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[10.0, 20.0]];
    let expected = [11.0, 24.0, 12.0, 25.0, 13.0, 26.0];
    check("%x: f32[A, B], %y: f32[A]", "%z: f32[B, A] = add %x, %y forward yield %z", &args, &[&expected]);
    check(
        "%x: f32[A]",
        "%z: f32[B, A] = cast %x forward yield %z",
        &[&[1.0, 2.0]],
        &[&[1.0, 2.0, 1.0, 2.0, 1.0, 2.0]],
    );
}

#[test]
fn every_scalar_operation() {
    let unary: [(&str, f64, f64); 14] = [
        ("neg", 2.0, -2.0),
        ("abs", -2.0, 2.0),
        ("exp", 1.0, std::f64::consts::E),
        ("log", std::f64::consts::E, 1.0),
        ("sqrt", 9.0, 3.0),
        ("rsqrt", 4.0, 0.5),
        ("tanh", 0.5, (1.0_f64.exp() - 1.0) / (1.0_f64.exp() + 1.0)),
        ("sigmoid", 3.0_f64.ln(), 0.75),
        ("erf", 1.0, 0.842_700_792_949_714_9),
        ("sin", std::f64::consts::FRAC_PI_6, 0.5),
        ("cos", std::f64::consts::PI, -1.0),
        ("floor", -1.5, -2.0),
        ("not", 0.0, 1.0),
        ("cast", 2.5, 2.5),
    ];
    for (op, x, y) in unary {
        let ty = if op == "not" { "bool" } else { "f32" };
        let body = format!("%y: {ty}[] = {op} %x forward yield %y");
        check(&format!("%x: {ty}[]"), &body, &[&[x]], &[&[y]]);
    }
    let arithmetic = [
        ("add", 9.0),
        ("sub", 5.0),
        ("mul", 14.0),
        ("div", 3.5),
        ("rem", 1.0),
        ("pow", 49.0),
        ("min", 2.0),
        ("max", 7.0),
    ];
    let comparisons = [
        ("equal", 0.0),
        ("not_equal", 1.0),
        ("less", 0.0),
        ("less_equal", 0.0),
        ("greater", 1.0),
        ("greater_equal", 1.0),
    ];
    let arithmetic = arithmetic.iter().map(|case| ("f32", case));
    for (ty, (op, z)) in arithmetic.chain(comparisons.iter().map(|case| ("bool", case))) {
        let body = format!("%z: {ty}[] = {op} %x, %y forward yield %z");
        check("%x: f32[], %y: f32[]", &body, &[&[7.0], &[2.0]], &[&[*z]]);
    }
    let params = "%x: bool[], %y: bool[A]";
    check(params, "%z: bool[A] = and %x, %y forward yield %z", &[&[1.0], &[0.0, 1.0]], &[&[0.0, 1.0]]);
    check(params, "%z: bool[A] = or %x, %y forward yield %z", &[&[0.0], &[0.0, 1.0]], &[&[0.0, 1.0]]);
    let params = "%c: bool[A], %x: f32[], %y: f32[A]";
    let body = "%z: f32[A] = select %c, %x, %y forward yield %z";
    check(params, body, &[&[1.0, 0.0], &[5.0], &[6.0, 7.0]], &[&[5.0, 7.0]]);
}

#[test]
fn reductions_and_products() {
    let x: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    check("%x: f32[A, B]", "%y: f32[B] = reduce_sum[A] %x forward yield %y", &[x], &[&[5.0, 7.0, 9.0]]);
    check("%x: f32[A, B]", "%y: f32[] = reduce_max[A, B] %x forward yield %y", &[x], &[&[6.0]]);
    let params = "%x: f32[A, B], %y: f32[B, C]";
    let y: &[f64] = &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0];
    check(params, "%z: f32[A, C] = dot %x, %y forward yield %z", &[x, y], &[&[4.0, 5.0, 10.0, 11.0]]);
    check(
        "%x: f32[A, B], %y: f32[A, B]",
        "%z: f32[A] = dot %x, %y forward yield %z",
        &[x, x],
        &[&[14.0, 77.0]],
    );
}

#[test]
fn views() {
    let x: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    check("%x: f32[A, B]", "%y: f32[C, B] = rename[A -> C] %x forward yield %y", &[x], &[x]);
    check("%x: f32[D]", "%y: f32[A, B] = split[D -> A, B] %x forward yield %y", &[x], &[x]);
    check("%x: f32[A, B]", "%y: f32[D] = merge[A, B -> D] %x forward yield %y", &[x], &[x]);
    check("%x: f32[A, B]", "%y: f32[A] = slice[B from 1] %x forward yield %y", &[x], &[&[2.0, 5.0]]);
    check(
        "%x: f32[A, B]",
        "%y: f32[A, C] = slice[B from 1 -> C] %x forward yield %y",
        &[x],
        &[&[2.0, 3.0, 5.0, 6.0]],
    );
    check(
        "%x: f32[A, B]",
        "%y: f32[A, F] = pad[B -> F from 2] %x forward yield %y",
        &[x],
        &[&[0.0, 0.0, 1.0, 2.0, 3.0, 0.0, 0.0, 4.0, 5.0, 6.0]],
    );
    check("%x: f32[]", "%y: f32[B] = pad[-> B from 1] %x forward yield %y", &[&[9.0]], &[&[0.0, 9.0, 0.0]]);
    let params = "%x: f32[A, B], %y: f32[A], %z: f32[A, E]";
    check(
        params,
        "%w: f32[A, F] = concat[E, B, * -> F] %z, %x, %y forward yield %w",
        &[x, &[7.0, 8.0], &[9.0, 10.0]],
        &[&[9.0, 1.0, 2.0, 3.0, 7.0, 10.0, 4.0, 5.0, 6.0, 8.0]],
    );
    check("%x: f32[A, B]", "%y: f32[A, B] = stop_gradient %x forward yield %y", &[x], &[x]);
}

#[test]
fn rows_are_taken_and_added_back() {
    let table: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let take = "%y: f32[F, A] = take[B] %x, %i forward yield %y";
    let indices: &[f64] = &[2.0, 0.0, 3.0, 2.0, 4_294_967_295.0];
    let rows = [3.0, 6.0, 1.0, 4.0, 0.0, 0.0, 3.0, 6.0, 0.0, 0.0];
    check("%x: f32[A, B], %i: u32[F]", take, &[table, indices], &[&rows]);
    let batched = "%y: f32[A] = take[B] %x, %i forward yield %y";
    check("%x: f32[A, B], %i: i32[A]", batched, &[table, &[1.0, -1.0]], &[&[2.0, 0.0]]);
    let add = "%y: f32[A, B] = scatter_add[B] %u, %i forward yield %y";
    let updates: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0];
    let sums = [3.0, 0.0, 8.0, 4.0, 0.0, 10.0];
    check("%u: f32[F, A], %i: u32[F]", add, &[updates, indices], &[&sums]);
    let batched = "%y: f32[A, B] = scatter_add[B] %u, %i forward yield %y";
    check("%u: f32[A], %i: i32[A]", batched, &[&[5.0, 6.0], &[1.0, 2.0]], &[&[0.0, 5.0, 0.0, 0.0, 0.0, 6.0]]);
}

#[test]
fn random_values_are_numbered_by_the_global_index() {
    let options = Options { seed: 11, ..Options::default() };
    let results = run(
        "%step: u32[]",
        "%y: f32[B, A] = random[stream 5 over A, B] %step forward yield %y",
        &[&[7.0]],
        &options,
    );
    let expected = |index| f64::from(uniform(random_bits(11, 7, 5, index)));
    assert_eq!(results[0], [0, 3, 1, 4, 2, 5].map(expected));
    let looped = "%y: f32[A, B] = scan[A, carries 0, stacks 0, outputs (stack)] forward (
            ) { %r: f32[B] = random[stream 5 over A, B] %step forward yield %r } yield %y";
    let looped = run("%step: u32[]", looped, &[&[7.0]], &options);
    assert_eq!(looped[0], [0, 1, 2, 3, 4, 5].map(expected));
}

#[test]
fn attention_is_a_softmax_of_scores() {
    // One head of size 1: scores are q·k/2, and zero queries weigh all visible keys alike.
    let params = "%q: f32[S, G, K], %k: f32[T, K], %v: f32[T, K]";
    let causal = "%o: f32[S, G, K], %l: f32[S, G] =
        attention[query S, key T, head K, value K, scale 0.5, causal] %q, %k, %v forward yield %o, %l";
    let zero = [0.0; 6];
    let v: &[f64] = &[1.0, 3.0, 8.0];
    let (ln2, ln3) = (2.0_f64.ln(), 3.0_f64.ln());
    check(
        params,
        causal,
        &[&zero, &[1.0, 2.0, 3.0], v],
        &[&[1.0, 1.0, 2.0, 2.0, 4.0, 4.0], &[0.0, 0.0, ln2, ln2, ln3, ln3]],
    );
    let window = causal.replace("causal", "causal, window 1");
    check(params, &window, &[&zero, &[1.0, 2.0, 3.0], v], &[&[1.0, 1.0, 3.0, 3.0, 8.0, 8.0], &[0.0; 6]]);
    // q·k/2 of ln 4 and 0 weigh 4 : 1 : 1.
    let full = causal.replace(", causal", "");
    let q = [2.0 * 4.0_f64.ln(); 6];
    let (o, l) = ([(4.0 + 3.0 + 8.0) / 6.0; 6], [6.0_f64.ln(); 6]);
    check(params, &full, &[&q, &[1.0, 0.0, 0.0], v], &[&o, &l]);
    let soft = full.replace("scale 0.5", "scale 0.5, softcap 2.0");
    let weight = (2.0 * (4.0_f64.ln() / 2.0).tanh()).exp();
    let (o, l) = ([(weight + 11.0) / (weight + 2.0); 6], [(weight + 2.0).ln(); 6]);
    check(params, &soft, &[&q, &[1.0, 0.0, 0.0], v], &[&o, &l]);
    // Documents in any order; the second query sees none but its own.
    let packed = causal.replace("causal", "causal, documents").replace("%v forward", "%v, %d, %e forward");
    let params = format!("{params}, %d: u32[S], %e: u32[T]");
    let (documents, value): (&[f64], _) = (&[9.0, 2.0, 9.0], [1.0, 1.0, 3.0, 3.0, 4.5, 4.5]);
    let args: [&[f64]; 5] = [&zero, &[1.0, 2.0, 3.0], v, documents, documents];
    check(&params, &packed, &args, &[&value, &[0.0, 0.0, 0.0, 0.0, ln2, ln2]]);
}

#[test]
fn attention_gradients_are_finite_differences() {
    for options in ["", ", causal", ", causal, window 2", ", causal, softcap 1.5", ", softcap 1.5, documents"]
    {
        let documents = if options.ends_with("documents") { ", %e, %f" } else { "" };
        let attention = |name: &str| format!("{name}[query S, key T, head A, value C, scale 0.7{options}]");
        let params = "%q: f32[N, S, G, A], %k: f32[N, T, A], %v: f32[N, T, C], %w: f32[N, S, G, C],
            %e: u32[N, S], %f: u32[T, N]";
        let body = format!(
            "%o: f32[N, S, G, C], %l: f32[N, S, G] = {} %q, %k, %v{documents} forward
             %loss: f32[] = dot %o, %w forward
             %dq: f32[N, S, G, A], %dk: f32[N, T, A], %dv: f32[N, T, C] = {} %q, %k, %v, %o, %l, %w{documents} backward
             yield %loss, %dq, %dk, %dv",
            attention("attention"),
            attention("attention_gradient"),
        );
        let number = |index: usize| ((index * 37 + 11) % 23) as f64 / 11.5 - 1.0;
        let mut args: Vec<Vec<f64>> =
            [24, 12, 12, 24].iter().map(|&size| (0..size).map(number).collect()).collect();
        args.extend([vec![3.0, 3.0, 0.0, 5.0, 1.0, 5.0], vec![3.0, 5.0, 0.0, 1.0, 3.0, 5.0]]);
        let at = |args: &[Vec<f64>]| {
            let args: Vec<&[f64]> = args.iter().map(Vec::as_slice).collect();
            run(params, &body, &args, &Options::default())
        };
        let exact = at(&args);
        for which in 0..3 {
            for index in 0..args[which].len() {
                let (here, step) = (args[which][index], 1e-5);
                args[which][index] = here + step;
                let above = at(&args)[0][0];
                args[which][index] = here - step;
                let below = at(&args)[0][0];
                args[which][index] = here;
                let difference = (above - below) / (2.0 * step);
                assert!((difference - exact[1 + which][index]).abs() < 1e-8, "{options} {which} {index}");
            }
        }
    }
}

#[test]
fn scans_carry_slice_stack_and_accumulate() {
    let params = "%h: f32[], %x: f32[A, B], %acc: f32[B, A]";
    let scan = |reverse: &str| {
        format!(
            "%last: f32[], %ys: f32[B, A], %sum: f32[B, A] =
                scan[B{reverse}, carries 1, stacks 1, outputs (stack, accumulate)] %h, %x, %acc forward (
                %c: f32[], %s: f32[A],
            ) {{
                %i: i32[] = iota[B] forward
                %f: f32[] = cast %i forward
                %y: f32[A] = mul %s, %c forward
                %ten: f32[] = const 10.0 forward
                %next: f32[] = add %f, %ten forward
                %product: f32[] = mul %c, %next forward
                yield %product, %y, %s
            }}
            yield %last, %ys, %sum"
        )
    };
    let args: [&[f64]; 3] =
        [&[1.0], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[100.0, 200.0, 300.0, 400.0, 500.0, 600.0]];
    let sums = [101.0, 204.0, 302.0, 405.0, 503.0, 606.0];
    let forward = [1.0, 4.0, 20.0, 50.0, 330.0, 660.0];
    check(params, &scan(""), &args, &[&[1320.0], &forward, &sums]);
    let backward = [132.0, 528.0, 24.0, 60.0, 3.0, 6.0];
    check(params, &scan(", reverse"), &args, &[&[1320.0], &backward, &sums]);
}

#[test]
fn fused_bodies_compute_what_they_hold() {
    let body = "%y: f32[A], %z: f32[] = fused %x, %x update (%a: f32[A], %b: f32[A]) {
        %s: f32[A] = add %a, %b update
        %t: f32[] = reduce_sum[A] %s update
        yield %s, %t
    } yield %z, %y";
    check("%x: f32[A]", body, &[&[1.0, 2.0]], &[&[6.0], &[2.0, 4.0]]);
}

#[test]
fn movement_changes_nothing_on_one_device() {
    let body = "%y: f32[A] = reshard %x because \"r\" forward
        %z: f32[A] = local_slice %y forward
        yield %z";
    check("%x: f32[A]", body, &[&[1.0, 2.0]], &[&[1.0, 2.0]]);
}

#[test]
fn rounding_follows_the_element_type() {
    let options = Options { rounding: Rounding::Storage, ..Options::default() };
    let body = "%y: bf16[A] = cast %x forward %z: f32[A] = cast %x forward yield %y, %z";
    let x = [1.0 + 1.0 / 256.0, 0.1];
    let results = run("%x: f32[A]", body, &[&x], &options);
    assert_eq!(results[0][0], 1.0);
    assert_eq!(results[1][1], f64::from(0.1_f32));
    let exact = run("%x: f32[A]", body, &[&x], &Options::default());
    assert_eq!(exact[0], x);
}

#[test]
fn rounding_by_chance_gives_a_neighbour_and_is_right_on_average() {
    let body = "%y: bf16[A] = cast %x forward yield %y";
    let x: f64 = 1.0 + 0.25 / 128.0;
    let rounded = |seed| {
        let options = Options { rounding: Rounding::Chance(seed), ..Options::default() };
        let results = run("%x: f32[A]", body, &[&[x, 1.5]], &options);
        assert!(results[0][0] == 1.0 || results[0][0] == 1.0 + 1.0 / 128.0, "{results:?}");
        assert_eq!(results[0][1], 1.5);
        let small = run("%x: f32[A]", body, &[&[-x, 1e-40]], &options);
        assert!((small[0][0] + x).abs() < 1.0 / 128.0 && (small[0][1] - 1e-40).abs() < f64::exp2(-133.0));
        results[0][0]
    };
    let mean = (0..400).map(rounded).sum::<f64>() / 400.0;
    assert!((mean - x).abs() < 4.0 * (0.25_f64 * 0.75 / 400.0).sqrt() / 128.0, "{mean}");
}

#[test]
fn numbers_beside_are_a_unit_of_f64_away_within_sums_too() {
    let body = "%y: f32[A] = neg %x forward %z: f32[] = reduce_sum[A] %x forward yield %y, %z";
    let mut seen = [0; 3];
    for seed in 0..60 {
        let options = Options { rounding: Rounding::Beside(seed), ..Options::default() };
        let results = run("%x: f32[A]", body, &[&[-1.5, 0.0]], &options);
        let unit = f64::exp2(-52.0);
        let step = (results[0][0] - 1.5) / unit;
        assert!([-1.0, 0.0, 1.0].contains(&step) && results[0][1] == 0.0, "{results:?}");
        seen[(step + 1.0) as usize] += 1;
        assert!((results[1][0] + 1.5).abs() <= 4.0 * unit, "{results:?}");
    }
    assert!(seen.iter().all(|&times| times > 5), "{seen:?}");
}

#[test]
fn rounding_by_chance_reaches_sums_before_they_cancel() {
    let sums = ["%y: f32[] = reduce_sum[B] %x forward yield %y", "%y: f32[] = dot %x, %z forward yield %y"];
    for body in sums {
        let error = |seed| {
            let options = Options { rounding: Rounding::Chance(seed), ..Options::default() };
            let args: [&[f64]; 2] = [&[0.3, 1000.0, -1000.0], &[1.0; 3]];
            (run("%x: f32[B], %z: f32[B]", body, &args, &options)[0][0] - 0.3).abs()
        };
        // A unit in the last place of 1000, where the result's is a thousandth of it.
        let unit = f64::exp2(-14.0);
        assert!(
            (0..20).all(|seed| error(seed) <= unit) && (0..20).any(|seed| error(seed) > unit / 8.0),
            "{body}"
        );
    }
}

/// The gradients of the scores are differences of sums that are equal, but that kernels add up on separate ways.
#[test]
fn rounding_by_chance_shows_what_remains_of_attention_to_one_key() {
    let attention = |name: &str| format!("{name}[query S, key E, head A, value C, scale 1.0]");
    let body = format!(
        "%o: f32[S, C], %l: f32[S] = {} %q, %k, %v forward
        %dq: f32[S, A], %dk: f32[E, A], %dv: f32[E, C] = {} %q, %k, %v, %o, %l, %d forward yield %dq, %dk",
        attention("attention"),
        attention("attention_gradient"),
    );
    let args: [&[f64]; 4] = [&[0.5, -0.25, 1.0, 0.75, -1.0, 0.5], &[30.0, 20.0], &[17.3, -11.9], &[0.7; 6]];
    let gradients = |rounding| {
        let options = Options { rounding, ..Options::default() };
        run("%q: f32[S, A], %k: f32[E, A], %v: f32[E, C], %d: f32[S, C]", &body, &args, &options).concat()
    };
    assert!(gradients(Rounding::None).iter().all(|gradient| gradient.abs() < 1e-12));
    let most = |seed| gradients(Rounding::Chance(seed)).iter().fold(0f64, |most, it| most.max(it.abs()));
    // A unit in the last place of 12, the largest sum, times the keys.
    let unit = 30.0 * f64::exp2(-20.0);
    assert!((0..9).all(|seed| most(seed) < 4.0 * unit) && (0..9).any(|seed| most(seed) > unit / 8.0));
}

/// Probabilities of a third each, of values that cancel.
#[test]
fn rounding_by_chance_reaches_factors_of_the_tensors_type() {
    let most = |dtype: &str| {
        let declared = format!("%q: {dtype}[S, A], %k: {dtype}[B, A], %v: {dtype}[B, C]");
        let body = format!(
            "%o: {dtype}[S, C], %l: f32[S] = attention[query S, key B, head A, value C, scale 1.0] %q, %k, %v
             forward yield %o"
        );
        let args: [&[f64]; 3] = [&[0.0; 6], &[0.0; 6], &[1.0, 1.0, -1.0, -1.0, 0.0, 0.0]];
        let error = |seed| {
            let options = Options { rounding: Rounding::Chance(seed), ..Options::default() };
            run(&declared, &body, &args, &options)[0].iter().fold(0f64, |most, it| most.max(it.abs()))
        };
        (0..9).map(error).fold(0.0, f64::max)
    };
    assert!(most("f32") < 4.0 * f64::exp2(-24.0));
    // A unit in the last place of a third in bf16.
    assert!((most("bf16") - f64::exp2(-9.0)).abs() < f64::exp2(-20.0));
}

#[test]
fn arguments_of_another_shape_are_refused() {
    let program = program("main(%x: f32[A]) { yield %x }");
    let fault = interpret(&program, &[Tensor::scalar(1.0)], &Options::default()).unwrap_err();
    assert_eq!(fault.to_string(), "bug in dtlc, found by `interpret`: the argument for %x has another shape");
    assert!(interpret(&program, &[], &Options::default()).is_err());
}

/// A factor between two numbers of tf32 and one beside it; stored values are rounded, and numbers that stay f64 are not.
#[test]
fn factors_of_tf32_are_rounded_where_values_are() {
    let half = f64::exp2(-11.0);
    let args: [&[f64]; 2] = [&[1.0 + half, -1.0 - half], &[1.0 + half - f64::exp2(-20.0), 3.0]];
    let body = "%z: f32[A] = dot[tf32] %x, %y forward yield %z";
    let product =
        |rounding| run("%x: f32[A], %y: f32[A]", body, &args, &Options { seed: 0, rounding }).remove(0);
    assert_eq!(product(Rounding::Storage), [1.0 + 2.0 * half, -3.0 * (1.0 + 2.0 * half)]);
    assert_eq!(product(Rounding::None), [args[0][0] * args[1][0], args[0][1] * args[1][1]]);
    // By chance one of both numbers, and not always the same.
    let chances: Vec<f64> = (0..32).map(|seed| product(Rounding::Chance(seed))[1]).collect();
    let both = [-3.0, -3.0 * (1.0 + 2.0 * half)];
    assert!(chances.iter().all(|it| both.contains(it)) && both.iter().all(|it| chances.contains(it)));
}
