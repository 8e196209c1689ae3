//! Tensor maps: encoded by the driver, which knows the layout for its GPUs.

#![expect(unsafe_code, reason = "calls the driver")]

use katydid_cuda_sys::{CUresult, CUtensorMap};
use katydid_driver::Driver;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{kdTensorMap, kdTensorMapReply};
use katydid_wire::tensor_map::{TensorMap, TensorMapKind};

use crate::calls::fault::SessionError;
use crate::handlers::CallResult;
use crate::state::Session;

/// A map aligned to 64 bytes, as the driver requires.
#[repr(align(64))]
struct AlignedMap(CUtensorMap);

/// Encodes a map; nothing at the address is read.
pub(crate) fn kdTensorMap(
    session: &mut Session,
    _head: &FrameHead,
    message: kdTensorMap<'_>,
) -> CallResult<kdTensorMapReply> {
    let arguments = TensorMap::decode(message.arguments).ok_or_else(|| SessionError::DamagedPart {
        message: "kdTensorMap",
        part: "arguments",
        reason: format!("{} bytes are not a tensor map", message.arguments.len()),
    })?;
    let mut room = AlignedMap(CUtensorMap::default());
    let status = encode(session.driver(), &mut room, message.address, &arguments);
    Ok((status, kdTensorMapReply { map: room.0.0.to_vec() }))
}

fn encode(driver: &Driver, map_copy: &mut AlignedMap, address: u64, map: &TensorMap) -> CUresult {
    let to = &raw mut map_copy.0;
    let address = std::ptr::without_provenance_mut(address as usize);
    let TensorMap { data_type, rank, interleave, mode, swizzle, promotion, fill, channels, pixels, .. } = *map;
    let (dimensions, strides) = (map.dimensions.as_ptr(), map.strides.as_ptr());
    let (tile, steps) = (map.tile.as_ptr(), map.element_strides.as_ptr());
    let (lower, upper) = (map.lower.as_ptr(), map.upper.as_ptr());
    // SAFETY: `to` has the size and alignment of a map; the arrays have room for the highest rank, which `rank` was
    // checked against when it was decoded; the address is only encoded.
    unsafe {
        match map.kind {
            TensorMapKind::Tiled => driver.cuTensorMapEncodeTiled(
                to, data_type, rank, address, dimensions, strides, tile, steps, interleave, swizzle, promotion, fill,
            ),
            TensorMapKind::Im2col => driver.cuTensorMapEncodeIm2col(
                to, data_type, rank, address, dimensions, strides, lower, upper, channels, pixels, steps, interleave,
                swizzle, promotion, fill,
            ),
            TensorMapKind::Im2colWide => driver.cuTensorMapEncodeIm2colWide(
                to,
                data_type,
                rank,
                address,
                dimensions,
                strides,
                map.lower[0],
                map.upper[0],
                channels,
                pixels,
                steps,
                interleave,
                mode,
                swizzle,
                promotion,
                fill,
            ),
        }
    }
}
