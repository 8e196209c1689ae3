//! The one session of this process: what the first look for platforms sets up and everything else starts from.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use katydid_client::connect::{PinnedMemory, Plain, has_server, open_plain};
use katydid_client::environment::OpenError;
use katydid_client::fork::{self, NoFork};
use katydid_client::job::{self, Job};
use katydid_client::life;
use katydid_client::output::say;
use katydid_client::slab::Slab;
use katydid_client::threads;
use katydid_opencl_sys::Code;
use katydid_transport::Address;
use katydid_wire::codec::Field as _;
use katydid_wire::handshake::{LinkKind, SessionKind};
use katydid_wire::opencl::message::kdclPlatforms;

use crate::ffi::icd;
use crate::objects::context::Context;
use crate::objects::device::Device;
use crate::objects::event::Event;
use crate::objects::handle::HeldObject;
use crate::objects::kernel::Kernel;
use crate::objects::memory::Memory;
use crate::objects::platform::Platform;
use crate::objects::program::Program;
use crate::objects::queue::Queue;
use crate::objects::sampler::Sampler;
use crate::objects::svm::Ranges;
use crate::process::host::HostMemory;
use crate::process::link::Link;
use crate::process::upcall::Registry;
use crate::transfers::blocks::Parcels;
use crate::transfers::pending_reads::PendingReads;

/// Objects of one kind at a time. The worker takes numbers below 2^24.
const HANDLES: u32 = 1 << 22;
/// Devices and parts of them.
const DEVICES: u32 = 1 << 14;

/// The program's side of the session.
pub(crate) struct Shim {
    pub(crate) link: Link,
    pub(crate) platforms: Slab<Platform>,
    pub(crate) devices: Slab<Device>,
    pub(crate) contexts: Slab<Context>,
    pub(crate) queues: Slab<Queue>,
    pub(crate) memories: Slab<Memory>,
    pub(crate) samplers: Slab<Sampler>,
    pub(crate) programs: Slab<Program>,
    pub(crate) kernels: Slab<Kernel>,
    pub(crate) events: Slab<Event>,
    pub(crate) pending_reads: PendingReads,
    pub(crate) ranges: Ranges,
    pub(crate) upcalls: Registry,
    /// Blocks of it that commands have.
    pub(crate) parcels: Parcels,
    /// Memory that the worker has too; none on streams.
    pub(crate) host: Option<HostMemory>,
}

static SHIM: OnceLock<Shim> = OnceLock::new();
/// Whether the server's platforms have their handles.
static LISTED: AtomicBool = AtomicBool::new(false);

/// The session. Every object comes out of one, so the thread that holds an object has it.
pub(crate) fn shim() -> Result<&'static Shim, Code> {
    SHIM.get().ok_or(Code::INVALID_PLATFORM)
}

/// The session, which is begun when there is none. A failure is said in one line, once, and may be tried again; a
/// program without a server merely finds no platform here.
pub(crate) fn start() -> Result<&'static Shim, Code> {
    static STARTING: Mutex<Option<String>> = Mutex::new(None);
    if let (true, Some(shim)) = (LISTED.load(Ordering::Acquire), SHIM.get()) {
        return Ok(shim);
    }
    let mut said = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(shim) = SHIM.get() {
        return Ok(shim);
    }
    let (shim, kept, forks) = match open() {
        Ok(opened) => opened,
        Err(None) => return Err(Code::PLATFORM_NOT_FOUND_KHR),
        Err(Some(text)) => {
            if said.as_ref() != Some(&text) {
                say(&text);
                *said = Some(text);
            }
            return Err(Code::PLATFORM_NOT_FOUND_KHR);
        }
    };
    let shim = SHIM.get_or_init(|| shim);
    life::start(after_fork, at_exit);
    threads::enable_fast_path(|| shim.link.enable_fast_path());
    if let Some((kept, address, kind)) = kept {
        job::keep(&shim.link, kept, &address, kind);
    }
    // Frames may be held from here on, by a thread that has connections to close, which wait for this.
    drop(forks);
    list(shim).map_err(|_| Code::PLATFORM_NOT_FOUND_KHR)?;
    LISTED.store(true, Ordering::Release);
    Ok(shim)
}

/// In the child of a fork: the connection is the parent's.
fn after_fork() {
    if let Some(shim) = SHIM.get() {
        shim.link.abandon();
    }
}

/// Nothing is to be done: objects that are still there end with the worker.
fn at_exit() {}

/// A job, and the way of its session.
type PreparedJob = (Job, Address, LinkKind);

/// What a user reads when there is no session; nothing when no server was named.
/// Forks wait from here until it is known what a child of this process must not have.
fn open() -> Result<(Shim, Option<PreparedJob>, NoFork), Option<String>> {
    let mut job = Job::from_environment().map_err(|error| Some(error.to_string()))?;
    if let (Some(job), true) = (&mut job, has_server()) {
        job.announce();
    }
    let forks = fork::hold();
    let Plain { link, address, kind, pinned } = open_plain(SessionKind::OPENCL).map_err(|error| match error {
        OpenError::NoServer => None,
        error => Some(error.to_string()),
    })?;
    let shim =
        build(Link::new(link), pinned).map_err(|error| Some(format!("no address space for handles: {error}")))?;
    Ok((shim, job.map(|job| (job, address, kind)), forks))
}

fn build(link: Link, pinned: Option<PinnedMemory>) -> std::io::Result<Shim> {
    let head = icd::head();
    let host = pinned.map(HostMemory::new).transpose().map_err(std::io::Error::other)?;
    Ok(Shim {
        link,
        platforms: Slab::reserve_with(DEVICES, head)?,
        devices: Slab::reserve_with(DEVICES, head)?,
        contexts: Slab::reserve_with(HANDLES, head)?,
        queues: Slab::reserve_with(HANDLES, head)?,
        memories: Slab::reserve_with(HANDLES, head)?,
        samplers: Slab::reserve_with(HANDLES, head)?,
        programs: Slab::reserve_with(HANDLES, head)?,
        kernels: Slab::reserve_with(HANDLES, head)?,
        events: Slab::reserve_with(HANDLES, head)?,
        pending_reads: PendingReads::default(),
        ranges: Ranges::default(),
        upcalls: Registry::default(),
        parcels: Parcels::default(),
        host,
    })
}

/// Makes the server's platforms and devices, which have the first numbers of their kinds.
fn list(shim: &'static Shim) -> Result<(), Code> {
    let facts = shim.link.call(&kdclPlatforms {})?.facts;
    let mut left = &facts[..];
    let mut number = || u32::take(&mut left).ok_or_else(|| shim.link.broken("kdclPlatforms"));
    let platforms = number()?;
    let mut types = Vec::new();
    for _ in 0..platforms {
        let devices = number()?;
        let mut list = Vec::new();
        for _ in 0..devices {
            list.push(u64::from(number()?) | u64::from(number()?) << 32);
        }
        types.push(list);
    }
    for list in types {
        let platform = HeldObject::new(Platform::make()?);
        for kind in list {
            Device::make(platform.clone(), None, kind)?;
        }
    }
    Ok(())
}
