//! A session out of an image: a worker without a program rebuilds it for a supervisor, and then its program takes it over.
//!
//! ```text
//! companion without a key ── Restore ──▶ of an outline: journal replayed ───────────────── Restored
//!                         ── Restore ──▶ journal replayed, contents of devices uploaded ── Restored
//! program with the new key ──▶ its pinned memory mapped, registered; the rest replayed ── frames go on
//! ```
//!
//! Until its program has come, the session belongs to its companion: when the companion goes, the process ends.

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use katydid_image::Session as SessionPart;
use katydid_session::device_memory::DeviceMemory;
use katydid_session::{Session, SessionRequirements, Setup, journal_of};
use katydid_session_core::{
    AddressMismatch, Capture, Control, Failure, OutOfMemory, Progress, Restorable, RestoreOptions, Usage,
};
use katydid_transport::{Delivery, Pending};
use katydid_wire::companion::{FromWorker, MovedVariable, ToWorker};
use katydid_wire::handshake::{ArenaRange, Build, ConnectionRole, Ready, RefusalCode, Refused};
use katydid_wire::note::Note;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::companion::store::{ImageClient, RemoteInput};
use crate::companion::writer::{CompanionWriter, failed};
use crate::companion::{Companion, CompanionSlot};
use crate::control;
use crate::memory::{self, Arenas};
use crate::opencl;
use crate::os::exit::leave;
use crate::os::log::Log;
use crate::peers::SessionPeers;
use crate::reexec;
use crate::running::{self, EmptySession, RunningSession, ServerView, lower};
use crate::warm::WarmDriver;

/// How often the companion gets progress, and how often the thread that waits for an order serves connections.
const RESTORE_PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

/// How long a companion that has a worker may be silent.
const RESTORE_COMPANION_TIMEOUT: Duration = Duration::from_secs(120);

/// Rebuilds a session for a companion, then serves the session's program.
pub(crate) fn serve(warm: WarmDriver, peer: Pending, note: &Note, build: &Build, control: OwnedFd) -> ExitCode {
    let log = Log::early();
    let key = note.key;
    let mut ready = Ready { worker_pid: std::process::id(), key, driver: warm.name.clone(), arenas: Vec::new() };
    let writer = peer.consent(build, &ready).map_err(|error| error.to_string());
    let writer = writer.and_then(|socket| CompanionWriter::new(socket).map_err(|error| error.to_string()));
    let writer = match writer {
        Ok(writer) => Arc::new(writer),
        Err(reason) => {
            log.line(format_args!("a supervisor was lost: {reason}"));
            return ExitCode::FAILURE;
        }
    };
    let asker = Arc::new(ImageClient::new(Arc::clone(&writer)));
    let Some((order, folder)) = first_order(&writer) else { return ExitCode::FAILURE };
    let hearing = match OrderThread::start(&writer, &asker) {
        Ok(hearing) => hearing,
        Err(reason) => {
            let _ = writer.send(&failed(reason));
            return ExitCode::FAILURE;
        }
    };
    let attach_point = AttachPoint { control: &control, build, log: &log, program: Mutex::default() };
    let rebuilt = rebuild(warm, (order, folder), note, &writer, &asker, &attach_point);
    let rebuilt = match rebuilt.and_then(|rebuilt| complete(rebuilt, &hearing, &writer, &asker, &attach_point)) {
        Ok(rebuilt) => rebuilt,
        Err(refusal) => {
            hearing.is_refused.store(true, SeqCst);
            let _ = writer.send(&refusal);
            if let FromWorker::Reexec { devices } = refusal {
                log.line(format_args!("cannot begin anew: {}", reexec::with_devices(&devices, note)));
            }
            // Everything made is released at once: another worker may be asked for it.
            leave(1);
        }
    };
    ready.arenas.clone_from(&rebuilt.ranges);
    ready.driver.clone_from(&rebuilt.driver);
    let driver = ready.driver.clone();
    let companion = Companion { writer, slot: CompanionSlot::default(), session: Arc::default(), driver, asker };
    companion.sit_down();
    let (companion_slot, slot) = (companion.slot.clone(), Arc::clone(&companion.session));
    let next = hearing.end_orders();
    if companion.writer.send(&restored(&*rebuilt.session)).is_err() {
        leave(1);
    }
    // The listening thread has received an order: orders come one by one, and this one is answered. That thread lives as long as
    // the process.
    let _ = next.send(companion);
    let name = rebuilt.name.clone();
    match take_up(rebuilt, &ready, &attach_point, &companion_slot, &slot) {
        Ok(running_session) => running::run(running_session, &name),
        Err(reason) => {
            log.line(format_args!("the session {name} could not be taken up: {reason}"));
            leave(1)
        }
    }
}

/// An order, and the image's folder.
type RestoreOrder = (ToWorker, Option<OwnedFd>);

/// Waits for the order to restore.
fn first_order(writer: &CompanionWriter) -> Option<RestoreOrder> {
    loop {
        match writer.receive_within(RESTORE_COMPANION_TIMEOUT) {
            Ok(order @ (ToWorker::Restore { .. }, _)) => return Some(order),
            Ok(_) => writer.send(&failed("there is no session yet")).ok()?,
            Err(_) => return None,
        }
    }
}

/// A thread that receives answers while the session is rebuilt, further orders for an outline, and then serves the companion.
struct OrderThread {
    orders: Receiver<RestoreOrder>,
    next: Sender<Companion>,
    /// Whether the session was refused: then the companion's end changes nothing.
    is_refused: Arc<AtomicBool>,
}

impl OrderThread {
    fn start(writer: &Arc<CompanionWriter>, asker: &Arc<ImageClient>) -> Result<Self, String> {
        let ((order, orders), (next, later)) = (channel(), channel());
        let (writer, asker) = (Arc::clone(writer), Arc::clone(asker));
        let thread = thread::Builder::new().name("orders".into());
        let is_refused = Arc::new(AtomicBool::new(false));
        let refusal_flag = Arc::clone(&is_refused);
        thread
            .spawn(move || receive(&writer, &asker, &order, &later, &refusal_flag))
            .map_err(|error| error.to_string())?;
        Ok(Self { orders, next, is_refused })
    }

    /// Ends the restore's orders. Later ones go to the companion sent through the returned channel.
    fn end_orders(self) -> Sender<Companion> {
        self.next
    }
}

/// Delivers answers, and orders for as long as another thread takes them. The first order after the last `Restored` is the
/// companion's, which is then served as usual.
fn receive(
    writer: &Arc<CompanionWriter>,
    asker: &ImageClient,
    orders: &Sender<RestoreOrder>,
    later: &Receiver<Companion>,
    is_refused: &AtomicBool,
) {
    loop {
        match writer.receive() {
            Ok((message, folder)) => {
                let Some(order) = asker.take(message) else { continue };
                if let Err(SendError(order)) = orders.send((order, folder)) {
                    let Ok(companion) = later.recv() else { leave(1) };
                    return companion.serve_from(Some(order));
                }
            }
            Err(_) => {
                asker.end();
                if is_refused.load(SeqCst) {
                    return;
                }
                // A companion that leaves once the program is there does no harm.
                match later.try_recv() {
                    Ok(companion) => return companion.serve_from(None),
                    Err(_) => leave(0),
                }
            }
        }
    }
}

/// A session that waits for its program.
struct RebuiltSession {
    session: &'static mut dyn Restorable,
    part: SessionPart,
    input: RemoteInput,
    name: String,
    ranges: Vec<ArenaRange>,
    driver: String,
    log: Log,
    concerns: ServerView,
}

/// Rebuilds the device's part of the session. The error is the message for the companion.
fn rebuild(
    warm: WarmDriver,
    (order, folder): RestoreOrder,
    note: &Note,
    writer: &Arc<CompanionWriter>,
    asker: &Arc<ImageClient>,
    attach_point: &AttachPoint<'_>,
) -> Result<RebuiltSession, FromWorker> {
    let ToWorker::Restore { store, session: name, checkpoint, devices, generations, device_only, rehearsal } = order
    else {
        return Err(failed("there is no session yet"));
    };
    let options = RestoreOptions { rehearsal: rehearsal != 0, exact: device_only != 0 };
    let input = RemoteInput::open(store, folder, checkpoint, asker).map_err(failed)?;
    let part = input.part(&name).map_err(failed)?;
    let blank = match opencl::is_kept_in(&part) {
        true => opencl::blank(&warm, note, &part, &devices),
        false => match reexec::device_order(&warm.facts, &devices).map_err(failed)? {
            Some(devices) => return Err(FromWorker::Reexec { devices }),
            None => blank(warm, note, &part, &input, &generations),
        },
    };
    let EmptySession { session, ranges, driver, log, concerns } = blank.map_err(failed)?;
    let control = attach_point.control.try_clone().map_err(failed)?;
    // While this one waits for memory, too, other sessions give back idle memory.
    concerns.peers.connect(control);
    restore(&mut *session, (&part, &input), options, writer, (attach_point, &concerns.peers))?;
    Ok(RebuiltSession { session, part, input, name, ranges, driver, log, concerns })
}

/// Turns a rebuilt outline into the session of the image that is ordered next.
fn complete(
    rebuilt: RebuiltSession,
    hearing: &OrderThread,
    writer: &Arc<CompanionWriter>,
    asker: &Arc<ImageClient>,
    attach_point: &AttachPoint<'_>,
) -> Result<RebuiltSession, FromWorker> {
    if !opencl::is_outline(&rebuilt.part) {
        return Ok(rebuilt);
    }
    let RebuiltSession { session, ranges, driver, log, concerns, part: outline, .. } = rebuilt;
    // The companion's end ends the process.
    let _ = writer.send(&restored(&*session));
    loop {
        match hearing.orders.recv_timeout(RESTORE_PROGRESS_INTERVAL) {
            Ok((ToWorker::Restore { store, session: name, checkpoint, .. }, folder)) => {
                let input = RemoteInput::open(store, folder, checkpoint, asker).map_err(failed)?;
                let part = input.part(&name).map_err(failed)?;
                if !opencl::is_of(&part, &outline) {
                    return Err(failed("what was made ahead was made for another session"));
                }
                let options = RestoreOptions::default();
                restore(&mut *session, (&part, &input), options, writer, (attach_point, &concerns.peers))?;
                return Ok(RebuiltSession { session, part, input, name, ranges, driver, log, concerns });
            }
            Ok(_) => drop(writer.send(&failed("the session has no contents yet"))),
            Err(RecvTimeoutError::Timeout) => attach_point.refuse_connections(&concerns.peers),
            // The listening thread never ends before the process.
            Err(RecvTimeoutError::Disconnected) => leave(1),
        }
    }
}

/// Creates a CUDA session with the addresses of the one in the image.
fn blank(
    warm: WarmDriver,
    note: &Note,
    part: &SessionPart,
    input: &RemoteInput,
    generations: &[u8],
) -> Result<EmptySession, String> {
    let state = journal_of(part, input.source()).map_err(|error| error.to_string())?;
    let opening = SessionRequirements::read(&state).map_err(|error| error.to_string())?;
    let arenas = memory::agree(&warm.driver, warm.facts.devices.len(), &opening.arenas, None);
    let Arenas { ranges, map, host } =
        arenas.map_err(|error| format!("its addresses are not to be had here: {error}"))?;
    let (capture, real) = Capture::start().map_err(|error| format!("cannot take the driver's output: {error}"))?;
    let device = DeviceMemory::new(map.clone(), &warm.facts, lower(opening.memory_limit, note.memory_limit));
    let usage = Arc::new(Usage::default());
    let (name, shared) = (warm.name, Arc::clone(&usage));
    let devices = SessionPeers::addresses(&warm.facts);
    let (driver, facts, copy_context, contexts) = (warm.driver, warm.facts, warm.copy_context, warm.contexts);
    let setup = Setup { driver, facts, map, device, host, capture, warm: contexts, copy_context, usage: shared };
    let session = Box::leak(Box::new(Session::without_program(setup)));
    session.live_in(generations);
    let usage = Arc::new(move || (usage.memory(), usage.calls()));
    let concerns = ServerView { usage, peers: SessionPeers::new(session.reclaim(), devices) };
    Ok(EmptySession { session, ranges, driver: name, log: Log::to_descriptor(real), concerns })
}

/// Returns the message for the companion after the restore.
fn restored(session: &dyn Restorable) -> FromWorker {
    FromWorker::Restored { frames: session.frames(), moved: MovedVariable::encode(session.moved()) }
}

/// Restores, and reports progress. Meanwhile it answers the server.
fn restore(
    session: &mut dyn Restorable,
    (part, input): (&SessionPart, &RemoteInput),
    options: RestoreOptions,
    writer: &CompanionWriter,
    (attach_point, peers): (&AttachPoint<'_>, &SessionPeers),
) -> Result<(), FromWorker> {
    let progress = Progress::default();
    let (is_done, done) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
    thread::scope(|scope| {
        let progress_ref = &progress;
        let teller = thread::Builder::new().name("progress".into());
        let teller = teller.spawn_scoped(scope, move || {
            while attach_point.serve_control_until(&is_done, peers) {
                let message =
                    FromWorker::Progress { done: progress_ref.bytes_done(), total: progress_ref.total(), written: 0 };
                if writer.send(&message).is_err() {
                    progress_ref.cancel();
                }
            }
        });
        teller.map_err(|error| failed(format_args!("cannot start a thread: {error}")))?;
        let outcome = session.restore(part, input.source(), &progress, options);
        drop(done);
        outcome.map_err(refusal)
    })
}

fn refusal(failure: Failure) -> FromWorker {
    let failure = match failure.downcast::<AddressMismatch>() {
        Ok(elsewhere) => return FromWorker::AddressMismatch { text: elsewhere.0 },
        Err(other) => other,
    };
    match failure.downcast::<OutOfMemory>() {
        Ok(no_room) => FromWorker::OutOfDeviceMemory { text: no_room.0 },
        Err(other) => failed(other),
    }
}

/// Waits for the program, and rebuilds what needs it.
fn take_up(
    rebuilt: RebuiltSession,
    ready: &Ready,
    attach_point: &AttachPoint<'_>,
    companion_slot: &CompanionSlot,
    slot: &OnceLock<Control>,
) -> Result<RunningSession, String> {
    let RebuiltSession { session, part, input, log, concerns, .. } = rebuilt;
    let (control, build) = (attach_point.control, attach_point.build);
    let program = attach_point.await_program(&concerns.peers);
    let complete = session.restore_host(program.pinned(), &part, input.source());
    if let Err(reason) = complete.map_err(|error| error.to_string()) {
        program.refuse(build, &Refused::new(RefusalCode::NO_SESSION, reason.clone()));
        return Err(reason);
    }
    let frames = session.frames();
    // Once the program is admitted, its supervisor may go: it has nothing more to do.
    companion_slot.take_up();
    let link = program.open(build, ready, frames).map_err(|error| error.to_string())?;
    session.connect(&*link);
    let running_session =
        running::accompany(session.begin(), link, ready.clone(), build, control, companion_slot.clone(), log, concerns);
    let running_session = running_session.map_err(|error| error.to_string())?;
    if let Some(control) = &running_session.session_control {
        let _ = slot.set(control.clone());
    }
    companion_slot.program_is_back();
    Ok(running_session)
}

/// Where the server's connections and other sessions' reclaim requests arrive.
struct AttachPoint<'a> {
    control: &'a OwnedFd,
    build: &'a Build,
    log: &'a Log,
    /// A program that came before its session was rebuilt.
    program: Mutex<Option<Pending>>,
}

impl AttachPoint<'_> {
    /// Returns the first connection that is the program.
    fn await_program(&self, peers: &SessionPeers) -> Pending {
        if let Some(early) = self.early().take() {
            return early;
        }
        loop {
            if let Some(connection) = self.next(peers) {
                return connection;
            }
        }
    }

    /// Serves the control socket until progress is due. Returns false once `is_done` has no writer any more.
    fn serve_control_until(&self, is_done: &OwnedFd, peers: &SessionPeers) -> bool {
        let next = Instant::now() + RESTORE_PROGRESS_INTERVAL;
        loop {
            let remaining = next.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: 0, tv_nsec: remaining.subsec_nanos().into() };
            let mut ends = [PollFd::new(is_done, PollFlags::IN), PollFd::new(self.control, PollFlags::IN)];
            // An interrupted poll counts as one in which nothing came.
            let _ = poll(&mut ends, Some(&timeout));
            let [done, control] = ends.map(|end| !end.revents().is_empty());
            if done {
                return false;
            }
            if control && let Some(connection) = self.next(peers) {
                let replaced = self.early().replace(connection);
                replaced.into_iter().for_each(|connection| self.refuse(connection));
            }
            if remaining.is_zero() {
                return true;
            }
        }
    }

    fn early(&self) -> MutexGuard<'_, Option<Pending>> {
        // No code under this lock panics.
        self.program.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers pending connections and lines, before there can be a program.
    fn refuse_connections(&self, peers: &SessionPeers) {
        while poll(&mut [PollFd::new(self.control, PollFlags::IN)], Some(&Timespec::default())) == Ok(1) {
            if let Some(connection) = self.next(peers) {
                self.refuse(connection);
            }
        }
    }

    /// Waits for the next connection or line, and answers all but the program.
    fn next(&self, peers: &SessionPeers) -> Option<Pending> {
        match Pending::receive_any(self.control.as_fd(), self.build) {
            Ok(Some(Delivery::Program(connection, _))) => {
                control::connection_accepted(self.control.as_fd());
                if connection.hello().claim.role == ConnectionRole::PROGRAM {
                    return Some(*connection);
                }
                self.refuse(*connection);
            }
            // A session without a program cannot ask it for idle memory.
            Ok(Some(Delivery::Text(line))) => peers.handle_line(&line, self.control.as_fd(), || false, || None),
            // The server is gone, so the session ends.
            Ok(None) => leave(0),
            Err(error) => {
                control::connection_accepted(self.control.as_fd());
                self.log.line(format_args!("a connection of the session was lost: {error}"));
            }
        }
        None
    }

    fn refuse(&self, connection: Pending) {
        connection.refuse(self.build, &Refused::new(RefusalCode::IN_USE, "the session waits for its program"));
    }
}
