//! The address map that program and worker share, and the allocators that fill it.
//!
//! A device pointer and a pinned host pointer have the same value in the program, in the worker, and after a restore. So both
//! sides keep the same ranges free ([`Reservation`]). They agree on one range for each kind of memory before any pointer is
//! handed out: the program offers ranges ([`Offers`]), and the worker chooses ([`choose`]). The program hands out addresses
//! itself ([`Suballocator`]) and asks the worker only for growth. [`RangeMap`] finds the range of an address.

mod map;
mod negotiate;
mod range_map;
mod reservation;
mod suballocator;

pub use map::{AddressMap, DEVICE_SPAN_BYTES, MAX_SESSION_DEVICES, RESERVATION_UNIT};
pub use negotiate::{ArenaError, NegotiatedArenas, Offers, choose, choose_pinned, pinned_at};
pub use range_map::{Overlap, RangeMap};
pub use reservation::{Reservation, ReserveError};
pub use suballocator::{FreeError, GROWTH_GRANULE_BYTES, LARGE_BLOCK_BYTES, Suballocator};
