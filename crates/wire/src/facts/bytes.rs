//! Reads and writes the fields of facts, in order.
//!
//! A length is compared with its bound before it sizes anything, and every item takes input bytes, so a false count ends as an
//! error.

use super::{DriverAnswer, FactsError};

/// Most bytes of a text: template kernels in C++ have names of kilobytes.
const MAX_FACT_TEXT_BYTES: u32 = 64 * 1024;

/// Reads `count` items. Each takes input bytes, so a false count ends as [`FactsError::Truncated`].
pub(super) fn repeat<T>(count: usize, mut item: impl FnMut() -> Result<T, FactsError>) -> Result<Vec<T>, FactsError> {
    (0..count).map(|_| item()).collect()
}

/// Appends fields in order.
#[derive(Default)]
pub(super) struct Writer {
    pub(super) bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn i32(&mut self, value: i32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends a length. One that does not fit is written as the largest, which every reader refuses.
    pub(super) fn count(&mut self, length: usize) {
        self.u32(u32::try_from(length).unwrap_or(u32::MAX));
    }

    /// Appends a text. The reader bounds its length.
    pub(super) fn text(&mut self, text: &str) {
        self.count(text.len());
        self.bytes.extend_from_slice(text.as_bytes());
    }

    pub(super) fn answer(&mut self, answer: DriverAnswer<i32>) {
        self.u32(answer.code);
        self.i32(answer.value);
    }
}

/// Takes fields from the front.
pub(super) struct Reader<'a> {
    unread: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Creates a reader at the start of `bytes`.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { unread: bytes }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], FactsError> {
        let missing = length.saturating_sub(self.unread.len());
        let (field, unread) = self.unread.split_at_checked(length).ok_or(FactsError::Truncated { missing })?;
        self.unread = unread;
        Ok(field)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], FactsError> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, FactsError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn i32(&mut self) -> Result<i32, FactsError> {
        Ok(i32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, FactsError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn count(&mut self, what: &'static str, most: u32) -> Result<usize, FactsError> {
        let count = self.u32()?;
        if count > most { Err(FactsError::TooMany { what, count, limit: most }) } else { Ok(count as usize) }
    }

    /// Reads a text. Names come from drivers and are ASCII; other bytes become replacement characters.
    pub(super) fn text(&mut self) -> Result<String, FactsError> {
        let length = self.count("bytes of text", MAX_FACT_TEXT_BYTES)?;
        Ok(String::from_utf8_lossy(self.take(length)?).into_owned())
    }

    pub(super) fn answer(&mut self) -> Result<DriverAnswer<i32>, FactsError> {
        Ok(DriverAnswer { code: self.u32()?, value: self.i32()? })
    }

    pub(super) fn end(&self) -> Result<(), FactsError> {
        if self.unread.is_empty() { Ok(()) } else { Err(FactsError::Trailing { left: self.unread.len() }) }
    }
}
