//! Images that programs have sent to this server, so that a later program need not send them again.
//!
//! The store is one file without a name: the server makes it, its workers open it by the server's descriptor, and it is
//! gone with the server. The rule kept here: what is found under a hash is hashed again, so that whoever names one gets
//! what it would have sent, whatever other workers wrote. What is stored stays, up to a limit; from then on images are
//! sent.
//!
//! The file begins with the count of its bytes that are whole records; a worker that is killed while it writes has not
//! moved that, and what it wrote is written over.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes of the count.
const COUNT: u64 = 8;
/// Bytes before an image: its hash, and its length.
const HEAD: u64 = 40;
/// Most bytes of the file.
const LIMIT: u64 = 2 << 30;

/// The name of an image: the BLAKE3 of its flat form.
pub(crate) type Hash = [u8; 32];

/// Where an image lies in the file.
#[derive(Debug, Clone, Copy)]
struct Stored {
    at: u64,
    length: u64,
}

/// A worker's sight of the store.
#[derive(Debug)]
pub struct ImageStore {
    file: File,
    known: HashMap<Hash, Stored>,
    /// Bytes of the file that `known` tells of.
    seen: u64,
}

impl ImageStore {
    /// Opens the server's file.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Self { file, known: HashMap::new(), seen: COUNT })
    }

    /// The image of this name, if it is there with this length.
    pub(crate) fn get(&mut self, hash: &Hash, length: u64) -> Option<Vec<u8>> {
        self.look().ok()?;
        let stored = self.known.get(hash).filter(|stored| stored.length == length)?;
        let mut image = vec![0; usize::try_from(stored.length).ok()?];
        self.file.read_exact_at(&mut image, stored.at).ok()?;
        (blake3::hash(&image).as_bytes() == hash).then_some(image)
    }

    /// Stores an image, unless it is there or there is no room.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub(crate) fn put(&mut self, image: &[u8]) -> io::Result<()> {
        let hash = *blake3::hash(image).as_bytes();
        self.file.lock()?;
        let done = self.append(&hash, image);
        self.file.unlock()?;
        done
    }

    /// With the file locked: every worker has opened it for itself, so they keep each other out.
    fn append(&mut self, hash: &Hash, image: &[u8]) -> io::Result<()> {
        self.look()?;
        let (at, length) = (self.seen, image.len() as u64);
        let end = at + HEAD + length;
        if self.known.contains_key(hash) || end > LIMIT {
            return Ok(());
        }
        self.file.write_all_at(hash, at)?;
        self.file.write_all_at(&length.to_le_bytes(), at + HEAD - COUNT)?;
        self.file.write_all_at(image, at + HEAD)?;
        self.file.write_all_at(&end.to_le_bytes(), 0)
    }

    /// Learns what other workers have stored since the last look.
    fn look(&mut self) -> io::Result<()> {
        let mut count = [0; COUNT as usize];
        match self.file.read_exact_at(&mut count, 0) {
            // Nobody has stored anything yet.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let whole = u64::from_le_bytes(count);
        while self.seen + HEAD <= whole {
            let (mut hash, mut length) = ([0; 32], [0; COUNT as usize]);
            self.file.read_exact_at(&mut hash, self.seen)?;
            self.file.read_exact_at(&mut length, self.seen + HEAD - COUNT)?;
            let stored = Stored { at: self.seen + HEAD, length: u64::from_le_bytes(length) };
            let next = stored.at.saturating_add(stored.length);
            if next > whole {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.known.insert(hash, stored);
            self.seen = next;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::NamedTempFile, ImageStore) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let store = ImageStore::open(file.path()).unwrap();
        (file, store)
    }

    fn name(image: &[u8]) -> Hash {
        *blake3::hash(image).as_bytes()
    }

    #[test]
    fn what_one_worker_stores_another_finds() {
        let (file, mut first) = store();
        let mut second = ImageStore::open(file.path()).unwrap();
        assert_eq!(second.get(&name(b"one"), 3), None);
        first.put(b"one").unwrap();
        second.put(b"the other").unwrap();
        for store in [&mut first, &mut second] {
            assert_eq!(store.get(&name(b"one"), 3).as_deref(), Some(&b"one"[..]));
            assert_eq!(store.get(&name(b"the other"), 9).as_deref(), Some(&b"the other"[..]));
            assert_eq!(store.get(&name(b"one"), 4), None);
        }
    }

    #[test]
    fn an_image_is_stored_once_by_workers_that_come_at_the_same_time() {
        let (file, mut store) = store();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| ImageStore::open(file.path()).unwrap().put(&[7; 1000]).unwrap());
            }
        });
        assert_eq!(store.get(&name(&[7; 1000]), 1000), Some(vec![7; 1000]));
        assert_eq!(file.as_file().metadata().unwrap().len(), COUNT + HEAD + 1000);
    }

    #[test]
    fn what_a_killed_worker_left_is_written_over() {
        let (file, mut store) = store();
        store.put(b"whole").unwrap();
        let end = file.as_file().metadata().unwrap().len();
        file.as_file().write_all_at(&[9; 100], end).unwrap();
        store.put(b"next").unwrap();
        let mut other = ImageStore::open(file.path()).unwrap();
        assert_eq!(other.get(&name(b"next"), 4).as_deref(), Some(&b"next"[..]));
        assert_eq!(other.known.len(), 2);
    }

    #[test]
    fn what_was_changed_is_not_found() {
        let (file, mut store) = store();
        store.put(b"whole").unwrap();
        file.as_file().write_all_at(b"hole", COUNT + HEAD).unwrap();
        assert_eq!(store.get(&name(b"whole"), 5), None);
        // Nor is what is said to be longer than the file.
        file.as_file().write_all_at(&u64::MAX.to_le_bytes(), HEAD).unwrap();
        let mut other = ImageStore::open(file.path()).unwrap();
        assert_eq!(other.get(&name(b"whole"), u64::MAX), None);
    }

    #[test]
    fn there_is_no_room_beyond_the_limit() {
        let (file, mut store) = store();
        file.as_file().write_all_at(&LIMIT.to_le_bytes(), 0).unwrap();
        // One record that fills it, whose image nobody reads.
        file.as_file().write_all_at(&(LIMIT - COUNT - HEAD).to_le_bytes(), HEAD).unwrap();
        store.put(b"more").unwrap();
        assert_eq!(store.get(&name(b"more"), 4), None);
    }
}
