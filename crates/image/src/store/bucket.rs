//! Requests to an object store, below the prefix of one place.

use std::future::Future;
use std::io;
use std::sync::Arc;

use katydid_scratch::Scratch;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions};
use tokio::runtime::Runtime;

use super::lease_terms::{Hold, Terms};
use crate::error::{ImageError, Result};

/// What all handles of one place share.
pub(super) struct Bucket {
    pub(super) objects: Arc<dyn ObjectStore>,
    pub(super) prefix: Path,
    /// As the user has named it.
    pub(super) address: String,
    /// Requests run here; the caller waits.
    pub(super) runtime: Runtime,
    /// Files of other programs.
    pub(super) scratch: Scratch,
    pub(super) terms: Terms,
    pub(super) hold: Hold,
}

/// An error of the client, which has tried again by itself whatever may be tried again.
pub(super) fn failed(place: &str, action: &'static str, error: Error) -> ImageError {
    ImageError::io(place, action, io::Error::other(error))
}

impl Bucket {
    /// The key of a name; `.` is the place itself.
    pub(super) fn path(&self, name: &str) -> Path {
        name.split('/').filter(|part| *part != ".").fold(self.prefix.clone(), |path, part| path.join(part))
    }

    /// Only for messages.
    pub(super) fn place(&self, name: &str) -> String {
        format!("{}/{name}", self.address.trim_end_matches('/'))
    }

    /// Waits for requests: the callers are threads that have nothing else to do.
    pub(super) fn wait<T>(&self, request: impl Future<Output = T>) -> T {
        self.runtime.block_on(request)
    }

    /// Refuses to change an object for a writer that may have lost its lock.
    pub(super) fn may_change(&self, name: &str) -> Result<()> {
        let lost = || ImageError::LockLost { place: self.place(name) };
        self.hold.may_change(&self.terms).then_some(()).ok_or_else(lost)
    }

    /// Makes an object; false when it exists.
    pub(super) fn make(&self, name: &str, contents: String) -> Result<bool> {
        self.may_change(name)?;
        let options = PutOptions::from(PutMode::Create);
        match self.wait(self.objects.put_opts(&self.path(name), contents.into(), options)) {
            Ok(_) => Ok(true),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
            Err(error) => Err(failed(&self.place(name), "make this object", error)),
        }
    }

    /// The length of an object that is there.
    pub(super) fn exists(&self, name: &str) -> Result<Option<u64>> {
        match self.wait(self.objects.head(&self.path(name))) {
            Ok(meta) => Ok(Some(meta.size)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed(&self.place(name), "look at this object", error)),
        }
    }

    /// Removes an object; one that is not there has been removed.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        self.may_change(name)?;
        match self.wait(self.objects.delete(&self.path(name))) {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed(&self.place(name), "remove this object", error)),
        }
    }

    /// Names of the objects and of the folders right below a folder.
    pub(super) fn entries(&self, folder: &str) -> Result<(Vec<String>, Vec<String>)> {
        let path = self.path(folder);
        let listed = self.wait(self.objects.list_with_delimiter(Some(&path)));
        let listed = listed.map_err(|error| failed(&self.place(folder), "list this place", error))?;
        let name = |path: &Path| path.filename().unwrap_or_default().to_owned();
        let objects = listed.objects.iter().map(|meta| name(&meta.location)).collect();
        Ok((objects, listed.common_prefixes.iter().map(name).collect()))
    }
}
