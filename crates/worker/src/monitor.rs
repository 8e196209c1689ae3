//! Ends the process the moment its program or its daemon is gone.
//!
//! The main loop and the driver's threads may be anywhere then, in the middle of a kernel too, so nobody is asked:
//! the process exits without unwinding, and the system takes back device memory, registrations and mappings.

#![expect(unsafe_code, reason = "leaving the process without running exit handlers has no safe interface")]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use katydid_session::Usage;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::control;

/// How often usage is told, when it changed.
const PERIOD: Duration = Duration::from_secs(1);

/// Leaves at once. Exit handlers are not run: the driver's would wait for kernels that nobody wants any more.
pub(crate) fn leave(code: i32) -> ! {
    // SAFETY: `_exit` ends the process; no code of it runs afterwards.
    unsafe { libc::_exit(code) }
}

/// Watches both sockets in a thread of its own until the process ends.
///
/// # Errors
///
/// When the system gives no thread.
pub(crate) fn start(session: OwnedFd, control: OwnedFd, usage: Arc<Usage>) -> std::io::Result<()> {
    thread::Builder::new()
        .name("monitor".into())
        .stack_size(64 << 10)
        .spawn(move || watch(&session, &control, &usage))?;
    Ok(())
}

fn watch(session: &OwnedFd, control: &OwnedFd, usage: &Usage) {
    let mut told = (0, 0);
    while !hung_up(session, control) {
        let now = (usage.device_memory(), usage.calls());
        if now != told {
            told = now;
            control::usage(control.as_fd(), now.0, now.1);
        }
    }
    leave(0);
}

/// Waits a period for either peer to go away. Data on a socket is not looked at: the link reads it.
fn hung_up(session: &OwnedFd, control: &OwnedFd) -> bool {
    let mut sockets = [session, control].map(|socket| PollFd::new(socket, PollFlags::RDHUP));
    let period = Timespec { tv_sec: PERIOD.as_secs().cast_signed(), tv_nsec: 0 };
    match poll(&mut sockets, Some(&period)) {
        Ok(_) => sockets.iter().any(|socket| {
            socket.revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
        }),
        Err(error) => error != rustix::io::Errno::INTR,
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn either_peer_is_missed_when_it_goes() {
        for gone in 0..2 {
            let (session, control) = (pair(), pair());
            let mut peers = [Some(session.1), Some(control.1)];
            assert!(!hung_up(&session.0, &control.0));
            peers[gone] = None;
            assert!(hung_up(&session.0, &control.0));
        }
    }

    #[test]
    fn waiting_data_is_no_hang_up() {
        let (session, control) = (pair(), pair());
        rustix::io::write(&session.1, b"frame").unwrap();
        assert!(!hung_up(&session.0, &control.0));
    }
}
