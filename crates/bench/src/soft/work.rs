//! The work: each kernel with its geometry, its buffers and the amount of work.

use std::ffi::CStr;

/// An argument of a kernel.
#[derive(Debug, Clone, Copy)]
pub(super) enum Argument {
    /// A buffer, by its index in `KernelWork::buffers`.
    Buffer(usize),
    /// A signed 32-bit integer.
    Int(i32),
}

/// A kernel to measure.
#[derive(Debug)]
pub(super) struct KernelWork {
    /// Its name in both languages.
    pub(super) name: &'static CStr,
    /// Title for people, with the unit of `amount`.
    pub(super) title: &'static str,
    /// Blocks of the grid along each axis.
    pub(super) grid: [u32; 2],
    /// Threads of a block.
    pub(super) block: [u32; 2],
    /// Words of each buffer. All but the result hold numbers at the start.
    pub(super) buffers: &'static [usize],
    /// The buffer with the result.
    pub(super) result: usize,
    /// Arguments, in the order of the kernel.
    pub(super) arguments: &'static [Argument],
    /// Work of one launch, in the unit of the title.
    pub(super) amount: f64,
    /// Whether words are integers.
    pub(super) integers: bool,
}

use Argument::{Buffer, Int};

/// All kernels, each a few dozen milliseconds of one core.
pub(super) const KERNEL_WORKS: [KernelWork; 6] = [
    KernelWork {
        name: c"sgemm",
        title: "SGEMM 512, fma",
        grid: [16, 16],
        block: [32, 32],
        buffers: &[512 * 512, 512 * 512, 512 * 512],
        result: 2,
        arguments: &[Buffer(0), Buffer(1), Buffer(2), Int(512)],
        amount: 512.0 * 512.0 * 512.0,
        integers: false,
    },
    KernelWork {
        name: c"nbody",
        title: "n-body 4096, pairs",
        grid: [16, 1],
        block: [256, 1],
        buffers: &[4 * 4096, 4 * 4096],
        result: 1,
        arguments: &[Buffer(0), Buffer(1), Int(4096)],
        amount: 4096.0 * 4096.0,
        integers: false,
    },
    KernelWork {
        name: c"stencil",
        title: "stencil 128³, cells",
        grid: [4, 16],
        block: [32, 8],
        buffers: &[128 * 128 * 128, 128 * 128 * 128],
        result: 1,
        arguments: &[Buffer(0), Buffer(1), Int(128)],
        amount: 126.0 * 126.0 * 126.0,
        integers: false,
    },
    KernelWork {
        name: c"blackscholes",
        title: "Black-Scholes, options",
        grid: [256, 1],
        block: [256, 1],
        buffers: &[1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20],
        result: 3,
        arguments: &[Buffer(0), Buffer(1), Buffer(2), Buffer(3), Buffer(4), Int(1 << 20)],
        amount: (1 << 20) as f64,
        integers: false,
    },
    KernelWork {
        name: c"reduction",
        title: "sum, numbers",
        grid: [64, 1],
        block: [256, 1],
        buffers: &[4 << 20, 64],
        result: 1,
        arguments: &[Buffer(0), Buffer(1), Int(4 << 20)],
        amount: (4 << 20) as f64,
        integers: false,
    },
    KernelWork {
        name: c"histogram",
        title: "histogram, bytes",
        grid: [64, 1],
        block: [256, 1],
        buffers: &[1 << 20, 256],
        result: 1,
        arguments: &[Buffer(0), Buffer(1), Int(1 << 20)],
        amount: (4 << 20) as f64,
        integers: true,
    },
];

impl KernelWork {
    /// Returns the initial contents of buffer `index`: the same everywhere, without a pattern that a kernel could exploit.
    pub(super) fn content(&self, index: usize) -> Vec<u32> {
        let size = self.buffers.get(index).copied().unwrap_or(0);
        if index == self.result {
            return vec![0; size];
        }
        let word =
            |at: usize| (at as u32).wrapping_mul(2_654_435_761).wrapping_add(index as u32 * 0x9e37) ^ at as u32 >> 7;
        let number = |word: u32| (0.5 + (word >> 12) as f32 / (1 << 20) as f32).to_bits();
        (0..size).map(|at| if self.integers { word(at) } else { number(word(at)) }).collect()
    }

    /// Returns the sum of a result, to compare with that of another device.
    pub(super) fn sum(&self, words: &[u32]) -> f64 {
        let value = |word: &u32| if self.integers { f64::from(*word) } else { f64::from(f32::from_bits(*word)) };
        words.iter().map(value).sum()
    }
}
