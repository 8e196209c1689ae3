//! What the handles stand for that a thread has met in this launch: asking the host takes a lock and a search.

use super::{Bound, Image, Texture};
use crate::api::Host;
use crate::engine::fault::FaultKind;
use crate::engine::machine::Machine;
use std::sync::Arc;

/// Handles remembered.
const ENTRIES: usize = 8;

/// Handles of this launch.
#[derive(Debug, Default)]
pub(crate) struct Known {
    entries: Vec<(u64, Bound)>,
    /// The entry to replace next.
    next: usize,
}

impl Known {
    /// What `handle` stands for; `None` for what is no handle.
    fn get(&mut self, host: &dyn Host, handle: u64) -> Option<&Bound> {
        let index = match self.entries.iter().position(|(known, _)| *known == handle) {
            Some(index) => index,
            None => {
                let entry = (handle, host.bound(handle)?);
                if self.entries.len() < ENTRIES {
                    self.entries.push(entry);
                    self.entries.len() - 1
                } else {
                    self.next = (self.next + 1) % ENTRIES;
                    self.entries[self.next] = entry;
                    self.next
                }
            }
        };
        self.entries.get(index).map(|(_, bound)| bound)
    }
}

impl Machine<'_> {
    /// The texture of a handle; `None` where every texel is zero, which is also what a surface reads as.
    pub(crate) fn texture(&mut self, handle: u64) -> Result<Option<Arc<Texture>>, FaultKind> {
        match self.bound.get(self.env.host, handle) {
            Some(Bound::Texture(texture)) => Ok(Some(Arc::clone(texture))),
            Some(Bound::Surface(_) | Bound::Nothing) => Ok(None),
            None => Err(FaultKind::IllegalAddress(handle)),
        }
    }

    /// The image of a surface; `None` where every byte is zero and nothing can be written.
    pub(crate) fn surface(&mut self, handle: u64) -> Result<Option<Arc<Image>>, FaultKind> {
        match self.bound.get(self.env.host, handle) {
            Some(Bound::Surface(image)) => Ok(Some(Arc::clone(image))),
            Some(Bound::Texture(_) | Bound::Nothing) => Ok(None),
            None => Err(FaultKind::IllegalAddress(handle)),
        }
    }
}
