//! A fatbin container: a 16-byte header, then entries back to back.
//!
//! | offset | bytes | field                        |
//! |-------:|------:|------------------------------|
//! |      0 |     4 | magic, 0xBA55ED50            |
//! |      4 |     2 | version, 1                   |
//! |      6 |     2 | size of this header, 16      |
//! |      8 |     8 | bytes of all entries         |

use crate::entry::{EntryKind, FatbinEntry};
use crate::error::{ModuleImageError, check_limit, check_there};

/// First word of a container.
pub(crate) const CONTAINER_MAGIC: u32 = 0xba55_ed50;
/// Bytes of the fixed header.
pub(crate) const CONTAINER_HEADER_BYTES: usize = 16;
/// Offset in the header of the length of the entries.
const LENGTH_OFFSET: usize = 8;
/// Largest container that is accepted; the largest in NVIDIA's libraries are below 1 GiB.
pub(crate) const MAX_CONTAINER_BYTES: u64 = 4 << 30;

/// A container whose entries all lie within it; the entries themselves are checked when they are read.
#[derive(Debug, Clone, Copy)]
pub struct Container<'a> {
    header: &'a [u8],
    entries: &'a [u8],
}

impl<'a> Container<'a> {
    /// Parses the container at the start of `bytes`.
    ///
    /// # Errors
    /// The reason why there is no valid container.
    pub fn new(bytes: &'a [u8]) -> Result<Self, ModuleImageError> {
        let available = bytes.len() as u64;
        let needed = CONTAINER_HEADER_BYTES as u64;
        let header = bytes.first_chunk().ok_or(ModuleImageError::CutOff { what: "a container", needed, available })?;
        let length = container_length(header)?;
        check_there("a container", length, available)?;
        let header_size = usize::from(u16::from_le_bytes([header[6], header[7]]));
        let (header, entries) = bytes[..length as usize].split_at(header_size);
        Ok(Self { header, entries })
    }

    /// Returns its header for `entries` bytes of entries.
    pub(crate) fn header_for(&self, entries: u64) -> Vec<u8> {
        let mut header = self.header.to_vec();
        header[LENGTH_OFFSET..CONTAINER_HEADER_BYTES].copy_from_slice(&entries.to_le_bytes());
        header
    }

    /// Returns its entries in order; the last item is an error if they do not fill the container.
    #[must_use]
    pub fn entries(&self) -> Entries<'a> {
        Entries { remaining: self.entries }
    }

    /// Returns the PTX that suits a device best: of the highest architecture not above `sm`. Without `sm`, of the highest of all.
    ///
    /// # Errors
    /// An entry is damaged.
    pub fn best_ptx(&self, sm: Option<u32>) -> Result<Option<FatbinEntry<'a>>, ModuleImageError> {
        let entries: Vec<FatbinEntry<'a>> = self.entries().collect::<Result<_, _>>()?;
        let usable = |entry: &FatbinEntry<'_>| entry.kind == EntryKind::PTX && sm.is_none_or(|sm| entry.suits(sm));
        Ok(entries.into_iter().filter(usable).max_by_key(|entry| entry.sm))
    }
}

/// Iterator over the entries of a container.
#[derive(Debug, Clone)]
pub struct Entries<'a> {
    remaining: &'a [u8],
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<FatbinEntry<'a>, ModuleImageError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.remaining.is_empty() {
            return None;
        }
        let split = FatbinEntry::split_from(self.remaining);
        self.remaining = split.as_ref().map_or(&[], |(_, remaining)| remaining);
        Some(split.map(|(entry, _)| entry))
    }
}

/// Returns the bytes of the container that starts with this header.
pub(crate) fn container_length(header: &[u8; CONTAINER_HEADER_BYTES]) -> Result<u64, ModuleImageError> {
    let [m0, m1, m2, m3, v0, v1, h0, h1, body @ ..] = *header;
    let (magic, version) = (u32::from_le_bytes([m0, m1, m2, m3]), u16::from_le_bytes([v0, v1]));
    let header_size = u16::from_le_bytes([h0, h1]);
    if magic != CONTAINER_MAGIC {
        return Err(ModuleImageError::Field { field: "the first word of a container", value: magic.into() });
    }
    if version != 1 {
        return Err(ModuleImageError::Field { field: "the version of a container", value: version.into() });
    }
    if usize::from(header_size) < CONTAINER_HEADER_BYTES {
        return Err(ModuleImageError::Field { field: "the header size of a container", value: header_size.into() });
    }
    let length = u64::from_le_bytes(body).saturating_add(header_size.into());
    check_limit("a container", length, MAX_CONTAINER_BYTES)?;
    Ok(length)
}
