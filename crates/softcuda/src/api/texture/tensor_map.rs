//! Tensor maps. They are pure arithmetic and need no context.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::c_void;

use katydid_cuda_sys::CUtensorMap;
use katydid_driver_rules::caller::filled as take;
use katydid_driver_rules::tensor_map::{MAX_PIXEL_RANK, check_map_pointer, rank, replace_address};

use crate::ffi::{Outcome, address, api};
use crate::process::state;
use crate::texture::tensor_map::{GatherShape, Tensor};

/// The arguments that all forms have.
struct Arrays {
    rank: u32,
    dimensions: *const u64,
    strides: *const u64,
    steps: *const u32,
}

impl Arrays {
    /// # Safety
    ///
    /// The arrays are null or have as many entries as the rank asks for.
    unsafe fn tensor(&self, data_type: u32, gathered: GatherShape) -> Outcome<Tensor> {
        let rank = rank(self.rank, 1)?;
        // SAFETY: by the contract.
        let (dimensions, strides, steps) =
            unsafe { (take(self.dimensions, rank)?, take(self.strides, rank - 1)?, take(self.steps, rank)?) };
        let (interleave, swizzle, promotion, fill) = (0, 0, 0, 0);
        Ok(Tensor { data_type, rank, dimensions, strides, steps, gathered, interleave, swizzle, promotion, fill })
    }
}

/// Checks the caller's pointer to a map.
fn checked_target(map: *mut CUtensorMap) -> Outcome<*mut CUtensorMap> {
    state::ready()?;
    check_map_pointer(map).map(|()| map)
}

api! {
    /// Encodes a map, in this driver's own layout.
    fn cuTensorMapEncodeTiled(
        map: *mut CUtensorMap,
        data_type: u32,
        tensor_rank: u32,
        start: *mut c_void,
        dimensions: *const u64,
        strides: *const u64,
        tile: *const u32,
        steps: *const u32,
        interleave: u32,
        swizzle: u32,
        promotion: u32,
        fill: u32,
    ) {
        let target = checked_target(map)?;
        // SAFETY: as many entries as the rank asks for, by the contract of the function; a place for a map.
        unsafe {
            let gathered = GatherShape::Tiles(take(tile, rank(tensor_rank, 1)?)?);
            let tensor = Arrays { rank: tensor_rank, dimensions, strides, steps }.tensor(data_type, gathered)?;
            target.write(Tensor { interleave, swizzle, promotion, fill, ..tensor }.encode(address(start))?);
        }
    }

    /// Encodes a map. Corners have as many dimensions as pixels.
    fn cuTensorMapEncodeIm2col(
        map: *mut CUtensorMap,
        data_type: u32,
        tensor_rank: u32,
        start: *mut c_void,
        dimensions: *const u64,
        strides: *const u64,
        lower: *const i32,
        upper: *const i32,
        channels: u32,
        pixels: u32,
        steps: *const u32,
        interleave: u32,
        swizzle: u32,
        promotion: u32,
        fill: u32,
    ) {
        let target = checked_target(map)?;
        let count = rank(tensor_rank, 1)?.saturating_sub(2).min(MAX_PIXEL_RANK);
        // SAFETY: as above.
        unsafe {
            let (lower, upper) = (take(lower, count)?, take(upper, count)?);
            let gathered = GatherShape::Columns { lower, upper, channels, pixels, wide: None };
            let tensor = Arrays { rank: tensor_rank, dimensions, strides, steps }.tensor(data_type, gathered)?;
            target.write(Tensor { interleave, swizzle, promotion, fill, ..tensor }.encode(address(start))?);
        }
    }

    /// Encodes a map. NVIDIA's driver needs a device of compute capability 10; here nothing reads the map, so any will do.
    fn cuTensorMapEncodeIm2colWide(
        map: *mut CUtensorMap,
        data_type: u32,
        tensor_rank: u32,
        start: *mut c_void,
        dimensions: *const u64,
        strides: *const u64,
        lower: i32,
        upper: i32,
        channels: u32,
        pixels: u32,
        steps: *const u32,
        interleave: u32,
        mode: u32,
        swizzle: u32,
        promotion: u32,
        fill: u32,
    ) {
        let target = checked_target(map)?;
        let (lower, upper) = ([lower, 0, 0], [upper, 0, 0]);
        let gathered = GatherShape::Columns { lower, upper, channels, pixels, wide: Some(mode) };
        // SAFETY: as above.
        unsafe {
            let tensor = Arrays { rank: tensor_rank, dimensions, strides, steps }.tensor(data_type, gathered)?;
            target.write(Tensor { interleave, swizzle, promotion, fill, ..tensor }.encode(address(start))?);
        }
    }

    /// Replaces the address, the first word of a map.
    fn cuTensorMapReplaceAddress(map: *mut CUtensorMap, start: *mut c_void) {
        state::ready()?;
        // SAFETY: a map, by the contract of the function.
        unsafe { replace_address(map, address(start)) }?;
    }
}
