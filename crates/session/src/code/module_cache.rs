//! Images that programs have sent to servers, so that a later program need not send them again.
//!
//! The cache is a folder. An image is a file in it, named by the hash of its flat form; the system's page cache makes it
//! fast. All workers of a user's servers share the cache at the same time, without waiting for each other. A worker writes
//! an image under another name and renames it when it is complete. It holds a lock on the file meanwhile, so that others do
//! not take the file for one that a killed worker left.
//!
//! A worker hashes what it finds under a hash again. So a program that names an image gets what it would have sent, whatever
//! happened to the file. Beyond its limit, the cache removes the images that were least recently asked for.

use std::collections::hash_map::RandomState;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, DirEntry, File, OpenOptions, Permissions};
use std::hash::BuildHasher;
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Prefix of the names of images that are being written.
const UNFINISHED_PREFIX: &str = "new-";
/// No image is stored that is larger than the limit divided by this, so that no program can fill the cache with one.
const MAX_MODULE_DIVISOR: u64 = 4;
/// Most images: all of them are checked before one is added.
const MAX_CACHED_MODULES: usize = 4096;

/// The name of an image: the BLAKE3 of its flat form.
pub(crate) type Hash = [u8; 32];

/// A worker's access to the cache.
#[derive(Debug, Clone)]
pub struct ModuleCache {
    folder: PathBuf,
    /// Most bytes that the images may take on disk.
    limit: u64,
    /// Permissions of files: if each worker has its own user, their group uses the folder.
    mode: u32,
    /// Reports why nothing more is stored.
    report: fn(fmt::Arguments<'_>),
}

/// An image in the folder: time of last use, bytes, path.
type CachedModule = (SystemTime, u64, PathBuf);

impl ModuleCache {
    /// Opens the cache in an existing folder that only this user, or its workers' group, can write to; `limit` is in bytes.
    #[must_use]
    pub fn new(folder: PathBuf, limit: u64) -> Self {
        let is_shared = fs::metadata(&folder).is_ok_and(|found| found.permissions().mode() & 0o020 != 0);
        Self { folder, limit, mode: if is_shared { 0o660 } else { 0o600 }, report: |_| {} }
    }

    /// Returns the cache with a function that reports, once a session, why nothing more is stored.
    #[must_use]
    pub fn reporting_to(self, report: fn(fmt::Arguments<'_>)) -> Self {
        Self { report, ..self }
    }

    /// Reports that the cache is no longer used.
    pub(crate) fn fails(&self, error: &io::Error) {
        (self.report)(format_args!(
            "the module cache cannot be written to, so programs send their code each time: {}: {error}; free some space there, or name \
             another folder with --module-cache",
            self.folder.display()
        ));
    }

    /// Returns the image of this name, if it is there with this length. A damaged one is removed.
    pub(crate) fn get(&self, hash: &Hash, length: u64) -> Option<Vec<u8>> {
        let path = self.path_of(hash);
        let file = match open(&path) {
            Ok(file) => file,
            Err(error) => {
                // A link, a socket, or a file that only another worker may open; not a process without free descriptors.
                if matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENXIO | libc::EACCES)) {
                    clear(&path);
                }
                return None;
            }
        };
        let metadata = file.metadata().ok()?;
        if !metadata.is_file() {
            clear(&path);
            return None;
        }
        if metadata.len() != length {
            return None;
        }
        let mut image = Vec::new();
        image.try_reserve_exact(usize::try_from(length).ok()?).ok()?;
        (&file).take(length).read_to_end(&mut image).ok()?;
        if blake3::hash(&image).as_bytes() != hash {
            // It will be sent, and then stored again.
            let _ = fs::remove_file(&path);
            return None;
        }
        // If the time cannot be set, the image is evicted sooner, and nothing else. Both times, since files of other workers
        // allow only that.
        let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let _ = rustix::fs::futimens(&file, &rustix::fs::Timestamps { last_access: now, last_modification: now });
        Some(image)
    }

    /// Stores an image, unless it is there or too large.
    ///
    /// # Errors
    ///
    /// The error of the system.
    pub(crate) fn put(&self, image: &[u8]) -> io::Result<()> {
        let length = image.len() as u64;
        let path = self.path_of(blake3::hash(image).as_bytes());
        let there = fs::symlink_metadata(&path);
        let is_there = there.as_ref().is_ok_and(|found| found.is_file() && found.len() == length);
        if there.is_ok_and(|found| !found.is_file()) {
            clear(&path);
        }
        if is_there || length > self.limit / MAX_MODULE_DIVISOR {
            return Ok(());
        }
        // The file is removed unless it is renamed. A thread that gets its lock first takes it for an abandoned one.
        let mut beside = tempfile::Builder::new();
        beside.prefix(UNFINISHED_PREFIX).permissions(Permissions::from_mode(self.mode));
        let mut beside = beside.tempfile_in(&self.folder)?;
        beside.as_file().try_lock()?;
        // So others count its full size from now on.
        beside.as_file().set_len(length)?;
        self.evict_beyond_limit()?;
        beside.write_all(image)?;
        beside.persist(&path)?;
        Ok(())
    }

    /// Removes images until all images, stored or being written, are within the limits.
    fn evict_beyond_limit(&self) -> io::Result<()> {
        let (mut count, mut bytes) = (0, 0);
        let mut images: Vec<CachedModule> = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            // A file that is gone takes no space.
            let Ok(metadata) = entry.metadata() else { continue };
            let is_image = is_name_of_image(&entry);
            if !metadata.is_file() || !(is_image || is_being_written(&entry)) {
                continue;
            }
            (count, bytes) = (count + 1, bytes + metadata.len());
            if is_image {
                images.push((metadata.modified()?, metadata.len(), entry.path()));
            }
        }
        images.sort_unstable();
        for (_, length, path) in images {
            if count <= MAX_CACHED_MODULES && bytes <= self.limit {
                break;
            }
            // Another worker may have removed it first.
            let _ = fs::remove_file(path);
            (count, bytes) = (count - 1, bytes - length);
        }
        Ok(())
    }

    /// Returns whether a file or folder of this name belongs to the cache.
    #[must_use]
    pub fn owns(name: &OsStr) -> bool {
        // An obstacle to an image is set aside under its name with a suffix.
        let image = Path::new(name).file_stem().and_then(OsStr::to_str);
        name.as_encoded_bytes().starts_with(UNFINISHED_PREFIX.as_bytes())
            || image.is_some_and(|name| blake3::Hash::from_hex(name).is_ok())
    }

    fn path_of(&self, hash: &Hash) -> PathBuf {
        self.folder.join(blake3::Hash::from_bytes(*hash).to_hex().as_str())
    }
}

/// Removes an obstacle that has an image's name: a folder, a link, a device, a file that this worker may not read. Native
/// code of another tenant may have put it there. A folder that cannot be removed is set aside. Its contents are not read,
/// since they may have no end.
fn clear(path: &Path) {
    let is_folder = fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    let _ = match is_folder {
        true => fs::remove_dir(path).or_else(|_| fs::rename(path, path.with_extension(format!("{:x}", random())))),
        false => fs::remove_file(path),
    };
}

/// Returns a random number for a unique name.
fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// Opens a file without following a link, and without blocking.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

fn is_name_of_image(entry: &DirEntry) -> bool {
    entry.file_name().to_str().is_some_and(|name| blake3::Hash::from_hex(name).is_ok())
}

/// Returns whether another thread is writing this image, and removes an abandoned one. Other files are not the cache's.
fn is_being_written(entry: &DirEntry) -> bool {
    if !entry.file_name().as_encoded_bytes().starts_with(UNFINISHED_PREFIX.as_bytes()) {
        return false;
    }
    let is_left = open(&entry.path()).is_ok_and(|file| file.try_lock().is_ok());
    if is_left {
        let _ = fs::remove_file(entry.path());
    }
    !is_left
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn cache(limit: u64) -> (tempfile::TempDir, ModuleCache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = ModuleCache::new(folder.path().to_owned(), limit);
        (folder, cache)
    }

    fn name(image: &[u8]) -> Hash {
        *blake3::hash(image).as_bytes()
    }

    fn has(cache: &ModuleCache, image: &[u8]) -> bool {
        cache.get(&name(image), image.len() as u64).is_some_and(|found| found == image)
    }

    fn files(folder: &tempfile::TempDir) -> usize {
        fs::read_dir(folder.path()).unwrap().count()
    }

    /// Sets the time of last use to `seconds` ago.
    fn age(cache: &ModuleCache, image: &[u8], seconds: u64) {
        let file = open(&cache.path_of(&name(image))).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    }

    #[test]
    fn images_stored_by_one_worker_are_found_by_another() {
        let (_folder, first) = cache(1000);
        let second = first.clone();
        assert!(!has(&second, b"one"));
        first.put(b"one").unwrap();
        second.put(b"the other").unwrap();
        for cache in [&first, &second] {
            assert!(has(cache, b"one") && has(cache, b"the other"));
            assert_eq!(cache.get(&name(b"one"), 4), None);
        }
    }

    #[test]
    fn cache_recognizes_its_own_files() {
        let (folder, cache) = cache(1000);
        cache.put(b"one").unwrap();
        fs::create_dir_all(cache.path_of(&name(b"two")).join("below")).unwrap();
        cache.put(b"two").unwrap();
        fs::write(folder.path().join("new-left"), "").unwrap();
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(names.len() == 4 && names.iter().all(|name| ModuleCache::owns(name)), "{names:?}");
        assert!(["passwd", "self", "1", "abcd", ".new-x"].iter().all(|name| !ModuleCache::owns(name.as_ref())));
    }

    #[test]
    fn an_image_is_stored_once_by_workers_that_come_at_the_same_time() {
        let (folder, cache) = cache(1 << 20);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                // A worker gives up if another takes its unlocked file for an abandoned one. A worker that evicts has locked
                // its own file.
                scope.spawn(|| drop(cache.put(&[7; 1000])));
            }
        });
        assert!(has(&cache, &[7; 1000]));
        assert_eq!(files(&folder), 1);
    }

    #[test]
    fn least_recently_used_image_is_evicted_first() {
        let (folder, cache) = cache(40);
        let images = [[1_u8; 10], [2; 10], [3; 10], [4; 10]];
        for (image, seconds) in images.iter().zip([40, 30, 20, 10]) {
            cache.put(image).unwrap();
            age(&cache, image, seconds);
        }
        assert!(has(&cache, &images[0]));
        cache.put(&[5; 9]).unwrap();
        let left = images.map(|image| has(&cache, &image));
        assert_eq!((left, has(&cache, &[5; 9]), files(&folder)), ([true, false, true, true], true, 4));
        // An image that would evict most of the others is not stored.
        cache.put(&[6; 11]).unwrap();
        assert_eq!((has(&cache, &[6; 11]), files(&folder)), (false, 4));
    }

    #[test]
    fn there_are_not_more_images_than_can_be_looked_at() {
        let (folder, cache) = cache(1 << 20);
        for image in 0..MAX_CACHED_MODULES as u64 {
            fs::write(cache.path_of(&name(&image.to_le_bytes())), image.to_le_bytes()).unwrap();
        }
        cache.put(b"one more").unwrap();
        assert!(has(&cache, b"one more"));
        assert_eq!(files(&folder), MAX_CACHED_MODULES);
    }

    #[test]
    fn partial_files_of_killed_workers_go_and_files_being_written_count() {
        let (folder, cache) = cache(40);
        fs::write(folder.path().join("new-left"), [0; 40]).unwrap();
        let being_written = folder.path().join("new-going-on");
        fs::write(&being_written, [0; 30]).unwrap();
        let writer = open(&being_written).unwrap();
        writer.lock().unwrap();
        fs::write(folder.path().join("else"), [0; 100]).unwrap();
        cache.put(&[1; 10]).unwrap();
        age(&cache, &[1; 10], 10);
        assert!(has(&cache, &[1; 10]));
        age(&cache, &[1; 10], 10);
        cache.put(&[2; 10]).unwrap();
        assert!(!has(&cache, &[1; 10]) && has(&cache, &[2; 10]));
        // Three files are left: that image, the one being written, and one that is not the cache's.
        assert!(files(&folder) == 3 && being_written.exists());
    }

    #[test]
    fn damaged_image_is_not_found_and_is_stored_again() {
        let (_folder, cache) = cache(1000);
        let image = b"whole";
        let path = cache.path_of(&name(image));
        for damage in [&b"hole!"[..], b"", b"whole and more"] {
            cache.put(image).unwrap();
            assert!(has(&cache, image));
            fs::write(&path, damage).unwrap();
            assert_eq!(cache.get(&name(image), 5), None);
        }
        cache.put(image).unwrap();
        assert!(has(&cache, image));
        // Nor is a link under its name.
        fs::rename(&path, path.with_file_name("elsewhere")).unwrap();
        std::os::unix::fs::symlink(path.with_file_name("elsewhere"), &path).unwrap();
        assert_eq!(cache.get(&name(image), 5), None);
    }

    #[test]
    fn obstacles_at_the_path_of_an_image_are_removed() {
        let (folder, cache) = cache(1000);
        let (image, path) = (b"image", cache.path_of(&name(b"image")));
        let ways: [&dyn Fn(); 6] = [
            &|| fs::create_dir(&path).unwrap(),
            &|| fs::create_dir_all(path.join("deep/er")).unwrap(),
            &|| std::os::unix::fs::symlink("/etc/passwd", &path).unwrap(),
            &|| drop(std::os::unix::net::UnixListener::bind(&path).unwrap()),
            &|| fs::write(&path, b"other").unwrap(),
            &|| fs::write(&path, b"another").unwrap(),
        ];
        for (at, put_there) in ways.iter().enumerate() {
            put_there();
            assert_eq!(cache.get(&name(image), 5), None, "{at}");
            cache.put(image).unwrap();
            assert!(has(&cache, image), "{at}");
            fs::remove_file(&path).unwrap();
            put_there();
            // As a program does whose image no other asks for.
            let _ = cache.put(image);
            let _ = cache.get(&name(image), 5);
            cache.put(image).unwrap();
            assert!(has(&cache, image), "{at}");
            fs::remove_file(&path).unwrap();
        }
        // The non-empty folders, set aside.
        assert_eq!(files(&folder), 2);
    }

    #[test]
    fn failed_store_leaves_nothing() {
        let (folder, cache) = cache(1000);
        drop(folder);
        assert!(cache.put(b"image").is_err() && cache.get(&name(b"image"), 5).is_none());
    }
}
