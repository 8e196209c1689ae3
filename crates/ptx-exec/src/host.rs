//! What running code needs of its surroundings.

use crate::engine::races::Race;
use crate::texture::Bound;

/// A stretch of memory that device code may touch: `start..end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    /// First address of the range.
    pub start: u64,
    /// Address behind the last byte of the range.
    pub end: u64,
    /// Whether stores and atomics are allowed.
    pub writable: bool,
}

/// Heaps that device code allocates from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceHeap {
    /// Heap of `malloc` in kernels, whose size the program sets.
    Malloc,
    /// What the device runtime itself needs: parameters of launches, its strings.
    Runtime,
}

/// What device code may ask of its surroundings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// The ordinal of the device that it runs on.
    Device,
    /// The number of devices that the program sees.
    DeviceCount,
    /// An attribute of a device (`CUdevice_attribute`).
    Attribute {
        /// Ordinal of the device.
        device: i32,
        /// Number of the attribute (`CUdevice_attribute`).
        id: u32,
    },
    /// A limit of the context (`CUlimit`).
    Limit(u32),
    /// Blocks of a kernel that fit a multiprocessor at once.
    Occupancy {
        /// 32-bit registers of a thread.
        registers: u32,
        /// Most threads a block may have.
        max_threads: u32,
        /// Bytes of shared memory that the code declares.
        static_shared: u32,
        /// Threads of a block.
        threads: u32,
        /// Bytes of dynamic shared memory of a block.
        dynamic_shared: u64,
    },
}

/// What running code needs of its surroundings; called from every interpreter thread.
pub trait Host: Sync {
    /// The allocation that holds `address`. It must stay mapped, readable (and writable when it says so) until the
    /// launch is done.
    fn range_of(&self, address: u64) -> Option<AddressRange>;
    /// The places that a multicast address stands for, one in the memory of each device that is bound; `None` for an
    /// ordinary address, which stands for itself.
    fn replicas(&self, address: u64) -> Option<Vec<u64>> {
        let _ = address;
        None
    }
    /// What a handle of a texture or surface, or the address of a `.texref` or `.surfref`, stands for; `None` for what
    /// is no handle. The memory of its image must stay as [`Host::range_of`] demands until the launch is done.
    fn bound(&self, handle: u64) -> Option<Bound> {
        let _ = handle;
        None
    }
    /// Prints the formatted text of a `printf` in a kernel.
    fn print(&self, text: &[u8]);
    /// A failed device `assert`, as one line of text with its line feed; the launch then faults.
    fn assert_failed(&self, text: &str);
    /// Memory for device code that stays allocated until it is freed, whatever launch asked for it. `align` is a power of
    /// two. `None` when there is no room, which is what a host without heaps always says.
    fn allocate(&self, _pool: DeviceHeap, _size: u64, _align: u64) -> Option<u64> {
        None
    }
    /// The answer to a question of device code; `None` when there is none.
    fn answer(&self, _question: Question) -> Option<u64> {
        None
    }
    /// Frees what `allocate` gave; any other address is left alone.
    fn free(&self, _pool: DeviceHeap, _address: u64) {}
    /// Whether races are looked for, and what decides in which order warps and blocks take turns then. Such a launch runs on one
    /// thread.
    fn race_seed(&self) -> Option<u64> {
        None
    }
    /// Reports a race; each pair of instructions of a launch once.
    fn race(&self, _race: &Race) {}
    /// The value that conditional nodes of a graph go by; a handle that is none is left alone.
    fn set_condition(&self, _handle: u64, _value: u32) {}
}
