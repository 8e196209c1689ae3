//! The environment of running code.

use crate::engine::races::Race;
use crate::texture::Bound;

/// A range of memory that device code may access: `start..end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    /// First address of the range.
    pub start: u64,
    /// Address behind the last byte of the range.
    pub end: u64,
    /// Whether stores and atomics are allowed.
    pub writable: bool,
}

/// Heaps for allocations of device code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceHeap {
    /// Heap of `malloc` in kernels, whose size the program sets.
    Malloc,
    /// Memory of the device runtime itself: parameters of launches, its strings.
    Runtime,
}

/// Queries of device code to its environment.
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

/// The environment of running code. Every interpreter thread calls it.
pub trait Host: Sync {
    /// Returns the allocation that holds `address`. It must stay mapped, readable (and writable if `writable`) until the launch
    /// is done.
    fn range_of(&self, address: u64) -> Option<AddressRange>;
    /// Returns the addresses behind a multicast address, one in the memory of each bound device; `None` for an ordinary address,
    /// which stands for itself.
    fn replicas(&self, address: u64) -> Option<Vec<u64>> {
        let _ = address;
        None
    }
    /// Resolves a handle of a texture or surface, or the address of a `.texref` or `.surfref`; `None` for anything else. The
    /// memory of its image must stay as [`Host::range_of`] demands until the launch is done.
    fn bound(&self, handle: u64) -> Option<Bound> {
        let _ = handle;
        None
    }
    /// Prints the formatted text of a `printf` in a kernel.
    fn print(&self, text: &[u8]);
    /// Reports a failed device `assert`, as one line of text with its line feed. The launch then faults.
    fn assert_failed(&self, text: &str);
    /// Allocates memory for device code. It stays allocated until it is freed, beyond the launch. `align` is a power of two.
    /// Returns `None` without room, as a host without heaps always does.
    fn allocate(&self, _pool: DeviceHeap, _size: u64, _align: u64) -> Option<u64> {
        None
    }
    /// Answers a query of device code; `None` if there is no answer.
    fn answer(&self, _question: Question) -> Option<u64> {
        None
    }
    /// Frees memory of `allocate`. Ignores any other address.
    fn free(&self, _pool: DeviceHeap, _address: u64) {}
    /// Returns the seed of the race search, if that is on. The seed decides the order of warps and blocks. Such a launch runs on
    /// one thread.
    fn race_seed(&self) -> Option<u64> {
        None
    }
    /// Reports a race, once for each pair of instructions of a launch.
    fn race(&self, _race: &Race) {}
    /// Sets the value that controls conditional nodes of a graph. Ignores an unknown handle.
    fn set_condition(&self, _handle: u64, _value: u32) {}
}
