//! Contexts, streams and errors in the order of frames.

use katydid_cuda_sys::CUresult;
use katydid_wire::codec::Message as _;
use katydid_wire::message::{
    cuEventRecord, cuStreamCreate, cuStreamDestroy_v2, cuStreamQuery, kdContextRelease, kdFacts,
};

use super::fake::{calls, fail_next};
use super::stage::Stage;

const INVALID_HANDLE: u32 = CUresult::ERROR_INVALID_HANDLE.0;

/// Returns the handle at the end of the only recorded call.
fn handle_made() -> String {
    let calls = calls();
    assert_eq!(calls.len(), 1, "{calls:?}");
    calls[0].rsplit(' ').next().unwrap().to_owned()
}

#[test]
fn the_driver_switches_contexts_only_when_a_frame_names_another() {
    let mut stage = Stage::new();
    stage.retain(2);
    calls();
    let query = cuStreamQuery { hStream: 0 };
    for context in [2, 2, 1, 1, 0, 2] {
        stage.context = context;
        stage.call(&query);
    }
    let switches = calls().iter().filter(|call| call.starts_with("current")).count();
    assert_eq!(switches, 2);
}

#[test]
fn a_frame_in_a_context_that_is_gone_gets_its_code() {
    let mut stage = Stage::new();
    assert_eq!(stage.call(&kdContextRelease { context: 1, device: 0 }).status, 0);
    assert_eq!(stage.call(&cuStreamQuery { hStream: 0 }).status, CUresult::ERROR_CONTEXT_IS_DESTROYED.0);
}

#[test]
fn objects_of_a_released_context_are_gone() {
    let mut stage = Stage::new();
    stage.enqueue(&cuStreamCreate { phStream: 3, Flags: 0 });
    stage.call(&kdContextRelease { context: 1, device: 0 });
    stage.retain(1);
    assert_eq!(stage.call(&cuStreamQuery { hStream: 3 }).status, INVALID_HANDLE);
}

#[test]
fn a_stream_is_found_by_its_id_until_it_is_destroyed() {
    let mut stage = Stage::new();
    stage.enqueue(&cuStreamCreate { phStream: 3, Flags: 1 });
    let handle = handle_made();
    assert_eq!(stage.call(&cuStreamQuery { hStream: 3 }).status, 0);
    assert_eq!(calls(), [format!("query {handle}")]);
    stage.enqueue(&cuStreamDestroy_v2 { hStream: 3 });
    assert_eq!(calls(), [format!("destroy {handle}")]);
    assert_eq!(stage.call(&cuStreamQuery { hStream: 3 }).status, INVALID_HANDLE);
}

#[test]
fn reserved_stream_ids_are_the_default_streams() {
    let mut stage = Stage::new();
    for (id, raw) in [(0, "0x0"), (1, "0x1")] {
        stage.call(&cuStreamQuery { hStream: id });
        assert_eq!(calls(), [format!("query {raw}")]);
    }
}

#[test]
fn each_thread_has_a_default_stream_in_each_context() {
    let mut stage = Stage::new();
    stage.retain(2);
    calls();
    let mut seen = Vec::new();
    for (thread, context) in [(1, 1), (2, 1), (1, 2), (1, 1)] {
        (stage.thread, stage.context) = (thread, context);
        stage.call(&cuStreamQuery { hStream: 2 });
        seen.push(calls().last().unwrap().clone());
    }
    assert_eq!(seen[0], seen[3]);
    seen.pop();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 3);
}

#[test]
fn the_first_error_of_enqueued_calls_comes_once_with_the_next_reply() {
    let mut stage = Stage::new();
    fail_next(CUresult::ERROR_LAUNCH_FAILED);
    stage.enqueue(&cuStreamCreate { phStream: 3, Flags: 0 });
    fail_next(CUresult::ERROR_INVALID_VALUE);
    stage.enqueue(&cuStreamCreate { phStream: 4, Flags: 0 });
    let reply = stage.call(&kdFacts {});
    assert_eq!((reply.status, reply.deferred), (0, CUresult::ERROR_LAUNCH_FAILED.0));
    assert_eq!(stage.call(&kdFacts {}).deferred, 0);
}

#[test]
fn a_handle_that_was_never_made_is_an_error_of_the_call_alone() {
    let mut stage = Stage::new();
    stage.enqueue(&cuEventRecord { hEvent: 5, hStream: 0 });
    assert_eq!(stage.call(&kdFacts {}).deferred, INVALID_HANDLE);
}

#[test]
fn frames_are_counted() {
    let mut stage = Stage::new();
    let before = stage.session.shared.usage.calls();
    stage.call(&kdFacts {});
    stage.send(kdFacts::OPCODE, true, &[]).unwrap();
    assert_eq!(stage.session.shared.usage.calls(), before + 2);
}
