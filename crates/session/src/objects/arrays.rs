//! The session's arrays and mipmaps, by the ids that the program gave them.
//!
//! An array's memory lies outside the arenas. The memory that a GPU takes for its extents is charged to the limit. Small
//! arrays of a context share pieces, which are charged whole. Levels have their own ids, but belong to their mipmap and end
//! with it.

use std::collections::HashMap;

use katydid_cuda_sys::{CUarray, CUmipmappedArray, CUresult};
use katydid_session_core::{GpuMemory, GpuPieces};

use crate::calls::fault::Fault;

/// Most arrays of a session at a time.
const MAX_ARRAYS: usize = 1 << 20;

/// The memory of a level beside its mipmap.
pub(crate) const LEVEL_MEMORY: GpuMemory = GpuMemory::Own(0);

/// The object of an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArrayObject {
    /// An array of its own.
    Array(CUarray),
    /// A mipmapped array, with all of its levels.
    Mipmap(CUmipmappedArray),
    /// A level of the mipmap with this id.
    Level(CUarray, u32),
}

/// An array, its context and its size.
#[derive(Debug, Clone, Copy)]
struct ArrayEntry {
    object: ArrayObject,
    /// Wire id of the context with which it ends.
    context: u32,
    /// Its memory; a level has none of its own.
    memory: GpuMemory,
}

/// Arrays and mipmapped arrays of the session, by wire id.
#[derive(Debug, Default)]
pub(crate) struct Arrays {
    entries: HashMap<u32, ArrayEntry>,
    /// Pieces that small arrays share, by the wire id of their context.
    pieces: HashMap<u32, GpuPieces>,
}

impl Arrays {
    /// Checks an id for a new object.
    ///
    /// # Errors
    ///
    /// `OUT_OF_MEMORY` if there are too many, `INVALID_VALUE` for an id that is taken or 0.
    pub(crate) fn check_new(&self, id: u32) -> Result<(), Fault> {
        if self.entries.len() >= MAX_ARRAYS {
            return Err(CUresult::ERROR_OUT_OF_MEMORY.into());
        }
        let free = id != 0 && !self.entries.contains_key(&id);
        if free { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE.into()) }
    }

    /// Finds memory for a new array of `bytes` in a context; returns it, and the bytes to charge.
    pub(crate) fn take_memory(&mut self, context: u32, bytes: u64) -> (GpuMemory, u64) {
        self.pieces.entry(context).or_default().take(bytes)
    }

    /// Releases the memory of an array; returns the bytes to refund.
    pub(crate) fn give_back(&mut self, context: u32, memory: GpuMemory) -> u64 {
        self.pieces.entry(context).or_default().give_back(memory)
    }

    /// Gives an id to an object.
    pub(crate) fn add(&mut self, id: u32, object: ArrayObject, context: u32, memory: GpuMemory) {
        self.entries.insert(id, ArrayEntry { object, context, memory });
    }

    /// Returns the object of an id.
    ///
    /// # Errors
    ///
    /// `INVALID_HANDLE`.
    pub(crate) fn get(&self, id: u32) -> Result<ArrayObject, Fault> {
        self.entries.get(&id).map(|entry| entry.object).ok_or_else(|| CUresult::ERROR_INVALID_HANDLE.into())
    }

    /// Returns the array, or the level, of an id.
    ///
    /// # Errors
    ///
    /// `INVALID_HANDLE`.
    pub(crate) fn array(&self, id: u32) -> Result<CUarray, Fault> {
        match self.get(id)? {
            ArrayObject::Array(array) | ArrayObject::Level(array, _) => Ok(array),
            ArrayObject::Mipmap(_) => Err(CUresult::ERROR_INVALID_HANDLE.into()),
        }
    }

    /// Returns arrays and mipmaps with their contexts, in the order of the ids; levels have no memory of their own.
    pub(crate) fn owners(&self) -> Vec<(u32, ArrayObject, u32)> {
        let owns = |entry: &ArrayEntry| !matches!(entry.object, ArrayObject::Level(..));
        let owners = self.entries.iter().filter(|(_, entry)| owns(entry));
        let mut all: Vec<_> = owners.map(|(id, entry)| (*id, entry.object, entry.context)).collect();
        all.sort_unstable_by_key(|(id, ..)| *id);
        all
    }

    /// Removes an object, and the levels of a mipmap with it; returns it, and the bytes to refund.
    ///
    /// # Errors
    ///
    /// `INVALID_HANDLE`.
    pub(crate) fn take(&mut self, id: u32) -> Result<(ArrayObject, u64), Fault> {
        let entry = self.entries.remove(&id).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        if matches!(entry.object, ArrayObject::Mipmap(_)) {
            self.entries.retain(|_, other| !matches!(other.object, ArrayObject::Level(_, mipmap) if mipmap == id));
        }
        Ok((entry.object, self.give_back(entry.context, entry.memory)))
    }

    /// Forgets the arrays of a context that ended; returns the bytes to refund.
    pub(crate) fn forget_context(&mut self, context: u32) -> u64 {
        let mut bytes = self.pieces.remove(&context).map_or(0, |pieces| pieces.bytes());
        self.entries.retain(|_, entry| {
            let stays = entry.context != context;
            if let (false, GpuMemory::Own(own)) = (stays, entry.memory) {
                bytes += own;
            }
            stays
        });
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(number: usize) -> CUarray {
        CUarray(std::ptr::without_provenance_mut(number))
    }

    #[test]
    fn levels_go_with_their_mipmap_and_all_with_their_context() {
        let mut arrays = Arrays::default();
        let mipmap = CUmipmappedArray(std::ptr::without_provenance_mut(16));
        let (small, piece) = arrays.take_memory(1, 100);
        arrays.add(1, ArrayObject::Mipmap(mipmap), 1, small);
        arrays.add(2, ArrayObject::Level(array(32), 1), 1, LEVEL_MEMORY);
        arrays.add(3, ArrayObject::Array(array(48)), 2, GpuMemory::Own(7));
        let (small, other) = arrays.take_memory(2, 100);
        arrays.add(4, ArrayObject::Array(array(64)), 2, small);
        assert_eq!((piece, other), (2 << 20, 2 << 20), "contexts share no piece");
        assert_eq!((arrays.array(2).ok(), arrays.array(1).ok()), (Some(array(32)), None));
        assert!(arrays.check_new(3).is_err() && arrays.check_new(0).is_err() && arrays.check_new(5).is_ok());
        assert_eq!(arrays.take(1).ok(), Some((ArrayObject::Mipmap(mipmap), piece)));
        assert!(arrays.get(2).is_err());
        assert_eq!((arrays.forget_context(2), arrays.get(3).is_err()), (7 + other, true));
    }
}
