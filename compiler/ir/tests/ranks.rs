//! Programs with placements: they verify, and every rank together computes what one device does.

use dtlc_ir::interpret::{Options, Tensor, interpret, interpret_ranks};
use dtlc_ir::text::parse;
use dtlc_ir::verify::{scheduled, sharded};
use dtlc_ir::{DType, Program};

fn program(main: &str) -> Program {
    let tables = "mesh { dp: 2, tp.0: 2, tp.1: 2 }
        dims { B = 4, S = 8, T = 8, D = 6, F = 8, KV = 2, G = 4, H = 8, K = 3, V = 8, P = 7 pad, L = 2, R = 4 }";
    let text = format!("program test {{ {tables} {main} }}");
    parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Arguments for the main region: small numbers, and indices below `P`'s size.
fn arguments(program: &Program) -> Vec<Tensor> {
    let numbers = program.main.params.iter().enumerate().map(|(which, &param)| {
        let ty = program.ty(param);
        let shape = ty.dims.iter().map(|&dim| (dim, program.dims[dim].size as usize));
        Tensor::from_fn(shape, |index| {
            let number = (which * 101 + index * 37 + 11) % 23;
            match ty.dtype {
                DType::F32 | DType::Bf16 | DType::F16 => number as f64 / 11.5 - 1.0,
                DType::I32 | DType::U32 => (number % 7) as f64,
                DType::Bool => (number % 2) as f64,
            }
        })
    });
    numbers.collect()
}

/// Wraps parameters as inputs and yields as outputs, so that the signature holds.
fn with_signature(mut program: Program) -> Program {
    program.inputs = program
        .main
        .params
        .iter()
        .enumerate()
        .map(|(index, &value)| dtlc_ir::Input { name: index.to_string(), value })
        .collect();
    program.outputs = program
        .main
        .yields
        .iter()
        .enumerate()
        .map(|(index, &value)| dtlc_ir::Output { name: index.to_string(), value })
        .collect();
    program
}

fn check(params: &str, body: &str) {
    let program = with_signature(program(&format!("main({params}) {{ {body} }}")));
    sharded(&program).unwrap_or_else(|fault| panic!("{fault}"));
    let (args, options) = (arguments(&program), Options { seed: 3, ..Options::default() });
    let one = interpret(&program, &args, &options).unwrap_or_else(|fault| panic!("{fault}"));
    let all = interpret_ranks(&program, &args, &options).unwrap_or_else(|fault| panic!("{fault}"));
    for (one, all) in one.yields.iter().zip(&all.yields) {
        assert_eq!(one.shape(), all.shape(), "{body}");
        for (one, all) in one.data.iter().zip(&all.data) {
            let close = one == all || (one - all).abs() <= 1e-12 * (1.0 + one.abs());
            assert!(close, "{body}\n{one} and {all}");
        }
    }
}

#[test]
fn column_then_row_parallel_mlp_with_one_all_reduce() {
    check(
        "%x: f32[B@dp, S, D], %w1: f32[D, F@tp.0@tp.1], %b: f32[F@tp.0@tp.1], %w2: f32[F@tp.0@tp.1, D]",
        "%h: f32[B@dp, S, F@tp.0@tp.1] = dot %x, %w1 forward
         %hb: f32[B@dp, S, F@tp.0@tp.1] = add %h, %b forward
         %a: f32[B@dp, S, F@tp.0@tp.1] = tanh %hb forward
         %p: f32[B@dp, S, D] partial(sum: tp.0, sum: tp.1) = dot %a, %w2 forward
         %two: f32[] = const 2.0 forward
         %scaled: f32[B@dp, S, D] partial(sum: tp.0, sum: tp.1) = mul %p, %two forward
         %more: f32[B@dp, S, D] partial(sum: tp.0, sum: tp.1) = add %scaled, %p forward
         %y: f32[B@dp, S, D] = all_reduce[sum: tp.0, tp.1] %more because \"row parallel\" forward
         yield %y",
    );
}

#[test]
fn sequence_parallel_gathers_and_scatters() {
    check(
        "%x: f32[B@dp, S@tp.0, D], %w1: f32[D, F@tp.0], %w2: f32[F@tp.0, D]",
        "%xg: f32[B@dp, S, D] = all_gather[tp.0] %x because \"r\" forward
         %h: f32[B@dp, S, F@tp.0] = dot %xg, %w1 forward
         %p: f32[B@dp, S, D] partial(sum: tp.0) = dot %h, %w2 forward
         %y: f32[B@dp, S@tp.0, D] = reduce_scatter[sum: tp.0] %p because \"r\" forward
         %s: f32[B@dp, S@tp.0, D] = add %x, %y forward
         %total: f32[D] partial(sum: dp, sum: tp.0) = reduce_sum[B, S] %s gradient
         %sum: f32[D] = all_reduce[sum: dp, tp.0] %total because \"r\" gradient
         yield %s, %sum",
    );
}

#[test]
fn every_reshard_keeps_the_value() {
    check(
        "%x: f32[B@dp, S, D]",
        "%a: f32[B, S@dp@tp.0, D] = reshard %x because \"r\" forward
         %b: f32[B@tp.1, S@tp.0@dp, D] = reshard %a because \"r\" forward
         %c: f32[B@dp, S@tp.1, D] = reshard %b because \"r\" forward
         yield %b, %c",
    );
    check(
        "%x: f32[B@dp, S@tp.0, D]",
        "%t: f32[D] partial(sum: dp, sum: tp.0) = reduce_sum[B, S] %x forward
         %u: f32[D@tp.0] partial(sum: dp) = reshard %t because \"scatter one, keep one\" forward
         %v: f32[D] = reshard %u because \"r\" forward
         %m: f32[] partial(max: dp, max: tp.0) = reduce_max[B, S, D] %x forward
         %n: f32[] = all_reduce[max: dp, tp.0] %m because \"r\" forward
         yield %v, %n",
    );
}

#[test]
fn local_slices_all_to_alls_and_permutes() {
    check(
        "%x: f32[B@dp, S, F]",
        "%a: f32[B@dp, S@tp.0@tp.1, F] = local_slice %x forward
         %b: f32[B@dp, S@tp.0, F@tp.1] = all_to_all[tp.1] %a because \"r\" forward
         %c: f32[B@dp, S@tp.0, F] = all_gather[tp.1] %b because \"r\" forward
         %d: f32[B@tp.0, S@dp, F] = permute[dp, tp.0] %c because \"r\" forward
         yield %b, %d",
    );
}

#[test]
fn attention_over_heads_batch_and_queries() {
    let attention = |name: &str| {
        format!("{name}[query S, key T, head K, value K, scale 0.5, causal, window 6, documents]")
    };
    let placed = |group: &str, query: &str, batch: &str, partial: &str, resolve: bool| {
        let resolved = |name: &str, ty: &str| match resolve {
            true => format!("%{name}r: {ty} = all_reduce[sum: tp.1] %{name} because \"r\" backward\n"),
            false => format!("%{name}r: {ty} = cast %{name} backward\n"),
        };
        let q = format!("f32[B{batch}, S{query}, KV@tp.0, G{group}, K]");
        let kv = format!("f32[B{batch}, T, KV@tp.0, K]");
        check(
            &format!(
                "%q: {q}, %k: {kv}, %v: {kv}, %w: {q}, %e: u32[B{batch}, S{query}], %f: u32[B{batch}, T]"
            ),
            &format!(
                "%o: {q}, %l: f32[B{batch}, S{query}, KV@tp.0, G{group}] = {} %q, %k, %v, %e, %f forward
                 %dq: {q}, %dk: {kv} {partial}, %dv: {kv} {partial} = {} %q, %k, %v, %o, %l, %w, %e, %f backward
                 {}{}yield %o, %l, %dq, %dkr, %dvr",
                attention("attention"),
                attention("attention_gradient"),
                resolved("dk", &kv),
                resolved("dv", &kv),
            ),
        );
    };
    placed("", "", "@dp", "", false);
    placed("@tp.1", "", "@dp", "partial(sum: tp.1)", true);
    placed("", "@tp.1", "@dp", "partial(sum: tp.1)", true);
}

#[test]
fn vocabulary_parallel_embedding_and_its_gradient() {
    check(
        "%e: f32[V@tp.0, D], %i: u32[B@dp, S], %d: f32[B@dp, S, D]",
        "%p: f32[B@dp, S, D] partial(sum: tp.0) = take[V] %e, %i forward
         %x: f32[B@dp, S, D] = all_reduce[sum: tp.0] %p because \"r\" forward
         %g: f32[V@tp.0, D] partial(sum: dp) = scatter_add[V] %d, %i backward
         %s: f32[V@tp.0, D] = all_reduce[sum: dp] %g because \"r\" gradient
         yield %x, %s",
    );
    // Picking one score a position, the vocabulary split, and back.
    check(
        "%l: f32[B@dp, V@tp.0], %i: u32[B@dp], %d: f32[B@dp]",
        "%p: f32[B@dp] partial(sum: tp.0) = take[V] %l, %i forward
         %x: f32[B@dp] = all_reduce[sum: tp.0] %p because \"r\" forward
         %g: f32[B@dp, V@tp.0] = scatter_add[V] %d, %i backward
         yield %x, %g",
    );
}

#[test]
fn padded_dimensions_are_masked() {
    check(
        "%x: f32[B@dp, P@tp.0@tp.1]",
        "%i: i32[P@tp.0@tp.1] = iota[P] forward
         %n: i32[] = const 7 forward
         %in: bool[P@tp.0@tp.1] = less %i, %n forward
         %zero: f32[] = const 0.0 forward
         %e: f32[B@dp, P@tp.0@tp.1] = exp %x forward
         %m: f32[B@dp, P@tp.0@tp.1] = select %in, %e, %zero forward
         %p: f32[B@dp] partial(sum: tp.0, sum: tp.1) = reduce_sum[P] %m forward
         %s: f32[B@dp] = all_reduce[sum: tp.0, tp.1] %p because \"r\" forward
         %g: f32[B@dp, P] = all_gather[tp.0, tp.1] %e because \"r\" forward
         yield %s, %g, %e",
    );
}

#[test]
fn views_keep_shards_on_the_major_factor() {
    check(
        "%x: f32[B@dp, H@tp.0@tp.1, K], %y: f32[F@tp.0, D]",
        "%s: f32[B@dp, KV@tp.0, G@tp.1, K] = split[H -> KV, G] %x forward
         %m: f32[B@dp, F@tp.0@tp.1, K] = merge[KV, G -> F] %s forward
         %r: f32[V@tp.0, D] = rename[F -> V] %y forward
         %c: f32[V@tp.0, K] = slice[D from 2 -> K] %r forward
         %o: f32[V@tp.0] = slice[D from 5] %r forward
         %p: f32[V@tp.0, D] = pad[K -> D from 1] %c forward
         %q: f32[V@tp.0, R] = concat[K, * -> R] %c, %o forward
         %u: f32[V@tp.0, R] = pad[-> R from 3] %o forward
         yield %m, %p, %q, %u",
    );
}

#[test]
fn partial_values_pass_through_what_is_linear() {
    check(
        "%x: f32[B@dp, D], %m: bool[D], %w: f32[D, F], %i: u32[S]",
        "%p: f32[D] partial(sum: dp) = reduce_sum[B] %x forward
         %n: f32[D] partial(sum: dp) = neg %p forward
         %h: bf16[D] partial(sum: dp) = cast %n forward
         %f: f32[D] partial(sum: dp) = cast %h forward
         %two: f32[] = const 2.0 forward
         %d: f32[D] partial(sum: dp) = div %f, %two forward
         %zero: f32[] = const 0.0 forward
         %wide: f32[D] = cast %zero forward
         %s: f32[D] partial(sum: dp) = select %m, %d, %wide forward
         %t: f32[D] partial(sum: dp) = select %m, %s, %p forward
         %u: f32[D] partial(sum: dp) = sub %t, %p forward
         %v: f32[F] partial(sum: dp) = dot %u, %w forward
         %k: f32[S] partial(sum: dp) = take[F] %v, %i forward
         %b: f32[V] partial(sum: dp) = scatter_add[V] %k, %i forward
         %one: f32[] partial(sum: dp) = reduce_sum[V] %b forward
         %y: f32[] = all_reduce[sum: dp] %one because \"r\" forward
         yield %y",
    );
}

#[test]
fn random_values_are_the_same_bits_under_every_placement() {
    check(
        "%step: u32[]",
        "%a: f32[B@dp, S@tp.0@tp.1] = random[stream 4 over B, S] %step forward
         %b: f32[B, S] = random[stream 4 over B, S] %step forward
         %part: f32[B@dp, S@tp.0@tp.1] = local_slice %b forward
         %none: f32[B@dp, S@tp.0@tp.1] = sub %a, %part forward
         yield %a, %b, %none",
    );
}

#[test]
fn scans_stack_partial_results() {
    check(
        "%x: f32[B@dp, D], %w: f32[L, D, F@tp.0], %v: f32[L, F@tp.0, D], %g: f32[L, D]",
        "%zero: f32[] = const 0.0 forward
         %init: f32[L, D] = cast %zero forward
         %y: f32[B@dp, D], %hs: f32[L, B@dp, D], %sums: f32[L, D] partial(sum: dp), %acc: f32[L, D] =
            scan[L, carries 1, stacks 2, outputs (stack, stack, accumulate)] %x, %w, %v, %g forward (
            %h: f32[B@dp, D], %wl: f32[D, F@tp.0], %vl: f32[F@tp.0, D],
         ) {
            %a: f32[B@dp, F@tp.0] = dot %h, %wl forward
            %t: f32[B@dp, F@tp.0] = tanh %a forward
            %p: f32[B@dp, D] partial(sum: tp.0) = dot %t, %vl forward
            %r: f32[B@dp, D] = all_reduce[sum: tp.0] %p because \"r\" forward
            %n: f32[B@dp, D] = add %r, %h forward
            %s: f32[D] partial(sum: dp) = reduce_sum[B] %n forward
            %whole: f32[D] = all_reduce[sum: dp] %s because \"r\" forward
            yield %n, %h, %s, %whole
         }
         %all: f32[L, D] = all_reduce[sum: dp] %sums because \"once a step\" gradient
         yield %y, %hs, %all, %acc, %init",
    );
}

#[test]
fn fused_kernels_run_on_each_ranks_part() {
    let program = with_signature(program(
        "main(%x: f32[B@dp, D]) {
            %y: f32[B@dp, D], %s: f32[D] partial(sum: dp) = fused %x forward (%a: f32[B@dp, D]) {
                %e: f32[B@dp, D] = exp %a forward
                %t: f32[D] partial(sum: dp) = reduce_sum[B] %e forward
                yield %e, %t
            }
            %f: f32[D] = all_reduce[sum: dp] %s because \"r\" forward
            %r: f32[D] = done %f forward
            yield %y, %r
        }",
    ));
    scheduled(&program).unwrap_or_else(|fault| panic!("{fault}"));
    let (args, options) = (arguments(&program), Options::default());
    let [one, all] = [interpret, interpret_ranks].map(|run| run(&program, &args, &options).unwrap());
    for (one, all) in one.yields.iter().zip(&all.yields) {
        assert!(one.data.iter().zip(&all.data).all(|(one, all)| (one - all).abs() < 1e-12));
    }
}

#[test]
fn ranks_that_disagree_are_a_fault() {
    // The type says that every rank holds the whole sum; each holds its own part.
    let program = program(
        "main(%x: f32[B@dp, D]) {
            %s: f32[D] = reduce_sum[B] %x forward
            yield %s
        }",
    );
    let fault = interpret_ranks(&program, &arguments(&program), &Options::default()).unwrap_err();
    let text = fault.to_string();
    assert!(text.contains("%s: ranks 0 and 4 should hold the same, and don't"), "{text}");
    assert!(text.contains("%s: f32[D] = reduce_sum[B] %x forward\n  // ^ %s: ranks"), "{text}");
}
