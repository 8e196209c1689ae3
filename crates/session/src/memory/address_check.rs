//! Checks the addresses that a program names in a copy or fill.
//!
//! Under unified addressing a driver takes any address of its process for host memory, so a copy could read the worker
//! itself. Therefore a program can only name the session's arenas and reservations, and the variables of its modules. If a
//! pinned arena is the program's own memory, only the part that was found to have memory behind it counts.

use std::collections::BTreeMap;
use std::ops::Range;

use katydid_arena::{AddressMap, MAX_SESSION_DEVICES};
use katydid_cuda_sys::CUresult;

use crate::calls::fault::Fault;

/// The session's arenas and module variables.
#[derive(Debug, Default)]
pub(crate) struct AddressCheck {
    /// Device arenas: a few wide ranges.
    arenas: Vec<Range<u64>>,
    /// The part of the pinned arena that has memory.
    pinned: Range<u64>,
    /// End of the pinned arena itself.
    pinned_end: u64,
    /// Variables of modules by address, with their size in bytes. Those of unloaded modules stay: an address that the driver
    /// returned is never memory of the worker. Overlapping variables are merged into one range.
    variables: BTreeMap<u64, u64>,
    /// Reservations of the program by address, with their size in bytes.
    reservations: BTreeMap<u64, u64>,
}

impl AddressCheck {
    /// Makes the check for the arenas of `map`, without variables.
    pub(crate) fn new(map: &AddressMap) -> Self {
        let arenas = (0..MAX_SESSION_DEVICES).filter_map(|device| map.device(device)).collect();
        let pinned = map.pinned().unwrap_or(0..0);
        let pinned_end = pinned.end;
        Self { arenas, pinned, pinned_end, variables: BTreeMap::new(), reservations: BTreeMap::new() }
    }

    /// Makes the pinned arena empty: the memory behind it is the program's, and none of it has been checked yet.
    pub(crate) fn share_pinned(&mut self) {
        self.pinned.end = self.pinned.start;
    }

    /// Extends the pinned arena to the end of a block in it, which has memory.
    pub(crate) fn admit_pinned(&mut self, address: u64, size: u64) {
        let end = address.saturating_add(size);
        if self.pinned.start <= address && end <= self.pinned_end {
            self.pinned.end = self.pinned.end.max(end);
        }
    }

    /// Adds a variable whose address the driver returned.
    pub(crate) fn add_variable(&mut self, address: u64, size: u64) {
        let (mut start, mut end) = (address, address.saturating_add(size));
        while let Some((&known, &length)) = self.variables.range(..end).next_back()
            && known.saturating_add(length) > start
        {
            self.variables.remove(&known);
            (start, end) = (start.min(known), end.max(known.saturating_add(length)));
        }
        self.variables.insert(start, end - start);
    }

    /// Adds addresses that the program reserved: no memory of the worker can be there until they are freed.
    pub(crate) fn add_reservation(&mut self, address: u64, size: u64) {
        self.reservations.insert(address, size);
    }

    /// Forgets the reservation that starts at `address`.
    pub(crate) fn remove_reservation(&mut self, address: u64) {
        self.reservations.remove(&address);
    }

    /// Checks `size` bytes at `address`.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_INVALID_VALUE`, as a driver answers for an unknown address.
    pub(crate) fn check(&self, address: u64, size: u64) -> Result<(), Fault> {
        let end = address.checked_add(size).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let inside = |range: &Range<u64>| range.start <= address && end <= range.end;
        if self.arenas.iter().any(inside)
            || inside(&self.pinned)
            || holds(&self.variables, address, end)
            || holds(&self.reservations, address, end)
        {
            return Ok(());
        }
        Err(CUresult::ERROR_INVALID_VALUE.into())
    }
}

/// Returns whether one of `ranges` (size by address) contains all of `address..end`.
fn holds(ranges: &BTreeMap<u64, u64>, address: u64, end: u64) -> bool {
    let below = ranges.range(..=address).next_back();
    below.is_some_and(|(start, size)| start.checked_add(*size).is_some_and(|limit| end <= limit))
}

#[cfg(test)]
mod tests {
    use katydid_wire::handshake::{ArenaKind, ArenaRange};

    use super::*;

    fn address_check() -> AddressCheck {
        let arenas = [
            ArenaRange { kind: ArenaKind::DEVICE, base: 0x2000_0000_0000, length: 1 << 40 },
            ArenaRange { kind: ArenaKind::PINNED, base: 0x3000_0000_0000, length: 1 << 38 },
        ];
        let mut address_check = AddressCheck::new(&AddressMap::from_arenas(&arenas).unwrap());
        address_check.add_variable(0x7f00_0000_1000, 64);
        address_check
    }

    #[test]
    fn arenas_and_variables_can_be_named() {
        for (address, size) in [(0x2000_0000_0000, 1 << 40), (0x3000_0000_0000, 1), (0x7f00_0000_1020, 32)] {
            assert!(address_check().check(address, size).is_ok(), "{address:#x}");
        }
    }

    #[test]
    fn a_variable_can_be_named_wherever_one_of_an_unloaded_module_was() {
        for (address, size) in [(0x7f00_0000_0f00, 4096), (0x7f00_0000_1030, 8192), (0x7f00_0000_0000, 16384)] {
            let mut address_check = address_check();
            address_check.add_variable(address, size);
            address_check.add_variable(0x7f00_0001_0000, 16);
            assert!(
                address_check.check(address, size).is_ok() && address_check.check(0x7f00_0000_1000, 64).is_ok(),
                "{address:#x}"
            );
            assert!(
                address_check.check(0x7f00_0001_0000, 16).is_ok() && address_check.check(0x7f00_0001_0000, 17).is_err()
            );
        }
        assert!(address_check().check(0x7f00_0000_1000, 65).is_err());
    }

    #[test]
    fn of_shared_pinned_memory_only_what_is_there_can() {
        let (start, end) = (0x3000_0000_0000, 0x3000_0000_0000 + (1 << 38));
        let mut address_check = address_check();
        address_check.share_pinned();
        assert!(address_check.check(start, 1).is_err());
        address_check.admit_pinned(start + 4096, 4096);
        address_check.admit_pinned(end - 4096, 8192);
        address_check.admit_pinned(start - 4096, 4096);
        assert!(address_check.check(start, 8192).is_ok() && address_check.check(start, 8193).is_err());
    }

    #[test]
    fn memory_of_the_worker_cannot() {
        let local = 0_u64;
        let own = &raw const local as u64;
        let past = [(own, 8), (0x2000_0000_0000, (1 << 40) + 1), (0x7f00_0000_1020, 33), (u64::MAX, 2), (0, 1)];
        for (address, size) in past {
            assert!(address_check().check(address, size).is_err(), "{address:#x}");
        }
    }
}
