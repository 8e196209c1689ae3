//! Conversion of the running state of a grid to bytes, and back to a grid, in this process or another.
//!
//! The bytes hold everything that belongs to a paused grid: geometry, parameters and the blocks that have started. For each of
//! these blocks, they hold registers, masks, call frames, barriers, shared and local memory. Device memory is not part of it. A
//! grid can go on where that memory is at the same addresses with the same content. It also needs the same program, with its
//! variables in the same places.
//!
//! | bytes | what |
//! |---:|---|
//! | 8 | `KDGRID` and two NUL |
//! | 4 | version of the format |
//! | 8 | hash of what follows |
//! | | kernel: name, fingerprint of its program |
//! | | launch: grid, block, dynamic shared memory, cooperative, parameters |
//! | | progress: next block, nanoseconds run, number of the grid |
//! | | what it, and the grids before it, have asked of the device runtime, as `runtime` writes it |
//! | | workspace of a cooperative launch |
//! | | blocks that have started, as `block` writes them |
//!
//! Numbers are little-endian; lists begin with their number of items (4 bytes). The bytes are not trusted. Nothing is allocated
//! before the bytes for it are there, and everything that the interpreter relies on is checked.

mod block;
pub(crate) mod bytes;
mod error;
mod runtime;

use crate::api::{Kernel, Launch};
use crate::engine::grid::Grid;
use crate::engine::machine::Code;
use block::{BlockShape, read_block, write_block};
use bytes::{Hash, Reader, Writer, sound};
use error::STATE_VERSION;
pub use error::StateError;
use runtime::{read_levels, read_runtime, write_levels, write_runtime};
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

const STATE_MAGIC: [u8; 8] = *b"KDGRID\0\0";

/// Number of bytes before those that are hashed.
const STATE_HEADER_BYTES: usize = 20;

impl Kernel {
    /// Returns a number that differs between programs, and between builds that decode them differently. The state of a grid fits
    /// this value only.
    pub fn fingerprint(&self) -> u64 {
        self.code.fingerprint()
    }
}

impl Code {
    /// Returns the value of `Kernel::fingerprint`, from the texts and all that decoding made of them except the machine code.
    fn fingerprint(&self) -> u64 {
        let mut hash = Hash::NONE.word(self.source).word(self.insts.len() as u64);
        for inst in &self.insts {
            let pairs = [(inst.guard, inst.d), (inst.a, inst.b), (inst.c, inst.x)];
            hash = pairs.iter().fold(hash, |hash, (low, high)| hash.word(u64::from(*low) | u64::from(*high) << 32));
            hash = hash.word(inst.imm);
        }
        for row in &self.constants {
            hash = hash.word(u64::from(row.0[0]) | u64::from(row.0[1]) << 32);
        }
        for function in &self.functions {
            hash = hash.word(u64::from(function.entry) | u64::from(function.rows) << 32);
            hash = hash.word(u64::from(function.local_bytes));
        }
        self.lists.iter().fold(hash, |hash, slot| hash.word(u64::from(*slot))).value()
    }
}

impl Grid {
    /// Converts the state to bytes. The grid can still be run on.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut body = Writer::default();
        body.bytes(self.launch.kernel.name.as_bytes());
        body.u64(self.launch.kernel.fingerprint());
        write_launch(&mut body, &self.launch);
        body.u64(self.next);
        body.u64(u64::try_from(self.ran.as_nanos()).unwrap_or(u64::MAX));
        body.u64(self.id);
        write_runtime(&mut body, &self.runtime.lock().unwrap_or_else(PoisonError::into_inner));
        write_levels(&mut body, &self.levels);
        body.count(self.workspace.len());
        self.workspace.iter().for_each(|word| body.u64(word.load(Ordering::Relaxed)));
        body.count(self.started.len());
        self.started.iter().for_each(|block| write_block(&mut body, block));
        let mut writer = Writer::default();
        writer.0.extend_from_slice(&STATE_MAGIC);
        writer.u32(STATE_VERSION);
        writer.u64(Hash::NONE.bytes(&body.0).value());
        writer.0.append(&mut body.0);
        writer.0
    }

    /// Makes a grid from the bytes of one. `find` looks up a kernel by name and fingerprint.
    pub fn from_bytes(bytes: &[u8], find: impl FnOnce(&str, u64) -> Option<Arc<Kernel>>) -> Result<Self, StateError> {
        let mut reader = body(bytes)?;
        let name =
            std::str::from_utf8(reader.bytes()?).map_err(|_| StateError::Unsound { what: "the kernel's name" })?;
        let fingerprint = reader.u64()?;
        let named = || name.to_owned();
        let kernel = find(name, fingerprint).ok_or_else(|| StateError::UnknownKernel { kernel: named() })?;
        if kernel.fingerprint() != fingerprint {
            return Err(StateError::OtherProgram { kernel: named() });
        }
        let launch = read_launch(&mut reader, kernel)?;
        let mut grid = Self::new(launch)?;
        read_progress(&mut reader, &mut grid)?;
        reader.end()?;
        Ok(grid)
    }
}

/// Checks the header and returns a reader of the rest. The version comes first, since it decides about the rest.
fn body(bytes: &[u8]) -> Result<Reader<'_>, StateError> {
    let mut reader = Reader(bytes);
    if reader.take(STATE_MAGIC.len()).map_err(|_| StateError::Foreign)? != STATE_MAGIC {
        return Err(StateError::Foreign);
    }
    let version = reader.u32()?;
    if version != STATE_VERSION {
        return Err(StateError::Version { version });
    }
    let hash = reader.u64()?;
    let body = bytes.get(STATE_HEADER_BYTES..).unwrap_or_default();
    if Hash::NONE.bytes(body).value() != hash {
        return Err(StateError::Damaged);
    }
    Ok(reader)
}

/// Writes a launch without its kernel.
fn write_launch(writer: &mut Writer, launch: &Launch) {
    writer.triple(launch.grid);
    writer.triple(launch.block);
    writer.u32(launch.dynamic_shared);
    writer.u8(u8::from(launch.cooperative));
    writer.u8(u8::from(launch.cluster.is_some()));
    writer.triple(launch.cluster.unwrap_or_default());
    writer.bytes(&launch.params);
}

/// Reads the output of `write_launch`; `Grid::new` checks it against the kernel.
fn read_launch(reader: &mut Reader<'_>, kernel: Arc<Kernel>) -> Result<Launch, StateError> {
    let (grid, block, dynamic_shared) = (reader.triple()?, reader.triple()?, reader.u32()?);
    let (cooperative, clustered, cluster) = (read_flag(reader)?, read_flag(reader)?, reader.triple()?);
    let cluster = clustered.then_some(cluster);
    Ok(Launch { kernel, grid, block, dynamic_shared, params: reader.bytes()?.to_vec(), cooperative, cluster })
}

/// Reads a boolean.
fn read_flag(reader: &mut Reader<'_>) -> Result<bool, StateError> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(StateError::Unsound { what: "the kind of launch" }),
    }
}

/// Reads the progress of the grid.
fn read_progress(reader: &mut Reader<'_>, grid: &mut Grid) -> Result<(), StateError> {
    (grid.next, grid.ran) = (reader.u64()?, Duration::from_nanos(reader.u64()?));
    grid.id = reader.u64()?;
    let runtime = read_runtime(reader, &grid.launch.kernel.code)?;
    *grid.runtime.get_mut().unwrap_or_else(PoisonError::into_inner) = runtime;
    grid.levels = read_levels(reader, &grid.launch.kernel.code)?;
    sound(grid.next <= grid.blocks(), "the next block")?;
    let word_count = reader.count(8)?;
    sound(word_count == grid.workspace.len(), "the workspace")?;
    for word in &mut grid.workspace {
        *word.get_mut() = reader.u64()?;
    }
    let launch = &grid.launch;
    let shape = BlockShape {
        code: &launch.kernel.code,
        function: launch.kernel.function,
        order: launch.order(),
        threads: launch.block.iter().product(),
        shared_bytes: launch.shared_bytes(),
    };
    let mut indices = HashSet::new();
    for _ in 0..reader.count(1)? {
        let block = read_block(reader, &shape)?;
        let (order, index) = (launch.order(), indices.len() as u64);
        let number = order.number(block.index);
        sound(number < grid.next && indices.insert(block.index), "the blocks that have started")?;
        // Blocks of a cluster stay together, in order.
        let size = u64::from(order.size());
        let first =
            order.number(grid.started.get((index / size * size) as usize).map_or(block.index, |block| block.index));
        sound(number % size == index % size && number / size == first / size, "the blocks of a cluster")?;
        grid.started.push_back(block);
    }
    let size = u64::from(grid.launch.order().size());
    sound(grid.next.is_multiple_of(size) && (indices.len() as u64).is_multiple_of(size), "the blocks of a cluster")
}
