//! The types that softcuda works with: load a program, look up its kernels and globals, run launches.

use crate::code::Code;
use crate::engine::races::Race;
use crate::texture::Bound;
use std::ops::Deref;
use std::sync::Arc;

/// The device that programs are loaded for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Compute capability, the part before the dot.
    pub major: u32,
    /// Compute capability, the part after the dot.
    pub minor: u32,
}

/// Where a program's `.global` and `.const` variables are put while it is loaded.
pub trait GlobalMemory {
    /// Zeroed memory of `size` bytes at a multiple of `align`; `None` when there is none left. What a failed load
    /// allocated is the caller's to free.
    fn allocate(&mut self, size: u64, align: u64) -> Option<u64>;
    /// The same for a variable that the host uses too, at the same address.
    fn allocate_managed(&mut self, size: u64, align: u64) -> Option<u64> {
        self.allocate(size, align)
    }
    /// Copies `bytes` to `address`, which lies in memory that `allocate` returned.
    fn write(&mut self, address: u64, bytes: &[u8]);
}

/// A stretch of memory that device code may touch: `start..end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// Whether stores and atomics are allowed.
    pub writable: bool,
}

/// Heaps that device code allocates from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pool {
    /// That of `malloc`, whose size the program sets.
    Malloc,
    /// What the device runtime itself needs: parameters of launches, its strings.
    Runtime,
}

/// What device code may ask of its surroundings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// The ordinal of the device that it runs on.
    Device,
    /// How many devices there are.
    DeviceCount,
    /// An attribute of a device (`CUdevice_attribute`).
    Attribute {
        /// Ordinal of the device.
        device: i32,
        /// Which.
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
    /// One device `printf`, formatted.
    fn print(&self, text: &[u8]);
    /// A failed device `assert`, as one line of text with its line feed; the launch then faults.
    fn assert_failed(&self, text: &str);
    /// Memory for device code that stays allocated until it is freed, whatever launch asked for it. `align` is a power of
    /// two. `None` when there is no room, which is what a host without heaps always says.
    fn allocate(&self, _pool: Pool, _size: u64, _align: u64) -> Option<u64> {
        None
    }
    /// The answer to a question of device code; `None` when there is none.
    fn answer(&self, _question: Question) -> Option<u64> {
        None
    }
    /// Frees what `allocate` gave; any other address is left alone.
    fn free(&self, _pool: Pool, _address: u64) {}
    /// Whether races are looked for, and what decides in which order warps and blocks take turns then. Such a launch runs on one
    /// thread.
    fn race_seed(&self) -> Option<u64> {
        None
    }
    /// A race was found; each pair of instructions of a launch is told once.
    fn race(&self, _race: &Race) {}
    /// The value that conditional nodes of a graph go by; a handle that is none is left alone.
    fn set_condition(&self, _handle: u64, _value: u32) {}
}

/// One kernel parameter in the parameter buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param {
    /// Byte offset in the buffer.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
}

/// What is known of a kernel besides its code.
#[derive(Debug)]
pub struct KernelInfo {
    /// Its (mangled) name.
    pub name: String,
    /// Its parameters in order.
    pub params: Vec<Param>,
    /// Bytes of the parameter buffer.
    pub param_bytes: u32,
    /// Bytes of shared memory that its code declares.
    pub static_shared: u32,
    /// Bytes of local memory a thread.
    pub local_bytes: u32,
    /// Bytes of `.const` variables of its program.
    pub const_bytes: u32,
    /// An estimate of what ptxas would give: 32-bit registers a thread, 16 to 255.
    pub registers: u32,
    /// Most threads a block may have (`.maxntid`, `.reqntid`, else 1024).
    pub max_threads: u32,
    /// The block dimensions it insists on (`.reqntid`).
    pub required_block: Option<[u32; 3]>,
    /// The cluster dimensions it insists on (`.reqnctapercluster`).
    pub required_cluster: Option<[u32; 3]>,
    /// Most blocks its clusters may have (`.maxclusterrank`).
    pub max_cluster: Option<u32>,
    /// It can be launched in clusters only (`.explicitcluster`).
    pub needs_cluster: bool,
    /// PTX version times ten, e.g. 90.
    pub ptx_version: u32,
    /// `.target` of its PTX, e.g. 75.
    pub target: u32,
    /// Its function in the program.
    pub(crate) function: u32,
    /// What dynamic shared memory is aligned to.
    pub(crate) dynamic_align: u32,
}

/// A kernel, decoded and ready to run.
#[derive(Debug)]
pub struct Kernel {
    pub(crate) info: Arc<KernelInfo>,
    /// The program that it is part of.
    pub(crate) code: Arc<Code>,
}

impl Kernel {
    /// The kernel of `code` whose function is number `function`.
    pub(crate) fn of(code: &Arc<Code>, function: u32) -> Option<Arc<Self>> {
        let info = code.kernels.iter().find(|info| info.function == function)?;
        Some(Arc::new(Self { info: Arc::clone(info), code: Arc::clone(code) }))
    }
}

impl Deref for Kernel {
    type Target = KernelInfo;

    fn deref(&self) -> &KernelInfo {
        &self.info
    }
}

/// Why a program was refused. `Display` is the log for the user: line and token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// `CUDA_ERROR_INVALID_PTX` (218): the text is not PTX.
    #[error("ptx error: line {line}: {message}")]
    InvalidPtx {
        /// Line of the text, from 1.
        line: u32,
        /// What is wrong, with the token.
        message: String,
    },
    /// Valid PTX, but an instruction (or its form) that this interpreter does not have.
    #[error("ptx error: line {line}: {name} is not supported by the software device")]
    Unsupported {
        /// Line of the text, from 1.
        line: u32,
        /// The instruction with its modifiers.
        name: String,
    },
    /// `CUDA_ERROR_UNSUPPORTED_PTX_VERSION` (222): the text is newer than what is known here.
    #[error("ptx error: line {line}: .version {major}.{minor} is newer than {newest}, the newest that is supported")]
    NewerPtx {
        /// Line of the directive, from 1.
        line: u32,
        /// The part before the dot.
        major: u32,
        /// The part after the dot.
        minor: u32,
        /// The newest version that is supported.
        newest: &'static str,
    },
    /// `CUDA_ERROR_INVALID_PTX` (218): the text asks for a newer device.
    #[error("ptx error: .target sm_{wanted} is newer than the device, which is sm_{device}")]
    NoKernelImage {
        /// What the text asks for.
        wanted: u32,
        /// What the device is.
        device: u32,
    },
    /// `CUDA_ERROR_OUT_OF_MEMORY` (2): `GlobalMemory` had no room for a variable.
    #[error("out of memory: {size} bytes for {name}")]
    OutOfMemory {
        /// The variable.
        name: String,
        /// Its size in bytes.
        size: u64,
    },
    /// A name is declared or used and nothing defines it.
    #[error("ptx error: line {line}: unresolved symbol {name}")]
    UnresolvedSymbol {
        /// Line of the use, from 1.
        line: u32,
        /// The name.
        name: String,
    },
    /// Two texts define the same name.
    #[error("ptx error: line {line}: {name} is defined twice")]
    DuplicateSymbol {
        /// Line of the second definition, from 1.
        line: u32,
        /// The name.
        name: String,
    },
}

/// Everything about one launch.
#[derive(Debug, Clone)]
pub struct Launch {
    /// What to run.
    pub kernel: Arc<Kernel>,
    /// Blocks in the grid.
    pub grid: [u32; 3],
    /// Threads in a block.
    pub block: [u32; 3],
    /// Bytes of shared memory besides the kernel's own.
    pub dynamic_shared: u32,
    /// The parameter buffer: at least `Kernel::param_bytes`.
    pub params: Vec<u8>,
    /// All blocks are resident at once, so that they may wait for each other.
    pub cooperative: bool,
    /// Blocks of a cluster; `None` is what the kernel insists on, or no clusters.
    pub cluster: Option<[u32; 3]>,
}

/// How much of a grid to run before pausing.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Interpreter threads; at least 1 is used.
    pub threads: usize,
    /// Warp instructions that each thread may run before it pauses.
    pub budget: u64,
}

/// What `Grid::run` came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The budget is used up, or a kernel that device code has launched is next; call `run` again.
    Paused,
    /// Every block has finished.
    Done,
}
