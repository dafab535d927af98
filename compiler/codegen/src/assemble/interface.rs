//! What surrounds the instructions: state, inputs and outputs with their layouts, and the step's number.

use super::place::{axis_id, dtype};
use super::{Assembled, Assembler, Result};
use crate::kir::{Access, AxisKind, ElementType, Index, KernelBuilder, ScalarType};
use crate::lower::Origins;
use dtlc_ir::memory::Space;
use dtlc_ir::{DType, Initializer, Program, State, StateKind, Type, Value};
use dtlc_runtime::program as target;

/// The input that counts steps, from 1. Nobody gives it: the program stores it itself.
const STEP: &str = "step";

impl Assembler<'_> {
    /// Stores the step's number where the program reads it.
    pub(super) fn store_step(&mut self) -> Result<Vec<target::Instruction>> {
        let Some(input) = self.program.inputs.iter().find(|input| input.name == STEP) else {
            return Ok(Vec::new());
        };
        let element = crate::lower::element(self.program.ty(input.value).dtype);
        let mut builder = KernelBuilder::new(STEP);
        let tensor = builder.tensor(STEP, element, Access::Write, 1);
        let number = builder.integer("number", None);
        let once = builder.axis("once", 1, AxisKind::Serial);
        builder.nest(once, |builder| {
            let number = builder.coordinate(number);
            let number = match element {
                ElementType::I32 => number,
                ElementType::U32 => builder.cast(ScalarType::U32, number),
                ElementType::F32 | ElementType::Bf16 | ElementType::F16 | ElementType::Bool => {
                    builder.cast(ScalarType::F32, number)
                }
            };
            builder.store(tensor, Index::constant(0), number);
        });
        let kernel = builder.finish().map_err(|error| super::AssembleError::Lower(error.into()))?;
        let kernel = self.add_kernel(kernel, Origins::new(), 1)?;
        let integers = vec![target::Affine::constant(0).plus(target::Variable::Step, 1)];
        let pointers = vec![self.buffer(input.value)?];
        let call = target::KernelCall { kernel, pointers, integers, floats: Vec::new() };
        let operation = target::Operation::Kernel(call);
        Ok(vec![target::Instruction { location: target::LocationId(0), operation }])
    }

    /// Copies updated state that could not be computed in place.
    pub(super) fn copy_updated_state(&mut self) -> Result<Vec<target::Instruction>> {
        let mut copies = Vec::new();
        for state in &self.program.states {
            if let Some(updated) = state.updated {
                self.copy_unless_same(updated, state.value, &mut copies)?;
            }
        }
        Ok(copies)
    }

    pub(super) fn finish(self, instructions: Vec<target::Instruction>) -> Result<Assembled> {
        let program = self.program;
        let states = program.states.iter().map(|state| self.state(state)).collect();
        let given = program.inputs.iter().filter(|input| input.name != STEP);
        let inputs = given.map(|input| target::Input {
            name: input.name.clone(),
            layout: layout(program, program.ty(input.value)),
            offset: self.offset(input.value, Space::Input),
        });
        let outputs = program.outputs.iter().map(|output| {
            Ok(target::Output {
                name: self.output_name(&output.name),
                layout: layout(program, program.ty(output.value)),
                buffer: self.buffer(output.value)?,
            })
        });
        let features = self.features.names();
        Ok(Assembled {
            program: target::Program {
                name: program.name.clone(),
                mesh: mesh(program),
                cpu_features: target::CpuFeatures::from_names(&features).map_err(|error| {
                    super::AssembleError::Compile(crate::cranelift::CompileError::Target(error.to_string()))
                })?,
                arena_bytes: self.memory.arena_bytes,
                state_bytes: self.memory.state_bytes,
                input_bytes: self.memory.input_bytes,
                thread_scratch_bytes: self.scratch,
                state: states,
                inputs: inputs.collect(),
                outputs: outputs.collect::<Result<_>>()?,
                kernels: self.entries,
                code: self.code,
                locations: self.locations,
                instructions,
                device: None,
            },
            kernels: self.listings,
        })
    }

    fn offset(&self, value: Value, space: Space) -> u64 {
        self.memory.place(value).filter(|place| place.space == space).map_or(0, |place| place.offset)
    }

    fn state(&self, state: &State) -> target::StateTensor {
        let parameter = |index: usize| self.program.states[index].path.clone();
        let (path, role) = match &state.kind {
            StateKind::Parameter(_) => (state.path.clone(), target::Role::Parameter),
            StateKind::Master(of) => (parameter(*of), target::Role::Master),
            StateKind::Optimizer { parameter: of, name } => {
                (parameter(*of), target::Role::Optimizer(name.clone()))
            }
        };
        let initial = match state.init {
            Initializer::Constant(value) => target::Initial::Constant(value as f32),
            Initializer::Normal(deviation) => {
                target::Initial::Normal { mean: 0.0, deviation: deviation as f32 }
            }
            Initializer::Uniform(low, high) => {
                target::Initial::Uniform { low: low as f32, high: high as f32 }
            }
            Initializer::CopyOf(of) => target::Initial::CopyOf(target::StateId(of as u32)),
        };
        target::StateTensor {
            path,
            role,
            names: names(state),
            layout: layout(self.program, self.program.ty(state.value)),
            offset: self.offset(state.value, Space::State),
            initial,
        }
    }

    /// `grad.PATH` is stacked as the parameter is.
    fn output_name(&self, name: &str) -> target::TensorName {
        let path = name.strip_prefix("grad.");
        let state = path.and_then(|path| self.program.states.iter().find(|state| state.path == path));
        match state.and_then(|state| state.names.first()) {
            Some(template) => target::TensorName::stacked(&format!("grad.{template}")),
            None => target::TensorName::plain(name),
        }
    }
}

/// The names that files may have for a state: those of each layer, then that of the whole stack.
fn names(state: &State) -> Vec<target::TensorName> {
    let mut names: Vec<target::TensorName> =
        state.names.iter().map(|template| target::TensorName::stacked(template)).collect();
    let whole = target::TensorName::plain(&state.path);
    if !names.contains(&whole) {
        names.push(whole);
    }
    names
}

fn mesh(program: &Program) -> target::Mesh {
    let axes = program.mesh.axes.values();
    target::Mesh {
        axes: axes.map(|axis| target::MeshAxis { name: axis.full_name(), size: axis.size as u32 }).collect(),
    }
}

fn layout(program: &Program, ty: &Type) -> target::Layout {
    let dimension = |&dim: &dtlc_ir::Dim| {
        let info = &program.dims[dim];
        let ways = program.mesh.group_size(ty.placement.axes_of(dim));
        target::Dimension {
            name: info.name.clone(),
            size: info.size,
            padded: ty.local_size(program, dim) * ways,
        }
    };
    let mut placements = Vec::new();
    for (position, &dim) in ty.dims.iter().enumerate() {
        for axis in ty.placement.axes_of(dim) {
            placements.push(target::Placement { dimension: position as u32, axis: axis_id(axis) });
        }
    }
    let element: DType = ty.dtype;
    target::Layout { dtype: dtype(element), dimensions: ty.dims.iter().map(dimension).collect(), placements }
}
