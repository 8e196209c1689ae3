//! Frames that no honest program sends: each ends the session with one line that names the fault, or returns a code. None of
//! them panics.

use std::sync::atomic::Ordering;

use katydid_cuda_sys::CUevent;
use katydid_wire::codec::Message as _;
use katydid_wire::message::{
    cuEventRecord, cuStreamCreate, cuStreamQuery, kdCopyIn, kdCopyInStaged, kdFacts, kdModuleLoad, kdUpload,
    message_name,
};

use super::fake::HOST_FUNCTION_RUNS;
use super::stage::Stage;

/// All opcodes of this build.
fn opcodes() -> impl Iterator<Item = u16> {
    (1..u16::MAX).take_while(|opcode| message_name(*opcode).is_some())
}

#[test]
fn the_last_message_of_a_session_names_its_breach() {
    let cases: &[(&str, u16, bool, &[u8], &str)] = &[
        ("an opcode of nothing", 0, false, &[], "opcode 0"),
        ("an opcode of the future", u16::MAX, true, &[], "opcode 65535"),
        ("a cut payload", kdCopyIn::OPCODE, false, &[0; 11], "kdCopyIn"),
        ("a payload with a tail", cuStreamQuery::OPCODE, true, &[0; 5], "cuStreamQuery"),
        ("a call without a place for its reply", kdFacts::OPCODE, false, &[], "without waiting"),
        ("an id from nowhere", cuStreamQuery::OPCODE, true, &[255, 255, 255, 255], "stream 4294967295"),
        ("a new object at an id from nowhere", cuStreamCreate::OPCODE, false, &[0, 0, 0, 9, 0, 0, 0, 0], "stream"),
        ("an event from nowhere", cuEventRecord::OPCODE, false, &[0, 0, 0, 9, 0, 0, 0, 0], "event"),
        ("an image without end", kdUpload::OPCODE, false, &[255; 9], "invalid data"),
        (
            "a load without an image",
            kdModuleLoad::OPCODE,
            true,
            &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            "without its data",
        ),
        ("staging on a link that has none", kdCopyInStaged::OPCODE, false, &[0; 28], "staged"),
    ];
    for (what, opcode, wants_reply, payload, expected) in cases {
        let error = Stage::new().send(*opcode, *wants_reply, payload).expect_err(what).to_string();
        assert!(error.contains(expected), "{what}: {error}");
        assert!(!error.contains('\n'), "{what}: {error}");
    }
}

#[test]
fn ids_may_lie_far_apart_in_a_replay_only() {
    const FAR: u32 = 1 << 20;
    let mut stage = Stage::new();
    assert!(stage.session.bind(FAR, CUevent::NULL).is_err());
    stage.session.replay.is_on = true;
    assert!(stage.session.bind(FAR, CUevent::NULL).is_ok());
    assert!(stage.session.bind(u32::MAX, CUevent::NULL).is_err());
}

#[test]
fn every_message_cut_short_is_refused_or_complete() {
    // The driver's queue is never full here.
    HOST_FUNCTION_RUNS.store(1, Ordering::Release);
    for opcode in opcodes() {
        for length in 0..64 {
            let _ = Stage::new().send(opcode, length % 2 == 0, &vec![0; length]);
        }
    }
}

#[test]
fn random_payloads_never_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut stage = Stage::new();
    stage.load();
    for round in 0..60_000_u64 {
        let opcode = (random() % 120) as u16;
        // A wait for an upcall, or for the GPU of these tests, would never end.
        if message_name(opcode)
            .is_some_and(|name| name.contains("Synchronize") || name.contains("PersistingL2") || name == "kdUpcallNext")
        {
            continue;
        }
        let length = (random() % 96) as usize;
        let payload: Vec<u8> =
            (0..length).map(|at| if at % 4 == 0 { random() as u8 & 7 } else { (random() >> 62) as u8 / 3 }).collect();
        stage.context = (random() % 3) as u32;
        stage.thread = 1 + (round % 7) as u32;
        if stage.send(opcode, random() % 2 == 0, &payload).is_err() {
            stage = Stage::new();
            stage.load();
        }
    }
}
