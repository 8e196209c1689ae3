//! One CUDA program, from the hand-over to its end.

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;

use katydid_session::device_memory::DeviceMemory;
use katydid_session::{Session, Setup};
use katydid_session_core::{Capture, Usage};
use katydid_transport::Pending;
use katydid_wire::handshake::{Build, Ready, RefusalCode, Refused};
use katydid_wire::note::Note;

use crate::companion::CompanionSlot;
use crate::control;
use crate::memory::{self, Arenas};
use crate::os::log::Log;
use crate::peers::SessionPeers;
use crate::running::{self, RunningSession, ServeError, ServerView, lower};
use crate::warm::WarmDriver;

/// Serves the handed-over program, and ends the process with it.
pub(crate) fn serve(warm: WarmDriver, program: Pending, note: &Note, build: &Build, control: OwnedFd) -> ExitCode {
    let name = format!("{} (pid {})", program.hello().program, program.hello().pid);
    let fitting = memory::agree(&warm.driver, warm.facts.devices.len(), &program.hello().arenas, program.pinned());
    let arenas = match fitting {
        Ok(arenas) => arenas,
        Err(error) => {
            control::refused(control.as_fd(), &error);
            program.refuse(build, &Refused::new(RefusalCode::NO_ARENA, error.to_string()));
            return ExitCode::FAILURE;
        }
    };
    match begin(warm, program, arenas, note, build, &control) {
        Ok(running_session) => running::run(running_session, &name),
        Err(error) => {
            control::refused(control.as_fd(), &error);
            ExitCode::FAILURE
        }
    }
}

/// Opens the link and starts the threads beside a session.
fn begin(
    warm: WarmDriver,
    program: Pending,
    arenas: Arenas,
    note: &Note,
    build: &Build,
    control: &OwnedFd,
) -> Result<RunningSession, ServeError> {
    let failed = |what| move |source| ServeError::System { what, source };
    let limit = lower(program.hello().memory_limit, note.memory_limit);
    let (capture, real) = Capture::start().map_err(failed("take its output"))?;
    let Arenas { ranges, map, host } = arenas;
    let device = DeviceMemory::new(map.clone(), &warm.facts, limit);
    let usage = Arc::new(Usage::default());
    let devices = SessionPeers::addresses(&warm.facts);
    let (driver, facts, copy_context, contexts) = (warm.driver, warm.facts, warm.copy_context, warm.contexts);
    let shared = Arc::clone(&usage);
    let setup = Setup { driver, facts, map, device, host, capture, warm: contexts, copy_context, usage: shared };
    let session = Box::leak(Box::new(Session::without_program(setup)));
    if !warm.has_journal {
        session.keep_no_journal();
    }
    let ready = Ready { worker_pid: std::process::id(), key: note.key, driver: warm.name, arenas: ranges };
    let link = program.open(build, &ready, 0)?;
    session.connect(&*link);
    // Without the cache programs send their module images each time.
    if let Some(module_cache) = warm.module_cache {
        session.use_module_cache(module_cache);
    }
    let usage = Arc::new(move || (usage.memory(), usage.calls()));
    let concerns = ServerView { usage, peers: SessionPeers::new(session.reclaim(), devices) };
    running::accompany(
        session,
        link,
        ready,
        build,
        control,
        CompanionSlot::default(),
        Log::to_descriptor(real),
        concerns,
    )
}
