//! One OpenCL program, from the hand-over to its end.
//!
//! The worker has warmed up a CUDA driver. It releases that driver's hold of a device before it opens the machine's OpenCL
//! drivers.

#![expect(unsafe_code, reason = "gives back a context of the CUDA driver")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;

use katydid_arena::{choose_pinned, pinned_at};
use katydid_image::Session as SessionPart;
use katydid_session_core::{Capture, Usage};
use katydid_session_opencl::driver::{self, NoDriverError, OpenedDrivers, Platform};
use katydid_session_opencl::{HostMemory, MEMORY_LIMIT_NOTE, Session, SessionError, host_base};
pub(crate) use katydid_session_opencl::{is_kept_in, is_outline};
use katydid_transport::{AcceptError, Pending};
use katydid_wire::handshake::{ArenaRange, Build, Ready, RefusalCode, Refused};
use katydid_wire::note::Note;

use crate::companion::CompanionSlot;
use crate::control;
use crate::os::layout;
use crate::os::log::Log;
use crate::peers::SessionPeers;
use crate::running::{self, EmptySession, RunningSession, ServeError, ServerView, lower};
use crate::warm::WarmDriver;

/// Why a program was turned away.
#[derive(Debug, thiserror::Error)]
enum BeginError {
    /// The system does not let the worker prepare.
    #[error("the worker cannot {what}: {source}")]
    System {
        /// Operation that failed, in the infinitive.
        what: &'static str,
        /// Error that the system returned.
        source: std::io::Error,
    },
    /// The handshake failed; the program has received the reason.
    #[error(transparent)]
    Accept(#[from] AcceptError),
    /// The threads beside a session could not be started.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// There is no room for the machine's platforms.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Serves the handed-over program, and ends the process with it.
pub(crate) fn serve(warm: WarmDriver, program: Pending, note: &Note, build: &Build, control: OwnedFd) -> ExitCode {
    let name = format!("{} (pid {})", program.hello().program, program.hello().pid);
    let platforms = match open(&warm, note) {
        Ok(platforms) => platforms,
        Err(error) => {
            control::refused(control.as_fd(), &error);
            program.refuse(build, &Refused::new(RefusalCode::DRIVER, error.to_string()));
            return ExitCode::FAILURE;
        }
    };
    match begin(platforms, program, note, build, &control) {
        Ok(running_session) => running::run(running_session, &name),
        Err(error) => {
            control::refused(control.as_fd(), &error);
            ExitCode::FAILURE
        }
    }
}

/// Opens the machine's OpenCL drivers, in place of the CUDA driver. The log says why drivers are left out. Processors are offered
/// only to programs that may run their own code as this user.
fn open(warm: &WarmDriver, note: &Note) -> Result<Vec<Platform>, NoDriverError> {
    give_back(warm);
    layout::restore_default_heap();
    let OpenedDrivers { platforms, tried } = driver::open()?;
    // Drivers that the user did not choose may be missing: a machine need not have every known driver.
    for reason in tried.iter().filter(|_| driver::is_chosen()) {
        Log::early().line(format_args!("an OpenCL driver is left out: {reason}"));
    }
    if note.processors { Ok(platforms) } else { driver::without_processors(platforms) }
}

/// Releases the CUDA driver's hold of its devices. A failure only leaves the devices' memory taken.
fn give_back(warm: &WarmDriver) {
    for context in &warm.contexts {
        // SAFETY: retained once by this process, and used by nothing that is still there.
        let _ = unsafe { warm.driver.cuDevicePrimaryCtxRelease(context.device) };
    }
}

/// Finds the OpenCL drivers of this machine, without a program. Returns the names of their platforms, and the libraries that
/// failed.
///
/// # Errors
///
/// There is no platform. The text names every library that was tried, and its error.
pub fn opencl_drivers() -> Result<(Vec<String>, Vec<String>), String> {
    let opened = driver::open().map_err(|error| error.to_string())?;
    Ok((opened.platforms.into_iter().map(|platform| platform.name).collect(), opened.tried))
}

/// Returns the names that the drivers report.
fn name(platforms: &[Platform]) -> String {
    let names: Vec<&str> = platforms.iter().map(|platform| platform.name.as_str()).collect();
    format!("OpenCL: {}", names.join(", "))
}

fn concerns_of(usage: Arc<Usage>) -> ServerView {
    let usage = Arc::new(move || (usage.memory(), usage.calls()));
    ServerView { usage, peers: SessionPeers::default() }
}

/// Maps memory that the program has too, at the first address that suits both; none if there is no such address.
fn agree(offers: &[ArenaRange], shared: Option<BorrowedFd<'_>>) -> Option<HostMemory> {
    let mut host = None;
    shared?;
    choose_pinned(offers, |offer| {
        host = HostMemory::new(offer, shared).ok();
        host.is_some()
    });
    host
}

fn ranges(host: Option<&HostMemory>) -> Vec<ArenaRange> {
    host.map(HostMemory::range).into_iter().collect()
}

/// Reserves the range that a session of an image had, which its program has kept.
fn restore_host_memory(part: &SessionPart) -> Result<Option<HostMemory>, String> {
    let Some(base) = host_base(part) else { return Ok(None) };
    let offer = pinned_at(base).ok_or("its memory is at addresses that this build does not use")?;
    let host = HostMemory::new(&offer, None);
    host.map(Some).map_err(|error| format!("its addresses are not to be had here: {error}"))
}

/// Returns whether an image has the complete session of an outline: at the same addresses, and with the same memory limit.
pub(crate) fn is_of(part: &SessionPart, outline: &SessionPart) -> bool {
    let is_whole = is_kept_in(part) && !is_outline(part) && part.name == outline.name;
    is_whole
        && host_base(part) == host_base(outline)
        && part.notes.get(MEMORY_LIMIT_NOTE) == outline.notes.get(MEMORY_LIMIT_NOTE)
}

/// Opens the link and starts the threads beside a session.
fn begin(
    platforms: Vec<Platform>,
    program: Pending,
    note: &Note,
    build: &Build,
    control: &OwnedFd,
) -> Result<RunningSession, BeginError> {
    let failed = |what| move |source| BeginError::System { what, source };
    let limit = lower(program.hello().memory_limit, note.memory_limit);
    let (capture, real) = Capture::start().map_err(failed("take its output"))?;
    let driver = name(&platforms);
    let host = agree(&program.hello().arenas, program.pinned());
    let ready = Ready { worker_pid: std::process::id(), key: note.key, driver, arenas: ranges(host.as_ref()) };
    let link = program.open(build, &ready, 0)?;
    let usage = Arc::new(Usage::new(limit));
    let session = Box::leak(Box::new(Session::new(platforms, link.replier(), Arc::clone(&usage), capture)?));
    session.attach(&*link);
    session.share(host);
    let (log, concerns) = (Log::to_descriptor(real), concerns_of(usage));
    Ok(running::accompany(session, link, ready, build, control, CompanionSlot::default(), log, concerns)?)
}

/// Creates a session that will become the one of an image. `devices` are used in place of that one's.
pub(crate) fn blank(warm: &WarmDriver, note: &Note, part: &SessionPart, devices: &str) -> Result<EmptySession, String> {
    let platforms = open(warm, note).map_err(|error| error.to_string())?;
    let (capture, real) = Capture::start().map_err(|error| format!("cannot take the driver's output: {error}"))?;
    let limit = part.notes.get(MEMORY_LIMIT_NOTE).and_then(serde_json::Value::as_u64).filter(|limit| *limit != 0);
    let (driver, usage) = (name(&platforms), Arc::new(Usage::new(lower(limit, note.memory_limit))));
    let mut session = Session::without_program(platforms, Arc::clone(&usage), capture, devices.to_owned());
    let host = restore_host_memory(part)?;
    let ranges = ranges(host.as_ref());
    session.share(host);
    let (session, log, concerns) = (Box::leak(Box::new(session)), Log::to_descriptor(real), concerns_of(usage));
    Ok(EmptySession { session, ranges, driver, log, concerns })
}
