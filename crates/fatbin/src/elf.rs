//! Finds the length of a cubin that was passed by bare pointer.
//!
//! Compilers put the program headers after the section headers, and sections after those. So the length is the maximum over both
//! tables, every section with bytes in the file, and every segment.

use crate::error::{ModuleImageError, check_limit};

/// First word of an ELF file.
pub(crate) const ELF_MAGIC: u32 = 0x464c_457f;
/// Largest cubin that is accepted, in bytes.
const MAX_ELF_BYTES: u64 = 4 << 30;
/// Type of a section without bytes in the file.
const SHT_NOBITS: u32 = 8;
/// Bytes of an ELF64 header, of a section header and of a program header.
const ELF_HEADER_BYTES: u64 = 64;
const SECTION_HEADER_BYTES: u64 = 64;
const PROGRAM_HEADER_BYTES: u64 = 56;

/// Returns the length of the ELF64 file whose bytes `read(offset, length)` returns.
///
/// It reads only tables that the header points to, so a reader over bare memory touches nothing outside the file.
pub(crate) fn elf_length<'a>(
    read: impl Fn(u64, u64) -> Result<&'a [u8], ModuleImageError>,
) -> Result<u64, ModuleImageError> {
    let header = read(0, ELF_HEADER_BYTES)?;
    let class = u64::from(header[4]);
    if class != 2 {
        return Err(ModuleImageError::Field { field: "the ELF class", value: class });
    }
    let segments = ElfTable { start: u64_at(header, 32), entry: u16_at(header, 54), count: u16_at(header, 56) };
    let sections = ElfTable { start: u64_at(header, 40), entry: u16_at(header, 58), count: u16_at(header, 60) };
    let mut length = ELF_HEADER_BYTES.max(u16_at(header, 52));
    for (table, least, end) in
        [(&segments, PROGRAM_HEADER_BYTES, segment_end as EndOf), (&sections, SECTION_HEADER_BYTES, section_end)]
    {
        length = length.max(table.end(least)?);
        check_limit("a cubin", length, MAX_ELF_BYTES)?;
        for index in 0..table.count {
            let entry = read(table.start + index * table.entry, table.entry)?;
            length = length.max(end(entry));
        }
    }
    check_limit("a cubin", length, MAX_ELF_BYTES)?;
    Ok(length)
}

/// A section of an ELF file.
pub(crate) struct Section<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: u32,
    /// Number of a section that this one refers to.
    pub(crate) link: u32,
    /// Empty if the file has no bytes of it.
    pub(crate) bytes: &'a [u8],
}

/// Returns the sections with bytes in a file; a name that is not text is empty.
pub(crate) fn sections(file: &[u8]) -> Result<Vec<Section<'_>>, ModuleImageError> {
    let slice = |offset: u64, length: u64| {
        let end = offset.checked_add(length).filter(|end| *end <= file.len() as u64);
        let needed = offset.saturating_add(length);
        let end = end.ok_or(ModuleImageError::CutOff { what: "an ELF file", needed, available: file.len() as u64 })?;
        Ok(&file[offset as usize..end as usize])
    };
    elf_length(slice)?;
    if u64_at(file, 0) as u32 != ELF_MAGIC {
        return Err(ModuleImageError::Field { field: "the first word of an ELF file", value: u64_at(file, 0) });
    }
    let table = ElfTable { start: u64_at(file, 40), entry: u16_at(file, 58), count: u16_at(file, 60) };
    let entries = (0..table.count).map(|index| slice(table.start + index * table.entry, table.entry));
    let entries: Vec<&[u8]> = entries.collect::<Result<_, _>>()?;
    let contents = |entry: &[u8]| match section_end(entry) {
        0 => Ok(&[][..]),
        _ => slice(u64_at(entry, 24), u64_at(entry, 32)),
    };
    let names = entries.get(u16_at(file, 62) as usize).map_or(Ok(&[][..]), |entry| contents(entry))?;
    let name = |entry: &[u8]| {
        let text = names.get(u64_at(entry, 0) as u32 as usize..).map(crate::entry::until_nul).unwrap_or_default();
        std::str::from_utf8(text).unwrap_or_default()
    };
    let section = |entry| {
        let (kind, link) = ((u64_at(entry, 0) >> 32) as u32, u64_at(entry, 40) as u32);
        Ok(Section { name: name(entry), kind, link, bytes: contents(entry)? })
    };
    entries.into_iter().map(section).collect()
}

/// Returns the end of the bytes that a table entry describes.
type EndOf = fn(&[u8]) -> u64;

/// A table that the ELF header points to.
struct ElfTable {
    start: u64,
    entry: u64,
    count: u64,
}

impl ElfTable {
    /// Returns the end of the table; 0 if it is empty.
    fn end(&self, least: u64) -> Result<u64, ModuleImageError> {
        if self.count == 0 {
            return Ok(0);
        }
        if self.entry < least {
            return Err(ModuleImageError::Field { field: "the size of an ELF table's entries", value: self.entry });
        }
        Ok(self.start.saturating_add(self.count * self.entry))
    }
}

fn section_end(section: &[u8]) -> u64 {
    let kind = u64_at(section, 0) >> 32;
    if kind == u64::from(SHT_NOBITS) { 0 } else { u64_at(section, 24).saturating_add(u64_at(section, 32)) }
}

fn segment_end(segment: &[u8]) -> u64 {
    u64_at(segment, 8).saturating_add(u64_at(segment, 32))
}

/// Reads a field of a structure that the caller has in full; 0 past its end.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |field| u64::from_le_bytes(*field))
}

fn u16_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |field| u16::from_le_bytes(*field).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length_of(file: &[u8]) -> Result<u64, ModuleImageError> {
        elf_length(|offset, length| {
            let section = file.get(offset as usize..).and_then(|rest| rest.get(..length as usize));
            section.ok_or(ModuleImageError::CutOff {
                what: "a cubin",
                needed: offset + length,
                available: file.len() as u64,
            })
        })
    }

    /// Builds a file with a header, one section header at 64, one program header at 128: 184 bytes and what the tables point to.
    fn file(section: (u32, u64, u64), segment: (u64, u64)) -> Vec<u8> {
        let mut file = vec![0; 184];
        let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &[0x7f, b'E', b'L', b'F', 2, 1]);
        put(32, &128_u64.to_le_bytes());
        put(40, &64_u64.to_le_bytes());
        for (at, value) in [(52, 64_u16), (54, 56), (56, 1), (58, 64), (60, 1)] {
            put(at, &value.to_le_bytes());
        }
        put(68, &section.0.to_le_bytes());
        put(88, &section.1.to_le_bytes());
        put(96, &section.2.to_le_bytes());
        put(136, &segment.0.to_le_bytes());
        put(160, &segment.1.to_le_bytes());
        file
    }

    #[test]
    fn each_of_the_four_terms_can_be_the_last() {
        assert_eq!(length_of(&file((1, 0, 8), (0, 8))), Ok(184));
        assert_eq!(length_of(&file((1, 1000, 8), (0, 8))), Ok(1008));
        assert_eq!(length_of(&file((1, 1000, 8), (900, 109))), Ok(1009));
        assert_eq!(length_of(&file((SHT_NOBITS, 1000, 8), (0, 8))), Ok(184));
    }

    #[test]
    fn lengths_that_overflow_are_refused() {
        assert!(matches!(length_of(&file((1, u64::MAX, 8), (0, 8))), Err(ModuleImageError::TooLarge { .. })));
        let mut far = file((1, 0, 0), (0, 0));
        far[40..48].fill(0xff);
        assert!(matches!(length_of(&far), Err(ModuleImageError::TooLarge { .. })));
        far[58] = 8;
        assert!(matches!(length_of(&far), Err(ModuleImageError::Field { .. })));
    }
}
