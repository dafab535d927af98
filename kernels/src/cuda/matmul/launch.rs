//! One launch that makes the tiles of several products: each block finds whose it is, and which of those.
//!
//! From the text and the arguments of each product to a kernel and its launch. Chooses no tiles and knows nothing of how one is made.

use std::fmt::Write;

use crate::cuda::source::Source;
use crate::cuda::{DeviceArgument, DeviceLaunch};
use crate::signature::{InvalidSpec, require};

/// What a launch makes of one product.
pub(super) struct Share {
    /// Defines `make_tile`, which makes the tile of the share's block of some number, given that and what the parameters say.
    pub source: Source,
    /// The types of its parameters behind the block's number, as they are known behind the source.
    pub parameters: Vec<String>,
    /// The arguments for them.
    pub arguments: Vec<DeviceArgument>,
    /// How many blocks it has.
    pub blocks: usize,
}

/// The sizes of every block of a launch.
pub(super) struct Block {
    pub threads: usize,
    /// Of dynamic shared memory, in bytes.
    pub shared_bytes: usize,
}

/// Shares whose text is the same: it stands once, and a block picks its arguments.
struct Alike {
    source: Source,
    /// What stands ahead of the type of each parameter.
    parameters: Vec<&'static str>,
    blocks: usize,
    /// The first argument of each among all of the launch.
    first_arguments: Vec<usize>,
}

/// A map's address is taken. Nothing is known of where other arguments lead if theirs may be.
fn passing(argument: &DeviceArgument) -> &'static str {
    match argument {
        DeviceArgument::Map(_) => "const __grid_constant__ ",
        DeviceArgument::Pointer(_)
        | DeviceArgument::Pointers { .. }
        | DeviceArgument::Integer(_)
        | DeviceArgument::Scratch(_)
        | DeviceArgument::Constant(_) => "",
    }
}

/// The launch whose blocks are those of the first share, then those of the next; its kernel's name opens with `stem`.
pub(super) fn launch(stem: &str, shares: Vec<Share>, block: &Block) -> Result<DeviceLaunch, InvalidSpec> {
    let mut arguments = Vec::new();
    let mut texts: Vec<Alike> = Vec::new();
    for Share { mut source, parameters, arguments: own, blocks } in shares {
        for (number, kind) in parameters.iter().enumerate() {
            source = source.alias(&format!("Parameter{number}"), kind);
        }
        let first = arguments.len();
        let passed = own.iter().map(passing).collect();
        arguments.extend(own);
        match texts.iter_mut().find(|known| known.source == source) {
            Some(known) => known.first_arguments.push(first),
            None => texts.push(Alike { source, parameters: passed, blocks, first_arguments: vec![first] }),
        }
    }
    let blocks: usize = texts.iter().map(|text| text.blocks * text.first_arguments.len()).sum();
    require(blocks <= i32::MAX as usize, "a matmul of more tiles than a launch has")?;
    let (name, source) = source_of(texts, block.threads).finish(stem);
    Ok(DeviceLaunch {
        name,
        source,
        grid: [blocks as u32, 1, 1],
        block: [block.threads as u32, 1, 1],
        shared_bytes: block.shared_bytes as u32,
        arguments,
        alternative: None,
    })
}

/// All texts, each in a namespace of its own, and the kernel that calls their functions.
fn source_of(texts: Vec<Alike>, threads: usize) -> Source {
    let mut parameters = Vec::new();
    let mut calls = String::new();
    let last = texts.len() - 1;
    let mut source = Source::new();
    for (number, text) in texts.into_iter().enumerate() {
        let namespace = format!("product{number}");
        for &first in &text.first_arguments {
            let typed = text.parameters.iter().enumerate().map(|(parameter, passing)| {
                let argument = first + parameter;
                (argument, format!("{passing}{namespace}::Parameter{parameter} argument{argument}"))
            });
            parameters.extend(typed);
        }
        // Writing to a string does not fail.
        let _ = calls.write_str(&call(&namespace, &text, number == last));
        source = source.file(&text.source.enclosed(&namespace));
    }
    parameters.sort();
    let parameters: Vec<String> = parameters.into_iter().map(|(_, parameter)| parameter).collect();
    source.file(&format!(
        "// The blocks of each product follow those of the one before.\n\
         extern \"C\" __global__ void __launch_bounds__({threads})\n    KERNEL({}) {{\n    \
         unsigned block = blockIdx.x;\n{calls}}}\n",
        parameters.join(",\n           "),
    ))
}

/// The statements that make a tile of this text's products if the block is one of theirs, and else count on from the next text's first.
fn call(namespace: &str, text: &Alike, is_last: bool) -> String {
    let Alike { blocks, first_arguments, .. } = text;
    let count = first_arguments.len();
    let argument = |parameter: usize| {
        let mut picked = String::new();
        for (place, first) in first_arguments.iter().enumerate() {
            let condition = if place + 1 < count { format!("which == {place} ? ") } else { String::new() };
            let colon = if place == 0 { "" } else { " : " };
            let _ = write!(picked, "{colon}{condition}argument{}", first + parameter);
        }
        picked
    };
    let arguments: Vec<String> = (0..text.parameters.len()).map(argument).collect();
    let arguments = arguments.join(", ");
    let indent = if is_last { "    " } else { "        " };
    let tile = match count {
        1 => format!("{indent}{namespace}::make_tile(block, {arguments});\n"),
        _ => format!(
            "{indent}const unsigned which = block / {blocks};\n\
             {indent}{namespace}::make_tile(block % {blocks}, {arguments});\n"
        ),
    };
    if is_last {
        return tile;
    }
    let blocks = blocks * count;
    format!("    if (block < {blocks}) {{\n{tile}        return;\n    }}\n    block -= {blocks};\n")
}
