//! A small Llama in IR text: grouped queries, rotary positions, gated MLP, a loss over a split vocabulary.

/// The forward program. Lines `# path` set the layer instance of what follows; each instruction gets its
/// origin and phase when the text is expanded.
const LLAMA: &str = r#"
program "llama" {
  dims { B = 4, S = 8, T = 8, D = 8, KV = 2, G = 2, K = 4, H2 = 2, KH = 2, F = 12, V = VOCAB, L = 2 }
  scopes { /: Llama  layers: Block in /  layers.attn: Attention in layers  layers.mlp: Mlp in layers }
  states {
    embed = %embed, weight, constant(0.0);
    layers.g1 = %g1s, norm, constant(1.0), stack L;
    layers.attn.wq = %wqs, weight, constant(0.0), stack L;
    layers.attn.wk = %wks, weight, constant(0.0), stack L;
    layers.attn.wv = %wvs, weight, constant(0.0), stack L;
    layers.attn.wo = %wos, weight, constant(0.0), stack L;
    layers.g2 = %g2s, norm, constant(1.0), stack L;
    layers.mlp.w1 = %w1s, weight, constant(0.0), stack L;
    layers.mlp.w3 = %w3s, weight, constant(0.0), stack L;
    layers.mlp.w2 = %w2s, weight, constant(0.0), stack L;
    layers.mlp.b2 = %b2s, bias, constant(0.0), stack L;
    g = %g, norm, constant(1.0);
    head = %head, weight, constant(0.0);
  }
  inputs { tokens = %tokens, labels = %labels }
  outputs { loss = %loss }
  bindings {
    x in layers = %x;
    wq in layers.attn = %wq;
    h in layers = %h;
  }
  main(
    %embed: f32[V, D] param, %g1s: f32[L, D] param, %wqs: f32[L, D, KV, G, K] param,
    %wks: f32[L, D, KV, K] param, %wvs: f32[L, D, KV, K] param, %wos: f32[L, KV, G, K, D] param,
    %g2s: f32[L, D] param, %w1s: f32[L, D, F] param, %w3s: f32[L, D, F] param, %w2s: f32[L, F, D] param,
    %b2s: f32[L, D] param, %g: f32[D] param, %head: f32[D, V] param, %tokens: u32[B, S], %labels: u32[B, S],
  ) {
    # /
    %x0: f32[B, S, D] = take[V] %embed, %tokens
    %eps: f32[] = const 1e-3
    %inv: f32[] = const 0.125
    %si: i32[S] = iota[S]
    %sf: f32[S] = cast %si
    %ki: i32[KH] = iota[KH]
    %kf: f32[KH] = cast %ki
    %angle: f32[S, KH] = mul %sf, %kf
    %cos: f32[S, KH] = cos %angle
    %sin: f32[S, KH] = sin %angle
    %y: f32[B, S, D] = scan[L, carries 1, stacks 10] %x0, %g1s, %wqs, %wks, %wvs, %wos, %g2s, %w1s, %w3s, %w2s, %b2s forward (
      %x: f32[B, S, D], %g1: f32[D] param, %wq: f32[D, KV, G, K] param, %wk: f32[D, KV, K] param,
      %wv: f32[D, KV, K] param, %wo: f32[KV, G, K, D] param, %g2: f32[D] param, %w1: f32[D, F] param,
      %w3: f32[D, F] param, %w2: f32[F, D] param, %b2: f32[D] param
    ) {
      # layers
      %s1: f32[B, S, D] = mul %x, %x
      %m1: f32[B, S] = reduce_sum[D] %s1
      %n1: f32[B, S] = mul %m1, %inv
      %o1: f32[B, S] = add %n1, %eps
      %r1: f32[B, S] = rsqrt %o1
      %u1: f32[B, S, D] = mul %x, %r1
      %xn: f32[B, S, D] = mul %u1, %g1
      # layers.attn
      %q: f32[B, S, KV, G, K] = dot %xn, %wq
      %q2: f32[B, S, KV, G, H2, KH] = split[K -> H2, KH] %q
      %qa: f32[B, S, KV, G, KH] = slice[H2 from 0] %q2
      %qb: f32[B, S, KV, G, KH] = slice[H2 from 1] %q2
      %qac: f32[B, S, KV, G, KH] = mul %qa, %cos
      %qbs: f32[B, S, KV, G, KH] = mul %qb, %sin
      %qas: f32[B, S, KV, G, KH] = mul %qa, %sin
      %qbc: f32[B, S, KV, G, KH] = mul %qb, %cos
      %qx: f32[B, S, KV, G, KH] = sub %qac, %qbs
      %qy: f32[B, S, KV, G, KH] = add %qas, %qbc
      %q3: f32[B, S, KV, G, H2, KH] = concat[*, * -> H2] %qx, %qy
      %qr: f32[B, S, KV, G, K] = merge[H2, KH -> K] %q3
      %k: f32[B, S, KV, K] = dot %xn, %wk
      %k2: f32[B, S, KV, H2, KH] = split[K -> H2, KH] %k
      %ka: f32[B, S, KV, KH] = slice[H2 from 0] %k2
      %kb: f32[B, S, KV, KH] = slice[H2 from 1] %k2
      %kac: f32[B, S, KV, KH] = mul %ka, %cos
      %kbs: f32[B, S, KV, KH] = mul %kb, %sin
      %kas: f32[B, S, KV, KH] = mul %ka, %sin
      %kbc: f32[B, S, KV, KH] = mul %kb, %cos
      %kx: f32[B, S, KV, KH] = sub %kac, %kbs
      %ky: f32[B, S, KV, KH] = add %kas, %kbc
      %k3: f32[B, S, KV, H2, KH] = concat[*, * -> H2] %kx, %ky
      %kr: f32[B, S, KV, K] = merge[H2, KH -> K] %k3
      %kt: f32[B, T, KV, K] = rename[S -> T] %kr
      %v: f32[B, S, KV, K] = dot %xn, %wv
      %vt: f32[B, T, KV, K] = rename[S -> T] %v
      %a: f32[B, S, KV, G, K], %lse: f32[B, S, KV, G] = attention[query S, key T, head K, value K, scale 0.5, causal] %qr, %kt, %vt
      %out: f32[B, S, D] = dot %a, %wo
      # layers
      %h: f32[B, S, D] = add %x, %out
      %s2: f32[B, S, D] = mul %h, %h
      %m2: f32[B, S] = reduce_sum[D] %s2
      %n2: f32[B, S] = mul %m2, %inv
      %o2: f32[B, S] = add %n2, %eps
      %r2: f32[B, S] = rsqrt %o2
      %u2: f32[B, S, D] = mul %h, %r2
      %hn: f32[B, S, D] = mul %u2, %g2
      # layers.mlp
      %f1: f32[B, S, F] = dot %hn, %w1
      %f3: f32[B, S, F] = dot %hn, %w3
      %fs: f32[B, S, F] = sigmoid %f1
      %fa: f32[B, S, F] = mul %f1, %fs
      %ff: f32[B, S, F] = mul %fa, %f3
      %f2: f32[B, S, D] = dot %ff, %w2
      %fb: f32[B, S, D] = add %f2, %b2
      # layers
      %next: f32[B, S, D] = add %h, %fb
      yield %next
    }
    # /
    %s: f32[B, S, D] = mul %y, %y
    %m: f32[B, S] = reduce_sum[D] %s
    %n: f32[B, S] = mul %m, %inv
    %o: f32[B, S] = add %n, %eps
    %r: f32[B, S] = rsqrt %o
    %u: f32[B, S, D] = mul %y, %r
    %yn: f32[B, S, D] = mul %u, %g
    %logits: f32[B, S, V] = dot %yn, %head
    %top: f32[B, S] = reduce_max[V] %logits
    %stop: f32[B, S] = stop_gradient %top
    %shift: f32[B, S, V] = sub %logits, %stop
    %e: f32[B, S, V] = exp %shift
    %se: f32[B, S] = reduce_sum[V] %e
    %vi: i32[V] = iota[V]
    %li: i32[B, S] = cast %labels
    %hit: bool[B, S, V] = equal %vi, %li
    %zero: f32[] = const 0.0
    %picks: f32[B, S, V] = select %hit, %shift, %zero
    %pick: f32[B, S] = reduce_sum[V] %picks
    %log: f32[B, S] = log %se
    %nll: f32[B, S] = sub %log, %pick
    %ignored: u32[] = const 3
    %valid: bool[B, S] = not_equal %labels, %ignored
    %kept: f32[B, S] = select %valid, %nll, %zero
    %total: f32[] = reduce_sum[B, S] %kept
    %ones: f32[B, S] = cast %valid
    %count: f32[] = reduce_sum[B, S] %ones
    %loss: f32[] = div %total, %count
    yield %loss
  }
}
"#;

/// The program's text, with this many tokens in its vocabulary.
pub fn llama(vocabulary: u64) -> String {
    expand(&LLAMA.replace("VOCAB", &vocabulary.to_string()))
}

/// The same with the head tied to the embedding, learned positions, and a dimension of its own for them.
pub fn tied(vocabulary: u64) -> String {
    let source = LLAMA
        .replace("VOCAB", &vocabulary.to_string())
        .replace("T = 8,", "T = 8, P = 10,")
        .replace("    head = %head, weight, constant(0.0);\n", "    positions = %positions, weight, constant(0.0);\n")
        .replace("%head: f32[D, V] param", "%positions: f32[P, D] param")
        .replace("dot %yn, %head", "dot %yn, %embed")
        .replace(
            "%x0: f32[B, S, D] = take[V] %embed, %tokens\n",
            "%rows: f32[B, S, D] = take[V] %embed, %tokens\n%places: f32[S, D] = slice[P from 0 -> S] %positions\n\
             %x0: f32[B, S, D] = add %rows, %places\n",
        );
    expand(&source)
}

/// Gives each instruction an origin, in the instance that the last `#` line names, and the forward phase.
pub fn expand(source: &str) -> String {
    let mut scope = "";
    let mut text = String::new();
    for (number, line) in source.lines().enumerate() {
        let trimmed = line.trim();
        if let Some(path) = trimmed.strip_prefix("# ") {
            scope = if path == "/" { "" } else { path };
        } else if trimmed.starts_with('%') && trimmed.contains(" = ") && !trimmed.ends_with('(') {
            text.push_str(&located(trimmed, number + 1, scope));
        } else {
            text.push_str(line);
        }
        text.push('\n');
    }
    text
}

/// The instruction with its origin and phase.
fn located(line: &str, number: usize, scope: &str) -> String {
    let separator = if scope.is_empty() { "" } else { " " };
    format!("{line} loc(llama.dtl:{number}:1{separator}{scope}) forward")
}
