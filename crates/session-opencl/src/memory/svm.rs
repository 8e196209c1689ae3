//! Shared virtual memory: the addresses that the program may name.
//!
//! The program sees the driver's addresses, backed by its own memory, which maps fill and unmaps drain. Fine-grained memory is
//! the same on both sides ([`crate::memory::host`]). So an allocation begins at a page and shares its pages with nothing else.
//! Addresses count bytes.

use std::collections::BTreeMap;
use std::ops::{Range, RangeBounds};

use katydid_opencl_sys::Code;

use crate::objects::lifetimes::{LeakedRef, ObjectRef, OwnedObject};

/// Bytes of a page.
pub(crate) const PAGE_BYTES: u64 = katydid_wire::PAGE_BYTES as u64;
/// Where shared virtual memory lies: far above a heap, and far below the system's first mappings. The same addresses are free in
/// programs, which use them.
pub(crate) const SVM_ADDRESSES: Range<u64> = 0x6000_0000_0000..0x7000_0000_0000;

/// One allocation of shared virtual memory.
#[derive(Debug)]
pub(crate) struct Allocation {
    /// Bytes that the program may use.
    pub(crate) size: u64,
    /// Address from the driver, at or before the program's address.
    raw: u64,
    /// Where the program's memory for a fine-grained allocation lies; 0 for other memory.
    pub(crate) shared_address: u64,
    /// The driver gets it back when nothing of the session uses it any more.
    memory: LeakedRef,
}

impl Allocation {
    /// Returns the session's reference to the memory.
    pub(crate) fn into_memory(self) -> ObjectRef {
        LeakedRef::into_inner(self.memory)
    }

    /// Returns the bytes of its pages.
    pub(crate) fn pages(&self) -> u64 {
        self.size.next_multiple_of(PAGE_BYTES)
    }
}

/// The allocations of a session by the addresses that the program sees.
#[derive(Debug, Default)]
pub(crate) struct Svm {
    list: BTreeMap<u64, Allocation>,
    /// Regions mapped for the host: sizes and flags by address, where several may begin.
    mapped: BTreeMap<u64, Vec<(u64, u64)>>,
}

impl Svm {
    /// Adds an allocation of the driver with room for whole pages; returns the address for the program.
    pub(crate) fn add(&mut self, raw: u64, (size, shared_address): (u64, u64), context: ObjectRef) -> u64 {
        let address = raw.next_multiple_of(PAGE_BYTES);
        self.list.insert(
            address,
            Allocation { size, raw, shared_address, memory: LeakedRef::new(OwnedObject::svm(raw, context)) },
        );
        address
    }

    /// Returns the fine-grained allocations that begin at these addresses.
    pub(crate) fn fine(&self, addresses: impl RangeBounds<u64>) -> impl Iterator<Item = (u64, &Allocation)> {
        self.list
            .range(addresses)
            .filter(|(_, found)| found.shared_address != 0)
            .map(|(address, found)| (*address, found))
    }

    /// Returns the highest end for the next allocation of `bytes`: below all others. Once these have reached the bottom, anywhere
    /// in the zone.
    pub(crate) fn end_of_next(&self, bytes: u64) -> u64 {
        let in_zone = self.list.values().map(|allocation| allocation.raw).filter(|raw| SVM_ADDRESSES.contains(raw));
        let lowest = in_zone.min().unwrap_or(SVM_ADDRESSES.end) / PAGE_BYTES * PAGE_BYTES;
        if lowest - SVM_ADDRESSES.start > bytes.saturating_mul(2) { lowest } else { SVM_ADDRESSES.end }
    }

    pub(crate) fn remove(&mut self, address: u64) -> Option<Allocation> {
        let allocation = self.list.remove(&address)?;
        self.mapped.retain(|mapped, _| !(address..address + allocation.size).contains(mapped));
        Some(allocation)
    }

    /// Returns the addresses of all allocations.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = u64> {
        self.list.keys().copied()
    }

    /// Returns the start of the allocation that contains a byte.
    pub(crate) fn start_of(&self, address: u64) -> Option<u64> {
        let (start, allocation) = self.list.range(..=address).next_back()?;
        (address < start + allocation.size).then_some(*start)
    }

    /// Notes that a range is mapped for the host.
    pub(crate) fn map(&mut self, address: u64, size: u64, flags: u64) {
        self.mapped.entry(address).or_default().push((size, flags));
    }

    /// Removes the last map that begins at an address.
    pub(crate) fn unmap(&mut self, address: u64) {
        let Some(maps) = self.mapped.get_mut(&address) else { return };
        maps.pop();
        if maps.is_empty() {
            self.mapped.remove(&address);
        }
    }

    /// Returns the mapped regions: addresses, sizes, flags.
    pub(crate) fn mapped(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.mapped.iter().flat_map(|(address, maps)| maps.iter().map(|(size, flags)| (*address, *size, *flags)))
    }

    /// Checks that the bytes lie in one allocation.
    ///
    /// # Errors
    ///
    /// `CL_INVALID_VALUE` if they do not.
    pub(crate) fn check(&self, address: u64, size: u64) -> Result<(), Code> {
        self.holding(address, size).map(drop)
    }

    /// Returns a reference to the allocation that contains the bytes.
    ///
    /// # Errors
    ///
    /// As for [`Self::check`].
    pub(crate) fn hold(&self, address: u64, size: u64) -> Result<ObjectRef, Code> {
        self.holding(address, size).map(|found| ObjectRef::clone(&found.memory))
    }

    /// Checks that the bytes lie in one fine-grained allocation.
    ///
    /// # Errors
    ///
    /// `CL_INVALID_VALUE` if they do not.
    pub(crate) fn check_fine(&self, address: u64, size: u64) -> Result<(), Code> {
        if self.holding(address, size)?.shared_address == 0 { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    fn holding(&self, address: u64, size: u64) -> Result<&Allocation, Code> {
        let (start, allocation) = self.list.range(..=address).next_back().ok_or(Code::INVALID_VALUE)?;
        let end = address.checked_add(size).ok_or(Code::INVALID_VALUE)?;
        if end <= start + allocation.size { Ok(allocation) } else { Err(Code::INVALID_VALUE) }
    }
}

#[cfg(test)]
mod tests {
    use katydid_opencl_sys::{Dispatch, cl_context};

    use super::*;
    use crate::objects::object::Object;
    use crate::tests::empty_table;

    fn context() -> ObjectRef {
        let api: &'static Dispatch = Box::leak(Box::new(empty_table()));
        OwnedObject::new(Object { handle: cl_context::NULL, api, size: 0 }, Vec::new())
    }

    #[test]
    fn allocations_go_down_and_begin_anew_at_the_bottom() {
        let context = context();
        let mut svm = Svm::default();
        assert_eq!(svm.end_of_next(PAGE_BYTES), SVM_ADDRESSES.end);
        svm.add(0x7fff_0000_1000, (PAGE_BYTES, 0), ObjectRef::clone(&context));
        assert_eq!(svm.end_of_next(PAGE_BYTES), SVM_ADDRESSES.end, "what a driver put elsewhere does not count");
        let address = svm.add(SVM_ADDRESSES.end - 3 * PAGE_BYTES + 16, (PAGE_BYTES, 0), ObjectRef::clone(&context));
        assert_eq!(svm.end_of_next(PAGE_BYTES), SVM_ADDRESSES.end - 3 * PAGE_BYTES);
        svm.add(SVM_ADDRESSES.start + PAGE_BYTES, (PAGE_BYTES, 0), ObjectRef::clone(&context));
        assert_eq!(svm.end_of_next(PAGE_BYTES), SVM_ADDRESSES.end);
        assert!(svm.remove(address).is_some());
    }

    #[test]
    fn regions_of_one_address_are_mapped_until_each_is_unmapped() {
        let mut svm = Svm::default();
        for (address, size) in [(8192, 100), (8192, 10), (8200, 4)] {
            svm.map(address, size, 1);
        }
        svm.unmap(8192);
        assert_eq!(svm.mapped().collect::<Vec<_>>(), [(8192, 100, 1), (8200, 4, 1)]);
        svm.unmap(8192);
        svm.unmap(8192);
        assert_eq!(svm.mapped().collect::<Vec<_>>(), [(8200, 4, 1)]);
    }

    #[test]
    fn ranges_lie_in_one_allocation() {
        let context = context();
        let mut svm = Svm::default();
        assert_eq!(
            (
                svm.add(5000, (100, 0), ObjectRef::clone(&context)),
                svm.add(20_000, (100, 4096), ObjectRef::clone(&context))
            ),
            (8192, 20_480)
        );
        for (address, size, fits) in [(8192, 100, true), (8200, 92, true), (8192, 101, false), (8191, 1, false)] {
            assert_eq!(svm.check(address, size).is_ok(), fits, "{address} {size}");
        }
        assert!(svm.check(8192, u64::MAX).is_err());
        assert!(
            svm.check_fine(20_480, 100).is_ok()
                && svm.check_fine(20_480, 101).is_err()
                && svm.check_fine(8192, 1).is_err()
        );
        assert_eq!(svm.fine(..).map(|(address, _)| address).collect::<Vec<_>>(), [20_480]);
        assert!(svm.hold(8192, 101).is_err());
        assert_eq!(svm.remove(8192).unwrap().raw, 5000);
        assert!(svm.remove(8192).is_none() && svm.check(8192, 1).is_err());
    }
}
