//! Periodic checkpoints, taken by the supervisor itself: `run --every`, and `restore --every` after it.
//!
//! The rule: a checkpoint that fails is reported, and the next one is tried; the program goes on in any case.

use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use katydid_job::checkpoint::error::CheckpointError;
use katydid_job::supervisor::job::Job;
use katydid_job::supervisor::view::Request;

use katydid_cli_core::args::duration::DurationArg;
use katydid_cli_core::output::failure::print_message;

/// A thread that takes checkpoints until it is dropped.
pub(crate) struct Periodic(Option<mpsc::Sender<()>>, Option<JoinHandle<()>>);

impl Drop for Periodic {
    fn drop(&mut self) {
        drop(self.0.take());
        if let Some(thread) = self.1.take() {
            // The thread reports its errors itself.
            let _ = thread.join();
        }
    }
}

impl Periodic {
    /// Starts to take checkpoints of the job into `image`, which keeps `keep` of them.
    pub(crate) fn start(job: &Job, image: PathBuf, every: DurationArg, keep: Option<u32>) -> Self {
        let request = Request {
            image,
            leave_running: true,
            device_only: false,
            full: false,
            keep,
            level: None,
            quiesce_timeout_ms: None,
            force: false,
        };
        let (stop, stopped) = mpsc::channel();
        let job = job.clone();
        let thread = thread::Builder::new().name("periodic".to_owned()).spawn(move || {
            let mut wait = every.0;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(wait) {
                let began = Instant::now();
                if let Err(error) = job.checkpoint(&request, &|_| {})
                    && !matches!(error, CheckpointError::NoProgram)
                {
                    print_message(format_args!("no checkpoint: {error}"));
                }
                wait = every.0.saturating_sub(began.elapsed());
            }
        });
        let thread = thread.inspect_err(|error| print_message(format_args!("no checkpoint will be taken: {error}")));
        Self(Some(stop), thread.ok())
    }
}
