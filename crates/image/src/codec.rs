//! Encodings of a chunk's bytes: none for zeros, uncompressed, or compressed if that saves space.
//!
//! A sample is compressed first, so an incompressible chunk costs hardly more than its hash.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use zstd::bulk::{Compressor, Decompressor};

use crate::format::{Codec, MAX_CHUNK_BYTES};
use crate::id::ChunkId;

/// Whether chunks are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Never: as fast as memory.
    None,
    /// With this level of zstd, if it saves space.
    Zstd(i32),
}

impl Default for Compression {
    /// Returns zstd's fastest ordinary level.
    fn default() -> Self {
        Self::Zstd(1)
    }
}

/// Chunks below this length are compressed without a sample.
const MIN_SAMPLED_BYTES: usize = 256 << 10;
/// Bytes of one piece of a sample.
const SAMPLE_PIECE_BYTES: usize = 8 << 10;

/// Compresses for many threads: each borrows a set of buffers.
#[derive(Debug)]
pub(crate) struct Packer {
    compression: Compression,
    idle: Mutex<Vec<CompressorState>>,
}

/// A compressor and its buffer.
pub(crate) struct CompressorState {
    compressor: Compressor<'static>,
    buffer: Vec<u8>,
}

impl std::fmt::Debug for CompressorState {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "CompressorState({})", self.buffer.capacity())
    }
}

/// A chunk in the form in which it will be stored.
pub(crate) struct EncodedChunk<'a> {
    pub(crate) codec: Codec,
    raw: &'a [u8],
    compressor_state: Option<CompressorState>,
}

impl EncodedChunk<'_> {
    /// Returns the bytes for the pack.
    pub(crate) fn bytes(&self) -> &[u8] {
        match (&self.compressor_state, self.codec) {
            (Some(compressor_state), _) => &compressor_state.buffer,
            (None, Codec::Zero) => &[],
            (None, _) => self.raw,
        }
    }
}

impl Packer {
    /// Makes a packer. Compressors are created on first use, one for each thread that puts at once.
    pub(crate) fn new(compression: Compression) -> Self {
        Self { compression, idle: Mutex::default() }
    }

    /// Chooses the encoding of a chunk; the result goes to [`Packer::finish`].
    pub(crate) fn pack<'a>(&self, raw: &'a [u8], zero: bool) -> EncodedChunk<'a> {
        if zero {
            return EncodedChunk { codec: Codec::Zero, raw, compressor_state: None };
        }
        let Some(mut compressor_state) = self.compressor_state() else {
            return EncodedChunk { codec: Codec::Raw, raw, compressor_state: None };
        };
        if compressor_state.shrinks(raw) {
            return EncodedChunk { codec: Codec::Zstd, raw, compressor_state: Some(compressor_state) };
        }
        self.give_back(compressor_state);
        EncodedChunk { codec: Codec::Raw, raw, compressor_state: None }
    }

    /// Releases the buffers after the bytes have been written.
    pub(crate) fn finish(&self, stored: EncodedChunk<'_>) {
        stored.compressor_state.into_iter().for_each(|compressor_state| self.give_back(compressor_state));
    }

    /// Keeps the compressor for the next chunk: creating one costs more than a small chunk.
    fn give_back(&self, compressor_state: CompressorState) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(compressor_state);
    }

    /// Returns a compressor; `None` if chunks are not compressed.
    fn compressor_state(&self) -> Option<CompressorState> {
        let Compression::Zstd(level) = self.compression else { return None };
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // Without memory for a compressor, chunks are stored uncompressed.
        idle.or_else(|| {
            Compressor::new(level).ok().map(|compressor| CompressorState { compressor, buffer: Vec::new() })
        })
    }
}

impl CompressorState {
    /// Compresses; returns false if less than an eighth is saved, since decompression would then cost more than it is worth.
    fn shrinks(&mut self, raw: &[u8]) -> bool {
        let bound = |length: usize| length - length / 8;
        if raw.len() >= MIN_SAMPLED_BYTES {
            let sample = self.sample(raw);
            if sample >= bound(3 * SAMPLE_PIECE_BYTES) {
                return false;
            }
        }
        let compressed = self.compress(raw);
        compressed > 0 && compressed < bound(raw.len())
    }

    /// Returns the compressed length of pieces from start, middle and end.
    fn sample(&mut self, raw: &[u8]) -> usize {
        let starts = [0, (raw.len() - SAMPLE_PIECE_BYTES) / 2, raw.len() - SAMPLE_PIECE_BYTES];
        starts.iter().map(|&start| self.compress(&raw[start..start + SAMPLE_PIECE_BYTES])).sum()
    }

    /// Returns the compressed length in the buffer; longer than any chunk if the compressor fails.
    fn compress(&mut self, raw: &[u8]) -> usize {
        self.buffer.clear();
        self.buffer.reserve(zstd::zstd_safe::compress_bound(raw.len()));
        self.compressor.compress_to_buffer(raw, &mut self.buffer).unwrap_or(2 * MAX_CHUNK_BYTES)
    }
}

/// Returns whether every byte is zero. It stops at the first other block, so it costs next to nothing for other chunks.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let (blocks, rest) = bytes.as_chunks::<64>();
    blocks.iter().all(|block| *block == [0; 64]) && rest.iter().all(|byte| *byte == 0)
}

/// Returns the id of zeros from a cache: most of the memory that programs reserve was never written.
pub(crate) fn zero_id(length: usize) -> ChunkId {
    static KNOWN: Mutex<BTreeMap<usize, ChunkId>> = Mutex::new(BTreeMap::new());
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).get(&length).copied();
    known.unwrap_or_else(|| {
        let id = ChunkId::of(&vec![0; length]);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        // Nearly all chunks have one length; the odd ends of regions need not all be cached.
        if known.len() < 64 {
            known.insert(length, id);
        }
        id
    })
}

/// Decompresses into exactly `raw`; returns false if the bytes do not match.
pub(crate) fn decompress(stored: &[u8], raw: &mut [u8]) -> bool {
    let Ok(mut decompressor) = Decompressor::new() else { return false };
    decompressor.decompress_to_buffer(stored, raw).is_ok_and(|length| length == raw.len())
}

/// Returns the first bytes of the hash of the stored bytes.
pub(crate) fn check_of(stored: &[u8]) -> [u8; 8] {
    let hash = blake3::hash(stored);
    let mut check = [0; 8];
    check.copy_from_slice(&hash.as_bytes()[..8]);
    check
}
