//! The address map as this process can have it: which offered ranges fit, and their mappings.

use std::os::fd::BorrowedFd;

use katydid_arena::{AddressMap, ArenaError, Reservation, choose};
use katydid_driver::Driver;
use katydid_session::{HostMemory, device_memory};
use katydid_wire::handshake::{ArenaKind, ArenaRange};

/// The agreed ranges, reserved.
pub(crate) struct Arenas {
    /// The ranges as reported to the program.
    pub(crate) ranges: Vec<ArenaRange>,
    /// The ranges as a map.
    pub(crate) map: AddressMap,
    /// Pinned memory; none if no range fits both sides.
    pub(crate) host: Option<HostMemory>,
}

/// Tries the program's offers in order. `pinned` is the memory that the program shares. On a stream link there is none, and the
/// worker uses its own memory.
///
/// # Errors
///
/// No device arena fits.
pub(crate) fn agree(
    driver: &Driver,
    devices: usize,
    offers: &[ArenaRange],
    pinned: Option<BorrowedFd<'_>>,
) -> Result<Arenas, ArenaError> {
    let mut host = None;
    let ranges = choose(offers, |offer| match offer.kind {
        ArenaKind::DEVICE => {
            AddressMap::from_arenas(&[*offer]).is_some_and(|map| device_memory::reserve(driver, &map, devices))
        }
        ArenaKind::PINNED => {
            host = map(offer, pinned);
            host.is_some()
        }
        _ => false,
    })?;
    let map = AddressMap::from_arenas(&ranges).ok_or_else(|| ArenaError::NoRange {
        kind: "device",
        tried: offers.iter().map(|offer| offer.base).collect(),
    })?;
    Ok(Arenas { ranges, map, host })
}

/// Maps pinned memory at the offered range; none when that is occupied.
fn map(offer: &ArenaRange, pinned: Option<BorrowedFd<'_>>) -> Option<HostMemory> {
    let arena = Reservation::at(offer.base, offer.length).ok()?;
    match pinned {
        Some(shared) => {
            arena.map_shared(0, offer.length, shared, 0).ok()?;
            Some(HostMemory::shared(arena, shared.try_clone_to_owned().ok()?))
        }
        None => arena.map_private(0, offer.length).ok().map(|()| HostMemory::private(arena)),
    }
}
