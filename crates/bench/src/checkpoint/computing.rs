//! Programs that compute while they are checkpointed, of the kinds that the Cricket paper measures: a product of matrices, bodies
//! that attract each other, a stencil, eigenvalues.
//!
//! Each step changes the input of the next one. So a lost or repeated step shows in the sum at the end.

use std::ffi::CStr;

use crate::cuda::{Cuda, CudaError, Kernel};
use crate::flags::Computation;
use crate::soft;

/// The kernels as nvcc compiled `kernels.cu`.
const CHECKPOINT_KERNELS_PTX: &str = concat!(include_str!("kernels.ptx"), "\0");
/// Rows and columns of a block of a product.
const TILE_LINES: u32 = 32;
/// Threads of a block that has one row.
const ROW_BLOCK_THREADS: u32 = 256;
/// Halvings after which an interval of 32 holds no two numbers of 24 bits.
const MAX_HALVINGS: u64 = 32;

impl Computation {
    pub(super) const ALL: [Self; 4] = [Self::Matrix, Self::Bodies, Self::Heat, Self::Eigenvalues];

    /// Returns the name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Matrix => "matrix",
            Self::Bodies => "bodies",
            Self::Heat => "heat",
            Self::Eigenvalues => "eigenvalues",
        }
    }

    /// Returns the size, where host code plays the GPU (`is_soft`) or on a GPU.
    pub(super) fn size(self, is_soft: bool) -> u32 {
        let (soft, gpu) = match self {
            Self::Matrix => (128, 1024),
            Self::Bodies => (1024, 16384),
            Self::Heat => (64, 192),
            Self::Eigenvalues => (512, 4096),
        };
        if is_soft { soft } else { gpu }
    }

    /// Returns name and size of the computation, for tables.
    pub(super) fn title(self, size: u32) -> String {
        match self {
            Self::Matrix => format!("matrix product {size}x{size}"),
            Self::Bodies => format!("n-body, {size} bodies"),
            Self::Heat => format!("heat stencil {size}x{size}x{size}"),
            Self::Eigenvalues => format!("eigenvalues {size}x{size}"),
        }
    }
}

/// A program between two of its steps.
pub(super) struct Computing {
    cuda: Cuda,
    kind: Computation,
    size: u32,
    kernels: Vec<Kernel>,
    buffers: Vec<u64>,
    /// Bytes of the first buffer, which has the result so far.
    bytes: usize,
    steps: u64,
}

impl Computing {
    /// Loads the kernels, and fills the memory.
    pub(super) fn new(cuda: Cuda, kind: Computation, size: u32) -> Result<Self, CudaError> {
        let missing = |text: &str| CudaError::Missing(text.to_owned());
        let text = |ptx: &'static str| CStr::from_bytes_with_nul(ptx.as_bytes()).map_err(|_| missing("no text of PTX"));
        let modules = [cuda.module(text(soft::cuda::KERNELS_PTX)?)?, cuda.module(text(CHECKPOINT_KERNELS_PTX)?)?];
        let names: &[(usize, &CStr)] = match kind {
            Computation::Matrix => &[(0, c"sgemm")],
            Computation::Bodies => &[(0, c"nbody"), (1, c"fly")],
            Computation::Heat => &[(0, c"stencil")],
            Computation::Eigenvalues => &[(1, c"widen"), (1, c"bisect")],
        };
        let kernels = names.iter().map(|(module, name)| cuda.kernel(&modules[*module], name));
        let kernels = kernels.collect::<Result<_, _>>()?;
        let contents = contents(kind, size as usize);
        let bytes = contents.first().map_or(0, Vec::len);
        let mut buffers = Vec::new();
        for content in contents {
            let address = cuda.allocate(content.len())?;
            cuda.copy_in(address, &content)?;
            buffers.push(address);
        }
        Ok(Self { cuda, kind, size, kernels, buffers, bytes, steps: 0 })
    }

    /// Returns the steps computed so far.
    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// Runs one step to its end.
    pub(super) fn step(&mut self) -> Result<(), CudaError> {
        let (size, n) = (self.size, u64::from(self.size));
        let row = [[size.div_ceil(ROW_BLOCK_THREADS), 1], [ROW_BLOCK_THREADS, 1]];
        let buffers = &mut self.buffers;
        match self.kind {
            Computation::Matrix => {
                let tiles = [[size / TILE_LINES, size / TILE_LINES], [TILE_LINES, TILE_LINES]];
                self.cuda.start(&self.kernels[0], tiles, &[buffers[0], buffers[1], buffers[2], n])?;
                buffers.swap(0, 2);
            }
            Computation::Bodies => {
                self.cuda.start(&self.kernels[0], row, &[buffers[0], buffers[2], n])?;
                self.cuda.start(&self.kernels[1], row, &[buffers[0], buffers[1], buffers[2], n])?;
            }
            Computation::Heat => {
                let columns = [[size.div_ceil(32), size.div_ceil(8)], [32, 8]];
                self.cuda.start(&self.kernels[0], columns, &[buffers[0], buffers[1], n])?;
                buffers.swap(0, 1);
            }
            Computation::Eigenvalues => {
                let [low, high, diagonal, beside] = [buffers[0], buffers[1], buffers[2], buffers[3]];
                if self.steps.is_multiple_of(MAX_HALVINGS) {
                    self.cuda.start(&self.kernels[0], row, &[diagonal, low, high, n])?;
                }
                self.cuda.start(&self.kernels[1], row, &[diagonal, beside, low, high, n])?;
            }
        }
        self.steps += 1;
        self.cuda.synchronize()
    }

    /// Returns a sum over all words of the first buffer and their positions.
    pub(super) fn sum(&self) -> Result<u64, CudaError> {
        let mut bytes = vec![0; self.bytes];
        self.cuda.copy_out(&mut bytes, self.buffers[0])?;
        let words = bytes.as_chunks().0.iter().map(|word| u64::from(u32::from_le_bytes(*word)));
        Ok(words.fold(0, |sum, word| sum.rotate_left(1).wrapping_add(word)))
    }
}

/// Returns the initial contents of the buffers; the first one is the result.
fn contents(kind: Computation, size: usize) -> Vec<Vec<u8>> {
    let number = |at: usize| {
        let word = (at as u32).wrapping_mul(2_654_435_761) ^ (at as u32) >> 7;
        (word >> 12) as f32 / (1 << 20) as f32
    };
    let bytes = |count: usize, value: &dyn Fn(usize) -> f32| -> Vec<u8> {
        (0..count).flat_map(|at| value(at).to_le_bytes()).collect()
    };
    match kind {
        Computation::Matrix => {
            // Rotates pairs of columns, so that products neither grow nor fade.
            let rotation = |at: usize| {
                let (row, column) = (at / size, at % size);
                match (row == column, row / 2 == column / 2, row < column) {
                    (true, ..) => 0.8,
                    (_, true, true) => 0.6,
                    (_, true, false) => -0.6,
                    _ => 0.0,
                }
            };
            let square = size * size;
            vec![bytes(square, &number), bytes(square, &rotation), bytes(square, &|_| 0.0)]
        }
        Computation::Bodies => {
            let zeros = bytes(4 * size, &|_| 0.0);
            vec![bytes(4 * size, &number), zeros.clone(), zeros]
        }
        Computation::Heat => vec![bytes(size.pow(3), &number); 2],
        Computation::Eigenvalues => {
            let (low, high) = (bytes(size, &|_| -16.0), bytes(size, &|_| 16.0));
            vec![low, high, bytes(size, &|at| 4.0 * number(at)), bytes(size, &|at| number(at + size))]
        }
    }
}
