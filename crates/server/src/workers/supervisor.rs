//! Supervises one worker process from its start to its end, on a thread of its own.
//!
//! Only the supervisor waits for the process, so each is reaped exactly once. The thread that hands a program over holds a
//! [`WorkerHandle`]. The assignment inside decides, under one lock, whether a program met a living worker or a dead one.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use katydid_transport::exporter_sockets;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::control::{self, Message};
use crate::report::{LineKind, LineSource};
use crate::shared::ServerState;
use crate::workers::handle::{Assignment, DriverFound, SessionId, WorkerHandle, WorkerNeeds};
use crate::workers::spawn::Worker;
use crate::workers::start_progress::StartProgress;

/// How long a worker that starts its driver may make no progress.
const DRIVER_START_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a worker that closed its control socket may take to exit. NVIDIA's driver releases contexts one after the other on a
/// busy GPU; 2 s were too few there.
const EXIT_TIMEOUT: Duration = Duration::from_secs(20);

/// A supervised worker.
struct WorkerSupervisor<'a> {
    shared: &'a ServerState,
    worker: Worker,
    handle: WorkerHandle,
    warm: bool,
    /// Why `auto` chose softcuda.
    gpu_error: Option<String>,
    /// It has closed its control socket; only its exit is awaited.
    silent: bool,
    /// When the current wait ends, if it is limited.
    deadline: Option<Instant>,
    /// `None` for a worker that did not come from the pool.
    start: Option<StartProgress>,
    /// The worker's own last reason for its end.
    reason: Option<String>,
}

/// Supervises `worker` until it is dead and reaped. It was started for this need of the pool and counts as warming there.
pub(crate) fn supervise(shared: &ServerState, worker: Worker, need: WorkerNeeds) {
    let handle = WorkerHandle::new(&worker, need);
    let deadline = Some(Instant::now() + DRIVER_START_TIMEOUT);
    let (warm, silent, gpu_error, reason) = (false, false, None, None);
    let start = Some(StartProgress::new(worker.pid()));
    let mut supervisor = WorkerSupervisor { shared, worker, handle, warm, gpu_error, silent, deadline, start, reason };
    while supervisor.step() {}
    supervisor.finish();
}

/// Supervises a process that has a session already, and never was in the pool, until it is dead and reaped.
pub(crate) fn supervise_session(shared: &ServerState, worker: Worker, handle: WorkerHandle) {
    let (warm, silent, deadline, gpu_error, reason) = (true, false, None, None, None);
    let start = None;
    let mut supervisor = WorkerSupervisor { shared, worker, handle, warm, gpu_error, silent, deadline, start, reason };
    while supervisor.step() {}
    supervisor.finish();
}

impl WorkerSupervisor<'_> {
    /// Extends the deadline of a worker that starts its driver and makes progress. Returns whether it does.
    fn starts_yet(&mut self) -> bool {
        let starts = !self.warm && !self.silent && self.start.as_mut().is_some_and(StartProgress::makes_progress);
        if starts {
            self.deadline = Some(Instant::now() + DRIVER_START_TIMEOUT);
        }
        starts
    }

    /// Waits for the next event and handles it. Returns false when the worker must be reaped.
    fn step(&mut self) -> bool {
        let Some([control, exit, stop, socket_broker, output]) = self.wait() else {
            if self.starts_yet() {
                return true;
            }
            self.reason
                .get_or_insert_with(|| "its worker took too long to start or to exit, and was killed".to_owned());
            return false;
        };
        if control {
            self.listen();
        }
        if output {
            self.worker.output.read(&self.shared.reporter);
        }
        if socket_broker
            && self
                .worker
                .socket_broker
                .as_ref()
                .is_some_and(|worker| exporter_sockets::answer(worker.as_fd()).is_err())
        {
            self.worker.socket_broker = None;
        }
        !exit && !stop
    }

    /// Waits for control socket, exit, the server's stop, requests for sockets, and standard error. Returns which are ready;
    /// `None` once the time is over.
    fn wait(&self) -> Option<[bool; 5]> {
        // A closed socket would be reported again and again, so the pidfd replaces it.
        let control = if self.silent { self.worker.pidfd.as_fd() } else { self.worker.control.as_fd() };
        let socket_broker = self.worker.socket_broker.as_ref().map_or(self.worker.pidfd.as_fd(), AsFd::as_fd);
        let output = self.worker.output.source().unwrap_or(self.worker.pidfd.as_fd());
        let mut events = [control, self.worker.pidfd.as_fd(), self.shared.stop.as_fd(), socket_broker, output]
            .map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN));
        let until = self.deadline.into_iter().chain(self.worker.output.rests_until()).min();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut events, timeout.as_ref()) {
            Ok(0) if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) => None,
            Ok(due) => Some(events.map(|event| due > 0 && !event.revents().is_empty())),
            Err(_) => Some([false; 5]),
        }
    }

    /// Reads all messages that have come.
    fn listen(&mut self) {
        while !self.silent {
            match control::receive(&self.worker.control) {
                Ok(Some(message)) => self.receive(message),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Ok(None) | Err(_) => {
                    self.silent = true;
                    self.is_ending();
                    self.deadline = Some(Instant::now() + EXIT_TIMEOUT);
                    return;
                }
            }
        }
    }

    fn receive(&mut self, message: Message) {
        match message {
            Message::Warm(driver) if !self.warm => self.is_up(driver),
            Message::GpuError(reason) => self.gpu_error = Some(reason),
            Message::Failed(reason) | Message::Refused(reason) => self.reason = Some(reason),
            Message::Holds(bytes) => self.reason = Some(self.shared.memory_limits.limit.reason(bytes)),
            Message::Usage { device_memory, calls } => {
                if let Some(id) = self.handle.session() {
                    self.shared.sessions.usage(id, device_memory, calls);
                }
            }
            Message::Ended => self.is_ending(),
            Message::Accepted => self.handle.has_accepted(),
            Message::Short { number, device } => {
                if let Some(id) = self.handle.session() {
                    self.shared.sessions.send_request(id, number, &device);
                }
            }
            Message::ReclaimAsked { session, number } => {
                if let Some(id) = self.handle.session() {
                    self.shared.sessions.on_program_asked(id, (session, number));
                }
            }
            Message::ReclaimDone { session, number } => {
                if let Some(id) = self.handle.session() {
                    self.shared.sessions.on_request_done(id, (session, number));
                }
            }
            Message::Warm(_) | Message::Saved | Message::Unknown => {}
        }
    }

    /// Notes that the worker can take a program. Tells the operator if the driver differs from the one before.
    fn is_up(&mut self, name: String) {
        self.warm = true;
        self.deadline = None;
        let found = DriverFound { name, gpu_error: self.gpu_error.take() };
        let driver = self.handle.driver.get_or_init(|| found);
        if self.shared.pool.ready(&self.handle, driver) {
            self.shared.driver_changed(driver);
        }
    }

    /// Notes that the worker will end: the next program may wait for that.
    fn is_ending(&self) {
        if let Some(id) = self.handle.session() {
            self.shared.sessions.is_ending(id);
        }
    }

    /// Reaps the process, and tells the session or the pool of its end.
    fn finish(mut self) {
        self.listen();
        let outcome = self.worker.outcome();
        self.worker.output.finish(&self.shared.reporter);
        self.reason = self.worker.over_limit.take().or(self.reason.take());
        match self.handle.take_assignment() {
            Assignment::Session(id) => self.end_session(id, &outcome),
            Assignment::Dismissed => {}
            _ if self.shared.pool.is_stopping() => {}
            _ if self.warm => self.lose(&outcome),
            _ => {
                let reason = self.reason.unwrap_or_else(|| format!("its process ended with {outcome}"));
                self.shared.start_failed(&reason, self.handle.need());
            }
        }
    }

    fn lose(&self, outcome: &str) {
        self.shared.stop_loading_opencl(self.handle.need());
        self.shared.pool.lost(&self.handle);
        let pid = self.handle.pid();
        self.shared
            .reporter
            .problem(format_args!("the ready worker {pid} ended unused ({outcome}); another is started"));
    }

    /// Ends a session. A program that simply ends makes its worker exit with 0, which is not reported.
    fn end_session(&self, id: SessionId, outcome: &str) {
        let source = self.shared.sessions.origin(id).map_or(LineSource::Others, LineSource::Peer);
        let was_saved = self.shared.sessions.was_saved(id);
        let Some(session) = self.shared.sessions.end(id) else { return };
        let reason = match &self.reason {
            Some(reason) => format!(": {reason}"),
            None if was_saved => format!(": its worker {} was saved as a process, and ended", session.worker_pid),
            None if outcome == "exit status: 0" || self.shared.pool.is_stopping() => String::new(),
            None => format!(": its worker {} ended with {outcome}", session.worker_pid),
        };
        let calls = session.calls.map_or(String::new(), |calls| format!(" after {calls} calls"));
        let line = format_args!("session {id} ({}) ended{calls}{reason}", control::printable_name(&session.name));
        self.shared.reporter.note_of(LineKind::Session, source, line);
    }
}
