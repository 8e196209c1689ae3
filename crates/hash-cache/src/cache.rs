//! The cache: a folder of small files, one for each image, named by a hash of the image's origin.
//!
//! | offset | bytes | field |
//! |-------:|------:|-------|
//! |      0 |     8 | length, little-endian |
//! |      8 |    32 | hash |
//! | 40 | 32 | BLAKE3 of everything in the name, and of the fields before |
//!
//! Only its owner may use the folder; one that others can use is ignored. An entry is written under another name and
//! renamed, so that processes that do this at the same time leave a complete one. Beyond the limit the cache evicts the
//! least recently used entries.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, fstat, openat, renameat, statat, unlinkat};
use rustix::process::geteuid;

use crate::origin::MappedOrigin;

/// Changes with everything that goes into a name, and with the format of entries.
const CACHE_VERSION: &[u8] = b"katydid hash cache 1";
/// Most entries, besides those that processes have added since their last check.
const MAX_CACHE_ENTRIES: usize = 4096;
/// Entries that a process adds between two checks of their number.
const ENTRIES_BETWEEN_PRUNES: u64 = 64;
/// Bytes of an entry.
const CACHE_ENTRY_BYTES: usize = 72;
/// Prefix of the names of entries that are being written.
const UNFINISHED_PREFIX: &str = "new-";
/// A killed process left an unfinished entry of this age.
const STALE_AGE: Duration = Duration::from_secs(3600);
/// The time of use of an entry is updated at most once in this interval.
const MARK_INTERVAL: Duration = Duration::from_secs(3600);

/// Length and hash of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageHash {
    /// Length of the image in bytes.
    pub length: u64,
    /// Hash of the image, which names it in messages and checkpoints.
    pub hash: [u8; 32],
}

/// A folder of known hashes, which need not exist.
#[derive(Debug)]
pub struct HashCache {
    folder: PathBuf,
    added: AtomicU64,
}

/// The result of a lookup in the cache.
#[derive(Debug)]
pub struct Lookup<'m> {
    cache: &'m HashCache,
    parts: Vec<Range<u64>>,
    about: Vec<u8>,
    origin: MappedOrigin,
    hash: Option<ImageHash>,
}

impl HashCache {
    /// Makes a cache in a folder, which has no other use.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, added: AtomicU64::new(0) }
    }

    /// Looks up the hash of parts of this process's memory, which stay unchanged while the result lives; `about` is
    /// everything else that determines it. None if these are not bytes of files.
    pub fn ask(&self, parts: Vec<Range<u64>>, about: Vec<u8>) -> Option<Lookup<'_>> {
        let origin = MappedOrigin::of(&parts)?;
        let cached = self.get(&whole(&origin, &about));
        Some(Lookup { cache: self, parts, about, origin, hash: cached })
    }

    fn get(&self, whole: &[u8]) -> Option<ImageHash> {
        let folder = self.open()?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut file = File::from(openat(&folder, name(whole), flags, Mode::empty()).ok()?);
        let metadata = file.metadata().ok()?;
        if !metadata.is_file() || metadata.uid() != geteuid().as_raw() || metadata.len() != CACHE_ENTRY_BYTES as u64 {
            return None;
        }
        let mut entry = [0; CACHE_ENTRY_BYTES];
        file.read_exact(&mut entry).ok()?;
        let cached = decode(&entry, whole)?;
        if metadata.modified().is_ok_and(|marked| marked.elapsed().is_ok_and(|age| age > MARK_INTERVAL)) {
            // If the time cannot be set, the entry is evicted sooner, and nothing else.
            let _ = file.set_modified(SystemTime::now());
        }
        Some(cached)
    }

    fn put(&self, whole: &[u8], cached: &ImageHash) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let Some(folder) = self.open() else { return Ok(()) };
        let count = self.added.fetch_add(1, Ordering::Relaxed);
        let beside = format!("{UNFINISHED_PREFIX}{}-{count}", process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(&folder, &beside, flags, Mode::RUSR | Mode::WUSR)?);
        let written = file.write_all(&encode(cached, whole));
        if let Err(error) = written.and_then(|()| Ok(renameat(&folder, &beside, &folder, name(whole))?)) {
            let _ = unlinkat(&folder, &beside, AtFlags::empty());
            return Err(error);
        }
        if count.is_multiple_of(ENTRIES_BETWEEN_PRUNES) { evict_excess(&folder) } else { Ok(()) }
    }

    /// Opens the folder, if it exists and only this user can use it.
    fn open(&self) -> Option<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(CWD, &self.folder, flags, Mode::empty()).ok()?;
        let found = fstat(&folder).ok()?;
        (found.st_uid == geteuid().as_raw() && found.st_mode & 0o077 == 0).then_some(folder)
    }
}

impl Lookup<'_> {
    /// Returns length and hash, if the cache has an entry.
    #[must_use]
    pub fn hash(&self) -> Option<ImageHash> {
        self.hash
    }

    /// Stores a newly computed hash, if the files have not changed. A failure to write is ignored: the cache only saves
    /// time.
    pub fn keep(&self, hash: ImageHash) {
        self.keep_at(hash, SystemTime::now());
    }

    fn keep_at(&self, hash: ImageHash, now: SystemTime) {
        let is_new = self.hash != Some(hash);
        if is_new && self.origin.is_settled(now) && MappedOrigin::of(&self.parts).as_ref() == Some(&self.origin) {
            let _ = self.cache.put(&whole(&self.origin, &self.about), &hash);
        }
    }
}

/// Returns everything that determines a hash, in a unique encoding.
fn whole(origin: &MappedOrigin, about: &[u8]) -> Vec<u8> {
    let length = (about.len() as u64).to_le_bytes();
    [CACHE_VERSION, &length, about, &origin.bytes()].concat()
}

fn name(whole: &[u8]) -> String {
    blake3::hash(whole).to_hex().to_string()
}

fn encode(cached: &ImageHash, whole: &[u8]) -> Vec<u8> {
    let fields = [&cached.length.to_le_bytes()[..], &cached.hash].concat();
    [&fields[..], check(&fields, whole).as_bytes()].concat()
}

fn decode(entry: &[u8; CACHE_ENTRY_BYTES], whole: &[u8]) -> Option<ImageHash> {
    let (fields, found) = entry.split_last_chunk::<32>()?;
    let (length, hash) = fields.split_first_chunk::<8>()?;
    let is_whole = check(fields, whole).as_bytes() == found;
    is_whole.then_some(ImageHash { length: u64::from_le_bytes(*length), hash: hash.try_into().ok()? })
}

fn check(fields: &[u8], whole: &[u8]) -> blake3::Hash {
    blake3::Hasher::new().update(whole).update(fields).finalize()
}

/// Removes the least recently used entries until there are few enough, and unfinished ones of killed processes.
fn evict_excess(folder: &OwnedFd) -> io::Result<()> {
    let mut cached = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_owned();
        // A file that is gone takes no space.
        let Ok(stat) = statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let used = Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or(0));
        let is_old = SystemTime::UNIX_EPOCH.elapsed().is_ok_and(|now| now.saturating_sub(used) > STALE_AGE);
        if name.to_bytes().starts_with(UNFINISHED_PREFIX.as_bytes()) && is_old {
            let _ = unlinkat(folder, &name, AtFlags::empty());
        } else if name.to_str().is_ok_and(|name| blake3::Hash::from_hex(name).is_ok()) {
            cached.push((used, stat.st_mtime_nsec, name));
        }
    }
    cached.sort_unstable();
    let excess = cached.len().saturating_sub(MAX_CACHE_ENTRIES);
    for (.., name) in &cached[..excess] {
        // Another process may have removed it first.
        let _ = unlinkat(folder, name, AtFlags::empty());
    }
    Ok(())
}

#[cfg(test)]
#[expect(unsafe_code, reason = "maps files, as the system's loader does")]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{FileExt, PermissionsExt, chown};
    use std::path::Path;
    use std::ptr::{null_mut, with_exposed_provenance_mut};

    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect, munmap};

    use super::*;

    const LENGTH: usize = 5 * 4096 + 100;
    const CACHED_HASH: ImageHash = ImageHash { length: 7, hash: [9; 32] };

    /// A private mapping of a file.
    struct MappedFile(*mut u8);

    impl MappedFile {
        fn new(path: &Path) -> Self {
            let file = File::open(path).unwrap();
            // SAFETY: a new mapping, at an address of the system's choice.
            let start =
                unsafe { mmap(null_mut(), LENGTH, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE, &file, 0) };
            Self(start.unwrap().cast())
        }

        /// Makes the pages unreadable, except the first one, so that there are two mappings.
        fn hide(&self) {
            // SAFETY: pages of the mapping, which no code has a reference to.
            unsafe { mprotect(self.0.add(4096).cast(), LENGTH - 4096, MprotectFlags::empty()) }.unwrap();
        }

        fn range(&self) -> Range<u64> {
            self.0.addr() as u64..(self.0.addr() + LENGTH) as u64
        }

        fn write(&self, at: usize) {
            // SAFETY: within the mapping, which is writable; no code has a reference to it.
            unsafe { self.0.add(at).write_volatile(1) };
        }

        fn read(&self, at: usize) {
            // SAFETY: within the mapping.
            unsafe { self.0.add(at).read_volatile() };
        }
    }

    impl Drop for MappedFile {
        fn drop(&mut self) {
            // SAFETY: this value's own mapping, unmapped once.
            unsafe { munmap(with_exposed_provenance_mut(self.0.expose_provenance()), LENGTH) }.unwrap();
        }
    }

    fn range(start: u64, end: u64) -> Range<u64> {
        start..end
    }

    /// A cache and a file.
    struct TestFolder {
        above: tempfile::TempDir,
        cache: HashCache,
        file: PathBuf,
    }

    impl TestFolder {
        fn new() -> Self {
            let above = tempfile::tempdir().unwrap();
            let (cache, file) = (HashCache::new(above.path().join("a/hashes")), above.path().join("file"));
            fs::write(&file, [3; LENGTH]).unwrap();
            Self { above, cache, file }
        }

        fn lookup(&self, shown: &MappedFile) -> Option<ImageHash> {
            self.cache.ask(vec![shown.range()], vec![1]).unwrap().hash()
        }

        /// Stores a hash, as one process does.
        fn find(&self, shown: &MappedFile) {
            let later = SystemTime::now() + Duration::from_secs(10);
            self.cache.ask(vec![shown.range()], vec![1]).unwrap().keep_at(CACHED_HASH, later);
        }

        fn entries(&self) -> Vec<PathBuf> {
            let folder = fs::read_dir(&self.cache.folder).unwrap();
            folder.map(|entry| entry.unwrap().path()).collect()
        }
    }

    #[test]
    fn cached_hash_is_found_without_reading_the_file() {
        let bench = TestFolder::new();
        let first = MappedFile::new(&bench.file);
        assert_eq!(bench.lookup(&first), None);
        first.read(3 * 4096);
        bench.find(&first);
        let second = MappedFile::new(&bench.file);
        second.hide();
        assert_eq!((bench.lookup(&first), bench.lookup(&second)), (Some(CACHED_HASH), Some(CACHED_HASH)));
    }

    #[test]
    fn cached_hash_is_valid_for_the_same_bytes_and_purpose() {
        let bench = TestFolder::new();
        let shown = MappedFile::new(&bench.file);
        bench.find(&shown);
        let Range { start, end } = shown.range();
        let cached = |parts: &[Range<u64>], about: u8| bench.cache.ask(parts.to_vec(), vec![about]).unwrap().hash();
        assert_eq!(cached(&[range(start, end)], 1), Some(CACHED_HASH));
        assert_eq!(cached(&[range(start, end)], 2), None);
        for parts in [&[range(start + 1, end)][..], &[range(start, end - 1)], &[start..start + 8, start + 8..end], &[]]
        {
            assert_eq!(cached(parts, 1), None);
        }
    }

    #[test]
    fn a_file_that_was_changed_is_another_one_whatever_its_times_say() {
        let bench = TestFolder::new();
        bench.find(&MappedFile::new(&bench.file));
        let before = fs::metadata(&bench.file).unwrap().modified().unwrap();
        let file = File::options().write(true).open(&bench.file).unwrap();
        // Timestamps of file systems are coarse, and this file was new.
        for _ in 0..1000 {
            std::thread::sleep(Duration::from_millis(2));
            file.write_all_at(&[4; LENGTH], 0).unwrap();
            file.set_modified(before).unwrap();
            if bench.lookup(&MappedFile::new(&bench.file)).is_none() {
                return;
            }
        }
        panic!("it is still known");
    }

    #[test]
    fn a_file_that_was_changed_lately_is_not_kept() {
        let bench = TestFolder::new();
        let shown = MappedFile::new(&bench.file);
        bench.cache.ask(vec![shown.range()], vec![1]).unwrap().keep(CACHED_HASH);
        assert_eq!(bench.lookup(&shown), None);
        bench.find(&shown);
        assert_eq!(bench.lookup(&shown), Some(CACHED_HASH));
    }

    #[test]
    fn hash_of_a_file_that_changes_meanwhile_is_not_cached() {
        let bench = TestFolder::new();
        let (shown, later) = (MappedFile::new(&bench.file), SystemTime::now() + Duration::from_secs(10));
        let lookup = bench.cache.ask(vec![shown.range()], vec![1]).unwrap();
        shown.write(LENGTH - 1);
        lookup.keep_at(CACHED_HASH, later);
        assert!(!bench.cache.folder.exists());
    }

    #[test]
    fn memory_without_an_unmodified_file_is_not_looked_up() {
        let bench = TestFolder::new();
        let shown = MappedFile::new(&bench.file);
        bench.find(&shown);
        let is_asked = |range: Range<u64>| bench.cache.ask(vec![range], vec![1]).is_some();
        let Range { start, end } = shown.range();
        let heap = vec![0_u8; LENGTH].leak().as_ptr_range();
        assert!(is_asked(start..end) && !is_asked(heap.start.addr() as u64..heap.end.addr() as u64));
        assert!(!is_asked(start..end + (1 << 40)) && !is_asked(0..8));
        // A page that the program has written to is its own.
        shown.write(2 * 4096);
        assert!(!is_asked(start..end) && is_asked(start..start + 4096) && is_asked(start + 3 * 4096..end));
        // If a file has lost its name, its changes cannot be seen.
        fs::rename(&bench.file, bench.above.path().join("elsewhere")).unwrap();
        fs::write(&bench.file, [3; LENGTH]).unwrap();
        let renamed = MappedFile::new(&bench.above.path().join("elsewhere"));
        assert_eq!(bench.lookup(&renamed), None);
        fs::remove_file(bench.above.path().join("elsewhere")).unwrap();
        let Range { start, end } = renamed.range();
        assert!(!is_asked(start..end));
    }

    #[test]
    fn damaged_cache_entries_are_ignored_and_rewritten() {
        let bench = TestFolder::new();
        let shown = MappedFile::new(&bench.file);
        bench.find(&shown);
        let entry = bench.entries().pop().unwrap();
        let sound = fs::read(&entry).unwrap();
        let mut damaged: Vec<Vec<u8>> =
            vec![vec![], sound[..CACHE_ENTRY_BYTES - 1].to_vec(), [&sound[..], &[0]].concat()];
        for at in 0..CACHE_ENTRY_BYTES {
            damaged.push(sound.clone());
            damaged[at + 3][at] ^= 4;
        }
        for damaged in damaged {
            fs::write(&entry, damaged).unwrap();
            assert_eq!(bench.lookup(&shown), None);
        }
        bench.find(&shown);
        assert_eq!((bench.lookup(&shown), bench.entries()), (Some(CACHED_HASH), vec![entry.clone()]));
        // Another file's entry under this name does not count.
        let other = MappedFile::new(&bench.file);
        bench.cache.ask(vec![other.range()], vec![2]).unwrap();
        let Range { start, end } = other.range();
        fs::rename(&entry, bench.cache.folder.join(name(&whole_of(start..end)))).unwrap();
        assert_eq!(bench.cache.ask(vec![range(start, end)], vec![2]).unwrap().hash(), None);
    }

    fn whole_of(range: Range<u64>) -> Vec<u8> {
        super::whole(&MappedOrigin::of(&[range]).unwrap(), &[2])
    }

    #[test]
    fn cache_folder_that_others_can_write_is_ignored() {
        let bench = TestFolder::new();
        let shown = MappedFile::new(&bench.file);
        bench.find(&shown);
        let folder = &bench.cache.folder;
        assert_eq!(fs::metadata(folder).unwrap().mode() & 0o777, 0o700);
        for mode in [0o701, 0o720, 0o755] {
            fs::set_permissions(folder, Permissions::from_mode(mode)).unwrap();
            assert_eq!(bench.lookup(&shown), None);
            bench.find(&shown);
            assert_eq!(bench.entries().len(), 1);
        }
        fs::set_permissions(folder, Permissions::from_mode(0o700)).unwrap();
        assert_eq!(bench.lookup(&shown), Some(CACHED_HASH));
        let entry = bench.entries().pop().unwrap();
        // Only a privileged process may give files away.
        if chown(&entry, Some(65_534), None).is_ok() {
            assert_eq!(bench.lookup(&shown), None);
            chown(folder, Some(65_534), None).unwrap();
            chown(&entry, Some(0), None).unwrap();
            assert_eq!(bench.lookup(&shown), None);
            chown(folder, Some(0), None).unwrap();
        }
        let elsewhere = bench.above.path().join("elsewhere");
        fs::rename(&entry, &elsewhere).unwrap();
        std::os::unix::fs::symlink(elsewhere, &entry).unwrap();
        assert_eq!(bench.lookup(&shown), None);
    }

    #[test]
    fn unusable_folder_disables_the_hash_cache() {
        let bench = TestFolder::new();
        let shown = MappedFile::new(&bench.file);
        let cache = HashCache::new(bench.file.join("below a file"));
        let later = SystemTime::now() + Duration::from_secs(10);
        cache.ask(vec![shown.range()], vec![1]).unwrap().keep_at(CACHED_HASH, later);
        assert_eq!(cache.ask(vec![shown.range()], vec![1]).unwrap().hash(), None);
    }

    #[test]
    fn concurrent_writers_leave_whole_entries() {
        let bench = TestFolder::new();
        let shown = MappedFile::new(&bench.file);
        let (range, later) = (shown.range(), SystemTime::now() + Duration::from_secs(10));
        std::thread::scope(|scope| {
            for thread in 0..8_u8 {
                let (range, folder) = (range.clone(), bench.cache.folder.clone());
                scope.spawn(move || {
                    let cache = HashCache { folder, added: AtomicU64::new(1000 * u64::from(thread) + 1) };
                    for about in 0..20 {
                        cache.ask(vec![range.clone()], vec![about]).unwrap().keep_at(CACHED_HASH, later);
                    }
                });
            }
        });
        let is_known =
            |about: u8| bench.cache.ask(vec![range.clone()], vec![about]).unwrap().hash() == Some(CACHED_HASH);
        assert!((0..20).all(is_known));
        assert_eq!(bench.entries().len(), 20);
    }

    #[test]
    fn least_recently_used_entries_and_stale_files_are_evicted() {
        let bench = TestFolder::new();
        let shown = MappedFile::new(&bench.file);
        DirBuilder::new().recursive(true).mode(0o700).create(&bench.cache.folder).unwrap();
        let aged = |name: &str, seconds: u64| {
            let path = bench.cache.folder.join(name);
            fs::write(&path, "").unwrap();
            let time = SystemTime::now() - Duration::from_secs(seconds);
            File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
            path
        };
        for entry in 0..MAX_CACHE_ENTRIES as u64 - 1 {
            aged(&name(&entry.to_le_bytes()), 10_000 + entry);
        }
        let (oldest, left, goes_on) = (aged(&name(b"oldest"), 1 << 20), aged("new-1-2", 4000), aged("new-3-4", 100));
        bench.find(&shown);
        assert_eq!(bench.lookup(&shown), Some(CACHED_HASH));
        assert!(!oldest.exists() && !left.exists() && goes_on.exists());
        assert_eq!(bench.entries().len(), MAX_CACHE_ENTRIES + 1);
    }

    #[test]
    fn an_entry_that_is_used_stays() {
        let bench = TestFolder::new();
        let shown = MappedFile::new(&bench.file);
        bench.find(&shown);
        let entry = File::options().write(true).open(bench.entries().pop().unwrap()).unwrap();
        entry.set_modified(SystemTime::now() - 2 * MARK_INTERVAL).unwrap();
        assert_eq!(bench.lookup(&shown), Some(CACHED_HASH));
        assert!(entry.metadata().unwrap().modified().unwrap().elapsed().unwrap() < MARK_INTERVAL);
    }
}
