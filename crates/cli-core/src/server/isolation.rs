//! Isolation of a server's workers: the flags, and the setup before the first worker starts.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::{Args, ValueEnum, ValueHint};
use katydid_server::{RunsAs, ServerConfig, WorkerCommand};
use katydid_transport::Address;

use crate::output::failure::{Failure, print_message};
use crate::server::{worker_env, worker_user};

/// NVIDIA's UVM device, and the program that creates it.
const UVM_DEVICE: &str = "/dev/nvidia-uvm";
const DEVICE_MAKER: &str = "nvidia-modprobe";
/// Exists while the kernel has NVIDIA's driver: one folder a GPU, with the device's number in a file.
const GPUS_FOLDER: &str = "/proc/driver/nvidia/gpus";
const GPU_INFORMATION_FILE: &str = "information";
const DEVICE_MINOR_LABEL: &str = "Device Minor:";

/// Whom a sandboxed worker serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SandboxReach {
    /// The user that it runs as, whose files it may use.
    OwnUser,
    /// Others as well: it may use the files of drivers alone.
    Tenants,
}

/// The isolation that the flags of `katydid serve` choose.
#[derive(Debug, Args)]
pub struct IsolationFlags {
    /// Show processors to OpenCL programs that come by TCP, TLS or vsock.
    ///
    /// On a processor (PoCL, Intel's runtime) a program's kernels are native code, which runs in its worker as the worker's user.
    /// Programs that come by a unix socket are that user's own, and see processors in any case.
    #[arg(long)]
    pub allow_cpu_opencl: bool,
    /// Save and restore workers as processes for jobs that come by TCP, TLS or vsock; needs --no-sandbox there.
    ///
    /// A checkpoint that no replay would bring back keeps the worker's process instead. An image of a process is code: who can connect
    /// can have it run with the server's rights. Jobs that come by a unix socket are that user's own, and have this in any case.
    #[arg(long, requires = "no_sandbox")]
    pub allow_worker_images: bool,
    /// Start all workers as this user, which a server of root's can; name one with rights to the GPUs' devices and to nothing else.
    ///
    /// Unless given, each worker for tenants has a user of its own, with a number between 61184 and 65519 that no account has; beside
    /// NVIDIA's driver, which shares events within one user alone, all of them share one. `root` starts workers as root without
    /// privileges.
    #[arg(long, value_name = "NAME")]
    pub worker_user: Option<String>,
    /// Give workers this variable of the server's environment as well; may be given more than once.
    ///
    /// Workers have those alone that drivers and Katydid read (docs/reference/environment.md).
    #[arg(long, value_name = "VARIABLE")]
    pub worker_env: Vec<String>,
    /// Let workers write to this folder as well; may be given more than once.
    ///
    /// Checkpoints of jobs of this server's unix socket go into a folder below it directly; into others, and where workers have users
    /// of their own, by way of the job's process.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub worker_folder: Vec<PathBuf>,
    /// Keep workers from their user's files also where only unix sockets are listened on.
    ///
    /// Workers run in a sandbox: they have no privileges and reach no network. Behind TCP, TLS or vsock they also use the files of
    /// drivers alone; behind unix sockets, which only the server's user can connect to, they can use that user's files (SECURITY.md).
    #[arg(long)]
    pub sandbox: bool,
    /// Start workers without a sandbox: they can do what their user can.
    #[arg(long, conflicts_with_all = ["sandbox", "worker_folder"])]
    pub no_sandbox: bool,
}

impl IsolationFlags {
    /// Applies the flags to the server's configuration.
    ///
    /// # Errors
    ///
    /// The workers cannot run as the named user.
    pub fn apply(self, config: &mut ServerConfig) -> Result<(), Failure> {
        config.cpu_opencl = self.allow_cpu_opencl;
        config.worker_images = self.allow_worker_images;
        config.worker.passes = Some(worker_env::passes);
        config.worker.set.extend(worker_env::named(&self.worker_env));
        let named = self.worker_user.as_deref().map(worker_user::named).transpose()?;
        if let Some((user, home)) = named.flatten() {
            config.worker.runs_as = RunsAs::User(user);
            config.worker.set.push(("HOME".into(), home));
        }
        if self.no_sandbox {
            return Ok(());
        }
        if !self.sandbox && !listens_beyond(config) {
            confine_to_user(&mut config.worker);
            return Ok(());
        }
        let worker = &mut config.worker;
        worker.serves_tenants = true;
        worker.arguments.extend(SandboxReach::Tenants.arguments());
        for folder in self.worker_folder {
            let folder = std::path::absolute(&folder).unwrap_or(folder);
            worker.arguments.extend(["--writable".into(), folder.into()]);
        }
        Ok(())
    }
}

impl SandboxReach {
    /// The worker's command-line arguments for this reach.
    fn arguments(self) -> impl Iterator<Item = OsString> {
        let name = self.to_possible_value().map(|value| value.get_name().to_owned());
        ["--sandbox".to_owned()].into_iter().chain(name).map(OsString::from)
    }
}

/// Makes workers start in a sandbox that leaves them the files of their user, whom alone they serve.
pub fn confine_to_user(worker: &mut WorkerCommand) {
    worker.arguments.extend(SandboxReach::OwnUser.arguments());
}

/// Whether users other than the server's own can connect.
fn listens_beyond(config: &ServerConfig) -> bool {
    config.listen.iter().any(|address| !matches!(address, Address::Unix(_)))
}

/// Warns of what the sandboxes of workers do not enforce on this machine.
pub fn tell_of_missing_layers() {
    if let Some(missing) = katydid_worker::missing_from_sandbox() {
        print_message(format_args!("warning: {missing}"));
    }
}

/// Creates missing devices of NVIDIA's GPUs: the driver uses a set-user-id program for that, which no worker in a sandbox can
/// run.
pub fn make_devices() {
    if Path::new(UVM_DEVICE).exists() {
        return;
    }
    let gpus = fs::read_dir(GPUS_FOLDER).into_iter().flatten().flatten();
    for number in gpus.filter_map(|gpu| device_number(&fs::read_to_string(gpu.path().join(GPU_INFORMATION_FILE)).ok()?))
    {
        let mut make = Command::new(DEVICE_MAKER);
        make.args(["-u", "-c", &number.to_string()]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Without such a program, devices are made in another way.
        let _ = make.status();
    }
}

/// The number of a GPU's device, in the driver's information file.
fn device_number(facts: &str) -> Option<u32> {
    facts.lines().find_map(|line| line.strip_prefix(DEVICE_MINOR_LABEL))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_among_driver_facts() {
        let facts = "Model: \t\t NVIDIA H100\nIRQ:   \t\t 152\nDevice Minor: \t 3\nGPU Excluded:\t No\n";
        assert_eq!(device_number(facts), Some(3));
        assert_eq!(device_number("Model: NVIDIA H100\n"), None);
    }
}
