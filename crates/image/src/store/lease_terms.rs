//! How long the writer's lock in an object store lasts, and whether this process still holds it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// Durations of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTerms {
    /// Time between two renewals.
    pub renew_interval: Duration,
    /// How long its holder relies on it after a renewal.
    pub valid_for: Duration,
    /// How long after a renewal another process may take it over.
    pub expires_after: Duration,
}

impl Default for LeaseTerms {
    fn default() -> Self {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        Self { renew_interval: Duration::from_secs(30), valid_for: minutes(5), expires_after: minutes(40) }
    }
}

/// State of the lock of one location.
#[derive(Debug, Default)]
pub(super) struct LeaseHold(Mutex<LeaseState>);

#[derive(Debug, Default, Clone, Copy)]
pub(super) enum LeaseState {
    /// This process does not hold the lock.
    #[default]
    Free,
    /// The lock was last renewed at this moment.
    Renewed(ClockReading),
    /// Another process holds the lock.
    Lost,
}

impl LeaseHold {
    pub(super) fn set(&self, state: LeaseState) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Returns whether a holder may make changes.
    pub(super) fn may_change(&self, terms: &LeaseTerms) -> bool {
        match *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            LeaseState::Free => true,
            LeaseState::Renewed(then) => then.age() < terms.valid_for,
            LeaseState::Lost => false,
        }
    }
}

/// A moment by two clocks: one stops while the machine is suspended, the other can be set.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClockReading {
    since_boot: Duration,
    wall: SystemTime,
}

impl ClockReading {
    pub(super) fn now() -> Self {
        let boot = clock_gettime(ClockId::Boottime);
        let since_boot = Duration::try_from(boot).unwrap_or_default();
        Self { since_boot, wall: SystemTime::now() }
    }

    fn age(&self) -> Duration {
        let now = Self::now();
        let wall = now.wall.duration_since(self.wall).unwrap_or_default();
        now.since_boot.saturating_sub(self.since_boot).max(wall)
    }
}
