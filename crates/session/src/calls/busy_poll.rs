//! What calls of CUDA wait for. The main loop polls it for a moment before an executor waits (`katydid_session_core`).

#![expect(unsafe_code, reason = "asks the driver about handles of its own")]

use katydid_cuda_sys::{CUevent, CUresult, CUstream};
use katydid_driver::Driver;
use katydid_session_core::WaitStatus;

use crate::calls::session_shared::{Cuda, CudaSessionShared};

/// Fewest processors for a busy poll of the main loop: with fewer, the polling thread keeps the others from working.
const MIN_CUDA_SPIN_PROCESSORS: usize = 3;
/// The flags of contexts for how the processor waits, and `CU_CTX_SCHED_BLOCKING_SYNC` among them.
const SCHEDULE_MASK: u32 = 7;
const SCHEDULE_BLOCKING_SYNC: u32 = 4;

/// The state of the main loop.
pub(crate) type MainLoop = katydid_session_core::MainLoop<Cuda, WaitTarget>;
/// Whether the main loop polls, and for what.
pub(crate) type BusyPoll = katydid_session_core::BusyPoll<Cuda, WaitTarget>;

/// Makes the main loop of a new session.
pub(crate) fn main_loop() -> MainLoop {
    MainLoop::new(BusyPoll::new(MIN_CUDA_SPIN_PROCESSORS, true))
}

/// What a call waits for, if it can be polled.
#[derive(Debug)]
pub enum WaitTarget {
    /// Streams that have not been seen idle yet. Only the main loop gives them more work.
    Streams(Vec<CUstream>),
    Event(CUevent),
}

impl WaitTarget {
    /// Asks the driver: success once there is nothing left to wait for, otherwise the driver's code.
    fn ask(&mut self, driver: &Driver) -> CUresult {
        match self {
            Self::Streams(left) => {
                while let Some(stream) = left.last() {
                    // SAFETY: the handle came from the driver, which refuses one that is gone.
                    match unsafe { driver.cuStreamQuery(*stream) } {
                        CUresult::SUCCESS => drop(left.pop()),
                        other => return other,
                    }
                }
                CUresult::SUCCESS
            }
            // SAFETY: as above.
            Self::Event(event) => unsafe { driver.cuEventQuery(*event) },
        }
    }
}

impl katydid_session_core::WaitTarget<Cuda> for WaitTarget {
    fn query(&mut self, shared: &CudaSessionShared) -> WaitStatus {
        match self.ask(&shared.driver) {
            CUresult::SUCCESS => WaitStatus::Done,
            CUresult::ERROR_NOT_READY => WaitStatus::Pending,
            _ => WaitStatus::Unknown,
        }
    }
}

/// Disables polling for a program that makes a context with flags for waiting asleep.
pub(crate) fn note_schedule_flags(busy_poll: &mut BusyPoll, flags: u32) {
    if flags & SCHEDULE_MASK == SCHEDULE_BLOCKING_SYNC {
        busy_poll.disable();
    }
}
