//! Green contexts: parts of a device's multiprocessors, with their own streams.
//!
//! Only their bookkeeping exists: the work of all contexts runs on the same processors. As with the real driver, memory, code and
//! events belong to the device's primary context. The handle of a green context is also a handle of that context. A
//! multiprocessor of a software device has no neighbours, so parts may have any size from one on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use katydid_cuda_sys::{CUdevResource, CUresult, Pod as _};
use katydid_driver_rules::device::{RESOURCE_TYPE_SM, check_resource_type};

use crate::context::{contexts, primary, stack};
use crate::ffi::Outcome;
use crate::process::device::{self, Device};
use crate::process::handles::{Registry, new_handle};
use crate::process::state;
use crate::sync::stream::LiveContext;
use crate::sync::streams;

/// `CU_GREEN_CTX_DEFAULT_STREAM`, a mandatory flag.
const GREEN_CTX_DEFAULT_STREAM: u32 = 1;
/// `CU_DEV_SM_RESOURCE_SPLIT_*`.
const SPLIT_FLAGS: u32 = 3;
/// Marks a resource of this library.
const RESOURCE_MARK: u32 = 0x4752_4e31;
/// Offsets in a resource: of its mark, its device, the split that made it (0: none), and the count that programs may read.
const MARK_OFFSET: usize = 4;
const DEVICE_OFFSET: usize = 8;
const SPLIT_OFFSET: usize = 16;
const COUNT_OFFSET: usize = 96;

const INVALID_VALUE: CUresult = CUresult::ERROR_INVALID_VALUE;

/// Multiprocessors of a device.
#[derive(Clone, Copy)]
pub(crate) struct SmResource {
    device: i32,
    /// The split that made it; 0 for a whole device or green context.
    split: u64,
    count: u32,
}

/// A living green context.
pub(crate) struct GreenContext {
    /// Its handle, also as a context.
    pub(crate) handle: usize,
    /// Id that no other green context has.
    pub(crate) id: u64,
    pub(crate) device: &'static Device,
    count: u32,
}

static GREEN_CONTEXTS: Registry<GreenContext> = Registry::new();
static RESOURCE_DESCRIPTIONS: Registry<SmResource> = Registry::new();

impl SmResource {
    /// Returns all multiprocessors of a device.
    pub(crate) fn of_device(device: &Device) -> Self {
        Self { device: device.ordinal, split: 0, count: device.multiprocessors() }
    }

    /// Returns the form that programs keep; nothing for no multiprocessor.
    pub(crate) fn resource(self) -> CUdevResource {
        let mut bytes = [0; size_of::<CUdevResource>()];
        if self.count > 0 {
            let mut put = |at: usize, number: u32| bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
            put(0, RESOURCE_TYPE_SM);
            put(MARK_OFFSET, RESOURCE_MARK);
            put(DEVICE_OFFSET, self.device.cast_unsigned());
            // The count, the smallest part, and the granule of sizes.
            [self.count, 1, 1]
                .into_iter()
                .enumerate()
                .for_each(|(index, number)| put(COUNT_OFFSET + 4 * index, number));
            bytes[SPLIT_OFFSET..SPLIT_OFFSET + 8].copy_from_slice(&self.split.to_le_bytes());
        }
        CUdevResource::from_bytes(&bytes).unwrap_or_default()
    }

    /// Reads a resource that a program kept.
    pub(crate) fn read(resource: &CUdevResource) -> Outcome<Self> {
        let bytes = resource.to_bytes();
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        check_resource_type(word(0))?;
        if word(MARK_OFFSET) != RESOURCE_MARK {
            return Err(INVALID_VALUE);
        }
        let split = u64::from(word(SPLIT_OFFSET)) | u64::from(word(SPLIT_OFFSET + 4)) << 32;
        Ok(Self { device: word(DEVICE_OFFSET).cast_signed(), split, count: word(COUNT_OFFSET) })
    }

    /// Splits it into parts of at least `least`: as many as possible, or `requested`, and the rest.
    pub(crate) fn split(self, requested: Option<u32>, flags: u32, least: u32) -> Outcome<(Vec<Self>, Self)> {
        static NEXT_SPLIT_ID: AtomicU64 = AtomicU64::new(1);
        if flags & !SPLIT_FLAGS != 0 || least > self.count {
            return Err(INVALID_VALUE);
        }
        if self.split != 0 {
            return Err(CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION);
        }
        let size = least.max(1);
        let part_count = requested.unwrap_or(u32::MAX).min(self.count / size);
        let split = NEXT_SPLIT_ID.fetch_add(1, Ordering::Relaxed);
        let parts = (0..part_count).map(|_| Self { split, count: size, ..self }).collect();
        Ok((parts, Self { split, count: self.count - part_count * size, ..self }))
    }
}

/// Describes a context that gets all of `parts`. The handle never ends.
pub(crate) fn describe(parts: &[SmResource]) -> Outcome<usize> {
    let Some((first, further)) = parts.split_first() else { return Err(INVALID_VALUE) };
    let same = |other: &SmResource| other.device == first.device && other.split == first.split && first.split != 0;
    if !further.iter().all(same) {
        return Err(CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION);
    }
    let handle = new_handle();
    let count = parts.iter().map(|part| part.count).sum();
    RESOURCE_DESCRIPTIONS.insert(handle, Arc::new(SmResource { count, ..*first }));
    Ok(handle)
}

/// Creates a green context. The primary context of its device stays at least as long.
pub(crate) fn create(description: usize, device: &'static Device, flags: u32) -> Outcome<usize> {
    static NEXT_GREEN_CTX_ID: AtomicU64 = AtomicU64::new(1);
    let part = RESOURCE_DESCRIPTIONS.get(description).ok_or(INVALID_VALUE)?;
    if flags != GREEN_CTX_DEFAULT_STREAM || part.device != device.ordinal {
        return Err(INVALID_VALUE);
    }
    primary::of(device).retain(device)?;
    let (handle, id) = (new_handle(), NEXT_GREEN_CTX_ID.fetch_add(1, Ordering::Relaxed));
    contexts::add_name(handle, device.primary_handle);
    GREEN_CONTEXTS.insert(handle, Arc::new(GreenContext { handle, id, device, count: part.count }));
    Ok(handle)
}

/// Ends a green context and the handles of its streams.
pub(crate) fn destroy(handle: usize) -> Outcome {
    let green = GREEN_CONTEXTS.remove(handle).ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
    contexts::remove_name(handle);
    if let Some(primary) = contexts::living(green.device.primary_handle) {
        primary.drain();
    }
    streams::forget_green(handle);
    primary::of(green.device).release()
}

/// Returns the green context of a handle.
pub(crate) fn resolve(handle: usize) -> Outcome<Arc<GreenContext>> {
    state::ready()?;
    GREEN_CONTEXTS.get(handle).ok_or(CUresult::ERROR_INVALID_CONTEXT)
}

/// Returns the handle if it is a green context's, else 0.
pub(crate) fn or_none(handle: usize) -> usize {
    if GREEN_CONTEXTS.get(handle).is_some() { handle } else { 0 }
}

impl GreenContext {
    /// Returns its multiprocessors, which may be split.
    pub(crate) fn part(&self) -> SmResource {
        SmResource { device: self.device.ordinal, split: 0, count: self.count }
    }

    /// Returns the primary context of its device, if that is healthy.
    pub(crate) fn context(&self) -> Outcome<Arc<LiveContext>> {
        let context = contexts::living(self.device.primary_handle).ok_or(CUresult::ERROR_CONTEXT_IS_DESTROYED)?;
        context.healthy().map(|()| context)
    }
}

/// Returns the part of a context: a green one's own, else its device's.
pub(crate) fn part_of(handle: usize) -> Outcome<SmResource> {
    match GREEN_CONTEXTS.get(handle) {
        Some(green) => Ok(green.part()),
        None => Ok(SmResource::of_device(device::get(stack::device_of(handle)?.ordinal)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_disjoint_and_come_back_from_what_programs_keep() {
        let whole = SmResource { device: 0, split: 0, count: 7 };
        let (parts, remainder) = whole.split(None, 0, 3).unwrap();
        assert_eq!((parts.len(), parts[1].count, remainder.count), (2, 3, 1));
        let read = SmResource::read(&parts[0].resource()).unwrap();
        assert_eq!((read.count, read.split), (3, parts[0].split));
        assert_eq!(read.split(None, 0, 1).err(), Some(CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION));
        assert_eq!(whole.split(None, 0, 8).err(), Some(INVALID_VALUE));
        assert_eq!(whole.split(None, 4, 1).err(), Some(INVALID_VALUE));
        let none = whole.split(None, 0, 7).unwrap().1.resource();
        assert_eq!(SmResource::read(&none).err(), Some(CUresult::ERROR_INVALID_RESOURCE_TYPE));
        assert!(describe(&parts).is_ok());
        assert_eq!(describe(&[whole, whole]).err(), Some(CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION));
    }
}
