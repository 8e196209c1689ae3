//! Silent connections, whose peers have sent nothing yet. They cost a descriptor each and no thread, and last for a bounded time.
//!
//! A connection whose peer sends a first byte gets a thread for its handshake (`accept.rs`). When the slots of a listener or of a
//! peer are taken, the server closes the oldest silent connection (`slots.rs`) and tells it to try again.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::listen::{Listener, Peer};
use crate::slots::{SlotAdmission, SlotLimits, SlotOwner, find_slot};

/// How long the server accepts nothing after the system refused, for instance because all descriptors are in use.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// A connection, and the listener that it came by.
#[derive(Debug)]
pub(crate) struct NewConnection {
    pub(crate) socket: OwnedFd,
    pub(crate) peer: Peer,
    pub(crate) listener: usize,
}

/// A connection whose peer has sent nothing.
#[derive(Debug)]
struct SilentConnection {
    arrived: NewConnection,
    deadline: Instant,
}

/// All silent connections, oldest first.
#[derive(Debug)]
pub(crate) struct HelloQueue {
    silent: Vec<SilentConnection>,
    timeout: Duration,
    limits: SlotLimits,
    /// Nothing is accepted before this time.
    paused_until: Option<Instant>,
}

/// Listeners and connections that need attention.
#[derive(Debug, Default)]
pub(crate) struct ReadyConnections {
    /// Listeners with connections to accept.
    pub(crate) listeners: Vec<usize>,
    /// Connections whose peers have sent bytes.
    pub(crate) spoken: Vec<NewConnection>,
    /// Connections whose time is over.
    pub(crate) late: Vec<NewConnection>,
}

impl HelloQueue {
    pub(crate) fn new(timeout: Duration, limits: SlotLimits) -> Self {
        Self { silent: Vec::new(), timeout, limits, paused_until: None }
    }

    /// Waits for events, until `due` at most. Returns none when the server stops.
    pub(crate) fn wait(
        &mut self,
        listeners: &[Listener],
        stop: &OwnedFd,
        work_at: Instant,
    ) -> Option<ReadyConnections> {
        let now = Instant::now();
        self.paused_until = self.paused_until.filter(|until| *until > now);
        let accepting = if self.paused_until.is_some() { &[] } else { listeners };
        let sources = [stop.as_fd()].into_iter().chain(accepting.iter().map(AsFd::as_fd));
        let sources = sources.chain(self.silent.iter().map(|silent| silent.arrived.socket.as_fd()));
        let until = self.next_time().map_or(work_at, |until| until.min(work_at));
        let events = readable(sources, until.saturating_duration_since(now));
        let (stops, events) = events.split_first()?;
        if *stops {
            return None;
        }
        let (listening, speaking) = events.split_at_checked(accepting.len())?;
        let listeners = listening.iter().enumerate().filter(|(_, is_ready)| **is_ready).map(|(at, _)| at).collect();
        let (spoken, late) = self.sort_out(speaking);
        Some(ReadyConnections { listeners, spoken, late })
    }

    /// Returns the next time at which something is due without an event.
    fn next_time(&self) -> Option<Instant> {
        self.silent.iter().map(|silent| silent.deadline).chain(self.paused_until).min()
    }

    /// Takes out connections whose peers have sent bytes, and those whose time is over. Drops those that have hung up.
    fn sort_out(&mut self, speaking: &[bool]) -> (Vec<NewConnection>, Vec<NewConnection>) {
        let (now, mut spoken, mut late) = (Instant::now(), Vec::new(), Vec::new());
        for (at, silent) in std::mem::take(&mut self.silent).into_iter().enumerate() {
            let word = match speaking.get(at) {
                Some(true) => first_word(silent.arrived.socket.as_fd()),
                _ => FirstBytes::NotYet,
            };
            match word {
                FirstBytes::Readable => spoken.push(silent.arrived),
                FirstBytes::Closed => {}
                FirstBytes::NotYet if silent.deadline <= now => late.push(silent.arrived),
                FirstBytes::NotYet => self.silent.push(silent),
            }
        }
        (spoken, late)
    }

    /// Queues a connection until its first byte. Returns the connection that must go for it, if any.
    pub(crate) fn enter(&mut self, arrived: NewConnection) -> Option<NewConnection> {
        let holder = |silent: &SilentConnection| {
            let NewConnection { listener, ref peer, .. } = silent.arrived;
            SlotOwner { listener, origin: peer.origin, may_go: true }
        };
        let holders: Vec<SlotOwner> = self.silent.iter().map(holder).collect();
        let displaced = match find_slot(&holders, arrived.listener, arrived.peer.origin, self.limits) {
            SlotAdmission::Replacing(at) => Some(self.silent.remove(at).arrived),
            SlotAdmission::Free => None,
            SlotAdmission::None => return Some(arrived),
        };
        self.silent.push(SilentConnection { arrived, deadline: Instant::now() + self.timeout });
        displaced
    }

    /// Stops accepting for a while, since the system refuses. Returns the oldest silent connection, to free its descriptor.
    pub(crate) fn pause_accepting(&mut self) -> Option<NewConnection> {
        self.paused_until = Some(Instant::now() + ACCEPT_RETRY_PAUSE);
        (!self.silent.is_empty()).then(|| self.silent.remove(0).arrived)
    }
}

/// Returns which of the sources can be read, or have ended. All are false after the time limit, or an interruption.
fn readable<'a>(sources: impl Iterator<Item = BorrowedFd<'a>>, time: Duration) -> Vec<bool> {
    let mut events: Vec<_> = sources.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN)).collect();
    // Rounded up, since the last moments would otherwise be a busy loop.
    let time = Timespec::try_from(time + Duration::from_millis(1)).ok();
    let has_some = poll(&mut events, time.as_ref()).is_ok_and(|due| due > 0);
    events.iter().map(|event| has_some && !event.revents().is_empty()).collect()
}

/// The state of a readable connection.
enum FirstBytes {
    Readable,
    Closed,
    NotYet,
}

fn first_word(socket: BorrowedFd<'_>) -> FirstBytes {
    match recv(socket, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, 1..)) => FirstBytes::Readable,
        Err(Errno::AGAIN | Errno::INTR) => FirstBytes::NotYet,
        // Another process only checked whether a server is here.
        Ok(_) | Err(_) => FirstBytes::Closed,
    }
}
