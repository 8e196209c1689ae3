//! Finds pointers, in the saved memory of a program, to the old addresses of its GPU code's variables.
//!
//! A program that was never told an address can still hold one that a kernel wrote and a copy brought. CRIU saves memory in whole
//! pages, so words at multiples of 8 in its files are words at multiples of 8 in the program.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use katydid_wire::companion::MovedVariable;

/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;

/// A pointer that was found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pointer<'a> {
    pub(crate) file: String,
    pub(crate) offset: u64,
    pub(crate) word: u64,
    pub(crate) variable: &'a MovedVariable,
}

/// Returns the first pointer into one of `moved`, or to its end, in the files of a folder.
///
/// # Errors
///
/// A file cannot be read.
pub(crate) fn find<'a>(folder: &Path, moved: &'a [MovedVariable]) -> io::Result<Option<Pointer<'a>>> {
    let (Some(first), Some(last)) = (moved.iter().map(|variable| variable.address).min(), moved.iter().map(end).max())
    else {
        return Ok(None);
    };
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_type()?.is_file() {
            continue;
        }
        let mut file = File::open(entry.path())?;
        let (mut bytes, mut offset) = (vec![0; READ_BYTES], 0);
        loop {
            let length = fill(&mut file, &mut bytes)?;
            let words = bytes[..length].as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            for (index, word) in words.enumerate() {
                if (first..=last).contains(&word)
                    && let Some(variable) =
                        moved.iter().find(|variable| (variable.address..=end(variable)).contains(&word))
                {
                    let file = entry.file_name().to_string_lossy().into_owned();
                    return Ok(Some(Pointer { file, offset: offset + index as u64 * 8, word, variable }));
                }
            }
            offset += length as u64;
            if length < READ_BYTES {
                break;
            }
        }
    }
    Ok(None)
}

fn end(moved: &MovedVariable) -> u64 {
    moved.address.saturating_add(moved.bytes)
}

/// Reads until the buffer is full, or the file at its end.
fn fill(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_points_into_a_variable_is_found_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let moved = |address| MovedVariable { name: "module 1: variable v".to_owned(), address, bytes: 16 };
        let all = [moved(0x7f00_0000_0000), moved(0x1000)];
        fs::create_dir(folder.path().join("below")).unwrap();
        let mut bytes = vec![0; READ_BYTES + 32];
        bytes[4..12].copy_from_slice(&0x1008_u64.to_le_bytes());
        fs::write(folder.path().join("pages-1.img"), &bytes).unwrap();
        assert_eq!(find(folder.path(), &all).unwrap(), None, "at no multiple of 8, and zeros point nowhere");
        bytes[READ_BYTES + 16..READ_BYTES + 24].copy_from_slice(&0x7f00_0000_0010_u64.to_le_bytes());
        fs::write(folder.path().join("pages-1.img"), &bytes).unwrap();
        let found = find(folder.path(), &all).unwrap().unwrap();
        assert_eq!((found.offset, found.word, found.variable), (READ_BYTES as u64 + 16, 0x7f00_0000_0010, &all[0]));
        assert_eq!(found.file, "pages-1.img");
        assert_eq!(find(folder.path(), &[]).unwrap(), None);
    }
}
