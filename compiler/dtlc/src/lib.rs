//! The `dtlc` command as a library, so that tests drive the same code.
//!
//! Owns the order of passes ([`pipeline`]), and all reading, writing and printing of the compiler. Decides nothing
//! about the language, and changes no program itself.

pub mod bundle;
pub mod cli;
mod commands;
pub mod device;
pub mod diagnose;
pub mod failure;
pub mod figures;
pub mod files;
pub mod launcher;
pub mod load;
pub mod machine;
pub mod output;
pub mod pipeline;
pub mod verification;

use bundle::Bundle;
use clap::{CommandFactory, FromArgMatches, Parser};
use failure::Failure;
use output::Output;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::panic::PanicHookInfo;
use std::process::ExitCode;

/// The compiler walks trees recursively, within limits that fit this stack with room to spare. Pages are used only
/// where touched.
const STACK_BYTES: usize = 256 << 20;

/// Runs the command with its arguments, the program's name first; returns the exit status that `cli.md` documents.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    std::panic::set_hook(Box::new(report_panic));
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let thread = std::thread::Builder::new().name("dtlc".to_owned()).stack_size(STACK_BYTES);
    let status = match thread.spawn(move || run(arguments)).map(|handle| handle.join()) {
        Ok(Ok(status)) => status,
        // The hook has said why.
        Ok(Err(_)) => failure::BUG,
        Err(error) => {
            output::complain(&format!("error: no thread to compile on: {error}\n"));
            failure::FAULT
        }
    };
    ExitCode::from(status)
}

fn run(arguments: Vec<OsString>) -> u8 {
    // Where the system does not say which file this is, it is the compiler.
    match std::env::current_exe().map(|this| Bundle::of_this(&this)) {
        Ok(Ok(Some(bundle))) => return run_built(&bundle, arguments),
        Ok(Ok(None)) | Err(_) => {}
        Ok(Err(error)) if error.kind() == ErrorKind::InvalidData => {
            output::complain(&format!("error: {error}\n"));
            return failure::FAULT;
        }
        Ok(Err(error)) if bundle::is_built() => {
            output::complain(&format!("error: this file can't read the program that it carries: {error}\n"));
            return failure::FAULT;
        }
        Ok(Err(_)) => {}
    }
    let json = wants_json(&arguments);
    let parsed = match cli::Arguments::try_parse_from(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return show_usage(&error, json),
    };
    let output = Output::new(parsed.json);
    match commands::run(parsed.command, &output) {
        Ok(()) => failure::GOOD,
        Err(failure) => failure.report(&output),
    }
}

/// The command of a built file: trains.
fn run_built(bundle: &Bundle, arguments: Vec<OsString>) -> u8 {
    let header = &bundle.header;
    let about = format!("Trains {} under the plan {}", header.model, header.plan);
    let command = cli::Built::command().about(about);
    let json = wants_json(&arguments);
    let parsed = command.try_get_matches_from(arguments);
    let parsed = match parsed.and_then(|matches| cli::Built::from_arg_matches(&matches)) {
        Ok(parsed) => parsed,
        Err(error) => return show_usage(&error, json),
    };
    let output = Output::new(parsed.json);
    match commands::build::run_built(bundle, &parsed, &output) {
        Ok(()) => failure::GOOD,
        Err(failure) => failure.report(&output),
    }
}

/// Whether a command line that may be wrong asks for JSON.
fn wants_json(arguments: &[OsString]) -> bool {
    arguments.iter().any(|argument| argument == "--json")
}

/// Help and version go to standard output and are no error; everything else that clap says is one of usage.
fn show_usage(error: &clap::Error, json: bool) -> u8 {
    if json && error.use_stderr() {
        let failure = Failure::Usage(error.to_string().trim_start_matches("error: ").trim_end().to_owned());
        return failure.report(&Output::new(json));
    }
    // A closed pipe while printing help is no fault of anybody.
    let _ = error.print();
    if error.use_stderr() { failure::USAGE } else { failure::GOOD }
}

fn report_panic(info: &PanicHookInfo<'_>) {
    let message = info.payload();
    let message = message
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| message.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic".to_owned());
    let place = info.location().map(|place| format!(" ({place})")).unwrap_or_default();
    output::complain(&Failure::bug_text(&format!("{message}{place}")));
}
