//! Tensor maps: the shim sends the arguments, and the worker's driver encodes them.
//!
//! A map depends on its arguments alone, and begins with the address (on every driver so far: `cuTensorMapReplaceAddress`
//! changes just that word). So the driver is asked once for each shape: libraries make the same maps for every launch.
#![expect(unsafe_code, reason = "reads and writes arrays of C callers")]

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use katydid_cuda_sys::{CUresult, CUtensorMap, Function, void};
use katydid_driver_rules::caller::filled as take;
use katydid_driver_rules::tensor_map::{self as rules, check_map_pointer, rank};
use katydid_wire::message::kdTensorMap;
use katydid_wire::tensor_map::{MAX_PIXEL_RANK, MAX_TENSOR_RANK, TensorMap, TensorMapKind};

use crate::ffi::arguments::refuse;
use crate::process::session::shim;

// The wire format has room for as many dimensions as the driver takes.
const _: () = assert!(MAX_TENSOR_RANK == rules::MAX_TENSOR_RANK && MAX_PIXEL_RANK == rules::MAX_PIXEL_RANK);

/// Most cached shapes; at this number the cache is emptied.
const MAX_TENSOR_SHAPES: usize = 1024;
/// A driver checks an address only for its alignment: shapes are cached for each remainder by this, in bytes.
const ADDRESS_CHECK_ALIGN_BYTES: u64 = 256;
/// A tensor without dimensions, which the functions fill in.
const EMPTY_TENSOR_MAP: TensorMap = TensorMap {
    kind: TensorMapKind::Tiled,
    data_type: 0,
    rank: 0,
    dimensions: [0; MAX_TENSOR_RANK],
    strides: [0; MAX_TENSOR_RANK],
    tile: [0; MAX_TENSOR_RANK],
    element_strides: [0; MAX_TENSOR_RANK],
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

/// A map in words; the first one is the address.
type EncodedMap = [u64; size_of::<CUtensorMap>() / 8];
/// All arguments of a map except the address, of which only the remainder counts.
type TensorMapKey = (TensorMap, u64);

/// Maps that the driver has encoded.
#[derive(Debug, Default)]
struct EncodedMaps(Mutex<(u64, HashMap<TensorMapKey, EncodedMap>)>);

static ENCODED_MAPS: LazyLock<EncodedMaps> = LazyLock::new(EncodedMaps::default);

impl EncodedMaps {
    /// Returns the map of a shape for an address, if this driver has encoded one; `moves` counts drivers. A map with a null
    /// address is never cached.
    fn of(&self, moves: u64, shape: &TensorMapKey, address: u64) -> Option<EncodedMap> {
        let cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut map = *cache.1.get(shape).filter(|_| cache.0 == moves && address != 0)?;
        map[0] = address;
        Some(map)
    }

    /// Caches a map, unless it does not begin with its address, which then could not be replaced.
    fn note(&self, moves: u64, shape: TensorMapKey, address: u64, map: EncodedMap) {
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.0 != moves || cache.1.len() >= MAX_TENSOR_SHAPES {
            *cache = (moves, HashMap::new());
        }
        if map[0] == address && address != 0 {
            cache.1.insert(shape, map);
        }
    }
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
    check_map_pointer(target)?;
    let (shim, address) = (shim()?, address.addr() as u64);
    let (moves, shape) = (shim.session.moves(), (*map, address % ADDRESS_CHECK_ALIGN_BYTES));
    let encoded = match ENCODED_MAPS.of(moves, &shape, address) {
        Some(encoded) => encoded,
        None => {
            let encoded = ask(function, address, map)?;
            // The answer may have come from another driver than the one before.
            if shim.session.moves() == moves {
                ENCODED_MAPS.note(moves, shape, address, encoded);
            }
            encoded
        }
    };
    // SAFETY: room for a map, by the contract.
    unsafe { target.cast::<EncodedMap>().write(encoded) };
    Ok(())
}

/// Has the worker's driver encode a map.
fn ask(function: Function, address: u64, map: &TensorMap) -> Result<EncodedMap, CUresult> {
    let reply = match shim()?.session.call(0, &kdTensorMap { address, arguments: &map.encode() }) {
        Err(CUresult::ERROR_NOT_SUPPORTED) => return Err(refuse(function, "is not supported by the server's driver")),
        other => other?,
    };
    let (words, tail) = reply.map.as_chunks::<8>();
    let words = words.first_chunk::<{ size_of::<EncodedMap>() / 8 }>().filter(|_| tail.is_empty());
    Ok(words.ok_or(CUresult::ERROR_UNKNOWN)?.map(u64::from_le_bytes))
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
            ..EMPTY_TENSOR_MAP
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
            ..EMPTY_TENSOR_MAP
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
            ..EMPTY_TENSOR_MAP
        }
    };
    // SAFETY: handed on.
    unsafe { encode(Function::cuTensorMapEncodeIm2colWide, target, address, &map) }
}

/// Replaces the address, the first word of a map on every driver so far: `cuTensorMapEncodeTiled` was seen to put it there.
///
/// # Safety
///
/// `target` is null or a map.
pub(crate) unsafe fn replace_address(target: *mut CUtensorMap, address: *mut void) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { rules::replace_address(target, address.addr() as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: EncodedMap = [0x7000, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

    fn shape(rank: u32, address: u64) -> TensorMapKey {
        (TensorMap { rank, ..EMPTY_TENSOR_MAP }, address % ADDRESS_CHECK_ALIGN_BYTES)
    }

    #[test]
    fn a_shape_is_encoded_once_for_addresses_alike() {
        let encoded = EncodedMaps::default();
        encoded.note(0, shape(2, 0x7000), 0x7000, MAP);
        let moved = encoded.of(0, &shape(2, 0x9100), 0x9100).unwrap();
        assert_eq!((moved[0], &moved[1..]), (0x9100, &MAP[1..]));
        assert!(
            encoded.of(0, &shape(3, 0x9100), 0x9100).is_none() && encoded.of(0, &shape(2, 0x9110), 0x9110).is_none()
        );
    }

    #[test]
    fn a_null_address_is_the_drivers_to_judge() {
        let encoded = EncodedMaps::default();
        encoded.note(0, shape(2, 0x7000), 0x7000, MAP);
        assert!(encoded.of(0, &shape(2, 0), 0).is_none() && encoded.of(0, &shape(2, 0x7000), 0x7000).is_some());
    }

    #[test]
    fn another_driver_encodes_for_itself() {
        let encoded = EncodedMaps::default();
        encoded.note(0, shape(2, 0x7000), 0x7000, MAP);
        assert!(encoded.of(1, &shape(2, 0x7000), 0x7000).is_none());
        encoded.note(1, shape(3, 0x7000), 0x7000, MAP);
        assert!(
            encoded.of(1, &shape(2, 0x7000), 0x7000).is_none() && encoded.of(1, &shape(3, 0x7000), 0x7000).is_some()
        );
    }

    #[test]
    fn a_map_that_does_not_begin_with_its_address_is_asked_for_again() {
        let encoded = EncodedMaps::default();
        encoded.note(0, shape(2, 0x7000), 0x8000, MAP);
        assert!(encoded.of(0, &shape(2, 0x7000), 0x7000).is_none());
    }

    #[test]
    fn cached_tensor_maps_are_bounded() {
        let encoded = EncodedMaps::default();
        (0..2 * MAX_TENSOR_SHAPES as u32).for_each(|rank| encoded.note(0, shape(rank, 0x7000), 0x7000, MAP));
        assert!(encoded.0.lock().unwrap().1.len() <= MAX_TENSOR_SHAPES);
    }
}
