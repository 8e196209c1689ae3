//! Ranges of this process's address space that nothing else can take.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use thiserror::Error;

/// Why a range could not be reserved, or used as wished.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// Something is mapped there.
    #[error("addresses {start:#x}..{end:#x} are in use already")]
    Taken {
        /// First address.
        start: u64,
        /// First address after it.
        end: u64,
    },
    /// The caller's part is not inside the reservation, or not made of whole pages.
    #[error("{length} bytes at offset {offset:#x} are not whole pages of the reserved range")]
    Outside {
        /// Offset asked for.
        offset: u64,
        /// Bytes asked for.
        length: u64,
    },
    /// The operating system refused.
    #[error("cannot map {length} bytes at {start:#x}; is a limit on address space set (ulimit -v)?")]
    System {
        /// First address.
        start: u64,
        /// Bytes.
        length: u64,
        /// What the system said.
        source: io::Error,
    },
}

/// A range that holds no memory, until some is mapped into it. Dropping it gives the range back with all that was
/// mapped there.
#[derive(Debug)]
pub struct Reservation {
    range: Range<u64>,
}

impl Reservation {
    /// Takes the range if nothing is mapped in it.
    ///
    /// # Errors
    /// [`ReserveError::Taken`], [`ReserveError::System`].
    pub fn at(base: u64, length: u64) -> Result<Self, ReserveError> {
        todo!("{base} {length}")
    }

    /// Its addresses.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Maps shared memory, readable and writable, at `offset` of the range; `fd_offset` is the offset in the file.
    ///
    /// # Errors
    /// [`ReserveError::Outside`], [`ReserveError::System`].
    pub fn map_shared(&self, offset: u64, length: u64, fd: impl AsFd, fd_offset: u64) -> Result<(), ReserveError> {
        todo!("{offset} {length} {:?} {fd_offset}", fd.as_fd())
    }

    /// Maps private zeroed memory, readable and writable, at `offset` of the range.
    ///
    /// # Errors
    /// [`ReserveError::Outside`], [`ReserveError::System`].
    pub fn map_private(&self, offset: u64, length: u64) -> Result<(), ReserveError> {
        todo!("{offset} {length}")
    }

    /// Takes back what was mapped there; the range stays reserved.
    ///
    /// # Errors
    /// [`ReserveError::Outside`], [`ReserveError::System`].
    pub fn unmap(&self, offset: u64, length: u64) -> Result<(), ReserveError> {
        todo!("{offset} {length}")
    }

    /// Gives the range back without unmapping it, for the process's last moments or a driver that takes it over.
    pub fn leak(self) {
        std::mem::forget(self);
    }
}
