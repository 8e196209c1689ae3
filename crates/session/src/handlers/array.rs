//! Arrays: made, ended, and copied from and to.
//!
//! The driver checks extents and places; here only what could reach memory of the worker is checked, and the sizes of
//! data in frames.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::c_void;

use katydid_cuda_sys::{CUDA_ARRAY3D_DESCRIPTOR, CUDA_MEMCPY3D, CUarray, CUresult, CUstream, memory_type};
use katydid_wire::frame::{FrameHead, MAX_PAYLOAD};
use katydid_wire::message::{
    kdArrayCopy, kdArrayCreate, kdArrayCreateReply, kdArrayDestroy, kdArrayDestroyReply, kdArrayRead, kdArrayReadReply,
    kdArrayWrite, kdMipmapCreate, kdMipmapCreateReply, kdMipmapLevel, kdMipmapLevelReply,
};

use super::{Called, Detached, Enqueued, done};
use crate::arrays::Held;
use crate::ask::ask;
use crate::fault::{Fault, SessionError};
use crate::session::Session;

/// Bytes of a reply that describe the data.
const LENGTH: usize = 4;

/// What the texels of a descriptor take; the largest texel where the format is not known here.
fn bytes_of(it: &CUDA_ARRAY3D_DESCRIPTOR) -> u64 {
    let channel = match it.Format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        _ => 4,
    };
    let texels =
        [it.Width, it.Height, it.Depth].into_iter().fold(1_u64, |all, size| all.saturating_mul(size.max(1) as u64));
    texels.saturating_mul(channel).saturating_mul(u64::from(it.NumChannels))
}

/// Charges the quota; out of memory when it leaves less.
fn charge(session: &mut Session, bytes: u64) -> Result<(), Fault> {
    if bytes > session.device.left() {
        return Err(CUresult::ERROR_OUT_OF_MEMORY.into());
    }
    session.device.charge(bytes);
    session.shared.usage.set_device_memory(session.device.held());
    Ok(())
}

/// Bytes are free again.
pub(crate) fn refund(session: &mut Session, bytes: u64) {
    session.device.refund(bytes);
    session.shared.usage.set_device_memory(session.device.held());
}

/// Makes an array.
pub(crate) fn kdArrayCreate(
    session: &mut Session,
    _head: &FrameHead,
    message: kdArrayCreate,
) -> Called<kdArrayCreateReply> {
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
    let bytes = bytes_of(&descriptor);
    if let Err(fault) = charge(session, bytes) {
        // SAFETY: made just now, and nobody knows it.
        let _ = unsafe { session.driver().cuArrayDestroy(array) };
        return Err(fault);
    }
    session.tables.arrays.add(message.array, Held::Array(array), session.current, bytes);
    done(kdArrayCreateReply {})
}

/// Makes a mipmap; all its levels together take at most twice what the first one does.
pub(crate) fn kdMipmapCreate(
    session: &mut Session,
    _head: &FrameHead,
    message: kdMipmapCreate,
) -> Called<kdMipmapCreateReply> {
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
    let first = bytes_of(&descriptor);
    let bytes = if levels > 1 { first.saturating_mul(2) } else { first };
    if let Err(fault) = charge(session, bytes) {
        // SAFETY: made just now, and nobody knows it.
        let _ = unsafe { session.driver().cuMipmappedArrayDestroy(mipmap) };
        return Err(fault);
    }
    session.tables.arrays.add(message.mipmap, Held::Mipmap(mipmap), session.current, bytes);
    done(kdMipmapCreateReply {})
}

/// Gives a level of a mipmap an id of its own.
pub(crate) fn kdMipmapLevel(
    session: &mut Session,
    _head: &FrameHead,
    message: kdMipmapLevel,
) -> Called<kdMipmapLevelReply> {
    session.tables.arrays.check_new(message.array)?;
    let Held::Mipmap(mipmap) = session.tables.arrays.get(message.mipmap)? else {
        return Err(CUresult::ERROR_INVALID_HANDLE.into());
    };
    // SAFETY: a mipmap of the session; the output outlives the call.
    let level = ask(|out| unsafe { session.driver().cuMipmappedArrayGetLevel(out, mipmap, message.level) })?;
    session.tables.arrays.add(message.array, Held::Level(level, message.mipmap), session.current, 0);
    done(kdMipmapLevelReply {})
}

/// Ends an array or a mipmap; the driver may wait for the GPU. A level has nothing that ends.
pub(crate) fn kdArrayDestroy(
    session: &mut Session,
    _head: &FrameHead,
    message: kdArrayDestroy,
) -> Detached<kdArrayDestroyReply> {
    let (held, bytes) = session.tables.arrays.take(message.array)?;
    refund(session, bytes);
    Ok(Box::new(move |driver| {
        // SAFETY: objects of the session that have left the books.
        let status = unsafe {
            match held {
                Held::Array(array) => driver.cuArrayDestroy(array),
                Held::Mipmap(mipmap) => driver.cuMipmappedArrayDestroy(mipmap),
                Held::Level(..) => CUresult::SUCCESS,
            }
        };
        (status, kdArrayDestroyReply {})
    }))
}

/// Rows of `width` bytes without gaps, as many as `height`, and the number of their bytes.
fn rows(width: u64, height: u64) -> Option<usize> {
    usize::try_from(width.checked_mul(height)?).ok()
}

/// A copy of one slice between an array and packed rows of the worker.
fn slice_copy(array: CUarray, [x, y, z]: [u64; 3], width: u64, height: u64) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        srcXInBytes: x as usize,
        srcY: y as usize,
        srcZ: z as usize,
        srcMemoryType: memory_type::ARRAY,
        srcArray: array,
        dstMemoryType: memory_type::HOST,
        dstPitch: width as usize,
        dstHeight: height as usize,
        WidthInBytes: width as usize,
        Height: height as usize,
        Depth: 1,
        ..CUDA_MEMCPY3D::default()
    }
}

/// Copies the frame's rows into an array. The driver has read them when it returns.
pub(crate) fn kdArrayWrite(session: &mut Session, head: &FrameHead, message: kdArrayWrite<'_>) -> Enqueued {
    let kdArrayWrite { array, x, y, z, width, height, data, .. } = message;
    if rows(width, height) != Some(data.len()) {
        return Err(SessionError::DamagedPart {
            message: "kdArrayWrite",
            part: "data",
            reason: format!("{} bytes are not {height} rows of {width}", data.len()),
        }
        .into());
    }
    let array = session.tables.arrays.array(array)?;
    let stream: CUstream = session.handle(head, message.stream)?;
    let copy = CUDA_MEMCPY3D {
        srcMemoryType: memory_type::HOST,
        srcHost: data.as_ptr().cast(),
        srcPitch: width as usize,
        srcHeight: height as usize,
        dstXInBytes: x as usize,
        dstY: y as usize,
        dstZ: z as usize,
        dstMemoryType: memory_type::ARRAY,
        dstArray: array,
        WidthInBytes: width as usize,
        Height: height as usize,
        Depth: 1,
        ..CUDA_MEMCPY3D::default()
    };
    // SAFETY: the rows are readable for the call; being pageable memory, they are not read after it.
    Ok(unsafe { session.driver().cuMemcpy3DAsync_v2(&raw const copy, stream) })
}

/// Copies rows of an array into the reply.
pub(crate) fn kdArrayRead(session: &mut Session, head: &FrameHead, message: kdArrayRead) -> Detached<kdArrayReadReply> {
    let kdArrayRead { x, y, z, width, height, .. } = message;
    let Some(size) = rows(width, height).filter(|size| *size <= MAX_PAYLOAD - LENGTH) else {
        return Err(SessionError::BadRange { what: "one reply", address: width, size: height }.into());
    };
    let array = session.tables.arrays.array(message.array)?;
    let stream: CUstream = session.handle(head, message.stream)?;
    Ok(Box::new(move |driver| {
        let mut data = vec![0_u8; size];
        let mut copy = slice_copy(array, [x, y, z], width, height);
        copy.dstHost = data.as_mut_ptr().cast::<c_void>();
        // SAFETY: the vector has room for all rows and outlives the wait below.
        let mut status = unsafe { driver.cuMemcpy3DAsync_v2(&raw const copy, stream) };
        if status == CUresult::SUCCESS {
            // SAFETY: takes a handle from the driver.
            status = unsafe { driver.cuStreamSynchronize(stream) };
        }
        if status != CUresult::SUCCESS {
            data.clear();
        }
        (status, kdArrayReadReply { data })
    }))
}

/// Bytes from the first to the last of a side that is memory; None beyond all bounds.
fn span(pitch: u64, rows: u64, [width, height, depth]: [u64; 3]) -> Option<u64> {
    let slices = (depth - 1).checked_mul(pitch.checked_mul(rows)?)?;
    slices.checked_add((height - 1).checked_mul(pitch)?)?.checked_add(width)
}

/// Copies between arrays, and between an array and memory that the session owns.
pub(crate) fn kdArrayCopy(session: &mut Session, head: &FrameHead, message: kdArrayCopy) -> Enqueued {
    let it = message;
    let extent = [it.width, it.height, it.depth];
    if extent.contains(&0) {
        return Ok(CUresult::SUCCESS);
    }
    // A side that is memory starts at its address.
    let to = (it.toArray, it.to, it.toPitch, it.toRows, [it.toX, it.toY, it.toZ]);
    let from = (it.fromArray, it.from, it.fromPitch, it.fromRows, [it.fromX, it.fromY, it.fromZ]);
    for (array, address, pitch, rows, first) in [to, from] {
        if array == 0 {
            let size = span(pitch, rows, extent).filter(|_| first == [0; 3]);
            session.reach.check(address, size.ok_or(CUresult::ERROR_INVALID_VALUE)?)?;
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
