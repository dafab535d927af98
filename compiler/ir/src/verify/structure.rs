//! What holds at every stage: values are defined once and before their uses, operations get arguments
//! that fit, and the main region's signature is that of the states, inputs and outputs.

use crate::dim::Dim;
use crate::fault::Fault;
use crate::infer::infer;
use crate::op::{Op, Scan, ScanOutput};
use crate::program::{Initializer, Inst, Program, Region, StateKind, Value};
use crate::text::{InstPath, print_type};
use crate::types::Type;
use cranelift_entity::EntitySet;

/// Checks what holds at every stage.
///
/// # Errors
/// The first rule broken.
pub fn structure(program: &Program) -> Result<(), Fault> {
    check(program, "verify structure", &mut |_, _| Ok(()))
}

/// A rule on an instruction, given where it stands.
pub(super) type Rule<'r> = dyn FnMut(&[usize], &Inst) -> Result<(), String> + 'r;

/// Checks the instructions alone: whether the program can run, whatever its signature.
///
/// # Errors
/// The first rule broken.
pub fn instructions(program: &Program) -> Result<(), Fault> {
    walk(program, "verify instructions", &mut |_, _| Ok(()))
}

/// Checks the structure, and `rule` on every instruction, outer ones first.
pub(super) fn check(program: &Program, found_by: &str, rule: &mut Rule<'_>) -> Result<(), Fault> {
    signature(program).map_err(|message| Fault::of_program(found_by, message))?;
    walk(program, found_by, rule)
}

fn walk(program: &Program, found_by: &str, rule: &mut Rule<'_>) -> Result<(), Fault> {
    tables(program).map_err(|message| Fault::of_program(found_by, message))?;
    let mut walk = Walk {
        program,
        found_by,
        rule,
        visible: EntitySet::new(),
        defined: EntitySet::new(),
        loops: Vec::new(),
        path: InstPath::new(),
    };
    walk.region(&program.main)
}

fn require(holds: bool, message: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(message()) }
}

/// The tables of dimensions and axes.
fn tables(program: &Program) -> Result<(), String> {
    for (dim, info) in program.dims.iter() {
        require(program.find_dim(&info.name) == Some(dim), || {
            format!("two dims are called `{}`", info.name)
        })?;
    }
    for axis in program.mesh.axes.values() {
        let name = axis.full_name();
        let same = program.mesh.axes.values().filter(|other| other.full_name() == name).count();
        require(same == 1, || format!("two axes are called `{name}`"))?;
        require(axis.size > 0, || format!("axis `{name}` has no ranks"))?;
    }
    Ok(())
}

/// The main region's parameters and yields.
fn signature(program: &Program) -> Result<(), String> {
    let states = &program.states;
    for state in states {
        let exists = match state.kind {
            StateKind::Parameter(_) => true,
            StateKind::Master(of) | StateKind::Optimizer { parameter: of, .. } => of < states.len(),
        };
        let copies = match state.init {
            Initializer::CopyOf(of) => of < states.len(),
            Initializer::Constant(_) | Initializer::Normal(_) | Initializer::Uniform(_, _) => true,
        };
        require(exists && copies, || format!("state `{}` refers to a state that isn't there", state.path))?;
        if let (Some(stack), dims) = (state.stack, &program.ty(state.value).dims) {
            require(dims.first() == Some(&stack), || {
                format!("the stacked dim of state `{}` isn't its first", state.path)
            })?;
        }
    }
    let params = states.iter().map(|state| state.value).chain(program.inputs.iter().map(|input| input.value));
    require(params.eq(program.main.params.iter().copied()), || {
        "the main region's parameters aren't the states, then the inputs".into()
    })?;
    let updated = states.iter().filter_map(|state| state.updated);
    let yields = updated.chain(program.outputs.iter().map(|output| output.value));
    require(yields.eq(program.main.yields.iter().copied()), || {
        "the main region's yields aren't the updated states, then the outputs".into()
    })?;
    for state in states {
        if let Some(updated) = state.updated {
            let (before, after) = (program.ty(state.value), program.ty(updated));
            require(before == after, || format!("a step changes the type of state `{}`", state.path))?;
        }
    }
    Ok(())
}

struct Walk<'a> {
    program: &'a Program,
    found_by: &'a str,
    rule: &'a mut Rule<'a>,
    /// Values that the current place may use.
    visible: EntitySet<Value>,
    /// Values that anything defined.
    defined: EntitySet<Value>,
    loops: Vec<Dim>,
    path: InstPath,
}

impl Walk<'_> {
    fn region(&mut self, region: &Region) -> Result<(), Fault> {
        let mut own = Vec::new();
        for &param in &region.params {
            self.define(param, &mut own).map_err(|message| self.fault(message))?;
        }
        for (index, inst) in region.insts.iter().enumerate() {
            self.path.push(index);
            self.inst(inst, &mut own)?;
            self.path.pop();
        }
        self.uses(&region.yields).map_err(|message| self.fault(message))?;
        for value in own {
            self.visible.remove(value);
        }
        Ok(())
    }

    fn fault(&self, message: String) -> Fault {
        match self.path.is_empty() {
            true => Fault::of_program(self.found_by, message),
            false => Fault::at(self.program, &self.path, self.found_by, message),
        }
    }

    fn inst(&mut self, inst: &Inst, own: &mut Vec<Value>) -> Result<(), Fault> {
        let checked = self.uses(&inst.args).and_then(|()| self.types(inst));
        checked.map_err(|message| self.fault(message))?;
        if let Op::Scan(scan) = &inst.op {
            self.loops.push(scan.dim);
            self.region(&scan.body)?;
            self.loops.pop();
        }
        if let Op::Fused(body) = &inst.op {
            let outside = std::mem::take(&mut self.visible);
            self.region(body)?;
            self.visible = outside;
        }
        for &result in &inst.results {
            self.define(result, own).map_err(|message| self.fault(message))?;
        }
        (self.rule)(&self.path, inst).map_err(|message| self.fault(message))
    }

    fn uses(&self, values: &[Value]) -> Result<(), String> {
        let missing = values.iter().find(|&&value| !self.visible.contains(value));
        missing.map_or(Ok(()), |&value| {
            Err(format!("%{} is used where nothing has defined it", self.program.display_value(value)))
        })
    }

    fn define(&mut self, value: Value, own: &mut Vec<Value>) -> Result<(), String> {
        let name = || self.program.display_value(value);
        require(!self.defined.contains(value), || format!("%{} is defined twice", name()))?;
        let dims = &self.program.ty(value).dims;
        let twice = dims.iter().enumerate().find(|&(at, dim)| dims[..at].contains(dim));
        require(twice.is_none(), || format!("%{} has a dimension twice", name()))?;
        self.defined.insert(value);
        self.visible.insert(value);
        own.push(value);
        Ok(())
    }

    fn types(&self, inst: &Inst) -> Result<(), String> {
        let types =
            |values: &[Value]| values.iter().map(|&value| self.program.ty(value)).collect::<Vec<&Type>>();
        let (args, results) = (types(&inst.args), types(&inst.results));
        match &inst.op {
            Op::Scan(scan) => self.scan(scan, &args, &results),
            Op::Fused(body) => {
                self.alike(&args, &types(&body.params), "arguments and parameters")?;
                self.alike(&types(&body.yields), &results, "yields and results")
            }
            op => {
                let inferred = infer(self.program, op, &args, &results, &self.loops)?;
                self.alike(&inferred.iter().collect::<Vec<_>>(), &results, "what it computes and the results")
            }
        }
    }

    /// Whether two lists of types are the same but for placements.
    fn alike(&self, one: &[&Type], other: &[&Type], what: &str) -> Result<(), String> {
        require(one.len() == other.len(), || {
            format!("{what} differ in number: {} and {}", one.len(), other.len())
        })?;
        for (one, other) in one.iter().zip(other) {
            require(one.dtype == other.dtype && one.dims == other.dims, || {
                let [one, other] = [one, other].map(|ty| print_type(self.program, ty));
                format!("{what} differ in type: {one} and {other}")
            })?;
        }
        Ok(())
    }

    fn scan(&self, scan: &Scan, args: &[&Type], results: &[&Type]) -> Result<(), String> {
        let accumulated = scan.outputs.iter().filter(|output| output.has_initial()).count();
        let (carries, stacks) = (scan.carries, scan.stacks);
        require(args.len() == carries + stacks + accumulated, || "wrong number of arguments".into())?;
        require(results.len() == carries + scan.outputs.len(), || "wrong number of results".into())?;
        require(scan.body.params.len() == carries + stacks, || "wrong number of parameters".into())?;
        require(scan.body.yields.len() == results.len(), || "wrong number of yields".into())?;
        let types =
            |values: &[Value]| values.iter().map(|&value| self.program.ty(value)).collect::<Vec<&Type>>();
        let (params, yields) = (types(&scan.body.params), types(&scan.body.yields));
        self.alike(&args[..carries], &params[..carries], "initial and carried values")?;
        self.alike(&yields[..carries], &params[..carries], "yielded and carried values")?;
        self.alike(&results[..carries], &params[..carries], "final and carried values")?;
        for (stack, slice) in args[carries..].iter().zip(&params[carries..]) {
            self.stacked(scan.dim, stack, slice)?;
        }
        let mut initial = args[carries + stacks..].iter();
        for ((output, stack), element) in scan.outputs.iter().zip(&results[carries..]).zip(&yields[carries..])
        {
            match output {
                ScanOutput::Stack | ScanOutput::Accumulate => self.stacked(scan.dim, stack, element)?,
                ScanOutput::Sum => self.alike(&[element], &[stack], "what is added and the sum")?,
            }
            if output.has_initial()
                && let Some(initial) = initial.next()
            {
                self.alike(&[initial], &[stack], "the initial value and what is added to it")?;
            }
        }
        Ok(())
    }

    /// `stack` is `element` with `dim`.
    fn stacked(&self, dim: Dim, stack: &Type, element: &Type) -> Result<(), String> {
        let rest = stack.dims.iter().copied().filter(|&other| other != dim);
        let fits = stack.has(dim) && !element.has(dim) && rest.eq(element.dims.iter().copied());
        require(fits && stack.dtype == element.dtype, || {
            let [stack, element] = [stack, element].map(|ty| print_type(self.program, ty));
            format!("{stack} isn't a stack of {element} along `{}`", self.program.dims[dim].name)
        })
    }
}
