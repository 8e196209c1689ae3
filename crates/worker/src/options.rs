//! The command line of a worker.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use katydid_driver::DriverChoice;
use katydid_session::ImageStore;

use crate::os::sandbox::Sandbox;

/// The options of a worker.
#[derive(Debug)]
pub struct WorkerOptions {
    /// The socket pair to the server, of type `SOCK_SEQPACKET`.
    pub control: OwnedFd,
    /// Where the server makes sockets for exporting memory; none: this process makes them itself.
    pub socket_broker: Option<OwnedFd>,
    /// Driver library that the worker opens.
    pub driver: DriverChoice,
    /// Where softcuda is installed, when that is known.
    pub soft: Option<PathBuf>,
    /// Softcuda is no driver to open.
    pub requires_gpu: bool,
    /// Images that programs have sent, where the server keeps them.
    pub images: Option<ImageStore>,
    /// Most bytes of the machine's own memory that it may hold.
    pub host_memory: u64,
    /// Only to answer questions about the devices.
    pub watches: bool,
    /// Sessions keep a journal, without which they cannot be saved: what keeping one costs can be measured so.
    pub has_journal: bool,
    /// The drivers of OpenCL are loaded before a program comes, beside softcuda: the code of NVIDIA's driver would lie elsewhere.
    pub loads_opencl: bool,
    /// What it may use once it has given up the rest; none: it gives up nothing.
    pub sandbox: Option<Sandbox>,
}
