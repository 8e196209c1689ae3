//! A whole session in an image, and out of it.
//!
//! | in the image | what |
//! |---|---|
//! | state `NAME.journal` | how what is alive was made, and what was under way (`journal/state.rs`) |
//! | regions | contents (`contents.rs`) |
//! | note `api` | that this is a session of OpenCL |
//! | note `outline` | that this is how its objects were made, and nothing else: whether they can be made elsewhere shows in that |

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
/// The name of the API in an image's part of a session.
const OPENCL_API: &str = "opencl";
/// Note of the memory that the session may hold, in bytes; 0: no limit.
pub const MEMORY_LIMIT_NOTE: &str = "quota";
/// Note of the address at which the session has memory that its program has too; absent where it has none.
const HOST_NOTE: &str = "host";
/// Note of an outline.
const OUTLINE_NOTE: &str = "outline";

/// Whether what an image has is a session of OpenCL.
#[must_use]
pub fn is_kept_in(part: &SessionPart) -> bool {
    part.notes.get(API_NOTE).and_then(serde_json::Value::as_str) == Some(OPENCL_API)
}

/// Where the session of an image had memory that its program has too; none if it had none.
#[must_use]
pub fn host_base(part: &SessionPart) -> Option<u64> {
    part.notes.get(HOST_NOTE).and_then(serde_json::Value::as_u64)
}

/// Reads bytes as the saved state of a session, and tells how many frames would be executed again; what fuzzing drives.
///
/// # Errors
///
/// Why they are none.
pub fn parse_state(bytes: &[u8]) -> Result<usize, StateError> {
    JournalState::decode(bytes).map(|state| state.records.len())
}

/// Whether that is the outline of a session: what is made of it has no contents, and becomes a session by an image.
#[must_use]
pub fn is_outline(part: &SessionPart) -> bool {
    part.notes.contains_key(OUTLINE_NOTE)
}

/// A session that was rebuilt from an outline has no contents, so no program can go on with it.
///
/// # Errors
///
/// It is one.
pub(crate) fn refuse_outline(part: &SessionPart) -> Result<(), Failure> {
    if is_outline(part) { Err("the image has the outline of a session alone, without contents".into()) } else { Ok(()) }
}

/// A session as it was at one moment.
struct Snapshot {
    part: SessionPart,
    state: Vec<u8>,
    captured: CapturedContents,
    /// Until all is written; the last field, so that whatever reads there is gone before.
    _zero_copy: Option<RetainedPages>,
}

impl Session {
    /// Takes a snapshot of the session, which is at rest; the program may go on afterwards.
    ///
    /// # Errors
    ///
    /// What cannot be kept. The session is as it was.
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

    /// How what is alive was made, at any moment between two frames.
    ///
    /// # Errors
    ///
    /// What can be no part of a checkpoint.
    pub(crate) fn outline(
        &mut self,
        name: &str,
    ) -> Result<impl katydid_session_core::PendingSnapshot + use<>, Failure> {
        let state = self.save_state()?;
        let mut part = self.part(name, &state.platforms);
        part.notes.insert(OUTLINE_NOTE.to_owned(), true.into());
        Ok(Snapshot { part, state: state.encode(), captured: CapturedContents::default(), _zero_copy: None })
    }

    /// What a manifest says of the session, without contents.
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

    /// Makes what an image has of this session, in which nothing has happened, but for contents: whether it would come back.
    ///
    /// # Errors
    ///
    /// As [`Session::restore_snapshot`] says it.
    pub(crate) fn rehearse_snapshot(&mut self, part: &SessionPart, source: &dyn ImageSource) -> Result<(), Failure> {
        let mut state = state_of(part, source)?;
        let requested = std::mem::take(&mut self.requested);
        self.replay.filled = filled_objects(part);
        Ok(self.rebuild(&mut state, &requested)?)
    }

    /// Makes this session, in which nothing has happened, the one of an image; or of an outline, and then, the next time, of an
    /// image.
    ///
    /// # Errors
    ///
    /// Why it cannot be that; it is then of no use. [`AddressMismatch`]: what was made of the outline is not what the image has.
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

/// The journal of a session in an image.
fn state_of(part: &SessionPart, source: &dyn ImageSource) -> Result<JournalState, Failure> {
    let journal = read_journal(part, source)?;
    Ok(JournalState::decode(&journal.ok_or(StateError::Damaged { what: "a session without a journal" })?)?)
}

/// The ids of the buffers and images whose contents an image of a session has.
fn filled_objects(part: &SessionPart) -> HashSet<u32> {
    let objects = part.regions.iter().filter(|region| matches!(region.kind.as_str(), "buffer" | "image"));
    objects.filter_map(|region| u32::try_from(region.object?).ok()).collect()
}

fn elsewhere(error: RebuildError) -> Failure {
    match error {
        // A worker in which nothing has happened may be given the address.
        RebuildError::Another | RebuildError::Moved { .. } => AddressMismatch(error.to_string()).into(),
        other => other.into(),
    }
}

impl katydid_session_core::PendingSnapshot for Snapshot {
    fn bytes(&self) -> u64 {
        self.captured.bytes()
    }

    fn changed(&self) -> u64 {
        // What differs is found when chunks are named.
        self.captured.bytes()
    }

    fn write(&mut self, sink: &dyn Sink) -> Result<SessionPart, Failure> {
        let mut part = std::mem::take(&mut self.part);
        part.regions = self.captured.write(sink)?;
        write_journal(&mut part, &self.state, sink)?;
        Ok(part)
    }
}
