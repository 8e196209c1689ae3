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
        todo!()
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
    pub fn settle(self, chosen: &[ArenaRange]) -> Result<Settled, ArenaError> {
        todo!("{chosen:?}")
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
pub fn choose(
    offers: &[ArenaRange],
    fits: impl FnMut(&ArenaRange) -> bool,
) -> Result<Vec<ArenaRange>, ArenaError> {
    let _ = (offers, fits, CANDIDATES);
    todo!()
}
