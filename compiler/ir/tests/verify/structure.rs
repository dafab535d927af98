//! Rules of every stage: definitions, signatures, types, and what a stage may hold.

use crate::support::{Stage, TABLES, accepted, program, refused};
use dtlc_ir::Program;
use dtlc_ir::text::parse;
use dtlc_ir::verify::structure;

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
            (
                "%x: f32[]",
                "%y: f32[] = fused forward () { %z: f32[] = neg %x forward yield %z } yield %y",
                "%x is used where nothing",
            ),
        ],
    );
    let mut square = program("%x: f32[A]", "yield %x");
    let value = square.main.params[0];
    let dim = square.values[value].ty.dims[0];
    square.values[value].ty.dims.push(dim);
    assert!(structure(&square).unwrap_err().message.contains("%x has a dimension twice"));
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
                "%x: bf16[A]",
                "%z: bf16[] = dot[tf32] %x, %x forward yield %z",
                "only factors of f32 are rounded to tf32",
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
    fails(
        case("%x, %w, %x", results, all, params, "%c, %j, %c"),
        "the initial value and what is added to it",
    );
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
    refused(Stage::Scheduled, &[(x, held, "a kernel of a product alone")]);
}

#[test]
fn a_kernel_goes_on_with_a_product_point_by_point() {
    let params = "%x: f32[A, D], %w: f32[D, B], %b: f32[A, B]";
    let kernel = |inside: &str, result: &str| {
        format!(
            "%y: {result} = fused %x, %w, %b forward (%i: f32[A, D], %v: f32[D, B], %c: f32[A, B]) {{ {inside} }} yield %y"
        )
    };
    let product = "%p: f32[A, B] = dot %i, %v forward";
    let sum = kernel(&format!("{product} %s: f32[A, B] = add %p, %c forward yield %s"), "f32[A, B]");
    accepted(Stage::Scheduled, &[(params, &sum)]);
    let wrong = [
        (format!("{product} yield %p"), "f32[A, B]", "a product alone"),
        (
            format!("%e: f32[A, B] = exp %c forward {product} %s: f32[A, B] = add %p, %e forward yield %s"),
            "f32[A, B]",
            "can't hold dot",
        ),
        (
            format!(
                "{product} %s: f32[A] = reduce_sum[B] %c forward %t: f32[A, B] = mul %p, %s forward yield %t"
            ),
            "f32[A, B]",
            "reduces",
        ),
        (
            format!("{product} %s: f32[A] = slice[B from 0] %p forward yield %s"),
            "f32[A]",
            "elsewhere than at their own points",
        ),
    ];
    for (inside, result, expected) in &wrong {
        refused(Stage::Scheduled, &[(params, &kernel(inside, result), expected)]);
    }
}
