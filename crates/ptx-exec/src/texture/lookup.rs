//! From the handle in a register to the texture or surface.

use super::{Bound, Texture, TextureImage};
use crate::engine::fault::FaultKind;
use crate::engine::machine::Machine;
use std::sync::Arc;

impl Machine<'_> {
    /// Returns the texture of a handle; `None` if every texel is zero, as for a surface.
    pub(crate) fn texture(&mut self, handle: u64) -> Result<Option<Arc<Texture>>, FaultKind> {
        match self.handles.get(self.env.host, handle) {
            Some(Bound::Texture(texture)) => Ok(Some(Arc::clone(texture))),
            Some(Bound::Surface(_) | Bound::Nothing) => Ok(None),
            None => Err(FaultKind::IllegalAddress(handle)),
        }
    }

    /// Returns the image of a surface; `None` if every byte is zero and nothing can be written.
    pub(crate) fn surface(&mut self, handle: u64) -> Result<Option<Arc<TextureImage>>, FaultKind> {
        match self.handles.get(self.env.host, handle) {
            Some(Bound::Surface(image)) => Ok(Some(Arc::clone(image))),
            Some(Bound::Texture(_) | Bound::Nothing) => Ok(None),
            None => Err(FaultKind::IllegalAddress(handle)),
        }
    }
}
