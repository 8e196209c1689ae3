//! Saves a whole session to an image, and restores it.
//!
//! | in the image | what |
//! |---|---|
//! | state `NAME.journal` | how live objects were made, and what was in flight (`journal/state.rs`) |
//! | regions | contents (`contents.rs`) |
//! | note `api` | that this is an OpenCL session |
//! | note `outline` | that only the creation of objects is saved, to test whether they can be made elsewhere |

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use katydid_image::{Device, ImageSource, Session as SessionPart, Sink};
use katydid_session_core::{AddressMismatch, FRAMES_NOTE, Failure, Progress, StateError, read_journal, write_journal};
use katydid_wire::handshake::PROTOCOL_VERSION;

use crate::contents::CapturedContents;
use crate::journal::{JournalState, Platform, RebuildError};
use crate::memory::zero_copy_area::RetainedPages;
use crate::state::Session;

/// Note that tells which API a session speaks.
const API_NOTE: &str = "api";
/// The value of [`API_NOTE`] for OpenCL.
const OPENCL_API: &str = "opencl";
/// Note of the memory that the session may hold, in bytes; 0: no limit.
pub const MEMORY_LIMIT_NOTE: &str = "quota";
/// Note of the address of the session's memory that is shared with its program; absent if there is none.
const HOST_NOTE: &str = "host";
/// Note that marks an outline.
const OUTLINE_NOTE: &str = "outline";

/// Returns whether this part of an image is an OpenCL session.
#[must_use]
pub fn is_kept_in(part: &SessionPart) -> bool {
    part.notes.get(API_NOTE).and_then(serde_json::Value::as_str) == Some(OPENCL_API)
}

/// Returns the address of the session's memory that is shared with its program; `None` if it has none.
#[must_use]
pub fn host_base(part: &SessionPart) -> Option<u64> {
    part.notes.get(HOST_NOTE).and_then(serde_json::Value::as_u64)
}

/// Decodes bytes as the saved state of a session, and returns how many frames a restore would replay; for fuzzing.
///
/// # Errors
///
/// Why the bytes are no valid state.
pub fn parse_state(bytes: &[u8]) -> Result<usize, StateError> {
    JournalState::decode(bytes).map(|state| state.records.len())
}

/// Returns whether this is an outline: a session rebuilt from it has no contents, and an image must complete it.
#[must_use]
pub fn is_outline(part: &SessionPart) -> bool {
    part.notes.contains_key(OUTLINE_NOTE)
}

/// Refuses an outline: a session that was rebuilt from it has no contents, so no program can continue with it.
///
/// # Errors
///
/// The part is an outline.
pub(crate) fn refuse_outline(part: &SessionPart) -> Result<(), Failure> {
    if is_outline(part) { Err("the image has the outline of a session alone, without contents".into()) } else { Ok(()) }
}

/// A snapshot of a session.
struct Snapshot {
    part: SessionPart,
    state: Vec<u8>,
    captured: CapturedContents,
    /// Held until everything is written; the last field, so that every reader of the pages is dropped before.
    _zero_copy: Option<RetainedPages>,
}

impl Session {
    /// Takes a snapshot of the session, which is at rest. The program may continue afterwards.
    ///
    /// # Errors
    ///
    /// What cannot be saved. The session is unchanged.
    pub(crate) fn take_snapshot(
        &mut self,
        name: &str,
        sink: &dyn Sink,
        progress: &Arc<Progress>,
    ) -> Result<impl katydid_session_core::PendingSnapshot + use<>, Failure> {
        let state = self.state()?;
        let zero_copy = self.clear_zero_copy_area();
        let captured = self.capture(sink, progress)?;
        let part = self.part(name, &state.platforms);
        Ok(Snapshot { part, state: state.encode(), captured, _zero_copy: zero_copy })
    }

    /// Returns how live objects were made, at any moment between two frames.
    ///
    /// # Errors
    ///
    /// What a checkpoint cannot include.
    pub(crate) fn outline(
        &mut self,
        name: &str,
    ) -> Result<impl katydid_session_core::PendingSnapshot + use<>, Failure> {
        let state = self.save_state()?;
        let mut part = self.part(name, &state.platforms);
        part.notes.insert(OUTLINE_NOTE.to_owned(), true.into());
        Ok(Snapshot { part, state: state.encode(), captured: CapturedContents::default(), _zero_copy: None })
    }

    /// Returns the manifest's entry for the session, without contents.
    fn part(&self, name: &str, platforms: &[Platform]) -> SessionPart {
        let mut notes = BTreeMap::from([
            (API_NOTE.to_owned(), OPENCL_API.into()),
            (FRAMES_NOTE.to_owned(), self.main_loop.frames.into()),
            (MEMORY_LIMIT_NOTE.to_owned(), self.shared.usage.limit().unwrap_or(0).into()),
        ]);
        notes.extend(self.host.as_ref().map(|host| (HOST_NOTE.to_owned(), host.range().base.into())));
        let names = platforms.iter().flat_map(|platform| &platform.devices);
        let devices =
            (0..).zip(names).map(|(index, device)| Device { index, name: device.name.clone(), ..Device::default() });
        let (name, devices) = (name.to_owned(), devices.collect());
        SessionPart { name, protocol: PROTOCOL_VERSION, devices, notes, ..SessionPart::default() }
    }

    /// Rebuilds an image's session in this new session, without contents, to test whether a restore would succeed.
    ///
    /// # Errors
    ///
    /// As for [`Session::restore_snapshot`].
    pub(crate) fn rehearse_snapshot(&mut self, part: &SessionPart, source: &dyn ImageSource) -> Result<(), Failure> {
        let mut state = state_of(part, source)?;
        let requested = std::mem::take(&mut self.requested);
        self.replay.filled = filled_objects(part);
        Ok(self.rebuild(&mut state, &requested)?)
    }

    /// Restores the session of an image in this new session. Given an outline, it prepares the session, and the next call
    /// completes it from an image.
    ///
    /// # Errors
    ///
    /// Why it cannot be restored; the session is then unusable. [`AddressMismatch`]: the session prepared from the outline
    /// differs from the image.
    pub(crate) fn restore_snapshot(
        &mut self,
        part: &SessionPart,
        source: &dyn ImageSource,
        progress: &Progress,
    ) -> Result<(), Failure> {
        let mut state = state_of(part, source)?;
        let requested = std::mem::take(&mut self.requested);
        if is_outline(part) {
            self.rehearsal = Some(self.rehearse(state, &requested)?);
            return Ok(());
        }
        self.replay.filled = filled_objects(part);
        match self.rehearsal.take() {
            Some(rehearsal) => self.rebuild_on(&rehearsal, &mut state).map_err(elsewhere)?,
            None => self.rebuild(&mut state, &requested)?,
        }
        self.put_back(&state, &part.regions, source, progress)?;
        self.map_again(&state.mapped)?;
        Ok(())
    }
}

/// Returns the journal of a session in an image.
fn state_of(part: &SessionPart, source: &dyn ImageSource) -> Result<JournalState, Failure> {
    let journal = read_journal(part, source)?;
    Ok(JournalState::decode(&journal.ok_or(StateError::Damaged { what: "a session without a journal" })?)?)
}

/// Returns the ids of the buffers and images with contents in an image of a session.
fn filled_objects(part: &SessionPart) -> HashSet<u32> {
    let objects = part.regions.iter().filter(|region| matches!(region.kind.as_str(), "buffer" | "image"));
    objects.filter_map(|region| u32::try_from(region.object?).ok()).collect()
}

fn elsewhere(error: RebuildError) -> Failure {
    match error {
        // A new worker may be given the address.
        RebuildError::Another | RebuildError::Moved { .. } => AddressMismatch(error.to_string()).into(),
        other => other.into(),
    }
}

impl katydid_session_core::PendingSnapshot for Snapshot {
    fn bytes(&self) -> u64 {
        self.captured.bytes()
    }

    fn changed(&self) -> u64 {
        // An upper bound: deduplication finds equal chunks only later.
        self.captured.bytes()
    }

    fn write(&mut self, sink: &dyn Sink) -> Result<SessionPart, Failure> {
        let mut part = std::mem::take(&mut self.part);
        part.regions = self.captured.write(sink)?;
        write_journal(&mut part, &self.state, sink)?;
        Ok(part)
    }
}
