//! Arrays whose memory is mapped later: sparse ones tile by tile, deferred ones as a whole.
//!
//! A tile is 64 KiB of adjacent pages, as wide as the array if its rows are that short. So mapping a tile only replaces pages,
//! and neither copies nor the texture unit know of it. A GPU's tiles have other extents; programs query them. Unmapped tiles have
//! pages of zeroes. A GPU drops writes to them; here they stay until the tile is mapped or unmapped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use katydid_cuda_sys::{
    CUDA_ARRAY_MEMORY_REQUIREMENTS, CUDA_ARRAY_SPARSE_PROPERTIES, CUarrayMapInfo, CUresult, array_map,
};
use katydid_driver_rules::memory::GRANULARITY_BYTES;
use katydid_driver_rules::texture::TILE_BYTES;
use katydid_ptx_exec::texture::Level;

use crate::context::state::Context;
use crate::ffi::Outcome;
use crate::memory::pages::{Protection, Range};
use crate::memory::physical::Block;
use crate::memory::space::{self, RangeKind, Region};
use crate::texture::format::Format;

/// The pages of an array or a mipmap whose memory is mapped later.
pub(crate) struct Backing {
    range: Range,
    /// Ordinal of its device.
    pub(super) device: i32,
    /// Texels of a tile; `None` for an array that is mapped as a whole.
    tile: Option<[u32; 3]>,
    /// Level 0, which is made of tiles.
    first: Level,
    /// Start of the mipmap tail, which begins with level 1, and its bytes in each layer; 0 bytes: no tail.
    tail: (u64, u64),
    /// Mapped blocks, by the address of each tile.
    mapped: Mutex<BTreeMap<u64, Arc<Block>>>,
}

/// A part of an array: the addresses of its tiles, in the order in which memory is mapped to them.
pub(super) type Tiles = Vec<u64>;

/// Returns the bytes from row to row: rows fill tiles exactly.
fn pitch_of(row: u64) -> u64 {
    if row <= TILE_BYTES { row.next_power_of_two() } else { row.next_multiple_of(TILE_BYTES) }
}

/// Lays out the levels of a sparse array: level 0 in tiles, the others packed in a tail per layer.
fn lay_out(formats: &[Format]) -> Option<(Vec<Level>, (u64, u64), u64)> {
    let (first, smaller) = formats.split_first()?;
    let mut level = first.level_at(0)?;
    let row = u64::from(level.extent[0]) * first.texel_bytes();
    level.pitch = pitch_of(row);
    level.slice = level.pitch.checked_mul(u64::from(level.extent[1]))?.checked_next_multiple_of(TILE_BYTES)?;
    let layers = u64::from(level.layers);
    let end = level.slice.checked_mul(u64::from(level.extent[2]).checked_mul(layers)?)?;
    let (mut levels, mut tail) = (vec![level], 0_u64);
    for format in smaller {
        let level = format.level_at(end + tail)?;
        tail = (tail + level.slice.checked_mul(u64::from(level.extent[2]))?).next_multiple_of(16);
        levels.push(level);
    }
    let tail = tail.next_multiple_of(TILE_BYTES);
    for level in levels.iter_mut().skip(1).filter(|level| level.layers > 1) {
        level.slice = tail;
    }
    Some((levels, (end, tail), end.checked_add(tail.checked_mul(layers)?)?))
}

impl Backing {
    /// Reserves addresses for consecutive levels, with pages of zeroes, and lays out each level.
    pub(crate) fn new(context: &Context, formats: &[Format]) -> Outcome<(Arc<Self>, Vec<Level>)> {
        let full = CUresult::ERROR_OUT_OF_MEMORY;
        let format = formats.first().ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let (mut levels, tail, size) = lay_out(formats).ok_or(full)?;
        let size = size.next_multiple_of(GRANULARITY_BYTES);
        let range = Range::anywhere(size, GRANULARITY_BYTES, Protection::ReadWrite).map_err(|_| full)?;
        for level in &mut levels {
            level.address += range.start();
        }
        let first = *levels.first().ok_or(full)?;
        let texels = |bytes: u64| u32::try_from(bytes / format.texel_bytes()).unwrap_or(u32::MAX);
        let rows = u32::try_from(TILE_BYTES / first.pitch).unwrap_or(1).max(1);
        let tile = format.is_sparse().then(|| [texels(first.pitch.min(TILE_BYTES)), rows, 1]);
        let region = Region::new(range.start(), size, RangeKind::Array, context.device.ordinal, context.handle);
        space::write().insert(region);
        let tail = (range.start() + tail.0, tail.1);
        let mapped = Mutex::new(BTreeMap::new());
        Ok((Arc::new(Self { range, device: context.device.ordinal, tile, first, tail, mapped }), levels))
    }

    /// First address of its region.
    pub(crate) fn start(&self) -> u64 {
        self.range.start()
    }

    /// Returns the properties of a sparse array.
    pub(super) fn properties(&self) -> Outcome<CUDA_ARRAY_SPARSE_PROPERTIES> {
        let tileExtent = self.tile.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let miptailFirstLevel = u32::from(self.tail.1 > 0);
        let base = CUDA_ARRAY_SPARSE_PROPERTIES::default();
        Ok(CUDA_ARRAY_SPARSE_PROPERTIES { tileExtent, miptailFirstLevel, miptailSize: self.tail.1, ..base })
    }

    /// Returns the memory requirements of an array that is mapped as a whole.
    pub(super) fn requirements(&self) -> Outcome<CUDA_ARRAY_MEMORY_REQUIREMENTS> {
        if self.tile.is_some() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let size = self.bytes() as usize;
        Ok(CUDA_ARRAY_MEMORY_REQUIREMENTS { size, alignment: TILE_BYTES as usize, ..Default::default() })
    }

    /// Returns the bytes of all levels, in whole tiles.
    fn bytes(&self) -> u64 {
        self.tail.0 + self.tail.1 * u64::from(self.first.layers) - self.range.start()
    }

    /// Returns the tiles that an entry names.
    pub(super) fn tiles(&self, info: &CUarrayMapInfo) -> Outcome<Tiles> {
        let Some(tile) = self.tile else {
            return Ok((0..self.bytes() / TILE_BYTES).map(|number| self.range.start() + number * TILE_BYTES).collect());
        };
        let piece = match info.subresourceType {
            array_map::SPARSE_LEVEL => self.part(tile, info.sparse_level()),
            array_map::MIPTAIL => self.tail_part(info.tail()),
            _ => None,
        };
        piece.ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// Returns the tiles of a box of level 0. It begins at whole tiles, and ends at one or at the level's edge.
    fn part(&self, tile: [u32; 3], [level, layer, x, y, z, width, height, depth]: [u32; 8]) -> Option<Tiles> {
        let (first, count) = ([x, y, z], [width, height, depth]);
        let mut tiles = [(0, 0); 3];
        for axis in 0..3 {
            let end = first[axis].checked_add(count[axis])?;
            let edge = self.first.extent[axis];
            let ends = end.is_multiple_of(tile[axis]) || end == edge;
            let begins = first[axis].is_multiple_of(tile[axis]) && first[axis] < edge;
            if !begins || !ends || count[axis] == 0 || end > edge.next_multiple_of(tile[axis]) {
                return None;
            }
            tiles[axis] = (first[axis] / tile[axis], end.div_ceil(tile[axis]));
        }
        if level != 0 || layer >= self.first.layers {
            return None;
        }
        let (across, in_slice) = (self.first.pitch.div_ceil(TILE_BYTES), self.first.slice / TILE_BYTES);
        let slice = |z: u32| u64::from(layer) * u64::from(self.first.extent[2]) + u64::from(z);
        let number = |x: u32, y: u32, z: u32| slice(z) * in_slice + u64::from(y) * across + u64::from(x);
        let each = |(from, to): (u32, u32)| from..to;
        let address = |number: u64| self.first.address + number * TILE_BYTES;
        Some(
            each(tiles[2])
                .flat_map(|z| each(tiles[1]).flat_map(move |y| each(tiles[0]).map(move |x| (x, y, z))))
                .map(|(x, y, z)| address(number(x, y, z)))
                .collect(),
        )
    }

    /// Returns the tiles of a part of a layer's tail.
    fn tail_part(&self, (layer, offset, size): (u32, u64, u64)) -> Option<Tiles> {
        let whole = offset.is_multiple_of(TILE_BYTES) && size.is_multiple_of(TILE_BYTES) && size > 0;
        let end = offset.checked_add(size)?;
        if !whole || end > self.tail.1 || layer >= self.first.layers {
            return None;
        }
        let start = self.tail.0 + u64::from(layer) * self.tail.1 + offset;
        Some((start..start + size).step_by(TILE_BYTES as usize).collect())
    }

    /// Maps a block's bytes from `offset` on to the tiles, or unmaps them.
    pub(super) fn change(&self, tiles: &[u64], block: Option<&(Arc<Block>, u64)>) -> Outcome {
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |_| CUresult::ERROR_OPERATING_SYSTEM;
        for (number, address) in (0..).zip(tiles) {
            match block {
                Some((block, offset)) => {
                    let (file, base) = block.file()?;
                    let from = base + offset + number * TILE_BYTES;
                    self.range.replace(*address, TILE_BYTES, file, from).map_err(failed)?;
                    mapped.insert(*address, Arc::clone(block));
                }
                None => {
                    self.range.clear(*address, TILE_BYTES).map_err(failed)?;
                    mapped.remove(address);
                }
            }
        }
        Ok(())
    }
}
