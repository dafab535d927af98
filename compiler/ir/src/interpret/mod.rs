//! The reference interpreter: what a program means, in f64, slow and obvious. It judges the code that
//! the compiler makes.
//!
//! [`interpret`] runs a program as if on one device, whatever its placements say. [`interpret_ranks`]
//! runs every rank in lockstep, each on its own parts, so that partitioning can be judged without any
//! backend: after each instruction, ranks that a type says hold the same must hold the same.
//!
//! Pads are zero in arguments and after data has moved; local operations compute on them like on anything.

mod attention;
mod op;
mod ranks;
mod scalar;
mod tensor;

pub use scalar::{apply, literal, stored};
pub use tensor::Tensor;

use crate::dim::Dim;
use crate::fault::Fault;
use crate::op::{Op, Scan, ScanOutput};
use crate::program::{Inst, Program, Region, Value};
use crate::text::InstPath;
use crate::types::Type;
use crate::verify::instructions;
use cranelift_entity::SecondaryMap;
use op::Site;
use std::cell::Cell;
use std::rc::Rc;

const NAME: &str = "interpret";

/// Whether values are rounded as they would be stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    /// Floats stay f64.
    #[default]
    None,
    /// The result of each instruction is rounded to its element type, and factors of a product as it reads them.
    Storage,
    /// The same, up or down by chance, which this seeds, and what an operation computes in f32 on its way, such as each
    /// sum so far, likewise; where a kernel may round a factor of halves to their type, to that. What a few of these
    /// differ by says how much rounding can change a program's results, in whatever order it adds (Parker, "Monte Carlo Arithmetic", 1997).
    Chance(u64),
    /// Floats stay f64, but each number becomes one beside it, or stays, by chance: how much f64's own rounding can change
    /// what a program computes.
    Beside(u64),
}

/// How to interpret.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The seed of random values.
    pub seed: u64,
    /// Rounding.
    pub rounding: Rounding,
}

/// What a step yields, as unsharded tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// One tensor a yield of the main region, in order.
    pub yields: Vec<Tensor>,
}

impl Outcome {
    /// The output called `name`.
    pub fn output(&self, program: &Program, name: &str) -> Option<&Tensor> {
        let output = program.outputs.iter().find(|output| output.name == name)?;
        self.yielded(program, output.value)
    }

    /// The updated state at `path`; none if the step leaves it as it was.
    pub fn state(&self, program: &Program, path: &str) -> Option<&Tensor> {
        let state = program.states.iter().find(|state| state.path == path)?;
        self.yielded(program, state.updated?)
    }

    fn yielded(&self, program: &Program, value: Value) -> Option<&Tensor> {
        self.yields.get(program.main.yields.iter().position(|&other| other == value)?)
    }
}

/// Runs the step on one device. `arguments` are those of the main region: states, then inputs, each with
/// the dimensions of its type in order.
///
/// # Errors
/// Where the arguments don't fit, or the program isn't well typed.
pub fn interpret(program: &Program, arguments: &[Tensor], options: &Options) -> Result<Outcome, Fault> {
    Machine::new(program, options, None).run(arguments)
}

/// Runs the step on every rank of the mesh, in lockstep. Arguments and results are unsharded.
///
/// # Errors
/// As [`interpret`], and where ranks that should hold the same value don't.
pub fn interpret_ranks(program: &Program, arguments: &[Tensor], options: &Options) -> Result<Outcome, Fault> {
    Machine::new(program, options, Some(ranks::coordinates(&program.mesh))).run(arguments)
}

/// A value on every rank.
type Held = Rc<Vec<Tensor>>;

struct Machine<'a> {
    program: &'a Program,
    options: &'a Options,
    /// Each rank's coordinates; none where placements are ignored, on one rank.
    ranks: Option<Vec<Vec<u64>>>,
    values: SecondaryMap<Value, Option<Held>>,
    loops: Vec<(Dim, u64)>,
    path: InstPath,
}

impl<'a> Machine<'a> {
    fn new(program: &'a Program, options: &'a Options, ranks: Option<Vec<Vec<u64>>>) -> Machine<'a> {
        let (loops, path) = (Vec::new(), InstPath::new());
        Machine { program, options, ranks, values: SecondaryMap::new(), loops, path }
    }

    fn run(mut self, arguments: &[Tensor]) -> Result<Outcome, Fault> {
        let program = self.program;
        instructions(program)?;
        if arguments.len() != program.main.params.len() {
            return Err(Fault::of_program(NAME, "the number of arguments differs from the program's"));
        }
        let mut held = Vec::new();
        for (argument, &param) in arguments.iter().zip(&program.main.params) {
            let ty = program.ty(param);
            let fits = ty.dims.iter().map(|&dim| (dim, program.dims[dim].size as usize));
            if !fits.eq(argument.shape()) {
                let name = program.display_value(param);
                return Err(Fault::of_program(NAME, format!("the argument for %{name} has another shape")));
            }
            held.push(Rc::new(match &self.ranks {
                Some(ranks) => ranks::cut(program, ranks, argument, ty),
                None => vec![argument.clone()],
            }));
        }
        let yields = self.region(&program.main, held)?;
        let mut whole = Vec::new();
        for (held, &value) in yields.iter().zip(&program.main.yields) {
            whole.push(match &self.ranks {
                Some(ranks) => {
                    let message = |message| Fault::of_program(NAME, message);
                    ranks::whole(program, ranks, program.ty(value), held).map_err(message)?
                }
                None => held[0].clone(),
            });
        }
        Ok(Outcome { yields: whole })
    }

    fn fault(&self, message: impl Into<String>) -> Fault {
        Fault::at(self.program, &self.path, NAME, message)
    }

    fn held(&self, value: Value) -> Result<Held, Fault> {
        let missing = || self.fault(format!("%{} has no value yet", self.program.display_value(value)));
        self.values[value].clone().ok_or_else(missing)
    }

    fn all_held(&self, values: &[Value]) -> Result<Vec<Held>, Fault> {
        values.iter().map(|&value| self.held(value)).collect()
    }

    fn region(&mut self, region: &Region, arguments: Vec<Held>) -> Result<Vec<Held>, Fault> {
        for (&param, held) in region.params.iter().zip(arguments) {
            self.values[param] = Some(held);
        }
        for (index, inst) in region.insts.iter().enumerate() {
            self.path.push(index);
            for (&result, held) in inst.results.iter().zip(self.inst(inst)?) {
                let held = Rc::new(self.rounded(held, self.program.ty(result)));
                self.check_replicas(result, &held)?;
                self.values[result] = Some(held);
            }
            self.path.pop();
        }
        self.all_held(&region.yields)
    }

    /// The results of an instruction on every rank.
    fn inst(&mut self, inst: &Inst) -> Result<Vec<Vec<Tensor>>, Fault> {
        let args = self.all_held(&inst.args)?;
        match &inst.op {
            Op::Scan(scan) => self.scan(scan, &inst.results, &args),
            Op::Fused(body) => {
                let yields = self.region(body, args)?;
                Ok(yields.into_iter().map(Rc::unwrap_or_clone).collect())
            }
            Op::Reshard(_) | Op::LocalSlice | Op::Collective(_) | Op::Done => self.movement(inst, &args),
            Op::Constant(_)
            | Op::Iota { .. }
            | Op::Map(_)
            | Op::Reduce { .. }
            | Op::Dot(_)
            | Op::Rename { .. } => self.local(inst, &args),
            Op::Split { .. } | Op::Merge { .. } | Op::Slice { .. } | Op::Pad { .. } | Op::Concat { .. } => {
                self.local(inst, &args)
            }
            Op::Take { .. } | Op::ScatterAdd { .. } | Op::Random { .. } | Op::StopGradient => {
                self.local(inst, &args)
            }
            Op::Attention(_) | Op::AttentionGradient(_) => self.local(inst, &args),
        }
    }

    /// Runs an operation on each rank by itself.
    fn local(&self, inst: &Inst, args: &[Held]) -> Result<Vec<Vec<Tensor>>, Fault> {
        let types =
            |values: &[Value]| values.iter().map(|&value| self.program.ty(value)).collect::<Vec<&Type>>();
        let (arg_types, result_types) = (types(&inst.args), types(&inst.results));
        let mut results = vec![Vec::new(); inst.results.len()];
        for rank in 0..self.ranks.as_ref().map_or(1, Vec::len) {
            let coordinates = self.ranks.as_ref().map(|ranks| &ranks[rank][..]);
            let (program, loops, seed) = (self.program, &self.loops[..], self.options.seed);
            let (rounding, roundings) = (self.options.rounding, Cell::new(0));
            let site = Site { program, coordinates, loops, seed, rounding, roundings };
            let here: Vec<&Tensor> = args.iter().map(|held| &held[rank]).collect();
            let computed = op::evaluate(&site, &inst.op, &here, &arg_types, &result_types);
            let computed = computed.map_err(|message| self.fault(message))?;
            results.iter_mut().zip(computed).for_each(|(all, one)| all.push(one));
        }
        Ok(results)
    }

    /// Places each argument as the result's type says.
    fn movement(&self, inst: &Inst, args: &[Held]) -> Result<Vec<Vec<Tensor>>, Fault> {
        let Some(ranks) = &self.ranks else {
            return Ok(args.iter().map(|held| held.to_vec()).collect());
        };
        let mut results = Vec::new();
        for ((&arg, &result), held) in inst.args.iter().zip(&inst.results).zip(args) {
            let (from, to) = (self.program.ty(arg), self.program.ty(result));
            let moved = ranks::transfer(self.program, ranks, from, to, held);
            results.push(moved.map_err(|message| self.fault(message))?);
        }
        Ok(results)
    }

    fn scan(&mut self, scan: &Scan, results: &[Value], args: &[Held]) -> Result<Vec<Vec<Tensor>>, Fault> {
        let count = self.program.dims[scan.dim].size;
        let mut carries = args[..scan.carries].to_vec();
        let stacks = &args[scan.carries..scan.carries + scan.stacks];
        let mut initial = args[scan.carries + scan.stacks..].iter();
        let mut outputs = Vec::new();
        for (output, &result) in scan.outputs.iter().zip(&results[scan.carries..]) {
            outputs.push(match output {
                ScanOutput::Stack => self.zeros(self.program.ty(result)),
                ScanOutput::Accumulate | ScanOutput::Sum => {
                    initial.next().map(|held| held.to_vec()).unwrap_or_default()
                }
            });
        }
        for step in 0..count {
            let index = if scan.reverse { count - 1 - step } else { step } as usize;
            let mut params = carries;
            for (stack, &param) in stacks.iter().zip(&scan.body.params[scan.carries..]) {
                let order = &self.program.ty(param).dims;
                let slices = stack.iter().map(|stack| stack.element(scan.dim, index).ordered(order));
                params.push(Rc::new(slices.collect()));
            }
            self.loops.push((scan.dim, index as u64));
            let mut yields = self.region(&scan.body, params)?;
            self.loops.pop();
            let yielded = yields.split_off(scan.carries);
            let kinds = scan.outputs.iter().zip(&results[scan.carries..]);
            for ((held, yielded), (output, &result)) in outputs.iter_mut().zip(yielded).zip(kinds) {
                for (held, yielded) in held.iter_mut().zip(yielded.iter()) {
                    match output {
                        ScanOutput::Stack | ScanOutput::Accumulate => {
                            held.add_element(scan.dim, index, yielded);
                        }
                        ScanOutput::Sum => held.add(yielded),
                    }
                }
                // What adds up is stored each time.
                *held = self.rounded(std::mem::take(held), self.program.ty(result));
            }
            carries = yields;
        }
        Ok(carries.into_iter().map(Rc::unwrap_or_clone).chain(outputs).collect())
    }

    /// A value of type `ty` that is zero on every rank.
    fn zeros(&self, ty: &Type) -> Vec<Tensor> {
        let size = |dim: Dim| match &self.ranks {
            Some(_) => ty.local_size(self.program, dim) as usize,
            None => self.program.dims[dim].size as usize,
        };
        let zeros = Tensor::filled(ty.dims.iter().map(|&dim| (dim, size(dim))), 0.0);
        vec![zeros; self.ranks.as_ref().map_or(1, Vec::len)]
    }

    fn rounded(&self, mut held: Vec<Tensor>, ty: &Type) -> Vec<Tensor> {
        let elements = held.iter_mut().flat_map(|tensor| &mut tensor.data);
        match self.options.rounding {
            Rounding::None => {}
            Rounding::Storage => elements.for_each(|element| *element = stored(*element, ty.dtype)),
            Rounding::Chance(seed) => {
                elements.for_each(|element| *element = scalar::stored_by_chance(*element, ty.dtype, seed));
            }
            Rounding::Beside(seed) if ty.dtype.is_float() => {
                elements.for_each(|element| *element = scalar::beside(*element, seed));
            }
            Rounding::Beside(_) => {}
        }
        held
    }

    fn check_replicas(&self, value: Value, held: &[Tensor]) -> Result<(), Fault> {
        let Some(ranks) = &self.ranks else { return Ok(()) };
        let checked = ranks::replicas_agree(self.program, ranks, self.program.ty(value), held);
        checked.map_err(|message| self.fault(format!("%{}: {message}", self.program.display_value(value))))
    }
}
