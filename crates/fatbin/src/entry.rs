//! One entry of a container: PTX or machine code for one architecture, optionally compressed.
//!
//! | offset | bytes | field                                                             |
//! |-------:|------:|-------------------------------------------------------------------|
//! |   0x00 |     2 | kind: 1 PTX, 2 cubin, 8 LTO                                       |
//! |   0x04 |     4 | size of this header, at least 64                                  |
//! |   0x08 |     8 | size of what follows the header                                   |
//! |   0x10 |     4 | exact compressed size, 0: not compressed                          |
//! |   0x14 |     4 | offset within the header of offset and length of ptxas' options   |
//! |   0x18 |     4 | minor (2 bytes) and major (2 bytes) version of PTX or cubin format|
//! |   0x1c |     4 | architecture, such as 90                                          |
//! |   0x20 |     8 | offset and length of a name within the header, 0: none            |
//! |   0x28 |     8 | flags                                                             |
//! |   0x38 |     8 | uncompressed size, 0: not compressed                              |

use std::borrow::Cow;
use std::io::Read;

use crate::compilation::Compilation;
use crate::error::{ModuleImageError, check_limit, check_there};

/// Smallest header of an entry.
pub(crate) const MIN_ENTRY_HEADER_BYTES: usize = 64;
/// Largest text or code that an entry may decompress to: the same limit as for PTX passed by pointer.
pub(crate) const MAX_UNCOMPRESSED_BYTES: u64 = 1 << 30;
/// No known data compresses better with LZ4, so a larger ratio means damage.
const MAX_LZ4_RATIO: u64 = 256;

const FLAG_LZ4: u64 = 0x2000;
const FLAG_ZSTD: u64 = 0x8000;
const FLAG_THIS_ARCHITECTURE: u64 = 0x10_0000;
const FLAG_THIS_FAMILY: u64 = 0x20_0000;

/// The kind of an entry's contents; unknown kinds pass through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryKind(pub u16);

impl EntryKind {
    /// Text in NVIDIA's virtual instruction set.
    pub const PTX: Self = Self(1);
    /// Machine code: an ELF file.
    pub const CUBIN: Self = Self(2);
    /// Intermediate code for link-time optimization.
    pub const LTO: Self = Self(8);
}

/// An entry whose fields were checked to lie within it.
#[derive(Debug, Clone, Copy)]
pub struct FatbinEntry<'a> {
    /// Kind of the payload: PTX, cubin or LTO code.
    pub kind: EntryKind,
    /// The architecture of the code, such as 90 for compute capability 9.0.
    pub sm: u32,
    /// Major and minor version of the PTX language, or of the cubin format.
    pub version: (u16, u16),
    /// Flags of the header, such as the compression method.
    pub flags: u64,
    name: &'a [u8],
    options: &'a [u8],
    stored: &'a [u8],
    compressed: bool,
    uncompressed: u64,
    /// Bytes of the entry, header included.
    bytes: &'a [u8],
}

impl<'a> FatbinEntry<'a> {
    /// Parses the entry at the start of `bytes`; also returns the bytes after it.
    pub(crate) fn split_from(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), ModuleImageError> {
        let available_bytes = bytes.len() as u64;
        let cut_off = ModuleImageError::CutOff {
            what: "the header of an entry",
            needed: MIN_ENTRY_HEADER_BYTES as u64,
            available: available_bytes,
        };
        let fixed: &[u8; MIN_ENTRY_HEADER_BYTES] = bytes.first_chunk().ok_or(cut_off)?;
        let (header_size, payload_size) = (u32_at(fixed, 0x04), u64_at(fixed, 0x08));
        if (header_size as usize) < MIN_ENTRY_HEADER_BYTES {
            return Err(ModuleImageError::Field { field: "the header size of an entry", value: header_size.into() });
        }
        check_there("an entry", payload_size.saturating_add(header_size.into()), available_bytes)?;
        let (whole, next) = bytes.split_at(header_size as usize + payload_size as usize);
        Ok((Self::from_parts(fixed, whole, header_size as usize)?, next))
    }

    fn from_parts(
        fixed: &[u8; MIN_ENTRY_HEADER_BYTES],
        bytes: &'a [u8],
        header_size: usize,
    ) -> Result<Self, ModuleImageError> {
        let (header, payload) = bytes.split_at(header_size);
        let compressed_size = u32_at(fixed, 0x10);
        check_there("the compressed data of an entry", compressed_size.into(), payload.len() as u64)?;
        let compressed = compressed_size != 0;
        let stored = if compressed { &payload[..compressed_size as usize] } else { payload };
        let versions = u32_at(fixed, 0x18);
        Ok(Self {
            kind: EntryKind((u32_at(fixed, 0) & 0xffff) as u16),
            sm: u32_at(fixed, 0x1c),
            version: ((versions >> 16) as u16, (versions & 0xffff) as u16),
            flags: u64_at(fixed, 0x28),
            name: name(header, u32_at(fixed, 0x20), u32_at(fixed, 0x24)),
            options: options(header, u32_at(fixed, 0x14)),
            stored,
            compressed,
            uncompressed: u64_at(fixed, 0x38),
            bytes,
        })
    }

    /// Returns the whole entry: header and payload.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns whether it uses features of only this architecture or only this family (`sm_90a`, `sm_100f`).
    pub(crate) fn is_special(&self) -> bool {
        self.flags & (FLAG_THIS_ARCHITECTURE | FLAG_THIS_FAMILY) != 0
    }

    /// Returns the file name that the compiler recorded, with `-lineinfo` or `-G`; else an empty name.
    #[must_use]
    pub fn name(&self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.name)
    }

    /// Returns the compiler's options for its assembler.
    #[must_use]
    pub fn compilation(&self) -> Compilation {
        Compilation::parse(std::str::from_utf8(self.options).unwrap_or_default())
    }

    /// Returns whether a device of compute capability `sm / 10 . sm % 10` can use it; later devices can use PTX too.
    #[must_use]
    pub fn suits(&self, sm: u32) -> bool {
        let family = self.sm / 10 == sm / 10;
        match self.kind {
            _ if self.flags & FLAG_THIS_ARCHITECTURE != 0 => self.sm == sm,
            _ if self.flags & FLAG_THIS_FAMILY != 0 => family && self.sm <= sm,
            EntryKind::CUBIN => family && self.sm <= sm,
            _ => self.sm <= sm,
        }
    }

    /// Returns the decompressed contents.
    ///
    /// # Errors
    /// [`ModuleImageError::Compressed`], [`ModuleImageError::TooLarge`], [`ModuleImageError::Field`].
    pub fn contents(&self) -> Result<Cow<'a, [u8]>, ModuleImageError> {
        if !self.compressed {
            return Ok(Cow::Borrowed(self.stored));
        }
        check_limit("an uncompressed entry", self.uncompressed, MAX_UNCOMPRESSED_BYTES)?;
        let contents = match self.flags & (FLAG_LZ4 | FLAG_ZSTD) {
            FLAG_LZ4 => unfold_lz4(self.stored, self.uncompressed),
            FLAG_ZSTD => unfold_zstd(self.stored, self.uncompressed),
            value => Err(ModuleImageError::Field { field: "the compression method", value }),
        };
        contents.map(Cow::Owned)
    }

    /// Returns the contents of a PTX entry: the text up to its first NUL.
    ///
    /// # Errors
    /// As [`FatbinEntry::contents`].
    pub fn text(&self) -> Result<Cow<'a, str>, ModuleImageError> {
        Ok(match self.contents()? {
            Cow::Borrowed(bytes) => String::from_utf8_lossy(until_nul(bytes)),
            Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(until_nul(&bytes)).into_owned()),
        })
    }
}

/// Returns the bytes before the first NUL.
pub(crate) fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Returns the name; an invalid one is empty, since it is only for people.
fn name(header: &[u8], offset: u32, length: u32) -> &[u8] {
    let name = header.get(offset as usize..).and_then(|rest| rest.get(..length as usize));
    if offset == 0 { &[] } else { until_nul(name.unwrap_or_default()) }
}

/// Returns the options for ptxas: an offset and a length, after the fixed fields of the header. An invalid offset means no
/// options.
fn options(header: &[u8], at: u32) -> &[u8] {
    let record =
        header.get(at as usize..).filter(|_| at as usize >= MIN_ENTRY_HEADER_BYTES).and_then(<[u8]>::first_chunk::<8>);
    let Some([a, b, c, d, e, f, g, h]) = record else { return &[] };
    let (offset, length) = (u32::from_le_bytes([*a, *b, *c, *d]), u32::from_le_bytes([*e, *f, *g, *h]));
    name(header, offset, length)
}

fn unfold_lz4(block: &[u8], length: u64) -> Result<Vec<u8>, ModuleImageError> {
    check_limit("an LZ4 entry", length, (block.len() as u64).saturating_mul(MAX_LZ4_RATIO))?;
    let mut contents = vec![0; length as usize];
    let wrong = |reason| ModuleImageError::Compressed { method: "LZ4", reason };
    let written = lz4_flex::block::decompress_into(block, &mut contents).map_err(|error| wrong(error.to_string()))?;
    if written as u64 != length {
        return Err(wrong(format!("{written} bytes instead of {length}")));
    }
    Ok(contents)
}

/// Decompresses. The buffer grows with the decoder's output, so a false length costs nothing.
fn unfold_zstd(frame: &[u8], length: u64) -> Result<Vec<u8>, ModuleImageError> {
    let wrong = |reason| ModuleImageError::Compressed { method: "zstd", reason };
    let decoder = ruzstd::decoding::StreamingDecoder::new(frame).map_err(|error| wrong(error.to_string()))?;
    let mut contents = Vec::new();
    decoder.take(length + 1).read_to_end(&mut contents).map_err(|error| wrong(error.to_string()))?;
    if contents.len() as u64 != length {
        return Err(wrong(format!("{} bytes instead of {length}", contents.len())));
    }
    Ok(contents)
}

fn u32_at(header: &[u8; MIN_ENTRY_HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

fn u64_at(header: &[u8; MIN_ENTRY_HEADER_BYTES], at: usize) -> u64 {
    u64::from(u32_at(header, at)) | u64::from(u32_at(header, at + 4)) << 32
}
