//! Moves buffers of host memory to private pages of the worker when the session is checkpointed.
//!
//! Such a buffer lies in pages of a file that program and worker share ([`crate::memory::host`]). CRIU would dump all of
//! these with the program at each checkpoint, which takes a second or more for a GiB. A child of the worker cannot keep
//! them instead: a write of another process does not copy a shared page.
//!
//! So, once the session is at rest, the worker unshares the buffers that the program has not mapped. It copies their
//! contents to pages of its own, puts these in place of the shared ones under the driver, and punches holes into the file.
//! From then on the session treats the contents like those of any other buffer ([`crate::contents`]). The program's maps
//! copy, as on a device with memory of its own.
//!
//! Fresh pages take four times as long as the copy. So the worker prepares them while the program still runs
//! ([`ReadyPages`](crate::memory::unshared_pages::ReadyPages)).
//!
//! The addresses of an unshared block show the driver's data. The program's data for that block lies elsewhere in the worker, in
//! a second mapping of the whole file ([`UnsharedPages::view`]). When the driver has destroyed the buffer, the two become the
//! same again, before the program may use the block for another buffer.

#![expect(unsafe_code, reason = "hands what it keeps to a driver, and takes it back")]

use std::ops::Range;
use std::sync::Arc;

use katydid_opencl_sys::cl_mem;
use katydid_session_core::Precopy;
use katydid_wire::opencl::ZERO_COPY_MIN_BYTES;
use katydid_wire::opencl::message::{kdclBuffer, kdclSubBuffer};

use crate::drivers::call::driver;
use crate::memory::svm::PAGE_BYTES;
use crate::memory::unshared_pages::{PageAllocation, UnsharedPages, destroyed, pieces};
use crate::objects::object::Object;
use crate::state::Session;

/// Environment variable to compare the ways: `off` leaves all buffers where they are, and in the dump.
const UNSHARE_VARIABLE: &str = "KATYDID_OPENCL_UNSHARE";

impl Session {
    /// Returns the buffers to unshare now, and their pages.
    fn to_be_unshared(&self) -> Vec<(u32, Range<u64>)> {
        let is_off = std::env::var(UNSHARE_VARIABLE).is_ok_and(|value| value == "off");
        let all = self.is_in_host.iter().filter(|_| !is_off);
        all.filter_map(|id| Some((*id, self.unmapped(*id)?))).collect()
    }

    /// Returns the preparation of pages for these buffers; `None` without such a buffer.
    pub(crate) fn get_ready(&self) -> Option<Box<dyn Precopy>> {
        let pieces = self.to_be_unshared().iter().flat_map(|(_, block)| pieces(block)).count();
        (pieces > 0).then(|| Box::new(PageAllocation { ready: Arc::clone(&self.ready), pieces }) as Box<dyn Precopy>)
    }

    /// Unshares the buffers that the program has not mapped. The session is at rest.
    pub(crate) fn unshare_buffers(&mut self) {
        let candidates = self.to_be_unshared();
        let Some(unshared) = self.host.as_mut().and_then(|host| host.unshared(!candidates.is_empty())) else { return };
        unshared.punch_unmapped();
        let chosen: Vec<(u32, Range<u64>)> =
            candidates.into_iter().filter(|(id, block)| self.watch_destruction(*id, block.start, &unshared)).collect();
        let blocks: Vec<Range<u64>> = chosen.iter().map(|(_, block)| block.clone()).collect();
        unshared.unshare(&blocks, &self.ready);
        self.ready.clear();
        for (id, _) in chosen {
            let parts: Vec<u32> = self.parts_of(id).collect();
            for id in parts.into_iter().chain([id]) {
                self.is_in_host.remove(&id);
                self.mapped_in_host.remove(&id);
            }
        }
    }

    /// Returns the pages of a whole buffer if it is large and nothing of it is mapped.
    fn unmapped(&self, id: u32) -> Option<Range<u64>> {
        let entry = self.journal.get(id).filter(|entry| entry.is_made_by::<kdclBuffer<'_>>())?;
        let message = kdclBuffer::decode(entry.creation.frame.payload()).ok()?;
        let block = message.host_address..message.host_address + message.size.checked_next_multiple_of(PAGE_BYTES)?;
        let is_mapped = self.host_maps.keys().any(|(_, address)| block.contains(address));
        let may_be = self.was_in_host.contains(&id) || is_mapped;
        (message.size >= ZERO_COPY_MIN_BYTES && !may_be).then_some(block)
    }

    /// Returns whether the driver will report the destruction of a buffer.
    fn watch_destruction(&self, id: u32, start: u64, unshared: &Arc<UnsharedPages>) -> bool {
        let Ok(object) = self.shared.objects.get::<cl_mem>(id) else { return false };
        let Object { api, handle, .. } = object;
        let data = Box::into_raw(Box::new((Arc::clone(unshared), start)));
        let status = driver!(api, clSetMemObjectDestructorCallback(handle, Some(destroyed), data.cast()));
        if status.ok().is_err() {
            // SAFETY: made above, and the driver has not accepted it.
            drop(unsafe { Box::from_raw(data) });
        }
        status.ok().is_ok()
    }

    /// Returns the sub-buffers of a buffer.
    fn parts_of(&self, id: u32) -> impl Iterator<Item = u32> {
        self.is_in_host.iter().copied().filter(move |part| {
            let sub_buffer = self.journal.get(*part).filter(|entry| entry.is_made_by::<kdclSubBuffer>());
            let message = sub_buffer.and_then(|entry| kdclSubBuffer::decode(entry.creation.frame.payload()).ok());
            message.is_some_and(|message| message.parent == id)
        })
    }
}
