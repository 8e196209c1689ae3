//! Storage for an image's files: a small trait, so that folders and object stores are written alike.
//!
//! A file appears under its name when it is finished, whole and durable, or not at all. Names are relative, with `/` between
//! their parts, and chosen by this crate. Stores do not interpret the files.

#[cfg(feature = "objects")]
mod bucket;
pub(crate) mod faults;
#[cfg(feature = "objects")]
pub(crate) mod lease;
#[cfg(feature = "objects")]
pub(crate) mod lease_terms;
pub(crate) mod local;
#[cfg(feature = "objects")]
pub(crate) mod object;

use std::any::Any;
use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::Result;

/// A location for files.
pub(crate) trait Store: Debug + Send + Sync {
    /// Returns the path or address of a file or folder, for messages.
    fn location(&self, name: &str) -> String;

    /// Begins a file that replaces one of the same name when it is finished.
    fn create(&self, name: &str) -> Result<Box<dyn Output>>;

    /// Begins a file with a free name; `None` if another file has it or will have it.
    fn create_new(&self, name: &str) -> Result<Option<Box<dyn Output>>>;

    /// Opens a file; `None` if there is none.
    fn open(&self, name: &str) -> Result<Option<Arc<dyn Input>>>;

    /// Returns the names of the files and folders in a folder, without their path; none if there is no such folder.
    fn list(&self, folder: &str) -> Result<Vec<String>>;

    /// Makes a folder, unless it exists.
    fn make_folder(&self, folder: &str) -> Result<()>;

    /// Checks that only this user, or root, can change what is in a folder; a missing one is fine.
    fn check_private(&self, _folder: &str) -> Result<()> {
        Ok(())
    }

    /// Syncs the names of finished files in a folder.
    fn sync_folder(&self, folder: &str) -> Result<()>;

    /// Removes a file; a missing one is fine.
    fn remove(&self, name: &str) -> Result<()>;

    /// Removes a folder and its contents; a missing one is fine.
    fn remove_folder(&self, folder: &str) -> Result<()>;

    /// Takes a lock; an error names the holder.
    fn lock(&self, lock: Lock) -> Result<Guard>;

    /// Returns the holder of the writer's lock, if a killed process may leave that behind; `None` in stores where it cannot.
    fn writer(&self) -> Result<Option<String>> {
        Ok(None)
    }

    /// Returns a descriptor of the location, for another process; `None` if there is none.
    fn descriptor(&self) -> Result<Option<OwnedFd>>;

    /// Returns where another program can write and read the files of a folder.
    fn path(&self, folder: &str) -> PathBuf;

    /// Syncs what another program has written to [`Store::path`] of a folder, and returns the names.
    fn commit_folder(&self, folder: &str) -> Result<Vec<String>>;

    /// Copies a file of a folder, which the caller has opened, to [`Store::path`] of the folder.
    fn export_file(&self, folder: &str, name: &str, input: &dyn Input) -> Result<()>;

    /// Returns how many files are worth writing in parallel.
    fn max_parallel_writes(&self) -> usize;

    /// Returns how many bytes can be preallocated ([`Output::preallocate`]) without taking memory from a process.
    fn spare_bytes(&self) -> u64 {
        0
    }

    /// Makes the kernel read a finished file once, if the first read takes longer than later ones and need not wait for the disk.
    fn warm_page_cache(&self, _name: &str) {}
}

/// A file being written; if it is dropped unfinished, nothing of it remains.
pub(crate) trait Output: Debug + Send {
    /// Appends all parts, in order.
    fn write(&mut self, parts: &[&[u8]]) -> Result<()>;

    /// Announces bytes to come, for stores where preallocation makes writes faster. Room that is unused or refused does no harm.
    fn preallocate(&mut self, _bytes: u64) {}

    /// Syncs it and gives it its name.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// A complete file of an image, open for reading.
pub(crate) trait Input: Debug + Send + Sync {
    /// Returns the length of the file in bytes.
    fn size(&self) -> u64;

    /// Fills the buffer; fails as damaged if the file ends before.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;
}

/// The locks of an image, by what their holder does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lock {
    /// Writes a checkpoint or cleans up: one at a time.
    Writer,
    /// Reads a checkpoint: any number, also during a write.
    Reader,
    /// Removes what readers may need: excludes all readers.
    Sweeper,
    /// Writes a part of a checkpoint that another process has begun: any number.
    Part,
    /// Relies on the present files: excludes writes and removals by parts of an earlier checkpoint.
    Alone,
}

/// Holds a lock until it is dropped.
pub(crate) type Guard = Box<dyn Any + Send + Sync>;
