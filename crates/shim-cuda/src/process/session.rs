//! The one session of this process: what `cuInit` sets up and everything else starts from.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, OnceLock, PoisonError};

use katydid_arena::Settled;
use katydid_client::connect;
use katydid_client::environment::{OpenError, variable};
use katydid_client::fork::{self, NoFork};
use katydid_client::job::{self, Job};
use katydid_client::output::say;
use katydid_client::regions::Regions;
use katydid_client::session::Session;
use katydid_client::slab::Slab;
use katydid_client::{life, threads, visible};
use katydid_cuda_sys::CUresult;
use katydid_driver_state::environment::launches_block;
use katydid_transport::Address;
use katydid_wire::facts::Facts;
use katydid_wire::handshake::LinkKind;
use katydid_wire::message::kdFacts;

use crate::code::function::Function;
use crate::code::kernel::Kernel;
use crate::code::library::Library;
use crate::code::link::Link;
use crate::code::module::Module;
use crate::context::contexts::{self, Context};
use crate::context::device::{DRIVER_VERSION, Device};
use crate::context::green::Description;
use crate::ffi::export_table;
use crate::graph::host_work::Parts;
use crate::launch::upcall;
use crate::memory::ipc::{Given, Opened};
use crate::memory::pinned::Pinned;
use crate::memory::pool::{Chosen, Pool};
use crate::memory::virtual_memory::{Allocation, VirtualMemory};
use crate::process::{environment, tracing};
use crate::sync::event::Event;
use crate::sync::stream::Stream;
use crate::texture::array::{Array, Mipmap};
use crate::texture::object::Objects;
use crate::texture::reference::TextureReference;
use crate::texture::surface_reference::SurfaceReference;
use crate::texture::tensor_map::Encoded;

/// Handles of one kind at a time. The worker takes ids below 2^24.
const HANDLES: u32 = 1 << 22;
/// Arrays and mipmaps at a time: the worker takes as many of both together.
const ARRAYS: u32 = 1 << 19;
/// References of one kind at a time: the worker takes as many of both together.
const REFERENCES: u32 = 1 << 15;
/// Contexts are few, and each costs the worker's GPU memory.
const CONTEXTS: u32 = 1 << 12;

/// The program's side of the session.
pub(crate) struct Shim {
    pub(crate) session: Session<CUresult>,
    /// What the worker said of its devices, by the worker's ordinals.
    pub(crate) facts: Facts,
    /// The devices that the program sees.
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: Slab<Context>,
    pub(crate) streams: Slab<Stream>,
    pub(crate) events: Slab<Event>,
    pub(crate) modules: Slab<Module>,
    pub(crate) libraries: Slab<Library>,
    pub(crate) functions: Slab<Function>,
    pub(crate) kernels: Slab<Kernel>,
    pub(crate) arrays: Slab<Array>,
    pub(crate) mipmaps: Slab<Mipmap>,
    pub(crate) textures: Objects,
    pub(crate) texture_references: Slab<TextureReference>,
    pub(crate) surface_references: Slab<SurfaceReference>,
    pub(crate) links: Slab<Link>,
    pub(crate) allocations: Slab<Allocation>,
    pub(crate) virtual_memory: VirtualMemory,
    pub(crate) tensor_maps: Encoded,
    pub(crate) opened: Opened,
    pub(crate) given: Given,
    pub(crate) pools: Slab<Pool>,
    pub(crate) descriptions: Slab<Description>,
    pub(crate) chosen_pools: Chosen,
    pub(crate) regions: Regions,
    /// None when the two sides found no common range for it.
    pub(crate) pinned: Option<Pinned>,
    pub(crate) upcalls: upcall::Registry,
    /// What the program does in its graphs' copies and functions.
    pub(crate) parts: Parts,
    /// Launches wait for their kernels (`CUDA_LAUNCH_BLOCKING`).
    pub(crate) launches_block: bool,
    /// Keeps the ranges free for as long as the process lives.
    pub(crate) arenas: Settled,
}

static SHIM: OnceLock<Shim> = OnceLock::new();

/// The session.
///
/// # Errors
///
/// `ERROR_NOT_INITIALIZED` before `cuInit`.
pub(crate) fn shim() -> Result<&'static Shim, CUresult> {
    SHIM.get().ok_or(CUresult::ERROR_NOT_INITIALIZED)
}

/// `cuInit`: connects. A failure is said in one line, once, and may be tried again.
pub(crate) fn init(flags: u32) -> Result<(), CUresult> {
    static STARTING: Mutex<Option<String>> = Mutex::new(None);
    if flags != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let mut said = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if SHIM.get().is_some() {
        return Ok(());
    }
    let (shim, job, _forks) = start().map_err(|failure| {
        if said.as_ref() != Some(&failure.text) {
            say(&failure.text);
            *said = Some(failure.text);
        }
        failure.code
    })?;
    if shim.devices.is_empty() {
        return Err(CUresult::ERROR_NO_DEVICE);
    }
    let shim = SHIM.get_or_init(|| shim);
    export_table::install();
    life::start(after_fork, at_exit);
    threads::enable_fast_path(|| shim.session.enable_fast_path());
    if let Some((kept, address, kind)) = job {
        job::keep(&shim.session, kept, &address, kind);
    }
    Ok(())
}

/// In the child of a fork: the connection is the parent's.
fn after_fork() {
    if let Some(shim) = SHIM.get() {
        shim.session.abandon();
    }
}

fn at_exit() {
    tracing::finish();
}

/// Why there is no session: what the program gets, and what its user reads.
struct Failure {
    code: CUresult,
    text: String,
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        Self { code: error.code(), text: error.to_string() }
    }
}

impl Failure {
    fn new(text: impl Into<String>) -> Self {
        Self { code: CUresult::ERROR_SYSTEM_NOT_READY, text: text.into() }
    }
}

/// A job, and the way of its session.
type Kept = (Job, Address, LinkKind);

/// Forks wait from here until it is known what a child of this process must not have.
fn start() -> Result<(Shim, Option<Kept>, NoFork), Failure> {
    let mut job = Job::from_environment()?;
    if let Some(job) = &mut job {
        job.announce();
    }
    let forks = fork::hold();
    let opened = connect::open(contexts::faulted)?;
    let facts = fetch_facts(&opened.session)?;
    environment::tell(&opened.session).map_err(|code| Failure::new(format!("the session has ended: {code}")))?;
    let shim = build(opened.session, facts, opened.arenas, opened.pinned)?;
    Ok((shim, job.map(|job| (job, opened.address, opened.link)), forks))
}

fn fetch_facts(session: &Session<CUresult>) -> Result<Facts, Failure> {
    let reply = session.call(0, &kdFacts {}).map_err(|code| {
        Failure::new(format!("the server's worker cannot use its GPU: {code}; see the server's log"))
    })?;
    let facts = Facts::decode(&reply.facts)
        .map_err(|error| Failure::new(format!("the server described its devices wrongly: {error}")))?;
    if let Some(notice) = older(facts.driver_version) {
        say(notice);
    }
    Ok(facts)
}

/// What the program's user reads of a driver that knows less than programs of this library may ask for.
fn older(version: i32) -> Option<String> {
    let (major, minor) = (version / 1000, version % 1000 / 10);
    let text = format!("the server's driver knows CUDA {major}.{minor}: what is newer will be refused there");
    (major < DRIVER_VERSION / 1000).then_some(text)
}

fn build(session: Session<CUresult>, facts: Facts, arenas: Settled, memory: Option<OwnedFd>) -> Result<Shim, Failure> {
    fn room<T>(capacity: u32) -> Result<Slab<T>, Failure> {
        Slab::reserve(capacity).map_err(|error| Failure::new(format!("no address space for handles: {error}")))
    }
    let contexts = room(CONTEXTS)?;
    let addresses: Vec<_> = facts.devices.iter().map(|device| device.pci_bus_id.as_str()).collect();
    let order = visible::ordered(variable("CUDA_DEVICE_ORDER").as_deref(), &addresses);
    let uuids: Vec<_> = order.iter().map(|position| facts.devices[*position].uuid).collect();
    let mut devices = Vec::new();
    for chosen in visible::visible(variable_even_empty("CUDA_VISIBLE_DEVICES").as_deref(), &uuids) {
        let position = order[chosen];
        let device = Device::new(devices.len(), position, &facts, &arenas.map, &contexts, memory.is_some());
        devices
            .push(device.ok_or_else(|| Failure::new("the server has more devices than the address map has room for"))?);
    }
    let pinned = Pinned::new(&arenas, memory).map_err(|error| Failure::new(format!("pinned memory: {error}")))?;
    Ok(Shim {
        session,
        facts,
        devices,
        contexts,
        streams: room(HANDLES)?,
        events: room(HANDLES)?,
        modules: room(HANDLES)?,
        libraries: room(HANDLES)?,
        functions: room(HANDLES)?,
        kernels: room(HANDLES)?,
        arrays: room(ARRAYS)?,
        mipmaps: room(ARRAYS)?,
        textures: Objects::default(),
        texture_references: room(REFERENCES)?,
        surface_references: room(REFERENCES)?,
        links: room(HANDLES)?,
        allocations: room(HANDLES)?,
        virtual_memory: VirtualMemory::default(),
        tensor_maps: Encoded::default(),
        opened: Opened::default(),
        given: Given::default(),
        pools: room(HANDLES)?,
        descriptions: room(HANDLES)?,
        chosen_pools: Chosen::default(),
        regions: Regions::default(),
        pinned,
        upcalls: upcall::Registry::default(),
        parts: Parts::default(),
        launches_block: launches_block(),
        arenas,
    })
}

/// An empty `CUDA_VISIBLE_DEVICES` hides every device, so it is not the same as none.
fn variable_even_empty(name: &str) -> Option<String> {
    variable(name).or_else(|| std::env::var_os(name).map(|_| String::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_of_an_older_major_version_is_told_of() {
        assert!(older(12080).is_some_and(|text| text.contains("CUDA 12.8")));
        assert_eq!((older(DRIVER_VERSION), older(DRIVER_VERSION + 20)), (None, None));
    }
}
