//! Attributes of streams: the worker's driver keeps and checks them.
#![expect(unsafe_code, reason = "reads and writes values of C callers")]

use katydid_cuda_sys::{CUresult, CUstream, CUstreamAttrValue, stream_attribute_bytes};
use katydid_wire::message::{kdStreamAttribute, kdStreamSetAttribute};

use crate::context::request::call;
use crate::sync::stream;

/// Answers an attribute, and writes as many bytes as it has, as the driver does.
///
/// # Safety
///
/// `value` is null or has room for the attribute.
pub(crate) unsafe fn get(stream: CUstream, attribute: u32, value: *mut CUstreamAttrValue) -> Result<(), CUresult> {
    let bytes = stream_attribute_bytes(attribute).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    if value.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let reply = call(&kdStreamAttribute { stream: stream::wire(stream)?, attribute })?;
    let answer = reply.value.get(..bytes).ok_or(CUresult::ERROR_UNKNOWN)?;
    // SAFETY: room for the attribute, by the contract.
    unsafe { value.cast::<u8>().copy_from(answer.as_ptr(), answer.len()) };
    Ok(())
}

/// # Safety
///
/// `value` is null or as long as the attribute.
pub(crate) unsafe fn set(stream: CUstream, attribute: u32, value: *const CUstreamAttrValue) -> Result<(), CUresult> {
    let bytes = stream_attribute_bytes(attribute).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    if value.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let mut padded = CUstreamAttrValue::default();
    // SAFETY: as long as the attribute by the contract, and no attribute is longer than a value.
    unsafe { padded.0.as_mut_ptr().copy_from(value.cast::<u8>(), bytes) };
    call(&kdStreamSetAttribute { stream: stream::wire(stream)?, attribute, value: &padded.0 }).map(drop)
}
