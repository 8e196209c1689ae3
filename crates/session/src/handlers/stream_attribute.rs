//! Attributes of streams, as the 64 bytes of the driver's value.

#![expect(unsafe_code, reason = "calls the driver")]

use katydid_cuda_sys::{CUstream, CUstreamAttrValue};
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{
    kdStreamAttribute, kdStreamAttributeReply, kdStreamSetAttribute, kdStreamSetAttributeReply,
};

use crate::calls::fault::SessionError;
use crate::handlers::{CallResult, success};
use crate::state::Session;

/// Returns the value of an attribute; bytes that the driver does not write are 0.
pub(crate) fn kdStreamAttribute(
    session: &mut Session,
    head: &FrameHead,
    message: kdStreamAttribute,
) -> CallResult<kdStreamAttributeReply> {
    let stream: CUstream = session.handle(head, message.stream)?;
    let mut value = CUstreamAttrValue::default();
    // SAFETY: the output is a local of the driver's size.
    unsafe { session.driver().cuStreamGetAttribute(stream, message.attribute, &raw mut value) }.ok()?;
    success(kdStreamAttributeReply { value: value.0.to_vec() })
}

/// Sets an attribute of a stream (`cuStreamSetAttribute`).
pub(crate) fn kdStreamSetAttribute(
    session: &mut Session,
    head: &FrameHead,
    message: kdStreamSetAttribute<'_>,
) -> CallResult<kdStreamSetAttributeReply> {
    let stream: CUstream = session.handle(head, message.stream)?;
    let bytes = message.value.try_into().map_err(|_| SessionError::DamagedPart {
        message: "kdStreamSetAttribute",
        part: "value",
        reason: format!("{} bytes instead of 64", message.value.len()),
    })?;
    let value = CUstreamAttrValue(bytes);
    // SAFETY: the value is a local of the driver's size.
    unsafe { session.driver().cuStreamSetAttribute(stream, message.attribute, &raw const value) }.ok()?;
    success(kdStreamSetAttributeReply {})
}
