//! Gradients of scalar functions.

use super::Tape;
use dtlc_ir::{Builder, ScalarOp, Value};
use std::f64::consts::PI;

/// Contributes to the arguments of `result = op(args)`.
pub fn map(
    tape: &mut Tape,
    builder: &mut Builder,
    op: ScalarOp,
    args: &[Value],
    result: Value,
    cotangent: Value,
) {
    for (index, &arg) in args.iter().enumerate() {
        if tape.is_active(arg)
            && let Some(contribution) = partial(builder, op, args, index, result, cotangent)
        {
            tape.add(builder, arg, contribution);
        }
    }
}

/// What argument `index` gets; none if the function is flat in it.
fn partial(
    builder: &mut Builder,
    op: ScalarOp,
    args: &[Value],
    index: usize,
    result: Value,
    cotangent: Value,
) -> Option<Value> {
    use ScalarOp::*;
    let (dy, y) = (cotangent, result);
    Some(match (op, index) {
        (Neg | Abs | Exp | Log | Sqrt | Rsqrt | Tanh | Sigmoid | Erf | Sin | Cos | Cast | Floor | Not, _) => {
            return unary(builder, op, args[0], y, dy);
        }
        (Add, _) | (Sub | Rem, 0) => dy,
        (Sub, _) => builder.map(Neg, &[dy]),
        (Mul, _) => builder.mul(dy, args[1 - index]),
        (Div, 0) => builder.div(dy, args[1]),
        (Div, _) => {
            let product = builder.mul(dy, y);
            let quotient = builder.div(product, args[1]);
            builder.map(Neg, &[quotient])
        }
        (Rem, _) => {
            let quotient = builder.div(args[0], args[1]);
            let whole = builder.map(Floor, &[quotient]);
            let product = builder.mul(dy, whole);
            builder.map(Neg, &[product])
        }
        (Pow, _) => power(builder, args, index, y, dy),
        (Min | Max, _) => {
            let first = if op == Min { LessEqual } else { GreaterEqual };
            let first = builder.map(first, &[args[0], args[1]]);
            choose(builder, first, dy, index == 0)
        }
        (Select, 1 | 2) => choose(builder, args[0], dy, index == 1),
        (Select, _) => return None,
        (Equal | NotEqual | Less | LessEqual | Greater | GreaterEqual | And | Or, _) => return None,
    })
}

/// `dy · f'(x)` of a function of one argument, in terms of `y` where that is shorter.
fn unary(builder: &mut Builder, op: ScalarOp, x: Value, y: Value, dy: Value) -> Option<Value> {
    use ScalarOp::*;
    Some(match op {
        Cast => dy,
        Neg => builder.map(Neg, &[dy]),
        Exp => builder.mul(dy, y),
        Log => builder.div(dy, x),
        Sqrt => {
            let half = builder.scale(dy, 0.5);
            builder.div(half, y)
        }
        Rsqrt => {
            let square = builder.mul(y, y);
            let cube = builder.mul(square, y);
            let slope = builder.scale(cube, -0.5);
            builder.mul(dy, slope)
        }
        Tanh => {
            let square = builder.mul(y, y);
            let slope = one_minus(builder, square);
            builder.mul(dy, slope)
        }
        Sigmoid => {
            let other = one_minus(builder, y);
            let slope = builder.mul(y, other);
            builder.mul(dy, slope)
        }
        Erf => {
            let square = builder.mul(x, x);
            let exponent = builder.map(Neg, &[square]);
            let bell = builder.map(Exp, &[exponent]);
            let slope = builder.scale(bell, 2.0 / PI.sqrt());
            builder.mul(dy, slope)
        }
        Sin => {
            let slope = builder.map(Cos, &[x]);
            builder.mul(dy, slope)
        }
        Cos => {
            let sine = builder.map(Sin, &[x]);
            let product = builder.mul(dy, sine);
            builder.map(Neg, &[product])
        }
        Abs => absolute(builder, x, dy),
        Floor | Not => return None,
        Add | Sub | Mul | Div | Rem | Pow | Min | Max | Equal | NotEqual | Less | LessEqual | Greater
        | GreaterEqual | And | Or | Select => return None,
    })
}

/// `dy` times minus one, zero or one.
fn absolute(builder: &mut Builder, x: Value, dy: Value) -> Value {
    let zero = builder.number(0.0, builder.ty(x).dtype);
    let positive = builder.map(ScalarOp::Greater, &[x, zero]);
    let negative = builder.map(ScalarOp::Less, &[x, zero]);
    let minus = builder.map(ScalarOp::Neg, &[dy]);
    let zero = builder.number(0.0, builder.ty(dy).dtype);
    let rest = builder.select(negative, minus, zero);
    builder.select(positive, dy, rest)
}

/// `d(a^b)`: `b · a^(b-1)` in the base, `a^b · log a` in the exponent (zero where `a` is not positive).
fn power(builder: &mut Builder, args: &[Value], index: usize, y: Value, dy: Value) -> Value {
    let (base, exponent) = (args[0], args[1]);
    let dtype = builder.ty(base).dtype;
    let slope = if index == 0 {
        let one = builder.number(1.0, dtype);
        let less = builder.sub(exponent, one);
        let power = builder.map(ScalarOp::Pow, &[base, less]);
        builder.mul(exponent, power)
    } else {
        let zero = builder.number(0.0, dtype);
        let positive = builder.map(ScalarOp::Greater, &[base, zero]);
        let log = builder.map(ScalarOp::Log, &[base]);
        let log = builder.select(positive, log, zero);
        builder.mul(y, log)
    };
    builder.mul(dy, slope)
}

/// `dy` where the condition is as `wanted`, else zero.
fn choose(builder: &mut Builder, condition: Value, dy: Value, wanted: bool) -> Value {
    let zero = builder.number(0.0, builder.ty(dy).dtype);
    if wanted { builder.select(condition, dy, zero) } else { builder.select(condition, zero, dy) }
}

fn one_minus(builder: &mut Builder, value: Value) -> Value {
    let one = builder.number(1.0, builder.ty(value).dtype);
    builder.sub(one, value)
}
