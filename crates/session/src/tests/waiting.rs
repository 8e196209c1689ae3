//! Calls that wait for the GPU, and host functions.

use std::sync::atomic::Ordering;

use katydid_wire::message::{cuEventCreate, cuEventRecord, cuStreamSynchronize, kdFacts, kdHostFunction, kdUpcallNext};

use super::fake::FLAG;
use super::stage::Stage;
use crate::fault::SessionError;

/// One test, because the stream of these tests waits for one flag.
#[test]
fn a_waiting_thread_holds_up_no_other() {
    FLAG.store(0, Ordering::Release);
    let mut stage = Stage::new();
    let waiting = stage.begin(&cuStreamSynchronize { hStream: 0 });
    stage.thread = 2;
    stage.call(&kdFacts {});
    assert!(!stage.is_answered(waiting));
    // What the first thread waits for comes through the same queue.
    stage.enqueue(&cuEventCreate { phEvent: 1, Flags: 0 });
    stage.enqueue(&cuEventRecord { hEvent: 1, hStream: 0 });
    assert_eq!(stage.wait(waiting).status, 0);
}

#[test]
fn a_thread_that_does_not_wait_ends_the_session() {
    let mut stage = Stage::new();
    let outcome = (0..10).map(|_| stage.try_send(&kdUpcallNext { done: 0 }, true)).find_map(Result::err);
    assert!(matches!(outcome, Some(SessionError::Impatient { thread: 1 })), "{outcome:?}");
}

#[test]
fn a_host_function_is_run_by_the_program() {
    let mut stage = Stage::new();
    stage.thread = 2;
    let next = stage.begin(&kdUpcallNext { done: 0 });
    stage.thread = 1;
    stage.enqueue(&kdHostFunction { stream: 0, token: 42 });
    let due = stage.wait(next);
    assert_eq!(due.payload[..8], 42_u64.to_le_bytes());
    stage.thread = 2;
    let next = stage.begin(&kdUpcallNext { done: 42 });
    stage.thread = 1;
    stage.enqueue(&kdHostFunction { stream: 0, token: 43 });
    assert_eq!(stage.wait(next).payload[..8], 43_u64.to_le_bytes());
}
