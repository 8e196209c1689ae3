//! The files in the folder of a checkpoint, besides its manifest.

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{ImageError, Result};
use crate::id::{CheckpointNumber, ChunkId};
use crate::image::{folder_of, read_whole};
use crate::index::located;
use crate::manifest::{FileEntry, Session, seal, unseal};
use crate::store::{Input, Store};

/// Most bytes of a state that a reader accepts.
pub const MAX_SESSION_STATE_BYTES: u64 = 4 << 30;
/// Most bytes of the description of one session.
const MAX_SESSION_BYTES: u64 = 512 << 20;
/// Files are hashed in pieces of this many bytes.
const HASH_PIECE_BYTES: usize = 1 << 20;

/// The folder of a checkpoint that is being written.
#[derive(Debug)]
pub(crate) struct Files {
    store: Arc<dyn Store>,
    folder: String,
    written: Mutex<Vec<FileEntry>>,
}

impl Files {
    /// Returns the existing folder of checkpoint `number`.
    pub(crate) fn new(store: Arc<dyn Store>, number: CheckpointNumber) -> Self {
        Self { store, folder: folder_of(number), written: Mutex::default() }
    }

    /// Writes a state under a name of letters, digits, `.`, `_` and `-`.
    pub(crate) fn state(&self, name: &str, bytes: &[u8]) -> Result<FileEntry> {
        self.check_name(name)?;
        let entry = self.write(format!("state-{name}.bin"), bytes)?;
        self.written.lock().unwrap_or_else(PoisonError::into_inner).push(entry.clone());
        Ok(entry)
    }

    /// Leaves a session's description for the process that commits.
    pub(crate) fn session(&self, session: &Session) -> Result<()> {
        self.check_name(&session.name)?;
        let location = self.store.location(&self.folder);
        let sealed = seal(session).map_err(|error| ImageError::unfit(&location, error.to_string()))?;
        self.write(session_file(&session.name), &sealed).map(drop)
    }

    /// Reads a description that [`Files::session`] has left, in this process or another.
    pub(crate) fn take_session(&self, name: &str) -> Result<Session> {
        self.check_name(name)?;
        let path = format!("{}/{}", self.folder, session_file(name));
        let location = self.store.location(&path);
        let input = self.store.open(&path)?;
        let input = input.ok_or_else(|| ImageError::unfit(&location, "this session has not been written"))?;
        let bytes = read_whole(&*input, &location, MAX_SESSION_BYTES)?;
        unseal(&bytes).map_err(|fault| located(&location, fault))
    }

    /// Writes a whole file. Its hash covers the intended bytes, not what the disk returns.
    fn write(&self, name: String, bytes: &[u8]) -> Result<FileEntry> {
        let mut output = self.store.create(&format!("{}/{name}", self.folder))?;
        output.write(&[bytes])?;
        output.finish()?;
        Ok(FileEntry { name, bytes: bytes.len() as u64, blake3: ChunkId::of(bytes) })
    }

    /// Checks a name: names become file names, and come from other processes.
    fn check_name(&self, name: &str) -> Result<()> {
        let fine = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(fine) {
            let what = format!("{name:?} is not a name for a part of it: use letters, digits and .-_, 64 at most");
            return Err(ImageError::unfit(&self.store.location(&self.folder), what));
        }
        Ok(())
    }

    /// Adds files that another program has written to a subfolder.
    pub(crate) fn adopt(&self, folder: &str) -> Result<()> {
        self.check_name(folder)?;
        let path = format!("{}/{folder}", self.folder);
        let mut names = self.store.commit_folder(&path)?;
        names.sort_unstable();
        for name in names {
            let (bytes, blake3) = hash_of_path(&self.store.path(&path).join(&name))?;
            let entry = FileEntry { name: format!("{folder}/{name}"), bytes, blake3 };
            self.written.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
        }
        Ok(())
    }

    /// Returns all written files by name, with those that the sessions list, and syncs the folder.
    pub(crate) fn finish(&self, sessions: &[Session]) -> Result<Vec<FileEntry>> {
        let mut written = std::mem::take(&mut *self.written.lock().unwrap_or_else(PoisonError::into_inner));
        let states = sessions.iter().flat_map(|session| session.states.values());
        written.extend(states.cloned());
        written.sort_by(|a, b| a.name.cmp(&b.name));
        written.dedup();
        for name in self.store.list(&self.folder)? {
            // A description that was left for this process; the manifest contains it now.
            if name.starts_with("session-") {
                self.store.remove(&format!("{}/{name}", self.folder))?;
            }
        }
        self.store.sync_folder(&self.folder).map(|()| written)
    }
}

/// Returns the name of the file in which a session's description is left.
fn session_file(name: &str) -> String {
    format!("session-{name}.json")
}

/// Returns the hash of a whole file.
pub(crate) fn hash_of(input: &dyn Input) -> Result<ChunkId> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; HASH_PIECE_BYTES];
    let mut at = 0;
    while at < input.size() {
        let piece = (input.size() - at).min(HASH_PIECE_BYTES as u64) as usize;
        input.read(at, &mut buffer[..piece])?;
        hasher.update(&buffer[..piece]);
        at += piece as u64;
    }
    Ok(ChunkId::from_bytes(*hasher.finalize().as_bytes()))
}

/// Returns length and hash of a file that another program has written or will read.
pub(crate) fn hash_of_path(path: &Path) -> Result<(u64, ChunkId)> {
    let location = path.display().to_string();
    let mut hasher = blake3::Hasher::new();
    let file = File::open(path).map_err(|error| ImageError::io(&location, "open", error))?;
    hasher.update_reader(file).map_err(|error| ImageError::io(&location, "read", error))?;
    Ok((hasher.count(), ChunkId::from_bytes(*hasher.finalize().as_bytes())))
}
