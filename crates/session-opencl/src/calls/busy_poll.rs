//! What calls of OpenCL wait for, where the main loop looks for a moment before an executor waits (`katydid_session_core`).

use katydid_session_core::WaitStatus;

use crate::calls::session_shared::{OpenCl, OpenclSessionShared};
use crate::objects::held_events::HeldEvent;

/// Processors of a machine on which the main loop looks: with a single one, a thread that looks keeps the others from working.
const MIN_SPIN_PROCESSORS: usize = 2;
/// More events than this are not looked at: each is asked about.
const MAX_EVENT_QUERIES: usize = 8;

/// What the main loop has.
pub(crate) type MainLoop = katydid_session_core::MainLoop<OpenCl, AwaitedEvents>;
/// Whether it looks, and at what.
pub(crate) type BusyPoll = katydid_session_core::BusyPoll<OpenCl, AwaitedEvents>;

/// That of a session in which nothing has happened yet.
pub(crate) fn main_loop() -> MainLoop {
    MainLoop::new(BusyPoll::new(MIN_SPIN_PROCESSORS, false))
}

/// Events that a call waits for, and nothing else.
#[derive(Debug)]
pub struct AwaitedEvents {
    events: Vec<HeldEvent>,
    is_on_cpu: bool,
}

impl AwaitedEvents {
    /// None for none, and for more than can be asked about. `is_on_cpu` tells whether processors are the devices.
    pub(crate) fn new(events: Vec<HeldEvent>, is_on_cpu: impl FnOnce(&[HeldEvent]) -> bool) -> Option<Self> {
        if events.is_empty() || events.len() > MAX_EVENT_QUERIES {
            return None;
        }
        Some(Self { is_on_cpu: is_on_cpu(&events), events })
    }
}

impl katydid_session_core::WaitTarget<OpenCl> for AwaitedEvents {
    fn query(&mut self, _: &OpenclSessionShared) -> WaitStatus {
        // The last that is still awaited is asked about; those that have ended are not asked about again.
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
