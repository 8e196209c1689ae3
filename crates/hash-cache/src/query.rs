//! Finds the mapping at one address, by a query that Linux supports from 6.11 on (`PROCMAP_QUERY`). It costs the same in a
//! process with thousands of mappings, where the text about all of them takes milliseconds.

#![expect(unsafe_code, reason = "rustix knows this question of the kernel's by its number alone")]

use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl, opcode};

/// Longest name, with its NUL.
const MAX_PATH_BYTES: usize = 4096;
/// A flag of a mapping: writes reach the file.
const VMA_SHARED_FLAG: u64 = 8;

/// A private mapping of a file: writes do not reach the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) range: Range<u64>,
    /// Offset in the file.
    pub(crate) offset: u64,
    /// Major and minor number of its device, and its inode number.
    pub(crate) file: (u32, u32, u64),
    /// The file's name when it was opened, or a later one.
    pub(crate) path: PathBuf,
}

/// The kernel's structure of the query.
#[repr(C)]
#[derive(Debug, Default)]
struct ProcmapQuery {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    rights: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// The system does not support the query.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct QueryUnsupported;

/// Returns the private file mapping at an address; none for other memory or an unmapped address. `maps` is
/// `/proc/self/maps`.
pub(crate) fn mapping_at(maps: &File, address: u64) -> Result<Option<Mapping>, QueryUnsupported> {
    let mut name = [0_u8; MAX_PATH_BYTES];
    let mut question = ProcmapQuery {
        size: size_of::<ProcmapQuery>() as u64,
        address,
        name_size: MAX_PATH_BYTES as u32,
        name: name.as_mut_ptr().expose_provenance() as u64,
        ..ProcmapQuery::default()
    };
    // SAFETY: the number is that of this query, whose layout has not changed since the kernel has it.
    let request =
        unsafe { Updater::<{ opcode::read_write::<ProcmapQuery>(b'f', 17) }, ProcmapQuery>::new(&mut question) };
    // SAFETY: the kernel writes to the query and, at most `name_size` bytes, to the name; both outlive the call.
    match unsafe { ioctl(maps, request) } {
        Ok(()) => {}
        Err(Errno::NOENT | Errno::NAMETOOLONG) => return Ok(None),
        Err(_) => return Err(QueryUnsupported),
    }
    let length = (question.name_size as usize).saturating_sub(1).min(MAX_PATH_BYTES);
    let name = &name[..length];
    let is_private_file = question.rights & VMA_SHARED_FLAG == 0 && name.starts_with(b"/");
    Ok(is_private_file.then(|| Mapping {
        range: question.start..question.end,
        offset: question.offset,
        file: (question.major, question.minor, question.inode),
        path: Path::new(OsStr::from_bytes(name)).to_owned(),
    }))
}
