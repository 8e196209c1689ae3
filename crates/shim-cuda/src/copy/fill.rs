//! Fills of device memory: checked here, queued as one message.
#![expect(unsafe_code, reason = "fills memory of the program where the worker cannot")]

use katydid_cuda_sys::{CUDA_MEMSET_NODE_PARAMS, CUdeviceptr, CUresult, CUstream};
use katydid_wire::message::kdFill;

use crate::copy::linear::{Claim, Side, locate};
use crate::graph::{capture, operation};
use crate::launch::backpressure;
use crate::process::session::shim;
use crate::sync::stream;

/// What is written where, checked and done. Its target, pitch and size of an element are bytes, its width and height counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill(pub(crate) CUDA_MEMSET_NODE_PARAMS);

impl Fill {
    fn row(dst: u64, value: u32, element: u32, width: usize) -> Self {
        Self(CUDA_MEMSET_NODE_PARAMS { dst, pitch: 0, value, elementSize: element, width, height: 1 })
    }

    /// The same in each of so many rows.
    fn rows(self, pitch: usize, height: usize) -> Self {
        Self(CUDA_MEMSET_NODE_PARAMS { pitch, height, ..self.0 })
    }

    /// Where all of it lies.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_VALUE`.
    pub(crate) fn side(&self) -> Result<Side, CUresult> {
        locate(Claim::Device, self.0.dst, self.span().ok_or(CUresult::ERROR_INVALID_VALUE)?)
    }

    /// Bytes from the first to the last; none when rows overlap, elements lie askew, or numbers pass all bounds.
    fn span(&self) -> Option<u64> {
        let CUDA_MEMSET_NODE_PARAMS { dst, pitch, elementSize, width, height, .. } = self.0;
        let (element, pitch) = (u64::from(elementSize), pitch as u64);
        let row = (width as u64).checked_mul(element)?;
        let rows_fit = height <= 1 || (pitch >= row && pitch.is_multiple_of(element));
        if !rows_fit || !dst.is_multiple_of(element) {
            return None;
        }
        (height as u64).saturating_sub(1).checked_mul(pitch)?.checked_add(row)
    }

    fn run(self, stream: CUstream) -> Result<(), CUresult> {
        let context = stream::asked_in(stream)?;
        let is_given =
            || -> Result<bool, CUresult> { Ok(capture::fill(stream, &self.0)? || operation::fill(stream, &self.0)?) };
        if self.0.width == 0 || self.0.height == 0 || is_given()? {
            return Ok(());
        }
        backpressure::take_place(stream)?;
        let stream = stream::wire(stream)?;
        match self.side()? {
            Side::Gpu(destination) | Side::Shared(destination) => {
                let CUDA_MEMSET_NODE_PARAMS { value, elementSize, .. } = self.0;
                let [pitch, width, height] = [self.0.pitch, self.0.width, self.0.height].map(|number| number as u64);
                let message = kdFill { destination, pitch, value, elementSize, width, height, stream };
                shim()?.session.enqueue(context, &message)
            }
            Side::Own(_) => {
                stream::synchronize_all_before(context, stream)?;
                // SAFETY: `locate` found all of it in one block of the pinned arena, which is mapped.
                unsafe { self.write() };
                Ok(())
            }
        }
    }

    /// # Safety
    ///
    /// The rows are writable memory of this process.
    pub(crate) unsafe fn write(&self) {
        let CUDA_MEMSET_NODE_PARAMS { dst, pitch, value, elementSize, width, height } = self.0;
        let (bytes, size) = (value.to_le_bytes(), elementSize as usize);
        for row in 0..height {
            let start = std::ptr::with_exposed_provenance_mut::<u8>(dst as usize + row * pitch);
            for at in 0..width {
                // SAFETY: inside the row, by the contract; an element has at most four bytes.
                unsafe { start.add(at * size).copy_from_nonoverlapping(bytes.as_ptr(), size) };
            }
        }
    }
}

macro_rules! fills {
    ($($sync:ident $asynchronous:ident $sync_2d:ident $asynchronous_2d:ident $value:ident $element:literal)*) => {$(
        #[doc = concat!("Elements of ", $element, " bytes, in the default stream.")]
        pub(crate) fn $sync(target: CUdeviceptr, value: $value, count: usize) -> Result<(), CUresult> {
            wait_if_host(target, Fill::row(target, u32::from(value), $element, count))
        }

        #[doc = concat!("Elements of ", $element, " bytes.")]
        pub(crate) fn $asynchronous(
            target: CUdeviceptr,
            value: $value,
            count: usize,
            stream: CUstream,
        ) -> Result<(), CUresult> {
            Fill::row(target, u32::from(value), $element, count).run(stream)
        }

        #[doc = concat!("Rows of elements of ", $element, " bytes, in the default stream.")]
        pub(crate) fn $sync_2d(
            target: CUdeviceptr,
            pitch: usize,
            value: $value,
            width: usize,
            height: usize,
        ) -> Result<(), CUresult> {
            wait_if_host(target, Fill::row(target, u32::from(value), $element, width).rows(pitch, height))
        }

        #[doc = concat!("Rows of elements of ", $element, " bytes.")]
        pub(crate) fn $asynchronous_2d(
            target: CUdeviceptr,
            pitch: usize,
            value: $value,
            width: usize,
            height: usize,
            stream: CUstream,
        ) -> Result<(), CUresult> {
            Fill::row(target, u32::from(value), $element, width).rows(pitch, height).run(stream)
        }
    )*};
}

fills! {
    bytes bytes_async bytes_2d bytes_2d_async u8 1
    shorts shorts_async shorts_2d shorts_2d_async u16 2
    words words_async words_2d words_2d_async u32 4
}

/// A fill of device memory need not be waited for; the program can look at pinned memory at once.
fn wait_if_host(target: u64, fill: Fill) -> Result<(), CUresult> {
    fill.run(CUstream::NULL)?;
    let shared = shim()?.regions.find(target).is_some_and(|region| region.is_host());
    if shared { stream::synchronize_wire(stream::default_wire()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(target: u64, element: u32, pitch: usize, width: usize, height: usize) -> Option<u64> {
        Fill::row(target, 0, element, width).rows(pitch, height).span()
    }

    #[test]
    fn spans_reach_to_the_end_of_the_last_row() {
        assert_eq!(span(0x1000, 4, 0, 250, 1), Some(1000));
        assert_eq!(span(0x1000, 1, 512, 100, 3), Some(1124));
    }

    #[test]
    fn elements_and_rows_must_lie_straight() {
        assert_eq!(span(0x1001, 2, 0, 4, 1), None);
        assert_eq!(span(0x1002, 4, 0, 4, 1), None);
        assert_eq!(span(0x1000, 1, 512, 513, 2), None);
        assert_eq!(span(0x1000, 4, 510, 10, 2), None);
        assert_eq!(span(0x1000, 4, 0, usize::MAX / 2, 1), None);
    }

    #[test]
    fn memory_of_the_program_is_filled_by_rows() {
        let mut room = [0u16; 12];
        let target = room.as_mut_ptr().expose_provenance() as u64;
        let fill = Fill::row(target, 0x0102, 2, 3).rows(8, 3);
        // SAFETY: three rows of three elements, four elements apart, are inside the array.
        unsafe { fill.write() };
        assert_eq!(room, [0x102, 0x102, 0x102, 0, 0x102, 0x102, 0x102, 0, 0x102, 0x102, 0x102, 0]);
    }
}
