//! Host functions: the driver's callback thread waits here while the program runs them.
//!
//! A driver calls [`Upcalls::run`] on its own thread and stalls the stream until it returns. The program's upcall thread
//! asks for work with [`Upcalls::next`], whose argument acknowledges the function before. The program has one host function
//! at a time; others wait in the order of the driver's calls.
//!
//! Nothing here ends a wait when the program dies: its worker exits, and every wait with it.

use std::sync::{Condvar, PoisonError};

use katydid_session_core::UpcallQueue;
use katydid_wire::frame::FrameHead;

/// A host function that the program has to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PendingUpcall {
    /// The program's token for it; never 0.
    pub(crate) token: u64,
    /// `CUresult` for stream callbacks; 0 for host functions.
    pub(crate) status: u32,
}

/// The waiting driver threads, by their numbers.
#[derive(Debug, Default)]
struct WaitingDrivers {
    /// The last number that was given.
    last: u64,
    /// Number of the function that the program is running.
    running: Option<u64>,
    /// Numbers of returned functions whose driver threads have not noticed yet.
    finished: Vec<u64>,
}

/// Joins driver threads and the program's upcall thread.
#[derive(Debug, Default)]
pub(crate) struct Upcalls {
    /// Functions to be handed out, with the number of the waiting driver thread.
    pending: UpcallQueue<(u64, PendingUpcall), WaitingDrivers>,
    /// Notified when the program has finished an upcall.
    done: Condvar,
}

impl Upcalls {
    /// Has the program run `token`, and returns when it has. Called by the driver's threads.
    pub(crate) fn run(&self, token: u64, status: u32) {
        let mut state = self.pending.push(|drivers| {
            drivers.last += 1;
            (drivers.last, PendingUpcall { token, status })
        });
        let number = state.notes.last;
        while !state.notes.finished.contains(&number) {
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.notes.finished.retain(|other| *other != number);
    }

    /// Acknowledges the function handed out before if `done` is not 0, and waits for the next.
    pub(crate) fn next(&self, head: &FrameHead, done: u64) -> PendingUpcall {
        let acknowledge = |drivers: &mut WaitingDrivers| {
            if done != 0
                && let Some(number) = drivers.running.take()
            {
                drivers.finished.push(number);
                self.done.notify_all();
            }
        };
        self.pending.next(head, acknowledge, |drivers, (number, _)| drivers.running = Some(*number)).1
    }

    /// Returns the frame to answer when the next function is due, if the program has asked.
    pub(crate) fn waiting(&self) -> Option<FrameHead> {
        self.pending.waiting()
    }

    /// Returns whether a function is due, or running.
    pub(crate) fn is_busy(&self) -> bool {
        let state = self.pending.lock();
        state.notes.running.is_some() || !state.queue.is_empty() || !state.notes.finished.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    const HEAD: FrameHead = FrameHead { opcode: 1, wants_reply: true, thread: 2, context: 0, sequence: 3 };

    #[test]
    fn the_driver_waits_until_the_program_is_done() {
        let upcalls = Arc::new(Upcalls::default());
        let returned = Arc::new(AtomicBool::new(false));
        let driver = thread::spawn({
            let (upcalls, returned) = (Arc::clone(&upcalls), Arc::clone(&returned));
            move || {
                upcalls.run(7, 0);
                returned.store(true, Ordering::SeqCst);
                upcalls.run(8, 2);
            }
        });
        assert_eq!(upcalls.next(&HEAD, 0), PendingUpcall { token: 7, status: 0 });
        assert!(!returned.load(Ordering::SeqCst));
        assert_eq!(upcalls.next(&HEAD, 7), PendingUpcall { token: 8, status: 2 });
        assert!(returned.load(Ordering::SeqCst));
        let program = thread::spawn({
            let upcalls = Arc::clone(&upcalls);
            move || upcalls.next(&HEAD, 8)
        });
        driver.join().unwrap();
        drop(upcalls.pending.push(|_| (99, PendingUpcall { token: 9, status: 0 })));
        assert_eq!(program.join().unwrap().token, 9);
    }

    #[test]
    fn an_acknowledgement_of_nothing_is_harmless() {
        let upcalls = Arc::new(Upcalls::default());
        let driver = thread::spawn({
            let upcalls = Arc::clone(&upcalls);
            move || upcalls.run(5, 0)
        });
        assert_eq!(upcalls.next(&HEAD, 1234).token, 5);
        drop(upcalls.pending.push(|_| (99, PendingUpcall { token: 6, status: 0 })));
        upcalls.next(&HEAD, 5);
        driver.join().unwrap();
    }
}
