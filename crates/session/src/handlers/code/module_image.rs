//! Module images: uploaded in pieces, and rebuilt in the driver's form.

use katydid_cuda_sys::CUresult;
use katydid_fatbin::{ModuleImage, ModuleImageKind, OwnedImage};
use katydid_wire::codec::Message as _;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{
    kdGraphInstantiate, kdLibraryLoad, kdLink, kdModuleLoad, kdModuleLookup, kdModuleLookupReply, kdUpload,
};

use crate::calls::fault::Fault;
use crate::handlers::{CallResult, EnqueueResult, success};
use crate::state::Session;

/// Returns whether a call uses what its thread has uploaded.
pub(crate) fn uses_pieces(opcode: u16) -> bool {
    matches!(opcode, kdModuleLoad::OPCODE | kdLibraryLoad::OPCODE | kdLink::OPCODE | kdGraphInstantiate::OPCODE)
}

/// Adds a piece to the image that the calling thread is sending.
pub(crate) fn kdUpload(session: &mut Session, head: &FrameHead, message: kdUpload<'_>) -> EnqueueResult {
    session.uploads.add(head.thread, message.total, message.data)?;
    Ok(CUresult::SUCCESS)
}

/// Looks up an image: one that an earlier program has sent counts as sent. A missing one will be uploaded, and then stored
/// for others. The lookup starts a new image: pieces of one that was never loaded are dropped.
pub(crate) fn kdModuleLookup(
    session: &mut Session,
    head: &FrameHead,
    message: kdModuleLookup<'_>,
) -> CallResult<kdModuleLookupReply> {
    let hash = message.hash.try_into().map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
    session.uploads.discard(head.thread);
    let stored = session.module_cache.as_ref().and_then(|cache| cache.get(hash, message.total));
    if let Some(image) = &stored {
        session.uploads.add(head.thread, message.total, image)?;
    } else {
        session.unstored.insert(head.thread);
    }
    success(kdModuleLookupReply { known: u32::from(stored.is_some()) })
}

/// Stores an image that a program asked for by its hash. After a failure the cache is not used any more: it only saves time.
fn store(session: &mut Session, thread: u32, flat: &[u8]) {
    let is_wanted = session.unstored.remove(&thread);
    let Some(cache) = session.module_cache.as_ref().filter(|_| is_wanted) else { return };
    if let Err(error) = cache.put(flat) {
        cache.fails(&error);
        session.module_cache = None;
    }
}

/// Returns the image that the calling thread has sent, in its own memory.
///
/// # Errors
///
/// A session error for an incomplete one, `CUDA_ERROR_INVALID_IMAGE` for bytes that are no image.
pub(crate) fn finish(session: &mut Session, head: &FrameHead) -> Result<OwnedImage, Fault> {
    let flat = session.uploads.finish(head.thread)?;
    store(session, head.thread, &flat);
    let image = ModuleImage::decode(&flat).map_err(|_| CUresult::ERROR_INVALID_IMAGE)?;
    if !lengths_hold(&image) {
        return Err(CUresult::ERROR_INVALID_IMAGE.into());
    }
    Ok(image.rebuild())
}

/// Returns whether the lengths inside an image stay within the received bytes: a driver trusts them.
fn lengths_hold(image: &ModuleImage<'_>) -> bool {
    match image.kind() {
        ModuleImageKind::Ptx => true,
        ModuleImageKind::Elf => image.parts().iter().all(|part| ModuleImage::from_bytes(part).is_ok()),
        _ => image.containers().is_ok(),
    }
}
