//! `katydid bench checkpoint`: the cost of checkpoints and restores with the commands that users run.
//!
//! It has two tables. For the first, small programs (`programs.rs`) are checkpointed while they compute, ended and restored, as
//! the Cricket paper does for its Figure 8. For the second, a program holds much memory (`sizes.rs`). It is checkpointed, changed
//! in part, checkpointed again, ended and restored. Where the driver has it, NVIDIA's own checkpoint of the same native program
//! is measured too. Every restored program must come to the result of an undisturbed one.
//!
//! Images are in memory, and are removed as soon as possible.

mod bench;
mod computing;
mod holder;
mod memory;
mod native;
mod programs;
mod report;
mod sizes;
mod subject;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::flags::{BenchFlags, BenchHolderFlags};
use bench::Bench;
use katydid_cli_core::layout::Layout;
use katydid_cli_core::output::document;
use katydid_cli_core::output::failure::{Failure, Outcome};
use katydid_cli_core::output::terminal::Progress;
use katydid_cli_core::probe::{Probe, probe_in_child};
use katydid_cli_core::server::private_server::PrivateServer;
use report::Report;
use subject::Limits;

/// A folder whose file system is memory.
const MEMORY_FOLDER: &str = "/dev/shm";
/// Time after which no further measurement begins, unless the flags say otherwise.
const CHECKPOINT_TIME_LIMIT: Duration = Duration::from_secs(15 * 60);

/// The program under checkpoint.
pub(super) fn holder(flags: &BenchHolderFlags) -> Outcome {
    holder::main(flags)
}

/// Runs `katydid bench checkpoint`.
pub(super) fn main(flags: &BenchFlags) -> Outcome {
    let layout = Layout::find().map_err(Failure::server)?;
    layout.check_shim().map_err(Failure::server)?;
    let driver = match probe_in_child(&flags.driver) {
        Probe::Works(facts) => facts,
        Probe::Fails(reason) => return Err(Failure::server(format!("cannot measure: {reason}"))),
    };
    let folder = flags.folder.clone().unwrap_or_else(|| PathBuf::from(MEMORY_FOLDER));
    let limits = Limits::within(flags.within.as_ref().map_or(CHECKPOINT_TIME_LIMIT, |within| within.0))?;
    let progress = Progress::on_stderr();
    let server = PrivateServer::start(&flags.driver, false)?;
    let (layout, folder, against) = (&layout, &*folder, flags.against);
    let bench = Bench { layout, driver: &driver, server: &server, folder, limits, against, progress: &progress };
    // Sizes come first: the memory that they need is free only for minutes.
    let sizes = if flags.tables.includes_sizes() { sizes::measure(&bench, &flags.sizes) } else { Vec::new() };
    let programs = if flags.tables.includes_programs() { programs::measure(&bench, flags.quick) } else { Vec::new() };
    let report = Report::new(&driver, programs, sizes);
    server.stop();
    drop(progress);
    match flags.json {
        true => document::write(&report)?,
        false => report.write_table(&mut io::stdout().lock())?,
    }
    Ok(ExitCode::SUCCESS)
}
