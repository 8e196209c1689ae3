//! NVIDIA's own checkpoint of a worker (`cuCheckpointProcess*`), which takes its contexts, code and handles off the devices, and
//! puts them back at their addresses. A separate process opens the driver for that.
//!
//! softcuda has no such checkpoint: all its state is ordinary memory of the worker, which CRIU saves.

use std::path::Path;
use std::process::{Command, Stdio};

use katydid_wire::handshake::SOFTCUDA_DRIVER;

use crate::keeper::supervisor::{OrderError, system};

/// Hidden subcommand of katydid that calls the driver's checkpoint functions.
const DRIVER_CHECKPOINT_COMMAND: &str = "driver-checkpoint";
/// Prefix of the version in the name of NVIDIA's driver.
const NVIDIA_DRIVER_PREFIX: &str = "NVIDIA ";
/// File in which NVIDIA's kernel module tells its version.
const NVIDIA_VERSION_FILE: &str = "/sys/module/nvidia/version";

/// What the driver does with a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Takes the process off its devices.
    Checkpoint,
    /// Puts the process back on its devices.
    Restore,
}

impl Action {
    fn word(self) -> &'static str {
        match self {
            Self::Checkpoint => "checkpoint",
            Self::Restore => "restore",
        }
    }
}

/// The driver of a worker.
#[derive(Debug, Clone)]
pub(super) struct WorkerDriver {
    /// Name of the driver on the command line.
    pub(super) choice: String,
    /// Name of the driver, as sessions report it.
    pub(super) name: String,
}

impl WorkerDriver {
    /// The driver of a process: NVIDIA's if it has one of NVIDIA's devices open, else softcuda.
    pub(super) fn of(choice: &str, pid: u32) -> Self {
        let name =
            if has_nvidia(pid) { format!("{NVIDIA_DRIVER_PREFIX}{}", version()) } else { SOFTCUDA_DRIVER.to_owned() };
        Self { choice: choice.to_owned(), name }
    }

    /// Checks that a worker that had this driver can be restored here.
    pub(super) fn check(&self) -> Result<(), OrderError> {
        let here = version();
        match self.name.strip_prefix(NVIDIA_DRIVER_PREFIX) {
            Some(version) if version == here => Ok(()),
            Some(_) => Err(OrderError(format!(
                "the worker's image was made with {}, and only the same driver takes it back; here is {}",
                self.name,
                if here.is_empty() { "none of NVIDIA's".to_owned() } else { format!("{NVIDIA_DRIVER_PREFIX}{here}") }
            ))),
            None => Ok(()),
        }
    }

    /// Has the driver do `action` with a process. `devices`: UUIDs of the devices that it had, in hexadecimal, one a line.
    pub(super) fn run(&self, katydid: &Path, action: Action, pid: u32, devices: &str) -> Result<(), OrderError> {
        if self.name == SOFTCUDA_DRIVER {
            return Ok(());
        }
        let mut command = Command::new(katydid);
        command.args([DRIVER_CHECKPOINT_COMMAND, "--driver", &self.choice, "--pid", &pid.to_string()]);
        command.args(devices.lines().flat_map(|device| ["--device", device])).arg(action.word());
        let output = command.stdin(Stdio::null()).output().map_err(system("start the driver's checkpoint"))?;
        if output.status.success() {
            return Ok(());
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        let stderr = stderr.trim();
        let reason = if stderr.is_empty() { output.status.to_string() } else { stderr.replace('\n', "; ") };
        Err(OrderError(format!("the driver's own checkpoint: {reason}")))
    }
}

fn version() -> String {
    std::fs::read_to_string(NVIDIA_VERSION_FILE).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// Whether a process has one of NVIDIA's devices open.
fn has_nvidia(pid: u32) -> bool {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    targets.any(|target| target.to_string_lossy().starts_with("/dev/nvidia"))
}
