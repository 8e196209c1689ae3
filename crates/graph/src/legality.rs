//! Calls that a capture forbids, by the modes of the capture and of the calling thread.

use std::cell::Cell;

use katydid_cuda_sys::{CUresult, capture_mode};

use crate::captures::{Capture, CaptureStream, Captures, this_thread};
use crate::outcome::Outcome;

/// The effect of a call that is not captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UncapturedCall {
    /// Might wait, or change what captures of other threads depend on: memory, queries, waits.
    Unsafe,
    /// Waits for a stream, or queries it.
    Stream(CaptureStream),
    /// Waits for a context, by its handle.
    Context(usize),
}

thread_local! {
    /// The mode set by `cuThreadExchangeStreamCaptureMode`.
    static MODE: Cell<u32> = const { Cell::new(capture_mode::GLOBAL) };
}

/// Exchanges the calling thread's mode; any number is accepted, as in the driver.
pub(crate) fn exchange_mode(mode: u32) -> u32 {
    MODE.try_with(|cell| cell.replace(mode)).unwrap_or(mode)
}

/// Returns whether a capture forbids unsafe calls of a thread.
fn forbids(capture: &Capture, thread: u64, mode: u32) -> bool {
    match mode {
        capture_mode::RELAXED => false,
        _ if capture.thread == thread => capture.mode != capture_mode::RELAXED,
        capture_mode::GLOBAL => capture.mode == capture_mode::GLOBAL,
        _ => false,
    }
}

impl Captures {
    /// Refuses a call that a capture forbids, and invalidates that capture.
    pub(crate) fn forbid(&mut self, call: UncapturedCall) -> Outcome {
        let found = match call {
            UncapturedCall::Unsafe => self.invalidate_unsafe(),
            UncapturedCall::Stream(stream) if self.of(stream.key).is_some() => {
                self.invalidate_of(stream.key);
                true
            }
            UncapturedCall::Stream(stream) => {
                self.check_legacy(stream, true)?;
                self.invalidate_unsafe()
            }
            UncapturedCall::Context(context) => self.invalidate(|capture| capture.is_in(context)),
        };
        if found { Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    fn invalidate_unsafe(&mut self) -> bool {
        let (thread, mode) = (this_thread(), MODE.try_with(Cell::get).unwrap_or(capture_mode::GLOBAL));
        self.invalidate(|capture| forbids(capture, thread, mode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::GraphState;

    fn capture(mode: u32) -> GraphState {
        let mut state = GraphState::default();
        let stream = CaptureStream { key: 5, is_legacy: false, is_blocking: false, context: 1 };
        state.begin_capture(stream, mode, None).unwrap();
        state
    }

    /// Modes of thread and capture, and whether the capture's own thread and another one may make an unsafe call.
    const TABLE: [(u32, u32, bool, bool); 9] = [
        (0, 0, false, false),
        (0, 1, false, true),
        (0, 2, true, true),
        (1, 0, false, true),
        (1, 1, false, true),
        (1, 2, true, true),
        (2, 0, true, true),
        (2, 1, true, true),
        (2, 2, true, true),
    ];

    #[test]
    fn unsafe_calls_are_refused_as_the_driver_refuses_them() {
        for (thread_mode, mode, own, other) in TABLE {
            let old_mode = exchange_mode(thread_mode);
            assert_eq!(
                capture(mode).captures.forbid(UncapturedCall::Unsafe).is_ok(),
                own,
                "{thread_mode} {mode}, own thread"
            );
            exchange_mode(old_mode);
            let mut state = capture(mode);
            let allowed = std::thread::spawn(move || {
                exchange_mode(thread_mode);
                state.captures.forbid(UncapturedCall::Unsafe).is_ok()
            });
            assert_eq!(allowed.join().unwrap(), other, "{thread_mode} {mode}, another thread");
        }
    }

    #[test]
    fn waiting_for_the_context_is_refused_whatever_the_mode() {
        for mode in 0..3 {
            let mut state = capture(mode);
            assert_eq!(state.captures.forbid(UncapturedCall::Context(2)), Ok(()));
            assert!(state.captures.forbid(UncapturedCall::Context(1)).is_err(), "{mode}");
            assert_eq!(state.captures.status(5), 2);
        }
    }
}
