//! How long a connection may go on: bounded while the client speaks or reads, not while work is done for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Tells a connection how long it may go on; all handles of one connection are the same.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionTimeout {
    phase: Arc<watch::Sender<Phase>>,
    answer: Duration,
}

/// What a connection is about now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Its request is awaited until then.
    Asking(Instant),
    /// Work is being done for it.
    Working,
    /// Its client reads the answer until then.
    Reading(Instant),
}

impl ConnectionTimeout {
    /// The timeouts of a connection whose request is awaited.
    pub(crate) fn new(request: Duration, answer: Duration) -> Self {
        Self { phase: Arc::new(watch::Sender::new(Phase::Asking(Instant::now() + request))), answer }
    }

    /// The request is there: how long the work takes is no matter of the client's.
    pub(crate) fn is_asked(&self) {
        self.phase.send_replace(Phase::Working);
    }

    /// What is to be sent is known: from here on the client has to read.
    pub(crate) fn is_answered(&self) {
        let reading = Phase::Reading(Instant::now() + self.answer);
        self.phase.send_if_modified(|phase| {
            let was_working = *phase == Phase::Working;
            if was_working {
                *phase = reading;
            }
            was_working
        });
    }

    /// Whether the request is still awaited: nothing has been done for the client, so nothing is lost if the connection ends.
    pub(crate) fn is_asking(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Asking(_))
    }

    /// Returns when the connection is to end.
    pub(crate) async fn over(&self) {
        let mut changes = self.phase.subscribe();
        loop {
            let phase = *changes.borrow_and_update();
            let sleep = async {
                match phase {
                    Phase::Asking(until) | Phase::Reading(until) => sleep_until(until).await,
                    Phase::Working => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep => return,
                // The sender lives as long as `self`.
                _ = changes.changed() => {}
            }
        }
    }
}
