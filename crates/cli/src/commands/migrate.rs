//! `katydid migrate`: has a job's supervisor move its sessions to another server, or to other devices.

use std::io::{self, Write};
use std::process::ExitCode;

use katydid_job::process::stopped;
use katydid_job::supervisor::folder::{self, FoundJob};
use katydid_job::supervisor::view::{CompletedMigration, Migration, StageProgress};

use crate::args::flags::MigrateFlags;
use crate::commands::checkpoint::{last_stage, path_for_request};
use katydid_cli_core::args::size::Size;
use katydid_cli_core::output::document;
use katydid_cli_core::output::failure::{Failure, Outcome};
use katydid_cli_core::server::address;
use katydid_cli_core::server::start::requires_gpu;

/// Runs `katydid migrate`.
pub(crate) fn main(flags: &MigrateFlags) -> Outcome {
    let known = address::named_by("--to", &flags.to, flags.certs.as_deref()).map_err(Failure::usage)?;
    known.greet_for(requires_gpu(false))?;
    let image = flags.image.as_deref().map(path_for_request).transpose()?;
    let quiesce_timeout_ms =
        flags.quiesce_timeout.map(|timeout| u32::try_from(timeout.0.as_millis()).unwrap_or(u32::MAX));
    let migration =
        Migration { to: known.address.to_string(), devices: flags.device.clone(), image, quiesce_timeout_ms };
    let job = folder::find(&flags.job).map_err(Failure::usage)?;
    let _woken = stopped::wake(&job);
    show(flags.json, &ask(&flags.job, &job, &migration)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Sends the request, and waits for the report or the failure that ends the answer.
fn ask(selector: &str, job: &FoundJob, migration: &Migration) -> Result<CompletedMigration, Failure> {
    match last_stage(selector, job, "/v1/migrations", migration)? {
        Some(StageProgress::Moved(moved)) => Ok(moved),
        Some(StageProgress::Failed { error, of_server }) => {
            let text = format!("not moved, and everything goes on: {error}");
            // Another program may have taken the slot that was free before.
            Err(if of_server { Failure::server(text) } else { Failure::work(text) })
        }
        _ => Err(Failure::work("not moved: the job's supervisor has ended; `katydid ps` lists the jobs that run")),
    }
}

/// Prints the outcome.
fn show(json: bool, moved: &CompletedMigration) -> Result<(), Failure> {
    if json {
        return document::write(moved);
    }
    let mut out = io::stdout().lock();
    let millis = |micros: u64| format!("{:.1} ms", micros as f64 / 1000.0);
    writeln!(
        out,
        "{} is at {} now: {} of GPU memory went along, stopped for {}",
        moved.job,
        moved.to,
        Size(moved.bytes_content),
        millis(moved.stopped_us)
    )?;
    Ok(out.flush()?)
}
