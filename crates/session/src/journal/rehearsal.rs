//! The second pass of a replay in a rehearsal, without the program and the other sessions of the job.
//!
//! Little memory stands in for the session's host memory, and for memory that other sessions export to it. An event of the
//! worker stands in for each imported one. So objects that refer to them are made as in a restore.

#![expect(unsafe_code, reason = "calls the driver")]

use katydid_cuda_sys::{CUevent, CUresult};
use katydid_session_core::{Api as _, JournalRecord, StateError};
use katydid_wire::codec::{Message as _, Reply as _};
use katydid_wire::message::{kdEventImport, kdHostRegister, kdImportedMap, kdMemoryImport, kdMemoryImportReply};

use super::error::RebuildError;
use crate::calls::fault::Fault;
use crate::calls::session_shared::Cuda;
use crate::device::ask::ask;
use crate::memory::device_block::create;
use crate::memory::stand_in::block_for;
use crate::memory::virtual_memory::Memory;
use crate::state::Session;

/// Messages by which a session imports from another one.
const IMPORTING_OPCODES: [u16; 3] = [kdImportedMap::OPCODE, kdMemoryImport::OPCODE, kdEventImport::OPCODE];
/// `CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS`, as every event has that can be exported.
const EXPORTABLE_EVENT_FLAGS: u32 = 6;

impl Session {
    /// Rebuilds like [`Session::reattach`]. If a driver accepts no stand-in for an object, the records after it are skipped.
    ///
    /// # Errors
    ///
    /// [`RebuildError`].
    pub(crate) fn rehearse_reattach(&mut self) -> Result<(), RebuildError> {
        let second = std::mem::take(&mut self.replay.second);
        if self.host.as_mut().is_some_and(|host| host.begin_rehearsal().is_err()) {
            return Ok(());
        }
        match self.replay_all(&second, &mut |_| None) {
            Err(error) if is_of_a_stand_in(&error) => Ok(()),
            rehearsed => rehearsed,
        }
    }

    /// Returns whether a record's object needs a stand-in.
    pub(super) fn needs_stand_in(&self, record: &JournalRecord) -> bool {
        self.device.is_rehearsal() && IMPORTING_OPCODES.contains(&record.opcode)
    }

    /// Makes the stand-in for memory or an event of another session.
    pub(super) fn stand_in(&mut self, record: &JournalRecord) -> Result<(), RebuildError> {
        let head = self.head_of(record);
        self.enter_for(&head).map_err(RebuildError::from_fault)?;
        let message = Cuda::MESSAGES.name_of(record.opcode);
        let result = match record.opcode {
            kdImportedMap::OPCODE => {
                let kdImportedMap { address, size, device, .. } =
                    kdImportedMap::decode(&record.payload).map_err(StateError::from)?;
                self.map_stand_in(device, address, size)
            }
            kdMemoryImport::OPCODE => {
                let imported = kdMemoryImport::decode(&record.payload).map_err(StateError::from)?;
                // Images of 0.1.0 do not tell the size of the block.
                let reply = record.answer.as_deref().map(kdMemoryImportReply::decode).transpose();
                match reply.map_err(StateError::from)? {
                    Some(kdMemoryImportReply { size, device }) => self.block_stand_in(imported.memory, size, device),
                    None => Err(CUresult::ERROR_NOT_SUPPORTED.into()),
                }
            }
            _ => {
                let imported = kdEventImport::decode(&record.payload).map_err(StateError::from)?;
                self.event_stand_in(imported.event)
            }
        };
        match result {
            Err(Fault::Cuda(CUresult(code))) => Err(RebuildError::Refused { message, code }),
            result => result.map_err(RebuildError::from_fault),
        }
    }

    fn map_stand_in(&mut self, device: i32, address: u64, size: u64) -> Result<(), Fault> {
        self.virtual_memory.check_room(address, size)?;
        self.device.stand_in(&self.shared.driver, device, address, size)
    }

    fn block_stand_in(&mut self, id: u32, size: u64, device: i32) -> Result<(), Fault> {
        self.virtual_memory.check_new(id)?;
        let block = create(&self.shared.driver, device, block_for(size))?;
        self.virtual_memory.add(id, block, size, Memory::Device);
        Ok(())
    }

    fn event_stand_in(&mut self, id: u32) -> Result<(), Fault> {
        self.tables.events.check_new(id)?;
        // SAFETY: the output is a local.
        let event: CUevent = ask(|out| unsafe { self.shared.driver.cuEventCreate(out, EXPORTABLE_EVENT_FLAGS) })?;
        self.bind(id, event)
    }
}

/// Returns whether the driver has refused a stand-in, so that nothing was found out about the session.
fn is_of_a_stand_in(error: &RebuildError) -> bool {
    let (RebuildError::Refused { message, .. } | RebuildError::NoMemory { message }) = error else { return false };
    IMPORTING_OPCODES
        .into_iter()
        .chain([kdHostRegister::OPCODE])
        .any(|opcode| Cuda::MESSAGES.name_of(opcode) == *message)
}
