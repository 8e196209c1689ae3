//! The files behind parts of this process's memory, if no process has changed them in memory.

use std::fs::{self, File, Metadata};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{major, minor};

use crate::maps;
use crate::query::Mapping;

/// The coarsest change times of file systems.
const COARSEST_TIMESTAMP: Duration = Duration::from_secs(2);
/// Bytes of an entry of `/proc/self/pagemap`, one a page.
const PAGEMAP_ENTRY_BYTES: usize = 8;
/// Entries that are read together.
const PAGEMAP_ENTRIES_PER_READ: usize = 4096;
/// Set if the page is in memory.
const PAGE_PRESENT_BIT: u64 = 1 << 63;
/// Set if it was swapped out, so a process had written to it; also during a migration.
const PAGE_SWAPPED_BIT: u64 = 1 << 62;
/// Set if it is the file's own page, not a copy after a write.
const PAGE_IS_FILE_BIT: u64 = 1 << 61;

/// A range of a file in a certain state.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileRange {
    /// Device, inode number, size.
    file: [u64; 3],
    /// Seconds and nanoseconds: the last change of its bytes, and the last change of any kind.
    changed: [i64; 4],
    offset: u64,
    length: u64,
}

/// The origin of some parts of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MappedOrigin(Vec<FileRange>);

impl MappedOrigin {
    /// Returns the origin of parts of this process's memory; none unless all are bytes of files, unchanged in memory.
    pub(crate) fn of(parts: &[Range<u64>]) -> Option<Self> {
        let mappings = maps::of_parts(parts)?;
        let ranges: Option<Vec<FileRange>> = parts.iter().map(|part| file_range(part, &mappings)).collect();
        let origin = Self(ranges?);
        let pagemap = File::open("/proc/self/pagemap").ok()?;
        parts.iter().all(|part| is_unchanged(&pagemap, part) == Some(true)).then_some(origin)
    }

    /// Returns whether the timestamps distinguish these files from any later state. No file may have changed so recently
    /// that it could change again at the same timestamp. No ctime may be in whole seconds: such times come from file systems
    /// that keep no ctime of their own. Files that are packed into one file have the timestamps that the packing process
    /// chose.
    pub(crate) fn is_settled(&self, now: SystemTime) -> bool {
        let is_old = |[seconds, nanoseconds]: [i64; 2]| {
            let (seconds, nanoseconds) = (u64::try_from(seconds).ok()?, u64::try_from(nanoseconds).ok()?);
            let changed = Duration::from_secs(seconds).checked_add(Duration::from_nanos(nanoseconds))?;
            now.duration_since(UNIX_EPOCH).ok()?.checked_sub(changed)?.checked_sub(COARSEST_TIMESTAMP)
        };
        self.0.iter().all(|range| {
            let [bytes @ .., seconds, nanoseconds] = range.changed;
            nanoseconds != 0 && is_old(bytes).is_some() && is_old([seconds, nanoseconds]).is_some()
        })
    }

    /// Returns a unique encoding.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for range in &self.0 {
            range.file.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
            range.changed.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
            [range.offset, range.length].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        }
        bytes
    }
}

/// Returns the file range that a part maps, through one mapping or several adjacent ones.
fn file_range(part: &Range<u64>, mappings: &[Mapping]) -> Option<FileRange> {
    let mut here = mappings.iter().skip_while(|mapping| mapping.range.end <= part.start);
    let first = here.next().filter(|first| first.range.start <= part.start)?;
    let mut last = first;
    while last.range.end < part.end {
        let next = here.next()?;
        let goes_on = next.file == first.file
            && next.range.start == last.range.end
            && next.offset.checked_sub(last.offset)? == next.range.start - last.range.start;
        last = goes_on.then_some(next)?;
    }
    let found = file_of(first)?;
    Some(FileRange {
        file: [found.dev(), found.ino(), found.size()],
        changed: [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()],
        offset: first.offset.checked_add(part.start - first.range.start)?,
        length: part.end.checked_sub(part.start)?,
    })
}

/// Returns the file's metadata, if the file still has the name under which it was opened.
fn file_of(mapping: &Mapping) -> Option<Metadata> {
    let found = fs::symlink_metadata(&mapping.path).ok()?;
    let is_it = (major(found.dev()), minor(found.dev()), found.ino()) == mapping.file;
    (is_it && found.is_file()).then_some(found)
}

/// Returns whether no page of a part has been written to; none if the system does not tell.
fn is_unchanged(pagemap: &File, part: &Range<u64>) -> Option<bool> {
    let size = rustix::param::page_size() as u64;
    let pages = part.start / size..part.end.div_ceil(size);
    let mut entries = vec![0; PAGEMAP_ENTRY_BYTES * PAGEMAP_ENTRIES_PER_READ];
    for first in pages.clone().step_by(PAGEMAP_ENTRIES_PER_READ) {
        let count = usize::try_from(pages.end - first)
            .map_or(PAGEMAP_ENTRIES_PER_READ, |left| left.min(PAGEMAP_ENTRIES_PER_READ));
        let entries = &mut entries[..count * PAGEMAP_ENTRY_BYTES];
        pagemap.read_exact_at(entries, first * PAGEMAP_ENTRY_BYTES as u64).ok()?;
        let was_written = |entry: u64| {
            entry & PAGE_SWAPPED_BIT != 0 || entry & (PAGE_PRESENT_BIT | PAGE_IS_FILE_BIT) == PAGE_PRESENT_BIT
        };
        if entries.as_chunks().0.iter().any(|entry| was_written(u64::from_le_bytes(*entry))) {
            return Some(false);
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_change_that_tell_nothing_are_not_believed() {
        let is_settled = |changed: [i64; 4], now: u64| {
            let range = FileRange { file: [1, 2, 3], changed, offset: 0, length: 3 };
            MappedOrigin(vec![range]).is_settled(UNIX_EPOCH + Duration::from_millis(now))
        };
        assert!(is_settled([5, 7, 1000, 500_000_000], 1_002_500));
        assert!(!is_settled([5, 7, 1000, 500_000_000], 1_002_499));
        assert!(!is_settled([1000, 500_000_000, 5, 7], 1_002_499));
        assert!(!is_settled([5, 7, 1000, 0], 2_000_000) && is_settled([5, 0, 1000, 1], 2_000_000));
        assert!(!is_settled([5, 7, -1, 1], 2_000_000) && !is_settled([5, 7, i64::MAX, i64::MAX], 2_000_000));
    }
}
