//! The descriptor budget of a server's process: all its parts share one limit.
//!
//! The rule: even when all slots of all listeners, all sessions, all processes for NVML and all connections of the admin socket
//! are taken, the server still has a descriptor for each peer. Where the system allows fewer descriptors, there are fewer slots.

use std::fmt;
use std::sync::OnceLock;

use katydid_http::Limits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::nvml_processes::MAX_NVML_PROCESSES;
use crate::slots::MAX_SLOTS_PER_LISTENER;

/// Descriptors of a silent connection, and of one in a handshake: its socket, and a second name of it. With TLS, files are read
/// meanwhile.
const DESCRIPTORS_PER_SLOT: u64 = 1 + 4;
/// Descriptors of a worker: control socket, process, standard error, socket for exporting memory, user's lock, control group.
const DESCRIPTORS_PER_WORKER: u64 = 6;
/// Descriptors that starting a process takes for a moment: the process's ends, its standard streams, and the pipe that reports a
/// failed `exec`.
const DESCRIPTORS_PER_START: u64 = 8;
/// All others: standard streams, listeners, event loops, what the libraries open for a moment.
const OTHER_DESCRIPTORS: u64 = 64;
/// With fewer slots a listener is useless.
const MIN_SLOTS_PER_LISTENER: u64 = 16;

/// The limit of open descriptors before the server raised it.
static LIMIT_BEFORE_RAISE: OnceLock<Rlimit> = OnceLock::new();

/// Raises this process's limit of open descriptors to the maximum. A server needs some for each session and each connection, and
/// as many may be in flight to its workers. Workers start with the old limit.
pub fn raise_descriptors() {
    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: before.maximum, maximum: before.maximum };
    // If the limit cannot be raised, fewer sessions fit.
    if setrlimit(Resource::Nofile, raised).is_ok() {
        let _ = LIMIT_BEFORE_RAISE.set(before);
    }
}

/// Returns the limit before [`raise_descriptors`].
pub(crate) fn before_raise() -> Option<Rlimit> {
    LIMIT_BEFORE_RAISE.get().copied()
}

/// How many slots and sessions the descriptors allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DescriptorBudget {
    /// Slots of one listener.
    pub(crate) of_listener: usize,
    /// Most sessions at a time.
    pub(crate) sessions: usize,
    /// The limit of descriptors, if it is too low for the whole configuration.
    pub(crate) descriptor_limit: Option<u64>,
}

impl DescriptorBudget {
    /// Returns what fits in this process's limit.
    pub(crate) fn for_this_process(listeners: usize, sessions: usize, warm: usize) -> Self {
        Self::of(getrlimit(Resource::Nofile).current, listeners, sessions, warm)
    }

    /// Reduces slots first, since a program that finds none tries again; then sessions.
    fn of(limit: Option<u64>, listeners: usize, sessions: usize, warm: usize) -> Self {
        let unlimited = Self { of_listener: MAX_SLOTS_PER_LISTENER, sessions, descriptor_limit: None };
        let (listeners, session_count) = (listeners.max(1) as u64, sessions as u64);
        let fixed = fixed(warm);
        let Some(limit) = limit.filter(|limit| {
            *limit
                < session_count
                    .saturating_mul(DESCRIPTORS_PER_WORKER)
                    .saturating_add(fixed + listeners * MAX_SLOTS_PER_LISTENER as u64 * DESCRIPTORS_PER_SLOT)
        }) else {
            return unlimited;
        };
        let available = limit.saturating_sub(fixed);
        let sessions = (available.saturating_sub(listeners * MIN_SLOTS_PER_LISTENER * DESCRIPTORS_PER_SLOT)
            / DESCRIPTORS_PER_WORKER)
            .clamp(1, session_count.max(1));
        let slots = available.saturating_sub(sessions * DESCRIPTORS_PER_WORKER) / (listeners * DESCRIPTORS_PER_SLOT);
        let of_listener = slots.clamp(MIN_SLOTS_PER_LISTENER, MAX_SLOTS_PER_LISTENER as u64) as usize;
        Self { of_listener, sessions: sessions as usize, descriptor_limit: Some(limit) }
    }
}

/// Returns the descriptors that are not shared out. Processes for NVML are started by the threads of their programs' handshakes,
/// many at once.
fn fixed(warm: usize) -> u64 {
    // The admin socket's share: connections without a request, and answered ones.
    let admin = Limits::default();
    OTHER_DESCRIPTORS
        + (admin.pending_connections + admin.answered_requests) as u64
        + MAX_NVML_PROCESSES as u64 * (DESCRIPTORS_PER_WORKER + DESCRIPTORS_PER_START)
        + warm as u64 * DESCRIPTORS_PER_WORKER
        + DESCRIPTORS_PER_START
}

impl fmt::Display for DescriptorBudget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limit, of_listener, sessions) = (self.descriptor_limit.unwrap_or(0), self.of_listener, self.sessions);
        write!(out, "the system allows this server {limit} descriptors (ulimit -Hn): ")?;
        write!(
            out,
            "{of_listener} connections wait at a listener, instead of {MAX_SLOTS_PER_LISTENER}, and {sessions} sessions run at a time"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_fits_in_a_usual_limit() {
        let all = DescriptorBudget { of_listener: MAX_SLOTS_PER_LISTENER, sessions: 256, descriptor_limit: None };
        assert_eq!([DescriptorBudget::of(None, 4, 256, 1), DescriptorBudget::of(Some(524_288), 4, 256, 1)], [all; 2]);
        assert_eq!(DescriptorBudget::of(Some(4096), 2, 256, 1), all);
    }

    #[test]
    fn slots_go_before_sessions_and_what_is_left_fits() {
        let [some, descriptor_limit] = [3000, 1500].map(|limit| DescriptorBudget::of(Some(limit), 2, 256, 1));
        assert_eq!((some.sessions, some.descriptor_limit), (256, Some(3000)));
        assert!((MIN_SLOTS_PER_LISTENER as usize..MAX_SLOTS_PER_LISTENER).contains(&some.of_listener), "{some}");
        assert_eq!(descriptor_limit.of_listener, MIN_SLOTS_PER_LISTENER as usize);
        assert!((1..256).contains(&descriptor_limit.sessions), "{descriptor_limit}");
        for shares in [some, descriptor_limit] {
            let slots = 2 * shares.of_listener as u64 * DESCRIPTORS_PER_SLOT;
            let descriptors = fixed(1) + shares.sessions as u64 * DESCRIPTORS_PER_WORKER + slots;
            assert!(Some(descriptors) <= shares.descriptor_limit, "{descriptors} in {shares}");
        }
        assert_eq!(DescriptorBudget::of(Some(64), 3, 256, 1).sessions, 1);
        let most = DescriptorBudget::of(Some(3000), 2, usize::MAX, 1);
        assert!((1..3000).contains(&most.sessions), "{most}");
    }
}
