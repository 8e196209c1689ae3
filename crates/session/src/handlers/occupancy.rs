//! Occupancy: how many blocks fit a multiprocessor.

#![expect(unsafe_code, reason = "calls the driver")]

use katydid_wire::frame::FrameHead;
use katydid_wire::message::{kdAvailableSharedMemory, kdAvailableSharedMemoryReply, kdOccupancy, kdOccupancyReply};

use super::function::Code;
use super::{Called, done};
use crate::ask::ask;
use crate::session::Session;

/// `cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags`; sizes in bytes.
pub(crate) fn kdOccupancy(session: &mut Session, head: &FrameHead, message: kdOccupancy) -> Called<kdOccupancyReply> {
    let function = Code::of(session, head, message.function, message.kernel)?.as_function();
    let (block, dynamic, flags) = (message.blockSize, message.dynamicSize as usize, message.flags);
    let driver = session.driver();
    let blocks = ask(|out| {
        // SAFETY: the output is a local, the handle alive.
        unsafe { driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out, function, block, dynamic, flags) }
    })?;
    done(kdOccupancyReply { blocks })
}

/// `cuOccupancyAvailableDynamicSMemPerBlock`, in bytes.
pub(crate) fn kdAvailableSharedMemory(
    session: &mut Session,
    head: &FrameHead,
    message: kdAvailableSharedMemory,
) -> Called<kdAvailableSharedMemoryReply> {
    let function = Code::of(session, head, message.function, message.kernel)?.as_function();
    let (blocks, block) = (message.blocks, message.blockSize);
    let driver = session.driver();
    let size = ask::<usize>(|out| {
        // SAFETY: the output is a local, the handle alive.
        unsafe { driver.cuOccupancyAvailableDynamicSMemPerBlock(out, function, blocks, block) }
    })?;
    done(kdAvailableSharedMemoryReply { size: size as u64 })
}
