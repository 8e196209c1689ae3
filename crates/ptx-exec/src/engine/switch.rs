//! How another thread tells a running grid to pause or to end.

use std::sync::atomic::{AtomicU8, Ordering};

/// What a grid is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Request {
    /// Run, or go on running.
    Run,
    /// Put everything aside, so that `Grid::run` returns `Paused`.
    Pause,
    /// Stop with the fault `Cancelled`.
    Cancel,
}

/// Looked at by every interpreter thread after at most [`Switch::LATENCY`] warp instructions.
#[derive(Debug, Default)]
pub struct Switch(AtomicU8);

impl Switch {
    /// Most warp instructions that a thread runs between two looks, but for the rest of a stretch of 512.
    pub const LATENCY: u64 = 1 << 14;

    /// A switch that lets grids run.
    pub const fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// Asks for a pause, until [`Self::resume`]. A cancelled grid stays cancelled.
    pub fn pause(&self) {
        self.0.fetch_max(Request::Pause as u8, Ordering::AcqRel);
    }

    /// Takes the request for a pause back.
    pub fn resume(&self) {
        let (pause, run) = (Request::Pause as u8, Request::Run as u8);
        // Failing means that no thread asked for a pause, or that the grid is cancelled: both stay as they are.
        let _ = self.0.compare_exchange(pause, run, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Ends every grid that looks at this switch, now and later.
    pub fn cancel(&self) {
        self.0.store(Request::Cancel as u8, Ordering::Release);
    }

    /// Request that is pending.
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
