//! How both sides come to use the same ranges.
//!
//! The program reserves every candidate that is free in its address space and offers them, best first. The worker
//! tries them in that order in its own, and names one of each kind. The program keeps those and lets the others go.

use katydid_wire::handshake::{ArenaKind, ArenaRange};
use thiserror::Error;

use crate::map::{AddressMap, DEVICE_STRIDE, MAX_DEVICES};
use crate::reservation::Reservation;

/// Bytes of the pinned arena.
const PINNED_LENGTH: u64 = 256 << 30;
/// Bytes of the device arena.
const DEVICE_LENGTH: u64 = DEVICE_STRIDE * MAX_DEVICES as u64;
/// Candidates in order of preference. Sanitizers take all below 0x1000_7fff_8000, position-independent executables
/// start at 0x5555…, and the system fills the address space from 0x7fff… downwards.
const CANDIDATES: [ArenaRange; 5] = [
    ArenaRange { kind: ArenaKind::DEVICE, base: 0x2000_0000_0000, length: DEVICE_LENGTH },
    ArenaRange { kind: ArenaKind::DEVICE, base: 0x1000_0000_0000, length: DEVICE_LENGTH },
    ArenaRange { kind: ArenaKind::DEVICE, base: 0x6000_0000_0000, length: DEVICE_LENGTH },
    ArenaRange { kind: ArenaKind::PINNED, base: 0x3000_0000_0000, length: PINNED_LENGTH },
    ArenaRange { kind: ArenaKind::PINNED, base: 0x4000_0000_0000, length: PINNED_LENGTH },
];

/// Why the sides have no common map.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// Every candidate for a kind of memory is taken, here or there.
    #[error(
        "no address range for {kind} memory is free on both sides; something else occupies {tried:x?} \
         (see /proc/PID/maps of the program)"
    )]
    NoRange {
        /// Which memory.
        kind: &'static str,
        /// Bases that were tried.
        tried: Vec<u64>,
    },
    /// The worker named a range that was not offered.
    #[error("the worker chose an address range at {base:#x} that was not offered")]
    NotOffered {
        /// Its base.
        base: u64,
    },
}

/// The program's reserved candidates.
#[derive(Debug)]
pub struct Offers {
    held: Vec<(ArenaRange, Reservation)>,
}

impl Offers {
    /// Reserves every candidate that is free.
    ///
    /// # Errors
    /// [`ArenaError::NoRange`] if no candidate for device memory is.
    pub fn reserve() -> Result<Self, ArenaError> {
        let reserve = |arena: &ArenaRange| Some((*arena, Reservation::at(arena.base, arena.length).ok()?));
        let held: Vec<_> = CANDIDATES.iter().filter_map(reserve).collect();
        if held.iter().any(|(arena, _)| arena.kind == ArenaKind::DEVICE) {
            Ok(Self { held })
        } else {
            Err(no_range(&CANDIDATES))
        }
    }

    /// What goes into the hello.
    #[must_use]
    pub fn arenas(&self) -> Vec<ArenaRange> {
        self.held.iter().map(|(arena, _)| *arena).collect()
    }

    /// Keeps what the worker chose and lets the other ranges go.
    ///
    /// # Errors
    /// [`ArenaError::NotOffered`], [`ArenaError::NoRange`] if it chose no device arena.
    pub fn settle(mut self, chosen: &[ArenaRange]) -> Result<Settled, ArenaError> {
        let (mut device, mut pinned) = (None, None);
        for arena in chosen {
            let offered = self.held.iter().position(|(held, _)| held == arena);
            let at = offered.ok_or(ArenaError::NotOffered { base: arena.base })?;
            let reservation = self.held.swap_remove(at).1;
            match arena.kind {
                ArenaKind::DEVICE => device = Some(reservation),
                _ => pinned = Some(reservation),
            }
        }
        let nothing = || no_range(&CANDIDATES);
        let map = AddressMap::from_arenas(chosen).ok_or_else(nothing)?;
        Ok(Settled { map, device: device.ok_or_else(nothing)?, pinned })
    }
}

/// The agreed map, and the reservations that keep its ranges free.
#[derive(Debug)]
pub struct Settled {
    /// Where the arenas lie.
    pub map: AddressMap,
    /// The device arena.
    pub device: Reservation,
    /// The pinned arena; none if the sides found no common range.
    pub pinned: Option<Reservation>,
}

/// Worker: the first offer of each kind that `fits` here. A device arena is required, others are not.
///
/// # Errors
/// [`ArenaError::NoRange`].
pub fn choose(offers: &[ArenaRange], mut fits: impl FnMut(&ArenaRange) -> bool) -> Result<Vec<ArenaRange>, ArenaError> {
    let mut chosen: Vec<ArenaRange> = Vec::new();
    for offer in offers {
        let open = chosen.iter().all(|arena| arena.kind != offer.kind);
        if open && is_known(offer) && fits(offer) {
            chosen.push(*offer);
        }
    }
    if chosen.iter().any(|arena| arena.kind == ArenaKind::DEVICE) { Ok(chosen) } else { Err(no_range(offers)) }
}

/// The worker maps only what a program of this build offers: a hostile one could name the worker's own memory.
fn is_known(offer: &ArenaRange) -> bool {
    CANDIDATES.contains(offer)
}

fn no_range(offers: &[ArenaRange]) -> ArenaError {
    let device = offers.iter().filter(|arena| arena.kind == ArenaKind::DEVICE);
    ArenaError::NoRange { kind: "device", tried: device.map(|arena| arena.base).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_settle_on_the_first_range_that_suits_both() {
        let offers = Offers::reserve().unwrap();
        let offered = offers.arenas();
        let first = offered[0].base;
        let chosen = choose(&offered, |arena| arena.base != first).unwrap();
        assert_eq!(chosen.iter().map(|arena| arena.kind).collect::<Vec<_>>(), [ArenaKind::DEVICE, ArenaKind::PINNED]);
        let settled = offers.settle(&chosen).unwrap();
        assert_eq!(settled.map.device(0).unwrap().start, chosen[0].base);
        assert_eq!(settled.device.range().start, chosen[0].base);
        assert_eq!(settled.pinned.unwrap().range().start, chosen[1].base);
        assert_ne!(chosen[0].base, first);
        assert!(Reservation::at(first, DEVICE_LENGTH).is_ok());
    }

    #[test]
    fn a_worker_without_room_says_what_was_tried() {
        let error = choose(&CANDIDATES, |arena| arena.kind == ArenaKind::PINNED).unwrap_err();
        assert!(error.to_string().contains("[200000000000, 100000000000, 600000000000]"), "{error}");
    }

    #[test]
    fn a_range_that_no_program_of_this_build_offers_is_passed_over() {
        let hostile = ArenaRange { kind: ArenaKind::DEVICE, base: 0x5555_0000_0000, length: DEVICE_LENGTH };
        assert!(choose(&[hostile], |_| true).is_err());
        assert_eq!(choose(&[hostile, CANDIDATES[1]], |_| true), Ok(vec![CANDIDATES[1]]));
    }

    #[test]
    fn a_range_that_was_not_offered_is_not_kept() {
        let offers = Offers { held: Vec::new() };
        assert_eq!(offers.settle(&CANDIDATES[..1]).unwrap_err(), ArenaError::NotOffered { base: CANDIDATES[0].base });
        assert!(matches!(Offers { held: Vec::new() }.settle(&[]), Err(ArenaError::NoRange { .. })));
    }
}
