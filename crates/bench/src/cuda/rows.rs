//! Copies of rows and of boxes, with gaps between the rows on both sides.

use std::ptr;

use katydid_cuda_sys::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, memory_type};

use super::{CUresult, Cuda, CudaError};

/// Shape of a copy: on both sides, rows lie `pitch` bytes apart, and slices follow each other.
pub(crate) struct RowLayout {
    pub(crate) width: usize,
    pub(crate) pitch: usize,
    pub(crate) rows: usize,
    pub(crate) slices: usize,
}

impl RowLayout {
    /// Returns the bytes from the first row to the end of the last pitch.
    pub(crate) fn extent(&self) -> usize {
        self.pitch * self.rows * self.slices
    }

    /// Refuses memory that is too short: the copy would read or write beyond its end.
    fn check(&self, host: &[u8]) -> Result<(), CudaError> {
        let fits = self.width <= self.pitch && self.extent() <= host.len();
        fits.then_some(()).ok_or_else(|| CudaError::Missing("memory for all rows".to_owned()))
    }

    fn between(&self, from: (Option<*const u8>, u64), to: (Option<*mut u8>, u64)) -> CUDA_MEMCPY3D {
        let kind = |is_host| if is_host { memory_type::HOST } else { memory_type::DEVICE };
        CUDA_MEMCPY3D {
            srcMemoryType: kind(from.0.is_some()),
            srcHost: from.0.unwrap_or(ptr::null()).cast(),
            srcDevice: from.1,
            srcPitch: self.pitch,
            srcHeight: self.rows,
            dstMemoryType: kind(to.0.is_some()),
            dstHost: to.0.unwrap_or(ptr::null_mut()).cast(),
            dstDevice: to.1,
            dstPitch: self.pitch,
            dstHeight: self.rows,
            WidthInBytes: self.width,
            Height: self.rows,
            Depth: self.slices,
            ..CUDA_MEMCPY3D::default()
        }
    }
}

impl Cuda {
    /// Returns when `from` may be changed again.
    pub(crate) fn rows_in(&self, to: u64, from: &[u8], shape: &RowLayout) -> Result<(), CudaError> {
        shape.check(from)?;
        self.copy_rows(&shape.between((Some(from.as_ptr()), 0), (None, to)))
    }

    /// Returns when `to` holds the rows.
    pub(crate) fn rows_out(&self, to: &mut [u8], from: u64, shape: &RowLayout) -> Result<(), CudaError> {
        shape.check(to)?;
        self.copy_rows(&shape.between((None, from), (Some(to.as_mut_ptr()), 0)))
    }

    /// Copies one slice with the function for rows, as programs do.
    fn copy_rows(&self, copy: &CUDA_MEMCPY3D) -> Result<(), CudaError> {
        if copy.Depth > 1 {
            return call!(self.functions, cuMemcpy3D_v2(ptr::from_ref(copy)));
        }
        let rows = CUDA_MEMCPY2D {
            srcMemoryType: copy.srcMemoryType,
            srcHost: copy.srcHost,
            srcDevice: copy.srcDevice,
            srcPitch: copy.srcPitch,
            dstMemoryType: copy.dstMemoryType,
            dstHost: copy.dstHost,
            dstDevice: copy.dstDevice,
            dstPitch: copy.dstPitch,
            WidthInBytes: copy.WidthInBytes,
            Height: copy.Height,
            ..CUDA_MEMCPY2D::default()
        };
        call!(self.functions, cuMemcpy2D_v2(ptr::from_ref(&rows)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_too_small_for_the_rows_is_refused() {
        let shape = RowLayout { width: 3, pitch: 4, rows: 5, slices: 2 };
        assert!(shape.check(&[0; 40]).is_ok() && shape.check(&[0; 39]).is_err());
        assert!(RowLayout { width: 5, ..shape }.check(&[0; 40]).is_err());
    }
}
