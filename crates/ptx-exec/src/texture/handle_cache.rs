//! Cache of the objects of handles that a thread has met in this launch, since asking the host takes a lock and a search.

use super::Bound;
use crate::host::Host;

/// Number of cached handles.
const CACHED_HANDLES: usize = 8;

/// Handles of this launch.
#[derive(Debug, Default)]
pub(crate) struct HandleCache {
    entries: Vec<(u64, Bound)>,
    /// Entry to replace next.
    next: usize,
}

impl HandleCache {
    /// Returns the object of `handle`; `None` for an invalid handle.
    pub(super) fn get(&mut self, host: &dyn Host, handle: u64) -> Option<&Bound> {
        let index = match self.entries.iter().position(|(known, _)| *known == handle) {
            Some(index) => index,
            None => {
                let entry = (handle, host.bound(handle)?);
                if self.entries.len() < CACHED_HANDLES {
                    self.entries.push(entry);
                    self.entries.len() - 1
                } else {
                    self.next = (self.next + 1) % CACHED_HANDLES;
                    self.entries[self.next] = entry;
                    self.next
                }
            }
        };
        self.entries.get(index).map(|(_, bound)| bound)
    }
}
