//! One area of memory with contents: where it lies, and how to copy it.

#![expect(unsafe_code, reason = "has the driver copy to and from mapped memory")]

use std::ptr;

use katydid_image::Region;
use katydid_opencl_sys::constant::{
    MEM_HOST_NO_ACCESS, MEM_HOST_READ_ONLY, MEM_HOST_WRITE_ONLY, MEM_OBJECT_IMAGE1D_ARRAY,
};
use katydid_opencl_sys::{Code, void};
use katydid_session_core::CHUNK_BYTES;
use katydid_wire::codec::Field as _;

use crate::calls::pending_reads::ReadLocation;
use crate::contents::copier::{Copier, Map};
use crate::contents::copy_memory::CopyMemory;
use crate::contents::error::ContentsError;
use crate::contents::location::AreaLocation;
use crate::drivers::call::driver;
use crate::memory::address::pointer;

/// A contiguous range of bytes.
pub(super) struct Area {
    pub(super) kind: &'static str,
    pub(super) object: u64,
    pub(super) bytes: u64,
    /// The context in which it can be copied; 0 if it needs none.
    pub(super) context: u32,
    pub(super) location: AreaLocation,
}

/// Parses an image description: elements, rows and slices of the image, and its levels.
pub(super) fn shape(mut remaining: &[u8]) -> Option<([usize; 3], u32)> {
    let (_order, _type) = (u32::take(&mut remaining)?, u32::take(&mut remaining)?);
    let kind = u32::take(&mut remaining)?;
    let mut sizes = [0u64; 6];
    for size in &mut sizes {
        *size = u64::take(&mut remaining)?;
    }
    let [width, height, depth, images] = [sizes[0], sizes[1], sizes[2], sizes[3]].map(|size| size.max(1) as usize);
    let region = match kind {
        MEM_OBJECT_IMAGE1D_ARRAY => [width, images, 1],
        // A shape without slices has a depth of 1; a shape without images has 1 image.
        _ => [width, height, depth.max(images)],
    };
    Some((region, u32::take(&mut remaining)?))
}

/// A range of this process's memory where contents lie.
pub(super) struct DirectRange<'a> {
    pub(super) address: u64,
    /// Mapping that keeps the contents there.
    _map: Option<Map<'a>>,
}

impl Area {
    /// Returns where the contents lie in this process, to read (`is_out`) or to write; `None` if they lie elsewhere.
    pub(super) fn direct_range<'a>(&self, copier: Option<&'a Copier>, is_out: bool) -> Option<DirectRange<'a>> {
        let address = |location: *const void| location.expose_provenance() as u64;
        let copier = copier.filter(|copier| copier.is_host);
        match &self.location {
            AreaLocation::PendingRead(read) => match &read.location {
                ReadLocation::Own(target) => Some(DirectRange { address: address(target.pointer()), _map: None }),
                ReadLocation::Svm(..) => None,
            },
            AreaLocation::Svm(address) => copier.map(|_| DirectRange { address: *address, _map: None }),
            AreaLocation::Buffer(memory, flags) => {
                let map = copier?.map(*memory, (self.bytes, *flags), is_out).ok()?;
                Some(DirectRange { address: address(map.pointer), _map: Some(map) })
            }
            AreaLocation::Image(..) => None,
        }
    }

    /// Returns the image's description of the area, without the chunks.
    pub(super) fn region(&self) -> Region {
        let address = if let AreaLocation::Svm(address) = self.location { address } else { 0 };
        Region {
            kind: self.kind.to_owned(),
            name: format!("{} {:#x}", self.kind, self.object),
            object: Some(self.object),
            gpu: None,
            address,
            bytes: self.bytes,
            chunk_bytes: CHUNK_BYTES as u32,
            chunks: Vec::new(),
        }
    }

    pub(super) fn failed(&self) -> impl Fn(Code) -> ContentsError + use<> {
        let (kind, object) = (self.kind, self.object);
        move |code| ContentsError::Copy { kind, object, code }
    }

    /// Reads the whole area.
    pub(super) fn read(&self, copier: Option<&Copier>, memory: &mut CopyMemory) -> Result<(), ContentsError> {
        if let AreaLocation::PendingRead(read) = &self.location {
            let ReadLocation::Own(target) = &read.location else { return Ok(()) };
            let bytes = memory.bytes_mut();
            for (number, chunk) in bytes.chunks_mut(CHUNK_BYTES as usize).enumerate() {
                let copied = target.copy(number as u64 * CHUNK_BYTES, chunk.len() as u32);
                chunk.copy_from_slice(&copied.ok_or_else(|| self.failed()(Code::INVALID_VALUE))?);
            }
            return Ok(());
        }
        let copier = copier.ok_or_else(|| self.failed()(Code::INVALID_CONTEXT))?;
        let to = memory.start;
        let code = match &self.location {
            AreaLocation::Buffer(memory, flags) if flags & (MEM_HOST_WRITE_ONLY | MEM_HOST_NO_ACCESS) == 0 => {
                copier.read(*memory, 0, self.bytes, to)
            }
            AreaLocation::Image(memory, region, flags) if flags & (MEM_HOST_WRITE_ONLY | MEM_HOST_NO_ACCESS) == 0 => {
                let (zero, null) = ([0; 3], ptr::null_mut());
                let (start, area) = (zero.as_ptr(), region.as_ptr());
                let queue = copier.queue;
                driver!(copier.api, clEnqueueReadImage(queue, *memory, 1, start, area, 0, 0, to, 0, ptr::null(), null))
                    .ok()
            }
            AreaLocation::Svm(address) => copier.copy_svm(to, pointer(*address), self.bytes),
            AreaLocation::PendingRead(_) => Ok(()),
            hidden => copier.through(self.bytes, |scratch| {
                copier.between(hidden, scratch, self.bytes, true)?;
                copier.read(scratch, 0, self.bytes, to)
            }),
        };
        code.map_err(self.failed())
    }

    /// Writes the whole area, from memory of its size.
    pub(super) fn write(&self, copier: Option<&Copier>, from: *mut void) -> Result<(), ContentsError> {
        if let AreaLocation::PendingRead(read) = &self.location {
            let ReadLocation::Own(target) = &read.location else { return Ok(()) };
            // SAFETY: both are of this length, and no other code has the read yet.
            unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), target.pointer().cast(), self.bytes as usize) };
            return Ok(());
        }
        let copier = copier.ok_or_else(|| self.failed()(Code::INVALID_CONTEXT))?;
        let code = match &self.location {
            AreaLocation::Buffer(memory, flags) if flags & (MEM_HOST_READ_ONLY | MEM_HOST_NO_ACCESS) == 0 => {
                copier.write(*memory, self.bytes, from)
            }
            AreaLocation::Image(memory, region, flags) if flags & (MEM_HOST_READ_ONLY | MEM_HOST_NO_ACCESS) == 0 => {
                let (zero, null) = ([0; 3], ptr::null_mut());
                let (start, area) = (zero.as_ptr(), region.as_ptr());
                let queue = copier.queue;
                driver!(
                    copier.api,
                    clEnqueueWriteImage(queue, *memory, 1, start, area, 0, 0, from, 0, ptr::null(), null)
                )
                .ok()
            }
            AreaLocation::Svm(address) => copier.copy_svm(pointer(*address), from, self.bytes),
            AreaLocation::PendingRead(_) => Ok(()),
            hidden => copier.through(self.bytes, |scratch| {
                copier.write(scratch, self.bytes, from)?;
                copier.between(hidden, scratch, self.bytes, false)
            }),
        };
        code.map_err(self.failed())
    }
}
