//! Objects that the session exports to other programs of the server, or has imported from them.
//!
//! The exporter of memory or of an event knows how many sessions use it (`katydid_transport::share`), and the importer knows
//! what it uses. A checkpoint saves a session with all sessions that it shares something with, or not at all. Otherwise the
//! other side would go on with objects that this session no longer has. The supervisor enforces this
//! (`katydid_wire::sharing`). A restored session exports under the same names, so its importers find the same objects.

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

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`: a handle that is passed as a file descriptor.
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
    /// Bytes of a range; without meaning for the others.
    pub(crate) length: u64,
    pub(crate) secret: [u8; SECRET_BYTES],
}

/// All exports, as saved in an image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Exports {
    /// None if nothing was ever exported.
    pub(crate) exporter_id: Option<[u8; EXPORTER_ID_BYTES]>,
    pub(crate) exports: Vec<Export>,
}

/// What a session exports to, and imports from, other sessions.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// The generations of its job that a restored session received, the present one first. They override those in messages,
    /// since a message may be from before the checkpoint.
    generations: Vec<u64>,
    exporter: Option<Exporter>,
    /// The exports: each object once, however often its handle is requested.
    exports: BTreeMap<SharedObject, Export>,
    /// Blocks that were imported, by id.
    blocks: BTreeMap<u32, ImportLease>,
    /// Events that were imported, by id.
    events: BTreeMap<u32, ImportLease>,
    /// Ranges with mapped memory of others, by address.
    mapped: BTreeMap<u64, (u64, ImportLease)>,
}

impl Shares {
    /// Returns the name of an object that is exported already.
    pub(crate) fn name_of(&self, subject: SharedObject, length: u64) -> Option<[u8; SHARE_NAME_BYTES]> {
        let export = self.exports.get(&subject).filter(|export| export.length == length)?;
        Some(self.exporter.as_ref()?.name(&export.secret))
    }

    /// Exports descriptors, in a generation of the program's job that is used for the first export.
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
        // Replaces a range of another length at the same address.
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

    /// Sets the generations of its job, with the restore's first.
    pub(crate) fn live_in(&mut self, generations: &[u8]) {
        self.generations = numbers(generations);
    }

    /// Exports the objects of an image again, behind the socket of the image.
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

    /// Returns whether others may hold an export.
    pub(crate) fn has_exports(&self) -> bool {
        !self.exports.is_empty()
    }

    /// Returns the exports for an image.
    pub(crate) fn exports(&self) -> Exports {
        Exports {
            exporter_id: self.exporter.as_ref().map(Exporter::exporter_id),
            exports: self.exports.values().copied().collect(),
        }
    }

    /// Ends the export of an object.
    pub(crate) fn end(&mut self, subject: SharedObject) {
        if let (Some(export), Some(exporter)) = (self.exports.remove(&subject), &self.exporter) {
            exporter.end(&export.secret);
        }
    }

    /// Ends the exports of ranges that overlap a piece of an arena.
    pub(crate) fn end_in(&mut self, address: u64, size: u64) {
        let end = address.saturating_add(size);
        let reaches = |export: &Export| matches!(export.subject, SharedObject::Range(at) if at < end && at.saturating_add(export.length) > address);
        let ended: Vec<SharedObject> =
            self.exports.values().filter(|export| reaches(export)).map(|export| export.subject).collect();
        ended.into_iter().for_each(|subject| self.end(subject));
    }

    /// Imports the object of a name, which the generations of the program's job follow, the present one first. Names of this
    /// session itself give 201, as drivers refuse handles in the process that made them; unknown names give 400.
    pub(crate) fn import(&self, message: &[u8]) -> Result<ImportedMemory, CUresult> {
        let (name, rest) = message.split_first_chunk::<SHARE_NAME_BYTES>().ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let name = self.present(*name, rest);
        if self.exporter.as_ref().is_some_and(|exporter| exporter.is_own(&name)) {
            return Err(CUresult::ERROR_INVALID_CONTEXT);
        }
        // If this session was rebuilt, the exporter may be about to get its socket.
        let may_move = !self.generations.is_empty();
        katydid_transport::share::import(&name, may_move).map_err(|_| CUresult::ERROR_INVALID_HANDLE)
    }

    /// Returns the present name of a share: with the job's present generation, if the name has any of the job's.
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

    /// Keeps the lease of an imported block.
    pub(crate) fn keep_block(&mut self, id: u32, lease: ImportLease) {
        self.blocks.insert(id, lease);
    }

    /// Releases blocks that are no longer alive.
    pub(crate) fn keep_blocks(&mut self, lives: impl Fn(u32) -> bool) {
        self.blocks.retain(|id, _| lives(*id));
    }

    /// Keeps the lease of an imported event.
    pub(crate) fn keep_event(&mut self, id: u32, lease: ImportLease) {
        self.events.insert(id, lease);
    }

    /// Ends an event, the program's own or an imported one.
    pub(crate) fn end_event(&mut self, id: u32) {
        self.events.remove(&id);
        self.end(SharedObject::Event(id));
    }

    /// Ends all events for which `lives` is false.
    pub(crate) fn keep_events(&mut self, lives: impl Fn(u32) -> bool) {
        let shared_events = self
            .exports
            .keys()
            .filter_map(|subject| if let SharedObject::Event(id) = subject { Some(id) } else { None });
        let gone: Vec<u32> = shared_events.chain(self.events.keys()).copied().filter(|id| !lives(*id)).collect();
        gone.into_iter().for_each(|id| self.end_event(id));
    }

    /// Adds mapped memory of another session.
    pub(crate) fn map(&mut self, address: u64, size: u64, lease: ImportLease) {
        self.mapped.insert(address, (size, lease));
    }

    /// Removes mapped memory of another session; false if it was not mapped.
    pub(crate) fn unmap(&mut self, address: u64, size: u64) -> bool {
        let known = self.mapped.get(&address).is_some_and(|(length, _)| *length == size);
        if known {
            self.mapped.remove(&address);
        }
        known
    }

    /// Returns whether a range overlaps memory of other sessions.
    pub(crate) fn overlaps(&self, address: u64, size: u64) -> bool {
        let end = address.saturating_add(size);
        self.mapped.range(..end).next_back().is_some_and(|(start, (length, _))| start + length > address)
    }

    /// Stops exports until [`Shares::go_on`]; returns what both sides use.
    pub(crate) fn stand_still(&self) -> Sharing {
        let leases = self.blocks.values().chain(self.events.values());
        let imported = leases.chain(self.mapped.values().map(|(_, lease)| lease)).map(|lease| lease.import).collect();
        Sharing {
            exporter_id: self.exporter.as_ref().map(Exporter::exporter_id),
            held: self.exporter.as_ref().map_or_else(Vec::new, Exporter::pause),
            imported,
        }
    }

    /// Returns whether a block was imported.
    pub(crate) fn has_block(&self, id: u32) -> bool {
        self.blocks.contains_key(&id)
    }

    /// Returns whether an event was imported.
    pub(crate) fn has_event(&self, id: u32) -> bool {
        self.events.contains_key(&id)
    }

    /// Resumes exports.
    pub(crate) fn go_on(&self) {
        if let Some(exporter) = &self.exporter {
            exporter.resume();
        }
    }
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
}

/// Returns a descriptor of a block, for another worker.
pub(crate) fn descriptor(driver: &Driver, block: CUmemGenericAllocationHandle) -> Result<OwnedFd, CUresult> {
    let mut number = -1_i32;
    // SAFETY: the output is a local as wide as the handle type says.
    unsafe { driver.cuMemExportToShareableHandle((&raw mut number).cast(), block, POSIX_FD_HANDLE_TYPE, 0) }.ok()?;
    // SAFETY: the driver made it for this worker just now.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Returns the block behind another worker's descriptor.
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
        // A name from before the restore.
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
