//! Copies between the GPU and the buffers of a link that shares no memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use katydid_cuda_sys::CUresult;
use katydid_transport::{BUFFER_COUNT, Buffer, Buffers};
use katydid_wire::message::{cuEventCreate, cuEventRecord, kdContextRelease, kdCopyIn, kdCopyOut};

use super::fake::{calls, fail_next};
use super::stage::{DEVICE, Stage};

/// A copy out of this size takes a buffer.
const BULK_BYTES: u32 = 200_000;

/// The driver call that registers a buffer at its first use.
fn registered(buffers: &Buffers, number: usize) -> String {
    format!("register {:#x} {:#x}", buffers.pointer(number).addr(), katydid_transport::BUFFER_BYTES)
}

/// Plays the GPU that finishes its work with a buffer.
fn pass(buffers: &Buffers, number: usize) {
    let word = buffers.word(number);
    #[expect(unsafe_code, reason = "plays the GPU")]
    // SAFETY: the word belongs to live buffers; all code uses it as an atomic.
    unsafe { AtomicU32::from_ptr(word) }.store(0, Ordering::Release);
}

/// Takes all buffers that are free.
fn take_all(buffers: &Arc<Buffers>) -> Vec<Buffer> {
    std::iter::from_fn(|| buffers.try_take()).collect()
}

/// Whether buffer `number` is free.
fn is_free(buffers: &Arc<Buffers>, number: usize) -> bool {
    take_all(buffers).iter().any(|buffer| buffer.number() == number)
}

#[test]
fn received_buffer_is_copied_in_place_and_held_until_the_gpu_read_it() {
    let mut stage = Stage::new();
    let buffers = stage.lend_buffers();
    let mut buffer = buffers.try_take().unwrap();
    let number = buffer.number();
    let message = kdCopyIn { destination: DEVICE, stream: 0, data: b"from the network" };
    stage.enqueue_from(&mut buffer, &message);
    let (words, length) = buffers.busy_words();
    let (words, word) = (format!("register {:#x} {length:#x}", words.addr()), buffers.word(number).addr());
    let copied = [format!("in {DEVICE:#x} 16 0x0"), format!("write {word:#x} 0")];
    assert_eq!(calls(), [[words, registered(&buffers, number)], copied.clone()].concat());
    drop(buffer);
    assert!(!is_free(&buffers, number), "the GPU reads it still");
    pass(&buffers, number);
    // The same buffer again, now registered.
    let mut buffer = take_all(&buffers).into_iter().find(|buffer| buffer.number() == number).unwrap();
    stage.enqueue_from(&mut buffer, &message);
    assert_eq!(calls(), copied);
}

#[test]
fn a_buffer_that_the_driver_does_not_register_is_free_when_the_copy_was_asked_for() {
    let mut stage = Stage::new();
    let buffers = stage.lend_buffers();
    let mut buffer = buffers.try_take().unwrap();
    let number = buffer.number();
    // The words first, then the buffer.
    stage.session.buffered.as_mut().unwrap().register(&super::fake::driver(), 1, number + 1);
    calls();
    fail_next(CUresult::ERROR_OUT_OF_MEMORY);
    stage.enqueue_from(&mut buffer, &kdCopyIn { destination: DEVICE, stream: 0, data: b"pageable" });
    assert_eq!(calls(), [registered(&buffers, number), format!("in {DEVICE:#x} 8 0x0")]);
    drop(buffer);
    assert!(is_free(&buffers, number));
}

#[test]
fn much_is_copied_out_by_the_main_loop_into_a_buffer_and_sent_from_there() {
    let mut stage = Stage::new();
    let buffers = stage.lend_buffers();
    let source = DEVICE + 5;
    let data = stage.reply(&kdCopyOut { source, size: BULK_BYTES, stream: 0 }).data;
    assert!(data.len() == BULK_BYTES as usize && data.iter().enumerate().all(|(at, byte)| *byte == (5 + at) as u8));
    let called = calls();
    assert_eq!(called.iter().filter(|call| **call == format!("out {source:#x} {BULK_BYTES} 0x0")).count(), 1);
    assert!(called.last().unwrap().starts_with("record "), "{called:?}");
    // The copy gives its buffer back.
    while take_all(&buffers).len() != BUFFER_COUNT {
        std::thread::yield_now();
    }
}

#[test]
fn a_copy_out_that_fails_has_no_data_and_little_takes_no_buffer() {
    let mut stage = Stage::new();
    let buffers = stage.lend_buffers();
    let buffer = buffers.try_take().unwrap();
    stage.session.buffered.as_mut().unwrap().register(&super::fake::driver(), 1, buffer.number());
    drop(buffer);
    calls();
    fail_next(CUresult::ERROR_ILLEGAL_ADDRESS);
    let failed = stage.call(&kdCopyOut { source: DEVICE, size: BULK_BYTES, stream: 0 });
    assert_eq!((failed.status, failed.payload.len()), (CUresult::ERROR_ILLEGAL_ADDRESS.0, 0));
    calls();
    // The thread that waits for the stream finds its work complete.
    stage.enqueue(&cuEventCreate { phEvent: 1, Flags: 0 });
    stage.enqueue(&cuEventRecord { hEvent: 1, hStream: 0 });
    calls();
    let few: Vec<u8> = (0..64).collect();
    assert_eq!(stage.reply(&kdCopyOut { source: DEVICE, size: 64, stream: 0 }).data, few);
    assert_eq!(calls(), [""; 0], "an executor has asked for it");
}

#[test]
fn buffers_are_registered_anew_when_their_context_is_gone() {
    let mut stage = Stage::new();
    let buffers = stage.lend_buffers();
    let mut buffer = buffers.try_take().unwrap();
    let number = buffer.number();
    let message = kdCopyIn { destination: DEVICE, stream: 0, data: b"once" };
    stage.enqueue_from(&mut buffer, &message);
    stage.reply(&kdContextRelease { context: 1, device: 0 });
    stage.retain(1);
    calls();
    stage.enqueue_from(&mut buffer, &message);
    assert!(calls().contains(&registered(&buffers, number)));
}
