//! Stream attributes, and the execution affinity of contexts.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use katydid_cuda_sys::{CUexecAffinityParam, CUresult, CUstream, CUstreamAttrValue};
use katydid_driver_rules::device::exec_affinity;

use crate::context::stack;
use crate::ffi::{Out, api};
use crate::process::{device, state};
use crate::sync::stream_attributes::MAX_ATTRIBUTE_BYTES;
use crate::sync::streams::resolve;

api! {
    /// Writes as many bytes as the attribute has.
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

    /// Sets an attribute. An id that streams do not have, or a wrong value, fails with 1.
    fn cuStreamSetAttribute(stream: CUstream, attribute: u32, value: *const CUstreamAttrValue) {
        let stream = resolve(stream)?;
        if value.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's value has 64 bytes.
        let value = unsafe { value.cast::<[u8; MAX_ATTRIBUTE_BYTES]>().read_unaligned() };
        stream.attributes().set(attribute, &value)?;
    }

    /// Copies all attributes except the priority, which a stream keeps from its creation.
    fn cuStreamCopyAttributes(target: CUstream, source: CUstream) {
        let (target, source) = (resolve(target)?, resolve(source)?);
        let copied = *source.attributes();
        *target.attributes() = copied;
    }

    /// Returns 0: no kind of affinity is supported.
    fn cuDeviceGetExecAffinitySupport(supported: Out<i32>, _kind: u32, ordinal: i32) {
        state::ready()?;
        device::get(ordinal)?;
        supported.set(0);
    }

    /// Returns all multiprocessors of the device, as kind and count.
    fn cuCtxGetExecAffinity(affinity: Out<CUexecAffinityParam>, kind: u32) {
        let context = stack::usable()?;
        affinity.set(exec_affinity(kind, context.device.multiprocessors())?);
    }
}
