//! Device attributes: those of an H200 where programs plan by them, the truth about a CPU where programs act on them.
//!
//! Each row is a first id, and the values of consecutive ids. Ids outside of the rows are unknown and fail with 1, as in the real
//! driver.

pub(crate) use katydid_ptx_exec::{MAX_BLOCK_SHARED_BYTES, MAX_BLOCK_THREADS};
use katydid_ptx_exec::{MULTIPROCESSOR_THREADS, RESERVED_SHARED_BYTES};

/// Registers of a multiprocessor, 32 bits each.
pub(crate) const MULTIPROCESSOR_REGISTERS: u32 = 65536;
/// Shared memory of a multiprocessor in bytes.
pub(crate) const MULTIPROCESSOR_SHARED_BYTES: u32 = 233_472;
/// Most shared memory of a block in bytes without opting in.
pub(crate) const DEFAULT_BLOCK_SHARED_BYTES: u32 = 49_152;
/// Resident blocks of a multiprocessor.
pub(crate) const MULTIPROCESSOR_BLOCKS: u32 = 32;
/// Extent of a block.
pub(crate) const BLOCK_EXTENT: [u32; 3] = [1024, 1024, 64];
/// Extent of a grid.
pub(crate) const GRID_EXTENT: [u32; 3] = [i32::MAX as u32, 65535, 65535];
/// Compute capability. The interpreter supports its PTX, and no newer capability is claimed.
pub(crate) const COMPUTE_CAPABILITY: (u32, u32) = (9, 0);
/// Bytes of `.const` variables of a module.
pub(crate) const CONSTANT_BYTES: u32 = 65536;
/// Largest access policy window, in bytes.
pub(crate) const MAX_ACCESS_WINDOW_BYTES: u64 = 134_217_728;
/// Largest part of the L2 cache for persisting accesses, in bytes.
pub(crate) const MAX_PERSISTING_L2_BYTES: u32 = 39_321_600;
/// Number of memory synchronisation domains.
pub(crate) const SYNC_DOMAINS: u8 = 4;
/// Alignment of textures and of pitched rows, in bytes.
pub(crate) const PITCH_ALIGN_BYTES: u64 = 512;

/// Returns the 16 bytes that identify a device in every process of every machine: software devices are alike.
pub(crate) fn uuid(index: usize) -> [u8; 16] {
    let mut uuid = *b"katydid softcud\0";
    uuid[15] = index as u8;
    uuid
}

/// Attributes in which devices differ.
pub(crate) struct Variable {
    /// Number of multiprocessors.
    pub(crate) multiprocessors: u32,
    /// PCI bus; domain and device are 0.
    pub(crate) bus: u32,
}

/// Returns the value of attribute `id`, or `None` for an unknown id.
pub(crate) fn value(id: u32, device: &Variable) -> Option<i32> {
    match id {
        16 => i32::try_from(device.multiprocessors).ok(),
        33 => i32::try_from(device.bus).ok(),
        _ => ATTRIBUTE_ROWS.iter().find_map(|(first, values)| values.get(id.checked_sub(*first)? as usize)).copied(),
    }
}

/// Ids 1 to 147. Textures have an H200's limits. Cluster launches and everything that needs hardware of a GPU are 0, so that
/// careful programs avoid them.
#[rustfmt::skip]
static ATTRIBUTE_ROWS: &[(u32, &[i32])] = &[
    // Threads, block and grid extents, shared and constant memory, warp, pitch, registers, clock in kHz, alignment.
    (1, &[MAX_BLOCK_THREADS as i32, 1024, 1024, 64, i32::MAX, 65535, 65535, DEFAULT_BLOCK_SHARED_BYTES as i32, CONSTANT_BYTES as i32]),
    (10, &[32, i32::MAX, MULTIPROCESSOR_REGISTERS as i32, 1_000_000, PITCH_ALIGN_BYTES as i32, 1]),
    // 16 multiprocessors; timeout, integrated, host mapping, compute mode.
    (17, &[0, 0, 1, 0]),
    (21, &[131_072, 131_072, 65536, 16384, 16384, 16384, 32768, 32768, 2048]),
    // 30 surface alignment, concurrent kernels, ECC; 33 PCI bus, device, TCC, memory clock in kHz, bus width.
    (30, &[512, 1, 0]),
    (34, &[0, 0, 1_000_000, 64]),
    // 38 L2 bytes, threads a multiprocessor, copy engines, unified addressing.
    (38, &[33_554_432, MULTIPROCESSOR_THREADS as i32, 1, 1]),
    (42, &[32768, 2048, 1, 32768, 32768, 8192, 8192, 32768]),
    // 50 PCI domain, texture pitch alignment, texture and surface extents.
    (50, &[0, 32, 32768, 32768, 2046, 32768, 131_072, 65536, 16384, 16384, 16384, 32768, 2048, 32768, 32768, 2048]),
    (66, &[32768, 32768, 2046, 268_435_456, 131_072, 65000, 2_097_120, 32768, 32768]),
    // 75 compute capability, mipmap width, priorities, L1 caching, shared memory, registers, managed memory, boards.
    (75, &[COMPUTE_CAPABILITY.0 as i32, COMPUTE_CAPABILITY.1 as i32, 32768, 1, 1, 1, MULTIPROCESSOR_SHARED_BYTES as i32, MULTIPROCESSOR_REGISTERS as i32, 1, 0]),
    // 85 board group, host atomics, f64 ratio, pageable access, concurrent managed, preemption, registered pointers.
    (85, &[0, 1, 2, 0, 1, 0, 1]),
    // 92 stream memory operations (old), their 64 bits, NOR; cooperative launches (two kinds); 97 opted-in shared.
    (92, &[0, 0, 0, 1, 1, MAX_BLOCK_SHARED_BYTES as i32]),
    // 98 remote writes, host registration, host page tables, managed from host, virtual memory, file handles.
    (98, &[0, 1, 0, 0, 1, 1, 0, 0]),
    // 106 blocks, compression, persisting L2, access window, RDMA, reserved shared, sparse arrays, read-only register.
    (106, &[MULTIPROCESSOR_BLOCKS as i32, 0, MAX_PERSISTING_L2_BYTES as i32, MAX_ACCESS_WINDOW_BYTES as i32, 0, RESERVED_SHARED_BYTES as i32, 1, 1]),
    // 114 timeline semaphores, pools, RDMA (three), pool handles, clusters, deferred arrays.
    (114, &[0, 1, 0, 0, 0, 0, 0, 1]),
    // 122 64-bit stream memory operations, NOR waits, DMA buffers, IPC events, sync domains, tensor maps, fabric.
    (122, &[1, 1, 0, 1, SYNC_DOMAINS as i32, 0, 0]),
    // 129 unified function pointers, NUMA (two), multicast, MPS, host NUMA id, and the rest of 13.0's ids.
    (129, &[0, 0, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 1, 0, 0]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_of_driver_13_0_and_no_other_has_one_value() {
        let device = Variable { multiprocessors: 4, bus: 1 };
        for id in 0..200 {
            let rows = ATTRIBUTE_ROWS
                .iter()
                .filter(|(first, values)| (*first..*first + values.len() as u32).contains(&id))
                .count();
            let count = usize::from((1..148).contains(&id));
            assert_eq!(rows + usize::from(id == 16 || id == 33), count, "{id}");
            assert_eq!(value(id, &device).is_some(), (1..148).contains(&id), "{id}");
        }
    }

    #[test]
    fn limits_that_launches_are_checked_against_are_the_ones_shown() {
        let device = Variable { multiprocessors: 4, bus: 1 };
        let shown = [1, 8, 16, 39, 75, 81, 97, 106, 111].map(|id| value(id, &device));
        assert_eq!(shown, [1024, 49152, 4, 2048, 9, 233_472, 232_448, 32, 1024].map(Some));
        assert_eq!([83, 89, 95, 115].map(|id| value(id, &device)), [Some(1); 4]);
    }
}
