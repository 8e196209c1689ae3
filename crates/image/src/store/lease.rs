//! The writer's lock in an object store: an object that names its holder, who rewrites it regularly.
//!
//! Nothing releases the lock of a holder that was killed. So a lock that was not renewed for long enough may be taken over. Only
//! the store measures that time, since its clock stamps each object: clocks of machines are never compared. Taking and renewing
//! replace the object only if it is still the version that was read.
//!
//! Two holders must never write at once. A holder whose last renewal is older than [`super::lease_terms::LeaseTerms::valid_for`]
//! makes no more changes. It uses the larger of two of its own clocks, one of which runs on while the machine sleeps. Its earlier
//! requests may arrive late. The client retries such a request for three minutes. S3 refuses it 15 minutes after it was signed,
//! by a clock that may be 15 minutes ahead. [`super::lease_terms::LeaseTerms::expires_after`] exceeds the sum.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use object_store::{
    Error, ObjectMeta, ObjectStore as _, ObjectStoreExt as _, PutMode, PutOptions, PutPayload, UpdateVersion,
};

use super::bucket::{Bucket, failed};
use super::lease_terms::{ClockReading, LeaseState};
use crate::error::{ImageError, Result};

/// Name of the lock's object.
pub(super) const LOCK_OBJECT: &str = "lock";
/// An object that is written to learn the store's time.
const CLOCK_OBJECT: &str = "lock-clock";
/// Start of the second line of a lock that its holder renews. Older builds did not renew: their locks are removed by hand.
const RENEWAL_MARK: &str = "renewed ";

/// Contents of a lock object.
#[derive(Debug)]
struct LockObject {
    holder: String,
    /// Random id of the holder, unique for each.
    id: String,
}

impl LockObject {
    /// Returns the object's text. A store may identify an object by its contents, so no two renewals are alike.
    fn text(&self, count: u64) -> String {
        format!("{}\n{RENEWAL_MARK}{} {count}\n", self.holder, self.id)
    }

    fn is_in(&self, text: &str) -> bool {
        text.lines().nth(1).is_some_and(|line| line.starts_with(&format!("{RENEWAL_MARK}{} ", self.id)))
    }
}

/// An existing lock.
pub(super) struct FoundLease {
    text: String,
    meta: ObjectMeta,
}

impl FoundLease {
    fn is_renewed(&self) -> bool {
        self.text.lines().nth(1).is_some_and(|line| line.starts_with(RENEWAL_MARK))
    }

    fn version(&self) -> UpdateVersion {
        UpdateVersion { e_tag: self.meta.e_tag.clone(), version: self.meta.version.clone() }
    }

    /// Returns the holder as its own text names it, made printable, and what to do if that process has ended.
    pub(super) fn holder(&self, shared: &Bucket) -> String {
        let first = self.text.lines().next().unwrap_or_default();
        let shown: String = first.chars().filter(|c| !c.is_control()).take(100).collect();
        if !self.is_renewed() {
            return format!("{shown} (if that has ended, remove the object {})", shared.location(LOCK_OBJECT));
        }
        let minutes = shared.terms.expires_after.as_secs().div_ceil(60);
        let when = self.meta.last_modified.format("%F %T");
        format!(
            "{shown}, which renewed its lock at {when} UTC by the store's clock (another writer takes it {minutes} minutes after that)"
        )
    }
}

impl Bucket {
    /// Returns the existing lock, if there is one.
    pub(super) fn current(&self) -> Result<Option<FoundLease>, Error> {
        let read = async {
            let read = self.objects.get(&self.path(LOCK_OBJECT)).await?;
            let meta = read.meta.clone();
            Ok(FoundLease { text: String::from_utf8_lossy(&read.bytes().await?).into_owned(), meta })
        };
        match self.wait(read) {
            Ok(found) => Ok(Some(found)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn put_lock(&self, text: String, mode: PutMode) -> Result<UpdateVersion, Error> {
        let (path, text) = (self.path(LOCK_OBJECT), PutPayload::from(text));
        self.wait(self.objects.put_opts(&path, text, PutOptions::from(mode))).map(UpdateVersion::from)
    }

    /// Returns the age of an object by the store's own clock.
    fn age_of(&self, meta: &ObjectMeta) -> Result<Duration, Error> {
        let path = self.path(CLOCK_OBJECT);
        let now = self.wait(async {
            self.objects.put(&path, PutPayload::new()).await?;
            let now = self.objects.head(&path).await?.last_modified;
            self.objects.delete(&path).await.map(|()| now)
        })?;
        Ok(now.signed_duration_since(meta.last_modified).to_std().unwrap_or_default())
    }

    /// Replaces a lock that is not renewed any more.
    fn take_over(&self, found: &FoundLease, text: String) -> Result<Option<UpdateVersion>, Error> {
        if !found.is_renewed() || self.age_of(&found.meta)? < self.terms.expires_after {
            return Ok(None);
        }
        match self.put_lock(text, PutMode::Update(found.version())) {
            Ok(version) => Ok(Some(version)),
            // It was renewed, released or taken meanwhile.
            Err(Error::Precondition { .. } | Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes the lock for a holder with this id, which no other holder has.
    pub(super) fn lock(self: &Arc<Self>, holder: String, id: String) -> Result<WriterLock> {
        let (ticket, began) = (LockObject { holder, id }, ClockReading::now());
        let unusable = |error| failed(&self.location(LOCK_OBJECT), "make this object", error);
        let version = match self.put_lock(ticket.text(0), PutMode::Create) {
            Ok(version) => version,
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {
                let found = self.current().map_err(unusable)?;
                let takeover = found.as_ref().map(|found| self.take_over(found, ticket.text(0)));
                let holder = || found.as_ref().map_or("another process".into(), |found| found.holder(self));
                let locked = || ImageError::Locked { location: self.location(""), holder: holder() };
                takeover.transpose().map_err(unusable)?.flatten().ok_or_else(locked)?
            }
            Err(error) => return Err(unusable(error)),
        };
        self.hold.set(LeaseState::Renewed(began));
        let (stop, stopped) = mpsc::channel();
        let ticket = Arc::new(ticket);
        let renewing = LeaseRenewal { shared: Arc::clone(self), ticket: Arc::clone(&ticket), version };
        let mut lease = WriterLock { shared: Arc::clone(self), ticket, stop: Some(stop), thread: None };
        let thread = std::thread::Builder::new().name("lease".into()).spawn(move || renewing.run(&stopped));
        let thread = thread
            .map_err(|error| ImageError::io(&self.location(LOCK_OBJECT), "start a thread for this lock", error))?;
        lease.thread = Some(thread);
        Ok(lease)
    }
}

/// The writer's lock, until it is dropped.
pub(super) struct WriterLock {
    shared: Arc<Bucket>,
    ticket: Arc<LockObject>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for WriterLock {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A renewal thread that has panicked renews nothing either.
        let _ = self.thread.take().map(JoinHandle::join);
        // The user or another process may have taken the lock, and another holder may have it now.
        let is_ours = || matches!(self.shared.current(), Ok(Some(found)) if self.ticket.is_in(&found.text));
        if self.shared.may_change(LOCK_OBJECT).is_ok() && is_ours() {
            let _ = self.shared.remove(LOCK_OBJECT);
        }
        self.shared.hold.set(LeaseState::Free);
    }
}

/// Renews a lock in a thread until it is dropped.
struct LeaseRenewal {
    shared: Arc<Bucket>,
    ticket: Arc<LockObject>,
    version: UpdateVersion,
}

impl LeaseRenewal {
    /// Renews until the lease is dropped or the lock is lost. After another error, it retries when the next renewal is due.
    fn run(mut self, stopped: &mpsc::Receiver<()>) {
        let mut count = 0;
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(self.shared.terms.renew_interval) {
            count += 1;
            let (began, text) = (ClockReading::now(), self.ticket.text(count));
            match self.renew(text) {
                Ok(Some(version)) => {
                    self.version = version;
                    self.shared.hold.set(LeaseState::Renewed(began));
                }
                Ok(None) => return self.shared.hold.set(LeaseState::Lost),
                Err(_) => {}
            }
        }
    }

    /// Renews the lock; `None` if another process has it.
    fn renew(&self, text: String) -> Result<Option<UpdateVersion>, Error> {
        match self.shared.put_lock(text.clone(), PutMode::Update(self.version.clone())) {
            Ok(version) => Ok(Some(version)),
            Err(Error::Precondition { .. } | Error::NotFound { .. } | Error::AlreadyExists { .. }) => {
                // The reply to an attempt may have been lost, and the client may have retried.
                Ok(self.shared.current()?.filter(|found| self.ticket.is_in(&found.text)).map(|found| found.version()))
            }
            Err(error) => Err(error),
        }
    }
}
