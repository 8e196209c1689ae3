//! Outputs of compilations in files, one each, controlled by the environment variables that NVIDIA documents.
//!
//! `CUDA_CACHE_DISABLE=1` turns the cache off. `CUDA_CACHE_PATH` is its folder, `~/.nv/ComputeCache` by default. The files
//! have their own folder below it, since the format of NVIDIA's driver is not known. `CUDA_CACHE_MAXSIZE` is the most bytes
//! of all files together, 1 GiB by default and 4 GiB at most; the oldest files go first.
//!
//! A file that is missing, damaged, or another user's is a miss. The caller does not see a failure to write.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// The folder below `CUDA_CACHE_PATH`.
const CACHE_FOLDER: &str = "katydid-nvrtc";
/// First bytes of every file.
const CACHE_FILE_MAGIC: [u8; 8] = *b"kdnvrtc1";
/// Bytes before the output: the magic, the key, the hash of the output.
const CACHE_HEADER_BYTES: usize = 8 + 32 + 32;
/// Most bytes of a file.
const MAX_CACHE_FILE_BYTES: u64 = 256 << 20;
/// Most bytes of all files: the default, and the upper limit for the environment.
const DEFAULT_CACHE_BYTES: u64 = 1 << 30;
const MAX_CACHE_BYTES: u64 = 4 << 30;

/// A hash of everything that determines the output of one compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key([u8; 32]);

impl Key {
    /// Makes the key of these numbers and byte strings, in this order.
    pub(crate) fn of(numbers: [u32; 3], parts: [&[u8]; 4]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for number in numbers {
            hasher.update(&number.to_le_bytes());
        }
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self(hasher.finalize().into())
    }

    fn file_name(&self) -> String {
        blake3::Hash::from(self.0).to_hex().to_string()
    }
}

/// Outputs of compilations in a folder.
#[derive(Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
    max_bytes: u64,
}

impl Cache {
    /// Opens the cache of this process's environment; `None` if that turns it off, or names no folder.
    pub(crate) fn of_environment() -> Option<Self> {
        Self::named(|name| env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn named(value_of: impl Fn(&str) -> Option<OsString>) -> Option<Self> {
        let is_off = value_of("CUDA_CACHE_DISABLE").is_some_and(|value| value != "0");
        if is_off {
            return None;
        }
        let standard = || Some(PathBuf::from(value_of("HOME")?).join(".nv/ComputeCache"));
        let folder = value_of("CUDA_CACHE_PATH").map(PathBuf::from).or_else(standard)?.join(CACHE_FOLDER);
        let limit = value_of("CUDA_CACHE_MAXSIZE").and_then(|value| value.to_str()?.trim().parse().ok());
        Some(Self { folder, max_bytes: limit.unwrap_or(DEFAULT_CACHE_BYTES).min(MAX_CACHE_BYTES) })
    }

    /// Returns the output stored under `key`.
    pub(crate) fn read(&self, key: &Key) -> Option<Box<[u8]>> {
        let path = self.folder.join(key.file_name());
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path).ok()?;
        let facts = file.metadata().ok()?;
        if !facts.is_file() || facts.uid() != rustix::process::geteuid().as_raw() || facts.len() > MAX_CACHE_FILE_BYTES
        {
            return None;
        }
        let mut bytes = Vec::new();
        (&file).take(MAX_CACHE_FILE_BYTES).read_to_end(&mut bytes).ok()?;
        let output = bytes.get(CACHE_HEADER_BYTES..)?;
        if bytes[..CACHE_HEADER_BYTES] != header(key, output) {
            return None;
        }
        // A used file counts as new. A read-only file is used all the same.
        let _ = file.set_modified(SystemTime::now());
        Some(Box::from(output))
    }

    /// Stores an output, if it fits.
    pub(crate) fn write(&self, key: &Key, output: &[u8]) {
        // The program has its output whether or not it is stored.
        let _ = self.try_write(key, output);
    }

    fn try_write(&self, key: &Key, output: &[u8]) -> io::Result<()> {
        let size = (CACHE_HEADER_BYTES + output.len()) as u64;
        if size > self.max_bytes.min(MAX_CACHE_FILE_BYTES) {
            return Ok(());
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        self.evict(size)?;
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let temporary = self.folder.join(format!("{}.{}.{count}", key.file_name(), process::id()));
        let written = write_new(&temporary, key, output);
        let stored = written.and_then(|()| fs::rename(&temporary, self.folder.join(key.file_name())));
        if stored.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        stored
    }

    /// Removes the oldest files until `size` more bytes fit.
    fn evict(&self, size: u64) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let facts = entry.metadata()?;
            files.push((facts.modified()?, facts.len(), entry.path()));
        }
        files.sort();
        let mut total: u64 = files.iter().map(|(_, length, _)| length).sum();
        for (_, length, path) in files {
            if total.saturating_add(size) <= self.max_bytes {
                break;
            }
            fs::remove_file(path)?;
            total -= length;
        }
        Ok(())
    }
}

fn header(key: &Key, output: &[u8]) -> [u8; CACHE_HEADER_BYTES] {
    let mut header = [0; CACHE_HEADER_BYTES];
    header[..8].copy_from_slice(&CACHE_FILE_MAGIC);
    header[8..40].copy_from_slice(&key.0);
    header[40..].copy_from_slice(blake3::hash(output).as_bytes());
    header
}

fn write_new(path: &Path, key: &Key, output: &[u8]) -> io::Result<()> {
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(&header(key, output))?;
    file.write_all(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(max_bytes: u64) -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache { folder: folder.path().join("below"), max_bytes };
        (folder, cache)
    }

    fn key(number: u32) -> Key {
        Key::of([number, 90, 0], [b"code", b"options", b"HOST64", b"build"])
    }

    #[test]
    fn every_part_of_a_key_counts_and_so_does_where_it_ends() {
        let of = |parts| Key::of([1, 90, 0], parts);
        let plain = of([b"ab", b"c", b"", b""]);
        assert_eq!(plain, of([b"ab", b"c", b"", b""]));
        assert_ne!(plain, of([b"a", b"bc", b"", b""]));
        assert_ne!(key(1), key(2));
    }

    #[test]
    fn an_output_comes_back_and_a_damaged_one_does_not() {
        let (_folder, cache) = cache(DEFAULT_CACHE_BYTES);
        assert_eq!(cache.read(&key(1)), None);
        cache.write(&key(1), b"machine code");
        assert_eq!(cache.read(&key(1)).as_deref(), Some(&b"machine code"[..]));
        assert_eq!(cache.read(&key(2)), None);
        let path = cache.folder.join(key(1).file_name());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let whole = fs::read(&path).unwrap();
        for at in [0, 9, 41, whole.len() - 1] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, damaged).unwrap();
            assert_eq!(cache.read(&key(1)), None, "byte {at}");
        }
        fs::write(&path, &whole[..20]).unwrap();
        assert_eq!(cache.read(&key(1)), None);
    }

    #[test]
    fn the_oldest_files_make_room() {
        let (_folder, cache) = cache(3 * (CACHE_HEADER_BYTES as u64 + 10));
        for number in 0..3_u32 {
            cache.write(&key(number), &[7; 10]);
            let file = File::options().append(true).open(cache.folder.join(key(number).file_name())).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(u64::from(number))).unwrap();
        }
        // The oldest is used, so that the next one is evicted.
        assert!(cache.read(&key(0)).is_some());
        cache.write(&key(3), &[7; 10]);
        assert_eq!([0, 1, 2, 3].map(|number| cache.read(&key(number)).is_some()), [true, false, true, true]);
        cache.write(&key(4), &[7; 1000]);
        assert_eq!(cache.read(&key(4)), None);
        assert_eq!(fs::read_dir(&cache.folder).unwrap().count(), 3);
    }

    #[test]
    fn the_environment_names_folder_and_size_or_turns_it_off() {
        let named = |set: &[(&str, &str)]| {
            let set: Vec<_> = set.iter().map(|(name, value)| (name.to_string(), OsString::from(value))).collect();
            let value_of =
                move |variable: &str| set.iter().find(|(name, _)| name == variable).map(|(_, value)| value.clone());
            Cache::named(value_of).map(|cache| (cache.folder, cache.max_bytes))
        };
        let of = |folder: &str, bytes| Some((PathBuf::from(folder).join(CACHE_FOLDER), bytes));
        assert_eq!(named(&[("HOME", "/h")]), of("/h/.nv/ComputeCache", DEFAULT_CACHE_BYTES));
        let both = [("HOME", "/h"), ("CUDA_CACHE_PATH", "/c"), ("CUDA_CACHE_MAXSIZE", "4096")];
        assert_eq!(named(&both), of("/c", 4096));
        assert_eq!(
            named(&[("CUDA_CACHE_PATH", "/c"), ("CUDA_CACHE_MAXSIZE", "99999999999")]),
            of("/c", MAX_CACHE_BYTES)
        );
        assert_eq!(named(&[("CUDA_CACHE_PATH", "/c"), ("CUDA_CACHE_DISABLE", "0")]), of("/c", DEFAULT_CACHE_BYTES));
        assert_eq!(named(&[("CUDA_CACHE_PATH", "/c"), ("CUDA_CACHE_DISABLE", "1")]), None);
        assert_eq!(named(&[]), None);
    }
}
