//! Reading and writing whole tensors between steps: inputs, outputs, state, initial values.

use std::sync::Arc;

use crate::error::{Result, RuntimeError};
use crate::program::{DType, Initial, Input, Layout, Mesh, Output, Space, StateId, StateTensor};
use crate::random::Stream;
use crate::shards::{clear, for_each_stretch, gather, is_first_replica, scatter};
use crate::tensor::{FileType, HostTensor, convert, write_float};

use super::Session;
use super::memories::Piece;

impl Session {
    /// Sets all state to its initial values.
    ///
    /// # Errors
    /// An initialiser that does not fit its tensor's type, a bug of the compiler; what a device says.
    pub fn initialise(&mut self, seed: u64) -> Result<()> {
        self.initialise_where(seed, |_| true)
    }

    /// Sets the state that starts constant. What starts at random stays as it is: a file is about to give it.
    ///
    /// # Errors
    /// As [`Session::initialise`].
    pub fn initialise_constants(&mut self) -> Result<()> {
        self.initialise_where(0, |initial| matches!(initial, Initial::Constant(_)))
    }

    fn initialise_where(&mut self, seed: u64, wanted: impl Fn(Initial) -> bool) -> Result<()> {
        let program = Arc::clone(&self.program);
        for tensor in &program.state {
            let (source, initial) = match tensor.initial {
                Initial::CopyOf(source) => {
                    let source = &program.state[source.index()];
                    (source, source.initial)
                }
                Initial::Constant(_) | Initial::Normal { .. } | Initial::Uniform { .. } => {
                    (tensor, tensor.initial)
                }
            };
            if let (DType::I32 | DType::U32 | DType::Bool, false) =
                (tensor.layout.dtype, matches!(initial, Initial::Constant(_)))
            {
                return Err(RuntimeError::Bug(format!("`{}` can't start as random integers", tensor.path)));
            }
            if wanted(initial) {
                self.fill_state(tensor, Stream::new(seed, &source.path), initial)?;
            }
        }
        Ok(())
    }

    /// Gives an input its value for the next step. The shape may group dimensions differently, as
    /// long as the elements are in the same order.
    ///
    /// # Errors
    /// No such input, or a tensor that does not fit it; what a device says.
    pub fn set_input(&mut self, name: &str, tensor: &HostTensor) -> Result<()> {
        let program = Arc::clone(&self.program);
        let Some(input) = program.inputs.iter().find(|input| input.name == name) else {
            let names: Vec<&str> = program.inputs.iter().map(|input| input.name.as_str()).collect();
            return Err(RuntimeError::input(format!(
                "there is no input `{name}`; there are: {}",
                names.join(", ")
            )));
        };
        let bytes = fitted(&input.layout, tensor, &format!("input `{name}`"))?;
        self.set_input_bytes(input, &bytes)
    }

    /// Gives an input its value as bytes of the whole tensor in the input's own type.
    ///
    /// # Errors
    /// What a device says.
    pub(crate) fn set_input_bytes(&mut self, input: &Input, whole: &[u8]) -> Result<()> {
        self.scatter_to(&input.layout, Space::Input, input.offset, whole)
    }

    /// A state tensor, whole and without pads, in a world of one process.
    ///
    /// # Errors
    /// What a device says; parts of it are in other processes.
    pub fn state(&self, id: StateId) -> Result<HostTensor> {
        self.only_process()?;
        self.collect_state(id)?.ok_or_else(|| RuntimeError::Bug("no rank 0".into()))
    }

    /// A state tensor, whole and without pads, in the process of rank 0. All processes call this, and give their parts.
    ///
    /// # Errors
    /// What a device says; a process does not come.
    pub fn collect_state(&self, id: StateId) -> Result<Option<HostTensor>> {
        let tensor = &self.program.state[id.index()];
        self.gather_from(&tensor.layout, Space::State, tensor.offset)
    }

    /// Sets a state tensor.
    ///
    /// # Errors
    /// A tensor that does not fit it; what a device says.
    pub fn set_state(&mut self, id: StateId, value: &HostTensor) -> Result<()> {
        let program = Arc::clone(&self.program);
        let tensor = &program.state[id.index()];
        let bytes = fitted(&tensor.layout, value, &format!("`{}`", tensor.path))?;
        self.set_state_bytes(tensor, &bytes)
    }

    /// Sets a state tensor from bytes of the whole tensor in its own type.
    ///
    /// # Errors
    /// What a device says.
    pub(crate) fn set_state_bytes(&mut self, tensor: &StateTensor, whole: &[u8]) -> Result<()> {
        self.scatter_to(&tensor.layout, Space::State, tensor.offset, whole)
    }

    /// An output of the last step, whole, in a world of one process.
    ///
    /// # Errors
    /// What a device says; parts of it are in other processes.
    pub fn output(&self, output: &Output) -> Result<HostTensor> {
        self.only_process()?;
        self.collect_output(output)?.ok_or_else(|| RuntimeError::Bug("no rank 0".into()))
    }

    /// An output of the last step, whole, in the process of rank 0. All processes call this, and give their parts.
    ///
    /// # Errors
    /// What a device says; a process does not come.
    pub fn collect_output(&self, output: &Output) -> Result<Option<HostTensor>> {
        self.gather_from(&output.layout, output.buffer.space, output.buffer.offset)
    }

    fn only_process(&self) -> Result<()> {
        match self.world.transport() {
            None => Ok(()),
            Some(_) => Err(RuntimeError::Bug("a tensor of several processes is asked of one".into())),
        }
    }

    /// The first element of an output of the last step as a number, such as the loss, as the first rank here has it;
    /// `None` if there is no output of that name.
    ///
    /// # Errors
    /// What a device says.
    pub fn scalar(&self, name: &str) -> Result<Option<f32>> {
        let output = self.program.outputs.iter().find(|output| output.name.template == name);
        let Some(Output { layout, buffer, .. }) = output else { return Ok(None) };
        let bytes = layout.dtype.bytes() as usize;
        let piece = Piece { space: buffer.space, offset: buffer.offset, bytes };
        let mut first = HostTensor { dtype: layout.dtype, shape: vec![1], bytes: Vec::new() };
        self.memories.read(0, piece, |element| first.bytes.extend_from_slice(element))?;
        Ok(first.to_f32().first().copied())
    }

    fn scatter_to(&mut self, layout: &Layout, space: Space, offset: u64, whole: &[u8]) -> Result<()> {
        let mesh = &self.program.mesh;
        let piece = Piece { space, offset, bytes: layout.local_bytes(mesh) as usize };
        self.memories.write(piece, |shards| {
            for (rank, shard) in self.world.here().zip(shards) {
                scatter(layout, mesh, &mesh.coordinates(rank as u64), whole, shard);
            }
        })
    }

    /// The whole tensor where rank 0 is; nothing elsewhere, from where the parts come.
    fn gather_from(&self, layout: &Layout, space: Space, offset: u64) -> Result<Option<HostTensor>> {
        let mesh = &self.program.mesh;
        let piece = Piece { space, offset, bytes: layout.local_bytes(mesh) as usize };
        let whole = if self.is_first() { layout.global_elements() * layout.dtype.bytes() } else { 0 };
        let mut whole = vec![0; whole as usize];
        let here = self.world.here();
        for rank in 0..self.ranks() {
            let coordinates = mesh.coordinates(rank as u64);
            if !is_first_replica(layout, &coordinates) {
                continue;
            }
            if here.contains(&rank) && self.is_first() {
                self.memories.read(rank - here.start, piece, |shard| {
                    gather(layout, mesh, &coordinates, shard, &mut whole);
                })?;
                continue;
            }
            let mut part = Vec::new();
            if here.contains(&rank) {
                self.memories.read(rank - here.start, piece, |shard| part.extend_from_slice(shard))?;
            }
            if let Some(part) = self.hand_to_first(rank, part)? {
                if part.len() != piece.bytes {
                    return Err(RuntimeError::Bug(format!("rank {rank} sent {} bytes", part.len())));
                }
                gather(layout, mesh, &coordinates, &part, &mut whole);
            }
        }
        let tensor = HostTensor { dtype: layout.dtype, shape: layout.global_shape(), bytes: whole };
        Ok(self.is_first().then_some(tensor))
    }

    /// Computes each rank's shard of a tensor's initial value, ranks and their threads side by side.
    fn fill_state(&mut self, tensor: &StateTensor, stream: Stream, initial: Initial) -> Result<()> {
        let mesh = &self.program.mesh;
        let (bytes, width) = (tensor.layout.local_bytes(mesh) as usize, tensor.layout.dtype.bytes() as usize);
        let share = (bytes / width).div_ceil(self.threads_for_each_rank).max(1);
        let piece = Piece { space: Space::State, offset: tensor.offset, bytes };
        self.memories.write(piece, |shards| {
            std::thread::scope(|scope| {
                for (rank, shard) in self.world.here().zip(shards) {
                    let coordinates = mesh.coordinates(rank as u64);
                    for (index, part) in shard.chunks_mut(share * width).enumerate() {
                        let coordinates = coordinates.clone();
                        scope.spawn(move || {
                            if matches!(initial, Initial::Constant(value) if value.to_bits() == 0) {
                                return clear(part);
                            }
                            fill_part(&tensor.layout, mesh, &coordinates, index * share, part, |index| {
                                stream.value(initial, index).unwrap_or(0.0)
                            });
                        });
                    }
                }
            });
        })
    }
}

/// Fills the part of a shard that starts at its element `first`.
fn fill_part(
    layout: &Layout,
    mesh: &Mesh,
    coordinates: &[u64],
    first: usize,
    part: &mut [u8],
    value: impl Fn(u64) -> f32,
) {
    clear(part);
    let width = layout.dtype.bytes() as usize;
    let end = first + part.len() / width;
    for_each_stretch(layout, mesh, coordinates, |stretch| {
        let from = stretch.local.max(first);
        let to = (stretch.local + stretch.length).min(end);
        if from >= to {
            return;
        }
        let elements = part[(from - first) * width..(to - first) * width].chunks_exact_mut(width);
        let global = stretch.global + (from - stretch.local);
        for (index, element) in elements.enumerate() {
            let value = value((global + index) as u64);
            write_value(layout.dtype, value, element);
        }
    });
}

/// Writes a number as an element of any type.
fn write_value(dtype: DType, value: f32, element: &mut [u8]) {
    match dtype {
        DType::F32 | DType::Bf16 | DType::F16 => {
            element.iter_mut().zip(write_float(dtype, value.into())).for_each(|(to, byte)| *to = byte);
        }
        DType::I32 => element.copy_from_slice(&(value as i32).to_le_bytes()),
        DType::U32 => element.copy_from_slice(&(value as u32).to_le_bytes()),
        DType::Bool => element.fill(u8::from(value != 0.0)),
    }
}

/// The bytes of a tensor in a layout's type, if it has the layout's elements in their order.
pub(crate) fn fitted(layout: &Layout, tensor: &HostTensor, what: &str) -> Result<Vec<u8>> {
    let shape = layout.global_shape();
    if !same_order(&shape, &tensor.shape) {
        return Err(RuntimeError::input(format!(
            "{what} has shape {shape:?} and was given {:?}",
            tensor.shape
        )));
    }
    if tensor.bytes.len() as u64 != layout.global_elements() * tensor.dtype.bytes() {
        return Err(RuntimeError::input(format!("{what} was given {} bytes", tensor.bytes.len())));
    }
    convert(FileType::Program(tensor.dtype), &tensor.bytes, layout.dtype)
        .map_err(|error| RuntimeError::input(format!("{what}: {error}")))
}

/// Whether one shape is the other with neighbouring dimensions merged or split, so that both list
/// the same elements in the same order: `[d, h, k]` is `[d, h * k]`, but `[4, 6]` is not `[6, 4]`.
pub(crate) fn same_order(ours: &[u64], given: &[u64]) -> bool {
    let without_ones = |shape: &[u64]| shape.iter().copied().filter(|&size| size != 1).collect::<Vec<u64>>();
    let (ours, given) = (without_ones(ours), without_ones(given));
    let (mut ours, mut given) = (ours.as_slice(), given.as_slice());
    while let ([our_first, our_rest @ ..], [given_first, given_rest @ ..]) = (ours, given) {
        (ours, given) = if our_first == given_first {
            (our_rest, given_rest)
        } else if our_first < given_first {
            let Some(rest) = strip_product(ours, *given_first) else { return false };
            (rest, given_rest)
        } else {
            let Some(rest) = strip_product(given, *our_first) else { return false };
            (our_rest, rest)
        };
    }
    ours.is_empty() && given.is_empty()
}

/// What follows the leading sizes whose product is `product`.
fn strip_product(shape: &[u64], product: u64) -> Option<&[u64]> {
    let mut so_far = 1u64;
    for (index, &size) in shape.iter().enumerate() {
        so_far = so_far.checked_mul(size)?;
        if so_far == product {
            return Some(&shape[index + 1..]);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::same_order;

    #[test]
    fn shapes_match_if_neighbours_merge_or_split() {
        assert!(same_order(&[64, 2, 2, 16], &[64, 64]));
        assert!(same_order(&[64, 64], &[64, 4, 16]));
        assert!(same_order(&[2, 4, 8], &[8, 8]));
        assert!(same_order(&[1, 5], &[5]));
        assert!(same_order(&[], &[1]));
        assert!(same_order(&[6, 5, 7], &[2, 3, 35]));
        assert!(!same_order(&[4, 6], &[6, 4]));
        assert!(!same_order(&[4, 6], &[4, 5]));
        assert!(!same_order(&[4], &[4, 2]));
        assert!(!same_order(&[4, 0], &[4]));
        assert!(!same_order(&[u64::MAX, 4], &[4, u64::MAX]));
    }
}
