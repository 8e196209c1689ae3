//! Attributes of streams, and of the execution of contexts.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use katydid_cuda_sys::{CUexecAffinityParam, CUresult, CUstream, CUstreamAttrValue};
use katydid_driver_rules::device::exec_affinity;

use crate::context::stack;
use crate::ffi::{Out, api};
use crate::process::{device, state};
use crate::sync::stream_attributes::MAX_ATTRIBUTE_BYTES;
use crate::sync::streams::resolve;

api! {
    /// As many bytes are written as the attribute has.
    fn cuStreamGetAttribute(stream: CUstream, attribute: u32, value: *mut CUstreamAttrValue) {
        let stream = resolve(stream)?;
        let attributes = stream.attributes();
        let bytes = attributes.get(attribute)?;
        if value.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's value has 64 bytes.
        unsafe { value.cast::<u8>().copy_from(bytes.as_ptr(), bytes.len()) };
    }

    /// What is not an attribute of streams, or not a value of it, gives 1.
    fn cuStreamSetAttribute(stream: CUstream, attribute: u32, value: *const CUstreamAttrValue) {
        let stream = resolve(stream)?;
        if value.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's value has 64 bytes.
        let value = unsafe { value.cast::<[u8; MAX_ATTRIBUTE_BYTES]>().read_unaligned() };
        stream.attributes().set(attribute, &value)?;
    }

    /// All of them but the priority, which stays what the stream was made with.
    fn cuStreamCopyAttributes(target: CUstream, source: CUstream) {
        let (target, source) = (resolve(target)?, resolve(source)?);
        let copied = *source.attributes();
        *target.attributes() = copied;
    }

    /// No kind of affinity can be asked for.
    fn cuDeviceGetExecAffinitySupport(supported: Out<i32>, _kind: u32, ordinal: i32) {
        state::ready()?;
        device::get(ordinal)?;
        supported.set(0);
    }

    /// All multiprocessors of the device, as kind and count.
    fn cuCtxGetExecAffinity(affinity: Out<CUexecAffinityParam>, kind: u32) {
        let context = stack::usable()?;
        affinity.set(exec_affinity(kind, context.device.multiprocessors())?);
    }
}
