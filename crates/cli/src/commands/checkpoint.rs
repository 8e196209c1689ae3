//! `katydid checkpoint`: asks a job's supervisor for a checkpoint, and shows its progress.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use katydid_job::process::stopped;
use katydid_job::supervisor::folder::{self, FolderError, FoundJob};
use katydid_job::supervisor::view::{Report, Request, StageProgress};
use serde::Serialize;
use serde_json::json;

use crate::args::flags::{CheckpointFlags, ImageFlags};
use crate::interrupt;
use katydid_cli_core::args::size::Size;
use katydid_cli_core::output::document;
use katydid_cli_core::output::failure::{Failure, Outcome, print_message};
use katydid_cli_core::output::terminal::{Progress, bar};
use katydid_cli_core::server::admin::{self, AdminError};
use katydid_wire::printable::printable;

/// How long a supervisor whose socket is gone may take to give up its folder: number of tries, and the time between two.
const MAX_LEAVE_POLLS: u32 = 20;
const LEAVE_INTERVAL: Duration = Duration::from_millis(50);

/// Message if the job ended before the checkpoint.
const NONE_TAKEN: &str =
    "the job has ended, and no checkpoint of it was taken; start it with `katydid run --image DIR --every TIME`";

/// Runs `katydid checkpoint`.
pub(crate) fn main(flags: &CheckpointFlags) -> Outcome {
    let mut request = request(&flags.image)?;
    request.device_only = flags.device_only;
    request.force = flags.force;
    request.leave_running = flags.leave_running || flags.device_only || flags.image.every.is_some();
    let Some(every) = flags.image.every else {
        let job = folder::find(&flags.job).map_err(Failure::usage)?;
        let woken = stopped::wake(&job);
        let report = ask(&flags.job, &job, &request)?;
        if !report.running {
            woken.run_on();
        }
        report.worker_images.iter().chain(&report.warnings).for_each(print_message);
        if flags.json {
            document::write(&report)?;
        } else {
            show(&report)?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    take_every(every.0, flags, &request)
}

/// Takes checkpoints until the job has ended. Fails if none of them was taken.
fn take_every(every: Duration, flags: &CheckpointFlags, request: &Request) -> Outcome {
    let mut job = folder::find(&flags.job).map_err(Failure::usage)?;
    let mut has_any = false;
    loop {
        let began = Instant::now();
        let woken = stopped::wake(&job);
        let outcome = ask(&flags.job, &job, request);
        drop(woken);
        match outcome {
            Ok(report) => {
                report.worker_images.iter().chain(&report.warnings).for_each(print_message);
                if flags.json {
                    document::append(&report)?
                } else {
                    show(&report)?
                }
                has_any = true;
            }
            // The job has gone since it was found.
            Err(Failure::Usage(_)) => return after_end(has_any),
            // The obstacle may be gone next time.
            Err(failure) => {
                if flags.json {
                    document::append(&json!({"error": failure.to_string()}))?;
                }
                print_message(failure);
            }
        }
        // If the last failure was the end of the job, there is nothing to wait for.
        if folder::find_again(&flags.job, &job).is_ok() {
            thread::sleep(every.saturating_sub(began.elapsed()));
        }
        job = match folder::find_again(&flags.job, &job) {
            Ok(job) => job,
            Err(_) => return after_end(has_any),
        };
    }
}

/// Handles a job that has ended between two checkpoints: that is no failure.
fn after_end(has_any: bool) -> Outcome {
    if has_any { Ok(ExitCode::SUCCESS) } else { Err(Failure::work(NONE_TAKEN)) }
}

/// The request for the flags. The supervisor has another working folder, so the image is named by its absolute path.
pub(crate) fn request(flags: &ImageFlags) -> Result<Request, Failure> {
    Ok(Request {
        image: path_for_request(&flags.image)?,
        leave_running: false,
        device_only: false,
        full: flags.full,
        keep: flags.keep,
        level: flags.level,
        quiesce_timeout_ms: flags
            .quiesce_timeout
            .map(|timeout| u32::try_from(timeout.0.as_millis()).unwrap_or(u32::MAX)),
        force: false,
    })
}

/// Works as [`whole_path`], for a request to a supervisor: that is JSON, which has UTF-8 alone.
pub(crate) fn path_for_request(image: &Path) -> Result<PathBuf, Failure> {
    let path = whole_path(image)?;
    if path.to_str().is_none() {
        let text =
            format!("{}: a job's supervisor takes an image only at a path in UTF-8; give another path", path.display());
        return Err(Failure::usage(text));
    }
    Ok(path)
}

/// Absolute path of an image, for a process with another working folder; an address of an object store stays as it is.
pub(crate) fn whole_path(image: &Path) -> Result<PathBuf, Failure> {
    katydid_image::check_address(image).map_err(Failure::usage)?;
    katydid_image::absolute(image).map_err(|error| {
        Failure::usage(format!("{}: cannot tell where that is: {error}; give its absolute path", image.display()))
    })
}

/// Sends the request, and waits for the report or the failure that ends the answer.
fn ask(selector: &str, job: &FoundJob, request: &Request) -> Result<Report, Failure> {
    match last_stage(selector, job, "/v1/checkpoints", request)? {
        Some(StageProgress::Done(report)) => Ok(report),
        Some(StageProgress::Failed { error, .. }) => Err(Failure::work(format!("no checkpoint: {error}"))),
        _ => Err(Failure::work("no checkpoint: the job's supervisor has ended; `katydid ps` lists the jobs that run")),
    }
}

/// Sends a request to a supervisor, shows the stages of the answer, and returns the last one; `None` if there was none. A
/// job that ended before it took the request counts as unknown.
pub(crate) fn last_stage(
    selector: &str,
    job: &FoundJob,
    path: &str,
    request: &impl Serialize,
) -> Result<Option<StageProgress>, Failure> {
    interrupt::leaves("the job's supervisor goes on with it (`katydid ps` shows how far it is)");
    let progress = Progress::on_stderr();
    let mut began = (String::new(), Instant::now());
    let mut last = None;
    let outcome = admin::post_lines((&job.control(), job.user), path, request, |stage: StageProgress| {
        // The rate is that of the current stage.
        if began.0 != stage.name() {
            began = (stage.name(), Instant::now());
        }
        progress.show(&line(&stage, began.1));
        let ended = stage.is_last();
        last = Some(stage);
        ended
    });
    match outcome {
        Err(AdminError::NoSupervisor { .. }) | Ok(())
            if last.is_none()
                && let Some(gone) = missing_job(selector, job) =>
        {
            Err(Failure::usage(gone))
        }
        outcome => outcome.map(|()| last).map_err(Failure::server),
    }
}

/// The error for an unknown job, once a supervisor that does not answer has gone: its socket goes before its folder.
fn missing_job(selector: &str, job: &FoundJob) -> Option<FolderError> {
    let mut tries = (0..MAX_LEAVE_POLLS).map(|at| {
        if at > 0 {
            thread::sleep(LEAVE_INTERVAL);
        }
        folder::find_again(selector, job).err()
    });
    tries.find_map(|error| error)
}

/// Describes a stage, for the terminal.
fn line(stage: &StageProgress, began: Instant) -> String {
    match stage {
        StageProgress::Write { done, total, written } => {
            bar(*done, *total, &format!(", {} new", Size(*written)), began.elapsed())
        }
        StageProgress::Dump { done, total } => bar(*done, *total, " of the processes", began.elapsed()),
        other => other.name(),
    }
}

/// Prints the outcome.
fn show(report: &Report) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", printable(&summary(report)))?;
    Ok(out.flush()?)
}

/// Describes the outcome in one line.
pub(crate) fn summary(report: &Report) -> String {
    let millis = |micros: u64| format!("{:.1} ms", micros as f64 / 1000.0);
    format!(
        "checkpoint {} of {} in {}: {} of GPU memory ({} new), {} of processes, stopped for {}, took {}{}",
        report.checkpoint,
        report.job,
        report.image.display(),
        Size(report.bytes_content),
        Size(report.bytes_added),
        Size(report.bytes_files),
        millis(report.stopped_us),
        millis(report.took_us),
        if report.running { "" } else { "; the program has been ended" }
    )
}

#[cfg(test)]
mod tests {
    use katydid_job::supervisor::folder::JobEntry;

    use super::*;

    #[test]
    fn image_of_a_request_has_a_path_in_utf8() {
        let image = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"/im\xff");
        let refused = path_for_request(Path::new(image));
        assert!(matches!(&refused, Err(Failure::Usage(text)) if text.starts_with("/im\u{fffd}: ")), "{refused:?}");
        assert_eq!(path_for_request(Path::new("/im")).unwrap(), Path::new("/im"));
    }

    #[test]
    fn ended_job_is_not_found() {
        let folder = tempfile::tempdir().unwrap();
        let entry = JobEntry { name: "no-such-job".into(), supervisor: 0, program: 0, command: String::new() };
        let job = FoundJob { entry, user: 0, folder: folder.path().to_owned() };
        let result = last_stage("no-such-job", &job, "/v1/checkpoints", &json!({}));
        assert!(matches!(&result, Err(Failure::Usage(text)) if text.contains("no job no-such-job")), "{result:?}");
    }
}
