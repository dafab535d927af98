//! The pieces that random layers are made of: each takes the residual stream and gives one of the same shape, so that
//! any can be left out.

use super::GENERICS;
use super::Stack;
use super::rng::Rng;
use std::fmt::Write;

/// A part of a layer's function.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Makes its names unique.
    pub number: u64,
    /// Parameters and sub-layers, one a line.
    pub members: String,
    /// `let`s, one a line: `$x` comes in, `$y` goes out.
    pub body: String,
    /// A layer within, with how often it is repeated.
    pub nested: Option<(u64, Layer)>,
}

/// A layer.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Its name.
    pub name: String,
    /// Applied one after another.
    pub pieces: Vec<Piece>,
    /// Whether its input is added to its result.
    pub residual: bool,
    /// An inline placement on its input, such as `S@tp`.
    pub pin: Option<(String, String)>,
}

impl Piece {
    /// Takes every inline placement out of it.
    pub fn place_nowhere(&mut self) {
        for text in [&mut self.members, &mut self.body] {
            for axis in ["@dp", "@cp", "@tp"] {
                *text = text.replace(axis, "");
            }
        }
    }
}

impl Layer {
    /// Writes it as an item.
    pub fn write(&self, text: &mut String) {
        let _ = writeln!(text, "layer {}[{GENERICS}] {{", self.name);
        for piece in &self.pieces {
            for line in piece.members.lines() {
                let _ = writeln!(text, "  {}", piece.filled(line, ""));
            }
            if let Some((count, layer)) = &piece.nested {
                let repeat = if *count == 0 { String::new() } else { format!("repeat[{count}] ") };
                let _ = writeln!(text, "  sub{} = {repeat}{}[{GENERICS}]", piece.number, layer.name);
            }
        }
        let dim = |name: &str| match &self.pin {
            Some((dim, axis)) if dim == name => format!("{name}@{axis}"),
            Some(_) | None => name.to_owned(),
        };
        let _ = writeln!(text, "  fn (x: [{}, {}, {}]) -> [B, S, D] {{", dim("B"), dim("S"), dim("D"));
        let mut from = "x".to_owned();
        for piece in &self.pieces {
            for line in piece.body.lines() {
                let _ = writeln!(text, "    {}", piece.filled(line, &from));
            }
            from = format!("h{}", piece.number);
        }
        let result = if self.residual { format!("x + 0.5 * {from}") } else { from };
        let _ = writeln!(text, "    {result}\n  }}\n}}\n");
    }
}

/// Makes layers.
pub struct Maker<'a> {
    rng: &'a mut Rng,
    /// Values are rounded so coarsely that a function with a jump would jump at other places.
    smooth: bool,
    layers: u64,
    numbers: u64,
}

/// Pieces of one `let` with nothing that the layer holds; those behind `JUMPS` have a kink or a jump.
const SIMPLE: &[&str] = &[
    "let $y = tanh($x)",
    "let $y = sigmoid($x) * $x",
    "let $y = erf(0.7 * $x)",
    "let $y = sin($x) + 0.3 * cos(2.0 * $x)",
    "let $y = exp(-0.5 * $x * $x)",
    "let $y = log(1.0 + $x * $x)",
    "let $y = sqrt($x * $x + 0.5)",
    "let $y = $x * rsqrt($x * $x + 1.0)",
    "let $y = pow(0.5 + $x * $x, 1.3)",
    "let $y = pow(1.5, tanh($x))",
    "let $y = $x / (1.0 + $x * $x)",
    "let $y = gelu($x)",
    "let $y = gelu_tanh($x)",
    "let $y = silu($x)",
    "let $y = softmax[D]($x)",
    "let $y = $x - mean[S]($x)",
    "let $y = $x - mean[S, D]($x)",
    "let $y = $x * rsqrt(mean[D]($x * $x) + 0.1)",
    "let $y = 0.3 * sum[D](sin($x)) + $x",
    "let $y = $x * tanh(sum[S]($x))",
    "let $y = $x + 0.1 * tanh(sum[B]($x))",
    "let $y = $x + mean[S]($x, over = iota[S] != 1)",
    "let $y = $x - mean[D]($x, over = iota[D] < 2)",
    "let $y = 0.5 * stop_gradient($x) + 0.5 * tanh($x)",
    "let $y = $x * stop_gradient(sigmoid($x))",
    "let $y = dropout($x, 0.3)",
    "let $y = $x + 0.2 * float(random[B, S, D])",
    "let $y = $x * float(random[S])",
    "let $y = $x + 0.1 * float(f32(iota[S])) + 0.05 * float(f32(iota[D]))",
    "let $y = $x * float(cos(0.3 * f32(iota[B])))",
    "let $y = select(iota[S] % 2 == 0 && !(iota[D] < 2), $x, 0.3 - $x)",
    "let $y = select(iota[B] >= 1 || iota[S] == 0, $x, tanh($x))",
    "let $y = select(iota[S] >= iota[D], $x, 0.5 * $x)",
    "let $y = float(f32($x) * 1.1 - 0.1)",
    "let $y = $x * float(u32(iota[S]) != 2)",
    "let a$n = slice[D = 1]($x)\nlet $y = $x + 0.5 * tanh(a$n)",
    "let a$n = slice[D -> D1]($x, start = 0)\nlet b$n = slice[D -> D2]($x, start = D1)\nlet $y = concat[D2, D1 -> D](tanh(b$n), a$n)",
    "let a$n = slice[D -> D1]($x, start = 0)\nlet b$n = slice[D -> D2]($x, start = D1)\nlet $y = concat[D1, D2 -> D](a$n * mean[D2](b$n), b$n)",
    "let a$n = stack[R]($x, tanh($x))\nlet $y = sum[R](a$n * (1.0 + float(f32(iota[R]))))",
    "let a$n = split[D -> P, Q]($x)\nlet $y = merge[P, Q -> D](a$n - mean[Q](a$n))",
    "let a$n = split[D -> P, Q]($x)\nlet $y = merge[Q, P -> D](softmax[P](a$n))",
    "let a$n = rename[D -> O]($x)\nlet $y = 0.2 * dot[O](dot[S](tanh($x), tanh(a$n)), a$n)",
    "dims T$n = S\nlet a$n = rename[S -> T$n]($x)\nlet $y = 0.3 * dot[T$n](softmax[T$n](dot[D]($x, a$n)), a$n)",
    "dims T$n = S\nlet a$n = rename[S -> T$n]($x)\nlet $y = 0.2 * dot[T$n](select(iota[T$n] <= iota[S], tanh(dot[D]($x, a$n)), 0.0), a$n)",
];

/// The same with kinks or jumps.
const JUMPS: &[&str] = &[
    "let $y = max($x, -0.3)",
    "let $y = min(max($x, -0.7), 0.9)",
    "let $y = abs($x)",
    "let $y = select($x > 0.1, $x, 0.2 * $x)",
    "let $y = $x + 0.1 * floor(2.3 * $x)",
    "let $y = $x % 1.7",
    "let $y = $x + 0.5 * float(bool(f32(iota[S])) && $x < 0.4)",
    "let a$n = $x + 0.37 * float(sin(2.1 * f32(iota[S])) + cos(1.3 * f32(iota[B])))\nlet $y = $x * tanh(max[S](a$n))",
    "let a$n = $x + 0.37 * float(sin(2.1 * f32(iota[D])))\nlet $y = $x * tanh(max[D](a$n))",
    "let a$n = $x + 0.37 * float(sin(2.1 * f32(iota[S])) + cos(1.3 * f32(iota[D])))\nlet $y = $x - 0.3 * max[S, D](a$n)",
];

/// Pieces that hold something: members, then a body.
const HOLDING: &[(&str, &str)] = &[
    ("norm$n = RmsNorm[D]", "let $y = norm$n($x)"),
    ("norm$n = LayerNorm[D](eps = 0.01)", "let $y = norm$n($x)"),
    ("mlp$n = SwiGlu[D, F]", "let $y = mlp$n($x)"),
    ("mlp$n = GeGlu[D, F](exact = true)", "let $y = mlp$n($x)"),
    ("mlp$n = GeGlu[D, E](exact = false)", "let $y = mlp$n($x)"),
    ("mlp$n = GeluMlp[D, F]", "let $y = mlp$n($x)"),
    ("mlp$n = GeluMlp[D, F](exact = false, bias = false)", "let $y = mlp$n($x)"),
    ("map$n = Linear[D -> O](bias = true)", "let $y = rename[O -> D](map$n($x))"),
    ("attn$n = FusedMultiHead[D, H, K]", "let $y = attn$n($x)"),
    ("attn$n = FusedMultiHead[D, E, J](causal = false)", "let $y = attn$n($x)"),
    ("param gain$n: [D] kind norm", "let $y = $x * gain$n"),
    ("param shift$n: [D] kind bias", "let $y = $x + shift$n"),
    ("param gain$n: [R, D] kind norm", "let $y = sum[R](tanh(stack[R]($x, 0.5 * $x) * gain$n)) * 0.5"),
    ("param a$n: [D, E]\nparam b$n: [E, D]", "let $y = dot[E](tanh(dot[D]($x, a$n)), b$n)"),
    (
        "param a$n: [D, E]\nparam b$n: [E, D]",
        "let u$n: [B, S, E] = tanh(dot[D]($x, a$n))\nlet $y = dot[E](u$n, b$n)",
    ),
    (
        "param a$n: [D, F]\nparam b$n: [F, D]",
        "let u$n: [B, S, F] = sigmoid(dot[D]($x, a$n))\nlet $y = dot[F](u$n * u$n, b$n)",
    ),
    ("param a$n: [D, E, R]\nparam b$n: [R, E, D]", "let $y = dot[E, R](tanh(dot[D]($x, a$n)), b$n)"),
    ("param a$n: [R, D, E]\nparam b$n: [E, R, D]", "let $y = sum[R](dot[E](tanh(dot[D]($x, a$n)), b$n))"),
    ("param a$n: [F, D]\nparam b$n: [F, D]", "let $y = dot[F](log(1.0 + exp(dot[D]($x, a$n))), b$n)"),
    (
        "param a$n: [P, Q, E]\nparam b$n: [D, E]",
        "let $y = dot[E](sin(dot[P, Q](split[D -> P, Q]($x), a$n)), b$n)",
    ),
    (
        "param a$n: [D1, E]\nparam b$n: [E, D]",
        "let $y = dot[E](dot[D1](slice[D -> D1]($x, start = 0), a$n), b$n)",
    ),
    ("param t$n: [N, D]", "let $y = $x + take[N](t$n, u32(iota[S]))"),
    ("param t$n: [N, D]", "let $y = $x + 0.5 * take[N](t$n, iota[S] * 2 - 1)"),
    ("param t$n: [D, C]", "let a$n = slice[C = 2](t$n) * $x\nlet $y = tanh(a$n) + slice[C = 0](t$n)"),
    (
        "param q$n: [D, H, K]\nparam k$n: [D, KV, K]\nparam v$n: [D, KV, W]\nparam o$n: [H, W, D]",
        "let a$n = attention[S, K -> W](rope_interleaved[S, K](dot[D]($x, q$n)), rope_interleaved[S, K](dot[D]($x, k$n)), dot[D]($x, v$n), mask = causal, scale = 0.4, documents = u32((iota[S] + iota[B]) / 3))\nlet $y = dot[H, W](a$n, o$n)",
    ),
    (
        "param q$n: [D, E, K]\nparam k$n: [D, E, K]\nparam v$n: [D, E, K]\nparam o$n: [E, K, D]",
        "dims T$n = S\nlet a$n = attention[S, T$n, K](rope_llama3[S, K](dot[D]($x, q$n)), rename[S -> T$n](dot[D]($x, k$n)), rename[S -> T$n](dot[D](tanh($x), v$n)), documents = (u32(iota[S] % 2), u32(iota[T$n] % 2)))\nlet $y = dot[E, K](a$n, o$n)",
    ),
    (
        "param q$n: [D, K]\nparam k$n: [D, K]\nparam v$n: [D, K]\nparam o$n: [K, D]",
        "let $y = dot[K](attention[S, K](dot[D]($x, q$n), dot[D]($x, k$n), dot[D]($x, v$n), mask = causal, window = 2), o$n)",
    ),
];

impl<'a> Maker<'a> {
    /// Makes layers whose values are stored in 16 bits or not.
    pub fn new(rng: &'a mut Rng, coarse: bool) -> Maker<'a> {
        Maker { rng, smooth: coarse, layers: 0, numbers: 0 }
    }

    /// One or two stacks.
    pub fn stacks(&mut self) -> Vec<Stack> {
        let count = self.rng.between(1, 2);
        (0..count).map(|index| Stack { name: format!("stack{index}"), entries: self.entries() }).collect()
    }

    fn entries(&mut self) -> Vec<(u64, Layer)> {
        match self.rng.below(10) {
            0..=3 => vec![(0, self.layer(0))],
            4..=7 => vec![(self.rng.between(1, 3), self.layer(0))],
            _ => vec![(self.rng.between(1, 2), self.layer(0)), (self.rng.between(1, 3), self.layer(0))],
        }
    }

    fn layer(&mut self, depth: u64) -> Layer {
        let name = format!("L{}", self.layers);
        self.layers += 1;
        let count = self.rng.between(1, 4);
        let pieces = (0..count).map(|_| self.piece(depth)).collect();
        Layer { name, pieces, residual: self.rng.percent(60), pin: None }
    }

    fn piece(&mut self, depth: u64) -> Piece {
        let number = self.numbers;
        self.numbers += 1;
        let (members, body) = match self.rng.below(100) {
            0..=34 => (String::new(), (*self.rng.pick(SIMPLE)).to_owned()),
            35..=44 if !self.smooth => (String::new(), (*self.rng.pick(JUMPS)).to_owned()),
            // A path such as `attn1.out` says what the nameless function gives, and only even ones are kept by it.
            45..=54 if number % 4 == 1 => {
                let packed = "let $y = attn$n.packed($x, u32((iota[S] + 2 * iota[B]) / 4))";
                (self.grouped_query(), packed.to_owned())
            }
            45..=54 => (self.grouped_query(), "let $y = attn$n($x)".to_owned()),
            55..=59 => (self.multi_head(), "let $y = attn$n($x)".to_owned()),
            60..=67 if depth < 2 => {
                let nested = Some((self.rng.below(3), self.layer(depth + 1)));
                return Piece { number, members: String::new(), body: "let $y = sub$n($x)".into(), nested };
            }
            _ => {
                let (members, body) = *self.rng.pick(HOLDING);
                (members.to_owned(), body.to_owned())
            }
        };
        Piece { number, members, body, nested: None }
    }

    fn grouped_query(&mut self) -> String {
        let rng = &mut self.rng;
        let (bias, norm, causal) = (rng.percent(30), rng.percent(30), rng.percent(60));
        let window = if rng.percent(30) { rng.between(1, 4) } else { 0 };
        let cap = if rng.percent(25) { "2.0" } else { "0.0" };
        let scale = if rng.percent(25) { "0.7" } else { "0.0" };
        format!(
            "attn$n = GroupedQuery[D, KV, G, K](theta = 100.0, bias = {bias}, qk_norm = {norm}, causal = {causal}, window = {window}, softcap = {cap}, scale = {scale})"
        )
    }

    fn multi_head(&mut self) -> String {
        let rng = &mut self.rng;
        let (bias, causal) = (rng.percent(50), rng.percent(50));
        let heads = rng.pick(&["H", "E", "F"]);
        let window = if rng.percent(30) { rng.between(1, 4) } else { 0 };
        format!("attn$n = MultiHead[D, {heads}, K](bias = {bias}, causal = {causal}, window = {window})")
    }
}
