//! What a worker asks of a session, whatever API that speaks.

use std::error::Error;

use katydid_image::{ImageError, ImageSource, Session as SessionPart, Sink};
use katydid_wire::sharing::Sharing;

/// Note of the number of frames that a session had executed.
pub const FRAMES_NOTE: &str = "frames";
/// Key of the file with a session's journal, and the end of its name.
const JOURNAL_KEY: &str = "journal";

/// The journal of a session in an image; none where it has none.
///
/// # Errors
///
/// The image.
pub fn read_journal(part: &SessionPart, source: &dyn ImageSource) -> Result<Option<Vec<u8>>, ImageError> {
    part.states.get(JOURNAL_KEY).map(|entry| source.state(entry)).transpose()
}

/// Puts the journal of a session into an image.
///
/// # Errors
///
/// The image.
pub fn write_journal(part: &mut SessionPart, state: &[u8], sink: &dyn Sink) -> Result<(), ImageError> {
    let journal = sink.session_state(&format!("{}.{JOURNAL_KEY}", part.name), state)?;
    part.states.insert(JOURNAL_KEY.to_owned(), journal);
    Ok(())
}

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

/// Choices of a capture: what it saves, and how.
#[derive(Debug, Clone, Copy, Default)]
pub struct CaptureOptions {
    /// Also host memory that the program has as well, because no other thread will keep it.
    pub device_only: bool,
    /// Nothing is taken to be unchanged since an earlier snapshot.
    pub full: bool,
    /// How everything was made alone, without contents, by which another server finds out whether it can have the session: of
    /// one that may be running.
    pub outline: bool,
}

/// What is done for a snapshot while the program runs, by a thread of the worker's own. What it holds then the next snapshot
/// uses up, or `Checkpointable::release_snapshot` gives back.
pub trait Precopy: Send {
    /// Does it, once. Returns an estimate of the bytes that the snapshot will still bring to the image while the program is
    /// paused.
    ///
    /// # Errors
    ///
    /// The image takes nothing more. What only the device refuses is left to the snapshot.
    fn run(&mut self, sink: &dyn Sink) -> Result<u64, Failure>;
}

/// A snapshot that was taken, and has to be brought to the image. Dropped, it gives back what it holds: a driver may wait
/// with that for streams of the program, which runs again, so no thread is to wait for it.
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
