//! Waits that the main loop polls before it hands them to an executor.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use katydid_cuda_sys::CUresult;
use katydid_session_core::{Api as _, FrameHandler as _, processors};
use katydid_wire::message::{cuCtxSynchronize, cuEventCreate, cuEventSynchronize, cuStreamCreate, kdUpcallNext};

use super::fake::{self, PENDING};
use super::stage::Stage;
use crate::calls::busy_poll::note_schedule_flags;
use crate::calls::executor::{ExecutorTask, Executors};
use crate::calls::session_shared::{Cuda, CudaSessionShared};

/// A session that polls, with an event.
fn stage() -> Stage {
    let mut stage = Stage::new();
    stage.session.main_loop.busy_poll.is_enabled = true;
    stage.session.main_loop.busy_poll.is_on = true;
    // A main loop that yields stops polling when other threads need the processor.
    stage.session.main_loop.busy_poll.yields = false;
    stage.enqueue(&cuEventCreate { phEvent: 1, Flags: 0 });
    fake::calls();
    stage
}

/// Finishes the wait that was sent.
fn finish_wait(stage: &mut Stage, has_news: impl FnMut() -> bool) {
    let (shared, main_loop) = stage.session.parts();
    main_loop.busy_poll.poll_pending_wait(shared, &mut main_loop.executors, has_news).unwrap();
}

/// Sends a wait for the event and finishes it. Returns the number of polls, and whether the main loop made the call.
fn wait(stage: &mut Stage, pending: (u32, CUresult), has_news: impl FnMut() -> bool) -> (usize, bool) {
    PENDING.set(pending);
    let waiting = stage.begin(&cuEventSynchronize { hEvent: 1 });
    finish_wait(stage, has_news);
    assert_eq!(stage.wait(waiting).status, 0);
    let calls = fake::calls();
    (calls.iter().filter(|call| *call == "look").count(), calls.contains(&"wait".to_owned()))
}

#[test]
fn a_wait_that_is_over_at_once_is_made_by_the_main_loop() {
    assert_eq!(wait(&mut stage(), (0, CUresult::SUCCESS), || false), (1, true));
}

#[test]
fn a_link_with_news_ends_the_look() {
    assert_eq!(wait(&mut stage(), (u32::MAX, CUresult::SUCCESS), || true), (1, false));
}

/// Checks only that polling ends, not after how long.
#[test]
fn a_wait_that_is_not_soon_over_goes_to_an_executor() {
    let (looks, here) = wait(&mut stage(), (u32::MAX, CUresult::SUCCESS), || false);
    assert!(looks > 0 && !here);
}

/// The program receives the result of the call itself, which may differ from the query's.
#[test]
fn failed_query_leaves_the_error_to_the_call() {
    assert_eq!(wait(&mut stage(), (0, CUresult::ERROR_ILLEGAL_ADDRESS), || false), (1, false));
}

/// `CU_CTX_SCHED_SPIN`, and `CU_CTX_SCHED_BLOCKING_SYNC` with `CU_CTX_MAP_HOST`.
#[test]
fn a_program_that_waits_asleep_is_not_polled_for() {
    let mut stage = stage();
    stage.session.main_loop.busy_poll.may_spin = true;
    note_schedule_flags(&mut stage.session.main_loop.busy_poll, 1);
    assert!(stage.session.main_loop.busy_poll.may_spin);
    note_schedule_flags(&mut stage.session.main_loop.busy_poll, 4 | 8);
    assert!(!stage.session.main_loop.busy_poll.may_spin);
    assert_eq!(wait(&mut stage, (0, CUresult::SUCCESS), || false), (0, false));
}

#[test]
fn a_frame_of_another_loop_is_not_looked_at() {
    let mut stage = stage();
    stage.session.main_loop.busy_poll.is_on = false;
    assert_eq!(wait(&mut stage, (0, CUresult::SUCCESS), || false), (0, false));
}

/// The wait also covers work that an executor is about to give a stream.
#[test]
fn nothing_is_looked_at_while_an_executor_is_at_work() {
    let mut stage = stage();
    stage.thread = 2;
    stage.begin(&kdUpcallNext { done: 0 });
    stage.thread = 1;
    assert_eq!(wait(&mut stage, (0, CUresult::SUCCESS), || false), (0, false));
}

#[test]
fn all_streams_of_a_context_are_looked_at_while_they_are_few() {
    let mut stage = stage();
    for id in 3..10 {
        stage.enqueue(&cuStreamCreate { phStream: id, Flags: 1 });
        fake::calls();
        let waiting = stage.begin(&cuCtxSynchronize {});
        finish_wait(&mut stage, || false);
        stage.wait(waiting);
        // The new stream, the earlier ones, and the legacy stream.
        assert_eq!(fake::calls().len(), id as usize - 1);
    }
    stage.enqueue(&cuStreamCreate { phStream: 10, Flags: 1 });
    fake::calls();
    let waiting = stage.begin(&cuCtxSynchronize {});
    stage.wait(waiting);
    assert_eq!(fake::calls(), Vec::<String>::new());
}

/// A stream that was seen idle is not queried again. Polling also ends by the clock: a thread that was not scheduled has
/// polled only once.
#[test]
fn a_stream_that_is_busy_holds_the_look_up() {
    let once = || {
        let mut stage = stage();
        stage.enqueue(&cuStreamCreate { phStream: 3, Flags: 1 });
        fake::calls();
        fake::fail_next(CUresult::ERROR_NOT_READY);
        let waiting = stage.begin(&cuCtxSynchronize {});
        let mut news = 0;
        let is_new = || {
            news += 1;
            news > 1
        };
        finish_wait(&mut stage, is_new);
        stage.wait(waiting);
        (news, fake::calls().len())
    };
    // On a busy machine another thread often runs in between.
    assert!((0..10_000).any(|_| once() == (1, 3)));
}

/// Waking it repeatedly adds nothing to the queue.
#[test]
fn an_executor_that_is_roused_loses_no_call_and_takes_none_for_too_many() {
    let stage = stage();
    let (shared, mut executors) = (&stage.session.shared, Executors::default());
    let done = Arc::new(AtomicU64::new(0));
    for number in 1..=2000 {
        executors.wake(shared, 7).unwrap();
        let counted = Arc::clone(&done);
        let task: ExecutorTask = ManuallyDrop::new(Box::new(move |_: &Arc<CudaSessionShared>| {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        executors.run(shared, 7, Cuda::NO_CONTEXT, task).unwrap();
        // An honest program waits for its reply.
        while shared.calls.in_flight() > 0 {
            executors.wake(shared, 7).unwrap();
            thread::yield_now();
        }
        assert_eq!(done.load(Ordering::Relaxed), number);
    }
    assert!(!executors.is_awake(8), "no executor is there");
}

#[test]
fn the_main_loop_stays_awake_no_longer_than_an_executor_has_a_call() {
    let mut stage = stage();
    stage.session.main_loop.busy_poll.may_spin = true;
    let (session, mut looks) = (&stage.session, 0);
    let spin = |has_pending: &mut dyn FnMut() -> bool| {
        session.main_loop.busy_poll.spin_for_executor(&session.shared.calls, || 0, has_pending);
    };
    spin(&mut || {
        looks += 1;
        false
    });
    assert_eq!(looks, 0, "no thread waits for the GPU");
    session.shared.calls.begin();
    spin(&mut || {
        looks += 1;
        if looks == 3 {
            session.shared.calls.end();
        }
        false
    });
    // On a single processor no thread polls twice.
    assert_eq!(looks, if processors() > 1 { 3 } else { 1 });
}
