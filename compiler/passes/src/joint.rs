//! `logical` → `joint`: completes a lowered program for what it is to do. The order of the passes up to
//! placement is written here and nowhere else.

use crate::error::{PassError, PassErrorKind};
use crate::lower::{Lowered, dtype};
use crate::{Gradients, accumulate, convert_weights_again, differentiate, simplify, update};
use dtlc_ir::DType;
use dtlc_lang::plan::{Plan, Precision};

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The loss and the model's outputs.
    Evaluate,
    /// Those, and `grad.PATH` of each parameter, as it is before clipping.
    Gradients,
    /// The loss and the model's outputs, `grad_norm` and `lr`, and the parameters' next values.
    Train,
}

impl Mode {
    /// The most that can be done under a plan: training needs an optimizer.
    pub fn of_plan(plan: Option<&Plan>) -> Mode {
        if plan.is_some_and(|plan| plan.optimizer.is_some()) { Mode::Train } else { Mode::Gradients }
    }
}

/// Completes a lowered program, under the plan that it was lowered under. Afterwards no value has the dimension
/// of micro-batches, and no dimension that the plan can name contains it.
///
/// # Errors
/// Those of the passes; and there is nothing to train by without a plan.
pub fn joint(lowered: &mut Lowered, plan: Option<&Plan>, mode: Mode) -> Result<(), PassError> {
    let program = &mut lowered.program;
    if mode == Mode::Evaluate {
        simplify(program, Gradients::Taken);
    } else {
        let precision = plan.map_or_else(Precision::default, |plan| plan.precision);
        simplify(program, Gradients::ToCome);
        differentiate(program, dtype(precision.grads, DType::F32), precision.loss_scale)?;
        simplify(program, Gradients::Taken);
    }
    if mode == Mode::Train {
        let Some(plan) = plan else {
            let text = format!("model `{}` has no plan to train it by", program.name);
            let error = PassError::nowhere(PassErrorKind::NoOptimizer, text);
            return Err(error.with_help("write a plan with an optimizer, and name it with `--plan`"));
        };
        update(program, plan)?;
    }
    convert_weights_again(program);
    if let Some(micro) = lowered.micro {
        accumulate(program, micro)?;
        lowered.dims.values_mut().for_each(|atoms| atoms.retain(|dim| *dim != micro));
    }
    simplify(program, Gradients::Taken);
    Ok(())
}
