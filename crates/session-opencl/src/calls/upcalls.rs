//! Callbacks that are due: the event poller and the drivers' threads put them here, the program's upcall thread fetches them.
//!
//! Nothing waits for a callback to have run: OpenCL promises no more than that it will be called. Nothing here ends a
//! wait when the program dies: its worker exits, and every wait with it.

use katydid_session_core::UpcallQueue;
use katydid_wire::frame::FrameHead;

/// A callback of the program that is to be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PendingCallback {
    /// What the program registered it as.
    pub(crate) token: u64,
    /// State of an event; 0 for others.
    pub(crate) status: i32,
    /// What a context said of an error; empty for others.
    pub(crate) text: Vec<u8>,
}

/// Callbacks in the order in which they came, and those that the driver makes when it has destroyed what the program has
/// released.
#[derive(Debug, Default)]
pub(crate) struct Upcalls(UpcallQueue<PendingCallback, Vec<u64>>);

impl Upcalls {
    /// Adds a callback that is due, in place of one with the same token that is awaited.
    pub(crate) fn push(&self, callback: PendingCallback) {
        drop(self.0.push(|awaited| {
            awaited.retain(|token| *token != callback.token);
            callback
        }));
    }

    /// Notes those of an object that the program has released, in the order in which they will be due. Drivers let go of a
    /// command's objects after they have said that it has ended, so a session can come to rest before.
    pub(crate) fn expect(&self, tokens: impl IntoIterator<Item = u64>) {
        self.0.lock().notes.extend(tokens);
    }

    /// Waits for the next; `head` is the frame that is answered with it.
    pub(crate) fn next(&self, head: &FrameHead) -> PendingCallback {
        self.0.next(head, |_| (), |_, _| ())
    }

    /// The frame that is to be answered when the next callback is due, if the program has asked.
    pub(crate) fn waiting(&self) -> Option<FrameHead> {
        self.0.waiting()
    }

    /// What is due and was not fetched yet, which stays so. Of an object that no thread will have after a restore, what is awaited is due.
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
