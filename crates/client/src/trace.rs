//! The trace file: one record a call, written so that a killed program still leaves usable data.
//!
//! The file is mapped shared and records are stored straight into it: whatever happens to the process, the kernel keeps what was
//! stored. The file grows by whole chunks of zeros, so a reader stops at the first run of empty records. A record is empty until
//! its last field, `function`, is stored. All numbers are little endian.
//!
//! Details of a call follow in further records, which have the thread and start of the call.
//!
//! | offset | bytes | header (64 bytes)                                                    |
//! |-------:|------:|----------------------------------------------------------------------|
//! |      0 |     8 | magic `KDTRACE4`                                                     |
//! |      8 |     4 | process id                                                           |
//! |     12 |     4 | bytes of one record, 32                                              |
//! |     16 |     8 | start of the trace, nanoseconds since 1970                           |
//! |     24 |     8 | start of the trace, nanoseconds of the monotonic clock               |
//! |     32 |    24 | program name, padded with zeros                                      |
//! |     56 |     8 | calls that found no room                                             |
//!
//! | offset | bytes | record (32 bytes)                                                    |
//! |-------:|------:|----------------------------------------------------------------------|
//! |      0 |     2 | function id + 1 (0: empty); ids are those of `cuda_sys::Function`    |
//! |      2 |     2 | zero                                                                 |
//! |      4 |     4 | kernel thread id                                                     |
//! |      8 |     8 | start, nanoseconds of the monotonic clock                            |
//! |     16 |     8 | duration, nanoseconds                                                |
//! |     24 |     4 | result, a `CUresult`                                                 |
//! |     28 |     4 | round trips to the worker                                            |
//!
//! | first field | further records: bytes 2 to 31                                           |
//! |------------:|-------------------------------------------------------------------------|
//! | `0xff00`    | 4: thread, 8: start of the call, 16: stream's handle or all ones, 24: bytes |
//! | `0xff01`    | 4, 8: as above, 16: number of the kernel's name, 20: bytes of shared memory |
//! | `0xff02`    | 4, 8: as above, 16: grid x, 20 and 22: y and z, 24 to 28: block          |
//! | `0xff03`    | 2: which piece, 4: number of the name, 8: 24 bytes of it                 |
//! | `0xff04`    | 4, 8: as above, 16: start on the GPU by the monotonic clock, 24: duration |
//! | `0xff05`    | 4, 8: as above, 16: number of the name looked up, 20: version, 24: 1 if it was found |
//!
//! A process that finds the file in use (a child of the traced program) writes to `<file>.<pid>` beside it.
#![expect(unsafe_code, reason = "records are stored into a shared file mapping")]

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU16, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};
use rustix::time::{ClockId, clock_gettime};

const TRACE_MAGIC: [u8; 8] = *b"KDTRACE4";
const TRACE_HEADER_BYTES: usize = 64;
/// Header offsets of the program's name, and of the number of calls left out.
const PROGRAM_NAME_OFFSET: usize = 32;
const LEFT_OUT_OFFSET: usize = 56;
const RECORD_BYTES: usize = 32;
/// Bytes of one mapped piece of the file.
const TRACE_CHUNK_BYTES: usize = 1 << 20;
/// Most chunks: 4 GiB, 134 million calls. Later calls are only counted.
const MAX_TRACE_CHUNKS: usize = 4096;
const RECORDS_PER_CHUNK: u64 = (TRACE_CHUNK_BYTES / RECORD_BYTES) as u64;
/// Record numbers from here on belong to a program that is about to end.
const AFTER_THE_END: u64 = u64::MAX / 2;
/// The header takes the place of the first records.
const FIRST_RECORD: u64 = (TRACE_HEADER_BYTES / RECORD_BYTES) as u64;

/// A call of the program, with its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedCall {
    /// Function that was called: `cuda_sys::Function as u16`.
    pub function: u16,
    /// Kernel thread id of the caller.
    pub thread: u32,
    /// Nanoseconds of the monotonic clock at entry.
    pub start: u64,
    /// Nanoseconds inside the call.
    pub duration: u64,
    /// `CUresult` that the call returned.
    pub result: u32,
    /// Replies of the worker that the calling thread waited for meanwhile.
    pub round_trips: u32,
}

/// Kinds of records other than calls, as in their first field.
mod kind {
    pub(super) const FIRST: u16 = 0xff00;
    pub(super) const WORK: u16 = 0xff00;
    pub(super) const KERNEL: u16 = 0xff01;
    pub(super) const SHAPE: u16 = 0xff02;
    pub(super) const NAME: u16 = 0xff03;
    pub(super) const GPU: u16 = 0xff04;
    pub(super) const LOOKUP: u16 = 0xff05;
}

/// Means no stream.
const NO_STREAM: u64 = u64::MAX;

/// Bytes of a name in one record, and most pieces of a name.
const NAME_PIECE_BYTES: usize = 24;
const MAX_NAME_PIECES: usize = 128;

/// Identifies a call in its records: thread and start.
pub type CallId = (u32, u64);

/// Arguments of a call that a trace shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// Handle of its stream, if it has one.
    pub stream: Option<u64>,
    /// Bytes that it copies, fills or allocates.
    pub bytes: Option<u64>,
    /// Name of the kernel that it launches.
    pub kernel: Option<String>,
    /// Blocks of the grid, and threads of a block.
    pub shape: Option<([u32; 3], [u32; 3])>,
    /// Bytes of shared memory that the launch requests.
    pub shared: u32,
    /// Start of its work on the GPU, by the monotonic clock, and its duration, in nanoseconds.
    pub gpu: Option<(u64, u64)>,
    /// Name and version that the call looks up (`cuGetProcAddress`).
    pub lookup: Option<Lookup>,
}

/// A look-up by `cuGetProcAddress` or `cuGetExportTable`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lookup {
    /// Name of a function, or `table` with the name and id of a private table.
    pub name: String,
    /// CUDA version of the requested function, as 1000 times the major and 10 times the minor version; 0 for a table.
    pub version: u32,
    /// Whether the driver has it.
    pub is_found: bool,
}

/// Returns nanoseconds of the monotonic clock.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Appends calls to a trace file. All threads share it, without a lock except when the file grows.
#[derive(Debug)]
pub struct TraceWriter {
    file: File,
    next: AtomicU64,
    chunks: Vec<AtomicPtr<u8>>,
    growing: Mutex<()>,
    /// Names in the file, with their numbers.
    names: Mutex<HashMap<Vec<u8>, u32>>,
}

impl TraceWriter {
    /// Creates the file, or `<file>.<pid>` when another process has it already.
    pub fn create(path: &Path, program: &str) -> io::Result<Self> {
        let pid = std::process::id();
        let file = match create_new(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let mut other = path.as_os_str().to_owned();
                other.push(format!(".{pid}"));
                create_new(Path::new(&other))?
            }
            other => other?,
        };
        let chunks = (0..MAX_TRACE_CHUNKS).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
        let writer =
            Self { file, next: AtomicU64::new(FIRST_RECORD), chunks, growing: Mutex::new(()), names: Mutex::default() };
        let chunk = writer.chunk(0).ok_or_else(|| io::Error::other("the trace file cannot be mapped"))?;
        let header = header_bytes(pid, program);
        // SAFETY: `chunk` is a mapping of `TRACE_CHUNK_BYTES`, at least `TRACE_HEADER_BYTES`, and no other thread has the writer
        // yet.
        unsafe { ptr::copy_nonoverlapping(header.as_ptr(), chunk, TRACE_HEADER_BYTES) };
        Ok(writer)
    }

    /// Stores one call. It never fails: a call without room is only counted.
    pub fn record(&self, call: &TracedCall) {
        let mut bytes = [0u8; RECORD_BYTES];
        bytes[4..8].copy_from_slice(&call.thread.to_le_bytes());
        bytes[8..16].copy_from_slice(&call.start.to_le_bytes());
        bytes[16..24].copy_from_slice(&call.duration.to_le_bytes());
        bytes[24..28].copy_from_slice(&call.result.to_le_bytes());
        bytes[28..32].copy_from_slice(&call.round_trips.to_le_bytes());
        self.store(call.function + 1, &bytes);
    }

    /// Stores the stream and the bytes of a call; 0 bytes if it has none.
    pub fn work(&self, of: CallId, stream: Option<u64>, bytes: u64) {
        let mut record = belonging(of);
        record[16..24].copy_from_slice(&stream.unwrap_or(NO_STREAM).to_le_bytes());
        record[24..32].copy_from_slice(&bytes.to_le_bytes());
        self.store(kind::WORK, &record);
    }

    /// Stores the kernel of a launch.
    pub fn kernel(&self, of: CallId, name: &[u8], shared: u32) {
        let number = self.number(name);
        let mut record = belonging(of);
        record[16..20].copy_from_slice(&number.to_le_bytes());
        record[20..24].copy_from_slice(&shared.to_le_bytes());
        self.store(kind::KERNEL, &record);
    }

    /// Stores the geometry of a launch that the driver has accepted.
    pub fn shape(&self, of: CallId, grid: [u32; 3], block: [u32; 3]) {
        let mut record = belonging(of);
        record[16..20].copy_from_slice(&grid[0].to_le_bytes());
        for (at, side) in [grid[1], grid[2], block[0], block[1], block[2]].into_iter().enumerate() {
            let side = u16::try_from(side).unwrap_or(u16::MAX);
            record[20 + 2 * at..22 + 2 * at].copy_from_slice(&side.to_le_bytes());
        }
        self.store(kind::SHAPE, &record);
    }

    /// Stores when the work of a call ran on the GPU.
    pub fn gpu(&self, of: CallId, start: u64, duration: u64) {
        let mut record = belonging(of);
        record[16..24].copy_from_slice(&start.to_le_bytes());
        record[24..32].copy_from_slice(&duration.to_le_bytes());
        self.store(kind::GPU, &record);
    }

    /// Stores what a call looks up in the driver.
    pub fn lookup(&self, of: CallId, lookup: &Lookup) {
        let number = self.number(lookup.name.as_bytes());
        let mut record = belonging(of);
        record[16..20].copy_from_slice(&number.to_le_bytes());
        record[20..24].copy_from_slice(&lookup.version.to_le_bytes());
        record[24..28].copy_from_slice(&u32::from(lookup.is_found).to_le_bytes());
        self.store(kind::LOOKUP, &record);
    }

    /// Returns the number of a name, and stores the name the first time.
    fn number(&self, name: &[u8]) -> u32 {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = names.get(name) {
            return *number;
        }
        let number = names.len() as u32;
        names.insert(name.to_owned(), number);
        for (at, piece) in name.chunks(NAME_PIECE_BYTES).take(MAX_NAME_PIECES).enumerate() {
            let mut record = [0u8; RECORD_BYTES];
            record[2..4].copy_from_slice(&(at as u16).to_le_bytes());
            record[4..8].copy_from_slice(&number.to_le_bytes());
            record[8..8 + piece.len()].copy_from_slice(piece);
            self.store(kind::NAME, &record);
        }
        number
    }

    /// Stores a record whose first two bytes are `first`.
    fn store(&self, first: u16, bytes: &[u8; RECORD_BYTES]) {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let Some(chunk) = self.chunk((index / RECORDS_PER_CHUNK) as usize) else {
            if first < kind::FIRST && index < AFTER_THE_END {
                self.leave_out();
            }
            return;
        };
        // SAFETY: `chunk` maps `TRACE_CHUNK_BYTES` and the offset is that of a whole record inside it; `fetch_add` gave this
        // record to this thread alone. Records are 32-byte aligned, so the u16 at the start is aligned.
        unsafe {
            let record = chunk.add((index % RECORDS_PER_CHUNK) as usize * RECORD_BYTES);
            ptr::copy_nonoverlapping(bytes.as_ptr().add(2), record.add(2), RECORD_BYTES - 2);
            AtomicU16::from_ptr(record.cast()).store(first.to_le(), Ordering::Release);
        }
    }

    /// Counts a call without room.
    fn leave_out(&self) {
        let Some(chunk) = self.chunk(0) else { return };
        // SAFETY: the first chunk maps more bytes than the header has, and this aligned u64 in it is changed only here, by one
        // operation.
        unsafe { AtomicU64::from_ptr(chunk.add(LEFT_OUT_OFFSET).cast()) }.fetch_add(1, Ordering::Relaxed);
    }

    /// Truncates the zeros at the end, for the exit of the program. Calls recorded afterwards are lost.
    pub fn finish(&self) {
        let records = self.next.swap(AFTER_THE_END, Ordering::Relaxed);
        // Another thread that maps a chunk now needs the length, and in a child of a fork may never release the lock.
        let Ok(_growing) = self.growing.try_lock() else { return };
        // Calls without room have numbers as well.
        let length = records.saturating_mul(RECORD_BYTES as u64).min(self.mapped_end());
        // If this fails, the file is merely longer than necessary.
        let _ = self.file.set_len(length);
    }

    /// Returns the bytes of the file up to the end of the last mapped chunk.
    fn mapped_end(&self) -> u64 {
        let last = self.chunks.iter().rposition(|chunk| !chunk.load(Ordering::Acquire).is_null());
        last.map_or(0, |last| ((last + 1) * TRACE_CHUNK_BYTES) as u64)
    }

    fn chunk(&self, number: usize) -> Option<*mut u8> {
        let slot = self.chunks.get(number)?;
        let mapped = slot.load(Ordering::Acquire);
        if mapped.is_null() { self.grow(number) } else { Some(mapped) }
    }

    /// Maps one more chunk. Drops the pages of an older one, whose records are in the file by now.
    #[cold]
    fn grow(&self, number: usize) -> Option<*mut u8> {
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = self.chunks.get(number)?;
        let mapped = slot.load(Ordering::Acquire);
        if !mapped.is_null() {
            return Some(mapped);
        }
        let end = ((number + 1) * TRACE_CHUNK_BYTES) as u64;
        let old_length = self.file.metadata().ok()?.len();
        if old_length < end {
            // Allocates blocks: a store into a hole for which the file system has no room would end the program.
            match fallocate(&self.file, FallocateFlags::empty(), old_length, end - old_length) {
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.file.set_len(end).ok()?,
                allocated => allocated.ok()?,
            }
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice; the file was just made long enough.
        let fresh = unsafe {
            mmap(
                ptr::null_mut::<c_void>(),
                TRACE_CHUNK_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &self.file,
                (number * TRACE_CHUNK_BYTES) as u64,
            )
        }
        .ok()?
        .cast::<u8>();
        slot.store(fresh, Ordering::Release);
        if let Some(old) = number.checked_sub(4).map(|old| self.chunks[old].load(Ordering::Acquire)) {
            // SAFETY: the writer's own shared file mapping: dropping its pages loses nothing, later stores fault them back.
            let _ = unsafe { madvise(old.cast(), TRACE_CHUNK_BYTES, Advice::LinuxDontNeed) };
        }
        Some(fresh)
    }
}

/// Returns a record with thread and start of a call.
fn belonging((thread, start): CallId) -> [u8; RECORD_BYTES] {
    let mut record = [0u8; RECORD_BYTES];
    record[4..8].copy_from_slice(&thread.to_le_bytes());
    record[8..16].copy_from_slice(&start.to_le_bytes());
    record
}

fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

fn header_bytes(pid: u32, program: &str) -> [u8; TRACE_HEADER_BYTES] {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let mut bytes = [0u8; TRACE_HEADER_BYTES];
    bytes[..8].copy_from_slice(&TRACE_MAGIC);
    bytes[8..12].copy_from_slice(&pid.to_le_bytes());
    bytes[12..16].copy_from_slice(&(RECORD_BYTES as u32).to_le_bytes());
    bytes[16..24].copy_from_slice(&wall.to_le_bytes());
    bytes[24..32].copy_from_slice(&now().to_le_bytes());
    let name = &program.as_bytes()[..program.len().min(LEFT_OUT_OFFSET - PROGRAM_NAME_OFFSET)];
    bytes[PROGRAM_NAME_OFFSET..PROGRAM_NAME_OFFSET + name.len()].copy_from_slice(name);
    bytes
}

/// Why a trace file was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The operating system could not read it.
    #[error("{path}: cannot read the trace: {source}")]
    Read {
        /// The file asked for.
        path: PathBuf,
        /// Error that the system returned.
        source: io::Error,
    },
    /// The file system had no room for it.
    #[error(
        "{path}: nothing was recorded: the file system was full; set TMPDIR to a folder with free space, and record it again"
    )]
    Empty {
        /// The file asked for.
        path: PathBuf,
    },
    /// The file has no valid header of a trace.
    #[error("{path}: not a trace of Katydid, or one of another version: record it again")]
    NotATrace {
        /// The file asked for.
        path: PathBuf,
    },
}

/// A trace read back.
#[derive(Debug)]
pub struct Trace {
    /// Process id of the traced program.
    pub pid: u32,
    /// File name of the program.
    pub program: String,
    /// Start of the trace, in nanoseconds since 1970.
    pub wall_start: u64,
    /// Start of the trace, on the monotonic clock that the calls use.
    pub start: u64,
    /// Calls of the process, in the order in which they ended.
    pub calls: Vec<TracedCall>,
    /// Number of further calls, left out because the file could not grow.
    pub left_out: u64,
    /// Further facts about some of them.
    pub details: HashMap<CallId, Detail>,
}

impl Trace {
    /// Reads the trace of a program that ended, still runs, or was killed.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let read_error = |source| TraceError::Read { path: path.to_owned(), source };
        let mut bytes = Vec::new();
        File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(read_error)?;
        if bytes.is_empty() {
            return Err(TraceError::Empty { path: path.to_owned() });
        }
        Self::parse(&bytes).ok_or_else(|| TraceError::NotATrace { path: path.to_owned() })
    }

    /// Parses a trace; none if the bytes are not a trace of this version.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (header, records) = bytes.split_at_checked(TRACE_HEADER_BYTES)?;
        if header[..8] != TRACE_MAGIC || u32_at(header, 12)? as usize != RECORD_BYTES {
            return None;
        }
        let name = header[PROGRAM_NAME_OFFSET..LEFT_OUT_OFFSET].split(|&byte| byte == 0).next().unwrap_or_default();
        Some(Self {
            pid: u32_at(header, 8)?,
            program: String::from_utf8_lossy(name).into_owned(),
            wall_start: u64_at(header, 16)?,
            start: u64_at(header, 24)?,
            calls: records.chunks_exact(RECORD_BYTES).filter_map(call_of).collect(),
            left_out: u64_at(header, LEFT_OUT_OFFSET)?,
            details: details_of(records),
        })
    }
}

/// Returns the first field of a record.
fn first_of(record: &[u8]) -> u16 {
    u16_at(record, 0).unwrap_or(0)
}

/// Collects the records other than calls.
fn details_of(records: &[u8]) -> HashMap<CallId, Detail> {
    let further = || records.chunks_exact(RECORD_BYTES).filter(|record| first_of(record) >= kind::FIRST);
    let mut pieces: BTreeMap<(u32, u16), &[u8]> = BTreeMap::new();
    for record in further().filter(|record| first_of(record) == kind::NAME) {
        let id = (u32_at(record, 4).unwrap_or(0), u16_at(record, 2).unwrap_or(0));
        pieces.insert(id, record.get(8..8 + NAME_PIECE_BYTES).unwrap_or_default());
    }
    let mut names: HashMap<u32, Vec<u8>> = HashMap::new();
    for ((number, _), piece) in pieces {
        let text = piece.split(|&byte| byte == 0).next().unwrap_or_default();
        names.entry(number).or_default().extend_from_slice(text);
    }
    let mut details: HashMap<CallId, Detail> = HashMap::new();
    for record in further() {
        read_detail(record, &names, &mut details);
    }
    details
}

/// Reads one such record; none if it is cut off.
fn read_detail(record: &[u8], names: &HashMap<u32, Vec<u8>>, details: &mut HashMap<CallId, Detail>) -> Option<()> {
    let (word, long) = (|at| u32_at(record, at), |at| u64_at(record, at));
    let short = |at| u16_at(record, at).map(u32::from);
    let first = first_of(record);
    if first == kind::NAME {
        return None;
    }
    let detail = details.entry((word(4)?, long(8)?)).or_default();
    match first {
        kind::WORK => {
            detail.stream = Some(long(16)?).filter(|stream| *stream != NO_STREAM);
            detail.bytes = Some(long(24)?).filter(|bytes| *bytes > 0);
        }
        kind::KERNEL => {
            detail.kernel = names.get(&word(16)?).map(|name| String::from_utf8_lossy(name).into_owned());
            detail.shared = word(20)?;
        }
        kind::LOOKUP => {
            let name = names.get(&word(16)?).map(|name| String::from_utf8_lossy(name).into_owned())?;
            detail.lookup = Some(Lookup { name, version: word(20)?, is_found: word(24)? == 1 });
        }
        kind::SHAPE => {
            detail.shape = Some(([word(16)?, short(20)?, short(22)?], [short(24)?, short(26)?, short(28)?]));
        }
        kind::GPU => detail.gpu = Some((long(16)?, long(24)?)),
        _ => {}
    }
    Some(())
}

fn call_of(record: &[u8]) -> Option<TracedCall> {
    let function = Some(first_of(record)).filter(|first| *first < kind::FIRST)?.checked_sub(1)?;
    Some(TracedCall {
        function,
        thread: u32_at(record, 4)?,
        start: u64_at(record, 8)?,
        duration: u64_at(record, 16)?,
        result: u32_at(record, 24)?,
        round_trips: u32_at(record, 28)?,
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(number: u64) -> TracedCall {
        let (function, result, round_trips) = ((number % 600) as u16, (number % 5) as u32, (number % 3) as u32);
        TracedCall { function, thread: 7, start: number, duration: 3, result, round_trips }
    }

    #[test]
    fn a_trace_file_reads_back_recorded_calls() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        let writer = TraceWriter::create(&path, "prog").unwrap();
        (0..10).for_each(|n| writer.record(&call(n)));
        writer.finish();
        let trace = Trace::read(&path).unwrap();
        assert_eq!((trace.pid, trace.program.as_str()), (std::process::id(), "prog"));
        assert_eq!(trace.calls, (0..10).map(call).collect::<Vec<_>>());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), (TRACE_HEADER_BYTES + 10 * RECORD_BYTES) as u64);
    }

    #[test]
    fn details_of_a_call_are_found_by_its_thread_and_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        let writer = TraceWriter::create(&path, "prog").unwrap();
        let long = "a_kernel_whose_name_is_longer_than_one_record_has_room_for";
        for (start, name) in [(1, long), (2, "short"), (3, long)] {
            writer.record(&call(start));
            writer.kernel((7, start), name.as_bytes(), 64);
        }
        writer.work((7, 1), Some(0xabc), 4096);
        writer.work((7, 2), None, 8);
        writer.shape((7, 1), [70_000, 2, 3], [1024, 1, 1]);
        writer.gpu((7, 1), 500, 30);
        let lookup = Lookup { name: "cuMemAlloc".to_owned(), version: 12_000, is_found: true };
        writer.lookup((7, 2), &lookup);
        writer.finish();
        let trace = Trace::read(&path).unwrap();
        assert_eq!(trace.calls, [1, 2, 3].map(call));
        let expected = Detail {
            stream: Some(0xabc),
            bytes: Some(4096),
            kernel: Some(long.to_owned()),
            shape: Some(([70_000, 2, 3], [1024, 1, 1])),
            shared: 64,
            gpu: Some((500, 30)),
            lookup: None,
        };
        assert_eq!(trace.details[&(7, 1)], expected);
        assert_eq!(trace.details[&(7, 2)].kernel.as_deref(), Some("short"));
        assert_eq!(trace.details[&(7, 2)].lookup, Some(lookup));
        assert_eq!((trace.details[&(7, 2)].stream, trace.details[&(7, 2)].bytes), (None, Some(8)));
        assert_eq!(trace.details[&(7, 3)].kernel.as_deref(), Some(long));
    }

    #[test]
    fn an_unfinished_trace_of_several_chunks_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        let writer = TraceWriter::create(&path, "a program with a name longer than the header holds").unwrap();
        (0..200_000).for_each(|n| writer.record(&call(n)));
        let trace = Trace::read(&path).unwrap();
        assert_eq!(trace.calls.len(), 200_000);
        assert_eq!(trace.calls[199_999], call(199_999));
        assert_eq!(trace.program.len(), LEFT_OUT_OFFSET - PROGRAM_NAME_OFFSET);
    }

    #[test]
    fn a_child_of_the_traced_program_writes_its_own_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        let _first = TraceWriter::create(&path, "one").unwrap();
        let _second = TraceWriter::create(&path, "two").unwrap();
        let beside = folder.path().join(format!("t.{}", std::process::id()));
        assert_eq!(Trace::read(&beside).unwrap().program, "two");
    }

    #[test]
    fn other_files_are_refused() {
        assert!(Trace::parse(b"short").is_none());
        assert!(Trace::parse(&[0; 4096]).is_none());
        assert!(matches!(Trace::read(Path::new("/nonexistent/t")), Err(TraceError::Read { .. })));
    }

    #[test]
    fn calls_beyond_the_capacity_do_not_lengthen_the_file() {
        const LATER_CALLS: u64 = 1_000_000_000;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        let writer = TraceWriter::create(&path, "prog").unwrap();
        writer.record(&call(0));
        let capacity = MAX_TRACE_CHUNKS as u64 * RECORDS_PER_CHUNK;
        writer.next.store(capacity + LATER_CALLS, Ordering::Relaxed);
        writer.record(&call(1));
        writer.finish();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), TRACE_CHUNK_BYTES as u64);
        let trace = Trace::read(&path).unwrap();
        assert_eq!((trace.calls, trace.left_out), (vec![call(0)], 1));
    }

    #[test]
    fn threads_do_not_overwrite_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        let writer = TraceWriter::create(&path, "p").unwrap();
        std::thread::scope(|scope| {
            for t in 0..4 {
                let writer = &writer;
                scope.spawn(move || (0..20_000).for_each(|n| writer.record(&call(t * 20_000 + n))));
            }
        });
        let mut starts: Vec<_> = Trace::read(&path).unwrap().calls.iter().map(|c| c.start).collect();
        starts.sort_unstable();
        assert_eq!(starts, (0..80_000).collect::<Vec<_>>());
    }
}
