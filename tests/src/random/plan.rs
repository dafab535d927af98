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

/// Dims that tensor parallelism may place, with the chance of each.
const COMMON: &[(&[&str], u64)] = &[(&["F", "V", "E", "W", "P"], 60), (&["G", "K", "O", "N", "Q", "D1"], 6)];

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
    pub fn fill(&mut self, rng: &mut Rng, case: &Case, coarse: bool) {
        self.batch(rng);
        self.placements(rng, case);
        self.stores(rng);
        self.recomputation(rng, case);
        self.optimizer(rng);
        if coarse {
            let precision = *rng.pick(PRECISIONS);
            let format = if rng.percent(40) { "f16" } else { "bf16" };
            self.shared.push(precision.replace("HALF", format));
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
        let (sequence, width) =
            (self.fit(rng, &["tp"], case.sequence), self.fit(rng, &["tp"], case.dim("D")));
        if let Some(pad) = sequence.filter(|_| rng.percent(45)) {
            let narrowed = if rng.percent(30) { String::new() } else { format!(" at {place}.x") };
            steps.push(format!("step sequence: acts S -> tp{pad}{narrowed}"));
        } else if let Some(pad) = width.filter(|_| rng.percent(15)) {
            steps.push(format!("step sequence: acts D -> tp{pad} at {place}.x"));
        }
        // Both axes cut it where there is a rule for either.
        let both = self.has("tp") && steps.iter().any(|step| step.starts_with("step sequence: acts S"));
        let axes: &[&str] = if both { &["cp", "tp"] } else { &["cp"] };
        let context = self.fit(rng, axes, case.sequence);
        if let Some(pad) = context.filter(|_| rng.percent(80)) {
            steps.push(format!("step context: acts S -> cp{pad}"));
        }
        if rng.percent(10) && steps.len() > 1 {
            steps.swap(0, 1);
        }
        self.entries.extend(steps);
    }

    /// How a dim of this size can lie on axes, if at all: as it is where they divide it, else filled up.
    fn fit(&self, rng: &mut Rng, axes: &[&str], size: u64) -> Option<&'static str> {
        let divides = size.is_multiple_of(axes.iter().map(|axis| self.size(axis)).product());
        let (chance, pad) = (rng.percent(8), rng.percent(65));
        match divides {
            _ if !axes.iter().all(|axis| self.has(axis)) => None,
            true => Some(if chance { " pad" } else { "" }),
            false => pad.then_some(" pad"),
        }
    }

    /// Rules for tensor parallelism: most dims of most models, filled up where the axis does not divide them.
    fn tensor(&self, rng: &mut Rng, case: &Case) -> Vec<String> {
        let tp = self.size("tp");
        let axes = if self.mesh.iter().any(|(name, sizes)| *name == "tp" && sizes.len() > 1) {
            *rng.pick(&["tp", "tp", "tp.a", "tp.b", "(tp.b, tp.a)"])
        } else {
            "tp"
        };
        let roles = if rng.percent(12) { "params " } else { "" };
        let (mut plain, mut steps) = (Vec::new(), Vec::new());
        let (kv, g) = (case.dim("KV"), case.dim("G"));
        let heads: Vec<&str> = ["H", "KV"].into_iter().filter(|dim| case.uses(dim)).collect();
        if kv.is_multiple_of(tp) || (tp.is_multiple_of(kv) && g.is_multiple_of(tp / kv)) {
            plain.extend(heads.into_iter().filter(|_| rng.percent(87)));
            // Fewer key heads than ranks can be cut where all heads are.
            if plain == ["KV"] && !kv.is_multiple_of(tp) {
                plain.clear();
            }
        } else if rng.percent(60) {
            steps.extend(heads.iter().map(|dim| format!("step pad_{dim}: {roles}{dim} -> {axes} pad")));
        }
        for (dims, chance) in COMMON {
            for dim in dims.iter().filter(|dim| case.uses(dim)) {
                let fit = self.fit(rng, &["tp"], case.dim(dim)).filter(|_| rng.percent(*chance));
                match fit {
                    Some("") => plain.push(dim),
                    Some(pad) => steps.push(format!("step pad_{dim}: {roles}{dim} -> {axes}{pad}")),
                    None => {}
                }
            }
        }
        if !plain.is_empty() {
            steps.insert(0, format!("step tensor: {roles}{} -> {axes}", plain.join(", ")));
        }
        if let Some(pad) = self.fit(rng, &["tp"], case.dim("D")).filter(|_| rng.percent(8)) {
            steps.push(format!("step width: params D -> tp{pad}"));
        }
        if let Some(pad) = self.fit(rng, &["dp"], case.dim("F")).filter(|_| rng.percent(8) && case.uses("F"))
        {
            steps.push(format!("step wide: params F -> dp{pad}"));
        }
        steps
    }

    /// Places dims inline, where their layers take, hold or compute them.
    pub fn pin(&self, rng: &mut Rng, case: &mut Case) {
        let sizes = [("S", "tp", case.sequence), ("S", "cp", case.sequence), ("D", "tp", case.dim("D"))];
        let fits = |dim: &str, axis: &str, size: u64| {
            self.has(axis) && (self.is_padded(dim) || size.is_multiple_of(self.size(axis)))
        };
        let mut values: Vec<(&str, &str)> =
            sizes.iter().filter(|it| fits(it.0, it.1, it.2)).map(|it| (it.0, it.1)).collect();
        values.extend(self.has("dp").then_some(("B", "dp")));
        let held: Vec<&str> =
            ["E", "F", "D1"].into_iter().filter(|dim| fits(dim, "tp", case.dim(dim))).collect();
        case.for_each_layer(&mut |layer| {
            if !values.is_empty() && rng.percent(8) {
                let (dim, axis) = *rng.pick(&values);
                layer.pin = Some((dim.to_owned(), axis.to_owned()));
            }
            for piece in &mut layer.pieces {
                let text = match rng.below(20) {
                    0 | 1 if piece.members.starts_with("param") => &mut piece.members,
                    2 | 3 => &mut piece.body,
                    4 if !values.is_empty() => {
                        let (dim, axis) = *rng.pick(&values);
                        let ty = "[B, S, D]".replace(dim, &format!("{dim}@{axis}"));
                        piece.body = piece.body.replace("let $y = ", &format!("let $y: {ty} = "));
                        continue;
                    }
                    _ => continue,
                };
                if let Some(dim) = held.iter().find(|dim| text.contains(&format!(", {dim}]"))) {
                    *text = text.replacen(&format!(", {dim}]"), &format!(", {dim}@tp]"), 1);
                }
            }
        });
    }

    /// Whether a rule fills a dim up.
    fn is_padded(&self, dim: &str) -> bool {
        let rule = format!(" {dim} -> ");
        self.entries.iter().any(|entry| entry.contains(&rule) && entry.contains(" pad"))
    }

    fn stores(&mut self, rng: &mut Rng) {
        if !self.has("dp") || rng.percent(35) {
            return;
        }
        let parts = self.mesh.iter().any(|(name, sizes)| *name == "dp" && sizes.len() > 1);
        let axes = if parts { *rng.pick(&["dp", "dp.a", "dp.b"]) } else { "dp" };
        self.entries.push(match rng.below(10) {
            0 => format!("step rest: store opt|grads: largest -> {axes}"),
            1 => format!("step rest: store params: largest -> {axes}"),
            8 => format!("step rest: store grads: largest -> {axes}"),
            9 => format!("step rest: store opt: largest -> {axes}, store params: largest -> {axes}"),
            2 if self.has("tp") => "step zero(3): over (dp, tp)".to_owned(),
            kind => format!("step zero({}): over {axes}", kind % 4),
        });
        let stores_params = |entry: &String| entry.contains("zero(3)") || entry.contains("store params");
        if self.entries.last().is_some_and(stores_params) && rng.percent(40) {
            let kept = if parts && axes == "dp" { *rng.pick(&["dp", "dp.a", "dp.b"]) } else { axes };
            self.entries.push(format!("step keep: store backward: largest -> {kept}"));
        }
    }

    fn recomputation(&mut self, rng: &mut Rng, case: &Case) {
        let layers = case.layers();
        let layer = rng.pick(&layers);
        match rng.below(6) {
            0 => self.entries.push("remat full".into()),
            1 => self.entries.push(format!("remat {}: full", layer.name)),
            2 => {
                let kept: Vec<String> = layer.pieces.iter().map(|piece| piece.kept()).collect();
                let names = if rng.percent(70) { &kept[..1] } else { &kept[..] };
                self.entries.push(format!("remat {}: save {}", layer.name, names.join(", ")));
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

/// With `HALF` for a format of 16 bits.
const PRECISIONS: &[&str] = &[
    "precision { compute HALF }",
    "precision { compute HALF, params HALF, master f32 }",
    "precision { compute HALF, params HALF, grads HALF, master f32, reduce f32 }",
    "precision { compute HALF, params HALF, grads HALF }",
    "precision { compute HALF, grads f32, reduce f32 }",
    "precision { compute HALF, grads HALF, loss_scale 64 }",
    "precision { compute tf32 }",
    "precision { compute tf32, params HALF, grads HALF, master f32 }",
];
