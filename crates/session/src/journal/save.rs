//! Saves the journal: the frames of live objects, in their order, and current answers of the driver.
//!
//! Nothing may run: the caller has drained every stream and executor. An object that cannot be saved is refused by name, and
//! the session goes on unchanged.

#![expect(unsafe_code, reason = "calls the driver")]

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use katydid_cuda_sys::{CUmemLocation, CUresult, location_type};
use katydid_fatbin::OwnedImage;
use katydid_session_core::{JournalFrame, JournalRecord, ReplayStep};
use katydid_wire::codec::{Field as _, Message as _};
use katydid_wire::message::{
    kdHostRegister, kdKernelFunction, kdLibraryKernel, kdLibraryModule, kdMemoryMap, kdMemorySetAccess, kdMipmapLevel,
    kdModuleFunction, kdSurfaceReference, kdSurfaceReferenceSet, kdTextureCreate, kdTextureReference,
    kdTextureReferenceSet, message_name,
};
use katydid_wire::reference::{ReferenceArguments, property};
use katydid_wire::sharing::Sharing;
use katydid_wire::texture::TextureArguments;

use super::entries::Journal;
use super::entry::{ObjectEntry, ObjectKind, Steps};
use super::error::JournalError;
use super::graphs;
use super::state::{JournalState, Pending, SessionRequirements};
use crate::calls::fault::Fault;
use crate::device::ask::ask;
use crate::state::Session;

/// The saved state of a session, and the images that it refers to by number.
#[derive(Debug, Default)]
pub struct SavedState {
    /// The encoded state that [`Session::rebuild`] reads.
    pub state: Vec<u8>,
    /// Images of modules and libraries, each once.
    pub images: Vec<Arc<OwnedImage>>,
    /// The sessions that have to be saved with it.
    pub sharing: Sharing,
}

/// Collects the records of a state, and the images that they refer to.
#[derive(Default)]
struct StateRecords {
    records: Vec<(ObjectKind, JournalRecord)>,
    images: Vec<Arc<OwnedImage>>,
    numbers: HashMap<*const OwnedImage, u32>,
    /// The highest place of a graph.
    last_graph: u64,
}

impl StateRecords {
    fn frame(&mut self, kind: ObjectKind, frame: &JournalFrame, answer: Option<&[u8]>) -> &mut JournalRecord {
        let JournalFrame { order, thread, context, opcode, .. } = *frame;
        let (payload, answer) = (frame.payload().to_vec(), answer.map(<[u8]>::to_vec));
        let record = JournalRecord {
            step: ReplayStep::Frame,
            order,
            thread,
            context,
            opcode,
            image: None,
            steps: None,
            payload,
            answer,
        };
        self.add(kind, record)
    }

    fn add(&mut self, kind: ObjectKind, record: JournalRecord) -> &mut JournalRecord {
        self.records.push((kind, record));
        let last = self.records.len() - 1;
        &mut self.records[last].1
    }

    /// Adds a record that is no frame: `id` is first used in `context`, or is a number there.
    fn step(&mut self, step: ReplayStep, id: u32, context: u32, order: u64) {
        let payload = id.to_le_bytes().to_vec();
        let record = JournalRecord {
            step,
            order,
            thread: 1,
            context,
            opcode: 0,
            image: None,
            steps: None,
            payload,
            answer: None,
        };
        self.add(ObjectKind::Library, record);
    }

    /// Adds a sketch: an executable graph takes memory where it was first made.
    fn sketch(&mut self, entry: &ObjectEntry) {
        let Some(Steps { bytes, .. }) = entry.more().and_then(|more| more.steps.as_ref()) else { return };
        let steps = Some(Arc::clone(bytes));
        let record = self.frame(ObjectKind::Exec, &entry.creation, None);
        (record.step, record.opcode, record.steps) = (ReplayStep::Sketch, 0, steps);
    }

    /// Adds an object with its properties. The answer for one that is gone need not be the same again.
    fn entry(&mut self, journal: &Journal, kind: ObjectKind, entry: &ObjectEntry, is_alive: bool) {
        let more = entry.more();
        let image = more.and_then(|more| more.image.as_ref()).map(|image| self.image(image));
        let record = self.frame(kind, &entry.creation, more.and_then(|more| more.answer.as_deref()));
        record.image = image;
        let Some(more) = more else { return };
        for set in more.sets.values().filter(|set| journal.binding_lives(&set.frame)) {
            self.frame(kind, &set.frame, set.answer.as_deref().filter(|_| is_alive));
        }
        if let Some(by) = &more.given_up {
            // After every graph that still needs it, also if a change moved that graph.
            let order = if kind == ObjectKind::Condition { by.order.max(self.last_graph) } else { by.order };
            self.frame(kind, by, None).order = order;
        }
    }

    fn image(&mut self, image: &Arc<OwnedImage>) -> u32 {
        *self.numbers.entry(Arc::as_ptr(image)).or_insert_with(|| {
            self.images.push(Arc::clone(image));
            self.images.len() as u32 - 1
        })
    }
}

impl Journal {
    /// Returns the object that another one depends on.
    fn parent(entry: &ObjectEntry) -> Option<(ObjectKind, u64)> {
        // The parent is the second field of all of these.
        let parent = u64::from(entry.creation.word(4));
        match entry.creation.opcode {
            kdModuleFunction::OPCODE => Some((ObjectKind::Module, parent)),
            // A reference without a module has none.
            kdTextureReference::OPCODE | kdSurfaceReference::OPCODE if parent != 0 => {
                Some((ObjectKind::Module, parent))
            }
            kdKernelFunction::OPCODE => Some((ObjectKind::Kernel, parent)),
            kdLibraryKernel::OPCODE | kdLibraryModule::OPCODE => Some((ObjectKind::Library, parent)),
            kdMipmapLevel::OPCODE => Some((ObjectKind::Array, parent)),
            kdTextureCreate::OPCODE => {
                let message = kdTextureCreate::decode(entry.creation.payload()).ok()?;
                let arguments = TextureArguments::decode(message.arguments)?;
                // Kinds 0 and 1 are arrays and mipmaps, the others memory.
                (arguments.kind < 2).then_some((ObjectKind::Array, u64::from(arguments.array)))
            }
            katydid_wire::message::kdSurfaceCreate::OPCODE => {
                Some((ObjectKind::Array, u64::from(entry.creation.word(0))))
            }
            _ => None,
        }
    }

    /// Returns whether the array to which this frame bound a reference still exists; other frames name none.
    fn binding_lives(&self, frame: &JournalFrame) -> bool {
        let array = match frame.opcode {
            kdSurfaceReferenceSet::OPCODE => frame.word(4),
            kdTextureReferenceSet::OPCODE => {
                let message = kdTextureReferenceSet::decode(frame.payload()).ok();
                let it = message.and_then(|message| ReferenceArguments::decode(message.arguments));
                let bound = it.filter(|it| it.set & property::RESOURCE != 0 && it.texture.kind < 2);
                bound.map_or(0, |it| it.texture.array)
            }
            _ => 0,
        };
        array == 0 || self.lives(ObjectKind::Array, u64::from(array), frame.order)
    }

    /// Returns whether an object made before frame `order` lives, with all objects that it depends on.
    fn lives(&self, kind: ObjectKind, id: u64, order: u64) -> bool {
        self.get(kind, id).is_some_and(|entry| {
            let parent = Self::parent(&entry);
            entry.creation.order < order && parent.is_none_or(|(kind, id)| self.lives(kind, id, entry.creation.order))
        })
    }
}

impl Session {
    /// Returns the current state of the session.
    ///
    /// # Errors
    ///
    /// [`JournalError`]; the session can go on.
    pub fn journal(&mut self) -> Result<SavedState, JournalError> {
        if self.journal.is_off {
            return Err(JournalError::Off);
        }
        self.check_contexts()?;
        let sharing = self.shares.stand_still();
        let mut all = StateRecords::default();
        for kind in ObjectKind::ALL {
            for (id, entry) in self.journal.of(kind) {
                if kind == ObjectKind::Exec {
                    self.add_graph(&mut all, id as u32, &entry)?;
                } else if self.is_live(kind, id) {
                    all.entry(&self.journal, kind, &entry, true);
                }
                if kind == ObjectKind::Mapping {
                    self.add_access(&mut all, &entry)?;
                }
            }
        }
        for tombstone in self.journal.tombstones.iter() {
            match tombstone.entry.more().is_some_and(|more| more.steps.is_some()) {
                true => all.sketch(&tombstone.entry),
                false => all.entry(&self.journal, ObjectKind::Module, &tombstone.entry, false),
            }
            all.frame(ObjectKind::Module, &tombstone.ended, None);
        }
        self.journal.sketches.values().for_each(|entry| all.sketch(entry));
        let journal = &self.journal;
        let lives =
            |(kernel, _, order): &(u32, u32, u64)| journal.lives(ObjectKind::Kernel, u64::from(*kernel), *order);
        let launches: Vec<_> = journal.uses.launches().filter(lives).collect();
        // A launch that was a library's first use also loads it in a replay.
        let first: HashSet<_> = launches.iter().map(|(_, context, order)| (*context, *order)).collect();
        let others =
            journal.uses.in_order().into_iter().filter(|(_, context, order)| !first.contains(&(*context, *order)));
        others.for_each(|(library, context, order)| all.step(ReplayStep::Use, library, context, order));
        launches.into_iter().for_each(|(kernel, context, order)| all.step(ReplayStep::Launch, kernel, context, order));
        self.add_streams(&mut all);
        let (first, second) = self.in_order(all.records);
        let times = self.event_times().map_err(|fault| driver_error("the times of events", &fault))?;
        let exports = self.shares.exports();
        let state = JournalState { opening: self.opening(), pending: self.pending(), first, second, times, exports };
        Ok(SavedState { state: state.encode(), images: all.images, sharing })
    }

    /// Refuses contexts in error, which have lost their contents.
    fn check_contexts(&mut self) -> Result<(), JournalError> {
        let contexts: Vec<u32> = self.journal.of(ObjectKind::Context).map(|(id, _)| id as u32).collect();
        for context in contexts {
            let entered = self.enter_context(context);
            // SAFETY: takes nothing.
            let code = entered.and_then(|()| Ok(unsafe { self.driver().cuCtxSynchronize() }.ok()?));
            if let Err(fault) = code {
                let JournalError::Driver { code, .. } = driver_error("a context", &fault) else { continue };
                return Err(JournalError::Faulted { context, code });
            }
        }
        Ok(())
    }

    /// Returns whether an entry is to be replayed. Functions of an unloaded module, for example, are not: the program holds
    /// their ids, but may not use them.
    fn is_live(&self, kind: ObjectKind, id: u64) -> bool {
        let is_there = match kind {
            ObjectKind::Pinned => self.host.as_ref().is_some_and(|host| host.is_registered(id)),
            ObjectKind::Array => self.tables.arrays.get(id as u32).is_ok(),
            _ => true,
        };
        is_there && self.journal.lives(kind, id, u64::MAX)
    }

    /// Adds an executable graph, if its code still exists: otherwise it cannot be launched. If one of its events is gone, it
    /// perhaps can.
    fn add_graph(&self, all: &mut StateRecords, exec: u32, entry: &ObjectEntry) -> Result<(), JournalError> {
        let Some(graph) = graphs::current(entry).filter(|_| self.graphs.exec(exec).is_ok()) else { return Ok(()) };
        if !self.journal.sketches.contains_key(&exec.into()) {
            all.sketch(entry);
        }
        for (kind, id, before) in &graph.needs {
            match (kind, self.journal.lives(*kind, u64::from(*id), *before)) {
                (_, true) => {}
                (ObjectKind::Event, false) => return Err(JournalError::GraphEvent { exec, event: *id }),
                _ => return Ok(()),
            }
        }
        let record = all.frame(ObjectKind::Exec, &entry.creation, None);
        (record.steps, record.order) = (Some(graph.bytes), graph.order);
        all.last_graph = all.last_graph.max(graph.order);
        for change in graph.changes {
            // After the graph, also if another change moved that.
            all.frame(ObjectKind::Exec, change, None).order = change.order.max(graph.order);
        }
        Ok(())
    }

    /// Adds the streams that are gone, but existed when the driver placed something.
    fn add_streams(&self, all: &mut StateRecords) {
        let is_placed = |kind: &ObjectKind| !matches!(kind, ObjectKind::Stream | ObjectKind::Event);
        let placed = all.records.iter().filter(|(kind, _)| is_placed(kind)).map(|(_, record)| record.order);
        let living =
            self.journal.of(ObjectKind::Stream).map(|(_, entry)| (entry.creation.context, entry.creation.order));
        let (mut placed, mut living): (Vec<_>, Vec<_>) = (placed.collect(), living.collect());
        placed.sort_unstable();
        living.sort_unstable();
        for (context, count, order) in self.journal.pools.beyond(&living, &placed) {
            all.step(ReplayStep::Streams, count, context, order);
        }
    }

    /// Adds the access rights of a mapping as one frame.
    fn add_access(&self, all: &mut StateRecords, entry: &ObjectEntry) -> Result<(), JournalError> {
        let Ok(mapping) = kdMemoryMap::decode(entry.creation.payload()) else { return Ok(()) };
        let mut payload = Vec::new();
        mapping.address.put(&mut payload);
        mapping.size.put(&mut payload);
        let empty = payload.len();
        for device in 0..self.facts.devices.len() as i32 {
            let location = CUmemLocation { type_: location_type::DEVICE, id: device };
            // SAFETY: both pointers are locals' for the call.
            let flags = ask(|out| unsafe { self.driver().cuMemGetAccess(out, &raw const location, mapping.address) });
            let flags = flags.map_err(|code| driver_error("access to memory", &code.into()))?;
            if flags != 0 {
                location.type_.put(&mut payload);
                device.put(&mut payload);
                (flags as u32).put(&mut payload);
            }
        }
        if payload.len() > empty {
            let JournalFrame { order, thread, context, .. } = entry.creation;
            let opcode = kdMemorySetAccess::OPCODE;
            let record = JournalRecord {
                step: ReplayStep::Frame,
                order,
                thread,
                context,
                opcode,
                image: None,
                steps: None,
                payload,
                answer: None,
            };
            all.add(ObjectKind::Mapping, record);
        }
        Ok(())
    }

    /// Divides records into those that need no program, and those that wait for its memory, or for memory and events of
    /// others. Each part is in order, imports before objects that may refer to them. Textures and surfaces come last, by
    /// their numbers: a driver counts.
    fn in_order(&self, records: Vec<(ObjectKind, JournalRecord)>) -> (Vec<JournalRecord>, Vec<JournalRecord>) {
        // The worker's own memory needs no program.
        let is_programs = |kind: ObjectKind, record: &JournalRecord| {
            let message = kdHostRegister::decode(&record.payload).ok().filter(|_| kind == ObjectKind::Pinned);
            message.is_some_and(|message| self.host.as_ref().is_none_or(|host| !host.is_private(message.address)))
        };
        let (mut imported, mut records): (Vec<_>, Vec<_>) =
            records.into_iter().partition(|(kind, record)| self.is_imported(*kind, record));
        let may_name = !imported.is_empty() || records.iter().any(|(kind, record)| is_programs(*kind, record));
        if !may_name {
            drop_needless_sketches(&mut records);
        }
        imported.sort_by_key(replay_key);
        records.sort_by_key(replay_key);
        let waits = |kind: ObjectKind, record: &JournalRecord| match kind {
            _ if record.step == ReplayStep::Sketch => false,
            ObjectKind::Pinned => is_programs(kind, record),
            ObjectKind::Exec | ObjectKind::Texture | ObjectKind::Surface | ObjectKind::Reference => may_name,
            ObjectKind::Condition => may_name && message_name(record.opcode) == Some("kdGraphForget"),
            _ => false,
        };
        let (second, first): (Vec<_>, Vec<_>) = records.into_iter().partition(|(kind, record)| waits(*kind, record));
        let plain = |list: Vec<(ObjectKind, JournalRecord)>| list.into_iter().map(|(_, record)| record);
        (plain(first).collect(), plain(imported).chain(plain(second)).collect())
    }

    /// Returns whether a frame is about memory or an event of another program.
    fn is_imported(&self, kind: ObjectKind, record: &JournalRecord) -> bool {
        let id = record.payload.first_chunk().map_or(0, |id| u32::from_le_bytes(*id));
        match (kind, record.opcode) {
            (ObjectKind::Imported, _) => true,
            (ObjectKind::Block, _) => self.shares.has_block(id),
            (ObjectKind::Event, _) => self.shares.has_event(id),
            (ObjectKind::Mapping, kdMemoryMap::OPCODE) => {
                let message = kdMemoryMap::decode(&record.payload).ok();
                message.is_some_and(|message| self.shares.has_block(message.memory))
            }
            // Access rights to an imported mapping.
            (ObjectKind::Mapping, _) => {
                let address = record.payload.first_chunk().map_or(0, |address| u64::from_le_bytes(*address));
                let block = self.virtual_memory.block_at(address);
                block.is_some_and(|block| self.shares.has_block(block))
            }
            _ => false,
        }
    }

    fn opening(&self) -> SessionRequirements {
        let (arenas, memory_limit) = (self.device.map().arenas(), self.device.limit());
        SessionRequirements { arenas, memory_limit, facts: self.facts.clone() }
    }

    fn pending(&self) -> Pending {
        let mut linked: Vec<_> = self.linked.iter().map(|(thread, image)| (*thread, image.clone())).collect();
        linked.sort();
        Pending {
            id_counts: self.tables.id_counts(),
            progress: self.main_loop.progress(&self.shared),
            is_relayed: self.is_relayed,
            uploads: self.uploads.unfinished(),
            linked,
            upcall: self.shared.upcalls.waiting(),
        }
    }
}

/// Returns the sort key of a record. Textures and surfaces come last, by their numbers. The use of a library comes before
/// the frame that uses it, which would load it otherwise.
fn replay_key((kind, record): &(ObjectKind, JournalRecord)) -> (bool, u64, bool) {
    match kind {
        ObjectKind::Texture | ObjectKind::Surface => (true, object_number(record), true),
        _ => (false, record.order, record.step != ReplayStep::Use),
    }
}

/// Drops the sketches of executable graphs that are replayed where they were first made: these take their memory themselves.
fn drop_needless_sketches(records: &mut Vec<(ObjectKind, JournalRecord)>) {
    let creation_key = |record: &JournalRecord| (record.payload.first_chunk::<4>().copied(), record.order);
    let is_made = |(kind, record): &&(ObjectKind, JournalRecord)| {
        *kind == ObjectKind::Exec && record.step == ReplayStep::Frame && record.steps.is_some()
    };
    let creation_keys: HashSet<_> = records.iter().filter(is_made).map(|(_, record)| creation_key(record)).collect();
    records.retain(|(_, record)| record.step != ReplayStep::Sketch || !creation_keys.contains(&creation_key(record)));
}

/// Returns the number that a driver chose for a texture or surface.
pub(super) fn object_number(record: &JournalRecord) -> u64 {
    let answer = record.answer.as_deref().and_then(<[u8]>::first_chunk);
    answer.map_or(0, |number| u64::from_le_bytes(*number))
}

fn driver_error(what: &'static str, fault: &Fault) -> JournalError {
    let code = match fault {
        Fault::Cuda(code) => *code,
        Fault::Fatal(_) => CUresult::ERROR_UNKNOWN,
    };
    JournalError::Driver { what, code: code.0 }
}
