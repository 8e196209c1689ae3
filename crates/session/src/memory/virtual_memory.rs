//! The virtual memory API: reserved addresses, blocks of memory, and mappings.
//!
//! The driver checks most mistakes of a program here. In these tables, a program can only name what it made. Its mappings
//! lie inside its own reservations, so no message unmaps an arena or the worker. Its blocks count against its limit until
//! the last mapping of a released block is gone.

use std::collections::HashMap;

use katydid_cuda_sys::{CUmemGenericAllocationHandle, CUresult};

use crate::calls::fault::{Fault, SessionError};
use crate::memory::chunks::Chunks;

/// Ids beyond this are refused whatever came before.
const MAX_BLOCK_ID: u32 = 1 << 24;

/// The kind of memory of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Memory of a device.
    Device,
    /// Device memory as a pool of tiles: arrays are mapped to it, addresses never.
    Tiles,
    /// Host memory, which is not charged to the session.
    Host,
}

/// A block of memory of a device, or of the host.
#[derive(Debug)]
struct Block {
    handle: CUmemGenericAllocationHandle,
    size: u64,
    memory: Memory,
    /// Number of mappings of it, or of parts of it.
    mappings: u32,
    /// Whether the program released its handle: the block then lives by its mappings alone.
    released: bool,
}

/// The tables of a session's virtual memory.
#[derive(Debug, Default)]
pub(crate) struct VirtualMemory {
    reservations: Chunks<()>,
    blocks: HashMap<u32, Block>,
    /// Mappings, with the id of their block.
    mapped: Chunks<u32>,
}

impl VirtualMemory {
    /// Adds a reservation that the driver made; false if it touches another.
    pub(crate) fn reserve(&mut self, address: u64, size: u64) -> bool {
        self.reservations.insert(address, size, ())
    }

    /// Removes a whole reservation without mappings.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_INVALID_VALUE` for anything else.
    pub(crate) fn unreserve(&mut self, address: u64, size: u64) -> Result<(), Fault> {
        let whole = self.reservations.is_whole_allocation(address, size) && self.mapped.is_free(address, size);
        let gone = whole.then(|| self.reservations.remove(address, size)).flatten();
        gone.map(drop).ok_or_else(|| CUresult::ERROR_INVALID_VALUE.into())
    }

    /// Returns whether the program or a mapping still holds a block.
    pub(crate) fn knows(&self, id: u32) -> bool {
        self.blocks.contains_key(&id)
    }

    /// Checks an id for a new block.
    ///
    /// # Errors
    ///
    /// [`SessionError::BadId`]: no correct program uses one twice.
    pub(crate) fn check_new(&self, id: u32) -> Result<(), Fault> {
        let issued_ids = self.blocks.len();
        let free = id != 0 && id < MAX_BLOCK_ID && !self.blocks.contains_key(&id);
        if free { Ok(()) } else { Err(SessionError::BadId { kind: "memory block", id, issued_ids }.into()) }
    }

    /// Adds a block that the driver made.
    pub(crate) fn add(&mut self, id: u32, handle: CUmemGenericAllocationHandle, size: u64, memory: Memory) {
        self.blocks.insert(id, Block { handle, size, memory, mappings: 0, released: false });
    }

    /// Returns a block of this kind of memory, if there is any.
    pub(crate) fn any_of(&self, memory: Memory) -> Option<u32> {
        self.blocks.iter().find(|(_, block)| block.memory == memory).map(|(id, _)| *id)
    }

    /// Returns the whole mappings of host blocks in a range: address and size.
    pub(crate) fn on_host(&self, address: u64, size: u64) -> Vec<(u64, u64)> {
        let is_on_host = |id: &u32| self.blocks.get(id).is_some_and(|block| block.memory == Memory::Host);
        let inside = |at: u64| at >= address && at - address < size;
        let found = self.mapped.iter().filter(|(start, _, id)| inside(*start) && is_on_host(id));
        found.map(|(start, length, _)| (start, length)).collect()
    }

    /// Returns the driver's handle of a block that was not released.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_INVALID_VALUE`.
    pub(crate) fn block(&self, id: u32) -> Result<CUmemGenericAllocationHandle, Fault> {
        let block = self.blocks.get(&id).filter(|block| !block.released);
        block.map(|block| block.handle).ok_or_else(|| CUresult::ERROR_INVALID_VALUE.into())
    }

    /// Returns the driver's handle of a block that was not released, and its size in bytes.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_INVALID_VALUE`.
    pub(crate) fn block_and_size(&self, id: u32) -> Result<(CUmemGenericAllocationHandle, u64), Fault> {
        let block = self.blocks.get(&id).filter(|block| !block.released);
        block.map(|block| (block.handle, block.size)).ok_or_else(|| CUresult::ERROR_INVALID_VALUE.into())
    }

    /// Notes that the program released a handle; returns the bytes that are freed with it.
    pub(crate) fn release(&mut self, id: u32) -> u64 {
        if let Some(block) = self.blocks.get_mut(&id) {
            block.released = true;
        }
        self.drop_unused(id)
    }

    /// Checks that a range lies in one reservation and has no mapping.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_INVALID_VALUE`.
    pub(crate) fn check_room(&self, address: u64, size: u64) -> Result<(), Fault> {
        let room = size > 0 && self.reservations.covers(address, size) && self.mapped.is_free(address, size);
        if room { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE.into()) }
    }

    /// Adds a mapping that the driver made.
    pub(crate) fn map(&mut self, address: u64, size: u64, id: u32) {
        if self.mapped.insert(address, size, id)
            && let Some(block) = self.blocks.get_mut(&id)
        {
            block.mappings += 1;
        }
    }

    /// Removes whole mappings; returns the bytes that are freed with them.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_INVALID_VALUE` for a range that does not consist of mappings.
    pub(crate) fn unmap(&mut self, address: u64, size: u64) -> Result<u64, Fault> {
        let gone = self.mapped.remove(address, size).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let mut free = 0;
        for (_, _, id) in gone {
            if let Some(block) = self.blocks.get_mut(&id) {
                block.mappings -= 1;
            }
            free += self.drop_unused(id);
        }
        Ok(free)
    }

    /// Returns every block with contents: id, the handle unless it was released, size.
    pub(crate) fn blocks(&self) -> Vec<(u32, Option<CUmemGenericAllocationHandle>, u64)> {
        let mut all: Vec<_> = self
            .blocks
            .iter()
            .map(|(id, block)| (*id, (!block.released).then_some(block.handle), block.size))
            .collect();
        all.sort_unstable_by_key(|(id, ..)| *id);
        all
    }

    /// The mappings of blocks: address, size, id of the block.
    pub(crate) fn mappings(&self) -> impl Iterator<Item = (u64, u64, u32)> {
        self.mapped.iter().map(|(address, size, id)| (address, size, *id))
    }

    /// Returns the block of the mapping that begins at an address.
    pub(crate) fn block_at(&self, address: u64) -> Option<u32> {
        self.mapped.at(address).copied()
    }

    /// Returns whether every byte of a range is mapped.
    pub(crate) fn is_mapped(&self, address: u64, size: u64) -> bool {
        size > 0 && self.mapped.covers(address, size)
    }

    /// Removes a block that neither handle nor mapping holds; returns its bytes.
    fn drop_unused(&mut self, id: u32) -> u64 {
        let unused = self.blocks.get(&id).is_some_and(|block| block.released && block.mappings == 0);
        let gone = unused.then(|| self.blocks.remove(&id)).flatten();
        gone.filter(|block| block.memory != Memory::Host).map_or(0, |block| block.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0x5000_0000_0000;
    const GRANULE_BYTES: u64 = 2 << 20;

    fn reservation() -> VirtualMemory {
        let mut memory = VirtualMemory::default();
        assert!(memory.reserve(START, 4 * GRANULE_BYTES));
        memory.add(7, 0x70, 2 * GRANULE_BYTES, Memory::Device);
        memory.map(START, GRANULE_BYTES, 7);
        memory.map(START + GRANULE_BYTES, GRANULE_BYTES, 7);
        memory
    }

    #[test]
    fn a_block_is_free_when_its_handle_and_its_last_mapping_are_gone() {
        let mut memory = reservation();
        assert_eq!(memory.release(7), 0);
        assert!(memory.block(7).is_err());
        assert_eq!(memory.unmap(START, GRANULE_BYTES).unwrap(), 0);
        assert_eq!(memory.unmap(START + GRANULE_BYTES, GRANULE_BYTES).unwrap(), 2 * GRANULE_BYTES);
        assert!(memory.check_new(7).is_ok());
    }

    #[test]
    fn mappings_stay_inside_reservations_and_apart() {
        let memory = reservation();
        assert!(memory.check_room(START + 2 * GRANULE_BYTES, 2 * GRANULE_BYTES).is_ok());
        for (address, size) in [
            (START, GRANULE_BYTES),
            (START + 3 * GRANULE_BYTES, 2 * GRANULE_BYTES),
            (0x1000, GRANULE_BYTES),
            (START, 0),
        ] {
            assert!(memory.check_room(address, size).is_err(), "{address:#x} {size:#x}");
        }
    }

    #[test]
    fn a_reservation_goes_as_a_whole_and_empty() {
        let mut memory = reservation();
        assert!(memory.unreserve(START, 4 * GRANULE_BYTES).is_err());
        assert_eq!(memory.unmap(START, 2 * GRANULE_BYTES).unwrap(), 0);
        assert!(memory.unreserve(START, 2 * GRANULE_BYTES).is_err());
        assert!(memory.unreserve(START, 4 * GRANULE_BYTES).is_ok());
        assert!(memory.unreserve(START, 4 * GRANULE_BYTES).is_err());
    }

    #[test]
    fn host_memory_is_distinguished_and_uncharged() {
        let mut memory = reservation();
        memory.add(8, 0x80, GRANULE_BYTES, Memory::Host);
        memory.map(START + 2 * GRANULE_BYTES, GRANULE_BYTES, 8);
        assert_eq!(memory.on_host(START, 4 * GRANULE_BYTES), [(START + 2 * GRANULE_BYTES, GRANULE_BYTES)]);
        assert!(memory.on_host(START, 2 * GRANULE_BYTES).is_empty() && memory.any_of(Memory::Host) == Some(8));
        assert_eq!((memory.release(8), memory.unmap(START + 2 * GRANULE_BYTES, GRANULE_BYTES).unwrap()), (0, 0));
        assert!(memory.on_host(START, 4 * GRANULE_BYTES).is_empty() && memory.any_of(Memory::Host).is_none());
    }

    #[test]
    fn an_id_in_use_or_beyond_all_ends_the_session() {
        let memory = reservation();
        for id in [0, 7, MAX_BLOCK_ID] {
            assert!(matches!(memory.check_new(id), Err(Fault::Fatal(SessionError::BadId { .. }))), "{id}");
        }
    }
}
