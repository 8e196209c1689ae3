//! From an address and a lane to a place: host memory, parameters, or the lane's local memory.

use super::raw::{self, Atomic};
use super::{local, local_rows, param};
use crate::engine::fault::FaultKind;
use crate::engine::machine::Machine;
use crate::engine::order::BLOCK_RANK_SHIFT;
use crate::memory::word::Word;
use crate::types::Space;
use crate::window;

/// Destination of one lane's access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaneAddress {
    /// A checked address in this process.
    Host(u64),
    /// A checked offset into the lane's local memory.
    Local(u64),
    /// A checked offset into the kernel's parameters.
    Param(u64),
}

impl Machine<'_> {
    /// Checks an access of `size` bytes, a power of two, and returns where it goes.
    pub(crate) fn resolve(
        &mut self,
        space: Space,
        address: u64,
        size: u64,
        write: bool,
    ) -> Result<LaneAddress, FaultKind> {
        if address & (size - 1) != 0 {
            return Err(FaultKind::MisalignedAddress(address));
        }
        match space {
            Space::Shared => self.shared_address(address, size).ok_or(FaultKind::IllegalAddress(address)),
            Space::Local => self.local_address(address, size).ok_or(FaultKind::IllegalAddress(address)),
            Space::Global => self.global_address(address, size, write),
            Space::Generic => self.generic_address(address, size, write),
        }
    }

    /// Resolves a generic address, whose value tells the space.
    fn generic_address(&mut self, address: u64, size: u64, write: bool) -> Result<LaneAddress, FaultKind> {
        let resolved = if address < window::SHARED_ADDRESS {
            return self.global_address(address, size, write);
        } else if let Some(offset) = window::offset_in(window::SHARED_ADDRESS, address) {
            self.shared_address(offset, size)
        } else if let Some(offset) = window::offset_in(window::LOCAL_ADDRESS, address) {
            self.local_address(offset, size)
        } else {
            let offset = window::offset_in(window::PARAM_ADDRESS, address).filter(|_| !write);
            let param = offset.filter(|offset| param::contains(self.env.params, *offset, size)).map(LaneAddress::Param);
            param.or_else(|| self.env.workspace_at(address, size).map(LaneAddress::Host))
        };
        resolved.ok_or(FaultKind::IllegalAddress(address))
    }

    /// Resolves an address of device memory by its range.
    fn global_address(&mut self, address: u64, size: u64, write: bool) -> Result<LaneAddress, FaultKind> {
        if address >= window::SHARED_ADDRESS {
            let resolved = self.env.workspace_at(address, size).map(LaneAddress::Host);
            return resolved.ok_or(FaultKind::IllegalAddress(address));
        }
        let allowed = self.ranges.allow(self.env.host, self.pc, address, size, write);
        if allowed { Ok(LaneAddress::Host(address)) } else { Err(FaultKind::IllegalAddress(address)) }
    }

    /// Resolves an address of shared memory, of this block or of another block in its cluster.
    pub(crate) fn shared_address(&mut self, address: u64, size: u64) -> Option<LaneAddress> {
        let span = self.block.shared.span(address, size);
        span.or_else(|| self.peer_span(address, size)).map(LaneAddress::Host)
    }

    /// Returns the address in this process of `bytes` bytes at `address`, if they lie in another block of the cluster.
    fn peer_span(&self, address: u64, bytes: u64) -> Option<u64> {
        let rank = usize::try_from(address >> BLOCK_RANK_SHIFT).ok()?;
        self.cluster.get(rank)?.shared.span(address, bytes)
    }

    /// Resolves an offset into local memory, which ends with the frames that exist now.
    fn local_address(&mut self, offset: u64, size: u64) -> Option<LaneAddress> {
        local_rows::contains(&self.warp.local, offset, size).then_some(LaneAddress::Local(offset))
    }

    /// Reads one value for `lane`.
    #[expect(unsafe_code, reason = "the one slow path to memory")]
    pub(crate) fn read<T: Word>(&mut self, space: Space, lane: usize, address: u64) -> Result<T, FaultKind> {
        Ok(match self.resolve(space, address, T::BYTES, false)? {
            // SAFETY: `resolve` checked range and alignment.
            LaneAddress::Host(address) => unsafe { raw::load(address) },
            LaneAddress::Local(offset) => local::read(&self.warp.local, lane, offset),
            LaneAddress::Param(offset) => T::cut(param::read(self.env.params, offset, T::BYTES)),
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
        match self.resolve(space, address, T::BYTES, true)? {
            // SAFETY: `resolve` checked range, writability and alignment.
            LaneAddress::Host(address) => unsafe { raw::store(address, value) },
            LaneAddress::Local(offset) => local::write(&mut self.warp.local, lane, offset, value),
            LaneAddress::Param(_) => return Err(FaultKind::IllegalAddress(address)),
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
            && address.is_multiple_of(T::BYTES)
            && let Some(host) = self.block.shared.span(address, T::BYTES)
        {
            // SAFETY: `span` found the value; one thread runs the block, so no thread changes it in between.
            return Ok(unsafe {
                let old = raw::load(host);
                raw::store(host, change(old));
                old
            });
        }
        match self.resolve(space, address, T::BYTES, true)? {
            // SAFETY: `resolve` checked range, writability and alignment.
            LaneAddress::Host(address) => Ok(unsafe { T::update(address, change) }),
            // A lane's local memory is invisible to other lanes.
            LaneAddress::Local(offset) => {
                let old = local::read(&self.warp.local, lane, offset);
                local::write(&mut self.warp.local, lane, offset, change(old));
                Ok(old)
            }
            LaneAddress::Param(_) => Err(FaultKind::IllegalAddress(address)),
        }
    }
}
