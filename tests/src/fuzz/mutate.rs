//! Mutation: other bytes from legal ones, a function of a seed. Text is edited by words, numbers and signs, and now and
//! then by bytes; binary data by bytes, runs of them, and numbers.

use super::Form;
use crate::random::rng::Rng;

/// Bytes of a mutant at most.
pub const MOST_BYTES: usize = 1 << 14;

/// Words of the languages, and texts that have a meaning of their own to a lexer, a parser or arithmetic.
const WORDS: [&str; 82] = [
    "model",
    "plan",
    "layer",
    "fn",
    "dims",
    "param",
    "let",
    "require",
    "for",
    "if",
    "else",
    "use",
    "repeat[2]",
    "mesh",
    "step",
    "zero(3)",
    "over",
    "params",
    "acts",
    "grads",
    "states",
    "optimizer",
    "precision",
    "batch",
    "expect",
    "memory",
    "remat",
    "reduce",
    "pad",
    "as",
    "at",
    "bf16",
    "f16",
    "f32",
    "u32",
    "i32",
    "bool",
    "sum[D](x)",
    "dot[D](x, x)",
    "mean(x)",
    "B",
    "S",
    "D",
    "B, S, D",
    "dp",
    "tp",
    "dp: 2, tp: 2",
    "0",
    "1",
    "2",
    "3",
    "7",
    "65536",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "-1",
    "1e308",
    "1e-308",
    "1e999",
    "0x7f",
    "0.5",
    "//",
    "/*",
    "*/",
    "///",
    "\"",
    "\\",
    "\r\n",
    "\r",
    "\u{feff}",
    "é",
    "\u{202e}",
    "\0",
    "\t",
    "..",
    "->",
    "@",
    "%x#2",
];

/// Signs that open and close, and their partners.
const BRACKETS: [(&str, &str); 4] = [("(", ")"), ("[", "]"), ("{", "}"), ("-", "")];

/// A mutant of one of the seeds.
///
/// # Panics
/// Without seeds.
pub fn mutant(form: Form, seeds: &[Vec<u8>], seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut bytes = rng.pick(seeds).clone();
    let other = rng.pick(seeds).clone();
    // Mostly few edits, so that what is left is nearly legal.
    let edits = 1 << rng.below(5);
    for _ in 0..rng.between(1, edits) {
        bytes = edit(form, bytes, &other, &mut rng);
    }
    bytes
}

/// One edit. `other` is where parts may be taken from.
pub fn edit(form: Form, bytes: Vec<u8>, other: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut edited = match form {
        Form::Text if rng.percent(90) => edit_text(&bytes, other, rng),
        Form::Text | Form::Binary => edit_bytes(bytes, other, rng),
    };
    edited.truncate(MOST_BYTES);
    edited
}

fn edit_text(bytes: &[u8], other: &[u8], rng: &mut Rng) -> Vec<u8> {
    let tokens = tokens(bytes);
    let others = self::tokens(other);
    let Some(last) = tokens.len().checked_sub(1) else {
        return rng.pick(&WORDS).as_bytes().to_vec();
    };
    let at = rng.below(tokens.len() as u64) as usize;
    let to = (at + mostly_few(6, rng)).min(last);
    let (start, end) = (tokens[at].0, tokens[to].1);
    let word = rng.pick(&WORDS).as_bytes();
    let replaced = |new: &[u8]| [&bytes[..start], new, &bytes[end..]].concat();
    match rng.below(10) {
        0 => replaced(b""),
        1 => [&bytes[..end], &bytes[start..]].concat(),
        2 => [&bytes[..start], word, b" ", &bytes[start..]].concat(),
        3 => [&bytes[..tokens[at].0], word, &bytes[tokens[at].1..]].concat(),
        // Another token of the same text in this one's place.
        4 | 5 => {
            let (from, until) = *rng.pick(&tokens);
            [&bytes[..tokens[at].0], &bytes[from..until], &bytes[tokens[at].1..]].concat()
        }
        6 => swapped(bytes, tokens[at], *rng.pick(&tokens)),
        // A part of another text.
        7 if !others.is_empty() => {
            let from = rng.below(others.len() as u64) as usize;
            let until = (from + rng.below(64) as usize).min(others.len() - 1);
            replaced(&other[others[from].0..others[until].1])
        }
        7 | 8 => number(bytes, &tokens, rng),
        _ => {
            let (open, close) = rng.pick(&BRACKETS);
            let times = 1 << rng.below(10);
            [
                &bytes[..start],
                open.repeat(times).as_bytes(),
                &bytes[start..end],
                close.repeat(times).as_bytes(),
                &bytes[end..],
            ]
            .concat()
        }
    }
}

/// One of the numbers becomes another, near to it or far.
fn number(bytes: &[u8], tokens: &[(usize, usize)], rng: &mut Rng) -> Vec<u8> {
    let numbers: Vec<(usize, usize)> =
        tokens.iter().copied().filter(|token| bytes[token.0].is_ascii_digit()).collect();
    if numbers.is_empty() {
        return bytes.to_vec();
    }
    let (start, end) = *rng.pick(&numbers);
    let old = std::str::from_utf8(&bytes[start..end]).ok().and_then(|text| text.parse::<u64>().ok());
    let old = old.unwrap_or(1);
    let new = match rng.below(6) {
        0 => old.wrapping_add(1),
        1 => old.wrapping_sub(1),
        2 => old.wrapping_mul(2),
        3 => rng.below(20),
        4 => 1 << rng.below(64),
        _ => rng.bits() >> rng.below(64),
    };
    [&bytes[..start], new.to_string().as_bytes(), &bytes[end..]].concat()
}

fn swapped(bytes: &[u8], left: (usize, usize), right: (usize, usize)) -> Vec<u8> {
    let (first, second) = if left.0 <= right.0 { (left, right) } else { (right, left) };
    if first.1 > second.0 {
        return bytes.to_vec();
    }
    [
        &bytes[..first.0],
        &bytes[second.0..second.1],
        &bytes[first.1..second.0],
        &bytes[first.0..first.1],
        &bytes[second.1..],
    ]
    .concat()
}

/// A count below 2^`bits`, mostly a small one.
fn mostly_few(bits: u64, rng: &mut Rng) -> usize {
    let bound = 1 << rng.below(bits);
    rng.below(bound) as usize
}

/// Runs of letters and digits, and every other byte that is no blank.
fn tokens(bytes: &[u8]) -> Vec<(usize, usize)> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80;
    let mut tokens: Vec<(usize, usize)> = Vec::new();
    for (at, &byte) in bytes.iter().enumerate() {
        match tokens.last_mut() {
            Some((_, end)) if *end == at && is_word(byte) && is_word(bytes[at - 1]) => *end = at + 1,
            _ if byte.is_ascii_whitespace() => {}
            _ => tokens.push((at, at + 1)),
        }
    }
    tokens
}

fn edit_bytes(mut bytes: Vec<u8>, other: &[u8], rng: &mut Rng) -> Vec<u8> {
    if bytes.is_empty() {
        return vec![rng.bits() as u8];
    }
    let at = rng.below(bytes.len() as u64) as usize;
    let end = (at + 1 + mostly_few(8, rng)).min(bytes.len());
    match rng.below(9) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => bytes[at] = rng.bits() as u8,
        2 => bytes[at] = *rng.pick(&[0, 1, 2, 0x7f, 0x80, 0xff]),
        3 => drop(bytes.drain(at..end)),
        4 => {
            let part = bytes[at..end].to_vec();
            bytes.splice(at..at, part);
        }
        5 => bytes.truncate(at),
        // Numbers of variable length, the largest of each.
        6 => {
            let mut large = vec![0xff; rng.between(1, 9) as usize];
            large.push(rng.below(128) as u8);
            bytes.splice(at..at + 1, large);
        }
        7 => {
            let word = rng.bits().to_le_bytes();
            let length = rng.between(1, 8) as usize;
            bytes.splice(at..(at + length).min(bytes.len()), word[..length].iter().copied());
        }
        _ => {
            let from = rng.below(other.len() as u64 + 1) as usize;
            let until = (from + 64).min(other.len());
            bytes.splice(at..end, other[from..until].iter().copied());
        }
    }
    bytes
}
