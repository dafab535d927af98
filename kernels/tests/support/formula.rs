//! Attention and its gradient by formula, in f64, and how far a kernel's results are from it.

use dtlc_kernels::signature::{Element, HeadStrides};

use super::{
    Stored,
    attention::{Case, Outputs, at},
    least_rounding, rounding,
};

/// How far a kernel may be off.
#[derive(Clone, Copy, Debug)]
pub struct Precision {
    /// Of sums, relative to the sum of magnitudes.
    sums: f64,
    /// Of each weight: of a probability that values or gradients of outputs are multiplied by, and of a score's gradient
    /// that keys or queries are. Relative to itself, so a sum is off by this much of the sum of its terms' magnitudes.
    weights: f64,
    /// Of each weight too, by itself: what rounding changes the smallest by.
    least_weight: f64,
}

impl Precision {
    /// Of sums and weights in f32.
    pub const F32: Precision = Precision { sums: 4e-6, weights: 0.0, least_weight: 0.0 };

    /// Of sums in f32 of weights that are rounded to this type. A weight is rounded after it was off itself, hence a
    /// little more than half a unit in the last place.
    pub fn of_weights(element: Element) -> Precision {
        Precision {
            weights: 1.01 * rounding(element),
            least_weight: 1.01 * least_rounding(element),
            ..Precision::F32
        }
    }

    /// What a term may be off by: its value, the magnitude of what that is the sum of, and what its weight is a factor of.
    fn of_term(self, value: f64, magnitude: f64, other: f64) -> f64 {
        self.sums * magnitude.abs() + self.weights * value.abs() + self.least_weight * other.abs()
    }
}

/// Sums in a tensor's layout, and what each may be off by.
struct Sums {
    values: Vec<f64>,
    bounds: Vec<f64>,
}

impl Sums {
    fn zeros(count: usize) -> Sums {
        Sums { values: vec![0.0; count], bounds: vec![0.0; count] }
    }

    fn add(&mut self, index: usize, value: f64, bound: f64) {
        self.values[index] += value;
        self.bounds[index] += bound;
    }

    /// The first element that is off by more than its bound, and the rounding of a stored element. Gaps must
    /// still be 0.
    fn difference(&self, given: &Stored) -> Option<String> {
        assert_eq!(given.len(), self.values.len());
        self.values.iter().zip(&self.bounds).enumerate().find_map(|(index, (value, bound))| {
            let given_value = given.get(index);
            let bound =
                bound + 1.01 * (rounding(given.element) * value.abs() + least_rounding(given.element));
            let is_close = (given_value - value).abs() <= bound;
            (!is_close).then(|| format!("{given_value} is not {value} within {bound} at {index}"))
        })
    }
}

/// Expected gradients.
struct Gradients {
    q: Sums,
    k: Sums,
    v: Sums,
}

impl Case {
    /// What is wrong with a kernel's results, of which the log-sum-exps and the outputs, as they are stored,
    /// are what its gradients are computed from.
    pub fn difference(&self, outputs: &Outputs, precision: Precision) -> Option<String> {
        let expected = gradients(self, &outputs.o, precision);
        self.forward_difference(outputs, precision)
            .or_else(|| expected.q.difference(&outputs.q_gradient).map(|text| format!("dq: {text}")))
            .or_else(|| expected.k.difference(&outputs.k_gradient).map(|text| format!("dk: {text}")))
            .or_else(|| expected.v.difference(&outputs.v_gradient).map(|text| format!("dv: {text}")))
    }

    /// What is wrong with its outputs and log-sum-exps alone.
    pub fn forward_difference(&self, outputs: &Outputs, precision: Precision) -> Option<String> {
        let forward = &self.spec.forward;
        let mut expected = Sums::zeros(outputs.o.len());
        for query in self.queries() {
            let (probabilities, _, lse) = self.softmax(query);
            let given = outputs.lse.get(at(&forward.lse, query, 0));
            let is_close = given == lse || (given - lse).abs() < 0.75 * precision.sums * (1.0 + lse.abs());
            if !is_close {
                return Some(format!("lse: {given} is not {lse} at {query:?}"));
            }
            for feature in 0..self.shape.value_dim {
                let (value, magnitude) = self.output(query, &probabilities, feature);
                // No value is above 1, and all probabilities are 1; weights are relative to the greatest.
                let bound = precision.of_term(magnitude, 1.0, self.shape.k_len as f64);
                expected.add(at(&forward.o, query, feature), value, bound);
            }
        }
        expected.difference(&outputs.o).map(|text| format!("o: {text}"))
    }
}

/// The gradient by formula, in f64. It takes the outputs as they were stored, as the kernel does.
fn gradients(case: &Case, o: &Stored, precision: Precision) -> Gradients {
    let shape = case.shape;
    let forward = &case.spec.forward;
    let sized = |strides: &HeadStrides, length: usize, features: usize| {
        let last = [shape.batch - 1, shape.kv_heads - 1, shape.group - 1, length - 1];
        Sums::zeros(at(strides, last, features - 1) + 1)
    };
    let mut sums = Gradients {
        q: sized(&case.spec.q_gradient, shape.q_len, shape.head_dim),
        k: sized(&case.spec.k_gradient, shape.k_len, shape.head_dim),
        v: sized(&case.spec.v_gradient, shape.k_len, shape.value_dim),
    };
    for query in case.queries() {
        let (probabilities, slopes, _) = case.softmax(query);
        let o_gradient = |feature| case.o_gradient.get(at(&case.spec.o_gradient, query, feature));
        let terms = |other: &dyn Fn(usize) -> f64| {
            let products = (0..shape.value_dim).map(|feature| o_gradient(feature) * other(feature));
            products.fold((0.0, 0.0), |(sum, magnitude), term| (sum + term, magnitude + term.abs()))
        };
        let delta = terms(&|feature| o.get(at(&forward.o, query, feature)));
        for key in (0..shape.k_len).filter(|&key| probabilities[key] != 0.0) {
            let key_at = [query[0], query[1], 0, key];
            let probability = probabilities[key];
            let p_gradient = terms(&|feature| case.v.get(at(&forward.v, key_at, feature)));
            for feature in 0..shape.value_dim {
                let term = probability * o_gradient(feature);
                let bound = precision.of_term(term, term, o_gradient(feature));
                sums.v.add(at(&case.spec.v_gradient, key_at, feature), term, bound);
            }
            let scale = f64::from(forward.scale);
            let factor = probability * slopes[key] * scale;
            let (value, magnitude) = (factor * (p_gradient.0 - delta.0), factor * (p_gradient.1 + delta.1));
            for feature in 0..shape.head_dim {
                let (q, k) =
                    (case.q.get(at(&forward.q, query, feature)), case.k.get(at(&forward.k, key_at, feature)));
                let (q_bound, k_bound) = (
                    precision.of_term(value * k, magnitude * k, scale * k),
                    precision.of_term(value * q, magnitude * q, scale * q),
                );
                sums.q.add(at(&case.spec.q_gradient, query, feature), value * k, q_bound);
                sums.k.add(at(&case.spec.k_gradient, key_at, feature), value * q, k_bound);
            }
        }
    }
    sums
}
