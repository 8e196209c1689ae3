//! Replays a journal into a fresh session.
//!
//! Saved state is trusted no more than a program: every frame passes the dispatch and its checks. Only messages that a
//! journal can hold are accepted, and the program's answers are compared. A difference refuses the restore and names the
//! object: device memory may hold pointers to it.
//!
//! There are two passes. The first needs nothing of the program, so that it can run while the program is being restored. The
//! second imports what other sessions of the job export, registers the program's memory, and makes objects that may refer to
//! either.

#![expect(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;

use katydid_cuda_sys::{CUkernel, CUlibrary, CUresult};
use katydid_session_core::{
    Api as _, JournalFrame, JournalRecord, ReplayStep, ReplayTarget, StateError, Uploads, replay, replaying,
};
use katydid_wire::codec::Message as _;
use katydid_wire::facts::{FunctionFacts, GraphFacts};
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{
    kdGraphCondition, kdGraphInstantiate, kdHostRegister, kdKernelFunction, kdLibraryGlobal, kdLibraryKernel,
    kdMemorySetAccess, kdModuleFunction, kdModuleGlobal, kdSurfaceCreate, kdTextureCreate,
};

use super::entry::Steps;
use super::error::RebuildError;
use super::graphs::needs;
use super::state::JournalState;
use crate::calls::dispatch::{is_end, is_kept};
use crate::calls::fault::SessionError;
use crate::calls::session_shared::Cuda;
use crate::device::ask::ask;
use crate::state::Session;

impl ReplayTarget for Session {
    fn set_replaying(&mut self, is_on: bool) {
        self.replay.is_on = is_on;
    }

    fn outcome(&mut self) -> &mut CUresult {
        &mut self.replay.outcome
    }

    fn may_replay(opcode: u16) -> bool {
        is_kept(opcode) || is_end(opcode) || opcode == kdMemorySetAccess::OPCODE
    }
}

impl Session {
    /// Rebuilds everything that needs no program, in a new session. `images` returns the flat form of an image by its
    /// number.
    ///
    /// # Errors
    ///
    /// [`RebuildError`].
    pub fn rebuild(
        &mut self,
        state: &[u8],
        images: &mut dyn FnMut(u32) -> Option<Vec<u8>>,
    ) -> Result<(), RebuildError> {
        let JournalState { opening, pending, first, second, times, exports } = JournalState::decode(state)?;
        let (had, have) = (opening.facts.devices.len(), self.facts.devices.len());
        if had > have {
            return Err(RebuildError::Devices { had, have });
        }
        self.tables.resume(pending.id_counts);
        self.expect_memory(&first);
        self.replay_all(&first, images)?;
        self.restore_times(times).map_err(RebuildError::from_fault)?;
        (self.replay.exports, self.replay.second) = (exports, second);
        self.facts = opening.facts;
        self.uploads.resume(pending.uploads).map_err(SessionError::from)?;
        self.linked = pending.linked.into_iter().collect();
        self.is_relayed = pending.is_relayed;
        self.main_loop.resume(&self.shared, pending.progress, pending.upcall);
        Ok(())
    }

    /// Opens the session's exporter socket to importers, once the contents are there. A worker that is given up earlier,
    /// because its driver chose other addresses, must export nothing.
    ///
    /// # Errors
    ///
    /// [`RebuildError`].
    pub fn open_exporter_socket(&mut self) -> Result<(), RebuildError> {
        let exports = std::mem::take(&mut self.replay.exports);
        self.export_again(exports).map_err(RebuildError::from_export)
    }

    /// Rebuilds the rest, once the program's pinned memory is there, and the sessions that share something with this one
    /// have opened their exporter sockets.
    ///
    /// # Errors
    ///
    /// [`RebuildError`].
    pub fn reattach(&mut self) -> Result<(), RebuildError> {
        let second = std::mem::take(&mut self.replay.second);
        self.replay_all(&second, &mut |_| None)
    }

    pub(super) fn replay_all(
        &mut self,
        records: &[JournalRecord],
        images: &mut dyn FnMut(u32) -> Option<Vec<u8>>,
    ) -> Result<(), RebuildError> {
        // Threads may have unfinished uploads, which a record of theirs must not replace.
        let unfinished = std::mem::replace(&mut self.uploads, Uploads::of_images());
        replaying(self, |session| {
            let outcome = records.iter().try_for_each(|record| session.replay_one(record, images));
            session.uploads = unfinished;
            session.end_fillers();
            outcome
        })
    }

    fn replay_one(
        &mut self,
        record: &JournalRecord,
        images: &mut dyn FnMut(u32) -> Option<Vec<u8>>,
    ) -> Result<(), RebuildError> {
        if record.step == ReplayStep::Sketch {
            return self.sketch(record);
        }
        let flat = match (record.image, &record.steps) {
            (Some(number), _) => Some(images(number).ok_or(RebuildError::Image { number })?),
            (None, Some(steps)) => Some(steps.to_vec()),
            (None, None) => None,
        };
        if let Some(flat) = flat {
            self.uploads.give(record.thread, flat);
        }
        self.await_memory(record);
        match (record.step, record.opcode) {
            (ReplayStep::Frame, _) if self.needs_stand_in(record) => self.stand_in(record),
            (ReplayStep::Use, _) => self.use_library(record),
            (ReplayStep::Launch, _) => self.load_kernel(record),
            (ReplayStep::Streams, _) => self.pool_streams(record),
            (_, kdTextureCreate::OPCODE | kdSurfaceCreate::OPCODE) => self.replay_texture(record),
            (_, kdGraphCondition::OPCODE) => self.replay_condition(record),
            (_, kdHostRegister::OPCODE) => self.register_again(record),
            (_, kdGraphInstantiate::OPCODE) => {
                self.end_sketch(used(record));
                self.run(record)
            }
            _ => {
                self.run(record)?;
                self.compare(record)
            }
        }
    }

    /// Has the driver allocate the memory of an executable graph that is made later. If the driver refuses, the comparison
    /// of addresses shows whether that matters.
    fn sketch(&mut self, record: &JournalRecord) -> Result<(), RebuildError> {
        let damaged = || StateError::Damaged { what: "the sketch of a graph" };
        let bytes = record.steps.as_ref().ok_or_else(damaged)?;
        let facts = GraphFacts::decode(bytes).map_err(|_| damaged())?;
        let message = kdGraphInstantiate::decode(&record.payload).map_err(|_| damaged())?;
        let head = FrameHead { opcode: kdGraphInstantiate::OPCODE, ..self.head_of(record) };
        self.enter_for(&head).map_err(RebuildError::from_fault)?;
        let _ = self.sketch_graph(&head, message.exec, &facts);
        let steps = Steps { bytes: Arc::clone(bytes), needs: needs(&facts) };
        self.journal.keep_sketch(message.exec, JournalFrame::new(&head, self.current, &record.payload), steps);
        Ok(())
    }

    /// Executes a frame, which must succeed as before.
    pub(super) fn run(&mut self, record: &JournalRecord) -> Result<(), RebuildError> {
        let message = Cuda::MESSAGES.name_of(record.opcode);
        let mut code = self.run_once(record)?;
        // A module's image is used up by the first attempt.
        if code == CUresult::ERROR_OUT_OF_MEMORY && record.image.is_none() {
            self.ask_for_memory_of_context();
            code = self.run_once(record)?;
        }
        // An end may be refused as it was the first time.
        let passes = code == CUresult::SUCCESS || is_end(record.opcode);
        match (code, record.image) {
            _ if passes => Ok(()),
            (CUresult::ERROR_OUT_OF_MEMORY, _) => Err(RebuildError::NoMemory { message }),
            (CUresult(code), Some(_)) => Err(RebuildError::Code { message, code }),
            (CUresult(code), None) => Err(RebuildError::Refused { message, code }),
        }
    }

    /// Executes a frame; returns its status.
    fn run_once(&mut self, record: &JournalRecord) -> Result<CUresult, RebuildError> {
        let head = self.head_of(record);
        Ok(replay(self, &head, record)?)
    }

    /// Returns the head of a frame, with some context: in most drivers, frames without one need one nevertheless.
    pub(super) fn head_of(&self, record: &JournalRecord) -> FrameHead {
        let head = record.head();
        match head.context {
            0 if self.current == 0 => FrameHead { context: self.tables.contexts.any(), ..head },
            _ => head,
        }
    }

    /// Checks that the driver gives the same answer as the program received.
    fn compare(&self, record: &JournalRecord) -> Result<(), RebuildError> {
        let (Some(was), is) = (record.answer.as_deref(), self.reply_payload.as_slice()) else { return Ok(()) };
        match record.opcode {
            kdModuleFunction::OPCODE | kdLibraryKernel::OPCODE | kdKernelFunction::OPCODE => {
                same_parameters(record, was, is)
            }
            kdModuleGlobal::OPCODE | kdLibraryGlobal::OPCODE if was != is => {
                let number = |bytes: &[u8]| bytes.first_chunk().map_or(0, |number| u64::from_le_bytes(*number));
                let name = String::from_utf8_lossy(variable(record)).into_owned();
                let what = format!("the address of the variable {name}");
                Err(RebuildError::Moved { what, saved: number(was), current: number(is) })
            }
            _ => Ok(()),
        }
    }

    /// Has the driver load a library in a context, as its first use there did.
    fn use_library(&mut self, record: &JournalRecord) -> Result<(), RebuildError> {
        let id = used(record);
        let head = self.head_of(record);
        self.enter_for(&head).map_err(RebuildError::from_fault)?;
        let library: CUlibrary = self.handle(&head, id).map_err(RebuildError::from_fault)?;
        // SAFETY: the output is a local. A library without code for this device is refused as before, when the program only
        // asked for variables.
        let _ = ask(|out| unsafe { self.driver().cuLibraryGetModule(out, library) });
        self.journal.uses.note(id, self.current, record.order);
        Ok(())
    }

    /// Has the driver load a kernel in a context, as its first launch there did.
    fn load_kernel(&mut self, record: &JournalRecord) -> Result<(), RebuildError> {
        let id = used(record);
        let head = self.head_of(record);
        self.enter_for(&head).map_err(RebuildError::from_fault)?;
        let kernel: CUkernel = self.handle(&head, id).map_err(RebuildError::from_fault)?;
        let driver = self.driver();
        // SAFETY: the output is a local.
        if let Ok(function) = ask(|out| unsafe { driver.cuKernelGetFunction(out, kernel) }) {
            // SAFETY: a function that the driver has just returned. A driver that loads at once, or knows no loading, is as
            // good.
            let _ = unsafe { driver.cuFuncLoad(function) };
        }
        self.journal.launched(id, self.current, record.order);
        Ok(())
    }

    /// Registers pinned memory; without a live context, the next one will.
    fn register_again(&mut self, record: &JournalRecord) -> Result<(), RebuildError> {
        let message = kdHostRegister::decode(&record.payload).map_err(StateError::from)?;
        if self.tables.contexts.any() != 0 {
            return self.run(record);
        }
        let Some(host) = &mut self.host else { return Err(refused(record, CUresult::ERROR_NOT_SUPPORTED)) };
        host.adopt(message.address, message.size).map_err(RebuildError::from_fault)?;
        self.address_check.admit_pinned(message.address, message.size);
        let entry = JournalFrame::new(&FrameHead { context: 0, ..self.head_of(record) }, 0, &record.payload);
        self.journal.keep_pinned(message.address, entry);
        Ok(())
    }
}

/// Returns the name in a query for a variable.
fn variable(record: &JournalRecord) -> &[u8] {
    match record.opcode {
        kdModuleGlobal::OPCODE => kdModuleGlobal::decode(&record.payload).map_or(&[], |message| message.name),
        _ => kdLibraryGlobal::decode(&record.payload).map_or(&[], |message| message.name),
    }
}

/// Returns the id in a record that is no frame.
pub(super) fn used(record: &JournalRecord) -> u32 {
    record.first_word().unwrap_or(0)
}

fn refused(record: &JournalRecord, code: CUresult) -> RebuildError {
    RebuildError::Refused { message: Cuda::MESSAGES.name_of(record.opcode), code: code.0 }
}

/// Checks the parameters of a function: launches pack them in the layout that the program received once.
fn same_parameters(record: &JournalRecord, was: &[u8], is: &[u8]) -> Result<(), RebuildError> {
    let read = |bytes: &[u8]| {
        // The facts are the reply's only field: their length, and then themselves.
        let facts = bytes.get(4..).map(FunctionFacts::decode);
        facts.and_then(Result::ok).map(|facts| facts.parameters).unwrap_or_default()
    };
    if read(was) == read(is) {
        return Ok(());
    }
    let name = record.payload.get(8..).unwrap_or_default();
    Err(RebuildError::Parameters { function: String::from_utf8_lossy(name).into_owned() })
}
