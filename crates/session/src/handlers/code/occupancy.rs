//! Occupancy: how many blocks fit on a multiprocessor.

#![expect(unsafe_code, reason = "calls the driver")]

use katydid_cuda_sys::{CUlaunchAttribute, CUlaunchConfig, CUstream, launch_attribute};
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{
    kdAvailableSharedMemory, kdAvailableSharedMemoryReply, kdClusters, kdClustersReply, kdOccupancy, kdOccupancyReply,
};

use crate::device::ask::ask;
use crate::handlers::code::function::Code;
use crate::handlers::{CallResult, success};
use crate::state::Session;

/// Answers `cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags`; sizes in bytes.
pub(crate) fn kdOccupancy(
    session: &mut Session,
    head: &FrameHead,
    message: kdOccupancy,
) -> CallResult<kdOccupancyReply> {
    let function = Code::requested(session, head, message.function, message.kernel)?.as_function();
    let (block, dynamic, flags) = (message.blockSize, message.dynamicSize as usize, message.flags);
    let driver = session.driver();
    let blocks = ask(|out| {
        // SAFETY: the output is a local, the handle alive.
        unsafe { driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out, function, block, dynamic, flags) }
    })?;
    success(kdOccupancyReply { blocks })
}

/// Answers `cuOccupancyAvailableDynamicSMemPerBlock`, in bytes.
pub(crate) fn kdAvailableSharedMemory(
    session: &mut Session,
    head: &FrameHead,
    message: kdAvailableSharedMemory,
) -> CallResult<kdAvailableSharedMemoryReply> {
    let function = Code::requested(session, head, message.function, message.kernel)?.as_function();
    let (blocks, block) = (message.blocks, message.blockSize);
    let driver = session.driver();
    let size = ask::<usize>(|out| {
        // SAFETY: the output is a local, the handle alive.
        unsafe { driver.cuOccupancyAvailableDynamicSMemPerBlock(out, function, blocks, block) }
    })?;
    success(kdAvailableSharedMemoryReply { size: size as u64 })
}

/// Answers `cuOccupancyMaxActiveClusters` or `cuOccupancyMaxPotentialClusterSize`.
pub(crate) fn kdClusters(session: &mut Session, head: &FrameHead, message: kdClusters) -> CallResult<kdClustersReply> {
    let function = Code::requested(session, head, message.function, message.kernel)?.as_function();
    let mut attribute = CUlaunchAttribute { id: launch_attribute::CLUSTER_DIMENSION, ..CUlaunchAttribute::default() };
    attribute.value[0] = u64::from(message.clusterX) | u64::from(message.clusterY) << 32;
    attribute.value[1] = u64::from(message.clusterZ);
    let has_cluster = [message.clusterX, message.clusterY, message.clusterZ] != [0; 3];
    let config = CUlaunchConfig {
        gridDimX: message.gridX,
        gridDimY: message.gridY,
        gridDimZ: message.gridZ,
        blockDimX: message.blockX,
        blockDimY: message.blockY,
        blockDimZ: message.blockZ,
        sharedMemBytes: message.sharedSize,
        hStream: CUstream::NULL,
        attrs: &mut attribute,
        numAttrs: u32::from(has_cluster),
    };
    let driver = session.driver();
    let answer = ask::<i32>(|out| {
        // SAFETY: output, configuration and its attribute are locals, the handle alive.
        unsafe {
            match message.potential {
                0 => driver.cuOccupancyMaxActiveClusters(out, function, &config),
                _ => driver.cuOccupancyMaxPotentialClusterSize(out, function, &config),
            }
        }
    })?;
    success(kdClustersReply { answer })
}
