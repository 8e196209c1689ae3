//! The program's side of a transfer: bytes with or without gaps between rows and slices. Messages carry them without gaps.
#![expect(unsafe_code, reason = "reads and writes the memory that programs name")]

use std::borrow::Cow;
use std::slice;

use katydid_client::threads::{Helpers, processors};

/// Memory of the program: `slices` of `rows` of `width` bytes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rows {
    /// Address of the first byte.
    pub(crate) start: usize,
    /// Bytes of a row.
    pub(crate) width: usize,
    pub(crate) rows: usize,
    pub(crate) slices: usize,
    /// Bytes from one row to the next.
    pub(crate) row: usize,
    /// Bytes from one slice to the next.
    pub(crate) slice: usize,
}

/// The direction of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Out of the program's memory.
    Out,
    /// Into the program's memory.
    In,
}

impl Rows {
    /// Returns contiguous bytes.
    pub(crate) fn run(start: usize, length: usize) -> Self {
        Self { start, width: length, rows: 1, slices: 1, row: length, slice: length }
    }

    /// Returns the number of bytes without gaps.
    pub(crate) fn len(&self) -> usize {
        self.width.saturating_mul(self.rows).saturating_mul(self.slices)
    }

    /// Returns the number of bytes from the first to the last, with gaps.
    pub(crate) fn reach(&self) -> usize {
        let bytes_before = |count: usize, step: usize| count.saturating_sub(1).saturating_mul(step);
        bytes_before(self.slices, self.slice)
            .saturating_add(bytes_before(self.rows, self.row))
            .saturating_add(self.width)
    }

    pub(crate) fn has_gaps(&self) -> bool {
        let next_row = self.rows > 1 && self.row != self.width;
        let next_slice = self.slices > 1 && self.slice != self.width.saturating_mul(self.rows);
        next_row || next_slice
    }

    /// Returns addresses and lengths of contiguous runs: row by row, or all at once without gaps.
    fn runs(&self) -> impl Iterator<Item = (usize, usize)> + use<'_> {
        let (count, width) = if self.has_gaps() { (self.rows * self.slices, self.width) } else { (1, self.len()) };
        (0..count).map(move |number| (self.row_at(number), width))
    }

    /// Returns whether the two share a byte. Both have their rows in address order.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let (mut own_runs, mut other_runs) = (self.runs().peekable(), other.runs().peekable());
        while let (Some(&(our, our_length)), Some(&(their, their_length))) = (own_runs.peek(), other_runs.peek()) {
            if our + our_length <= their {
                own_runs.next();
            } else if their + their_length <= our {
                other_runs.next();
            } else {
                return our_length != 0 && their_length != 0;
            }
        }
        false
    }

    /// Copies the bytes to an address, without gaps, or from there to their rows.
    ///
    /// # Safety
    ///
    /// Every row is readable or, for [`Direction::In`], writable and not referenced. The address has as many readable bytes, or
    /// room for them that is not referenced.
    pub(crate) unsafe fn copy(&self, direction: Direction, address: usize) {
        let mut packed = address;
        for (row, length) in self.runs() {
            let (from, to) = if direction == Direction::Out { (row, packed) } else { (packed, row) };
            let (from, to) = (std::ptr::with_exposed_provenance::<u8>(from), std::ptr::with_exposed_provenance_mut(to));
            // SAFETY: by the contract.
            unsafe { std::ptr::copy_nonoverlapping(from, to, length) };
            packed += length;
        }
    }

    /// Reads the first byte.
    ///
    /// # Safety
    ///
    /// The byte exists and is readable.
    pub(crate) unsafe fn first(&self) -> u8 {
        // SAFETY: by the contract.
        unsafe { std::ptr::with_exposed_provenance::<u8>(self.start).read() }
    }

    /// Returns a part of the bytes, if they are contiguous.
    fn stretch(&self, offset: usize, length: usize) -> Option<Self> {
        (!self.has_gaps()).then(|| Self::run(self.start + offset, length))
    }

    /// Copies as [`Rows::copy`] does, with several threads if that pays off.
    ///
    /// # Safety
    ///
    /// As for [`Rows::copy`].
    pub(crate) unsafe fn copy_wide(&self, direction: Direction, address: usize) {
        if self.has_gaps() {
            // SAFETY: guaranteed by the caller.
            return unsafe { self.copy(direction, address) };
        }
        let size = self.len() as u64;
        let step = |offset: u64, length: u64| {
            let part = self.stretch(offset as usize, length as usize).ok_or(())?;
            // SAFETY: a part of the whole, for which the contract holds.
            unsafe { part.copy(direction, address + offset as usize) };
            Ok(())
        };
        // No step fails, and a thread that does not start leaves its part to the others.
        let _ = Helpers::take(Helpers::worth(size, processors())).share_out((size, size), (), &step);
    }

    /// Returns the address of a row, counted through all slices.
    fn row_at(&self, number: usize) -> usize {
        self.start + number / self.rows * self.slice + number % self.rows * self.row
    }

    /// Returns the bytes, copied if there are gaps.
    ///
    /// # Safety
    ///
    /// Every row is readable while the result lives.
    pub(crate) unsafe fn gather<'a>(&self) -> Cow<'a, [u8]> {
        let bytes = |at: usize, length: usize| -> &'a [u8] {
            // SAFETY: part of a row, or of all rows if there are no gaps, by the contract.
            unsafe { slice::from_raw_parts(std::ptr::with_exposed_provenance(at), length) }
        };
        if self.len() == 0 {
            return Cow::Borrowed(&[]);
        }
        if !self.has_gaps() {
            return Cow::Borrowed(bytes(self.start, self.len()));
        }
        let mut gathered = Vec::with_capacity(self.len());
        (0..self.rows * self.slices)
            .for_each(|number| gathered.extend_from_slice(bytes(self.row_at(number), self.width)));
        Cow::Owned(gathered)
    }

    /// Writes bytes to their rows, from `offset` on in the gapless whole. Bytes beyond its end are ignored.
    ///
    /// # Safety
    ///
    /// Every row is writable, and no thread holds a reference into one.
    pub(crate) unsafe fn scatter(&self, offset: usize, bytes: &[u8]) {
        let mut offset = offset;
        let mut left = bytes.get(..self.len().saturating_sub(offset).min(bytes.len())).unwrap_or_default();
        let (width, gaps) = if self.has_gaps() { (self.width, true) } else { (self.len(), false) };
        while !left.is_empty() {
            let (number, within) = (offset / width, offset % width);
            let (part, tail) = left.split_at(left.len().min(width - within));
            let at = if gaps { self.row_at(number) } else { self.start } + within;
            // SAFETY: inside one row, or inside all rows if there are no gaps.
            unsafe {
                std::ptr::copy_nonoverlapping(part.as_ptr(), std::ptr::with_exposed_provenance_mut(at), part.len());
            }
            offset += part.len();
            left = tail;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(memory: &mut [u8]) -> Rows {
        let start = memory.as_mut_ptr().expose_provenance();
        Rows { start, width: 2, rows: 2, slices: 2, row: 3, slice: 8 }
    }

    #[test]
    fn rows_reach_to_their_last_byte() {
        assert_eq!(Rows::run(4096, 10).reach(), 10);
        let rows = Rows { start: 4096, width: 4, rows: 3, slices: 2, row: 10, slice: 100 };
        assert_eq!(rows.reach(), 124);
        assert_eq!(Rows { slice: usize::MAX, ..rows }.reach(), usize::MAX);
    }

    #[test]
    fn gaps_are_left_out_and_left_alone() {
        let mut memory = *b"ab.cd...ef.gh";
        // SAFETY: the rows lie in `memory`.
        unsafe {
            assert_eq!(&*rows(&mut memory).gather(), b"abcdefgh");
            rows(&mut memory).scatter(0, b"ABC");
            rows(&mut memory).scatter(3, b"DEFGHIJK");
        }
        assert_eq!(&memory, b"AB.CD...EF.GH");
    }

    #[test]
    fn copies_close_gaps_and_open_them() {
        let (mut memory, mut packed) = (*b"ab.cd...ef.gh", [0u8; 8]);
        let address = packed.as_mut_ptr().expose_provenance();
        // SAFETY: the rows lie in `memory`, the bytes in `packed`.
        unsafe { rows(&mut memory).copy(Direction::Out, address) };
        assert_eq!(&packed, b"abcdefgh");
        packed.make_ascii_uppercase();
        // SAFETY: as above.
        unsafe { rows(&mut memory).copy(Direction::In, packed.as_mut_ptr().expose_provenance()) };
        assert_eq!(&memory, b"AB.CD...EF.GH");
        let (from, mut to) = ((0..5_000_000u32).map(|i| i as u8).collect::<Vec<u8>>(), vec![0u8; 5_000_000]);
        let whole = Rows::run(from.as_ptr().expose_provenance(), from.len());
        // SAFETY: both have the same length.
        unsafe { whole.copy_wide(Direction::Out, to.as_mut_ptr().expose_provenance()) };
        assert!(from == to);
        let run = Rows::run(memory.as_ptr().expose_provenance(), 8);
        assert_eq!(run.runs().collect::<Vec<_>>(), [(run.start, 8)]);
    }

    #[test]
    fn rows_overlap_where_they_share_a_byte() {
        let tile = |start: usize| Rows { start, width: 2, rows: 3, slices: 2, row: 10, slice: 100 };
        assert!(tile(50).overlaps(&tile(50)) && tile(50).overlaps(&tile(51)) && tile(51).overlaps(&tile(50)));
        assert!(!tile(50).overlaps(&tile(52)) && !tile(52).overlaps(&tile(50)) && !tile(50).overlaps(&tile(80)));
        assert!(tile(50).overlaps(&tile(160)) && tile(50).overlaps(&Rows::run(0, 51)));
        for (start, length) in [(0, 50), (52, 8), (62, 8), (72, 78), (172, 100), (60, 0)] {
            let run = Rows::run(start, length);
            assert!(!run.overlaps(&tile(50)) && !tile(50).overlaps(&run), "{start} {length}");
        }
    }

    #[test]
    fn one_piece_is_not_copied() {
        let memory = *b"abcd";
        let run = Rows::run(memory.as_ptr().expose_provenance(), 4);
        // SAFETY: the run is `memory`.
        assert!(matches!(unsafe { run.gather() }, Cow::Borrowed(b"abcd")));
    }
}
