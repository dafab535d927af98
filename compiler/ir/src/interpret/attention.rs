//! Attention and its gradient, one query at a time.
//!
//! Rounded by chance, probabilities and the gradients of scores are in f32 while they are computed with, and of the tensors' type as
//! factors of their elements.

use super::op::Site;
use super::tensor::{Tensor, walk};
use crate::dim::Dim;
use crate::op::{Attention, Packing};
use crate::types::Type;

/// The output and the log-sum-exp.
pub(super) fn forward(
    site: &Site<'_>,
    options: &Attention,
    args: &[&Tensor],
    arg_types: &[&Type],
    results: &[&Type],
) -> Vec<Tensor> {
    let [query, key, values] = [0, 1, 2].map(|index| args[index]);
    let mut output = Tensor::filled(site.shape(results[0]), 0.0);
    let mut lse = Tensor::filled(site.shape(results[1]), 0.0);
    let space = lse.shape();
    let rows = Rows::new(site, options, args, arg_types);
    let operands = [query, key, values, &output, &lse].into_iter().chain(rows.documents());
    let strides: Vec<_> = operands.map(|operand| operand.strides(&space)).collect();
    walk(&space, &strides, |coordinates, at| {
        let scores = rows.scores(rows.position(&space, coordinates), [at[0], at[1]], &at[5..]);
        let most = scores.iter().fold(f64::NEG_INFINITY, |most, score| most.max(score.value));
        let exponential = |score: &Score| site.within(site.within(score.value - most).exp());
        let total = scores.iter().fold(0.0, |total, score| site.within(total + exponential(score)));
        lse.data[at[4]] = if scores.is_empty() { f64::NEG_INFINITY } else { most + total.ln() };
        for score in &scores {
            let weight = site.factor(site.within(exponential(score) / total), arg_types[2].dtype);
            for v in 0..values.size(options.value) {
                let to = output.offset(at[3], &[(options.value, v)]);
                let from = values.offset(at[2], &[(options.key, score.key), (options.value, v)]);
                output.data[to] = site.within(output.data[to] + weight * values.data[from]);
            }
        }
    });
    vec![output, lse]
}

/// The gradients of queries, keys and values from arguments `q, k, v, o, lse, do` and the documents that there are.
pub(super) fn gradient(
    site: &Site<'_>,
    options: &Attention,
    args: &[&Tensor],
    arg_types: &[&Type],
    results: &[&Type],
) -> Vec<Tensor> {
    let [query, key, values, output, lse, d_output] = [0, 1, 2, 3, 4, 5].map(|index| args[index]);
    let [mut d_query, mut d_key, mut d_values] =
        [0, 1, 2].map(|index| Tensor::filled(site.shape(results[index]), 0.0));
    let space = lse.shape();
    let rows = Rows::new(site, options, args, arg_types);
    let operands = [query, key, values, output, lse, d_output, &d_query, &d_key, &d_values];
    let operands = operands.into_iter().chain(rows.documents());
    let strides: Vec<_> = operands.map(|operand| operand.strides(&space)).collect();
    let Attention { key: key_dim, head, value, .. } = *options;
    walk(&space, &strides, |coordinates, at| {
        let mean = along(site, value, (output, at[3]), (d_output, at[5]));
        for score in rows.scores(rows.position(&space, coordinates), [at[0], at[1]], &at[9..]) {
            let t = (key_dim, score.key);
            let weight = site.within(site.within(score.value - lse.data[at[4]]).exp());
            let d_weight = along(site, value, (values, values.offset(at[2], &[t])), (d_output, at[5]));
            let d_score = site.within(weight * site.within(d_weight - mean));
            let d_product = site.within(site.within(d_score * score.slope) * options.scale);
            let dtype = arg_types[0].dtype;
            let (weight, d_product) = (site.factor(weight, dtype), site.factor(d_product, dtype));
            let add = |sum: &mut f64, product: f64| *sum = site.within(*sum + product);
            for h in 0..query.size(head) {
                let to = d_query.offset(at[6], &[(head, h)]);
                add(&mut d_query.data[to], d_product * key.data[key.offset(at[1], &[t, (head, h)])]);
                let to = d_key.offset(at[7], &[t, (head, h)]);
                add(&mut d_key.data[to], d_product * query.data[query.offset(at[0], &[(head, h)])]);
            }
            for v in 0..values.size(value) {
                let to = d_values.offset(at[8], &[t, (value, v)]);
                add(&mut d_values.data[to], weight * d_output.data[d_output.offset(at[5], &[(value, v)])]);
            }
        }
    });
    vec![d_query, d_key, d_values]
}

/// The inner product along `dim` of two tensors from given offsets on.
fn along(site: &Site<'_>, dim: Dim, left: (&Tensor, usize), right: (&Tensor, usize)) -> f64 {
    let element = |(tensor, at): (&Tensor, usize), index| tensor.data[tensor.offset(at, &[(dim, index)])];
    (0..left.0.size(dim))
        .fold(0.0, |sum, index| site.within(sum + element(left, index) * element(right, index)))
}

/// The score of one query with one visible key.
struct Score {
    /// The key's position on this rank.
    key: usize,
    /// After scale and softcap.
    value: f64,
    /// The derivative of `value` by the scaled product.
    slope: f64,
}

/// Computes scores one row at a time.
struct Rows<'a> {
    site: &'a Site<'a>,
    options: &'a Attention,
    query: &'a Tensor,
    key: &'a Tensor,
    /// Of queries and of keys, where sequences are packed.
    documents: Option<[&'a Tensor; 2]>,
    first_query: u64,
    first_key: u64,
    keys: u64,
}

impl<'a> Rows<'a> {
    fn new(site: &'a Site<'a>, options: &'a Attention, args: &[&'a Tensor], arg_types: &[&Type]) -> Rows<'a> {
        let documents = match (options.packing, args) {
            (Packing::Documents, &[.., of_queries, of_keys]) => Some([of_queries, of_keys]),
            (Packing::Documents | Packing::Whole, _) => None,
        };
        Rows {
            site,
            options,
            query: args[0],
            key: args[1],
            documents,
            first_query: site.start(arg_types[0], options.query),
            first_key: site.start(arg_types[1], options.key),
            keys: site.program.dims[options.key].size,
        }
    }

    /// Those of queries, then those of keys.
    fn documents(&self) -> impl Iterator<Item = &'a Tensor> + use<'a> {
        self.documents.into_iter().flatten()
    }

    /// The global position of the query at a place in `space`.
    fn position(&self, space: &[(Dim, usize)], coordinates: &[usize]) -> u64 {
        let at = space.iter().position(|&(dim, _)| dim == self.options.query);
        self.first_query + at.map_or(0, |at| coordinates[at]) as u64
    }

    /// The scores of the query at global position `s` with every key that it sees, from where it and the keys lie, and the
    /// documents of both.
    fn scores(&self, s: u64, [query_at, key_at]: [usize; 2], documents_at: &[usize]) -> Vec<Score> {
        let (site, options) = (self.site, self.options);
        let mut scores = Vec::new();
        for index in 0..self.key.size(options.key) {
            let t = self.first_key + index as u64;
            let hidden = options.causal && t > s || options.window.is_some_and(|window| s >= t + window);
            if hidden || t >= self.keys || self.are_apart(index, documents_at) {
                continue;
            }
            let key = (self.key, self.key.offset(key_at, &[(options.key, index)]));
            let product = along(site, options.head, (self.query, query_at), key);
            let scaled = site.within(options.scale * product);
            let (value, slope) = match options.softcap {
                Some(cap) => {
                    let tanh = site.within(site.within(scaled / cap).tanh());
                    (site.within(cap * tanh), site.within(1.0 - tanh * tanh))
                }
                None => (scaled, 1.0),
            };
            scores.push(Score { key: index, value, slope });
        }
        scores
    }

    /// Whether the key at a place on this rank belongs to another document than the query.
    fn are_apart(&self, key: usize, at: &[usize]) -> bool {
        self.documents.is_some_and(|[of_queries, of_keys]| {
            of_queries.data[at[0]] != of_keys.data[of_keys.offset(at[1], &[(self.options.key, key)])]
        })
    }
}
