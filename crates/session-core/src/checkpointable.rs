//! What a worker asks of a session, whatever API that speaks.

use std::error::Error;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use katydid_image::{Session as SessionPart, Sink, Source};
use katydid_transport::{LinkControl, WorkerLink};
use katydid_wire::companion::MovedVariable;
use katydid_wire::sharing::Sharing;

use crate::control::{Control, QuiesceError};
use crate::progress::Progress;

/// Why a session could not do what it was asked for, in its own words.
pub type Failure = Box<dyn Error + Send + Sync>;

/// A driver has chosen other addresses than those that an image holds, or what was made of an outline is something else. In another
/// process it may come out right.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct AddressMismatch(pub String);

/// The device has too little free memory for what the session had, now.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OutOfMemory(pub String);

/// How a session is rebuilt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RestoreOptions {
    /// Only find out whether it can be: no contents, and little memory of the device behind its addresses.
    pub rehearsal: bool,
    /// Every variable must lie where it lay: the program's own memory cannot be searched for pointers to it.
    pub exact: bool,
}

/// What is to be kept.
#[derive(Debug, Clone, Copy, Default)]
pub struct CaptureOptions {
    /// Also host memory that the program has as well, because nobody else will keep it.
    pub device_only: bool,
    /// Nothing is taken to be unchanged since an earlier snapshot.
    pub full: bool,
    /// How everything was made alone, without contents, by which another server finds out whether it can have the session: of
    /// one that may be running.
    pub outline: bool,
}

/// A session that can be brought to rest and kept. Its main loop calls these.
pub trait Checkpointable {
    /// Whether anything is in flight at this moment.
    ///
    /// # Errors
    ///
    /// What is.
    fn check_idle(&mut self) -> Result<(), QuiesceError>;

    /// What a look does not show, once nothing is in flight: devices in error, text that they printed.
    ///
    /// # Errors
    ///
    /// [`QuiesceError::Ruined`].
    fn synchronize(&mut self) -> Result<(), QuiesceError>;

    /// So many frames were executed when it came to rest.
    fn note_frames(&mut self, frames: u64);

    /// A snapshot will be wanted soon: what can be found out while the program runs is.
    fn prepare_snapshot(&mut self) {}

    /// What can be done for a snapshot before the program stands still; none where there is nothing. `full` as in
    /// [`CaptureOptions`].
    fn precopy(&mut self, _full: bool) -> Option<Box<dyn Precopy>> {
        None
    }

    /// Gives back what [`Precopy::run`] has left for a snapshot that is not taken, and what one that was taken has used, if that
    /// can be done at this moment; else false.
    fn release_snapshot(&mut self) -> bool {
        true
    }

    /// Copies state and contents aside; `name` is the session's in the image.
    ///
    /// # Errors
    ///
    /// What cannot be kept. The session is as it was.
    fn snapshot(
        &mut self,
        name: &str,
        options: CaptureOptions,
        sink: &dyn Sink,
        progress: &Arc<Progress>,
    ) -> Result<Box<dyn PendingSnapshot>, Failure>;

    /// Lets a companion control this session, whose link is `link_control`'s.
    fn control(&mut self, link_control: LinkControl) -> Control;

    /// Executes frames until the program closes its end.
    ///
    /// Session and link stay when this returns, however the session ended: the driver, its threads and the session's own use
    /// memory of both until the process ends. The caller ends it without unwinding.
    ///
    /// # Errors
    ///
    /// What the program did wrong, or why the worker cannot go on.
    fn serve(&'static mut self, link: &'static mut dyn WorkerLink) -> Result<(), Failure>;
}

/// What is done for a snapshot while the program runs, by a thread of the worker's own. What it holds then the next snapshot
/// uses up, or [`Checkpointable::release_snapshot`] gives back.
pub trait Precopy: Send {
    /// Does it, once. Returns how many bytes the snapshot will bring to the image while the program stands still all the
    /// same, as far as that can be told.
    ///
    /// # Errors
    ///
    /// The image takes nothing more. What only the device refuses is left to the snapshot.
    fn run(&mut self, sink: &dyn Sink) -> Result<u64, Failure>;
}

/// A snapshot that was taken, and has to be brought to the image. Dropped, it gives back what it holds: a driver may wait
/// with that for streams of the program, which runs again, so nobody is to wait for it.
pub trait PendingSnapshot: Send {
    /// Bytes that the session holds.
    fn bytes(&self) -> u64;

    /// Of these, how many may differ from what the image has.
    fn changed(&self) -> u64;

    /// What the session shares with others, which have to be kept along with it.
    fn sharing(&self) -> Sharing {
        Sharing::default()
    }

    /// Brings everything to the image, once, while the program goes on.
    ///
    /// # Errors
    ///
    /// Whatever is in the way; the image is then without this session.
    fn write(&mut self, sink: &dyn Sink) -> Result<SessionPart, Failure>;
}

/// A session in which nothing has happened yet, and that is to become one of an image.
pub trait Restorable: Checkpointable {
    /// Rebuilds all that needs nothing of the program: of an image, or first of an outline and then of an image.
    ///
    /// # Errors
    ///
    /// Why it cannot be that; it is then of no use. [`AddressMismatch`]: here, but perhaps in another process. [`OutOfMemory`]: not now.
    fn restore(
        &mut self,
        part: &SessionPart,
        source: &dyn Source,
        progress: &Progress,
        options: RestoreOptions,
    ) -> Result<(), Failure>;

    /// Variables that lie elsewhere than in the image, and that no memory of the session points to.
    fn moved(&self) -> &[MovedVariable] {
        &[]
    }

    /// Rebuilds the rest: the program is there, with its pinned memory if the sides share some.
    ///
    /// # Errors
    ///
    /// As [`Restorable::restore`].
    fn restore_host(
        &mut self,
        pinned: Option<BorrowedFd<'_>>,
        part: &SessionPart,
        source: &dyn Source,
    ) -> Result<(), Failure>;

    /// The program's link; once a session.
    fn connect(&mut self, link: &dyn WorkerLink);

    /// Frames executed when the session was last at rest, in the worker before this one too.
    fn frames(&self) -> u64;

    /// The same session, for its main loop.
    fn begin(&'static mut self) -> &'static mut dyn Checkpointable;
}
