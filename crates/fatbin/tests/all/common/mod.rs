//! Builds containers as fatbinary writes them.

#![allow(dead_code, reason = "each test file uses its part")]

/// How an entry is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    Plain,
    Lz4,
    Zstd,
}

/// Builds one entry: header of 64 bytes, then the payload padded to 8.
pub(crate) fn entry(kind: u16, sm: u32, contents: &[u8], stored: Stored) -> Vec<u8> {
    entry_with_flags(kind, sm, contents, stored, 0x11)
}

pub(crate) fn entry_with_flags(kind: u16, sm: u32, contents: &[u8], stored: Stored, flags: u64) -> Vec<u8> {
    let (payload, method) = match stored {
        Stored::Plain => (contents.to_vec(), 0),
        Stored::Lz4 => (lz4_flex::block::compress(contents), 0x2000),
        Stored::Zstd => {
            let level = ruzstd::encoding::CompressionLevel::Fastest;
            (ruzstd::encoding::compress_to_vec(contents, level), 0x8000)
        }
    };
    let compressed = stored != Stored::Plain;
    let mut entry = vec![0; 64];
    let mut put = |at: usize, bytes: &[u8]| entry[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &kind.to_le_bytes());
    put(2, &0x0101_u16.to_le_bytes());
    put(4, &64_u32.to_le_bytes());
    put(8, &(payload.len().next_multiple_of(8) as u64).to_le_bytes());
    put(16, &(if compressed { payload.len() as u32 } else { 0 }).to_le_bytes());
    put(24, &0x0009_0000_u32.to_le_bytes());
    put(28, &sm.to_le_bytes());
    put(40, &(flags | method).to_le_bytes());
    put(56, &(if compressed { contents.len() as u64 } else { 0 }).to_le_bytes());
    entry.extend_from_slice(&payload);
    entry.resize(entry.len().next_multiple_of(8), 0);
    entry
}

/// Builds a container of these entries.
pub(crate) fn container(entries: &[Vec<u8>]) -> Vec<u8> {
    let body = entries.concat();
    let mut container = vec![0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0];
    container.extend_from_slice(&(body.len() as u64).to_le_bytes());
    container.extend_from_slice(&body);
    container
}

/// Returns PTX text with its NUL.
pub(crate) fn ptx(name: &str) -> Vec<u8> {
    format!("//\n.version 9.0\n.target sm_90\n.visible .entry {name}() {{ ret; }}\n\0").into_bytes()
}

pub(crate) const PTX: u16 = 1;
pub(crate) const CUBIN: u16 = 2;
