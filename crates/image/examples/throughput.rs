//! How fast the store writes and reads: `cargo run --release -p katydid-image --example throughput -- [FOLDER] [MIB]`.
//!
//! Every thread puts chunks of 2 MiB: noise, text, zeros, and the noise again. It does so uncompressed, uncompressed with
//! preallocation, and compressed; at the end all is read.

use std::env;
use std::path::PathBuf;
use std::time::Instant;

use katydid_image::{
    CheckpointChoice, ChunkId, Compression, Image, ImageSource, Manifest, Options, Region, Result, Session, Sink,
    Writer,
};

const THROUGHPUT_CHUNK_BYTES: usize = 2 << 20;

fn main() -> Result<()> {
    let mut arguments = env::args_os().skip(1);
    let folder = PathBuf::from(arguments.next().unwrap_or_else(|| "/dev/shm/katydid-throughput".into()));
    let mib: usize = arguments.next().and_then(|text| text.to_str()?.parse().ok()).unwrap_or(2048);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let cases = [
        ("raw", Compression::None, false),
        ("roomy", Compression::None, true),
        ("zstd", Compression::default(), false),
    ];
    for (title, compression, roomy) in cases {
        let image = Image::create_or_open(&folder)?;
        let mut noise = noise(mib << 20);
        let text: Vec<u8> =
            b"a line of a log, as programs write them; ".iter().copied().cycle().take(mib << 20).collect();
        let writer = image.begin(Options { compression, ..Options::default() })?;
        if roomy {
            timed(title, "make room", threads, mib, || writer.preallocate((mib << 20) as u64))?;
        }
        let chunks = timed(title, "put noise", threads, mib, || put(&writer, &mut noise, threads))?;
        timed(title, "put noise that is known", threads, mib, || put(&writer, &mut noise, threads))?;
        let mut numbered = text.clone();
        numbered.chunks_mut(4096).enumerate().for_each(|(at, page)| page[..8].copy_from_slice(&at.to_le_bytes()));
        timed(title, "put text", threads, mib, || put(&writer, &mut numbered, threads))?;
        let mut zeros = vec![0; mib << 20];
        timed(title, "put zeros", threads, mib, || put(&writer, &mut zeros, threads))?;
        let region = Region {
            bytes: (mib << 20) as u64,
            chunk_bytes: THROUGHPUT_CHUNK_BYTES as u32,
            chunks,
            ..Region::default()
        };
        let session = Session { name: "0".into(), regions: vec![region], ..Session::default() };
        let manifest = Manifest { sessions: vec![session], ..Manifest::default() };
        timed(title, "commit", threads, 0, || writer.commit(manifest).map(drop))?;
        let reader = timed(title, "open", threads, 0, || image.checkpoint(CheckpointChoice::Latest))?;
        timed(title, "read noise", threads, mib, || read(&reader, &mut noise, threads))?;
        drop(reader);
        let _ = std::fs::remove_dir_all(&folder);
    }
    Ok(())
}

fn timed<T>(title: &str, what: &str, threads: usize, mib: usize, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let began = Instant::now();
    let done = work()?;
    let seconds = began.elapsed().as_secs_f64();
    let rate = mib as f64 / 1024.0 * 1.073_741_824 / seconds;
    println!("{title:>5} {what:<24} {:8.1} ms {rate:7.2} GB/s on {threads} threads", seconds * 1e3);
    Ok(done)
}

/// Returns bytes that differ everywhere (splitmix64).
fn noise(length: usize) -> Vec<u8> {
    let word = |index: usize| {
        let mut mixed = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).to_le_bytes()
    };
    (0..length / 8).flat_map(word).collect()
}

/// Puts all chunks; each thread has its share.
fn put(writer: &Writer, memory: &mut [u8], threads: usize) -> Result<Vec<ChunkId>> {
    let share = memory.len().div_ceil(threads).next_multiple_of(THROUGHPUT_CHUNK_BYTES);
    std::thread::scope(|scope| {
        let put = |part: &[u8]| {
            part.chunks(THROUGHPUT_CHUNK_BYTES).map(|chunk| writer.put(chunk)).collect::<Result<Vec<_>>>()
        };
        let running: Vec<_> = memory.chunks(share).map(|part| scope.spawn(move || put(part))).collect();
        let mut chunks = Vec::new();
        for thread in running {
            chunks.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(chunks)
    })
}

fn read(reader: &katydid_image::CheckpointReader, memory: &mut [u8], threads: usize) -> Result<()> {
    let chunks = &reader.manifest().sessions[0].regions[0].chunks;
    let share = chunks.len().div_ceil(threads);
    std::thread::scope(|scope| {
        let read = |ids: &[ChunkId], part: &mut [u8]| {
            ids.iter().zip(part.chunks_mut(THROUGHPUT_CHUNK_BYTES)).try_for_each(|(id, chunk)| reader.read(id, chunk))
        };
        let parts = chunks.chunks(share).zip(memory.chunks_mut(share * THROUGHPUT_CHUNK_BYTES));
        let running: Vec<_> = parts.map(|(ids, part)| scope.spawn(move || read(ids, part))).collect();
        running
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}
