//! The start of the session in `cuInit`, and its handling at forks and at exit.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use katydid_arena::NegotiatedArenas;
use katydid_client::connect;
use katydid_client::environment::{OpenError, variable};
use katydid_client::fork::{self, NoFork};
use katydid_client::job::{self, JobMembership};
use katydid_client::output::report;
use katydid_client::regions::Regions;
use katydid_client::session::Session;
use katydid_client::slab::Slab;
use katydid_client::{life, threads, visible};
use katydid_cuda_sys::CUresult;
use katydid_driver_rules::state::environment::launches_block;
use katydid_transport::Address;
use katydid_wire::facts::Facts;
use katydid_wire::handshake::LinkKind;
use katydid_wire::message::kdFacts;

use crate::code::link::LINKS;
use crate::code::records::{FUNCTIONS, KERNELS, LIBRARIES, MODULES};
use crate::context::device::{self, DRIVER_VERSION, Device};
use crate::context::green_ctx::DESCRIPTIONS;
use crate::context::record::{self, Context};
use crate::ffi::{export_table, objects};
use crate::memory::pinned::{self, PinnedArena};
use crate::memory::pool::POOLS;
use crate::memory::virtual_memory::ALLOCATIONS;
use crate::process::session::{self, Shim, shim};
use crate::process::{environment, tracing};
use crate::sync::event::EVENTS;
use crate::sync::stream::STREAMS;
use crate::texture::array::{ARRAYS, MIPMAPS};
use crate::texture::reference::TEXTURE_REFERENCES;
use crate::texture::surface_reference::SURFACE_REFERENCES;

/// Most handles of one kind at a time. The worker accepts ids below 2^24.
const MAX_HANDLES: u32 = 1 << 22;
/// Most arrays, and most mipmaps, at a time: the worker accepts twice as many of both together.
const MAX_ARRAY_HANDLES: u32 = 1 << 19;
/// Most references of one kind at a time: the worker accepts twice as many of both together.
const MAX_TEXTURE_REFERENCES: u32 = 1 << 15;
/// Most contexts at a time: programs have few, and each costs the worker's GPU memory.
const MAX_CONTEXTS: u32 = 1 << 12;

/// Answers `cuInit`: connects. A failure is reported once, in one line, and may be retried.
pub(crate) fn init(flags: u32) -> Result<(), CUresult> {
    static STARTING: Mutex<Option<String>> = Mutex::new(None);
    if flags != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let mut reported = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if shim().is_ok() {
        return Ok(());
    }
    let (started, job, _forks) = start().map_err(|failure| {
        if reported.as_ref() != Some(&failure.text) {
            report(&failure.text);
            *reported = Some(failure.text);
        }
        failure.code
    })?;
    let shim = started.ok_or(CUresult::ERROR_NO_DEVICE)?;
    export_table::install();
    life::start(after_fork, at_exit);
    threads::enable_fast_path(|| shim.session.enable_fast_path());
    if let Some((kept_job, address, kind)) = job {
        job::keep(&shim.session, kept_job, &address, kind);
    }
    Ok(())
}

/// Abandons the session in the child of a fork: the connection is the parent's.
fn after_fork() {
    if let Ok(shim) = shim() {
        shim.session.abandon();
    }
}

fn at_exit() {
    tracing::finish();
}

/// Why there is no session: the program's code, and the text for its user.
struct StartFailure {
    code: CUresult,
    text: String,
}

impl From<OpenError> for StartFailure {
    fn from(error: OpenError) -> Self {
        Self { code: error.code(), text: error.to_string() }
    }
}

impl StartFailure {
    fn new(text: impl Into<String>) -> Self {
        Self { code: CUresult::ERROR_SYSTEM_NOT_READY, text: text.into() }
    }
}

/// A job, and the connection of its session.
type JobConnection = (JobMembership, Address, LinkKind);

/// Starts the session. Forks wait from here until it is known what a child of this process must not have.
fn start() -> Result<(Option<&'static Shim>, Option<JobConnection>, NoFork), StartFailure> {
    let mut job = JobMembership::from_environment()?;
    if let Some(job) = &mut job {
        job.announce();
    }
    let forks = fork::hold();
    let opened = connect::open(record::faulted)?;
    let facts = fetch_facts(&opened.session)?;
    environment::report_without_effect(&opened.session)
        .map_err(|code| StartFailure::new(format!("the session has ended: {code}")))?;
    let shim = build(opened.session, facts, opened.arenas, opened.pinned)?;
    Ok((shim, job.map(|job| (job, opened.address, opened.link)), forks))
}

fn fetch_facts(session: &Session<CUresult>) -> Result<Facts, StartFailure> {
    let reply = session.call(0, &kdFacts {}).map_err(|code| {
        StartFailure::new(format!("the server's worker cannot use its GPU: {code}; see the server's log"))
    })?;
    let facts = Facts::decode(&reply.facts)
        .map_err(|error| StartFailure::new(format!("the server described its devices wrongly: {error}")))?;
    if let Some(notice) = older(facts.driver_version) {
        report(notice);
    }
    Ok(facts)
}

/// Returns a warning for the user if the driver is older than the version that this library reports.
fn older(version: i32) -> Option<String> {
    let (major, minor) = (version / 1000, version % 1000 / 10);
    let text = format!("the server's driver knows CUDA {major}.{minor}: what is newer will be refused there");
    (major < DRIVER_VERSION / 1000).then_some(text)
}

/// Sets up all tables, the session last; none if the program sees no device.
fn build(
    session: Session<CUresult>,
    facts: Facts,
    arenas: NegotiatedArenas,
    memory: Option<OwnedFd>,
) -> Result<Option<&'static Shim>, StartFailure> {
    let contexts = Slab::reserve(MAX_CONTEXTS).map_err(no_address_space)?;
    let devices = visible_devices(&facts, &arenas, &contexts, memory.is_some())?;
    if devices.is_empty() {
        return Ok(None);
    }
    let pinned =
        PinnedArena::new(&arenas, memory).map_err(|error| StartFailure::new(format!("pinned memory: {error}")))?;
    reserve_tables().map_err(no_address_space)?;
    record::CONTEXTS.fill(contexts);
    device::fill(devices);
    pinned.into_iter().for_each(pinned::fill);
    let (regions, launches_block) = (Regions::default(), launches_block());
    Ok(Some(session::fill(Shim { session, facts, regions, launches_block, arenas })))
}

fn no_address_space(error: io::Error) -> StartFailure {
    StartFailure::new(format!("no address space for handles: {error}"))
}

/// Makes the devices that the program may see, with a primary context for each.
fn visible_devices(
    facts: &Facts,
    arenas: &NegotiatedArenas,
    contexts: &Slab<Context>,
    shares_memory: bool,
) -> Result<Vec<Device>, StartFailure> {
    let addresses: Vec<_> = facts.devices.iter().map(|device| device.pci_bus_id.as_str()).collect();
    let order = visible::ordered(variable("CUDA_DEVICE_ORDER").as_deref(), &addresses);
    let uuids: Vec<_> = order.iter().map(|position| facts.devices[*position].uuid).collect();
    let mut devices = Vec::new();
    for chosen in visible::visible(variable_even_empty("CUDA_VISIBLE_DEVICES").as_deref(), &uuids) {
        let position = order[chosen];
        let device = Device::new(devices.len(), position, facts, &arenas.map, contexts, shares_memory);
        devices.push(
            device.ok_or_else(|| StartFailure::new("the server has more devices than the address map has room for"))?,
        );
    }
    Ok(devices)
}

/// Reserves the tables of all kinds except contexts.
fn reserve_tables() -> io::Result<()> {
    objects::reserve(MAX_HANDLES)?;
    STREAMS.reserve(MAX_HANDLES)?;
    EVENTS.reserve(MAX_HANDLES)?;
    MODULES.reserve(MAX_HANDLES)?;
    LIBRARIES.reserve(MAX_HANDLES)?;
    FUNCTIONS.reserve(MAX_HANDLES)?;
    KERNELS.reserve(MAX_HANDLES)?;
    ARRAYS.reserve(MAX_ARRAY_HANDLES)?;
    MIPMAPS.reserve(MAX_ARRAY_HANDLES)?;
    TEXTURE_REFERENCES.reserve(MAX_TEXTURE_REFERENCES)?;
    SURFACE_REFERENCES.reserve(MAX_TEXTURE_REFERENCES)?;
    LINKS.reserve(MAX_HANDLES)?;
    ALLOCATIONS.reserve(MAX_HANDLES)?;
    POOLS.reserve(MAX_HANDLES)?;
    DESCRIPTIONS.reserve(MAX_HANDLES)
}

/// Returns a variable, also an empty one: an empty `CUDA_VISIBLE_DEVICES` hides every device, and an unset one none.
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
