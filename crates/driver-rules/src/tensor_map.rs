//! Tensor maps: their alignment, and checks of their arguments before a driver encodes them.
//!
//! A map is arithmetic over its arguments, and begins with the address on every driver so far.
#![expect(unsafe_code, reason = "writes maps of C callers")]

use katydid_cuda_sys::CUtensorMap;

use crate::outcome::{INVALID_VALUE, Outcome, check};

/// Most dimensions of a tensor.
pub const MAX_TENSOR_RANK: usize = 5;
/// Most dimensions of a box of pixels: those of a tensor without channels and batch.
pub const MAX_PIXEL_RANK: usize = MAX_TENSOR_RANK - 2;
/// Alignment of maps, in bytes.
const TENSOR_MAP_ALIGN_BYTES: usize = 64;
/// Alignment of tensors, in bytes.
const TENSOR_ALIGN_BYTES: u64 = 16;

/// Checks a pointer to a map.
pub fn check_map_pointer(map: *mut CUtensorMap) -> Outcome {
    check(!map.is_null() && map.addr().is_multiple_of(TENSOR_MAP_ALIGN_BYTES))
}

/// Checks the rank of a tensor with at least `least` dimensions.
pub fn rank(rank: u32, least: usize) -> Outcome<usize> {
    let rank = rank as usize;
    if (least..=MAX_TENSOR_RANK).contains(&rank) { Ok(rank) } else { Err(INVALID_VALUE) }
}

/// Answers `cuTensorMapReplaceAddress`: replaces the first word. Refuses a misaligned map or address.
///
/// # Safety
///
/// `map` is null or a map.
pub unsafe fn replace_address(map: *mut CUtensorMap, address: u64) -> Outcome {
    check_map_pointer(map)?;
    check(address.is_multiple_of(TENSOR_ALIGN_BYTES))?;
    // SAFETY: a map, by the contract.
    unsafe { map.cast::<u64>().write(address) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Aligned([CUtensorMap; 2]);

    #[test]
    fn the_address_is_the_first_word_of_an_aligned_map() {
        let mut maps = Aligned([CUtensorMap::default(); 2]);
        let map = maps.0.as_mut_ptr();
        // SAFETY: maps, and places that are refused.
        unsafe {
            assert_eq!(replace_address(map, 0x7010), Ok(()));
            assert_eq!(replace_address(map, 0x7008), Err(INVALID_VALUE));
            assert_eq!(replace_address(map.wrapping_byte_add(8), 0x7010), Err(INVALID_VALUE));
            assert_eq!(replace_address(std::ptr::null_mut(), 0x7010), Err(INVALID_VALUE));
        }
        assert_eq!(maps.0[0].0[..8], 0x7010_u64.to_le_bytes());
    }

    #[test]
    fn ranks_have_bounds() {
        assert_eq!([0, 1, 5, 6].map(|number| rank(number, 1)), [Err(INVALID_VALUE), Ok(1), Ok(5), Err(INVALID_VALUE)]);
        assert_eq!((rank(2, 3), rank(3, 3)), (Err(INVALID_VALUE), Ok(3)));
    }
}
