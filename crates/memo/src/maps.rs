//! What a process's memory shows of files, by the kernel's own text about it (`/proc/self/maps`).
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

/// Longest text that is looked at: a line has some hundred bytes, and the system allows 65,530 of them.
const LONGEST: u64 = 64 << 20;

/// A stretch of memory that shows a file, privately: what is written there does not reach the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapping<'a> {
    pub(crate) range: Range<u64>,
    /// Where in the file it begins.
    pub(crate) offset: u64,
    /// Major and minor number of its device, and its number there.
    pub(crate) file: (u32, u32, u64),
    /// As it was called when it was opened, or has been since.
    pub(crate) path: &'a Path,
}

/// The text about this process.
pub(crate) fn text() -> Option<Vec<u8>> {
    let mut text = Vec::new();
    File::open("/proc/self/maps").ok()?.take(LONGEST).read_to_end(&mut text).ok()?;
    Some(text)
}

/// All private mappings of files in a text that overlap one of the ranges, in their order.
pub(crate) fn of_files<'a>(text: &'a [u8], wanted: &[Range<u64>]) -> Vec<Mapping<'a>> {
    let overlaps =
        |range: &Range<u64>| wanted.iter().any(|wanted| range.start < wanted.end && wanted.start < range.end);
    let lines = text.split(|byte| *byte == b'\n');
    lines.filter_map(|line| mapping(line, overlaps)).collect()
}

/// What a line says; none for what shows no file, is shared, or is not wanted.
fn mapping(line: &[u8], is_wanted: impl Fn(&Range<u64>) -> bool) -> Option<Mapping<'_>> {
    let (addresses, rest) = split(line, b' ')?;
    let (start, end) = split(addresses, b'-')?;
    let range = number(start, 16)?..number(end, 16)?;
    if !is_wanted(&range) {
        return None;
    }
    let (rights, rest) = split(rest, b' ')?;
    let (offset, rest) = split(rest, b' ')?;
    let (device, rest) = split(rest, b' ')?;
    let (major, minor) = split(device, b':')?;
    let (inode, path) = split(rest, b' ')?;
    let file = (u32::try_from(number(major, 16)?).ok()?, u32::try_from(number(minor, 16)?).ok()?, number(inode, 10)?);
    let path = path.trim_ascii_start();
    (rights.ends_with(b"p") && path.starts_with(b"/")).then_some(Mapping {
        range,
        offset: number(offset, 16)?,
        file,
        path: Path::new(OsStr::from_bytes(path)),
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
        let found = of_files(TEXT, &[0..8, 8..u64::MAX]);
        let expected =
            Mapping { range: 0x1000..0x3000, offset: 0x40_1000, file: (0xfe, 10, 17), path: Path::new("/a file") };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn what_only_touches_a_range_is_not_wanted() {
        assert_eq!(of_files(TEXT, &[0..0x1000, 0x3000..0x4000]), []);
        assert_eq!(of_files(TEXT, &[0..8, 0x2fff..0x3000]).len(), 1);
    }
}
