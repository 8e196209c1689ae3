//! How long a connection may go on: bounded while the client speaks or reads, not while work is done for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Tells a connection how long it may go on; all handles of one connection are the same.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionTimeout {
    /// When the connection ends; none while work is being done for it.
    until: Arc<watch::Sender<Option<Instant>>>,
    answer: Duration,
}

impl ConnectionTimeout {
    /// Of a connection whose request is awaited.
    pub(crate) fn new(request: Duration, answer: Duration) -> Self {
        Self { until: Arc::new(watch::Sender::new(Some(Instant::now() + request))), answer }
    }

    /// The request is there: how long the work takes is no matter of the client's.
    pub(crate) fn is_asked(&self) {
        self.until.send_replace(None);
    }

    /// What is to be sent is known: from here on the client has to read.
    pub(crate) fn is_answered(&self) {
        let until = Instant::now() + self.answer;
        self.until.send_if_modified(|current| current.is_none() && current.replace(until).is_none());
    }

    /// Whether the request is still awaited, or the answer is being read: nothing is lost if the connection ends.
    pub(crate) fn is_waiting(&self) -> bool {
        self.until.borrow().is_some()
    }

    /// Returns when the connection is to end.
    pub(crate) async fn over(&self) {
        let mut changes = self.until.subscribe();
        loop {
            let until = *changes.borrow_and_update();
            let sleep = async {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
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
