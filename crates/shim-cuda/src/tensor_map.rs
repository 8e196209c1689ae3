//! Tensor maps: the arguments travel, the worker's driver encodes.
#![expect(unsafe_code, reason = "reads and writes arrays of C callers")]

use katydid_cuda_sys::{CUresult, CUtensorMap, Function, void};
use katydid_wire::message::kdTensorMap;
use katydid_wire::tensor_map::{MAX_PIXEL_RANK, MAX_RANK, TensorMap, TensorMapKind};

use crate::border::refuse;
use crate::session::shim;

/// Maps lie at multiples of this, in bytes.
const ALIGNMENT: usize = 64;
/// Addresses of tensors are multiples of this, in bytes.
const TENSOR_ALIGNMENT: u64 = 16;
/// A tensor without dimensions: what the functions fill in.
const EMPTY: TensorMap = TensorMap {
    kind: TensorMapKind::Tiled,
    data_type: 0,
    rank: 0,
    dimensions: [0; MAX_RANK],
    strides: [0; MAX_RANK],
    tile: [0; MAX_RANK],
    element_strides: [0; MAX_RANK],
    lower: [0; MAX_PIXEL_RANK],
    upper: [0; MAX_PIXEL_RANK],
    channels: 0,
    pixels: 0,
    interleave: 0,
    mode: 0,
    swizzle: 0,
    promotion: 0,
    fill: 0,
};

/// The first `count` entries of an array.
///
/// # Safety
///
/// `array` is null or has `count` entries.
unsafe fn take<T: Copy + Default, const N: usize>(array: *const T, count: usize) -> Result<[T; N], CUresult> {
    if count > 0 && array.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let mut taken = [T::default(); N];
    for (index, place) in taken.iter_mut().enumerate().take(count) {
        // SAFETY: below `count`, by the contract.
        *place = unsafe { array.add(index).read_unaligned() };
    }
    Ok(taken)
}

/// The rank, if a tensor can have it.
fn rank(rank: u32, least: usize) -> Result<usize, CUresult> {
    let rank = rank as usize;
    if (least..=MAX_RANK).contains(&rank) { Ok(rank) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

/// Has a map encoded and writes it.
///
/// # Safety
///
/// `target` is null or has room for a map.
unsafe fn encode(
    function: Function,
    target: *mut CUtensorMap,
    address: *mut void,
    map: &TensorMap,
) -> Result<(), CUresult> {
    if target.is_null() || !target.addr().is_multiple_of(ALIGNMENT) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let message = kdTensorMap { address: address.addr() as u64, arguments: &map.encode() };
    let reply = match shim()?.session.call(0, &message) {
        Err(CUresult::ERROR_NOT_SUPPORTED) => return Err(refuse(function, "is not supported by the server's driver")),
        other => other?,
    };
    let map = reply.map.first_chunk::<{ size_of::<CUtensorMap>() }>().ok_or(CUresult::ERROR_UNKNOWN)?;
    // SAFETY: room for a map, by the contract.
    unsafe { target.cast::<[u8; size_of::<CUtensorMap>()]>().write(*map) };
    Ok(())
}

/// # Safety
///
/// `target` is null or has room for a map; the arrays are null or have as many entries as the rank asks for, here and
/// below.
#[expect(clippy::too_many_arguments, reason = "as the driver API has it")]
pub(crate) unsafe fn tiled(
    target: *mut CUtensorMap,
    data_type: u32,
    tensor_rank: u32,
    address: *mut void,
    dimensions: *const u64,
    strides: *const u64,
    tile: *const u32,
    element_strides: *const u32,
    interleave: u32,
    swizzle: u32,
    promotion: u32,
    fill: u32,
) -> Result<(), CUresult> {
    let count = rank(tensor_rank, 1)?;
    // SAFETY: as many entries as the rank asks for, by the contract.
    let map = unsafe {
        TensorMap {
            data_type,
            rank: tensor_rank,
            dimensions: take(dimensions, count)?,
            strides: take(strides, count - 1)?,
            tile: take(tile, count)?,
            element_strides: take(element_strides, count)?,
            interleave,
            swizzle,
            promotion,
            fill,
            ..EMPTY
        }
    };
    // SAFETY: handed on.
    unsafe { encode(Function::cuTensorMapEncodeTiled, target, address, &map) }
}

/// # Safety
///
/// As [`tiled`].
#[expect(clippy::too_many_arguments, reason = "as the driver API has it")]
pub(crate) unsafe fn im2col(
    target: *mut CUtensorMap,
    data_type: u32,
    tensor_rank: u32,
    address: *mut void,
    dimensions: *const u64,
    strides: *const u64,
    lower: *const i32,
    upper: *const i32,
    channels: u32,
    pixels: u32,
    element_strides: *const u32,
    interleave: u32,
    swizzle: u32,
    promotion: u32,
    fill: u32,
) -> Result<(), CUresult> {
    let count = rank(tensor_rank, 3)?;
    // SAFETY: as in `tiled`.
    let map = unsafe {
        TensorMap {
            kind: TensorMapKind::Im2col,
            data_type,
            rank: tensor_rank,
            dimensions: take(dimensions, count)?,
            strides: take(strides, count - 1)?,
            element_strides: take(element_strides, count)?,
            lower: take(lower, count - 2)?,
            upper: take(upper, count - 2)?,
            channels,
            pixels,
            interleave,
            swizzle,
            promotion,
            fill,
            ..EMPTY
        }
    };
    // SAFETY: handed on.
    unsafe { encode(Function::cuTensorMapEncodeIm2col, target, address, &map) }
}

/// # Safety
///
/// As [`tiled`].
#[expect(clippy::too_many_arguments, reason = "as the driver API has it")]
pub(crate) unsafe fn im2col_wide(
    target: *mut CUtensorMap,
    data_type: u32,
    tensor_rank: u32,
    address: *mut void,
    dimensions: *const u64,
    strides: *const u64,
    lower_width: i32,
    upper_width: i32,
    channels: u32,
    pixels: u32,
    element_strides: *const u32,
    interleave: u32,
    mode: u32,
    swizzle: u32,
    promotion: u32,
    fill: u32,
) -> Result<(), CUresult> {
    let count = rank(tensor_rank, 3)?;
    // SAFETY: as in `tiled`.
    let map = unsafe {
        TensorMap {
            kind: TensorMapKind::Im2colWide,
            data_type,
            rank: tensor_rank,
            dimensions: take(dimensions, count)?,
            strides: take(strides, count - 1)?,
            element_strides: take(element_strides, count)?,
            lower: [lower_width, 0, 0],
            upper: [upper_width, 0, 0],
            channels,
            pixels,
            interleave,
            mode,
            swizzle,
            promotion,
            fill,
            ..EMPTY
        }
    };
    // SAFETY: handed on.
    unsafe { encode(Function::cuTensorMapEncodeIm2colWide, target, address, &map) }
}

/// The address is the first word of a map, on every driver so far: `cuTensorMapEncodeTiled` was seen to put it there.
///
/// # Safety
///
/// `target` is null or a map.
pub(crate) unsafe fn replace_address(target: *mut CUtensorMap, address: *mut void) -> Result<(), CUresult> {
    let address = address.addr() as u64;
    let aligned = target.addr().is_multiple_of(ALIGNMENT) && address.is_multiple_of(TENSOR_ALIGNMENT);
    if target.is_null() || !aligned {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: a map, by the contract.
    unsafe { target.cast::<u64>().write(address) };
    Ok(())
}
