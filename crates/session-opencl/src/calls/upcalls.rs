//! Queue of callbacks that are due: the event poller and the drivers' threads add them, the program's upcall thread fetches them.
//!
//! No thread waits until a callback has run: OpenCL promises only that it will be called. The queue ends no wait when the program
//! dies: its worker exits, and every wait with it.

use katydid_session_core::UpcallQueue;
use katydid_wire::frame::FrameHead;

/// A due callback of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PendingCallback {
    /// Token under which the program registered it.
    pub(crate) token: u64,
    /// State of an event; 0 for others.
    pub(crate) status: i32,
    /// Error text of a context; empty for others.
    pub(crate) text: Vec<u8>,
}

/// Callbacks in order of arrival, and callbacks that the driver makes once it has destroyed objects that the program released.
#[derive(Debug, Default)]
pub(crate) struct Upcalls(UpcallQueue<PendingCallback, Vec<u64>>);

impl Upcalls {
    /// Adds a due callback, and removes the awaited one with the same token.
    pub(crate) fn push(&self, callback: PendingCallback) {
        drop(self.0.push(|awaited| {
            awaited.retain(|token| *token != callback.token);
            callback
        }));
    }

    /// Notes the callbacks of an object that the program has released, in the order in which they will be due. Drivers release a
    /// command's objects after they report its end, so a session can be at rest before.
    pub(crate) fn expect(&self, tokens: impl IntoIterator<Item = u64>) {
        self.0.lock().notes.extend(tokens);
    }

    /// Waits for the next callback; `head` is the frame that it answers.
    pub(crate) fn next(&self, head: &FrameHead) -> PendingCallback {
        self.0.next(head, |_| (), |_, _| ())
    }

    /// Returns the frame that the next callback will answer, if the program has asked.
    pub(crate) fn waiting(&self) -> Option<FrameHead> {
        self.0.waiting()
    }

    /// Returns the due callbacks that were not fetched; they stay due. Awaited callbacks count as due if no restore makes their
    /// object again.
    pub(crate) fn pending(&self) -> Vec<PendingCallback> {
        let state = self.0.lock();
        let awaited = state.notes.iter().map(|token| PendingCallback { token: *token, status: 0, text: Vec::new() });
        state.queue.iter().cloned().chain(awaited).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: FrameHead = FrameHead { opcode: 1, wants_reply: true, thread: 2, context: 0, sequence: 3 };

    #[test]
    fn callbacks_come_out_in_order() {
        let upcalls = Upcalls::default();
        for token in 1..4 {
            upcalls.push(PendingCallback { token, status: 0, text: Vec::new() });
        }
        assert_eq!([upcalls.next(&HEAD).token, upcalls.next(&HEAD).token, upcalls.next(&HEAD).token], [1, 2, 3]);
    }

    #[test]
    fn next_upcall_blocks_until_one_is_pushed() {
        let upcalls = Upcalls::default();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| upcalls.next(&HEAD));
            upcalls.push(PendingCallback { token: 7, status: -1, text: b"x".to_vec() });
            assert_eq!(waiting.join().unwrap().token, 7);
        });
    }
}
