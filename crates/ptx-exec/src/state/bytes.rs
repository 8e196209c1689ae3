//! Numbers to little-endian bytes and back. Sizes that are read are limited by the bytes left, before anything is allocated.

use crate::state::error::StateError;

/// Bytes that are being written.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    /// Writes one byte.
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    /// Writes a number of four bytes.
    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes a number of eight bytes.
    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes three numbers of four bytes.
    pub(crate) fn triple(&mut self, values: [u32; 3]) {
        values.into_iter().for_each(|value| self.u32(value));
    }

    /// Writes the number of items that follow. No list of a grid comes near 2^32 entries.
    pub(crate) fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// Writes bytes after their number.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.extend_from_slice(bytes);
    }
}

/// Bytes not yet read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    /// Takes the next `size` bytes.
    pub(crate) fn take(&mut self, size: usize) -> Result<&'a [u8], StateError> {
        let (head, rest) = self.0.split_at_checked(size).ok_or(StateError::Truncated)?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const SIZE: usize>(&mut self) -> Result<[u8; SIZE], StateError> {
        self.take(SIZE)?.try_into().map_err(|_| StateError::Truncated)
    }

    /// Reads one byte.
    pub(crate) fn u8(&mut self) -> Result<u8, StateError> {
        self.array().map(|[byte]| byte)
    }

    /// Reads a number of four bytes.
    pub(crate) fn u32(&mut self) -> Result<u32, StateError> {
        self.array().map(u32::from_le_bytes)
    }

    /// Reads a number of eight bytes.
    pub(crate) fn u64(&mut self) -> Result<u64, StateError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads three numbers of four bytes.
    pub(crate) fn triple(&mut self) -> Result<[u32; 3], StateError> {
        Ok([self.u32()?, self.u32()?, self.u32()?])
    }

    /// Reads the number of items that follow, each of at least `size` bytes; fails if they cannot all be there.
    pub(crate) fn count(&mut self, size: usize) -> Result<usize, StateError> {
        let count = self.u32()? as usize;
        let needed = count.checked_mul(size).ok_or(StateError::Truncated)?;
        if needed <= self.0.len() { Ok(count) } else { Err(StateError::Truncated) }
    }

    /// Reads bytes after their number.
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], StateError> {
        let count = self.count(1)?;
        self.take(count)
    }

    /// Checks that no bytes are left.
    pub(crate) fn end(self) -> Result<(), StateError> {
        if self.0.is_empty() { Ok(()) } else { Err(StateError::Trailing { bytes: self.0.len() }) }
    }
}

/// FNV-1a hash over words of eight bytes. It detects damage and mix-ups, not malice, so the content is still checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hash(u64);

impl Hash {
    /// The hash of no words.
    pub(crate) const NONE: Self = Self(0xcbf2_9ce4_8422_2325);

    /// Returns the hash with one more word.
    #[must_use]
    pub(crate) fn word(self, word: u64) -> Self {
        let mixed = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        // The product only carries upwards: without this, high bits of a word would never reach low bits.
        Self(mixed ^ mixed >> 32)
    }

    /// Returns the hash with more bytes and their number.
    #[must_use]
    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<8>();
        let hash = words.iter().fold(self, |hash, word| hash.word(u64::from_le_bytes(*word)));
        let rest = rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        hash.word(rest).word(bytes.len() as u64)
    }

    /// Returns the hash as a number.
    pub(crate) fn value(self) -> u64 {
        self.0
    }
}

/// Fails unless a condition holds that the interpreter relies on.
pub(crate) fn sound(holds: bool, what: &'static str) -> Result<(), StateError> {
    if holds { Ok(()) } else { Err(StateError::Unsound { what }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_returns_the_written_values_and_no_more() {
        let mut writer = Writer::default();
        writer.u8(7);
        writer.triple([1, 2, u32::MAX]);
        writer.u64(1 << 40);
        writer.bytes(b"abc");
        let mut reader = Reader(&writer.0);
        assert_eq!((reader.u8(), reader.triple(), reader.u64()), (Ok(7), Ok([1, 2, u32::MAX]), Ok(1 << 40)));
        assert_eq!((reader.bytes(), reader.u8()), (Ok(&b"abc"[..]), Err(StateError::Truncated)));
        assert_eq!(reader.end(), Ok(()));
    }

    #[test]
    fn a_count_is_bounded_by_the_bytes_that_are_left() {
        let mut writer = Writer::default();
        writer.u32(u32::MAX);
        writer.u64(0);
        assert_eq!(Reader(&writer.0).count(1), Err(StateError::Truncated));
        writer.0[..4].copy_from_slice(&2_u32.to_le_bytes());
        assert_eq!((Reader(&writer.0).count(4), Reader(&writer.0).count(5)), (Ok(2), Err(StateError::Truncated)));
    }

    #[test]
    fn every_byte_changes_the_hash() {
        let bytes: Vec<u8> = (0..29).collect();
        let whole = Hash::NONE.bytes(&bytes).value();
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 0x80;
            assert_ne!(Hash::NONE.bytes(&other).value(), whole, "byte {at}");
        }
        assert_ne!(Hash::NONE.bytes(&[0; 8]).value(), Hash::NONE.bytes(&[0; 9]).value());
    }
}
