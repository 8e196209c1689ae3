//! What OpenCL calls wait for. The main loop polls it for a moment before an executor waits (`katydid_session_core`).

use katydid_session_core::WaitStatus;

use crate::calls::session_shared::{OpenCl, OpenclSessionShared};
use crate::objects::held_events::HeldEvent;

/// The main loop polls on machines with at least this many processors. With a single one, a polling thread keeps the others from
/// working.
const MIN_OPENCL_SPIN_PROCESSORS: usize = 2;
/// Calls that wait for more events than this are not polled: each event takes a query.
const MAX_EVENT_QUERIES: usize = 8;

/// State of the main loop.
pub(crate) type MainLoop = katydid_session_core::MainLoop<OpenCl, AwaitedEvents>;
/// Whether the main loop polls, and what it polls for.
pub(crate) type BusyPoll = katydid_session_core::BusyPoll<OpenCl, AwaitedEvents>;

/// Returns the main loop of a session in which nothing has happened yet.
pub(crate) fn main_loop() -> MainLoop {
    MainLoop::new(BusyPoll::new(MIN_OPENCL_SPIN_PROCESSORS, false))
}

/// Events that a call waits for, and nothing else.
#[derive(Debug)]
pub struct AwaitedEvents {
    events: Vec<HeldEvent>,
    is_on_cpu: bool,
}

impl AwaitedEvents {
    /// Returns `None` without events, and for too many to query. `is_on_cpu` tells whether processors are the devices.
    pub(crate) fn new(events: Vec<HeldEvent>, is_on_cpu: impl FnOnce(&[HeldEvent]) -> bool) -> Option<Self> {
        if events.is_empty() || events.len() > MAX_EVENT_QUERIES {
            return None;
        }
        Some(Self { is_on_cpu: is_on_cpu(&events), events })
    }
}

impl katydid_session_core::WaitTarget<OpenCl> for AwaitedEvents {
    fn query(&mut self, _: &OpenclSessionShared) -> WaitStatus {
        // Queries the last event that is still awaited. Events that have ended are not queried again.
        while let Some(event) = self.events.last() {
            match event.status() {
                Ok(status) if status <= 0 => drop(self.events.pop()),
                Ok(_) => return WaitStatus::Pending,
                Err(_) => return WaitStatus::Unknown,
            }
        }
        WaitStatus::Done
    }

    fn is_on_cpu(&self) -> bool {
        self.is_on_cpu
    }
}
