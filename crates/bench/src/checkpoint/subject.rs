//! A program under checkpoint, from the side of the bench: starts it, sends it orders, ends it.
//!
//! The program ends whenever the bench does, whatever ends that. The bench stops waiting for the program when time is up or
//! another process asks it to end.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};

use super::holder;
use super::report::Measurement;
use katydid_cli_core::child::dies_with_us;

/// Output of the command that runs the program, beside orders and answers.
const MESSAGES_FILE: &str = "messages";
/// How often the bench looks for a file.
const FILE_POLL_INTERVAL: Duration = Duration::from_micros(200);
/// Longest duration of a step; reading 32 GiB through slow links takes a while.
const STEP_TIMEOUT: Duration = Duration::from_secs(240);
/// Time that a program gets to end after a failure.
const SUBJECT_END_TIMEOUT: Duration = Duration::from_secs(5);

/// The deadline of the bench, and whether it shall stop.
#[derive(Debug, Clone)]
pub(super) struct Limits {
    end: Instant,
    stopped: Arc<AtomicBool>,
}

impl Limits {
    /// Returns limits of `time` from now on. Catches interrupts and requests to end, so that nothing is left behind.
    pub(super) fn within(time: Duration) -> std::io::Result<Self> {
        let stopped = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&stopped))?;
            signal_hook::flag::register(signal, Arc::clone(&stopped))?;
        }
        Ok(Self { end: Instant::now() + time, stopped })
    }

    /// Returns whether another process wants the bench to end.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Fails when nothing more may begin.
    pub(super) fn check(&self) -> Measurement<()> {
        match Instant::now() > self.end {
            true => Err("the time given by --within is up".to_owned()),
            false => self.check_stopped(),
        }
    }

    fn check_stopped(&self) -> Measurement<()> {
        if self.is_stopped() { Err("interrupted".to_owned()) } else { Ok(()) }
    }

    /// Waits until `poll` returns a value.
    pub(super) fn wait<T>(&self, what: &str, mut poll: impl FnMut() -> Measurement<Option<T>>) -> Measurement<T> {
        let deadline = Instant::now() + STEP_TIMEOUT;
        loop {
            if let Some(value) = poll()? {
                return Ok(value);
            }
            self.check_stopped()?;
            if Instant::now() > deadline {
                return Err(format!("{what} took more than {} s", STEP_TIMEOUT.as_secs()));
            }
            thread::sleep(FILE_POLL_INTERVAL);
        }
    }

    /// Runs a command to its end, and returns its output, which must be small.
    pub(super) fn output(&self, what: &str, command: &mut Command) -> Measurement<Output> {
        dies_with_us(command);
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let ended = self.wait(what, || child.try_wait().map_err(|error| error.to_string()));
        if ended.is_err() {
            let _ = child.kill();
        }
        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        match ended? {
            status if status.success() => Ok(output),
            _ => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    }
}

/// A program that executes orders.
pub(super) struct Subject {
    child: Option<Child>,
    folder: PathBuf,
    /// Number of the last order.
    number: u64,
    limits: Limits,
}

impl Subject {
    /// Starts `command` with the arguments of a holder appended, and waits until it is ready.
    pub(super) fn start(mut command: Command, what: &[String], folder: &Path, limits: &Limits) -> Measurement<Self> {
        fs::create_dir_all(folder).map_err(|error| error.to_string())?;
        command.arg("bench-holder").args(what).arg("--folder").arg(folder);
        let mut subject = Self { child: None, folder: folder.to_owned(), number: 0, limits: limits.clone() };
        subject.take(command)?;
        subject.ask("say").map(|_| subject)
    }

    /// Starts the program again with a command that restores it, and measures the time until it answers `order`.
    pub(super) fn again(&mut self, command: Command, order: &str) -> Measurement<Duration> {
        self.number += 1;
        holder::write(&self.folder, holder::ORDER_FILE, self.number, order).map_err(|error| error.to_string())?;
        let began = Instant::now();
        self.take(command)?;
        self.answer().map(|_| began.elapsed())
    }

    fn take(&mut self, mut command: Command) -> Measurement<()> {
        dies_with_us(&mut command);
        let messages = File::create(self.folder.join(MESSAGES_FILE)).map_err(|error| error.to_string())?;
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(messages).spawn();
        self.child = Some(spawned.map_err(|error| error.to_string())?);
        Ok(())
    }

    /// Returns the id of the started process.
    pub(super) fn id(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Sends an order, and waits for the answer.
    pub(super) fn ask(&mut self, order: &str) -> Measurement<String> {
        self.number += 1;
        holder::write(&self.folder, holder::ORDER_FILE, self.number, order).map_err(|error| error.to_string())?;
        self.answer()
    }

    fn answer(&mut self) -> Measurement<String> {
        let Self { child, folder, number, limits } = self;
        let path = folder.join(holder::ANSWER_FILE);
        limits.wait("the answer of a program", || {
            if let Some((_, answer)) = holder::read(&path).filter(|(found, _)| found == number) {
                return Ok(Some(answer));
            }
            match child.as_mut().map(Child::try_wait) {
                Some(Ok(Some(status))) => {
                    let messages = fs::read_to_string(folder.join(MESSAGES_FILE)).unwrap_or_default();
                    Err(format!("the program has ended with {status}: {}", messages.trim().replace('\n', "; ")))
                }
                _ => Ok(None),
            }
        })
    }

    /// Waits for the end of a program that another process ends.
    pub(super) fn wait(&mut self) -> Measurement<()> {
        let Some(child) = &mut self.child else { return Ok(()) };
        self.limits.wait("the end of a program", || child.try_wait().map_err(|error| error.to_string()))?;
        self.child = None;
        Ok(())
    }

    /// Orders it to end, and waits for that.
    pub(super) fn end(mut self) -> Measurement<()> {
        let written = holder::write(&self.folder, holder::ORDER_FILE, self.number + 1, "end");
        written.map_err(|error| error.to_string())?;
        self.wait()
    }
}

impl Drop for Subject {
    /// Asks the program to end, and kills it if it does not.
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let _ = holder::write(&self.folder, holder::ORDER_FILE, self.number + 1, "end");
        let deadline = Instant::now() + SUBJECT_END_TIMEOUT;
        while matches!(child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                return;
            }
            thread::sleep(FILE_POLL_INTERVAL);
        }
    }
}
