//! The binary layouts, byte for byte as in `docs/reference/image-format.md`: parses bytes into checked values.
//!
//! All integers are little-endian. A version is checked before anything after it, and a hash before the data that it covers. No
//! allocation depends on a length from a file.

use crate::id::{ChunkId, ImageId};

/// The newest version of image file, packs and manifests; older ones are read, newer ones refused.
pub const FORMAT_VERSION: u32 = 1;
/// Most raw bytes of one chunk.
pub const MAX_CHUNK_BYTES: usize = 16 << 20;
/// Bytes of a block. The image file, a pack's header, a chunk's header, an index entry and a pack's trailer are one block each.
pub(crate) const BLOCK_BYTES: usize = 64;

const IMAGE_MAGIC: &[u8; 8] = b"KATYDIMG";
const PACK_MAGIC: &[u8; 8] = b"KATYPACK";
const TRAILER_MAGIC: &[u8; 8] = b"KATYTAIL";
const CHUNK_MAGIC: &[u8; 4] = b"KCHK";

/// An error in some bytes; the caller adds their location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FormatFault {
    /// The version of a newer format.
    TooNew(u32),
    /// The file is damaged; the text says how.
    Damaged(&'static str),
}

/// The encoding of a chunk's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codec {
    /// The chunk's bytes, uncompressed.
    Raw,
    /// One zstd frame of the chunk's bytes.
    Zstd,
    /// Stores nothing: every byte is zero.
    Zero,
}

/// A chunk in a pack: an entry of the pack's index and, with fewer fields, the header before the chunk's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackEntry {
    pub(crate) id: ChunkId,
    /// First 8 bytes of the BLAKE3 hash of the stored bytes; checked before decompression.
    pub(crate) check: [u8; 8],
    /// Offset of the chunk's header, from the start of the pack.
    pub(crate) offset: u64,
    pub(crate) raw: u32,
    pub(crate) stored: u32,
    pub(crate) codec: Codec,
}

/// The last bytes of a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) index_hash: [u8; 32],
    /// Offset of the index from the start of the pack.
    pub(crate) index_offset: u64,
    pub(crate) entries: u32,
}

/// Sequential fields of one block.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    /// Takes the next field; zeros past the end, which no caller reaches.
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk::<N>().unwrap_or((&[0; N], &[]));
        self.0 = rest;
        *field
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

/// Concatenates fields; the rest stays zero.
fn unit(fields: &[&[u8]]) -> [u8; BLOCK_BYTES] {
    let mut unit = [0; BLOCK_BYTES];
    let mut at = 0;
    for field in fields {
        unit[at..at + field.len()].copy_from_slice(field);
        at += field.len();
    }
    unit
}

/// Checks the version, before anything after it.
fn version(found: u32) -> Result<(), FormatFault> {
    match found {
        0 => Err(FormatFault::Damaged("format 0 was never written")),
        found if found > FORMAT_VERSION => Err(FormatFault::TooNew(found)),
        _ => Ok(()),
    }
}

/// Returns the fault unless the condition holds.
fn expect(holds: bool, fault: &'static str) -> Result<(), FormatFault> {
    if holds { Ok(()) } else { Err(FormatFault::Damaged(fault)) }
}

/// Returns the whole file `katydid-image`.
pub(crate) fn image_file(id: ImageId) -> [u8; BLOCK_BYTES] {
    let mut bytes = unit(&[IMAGE_MAGIC, &FORMAT_VERSION.to_le_bytes(), &[0; 4], id.as_bytes()]);
    let hash = blake3::hash(&bytes[..32]);
    bytes[32..].copy_from_slice(hash.as_bytes());
    bytes
}

/// Parses the file `katydid-image`, and returns the image's id.
pub(crate) fn read_image_file(bytes: &[u8; BLOCK_BYTES]) -> Result<ImageId, FormatFault> {
    let mut fields = Fields(bytes);
    expect(&fields.take() == IMAGE_MAGIC, "does not begin with KATYDIMG")?;
    version(fields.u32())?;
    expect(blake3::hash(&bytes[..32]).as_bytes() == &bytes[32..], "hash mismatch")?;
    fields.u32();
    Ok(ImageId::from_bytes(fields.take()))
}

/// Returns the first bytes of pack `number`.
pub(crate) fn pack_header(image: ImageId, number: u32) -> [u8; BLOCK_BYTES] {
    unit(&[PACK_MAGIC, &FORMAT_VERSION.to_le_bytes(), &number.to_le_bytes(), image.as_bytes()])
}

/// Checks that a pack has this number and belongs to this image.
pub(crate) fn check_pack_header(bytes: &[u8; BLOCK_BYTES], image: ImageId, number: u32) -> Result<(), FormatFault> {
    let mut fields = Fields(bytes);
    expect(&fields.take() == PACK_MAGIC, "does not begin with KATYPACK")?;
    version(fields.u32())?;
    expect(fields.u32() == number, "its name and its number differ")?;
    expect(&fields.take() == image.as_bytes(), "it belongs to another image")
}

impl Codec {
    /// Returns its number in headers and index entries.
    fn number(self) -> u32 {
        match self {
            Self::Raw => 0,
            Self::Zstd => 1,
            Self::Zero => 2,
        }
    }

    /// Parses the number; an unknown one means damage.
    fn from_number(number: u32) -> Result<Self, FormatFault> {
        match number {
            0 => Ok(Self::Raw),
            1 => Ok(Self::Zstd),
            2 => Ok(Self::Zero),
            _ => Err(FormatFault::Damaged("a chunk is kept in an unknown way")),
        }
    }
}

impl PackEntry {
    /// Encodes the entry for the pack's index.
    pub(crate) fn line(&self) -> [u8; BLOCK_BYTES] {
        unit(&[
            self.id.as_bytes(),
            &self.check,
            &self.offset.to_le_bytes(),
            &self.raw.to_le_bytes(),
            &self.stored.to_le_bytes(),
            &self.codec.number().to_le_bytes(),
        ])
    }

    /// Encodes the header before the chunk's bytes.
    pub(crate) fn header(&self) -> [u8; BLOCK_BYTES] {
        unit(&[
            CHUNK_MAGIC,
            &self.codec.number().to_le_bytes(),
            &self.raw.to_le_bytes(),
            &self.stored.to_le_bytes(),
            &self.check,
            &[0; 8],
            self.id.as_bytes(),
        ])
    }

    /// Parses an index entry; `end` is the end of the pack's chunks.
    pub(crate) fn read(bytes: &[u8; BLOCK_BYTES], end: u64) -> Result<Self, FormatFault> {
        let mut fields = Fields(bytes);
        let entry = Self {
            id: ChunkId::from_bytes(fields.take()),
            check: fields.take(),
            offset: fields.u64(),
            raw: fields.u32(),
            stored: fields.u32(),
            codec: Codec::from_number(fields.u32())?,
        };
        entry.check_lengths()?;
        let fits = entry.data().checked_add(entry.stored.into()).is_some_and(|last| last <= end);
        expect(fits && entry.offset >= BLOCK_BYTES as u64, "a chunk lies outside of its pack").map(|()| entry)
    }

    /// Checks that the lengths are possible for the encoding.
    fn check_lengths(&self) -> Result<(), FormatFault> {
        expect(self.raw > 0 && self.raw as usize <= MAX_CHUNK_BYTES, "a chunk of impossible length")?;
        let right = match self.codec {
            Codec::Raw => self.stored == self.raw,
            Codec::Zstd => self.stored > 0 && self.stored < self.raw,
            Codec::Zero => self.stored == 0,
        };
        expect(right, "a chunk of impossible stored length")
    }

    /// Returns where the stored bytes begin; past every pack if the offset is invalid.
    pub(crate) fn data(&self) -> u64 {
        self.offset.saturating_add(BLOCK_BYTES as u64)
    }
}

impl Trailer {
    /// Makes the trailer of an index that begins at `index_offset`.
    pub(crate) fn of(index: &[u8], index_offset: u64) -> Self {
        let entries = (index.len() / BLOCK_BYTES) as u32;
        Self { index_hash: *blake3::hash(index).as_bytes(), index_offset, entries }
    }

    /// Encodes the trailer as it is in the pack.
    pub(crate) fn bytes(&self) -> [u8; BLOCK_BYTES] {
        let (offset, entries) = (self.index_offset.to_le_bytes(), self.entries.to_le_bytes());
        unit(&[&self.index_hash, &offset, &entries, &[0; 12], TRAILER_MAGIC])
    }

    /// Parses the trailer of a pack of `size` bytes, and checks that header, chunks, index and trailer fill it.
    pub(crate) fn read(bytes: &[u8; BLOCK_BYTES], size: u64) -> Result<Self, FormatFault> {
        let mut fields = Fields(bytes);
        let trailer = Self { index_hash: fields.take(), index_offset: fields.u64(), entries: fields.u32() };
        fields.take::<12>();
        expect(&fields.take() == TRAILER_MAGIC, "does not end with KATYTAIL: it is cut off")?;
        let end = trailer.index_offset.checked_add(trailer.index_bytes() + BLOCK_BYTES as u64);
        expect(end == Some(size) && trailer.index_offset >= BLOCK_BYTES as u64, "its index does not fit its size")?;
        Ok(trailer)
    }

    /// Returns the length of the index.
    pub(crate) fn index_bytes(&self) -> u64 {
        u64::from(self.entries) * BLOCK_BYTES as u64
    }

    /// Checks the hash of the index, and parses it.
    pub(crate) fn read_index(&self, index: &[u8]) -> Result<Vec<PackEntry>, FormatFault> {
        expect(blake3::hash(index).as_bytes() == &self.index_hash, "index hash mismatch")?;
        let (lines, rest) = index.as_chunks::<BLOCK_BYTES>();
        expect(rest.is_empty() && lines.len() as u64 == u64::from(self.entries), "its index is cut off")?;
        lines.iter().map(|line| PackEntry::read(line, self.index_offset)).collect()
    }
}
