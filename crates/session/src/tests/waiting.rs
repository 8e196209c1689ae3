//! Calls that wait for the GPU, and host functions.

use std::sync::atomic::Ordering;

use katydid_wire::message::{
    cuCtxResetPersistingL2Cache, cuEventCreate, cuEventRecord, cuStreamCreate, cuStreamSynchronize, kdFacts,
    kdHostFunction, kdHostPull, kdUpcallNext,
};
use katydid_wire::ranges;

use super::fake::HOST_FUNCTION_RUNS;
use super::stage::Stage;
use crate::calls::fault::SessionError;
use crate::memory::host_memory::VariableOwner;

#[test]
fn a_waiting_thread_holds_up_no_other() {
    let mut stage = Stage::new();
    stage.enqueue(&cuStreamCreate { phStream: 1, Flags: 0 });
    let waiting = stage.begin(&cuStreamSynchronize { hStream: 1 });
    stage.thread = 2;
    stage.call(&kdFacts {});
    assert!(!stage.is_answered(waiting));
    // The event that ends the first thread's wait comes through the same queue.
    stage.enqueue(&cuEventCreate { phEvent: 1, Flags: 0 });
    stage.enqueue(&cuEventRecord { hEvent: 1, hStream: 1 });
    assert_eq!(stage.wait(waiting).status, 0);
}

#[test]
fn a_thread_that_does_not_wait_ends_the_session() {
    let mut stage = Stage::new();
    let outcome = (0..10).map(|_| stage.try_send(&kdUpcallNext { done: 0 }, true)).find_map(Result::err);
    assert!(matches!(outcome, Some(SessionError::Impatient { thread: 1 })), "{outcome:?}");
}

/// The launch after the host function finds the driver's queue full. Behind it come the frames that the function needs:
/// reads of a variable and of a mapped block, and its acknowledgement.
#[test]
fn frames_that_a_host_function_needs_pass_a_blocked_call() {
    HOST_FUNCTION_RUNS.store(0, Ordering::Release);
    let mut stage = Stage::new();
    let bytes = [[5_u8; 64], [6; 64]];
    let [variable, mapping] = bytes.each_ref().map(|bytes| bytes.as_ptr().expose_provenance() as u64);
    stage.session.shared.blocks.add_variable(variable, 64, VariableOwner::Module { module: 1, context: 1 });
    stage.session.shared.blocks.open(mapping, 64, true);
    let mut lines = vec![
        stage.line(&kdHostFunction { stream: 0, token: 7 }, false, None),
        stage.line(&cuCtxResetPersistingL2Cache {}, false, None),
    ];
    stage.thread = 2;
    lines.push(stage.line(&kdUpcallNext { done: 0 }, true, None));
    for address in [variable, mapping] {
        let answered = lines.last().map(|line| line.0.sequence);
        lines.push(stage.line(&kdHostPull { ranges: &ranges::encode(&[(address, 64)]) }, true, answered));
    }
    let answered = lines.last().map(|line| line.0.sequence);
    // Never answered: the script ends before.
    lines.push(stage.line(&kdUpcallNext { done: 7 }, true, answered));
    stage.thread = 1;
    lines.push(stage.line(&kdFacts {}, true, None));
    stage.serve(lines).unwrap();
    assert_eq!(HOST_FUNCTION_RUNS.load(Ordering::Acquire), 1);
}

#[test]
fn a_breach_behind_a_host_function_ends_the_session_too() {
    let mut stage = Stage::new();
    let mut lines = vec![stage.line(&kdHostFunction { stream: 0, token: 7 }, false, None)];
    let (mut head, payload, after) = stage.line(&kdFacts {}, true, None);
    head.opcode = u16::MAX;
    lines.push((head, payload, after));
    assert!(matches!(stage.serve(lines), Err(SessionError::UnknownOpcode { opcode: u16::MAX })));
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
