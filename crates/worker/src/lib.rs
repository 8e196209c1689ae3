//! The process that owns the GPU for one program.
//!
//! ```text
//! start ── warm: open a driver ── wait on the control socket ── program handed over ── serve ── exit
//! ```
//!
//! A worker serves one program and ends with it, whatever either of them is doing (`monitor.rs`). It trusts the server that
//! started it and the driver it opened. It does not trust the program's bytes (`katydid-session`).

mod attach;
mod companion;
mod control;
pub mod fuzz_entry;
mod memory;
mod monitor;
mod nvml_service;
mod opencl;
mod options;
mod os;
mod peers;
mod reexec;
mod restore;
mod running;
mod serve;
mod warm;

use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;

use katydid_session_opencl::driver::load_drivers;
use katydid_transport::{Pending, exporter_sockets};
use katydid_wire::SPEC_HASH;
use katydid_wire::handshake::{Build, ConnectionRole, RefusalCode, Refused, SessionKind};
use katydid_wire::note::Note;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use katydid_session::{BenchedCall, ModuleCache};
pub use options::WorkerOptions;
pub use os::layout::STACKS_KEPT;
pub use os::sandbox::{
    NamedFolder, Sandbox, SandboxUser, has_nvidia, has_own_root, missing as missing_from_sandbox,
    named_folders as folders_of_workers,
};

pub use crate::nvml_service::check_call as check_nvml_call;
pub use crate::opencl::opencl_drivers;

use crate::os::log::Log;
use crate::warm::WarmDriver;

/// How long a worker waits before it loads the drivers of OpenCL: it was started because another program came, which needs the
/// processors at first.
const IDLE_BEFORE_LOADING: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Waits that long. Returns whether the server still lives; it sends nothing before the worker is warm.
fn is_idle(control: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::from_borrowed_fd(control, PollFlags::IN)], Some(&IDLE_BEFORE_LOADING)) == Ok(0)
}

/// Runs a worker to its end: its driver fails to start, or the server or the program ends.
pub fn run(mut options: WorkerOptions) -> ExitCode {
    // Before root's capabilities are dropped: a process without them cannot undo what one with them has set.
    let serves_tenants = matches!(options.sandbox, Some(Sandbox::Tenants { .. }));
    os::host_memory::bound(options.host_memory, serves_tenants);
    if let Some(Err(error)) = options.sandbox.as_ref().map(Sandbox::enter) {
        control::failed(options.control.as_fd(), &error);
        return ExitCode::FAILURE;
    }
    if let Some(Err(error)) = options.socket_broker.take().map(exporter_sockets::ask) {
        control::failed(options.control.as_fd(), &error);
        return ExitCode::FAILURE;
    }
    if options.watches {
        return nvml_service::run(&options);
    }
    let log = Log::early();
    os::process::prepare(&log);
    let control = options.control.as_fd();
    let warm = match WarmDriver::start(&options.driver, options.soft.as_deref(), options.requires_gpu) {
        Ok(warm) => {
            let module_cache = options.module_cache.map(|cache| cache.reporting_to(|text| Log::early().line(text)));
            WarmDriver { module_cache, has_journal: options.has_journal, ..warm }
        }
        Err(error) => {
            // The server reports it, or passes it on to the program that waits.
            control::failed(control, &error);
            return ExitCode::FAILURE;
        }
    };
    if let Some(reason) = &warm.gpu_error {
        control::gpu_error(control, reason);
    }
    let device_order_note = reexec::inherited_note();
    // Before the worker is warm: a library that hangs or crashes is then a failed start, and costs no program.
    if options.loads_opencl && device_order_note.is_none() && warm.driver.is_soft() && is_idle(control) {
        load_drivers();
    }
    control::warm(control, &warm.name);
    let build = Build::current(SPEC_HASH);
    if device_order_note.is_some() && !reexec::has_connection(control) {
        return ExitCode::FAILURE;
    }
    match Pending::receive(control, &build) {
        Ok(Some((peer, note))) => {
            if device_order_note.is_some() {
                // The companion came back by the session's key.
                control::connection_accepted(control);
            }
            let (note, control) = (device_order_note.unwrap_or_else(|| Note::decode(&note)), options.control);
            match peer.hello().claim.role {
                ConnectionRole::COMPANION => restore::serve(warm, peer, &note, &build, control),
                ConnectionRole::PROGRAM if peer.hello().session == SessionKind::OPENCL => {
                    opencl::serve(warm, peer, &note, &build, control)
                }
                ConnectionRole::PROGRAM => serve::serve(warm, peer, &note, &build, control),
                _ => {
                    peer.refuse(&build, &Refused::new(RefusalCode::BAD_HELLO, "no session begins in that role"));
                    ExitCode::FAILURE
                }
            }
        }
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => {
            log.line(format_args!("no program could be taken over: {error}"));
            ExitCode::FAILURE
        }
    }
}
