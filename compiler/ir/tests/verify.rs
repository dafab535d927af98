//! Wrong programs are refused, each for the rule that it breaks.

use dtlc_ir::text::parse;
use dtlc_ir::verify::{joint, logical, scheduled, sharded, structure};
use dtlc_ir::{Fault, Input, Output, Program};

#[derive(Clone, Copy, Debug)]
enum Stage {
    Structure,
    Logical,
    Joint,
    Sharded,
    Scheduled,
}

const TABLES: &str = "mesh { dp: 2, tp: 2, cp: 2 }
    dims { A = 4, B = 4, C = 8, D = 16, N = 3, P = 5 pad, S = 8, T = 8, K = 2 }";

/// Parses a main region and makes its parameters inputs and its yields outputs.
fn program(params: &str, body: &str) -> Program {
    let text = format!("program test {{ {TABLES} main({params}) {{ {body} }} }}");
    let mut program = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    for (index, &value) in program.main.params.iter().enumerate() {
        program.inputs.push(Input { name: index.to_string(), value });
    }
    for (index, &value) in program.main.yields.iter().enumerate() {
        program.outputs.push(Output { name: index.to_string(), value });
    }
    program
}

fn verify(stage: Stage, program: &Program) -> Result<(), Fault> {
    match stage {
        Stage::Structure => structure(program),
        Stage::Logical => logical(program).map(|_| ()),
        Stage::Joint => joint(program).map(|_| ()),
        Stage::Sharded => sharded(program).map(|_| ()),
        Stage::Scheduled => scheduled(program).map(|_| ()),
    }
}

fn refused(stage: Stage, cases: &[(&str, &str, &str)]) {
    for &(params, body, expected) in cases {
        let fault = verify(stage, &program(params, body)).expect_err(body);
        assert!(fault.message.contains(expected), "{body}\nexpected {expected}\n{fault}");
        assert!(fault.to_string().starts_with("bug in dtlc, found by `verify"), "{fault}");
    }
}

fn accepted(stage: Stage, cases: &[(&str, &str)]) {
    for &(params, body) in cases {
        verify(stage, &program(params, body)).unwrap_or_else(|fault| panic!("{body}\n{fault}"));
    }
}

#[test]
fn definitions_and_uses() {
    refused(
        Stage::Structure,
        &[
            (
                "",
                "%y: f32[] = neg %x forward %x: f32[] = const 1.0 forward yield %y",
                "%x is used where nothing",
            ),
            (
                "%x: f32[A, B]",
                "scan[A, carries 0, stacks 1] %x forward (%s: f32[B],) { %y: f32[B] = neg %s forward yield }
                 %z: f32[B] = neg %y forward yield %z",
                "%y is used where nothing has defined it",
            ),
            ("%x: f32[A, A]", "yield %x", "%x has a dimension twice"),
            (
                "%x: f32[]",
                "%y: f32[] = fused forward () { %z: f32[] = neg %x forward yield %z } yield %y",
                "%x is used where nothing",
            ),
        ],
    );
    let mut twice = program("%x: f32[]", "%y: f32[] = neg %x forward yield %y");
    let again = twice.main.insts[0].clone();
    twice.main.insts.push(again);
    assert!(structure(&twice).unwrap_err().message.contains("%y is defined twice"));
}

#[test]
fn signatures() {
    let good = || program("%x: f32[A], %y: f32[A]", "%z: f32[A] = add %x, %y forward yield %z");
    assert!(structure(&good()).is_ok());
    let check = |change: fn(&mut Program), expected: &str| {
        let mut program = good();
        change(&mut program);
        let fault = structure(&program).unwrap_err();
        assert!(fault.message.contains(expected), "{fault}");
        assert_eq!(fault.excerpt, "");
    };
    check(|program| program.inputs.truncate(1), "parameters aren't the states, then the inputs");
    check(|program| program.outputs.clear(), "yields aren't the updated states, then the outputs");
    check(|program| program.dims[dtlc_ir::Dim::from_u32(0)].name = "B".into(), "two dims are called `B`");
    check(
        |program| program.mesh.axes[dtlc_ir::Axis::from_u32(0)].name = "tp".into(),
        "two axes are called `tp`",
    );
}

#[test]
fn states() {
    let states = |states: &str, body: &str| {
        let text = format!(
            "program test {{ {TABLES} states {{ {states} }} main(%w: f32[A@dp, B], %m: f32[A, B]) {{ {body} }} }}"
        );
        structure(&parse(&text).unwrap())
    };
    let unchanged = "yield";
    let good = "w = %w, weight, normal(0.1); m = %m, optimizer m of w, constant(0.0);";
    states(good, unchanged).unwrap();
    let updated = "w = %w -> %m, weight, normal(0.1); m = %m, master of w, copy of w;";
    assert!(states(updated, "yield %m").unwrap_err().message.contains("changes the type of state `w`"));
    let stacked = "w = %w, weight, normal(0.1), stack B; m = %m, master of w, copy of w;";
    assert!(states(stacked, unchanged).unwrap_err().message.contains("stacked dim of state `w`"));
    let missing = "w = %w, weight, normal(0.1); m = %m, master of #2, copy of w;";
    assert!(states(missing, unchanged).unwrap_err().message.contains("state `m` refers to a state"));
    let missing = "w = %w, weight, normal(0.1); m = %m, master of w, copy of #9;";
    assert!(states(missing, unchanged).unwrap_err().message.contains("state `m` refers to a state"));
}

#[test]
fn element_types() {
    refused(
        Stage::Structure,
        &[
            ("", "%x: i32[] = const 1.0 forward yield %x", "the literal isn't of type i32"),
            ("", "%x: f32[] = const 1 forward yield %x", "the literal isn't of type f32"),
            ("", "%x: f32[] = const true forward yield %x", "the literal isn't of type f32"),
            ("", "%x: f32[A] = iota[A] forward yield %x", "i32[A] and f32[A]"),
            ("%x: i32[A]", "%y: i32[A] = exp %x forward yield %y", "takes a float"),
            ("%x: bool[A]", "%y: bool[A] = neg %x forward yield %y", "takes a number"),
            (
                "%x: f32[A], %y: bf16[A]",
                "%z: f32[A] = add %x, %y forward yield %z",
                "two numbers of one type",
            ),
            ("%x: f32[A]", "%z: f32[A] = less %x, %x forward yield %z", "bool[A] and f32[A]"),
            ("%x: f32[A]", "%z: bool[A] = not %x forward yield %z", "takes truth values"),
            ("%x: f32[A]", "%z: f32[A] = select %x, %x, %x forward yield %z", "takes a truth value and two"),
            ("%x: i32[A]", "%z: i32[A] = pow %x, %x forward yield %z", "two floats of one type"),
            ("%x: bool[A]", "%z: bool[] = reduce_max[A] %x forward yield %z", "reduces numbers"),
            (
                "%x: f32[A], %y: bf16[A]",
                "%z: f32[] = dot %x, %y forward yield %z",
                "two tensors of one float type",
            ),
            (
                "%x: f32[A], %i: f32[B]",
                "%z: f32[B] = take[A] %x, %i forward yield %z",
                "indices are integers",
            ),
            (
                "%x: f32[B], %i: f32[B]",
                "%z: f32[A] = scatter_add[A] %x, %i forward yield %z",
                "indices are integers",
            ),
            ("%s: i32[]", "%z: f32[A] = random[stream 0 over A] %s forward yield %z", "the step is a u32"),
            ("%x: f32[A]", "%z: bf16[A] = stop_gradient %x forward yield %z", "f32[A] and bf16[A]"),
        ],
    );
    accepted(
        Stage::Structure,
        &[
            ("%x: bf16[A]", "%z: f32[] = reduce_sum[A] %x forward yield %z"),
            ("%x: bf16[A]", "%z: f32[] = dot %x, %x forward yield %z"),
            ("%x: u32[A]", "%z: bool[B, A] = cast %x forward yield %z"),
        ],
    );
}

#[test]
fn dimensions() {
    refused(
        Stage::Structure,
        &[
            ("%x: f32[A]", "%y: f32[B] = neg %x forward yield %y", "f32[A] and f32[B]"),
            ("%x: f32[A]", "%y: f32[A] = add %x forward yield %y", "takes 2 arguments, has 1"),
            ("%x: f32[A]", "%y: f32[A] = reduce_sum[B] %x forward yield %y", "the argument lacks `B`"),
            ("%x: f32[A, B]", "%y: f32[A] = reduce_sum[A] %x forward yield %y", "f32[B] and f32[A]"),
            ("%x: f32[A, C], %y: f32[A]", "%z: f32[A] = dot %x, %y forward yield %z", "f32[A, C] and f32[A]"),
            ("%x: f32[A]", "%y: f32[C] = rename[A -> C] %x forward yield %y", "`A` and `C` differ in size"),
            ("%x: f32[A]", "%y: f32[A] = rename[B -> A] %x forward yield %y", "the argument lacks `B`"),
            ("%x: f32[D]", "%y: f32[A, C] = split[D -> A, C] %x forward yield %y", "isn't the size of `D`"),
            (
                "%x: f32[A, C, B]",
                "%y: f32[D, C] = merge[A, B -> D] %x forward yield %y",
                "lacks `A, B`, side by side",
            ),
            (
                "%x: f32[B, A]",
                "%y: f32[D] = merge[A, B -> D] %x forward yield %y",
                "lacks `A, B`, side by side",
            ),
            (
                "%x: f32[C]",
                "%y: f32[A] = slice[C from 5 -> A] %x forward yield %y",
                "the part ends beyond `C`",
            ),
            ("%x: f32[C]", "%y: f32[] = slice[C from 8] %x forward yield %y", "the part ends beyond `C`"),
            ("%x: f32[A]", "%y: f32[C] = pad[A -> C from 5] %x forward yield %y", "the part ends beyond `C`"),
            ("%x: f32[A]", "%y: f32[C] = concat[A -> C] %x, %x forward yield %y", "one argument a piece"),
            ("%x: f32[A]", "%y: f32[C] = concat[A, * -> C] %x, %x forward yield %y", "don't fill `C`"),
            (
                "%x: f32[A, K], %z: f32[K, A]",
                "%y: f32[C, K] = concat[A, A -> C] %x, %z forward yield %y",
                "the pieces have different types",
            ),
            (
                "%x: f32[A], %i: u32[A]",
                "%y: f32[A] = take[A] %x, %i forward yield %y",
                "the indices have `A`",
            ),
            ("%x: f32[A], %i: u32[S]", "%y: f32[S] = take[B] %x, %i forward yield %y", "the table lacks `B`"),
            (
                "%x: f32[A], %i: u32[S]",
                "%y: f32[B] = scatter_add[B] %x, %i forward yield %y",
                "the updates lack `S`",
            ),
            (
                "%x: f32[B], %i: u32[B]",
                "%y: f32[B] = scatter_add[B] %x, %i forward yield %y",
                "the updates have `B`",
            ),
            ("%s: u32[]", "%y: f32[A] = random[stream 0 over A, B] %s forward yield %y", "`B` is neither"),
            ("%x: f32[A]", "%y: i32[] = iota[A] forward yield %y", "i32[A] and i32[]"),
        ],
    );
}

#[test]
fn attention_types() {
    let (q, k, o) = ("f32[S, A, K]", "f32[T, K]", "f32[S, A, K]");
    let case = |q: &str, k: &str, o: &str, options: &str| {
        let params = format!("%q: {q}, %k: {k}, %v: f32[T, K]");
        let op = format!("attention[query S, key T, head K, value K, scale 1.0{options}]");
        let body = format!("%o: {o}, %l: f32[S, A] = {op} %q, %k, %v forward yield %o, %l");
        structure(&program(&params, &body)).map_err(|fault| fault.message)
    };
    assert_eq!(case(q, k, o, ", causal"), Ok(()));
    let fails = |result: Result<(), String>, expected: &str| {
        let message = result.unwrap_err();
        assert!(message.contains(expected), "{message}");
    };
    fails(case("f32[A, K]", k, o, ""), "wrong dims of the queries");
    fails(case(q, "f32[S, K]", o, ""), "wrong dims of the keys");
    fails(case(q, "bf16[T, K]", o, ""), "one float type");
    fails(case(q, "f32[T, A, K]", o, ""), "differ in batch dims");
    fails(case(q, k, "f32[S, K]", ""), "f32[S, A, K] and f32[S, K]");
    let body = "%o: f32[S, A, K], %l: f32[S, A] = attention[query S, key B, head K, value K, scale 1.0, causal] %q, %k, %k forward yield %o";
    fails(
        structure(&program("%q: f32[S, A, K], %k: f32[B, K]", body)).map_err(|fault| fault.message),
        "`S` and `B` differ in size",
    );
    let gradient = |args: &str| {
        let body = format!(
            "%dq: f32[S, A, K], %dk: f32[T, K], %dv: f32[T, K] =
                attention_gradient[query S, key T, head K, value K, scale 1.0] {args} backward
             yield %dq, %dk, %dv"
        );
        let params =
            "%q: f32[S, A, K], %k: f32[T, K], %v: f32[T, K], %o: f32[S, A, K], %l: f32[S, A], %w: f32[A, S]";
        structure(&program(params, &body)).map_err(|fault| fault.message)
    };
    assert_eq!(gradient("%q, %k, %v, %o, %l, %o"), Ok(()));
    fails(gradient("%q, %k, %v"), "takes 6 arguments, has 3");
    fails(gradient("%q, %k, %v, %o, %o, %o"), "another type than the forward result");
    fails(gradient("%q, %k, %v, %o, %l, %w"), "the output's gradient differs in dims");
}

#[test]
fn scan_signatures() {
    let case = |args: &str, results: &str, options: &str, params: &str, yields: &str| {
        let body = format!(
            "{results} = scan[A, {options}] {args} forward ({params}) {{
                %c: f32[B] = neg %x forward
                yield {yields}
             }} yield"
        );
        structure(&program("%x: f32[B], %w: f32[A, B], %v: f32[B, C]", &body)).map_err(|fault| fault.message)
    };
    let all = "carries 1, stacks 1, outputs (stack, accumulate)";
    let (results, params) = ("%h: f32[B], %s: f32[A, B], %t: f32[A, B]", "%i: f32[B], %j: f32[B]");
    assert_eq!(case("%x, %w, %w", results, all, params, "%c, %j, %c"), Ok(()));
    let fails = |result: Result<(), String>, expected: &str| {
        let message = result.unwrap_err();
        assert!(message.contains(expected), "{message}");
    };
    fails(case("%x, %w", results, all, params, "%c, %j, %c"), "wrong number of arguments");
    fails(case("%x, %w, %w", "%h: f32[B]", all, params, "%c, %j, %c"), "wrong number of results");
    fails(case("%x, %w, %w", results, all, "%i: f32[B]", "%c, %c, %c"), "wrong number of parameters");
    fails(case("%x, %w, %w", results, all, params, "%c, %j"), "wrong number of yields");
    fails(case("%w, %w, %w", results, all, params, "%c, %j, %c"), "initial and carried values");
    fails(
        case("%x, %v, %w", results, all, params, "%c, %j, %c"),
        "f32[B, C] isn't a stack of f32[B] along `A`",
    );
    fails(case("%x, %w, %w", results, all, params, "%w, %j, %c"), "yielded and carried values");
    let wrong = results.replace("%h: f32[B]", "%h: bf16[B]");
    fails(case("%x, %w, %w", &wrong, all, params, "%c, %j, %c"), "final and carried values");
    let wrong = results.replace("%s: f32[A, B]", "%s: f32[B]");
    fails(case("%x, %w, %w", &wrong, all, params, "%c, %j, %c"), "isn't a stack of");
    fails(case("%x, %w, %x", results, all, params, "%c, %j, %c"), "the initial and the accumulated stack");
}

#[test]
fn fused_signatures() {
    let case = |params: &str, results: &str| {
        let body = format!("{results} = fused %x forward ({params}) {{ yield %i }} yield");
        structure(&program("%x: f32[B]", &body)).map_err(|fault| fault.message)
    };
    assert_eq!(case("%i: f32[B]", "%y: f32[B]"), Ok(()));
    assert!(
        case("%i: f32[A]", "%y: f32[A]").unwrap_err().contains("arguments and parameters differ in type")
    );
    assert!(case("%i: f32[B]", "%y: f32[A]").unwrap_err().contains("yields and results differ in type"));
    assert!(case("%i: f32[B], %j: f32[B]", "%y: f32[B]").unwrap_err().contains("differ in number: 1 and 2"));
}

#[test]
fn what_a_stage_may_hold() {
    let moved = "%y: f32[A] = reshard %x because \"r\" forward yield %y";
    let stopped = "%y: f32[A] = stop_gradient %x forward yield %y";
    let fused = "%y: f32[A] = fused %x forward (%i: f32[A]) { yield %i } yield %y";
    let x = "%x: f32[A]";
    accepted(Stage::Logical, &[(x, stopped)]);
    accepted(Stage::Sharded, &[(x, moved)]);
    accepted(Stage::Scheduled, &[(x, fused)]);
    refused(Stage::Logical, &[(x, moved, "nothing moves before placement"), (x, fused, "nothing is fused")]);
    refused(Stage::Logical, &[("%x: f32[A@dp]", "yield %x", "%x is placed, before placement")]);
    refused(Stage::Joint, &[(x, stopped, "leaves no stop_gradient"), (x, moved, "nothing moves")]);
    refused(Stage::Joint, &[("%x: f32[A@dp]", "yield %x", "%x is placed, before placement")]);
    refused(Stage::Sharded, &[(x, stopped, "leaves no stop_gradient"), (x, fused, "nothing is fused")]);
    refused(Stage::Scheduled, &[(x, moved, "scheduling leaves no reshard")]);
    let held =
        "%y: f32[] = fused %x forward (%i: f32[A]) { %d: f32[] = dot %i, %i forward yield %d } yield %y";
    refused(Stage::Scheduled, &[(x, held, "a fused kernel can't hold dot")]);
}

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
                "an initial and an accumulated stack",
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
    ok("f32[B@dp@tp, C]", &format!("f32[B@dp, C] = all_gather[sum: tp] %from {r}"));
    ok("f32[B@dp, C@tp]", &format!("f32[B, C] = all_gather[sum: dp, tp] %from {r}"));
    let wrong = "this isn't what all_gather does to shards";
    fails("f32[B@dp@tp, C]", &format!("f32[B@tp, C] = all_gather[sum: dp] %from {r}"), wrong);
    fails("f32[B@dp, C]", &format!("f32[B, C] = all_gather[sum: tp] %from {r}"), wrong);
    fails(whole, "f32[B, C@cp] = all_gather[sum: dp] %x", "one reason an argument");
    fails(
        "f32[B@dp, C@tp]",
        &format!("f32[B, C] = all_gather[sum: tp, dp] %from {r}"),
        "stand in mesh order",
    );

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
        &format!("f32[C@cp] partial(sum: dp, sum: tp) = all_gather[sum: dp] %s {r}"),
        "makes nothing partial",
    );

    ok("f32[B@dp, C]", &format!("f32[B, C@dp] = all_to_all[sum: dp] %from {r}"));
    let wrong = "this isn't what all_to_all does to shards";
    fails("f32[B@dp, C]", &format!("f32[B, C] = all_to_all[sum: dp] %from {r}"), wrong);
    fails("f32[B@dp@tp, C]", &format!("f32[B@tp, C@dp] = all_to_all[sum: dp] %from {r}"), wrong);

    ok("f32[B@dp@tp, C]", &format!("f32[B@tp@dp, C] = permute[sum: dp, tp] %from {r}"));
    fails("f32[B@dp, C]", &format!("f32[B, C] = permute[sum: dp] %from {r}"), "what permute does to shards");
    fails(
        "f32[B@dp, C]",
        &format!("f32[B@dp, C] = permute[sum: dp] %from {r}"),
        "what permute does to shards",
    );
}

#[test]
fn pads_nest_where_a_finer_split_is_gathered() {
    // P is 5: 2 a part over four ranks, 3 over two.
    let partly = "%y: f32[P@dp] = all_gather[sum: tp] %x because \"r\" forward yield %y";
    let wholly = "%y: f32[P] = all_gather[sum: dp, tp] %x because \"r\" forward yield %y";
    let sliced = "%y: f32[P@dp@tp] = local_slice %x forward yield %y";
    refused(Stage::Sharded, &[("%x: f32[P@dp@tp]", partly, "the padded parts of `P`")]);
    refused(Stage::Sharded, &[("%x: f32[P@dp]", sliced, "the padded parts of `P`")]);
    accepted(Stage::Sharded, &[("%x: f32[P@dp@tp]", wholly), ("%x: f32[P]", sliced)]);
}

#[test]
fn a_fault_shows_the_instruction() {
    let program = program(
        "%x: f32[A@dp, B]",
        "%y: f32[A@dp, B] = exp %x forward %z: f32[B] = reduce_sum[A] %y forward yield %z",
    );
    let expected = "bug in dtlc, found by `verify sharded`: the result comes out as f32[] partial(sum: dp), but says f32[]
main(
  %x: f32[A@dp, B],
) {
  %y: f32[A@dp, B] = exp %x forward
  %z: f32[B] = reduce_sum[A] %y forward
  // ^ the result comes out as f32[] partial(sum: dp), but says f32[]
  yield %z
}";
    assert_eq!(sharded(&program).unwrap_err().to_string(), expected);
}
