//! The interface of snapshots between a worker and a session of any API.

use std::error::Error;

use katydid_image::{ImageError, ImageSource, Session as SessionPart, Sink};
use katydid_wire::sharing::Sharing;

/// Note of the number of frames that a session had executed.
pub const FRAMES_NOTE: &str = "frames";
/// Key of the file with a session's journal, and the end of its name.
const JOURNAL_KEY: &str = "journal";

/// Returns the journal of a session in an image; none if it has none.
///
/// # Errors
///
/// The error of the image.
pub fn read_journal(part: &SessionPart, source: &dyn ImageSource) -> Result<Option<Vec<u8>>, ImageError> {
    part.states.get(JOURNAL_KEY).map(|entry| source.state(entry)).transpose()
}

/// Writes the journal of a session to an image.
///
/// # Errors
///
/// The error of the image.
pub fn write_journal(part: &mut SessionPart, state: &[u8], sink: &dyn Sink) -> Result<(), ImageError> {
    let journal = sink.session_state(&format!("{}.{JOURNAL_KEY}", part.name), state)?;
    part.states.insert(JOURNAL_KEY.to_owned(), journal);
    Ok(())
}

/// Why a session could not do a request, as text.
pub type Failure = Box<dyn Error + Send + Sync>;

/// A driver has chosen other addresses than those in an image, or an outline was rebuilt differently. Another process may
/// succeed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct AddressMismatch(pub String);

/// The device has too little free memory now for that of the session.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OutOfMemory(pub String);

/// Options of a rebuild.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RestoreOptions {
    /// Only checks whether it is possible: without contents, and with little device memory behind the addresses.
    pub rehearsal: bool,
    /// Every variable must keep its address: the program's own memory cannot be searched for pointers to it.
    pub exact: bool,
}

/// Choices of a capture: what it saves, and how.
#[derive(Debug, Clone, Copy, Default)]
pub struct CaptureOptions {
    /// Also saves host memory that the program has as well, because nothing else will save it.
    pub device_only: bool,
    /// Takes no contents for unchanged since an earlier snapshot.
    pub full: bool,
    /// Saves only how everything was made, without contents, possibly of a running session: another server finds out from it
    /// whether it can have the session.
    pub outline: bool,
}

/// Work for a snapshot while the program runs, by a thread of the worker. The next snapshot uses its results up, or
/// `Checkpointable::release_snapshot` releases them.
pub trait Precopy: Send {
    /// Does the work, once. Returns an estimate of the bytes that the snapshot will still write to the image while the
    /// program is paused.
    ///
    /// # Errors
    ///
    /// The image accepts nothing more. What only the device refuses is left to the snapshot.
    fn run(&mut self, sink: &dyn Sink) -> Result<u64, Failure>;
}

/// A snapshot that was taken, and has to be written to the image. Dropping it releases its memory. For that a driver may
/// wait for streams of the running program, so no thread should wait for the drop.
pub trait PendingSnapshot: Send {
    /// Returns the bytes that the session holds.
    fn bytes(&self) -> u64;

    /// Returns how many of these may differ from the image.
    fn changed(&self) -> u64;

    /// Returns what the session shares with others, which have to be saved with it.
    fn sharing(&self) -> Sharing {
        Sharing::default()
    }

    /// Writes everything to the image, once, while the program goes on.
    ///
    /// # Errors
    ///
    /// Any failure; the image is then without this session.
    fn write(&mut self, sink: &dyn Sink) -> Result<SessionPart, Failure>;
}
