//! NVIDIA's Multi-Process Service for the workers of a server: their kernels run beside each other, where the GPU would else
//! change from one process to the next.
//!
//! The service is a process of the driver's (`nvidia-cuda-mps-control`), which starts another one when the first worker comes.
//! A server has one of its own, with folders of its own, whatever else the machine has: in the foreground, so that it ends
//! with the server in order, and is killed with a server that is. The second process ends with the first.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::failure::Failure;
use crate::supervise::dies_with_us;

/// The service, as it is found by PATH.
const CONTROL: &str = "nvidia-cuda-mps-control";
/// What it listens on, in its folder.
const SOCKET: &str = "control";
/// How long it may take until it listens, and to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at it.
const NAP: Duration = Duration::from_millis(10);

/// A service that lives as long as this value.
#[derive(Debug)]
pub(crate) struct Mps {
    control: Child,
    /// Mode 0700; removed after the service, whose sockets are in it.
    folder: TempDir,
}

impl Mps {
    /// Starts one, and returns when it listens. The calling thread must live as long as the value.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not start.
    pub(crate) fn start() -> Result<Self, Failure> {
        let folder = prepared().map_err(|error| Failure::server(format!("--mps: cannot make folders: {error}")))?;
        let log = File::create(output(folder.path())).map_err(Failure::server)?;
        let mut command = Command::new(CONTROL);
        command.arg("-f").envs(variables(folder.path())).stdin(Stdio::null());
        command.stdout(log.try_clone().map_err(Failure::server)?).stderr(log);
        dies_with_us(&mut command);
        let control = command.spawn().map_err(|error| not_started(&error))?;
        let mut service = Self { control, folder };
        service.wait_until_it_listens()?;
        Ok(service)
    }

    fn wait_until_it_listens(&mut self) -> Result<(), Failure> {
        let deadline = Instant::now() + PATIENCE;
        while !pipes(self.folder.path()).join(SOCKET).exists() {
            let has_ended = self.control.try_wait().map_err(Failure::server)?.is_some();
            if has_ended || Instant::now() > deadline {
                let said = fs::read_to_string(output(self.folder.path())).unwrap_or_default();
                let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
                return Err(Failure::server(format!("--mps: {CONTROL} does not start; it said: {last}")));
            }
            sleep(NAP);
        }
        Ok(())
    }

    /// By what the driver in a worker finds the service.
    pub(crate) fn variables(&self) -> [(OsString, OsString); 2] {
        variables(self.folder.path())
    }
}

impl Drop for Mps {
    /// In order, if it ends in time.
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.control), Signal::TERM);
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.control.try_wait(), Ok(None)) && Instant::now() < deadline {
            sleep(NAP);
        }
        // Fails where it has ended.
        let _ = self.control.kill();
        let _ = self.control.wait();
    }
}

/// A folder with those of the service in it.
fn prepared() -> io::Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("katydid-mps-").tempdir()?;
    fs::create_dir(pipes(folder.path()))?;
    fs::create_dir(logs(folder.path()))?;
    Ok(folder)
}

fn pipes(folder: &Path) -> PathBuf {
    folder.join("pipe")
}

fn logs(folder: &Path) -> PathBuf {
    folder.join("log")
}

/// What the service says.
fn output(folder: &Path) -> PathBuf {
    logs(folder).join("output")
}

fn variables(folder: &Path) -> [(OsString, OsString); 2] {
    [
        ("CUDA_MPS_PIPE_DIRECTORY".into(), pipes(folder).into_os_string()),
        ("CUDA_MPS_LOG_DIRECTORY".into(), logs(folder).into_os_string()),
    ]
}

fn not_started(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::NotFound => Failure::server(format!(
            "--mps: there is no {CONTROL} in PATH; it comes with NVIDIA's driver. Without --mps sessions take turns"
        )),
        _ => Failure::server(format!("--mps: cannot start {CONTROL}: {error}")),
    }
}
