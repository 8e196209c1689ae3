//! Fills of device memory: checked here, queued as one message.
#![expect(unsafe_code, reason = "fills memory of the program where the worker cannot")]

use katydid_cuda_sys::{CUDA_MEMSET_NODE_PARAMS, CUdeviceptr, CUresult, CUstream};
use katydid_wire::message::kdFill;

use crate::copy::{Claim, Side, locate};
use crate::graph::capture;
use crate::session::shim;
use crate::stream;

/// What is written where: elements of a size, in rows at a pitch. All but counts are bytes.
#[derive(Clone, Copy)]
struct Fill {
    target: u64,
    pitch: u64,
    value: u32,
    element: u32,
    width: u64,
    height: u64,
}

impl Fill {
    fn row(target: u64, value: u32, element: u32, width: usize) -> Self {
        Self { target, pitch: 0, value, element, width: width as u64, height: 1 }
    }

    /// Bytes from the first to the last; none when rows overlap, elements lie askew, or numbers pass all bounds.
    fn span(&self) -> Option<u64> {
        let element = u64::from(self.element);
        let row = self.width.checked_mul(element)?;
        let rows_fit = self.height <= 1 || (self.pitch >= row && self.pitch.is_multiple_of(element));
        if !rows_fit || !self.target.is_multiple_of(element) {
            return None;
        }
        (self.height - 1).checked_mul(self.pitch)?.checked_add(row)
    }

    fn run(self, stream: CUstream) -> Result<(), CUresult> {
        let context = stream::asked_in(stream)?;
        if self.width == 0 || self.height == 0 || capture::fill(stream, &self.node())? {
            return Ok(());
        }
        let stream = stream::wire(stream)?;
        let span = self.span().ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let Self { target, pitch, value, element, width, height } = self;
        match locate(Claim::Device, target, span)? {
            Side::Gpu(destination) | Side::Shared(destination) => {
                let message = kdFill { destination, pitch, value, elementSize: element, width, height, stream };
                shim()?.session.enqueue(context, &message)
            }
            Side::Own(_) => {
                stream::synchronize_wire(stream)?;
                // SAFETY: `locate` found all of it in one block of the pinned arena, which is mapped.
                unsafe { self.write() };
                Ok(())
            }
        }
    }

    /// The same as a node of a graph.
    fn node(&self) -> CUDA_MEMSET_NODE_PARAMS {
        CUDA_MEMSET_NODE_PARAMS {
            dst: self.target,
            pitch: self.pitch as usize,
            value: self.value,
            elementSize: self.element,
            width: self.width as usize,
            height: self.height as usize,
        }
    }

    /// # Safety
    ///
    /// The rows are writable memory of this process.
    unsafe fn write(&self) {
        let bytes = self.value.to_le_bytes();
        for row in 0..self.height {
            let start = std::ptr::with_exposed_provenance_mut::<u8>((self.target + row * self.pitch) as usize);
            for at in 0..self.width as usize {
                // SAFETY: inside the row, by the contract; an element has at most four bytes.
                unsafe {
                    let element = start.add(at * self.element as usize);
                    element.copy_from_nonoverlapping(bytes.as_ptr(), self.element as usize);
                }
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
            let fill = Fill::row(target, u32::from(value), $element, width);
            wait_if_host(target, Fill { pitch: pitch as u64, height: height as u64, ..fill })
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
            let fill = Fill::row(target, u32::from(value), $element, width);
            Fill { pitch: pitch as u64, height: height as u64, ..fill }.run(stream)
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

    fn span(target: u64, element: u32, pitch: u64, width: u64, height: u64) -> Option<u64> {
        Fill { target, pitch, value: 0, element, width, height }.span()
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
        assert_eq!(span(0x1000, 4, 0, u64::MAX / 2, 1), None);
    }

    #[test]
    fn memory_of_the_program_is_filled_by_rows() {
        let mut room = [0u16; 12];
        let target = room.as_mut_ptr().expose_provenance() as u64;
        let fill = Fill { target, pitch: 8, value: 0x0102, element: 2, width: 3, height: 3 };
        // SAFETY: three rows of three elements, four elements apart, are inside the array.
        unsafe { fill.write() };
        assert_eq!(room, [0x102, 0x102, 0x102, 0, 0x102, 0x102, 0x102, 0, 0x102, 0x102, 0x102, 0]);
    }
}
