//! `dtlc run`: one evaluation.

use crate::cli::{Run, WithRespectTo};
use crate::commands::watch;
use crate::device::Processor;
use crate::failure::Failure;
use crate::files;
use crate::launcher::require_one_process;
use crate::load::{SourceText, options};
use crate::machine::{self, index_bounds};
use crate::output::Output;
use crate::pipeline::{Mode, Stage, compile};
use dtlc_lang::Compiled;
use dtlc_runtime::RuntimeError;
use dtlc_runtime::files::safetensors::read_all;
use dtlc_runtime::files::values::input_fault;
use dtlc_runtime::files::weights::{load_weights, save_tensors};
use dtlc_runtime::tensor::HostTensor;
use dtlc_runtime::train::evaluate;
use indexmap::IndexMap;
use serde_json::json;
use std::path::Path;

/// Evaluates a model on given inputs.
///
/// # Errors
/// The model, the plan or the data is at fault, or the run fails.
pub fn run(arguments: &Run, output: &Output) -> Result<(), Failure> {
    require_one_process("dtlc run")?;
    let processor = Processor::open(arguments.device, None)?;
    let target = processor.target()?;
    let inputs = read_all(&arguments.inputs)?;
    let source = SourceText::read(&arguments.source.file)?;
    let mut options = options(&arguments.source.choice);
    let mut compiled = source.compile(&options)?;
    let open = open_sizes(&compiled, &inputs);
    if !open.is_empty() {
        options.overrides.extend(open);
        compiled = source.compile(&options)?;
    }
    let sources = compiled.sources.files().map(|file| Path::new(&file.name));
    let given = arguments.weights.iter().chain([&arguments.inputs]).map(std::path::PathBuf::as_path);
    files::refuse_own_input(&arguments.output, sources.chain(given))?;
    let mode = match arguments.wrt {
        None => Mode::Evaluate,
        Some(WithRespectTo::Params) => Mode::Gradients,
    };
    refuse_values(&compiled, &inputs, &arguments.inputs)?;
    let mut session = machine::start(&compiled, mode, (&processor, &target), watch(arguments.check_finite))?;
    session.initialise(arguments.seed)?;
    if !arguments.weights.is_empty() {
        load_weights(&mut session, &arguments.weights)?;
    }
    let results = evaluate(&mut session, &inputs, arguments.seed)?;
    save_tensors(&arguments.output, &results)?;
    let loss = session.scalar("loss")?;
    if output.json {
        return output.json(&json!({ "loss": loss, "outputs": results.keys().collect::<Vec<_>>() }));
    }
    let count = results.len();
    let loss = loss.map_or_else(|| "no loss".to_owned(), |loss| format!("loss {loss}"));
    output.text(&format!("{loss}; {count} tensor(s) in {}\n", arguments.output.display()))
}

/// Refuses inputs whose values can't be meant: an index out of range, NaN.
fn refuse_values(
    compiled: &Compiled,
    inputs: &IndexMap<String, HostTensor>,
    path: &Path,
) -> Result<(), Failure> {
    let compilation = compile(compiled, Mode::Evaluate, Stage::Logical)
        .map_err(|trouble| trouble.into_failure(&compiled.sources))?;
    let bounds = index_bounds(&compilation.logical);
    let faults = inputs.iter().filter_map(|(name, tensor)| {
        let fault = input_fault(name, tensor.dtype, &tensor.bytes, &bounds)?;
        Some(format!("{}: {fault}", path.display()))
    });
    let faults: Vec<String> = faults.collect();
    if faults.is_empty() { Ok(()) } else { Err(RuntimeError::Input(faults).into()) }
}

/// Sizes of dimensions that the model leaves open and nothing else gives, as the inputs have them.
fn open_sizes(compiled: &Compiled, inputs: &IndexMap<String, HostTensor>) -> Vec<(String, String)> {
    let model = &compiled.model;
    let mut sizes: IndexMap<String, String> = IndexMap::new();
    for input in &model.graph.inputs {
        let Some(tensor) = inputs.get(&input.name).filter(|given| given.shape.len() == input.ty.dims.len())
        else {
            continue;
        };
        for (&dim, size) in input.ty.dims.iter().zip(&tensor.shape) {
            if model.dims[dim].open {
                sizes.entry(model.dims[dim].name.clone()).or_insert_with(|| size.to_string());
            }
        }
    }
    sizes.into_iter().collect()
}
