//! `katydid worker`, hidden: the process of one session, which a server starts with a socket to itself.

#![expect(unsafe_code, reason = "takes over a descriptor that the server left open for this process")]

use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use katydid_driver::DriverChoice;
use katydid_job::keeper::KeeperOptions;
use katydid_worker::{ModuleCache, Sandbox, WorkerOptions};
use rustix::net::SocketType;
use rustix::net::sockopt::socket_type;

use crate::args::flags::WorkerFlags;
use katydid_cli_core::layout::Layout;
use katydid_cli_core::output::failure::{Failure, Outcome};
use katydid_cli_core::server::isolation::SandboxReach;

/// Lower descriptors are the standard streams.
const FIRST_CONTROL_DESCRIPTOR: i32 = 3;

/// Runs the hidden command that becomes a worker.
pub(crate) fn main(flags: &WorkerFlags) -> Outcome {
    let control = packets(flags.control_fd).ok_or_else(|| {
        Failure::usage("worker: started by hand: the server starts workers, see `katydid serve --help`")
    })?;
    if flags.keeper {
        return keep(flags, control);
    }
    // For ps and top, which would show the name of the link in /proc otherwise. An error does not matter.
    let _ = rustix::thread::set_name(c"katydid-worker");
    let driver: DriverChoice = flags.driver.parse().unwrap_or_default();
    let soft = Layout::find().ok().map(|layout| layout.soft()).filter(|path| path.is_file());
    let module_cache =
        flags.module_cache.clone().zip(flags.module_cache_size).map(|(folder, limit)| ModuleCache::new(folder, limit));
    let (watches, has_journal, requires_gpu) = (flags.watch, !flags.no_journal, flags.require_gpu);
    let host_memory = flags.host_memory;
    let sandbox = flags.sandbox.map(|reach| sandbox(reach, flags, soft.as_deref()));
    let socket_broker = flags.socket_broker_fd.and_then(packets);
    let options = WorkerOptions {
        control,
        socket_broker,
        driver,
        soft,
        requires_gpu,
        module_cache,
        host_memory,
        watches,
        has_journal,
        loads_opencl: flags.loads_opencl,
        sandbox,
    };
    Ok(katydid_worker::run(options))
}

/// Becomes a keeper instead.
fn keep(flags: &WorkerFlags, control: OwnedFd) -> Outcome {
    let _ = rustix::thread::set_name(c"katydid-keeper");
    let layout = Layout::find().map_err(Failure::server)?;
    let katydid = std::env::current_exe().map_err(Failure::work)?;
    let (saves, driver, private_criu) = (flags.saves, flags.driver.clone(), layout.criu());
    Ok(katydid_job::keeper::run(KeeperOptions { control, saves, driver, katydid, private_criu }))
}

/// The sandbox of the worker, with the files and devices in its arguments.
fn sandbox(reach: SandboxReach, flags: &WorkerFlags, soft: Option<&Path>) -> Sandbox {
    if reach == SandboxReach::OwnUser {
        return Sandbox::OwnUser;
    }
    let driver = Some(PathBuf::from(&flags.driver)).filter(|path| path.is_absolute());
    let readable = driver.into_iter().chain(soft.map(PathBuf::from)).collect();
    let (writable, stores) = (flags.writable.clone(), flags.module_cache.iter().cloned().collect());
    Sandbox::Tenants { writable, stores, readable, user: flags.user.clone() }
}

/// Takes the socket to the server; `None` if the number is not that of a socket.
fn packets(number: i32) -> Option<OwnedFd> {
    if number < FIRST_CONTROL_DESCRIPTOR {
        return None;
    }
    // SAFETY: the server opened this descriptor for this process and passed its number; nothing else in this process
    // uses it, and a number that is not open only makes the calls below fail.
    let control = unsafe { OwnedFd::from_raw_fd(number) };
    match socket_type(&control) {
        Ok(SocketType::SEQPACKET) => Some(control),
        // The descriptor is not this process's to close.
        _ => {
            std::mem::forget(control);
            None
        }
    }
}
