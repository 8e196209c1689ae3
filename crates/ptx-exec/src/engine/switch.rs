//! The switch by which another thread pauses or ends a running grid.

use std::sync::atomic::{AtomicU8, Ordering};

/// A request to a grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Request {
    /// Run, or go on running.
    Run,
    /// Suspend all blocks, so that `Grid::run` returns `Paused`.
    Pause,
    /// Stop with the fault `Cancelled`.
    Cancel,
}

/// Every interpreter thread checks it after at most [`Switch::MAX_UNCHECKED_INSTRUCTIONS`] warp instructions.
#[derive(Debug, Default)]
pub struct Switch(AtomicU8);

impl Switch {
    /// Most warp instructions of a thread between two checks, except for the rest of a chunk of 512.
    pub const MAX_UNCHECKED_INSTRUCTIONS: u64 = 1 << 14;

    /// Returns a switch that lets grids run.
    pub const fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// Requests a pause, until [`Self::resume`]. A cancelled grid stays cancelled.
    pub fn pause(&self) {
        self.0.fetch_max(Request::Pause as u8, Ordering::AcqRel);
    }

    /// Withdraws the request for a pause.
    pub fn resume(&self) {
        let (pause, run) = (Request::Pause as u8, Request::Run as u8);
        // A failure means that there is no request for a pause, or that the grid is cancelled: both stay as they are.
        let _ = self.0.compare_exchange(pause, run, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Ends every grid that uses this switch, now and later.
    pub fn cancel(&self) {
        self.0.store(Request::Cancel as u8, Ordering::Release);
    }

    /// Returns the pending request.
    pub fn request(&self) -> Request {
        match self.0.load(Ordering::Acquire) {
            0 => Request::Run,
            1 => Request::Pause,
            _ => Request::Cancel,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_taken_back_and_a_cancellation_is_not() {
        let switch = Switch::new();
        switch.pause();
        assert_eq!(switch.request(), Request::Pause);
        switch.resume();
        assert_eq!(switch.request(), Request::Run);
        switch.cancel();
        switch.pause();
        switch.resume();
        assert_eq!(switch.request(), Request::Cancel);
    }
}
