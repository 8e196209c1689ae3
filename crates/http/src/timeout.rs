//! Time limits of a connection. They apply while the client sends or reads, not while work is done for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Ends a connection in time. All handles of one connection are equivalent.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionTimeout {
    phase: Arc<watch::Sender<Phase>>,
    answer: Duration,
}

/// The phase of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Waits for the request until then.
    Asking(Instant),
    /// Work is done for the client.
    Working,
    /// The client may read the answer until then.
    Reading(Instant),
}

impl ConnectionTimeout {
    /// Creates the time limits of a connection whose request has not come.
    pub(crate) fn new(request: Duration, answer: Duration) -> Self {
        Self { phase: Arc::new(watch::Sender::new(Phase::Asking(Instant::now() + request))), answer }
    }

    /// Notes that the request has come: the time of the work is not the client's.
    pub(crate) fn is_asked(&self) {
        self.phase.send_replace(Phase::Working);
    }

    /// Notes that the answer is complete: from here on the client has to read.
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

    /// Returns whether the request has not come: nothing was done for the client, so nothing is lost if the connection ends.
    pub(crate) fn is_asking(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Asking(_))
    }

    /// Waits until the connection must end.
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
