//! The interpreter judged by finite differences, on whole models: the loss's slope along a random direction of each
//! parameter, by its gradient and by differences.

use super::judge::Verdict;
use super::rng::Rng;
use dtlc_ir::Program;
use dtlc_ir::interpret::{Options, Rounding, Tensor, interpret};

/// The step of the wider difference; the error of both together is of its fourth power.
const STEP: f64 = 2e-3;
/// What is left of that error where the function is smooth, relative.
const SMOOTH: f64 = 1e-5;
/// Where differences of a step and of half of it are further apart than this, relative, the loss has a kink or a jump
/// between them and no slope to compare with.
const KINK: f64 = 1e-3;

/// Checks every parameter of a joint program whose outputs are a loss and gradients.
///
/// # Errors
/// The program can't be interpreted.
pub(super) fn check(
    joint: Option<&Program>,
    arguments: &dyn Fn(&Program) -> Vec<Tensor>,
    seed: u64,
) -> Result<Verdict, String> {
    let joint = joint.ok_or("a stage that is not there")?;
    let start = arguments(joint);
    let run = |arguments: &[Tensor]| {
        let options = Options { seed, rounding: Rounding::None };
        interpret(joint, arguments, &options).map_err(|fault| fault.to_string())
    };
    let loss = |arguments: &[Tensor]| -> Result<f64, String> {
        let outcome = run(arguments)?;
        Ok(outcome.output(joint, "loss").ok_or("no loss")?.data[0])
    };
    let gradients = run(&start)?;
    let (mut checked, mut rng) = (0, Rng::new(seed));
    for (index, state) in joint.states.iter().enumerate() {
        let name = format!("grad.{}", state.path);
        let Some(gradient) = gradients.output(joint, &name) else { continue };
        let dims = start[index].dims().to_vec();
        let direction: Vec<f64> = start[index].data.iter().map(|_| 2.0 * rng.unit() - 1.0).collect();
        let gradient = gradient.ordered(&dims).data;
        let found: f64 = gradient.iter().zip(&direction).map(|(slope, along)| slope * along).sum();
        let difference = |step: f64| -> Result<f64, String> {
            let at = |step: f64| {
                let mut moved = start.clone();
                moved[index].data.iter_mut().zip(&direction).for_each(|(it, along)| *it += step * along);
                loss(&moved)
            };
            Ok((at(step)? - at(-step)?) / (2.0 * step))
        };
        let (wide, narrow) = (difference(STEP)?, difference(STEP / 2.0)?);
        let expected = (4.0 * narrow - wide) / 3.0;
        let scale = 1e-2 + expected.abs().max(gradient.iter().map(|slope| slope.abs()).sum());
        if !wide.is_finite() || (wide - narrow).abs() > KINK * scale {
            continue;
        }
        checked += 1;
        let error = (found - expected).abs();
        if error > SMOOTH * scale + (wide - narrow).abs() {
            let text =
                format!("{name}: {found} along a direction, {expected} by differences ({wide}, {narrow})");
            return Ok(Verdict::Wrong("slopes".into(), text));
        }
    }
    Ok(if checked > 0 { Verdict::Agrees } else { Verdict::Degenerate })
}
