//! How far a server keeps its workers from all else: the flags, and what it does about them before the first worker starts.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::{Args, ValueHint};
use katydid_daemon::ServerConfig;
use katydid_transport::Address;

use crate::failure::say;
use crate::worker_env;

/// A device of NVIDIA's, and the program that makes it.
const UVM: &str = "/dev/nvidia-uvm";
const DEVICE_MAKER: &str = "nvidia-modprobe";
/// There while the kernel has NVIDIA's driver.
const NVIDIA: &str = "/proc/driver/nvidia/version";

/// What `katydid serve` is told of it.
#[derive(Debug, Args)]
pub(crate) struct IsolationFlags {
    /// Show processors to OpenCL programs that come by TCP, TLS or vsock.
    ///
    /// On a processor (PoCL, Intel's runtime) a program's kernels are native code, which runs in its worker as the worker's user.
    /// Programs that come by a unix socket are that user's own, and see processors in any case.
    #[arg(long)]
    pub(crate) allow_cpu_opencl: bool,
    /// Start workers as this user, which a server of root's can; name one with rights to the GPUs' devices and to nothing else.
    #[arg(long, value_name = "NAME")]
    pub(crate) worker_user: Option<String>,
    /// Give workers this variable of the server's environment as well; may be given more than once.
    ///
    /// Workers have those alone that drivers and Katydid read (docs/environment.md).
    #[arg(long, value_name = "VARIABLE")]
    pub(crate) worker_env: Vec<String>,
    /// Let workers write to this folder as well; may be given more than once.
    ///
    /// Checkpoints of jobs of this server's unix socket go into a folder below it directly; into others by way of the job's process.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) worker_folder: Vec<PathBuf>,
    /// Start workers in a sandbox in any case.
    ///
    /// In a sandbox they have no privileges, see only the files that drivers need, and reach no network (SECURITY.md). Without
    /// this flag workers have one if the server listens beyond unix sockets and NVIDIA's driver, which has not been tried in one, is not here.
    #[arg(long)]
    pub(crate) sandbox: bool,
    /// Start workers without a sandbox: they can do what their user can.
    #[arg(long, conflicts_with_all = ["sandbox", "worker_folder"])]
    pub(crate) no_sandbox: bool,
}

impl IsolationFlags {
    /// Whether workers have a sandbox. Programs that come by a unix socket are the server's own user's, and their OpenCL kernels may
    /// include any file of that user.
    fn has_sandbox(&self, config: &ServerConfig) -> bool {
        self.sandbox || (listens_beyond(config) && !self.no_sandbox && !has_nvidia(&config.driver))
    }

    /// Whether workers have no sandbox, although others than the server's user can come, and no flag has chosen that.
    pub(crate) fn is_open_unasked(&self, config: &ServerConfig) -> bool {
        listens_beyond(config) && !self.no_sandbox && !self.has_sandbox(config)
    }

    /// Has the server start its workers so.
    pub(crate) fn apply(self, config: &mut ServerConfig) {
        config.cpu_opencl = self.allow_cpu_opencl;
        let has_sandbox = self.has_sandbox(config);
        let worker = &mut config.worker;
        worker.passes = Some(worker_env::passes);
        worker.set.extend(worker_env::named(&self.worker_env));
        if !has_sandbox {
            return;
        }
        worker.own_folder = true;
        worker.arguments.push("--sandbox".into());
        for folder in self.worker_folder {
            let folder = std::path::absolute(&folder).unwrap_or(folder);
            worker.arguments.extend(["--writable".into(), folder.into()]);
        }
    }
}

/// Whether others than the server's own user can come.
fn listens_beyond(config: &ServerConfig) -> bool {
    config.listen.iter().any(|address| !matches!(address, Address::Unix(_)))
}

/// Whether NVIDIA's driver is on this machine, and would be taken.
fn has_nvidia(driver: &str) -> bool {
    driver != "soft" && Path::new(NVIDIA).exists()
}

/// Says that workers have no sandbox where no flag has chosen that.
pub(crate) fn tell_of_none() {
    say(
        "warning: workers have no sandbox, since NVIDIA's driver has not been tried in one: --sandbox gives them one, --no-sandbox silences this",
    );
}

/// Says what sandboxes do not hold here, and does what workers cannot do in one: NVIDIA's driver has a set-user-id program make the
/// GPUs' devices.
pub(crate) fn prepare_sandbox(config: &ServerConfig, quiet: bool) {
    if let Some(missing) = katydid_worker::missing_from_sandbox().filter(|_| !quiet) {
        say(format_args!("warning: {missing}"));
    }
    if config.driver != "soft" && !Path::new(UVM).exists() {
        let mut make = Command::new(DEVICE_MAKER);
        make.args(["-c", "0", "-u"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Where there is no such program there is no such driver, or its devices come in another way.
        let _ = make.status();
    }
}
