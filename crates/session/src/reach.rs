//! Which addresses a program may name in a copy or fill.
//!
//! Under unified addressing a driver takes any address of its process for host memory, so a copy could read the
//! worker itself. The rule kept here: only the session's arenas and reservations and the variables of its modules can be
//! named.

use std::collections::BTreeMap;
use std::ops::Range;

use katydid_arena::{AddressMap, MAX_DEVICES};
use katydid_cuda_sys::CUresult;

use crate::fault::Fault;

/// The session's arenas and module variables.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    /// A few wide ranges: device arenas and the pinned arena.
    arenas: Vec<Range<u64>>,
    /// Variables of modules by address, with their size in bytes. Those of unloaded modules stay: an address that the
    /// driver gave out is never memory of the worker.
    variables: BTreeMap<u64, u64>,
    /// Reservations of the program by address, with their size in bytes.
    reservations: BTreeMap<u64, u64>,
}

impl Reach {
    /// The arenas of `map`, and no variable yet.
    pub(crate) fn new(map: &AddressMap) -> Self {
        let mut arenas: Vec<_> = (0..MAX_DEVICES).filter_map(|device| map.device(device)).collect();
        arenas.extend(map.pinned());
        Self { arenas, variables: BTreeMap::new(), reservations: BTreeMap::new() }
    }

    /// Notes a variable that the driver told the address of.
    pub(crate) fn add_variable(&mut self, address: u64, size: u64) {
        let known = self.variables.entry(address).or_insert(size);
        *known = size.max(*known);
    }

    /// Notes addresses that the program reserved: nothing of the worker's can lie there until they are given back.
    pub(crate) fn add_reservation(&mut self, address: u64, size: u64) {
        self.reservations.insert(address, size);
    }

    /// Forgets the reservation that starts at `address`.
    pub(crate) fn remove_reservation(&mut self, address: u64) {
        self.reservations.remove(&address);
    }

    /// Passes `size` bytes at `address`.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_INVALID_VALUE`, as a driver answers for an address it does not know.
    pub(crate) fn check(&self, address: u64, size: u64) -> Result<(), Fault> {
        let end = address.checked_add(size).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let inside = |range: &Range<u64>| range.start <= address && end <= range.end;
        if self.arenas.iter().any(inside)
            || holds(&self.variables, address, end)
            || holds(&self.reservations, address, end)
        {
            return Ok(());
        }
        Err(CUresult::ERROR_INVALID_VALUE.into())
    }
}

/// Whether one of `ranges` (size by address) holds all of `address..end`.
fn holds(ranges: &BTreeMap<u64, u64>, address: u64, end: u64) -> bool {
    let below = ranges.range(..=address).next_back();
    below.is_some_and(|(start, size)| start.checked_add(*size).is_some_and(|limit| end <= limit))
}

#[cfg(test)]
mod tests {
    use katydid_wire::handshake::{ArenaKind, ArenaRange};

    use super::*;

    fn reach() -> Reach {
        let arenas = [
            ArenaRange { kind: ArenaKind::DEVICE, base: 0x2000_0000_0000, length: 1 << 40 },
            ArenaRange { kind: ArenaKind::PINNED, base: 0x3000_0000_0000, length: 1 << 38 },
        ];
        let mut reach = Reach::new(&AddressMap::from_arenas(&arenas).unwrap());
        reach.add_variable(0x7f00_0000_1000, 64);
        reach
    }

    #[test]
    fn arenas_and_variables_can_be_named() {
        for (address, size) in [(0x2000_0000_0000, 1 << 40), (0x3000_0000_0000, 1), (0x7f00_0000_1020, 32)] {
            assert!(reach().check(address, size).is_ok(), "{address:#x}");
        }
    }

    #[test]
    fn memory_of_the_worker_cannot() {
        let local = 0_u64;
        let own = &raw const local as u64;
        let past = [(own, 8), (0x2000_0000_0000, (1 << 40) + 1), (0x7f00_0000_1020, 33), (u64::MAX, 2), (0, 1)];
        for (address, size) in past {
            assert!(reach().check(address, size).is_err(), "{address:#x}");
        }
    }
}
