//! The interface for softcuda: loads programs, looks up their kernels and globals, runs launches.

use crate::code::KernelInfo;
use crate::engine::machine::Code;
use std::ops::Deref;
use std::sync::Arc;

/// The device that programs are loaded for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetDevice {
    /// Compute capability, the part before the dot.
    pub major: u32,
    /// Compute capability, the part after the dot.
    pub minor: u32,
}

/// Memory for a program's `.global` and `.const` variables.
pub trait GlobalMemory {
    /// Allocates `size` zeroed bytes at a multiple of `align`; `None` when memory is exhausted. After a failed load, the caller
    /// frees the allocations.
    fn allocate(&mut self, size: u64, align: u64) -> Option<u64>;
    /// Allocates zeroed memory for a variable that the host uses at the same address.
    fn allocate_managed(&mut self, size: u64, align: u64) -> Option<u64> {
        self.allocate(size, align)
    }
    /// Copies `bytes` to `address`, which lies in memory that `allocate` returned.
    fn write(&mut self, address: u64, bytes: &[u8]);
}

/// A kernel, decoded and ready to run.
#[derive(Debug)]
pub struct Kernel {
    pub(crate) info: Arc<KernelInfo>,
    /// Program of the kernel.
    pub(crate) code: Arc<Code>,
}

impl Kernel {
    /// Returns the kernel of `code` whose function is number `function`.
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

/// Why a program was refused. `Display` gives the log for the user: line and token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// `CUDA_ERROR_INVALID_PTX` (218): the text is not PTX.
    #[error("ptx error: line {line}: {message}")]
    InvalidPtx {
        /// Line of the text, from 1.
        line: u32,
        /// Description of the fault, with the token that is wrong.
        message: String,
    },
    /// Valid PTX, but an instruction, or a form of it, that this interpreter lacks.
    #[error("ptx error: line {line}: {name} is not supported by the software device")]
    Unsupported {
        /// Line of the text, from 1.
        line: u32,
        /// The instruction with its modifiers.
        name: String,
    },
    /// `CUDA_ERROR_UNSUPPORTED_PTX_VERSION` (222): the text is newer than the interpreter.
    #[error("ptx error: line {line}: .version {major}.{minor} is newer than {newest}, the newest that is supported")]
    NewerPtx {
        /// Line of the directive, from 1.
        line: u32,
        /// The part before the dot.
        major: u32,
        /// The part after the dot.
        minor: u32,
        /// The newest supported version.
        newest: &'static str,
    },
    /// `CUDA_ERROR_INVALID_PTX` (218): the text is for a newer device.
    #[error("ptx error: .target sm_{wanted} is newer than the device, which is sm_{device}")]
    NoKernelImage {
        /// The target of the text.
        wanted: u32,
        /// Architecture of the device, as in `sm_90`: 90.
        device: u32,
    },
    /// `CUDA_ERROR_OUT_OF_MEMORY` (2): `GlobalMemory` had no room for a variable.
    #[error("out of memory: {size} bytes for {name}")]
    OutOfMemory {
        /// Name of the variable.
        name: String,
        /// Size that the program requested, in bytes.
        size: u64,
    },
    /// A name is declared or used, but not defined.
    #[error("ptx error: line {line}: unresolved symbol {name}")]
    UnresolvedSymbol {
        /// Line of the use, from 1.
        line: u32,
        /// The name that has no definition.
        name: String,
    },
    /// Two texts define the same name.
    #[error("ptx error: line {line}: {name} is defined twice")]
    DuplicateSymbol {
        /// Line of the second definition, from 1.
        line: u32,
        /// The name that has two definitions.
        name: String,
    },
}

/// A launch of a kernel.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Kernel that the grid runs.
    pub kernel: Arc<Kernel>,
    /// Blocks in the grid.
    pub grid: [u32; 3],
    /// Threads in a block.
    pub block: [u32; 3],
    /// Bytes of shared memory besides the kernel's own.
    pub dynamic_shared: u32,
    /// The parameter buffer: at least `Kernel::param_bytes`.
    pub params: Vec<u8>,
    /// Whether all blocks must be resident at once, so that they may wait for each other.
    pub cooperative: bool,
    /// Blocks of a cluster. `None` means the kernel's own requirement, or no clusters.
    pub cluster: Option<[u32; 3]>,
}

/// How much of a grid to run before pausing.
#[derive(Debug, Clone, Copy)]
pub struct RunLimits {
    /// Interpreter threads; at least 1 is used.
    pub threads: usize,
    /// Warp instructions that each thread may run before it pauses.
    pub budget: u64,
}

/// State of a grid after `Grid::run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The budget is used up, or a kernel that device code has launched is next. Call `run` again.
    Paused,
    /// Every block has finished.
    Done,
}
