//! Launches: geometry, attributes, cooperative grids.
//!
//! The refusals at the call and their codes were measured on driver 580: geometry that no device has is 1, a cooperative
//! grid that does not fit on the device at once 720.
#![expect(unsafe_code, reason = "reads lists of C callers")]

use katydid_cuda_sys::{
    CUDA_LAUNCH_PARAMS, CUlaunchAttribute, CUlaunchConfig, CUresult, device_attribute, launch_attribute,
};

use crate::caller;
use crate::outcome::{INVALID_VALUE, Outcome, check};

/// Most attributes of a launch: CUDA 13 knows 18, and no driver has as many.
pub const MAX_LAUNCH_ATTRIBUTES: u32 = 64;
/// The flags of a launch on several devices: not to wait for the streams' earlier work, or for each other's.
const MULTI_DEVICE_FLAGS: u32 = 3;
/// The device attributes that bound the block of a launch, by sides and as a whole.
pub const BLOCK_LIMITS: [u32; 4] = [
    device_attribute::MAX_BLOCK_DIM_X,
    device_attribute::MAX_BLOCK_DIM_Y,
    device_attribute::MAX_BLOCK_DIM_Z,
    device_attribute::MAX_THREADS_PER_BLOCK,
];

/// A device's limits for a grid.
#[derive(Debug, Clone, Copy)]
pub struct GeometryLimits {
    /// Most blocks along each axis.
    pub grid: [u32; 3],
    /// Most threads of a block along each axis.
    pub block: [u32; 3],
    /// Most threads of a block.
    pub threads: u32,
}

impl GeometryLimits {
    /// Returns the threads of a block. Refuses sides of 0 and beyond the limits.
    #[inline]
    pub fn check(&self, grid: [u32; 3], block: [u32; 3]) -> Outcome<u64> {
        let fits =
            |sides: [u32; 3], most: [u32; 3]| sides.iter().zip(most).all(|(side, most)| (1..=most).contains(side));
        let threads = threads(block);
        if fits(grid, self.grid) && fits(block, self.block) && threads <= u64::from(self.threads) {
            Ok(threads)
        } else {
            Err(INVALID_VALUE)
        }
    }
}

/// Returns the threads of a block.
#[inline]
pub fn threads(block: [u32; 3]) -> u64 {
    block.iter().fold(1, |threads: u64, side| threads.saturating_mul(u64::from(*side)))
}

/// Refuses a cooperative grid that does not fit on the device at once, if each multiprocessor holds `each` blocks.
///
/// # Errors
///
/// `ERROR_COOPERATIVE_LAUNCH_TOO_LARGE`.
pub fn check_cooperative(grid: [u32; 3], each: u32, multiprocessors: u32) -> Outcome {
    let max_blocks = u64::from(each) * u64::from(multiprocessors);
    let blocks = grid.iter().try_fold(1, |product: u64, side| product.checked_mul(u64::from(*side)));
    let fits = blocks.is_some_and(|blocks| blocks <= max_blocks);
    if fits { Ok(()) } else { Err(CUresult::ERROR_COOPERATIVE_LAUNCH_TOO_LARGE) }
}

/// Returns the attribute that makes a launch cooperative.
pub fn cooperative() -> CUlaunchAttribute {
    let mut attribute = CUlaunchAttribute { id: launch_attribute::COOPERATIVE, ..CUlaunchAttribute::default() };
    attribute.value[0] = 1;
    attribute
}

/// Returns the attributes of a configuration. Refuses missing attributes, and more than there can be.
///
/// # Safety
///
/// `config` has as many attributes as it says, as long as the iterator lives.
#[inline]
pub unsafe fn attributes(config: &CUlaunchConfig) -> Outcome<impl Iterator<Item = CUlaunchAttribute> + use<>> {
    check(config.numAttrs <= MAX_LAUNCH_ATTRIBUTES && (config.numAttrs == 0 || !config.attrs.is_null()))?;
    let (first, count) = (config.attrs, config.numAttrs as usize);
    // SAFETY: below the number of attributes, which are there by the contract.
    Ok((0..count).map(move |at| unsafe { first.add(at).read_unaligned() }))
}

/// Returns the launches of `cuLaunchCooperativeKernelMultiDevice`. Refuses unknown flags, an empty list, and more launches
/// than devices.
///
/// # Safety
///
/// `list` is null or has `count` entries.
pub unsafe fn multi_device(
    list: *const CUDA_LAUNCH_PARAMS,
    count: u32,
    flags: u32,
    devices: usize,
) -> Outcome<Vec<CUDA_LAUNCH_PARAMS>> {
    // SAFETY: handed on.
    let list = unsafe { caller::array(list, count as usize, devices) }?;
    if flags > MULTI_DEVICE_FLAGS { Err(INVALID_VALUE) } else { Ok(list) }
}

/// Refuses launches if two of them are on one device.
pub fn check_distinct<T: Ord>(mut devices: Vec<T>) -> Outcome {
    devices.sort_unstable();
    check(devices.windows(2).all(|pair| pair[0] != pair[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: GeometryLimits =
        GeometryLimits { grid: [i32::MAX as u32, 65535, 65535], block: [1024, 1024, 64], threads: 1024 };

    #[test]
    fn geometry_beyond_the_device_is_refused() {
        assert_eq!(H200.check([1, 65535, 65535], [32, 32, 1]), Ok(1024));
        for grid in [[0, 1, 1], [1 << 31, 1, 1], [1, 65536, 1], [1, 1, 65536]] {
            assert_eq!(H200.check(grid, [1, 1, 1]), Err(INVALID_VALUE), "{grid:?}");
        }
        for block in [[0, 1, 1], [1025, 1, 1], [1, 1025, 1], [1, 1, 65], [32, 32, 2], [u32::MAX; 3]] {
            assert_eq!(H200.check([1, 1, 1], block), Err(INVALID_VALUE), "{block:?}");
        }
    }

    #[test]
    fn a_cooperative_grid_is_on_the_device_at_once() {
        let large = Err(CUresult::ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
        assert_eq!((check_cooperative([132, 2, 1], 2, 132), check_cooperative([265, 1, 1], 2, 132)), (Ok(()), large));
        assert_eq!(check_cooperative([u32::MAX; 3], u32::MAX, u32::MAX), large);
    }

    #[test]
    fn attributes_are_there_and_not_too_many() {
        let mut both = [cooperative(), CUlaunchAttribute { id: 8, ..CUlaunchAttribute::default() }];
        let count = |count: u32, attrs: *mut CUlaunchAttribute| {
            let config = CUlaunchConfig { attrs, numAttrs: count, ..CUlaunchConfig::default() };
            // SAFETY: two attributes, of which no more are read.
            unsafe { attributes(&config) }.map(|all| all.map(|it| it.id).take(2).collect::<Vec<_>>())
        };
        assert_eq!(count(2, both.as_mut_ptr()), Ok(vec![launch_attribute::COOPERATIVE, 8]));
        assert_eq!(count(0, std::ptr::null_mut()), Ok(Vec::new()));
        assert_eq!(
            (count(1, std::ptr::null_mut()), count(65, both.as_mut_ptr())),
            (Err(INVALID_VALUE), Err(INVALID_VALUE))
        );
    }

    #[test]
    fn launches_on_several_devices_are_one_each() {
        let list = [CUDA_LAUNCH_PARAMS::default(); 2];
        // SAFETY: two entries, and null.
        let count =
            |count, flags, devices| unsafe { multi_device(list.as_ptr(), count, flags, devices) }.map(|it| it.len());
        assert_eq!(
            (count(2, 3, 2), count(2, 4, 2), count(2, 0, 1), count(0, 0, 2)),
            (Ok(2), Err(INVALID_VALUE), Err(INVALID_VALUE), Err(INVALID_VALUE))
        );
        assert_eq!((check_distinct(vec![1, 0, 2]), check_distinct(vec![1, 0, 1])), (Ok(()), Err(INVALID_VALUE)));
    }
}
