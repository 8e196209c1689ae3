//! The state of a function for launches of CUDA 2: block, shared memory, parameters (`cuFuncSetBlockShape`,
//! `cuFuncSetSharedSize`, `cuParamSet*`, `cuLaunch*`).
//!
//! As in driver 580, parameters may lie beyond their set size; the size counts at the launch.

use std::ffi::c_void;
use std::ptr::without_provenance_mut;

use katydid_cuda_sys::{CUresult, launch_param};

/// Most bytes of parameters: no kernel takes more.
const MAX_SET_PARAMETER_BYTES: usize = 32 << 10;

/// The launch state of one function.
#[derive(Debug, Clone)]
pub struct OldLaunch {
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    params: Vec<u8>,
    /// Bytes of the parameters for a launch.
    size: usize,
}

impl Default for OldLaunch {
    fn default() -> Self {
        Self { block: [1; 3], shared: 0, params: Vec::new(), size: 0 }
    }
}

impl OldLaunch {
    /// Answers `cuFuncSetBlockShape`; `limits` are the device's, for each side and for the whole block.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_VALUE` for a side that is not positive, and for blocks that no launch can have.
    pub fn set_block(&mut self, sides: [i32; 3], limits: [i32; 4]) -> Result<(), CUresult> {
        let fits = sides.iter().zip(limits).all(|(side, limit)| (1..=limit).contains(side));
        let threads: i64 = sides.iter().map(|side| i64::from(*side)).product();
        if !fits || threads > i64::from(limits[3]) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        self.block = sides.map(i32::unsigned_abs);
        Ok(())
    }

    /// Answers `cuParamSetSize`.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_VALUE` for more than any kernel takes.
    pub fn set_size(&mut self, size: u32) -> Result<(), CUresult> {
        if size as usize > MAX_SET_PARAMETER_BYTES {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        self.size = size as usize;
        Ok(())
    }

    /// Answers `cuParamSeti`, `cuParamSetf`, `cuParamSetv`.
    ///
    /// # Errors
    ///
    /// As [`OldLaunch::set_size`]; also for an offset below zero.
    pub fn set(&mut self, offset: i32, bytes: &[u8]) -> Result<(), CUresult> {
        let offset = usize::try_from(offset).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        let end = offset
            .checked_add(bytes.len())
            .filter(|end| *end <= MAX_SET_PARAMETER_BYTES)
            .ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if self.params.len() < end {
            self.params.resize(end, 0);
        }
        self.params[offset..end].copy_from_slice(bytes);
        Ok(())
    }

    /// Runs the launch `start`, which gets the parameters as the list that launches take in place of an array.
    pub fn with_params<R>(&self, start: impl FnOnce(*mut *mut c_void) -> R) -> R {
        let mut params = self.params();
        let mut size = params.len();
        let mut extra = [
            without_provenance_mut(launch_param::BUFFER_POINTER as usize),
            params.as_mut_ptr().cast::<c_void>(),
            without_provenance_mut(launch_param::BUFFER_SIZE as usize),
            (&raw mut size).cast(),
            without_provenance_mut(launch_param::END as usize),
        ];
        start(extra.as_mut_ptr())
    }

    /// Returns the parameters of a launch; unset bytes are zero.
    fn params(&self) -> Vec<u8> {
        let mut params = self.params.clone();
        params.resize(self.size, 0);
        params
    }
}

/// Returns width and height of a grid (`cuLaunchGrid`).
///
/// # Errors
///
/// `ERROR_INVALID_VALUE` for a side below zero.
pub fn grid(width: i32, height: i32) -> Result<[u32; 2], CUresult> {
    let side = |side: i32| u32::try_from(side).map_err(|_| CUresult::ERROR_INVALID_VALUE);
    Ok([side(width)?, side(height)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: [i32; 4] = [1024, 1024, 64, 1024];
    const INVALID_VALUE: Result<(), CUresult> = Err(CUresult::ERROR_INVALID_VALUE);

    #[test]
    fn blocks_that_no_device_has_are_refused_when_set() {
        let mut launch = OldLaunch::default();
        for sides in [[0, 1, 1], [2048, 1, 1], [1, 1, 65], [64, 32, 1], [-1, 1, 1]] {
            assert_eq!(launch.set_block(sides, LIMITS), INVALID_VALUE, "{sides:?}");
        }
        assert_eq!((launch.set_block([16, 8, 2], LIMITS), launch.block), (Ok(()), [16, 8, 2]));
    }

    #[test]
    fn a_launch_gets_its_parameters_as_a_list() {
        let mut launch = OldLaunch::default();
        launch.set_size(12).unwrap();
        let list = |extra: *mut *mut c_void| [0, 2, 4].map(|at| extra.wrapping_add(at).is_null());
        assert_eq!(
            (launch.with_params(list), grid(3, 4), grid(-1, 4)),
            ([false; 3], Ok([3, 4]), Err(CUresult::ERROR_INVALID_VALUE))
        );
    }

    #[test]
    fn parameters_may_lie_beyond_their_size_which_counts_at_the_launch() {
        let mut launch = OldLaunch::default();
        launch.set(4, &7_u32.to_le_bytes()).unwrap();
        launch.set(100, b"beyond").unwrap();
        launch.set_size(12).unwrap();
        assert_eq!(launch.params(), [0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            (launch.set(-1, b"x"), launch.set(32 << 10, b"x"), launch.set_size(40000)),
            (INVALID_VALUE, INVALID_VALUE, INVALID_VALUE)
        );
        launch.set_size(200).unwrap();
        assert_eq!(&launch.params()[98..108], b"\0\0beyond\0\0");
    }
}
