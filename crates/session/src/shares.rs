//! What the session lends to other programs of the server, and has borrowed from them.
//!
//! The lender of memory knows how many use it (`katydid_transport::share`), and so does the borrower: while either is the
//! case a session cannot be kept, because the other side would go on with memory that is not this session's any more.

#![expect(unsafe_code, reason = "calls the driver")]

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use katydid_cuda_sys::{CUmemGenericAllocationHandle, CUresult};
use katydid_driver::Driver;
use katydid_transport::share::{Borrowed, Lease, Lender, Lent, NAME};

use crate::ask::ask;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
pub(crate) const FILE_DESCRIPTOR: u32 = 1;

/// By what lent blocks are taken back: ids lie far below addresses.
const BLOCKS: u64 = 1 << 63;

/// Key of a block that is lent.
pub(crate) fn key_of_block(id: u32) -> u64 {
    BLOCKS | u64::from(id)
}

/// The books.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    lender: Option<Lender>,
    /// Blocks that were borrowed, by id.
    blocks: BTreeMap<u32, Lease>,
    /// Ranges in which memory of others is mapped, by address.
    mapped: BTreeMap<u64, (u64, Lease)>,
}

impl Shares {
    /// Lends descriptors under a key.
    ///
    /// # Errors
    ///
    /// `OPERATING_SYSTEM`.
    pub(crate) fn lend(&mut self, pieces: Vec<Lent>, key: u64) -> Result<[u8; NAME], CUresult> {
        let failed = |_: io::Error| CUresult::ERROR_OPERATING_SYSTEM;
        if self.lender.is_none() {
            self.lender = Some(Lender::open().map_err(failed)?);
        }
        let lender = self.lender.as_ref().ok_or(CUresult::ERROR_UNKNOWN)?;
        lender.lend(pieces, key).map_err(failed)
    }

    /// What was lent under a key has ended.
    pub(crate) fn end(&self, key: u64) {
        if let Some(lender) = &self.lender {
            lender.end(key);
        }
    }

    /// Borrows what a name stands for. Names of this very session are refused with 201, as drivers refuse handles in the
    /// process that made them; those that lead to nothing with 400.
    pub(crate) fn borrow(&self, name: &[u8]) -> Result<Borrowed, CUresult> {
        let whole: &[u8; NAME] = name.try_into().map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        if self.lender.as_ref().is_some_and(|lender| lender.is_own(whole)) {
            return Err(CUresult::ERROR_INVALID_CONTEXT);
        }
        katydid_transport::share::borrow(whole).map_err(|_| CUresult::ERROR_INVALID_HANDLE)
    }

    /// A block that was borrowed lives.
    pub(crate) fn keep_block(&mut self, id: u32, lease: Lease) {
        self.blocks.insert(id, lease);
    }

    /// Gives blocks back that live no more.
    pub(crate) fn keep_blocks(&mut self, lives: impl Fn(u32) -> bool) {
        self.blocks.retain(|id, _| lives(*id));
    }

    /// Memory of others is mapped.
    pub(crate) fn map(&mut self, address: u64, size: u64, lease: Lease) {
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

    /// What stands in the way of a checkpoint.
    pub(crate) fn in_use(&self) -> Option<&'static str> {
        let lent = self.lender.as_ref().is_some_and(|lender| lender.borrowers() > 0);
        let borrowed = !self.blocks.is_empty() || !self.mapped.is_empty();
        match (borrowed, lent) {
            (true, _) => Some("memory of another program is open"),
            (_, true) => Some("another program has memory of this one open"),
            _ => None,
        }
    }
}

/// A descriptor of a block, for another worker.
pub(crate) fn descriptor(driver: &Driver, block: CUmemGenericAllocationHandle) -> Result<OwnedFd, CUresult> {
    let mut number = -1_i32;
    // SAFETY: the output is a local as wide as the handle type says.
    unsafe { driver.cuMemExportToShareableHandle((&raw mut number).cast(), block, FILE_DESCRIPTOR, 0) }.ok()?;
    // SAFETY: made for us by the driver just now.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// The block behind another worker's descriptor.
pub(crate) fn block_of(driver: &Driver, descriptor: &OwnedFd) -> Result<CUmemGenericAllocationHandle, CUresult> {
    let number = std::ptr::without_provenance_mut(descriptor.as_raw_fd() as usize);
    // SAFETY: the output is a local; the descriptor is open.
    ask(|out| unsafe { driver.cuMemImportFromShareableHandle(out, number, FILE_DESCRIPTOR) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_none_and_ones_of_the_session_itself_are_refused() {
        let mut shares = Shares::default();
        let name = shares.lend(Vec::new(), 4).unwrap();
        assert_eq!(shares.borrow(&name[1..]).err(), Some(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(shares.borrow(&name).err(), Some(CUresult::ERROR_INVALID_CONTEXT));
        assert_eq!(shares.borrow(&[3; NAME]).err(), Some(CUresult::ERROR_INVALID_HANDLE));
        let other = Shares::default();
        let borrowed = other.borrow(&name).unwrap();
        assert!(borrowed.pieces.is_empty() && other.in_use().is_none());
        let mut other = Shares::default();
        other.map(0x1000, 0x1000, borrowed.lease);
        assert!(other.in_use().is_some() && other.overlaps(0x1800, 1) && !other.overlaps(0x2000, 1));
        assert!(!other.unmap(0x1000, 1) && other.unmap(0x1000, 0x1000) && other.in_use().is_none());
    }
}
