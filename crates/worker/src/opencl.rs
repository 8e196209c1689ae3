//! One OpenCL program, from the hand-over to its end.
//!
//! The worker has warmed up a CUDA driver; what that holds of a device is given back before the machine's OpenCL drivers
//! are opened.

#![expect(unsafe_code, reason = "gives back a context of the CUDA driver")]

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use katydid_session::Capture;
use katydid_session_opencl::driver::{self, DriverError, Platform};
use katydid_session_opencl::{Session, SessionError, Usage};
use katydid_transport::{AcceptError, Pending, WorkerLink};
use katydid_wire::handshake::{Build, Ready, RefusalCode, Refused};
use katydid_wire::note::Note;

use crate::control;
use crate::log::Log;
use crate::monitor::{self, leave};
use crate::serve::{BROKEN, lower};
use crate::warm::Warm;

/// Why a program was turned away.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    /// Nothing to serve it with.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The system does not let the worker prepare.
    #[error("the worker cannot {what}: {source}")]
    System {
        /// What it tried.
        what: &'static str,
        /// The system's words.
        source: std::io::Error,
    },
    /// The handshake failed; the program was told.
    #[error(transparent)]
    Accept(#[from] AcceptError),
    /// There is no room for the machine's platforms.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Serves the program that was handed over, and leaves the process with it.
pub(crate) fn serve(warm: Warm, program: Pending, note: &Note, build: &Build, control: OwnedFd) -> ExitCode {
    give_back(&warm);
    let name = format!("{} (pid {})", program.hello().program, program.hello().pid);
    let platforms = match driver::open() {
        Ok(platforms) => platforms,
        Err(error) => {
            control::refused(control.as_fd(), &error);
            program.refuse(build, &Refused::new(RefusalCode::DRIVER, error.to_string()));
            return ExitCode::FAILURE;
        }
    };
    match begin(platforms, program, note, build, &control) {
        Ok(Begun { session, mut link, log }) => match session.serve(&mut *link) {
            Ok(()) => leave(0),
            Err(error) => {
                log.line(format_args!("the session of {name} was ended: {error}"));
                leave(BROKEN)
            }
        },
        Err(error) => {
            control::refused(control.as_fd(), &error);
            ExitCode::FAILURE
        }
    }
}

/// The CUDA driver's hold of its devices. A failure leaves the device's memory taken, and nothing else.
fn give_back(warm: &Warm) {
    for context in &warm.contexts {
        // SAFETY: retained once by this process, and used by nothing that is still there.
        let _ = unsafe { warm.driver.cuDevicePrimaryCtxRelease(context.device) };
    }
}

/// A session with its program.
struct Begun {
    session: Session,
    link: Box<dyn WorkerLink>,
    log: Arc<Log>,
}

/// Opens the link and starts what accompanies a session.
fn begin(
    platforms: Vec<Platform>,
    program: Pending,
    note: &Note,
    build: &Build,
    control: &OwnedFd,
) -> Result<Begun, ServeError> {
    let failed = |what| move |source| ServeError::System { what, source };
    let quota = lower(program.hello().memory_quota, note.memory);
    let names: Vec<&str> = platforms.iter().map(|platform| platform.name.as_str()).collect();
    let driver = format!("OpenCL: {}", names.join(", "));
    let (capture, real) = Capture::start().map_err(failed("take its output"))?;
    let ready = Ready { worker_pid: std::process::id(), key: note.key, driver, arenas: Vec::new() };
    let link = program.open(build, &ready, 0)?;
    let usage = Arc::new(Usage::new(quota));
    let session = Session::new(platforms, link.replier(), Arc::clone(&usage), capture)?;
    let log = Arc::new(Log::kept(real));
    if let Some(switch) = link.switch() {
        let again = || control.try_clone().map_err(failed("watch the server"));
        monitor::start(switch, again()?, move || (usage.memory(), usage.calls()), || {})
            .map_err(failed("start a thread"))?;
        turn_away(again()?, build.clone(), Arc::clone(&log)).map_err(failed("start a thread"))?;
    }
    Ok(Begun { session, link, log })
}

/// Tells visitors of the session that it has no door: nothing of an OpenCL session can be kept or taken up.
fn turn_away(control: OwnedFd, build: Build, log: Arc<Log>) -> std::io::Result<()> {
    let attend = move || {
        loop {
            match Pending::receive(control.as_fd(), &build) {
                Ok(Some((visitor, _))) => {
                    let text = "this is a session of OpenCL, which cannot be checkpointed or taken up again";
                    visitor.refuse(&build, &Refused::new(RefusalCode::NOT_ALLOWED, text));
                }
                // The daemon is gone, and the session with it.
                Ok(None) => leave(0),
                Err(error) => log.line(format_args!("a visitor of the session was lost: {error}")),
            }
        }
    };
    thread::Builder::new().name("door".into()).spawn(attend).map(drop)
}
