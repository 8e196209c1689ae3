//! Waiting for a slot in a stream that has functions of the program to come to.
//!
//! A driver makes a caller wait when a stream has no slot left. Here it is the worker's main loop that calls the driver, and
//! while it waited no other thread of the program would be served; what came for it meanwhile would fill the link, behind
//! which the end of the function could not be sent. So the thread that calls waits, before it sends.

use katydid_cuda_sys::{CUresult, CUstream};
use katydid_wire::message::cuStreamQuery;

use crate::launch::registry;
use crate::process::session::shim;
use crate::sync::stream;

/// Before a call, outside of captures, that gives a stream something to do: waits for a slot.
///
/// # Errors
///
/// What has gone wrong in the stream, or with the stream itself.
pub(crate) fn take_slot(stream: CUstream) -> Result<(), CUresult> {
    take_slots(stream, 1)
}

/// Before a call that takes slots in a driver's queue: waits until they are free.
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
