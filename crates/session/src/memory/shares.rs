//! What the session lends to other programs of the server, and has borrowed from them.
//!
//! The lender of memory or of an event knows how many use it (`katydid_transport::share`), and the borrower knows what it
//! uses. A checkpoint keeps a session with all sessions that it shares something with, or not at all. Otherwise the other
//! side would go on with what is not this session's any more. The supervisor enforces this (`katydid_wire::sharing`). A
//! restored session lends under the same names as before, so its borrowers find there what they had.

#![expect(unsafe_code, reason = "calls the driver")]

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use katydid_cuda_sys::{CUmemGenericAllocationHandle, CUresult};
use katydid_driver::Driver;
use katydid_transport::share::{
    BorrowLease, BorrowedMemory, GENERATION_BYTES, LENDER_ID_BYTES, Lender, LentPiece, SECRET_BYTES, SHARE_NAME_BYTES,
};
use katydid_wire::sharing::Sharing;

use crate::device::ask::ask;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`: a handle that travels as a file descriptor.
pub(crate) const POSIX_FD_HANDLE_TYPE: u32 = 1;

/// What can be lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SharedObject {
    /// A range of an arena, by its first address.
    Range(u64),
    /// A block, by its id.
    Block(u32),
    /// An event, by its id.
    Event(u32),
}

/// Memory or an event that the session lends to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loan {
    pub(crate) subject: SharedObject,
    /// Bytes of a range; of no meaning for the others.
    pub(crate) length: u64,
    pub(crate) secret: [u8; SECRET_BYTES],
}

/// All that is lent, as an image keeps it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Loans {
    /// None: nothing was ever lent.
    pub(crate) lender_id: Option<[u8; LENDER_ID_BYTES]>,
    pub(crate) loans: Vec<Loan>,
}

/// What a session lends to, and borrows from, other sessions.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// The generations of its job that a restored session received, the present one first. They count more than those in
    /// messages, of which one may have been made before the checkpoint.
    generations: Vec<u64>,
    lender: Option<Lender>,
    /// What is lent: each once, however often a handle is asked for.
    loans: BTreeMap<SharedObject, Loan>,
    /// Blocks that were borrowed, by id.
    blocks: BTreeMap<u32, BorrowLease>,
    /// Events that were borrowed, by id.
    events: BTreeMap<u32, BorrowLease>,
    /// Ranges in which memory of others is mapped, by address.
    mapped: BTreeMap<u64, (u64, BorrowLease)>,
}

impl Shares {
    /// The name under which something is lent already.
    pub(crate) fn name_of(&self, subject: SharedObject, length: u64) -> Option<[u8; SHARE_NAME_BYTES]> {
        let loan = self.loans.get(&subject).filter(|loan| loan.length == length)?;
        Some(self.lender.as_ref()?.name(&loan.secret))
    }

    /// Lends descriptors, in a generation of the program's job that counts for the first loan.
    ///
    /// # Errors
    ///
    /// `OPERATING_SYSTEM`.
    pub(crate) fn lend(
        &mut self,
        generation: u64,
        (subject, length): (SharedObject, u64),
        pieces: Vec<LentPiece>,
    ) -> Result<[u8; SHARE_NAME_BYTES], CUresult> {
        let failed = |_: io::Error| CUresult::ERROR_OPERATING_SYSTEM;
        // A range of another length began at the same address before.
        self.end(subject);
        if self.lender.is_none() {
            let generation = self.generations.first().copied().unwrap_or(generation);
            self.lender = Some(Lender::open(generation).map_err(failed)?);
        }
        let lender = self.lender.as_ref().ok_or(CUresult::ERROR_UNKNOWN)?;
        let secret = lender.lend(pieces).map_err(failed)?;
        self.loans.insert(subject, Loan { subject, length, secret });
        Ok(lender.name(&secret))
    }

    /// The generations of its job, that in which the session is restored first.
    pub(crate) fn live_in(&mut self, generations: &[u8]) {
        self.generations = numbers(generations);
    }

    /// Lends behind the socket of an image what was lent there.
    ///
    /// # Errors
    ///
    /// `OPERATING_SYSTEM`.
    pub(crate) fn open_again(
        &mut self,
        lender_id: [u8; LENDER_ID_BYTES],
        all: Vec<(Loan, Vec<LentPiece>)>,
    ) -> Result<(), CUresult> {
        self.loans = all.iter().map(|(loan, _)| (loan.subject, *loan)).collect();
        let lent = all.into_iter().map(|(loan, pieces)| (loan.secret, pieces));
        let lender = Lender::open_again(lender_id, self.generations.first().copied().unwrap_or(0), lent);
        self.lender = Some(lender.map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?);
        Ok(())
    }

    /// Whether others may hold something.
    pub(crate) fn lends(&self) -> bool {
        !self.loans.is_empty()
    }

    /// Loans as an image records them.
    pub(crate) fn loans(&self) -> Loans {
        Loans { lender_id: self.lender.as_ref().map(Lender::lender_id), loans: self.loans.values().copied().collect() }
    }

    /// Something has ended, or is not to be lent any more.
    pub(crate) fn end(&mut self, subject: SharedObject) {
        if let (Some(loan), Some(lender)) = (self.loans.remove(&subject), &self.lender) {
            lender.end(&loan.secret);
        }
    }

    /// Ends the loans of ranges that lie in a piece of an arena, if only in part.
    pub(crate) fn end_in(&mut self, address: u64, size: u64) {
        let end = address.saturating_add(size);
        let reaches = |loan: &Loan| matches!(loan.subject, SharedObject::Range(at) if at < end && at.saturating_add(loan.length) > address);
        let ended: Vec<SharedObject> =
            self.loans.values().filter(|loan| reaches(loan)).map(|loan| loan.subject).collect();
        ended.into_iter().for_each(|subject| self.end(subject));
    }

    /// Borrows what a name stands for; behind it stand the generations of the program's job, the present one first. Names of
    /// this very session are refused with 201, as drivers refuse handles in the process that made them; those that lead to
    /// nothing with 400.
    pub(crate) fn borrow(&self, message: &[u8]) -> Result<BorrowedMemory, CUresult> {
        let (name, rest) = message.split_first_chunk::<SHARE_NAME_BYTES>().ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let name = self.present(*name, rest);
        if self.lender.as_ref().is_some_and(|lender| lender.is_own(&name)) {
            return Err(CUresult::ERROR_INVALID_CONTEXT);
        }
        // Where this session was rebuilt the lender's may be about to have its socket.
        let may_move = !self.generations.is_empty();
        katydid_transport::share::borrow(&name, may_move).map_err(|_| CUresult::ERROR_INVALID_HANDLE)
    }

    /// Where what has a name is now: in the present generation of the job, if the name is of any of its.
    fn present(&self, mut name: [u8; SHARE_NAME_BYTES], answer: &[u8]) -> [u8; SHARE_NAME_BYTES] {
        let answer = if self.generations.is_empty() { numbers(answer) } else { self.generations.clone() };
        let place = &mut name[LENDER_ID_BYTES..LENDER_ID_BYTES + GENERATION_BYTES];
        if let Some(present) = answer.first().filter(|_| answer.iter().any(|number| number.to_le_bytes() == *place)) {
            place.copy_from_slice(&present.to_le_bytes());
        }
        name
    }

    /// A block that was borrowed lives.
    pub(crate) fn keep_block(&mut self, id: u32, lease: BorrowLease) {
        self.blocks.insert(id, lease);
    }

    /// Gives blocks back that live no more.
    pub(crate) fn keep_blocks(&mut self, lives: impl Fn(u32) -> bool) {
        self.blocks.retain(|id, _| lives(*id));
    }

    /// An event that was borrowed lives.
    pub(crate) fn keep_event(&mut self, id: u32, lease: BorrowLease) {
        self.events.insert(id, lease);
    }

    /// An event is gone, the program's own or another one's.
    pub(crate) fn end_event(&mut self, id: u32) {
        self.events.remove(&id);
        self.end(SharedObject::Event(id));
    }

    /// All events are gone for which `lives` is false.
    pub(crate) fn keep_events(&mut self, lives: impl Fn(u32) -> bool) {
        let shared_events =
            self.loans.keys().filter_map(|subject| if let SharedObject::Event(id) = subject { Some(id) } else { None });
        let gone: Vec<u32> = shared_events.chain(self.events.keys()).copied().filter(|id| !lives(*id)).collect();
        gone.into_iter().for_each(|id| self.end_event(id));
    }

    /// Memory of others is mapped.
    pub(crate) fn map(&mut self, address: u64, size: u64, lease: BorrowLease) {
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
        let borrowed =
            leases.chain(self.mapped.values().map(|(_, lease)| lease)).map(|lease| lease.borrowing).collect();
        Sharing {
            lender_id: self.lender.as_ref().map(Lender::lender_id),
            held: self.lender.as_ref().map_or_else(Vec::new, Lender::pause),
            borrowed,
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

    /// Lends again after a pause.
    pub(crate) fn go_on(&self) {
        if let Some(lender) = &self.lender {
            lender.resume();
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
        let name = shares.lend(0, (EVENT, 0), Vec::new()).unwrap();
        assert_eq!(shares.name_of(EVENT, 0), Some(name));
        assert_eq!(shares.borrow(&name[1..]).err(), Some(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(shares.borrow(&name).err(), Some(CUresult::ERROR_INVALID_CONTEXT));
        assert_eq!(shares.borrow(&[3; SHARE_NAME_BYTES]).err(), Some(CUresult::ERROR_INVALID_HANDLE));
        let other = Shares::default();
        let borrowed = other.borrow(&name).unwrap();
        assert!(borrowed.pieces.is_empty() && !other.stand_still().is_some());
        let mut other = Shares::default();
        other.map(0x1000, 0x1000, borrowed.lease);
        assert!(other.stand_still().is_some() && other.overlaps(0x1800, 1) && !other.overlaps(0x2000, 1));
        assert!(!other.unmap(0x1000, 1) && other.unmap(0x1000, 0x1000) && !other.stand_still().is_some());
    }

    #[test]
    fn names_of_earlier_generations_lead_to_the_present_one_and_others_where_they_are() {
        let name = |number: u64| {
            let mut name = [9; SHARE_NAME_BYTES];
            name[LENDER_ID_BYTES..LENDER_ID_BYTES + GENERATION_BYTES].copy_from_slice(&number.to_le_bytes());
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
        let lent = shares.lend(30, (EVENT, 0), Vec::new()).unwrap();
        assert_eq!(lent[LENDER_ID_BYTES..LENDER_ID_BYTES + GENERATION_BYTES], 40_u64.to_le_bytes());
    }

    #[test]
    fn loans_end_with_what_is_lent_and_events_with_either_side() {
        let (mut lender, mut borrower) = (Shares::default(), Shares::default());
        let ranges = [(0x1000, 0x1000), (0x2000, 0x3000), (0x9000, 0x10)];
        for (address, length) in ranges {
            lender.lend(0, (SharedObject::Range(address), length), Vec::new()).unwrap();
        }
        lender.end_in(0x4000, 0x1000);
        assert_eq!(
            lender.loans().loans.iter().map(|loan| loan.subject).collect::<Vec<_>>(),
            [SharedObject::Range(0x1000), SharedObject::Range(0x9000)]
        );
        let name = lender.lend(0, (EVENT, 0), Vec::new()).unwrap();
        borrower.keep_event(9, borrower.borrow(&name).unwrap().lease);
        assert!(borrower.stand_still().is_some() && lender.stand_still().is_some());
        lender.go_on();
        borrower.keep_events(|_| false);
        assert!(!borrower.stand_still().is_some());
        lender.keep_events(|id| id != 4);
        assert_eq!(borrower.borrow(&name).err(), Some(CUresult::ERROR_INVALID_HANDLE));
    }

    #[test]
    fn a_range_of_another_length_at_an_address_has_another_name() {
        let mut shares = Shares::default();
        let first = shares.lend(0, (SharedObject::Range(0x1000), 16), Vec::new()).unwrap();
        assert_eq!(shares.name_of(SharedObject::Range(0x1000), 32), None);
        let second = shares.lend(0, (SharedObject::Range(0x1000), 32), Vec::new()).unwrap();
        let other = Shares::default();
        assert!(first != second && other.borrow(&first).is_err() && other.borrow(&second).is_ok());
    }
}
