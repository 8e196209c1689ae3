//! The `katydid` command: parses the command line, runs the command, and maps its outcome to an exit code.
//!
//! | command      | file            | what it does                                      |
//! |--------------|-----------------|---------------------------------------------------|
//! | `run`        | `run.rs`        | a program on a GPU here or elsewhere              |
//! | `serve`      | `serve.rs`      | the GPUs of this machine for programs             |
//! | `ps`         | `ps.rs`         | the programs that are served                      |
//! | `checkpoint` | `checkpoint.rs` | a job into an image                               |
//! | `restore`    | `restore.rs`    | a job out of an image                             |
//! | `migrate`    | `migrate.rs`    | a running job's sessions to another server        |
//! | `inspect`    | `inspect.rs`    | what is in a checkpoint                           |
//! | `images`     | `images.rs`     | checkpoints: listed, verified, cleared            |
//! | `trace`      | `trace/`        | what CUDA calls a program makes                   |
//! | `bench`      | crate `bench`   | what a call costs, beside native                  |
//! | `certs`      | `certs.rs`      | certificates for links by TLS                     |
//! | `doctor`     | `doctor/`       | what works here, and the remedy for what does not |
//!
//! Flags are declared only in `flags.rs`. Standard output only gets what was asked for.

mod args;
mod commands;
mod doctor;
mod file_limit;
mod ignored_signals;
mod interrupt;
mod rank_job;
mod supervise;
mod trace;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use katydid_cli_core::{opencl, output, probe};

use crate::args::flags::{Command, Flags};
use crate::interrupt::HeldSignals;
use katydid_cli_core::output::document::JsonDestination;
use katydid_cli_core::output::failure::{Failure, Outcome};
use katydid_cli_core::output::report::report;

fn main() -> ExitCode {
    let held = interrupt::hold();
    let flags = match Flags::try_parse() {
        Ok(flags) => flags,
        Err(error) => return usage(&error, held),
    };
    run(flags.command, held).unwrap_or_else(|failure| report(&failure))
}

/// Does what is common to all commands, and runs one. Signals are held until it is known what they end.
fn run(command: Command, held: Option<HeldSignals>) -> Outcome {
    let destination = command.document();
    if destination == Some(JsonDestination::Output) {
        output::document::want(&JsonDestination::Output)?;
    }
    interrupt::take_full_files_for_errors();
    if command.is_interruptible() {
        interrupt::watch()?;
    }
    drop(held);
    // Opening a pipe waits for its reader.
    if let Some(destination) = destination.filter(|it| *it != JsonDestination::Output)
        && let Err(failure) = output::document::want(&destination)
    {
        // Nothing runs: standard output is free.
        output::document::want(&JsonDestination::Output)?;
        return Err(failure);
    }
    if command.is_for_users() {
        args::variables::tell_unknown();
    }
    if command.starts_programs() {
        args::variables::check()?;
    }
    let code = dispatch(command)?;
    output::document::close(None, 0);
    Ok(code)
}

/// Reports clap's result. Help and version go to standard output with success. Mistakes go in one line to standard error with
/// status 2, and into the requested document. A command without any words gets its help.
fn usage(error: &clap::Error, held: Option<HeldSignals>) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        drop(held);
        let status = u8::try_from(error.exit_code()).unwrap_or(2);
        return match error.print().and_then(|()| io::stdout().flush()) {
            Err(lost) if !error.use_stderr() => report(&lost.into()),
            _ => ExitCode::from(status),
        };
    }
    let arguments: Vec<_> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    if let Some(destination) = args::command::document_of(&arguments) {
        // Without the watch, a signal ends this command as any other.
        let _ = interrupt::watch();
        if output::document::want(&destination).is_err() {
            let _ = output::document::want(&JsonDestination::Output);
        }
    }
    drop(held);
    report(&Failure::usage(args::mistake::one_line(&error.to_string(), &arguments)))
}

fn dispatch(command: Command) -> Outcome {
    match command {
        Command::Run(flags) => commands::run::main(&flags),
        Command::Serve(flags) => commands::serve::main(flags),
        Command::Certs(flags) => commands::certs::main(&flags.command),
        Command::Ps(flags) => commands::ps::main(&flags),
        Command::Checkpoint(flags) => commands::checkpoint::main(&flags),
        Command::Restore(flags) => commands::restore::main(&flags),
        Command::Migrate(flags) => commands::migrate::main(&flags),
        Command::Inspect(flags) => commands::inspect::main(&flags),
        Command::Images(flags) => commands::images::main(&flags),
        Command::Trace(flags) => trace::main(&flags),
        Command::Bench(flags) => katydid_bench::main(&flags, commands::certs::for_loopback),
        Command::Doctor(flags) => doctor::main(&flags),
        Command::Worker(flags) => commands::worker::main(&flags),
        Command::DriverCheckpoint(flags) => commands::driver_checkpoint::main(&flags),
        Command::JobGuard(flags) => commands::guard::main(&flags),
        Command::JobRanks(flags) => commands::ranks::main(&flags),
        Command::JobSpace(flags) => commands::namespace::keep(flags),
        Command::JobInit(flags) => commands::namespace::init(flags),
        Command::JobEnter(flags) => commands::namespace::enter(&flags),
        Command::BenchBody(flags) => katydid_bench::body(&flags),
        Command::BenchHolder(flags) => katydid_bench::holder(&flags),
        Command::BenchSoftBody(flags) => katydid_bench::soft_body(&flags),
        Command::BenchOpenclBody(flags) => katydid_bench::opencl_body(&flags),
        Command::ProbeDriver(flags) => probe::main(&flags.driver),
        Command::ProbeOpencl => opencl::probe(),
        Command::Completions(flags) => commands::manual::completions(&flags),
        Command::Man(flags) => commands::manual::man(&flags),
    }
}
