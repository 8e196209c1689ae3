//! `katydid restore`: restores a job from an image, and supervises it from then on.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use katydid_image::{CheckpointChoice, CheckpointNumber};
use katydid_job::checkpoint::restore::{OpenedCheckpoint, RestoreEnvironment, RestoredJob};
use katydid_scratch::Scratch;
use katydid_transport::Address;
use serde_json::json;

use crate::args::flags::RestoreFlags;
use crate::args::periodic::Periodic;
use crate::commands::checkpoint;
use crate::commands::run;
use crate::supervise;
use katydid_cli_core::args::size::Size;
use katydid_cli_core::layout::Layout;
use katydid_cli_core::output::document;
use katydid_cli_core::output::failure::{Failure, Outcome, print_message};
use katydid_cli_core::output::terminal::{Progress, bar};
use katydid_cli_core::server::address;
use katydid_cli_core::server::private_server::PrivateServer;
use katydid_cli_core::server::start::requires_gpu;

/// Runs the command; its exit status is the program's.
pub(crate) fn main(flags: &RestoreFlags) -> Outcome {
    let requires_gpu = requires_gpu(flags.require_gpu);
    let server = match flags.driver {
        Some(_) => None,
        None => address::resolve(flags.server.as_deref(), flags.certs.as_deref()).map_err(Failure::usage)?,
    };
    // Asked before the image is opened, since verifying its files takes long.
    if let Some(server) = &server {
        server.greet_for(requires_gpu)?;
    }
    let which = flags.at.map_or(CheckpointChoice::Latest, |number| CheckpointChoice::Number(CheckpointNumber(number)));
    let image = checkpoint::whole_path(&flags.image)?;
    let opened = OpenedCheckpoint::open(&image, which).map_err(Failure::work)?;
    if let Some(newer) = opened.skipped() {
        let (location, number) = (image.display(), opened.number());
        print_message(format_args!(
            "{location}: checkpoint {newer} has no manifest, so it was never completed or is damaged; this restores checkpoint {number}"
        ));
    }
    match server {
        Some(server) => restore_with_supervisor(flags, &image, opened, &server.address),
        None => {
            let server = PrivateServer::start(flags.driver.as_deref().unwrap_or("auto"), requires_gpu)?;
            let ended = restore_with_supervisor(flags, &image, opened, server.address());
            server.stop();
            ended
        }
    }
}

/// Restores the job, and waits for its end.
fn restore_with_supervisor(flags: &RestoreFlags, image: &Path, opened: OpenedCheckpoint, server: &Address) -> Outcome {
    let layout = Layout::find().map_err(Failure::server)?;
    let work = Scratch::new("restore").map_err(|error| {
        Failure::work(format!("cannot make a folder for CRIU's log: {error}; set TMPDIR to one with free space"))
    })?;
    let katydid = std::env::current_exe().map_err(Failure::work)?;
    let devices = flags.device.join("\n");
    let (private_criu, work_path) = (layout.criu(), work.path());
    let surroundings = RestoreEnvironment {
        server,
        private_criu: &private_criu,
        katydid: &katydid,
        work: work_path,
        devices: &devices,
        waits: |text| print_message(format_args!("{text}")),
    };
    let (began, progress) = (Instant::now(), Mutex::new(Progress::on_stderr()));
    if let Ok(progress) = progress.lock() {
        progress.show(&bar(0, 0, " on the GPU", Duration::ZERO));
    }
    let restored = opened.restore(&surroundings, &|done, total| {
        if let Ok(progress) = progress.lock() {
            progress.show(&bar(done, total, " on the GPU", began.elapsed()));
        }
    });
    drop(progress);
    let restored = restored.map_err(|error| {
        let text = format!("{}: {error}", image.display());
        // Another program may have taken the slot that was free before.
        if error.is_of_server() { Failure::server(text) } else { Failure::work(text) }
    })?;
    drop(work);
    let signals = supervise::signals()
        .map_err(|error| Failure::work(format!("cannot catch signals: {error}; allow more open files (ulimit -n)")))?;
    announce(flags.json.is_some(), &opened, &restored);
    // While it is open, nothing can be cleared from the image, into which the job may be checkpointed again.
    drop(opened);
    let RestoredJob { job, program, child, guard, .. } = restored;
    let periodic = flags.every.map(|every| Periodic::start(&job, image.to_owned(), every, flags.keep));
    let ended = supervise::wait_for_program(guard, signals, child, program);
    let ended_by_checkpoint = run::ended_by_checkpoint(&job);
    drop(periodic);
    let code = ended.map_err(|error| Failure::work(format!("cannot wait for the program: {error}")))?;
    run::explain(&job, code);
    Ok(ended_by_checkpoint.unwrap_or(ExitCode::from(code)))
}

/// Reports the restore. Standard output is the program's, so this goes to standard error, and only if a user reads it there.
fn announce(json: bool, opened: &OpenedCheckpoint, restored: &RestoredJob) {
    use std::io::IsTerminal;
    let (name, number) = (restored.job.name(), opened.number());
    if json {
        let cut: Vec<&str> = restored.cut.iter().map(|file| file.path.as_str()).collect();
        let missing = &restored.missing;
        let workers = opened.worker_images();
        let view = json!({
            "job": name, "checkpoint": number, "program": restored.program, "cut": cut, "missing": missing,
            "worker_images": workers,
        });
        // The job runs, even if no process reads this.
        if let Err(failure) = document::write(&view) {
            print_message(failure);
        }
    } else if std::io::stderr().is_terminal() {
        for file in &restored.cut {
            print_message(format_args!(
                "{}: cut back to {}, its length at the checkpoint",
                file.path,
                Size(file.length)
            ));
        }
        for library in &restored.missing {
            print_message(format_args!(
                "{} is gone: the processes keep the image's copy, and programs that they start later do not find it",
                library.display()
            ));
        }
        for session in opened.worker_images() {
            print_message(format_args!("{session} goes on in the worker that it had, which was restored as a process"));
        }
        print_message(format_args!("checkpoint {number} runs again as job {name}"));
    }
}
