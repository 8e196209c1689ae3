//! Arrays: create, end, and copy from and to them.
//!
//! The driver checks extents and positions; here only accesses that could reach memory of the worker are checked. `rows.rs`
//! has the rows that come from the program's own memory, or go there.

#![expect(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;

use katydid_cuda_sys::{
    CUDA_ARRAY_MEMORY_REQUIREMENTS, CUDA_ARRAY_SPARSE_PROPERTIES, CUDA_ARRAY3D_DESCRIPTOR, CUDA_MEMCPY3D, CUarray,
    CUarrayMapInfo, CUresult, CUstream, memory_type,
};
use katydid_wire::array_map::Change;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{
    kdArrayCopy, kdArrayCreate, kdArrayCreateReply, kdArrayDestroy, kdArrayDestroyReply, kdArrayMap, kdArrayMapReply,
    kdArrayNeeds, kdArrayNeedsReply, kdArraySparse, kdArraySparseReply, kdMipmapCreate, kdMipmapCreateReply,
    kdMipmapLevel, kdMipmapLevelReply,
};

use crate::calls::fault::{Fault, SessionError};
use crate::device::ask::ask;
use crate::handlers::textures::array_size::bytes_of;
use crate::handlers::{CallResult, EnqueueResult, ExecutorResult, success};
use crate::objects::arrays::{ArrayObject, LEVEL_MEMORY};
use crate::state::Session;

/// Creates an array (`cuArrayCreate`, `cuArray3DCreate`).
pub(crate) fn kdArrayCreate(
    session: &mut Session,
    _head: &FrameHead,
    message: kdArrayCreate,
) -> CallResult<kdArrayCreateReply> {
    session.tables.arrays.check_new(message.array)?;
    let descriptor = CUDA_ARRAY3D_DESCRIPTOR {
        Width: message.width as usize,
        Height: message.height as usize,
        Depth: message.depth as usize,
        Format: message.format,
        NumChannels: message.channels,
        Flags: message.flags,
    };
    // SAFETY: the descriptor and the output outlive the call.
    let array = ask(|out| unsafe { session.driver().cuArray3DCreate_v2(out, &raw const descriptor) })?;
    let driver = Arc::clone(&session.shared.driver);
    let memory = session.charge_array(bytes_of(&descriptor, 1)).inspect_err(|_| {
        // SAFETY: made just now, and no code knows it.
        let _ = unsafe { driver.cuArrayDestroy(array) };
    })?;
    session.tables.arrays.add(message.array, ArrayObject::Array(array), session.current, memory);
    success(kdArrayCreateReply {})
}

/// Makes a mipmap (`cuMipmappedArrayCreate`).
pub(crate) fn kdMipmapCreate(
    session: &mut Session,
    _head: &FrameHead,
    message: kdMipmapCreate,
) -> CallResult<kdMipmapCreateReply> {
    session.tables.arrays.check_new(message.mipmap)?;
    let descriptor = CUDA_ARRAY3D_DESCRIPTOR {
        Width: message.width as usize,
        Height: message.height as usize,
        Depth: message.depth as usize,
        Format: message.format,
        NumChannels: message.channels,
        Flags: message.flags,
    };
    let levels = message.levels;
    // SAFETY: the descriptor and the output outlive the call.
    let mipmap = ask(|out| unsafe { session.driver().cuMipmappedArrayCreate(out, &raw const descriptor, levels) })?;
    let driver = Arc::clone(&session.shared.driver);
    let memory = session.charge_array(bytes_of(&descriptor, levels)).inspect_err(|_| {
        // SAFETY: made just now, and no code knows it.
        let _ = unsafe { driver.cuMipmappedArrayDestroy(mipmap) };
    })?;
    session.tables.arrays.add(message.mipmap, ArrayObject::Mipmap(mipmap), session.current, memory);
    success(kdMipmapCreateReply {})
}

/// Gives a level of a mipmap its own id.
pub(crate) fn kdMipmapLevel(
    session: &mut Session,
    _head: &FrameHead,
    message: kdMipmapLevel,
) -> CallResult<kdMipmapLevelReply> {
    session.tables.arrays.check_new(message.array)?;
    let ArrayObject::Mipmap(mipmap) = session.tables.arrays.get(message.mipmap)? else {
        return Err(CUresult::ERROR_INVALID_HANDLE.into());
    };
    // SAFETY: a mipmap of the session; the output outlives the call.
    let level = ask(|out| unsafe { session.driver().cuMipmappedArrayGetLevel(out, mipmap, message.level) })?;
    session.tables.arrays.add(message.array, ArrayObject::Level(level, message.mipmap), session.current, LEVEL_MEMORY);
    success(kdMipmapLevelReply {})
}

/// Ends an array or a mipmap; the driver may wait for the GPU. Ending a level does nothing.
pub(crate) fn kdArrayDestroy(
    session: &mut Session,
    _head: &FrameHead,
    message: kdArrayDestroy,
) -> ExecutorResult<kdArrayDestroyReply> {
    let (array, bytes) = session.tables.arrays.take(message.array)?;
    session.refund(bytes);
    Ok(Box::new(move |driver| {
        // SAFETY: objects of the session that have left the tables.
        let status = unsafe {
            match array {
                ArrayObject::Array(array) => driver.cuArrayDestroy(array),
                ArrayObject::Mipmap(mipmap) => driver.cuMipmappedArrayDestroy(mipmap),
                ArrayObject::Level(..) => CUresult::SUCCESS,
            }
        };
        (status, kdArrayDestroyReply {})
    }))
}

/// Returns the driver's properties of a sparse array's tiles.
pub(crate) fn kdArraySparse(
    session: &mut Session,
    _head: &FrameHead,
    message: kdArraySparse,
) -> CallResult<kdArraySparseReply> {
    let driver = Arc::clone(&session.shared.driver);
    let answer: CUDA_ARRAY_SPARSE_PROPERTIES = match session.tables.arrays.get(message.array)? {
        ArrayObject::Mipmap(mipmap) => {
            // SAFETY: a mipmap of the session; the output outlives the call.
            ask(|out| unsafe { driver.cuMipmappedArrayGetSparseProperties(out, mipmap) })?
        }
        ArrayObject::Array(array) | ArrayObject::Level(array, _) => {
            // SAFETY: an array of the session; the output outlives the call.
            ask(|out| unsafe { driver.cuArrayGetSparseProperties(out, array) })?
        }
    };
    let [width, height, depth] = answer.tileExtent;
    let (first, tail, flags) = (answer.miptailFirstLevel, answer.miptailSize, answer.flags);
    success(kdArraySparseReply { width, height, depth, first, tail, flags })
}

/// Returns the memory requirements of an array that is mapped as a whole.
pub(crate) fn kdArrayNeeds(
    session: &mut Session,
    _head: &FrameHead,
    message: kdArrayNeeds,
) -> CallResult<kdArrayNeedsReply> {
    let (driver, device) = (Arc::clone(&session.shared.driver), message.device);
    let answer: CUDA_ARRAY_MEMORY_REQUIREMENTS = match session.tables.arrays.get(message.array)? {
        ArrayObject::Mipmap(mipmap) => {
            // SAFETY: a mipmap of the session; the output outlives the call.
            ask(|out| unsafe { driver.cuMipmappedArrayGetMemoryRequirements(out, mipmap, device) })?
        }
        ArrayObject::Array(array) | ArrayObject::Level(array, _) => {
            // SAFETY: an array of the session; the output outlives the call.
            ask(|out| unsafe { driver.cuArrayGetMemoryRequirements(out, array, device) })?
        }
    };
    success(kdArrayNeedsReply { size: answer.size as u64, alignment: answer.alignment as u64 })
}

/// Decodes one change, with handles in place of ids.
fn change(session: &Session, it: &Change) -> Result<CUarrayMapInfo, Fault> {
    let resource = match session.tables.arrays.get(it.array)? {
        ArrayObject::Mipmap(mipmap) => mipmap.address(),
        ArrayObject::Array(array) | ArrayObject::Level(array, _) => array.address(),
    };
    let memHandle = if it.memory == 0 { 0 } else { session.virtual_memory.block(it.memory)? };
    Ok(CUarrayMapInfo {
        resourceType: it.kind,
        resource,
        subresourceType: it.part,
        subresource: it.subresource,
        memOperationType: it.operation,
        memHandleType: it.handle_kind,
        memHandle,
        offset: it.offset,
        deviceBitMask: it.devices,
        flags: it.unused[0],
        reserved: [it.unused[1], it.unused[2]],
    })
}

/// Maps parts of arrays to blocks, or unmaps them, in stream order.
pub(crate) fn kdArrayMap(
    session: &mut Session,
    head: &FrameHead,
    message: kdArrayMap<'_>,
) -> CallResult<kdArrayMapReply> {
    let damaged = || {
        let reason = format!("{} bytes are not whole records", message.changes.len());
        SessionError::DamagedPart { message: "kdArrayMap", part: "changes", reason }
    };
    let changes = Change::decode_all(message.changes).ok_or_else(damaged)?;
    let mut infos = changes.iter().map(|it| change(session, it)).collect::<Result<Vec<_>, _>>()?;
    let stream: CUstream = session.handle(head, message.stream)?;
    // The size of a frame bounds their number.
    let count = infos.len() as u32;
    // SAFETY: arrays and blocks of the session; the count is the list's, which outlives the call.
    unsafe { session.driver().cuMemMapArrayAsync(infos.as_mut_ptr(), count, stream) }.ok()?;
    success(kdArrayMapReply {})
}

/// Returns the bytes from the first to the last of a side that is memory; None on overflow.
pub(crate) fn span(pitch: u64, rows: u64, [width, height, depth]: [u64; 3]) -> Option<u64> {
    let slices = (depth - 1).checked_mul(pitch.checked_mul(rows)?)?;
    slices.checked_add((height - 1).checked_mul(pitch)?)?.checked_add(width)
}

/// Copies between arrays, and between an array and memory that the session owns.
pub(crate) fn kdArrayCopy(session: &mut Session, head: &FrameHead, message: kdArrayCopy) -> EnqueueResult {
    let it = message;
    let extent = [it.width, it.height, it.depth];
    if extent.contains(&0) {
        return Ok(CUresult::SUCCESS);
    }
    // A side in memory starts at its address.
    let to = (it.toArray, it.to, it.toPitch, it.toRows, [it.toX, it.toY, it.toZ]);
    let from = (it.fromArray, it.from, it.fromPitch, it.fromRows, [it.fromX, it.fromY, it.fromZ]);
    for (array, address, pitch, rows, first) in [to, from] {
        if array == 0 {
            let size = span(pitch, rows, extent).filter(|_| first == [0; 3]);
            session.address_check.check(address, size.ok_or(CUresult::ERROR_INVALID_VALUE)?)?;
        }
    }
    let side = |id: u32| match id {
        0 => Ok((memory_type::UNIFIED, CUarray::NULL)),
        id => session.tables.arrays.array(id).map(|array| (memory_type::ARRAY, array)),
    };
    let ((dstMemoryType, dstArray), (srcMemoryType, srcArray)) = (side(it.toArray)?, side(it.fromArray)?);
    let stream: CUstream = session.handle(head, it.stream)?;
    let copy = CUDA_MEMCPY3D {
        srcXInBytes: it.fromX as usize,
        srcY: it.fromY as usize,
        srcZ: it.fromZ as usize,
        srcMemoryType,
        srcDevice: it.from,
        srcArray,
        srcPitch: it.fromPitch as usize,
        srcHeight: it.fromRows as usize,
        dstXInBytes: it.toX as usize,
        dstY: it.toY as usize,
        dstZ: it.toZ as usize,
        dstMemoryType,
        dstDevice: it.to,
        dstArray,
        dstPitch: it.toPitch as usize,
        dstHeight: it.toRows as usize,
        WidthInBytes: it.width as usize,
        Height: it.height as usize,
        Depth: it.depth as usize,
        ..CUDA_MEMCPY3D::default()
    };
    // SAFETY: arrays of the session; memory inside its arenas and reservations, by the checks above.
    Ok(unsafe { session.driver().cuMemcpy3DAsync_v2(&raw const copy, stream) })
}
