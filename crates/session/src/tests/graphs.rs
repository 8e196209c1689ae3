//! Executable graphs: how long the memory that the driver reads stays alive while they run.

use std::sync::Arc;

use katydid_cuda_sys::{CUresult, CUstream};
use katydid_wire::facts::{GraphFacts, StepFacts, StepWork};
use katydid_wire::message::{cuStreamCreate, kdGraphDestroy, kdGraphInstantiate, kdGraphLaunch, kdUpload};

use crate::calls::fault::Fault;

use super::fake::{PENDING, calls, fail_next};
use super::stage::Stage;

/// Context 1 with executable graph 1, whose step is a host function, and context 2 with stream 3.
fn new_stage() -> Stage {
    let mut stage = Stage::new();
    stage.retain(2);
    stage.enqueue(&cuStreamCreate { phStream: 3, Flags: 0 });
    stage.context = 1;
    instantiate(&mut stage, 1, StepWork::Host { token: 7 });
    calls();
    stage
}

/// Instantiates an executable graph of one step.
fn instantiate(stage: &mut Stage, exec: u32, work: StepWork) {
    let step = StepFacts { dependencies: Vec::new(), is_enabled: true, work, inner: Vec::new() };
    let bytes = GraphFacts { steps: vec![step] }.encode();
    stage.enqueue(&kdUpload { total: bytes.len() as u64, data: &bytes });
    stage.reply(&kdGraphInstantiate { exec, graph: exec, flags: 0 });
}

/// Whether something whose address the driver holds keeps the session's shared state alive.
fn is_lent(stage: &Stage) -> bool {
    Arc::strong_count(&stage.session.shared) > 1
}

/// The names of the driver calls, without handles.
fn calls_asked() -> Vec<String> {
    calls().iter().map(|call| call.split(' ').next().unwrap().to_owned()).collect()
}

#[test]
fn memory_of_a_graph_is_held_until_its_launches_complete() {
    let mut stage = new_stage();
    stage.enqueue(&kdGraphLaunch { exec: 1, stream: 0 });
    stage.enqueue(&kdGraphLaunch { exec: 1, stream: 0 });
    assert_eq!(calls_asked(), ["event", "record", "record"]);
    PENDING.set((1, CUresult::SUCCESS));
    stage.enqueue(&kdGraphDestroy { exec: 1 });
    assert!(is_lent(&stage));
    stage.session.sweep_graphs();
    assert!(!is_lent(&stage));
}

#[test]
fn an_event_is_of_the_context_of_the_stream() {
    let mut stage = new_stage();
    stage.enqueue(&kdGraphLaunch { exec: 1, stream: 0 });
    stage.enqueue(&kdGraphLaunch { exec: 1, stream: 3 });
    assert_eq!(calls_asked(), ["event", "record", "current", "event", "current", "record"]);
    PENDING.set((9, CUresult::SUCCESS));
    stage.enqueue(&kdGraphDestroy { exec: 1 });
    // Events end with their contexts, and so do launches.
    stage.session.end_context(1);
    stage.session.sweep_graphs();
    assert!(is_lent(&stage));
    calls();
    stage.session.end_context(2);
    stage.session.sweep_graphs();
    assert!(!is_lent(&stage) && calls().is_empty());
    PENDING.set((0, CUresult::SUCCESS));
}

#[test]
fn memory_of_a_launch_without_a_completion_event_is_held() {
    let mut stage = new_stage();
    stage.enqueue(&kdGraphLaunch { exec: 1, stream: 0 });
    fail_next(CUresult::ERROR_INVALID_HANDLE);
    stage.enqueue(&kdGraphLaunch { exec: 1, stream: 0 });
    stage.enqueue(&kdGraphDestroy { exec: 1 });
    assert!(is_lent(&stage));
}

#[test]
fn an_event_that_answers_an_error_tells_of_no_end() {
    let mut stage = new_stage();
    stage.enqueue(&kdGraphLaunch { exec: 1, stream: 0 });
    PENDING.set((0, CUresult::ERROR_INVALID_CONTEXT));
    stage.enqueue(&kdGraphDestroy { exec: 1 });
    assert!(is_lent(&stage));
    PENDING.set((0, CUresult::SUCCESS));
    stage.session.sweep_graphs();
    assert!(!is_lent(&stage));
}

#[test]
fn the_driver_is_not_asked_about_a_graph_whose_context_has_ended() {
    let mut stage = new_stage();
    for (exec, context) in [(2, 2), (3, 1)] {
        instantiate(&mut stage, exec, StepWork::Batch { context, words: Vec::new() });
    }
    calls();
    stage.session.end_context(2);
    assert!(matches!(
        stage.session.launch_graph(2, CUstream::NULL, 1),
        Err(Fault::Cuda(CUresult::ERROR_CONTEXT_IS_DESTROYED))
    ));
    stage.enqueue(&kdGraphDestroy { exec: 2 });
    assert!(calls_asked().is_empty());
    stage.enqueue(&kdGraphDestroy { exec: 3 });
    assert_eq!(calls_asked(), ["end"]);
}
