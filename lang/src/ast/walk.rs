//! Visits every expression of a file, outer ones first, in the order of the source.
//!
//! Recursion is as deep as the parser lets expressions nest. Changes nothing.

use super::{
    Argument, Block, DimArgument, DimArguments, DimDeclaration, Expr, ExprKind, File, Function, Item,
    LayerUse, Member, MeshAxis, MeshSize, Parameter, PlanItem, Statement, StepBody,
};

/// Calls `visit` for every expression of the file.
pub fn expressions<'a>(file: &'a File, visit: &mut dyn FnMut(&'a Expr)) {
    for item in &file.items {
        match item {
            Item::Use(_) | Item::Error(_) => {}
            Item::Layer(item) => {
                parameters(&item.hypers, visit);
                members(&item.members, visit);
            }
            Item::Model(item) => {
                parameters(&item.hypers, visit);
                members(&item.members, visit);
            }
            Item::Optimizer(item) => {
                parameters(&item.hypers, visit);
                members(&item.members, visit);
            }
            Item::Function(item) => function(item, visit),
            Item::Plan(plan) => plan.items.iter().for_each(|item| plan_item(item, visit)),
        }
    }
}

/// Calls `visit` for an expression and all inside it.
pub fn expression<'a>(expr: &'a Expr, visit: &mut dyn FnMut(&'a Expr)) {
    visit(expr);
    match &expr.kind {
        ExprKind::Name(_)
        | ExprKind::Integer(_)
        | ExprKind::Float(_)
        | ExprKind::Bool(_)
        | ExprKind::String(_)
        | ExprKind::Error => {}
        ExprKind::Field { base, .. } => expression(base, visit),
        ExprKind::Apply { callee, dims, arguments: values } => {
            expression(callee, visit);
            dims.iter().for_each(|dims| dim_arguments(dims, visit));
            values.iter().for_each(|values| arguments(values, visit));
        }
        ExprKind::Unary { operand, .. } => expression(operand, visit),
        ExprKind::Binary { left, right, .. } => {
            expression(left, visit);
            expression(right, visit);
        }
        ExprKind::Tuple(values) => values.iter().for_each(|value| expression(value, visit)),
        ExprKind::If { branches, otherwise } => {
            for (condition, body) in branches {
                expression(condition, visit);
                block(body, visit);
            }
            block(otherwise, visit);
        }
        ExprKind::Block(body) => block(body, visit),
    }
}

/// Calls `visit` for every expression of a block.
pub fn block<'a>(body: &'a Block, visit: &mut dyn FnMut(&'a Expr)) {
    for statement in &body.statements {
        match statement {
            Statement::Let(statement) => expression(&statement.value, visit),
            Statement::Require(statement) => expression(&statement.condition, visit),
            Statement::Dims(statement) => dim_declarations(&statement.dims, visit),
            Statement::Error(_) => {}
        }
    }
    expression(&body.result, visit);
}

fn members<'a>(list: &'a [Member], visit: &mut dyn FnMut(&'a Expr)) {
    for member in list {
        match member {
            Member::Dims(member) => dim_declarations(&member.dims, visit),
            Member::Param(member) => member.init.iter().for_each(|init| expression(init, visit)),
            Member::SubLayer(member) => member.stack.iter().for_each(|layer| layer_use(layer, visit)),
            Member::State(member) => member.init.iter().for_each(|init| expression(init, visit)),
            Member::Function(member) => function(member, visit),
            Member::If(member) => {
                for branch in &member.branches {
                    expression(&branch.condition, visit);
                    members(&branch.members, visit);
                }
                member.otherwise.iter().for_each(|list| members(list, visit));
            }
            Member::Error(_) => {}
        }
    }
}

fn function<'a>(item: &'a Function, visit: &mut dyn FnMut(&'a Expr)) {
    parameters(&item.parameters, visit);
    block(&item.body, visit);
}

fn layer_use<'a>(layer: &'a LayerUse, visit: &mut dyn FnMut(&'a Expr)) {
    layer.repeat.iter().for_each(|count| expression(count, visit));
    layer.dims.iter().for_each(|dims| dim_arguments(dims, visit));
    arguments(&layer.arguments, visit);
}

fn plan_item<'a>(item: &'a PlanItem, visit: &mut dyn FnMut(&'a Expr)) {
    match item {
        PlanItem::Mesh(mesh) => mesh.axes.iter().for_each(|axis| mesh_axis(axis, visit)),
        PlanItem::Step(step) => match &step.body {
            StepBody::Zero { stage, .. } => expression(stage, visit),
            StepBody::Rules(_) => {}
        },
        PlanItem::Dims(item) => dim_declarations(&item.dims, visit),
        PlanItem::Settings(_)
        | PlanItem::Memory(_)
        | PlanItem::Remat(_)
        | PlanItem::Optimizer(_)
        | PlanItem::Allow(_)
        | PlanItem::Expect(_)
        | PlanItem::Later(_)
        | PlanItem::Error(_) => {}
    }
}

fn mesh_axis<'a>(axis: &'a MeshAxis, visit: &mut dyn FnMut(&'a Expr)) {
    match &axis.size {
        MeshSize::Ranks(size) => expression(size, visit),
        MeshSize::Parts(parts) => parts.iter().for_each(|part| mesh_axis(part, visit)),
    }
}

fn parameters<'a>(list: &'a [Parameter], visit: &mut dyn FnMut(&'a Expr)) {
    list.iter().flat_map(|parameter| &parameter.default).for_each(|default| expression(default, visit));
}

fn dim_declarations<'a>(list: &'a [DimDeclaration], visit: &mut dyn FnMut(&'a Expr)) {
    list.iter().flat_map(|dim| &dim.value).for_each(|value| expression(value, visit));
}

fn dim_arguments<'a>(dims: &'a DimArguments, visit: &mut dyn FnMut(&'a Expr)) {
    for dim in dims.from.iter().chain(dims.to.iter().flatten()) {
        match dim {
            DimArgument::Name(_) | DimArgument::Rest(_) => {}
            DimArgument::Bind { value, .. } | DimArgument::Value(value) => expression(value, visit),
        }
    }
}

fn arguments<'a>(list: &'a [Argument], visit: &mut dyn FnMut(&'a Expr)) {
    list.iter().for_each(|argument| expression(&argument.value, visit));
}
