//! Images in memory that is shared with the program ([`crate::memory::host`]). A map of such an image copies nothing, and the
//! program copies its initial contents once.
//!
//! The driver must use the program's memory itself, with one row right after the other. Each kind, channel order and element size
//! is tested once in a context of processors, with a small probe image.

#![expect(unsafe_code, reason = "has a driver use memory that is given to it")]

use std::ptr;

use katydid_opencl_sys::constant::{
    IMAGE_ELEMENT_SIZE, MEM_ALLOC_HOST_PTR, MEM_COPY_HOST_PTR, MEM_OBJECT_IMAGE1D_ARRAY, MEM_USE_HOST_PTR,
};
use katydid_opencl_sys::{Code, cl_image_desc, cl_image_format, cl_mem, void};
use katydid_wire::opencl::message::kdclImage;

use crate::calls::fault::Fault;
use crate::contents::Copier;
use crate::drivers::call::{driver, make};
use crate::handlers::number_of_image;
use crate::journal;
use crate::memory::host::{KERNEL_ACCESSES, MapMode, map_mode};
use crate::state::Session;

/// Elements of a probe image in each direction that its kind has, and the most bytes of one.
const PROBE_SIDE_ELEMENTS: usize = 2;
const MAX_ELEMENT_BYTES: usize = 16;
const IMAGE_PROBE_BYTES: usize = PROBE_SIDE_ELEMENTS * PROBE_SIDE_ELEMENTS * PROBE_SIDE_ELEMENTS * MAX_ELEMENT_BYTES;

/// Memory for a probe image, aligned as drivers may want it.
#[repr(align(4096))]
struct Probe([u8; IMAGE_PROBE_BYTES]);

/// Returns the elements in each direction, as regions count them.
fn region(shape: &cl_image_desc) -> [usize; 3] {
    let [height, depth, images] = [shape.image_height, shape.image_depth, shape.image_array_size].map(|n| n.max(1));
    if shape.image_type == MEM_OBJECT_IMAGE1D_ARRAY {
        return [shape.image_width, images, 1];
    }
    [shape.image_width, height, depth.max(images)]
}

impl Session {
    /// Returns flags and memory for an image in the program's memory; `None` if it cannot lie there.
    ///
    /// # Errors
    ///
    /// The memory is not the program's.
    pub(crate) fn image_in_place(
        &mut self,
        message: &kdclImage<'_>,
        (format, shape): (&cl_image_format, &cl_image_desc),
    ) -> Result<Option<(u64, *mut void)>, Fault> {
        // An image with contents in the checkpoint had its own memory.
        let had_own = self.replay.is_on && self.replay.filled.contains(&message.memory);
        let is_simple = shape.num_mip_levels == 0 && shape.num_samples == 0 && message.parent == 0;
        if message.host_address == 0 || had_own || !is_simple || map_mode() != MapMode::InPlace {
            return Ok(None);
        }
        let Some(element) = self.element_in_place(message, format, shape) else { return Ok(None) };
        let bytes = region(shape).iter().try_fold(element, |all, size| all.checked_mul(*size as u64));
        if bytes.is_none_or(|bytes| bytes > message.host_bytes) {
            return Ok(None);
        }
        let host = self.host.as_ref().ok_or(Code::INVALID_VALUE)?;
        let pointer = host.pointer_to(message.host_address, message.host_bytes)?;
        let others = message.flags & !(MEM_ALLOC_HOST_PTR | MEM_COPY_HOST_PTR);
        Ok(Some((others | MEM_USE_HOST_PTR, pointer)))
    }

    /// Returns the bytes of an element, if the context's driver keeps such images in place.
    fn element_in_place(
        &mut self,
        message: &kdclImage<'_>,
        format: &cl_image_format,
        shape: &cl_image_desc,
    ) -> Option<u64> {
        /// Read-write, write-only, read-only, and the default, which is read-write.
        const ACCESSES: [u64; 4] = [1, 2, 4, 0];
        let (access, element) = (message.flags & KERNEL_ACCESSES, format.element_bytes()?);
        let layout = |access: u64| (message.context, shape.image_type, format.image_channel_order, element, access);
        let found = |access: u64| self.images_in_place.get(&layout(access)).copied();
        // The accesses of kernels do not change where an image lies.
        let known = found(access).or_else(|| ACCESSES.into_iter().find_map(|other| found(other).filter(|lies| *lies)));
        let lies = match known {
            Some(lies) => lies,
            None => {
                // An unsupported format says nothing about others, and a lack of memory nothing about later.
                let lies = self.probe_in_place(message.context, access, format, shape)?;
                self.images_in_place.insert(layout(access), lies);
                lies
            }
        };
        lies.then_some(element as u64)
    }

    /// Returns whether the context's driver keeps such images in place; `None` if it lacks the format, or memory now.
    fn probe_in_place(
        &mut self,
        context: u32,
        access: u64,
        format: &cl_image_format,
        shape: &cl_image_desc,
    ) -> Option<bool> {
        // PoCL 3.1 ends the process at a write of an image on a part of a device.
        let devices = self.journal.get(context).map(journal::devices_of).unwrap_or_default();
        let are_whole = devices.iter().all(|device| self.whole(*device) == *device);
        if !are_whole || !self.is_of_processors(context) {
            return Some(false);
        }
        match self.copier(context) {
            Ok(copier) => copier.has_image_in_place(access, format, shape),
            Err(code) => cacheable(Err(code)),
        }
    }
}

/// Returns what a probe says of later images; `None` if the driver lacked memory.
fn cacheable(probed: Result<bool, Code>) -> Option<bool> {
    match probed {
        Err(Code::OUT_OF_HOST_MEMORY | Code::OUT_OF_RESOURCES | Code::MEM_OBJECT_ALLOCATION_FAILURE) => None,
        probed => Some(probed == Ok(true)),
    }
}

impl Copier {
    /// Returns whether the driver reads and writes an image in the given memory, without gaps; `None` if it lacks the format, or
    /// memory now.
    fn has_image_in_place(&self, access: u64, format: &cl_image_format, shape: &cl_image_desc) -> Option<bool> {
        let small = |size: usize| size.min(PROBE_SIDE_ELEMENTS);
        let small = cl_image_desc {
            image_width: PROBE_SIDE_ELEMENTS,
            image_height: small(shape.image_height),
            image_depth: small(shape.image_depth),
            image_array_size: small(shape.image_array_size),
            image_row_pitch: 0,
            image_slice_pitch: 0,
            ..*shape
        };
        let mut memory = Box::new(Probe([0; IMAGE_PROBE_BYTES]));
        let (start, flags) = ((&raw mut memory.0).cast::<void>(), access | MEM_USE_HOST_PTR);
        let result = make!(self.api, clCreateImage(self.context, flags, format, &raw const small, start));
        let image = result.ok()?;
        let element = number_of_image(self.api, image, IMAGE_ELEMENT_SIZE) as usize;
        let bytes = region(&small).iter().product::<usize>() * element;
        let is_known = format.element_bytes() == Some(element) && bytes <= IMAGE_PROBE_BYTES;
        let probed = if is_known { self.probe_round_trip(image, &small, start, bytes) } else { Ok(false) };
        // The driver uses the memory until the release.
        match driver!(self.api, clReleaseMemObject(image)).ok() {
            Ok(()) => cacheable(probed),
            Err(_) => Some(false),
        }
    }

    /// Returns whether writes to an image reach its memory, and writes to the memory reach the image.
    fn probe_round_trip(
        &self,
        image: cl_mem,
        shape: &cl_image_desc,
        start: *mut void,
        bytes: usize,
    ) -> Result<bool, Code> {
        let (origin, region, null) = ([0usize; 3], region(shape), ptr::null_mut());
        let (origin, region, none) = (origin.as_ptr(), region.as_ptr(), ptr::null());
        let (mut sent, mut back) = ([0u8; IMAGE_PROBE_BYTES], [0u8; IMAGE_PROBE_BYTES]);
        (1u8..).zip(&mut sent).for_each(|(value, byte)| *byte = value);
        let from = sent.as_ptr().cast::<void>();
        driver!(self.api, clEnqueueWriteImage(self.queue, image, 1, origin, region, 0, 0, from, 0, none, null)).ok()?;
        let first_byte = start.cast::<u8>();
        // SAFETY: the caller's bytes, shared with the driver, whose command has ended.
        let found = (0..bytes).all(|at| unsafe { first_byte.add(at).read_volatile() } == sent[at]);
        // SAFETY: as above.
        (0..bytes).for_each(|at| unsafe { first_byte.add(at).write_volatile(!sent[at]) });
        let to = back.as_mut_ptr().cast::<void>();
        driver!(self.api, clEnqueueReadImage(self.queue, image, 1, origin, region, 0, 0, to, 0, none, null)).ok()?;
        Ok(found && (0..bytes).all(|at| back[at] == !sent[at]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_want_of_memory_says_nothing_of_later_images() {
        for code in [Code::OUT_OF_HOST_MEMORY, Code::OUT_OF_RESOURCES, Code::MEM_OBJECT_ALLOCATION_FAILURE] {
            assert_eq!(cacheable(Err(code)), None, "{code}");
        }
        assert_eq!(cacheable(Err(Code::INVALID_OPERATION)), Some(false));
        assert_eq!([true, false].map(|probed| cacheable(Ok(probed))), [true, false].map(Some));
    }
}
