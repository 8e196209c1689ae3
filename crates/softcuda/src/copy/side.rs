//! The sides of a copy: device-accessible memory, or memory that only the program knows.

use katydid_driver_rules::copy::DeclaredMemory;

use crate::context::state::Context;
use crate::copy::transfer::AccessRange;
use crate::ffi::Outcome;
use crate::memory::space::Access;

/// Memory that one side of a copy may be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopySide {
    /// Memory that the device reaches.
    Device,
    /// Memory that the device reaches, or the program's own.
    Any,
}

impl CopySide {
    /// Returns the side that the program declares.
    pub(crate) fn of(claim: DeclaredMemory) -> Self {
        match claim {
            DeclaredMemory::Device => Self::Device,
            DeclaredMemory::Host | DeclaredMemory::Any => Self::Any,
        }
    }

    /// Checks memory of this side.
    pub(crate) fn span(self, context: &Context, address: u64, size: u64, access: Access) -> Outcome<AccessRange> {
        match self {
            Self::Device => AccessRange::reached(context, address, size, access),
            Self::Any => AccessRange::anywhere(context, address, size, access),
        }
    }

    /// Returns the range at execution ([`AccessRange::at_execution`]).
    pub(crate) fn at_execution(self, context: &Context, address: u64, size: u64, access: Access) -> AccessRange {
        AccessRange::at_execution(context, address, size, access, matches!(self, Self::Any))
    }
}
