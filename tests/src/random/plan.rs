//! Random plans: a mesh of up to eight ranks, placements, stores, accumulation, recomputation, optimizer and precision.

use super::Case;
use super::rng::Rng;
use std::fmt::Write;

/// A plan; each entry can be left out.
#[derive(Clone, Debug)]
pub struct RandomPlan {
    /// Axes with their sizes; several sizes are parts, named `a`, `b`.
    pub mesh: Vec<(&'static str, Vec<u64>)>,
    /// Entries of this plan alone.
    pub entries: Vec<String>,
    /// Sequences in a step.
    pub global: u64,
    /// Sequences at a time, if fewer.
    pub micro: Option<u64>,
    /// Optimizer and precision: of the plan for one rank too, as they change what is computed.
    pub shared: Vec<String>,
}

type Axes = &'static [(&'static str, &'static [u64])];

const MESHES: &[Axes] = &[
    &[("dp", &[1]), ("tp", &[1])],
    &[("dp", &[2])],
    &[("dp", &[3])],
    &[("dp", &[4])],
    &[("tp", &[2])],
    &[("tp", &[2])],
    &[("tp", &[4])],
    &[("tp", &[3])],
    &[("dp", &[2]), ("tp", &[2])],
    &[("dp", &[2]), ("tp", &[2])],
    &[("tp", &[2]), ("dp", &[2])],
    &[("dp", &[2]), ("tp", &[4])],
    &[("dp", &[2]), ("tp", &[3])],
    &[("dp", &[4]), ("tp", &[2])],
    &[("dp", &[2, 2])],
    &[("dp", &[2, 2]), ("tp", &[2])],
    &[("dp", &[2]), ("cp", &[2])],
    &[("dp", &[2]), ("cp", &[2]), ("tp", &[2])],
    &[("tp", &[2, 2])],
    &[("dp", &[2]), ("tp", &[2, 2])],
];

impl RandomPlan {
    /// A plan of nothing but a mesh.
    pub fn mesh(rng: &mut Rng) -> RandomPlan {
        let mesh = rng.pick(MESHES).iter().map(|(name, sizes)| (*name, sizes.to_vec())).collect();
        RandomPlan { mesh, entries: Vec::new(), global: 1, micro: None, shared: Vec::new() }
    }

    /// Ranks along an axis.
    pub fn size(&self, axis: &str) -> u64 {
        self.mesh.iter().find(|(name, _)| *name == axis).map_or(1, |(_, sizes)| sizes.iter().product())
    }

    fn has(&self, axis: &str) -> bool {
        self.mesh.iter().any(|(name, _)| *name == axis)
    }

    /// Fills it in for a model; may place dims inline.
    pub fn fill(&mut self, rng: &mut Rng, case: &Case, bf16: bool) {
        self.batch(rng);
        self.placements(rng, case);
        self.stores(rng);
        self.recomputation(rng, case);
        self.optimizer(rng);
        if bf16 {
            self.shared.push((*rng.pick(PRECISIONS)).to_owned());
        }
        if rng.percent(85) {
            self.entries.push("allow gather".into());
        }
    }

    fn batch(&mut self, rng: &mut Rng) {
        let dp = self.size("dp");
        if rng.percent(30) {
            let micro = rng.between(1, 2);
            self.micro = Some(micro);
            self.global = dp * micro * rng.between(1, 3);
        } else {
            self.global = dp * rng.between(1, 3);
        }
    }

    fn placements(&mut self, rng: &mut Rng, case: &Case) {
        let mut steps = Vec::new();
        if self.has("dp") && rng.percent(90) {
            steps.push("step data: acts B -> dp".to_owned());
        }
        if self.has("tp") {
            steps.extend(self.tensor(rng, case));
        }
        let first = case.stacks.first().and_then(|stack| stack.entries.first());
        let place = first.map_or("L0", |(_, layer)| layer.name.as_str()).to_owned();
        let divides = |axis: &str, dim: u64| self.has(axis) && dim.is_multiple_of(self.size(axis));
        if divides("tp", case.sequence) && rng.percent(45) {
            let narrowed = if rng.percent(30) { String::new() } else { format!(" at {place}.x") };
            steps.push(format!("step sequence: acts S -> tp{narrowed}"));
        } else if divides("tp", case.dim("D")) && rng.percent(15) {
            steps.push(format!("step sequence: acts D -> tp at {place}.x"));
        }
        if divides("cp", case.sequence) && rng.percent(80) {
            steps.push("step context: acts S -> cp".to_owned());
        }
        if rng.percent(10) && steps.len() > 1 {
            steps.swap(0, 1);
        }
        self.entries.extend(steps);
    }

    /// Rules for tensor parallelism: most dims that divide, and the vocabulary filled up.
    fn tensor(&self, rng: &mut Rng, case: &Case) -> Vec<String> {
        let tp = self.size("tp");
        let (mut plain, mut steps) = (Vec::new(), Vec::new());
        let (kv, g) = (case.dim("KV"), case.dim("G"));
        let heads = kv.is_multiple_of(tp) || (tp.is_multiple_of(kv) && g.is_multiple_of(tp / kv));
        if heads && rng.percent(75) {
            plain.extend(["H", "KV"].into_iter().filter(|dim| case.uses(dim)));
        }
        for dim in ["F", "V", "E", "W", "P"].into_iter().filter(|dim| case.uses(dim)) {
            let divides = case.dim(dim).is_multiple_of(tp);
            if divides && rng.percent(60) {
                plain.push(dim);
            } else if !divides && dim == "V" && rng.percent(60) {
                steps.push(format!("step pad_{dim}: {dim} -> tp pad"));
            }
        }
        let roles = if rng.percent(12) { "params " } else { "" };
        let axes = if self.mesh.iter().any(|(name, sizes)| *name == "tp" && sizes.len() > 1) {
            *rng.pick(&["tp", "tp", "tp.a", "tp.b", "(tp.b, tp.a)"])
        } else {
            "tp"
        };
        if !plain.is_empty() {
            steps.insert(0, format!("step tensor: {roles}{} -> {axes}", plain.join(", ")));
        }
        if case.dim("D").is_multiple_of(tp) && rng.percent(8) {
            steps.push("step width: params D -> tp".into());
        }
        if rng.percent(8) && self.has("dp") && case.uses("F") && case.dim("F").is_multiple_of(self.size("dp"))
        {
            steps.push("step wide: params F -> dp".into());
        }
        steps
    }

    fn stores(&mut self, rng: &mut Rng) {
        if !self.has("dp") || rng.percent(35) {
            return;
        }
        let parts = self.mesh.iter().any(|(name, sizes)| *name == "dp" && sizes.len() > 1);
        let axes = if parts { *rng.pick(&["dp", "dp.a", "dp.b"]) } else { "dp" };
        self.entries.push(match rng.below(8) {
            0 => format!("step rest: store opt|grads: largest -> {axes}"),
            1 => format!("step rest: store params: largest -> {axes}"),
            2 if self.has("tp") => "step zero(3): over (dp, tp)".to_owned(),
            kind => format!("step zero({}): over {axes}", kind % 4),
        });
    }

    fn recomputation(&mut self, rng: &mut Rng, case: &Case) {
        let layers = case.layers();
        let layer = rng.pick(&layers);
        match rng.below(6) {
            0 => self.entries.push("remat full".into()),
            1 => self.entries.push(format!("remat {}: full", layer.name)),
            2 => {
                if let Some(piece) = layer.pieces.first() {
                    self.entries.push(format!("remat {}: save h{}", layer.name, piece.number));
                }
            }
            3 => self.entries.push("remat none".into()),
            _ => {}
        }
    }

    fn optimizer(&mut self, rng: &mut Rng) {
        let rate = *rng.pick(&[
            "0.02",
            "cosine(0.02, warmup 4, total 10)",
            "linear(0.02, warmup 1, total 9, floor 0.001)",
        ]);
        let clip = *rng.pick(&["", ", clip 0.3", ", clip 1.0", ", clip 100.0"]);
        let decay = *rng.pick(&["", ", decay 0.1 on weight", ", decay 0.1 on weight|norm|bias"]);
        self.shared.push(match rng.below(4) {
            0 => format!("optimizer sgd {{ lr {rate}{decay}{clip} }}"),
            1 => format!("optimizer momentum {{ lr {rate}, factor 0.8, nesterov true{decay}{clip} }}"),
            _ => format!("optimizer adamw {{ lr {rate}, betas (0.9, 0.95), eps 1e-2{decay}{clip} }}"),
        });
    }

    /// The plan's text: `many`, or `one` with an equal mesh of one rank.
    pub fn text(&self, case: &Case, many: bool) -> String {
        let name = if many { "many" } else { "one" };
        let mut text = format!("plan {name} for M {{\n");
        let axis = |(name, sizes): &(&str, Vec<u64>)| {
            let size = |size: &u64| if many { *size } else { 1 };
            match &sizes[..] {
                [one] => format!("{name}: {}", size(one)),
                several => {
                    let parts = ["a", "b", "c"].iter().zip(several);
                    let parts: Vec<String> =
                        parts.map(|(part, it)| format!("{part}: {}", size(it))).collect();
                    format!("{name}: {{ {} }}", parts.join(", "))
                }
            }
        };
        let axes: Vec<String> = self.mesh.iter().map(axis).collect();
        let _ = writeln!(text, "  mesh {{ {} }}", axes.join(", "));
        let micro = self.micro.filter(|_| many).map_or(String::new(), |micro| format!(", micro {micro}"));
        let _ = writeln!(text, "  batch {{ seq {}, global {}{micro} }}", case.sequence, self.global);
        let own = self.entries.iter().filter(|_| many);
        for entry in own.chain(&self.shared) {
            let _ = writeln!(text, "  {entry}");
        }
        text.push_str("}\n\n");
        text
    }
}

const PRECISIONS: &[&str] = &[
    "precision { compute bf16 }",
    "precision { compute bf16, params bf16, master f32 }",
    "precision { compute bf16, params bf16, grads bf16, master f32, reduce f32 }",
    "precision { compute bf16, params bf16, grads bf16 }",
    "precision { compute bf16, grads f32, reduce f32 }",
];
