//! Rules of placement: which dimensions may be sharded, what may be partial, and what a movement may do.

use crate::support::{Stage, accepted, program, refused};
use dtlc_ir::verify::sharded;

#[test]
fn placements_of_types() {
    refused(
        Stage::Sharded,
        &[
            ("%x: f32[A@dp, B@dp]", "yield %x", "axis `dp` is used twice"),
            ("%x: f32[N@dp]", "yield %x", "`N` of size 3 doesn't divide 2 ways"),
            ("%x: f32[A] partial(sum: dp)", "yield %x", "takes and returns nothing partial"),
            (
                "%x: f32[A@dp]",
                "%y: f32[] partial(sum: dp) = reduce_sum[A] %x forward yield %y",
                "returns nothing partial",
            ),
            (
                "%x: f32[A@dp, B]",
                "%y: f32[A@dp, B@dp] = neg %x forward yield %y",
                "%y: axis `dp` is used twice",
            ),
        ],
    );
    let mut empty = program("", "yield");
    empty.mesh.axes[dtlc_ir::Axis::from_u32(1)].size = 0;
    assert!(sharded(&empty).unwrap_err().message.contains("axis `tp` has no ranks"));
    accepted(Stage::Sharded, &[("%x: f32[P@dp@tp]", "yield %x")]);
    // Zeros may count as a sum of zeros.
    let zeros = "%z: f32[] = const 0.0 forward %p: f32[A] partial(sum: dp) = cast %z forward yield";
    accepted(Stage::Sharded, &[("", zeros)]);
    let maxima = zeros.replace("sum", "max");
    refused(Stage::Sharded, &[("", &maxima, "comes out as f32[], but says f32[] partial(max: dp)")]);
    let mut stray = program("%x: f32[A]", "yield %x");
    let value = stray.main.params[0];
    let dim = stray.find_dim("B").unwrap();
    stray.values[value].ty.placement.add_shard(dim, dtlc_ir::Axis::from_u32(0));
    assert!(sharded(&stray).unwrap_err().message.contains("`B` is sharded in a type that lacks it"));
}

#[test]
fn sharded_dimensions_agree() {
    refused(
        Stage::Sharded,
        &[
            (
                "%x: f32[A@dp], %y: f32[A]",
                "%z: f32[A@dp] = add %x, %y forward yield %z",
                "`A` split over dp meets `A` split over nothing",
            ),
            (
                "%x: f32[A@dp]",
                "%z: f32[A] = neg %x forward yield %z",
                "`A` split over dp meets `A` split over nothing",
            ),
            ("%x: f32[A]", "%z: f32[A@dp] = neg %x forward yield %z", "`A` split over nothing meets"),
            (
                "%x: f32[A@dp@tp]",
                "%z: f32[A@tp@dp] = neg %x forward yield %z",
                "`A` split over dp, tp meets `A` split over tp, dp",
            ),
            ("%x: f32[A@dp, B]", "%z: f32[A] = reduce_sum[B] %x forward yield %z", "`A` split over dp meets"),
            (
                "%x: f32[A@dp], %y: f32[A, B]",
                "%z: f32[B] partial(sum: dp) = dot %x, %y forward yield",
                "`A` split over dp meets",
            ),
            (
                "%x: f32[A@dp, S], %y: f32[S, B]",
                "%z: f32[A, B] = dot %x, %y forward yield %z",
                "`A` split over dp meets",
            ),
            (
                "%x: f32[A@dp, S], %y: f32[A, S]",
                "%z: f32[A@dp] = dot %x, %y forward yield %z",
                "`A` split over dp meets",
            ),
            (
                "%x: f32[A@dp]",
                "%z: f32[B] = rename[A -> B] %x forward yield %z",
                "`A` split over dp meets `B` split over nothing",
            ),
            (
                "%x: f32[D@dp]",
                "%z: f32[A, B@dp] = split[D -> A, B] %x forward yield %z",
                "aren't those of its factors",
            ),
            (
                "%x: f32[D@dp]",
                "%z: f32[A, B] = split[D -> A, B] %x forward yield %z",
                "aren't split as it is",
            ),
            (
                "%x: f32[A, B@dp]",
                "%z: f32[D@dp] = merge[A, B -> D] %x forward yield %z",
                "aren't those of its factors",
            ),
            (
                "%x: f32[C@dp]",
                "%z: f32[A] = slice[C from 0 -> A] %x forward yield %z",
                "`C` is cut, so it can't be sharded",
            ),
            (
                "%x: f32[C]",
                "%z: f32[A@dp] = slice[C from 0 -> A] %x forward yield %z",
                "`A` is cut, so it can't be sharded",
            ),
            ("%x: f32[A@dp]", "%z: f32[C@dp] = pad[A -> C from 0] %x forward yield %z", "`C` is cut"),
            ("%x: f32[A]", "%z: f32[C@dp] = concat[A, A -> C] %x, %x forward yield %z", "`C` is cut"),
            ("%x: f32[A@dp]", "%z: f32[C] = concat[A, A -> C] %x, %x forward yield %z", "`A` is cut"),
            (
                "%x: f32[A], %i: u32[S@dp]",
                "%z: f32[S] = take[A] %x, %i forward yield %z",
                "`S` split over dp meets",
            ),
            (
                "%x: f32[S@dp], %i: u32[S]",
                "%z: f32[A] partial(sum: dp) = scatter_add[A] %x, %i forward yield",
                "`S` split over dp meets",
            ),
        ],
    );
}

#[test]
fn contractions_over_shards_are_partial() {
    refused(
        Stage::Sharded,
        &[
            (
                "%x: f32[A@dp, B]",
                "%z: f32[B] = reduce_sum[A] %x forward yield %z",
                "comes out as f32[] partial(sum: dp), but says f32[]",
            ),
            (
                "%x: f32[A@dp]",
                "%z: f32[] partial(sum: dp) = reduce_max[A] %x forward %w: f32[] = neg %z forward yield %w",
                "comes out as f32[] partial(max: dp)",
            ),
            (
                "%x: f32[A@dp]",
                "%z: f32[] = dot %x, %x forward yield %z",
                "comes out as f32[] partial(sum: dp)",
            ),
            (
                "%x: f32[A]",
                "%z: f32[] partial(sum: dp) = reduce_sum[A] %x forward %w: f32[] = neg %z forward yield %w",
                "comes out as f32[], but says f32[] partial(sum: dp)",
            ),
            (
                "%x: f32[A@dp], %i: u32[S]",
                "%z: f32[S] = take[A] %x, %i forward yield %z",
                "comes out as f32[] partial(sum: dp)",
            ),
            (
                "%x: f32[S@dp], %i: u32[S@dp]",
                "%z: f32[A] = scatter_add[A] %x, %i forward yield %z",
                "comes out as f32[] partial(sum: dp)",
            ),
            ("", "%z: f32[] partial(sum: dp) = const 1.0 forward yield", "comes out as f32[], but says"),
        ],
    );
}

#[test]
fn partial_values_meet_only_what_is_linear() {
    let refused_after = |inst: &str, expected: &str| {
        let params = "%x: f32[A@dp, B], %y: f32[B], %m: bool[B], %i: u32[S], %big: f32[A@tp, B]";
        let body = format!(
            "%p: f32[B] partial(sum: dp) = reduce_sum[A] %x forward
             %q: f32[B] partial(max: dp) = reduce_max[A] %x forward
             %o: f32[B] partial(sum: tp) = reduce_sum[A] %big forward
             %z: {inst} forward yield"
        );
        refused(Stage::Sharded, &[(params, &body, expected)]);
    };
    for op in ["abs", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "sin", "cos", "floor"] {
        refused_after(
            &format!("f32[B] partial(sum: dp) = {op} %p"),
            "argument 1 is partial, and this isn't linear",
        );
    }
    for op in ["rem", "pow", "min", "max"] {
        refused_after(&format!("f32[B] partial(sum: dp) = {op} %p, %p"), "argument 1 is partial");
    }
    refused_after("bool[B] partial(sum: dp) = less %y, %p", "argument 2 is partial");
    refused_after(
        "f32[B] partial(sum: dp) = add %p, %y",
        "one term is partial along an axis where another isn't",
    );
    refused_after(
        "f32[B] partial(sum: dp) = add %p, %o",
        "one term is partial along an axis where another isn't",
    );
    refused_after("f32[B] partial(sum: dp) = sub %y, %p", "one term is partial");
    refused_after("f32[B] partial(max: dp) = add %q, %q", "argument 1 is partial");
    refused_after("f32[B] partial(max: dp) = neg %q", "argument 1 is partial");
    refused_after("f32[B] partial(sum: dp) = mul %p, %p", "both factors are partial along one axis");
    refused_after("f32[B] partial(max: dp) = mul %q, %y", "argument 1 is partial");
    refused_after("f32[B] partial(sum: dp) = div %y, %p", "argument 2 is partial");
    refused_after("f32[B] partial(sum: dp) = select %m, %p, %y", "one term is partial");
    refused_after("f32[] partial(max: dp) = reduce_max[B] %p", "argument 1 is partial");
    refused_after("f32[] partial(sum: dp) = reduce_sum[B] %q", "argument 1 is partial");
    refused_after("f32[] partial(sum: dp) = dot %p, %p", "both factors are partial");
    refused_after("f32[B] = cast %p", "comes out as f32[] partial(sum: dp), but says f32[]");
    refused_after("f32[C] partial(max: dp) = pad[B -> C from 0] %q", "argument 1 is partial");
    refused_after("f32[C] partial(sum: dp) = concat[B, B -> C] %p, %y", "one term is partial");
    refused_after("f32[S] partial(max: dp) = take[B] %q, %i", "argument 1 is partial");
}

#[test]
fn integers_and_conditions_are_never_partial() {
    let params = "%x: u32[S@dp], %t: f32[S], %e: f32[A]";
    let body = |inst: &str| {
        format!("%p: u32[] partial(sum: dp) = reduce_sum[S] %x forward %z: {inst} forward yield")
    };
    refused(
        Stage::Sharded,
        &[
            (params, &body("f32[] partial(sum: dp) = take[S] %t, %p"), "argument 2 is partial"),
            (params, &body("f32[A] partial(sum: dp) = random[stream 0 over A] %p"), "argument 1 is partial"),
            (params, &body("bool[] partial(sum: dp) = cast %p"), "argument 1 is partial"),
        ],
    );
}

#[test]
fn attention_shards_batch_groups_and_queries() {
    let case = |q: &str, k: &str, l: &str| {
        let params = format!("%q: {q}, %k: {k}");
        let body = format!(
            "%o: {q}, %l: {l} = attention[query S, key T, head K, value K, scale 1.0] %q, %k, %k forward yield %o"
        );
        sharded(&program(&params, &body)).map(|_| ()).map_err(|fault| fault.message)
    };
    assert_eq!(case("f32[B@dp, S@cp, A@tp, K]", "f32[B@dp, T, K]", "f32[B@dp, S@cp, A@tp]"), Ok(()));
    let fails = |result: Result<(), String>, expected: &str| {
        let message = result.unwrap_err();
        assert!(message.contains(expected), "{message}");
    };
    fails(case("f32[B, S, A, K]", "f32[B, T@cp, K]", "f32[B, S, A]"), "`T` can't be split in an attention");
    fails(
        case("f32[B, S, A, K@tp]", "f32[B, T, K@tp]", "f32[B, S, A]"),
        "`K` can't be split in an attention",
    );
    fails(case("f32[B@dp, S, A, K]", "f32[B, T, K]", "f32[B@dp, S, A]"), "`B` split over dp meets");
    fails(case("f32[B, S@cp, A, K]", "f32[B, T, K]", "f32[B, S, A]"), "`S` split over cp meets");
    let gradient = |dk: &str| {
        let q = "f32[S@cp, A@tp, K]";
        let params = format!("%q: {q}, %k: f32[T, K], %l: f32[S@cp, A@tp]");
        let body = format!(
            "%dq: {q}, %dk: {dk}, %dv: f32[T, K] partial(sum: tp, sum: cp) =
                attention_gradient[query S, key T, head K, value K, scale 1.0] %q, %k, %k, %q, %l, %q backward
             yield %dq"
        );
        sharded(&program(&params, &body)).map(|_| ()).map_err(|fault| fault.message)
    };
    assert_eq!(gradient("f32[T, K] partial(sum: tp, sum: cp)"), Ok(()));
    fails(gradient("f32[T, K] partial(sum: tp)"), "comes out as f32[] partial(sum: tp, sum: cp)");
}

#[test]
fn placements_of_scans_and_fused_kernels() {
    let good = "%h: f32[B@dp], %s: f32[A, B@dp], %t: f32[A, B@dp] =
        scan[A, carries 1, stacks 1, outputs (stack, accumulate)] %x, %w, %w forward (%i: f32[B@dp], %j: f32[B@dp]) {
            yield %i, %j, %i
        } yield %h, %s, %t";
    let params = "%x: f32[B@dp], %w: f32[A, B@dp]";
    accepted(Stage::Sharded, &[(params, good)]);
    let change = |from: &str, to: &str| good.replacen(from, to, 1);
    refused(
        Stage::Sharded,
        &[
            ("%x: f32[B], %w: f32[A, B@dp]", good, "an initial value and its carry"),
            ("%x: f32[B@dp], %w: f32[A@tp, B@dp]", good, "a stack and its slice"),
            (params, &change("%h: f32[B@dp]", "%h: f32[B]"), "a final value and its carry"),
            (params, &change("%s: f32[A, B@dp]", "%s: f32[A@tp, B@dp]"), "a stack and what it is made of"),
            (
                params,
                &change("yield %i, %j, %i", "%n: f32[B] = reshard %i because \"r\" forward yield %n, %j, %i"),
                "a yielded value and its carry",
            ),
            (
                "%x: f32[B@dp], %w: f32[A, B@dp], %v: f32[A, B]",
                &change("%w, %w", "%w, %v"),
                "an initial value and what is added to it",
            ),
        ],
    );
    let fused = "%y: f32[A@dp] = fused %x forward (%i: f32[A@dp]) { yield %i } yield %y";
    accepted(Stage::Scheduled, &[("%x: f32[A@dp]", fused)]);
    refused(
        Stage::Scheduled,
        &[
            ("%x: f32[A]", fused, "an argument and its parameter"),
            ("%x: f32[A@dp]", &fused.replacen("f32[A@dp]", "f32[A]", 1), "a yield and its result"),
        ],
    );
}

#[test]
fn what_is_in_flight_is_waited_for_before_it_is_read() {
    let good = "%f: f32[B, C], %g: f32[D, C] = all_gather[dp] %x, %y because \"r\" because \"r\" forward
        %n: f32[B@dp, C] = fused %x forward (%i: f32[B@dp, C]) { yield %i }
        %a: f32[B, C], %b: f32[D, C] = done %f, %g forward
        yield %a, %b, %n";
    let params = "%x: f32[B@dp, C], %y: f32[D@dp, C]";
    accepted(Stage::Scheduled, &[(params, good)]);
    let change = |from: &str, to: &str| good.replacen(from, to, 1);
    let read = "fused %f forward (%i: f32[B, C])";
    refused(Stage::Sharded, &[(params, good, "nothing is fused before scheduling")]);
    refused(
        Stage::Sharded,
        &[(params, "%f: f32[B@dp, C] = done %x forward yield %f", "nothing is in flight before scheduling")],
    );
    refused(
        Stage::Scheduled,
        &[
            (
                params,
                &change("done %f, %g", "done %g, %f"),
                "what it computes and the results differ in type",
            ),
            (
                params,
                "%f: f32[B@dp, C] = done %x forward yield %f",
                "waits for all results of one collective",
            ),
            (
                params,
                &change(
                    "%n: f32[B@dp, C] = fused %x forward (%i: f32[B@dp, C])",
                    &format!("%n: f32[B, C] = {read}"),
                ),
                "%f is read in flight",
            ),
            (
                params,
                &change("yield %a", "%c: f32[B, C] = done %f forward yield %c"),
                "waits for all results of one collective",
            ),
            (params, &change("yield %a", "yield %f"), "%f is read in flight"),
            (
                params,
                "%f: f32[B, C] = all_gather[dp] %x because \"r\" forward yield %x",
                "nothing waits for %f",
            ),
            (
                params,
                "%f: f32[B, C] = all_gather[dp] %x because \"r\" forward
                 %s: f32[A, B, C] = scan[A, carries 0, stacks 0, outputs (stack)] forward () {
                     %e: f32[B, C] = done %f forward
                     yield %e
                 } yield %s",
                "waits for all results of one collective",
            ),
            (
                params,
                "%f: f32[B, C] = all_gather[dp] %x because \"r\" forward
                 %s: f32[A, B, C] = scan[A, carries 0, stacks 0, outputs (stack)] forward () {
                     %e: f32[B, C] = fused %f forward (%i: f32[B, C]) { yield %i }
                     yield %e
                 }
                 %d: f32[B, C] = done %f forward
                 yield %s, %d",
                "%f is read in flight",
            ),
        ],
    );
}

#[test]
fn movements() {
    let movement = |from: &str, inst: &str| {
        let body = format!(
            "%x: f32[B, C@cp] = reshard %in because \"r\" forward
             %s: f32[C@cp] partial(sum: dp, sum: tp) = reduce_sum[B] %in forward
             %y: {inst} forward yield"
        );
        let params = format!("%in: f32[B@dp@tp, C@cp], %from: {from}");
        sharded(&program(&params, &body)).map(|_| ()).map_err(|fault| fault.message)
    };
    let ok = |from: &str, inst: &str| assert_eq!(movement(from, inst), Ok(()), "{inst}");
    let fails = |from: &str, inst: &str, expected: &str| {
        let message = movement(from, inst).expect_err(inst);
        assert!(message.contains(expected), "{inst}\n{message}");
    };
    let whole = "f32[B, C]";
    fails(
        whole,
        "f32[B, C] partial(sum: dp) = reshard %from because \"r\"",
        "a reshard makes nothing partial",
    );
    ok(whole, "f32[B@dp, C@tp] = local_slice %from");
    fails(
        "f32[B@dp, C]",
        "f32[B@tp@dp, C] = local_slice %from",
        "keeps what is split, and splits it further",
    );
    fails("f32[B@dp, C]", "f32[B, C] = local_slice %from", "keeps what is split, and splits it further");
    fails(whole, "f32[C@cp] = local_slice %s", "a local slice combines nothing");

    let r = "because \"r\"";
    ok("f32[B@dp@tp, C]", &format!("f32[B@dp, C] = all_gather[tp] %from {r}"));
    ok("f32[B@dp, C@tp]", &format!("f32[B, C] = all_gather[dp, tp] %from {r}"));
    let wrong = "this isn't what all_gather does to shards";
    fails("f32[B@dp@tp, C]", &format!("f32[B@tp, C] = all_gather[dp] %from {r}"), wrong);
    fails("f32[B@dp, C]", &format!("f32[B, C] = all_gather[tp] %from {r}"), wrong);
    fails(whole, "f32[B, C@cp] = all_gather[dp] %x", "one reason an argument");
    fails("f32[B@dp, C@tp]", &format!("f32[B, C] = all_gather[tp, dp] %from {r}"), "stand in mesh order");

    ok(whole, &format!("f32[C@cp] partial(sum: tp) = all_reduce[sum: dp] %s {r}"));
    ok(whole, &format!("f32[C@cp] = all_reduce[sum: dp, tp] %s {r}"));
    fails(
        whole,
        &format!("f32[C@cp] partial(sum: tp) = all_reduce[max: dp] %s {r}"),
        "the argument isn't partial",
    );
    fails(whole, &format!("f32[C@cp] = all_reduce[sum: dp] %s {r}"), "resolves nothing outside its axes");
    fails(whole, &format!("f32[B, C] = all_reduce[sum: dp] %from {r}"), "the argument isn't partial along");
    fails(
        whole,
        &format!("f32[C] partial(sum: tp) = all_reduce[sum: dp] %s {r}"),
        "what all_reduce does to shards",
    );

    ok(whole, &format!("f32[C@cp@dp] partial(sum: tp) = reduce_scatter[sum: dp] %s {r}"));
    let wrong = "this isn't what reduce_scatter does to shards";
    fails(whole, &format!("f32[C@dp@cp] partial(sum: tp) = reduce_scatter[sum: dp] %s {r}"), wrong);
    fails(whole, &format!("f32[C@cp] partial(sum: tp) = reduce_scatter[sum: dp] %s {r}"), wrong);
    fails(
        whole,
        &format!("f32[C@cp] partial(sum: dp, sum: tp) = all_gather[dp] %s {r}"),
        "makes nothing partial",
    );

    ok("f32[B@dp, C]", &format!("f32[B, C@dp] = all_to_all[dp] %from {r}"));
    let wrong = "this isn't what all_to_all does to shards";
    fails("f32[B@dp, C]", &format!("f32[B, C] = all_to_all[dp] %from {r}"), wrong);
    fails("f32[B@dp@tp, C]", &format!("f32[B@tp, C@dp] = all_to_all[dp] %from {r}"), wrong);

    ok("f32[B@dp@tp, C]", &format!("f32[B@tp@dp, C] = permute[dp, tp] %from {r}"));
    fails("f32[B@dp, C]", &format!("f32[B, C] = permute[dp] %from {r}"), "what permute does to shards");
    fails("f32[B@dp, C]", &format!("f32[B@dp, C] = permute[dp] %from {r}"), "what permute does to shards");
}

#[test]
fn pads_nest_where_a_finer_split_is_gathered() {
    // P is 5: 2 a part over four ranks, 3 over two.
    let partly = "%y: f32[P@dp] = all_gather[tp] %x because \"r\" forward yield %y";
    let wholly = "%y: f32[P] = all_gather[dp, tp] %x because \"r\" forward yield %y";
    let sliced = "%y: f32[P@dp@tp] = local_slice %x forward yield %y";
    refused(Stage::Sharded, &[("%x: f32[P@dp@tp]", partly, "the padded parts of `P`")]);
    refused(Stage::Sharded, &[("%x: f32[P@dp]", sliced, "the padded parts of `P`")]);
    accepted(Stage::Sharded, &[("%x: f32[P@dp@tp]", wholly), ("%x: f32[P]", sliced)]);
}
