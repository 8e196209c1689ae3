//! Images in memory that the program has too ([`crate::memory::host`]): a map of one copies nothing, and what it begins with is
//! copied once, by the program.
//!
//! That needs a driver which has an image of the program's memory right there, row behind row. Each kind and format is tried
//! once in a context of processors, with a small image of ours. A trial waits for two commands, which takes a driver's sleeping
//! threads up to a millisecond. So with the third format of a kind all that the context has of it are tried at once.

#![expect(unsafe_code, reason = "has a driver use memory that is given to it")]

use std::ptr;

use katydid_opencl_sys::constant::{
    IMAGE_ELEMENT_SIZE, MEM_ALLOC_HOST_PTR, MEM_COPY_HOST_PTR, MEM_OBJECT_IMAGE1D_ARRAY, MEM_USE_HOST_PTR,
};
use katydid_opencl_sys::{Code, cl_context, cl_image_desc, cl_image_format, cl_mem, void};
use katydid_wire::opencl::message::kdclImage;

use crate::calls::fault::Fault;
use crate::contents::Copier;
use crate::drivers::call::{driver, make};
use crate::handlers::{number_of_image, supported_formats};
use crate::journal;
use crate::memory::host::{ImageKind, KERNEL_ACCESSES, Maps, maps};
use crate::state::Session;

/// Elements of an image of ours in each direction that its kind has, and bytes of one at most.
const SIDE: usize = 2;
const MAX_ELEMENT_BYTES: usize = 16;
const PROBE_BYTES: usize = SIDE * SIDE * SIDE * MAX_ELEMENT_BYTES;
/// What is written to images of ours.
static SENT: [u8; PROBE_BYTES] = {
    let (mut bytes, mut at) = ([0; PROBE_BYTES], 0);
    while at < PROBE_BYTES {
        bytes[at] = at as u8 + 1;
        at += 1;
    }
    bytes
};
/// Formats of a kind that are tried one by one.
const FEW: usize = 2;

/// Memory for an image of ours, aligned as drivers may want it.
#[repr(align(4096))]
struct Probe([u8; PROBE_BYTES]);

/// An image of ours in memory of ours.
struct Trial {
    image: cl_mem,
    /// Bytes of an element.
    element: u64,
    /// Bytes of the image.
    bytes: usize,
    memory: Box<Probe>,
    /// What the driver reads.
    back: Box<[u8; PROBE_BYTES]>,
    /// The driver has had it in its memory so far.
    is_there: bool,
}

impl Trial {
    /// The image's memory, which the driver uses too.
    fn place(&mut self, at: usize) -> *mut u8 {
        &raw mut self.memory.0[at]
    }
}

/// Elements in each direction, as regions count them.
fn region(shape: &cl_image_desc) -> [usize; 3] {
    let [height, depth, images] = [shape.image_height, shape.image_depth, shape.image_array_size].map(|n| n.max(1));
    if shape.image_type == MEM_OBJECT_IMAGE1D_ARRAY {
        return [shape.image_width, images, 1];
    }
    [shape.image_width, height, depth.max(images)]
}

impl Session {
    /// Flags and memory of an image that is to lie in memory of the program's, for the driver; none if it cannot.
    ///
    /// # Errors
    ///
    /// The memory is not the program's.
    pub(crate) fn image_in_place(
        &mut self,
        message: &kdclImage<'_>,
        (format, shape): (&cl_image_format, &cl_image_desc),
    ) -> Result<Option<(u64, *mut void)>, Fault> {
        // One whose contents an image of a checkpoint has had memory of its own.
        let had_own = self.replay.is_on && self.replay.filled.contains(&message.memory);
        let is_simple = shape.num_mip_levels == 0 && shape.num_samples == 0 && message.parent == 0;
        if message.place == 0 || had_own || !is_simple || maps() != Maps::Lie {
            return Ok(None);
        }
        let Some(element) = self.element_in_place(message, format, shape) else { return Ok(None) };
        let bytes = region(shape).iter().try_fold(element, |all, size| all.checked_mul(*size as u64));
        if bytes.is_none_or(|bytes| bytes > message.room) {
            return Ok(None);
        }
        let host = self.host.as_ref().ok_or(Code::INVALID_VALUE)?;
        let place = host.place(message.place, message.room)?;
        let others = message.flags & !(MEM_ALLOC_HOST_PTR | MEM_COPY_HOST_PTR);
        Ok(Some((others | MEM_USE_HOST_PTR, place)))
    }

    /// Bytes of an element, if the driver of a context has images of a kind, format and accesses in place.
    fn element_in_place(
        &mut self,
        message: &kdclImage<'_>,
        format: &cl_image_format,
        shape: &cl_image_desc,
    ) -> Option<u64> {
        /// Read-write, write-only, read-only, and what is read-write because nothing is said.
        const ACCESSES: [u64; 4] = [1, 2, 4, 0];
        let (context, access) = (message.context, message.flags & KERNEL_ACCESSES);
        let channels = (format.image_channel_order, format.image_channel_data_type);
        let kind = |access: u64| (context, shape.image_type, channels.0, channels.1, access);
        let found = |access: u64| self.images_in_place.get(&kind(access)).copied();
        if let Some(known) = found(access) {
            return known;
        }
        // Where images lie is no matter of what kernels do with them.
        if let Some(element) = ACCESSES.into_iter().find_map(|other| found(other).flatten()) {
            return Some(element);
        }
        let formats = self.formats_to_try(message, format, shape, access);
        // PoCL 3.1 ends the process at a write of an image on a part of a device.
        let devices = self.journal.get(context).map(journal::devices_of).unwrap_or_default();
        let are_whole = devices.iter().all(|device| self.whole(*device) == *device);
        let copier = (are_whole && self.is_of_processors(context)).then(|| self.copier(context).ok()).flatten();
        let elements = match copier {
            Some(copier) => copier.have_images_in_place(access, &formats, shape),
            None => vec![None; formats.len()],
        };
        for (format, element) in formats.iter().zip(elements) {
            let channels = (format.image_channel_order, format.image_channel_data_type);
            self.images_in_place.insert((context, shape.image_type, channels.0, channels.1, access), element);
        }
        self.images_in_place.get(&kind(access)).copied().flatten()
    }

    /// The format of an image that a program asks for, and the others that are worth a trial with it.
    fn formats_to_try(
        &self,
        message: &kdclImage<'_>,
        format: &cl_image_format,
        shape: &cl_image_desc,
        access: u64,
    ) -> Vec<cl_image_format> {
        let is_same = |known: &ImageKind| (known.0, known.1, known.4) == (message.context, shape.image_type, access);
        let mut formats = vec![*format];
        if self.images_in_place.keys().filter(|known| is_same(known)).count() < FEW {
            return formats;
        }
        let Ok(context) = self.shared.objects.get::<cl_context>(message.context) else { return formats };
        let channels = |format: &cl_image_format| (format.image_channel_order, format.image_channel_data_type);
        let is_new = |other: &cl_image_format| {
            let (order, data_type) = channels(other);
            let kind = (message.context, shape.image_type, order, data_type, access);
            channels(other) != channels(format) && !self.images_in_place.contains_key(&kind)
        };
        let others = supported_formats(&context, access, shape.image_type).unwrap_or_default();
        formats.extend(others.into_iter().filter(is_new));
        formats
    }
}

impl Copier {
    /// Of each format the bytes of an element, if the driver reads and writes an image where its memory was given, without gaps.
    fn have_images_in_place(
        &self,
        access: u64,
        formats: &[cl_image_format],
        shape: &cl_image_desc,
    ) -> Vec<Option<u64>> {
        let small = |size: usize| size.min(SIDE);
        let small = cl_image_desc {
            image_width: SIDE,
            image_height: small(shape.image_height),
            image_depth: small(shape.image_depth),
            image_array_size: small(shape.image_array_size),
            image_row_pitch: 0,
            image_slice_pitch: 0,
            ..*shape
        };
        let mut trials: Vec<_> = formats.iter().map(|format| self.trial(access, format, &small)).collect();
        if self.compare(&small, trials.iter_mut().flatten().collect()).is_err() {
            // Commands may go on: their memory stays with them.
            std::mem::forget(trials);
            return vec![None; formats.len()];
        }
        let element = |trial: Trial| {
            // The driver uses the memory until then.
            let released = driver!(self.api, clReleaseMemObject(trial.image)).ok();
            (trial.is_there && released.is_ok()).then_some(trial.element)
        };
        trials.into_iter().map(|trial| trial.and_then(element)).collect()
    }

    /// A small image in memory of ours; none if the driver does not make it there.
    fn trial(&self, access: u64, format: &cl_image_format, small: &cl_image_desc) -> Option<Trial> {
        let mut memory = Box::new(Probe([0; PROBE_BYTES]));
        let (start, flags) = ((&raw mut memory.0).cast::<void>(), access | MEM_USE_HOST_PTR);
        let image = make!(self.api, clCreateImage(self.context, flags, format, &raw const *small, start)).ok()?;
        let element = number_of_image(self.api, image, IMAGE_ELEMENT_SIZE);
        let bytes = region(small).iter().product::<usize>().saturating_mul(element as usize);
        let is_there = (1..=PROBE_BYTES).contains(&bytes);
        Some(Trial { image, element, bytes, memory, back: Box::new([0; PROBE_BYTES]), is_there })
    }

    /// Finds out whether what is written to images comes to their memory, and what is written there is in the images.
    ///
    /// # Errors
    ///
    /// The commands may not have ended well: nothing was found out.
    fn compare(&self, shape: &cl_image_desc, mut trials: Vec<&mut Trial>) -> Result<(), Code> {
        let (origin, region, null) = ([0usize; 3], region(shape), ptr::null_mut());
        let (origin, region, none) = (origin.as_ptr(), region.as_ptr(), ptr::null());
        let (queue, from) = (self.queue, SENT.as_ptr().cast::<void>());
        for trial in trials.iter_mut().filter(|trial| trial.is_there) {
            let image = trial.image;
            let code =
                driver!(self.api, clEnqueueWriteImage(queue, image, 0, origin, region, 0, 0, from, 0, none, null));
            trial.is_there = code.ok().is_ok();
        }
        driver!(self.api, clFinish(queue)).ok()?;
        for trial in trials.iter_mut().filter(|trial| trial.is_there) {
            for (at, byte) in SENT.iter().enumerate().take(trial.bytes) {
                let place = trial.place(at);
                // SAFETY: a byte of ours, which the driver has as well; its command has ended.
                trial.is_there &= unsafe { place.read_volatile() } == *byte;
                // SAFETY: as above.
                unsafe { place.write_volatile(!byte) };
            }
            let (image, to) = (trial.image, trial.back.as_mut_ptr().cast::<void>());
            let code = driver!(self.api, clEnqueueReadImage(queue, image, 0, origin, region, 0, 0, to, 0, none, null));
            trial.is_there &= code.ok().is_ok();
        }
        driver!(self.api, clFinish(queue)).ok()?;
        for trial in trials {
            trial.is_there &= SENT.iter().zip(trial.back.iter()).take(trial.bytes).all(|(sent, back)| *back == !sent);
        }
        Ok(())
    }
}
