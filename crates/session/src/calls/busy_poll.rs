//! What calls of CUDA wait for, where the main loop looks for a moment before an executor waits (`katydid_session_core`).

#![expect(unsafe_code, reason = "asks the driver about handles of its own")]

use katydid_cuda_sys::{CUevent, CUresult, CUstream};
use katydid_driver::Driver;
use katydid_session_core::WaitStatus;

use crate::calls::session_shared::{Cuda, CudaSessionShared};

/// Processors of a machine on which the main loop looks: with fewer, the thread that looks keeps the others from working.
const MIN_SPIN_PROCESSORS: usize = 3;
/// What flags of contexts say of waiting, and `CU_CTX_SCHED_BLOCKING_SYNC` of it.
const SCHEDULE_MASK: u32 = 7;
const SCHEDULE_BLOCKING_SYNC: u32 = 4;

/// What the main loop has.
pub(crate) type MainLoop = katydid_session_core::MainLoop<Cuda, WaitTarget>;
/// Whether it looks, and at what.
pub(crate) type BusyPoll = katydid_session_core::BusyPoll<Cuda, WaitTarget>;

/// That of a session in which nothing has happened yet.
pub(crate) fn main_loop() -> MainLoop {
    MainLoop::new(BusyPoll::new(MIN_SPIN_PROCESSORS, true))
}

/// What a call waits for, as far as it can be asked about.
#[derive(Debug)]
pub enum WaitTarget {
    /// Streams that have not been seen idle yet. No thread but the main loop gives them more to do.
    Streams(Vec<CUstream>),
    Event(CUevent),
}

impl WaitTarget {
    /// Success once there is nothing left to wait for, else what the driver said.
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

/// A context with these flags is made. Of a program that wants to wait asleep no thread looks at anything.
pub(crate) fn note_schedule_flags(busy_poll: &mut BusyPoll, flags: u32) {
    if flags & SCHEDULE_MASK == SCHEDULE_BLOCKING_SYNC {
        busy_poll.disable();
    }
}
