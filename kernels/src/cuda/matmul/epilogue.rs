//! What a product does with its results beside storing them, or instead: the body of a generated kernel, in the launch that makes the results.
//!
//! From the text of a generated kernel to the parts of a product's source and the arguments of its launch that are about outputs. Makes no such text
//! itself; what it must define stands in `epilogue.cuh`.

use crate::cuda::DeviceArgument;
use crate::cuda::source::Source;
use crate::signature::MatmulSpec;

/// What a product does with each of its results where it is made: a generated kernel's body, one of whose tensors has the result's address. It is
/// given the result as it would be read back from there, so that all bits are those of a product and a kernel launched one after the other.
///
/// None of what it writes may lie where the product's factors do. What it reads and writes may lie where C does if C keeps nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Epilogue {
    /// CUDA C++ that defines `struct Epilogue`, as `epilogue.cuh` says.
    pub source: String,
    /// The types of the struct's first members, pointers to the kernel's tensors in their order: that of the results too, which nothing reads.
    pub pointers: Vec<String>,
    /// How many integers, `long long`, are its members behind them.
    pub integers: usize,
    /// What else becomes of the results.
    pub keeps: Keeps,
}

/// What C has of a product with an epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Keeps {
    /// The product's results, as if it had no epilogue.
    Results,
    /// Nothing: the product touches no element of it, unless the epilogue has it for a tensor of its own.
    Nothing,
}

/// Buffers of a product: A, B and C. The tensors of the kernel that goes on with its results are numbered behind them.
pub const BUFFERS_OF_A_PRODUCT: u32 = 3;

/// Goes on with what a kernel needs that makes outputs: `OUTPUT_PARAMETERS`, what it is given of them, and `OUTPUT`, the place of the first.
pub(super) fn outputs(source: Source, epilogue: Option<&Epilogue>) -> Source {
    let parameters = parameters(epilogue).into_iter().map(|(kind, name)| format!("{kind} {name}"));
    let parameters = parameters.collect::<Vec<_>>().join(", ");
    let source = source.constant("bool", "HAS_EPILOGUE", epilogue.is_some());
    let Some(epilogue) = epilogue else {
        let source = source.file(include_str!("../output.cuh"));
        return source.macro_text("OUTPUT_PARAMETERS", &parameters).macro_text("OUTPUT", "elements");
    };
    let first = match epilogue.keeps {
        Keeps::Results => "elements",
        Keeps::Nothing => "nullptr",
    };
    let members: Vec<String> = members(epilogue).map(|(_, name)| name).collect();
    source
        .constant("bool", "KEEPS_RESULTS", epilogue.keeps == Keeps::Results)
        .file(include_str!("../output.cuh"))
        .file(&epilogue.source)
        .file(include_str!("../epilogue.cuh"))
        .macro_text("OUTPUT_PARAMETERS", &parameters)
        .macro_text("OUTPUT", &format!("Place{{Epilogue{{{}}}, {first}, 0}}", members.join(", ")))
}

/// Type and name of each of `OUTPUT_PARAMETERS`.
pub(super) fn parameters(epilogue: Option<&Epilogue>) -> Vec<(String, String)> {
    let kept = epilogue.is_none_or(|epilogue| epilogue.keeps == Keeps::Results);
    let elements = kept.then(|| ("Output::Element*".to_owned(), "elements".to_owned()));
    elements.into_iter().chain(epilogue.into_iter().flat_map(members)).collect()
}

/// Type and name of each member of the struct.
fn members(epilogue: &Epilogue) -> impl Iterator<Item = (String, String)> {
    let tensors = epilogue.pointers.iter().enumerate();
    let tensors = tensors.map(|(number, kind)| (kind.clone(), format!("tensor{number}")));
    tensors.chain((0..epilogue.integers).map(|number| ("long long".to_owned(), format!("integer{number}"))))
}

/// The arguments for `OUTPUT_PARAMETERS`, of a kernel whose outputs are at `target`, of a product whose buffers and integers are numbered from these on.
pub(super) fn arguments(
    target: DeviceArgument,
    epilogue: Option<&Epilogue>,
    [first_pointer, first_integer]: [u32; 2],
) -> Vec<DeviceArgument> {
    let Some(epilogue) = epilogue else { return vec![target] };
    let kept = match epilogue.keeps {
        Keeps::Results => Some(target),
        Keeps::Nothing => None,
    };
    let first_tensor = first_pointer + BUFFERS_OF_A_PRODUCT;
    let tensors =
        (0..epilogue.pointers.len() as u32).map(|tensor| DeviceArgument::Pointer(first_tensor + tensor));
    let integers =
        (0..epilogue.integers as u32).map(|integer| DeviceArgument::Integer(first_integer + integer));
    kept.into_iter().chain(tensors).chain(integers).collect()
}

/// Whether C's elements are all those from its first to its last, each once.
pub(super) fn is_dense(spec: &MatmulSpec) -> bool {
    let batch = spec.batch.iter().map(|each| (each.stride_c, each.extent));
    let mut loops: Vec<(isize, usize)> =
        batch.chain([(spec.c_row_stride, spec.m), (spec.c_column_stride, spec.n)]).collect();
    loops.retain(|(_, extent)| *extent != 1);
    loops.sort_unstable();
    let mut elements = 1;
    loops.into_iter().all(|(stride, extent)| {
        let follows = stride == elements;
        elements = stride * extent as isize;
        follows
    })
}
