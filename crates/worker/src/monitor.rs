//! Ends the process as soon as its program or its server is gone. A program that may leave is no reason to end. On a stream link
//! the worker also sends a waiting program a sign of life every second.
//!
//! The main loop and the driver's threads may be anywhere then, even in the middle of a kernel, so they are not asked. The
//! process exits without unwinding, and the system takes back device memory, registrations and mappings.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use katydid_transport::LinkControl;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::control;
use crate::os::exit::leave;
use crate::os::host_memory;

/// How often usage is reported, when it has changed.
const USAGE_REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// How often the monitor checks whether a program that has left is back.
const RETURN_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Returns the bytes of device memory that a session holds, and its calls so far.
pub(crate) type UsageOf = Arc<dyn Fn() -> (u64, u64) + Send + Sync>;

/// Reports the session's usage to the server.
pub(crate) struct UsageReporter {
    control: OwnedFd,
    usage: UsageOf,
}

impl UsageReporter {
    pub(crate) fn new(control: OwnedFd, usage: UsageOf) -> Self {
        Self { control, usage }
    }

    /// Reports the current usage unless it equals `reported`. Returns it.
    fn report_change(&self, reported: (u64, u64)) -> (u64, u64) {
        let usage = (self.usage)();
        if usage != reported {
            control::usage(self.control.as_fd(), usage.0, usage.1);
        }
        usage
    }

    /// Reports the usage for the last time. The server's line about the end then has all calls of the session. The next program
    /// waits until the session's memory is free.
    pub(crate) fn tell_end(&self) {
        self.report_change((0, 0));
        control::ended(self.control.as_fd());
    }
}

/// Watches the program and the server in a thread of its own until the process ends. `before_report` waits for work that may
/// outlive the program, but not the server.
///
/// # Errors
///
/// The system refuses a thread.
pub(crate) fn start(
    program: LinkControl,
    meter: UsageReporter,
    before_report: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    thread::Builder::new()
        .name("monitor".into())
        .stack_size(64 << 10)
        .spawn(move || watch(&program, &meter, before_report))?;
    Ok(())
}

fn watch(program: &LinkControl, meter: &UsageReporter, before_report: impl FnOnce()) {
    let mut reported = (0, 0);
    let end = loop {
        if let Some(end) = wait_for_departure(program, &meter.control) {
            break end;
        }
        program.send_heartbeat();
        reported = meter.report_change(reported);
    };
    if end == Departure::Program {
        before_report();
        meter.tell_end();
    }
    leave(0);
}

/// The peer that has gone for good.
#[derive(PartialEq, Eq)]
enum Departure {
    Program,
    Server,
}

/// Waits a period for either peer to go away for good. Ends the connection of a program that may leave.
fn wait_for_departure(program: &LinkControl, control: &OwnedFd) -> Option<Departure> {
    let socket = program.socket();
    let [control_gone, program_gone] = hung_up(control.as_fd(), socket.as_ref().map(|socket| socket.as_fd()));
    let is_over = || program_gone && socket.is_some_and(|socket| !program.ended(&socket));
    if control_gone { Some(Departure::Server) } else { is_over().then_some(Departure::Program) }
}

/// Waits a period for either peer to go away, and checks the process's memory meanwhile. It ignores data on a socket, which
/// others read. Without a program, the wait is short, so that one that comes back is soon watched.
fn hung_up(control: BorrowedFd<'_>, program: Option<BorrowedFd<'_>>) -> [bool; 2] {
    let period = if program.is_some() { USAGE_REPORT_INTERVAL } else { RETURN_POLL_INTERVAL };
    let mut sockets = [control, program.unwrap_or(control)].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::RDHUP));
    let end = Instant::now() + period;
    let outcome = loop {
        let left = end.saturating_duration_since(Instant::now());
        let pause = host_memory::measure(control).min(left);
        let timeout = Timespec { tv_sec: pause.as_secs().cast_signed(), tv_nsec: pause.subsec_nanos().into() };
        match poll(&mut sockets, Some(&timeout)) {
            Ok(0) if pause < left => {}
            outcome => break outcome,
        }
    };
    match outcome {
        Ok(_) => sockets.map(|socket| {
            socket.revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
        }),
        Err(error) => [error != rustix::io::Errno::INTR, false],
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn either_peer_is_missed_when_it_goes() {
        for gone in 0..2 {
            let (control, session) = (pair(), pair());
            let mut peers = [Some(control.1), Some(session.1)];
            assert_eq!(hung_up(control.0.as_fd(), Some(session.0.as_fd())), [false; 2]);
            peers[gone] = None;
            assert!(hung_up(control.0.as_fd(), Some(session.0.as_fd()))[gone]);
        }
    }

    #[test]
    fn end_is_reported_after_the_usage() {
        let (server_end, worker_end) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        UsageReporter::new(worker_end, Arc::new(|| (1 << 30, 17))).tell_end();
        let mut buffer = [0; 64];
        for expected in [&b"usage 1073741824 17"[..], b"ended"] {
            let length = recv(&server_end, &mut buffer, RecvFlags::empty()).unwrap().1;
            assert_eq!(&buffer[..length], expected);
        }
    }

    #[test]
    fn pending_data_is_not_a_hang_up() {
        let (control, session) = (pair(), pair());
        rustix::io::write(&session.1, b"frame").unwrap();
        assert_eq!(hung_up(control.0.as_fd(), Some(session.0.as_fd())), [false; 2]);
    }
}
