//! Conversion of blocks and warps to bytes and back.
//!
//! The interpreter trusts its own state. A program counter lies in the function of its frame, a frame has the rows that its
//! function needs, and a split at a barrier stands at a barrier instruction. The code here checks each of these, since any caller
//! may have made the bytes. Values in registers and memory may be anything, as in a faulty program.

use super::bytes::{Reader, Writer};
use crate::control::{barrier, cluster};
use crate::engine::block::{BARRIERS_PER_BLOCK, Barrier, Block};
use crate::engine::machine::Code;
use crate::engine::order::{BLOCK_RANK_SHIFT, BlockOrder};
use crate::engine::registers::{FULL_LANE_MASK, Row, WARP_LANES};
use crate::engine::warp::{CallFrame, Split, Wait, Warp};
use crate::memory::shared_memory::SharedMemory;
use crate::state::bytes::sound;
use crate::state::error::StateError;

/// Number of bytes in a row of registers.
const REGISTER_ROW_BYTES: usize = size_of::<Row>();

/// Number of bytes in a row of local memory: 8 for each lane.
const LOCAL_ROW_BYTES: usize = 8 * WARP_LANES;

/// Number of bytes of a split, and of a frame.
const SPLIT_BYTES: usize = 17;
const FRAME_BYTES: usize = 24;

/// Code of a split that waits for its cluster.
const CLUSTER_WAIT: u8 = u8::MAX;

/// Common properties of all blocks of a launch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockShape<'a> {
    /// The program that the block runs.
    pub(crate) code: &'a Code,
    /// The kernel's function.
    pub(crate) function: u32,
    /// Numbers of blocks in the grid and in its clusters.
    pub(crate) order: BlockOrder,
    /// Number of threads in a block.
    pub(crate) threads: u32,
    /// Size of a block's shared memory in bytes.
    pub(crate) shared_bytes: u32,
}

impl BlockShape<'_> {
    /// Returns the lanes that warp `index` of a block starts with.
    fn lanes(&self, index: u32) -> u32 {
        let lanes = self.threads.saturating_sub(index.saturating_mul(32)).min(32);
        if lanes == 32 { FULL_LANE_MASK } else { (1 << lanes) - 1 }
    }

    /// Returns whether `pc` lies in a function.
    fn holds(&self, function: u32, pc: u32) -> bool {
        self.code.functions.get(function as usize).is_some_and(|function| (function.entry..function.end).contains(&pc))
    }
}

/// Writes a block that no thread is running.
pub(crate) fn write_block(writer: &mut Writer, block: &Block) {
    writer.triple(block.index);
    writer.count(block.next_warp);
    for barrier in &block.barriers {
        writer.triple([barrier.arrived, barrier.expected, barrier.votes]);
    }
    write_rows(writer, block.shared.rows());
    writer.count(block.warps.len());
    block.warps.iter().for_each(|warp| write_warp(writer, warp));
}

/// Reads a block.
pub(crate) fn read_block(reader: &mut Reader<'_>, shape: &BlockShape<'_>) -> Result<Block, StateError> {
    let index = reader.triple()?;
    sound(index.iter().zip(shape.order.grid).all(|(index, size)| *index < size), "the index of a block")?;
    let next_warp = reader.u32()? as usize;
    let mut barriers = [Barrier::default(); BARRIERS_PER_BLOCK];
    for barrier in &mut barriers {
        let [arrived, expected, votes] = reader.triple()?;
        *barrier = Barrier { arrived, expected, votes };
    }
    let mut shared = SharedMemory::default();
    // The size is known from the launch, but the bytes must be there before memory is allocated.
    let rows = reader.take(SharedMemory::rows_for(shape.shared_bytes) * REGISTER_ROW_BYTES)?;
    shared.resize(shape.shared_bytes);
    let rank = if shape.code.ranked { shape.order.rank(index) } else { 0 };
    shared.begin_at(u64::from(rank) << BLOCK_RANK_SHIFT);
    fill_rows(shared.rows_mut(), rows);
    let count = reader.count(1)?;
    sound(count == shape.threads.div_ceil(32) as usize && next_warp < count, "the number of warps")?;
    let warps = (0..count as u32).map(|index| read_warp(reader, shape, index)).collect::<Result<_, _>>()?;
    Ok(Block { index, warps, shared, barriers, next_warp, epoch: 0 })
}

/// Writes the words of rows, one row after the other.
fn write_rows(writer: &mut Writer, rows: &[Row]) {
    writer.0.reserve(rows.len() * REGISTER_ROW_BYTES);
    for row in rows {
        row.0.iter().for_each(|word| writer.u32(*word));
    }
}

/// Fills rows from the output of `write_rows`.
fn fill_rows(rows: &mut [Row], bytes: &[u8]) {
    let words = rows.iter_mut().flat_map(|row| &mut row.0);
    for (word, bytes) in words.zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
}

/// Writes a warp. It leaves out what follows from the program: the start of a frame's rows, and its depth.
fn write_warp(writer: &mut Writer, warp: &Warp) {
    writer.u32(warp.alive);
    writer.u32(warp.arrived);
    writer.u32(warp.slices);
    writer.count(warp.errors.len());
    warp.errors.iter().for_each(|error| writer.u32(*error));
    writer.count(warp.splits.len());
    for split in &warp.splits {
        writer.triple([split.pc, split.frame, split.lanes]);
        writer.u32(split.last_slice);
        // A split that waits for other lanes looks again, and waits again if they have not come.
        writer.u8(match split.wait {
            Wait::Ready | Wait::Lanes => 0,
            Wait::Barrier(id) => id + 1,
            Wait::Cluster => CLUSTER_WAIT,
        });
    }
    writer.count(warp.frames.len());
    for frame in &warp.frames {
        writer.triple([frame.function, frame.local, frame.parent]);
        writer.triple([frame.return_pc, frame.lanes, frame.call_site]);
    }
    write_rows(writer, &warp.rows);
    writer.count(warp.local.len());
    warp.local.iter().flatten().for_each(|word| writer.u64(*word));
}

/// Reads warp number `index` of a block.
fn read_warp(reader: &mut Reader<'_>, shape: &BlockShape<'_>, index: u32) -> Result<Warp, StateError> {
    let mut warp =
        Warp { index, alive: reader.u32()?, arrived: reader.u32()?, slices: reader.u32()?, ..Warp::default() };
    sound(warp.alive & !shape.lanes(index) == 0, "the lanes of a warp")?;
    let errors = reader.count(4)?;
    sound([0, WARP_LANES].contains(&errors), "the errors of a warp")?;
    for _ in 0..errors {
        warp.errors.push(reader.u32()?);
    }
    for _ in 0..reader.count(SPLIT_BYTES)? {
        warp.splits.push(read_split(reader)?);
    }
    let frames = reader.count(FRAME_BYTES)?;
    for _ in 0..frames {
        let frame = read_frame(reader, shape, &warp)?;
        let rows = shape.code.functions.get(frame.function as usize).map_or(0, |function| function.rows);
        warp.frames.push(frame);
        // The rows are made below, after it is known that their bytes are there.
        sound(frame.base.checked_add(rows).is_some(), "the rows of a frame")?;
    }
    sound(frames > 0, "a warp without a kernel")?;
    let rows = warp.next_base(&shape.code.functions) as usize;
    let bytes = reader.take(rows * REGISTER_ROW_BYTES)?;
    warp.rows = vec![Row::ZERO; rows];
    fill_rows(&mut warp.rows, bytes);
    let local = reader.count(LOCAL_ROW_BYTES)?;
    let words = reader.take(local * LOCAL_ROW_BYTES)?;
    warp.local = vec![[0; WARP_LANES]; local];
    for (word, bytes) in warp.local.iter_mut().flatten().zip(words.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    check_frames(&warp, shape)?;
    check_splits(&warp, shape)?;
    Ok(warp)
}

/// Reads a split; `check_splits` checks it once the frames are known.
fn read_split(reader: &mut Reader<'_>) -> Result<Split, StateError> {
    let ([pc, frame, lanes], last_slice) = (reader.triple()?, reader.u32()?);
    let wait = match reader.u8()? {
        0 => Wait::Ready,
        CLUSTER_WAIT => Wait::Cluster,
        id => Wait::Barrier(id - 1),
    };
    Ok(Split { pc, frame, lanes, wait, last_slice })
}

/// Reads the frame that follows the existing ones of `warp`.
fn read_frame(reader: &mut Reader<'_>, shape: &BlockShape<'_>, warp: &Warp) -> Result<CallFrame, StateError> {
    let ([function, local, parent], [return_pc, lanes, call_site]) = (reader.triple()?, reader.triple()?);
    let depth = warp.frames.get(parent as usize).map_or(0, |parent| parent.depth + 1);
    let frame = CallFrame {
        function,
        base: warp.next_base(&shape.code.functions),
        local,
        parent,
        return_pc,
        depth,
        lanes,
        call_site,
    };
    let Some(caller) = warp.frames.get(parent as usize) else {
        let first = warp.frames.is_empty() && function == shape.function && parent == 0;
        return sound(first, "the frame of the kernel").map(|()| frame);
    };
    sound(shape.code.accepts(function, call_site), "the function that a frame is of")?;
    sound(shape.holds(caller.function, return_pc), "where a function returns to")?;
    Ok(frame)
}

/// Checks that local memory of frames lies in the order of the frames, and within the memory of the warp.
fn check_frames(warp: &Warp, shape: &BlockShape<'_>) -> Result<(), StateError> {
    let size = warp.local.len() as u64 * 8;
    for (at, frame) in warp.frames.iter().enumerate() {
        let bytes = shape.code.functions.get(frame.function as usize).map_or(0, |function| function.local_bytes);
        let next = warp.frames.get(at + 1).map_or(size, |next| u64::from(next.local));
        let fits = frame.local % 8 == 0 && u64::from(frame.local) + u64::from(bytes) <= next;
        sound(fits, "the local memory of a frame")?;
        sound(frame.lanes & !shape.lanes(warp.index) == 0, "the lanes of a frame")?;
    }
    Ok(())
}

/// Checks that every live lane is in exactly one split, at an instruction of its frame's function.
fn check_splits(warp: &Warp, shape: &BlockShape<'_>) -> Result<(), StateError> {
    let mut lanes = 0;
    for split in &warp.splits {
        sound(split.lanes != 0 && split.lanes & lanes == 0, "the lanes of a split")?;
        lanes |= split.lanes;
        let frame = warp.frames.get(split.frame as usize).filter(|frame| split.lanes & !frame.lanes == 0);
        sound(frame.is_some_and(|frame| shape.holds(frame.function, split.pc)), "the place of a split")?;
        if let Wait::Barrier(id) = split.wait {
            let inst = shape.code.insts.get(split.pc as usize);
            let at_barrier = inst.is_some_and(barrier::is_barrier) && usize::from(id) < BARRIERS_PER_BLOCK;
            sound(at_barrier, "what a split waits for")?;
        }
        if split.wait == Wait::Cluster {
            let at_wait = shape.code.insts.get(split.pc as usize).is_some_and(cluster::is_wait);
            sound(at_wait && split.lanes & !warp.arrived == 0, "what a split waits for")?;
        }
    }
    sound(lanes == warp.alive, "the lanes that are alive")
}
