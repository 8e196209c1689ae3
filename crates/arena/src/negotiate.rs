//! Negotiates the ranges that both sides use.
//!
//! The program reserves every candidate that is free in its address space, and offers them, best first. The worker tries them in
//! that order in its own address space, and chooses one of each kind. The program keeps those and releases the others.

use katydid_wire::handshake::{ArenaKind, ArenaRange};
use thiserror::Error;

use crate::map::{AddressMap, DEVICE_SPAN_BYTES, MAX_SESSION_DEVICES};
use crate::reservation::Reservation;

/// Bytes of the pinned arena.
const PINNED_ARENA_BYTES: u64 = 256 << 30;
/// Bytes of the device arena.
const DEVICE_ARENA_BYTES: u64 = DEVICE_SPAN_BYTES * MAX_SESSION_DEVICES as u64;
/// Candidates in order of preference. Sanitizers use all addresses below 0x1000_7fff_8000, position-independent executables start
/// at 0x5555…, and the system fills the address space from 0x7fff… downwards.
const ARENA_CANDIDATES: [ArenaRange; 5] = [
    ArenaRange { kind: ArenaKind::DEVICE, base: 0x2000_0000_0000, length: DEVICE_ARENA_BYTES },
    ArenaRange { kind: ArenaKind::DEVICE, base: 0x1000_0000_0000, length: DEVICE_ARENA_BYTES },
    ArenaRange { kind: ArenaKind::DEVICE, base: 0x6000_0000_0000, length: DEVICE_ARENA_BYTES },
    ArenaRange { kind: ArenaKind::PINNED, base: 0x3000_0000_0000, length: PINNED_ARENA_BYTES },
    ArenaRange { kind: ArenaKind::PINNED, base: 0x4000_0000_0000, length: PINNED_ARENA_BYTES },
];

/// Why the sides have no common map.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// No candidate for a kind of memory is free on both sides.
    #[error(
        "no address range for {kind} memory is free on both sides; something else occupies {tried:x?} \
         (see /proc/PID/maps of the program)"
    )]
    NoRange {
        /// Kind of memory: device or pinned.
        kind: &'static str,
        /// Bases that were tried.
        tried: Vec<u64>,
    },
    /// The worker named a range that was not offered.
    #[error("the worker chose an address range at {base:#x} that was not offered")]
    NotOffered {
        /// First address of the range.
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
    /// [`ArenaError::NoRange`] if no candidate for device memory is free.
    pub fn reserve() -> Result<Self, ArenaError> {
        let offers = Self::reserve_each(|_| true);
        if offers.held.iter().any(|(arena, _)| arena.kind == ArenaKind::DEVICE) {
            Ok(offers)
        } else {
            Err(no_range(&ARENA_CANDIDATES))
        }
    }

    /// Reserves the free candidates for pinned memory, for a session whose devices have their own addresses.
    #[must_use]
    pub fn reserve_pinned() -> Self {
        Self::reserve_each(|arena| arena.kind == ArenaKind::PINNED)
    }

    fn reserve_each(is_meant: impl Fn(&ArenaRange) -> bool) -> Self {
        let reserve = |arena: &ArenaRange| Some((*arena, Reservation::at(arena.base, arena.length).ok()?));
        Self { held: ARENA_CANDIDATES.iter().filter(|arena| is_meant(arena)).filter_map(reserve).collect() }
    }

    /// Returns the offers for the hello.
    #[must_use]
    pub fn arenas(&self) -> Vec<ArenaRange> {
        self.held.iter().map(|(arena, _)| *arena).collect()
    }

    /// Keeps the ranges that the worker chose, and releases the others.
    ///
    /// # Errors
    /// [`ArenaError::NotOffered`], and [`ArenaError::NoRange`] if the worker chose no device arena.
    pub fn settle(mut self, chosen: &[ArenaRange]) -> Result<NegotiatedArenas, ArenaError> {
        let (mut device, mut pinned) = (None, None);
        for arena in chosen {
            let reservation = self.take(arena)?;
            match arena.kind {
                ArenaKind::DEVICE => device = Some(reservation),
                _ => pinned = Some(reservation),
            }
        }
        let nothing = || no_range(&ARENA_CANDIDATES);
        let map = AddressMap::from_arenas(chosen).ok_or_else(nothing)?;
        Ok(NegotiatedArenas { map, device: device.ok_or_else(nothing)?, pinned })
    }

    /// Keeps the range that the worker chose from [`Offers::reserve_pinned`]; `None` if it chose none.
    ///
    /// # Errors
    /// [`ArenaError::NotOffered`].
    pub fn settle_pinned(mut self, chosen: &[ArenaRange]) -> Result<Option<Reservation>, ArenaError> {
        match chosen {
            [] => Ok(None),
            [arena] => self.take(arena).map(Some),
            [_, further, ..] => Err(ArenaError::NotOffered { base: further.base }),
        }
    }

    /// Takes the reservation of a range that the worker chose.
    fn take(&mut self, chosen: &ArenaRange) -> Result<Reservation, ArenaError> {
        let offered = self.held.iter().position(|(held, _)| held == chosen);
        let at = offered.ok_or(ArenaError::NotOffered { base: chosen.base })?;
        Ok(self.held.swap_remove(at).1)
    }
}

/// The agreed map, and the reservations that keep its ranges free.
#[derive(Debug)]
pub struct NegotiatedArenas {
    /// The addresses of the arenas.
    pub map: AddressMap,
    /// Reservation of the arena for device memory.
    pub device: Reservation,
    /// Reservation of the pinned arena; `None` if the sides found no common range.
    pub pinned: Option<Reservation>,
}

/// Worker: returns the first offer of each kind that `fits` here. A device arena is required, others are not.
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

/// Worker: returns the first offer for pinned memory that `fits` here, if there is one.
pub fn choose_pinned(offers: &[ArenaRange], mut fits: impl FnMut(&ArenaRange) -> bool) -> Option<ArenaRange> {
    let is_meant = |offer: &&ArenaRange| offer.kind == ArenaKind::PINNED && is_known(offer);
    offers.iter().filter(is_meant).find(|offer| fits(offer)).copied()
}

/// Returns the candidate for pinned memory at an address, for a worker whose program has it already; `None` for any other
/// address.
#[must_use]
pub fn pinned_at(base: u64) -> Option<ArenaRange> {
    ARENA_CANDIDATES.into_iter().find(|arena| arena.kind == ArenaKind::PINNED && arena.base == base)
}

/// Returns whether an offer is one of this build's. The worker maps only those: a hostile program could name the worker's own
/// memory.
fn is_known(offer: &ArenaRange) -> bool {
    ARENA_CANDIDATES.contains(offer)
}

fn no_range(offers: &[ArenaRange]) -> ArenaError {
    let device = offers.iter().filter(|arena| arena.kind == ArenaKind::DEVICE);
    ArenaError::NoRange { kind: "device", tried: device.map(|arena| arena.base).collect() }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    /// Candidates belong to the whole process: a test that reserves them leaves none to another.
    fn candidates_for_one() -> MutexGuard<'static, ()> {
        static ARENA_CANDIDATES: Mutex<()> = Mutex::new(());
        ARENA_CANDIDATES.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn both_sides_settle_on_the_first_range_that_suits_both() {
        let _guard = candidates_for_one();
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
        assert!(Reservation::at(first, DEVICE_ARENA_BYTES).is_ok());
    }

    #[test]
    fn pinned_memory_alone_is_settled_on_too() {
        let _guard = candidates_for_one();
        let offers = Offers::reserve_pinned();
        let offered = offers.arenas();
        assert!(offered.iter().all(|arena| arena.kind == ArenaKind::PINNED));
        let device = ArenaRange { kind: ArenaKind::DEVICE, ..ARENA_CANDIDATES[0] };
        let chosen = choose_pinned(&[&[device], &offered[..]].concat(), |_| true).unwrap();
        assert_eq!(offers.settle_pinned(&[chosen]).unwrap().unwrap().range().start, chosen.base);
        assert!(choose_pinned(&offered, |_| false).is_none());
        let nothing = || Offers { held: Vec::new() };
        assert!(nothing().settle_pinned(&[]).unwrap().is_none());
        assert_eq!(nothing().settle_pinned(&[chosen]).unwrap_err(), ArenaError::NotOffered { base: chosen.base });
    }

    #[test]
    fn a_worker_without_free_addresses_names_the_tried_ranges() {
        let error = choose(&ARENA_CANDIDATES, |arena| arena.kind == ArenaKind::PINNED).unwrap_err();
        assert!(error.to_string().contains("[200000000000, 100000000000, 600000000000]"), "{error}");
    }

    #[test]
    fn a_range_that_no_program_of_this_build_offers_is_skipped() {
        let hostile = ArenaRange { kind: ArenaKind::DEVICE, base: 0x5555_0000_0000, length: DEVICE_ARENA_BYTES };
        assert!(choose(&[hostile], |_| true).is_err());
        assert_eq!(choose(&[hostile, ARENA_CANDIDATES[1]], |_| true), Ok(vec![ARENA_CANDIDATES[1]]));
    }

    #[test]
    fn a_range_that_was_not_offered_is_not_kept() {
        let offers = Offers { held: Vec::new() };
        assert_eq!(
            offers.settle(&ARENA_CANDIDATES[..1]).unwrap_err(),
            ArenaError::NotOffered { base: ARENA_CANDIDATES[0].base }
        );
        assert!(matches!(Offers { held: Vec::new() }.settle(&[]), Err(ArenaError::NoRange { .. })));
    }
}
