//! Plans: for now only that a file has some.

use super::models::Sizes;
use super::program::Program;
use crate::ast;
use crate::diagnostic::Diagnostic;
use crate::model::Model;
use crate::plan::Plan;
use crate::source::FileId;
#[derive(Default)]
pub(super) struct Overrides;
impl Overrides {
    pub fn read(_: &[(String, String)]) -> Result<Overrides, Diagnostic> {
        Ok(Overrides)
    }
}
pub(super) fn sizes(_: Option<&ast::Plan>, _: &ast::Model, _: &Overrides) -> (Sizes, Vec<Diagnostic>) {
    (Sizes::default(), Vec::new())
}
pub(super) fn resolve(
    _: &Program,
    _: FileId,
    plan: &ast::Plan,
    _: &Model,
    _: &Overrides,
) -> (Option<Plan>, Vec<Diagnostic>) {
    (
        None,
        vec![
            Diagnostic::error(crate::Code::NotSupported, "plans are not resolved yet")
                .label(plan.name.span, "this plan"),
        ],
    )
}
pub(super) fn check_optimizer(_: &Program, _: FileId, _: &ast::Optimizer) -> Vec<Diagnostic> {
    Vec::new()
}
