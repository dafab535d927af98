//! One piece of work of a stream: a launch, a copy, a fill, checked against what other streams do.

use super::{EmulatorOptions, State};
use crate::code::{Program, STATIC_SHARED};
use crate::driver::{
    Argument, DevicePointer, DriverError, KernelHandle, LaunchShape, Stream, StreamAccess, StreamRace,
};
use crate::memory::{Author, Unordered};
use crate::run::{Launch, launch};
use std::sync::Arc;

/// What can be done later as well as now.
#[derive(Clone, Debug)]
pub(super) enum Work {
    Launch { program: Arc<Program>, kernel: usize, shape: LaunchShape, params: Vec<u8> },
    Copy { to: DevicePointer, from: DevicePointer, bytes: u64 },
    Fill { to: DevicePointer, value: u8, bytes: u64 },
}

impl Work {
    /// What to call it.
    fn label(&self) -> String {
        match self {
            Work::Launch { program, kernel, .. } => format!("kernel `{}`", program.functions[*kernel].name),
            Work::Copy { .. } => "a copy on the device".to_owned(),
            Work::Fill { .. } => "a fill".to_owned(),
        }
    }
}

/// Where work is found in messages.
#[derive(Debug, Default)]
pub(super) struct Labels {
    names: Vec<String>,
}

impl Labels {
    pub fn number(&mut self, name: &str) -> usize {
        if let Some(number) = self.names.iter().position(|known| known == name) {
            return number;
        }
        self.names.push(name.to_owned());
        self.names.len() - 1
    }

    fn name(&self, number: usize) -> String {
        self.names.get(number).cloned().unwrap_or_default()
    }
}

impl State {
    /// A launch, if the kernel takes it.
    pub fn prepared(
        &self,
        options: &EmulatorOptions,
        kernel: KernelHandle,
        shape: LaunchShape,
        arguments: &[Argument],
    ) -> Result<Work, DriverError> {
        let found = self.kernels.get(kernel.0 as usize).copied();
        let (module, kernel) = found.ok_or(DriverError::BadHandle("kernel"))?;
        let program = self.modules[module].as_ref().map(|module| Arc::clone(&module.program));
        let program = program.ok_or(DriverError::BadHandle("kernel"))?;
        let params = startable(options, &program, kernel, &shape)
            .and_then(|()| pack(&program, kernel, arguments))
            .map_err(|reason| DriverError::BadLaunch {
                kernel: program.functions[kernel].name.clone(),
                reason,
            })?;
        Ok(Work::Launch { program, kernel, shape, params })
    }

    /// Refuses what no device could do.
    pub fn check(&mut self, work: &Work) -> Result<(), DriverError> {
        let (what, places, bytes) = match work {
            Work::Launch { .. } => return Ok(()),
            Work::Copy { to, from, bytes } => ("a copy on the device", vec![*from, *to], *bytes),
            Work::Fill { to, bytes, .. } => ("a fill", vec![*to], *bytes),
        };
        match places.into_iter().find(|at| !self.memory.holds(at.0, bytes as usize)) {
            Some(at) => Err(DriverError::OutOfBounds { what, at, bytes }),
            None => Ok(()),
        }
    }

    /// Does a piece of work of a stream.
    pub fn perform(
        &mut self,
        options: &EmulatorOptions,
        work: &Work,
        stream: Stream,
    ) -> Result<(), DriverError> {
        self.check(work)?;
        let done = match work {
            Work::Copy { to, from, bytes } => {
                self.memory.copy(to.0, from.0, *bytes as usize);
                Ok(0)
            }
            Work::Fill { to, value, bytes } => {
                if let Some(target) = self.memory.host_write(to.0, *bytes as usize) {
                    target.fill(*value);
                }
                Ok(0)
            }
            Work::Launch { program, kernel, shape, params } => launch(Launch {
                program,
                kernel: *kernel,
                shape: *shape,
                params,
                global: &mut self.memory,
                isa: options.isa,
                budget: options.budget,
                races: options.races,
            }),
        };
        match done {
            Ok(instructions) => {
                self.instructions += instructions;
                self.settle(&work.label(), stream)
            }
            Err(fault) => {
                self.memory.forget();
                Err(DriverError::Fault(fault))
            }
        }
    }

    /// The work at hand has touched all that it does: nothing that isn't ordered may touch the same.
    pub fn settle(&mut self, what: &str, stream: Stream) -> Result<(), DriverError> {
        let (time, clock) = self.clocks.advance(stream);
        let label = self.labels.number(what);
        let author = Author { stream: stream.0 as usize, time, label, clock: &clock };
        self.memory.settle(&author).map_err(|unordered| race(&self.labels, what, stream, unordered))
    }
}

fn race(labels: &Labels, what: &str, stream: Stream, unordered: Unordered) -> DriverError {
    DriverError::Race(Box::new(StreamRace {
        at: DevicePointer(unordered.address),
        late: StreamAccess { what: what.to_owned(), stream, wrote: unordered.wrote },
        early: StreamAccess {
            what: labels.name(unordered.other_label),
            stream: Stream(unordered.other_stream as u64),
            wrote: unordered.other_wrote,
        },
    }))
}

/// The most shared memory that a block may have.
fn shared_limit(options: &EmulatorOptions) -> u64 {
    match options.capability {
        (8, 0 | 7) => 163 << 10,
        (8, _) | (12, _) => 99 << 10,
        _ => 227 << 10,
    }
}

fn startable(
    options: &EmulatorOptions,
    program: &Program,
    kernel: usize,
    shape: &LaunchShape,
) -> Result<(), String> {
    let code = &program.functions[kernel];
    let threads = shape.block.iter().try_fold(1_u32, |product, size| product.checked_mul(*size));
    let Some(threads @ 1..=1024) = threads else {
        return Err(format!("a block of {:?} threads; it has 1 to 1024", shape.block));
    };
    if shape.block[2] > 64 {
        return Err(format!("{} threads in z; there are 64 at most", shape.block[2]));
    }
    if let Some(most) = code.most_threads.filter(|most| threads > *most) {
        return Err(format!("a block of {threads} threads; the kernel was compiled for {most}"));
    }
    let [x, y, z] = shape.grid;
    if x == 0 || y == 0 || z == 0 || x > i32::MAX as u32 || y > 65_535 || z > 65_535 {
        return Err(format!("a grid of {:?} blocks", shape.grid));
    }
    let fixed: u64 = code.shared.iter().map(|region| region.bytes).sum();
    let all = fixed + u64::from(shape.shared_bytes);
    if fixed > 48 << 10 {
        return Err(format!("{fixed} bytes of static shared memory; there are 48 KiB at most"));
    }
    if all > shared_limit(options).min(STATIC_SHARED) {
        return Err(format!("{all} bytes of shared memory; there are {}", shared_limit(options)));
    }
    Ok(())
}

/// The arguments as the kernel's parameters lie.
pub(super) fn pack(program: &Program, kernel: usize, arguments: &[Argument]) -> Result<Vec<u8>, String> {
    let code = &program.functions[kernel];
    if arguments.len() != code.params.len() {
        return Err(format!("{} arguments; it takes {}", arguments.len(), code.params.len()));
    }
    let mut packed = vec![0; code.param_bytes as usize];
    for (index, (argument, field)) in arguments.iter().zip(&code.params).enumerate() {
        let bytes = argument.to_bytes();
        if bytes.len() as u64 != field.bytes {
            return Err(format!("argument {index} has {} bytes; it takes {}", bytes.len(), field.bytes));
        }
        let start = field.offset as usize;
        packed[start..start + bytes.len()].copy_from_slice(&bytes);
    }
    Ok(packed)
}
