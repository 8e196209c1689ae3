//! Order between streams, events, and words in memory.

use super::*;
use crate::sync::default_stream::with_per_thread_default;

#[test]
fn a_stream_runs_in_order_while_its_owner_goes_on() {
    let _context = TestContext::new();
    let (stream, log) = (stream(0), Trace::default());
    let gate = StreamGate::new(stream);
    (1..=3).for_each(|number| trace(stream, &log, number));
    // SAFETY: handles by value.
    unsafe {
        assert_eq!(cuStreamQuery(stream), CUresult::ERROR_NOT_READY);
        gate.open();
        ok(cuStreamSynchronize(stream));
        ok(cuStreamQuery(stream));
    }
    assert_eq!(*log.lock().unwrap(), [1, 2, 3]);
}

#[test]
fn the_legacy_stream_comes_after_blocking_streams_and_before_their_next_work() {
    let _context = TestContext::new();
    let (first, second, log) = (stream(0), stream(0), Trace::default());
    let gate = StreamGate::new(first);
    trace(first, &log, 1);
    trace(CUstream::NULL, &log, 2);
    trace(second, &log, 3);
    gate.wait_until_reached();
    assert!(log.lock().unwrap().is_empty());
    gate.open();
    // SAFETY: no arguments.
    ok(unsafe { cuCtxSynchronize() });
    assert_eq!(*log.lock().unwrap(), [1, 2, 3]);
}

#[test]
fn a_non_blocking_stream_does_not_wait_for_the_legacy_stream() {
    let _context = TestContext::new();
    let (free, log) = (stream(1), Trace::default());
    let gate = StreamGate::new(CUstream::NULL);
    trace(free, &log, 1);
    // SAFETY: handles by value.
    unsafe {
        ok(cuStreamSynchronize(free));
        assert_eq!(*log.lock().unwrap(), [1]);
        assert_eq!(cuStreamQuery(CUstream::NULL), CUresult::ERROR_NOT_READY);
        gate.open();
        ok(cuStreamSynchronize(CUstream::NULL));
    }
}

#[test]
fn threads_have_default_streams_of_their_own() {
    let scene = TestContext::new();
    let context = scene.0;
    // SAFETY: handles by value, and locals.
    let own_stream = || unsafe {
        let mut id = 0;
        ok(with_per_thread_default(|| cuStreamGetId(CUstream::NULL, &mut id)));
        id
    };
    let on_this_thread = own_stream();
    let on_other_thread = std::thread::spawn(move || {
        // SAFETY: a handle by value.
        ok(unsafe { cuCtxSetCurrent(CUcontext(std::ptr::without_provenance_mut(context.address() as usize))) });
        own_stream()
    });
    assert_ne!(on_this_thread, on_other_thread.join().unwrap());
    assert_eq!(on_this_thread, own_stream());
    let mut legacy = 0;
    // SAFETY: a local.
    ok(unsafe { cuStreamGetId(CUstream::NULL, &mut legacy) });
    assert_ne!(on_this_thread, legacy);
}

#[test]
fn an_event_is_reached_when_its_stream_gets_there_and_others_wait_for_it() {
    let _context = TestContext::new();
    let (first, second, log) = (stream(1), stream(1), Trace::default());
    let event = event();
    let mut time = 0.0;
    // SAFETY: handles by value, and locals.
    unsafe {
        ok(cuEventQuery(event));
        ok(cuEventSynchronize(event));
        let gate = StreamGate::new(first);
        trace(first, &log, 1);
        ok(cuEventRecord(event, first));
        ok(cuStreamWaitEvent(second, event, 0));
        trace(second, &log, 2);
        assert_eq!(cuEventQuery(event), CUresult::ERROR_NOT_READY);
        assert_eq!(cuEventElapsedTime(&mut time, event, event), CUresult::ERROR_NOT_READY);
        gate.open();
        ok(cuEventSynchronize(event));
        ok(cuStreamSynchronize(second));
    }
    assert_eq!(*log.lock().unwrap(), [1, 2]);
}

#[test]
fn elapsed_time_needs_two_recorded_events_with_times() {
    let _context = TestContext::new();
    let (start, end) = (event(), event());
    let mut untimed = CUevent::NULL;
    let mut time = -1.0;
    // SAFETY: handles by value, and locals.
    unsafe {
        assert_eq!(cuEventElapsedTime(&mut time, start, end), CUresult::ERROR_INVALID_HANDLE);
        ok(cuEventRecord(start, CUstream::NULL));
        assert_eq!(cuEventElapsedTime(&mut time, start, end), CUresult::ERROR_INVALID_HANDLE);
        ok(cuEventRecord(end, CUstream::NULL));
        ok(cuEventSynchronize(end));
        ok(cuEventElapsedTime(&mut time, start, end));
        assert!(time >= 0.0);
        ok(cuEventCreate(&mut untimed, 2));
        ok(cuEventRecord(untimed, CUstream::NULL));
        assert_eq!(cuEventElapsedTime(&mut time, start, untimed), CUresult::ERROR_INVALID_HANDLE);
        ok(cuEventCreate(&mut untimed, 6));
        assert_eq!(cuEventElapsedTime(&mut time, start, untimed), CUresult::ERROR_INVALID_HANDLE);
        assert_eq!(cuEventCreate(&mut untimed, 4), CUresult::ERROR_INVALID_VALUE);
    }
}

#[test]
fn a_destroyed_stream_finishes_its_work() {
    let _context = TestContext::new();
    let (stream, log) = (stream(0), Trace::default());
    let gate = StreamGate::new(stream);
    trace(stream, &log, 1);
    // SAFETY: handles by value.
    unsafe {
        ok(cuStreamDestroy_v2(stream));
        assert_eq!(cuStreamQuery(stream), CUresult::ERROR_INVALID_HANDLE);
        gate.open();
        ok(cuCtxSynchronize());
    }
    assert_eq!(*log.lock().unwrap(), [1]);
}

#[test]
fn a_stream_waits_for_a_word_that_another_writes() {
    let _context = TestContext::new();
    let (waiting, writing, log) = (stream(1), stream(1), Trace::default());
    let word = device_memory(16);
    // SAFETY: handles and addresses by value.
    unsafe {
        ok(cuMemsetD32_v2(word, 0, 4));
        ok(cuCtxSynchronize());
        ok(cuStreamWaitValue32_v2(waiting, word, 5, 0));
        trace(waiting, &log, 1);
        ok(cuStreamWriteValue32_v2(writing, word, 4, 0));
        ok(cuStreamSynchronize(writing));
        assert_eq!(cuStreamQuery(waiting), CUresult::ERROR_NOT_READY);
        ok(cuStreamWriteValue32_v2(writing, word, 6, 0));
        ok(cuStreamSynchronize(waiting));
        assert_eq!(*log.lock().unwrap(), [1]);
        assert_eq!(cuStreamWriteValue32_v2(writing, word + 2, 6, 0), CUresult::ERROR_INVALID_VALUE);
        assert_eq!(cuStreamWaitValue64_v2(writing, 0x1000, 6, 0), CUresult::ERROR_INVALID_VALUE);
    }
}

#[test]
fn a_context_can_be_destroyed_while_a_stream_waits_for_a_word() {
    let scene = TestContext::new();
    let word = device_memory(4);
    // SAFETY: handles and addresses by value.
    ok(unsafe { cuStreamWaitValue32_v2(stream(1), word, 77, 1) });
    drop(scene);
}

#[test]
fn many_threads_over_many_streams_lose_nothing_and_come_to_an_end() {
    const THREADS: usize = 6;
    const ROUNDS: usize = 60;
    let scene = TestContext::new();
    let context = scene.0;
    let streams: Arc<Vec<CUstream>> = Arc::new(vec![CUstream::NULL, stream(0), stream(0), stream(1), stream(1)]);
    let log = Trace::default();
    let work = |thread: usize| {
        let (streams, log) = (Arc::clone(&streams), Arc::clone(&log));
        move || {
            // SAFETY: handles by value.
            ok(unsafe { cuCtxSetCurrent(context) });
            for round in 0..ROUNDS {
                let recording = streams[(thread + round) % streams.len()];
                let waiting = streams[(thread * 3 + round * 2) % streams.len()];
                let event = event();
                trace(recording, &log, 1);
                // SAFETY: handles by value.
                unsafe {
                    ok(cuEventRecord(event, recording));
                    ok(cuStreamWaitEvent(waiting, event, 0));
                    ok(cuEventDestroy_v2(event));
                }
                if round % 16 == 0 {
                    // SAFETY: handles by value.
                    ok(unsafe { cuStreamSynchronize(waiting) });
                }
            }
        }
    };
    let threads: Vec<_> = (0..THREADS).map(|thread| std::thread::spawn(work(thread))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    // SAFETY: no arguments.
    ok(unsafe { cuCtxSynchronize() });
    assert_eq!(log.lock().unwrap().len(), THREADS * ROUNDS);
}
