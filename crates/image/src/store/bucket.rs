//! Requests to an object store, below the prefix of one location.

use std::env;
use std::ffi::OsString;
use std::future::Future;
use std::io;
use std::sync::Arc;

use katydid_scratch::Scratch;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions};
use tokio::runtime::Runtime;

use super::lease_terms::{LeaseHold, LeaseTerms};
use crate::error::{ImageError, Result};

/// Prefix of addresses in object storage.
pub(super) const S3_SCHEME: &str = "s3://";

/// State shared by all handles of one location.
pub(super) struct Bucket {
    pub(super) objects: Arc<dyn ObjectStore>,
    pub(super) prefix: Path,
    /// The address as the user gave it.
    pub(super) address: String,
    /// Requests run here while the caller waits.
    pub(super) runtime: Runtime,
    /// Folder for files of other programs.
    pub(super) scratch: Scratch,
    pub(super) terms: LeaseTerms,
    pub(super) hold: LeaseHold,
}

/// Makes an error of the client, after its own retries. At an S3 address, the remedy names variables that may be wrong.
pub(super) fn failed(location: &str, action: &'static str, error: Error) -> ImageError {
    let remedy = if location.starts_with(S3_SCHEME) { remedy(&error, |name| env::var_os(name)) } else { String::new() };
    ImageError::io(location, action, io::Error::other(StoreError { error, remedy }))
}

/// The client's error, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{error}{remedy}")]
struct StoreError {
    #[source]
    error: Error,
    remedy: String,
}

/// Variables with the user's credentials.
const CREDENTIAL_VARIABLES: [&str; 2] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
/// Other variables that give the client credentials.
const OTHER_CREDENTIALS: [&str; 4] = [
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
];

/// Returns which variables to check, given the error and the variables that are set.
fn remedy(error: &Error, variable: impl Fn(&str) -> Option<OsString>) -> String {
    // Checkpoints are written by the job's supervisor.
    const CREDENTIALS_OWNER: &str = "(of a checkpoint, for the job's `katydid run`)";
    let is_set = |name: &&str| variable(name).is_some_and(|value| !value.is_empty());
    let missing: Vec<&str> = CREDENTIAL_VARIABLES.into_iter().filter(|name| !is_set(name)).collect();
    let is_known =
        missing.is_empty() || (missing.len() == CREDENTIAL_VARIABLES.len() && OTHER_CREDENTIALS.iter().any(is_set));
    match error {
        Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::InvalidPath { .. } => String::new(),
        _ if !is_known => {
            let (names, is) = (missing.join(" and "), if missing.len() == 1 { "is" } else { "are" });
            // A cloud's own machines may send requests without them.
            let role = ", unless this machine has a role that may use the bucket at AWS_ENDPOINT in AWS_REGION";
            let role = if missing.len() == 1 { "" } else { role };
            format!("; {names} {is} not set: set {} {CREDENTIALS_OWNER}{role}", CREDENTIAL_VARIABLES.join(" and "))
        }
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            format!("; see whether {} may use this bucket {CREDENTIALS_OWNER}", CREDENTIAL_VARIABLES.join(" and "))
        }
        _ => format!("; see whether there is such a bucket at AWS_ENDPOINT in AWS_REGION {CREDENTIALS_OWNER}"),
    }
}

impl Bucket {
    /// Returns the key of a name; `.` is the location itself.
    pub(super) fn path(&self, name: &str) -> Path {
        name.split('/').filter(|part| *part != ".").fold(self.prefix.clone(), |path, part| path.join(part))
    }

    /// Returns the address of a name, for messages only.
    pub(super) fn location(&self, name: &str) -> String {
        format!("{}/{name}", self.address.trim_end_matches('/'))
    }

    /// Waits for a request: the calling threads have nothing else to do.
    pub(super) fn wait<T>(&self, request: impl Future<Output = T>) -> T {
        self.runtime.block_on(request)
    }

    /// Refuses changes by a writer that may have lost its lock.
    pub(super) fn may_change(&self, name: &str) -> Result<()> {
        let lost = || ImageError::LockLost { location: self.location(name) };
        self.hold.may_change(&self.terms).then_some(()).ok_or_else(lost)
    }

    /// Creates an object; returns false if it exists.
    pub(super) fn make(&self, name: &str, contents: String) -> Result<bool> {
        self.may_change(name)?;
        let options = PutOptions::from(PutMode::Create);
        match self.wait(self.objects.put_opts(&self.path(name), contents.into(), options)) {
            Ok(_) => Ok(true),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
            Err(error) => Err(failed(&self.location(name), "make this object", error)),
        }
    }

    /// Returns the length of an object; `None` if it does not exist.
    pub(super) fn exists(&self, name: &str) -> Result<Option<u64>> {
        match self.wait(self.objects.head(&self.path(name))) {
            Ok(meta) => Ok(Some(meta.size)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed(&self.location(name), "look at this object", error)),
        }
    }

    /// Removes an object; a missing one is fine.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        self.may_change(name)?;
        match self.wait(self.objects.delete(&self.path(name))) {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed(&self.location(name), "remove this object", error)),
        }
    }

    /// Returns the names of the objects and folders directly below a folder.
    pub(super) fn entries(&self, folder: &str) -> Result<(Vec<String>, Vec<String>)> {
        let path = self.path(folder);
        let listed = self.wait(self.objects.list_with_delimiter(Some(&path)));
        let listed = listed.map_err(|error| failed(&self.location(folder), "list this place", error))?;
        let name = |path: &Path| path.filename().unwrap_or_default().to_owned();
        let objects = listed.objects.iter().map(|meta| name(&meta.location)).collect();
        Ok((objects, listed.common_prefixes.iter().map(name).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied() -> Error {
        Error::Unauthenticated { path: "lock".to_owned(), source: "403".into() }
    }

    fn unreached() -> Error {
        Error::Generic { store: "S3", source: "no answer".into() }
    }

    #[test]
    fn missing_credentials_are_named_in_the_remedy() {
        let remedy_with = |error: &Error, set: &[&str]| remedy(error, |name| set.contains(&name).then(|| "x".into()));
        for error in [denied(), unreached()] {
            assert!(
                remedy_with(&error, &[]).starts_with("; AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set: set ")
            );
            assert!(
                remedy_with(&error, &CREDENTIAL_VARIABLES[..1])
                    .starts_with("; AWS_SECRET_ACCESS_KEY is not set: set AWS_ACCESS")
            );
            assert!(remedy_with(&error, &CREDENTIAL_VARIABLES[1..]).starts_with("; AWS_ACCESS_KEY_ID is not set"));
        }
        for set in [&CREDENTIAL_VARIABLES[..], &OTHER_CREDENTIALS[..1]] {
            assert!(remedy_with(&denied(), set).contains("may use this bucket"));
            assert!(remedy_with(&unreached(), set).contains("AWS_ENDPOINT in AWS_REGION"));
        }
    }

    #[test]
    fn only_an_address_has_to_do_with_variables() {
        let message_at = |location| failed(location, "list this place", unreached()).to_string();
        assert!(message_at("s3://bucket/prefix/").contains("AWS_"), "{}", message_at("s3://bucket/prefix/"));
        assert_eq!(message_at("objects:x"), "objects:x: cannot list this place: Generic S3 error: no answer");
    }
}
