//! Fills, in one and two dimensions.
//!
//! Counts and widths are elements, pitches are bytes. The target must lie in memory that the device reaches, and addresses must
//! be multiples of the element's size. Other calls fail with 1.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use katydid_cuda_sys::CUstream;

use crate::copy::plane::fill;
use crate::ffi::api;
use crate::sync::streams::{default_stream, resolve};

api! {
    /// Does not wait. Later work of any kind comes after the fill.
    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) {
        fill(&default_stream()?, to, [value], count, (1, 0))?;
    }

    /// The address must be a multiple of 2.
    fn cuMemsetD16_v2(to: u64, value: u16, count: usize) {
        fill(&default_stream()?, to, value.to_le_bytes(), count, (1, 0))?;
    }

    /// The address must be a multiple of 4.
    fn cuMemsetD32_v2(to: u64, value: u32, count: usize) {
        fill(&default_stream()?, to, value.to_le_bytes(), count, (1, 0))?;
    }

    /// Fills bytes in the order of the stream.
    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: CUstream) {
        fill(&resolve(stream)?, to, [value], count, (1, 0))?;
    }

    /// The address must be a multiple of 2.
    fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: CUstream) {
        fill(&resolve(stream)?, to, value.to_le_bytes(), count, (1, 0))?;
    }

    /// The address must be a multiple of 4.
    fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: CUstream) {
        fill(&resolve(stream)?, to, value.to_le_bytes(), count, (1, 0))?;
    }

    /// Width in elements, pitch in bytes.
    fn cuMemsetD2D8_v2(to: u64, pitch: usize, value: u8, width: usize, height: usize) {
        fill(&default_stream()?, to, [value], width, (height, pitch))?;
    }

    /// Width in elements, pitch in bytes.
    fn cuMemsetD2D16_v2(to: u64, pitch: usize, value: u16, width: usize, height: usize) {
        fill(&default_stream()?, to, value.to_le_bytes(), width, (height, pitch))?;
    }

    /// Width in elements, pitch in bytes.
    fn cuMemsetD2D32_v2(to: u64, pitch: usize, value: u32, width: usize, height: usize) {
        fill(&default_stream()?, to, value.to_le_bytes(), width, (height, pitch))?;
    }

    /// Width in elements, pitch in bytes.
    fn cuMemsetD2D8Async(to: u64, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream) {
        fill(&resolve(stream)?, to, [value], width, (height, pitch))?;
    }

    /// Width in elements, pitch in bytes.
    fn cuMemsetD2D16Async(to: u64, pitch: usize, value: u16, width: usize, height: usize, stream: CUstream) {
        fill(&resolve(stream)?, to, value.to_le_bytes(), width, (height, pitch))?;
    }

    /// Width in elements, pitch in bytes.
    fn cuMemsetD2D32Async(to: u64, pitch: usize, value: u32, width: usize, height: usize, stream: CUstream) {
        fill(&resolve(stream)?, to, value.to_le_bytes(), width, (height, pitch))?;
    }
}
