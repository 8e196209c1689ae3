//! The sides of a copy, which may or may not be memory that only the program knows.

use katydid_driver_rules::copy::DeclaredMemory;

use crate::context::state::Context;
use crate::copy::transfer::AccessRange;
use crate::ffi::Outcome;
use crate::memory::space::Access;

/// What one side of a copy may be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopySide {
    /// Memory that the device reaches.
    Device,
    /// Memory that the device reaches, or the program's own.
    Any,
}

impl CopySide {
    /// A side that the program declares as such.
    pub(crate) fn of(claim: DeclaredMemory) -> Self {
        match claim {
            DeclaredMemory::Device => Self::Device,
            DeclaredMemory::Host | DeclaredMemory::Any => Self::Any,
        }
    }

    /// A checked span of this side.
    pub(crate) fn span(self, context: &Context, address: u64, size: u64, access: Access) -> Outcome<AccessRange> {
        match self {
            Self::Device => AccessRange::reached(context, address, size, access),
            Self::Any => AccessRange::anywhere(context, address, size, access),
        }
    }

    /// The span of work whose turn has come ([`AccessRange::at_execution`]).
    pub(crate) fn at_execution(self, context: &Context, address: u64, size: u64, access: Access) -> AccessRange {
        AccessRange::at_execution(context, address, size, access, matches!(self, Self::Any))
    }
}
