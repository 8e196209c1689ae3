//! Which buffers lie in the zero-copy area ([`crate::memory::zero_copy_area`]), and where.

#![expect(unsafe_code, reason = "has a driver use memory of both sides")]

use katydid_opencl_sys::constant::MEM_USE_HOST_PTR;
use katydid_opencl_sys::{Code, cl_mem, void};
use katydid_wire::opencl::message::kdclBuffer;
use katydid_wire::opencl::{NO_ZERO_COPY_OFFSET, ZERO_COPY_MIN_BYTES};

use crate::contents::Copier;
use crate::drivers::call::{driver, make};
use crate::memory::svm::PAGE_BYTES;
use crate::memory::zero_copy_area::{AreaBlock, RetainedPages, ZeroCopyArea};
use crate::objects::object::Object;
use crate::state::Session;

/// Environment variable to compare the ways: `off` puts all buffers in the driver's own memory.
const ZERO_COPY_VARIABLE: &str = "KATYDID_OPENCL_ZERO_COPY";
/// Value that a driver writes to show where its writes arrive.
const PROBE_WORD: u64 = 0x6b61_7479_6469_6431;

/// The driver calls this once, when it destroys a buffer: its block becomes free.
unsafe extern "C" fn destroyed(_: cl_mem, data: *mut void) {
    // SAFETY: made by `Session::put_in_zero_copy_area` for this one call.
    drop(unsafe { Box::from_raw(data.cast::<AreaBlock>()) });
}

impl Session {
    /// Allocates a block of the zero-copy area for a new buffer if it may lie there: it is large, has no other location, and its
    /// driver uses the given memory itself.
    pub(crate) fn zero_copy_block(&mut self, context: u32, size: u64) -> Option<AreaBlock> {
        if size < ZERO_COPY_MIN_BYTES || self.replay.is_on || !self.has_zero_copy_area(context) {
            return None;
        }
        self.zero_copy.as_ref()?.take(size)
    }

    /// Returns whether buffers of a context may lie in the zero-copy area. The driver is tested once.
    fn has_zero_copy_area(&mut self, context: u32) -> bool {
        let Some(zero_copy) = self.zero_copy.clone() else { return false };
        if let Some(known) = self.zero_copy_known.get(&context) {
            return *known;
        }
        let is_off = std::env::var(ZERO_COPY_VARIABLE).is_ok_and(|value| value == "off");
        let uses_it = |session: &Self| {
            let (copier, page) = (session.copier(context).ok()?, zero_copy.take(PAGE_BYTES)?);
            copier.writes_to(page.pointer(), PROBE_WORD).ok()
        };
        let has = !is_off && self.is_of_processors(context) && uses_it(self) == Some(true);
        self.zero_copy_known.insert(context, has);
        has
    }

    /// Records a buffer that was made in a block; the program may now read it there.
    pub(crate) fn put_in_zero_copy_area(&mut self, id: u32, object: &Object<cl_mem>, block: AreaBlock) {
        self.in_zero_copy.insert(id, block.offset);
        let data = Box::into_raw(Box::new(block)).cast();
        // If the driver does not report the destruction, the block stays in use until the session ends.
        let _ = driver!(object.api, clSetMemObjectDestructorCallback(object.handle, Some(destroyed), data));
    }

    /// Records a sub-buffer of a buffer in the area.
    pub(crate) fn part_in_zero_copy_area(&mut self, id: u32, parent: u32, origin: u64) {
        if let Some(offset) = self.in_zero_copy.get(&parent) {
            self.in_zero_copy.insert(id, offset + origin);
        }
    }

    /// Returns where a buffer's bytes from `at` on are in the zero-copy area, counted from 1, and the area's epoch. The position
    /// is 0 or [`NO_ZERO_COPY_OFFSET`] for a buffer outside the area.
    pub(crate) fn zero_copy_position(&self, memory: u32, at: u64) -> (u64, u32) {
        let position = match self.in_zero_copy.get(&memory) {
            Some(offset) => offset.saturating_add(at).saturating_add(1).min(NO_ZERO_COPY_OFFSET - 1),
            None if self.has_none(memory) => NO_ZERO_COPY_OFFSET,
            None => 0,
        };
        (position, self.zero_copy.as_ref().map_or(0, |zero_copy| zero_copy.epoch()))
    }

    /// Returns whether the buffer's context has no buffers in the area.
    fn has_none(&self, memory: u32) -> bool {
        let buffer = self.journal.get(memory).filter(|entry| entry.is_made_by::<kdclBuffer<'_>>());
        let message = buffer.and_then(|entry| kdclBuffer::decode(entry.creation.frame.payload()).ok());
        self.zero_copy.is_none()
            || message.is_some_and(|message| self.zero_copy_known.get(&message.context) == Some(&false))
    }

    /// Makes the contents of the zero-copy area private to the worker. Their pages stay as they are for as long as the result
    /// lives.
    pub(crate) fn clear_zero_copy_area(&mut self) -> Option<RetainedPages> {
        self.in_zero_copy.clear();
        self.zero_copy.as_ref().map(ZeroCopyArea::clear)
    }
}

impl Copier {
    /// Returns whether the driver writes to the memory that a buffer is made over, rather than to a copy.
    fn writes_to(&self, page: *mut void, sign: u64) -> Result<bool, Code> {
        /// `CL_MEM_READ_WRITE`: kernels read and write the buffer.
        const READ_WRITE: u64 = 1;
        let flags = READ_WRITE | MEM_USE_HOST_PTR;
        let memory = make!(self.api, clCreateBuffer(self.context, flags, PAGE_BYTES as usize, page))?;
        let written = self.write(memory, size_of::<u64>() as u64, (&raw const sign).cast());
        // SAFETY: aligned, and mapped; the command that wrote there has ended.
        let found = unsafe { page.cast::<u64>().read_volatile() };
        driver!(self.api, clReleaseMemObject(memory)).ok()?;
        written.map(|()| found == sign)
    }
}
