//! Finds the containers in host object files and libraries, for a linker of device code.

use crate::container::{CONTAINER_HEADER_BYTES, CONTAINER_MAGIC, container_length};
use crate::elf::sections;
use crate::error::ModuleImageError;

/// Sections for containers: of whole and of relocatable device code.
const FATBIN_SECTIONS: [&str; 2] = [".nv_fatbin", "__nv_relfatbin"];
/// First bytes of a library.
const ARCHIVE_MAGIC: &[u8] = b"!<arch>\n";
/// Bytes of a member's header in a library, and where its size is in it.
const MEMBER_HEADER_BYTES: usize = 60;
const MEMBER_SIZE_RANGE: std::ops::Range<usize> = 48..58;

/// Returns the containers in an object file.
///
/// # Errors
/// The file is not ELF, or damaged.
pub fn containers_of_object(file: &[u8]) -> Result<Vec<&[u8]>, ModuleImageError> {
    let mut containers = Vec::new();
    for section in sections(file)?.iter().filter(|section| FATBIN_SECTIONS.contains(&section.name)) {
        let mut remaining = section.bytes;
        while let Some(at) = next_container(remaining) {
            remaining = &remaining[at..];
            let header = remaining.first_chunk().ok_or(cut_off(remaining.len()))?;
            let length = container_length(header)? as usize;
            let container = remaining.get(..length).ok_or(cut_off(remaining.len()))?;
            containers.push(container);
            remaining = &remaining[length..];
        }
    }
    Ok(containers)
}

/// Returns the offset of the next container: they are aligned to 8 bytes, with zeros between them.
fn next_container(bytes: &[u8]) -> Option<usize> {
    let magic = CONTAINER_MAGIC.to_le_bytes();
    bytes.chunks(8).position(|chunk| chunk.starts_with(&magic)).map(|index| index * 8)
}

fn cut_off(available: usize) -> ModuleImageError {
    ModuleImageError::CutOff { what: "a container", needed: CONTAINER_HEADER_BYTES as u64, available: available as u64 }
}

/// Returns the members of a library that are files, without its name and symbol tables.
///
/// # Errors
/// The file is not a library, or damaged.
pub fn members_of_library(file: &[u8]) -> Result<Vec<&[u8]>, ModuleImageError> {
    let mut remaining =
        file.strip_prefix(ARCHIVE_MAGIC).ok_or(ModuleImageError::Field { field: "the head of a library", value: 0 })?;
    let mut members = Vec::new();
    while remaining.len() >= MEMBER_HEADER_BYTES {
        let (header, after) = remaining.split_at(MEMBER_HEADER_BYTES);
        let size =
            std::str::from_utf8(&header[MEMBER_SIZE_RANGE]).ok().and_then(|text| text.trim().parse::<usize>().ok());
        let size = size.ok_or(ModuleImageError::Field { field: "the size of a library's member", value: 0 })?;
        let member = after.get(..size).ok_or(cut_off(after.len()))?;
        // A name that is a slash, followed only by blanks or another slash, marks a table.
        if !(header.starts_with(b"/ ") || header.starts_with(b"//")) {
            members.push(member);
        }
        remaining = after.get(size.next_multiple_of(2)..).unwrap_or_default();
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, contents: &[u8]) -> Vec<u8> {
        let mut member = format!("{name:<48}{:<10}`\n", contents.len()).into_bytes();
        member.extend(contents);
        member.resize(member.len().next_multiple_of(2), b'\n');
        member
    }

    #[test]
    fn members_are_found_without_the_tables() {
        let library =
            [ARCHIVE_MAGIC, &member("/", b"symbols"), &member("a.o/", b"one"), &member("/12", b"twelve")].concat();
        assert_eq!(members_of_library(&library).unwrap(), [&b"one"[..], b"twelve"]);
        assert!(members_of_library(b"junk").is_err() && members_of_library(&library[..library.len() - 3]).is_err());
    }

    #[test]
    fn bytes_that_are_not_an_object_are_refused() {
        assert!(containers_of_object(b"hello world junk").is_err());
        assert!(containers_of_object(&[0x7f, b'E', b'L', b'F', 2]).is_err());
    }

    #[test]
    fn containers_are_found_behind_zeros() {
        assert_eq!(next_container(&[0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0xed, 0x55, 0xba]), Some(8));
        assert_eq!(next_container(&[0x50, 0xed, 0x55]), None);
    }
}
