//! The pattern and the range of a fill.
#![expect(unsafe_code, reason = "fills memory of the program where the worker cannot")]

use katydid_cuda_sys::CUDA_MEMSET_NODE_PARAMS;

/// A fill, checked and run. Target, pitch and element size are in bytes; width and height are counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckedMemset(pub(crate) CUDA_MEMSET_NODE_PARAMS);

impl CheckedMemset {
    pub(crate) fn row(dst: u64, value: u32, element: u32, width: usize) -> Self {
        Self(CUDA_MEMSET_NODE_PARAMS { dst, pitch: 0, value, elementSize: element, width, height: 1 })
    }

    /// Returns the same fill for `height` rows that are `pitch` bytes apart.
    pub(crate) fn rows(self, pitch: usize, height: usize) -> Self {
        Self(CUDA_MEMSET_NODE_PARAMS { pitch, height, ..self.0 })
    }

    /// Returns the bytes from the first to the last; none for overlapping rows, misaligned elements or overflow.
    pub(crate) fn span(&self) -> Option<u64> {
        let CUDA_MEMSET_NODE_PARAMS { dst, pitch, elementSize, width, height, .. } = self.0;
        let (element, pitch) = (u64::from(elementSize), pitch as u64);
        let row = (width as u64).checked_mul(element)?;
        let rows_fit = height <= 1 || (pitch >= row && pitch.is_multiple_of(element));
        if !rows_fit || !dst.is_multiple_of(element) {
            return None;
        }
        (height as u64).saturating_sub(1).checked_mul(pitch)?.checked_add(row)
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

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn span(target: u64, element: u32, pitch: usize, width: usize, height: usize) -> Option<u64> {
        CheckedMemset::row(target, 0, element, width).rows(pitch, height).span()
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
        let mut cells = [0u16; 12];
        let target = cells.as_mut_ptr().expose_provenance() as u64;
        let fill = CheckedMemset::row(target, 0x0102, 2, 3).rows(8, 3);
        // SAFETY: three rows of three elements, four elements apart, are inside the array.
        unsafe { fill.write() };
        assert_eq!(cells, [0x102, 0x102, 0x102, 0, 0x102, 0x102, 0x102, 0, 0x102, 0x102, 0x102, 0]);
    }
}
