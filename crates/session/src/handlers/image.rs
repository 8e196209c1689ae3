//! Module images: collected in pieces, rebuilt as the driver wants them.

use katydid_cuda_sys::CUresult;
use katydid_fatbin::{Image, ImageKind, OwnedImage};
use katydid_wire::frame::FrameHead;
use katydid_wire::message::kdImagePiece;

use super::Enqueued;
use crate::fault::Fault;
use crate::session::Session;

/// Adds to the image that the calling thread is sending.
pub(crate) fn kdImagePiece(session: &mut Session, head: &FrameHead, message: kdImagePiece<'_>) -> Enqueued {
    session.uploads.add(head.thread, message.total, message.data)?;
    Ok(CUresult::SUCCESS)
}

/// The image that the calling thread has sent, in memory of its own.
///
/// # Errors
///
/// A session error when it did not come whole, `CUDA_ERROR_INVALID_IMAGE` when it is none.
pub(super) fn finish(session: &mut Session, head: &FrameHead) -> Result<OwnedImage, Fault> {
    let flat = session.uploads.finish(head.thread)?;
    let image = Image::decode(&flat).map_err(|_| CUresult::ERROR_INVALID_IMAGE)?;
    if !lengths_hold(&image) {
        return Err(CUresult::ERROR_INVALID_IMAGE.into());
    }
    Ok(image.rebuild())
}

/// A driver believes the lengths inside an image, so they must not lead past the bytes that came.
fn lengths_hold(image: &Image<'_>) -> bool {
    match image.kind() {
        ImageKind::Ptx => true,
        ImageKind::Elf => image.parts().iter().all(|part| Image::from_bytes(part).is_ok()),
        _ => image.containers().is_ok(),
    }
}
