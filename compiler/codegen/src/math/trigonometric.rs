//! Sine and cosine of radians up to millions, as rotary positions need them.

use super::exponential::ROUNDER;
use super::{Lanes, polynomial, product_residual};

/// π/2 in three parts of 24 bits.
const HALF_PI: [f32; 3] = [std::f32::consts::FRAC_PI_2, -4.371_139e-8, -1.715_124_5e-15];
/// Above it the quarter turns are no longer counted exactly.
const LIMIT: f32 = 4_194_304.0;

/// The sine.
pub fn sin<L: Lanes>(lanes: &mut L, x: &L::Float) -> L::Float {
    turned(lanes, x, 0)
}

/// The cosine.
pub fn cos<L: Lanes>(lanes: &mut L, x: &L::Float) -> L::Float {
    turned(lanes, x, 1)
}

/// The sine of `x + quarters · π/2`.
fn turned<L: Lanes>(lanes: &mut L, x: &L::Float, quarters: u32) -> L::Float {
    let two_over_pi = lanes.float(std::f32::consts::FRAC_2_PI);
    let rounder = lanes.float(ROUNDER);
    let shifted = lanes.multiply_add(x, &two_over_pi, &rounder);
    let turns = lanes.subtract(&shifted, &rounder);
    let r = remainder(lanes, x, &turns);
    let sine = sine_near_zero(lanes, &r);
    let cosine = cosine_near_zero(lanes, &r);

    let added = lanes.bits(quarters);
    let quadrant = lanes.bits_of(&shifted);
    let quadrant = lanes.bits_add(&quadrant, &added);
    let one = lanes.bits(1);
    let parity = lanes.bits_and(&quadrant, &one);
    let is_odd = lanes.bits_equal(&parity, &one);
    let result = lanes.select(&is_odd, &cosine, &sine);
    let two = lanes.bits(2);
    let half_turn = lanes.bits_and(&quadrant, &two);
    let sign = lanes.shift_left(&half_turn, 30);
    let bits = lanes.bits_of(&result);
    let bits = lanes.bits_xor(&bits, &sign);
    let result = lanes.float_of(&bits);

    let magnitude = lanes.absolute(x);
    let limit = lanes.float(LIMIT);
    let in_range = lanes.less_or_equal(&magnitude, &limit);
    let not_a_number = lanes.float(f32::NAN);
    lanes.select(&in_range, &result, &not_a_number)
}

/// `x - turns · π/2`. The first product is carried exactly, so that the subtraction that cancels loses nothing.
fn remainder<L: Lanes>(lanes: &mut L, x: &L::Float, turns: &L::Float) -> L::Float {
    let [first, second, third] = HALF_PI.map(|part| lanes.float(part));
    let product = lanes.multiply(turns, &first);
    let lost = product_residual(lanes, turns, &first, &product);
    let r = lanes.subtract(x, &product);
    let r = lanes.subtract(&r, &lost);
    let product = lanes.multiply(turns, &second);
    let r = lanes.subtract(&r, &product);
    let product = lanes.multiply(turns, &third);
    lanes.subtract(&r, &product)
}

fn sine_near_zero<L: Lanes>(lanes: &mut L, r: &L::Float) -> L::Float {
    let square = lanes.multiply(r, r);
    let series = polynomial(lanes, &square, &[-0.166_666_55, 0.008_332_183, -1.951_682_2e-4]);
    let cube = lanes.multiply(&square, r);
    lanes.multiply_add(&series, &cube, r)
}

fn cosine_near_zero<L: Lanes>(lanes: &mut L, r: &L::Float) -> L::Float {
    let square = lanes.multiply(r, r);
    let series = polynomial(lanes, &square, &[0.041_666_646, -0.001_388_730_1, 2.443_067e-5]);
    let fourth = lanes.multiply(&square, &square);
    let minus_half = lanes.float(-0.5);
    let one = lanes.float(1.0);
    let start = lanes.multiply_add(&square, &minus_half, &one);
    lanes.multiply_add(&series, &fourth, &start)
}
