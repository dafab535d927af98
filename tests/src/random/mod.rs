//! Random models and plans: made from a seed, judged, and made small where they show a fault.
//!
//! A case is kept as pieces, each of which can be left out, and judged as the text of a `.dtl` file.

pub mod coverage;
pub mod judge;
pub mod pieces;
pub mod plan;
pub mod rng;
pub mod shrink;
mod slopes;

use pieces::{Layer, Piece};
use plan::RandomPlan;
use rng::Rng;
use std::fmt::Write;

/// The dims that every layer is generic over.
const GENERICS: &str = "D, D1, D2, P, Q, O, E, F, KV, G, H, K, J, W, R, C, N";

/// A model with its plan.
#[derive(Clone, Debug)]
pub struct Case {
    /// What the model is about.
    pub frame: Frame,
    /// The batch: sequences on each rank and in each micro-batch are the plan's.
    pub sequence: u64,
    /// Sizes and definitions of dims, in order.
    pub dims: Vec<(String, String)>,
    /// Stacks of layers, one after another.
    pub stacks: Vec<Stack>,
    /// Where everything lies.
    pub plan: RandomPlan,
}

/// Inputs, head and loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What goes in and comes out.
    pub kind: FrameKind,
    /// Whether the head is the embedding again.
    pub tied: bool,
    /// Whether positions are embedded too.
    pub positions: bool,
    /// Whether logits pass a cap, or a loss of numbers is taken by the absolute value.
    pub capped: bool,
    /// Which positions count.
    pub counted: Counted,
    /// Whether the loss has the z term.
    pub z: bool,
    /// Whether the last hidden state is an output too.
    pub output: bool,
}

/// What goes in and comes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// Tokens and labels.
    Tokens,
    /// Numbers and numbers.
    Numbers,
}

/// Which positions count in the mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// All.
    All,
    /// Those with labels, or with a mask that is given.
    Marked,
    /// Each with a weight, and none by an integer.
    Weighted,
}

/// `repeat[2] A, repeat[1] B`.
#[derive(Clone, Debug)]
pub struct Stack {
    /// The member's name.
    pub name: String,
    /// Layers, each with how often it is repeated; 0 where it stands without `repeat`.
    pub entries: Vec<(u64, Layer)>,
}

impl Case {
    /// The case of a seed.
    pub fn generate(seed: u64) -> Case {
        let mut rng = Rng::new(seed);
        let mut plan = RandomPlan::mesh(&mut rng);
        let coarse = rng.percent(12);
        let sequence = size(&mut rng, plan.size("tp").max(plan.size("cp")), 7);
        let dims = dims(&mut rng, plan.size("tp"));
        let frame = frame(&mut rng);
        let mut maker = pieces::Maker::new(&mut rng, coarse);
        let stacks = maker.stacks();
        let mut case = Case { frame, sequence, dims, stacks, plan: plan.clone() };
        plan.fill(&mut rng, &case, coarse);
        plan.pin(&mut rng, &mut case);
        case.plan = plan;
        case
    }

    /// The size of a dim that is given as a number.
    pub fn dim(&self, name: &str) -> u64 {
        let found = self.dims.iter().find(|(dim, _)| dim == name);
        found.and_then(|(_, value)| value.parse().ok()).unwrap_or(1)
    }

    /// Whether any parameter or value has the dim.
    pub fn uses(&self, dim: &str) -> bool {
        let word =
            |text: &str| text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == dim);
        let head = match dim {
            "B" | "S" | "D" => true,
            "V" => self.frame.kind == FrameKind::Tokens,
            "N" => self.frame.kind == FrameKind::Tokens && self.frame.positions,
            _ => false,
        };
        head || self
            .layers()
            .iter()
            .flat_map(|layer| &layer.pieces)
            .any(|it| word(&it.members) || word(&it.body))
    }

    /// Every layer, also those within others.
    pub fn layers(&self) -> Vec<&Layer> {
        let entries = self.stacks.iter().flat_map(|stack| &stack.entries);
        let mut layers: Vec<&Layer> = entries.map(|(_, layer)| layer).collect();
        let mut next = 0;
        while next < layers.len() {
            let layer = layers[next];
            layers.extend(
                layer.pieces.iter().filter_map(|piece| piece.nested.as_ref()).map(|(_, layer)| layer),
            );
            next += 1;
        }
        layers
    }

    /// Calls `change` for every layer, also those within others.
    pub fn for_each_layer(&mut self, change: &mut dyn FnMut(&mut Layer)) {
        fn within(layer: &mut Layer, change: &mut dyn FnMut(&mut Layer)) {
            change(layer);
            let nested = layer.pieces.iter_mut().filter_map(|piece| piece.nested.as_mut());
            nested.for_each(|(_, layer)| within(layer, change));
        }
        let entries = self.stacks.iter_mut().flat_map(|stack| &mut stack.entries);
        entries.for_each(|(_, layer)| within(layer, change));
    }

    /// The whole file.
    pub fn source(&self) -> String {
        let mut text = String::from(IMPORTS);
        self.layers().iter().rev().for_each(|layer| layer.write(&mut text));
        self.write_model(&mut text);
        text.push_str(&self.plan.text(self, false));
        text.push_str(&self.plan.text(self, true));
        text
    }

    fn write_model(&self, text: &mut String) {
        let dims: Vec<String> = self.dims.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let _ = writeln!(text, "model M {{\n  dims B, S, {}", dims.join(", "));
        let frame = self.frame;
        if frame.kind == FrameKind::Tokens {
            text.push_str("  embed = Embedding[V, D]\n");
            if frame.positions {
                text.push_str("  positions = Embedding[N, D]\n");
            }
            if !frame.tied {
                text.push_str("  head = Linear[D -> V](bias = true)\n");
            }
        }
        for stack in &self.stacks {
            let entry = |(count, layer): &(u64, Layer)| match count {
                0 => format!("{}[{GENERICS}]", layer.name),
                _ => format!("repeat[{count}] {}[{GENERICS}]", layer.name),
            };
            let entries: Vec<String> = stack.entries.iter().map(entry).collect();
            let _ = writeln!(text, "  {} = {}", stack.name, entries.join(", "));
        }
        self.write_loss(text);
        text.push_str("}\n\n");
    }

    fn write_loss(&self, text: &mut String) {
        let frame = self.frame;
        let (result, shown) = if frame.output { ("(f32[], [B, S, D])", ", hidden)") } else { ("f32[]", "") };
        let weights = if frame.counted == Counted::Weighted { ", weights: f32[B, S]" } else { "" };
        let mask = if frame.counted == Counted::Marked && frame.kind == FrameKind::Numbers {
            ", mask: bool[B, S]"
        } else {
            ""
        };
        let inputs = match frame.kind {
            FrameKind::Tokens => "tokens: u32[B, S], labels: u32[B, S]",
            FrameKind::Numbers => "x: f32[B, S, D], y: f32[B, S, D]",
        };
        let _ = writeln!(text, "  fn loss({inputs}{weights}{mask}) -> {result} {{");
        let start = match (frame.kind, frame.positions) {
            (FrameKind::Tokens, true) => "embed(tokens) + positions(u32(iota[S]))",
            (FrameKind::Tokens, false) => "embed(tokens)",
            (FrameKind::Numbers, _) => "float(x)",
        };
        let hidden = self.stacks.iter().fold(start.to_owned(), |x, stack| format!("{}({x})", stack.name));
        let _ = writeln!(text, "    let hidden = {hidden}");
        match frame.kind {
            FrameKind::Tokens => {
                let logits = if frame.tied { "embed.logits(hidden)" } else { "head(hidden)" };
                let logits =
                    if frame.capped { format!("5.0 * tanh(0.2 * {logits})") } else { logits.to_owned() };
                let z = if frame.z { ", z = 0.01" } else { "" };
                let _ = writeln!(text, "    let cost = cross_entropy[V]({logits}, labels{z})");
            }
            FrameKind::Numbers => {
                let _ = writeln!(text, "    let apart = f32(hidden) - y");
                let cost = if frame.capped { "sqrt(apart * apart + 0.01)" } else { "apart * apart" };
                let _ = writeln!(text, "    let cost = mean[D]({cost})");
            }
        }
        let loss = match (frame.counted, frame.kind) {
            (Counted::All, _) => "mean(cost)",
            (Counted::Marked, FrameKind::Tokens) => "mean(cost, over = labels != 0xffffffff)",
            (Counted::Marked, FrameKind::Numbers) => "mean(cost, over = mask)",
            (Counted::Weighted, _) => "sum(cost * weights) / 8.0",
        };
        let open = if frame.output { "(" } else { "" };
        let _ = writeln!(text, "    {open}{loss}{shown}\n  }}");
    }
}

const IMPORTS: &str = "\
use std::attention::{FusedMultiHead, GroupedQuery, MultiHead}
use std::dropout::dropout
use std::loss::cross_entropy
use std::nn::{Embedding, GeGlu, GeluMlp, LayerNorm, Linear, RmsNorm, SwiGlu, gelu, gelu_tanh, silu, softmax}
use std::rope::{rope, rope_interleaved, rope_llama3}

";

/// A size that `unit` divides, most of the time.
fn size(rng: &mut Rng, unit: u64, most: u64) -> u64 {
    if rng.percent(80) { unit * rng.between(1, (most / unit).max(1)) } else { rng.between(1, most) }
}

fn dims(rng: &mut Rng, tp: u64) -> Vec<(String, String)> {
    let (p, q) = (size(rng, tp, 4), rng.between(1, 3));
    let d = (p * q).max(2);
    let (p, q) = if p * q == d { (p, q) } else { (d, 1) };
    let d1 = rng.between(1, d - 1);
    let j = rng.between(1, 3);
    let number = |name: &str, size: u64| (name.to_owned(), size.to_string());
    let defined = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let mut dims = vec![number("P", p), number("Q", q)];
    dims.push(if rng.percent(10) { defined("D", "P * Q") } else { number("D", d) });
    dims.extend([number("D1", d1), number("D2", d - d1), number("O", d)]);
    dims.extend([number("E", size(rng, tp, 6)), number("F", size(rng, tp, 9))]);
    dims.extend([number("KV", size(rng, tp, 4)), number("G", rng.between(1, 3)), defined("H", "KV * G")]);
    dims.extend([number("J", j), number("K", 2 * j), number("W", size(rng, tp, 5))]);
    dims.extend([number("R", 2), number("C", 3)]);
    dims.extend([number("V", size(rng, tp, 13).max(2)), number("N", rng.between(1, 9))]);
    dims
}

fn frame(rng: &mut Rng) -> Frame {
    Frame {
        kind: if rng.percent(75) { FrameKind::Tokens } else { FrameKind::Numbers },
        tied: rng.percent(40),
        positions: rng.percent(50),
        capped: rng.percent(20),
        counted: *rng.pick(&[Counted::Marked, Counted::Marked, Counted::All, Counted::Weighted]),
        z: rng.percent(25),
        output: rng.percent(25),
    }
}

impl Piece {
    /// A value that rematerialisation can keep: what the piece gives, or what a layer in it does.
    fn kept(&self) -> String {
        let member = self.members.split(' ').next().filter(|word| word.starts_with("attn"));
        match member.filter(|_| self.number.is_multiple_of(2)) {
            Some(word) => format!("{}.out", self.filled(word, "")),
            None => format!("h{}", self.number),
        }
    }

    /// A member or statement with this piece's number and values in it.
    fn filled(&self, line: &str, from: &str) -> String {
        line.replace("$n", &self.number.to_string())
            .replace("$x", from)
            .replace("$y", &format!("h{}", self.number))
    }
}
