//! A whole session, saved to an image and restored: its journal, its loaded code, the contents of its memory.
//!
//! | in the image | what |
//! |---|---|
//! | state `NAME.journal` | how live objects were made (`journal.rs`) |
//! | regions of kind `code` | images of modules and libraries, by their numbers in the journal |
//! | state `NAME.contents` | variables with their addresses, heaps |
//! | all other regions | contents (`areas.rs`) |

use std::collections::BTreeMap;
use std::sync::Arc;

use katydid_cuda_sys::device_attribute;
use katydid_fatbin::OwnedImage;
use katydid_image::{Arena, ChunkId, Device, ImageSource, Region, Session as SessionPart, Sink};
use katydid_session_core::{
    CaptureOptions, FRAMES_NOTE, Failure, Progress, RestoreOptions, read_journal, write_journal,
};
use katydid_wire::facts::DeviceFacts;
use katydid_wire::handshake::{ArenaKind, ArenaRange, PROTOCOL_VERSION};
use katydid_wire::sharing::{EXPORTS_NOTE, Sharing};

use super::area::CHUNK_BYTES;
use super::capture::CapturedContents;
use super::code::CODE_KIND;
use super::error::SnapshotError;
use super::restore::{RestoreSource, Share};
use crate::journal::SavedState;
use crate::state::Session;

/// Largest image of code that is read back, as large as an upload may be.
const MAX_IMAGE_CODE_BYTES: u64 = katydid_session_core::MAX_MODULE_IMAGE_BYTES;

/// A session as it was at one moment; [`SessionSnapshot::write`] writes it to the image.
pub struct SessionSnapshot {
    /// The image's description of the session, without its contents.
    part: SessionPart,
    saved: SavedState,
    captured: CapturedContents,
}

impl Session {
    /// Takes a snapshot of the session, whose GPU is at rest; the program may go on afterwards.
    ///
    /// # Errors
    ///
    /// What cannot be saved. The session is unchanged.
    pub fn snapshot(
        &mut self,
        name: &str,
        options: CaptureOptions,
        sink: &dyn Sink,
        progress: &Arc<Progress>,
    ) -> Result<SessionSnapshot, SnapshotError> {
        let saved = self.journal()?;
        let captured = self.capture(options, sink, Arc::clone(progress))?;
        Ok(SessionSnapshot { part: self.part(name), saved, captured })
    }

    /// Returns the description of the session for users, and for the worker that rebuilds it.
    fn part(&self, name: &str) -> SessionPart {
        let devices = self.facts.devices.iter().zip(0..).map(|(facts, index)| device(facts, index)).collect();
        let arenas = self.device.map().arenas().iter().map(arena).collect();
        let mut notes = BTreeMap::from([(FRAMES_NOTE.to_owned(), self.main_loop.frames.into())]);
        notes.extend(self.shares.has_exports().then(|| (EXPORTS_NOTE.to_owned(), true.into())));
        let driver_version = u32::try_from(self.facts.driver_version).unwrap_or(0);
        let name = name.to_owned();
        SessionPart {
            name,
            driver_version,
            protocol: PROTOCOL_VERSION,
            devices,
            arenas,
            notes,
            ..SessionPart::default()
        }
    }

    /// Restores the session of an image in this new one: everything on devices. [`Session::restore_host`] does the rest. A
    /// rehearsal ends before contents, and its session cannot be used.
    ///
    /// # Errors
    ///
    /// Why it cannot be restored; the session cannot be used then.
    pub fn restore(
        &mut self,
        part: &SessionPart,
        source: &dyn ImageSource,
        progress: &Progress,
        options: RestoreOptions,
    ) -> Result<(), SnapshotError> {
        if options.rehearsal {
            self.device.begin_rehearsal();
        }
        let journal = journal_of(part, source)?;
        let mut failure = None;
        let mut code = |number| code_of(part, source, number).map_err(|error| failure.insert(error)).ok();
        let rebuilt = self.rebuild(&journal, &mut code);
        match failure {
            Some(error) => return Err(error),
            None => rebuilt?,
        }
        self.main_loop.frames = part.notes.get(FRAMES_NOTE).and_then(serde_json::Value::as_u64).ok_or_else(|| {
            let reason = "the number of frames is missing".to_owned();
            SnapshotError::Damaged { what: "the session", reason }
        })?;
        let image = RestoreSource { part, journal: &journal, source };
        if options.rehearsal {
            self.check_variables(image, options)?;
            return Ok(self.rehearse_reattach()?);
        }
        self.put_back(Share::Device, image, progress, options)?;
        Ok(self.open_exporter_socket()?)
    }

    /// Restores the rest, once the program's host memory is there.
    ///
    /// # Errors
    ///
    /// As [`Session::restore`].
    pub fn restore_host(
        &mut self,
        part: &SessionPart,
        source: &dyn ImageSource,
        progress: &Progress,
    ) -> Result<(), SnapshotError> {
        self.reattach()?;
        self.put_back(Share::Host, RestoreSource { part, journal: &[], source }, progress, RestoreOptions::default())
    }
}

fn device(facts: &DeviceFacts, index: u32) -> Device {
    let attribute = |id| facts.attribute(id).map_or(0, |answer| u32::try_from(answer.value).unwrap_or(0));
    let major = attribute(device_attribute::COMPUTE_CAPABILITY_MAJOR.cast_signed());
    let minor = attribute(device_attribute::COMPUTE_CAPABILITY_MINOR.cast_signed());
    let uuid = facts.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    Device { index, name: facts.name.clone(), uuid, capability: (major, minor), memory: facts.total_memory }
}

fn arena(range: &ArenaRange) -> Arena {
    let kind = if range.kind == ArenaKind::PINNED { "pinned" } else { "device" };
    Arena { kind: kind.to_owned(), gpu: None, base: range.base, bytes: range.length }
}

/// Returns the journal of a session in an image, which its worker needs before it makes the session.
///
/// # Errors
///
/// It is missing, or damaged.
pub fn journal_of(part: &SessionPart, source: &dyn ImageSource) -> Result<Vec<u8>, SnapshotError> {
    let missing = || SnapshotError::Damaged { what: "the journal", reason: "it is not there".to_owned() };
    read_journal(part, source)?.ok_or_else(missing)
}

/// Returns the image of code with a number of the journal; an error if the part does not have it.
fn code_of(part: &SessionPart, source: &dyn ImageSource, number: u32) -> Result<Vec<u8>, SnapshotError> {
    let damaged = |reason: &str| SnapshotError::Damaged { what: "code", reason: format!("image {number} {reason}") };
    let is_it = |region: &&Region| region.kind == CODE_KIND && region.object == Some(number.into());
    let region = part.regions.iter().find(is_it).ok_or_else(|| damaged("is not there"))?;
    if region.bytes > MAX_IMAGE_CODE_BYTES {
        return Err(damaged("is larger than any"));
    }
    let mut flat = vec![0; region.bytes as usize];
    let mut at = 0;
    for (index, name) in region.chunks.iter().enumerate() {
        let length = region.chunk_len(index).ok_or_else(|| damaged("has other chunks than its length takes"))?;
        source.read(name, &mut flat[at..at + length])?;
        at += length;
    }
    Ok(flat)
}

/// Writes code to the image; for code that the image has already this only costs a hash.
fn write_code(number: usize, image: &OwnedImage, sink: &dyn Sink) -> Result<Region, SnapshotError> {
    let flat = image.image().encode();
    let chunks = flat.chunks(CHUNK_BYTES as usize).map(|chunk| sink.put(chunk)).collect::<Result<Vec<ChunkId>, _>>()?;
    Ok(Region {
        kind: CODE_KIND.to_owned(),
        name: format!("image {number}"),
        object: Some(number as u64),
        gpu: None,
        address: 0,
        bytes: flat.len() as u64,
        chunk_bytes: CHUNK_BYTES as u32,
        chunks,
    })
}

impl SessionSnapshot {
    /// Writes everything to the image; for a separate thread, while the program goes on. The worker has to complete the
    /// result: driver, devices, arenas.
    ///
    /// # Errors
    ///
    /// Any failure; the image is then without this session.
    pub(crate) fn write(&mut self, sink: &dyn Sink) -> Result<SessionPart, SnapshotError> {
        let mut part = std::mem::take(&mut self.part);
        let contents = self.captured.write(&part.name, sink)?;
        (part.regions, part.states) = (contents.regions, contents.states);
        for (number, image) in self.saved.images.iter().enumerate() {
            part.regions.push(write_code(number, image, sink)?);
        }
        write_journal(&mut part, &self.saved.state, sink)?;
        Ok(part)
    }
}

impl katydid_session_core::PendingSnapshot for SessionSnapshot {
    fn bytes(&self) -> u64 {
        self.captured.bytes()
    }

    fn changed(&self) -> u64 {
        self.captured.changed()
    }

    fn sharing(&self) -> Sharing {
        self.saved.sharing.clone()
    }

    fn write(&mut self, sink: &dyn Sink) -> Result<SessionPart, Failure> {
        Ok(Self::write(self, sink)?)
    }
}
