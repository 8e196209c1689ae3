//! The files in a process's memory, from the kernel's text (`/proc/self/maps`), unless the kernel answers for single
//! addresses.
//!
//! ```text
//! 7f2a8c000000-7f2a92400000 r--p 00401000 fe:00 1835041                    /usr/lib/libprogram.so
//! ```

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use crate::query::{Mapping, QueryUnsupported, mapping_at};

const MAPS_FILE: &str = "/proc/self/maps";
/// Longest text that is read, in bytes: a line has some hundred bytes, and the system allows 65,530 of them.
const MAX_MAPS_BYTES: u64 = 64 << 20;

/// Returns the private file mappings that parts of this process's memory lie in, by address. Other kinds of memory are
/// missing from the result.
pub(crate) fn of_parts(parts: &[Range<u64>]) -> Option<Vec<Mapping>> {
    let mut maps = File::open(MAPS_FILE).ok()?;
    if let Ok(found) = query_all(&maps, parts) {
        return Some(found);
    }
    let mut text = Vec::new();
    (&mut maps).take(MAX_MAPS_BYTES).read_to_end(&mut text).ok()?;
    Some(in_text(&text, parts))
}

/// Returns whether the kernel answers for single addresses.
pub(crate) fn are_answered() -> bool {
    static IS_ANSWERED: OnceLock<bool> = OnceLock::new();
    *IS_ANSWERED.get_or_init(|| File::open(MAPS_FILE).is_ok_and(|maps| mapping_at(&maps, 0).is_ok()))
}

fn query_all(maps: &File, parts: &[Range<u64>]) -> Result<Vec<Mapping>, QueryUnsupported> {
    let mut mappings = Vec::new();
    for part in parts {
        let mut address = part.start;
        while address < part.end
            && let Some(mapping) = mapping_at(maps, address)?.filter(|mapping| mapping.range.contains(&address))
        {
            address = mapping.range.end;
            mappings.push(mapping);
        }
    }
    mappings.sort_unstable_by_key(|mapping| mapping.range.start);
    mappings.dedup();
    Ok(mappings)
}

/// Returns all private file mappings in a text that overlap one of the parts, in their order.
fn in_text(text: &[u8], parts: &[Range<u64>]) -> Vec<Mapping> {
    let overlaps = |range: &Range<u64>| parts.iter().any(|part| range.start < part.end && part.start < range.end);
    let lines = text.split(|byte| *byte == b'\n');
    lines.filter_map(|line| mapping(line, overlaps)).collect()
}

/// Parses a line; none for a mapping without a file, a shared one, or one that is not wanted.
fn mapping(line: &[u8], is_wanted: impl Fn(&Range<u64>) -> bool) -> Option<Mapping> {
    let (addresses, fields) = split(line, b' ')?;
    let (start, end) = split(addresses, b'-')?;
    let range = number(start, 16)?..number(end, 16)?;
    if !is_wanted(&range) {
        return None;
    }
    let (rights, fields) = split(fields, b' ')?;
    let (offset, fields) = split(fields, b' ')?;
    let (device, fields) = split(fields, b' ')?;
    let (major, minor) = split(device, b':')?;
    let (inode, path) = split(fields, b' ')?;
    let file = (u32::try_from(number(major, 16)?).ok()?, u32::try_from(number(minor, 16)?).ok()?, number(inode, 10)?);
    let path = path.trim_ascii_start();
    (rights.ends_with(b"p") && path.starts_with(b"/")).then_some(Mapping {
        range,
        offset: number(offset, 16)?,
        file,
        path: Path::new(OsStr::from_bytes(path)).to_owned(),
    })
}

fn split(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let position = text.iter().position(|byte| *byte == at)?;
    Some((&text[..position], &text[position + 1..]))
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"1000-3000 r--p 00401000 fe:0a 17                    /a file\n\
        3000-4000 rw-s 00000000 fe:0a 18 /shared\n\
        4000-5000 rw-p 00000000 00:00 0 \n\
        5000-6000 rw-p 00000000 00:00 0                          [heap]\n\
        nonsense\n6000-7000 r--p\n-\n\n";

    #[test]
    fn private_mappings_of_files_are_found_and_nothing_else() {
        let found = in_text(TEXT, &[0..8, 8..u64::MAX]);
        let expected =
            Mapping { range: 0x1000..0x3000, offset: 0x40_1000, file: (0xfe, 10, 17), path: "/a file".into() };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn adjacent_mappings_do_not_overlap_a_range() {
        assert_eq!(in_text(TEXT, &[0..0x1000, 0x3000..0x4000]), []);
        assert_eq!(in_text(TEXT, &[0..8, 0x2fff..0x3000]).len(), 1);
    }

    #[test]
    fn procmap_query_agrees_with_the_maps_file() {
        // Code of this program, writable data, memory without a file, and an unmapped address.
        static WRITTEN: std::sync::Mutex<u8> = std::sync::Mutex::new(1);
        let code = in_text as *const () as u64;
        let (heap, written) = (Box::new(7_u8), std::ptr::from_ref(&WRITTEN) as u64);
        let heap = std::ptr::from_ref(&*heap) as u64;
        let (maps, text) = (File::open(MAPS_FILE).unwrap(), std::fs::read(MAPS_FILE).unwrap());
        for (address, is_file) in [(code, true), (written, true), (heap, false), (8, false)] {
            let part = [address..address + 1, 8..9];
            let found = in_text(&text, &part);
            assert_eq!(found.len(), usize::from(is_file));
            if are_answered() {
                assert_eq!(query_all(&maps, &part), Ok(found));
            }
        }
    }
}
