//! Back-pressure: waits for a slot in a stream with queued functions of the program.
//!
//! A driver makes a caller wait when a stream has no slot left. Here the worker's main loop calls the driver, and no other
//! thread of the program would be served while it waits. Frames of those would fill the link, so that the end of the
//! function could not be sent past them. So the calling thread waits before it sends.

use katydid_cuda_sys::{CUresult, CUstream};
use katydid_wire::message::cuStreamQuery;

use crate::launch::registry;
use crate::process::session::shim;
use crate::sync::stream;

/// Waits for a slot before a call, outside of captures, that queues work in a stream.
///
/// # Errors
///
/// An earlier error of the stream, or an invalid stream.
pub(crate) fn take_slot(stream: CUstream) -> Result<(), CUresult> {
    take_slots(stream, 1)
}

/// Waits for slots in a driver's queue before a call that takes them.
///
/// # Errors
///
/// As [`take_slot`].
pub(crate) fn take_slots(stream: CUstream, slots: u64) -> Result<(), CUresult> {
    let upcalls = registry::upcalls();
    if !upcalls.has_pending_functions() {
        return Ok(());
    }
    let (streams, key) = (upcalls.streams(), stream::capture_stream(stream)?.key);
    while !streams.take(key, slots) {
        streams.wait(key);
        if streams.take(key, slots) {
            break;
        }
        let query = cuStreamQuery { hStream: stream::wire(stream)? };
        match shim()?.session.call(stream::asked_in(stream)?, &query) {
            Err(CUresult::ERROR_NOT_READY) => {}
            Ok(_) => streams.forget(key),
            Err(code) => return Err(code),
        }
    }
    Ok(())
}
