//! Starts the session of this process.

use std::sync::{Mutex, PoisonError};

use katydid_client::connect::{PlainSession, has_server, open_plain};
use katydid_client::environment::OpenError;
use katydid_client::fork::{self, NoFork};
use katydid_client::job::{self, JobMembership};
use katydid_client::life;
use katydid_client::output::report;
use katydid_client::threads;
use katydid_opencl_sys::Code;
use katydid_transport::Address;
use katydid_wire::handshake::{LinkKind, SessionKind};

use crate::host::arena::{self, HostMemory};
use crate::host::mapped_pages::RETURNED_PAGES;
use crate::host::transfer_blocks::TRANSFER_BLOCKS;
use crate::process::session::{self, Session};

/// Starts the session unless it has begun, and returns whether this call did. A failure is reported once, in one line, and a
/// later call tries again. A program without a server simply finds no platform here.
pub(crate) fn start() -> Result<bool, Code> {
    static STARTING: Mutex<Option<String>> = Mutex::new(None);
    let mut reported = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if session::if_started().is_some() {
        return Ok(false);
    }
    let (session, job_link, forks) = match open() {
        Ok(opened) => opened,
        Err(None) => return Err(Code::PLATFORM_NOT_FOUND_KHR),
        Err(Some(text)) => {
            if reported.as_ref() != Some(&text) {
                report(&text);
                *reported = Some(text);
            }
            return Err(Code::PLATFORM_NOT_FOUND_KHR);
        }
    };
    let session = session::begin(session);
    life::start(after_fork, at_exit);
    threads::enable_fast_path(|| session.enable_fast_path());
    if let Some((job_link, address, kind)) = job_link {
        job::keep(session, job_link, &address, kind);
    }
    // From here on another thread may hold frames while it closes connections; it waits for this.
    drop(forks);
    Ok(true)
}

/// Runs in the child of a fork: the connection belongs to the parent.
fn after_fork() {
    if let Some(session) = session::if_started() {
        session.abandon();
    }
}

/// Does nothing: remaining objects end with the worker.
fn at_exit() {}

/// A job, with the address and link kind of its session.
type PreparedJob = (JobMembership, Address, LinkKind);

/// Opens a session. The error is the message for the user; `None` if no server was named. Forks are blocked from here until it is
/// known what a child of this process must not inherit.
fn open() -> Result<(Session, Option<PreparedJob>, NoFork), Option<String>> {
    let mut job = JobMembership::from_environment().map_err(|error| Some(error.to_string()))?;
    if let (Some(job), true) = (&mut job, has_server()) {
        job.announce();
    }
    let forks = fork::hold();
    let PlainSession { link, address, kind, pinned } =
        open_plain(SessionKind::OPENCL).map_err(|error| match error {
            OpenError::NoServer => None,
            error => Some(error.to_string()),
        })?;
    if let Some(memory) = pinned {
        let memory = HostMemory::new(memory).map_err(|error| Some(format!("no address space for handles: {error}")))?;
        memory.install();
    }
    Ok((Session::new(link, |_, _| (), give_back_memory), job.map(|job| (job, address, kind)), forks))
}

/// Frees unused memory when the program is about to be dumped.
fn give_back_memory() {
    TRANSFER_BLOCKS.trim();
    RETURNED_PAGES.trim();
    arena::trim();
}
