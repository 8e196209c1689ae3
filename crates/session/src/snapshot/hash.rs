//! The hash kernel: finds the chunks of device memory that changed since they were last hashed.
//!
//! Its result only decides whether bytes leave the device again; an image names contents by BLAKE3. So it must be fast (it
//! reads at the speed of memory) and notice every change. A changed word always changes the state of the thread that reads
//! it, and two changes cancel each other with a probability of 2⁻¹²⁸. The seed is random for each worker, so that no program
//! can be written that changes its memory unnoticed.

#![expect(unsafe_code, reason = "calls the driver")]

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::{CUfunction, CUmodule, CUresult, CUstream};
use katydid_driver::Driver;
use katydid_image::ChunkId;

use crate::device::ask::ask;

/// PTX of the hash kernel, with its NUL.
const HASH_KERNEL_PTX: &str = concat!(include_str!("hash/hash.ptx"), "\0");
/// Threads of a block, as the PTX text assumes.
const HASH_BLOCK_THREADS: u32 = 256;
/// Most blocks of one launch.
const MAX_BLOCKS: usize = 1 << 30;
/// Lengths and addresses of chunks are multiples of this.
pub(crate) const GRAIN_BYTES: u64 = 16;

/// The hash of a chunk.
pub(crate) type Hash = [u32; 4];
/// Bytes of one hash, and of one chunk in the list.
pub(crate) const HASH_RECORD_BYTES: usize = 16;

/// The kernel, loaded into a context.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HashKernel {
    function: CUfunction,
    seed: u64,
}

impl HashKernel {
    /// Loads it into the current context, with which it ends.
    ///
    /// # Errors
    ///
    /// The driver's code.
    pub(crate) fn load(driver: &Driver, seed: u64) -> Result<Self, CUresult> {
        // SAFETY: the text ends with a NUL; the output is a local.
        let module: CUmodule = ask(|out| unsafe { driver.cuModuleLoadData(out, HASH_KERNEL_PTX.as_ptr().cast()) })?;
        // SAFETY: the name ends with a NUL; the output is a local.
        let function = ask(|out| unsafe { driver.cuModuleGetFunction(out, module, c"katydid_hash".as_ptr()) })?;
        Ok(Self { function, seed })
    }

    /// The seed of the hash, drawn once a worker.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Has the driver load the kernel on the device, by a run over an empty list.
    ///
    /// # Errors
    ///
    /// The driver's code.
    pub(crate) fn warm(&self, driver: &Driver, stream: CUstream) -> Result<(), CUresult> {
        self.launch(driver, stream, 0, 0, 1)?;
        // SAFETY: takes a driver handle.
        unsafe { driver.cuStreamSynchronize(stream) }.ok()
    }

    /// Hashes `count` chunks, listed in device memory at `list`, into device memory at `out`, which holds zeros.
    ///
    /// # Errors
    ///
    /// The driver's code.
    pub(crate) fn launch(
        &self,
        driver: &Driver,
        stream: CUstream,
        list: u64,
        out: u64,
        count: usize,
    ) -> Result<(), CUresult> {
        let blocks = u32::try_from(count.min(MAX_BLOCKS)).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        let arguments = [list, out, self.seed];
        let mut argument_pointers: [*mut c_void; 3] =
            std::array::from_fn(|at| (&raw const arguments[at]).cast_mut().cast());
        let (function, none) = (self.function, std::ptr::null_mut());
        // SAFETY: the three parameters are 64-bit words that outlive the call; `list` and `out` have `count` records by the
        // caller's promise, and the kernel only reads memory in the list.
        unsafe {
            driver.cuLaunchKernel(
                function,
                blocks,
                1,
                1,
                HASH_BLOCK_THREADS,
                1,
                1,
                0,
                stream,
                argument_pointers.as_mut_ptr(),
                none,
            )
        }
        .ok()
    }

    /// Returns the kernel's hash of these bytes, a multiple of [`GRAIN_BYTES`].
    pub(crate) fn of_bytes(&self, bytes: &[u8]) -> Hash {
        hash_on_host(bytes, self.seed)
    }
}

/// Returns the list of chunks in the kernel's format.
pub(crate) fn list(chunks: impl Iterator<Item = (u64, u64)>) -> Vec<u8> {
    chunks.flat_map(|(address, size)| [address.to_le_bytes(), size.to_le_bytes()]).flatten().collect()
}

/// Returns the hashes in the kernel's records.
pub(crate) fn hashes(records: &[u8]) -> Vec<Hash> {
    let word = |record: &[u8; HASH_RECORD_BYTES], at: usize| {
        let bytes: [u8; 4] = std::array::from_fn(|byte| record[4 * at + byte]);
        u32::from_le_bytes(bytes)
    };
    let (records, _) = records.as_chunks::<HASH_RECORD_BYTES>();
    records.iter().map(|record| std::array::from_fn(|at| word(record, at))).collect()
}

/// The words at one position of a grain, of all threads.
type Row = [u32; HASH_BLOCK_THREADS as usize];

/// The hash of the kernel, in host code. Threads of the kernel are lanes here: each step is one loop over all of them, which
/// compilers turn into vector instructions.
fn hash_on_host(bytes: &[u8], seed: u64) -> Hash {
    const STRIPE: usize = HASH_BLOCK_THREADS as usize * GRAIN_BYTES as usize;
    let mut state = begin(seed);
    let (whole, tail) = bytes.as_chunks::<STRIPE>();
    for stripe in whole {
        absorb(&mut state, &rows_of(stripe), HASH_BLOCK_THREADS as usize);
    }
    if !tail.is_empty() {
        let mut stripe = [0; STRIPE];
        stripe[..tail.len()].copy_from_slice(tail);
        absorb(&mut state, &rows_of(&stripe), tail.len() / GRAIN_BYTES as usize);
    }
    finalize(&mut state);
    state.map(|row| row.iter().fold(0, |sum, word| sum ^ word))
}

/// Returns the initial state of the threads.
fn begin(seed: u64) -> [Row; 4] {
    let (low, high) = (seed as u32, (seed >> 32) as u32);
    let first: Row = std::array::from_fn(|thread| (thread as u32).wrapping_mul(0x9e37_79b1).wrapping_add(low));
    let third: Row = std::array::from_fn(|thread| (thread as u32).wrapping_mul(0x85eb_ca77).wrapping_add(high));
    [first, first.map(|word| word ^ high), third, third.map(|word| word ^ 0xc2b2_ae3d)]
}

/// Returns the words of a stripe, one grain for each thread, sorted by their position in it.
fn rows_of(stripe: &[u8; HASH_BLOCK_THREADS as usize * GRAIN_BYTES as usize]) -> [Row; 4] {
    let (grains, _) = stripe.as_chunks::<{ GRAIN_BYTES as usize }>();
    let word = |thread: usize, at: usize| u32::from_le_bytes(std::array::from_fn(|byte| grains[thread][4 * at + byte]));
    std::array::from_fn(|at| std::array::from_fn(|thread| word(thread, at)))
}

/// Updates the state of the first `threads` threads with their words.
fn absorb(state: &mut [Row; 4], rows: &[Row; 4], threads: usize) {
    const FACTORS: Hash = [0x239b_961b, 0xab0e_9789, 0x38b3_4ae5, 0xa1e3_8b93];
    const ADDED: Hash = [0x561c_cd1b, 0x0bca_a747, 0x96cd_1c35, 0x32ac_3b17];
    const ROTATIONS: [(u32, u32); 4] = [(15, 19), (16, 17), (17, 15), (18, 13)];
    for at in 0..4 {
        let next = (at + 1) % 4;
        for thread in 0..threads.min(HASH_BLOCK_THREADS as usize) {
            let word =
                rows[at][thread].wrapping_mul(FACTORS[at]).rotate_left(ROTATIONS[at].0).wrapping_mul(FACTORS[next]);
            let turned = (state[at][thread] ^ word).rotate_left(ROTATIONS[at].1).wrapping_add(state[next][thread]);
            state[at][thread] = turned.wrapping_mul(5).wrapping_add(ADDED[at]);
        }
    }
}

fn finalize(state: &mut [Row; 4]) {
    const STEPS: [(u32, u32); 4] = [(16, 0x85eb_ca6b), (13, 0xc2b2_ae35), (16, 0x27d4_eb2f), (15, 0x1656_67b1)];
    for at in (0..4).cycle().take(8) {
        let (shift, factor) = STEPS[at];
        let next = (at + 1) % 4;
        state[at] = state[at].map(|word| word ^ word >> shift);
        let (row, other) = (state[at], &mut state[next]);
        other.iter_mut().zip(row).for_each(|(word, by)| *word = by.wrapping_mul(factor).wrapping_add(*word));
    }
}

/// Names of chunks by the device's hash and their length.
pub(super) type Names = HashMap<(Hash, u64), ChunkId>;

/// Names of contents that an image has.
#[derive(Debug, Clone, Default)]
pub(super) struct KnownContents(Arc<Mutex<Names>>);

impl KnownContents {
    pub(super) fn lock(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::soft;

    const SEED: u64 = 0x0123_4567_89ab_cdef;

    /// Allocates device memory with the bytes.
    fn device(driver: &Driver, bytes: &[u8]) -> u64 {
        // SAFETY: the output is a local.
        let at: u64 = ask(|out| unsafe { driver.cuMemAlloc_v2(out, bytes.len()) }).unwrap();
        // SAFETY: as many bytes as were allocated and as there are.
        unsafe { driver.cuMemcpyHtoD_v2(at, bytes.as_ptr().cast(), bytes.len()) }.ok().unwrap();
        at
    }

    fn hashed(driver: &Driver, chunks: &[(u64, u64)]) -> Vec<Hash> {
        let kernel = HashKernel::load(driver, SEED).unwrap();
        let (list, mut records) =
            (device(driver, &list(chunks.iter().copied())), vec![0; chunks.len() * HASH_RECORD_BYTES]);
        let out = device(driver, &records);
        kernel.launch(driver, CUstream::NULL, list, out, chunks.len()).unwrap();
        // SAFETY: as many bytes as were allocated and as there are.
        unsafe { driver.cuMemcpyDtoH_v2(records.as_mut_ptr().cast(), out, records.len()) }.ok().unwrap();
        for at in [list, out] {
            // SAFETY: allocated above, and the copy has waited for the kernel.
            unsafe { driver.cuMemFree_v2(at) }.ok().unwrap();
        }
        hashes(&records)
    }

    fn noise(length: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        (0..length).map(|_| next()).collect()
    }

    #[test]
    fn the_kernel_and_the_host_agree_on_chunks_of_every_kind() {
        let (driver, _guard) = soft::driver();
        let bytes = noise(40_000);
        let at = device(&driver, &bytes);
        let argument_pointers = [(0, 16), (16, 4080), (0, 4096), (4096, 4112), (32, 20_000), (8192, 0), (0, 40_000)];
        let chunks: Vec<_> = argument_pointers.iter().map(|(from, size)| (at + from, *size)).collect();
        let expected: Vec<_> = argument_pointers
            .iter()
            .map(|(from, size)| hash_on_host(&bytes[*from as usize..][..*size as usize], SEED))
            .collect();
        assert_eq!(hashed(&driver, &chunks), expected);
    }

    #[test]
    fn every_bit_counts_and_so_does_its_place() {
        let bytes = noise(3 * 4096);
        let whole = hash_on_host(&bytes, SEED);
        for bit in (0..bytes.len() * 8).step_by(997) {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            let differing: u32 = (0..4).map(|at| (whole[at] ^ hash_on_host(&other, SEED)[at]).count_ones()).sum();
            assert!((20..110).contains(&differing), "bit {bit} changed {differing} bits of the hash");
        }
        for (one, two) in [(0, 4096), (0, 16), (0, 4), (4096, 8192)] {
            let mut other = bytes.clone();
            (0..4).for_each(|at| other.swap(one + at, two + at));
            assert_ne!(hash_on_host(&other, SEED), whole, "words at {one} and {two} changed places");
        }
        assert_ne!(hash_on_host(&bytes, SEED + 1), whole);
        assert_ne!(hash_on_host(&bytes[..8192], SEED), hash_on_host(&[&bytes[..8192], &[0; 16]].concat(), SEED));
    }
}
