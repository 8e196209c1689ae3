//! From an address and a lane to a place: plain memory, shared memory, parameters, or the lane's local memory.

use super::raw::{self, Atomic};
use super::{Word, local, param};
use crate::engine::fault::FaultKind;
use crate::engine::machine::Machine;
use crate::window;

/// Where an access of one lane goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Memory of this process, checked.
    Host(u64),
    /// An offset into the lane's local memory, checked.
    Local(u64),
    /// An offset into the kernel's parameters, checked.
    Param(u64),
}

/// Address spaces that an instruction can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    /// Any of the others, told apart by the address.
    Generic,
    /// Device memory.
    Global,
    /// Offsets into the block's shared memory.
    Shared,
    /// Offsets into the thread's local memory.
    Local,
}

impl Space {
    /// As a number, for `Inst` fields.
    pub(crate) fn encode(self) -> u32 {
        match self {
            Self::Generic => 0,
            Self::Global => 1,
            Self::Shared => 2,
            Self::Local => 3,
        }
    }

    /// The reverse of `encode`.
    pub(crate) fn decode(code: u32) -> Self {
        [Self::Generic, Self::Global, Self::Shared, Self::Local][code as usize & 3]
    }
}

impl Machine<'_> {
    /// Checks an access of `size` bytes, a power of two, and says where it goes.
    pub(crate) fn place(&mut self, space: Space, address: u64, size: u64, write: bool) -> Result<Place, FaultKind> {
        if address & (size - 1) != 0 {
            return Err(FaultKind::MisalignedAddress(address));
        }
        match space {
            Space::Shared => self.shared_place(address, size).ok_or(FaultKind::IllegalAddress(address)),
            Space::Local => self.local_place(address, size).ok_or(FaultKind::IllegalAddress(address)),
            Space::Global => self.global_place(address, size, write),
            Space::Generic => self.generic_place(address, size, write),
        }
    }

    /// Tells by the address which space is meant.
    fn generic_place(&mut self, address: u64, size: u64, write: bool) -> Result<Place, FaultKind> {
        let place = if address < window::SHARED {
            return self.global_place(address, size, write);
        } else if let Some(offset) = window::offset_in(window::SHARED, address) {
            self.shared_place(offset, size)
        } else if let Some(offset) = window::offset_in(window::LOCAL, address) {
            self.local_place(offset, size)
        } else {
            let offset = window::offset_in(window::PARAM, address).filter(|_| !write);
            let param = offset.filter(|offset| param::contains(self.env.params, *offset, size)).map(Place::Param);
            param.or_else(|| self.env.workspace_at(address, size).map(Place::Host))
        };
        place.ok_or(FaultKind::IllegalAddress(address))
    }

    /// Device memory: asks for the range.
    fn global_place(&mut self, address: u64, size: u64, write: bool) -> Result<Place, FaultKind> {
        if address >= window::SHARED {
            let place = self.env.workspace_at(address, size).map(Place::Host);
            return place.ok_or(FaultKind::IllegalAddress(address));
        }
        let allowed = self.ranges.allow(self.env.host, self.pc, address, size, write);
        if allowed { Ok(Place::Host(address)) } else { Err(FaultKind::IllegalAddress(address)) }
    }

    /// Shared memory, of the block or of another one of its cluster.
    pub(crate) fn shared_place(&mut self, address: u64, size: u64) -> Option<Place> {
        let span = self.block.shared.span(address, size);
        span.or_else(|| self.peer_span(address, size)).map(Place::Host)
    }

    /// Local memory: ends with the frames that exist now.
    fn local_place(&mut self, offset: u64, size: u64) -> Option<Place> {
        local::contains(&self.warp.local, offset, size).then_some(Place::Local(offset))
    }

    /// Reads one value for `lane`.
    #[expect(unsafe_code, reason = "the one slow path to memory")]
    pub(crate) fn read<T: Word>(&mut self, space: Space, lane: usize, address: u64) -> Result<T, FaultKind> {
        Ok(match self.place(space, address, T::SIZE, false)? {
            // SAFETY: `place` checked range and alignment.
            Place::Host(address) => unsafe { raw::load(address) },
            Place::Local(offset) => local::read(&self.warp.local, lane, offset),
            Place::Param(offset) => T::cut(param::read(self.env.params, offset, T::SIZE)),
        })
    }

    /// Writes one value for `lane`.
    #[expect(unsafe_code, reason = "the one slow path to memory")]
    pub(crate) fn write<T: Word>(
        &mut self,
        space: Space,
        lane: usize,
        address: u64,
        value: T,
    ) -> Result<(), FaultKind> {
        match self.place(space, address, T::SIZE, true)? {
            // SAFETY: `place` checked range, writability and alignment.
            Place::Host(address) => unsafe { raw::store(address, value) },
            Place::Local(offset) => local::write(&mut self.warp.local, lane, offset, value),
            Place::Param(_) => return Err(FaultKind::IllegalAddress(address)),
        }
        Ok(())
    }

    /// Changes one value atomically and returns the old one.
    #[expect(unsafe_code, reason = "the one path of atomics to memory")]
    pub(crate) fn update<T: Word + Atomic>(
        &mut self,
        space: Space,
        lane: usize,
        address: u64,
        mut change: impl FnMut(T) -> T,
    ) -> Result<T, FaultKind> {
        if space == Space::Shared
            && address.is_multiple_of(T::SIZE)
            && let Some(host) = self.block.shared.span(address, T::SIZE)
        {
            // SAFETY: `span` found the value; one thread runs the block, so no thread changes it in between.
            return Ok(unsafe {
                let old = raw::load(host);
                raw::store(host, change(old));
                old
            });
        }
        match self.place(space, address, T::SIZE, true)? {
            // SAFETY: `place` checked range, writability and alignment.
            Place::Host(address) => Ok(unsafe { T::update(address, change) }),
            // No other lane sees a lane's local memory.
            Place::Local(offset) => {
                let old = local::read(&self.warp.local, lane, offset);
                local::write(&mut self.warp.local, lane, offset, change(old));
                Ok(old)
            }
            Place::Param(_) => Err(FaultKind::IllegalAddress(address)),
        }
    }
}
