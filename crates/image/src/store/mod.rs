//! Where the files of an image lie: one small trait, so that a folder and an object store are written alike.
//!
//! A file appears under its name when it is finished, whole and lasting, or not at all. Names are relative, with `/`
//! between their parts, and chosen by this crate. Nothing here knows what is in the files.

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

/// A place for files.
pub(crate) trait Store: Debug + Send + Sync {
    /// A file or folder as it is called in messages.
    fn location(&self, name: &str) -> String;

    /// Begins a file that takes the place of one of the same name when it is finished.
    fn create(&self, name: &str) -> Result<Box<dyn Output>>;

    /// Begins a file whose name is free; `None` when a file has it, or is about to.
    fn create_new(&self, name: &str) -> Result<Option<Box<dyn Output>>>;

    /// Finds a file; `None` when there is none.
    fn open(&self, name: &str) -> Result<Option<Arc<dyn Input>>>;

    /// Names of the files and folders in a folder, without their path; none when there is no such folder.
    fn list(&self, folder: &str) -> Result<Vec<String>>;

    /// Makes a folder, unless it is there.
    fn make_folder(&self, folder: &str) -> Result<()>;

    /// Makes lasting which finished files a folder has.
    fn sync_folder(&self, folder: &str) -> Result<()>;

    /// Removes a file; one that is not there is fine.
    fn remove(&self, name: &str) -> Result<()>;

    /// Removes a folder and all in it; one that is not there is fine.
    fn remove_folder(&self, folder: &str) -> Result<()>;

    /// Takes a lock, or says who has it.
    fn lock(&self, lock: Lock) -> Result<Guard>;

    /// Who has the writer's lock, and may have left it; none where that is never left.
    fn writer(&self) -> Result<Option<String>> {
        Ok(None)
    }

    /// The place itself, for another process; none where no descriptor stands for it.
    fn descriptor(&self) -> Result<Option<OwnedFd>>;

    /// Where another program can write and read the files of a folder.
    fn path(&self, folder: &str) -> PathBuf;

    /// Makes lasting what another program has written to [`Store::path`] of a folder, and gives the names.
    fn commit_folder(&self, folder: &str) -> Result<Vec<String>>;

    /// Brings a file of a folder, which the caller has opened, to [`Store::path`] of the folder.
    fn export_file(&self, folder: &str, name: &str, input: &dyn Input) -> Result<()>;

    /// Most files that are worth writing side by side.
    fn max_parallel_writes(&self) -> usize;

    /// Bytes for which room can be made beforehand ([`Output::preallocate`]) without taking memory from a process.
    fn spare_bytes(&self) -> u64 {
        0
    }

    /// Has a finished file read by the kernel once, where the first time takes longer than later ones and need not wait
    /// for the disk.
    fn warm_page_cache(&self, _name: &str) {}
}

/// A file being written; dropped unfinished, it leaves nothing.
pub(crate) trait Output: Debug + Send {
    /// Appends all parts, in order.
    fn write(&mut self, parts: &[&[u8]]) -> Result<()>;

    /// Says that so many bytes will come, for a place where room made beforehand makes writing faster. Room that is not used, or
    /// could not be had, does no harm.
    fn preallocate(&mut self, _bytes: u64) {}

    /// Makes it lasting and gives it its name.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// A complete file of an image, open for reading.
pub(crate) trait Input: Debug + Send + Sync {
    /// Length of the file in bytes.
    fn size(&self) -> u64;

    /// Fills the buffer; a file that ends before is damaged.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;
}

/// Who may be at an image at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lock {
    /// Writes a checkpoint or clears up: one at a time.
    Writer,
    /// Reads a checkpoint: any number, beside a writer.
    Reader,
    /// Takes away what readers may need: none of them is there.
    Sweeper,
    /// Writes a part of a checkpoint that another process has begun: any number.
    Part,
    /// Goes by what lies there: no part of an earlier checkpoint is being written, or removed by its names.
    Alone,
}

/// Holds a lock until it is dropped.
pub(crate) type Guard = Box<dyn Any + Send + Sync>;
