//! Arrays and mipmaps: the worker's driver makes them, the shim knows their handle, extent and format.
//!
//! Queries of an array are answered from the parameters of its creation. Levels of a mipmap have their own handles, the same
//! each time.
#![expect(unsafe_code, reason = "reads and writes memory of C callers")]

use std::sync::{Arc, Mutex, PoisonError};

use katydid_client::slab::SlabSlot;
use katydid_cuda_sys::{CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUarray, CUmipmappedArray, CUresult};
use katydid_driver_rules::caller::read;
use katydid_driver_rules::texture::{level_extent, most_levels, plain, whole};
use katydid_wire::message::{kdArrayCreate, kdArrayDestroy, kdMipmapCreate, kdMipmapLevel};

use crate::context::record::Context;
use crate::context::request::call;
use crate::context::stack;
use crate::ffi::arguments::{handle, out};
use crate::ffi::handle::{Handle, HandleTable, object};
use crate::memory::device_backing::in_need;
use crate::process::session::shim;
use crate::texture::array_map::DeferredMemory;

/// An array, or a level of a mipmap.
pub(crate) struct Array {
    pub(crate) slot: SlabSlot,
    pub(crate) context: Arc<Context>,
    descriptor: CUDA_ARRAY3D_DESCRIPTOR,
    /// Whether it is a level, which only its mipmap destroys.
    level: bool,
    /// Its memory, if it is mapped later; a level has that of its mipmap.
    pub(crate) later: Option<Arc<DeferredMemory>>,
}

/// An array with levels, each of half the extent of the one before.
pub(crate) struct Mipmap {
    pub(crate) slot: SlabSlot,
    pub(crate) context: Arc<Context>,
    descriptor: CUDA_ARRAY3D_DESCRIPTOR,
    /// Levels that the program has asked for.
    levels: Mutex<Vec<Option<Arc<Array>>>>,
    /// Its memory, if it is mapped later.
    pub(crate) later: Option<Arc<DeferredMemory>>,
}

/// Arrays, and levels of mipmaps.
pub(crate) static ARRAYS: HandleTable<Array> = HandleTable::new();

impl Handle for CUarray {
    type Object = Array;

    fn table() -> &'static HandleTable<Array> {
        &ARRAYS
    }

    fn value(self) -> usize {
        self.0.addr()
    }
}

impl Array {
    /// The number that messages carry: odd, as mipmaps have even ones.
    pub(crate) fn wire(&self) -> u32 {
        self.slot.index * 2 + 1
    }

    /// Bytes of a row, rows of a slice, slices; layers and faces are slices.
    pub(crate) fn bounds(&self) -> [u64; 3] {
        let CUDA_ARRAY3D_DESCRIPTOR { Width, Height, Depth, .. } = self.descriptor;
        [Width as u64 * self.texel(), Height.max(1) as u64, Depth.max(1) as u64]
    }

    /// Bytes of a texel.
    pub(crate) fn texel(&self) -> u64 {
        channel_bytes(self.descriptor.Format).unwrap_or(0) * u64::from(self.descriptor.NumChannels)
    }
}

/// Mipmaps of all contexts.
pub(crate) static MIPMAPS: HandleTable<Mipmap> = HandleTable::new();

impl Handle for CUmipmappedArray {
    type Object = Mipmap;

    fn table() -> &'static HandleTable<Mipmap> {
        &MIPMAPS
    }

    fn value(self) -> usize {
        self.0.addr()
    }
}

impl Mipmap {
    /// The number that messages carry.
    pub(crate) fn wire(&self) -> u32 {
        self.slot.index * 2 + 2
    }
}

/// Returns the bytes of a channel of format `code`; None for formats without plain texels.
fn channel_bytes(code: u32) -> Option<u64> {
    Some(match code {
        0x01 | 0x08 | 0xc0..=0xc2 | 0xc6..=0xc8 => 1,
        0x02 | 0x09 | 0x10 | 0xc3..=0xc5 | 0xc9..=0xcb => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => return None,
    })
}

/// Bytes of an array, or of a mipmap's first level.
fn size(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> u64 {
    let extents = extent(descriptor).map(|extent| extent.max(1) as u64);
    let texel = channel_bytes(descriptor.Format).unwrap_or(0) * u64::from(descriptor.NumChannels);
    extents.into_iter().fold(texel, u64::saturating_mul)
}

/// Refuses formats whose copies cannot be checked here.
fn check_format(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> Result<(), CUresult> {
    channel_bytes(descriptor.Format).map(drop).ok_or(CUresult::ERROR_INVALID_VALUE)
}

/// Makes an array in the current context.
///
/// # Safety
///
/// `target` is null or writable.
unsafe fn make(target: *mut CUarray, descriptor: CUDA_ARRAY3D_DESCRIPTOR) -> Result<(), CUresult> {
    // SAFETY: handed on.
    let target = unsafe { out(target) }?;
    let context = stack::active()?.owner();
    check_format(&descriptor)?;
    let later = DeferredMemory::of(descriptor.Flags);
    let new = |slot| Array { slot, context, descriptor, level: false, later };
    let arrays = ARRAYS.get()?;
    let array = arrays.insert(new).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    let message = kdArrayCreate {
        array: array.wire(),
        width: descriptor.Width as u64,
        height: descriptor.Height as u64,
        depth: descriptor.Depth as u64,
        format: descriptor.Format,
        channels: descriptor.NumChannels,
        flags: descriptor.Flags,
    };
    let created = in_need(array.context.device, size(&descriptor), || call(&message));
    created.inspect_err(|_| drop(arrays.remove(array.slot.handle)))?;
    target.write(CUarray(handle(array.slot.handle)));
    Ok(())
}

/// # Safety
///
/// Pointers are null or valid; this holds for every function below.
pub(crate) unsafe fn create(target: *mut CUarray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { make(target, read(descriptor)?) }
}

/// # Safety
///
/// As [`create`].
pub(crate) unsafe fn create_plain(
    target: *mut CUarray,
    descriptor: *const CUDA_ARRAY_DESCRIPTOR,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { make(target, whole(read(descriptor)?)) }
}

/// # Safety
///
/// As [`create`].
pub(crate) unsafe fn descriptor(target: *mut CUDA_ARRAY3D_DESCRIPTOR, array: CUarray) -> Result<(), CUresult> {
    // SAFETY: handed on.
    let target = unsafe { out(target) }?;
    target.write(object(array)?.descriptor);
    Ok(())
}

/// # Safety
///
/// As [`create`].
pub(crate) unsafe fn plain_descriptor(target: *mut CUDA_ARRAY_DESCRIPTOR, array: CUarray) -> Result<(), CUresult> {
    // SAFETY: handed on.
    let target = unsafe { out(target) }?;
    target.write(plain(object(array)?.descriptor));
    Ok(())
}

/// Destroys an array. The driver waits for work that may use it. Destroying a level does nothing.
pub(crate) fn destroy(array: CUarray) -> Result<(), CUresult> {
    let array = object(array)?;
    if array.level {
        return Ok(());
    }
    let shim = shim()?;
    shim.session.call(array.context.wire(), &kdArrayDestroy { array: array.wire() })?;
    // Only now: a new array must not have the id before the worker has released it.
    ARRAYS.get()?.remove(array.slot.handle);
    array.later.as_ref().map_or(Ok(()), |later| later.end())
}

/// # Safety
///
/// As [`create`].
pub(crate) unsafe fn create_mipmap(
    target: *mut CUmipmappedArray,
    descriptor: *const CUDA_ARRAY3D_DESCRIPTOR,
    levels: u32,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    let (target, descriptor) = unsafe { (out(target)?, read(descriptor)?) };
    let context = stack::active()?.owner();
    check_format(&descriptor)?;
    let levels = levels.clamp(1, most_levels(extent(&descriptor), descriptor.Flags));
    let later = DeferredMemory::of(descriptor.Flags);
    let new = |slot| Mipmap { slot, context, descriptor, levels: Mutex::new(vec![None; levels as usize]), later };
    let mipmaps = MIPMAPS.get()?;
    let mipmap = mipmaps.insert(new).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    let message = kdMipmapCreate {
        mipmap: mipmap.wire(),
        levels,
        width: descriptor.Width as u64,
        height: descriptor.Height as u64,
        depth: descriptor.Depth as u64,
        format: descriptor.Format,
        channels: descriptor.NumChannels,
        flags: descriptor.Flags,
    };
    let created = in_need(mipmap.context.device, size(&descriptor), || call(&message));
    created.inspect_err(|_| drop(mipmaps.remove(mipmap.slot.handle)))?;
    target.write(CUmipmappedArray(handle(mipmap.slot.handle)));
    Ok(())
}

/// Width, height and depth.
fn extent(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> [usize; 3] {
    [descriptor.Width, descriptor.Height, descriptor.Depth]
}

/// Returns the descriptor of level `number` of a mipmap.
fn level_of(descriptor: &CUDA_ARRAY3D_DESCRIPTOR, number: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
    let [width, height, depth] = level_extent(extent(descriptor), descriptor.Flags, number);
    CUDA_ARRAY3D_DESCRIPTOR { Width: width, Height: height, Depth: depth, ..*descriptor }
}

/// # Safety
///
/// As [`create`].
pub(crate) unsafe fn level(target: *mut CUarray, mipmap: CUmipmappedArray, number: u32) -> Result<(), CUresult> {
    // SAFETY: handed on.
    let target = unsafe { out(target) }?;
    let mipmap = object(mipmap)?;
    let mut levels = mipmap.levels.lock().unwrap_or_else(PoisonError::into_inner);
    let entry = levels.get_mut(number as usize).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let array = match entry {
        Some(array) => Arc::clone(array),
        None => {
            let array = make_level(&mipmap, number)?;
            Arc::clone(entry.insert(array))
        }
    };
    target.write(CUarray(handle(array.slot.handle)));
    Ok(())
}

/// Makes a handle for a level, here and in the worker.
fn make_level(mipmap: &Mipmap, number: u32) -> Result<Arc<Array>, CUresult> {
    let shim = shim()?;
    let (context, descriptor) = (Arc::clone(&mipmap.context), level_of(&mipmap.descriptor, number));
    let new = |slot| Array { slot, context, descriptor, level: true, later: None };
    let arrays = ARRAYS.get()?;
    let array = arrays.insert(new).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    let message = kdMipmapLevel { array: array.wire(), mipmap: mipmap.wire(), level: number };
    let created = shim.session.call(mipmap.context.wire(), &message);
    created.inspect_err(|_| drop(arrays.remove(array.slot.handle)))?;
    Ok(array)
}

/// Destroys a mipmap with its levels.
pub(crate) fn destroy_mipmap(mipmap: CUmipmappedArray) -> Result<(), CUresult> {
    let mipmap = object(mipmap)?;
    let shim = shim()?;
    shim.session.call(mipmap.context.wire(), &kdArrayDestroy { array: mipmap.wire() })?;
    MIPMAPS.get()?.remove(mipmap.slot.handle);
    let levels = std::mem::take(&mut *mipmap.levels.lock().unwrap_or_else(PoisonError::into_inner));
    for level in levels.into_iter().flatten() {
        ARRAYS.get()?.remove(level.slot.handle);
    }
    mipmap.later.as_ref().map_or(Ok(()), |later| later.end())
}

/// Refuses planes, which only video formats have.
///
/// # Safety
///
/// As [`create`].
pub(crate) unsafe fn plane(target: *mut CUarray, array: CUarray, _index: u32) -> Result<(), CUresult> {
    // SAFETY: handed on.
    let _ = unsafe { out(target) }?;
    object(array)?;
    Err(CUresult::ERROR_INVALID_VALUE)
}
