//! The contents of a checkpoint, as listed in `manifest.json`.
//!
//! The file is `{"format":1,"blake3":"…","content":{…}}`. The hash covers the bytes of the inner object exactly as they stand, so
//! any tool can check it. The file has no secrets: session keys are not part of an image.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::format::{FORMAT_VERSION, FormatFault};
use crate::id::{CheckpointNumber, ChunkId, ImageId};

/// Most bytes of a manifest that a reader accepts: chunk ids of 4 TiB in chunks of 2 MiB, and as much again.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 512 << 20;

/// Contents of `manifest.json`: one checkpoint of a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Manifest {
    /// The image and number; filled in by the commit, as are the next three fields.
    pub identity: Option<Identity>,
    /// Sizes of the checkpoint, in bytes.
    pub sizes: Sizes,
    /// Every file besides the manifest.
    pub files: Vec<FileEntry>,
    /// Packs that held its chunks when it was written; a clean-up may have moved them since.
    pub packs: Vec<PackUse>,
    /// Version of the katydid that wrote it.
    pub written_by: String,
    /// The job that was checkpointed.
    pub job: Job,
    /// Times of the steps of the checkpoint.
    pub times: Times,
    /// Processes of the job, the first one first.
    pub programs: Vec<Program>,
    /// GPU state of the processes.
    pub sessions: Vec<Session>,
    /// The processes themselves; `None` in an image of GPU state only.
    pub criu: Option<Criu>,
    /// Katydid's own libraries that the processes had mapped.
    pub libraries: Vec<Library>,
}

/// Identity of a checkpoint: its image, its number and the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The image it is part of.
    pub image: ImageId,
    /// The checkpoint's number in its image.
    pub number: CheckpointNumber,
    /// The checkpoint before it, whose chunks it shares.
    pub parent: Option<CheckpointNumber>,
}

/// Sizes of a checkpoint in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Memory of all sessions; repeated chunks count each time.
    pub content: u64,
    /// Distinct chunks of sessions and libraries, uncompressed.
    pub chunks: u64,
    /// Distinct chunks as stored.
    pub stored: u64,
    /// Bytes that this checkpoint added to the packs.
    pub added: u64,
    /// All files besides the manifest.
    pub files: u64,
}

/// A file in the folder of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Path below the folder, such as `state-0.bin` or `criu/core-1.img`.
    pub name: String,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// The BLAKE3 hash of its bytes.
    pub blake3: ChunkId,
}

/// The part of a pack that a checkpoint uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackUse {
    /// The number in the pack's name.
    pub number: u32,
    /// Distinct chunks of this checkpoint in it.
    pub chunks: u32,
    /// Compressed bytes of these chunks.
    pub stored: u64,
}

/// The job that was saved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Job {
    /// Name from `katydid run --name`.
    pub name: String,
    /// The machine it ran on.
    pub host: String,
    /// The command and its arguments.
    pub command: Vec<String>,
}

/// Times in milliseconds since 1970; the stop in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Times {
    /// When the checkpoint was requested.
    pub began: u64,
    /// When the image was complete.
    pub written: u64,
    /// How long the programs were paused, in microseconds.
    pub stopped_us: u64,
}

/// A process of the job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Program {
    /// Process id when it was saved.
    pub pid: u32,
    /// File name of the program.
    pub name: String,
    /// [`Session::name`] of its GPU side, if it had one.
    pub session: Option<String>,
}

/// How the processes were saved.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Criu {
    /// Version of the CRIU that wrote the files.
    pub version: String,
    /// Folder of its files, below that of the checkpoint.
    pub folder: String,
    /// The process at the root of the tree.
    pub root_pid: u32,
    /// Options that CRIU's restore needs, such as `shell-job`.
    pub options: Vec<String>,
    /// Further data of the supervisor.
    pub notes: BTreeMap<String, serde_json::Value>,
}

/// A library of Katydid that processes had mapped. They keep it, whatever is installed where they are restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Library {
    /// The path under which the processes mapped it.
    pub path: String,
    /// Whether the file was removed or replaced before the checkpoint.
    pub deleted: bool,
    /// Mode of the file, `st_mode`.
    pub mode: u32,
    /// The build that the file belongs to.
    pub build: Build,
    /// The bytes of the file.
    pub contents: Region,
}

/// The build of a [`Library`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// Version of frames and layouts.
    pub protocol: u32,
    /// Version of the job protocol.
    pub job_protocol: u32,
    /// Hash of the API description.
    pub interface: ChunkId,
    /// Version of the Katydid release.
    pub release: String,
}

/// The GPU state of one process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Session {
    /// Name of the session, unique in the checkpoint; part of file names.
    pub name: String,
    /// The driver library that was in use.
    pub driver: String,
    /// Version of that library, from `cuDriverGetVersion`, such as 13000.
    pub driver_version: u32,
    /// Version of the wire protocol in which the journal's frames are encoded.
    pub protocol: u32,
    /// GPUs as the program sees them.
    pub devices: Vec<Device>,
    /// Address ranges that a restore must reproduce.
    pub arenas: Vec<Arena>,
    /// All memory with contents.
    pub regions: Vec<Region>,
    /// State files of the session, by content (`journal`, ...).
    pub states: BTreeMap<String, FileEntry>,
    /// Further data of its worker.
    pub notes: BTreeMap<String, serde_json::Value>,
    /// The worker's process, if a replay cannot restore the session.
    pub worker: Option<WorkerImage>,
}

/// A worker's process, as CRIU saved it. It has everything that only the driver knows, but not the memory of [`Session::regions`]
/// that lies in arenas.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerImage {
    /// Version of the CRIU that wrote the files.
    pub criu: String,
    /// The driver's own description of itself.
    pub driver: String,
    /// Process id of the worker, in the server's namespace.
    pub pid: u32,
    /// Ids of its threads.
    pub ids: Vec<u32>,
    /// Socket to its server, as `/proc/PID/fd` names it.
    pub control: String,
    /// Pipes to its server, named in the same way.
    pub outputs: Vec<String>,
    /// CRIU's files, by name.
    pub files: Vec<Region>,
}

/// A GPU of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Device {
    /// Index in the program.
    pub index: u32,
    /// Name from `cuDeviceGetName`, such as `NVIDIA H200`.
    pub name: String,
    /// UUID in hexadecimal digits.
    pub uuid: String,
    /// Major and minor compute capability.
    pub capability: (u32, u32),
    /// Bytes of its memory.
    pub memory: u64,
}

/// A range of addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Arena {
    /// `device`, `pinned` or `managed`.
    pub kind: String,
    /// GPU it belongs to.
    pub gpu: Option<u32>,
    /// First address of the range.
    pub base: u64,
    /// Length of the range in bytes.
    pub bytes: u64,
}

/// Memory with contents: the concatenation of its chunks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Region {
    /// Kind of the region: `arena`, `block`, `array`, `global`, `heap`, `graph`, `pinned`, ...
    pub kind: String,
    /// A name for people, such as that of a global.
    pub name: String,
    /// Id of the object that it belongs to, if there is one.
    pub object: Option<u64>,
    /// GPU it lies on.
    pub gpu: Option<u32>,
    /// Address of the region in the program; 0 if it has none.
    pub address: u64,
    /// Length in bytes; the last chunk may be shorter than the others.
    pub bytes: u64,
    /// Length of every chunk but the last.
    pub chunk_bytes: u32,
    /// Chunks with the region's bytes, in order.
    pub chunks: Vec<ChunkId>,
}

impl Region {
    /// Returns the length of chunk `index`; `None` if the region has no such chunk or its numbers contradict each other.
    pub fn chunk_len(&self, index: usize) -> Option<usize> {
        let full = u64::from(self.chunk_bytes);
        let start = full.checked_mul(index as u64)?;
        let fits = full > 0 && self.bytes.div_ceil(full) == self.chunks.len() as u64 && start < self.bytes;
        fits.then(|| (self.bytes - start).min(full) as usize)
    }

    /// Returns whether the number of chunks matches the length.
    fn is_consistent(&self) -> bool {
        match self.bytes {
            0 => self.chunks.is_empty(),
            _ => self.chunk_bytes > 0 && self.bytes.div_ceil(self.chunk_bytes.into()) == self.chunks.len() as u64,
        }
    }
}

/// The outer object; the inner one is kept as raw text.
#[derive(Serialize, Deserialize)]
struct Envelope<'a> {
    format: u32,
    blake3: ChunkId,
    #[serde(borrow)]
    content: &'a RawValue,
}

/// The only field that is read before the version is known.
#[derive(Deserialize)]
struct VersionOnly {
    format: u32,
}

/// Wraps contents as JSON with a version and their hash.
pub(crate) fn seal(content: &(impl Serialize + ?Sized)) -> serde_json::Result<Vec<u8>> {
    let content = serde_json::value::to_raw_value(content)?;
    let blake3 = ChunkId::of(content.get().as_bytes());
    serde_json::to_vec(&Envelope { format: FORMAT_VERSION, blake3, content: &content })
}

/// Parses the output of [`seal`]: version, then hash, then contents.
pub(crate) fn unseal<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, FormatFault> {
    let version: VersionOnly =
        serde_json::from_slice(bytes).map_err(|_| FormatFault::Damaged("it is not JSON with a `format`"))?;
    if version.format > FORMAT_VERSION {
        return Err(FormatFault::TooNew(version.format));
    }
    let envelope: Envelope<'_> =
        serde_json::from_slice(bytes).map_err(|_| FormatFault::Damaged("hash or content is not there"))?;
    if ChunkId::of(envelope.content.get().as_bytes()) != envelope.blake3 {
        return Err(FormatFault::Damaged("hash mismatch"));
    }
    serde_json::from_str(envelope.content.get())
        .map_err(|_| FormatFault::Damaged("a field is missing or of another kind"))
}

impl Manifest {
    /// Parses the bytes of a `manifest.json`.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, FormatFault> {
        let manifest: Self = unseal(bytes)?;
        manifest.check().map(|()| manifest)
    }

    /// Checks everything that readers rely on.
    pub(crate) fn check(&self) -> Result<(), FormatFault> {
        if !self.regions().all(Region::is_consistent) {
            return Err(FormatFault::Damaged("a region has another number of chunks than its length takes"));
        }
        let named = self.files.iter().chain(self.sessions.iter().flat_map(|session| session.states.values()));
        if !named.into_iter().all(|file| is_file_name(&file.name)) {
            return Err(FormatFault::Damaged("a file name leads out of the checkpoint"));
        }
        let workers = self.sessions.iter().filter_map(|session| session.worker.as_ref());
        let is_own = |file: &Region| is_file_name(&file.name) && !file.name.contains('/');
        if !workers.flat_map(|worker| &worker.files).all(is_own) {
            return Err(FormatFault::Damaged("a file of a worker has a name that leads out of its folder"));
        }
        Ok(())
    }

    /// Returns the memory of all sessions, their workers, and the libraries.
    fn regions(&self) -> impl Iterator<Item = &Region> {
        let sessions = self.sessions.iter().flat_map(|session| &session.regions);
        let workers = self.sessions.iter().filter_map(|session| session.worker.as_ref());
        let libraries = self.libraries.iter().map(|library| &library.contents);
        sessions.chain(workers.flat_map(|worker| &worker.files)).chain(libraries)
    }

    /// Returns every chunk of the sessions with its length; repeated chunks come each time.
    pub fn session_chunks(&self) -> impl Iterator<Item = (&ChunkId, usize)> {
        self.sessions.iter().flat_map(|session| &session.regions).flat_map(chunks_of)
    }

    /// Returns every chunk with its length; repeated chunks come each time.
    pub fn chunks(&self) -> impl Iterator<Item = (&ChunkId, usize)> {
        self.regions().flat_map(chunks_of)
    }
}

fn chunks_of(region: &Region) -> impl Iterator<Item = (&ChunkId, usize)> {
    region.chunks.iter().enumerate().map(|(index, id)| (id, region.chunk_len(index).unwrap_or(0)))
}

/// Returns whether a name is a file in or below the folder of a checkpoint: relative, without `.` and `..`.
pub(crate) fn is_file_name(name: &str) -> bool {
    let fine = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains('\0');
    name.len() <= 512 && name.split('/').all(fine)
}
