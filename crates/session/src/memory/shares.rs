//! What the session exports to other programs of the server, and has imported from them.
//!
//! The exporter of memory or of an event knows how many use it (`katydid_transport::share`), and the importer knows what it
//! uses. A checkpoint keeps a session with all sessions that it shares something with, or not at all. Otherwise the other
//! side would go on with what is not this session's any more. The supervisor enforces this (`katydid_wire::sharing`). A
//! restored session exports under the same names as before, so its importers find there what they had.

#![expect(unsafe_code, reason = "calls the driver")]

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use katydid_cuda_sys::{CUmemGenericAllocationHandle, CUresult};
use katydid_driver::Driver;
use katydid_transport::share::{
    EXPORTER_ID_BYTES, ExportedPiece, Exporter, GENERATION_BYTES, ImportLease, ImportedMemory, SECRET_BYTES,
    SHARE_NAME_BYTES,
};
use katydid_wire::sharing::Sharing;

use crate::device::ask::ask;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`: a handle that travels as a file descriptor.
pub(crate) const POSIX_FD_HANDLE_TYPE: u32 = 1;

/// What can be exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SharedObject {
    /// A range of an arena, by its first address.
    Range(u64),
    /// A block, by its id.
    Block(u32),
    /// An event, by its id.
    Event(u32),
}

/// Memory or an event that the session exports to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Export {
    pub(crate) subject: SharedObject,
    /// Bytes of a range; of no meaning for the others.
    pub(crate) length: u64,
    pub(crate) secret: [u8; SECRET_BYTES],
}

/// All that is exported, as an image keeps it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Exports {
    /// None: nothing was ever exported.
    pub(crate) exporter_id: Option<[u8; EXPORTER_ID_BYTES]>,
    pub(crate) exports: Vec<Export>,
}

/// What a session exports to, and imports from, other sessions.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// The generations of its job that a restored session received, the present one first. They count more than those in
    /// messages, of which one may have been made before the checkpoint.
    generations: Vec<u64>,
    exporter: Option<Exporter>,
    /// What is exported: each once, however often a handle is asked for.
    exports: BTreeMap<SharedObject, Export>,
    /// Blocks that were imported, by id.
    blocks: BTreeMap<u32, ImportLease>,
    /// Events that were imported, by id.
    events: BTreeMap<u32, ImportLease>,
    /// Ranges in which memory of others is mapped, by address.
    mapped: BTreeMap<u64, (u64, ImportLease)>,
}

impl Shares {
    /// The name under which something is exported already.
    pub(crate) fn name_of(&self, subject: SharedObject, length: u64) -> Option<[u8; SHARE_NAME_BYTES]> {
        let export = self.exports.get(&subject).filter(|export| export.length == length)?;
        Some(self.exporter.as_ref()?.name(&export.secret))
    }

    /// Exports descriptors, in a generation of the program's job that counts for the first export.
    ///
    /// # Errors
    ///
    /// `OPERATING_SYSTEM`.
    pub(crate) fn export(
        &mut self,
        generation: u64,
        (subject, length): (SharedObject, u64),
        pieces: Vec<ExportedPiece>,
    ) -> Result<[u8; SHARE_NAME_BYTES], CUresult> {
        let failed = |_: io::Error| CUresult::ERROR_OPERATING_SYSTEM;
        // A range of another length began at the same address before.
        self.end(subject);
        if self.exporter.is_none() {
            let generation = self.generations.first().copied().unwrap_or(generation);
            self.exporter = Some(Exporter::open(generation).map_err(failed)?);
        }
        let exporter = self.exporter.as_ref().ok_or(CUresult::ERROR_UNKNOWN)?;
        let secret = exporter.export(pieces).map_err(failed)?;
        self.exports.insert(subject, Export { subject, length, secret });
        Ok(exporter.name(&secret))
    }

    /// The generations of its job, that in which the session is restored first.
    pub(crate) fn live_in(&mut self, generations: &[u8]) {
        self.generations = numbers(generations);
    }

    /// Exports behind the socket of an image what was exported there.
    ///
    /// # Errors
    ///
    /// `OPERATING_SYSTEM`.
    pub(crate) fn open_again(
        &mut self,
        exporter_id: [u8; EXPORTER_ID_BYTES],
        all: Vec<(Export, Vec<ExportedPiece>)>,
    ) -> Result<(), CUresult> {
        self.exports = all.iter().map(|(export, _)| (export.subject, *export)).collect();
        let exported = all.into_iter().map(|(export, pieces)| (export.secret, pieces));
        let exporter = Exporter::open_again(exporter_id, self.generations.first().copied().unwrap_or(0), exported);
        self.exporter = Some(exporter.map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?);
        Ok(())
    }

    /// Whether others may hold something.
    pub(crate) fn has_exports(&self) -> bool {
        !self.exports.is_empty()
    }

    /// Exports as an image records them.
    pub(crate) fn exports(&self) -> Exports {
        Exports {
            exporter_id: self.exporter.as_ref().map(Exporter::exporter_id),
            exports: self.exports.values().copied().collect(),
        }
    }

    /// Something has ended, or is not to be exported any more.
    pub(crate) fn end(&mut self, subject: SharedObject) {
        if let (Some(export), Some(exporter)) = (self.exports.remove(&subject), &self.exporter) {
            exporter.end(&export.secret);
        }
    }

    /// Ends the exports of ranges that lie in a piece of an arena, if only in part.
    pub(crate) fn end_in(&mut self, address: u64, size: u64) {
        let end = address.saturating_add(size);
        let reaches = |export: &Export| matches!(export.subject, SharedObject::Range(at) if at < end && at.saturating_add(export.length) > address);
        let ended: Vec<SharedObject> =
            self.exports.values().filter(|export| reaches(export)).map(|export| export.subject).collect();
        ended.into_iter().for_each(|subject| self.end(subject));
    }

    /// Imports what a name stands for; behind it stand the generations of the program's job, the present one first. Names of
    /// this very session are refused with 201, as drivers refuse handles in the process that made them; those that lead to
    /// nothing with 400.
    pub(crate) fn import(&self, message: &[u8]) -> Result<ImportedMemory, CUresult> {
        let (name, rest) = message.split_first_chunk::<SHARE_NAME_BYTES>().ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let name = self.present(*name, rest);
        if self.exporter.as_ref().is_some_and(|exporter| exporter.is_own(&name)) {
            return Err(CUresult::ERROR_INVALID_CONTEXT);
        }
        // Where this session was rebuilt the exporter's may be about to have its socket.
        let may_move = !self.generations.is_empty();
        katydid_transport::share::import(&name, may_move).map_err(|_| CUresult::ERROR_INVALID_HANDLE)
    }

    /// The present name of a share: with the job's present generation, if the name has any of the job's.
    fn present(&self, mut name: [u8; SHARE_NAME_BYTES], answer: &[u8]) -> [u8; SHARE_NAME_BYTES] {
        let answer = if self.generations.is_empty() { numbers(answer) } else { self.generations.clone() };
        let generation = &mut name[EXPORTER_ID_BYTES..EXPORTER_ID_BYTES + GENERATION_BYTES];
        if let Some(present) =
            answer.first().filter(|_| answer.iter().any(|number| number.to_le_bytes() == *generation))
        {
            generation.copy_from_slice(&present.to_le_bytes());
        }
        name
    }

    /// A block that was imported lives.
    pub(crate) fn keep_block(&mut self, id: u32, lease: ImportLease) {
        self.blocks.insert(id, lease);
    }

    /// Gives blocks back that live no more.
    pub(crate) fn keep_blocks(&mut self, lives: impl Fn(u32) -> bool) {
        self.blocks.retain(|id, _| lives(*id));
    }

    /// An event that was imported lives.
    pub(crate) fn keep_event(&mut self, id: u32, lease: ImportLease) {
        self.events.insert(id, lease);
    }

    /// An event is gone, the program's own or another one's.
    pub(crate) fn end_event(&mut self, id: u32) {
        self.events.remove(&id);
        self.end(SharedObject::Event(id));
    }

    /// All events are gone for which `lives` is false.
    pub(crate) fn keep_events(&mut self, lives: impl Fn(u32) -> bool) {
        let shared_events = self
            .exports
            .keys()
            .filter_map(|subject| if let SharedObject::Event(id) = subject { Some(id) } else { None });
        let gone: Vec<u32> = shared_events.chain(self.events.keys()).copied().filter(|id| !lives(*id)).collect();
        gone.into_iter().for_each(|id| self.end_event(id));
    }

    /// Memory of others is mapped.
    pub(crate) fn map(&mut self, address: u64, size: u64, lease: ImportLease) {
        self.mapped.insert(address, (size, lease));
    }

    /// It is mapped no more; false for what was not.
    pub(crate) fn unmap(&mut self, address: u64, size: u64) -> bool {
        let known = self.mapped.get(&address).is_some_and(|(length, _)| *length == size);
        if known {
            self.mapped.remove(&address);
        }
        known
    }

    /// Whether anything in a range is memory of others.
    pub(crate) fn overlaps(&self, address: u64, size: u64) -> bool {
        let end = address.saturating_add(size);
        self.mapped.range(..end).next_back().is_some_and(|(start, (length, _))| start + length > address)
    }

    /// Hands nothing over until [`Shares::go_on`]; what is in use on either side.
    pub(crate) fn stand_still(&self) -> Sharing {
        let leases = self.blocks.values().chain(self.events.values());
        let imported = leases.chain(self.mapped.values().map(|(_, lease)| lease)).map(|lease| lease.import).collect();
        Sharing {
            exporter_id: self.exporter.as_ref().map(Exporter::exporter_id),
            held: self.exporter.as_ref().map_or_else(Vec::new, Exporter::pause),
            imported,
        }
    }

    /// Whether a block is another program's.
    pub(crate) fn has_block(&self, id: u32) -> bool {
        self.blocks.contains_key(&id)
    }

    /// Whether an event is.
    pub(crate) fn has_event(&self, id: u32) -> bool {
        self.events.contains_key(&id)
    }

    /// Exports again after a pause.
    pub(crate) fn go_on(&self) {
        if let Some(exporter) = &self.exporter {
            exporter.resume();
        }
    }
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
}

/// A descriptor of a block, for another worker.
pub(crate) fn descriptor(driver: &Driver, block: CUmemGenericAllocationHandle) -> Result<OwnedFd, CUresult> {
    let mut number = -1_i32;
    // SAFETY: the output is a local as wide as the handle type says.
    unsafe { driver.cuMemExportToShareableHandle((&raw mut number).cast(), block, POSIX_FD_HANDLE_TYPE, 0) }.ok()?;
    // SAFETY: made for us by the driver just now.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// The block behind another worker's descriptor.
pub(crate) fn block_of(driver: &Driver, descriptor: &OwnedFd) -> Result<CUmemGenericAllocationHandle, CUresult> {
    let number = std::ptr::without_provenance_mut(descriptor.as_raw_fd() as usize);
    // SAFETY: the output is a local; the descriptor is open.
    ask(|out| unsafe { driver.cuMemImportFromShareableHandle(out, number, POSIX_FD_HANDLE_TYPE) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: SharedObject = SharedObject::Event(4);

    #[test]
    fn malformed_and_own_share_names_are_refused() {
        let mut shares = Shares::default();
        let name = shares.export(0, (EVENT, 0), Vec::new()).unwrap();
        assert_eq!(shares.name_of(EVENT, 0), Some(name));
        assert_eq!(shares.import(&name[1..]).err(), Some(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(shares.import(&name).err(), Some(CUresult::ERROR_INVALID_CONTEXT));
        assert_eq!(shares.import(&[3; SHARE_NAME_BYTES]).err(), Some(CUresult::ERROR_INVALID_HANDLE));
        let other = Shares::default();
        let imported = other.import(&name).unwrap();
        assert!(imported.pieces.is_empty() && !other.stand_still().is_some());
        let mut other = Shares::default();
        other.map(0x1000, 0x1000, imported.lease);
        assert!(other.stand_still().is_some() && other.overlaps(0x1800, 1) && !other.overlaps(0x2000, 1));
        assert!(!other.unmap(0x1000, 1) && other.unmap(0x1000, 0x1000) && !other.stand_still().is_some());
    }

    #[test]
    fn names_of_earlier_generations_lead_to_the_present_one_and_others_where_they_are() {
        let name = |number: u64| {
            let mut name = [9; SHARE_NAME_BYTES];
            name[EXPORTER_ID_BYTES..EXPORTER_ID_BYTES + GENERATION_BYTES].copy_from_slice(&number.to_le_bytes());
            name
        };
        let answer = |numbers: [u64; 3]| numbers.map(u64::to_le_bytes).concat();
        let mut shares = Shares::default();
        let found =
            |shares: &Shares| [30, 20, 10, 40].map(|number| shares.present(name(number), &answer([30, 20, 10])));
        assert_eq!(found(&shares), [30, 30, 30, 40].map(name));
        assert_eq!(shares.present(name(30), &[]), name(30));
        // A message from before the restore.
        shares.live_in(&[40_u64, 30, 20, 10].map(u64::to_le_bytes).concat());
        assert_eq!(found(&shares), [40; 4].map(name));
        let exported = shares.export(30, (EVENT, 0), Vec::new()).unwrap();
        assert_eq!(exported[EXPORTER_ID_BYTES..EXPORTER_ID_BYTES + GENERATION_BYTES], 40_u64.to_le_bytes());
    }

    #[test]
    fn exports_end_with_their_object_and_events_with_either_side() {
        let (mut exporter, mut importer) = (Shares::default(), Shares::default());
        let ranges = [(0x1000, 0x1000), (0x2000, 0x3000), (0x9000, 0x10)];
        for (address, length) in ranges {
            exporter.export(0, (SharedObject::Range(address), length), Vec::new()).unwrap();
        }
        exporter.end_in(0x4000, 0x1000);
        assert_eq!(
            exporter.exports().exports.iter().map(|export| export.subject).collect::<Vec<_>>(),
            [SharedObject::Range(0x1000), SharedObject::Range(0x9000)]
        );
        let name = exporter.export(0, (EVENT, 0), Vec::new()).unwrap();
        importer.keep_event(9, importer.import(&name).unwrap().lease);
        assert!(importer.stand_still().is_some() && exporter.stand_still().is_some());
        exporter.go_on();
        importer.keep_events(|_| false);
        assert!(!importer.stand_still().is_some());
        exporter.keep_events(|id| id != 4);
        assert_eq!(importer.import(&name).err(), Some(CUresult::ERROR_INVALID_HANDLE));
    }

    #[test]
    fn a_range_of_another_length_at_an_address_has_another_name() {
        let mut shares = Shares::default();
        let first = shares.export(0, (SharedObject::Range(0x1000), 16), Vec::new()).unwrap();
        assert_eq!(shares.name_of(SharedObject::Range(0x1000), 32), None);
        let second = shares.export(0, (SharedObject::Range(0x1000), 32), Vec::new()).unwrap();
        let other = Shares::default();
        assert!(first != second && other.import(&first).is_err() && other.import(&second).is_ok());
    }
}
