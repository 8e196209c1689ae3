//! The command line of a worker.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use katydid_driver::DriverChoice;
use katydid_session::ModuleCache;

use crate::os::sandbox::Sandbox;

/// The options of a worker.
#[derive(Debug)]
pub struct WorkerOptions {
    /// The socket pair to the server, of type `SOCK_SEQPACKET`.
    pub control: OwnedFd,
    /// Where the server makes sockets for exporting memory; none if this process makes them itself.
    pub socket_broker: Option<OwnedFd>,
    /// Driver library that the worker opens.
    pub driver: DriverChoice,
    /// Where softcuda is installed, if known.
    pub soft: Option<PathBuf>,
    /// Softcuda must not be opened.
    pub requires_gpu: bool,
    /// The server's cache of module images that programs have sent; none without one.
    pub module_cache: Option<ModuleCache>,
    /// Most bytes of the machine's own memory that the worker may hold.
    pub host_memory: u64,
    /// The process only answers questions about the devices.
    pub watches: bool,
    /// Whether sessions keep a journal. Without one they cannot be saved; turning it off measures its cost.
    pub has_journal: bool,
    /// Whether the drivers of OpenCL are loaded before a program comes. Only beside softcuda, since the code of NVIDIA's driver
    /// would change its place.
    pub loads_opencl: bool,
    /// The sandbox that it enters; none if it gives nothing up.
    pub sandbox: Option<Sandbox>,
}
