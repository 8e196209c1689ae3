//! Memory and events that programs of one server share.

#![expect(unsafe_code, reason = "calls the driver")]

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use katydid_cuda_sys::{CUevent, CUipcEventHandle, CUmemAllocationProp, CUresult, Pod, location_type};
use katydid_driver::Driver;
use katydid_transport::share::{ExportedPiece, SHARE_NAME_BYTES};
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{
    kdEventExport, kdEventExportReply, kdEventImport, kdEventImportReply, kdImportedMap, kdImportedMapReply,
    kdImportedUnmap, kdImportedUnmapReply, kdMemoryEndExport, kdMemoryEndExportReply, kdMemoryExport,
    kdMemoryExportReply, kdMemoryImport, kdMemoryImportReply,
};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::calls::fault::Fault;
use crate::device::ask::ask;
use crate::handlers::{CallResult, ExecutorResult, success};
use crate::memory::shares::{Exports, SharedObject, block_of, descriptor};
use crate::memory::virtual_memory::Memory;
use crate::state::Session;

/// Exports a block of the program, or the pieces of an arena that hold a range.
pub(crate) fn kdMemoryExport(
    session: &mut Session,
    _head: &FrameHead,
    message: kdMemoryExport,
) -> CallResult<kdMemoryExportReply> {
    let kdMemoryExport { generation, memory, address, length, .. } = message;
    let (subject, offset, size) = if memory == 0 {
        let ranges = session.device.pieces(address, length)?;
        let first = ranges.first().map_or(address, |(start, _)| *start);
        ((SharedObject::Range(address), length), address - first, ranges.iter().map(|(_, size)| size).sum())
    } else {
        ((SharedObject::Block(memory), 0), 0, session.virtual_memory.block_and_size(memory)?.1)
    };
    success(kdMemoryExportReply { offset, size, name: session.export(generation, subject)?.to_vec() })
}

/// Ends the export of arena memory that the program has freed.
pub(crate) fn kdMemoryEndExport(
    session: &mut Session,
    _head: &FrameHead,
    message: kdMemoryEndExport,
) -> CallResult<kdMemoryEndExportReply> {
    session.shares.end(SharedObject::Range(message.address));
    success(kdMemoryEndExportReply {})
}

impl Session {
    /// Returns the name of an exported object, and exports it if it was not.
    fn export(
        &mut self,
        generation: u64,
        (subject, length): (SharedObject, u64),
    ) -> Result<[u8; SHARE_NAME_BYTES], Fault> {
        if let Some(name) = self.shares.name_of(subject, length) {
            return Ok(name);
        }
        let pieces = self.pieces_of(subject, length)?;
        Ok(self.shares.export(generation, (subject, length), pieces)?)
    }

    /// Exports everything that a session image had exported, under the same names.
    ///
    /// # Errors
    ///
    /// The code of the driver for a piece, or the system's error.
    pub(crate) fn export_again(&mut self, exports: Exports) -> Result<(), Fault> {
        let Some(exporter_id) = exports.exporter_id else { return Ok(()) };
        let mut all = Vec::with_capacity(exports.exports.len());
        for export in exports.exports {
            if let SharedObject::Event(event) = export.subject {
                self.enter_context(self.tables.events.context(event)?)?;
            }
            all.push((export, self.pieces_of(export.subject, export.length)?));
        }
        Ok(self.shares.open_again(exporter_id, all)?)
    }

    /// Returns the descriptors for an importer.
    fn pieces_of(&mut self, subject: SharedObject, length: u64) -> Result<Vec<ExportedPiece>, Fault> {
        let driver = Arc::clone(&self.shared.driver);
        Ok(match subject {
            SharedObject::Range(address) => {
                let ranges = self.device.pieces(address, length)?;
                ranges.iter().map(|(start, size)| export_piece(&driver, *start, *size)).collect::<Result<_, _>>()?
            }
            SharedObject::Block(memory) => {
                let (block, size) = self.virtual_memory.block_and_size(memory)?;
                vec![(descriptor(&driver, block)?, size)]
            }
            SharedObject::Event(event) => {
                let event: CUevent = self.tables.events.get(event)?;
                // SAFETY: the output is a local, the event is the driver's own.
                let handle: CUipcEventHandle = ask(|out| unsafe { driver.cuIpcGetEventHandle(out, event) })?;
                let failed = |_: std::io::Error| CUresult::ERROR_OPERATING_SYSTEM;
                let mut pieces = vec![in_file(&handle.to_bytes()).map_err(failed)?];
                if driver.is_soft() {
                    pieces.push((soft_descriptor(&handle).map_err(failed)?, 0));
                }
                pieces
            }
        })
    }
}

/// Location of the process, and of its descriptor, in softcuda's event handles.
const SOFT_PROCESS: std::ops::Range<usize> = 8..16;
const SOFT_DESCRIPTOR: std::ops::Range<usize> = 16..24;

/// Returns the descriptor in softcuda's handle of an event: an importer cannot take it from this process by itself.
fn soft_descriptor(handle: &CUipcEventHandle) -> std::io::Result<OwnedFd> {
    let bytes = handle.to_bytes();
    let number =
        bytes.get(SOFT_DESCRIPTOR).and_then(|bytes| bytes.try_into().ok()).map_or(u64::MAX, u64::from_le_bytes);
    let number = i32::try_from(number).map_err(std::io::Error::other)?;
    // SAFETY: the driver has it open as long as its event, which the main loop alone ends; it is duplicated at once.
    unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned()
}

/// Makes a memory file with these bytes, since exports are descriptors.
fn in_file(bytes: &[u8]) -> std::io::Result<ExportedPiece> {
    let file = File::from(memfd_create("katydid-event", MemfdFlags::CLOEXEC)?);
    file.write_all_at(bytes, 0)?;
    Ok((file.into(), bytes.len() as u64))
}

/// Returns a descriptor of the piece that is mapped at an address.
fn export_piece(driver: &Driver, address: u64, size: u64) -> Result<ExportedPiece, CUresult> {
    let pointer = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: the output is a local; the driver looks the address up.
    let block = ask(|out| unsafe { driver.cuMemRetainAllocationHandle(out, pointer) })?;
    let fd = descriptor(driver, block);
    // SAFETY: releases the handle retained just now.
    let _ = unsafe { driver.cuMemRelease(block) };
    Ok((fd?, size))
}

/// Imports a block of another program.
pub(crate) fn kdMemoryImport(
    session: &mut Session,
    _head: &FrameHead,
    message: kdMemoryImport<'_>,
) -> CallResult<kdMemoryImportReply> {
    session.virtual_memory.check_new(message.memory)?;
    let imported = session.shares.import(message.name)?;
    let [(piece, size)] = imported.pieces.as_slice() else { return Err(CUresult::ERROR_INVALID_HANDLE.into()) };
    let (driver, size) = (Arc::clone(&session.shared.driver), *size);
    if size > session.device.bytes_left() {
        return Err(CUresult::ERROR_OUT_OF_MEMORY.into());
    }
    let block = block_of(&driver, piece)?;
    let mut properties = CUmemAllocationProp::default();
    // SAFETY: the output is a local.
    let answer = unsafe { driver.cuMemGetAllocationPropertiesFromHandle(&raw mut properties, block) };
    let device = if properties.location.type_ == location_type::DEVICE { properties.location.id } else { 0 };
    answer.ok().inspect_err(|_| {
        // SAFETY: taken just now, and no code knows it.
        let _ = unsafe { driver.cuMemRelease(block) };
    })?;
    session.virtual_memory.add(message.memory, block, size, Memory::Device);
    session.device.charge(size);
    session.shares.keep_block(message.memory, imported.lease);
    session.shared.usage.set_memory(session.device.backed_bytes());
    success(kdMemoryImportReply { size, device })
}

/// Maps everything exported under a name into a reservation of the program, for the device and its peers.
pub(crate) fn kdImportedMap(
    session: &mut Session,
    _head: &FrameHead,
    message: kdImportedMap<'_>,
) -> CallResult<kdImportedMapReply> {
    let kdImportedMap { address, size, device, .. } = message;
    session.virtual_memory.check_room(address, size)?;
    if session.shares.overlaps(address, size) {
        return Err(CUresult::ERROR_INVALID_VALUE.into());
    }
    let imported = session.shares.import(message.name)?;
    let whole: u64 = imported.pieces.iter().map(|(_, size)| size).sum();
    if whole != size || imported.pieces.is_empty() {
        return Err(CUresult::ERROR_INVALID_VALUE.into());
    }
    let driver = Arc::clone(&session.shared.driver);
    let grants = session.device.grants(device)?;
    session.charge(size)?;
    let mut at = address;
    let mapped = imported.pieces.iter().try_for_each(|piece| {
        map_piece(&driver, at, piece)?;
        at += piece.1;
        Ok(())
    });
    let granted = mapped.and_then(|()| {
        // SAFETY: mapped above; the array has as many entries as said and outlives the call.
        let all = unsafe { driver.cuMemSetAccess(address, size as usize, grants.as_ptr(), grants.len()) };
        // SAFETY: as above, with the device alone.
        all.ok().or_else(|_| unsafe { driver.cuMemSetAccess(address, size as usize, grants.as_ptr(), 1) }.ok())
    });
    if let Err(code) = granted {
        if at > address {
            // SAFETY: mapped above, and used by no code.
            let _ = unsafe { driver.cuMemUnmap(address, (at - address) as usize) };
        }
        session.refund(size);
        return Err(code.into());
    }
    session.shares.map(address, size, imported.lease);
    success(kdImportedMapReply {})
}

fn map_piece(driver: &Driver, address: u64, (piece, size): &ExportedPiece) -> Result<(), CUresult> {
    let block = block_of(driver, piece)?;
    // SAFETY: a part of a reservation in which, by the session's tables, nothing is mapped.
    let mapped = unsafe { driver.cuMemMap(address, *size as usize, 0, block, 0) };
    // SAFETY: retained by this worker; the mapping keeps the memory.
    let _ = unsafe { driver.cuMemRelease(block) };
    mapped.ok()
}

/// Unmaps a whole import, when the GPU is done with it.
pub(crate) fn kdImportedUnmap(
    session: &mut Session,
    _head: &FrameHead,
    message: kdImportedUnmap,
) -> ExecutorResult<kdImportedUnmapReply> {
    let kdImportedUnmap { address, size } = message;
    if !session.shares.unmap(address, size) {
        return Err(Fault::from(CUresult::ERROR_INVALID_VALUE));
    }
    session.refund(size);
    Ok(Box::new(move |driver| {
        // SAFETY: takes nothing. A context in error has nothing running.
        let _ = unsafe { driver.cuCtxSynchronize() };
        // SAFETY: mapped for the program, and out of the tables.
        let status = unsafe { driver.cuMemUnmap(address, size as usize) };
        (status, kdImportedUnmapReply {})
    }))
}

/// Exports an event: its importers get the driver's handle.
pub(crate) fn kdEventExport(
    session: &mut Session,
    _head: &FrameHead,
    message: kdEventExport,
) -> CallResult<kdEventExportReply> {
    let name = session.export(message.generation, (SharedObject::Event(message.event), 0))?;
    success(kdEventExportReply { name: name.to_vec() })
}

/// Opens an event of another program.
pub(crate) fn kdEventImport(
    session: &mut Session,
    _head: &FrameHead,
    message: kdEventImport<'_>,
) -> CallResult<kdEventImportReply> {
    session.tables.events.check_new(message.event)?;
    let imported = session.shares.import(message.name)?;
    let handle = handle_in(&imported.pieces).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    let driver = session.driver();
    // SAFETY: the output is a local; a handle is bytes, of which the driver believes none.
    let event = ask(|out| unsafe { driver.cuIpcOpenEventHandle(out, handle) })?;
    session.bind(message.event, event)?;
    session.shares.keep_event(message.event, imported.lease);
    success(kdEventImportReply {})
}

/// Returns the driver's handle in an exporter's event; none for an export of another kind.
fn handle_in(pieces: &[ExportedPiece]) -> Option<CUipcEventHandle> {
    let [(piece, _), further @ ..] = pieces else { return None };
    let mut bytes = [0; size_of::<CUipcEventHandle>()];
    File::from(piece.try_clone().ok()?).read_exact_at(&mut bytes, 0).ok()?;
    if let [(own, _)] = further {
        // In the form in which softcuda names a descriptor of its own process.
        bytes.get_mut(SOFT_PROCESS)?.fill(0);
        bytes.get_mut(SOFT_DESCRIPTOR)?.copy_from_slice(&u64::from(own.as_raw_fd().unsigned_abs()).to_le_bytes());
    }
    CUipcEventHandle::from_bytes(&bytes)
}
