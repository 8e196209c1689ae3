//! Linking: each message links all inputs from the start, so that only the last image is kept.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::{CString, c_void};

use katydid_cuda_sys::{CUlinkState, CUresult, jit_input};
use katydid_fatbin::{ModuleImage, ModuleImageKind};
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{kdLink, kdLinkOutput, kdLinkOutputReply, kdLinkReply};

use crate::calls::fault::{Fault, SessionError};
use crate::code::jit_options::JitAnswers;
use crate::device::ask::ask;
use crate::handlers::code::options;
use crate::handlers::{CallResult, MAX_REPLY_DATA_BYTES, success};
use crate::state::Session;

/// One input: kind, name, and its bytes with a final NUL, which a text needs.
struct LinkInput {
    kind: u32,
    name: CString,
    data: Vec<u8>,
}

/// Links the inputs that the calling thread has sent. Logs are returned whether that succeeds or not.
pub(crate) fn kdLink(session: &mut Session, head: &FrameHead, message: kdLink<'_>) -> CallResult<kdLinkReply> {
    let flat = session.uploads.finish(head.thread)?;
    let inputs = decode(&flat).ok_or_else(damaged)?;
    let mut options = options::decode("kdLink", message.options, message.infoLogSize, message.errorLogSize)?;
    let (count, ids, values) = (options.count(), options.ids(), options.values());
    let driver = session.driver();
    // SAFETY: both arrays have `count` entries, the log buffers the sizes given beside them; all outlive the linking.
    let state = ask::<CUlinkState>(|out| unsafe { driver.cuLinkCreate_v2(count, ids, values, out) })?;
    let mut image = Vec::new();
    let status = add_all(session, state, &inputs).and_then(|()| {
        if message.complete != 0 {
            image = complete(session, state)?;
        }
        Ok(())
    });
    // SAFETY: made above, and used no more.
    let _ = unsafe { session.driver().cuLinkDestroy(state) };
    let JitAnswers { info: infoLog, error: errorLog, info_length, error_length, threads } = options.answers();
    let (infoLength, errorLength) = (info_length, error_length);
    let size = image.len() as u64;
    session.linked.insert(head.thread, image);
    Ok((status.into(), kdLinkReply { size, infoLength, errorLength, threads, infoLog, errorLog }))
}

/// Adds the inputs in order, up to the first that is refused.
fn add_all(session: &Session, state: CUlinkState, inputs: &[LinkInput]) -> Result<(), CUresult> {
    for input in inputs {
        let bytes = &input.data[..input.data.len() - 1];
        if !lengths_hold(input.kind, bytes) {
            return Err(CUresult::ERROR_INVALID_IMAGE);
        }
        // The size of a text includes its NUL.
        let size = if input.kind == jit_input::PTX { input.data.len() } else { bytes.len() };
        let data = input.data.as_ptr().cast_mut().cast::<c_void>();
        let (name, none, nones) = (input.name.as_ptr(), std::ptr::null_mut(), std::ptr::null_mut());
        let driver = session.driver();
        // SAFETY: the linking is alive; data and name outlive the call; there are no options.
        unsafe { driver.cuLinkAddData_v2(state, input.kind, data, size, name, 0, none, nones) }.ok()?;
    }
    Ok(())
}

/// Returns whether the lengths inside code stay within the received bytes: a driver trusts them.
fn lengths_hold(kind: u32, bytes: &[u8]) -> bool {
    match (kind, ModuleImage::from_bytes(bytes)) {
        (jit_input::CUBIN | jit_input::FATBINARY, Ok(image)) => match image.kind() {
            ModuleImageKind::Ptx | ModuleImageKind::Elf => true,
            _ => image.containers().is_ok(),
        },
        (jit_input::CUBIN | jit_input::FATBINARY, Err(_)) => false,
        _ => true,
    }
}

/// Returns a copy of the linked image: the driver's ends with the linking.
fn complete(session: &Session, state: CUlinkState) -> Result<Vec<u8>, CUresult> {
    let (mut image, mut size) = (std::ptr::null_mut(), 0_usize);
    // SAFETY: the linking is alive, the outputs are locals.
    unsafe { session.driver().cuLinkComplete(state, &raw mut image, &raw mut size) }.ok()?;
    if image.is_null() {
        return Ok(Vec::new());
    }
    // SAFETY: the driver's image has `size` bytes and stays until the linking is destroyed.
    Ok(unsafe { std::slice::from_raw_parts(image.cast::<u8>(), size) }.to_vec())
}

/// Returns a piece of the image that the calling thread linked last.
pub(crate) fn kdLinkOutput(
    session: &mut Session,
    head: &FrameHead,
    message: kdLinkOutput,
) -> CallResult<kdLinkOutputReply> {
    let image = session.linked.get(&head.thread).ok_or(CUresult::ERROR_NOT_FOUND)?;
    let (start, size) = (message.offset, u64::from(message.size));
    let end = start.checked_add(size).filter(|end| *end <= image.len() as u64 && size <= MAX_REPLY_DATA_BYTES as u64);
    let end = end.ok_or(SessionError::BadRange { what: "a linked image", address: start, size })?;
    let piece = image[start as usize..end as usize].to_vec();
    if end == image.len() as u64 {
        session.linked.remove(&head.thread);
    }
    success(kdLinkOutputReply { image: piece })
}

/// Decodes the program's inputs: their number, then kind, lengths, name and data of each.
fn decode(flat: &[u8]) -> Option<Vec<LinkInput>> {
    let mut remaining = flat;
    let count = u32::from_le_bytes(take(&mut remaining)?);
    let mut inputs = Vec::new();
    for _ in 0..count {
        let kind = u32::from_le_bytes(take(&mut remaining)?);
        let name = u32::from_le_bytes(take(&mut remaining)?) as usize;
        let data = usize::try_from(u64::from_le_bytes(take(&mut remaining)?)).ok()?;
        let (text, after) = remaining.split_at_checked(name)?;
        let (bytes, after) = after.split_at_checked(data)?;
        let data = bytes.iter().copied().chain([0]).collect();
        inputs.push(LinkInput { kind, name: CString::new(text).ok()?, data });
        remaining = after;
    }
    remaining.is_empty().then_some(inputs)
}

fn take<const N: usize>(remaining: &mut &[u8]) -> Option<[u8; N]> {
    let (field, after) = remaining.split_first_chunk()?;
    *remaining = after;
    Some(*field)
}

fn damaged() -> Fault {
    let reason = "lengths do not fit".to_owned();
    SessionError::DamagedPart { message: "kdLink", part: "inputs", reason }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_taken_apart_and_damage_is_noticed() {
        let flat = [&1_u32.to_le_bytes()[..], &1_u32.to_le_bytes(), &1_u32.to_le_bytes(), &2_u64.to_le_bytes(), b"nab"];
        let flat = flat.concat();
        let inputs = decode(&flat).unwrap();
        assert_eq!((inputs.len(), inputs[0].kind, inputs[0].name.as_bytes()), (1, 1, &b"n"[..]));
        assert_eq!(inputs[0].data, b"ab\0");
        assert!((0..flat.len()).all(|length| decode(&flat[..length]).is_none()));
        assert!(decode(&[&flat[..], &[0]].concat()).is_none());
        assert!(decode(&[0; 4]).is_some_and(|inputs| inputs.is_empty()));
    }
}
