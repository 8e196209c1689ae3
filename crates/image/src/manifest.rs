//! What a checkpoint consists of, as `manifest.json` says it.
//!
//! The file is `{"format":1,"blake3":"…","content":{…}}`: the hash covers the bytes of the inner object exactly as they
//! stand, so that any tool can check it. No secret is in here: session keys are not part of an image.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::format::{FORMAT_VERSION, FormatFault};
use crate::id::{CheckpointNumber, ChunkId, ImageId};

/// Most bytes of a manifest that is read: chunk names of 4 TiB in chunks of 2 MiB, and as much again.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 512 << 20;

/// Contents of `manifest.json`: one checkpoint of a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Manifest {
    /// Where it belongs; filled in by the commit, as the next three are.
    pub identity: Option<Identity>,
    /// Sizes of the checkpoint, in bytes.
    pub sizes: Sizes,
    /// Every file beside the manifest.
    pub files: Vec<FileEntry>,
    /// Packs that held its chunks when it was written; clearing up may have moved them since.
    pub packs: Vec<PackUse>,
    /// Version of the katydid that wrote it.
    pub written_by: String,
    /// The job that was checkpointed.
    pub job: Job,
    /// Times of the steps of the checkpoint.
    pub times: Times,
    /// Processes of the job, the first one first.
    pub programs: Vec<Program>,
    /// GPU sides of the processes.
    pub sessions: Vec<Session>,
    /// The processes themselves; none in an image of the GPU side only.
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
    /// The one before it, whose chunks it shares.
    pub parent: Option<CheckpointNumber>,
}

/// Bytes of a checkpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Memory of all sessions: their chunks, each as often as it is named.
    pub content: u64,
    /// The different chunks of sessions and libraries, as they are.
    pub chunks: u64,
    /// The different ones as they are kept.
    pub stored: u64,
    /// What this checkpoint added to the packs.
    pub added: u64,
    /// All files beside the manifest.
    pub files: u64,
}

/// A file in the folder of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Below the folder, such as `state-0.bin` or `criu/core-1.img`.
    pub name: String,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// The BLAKE3 hash of its bytes.
    pub blake3: ChunkId,
}

/// How much of a pack a checkpoint uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackUse {
    /// The number in its name.
    pub number: u32,
    /// Different chunks of this checkpoint in it.
    pub chunks: u32,
    /// Compressed bytes of these chunks.
    pub stored: u64,
}

/// The job that was saved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Job {
    /// As `katydid run --name` gave it.
    pub name: String,
    /// The machine it ran on.
    pub host: String,
    /// The command and its arguments.
    pub command: Vec<String>,
}

/// Milliseconds since 1970, and of the stop in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Times {
    /// The checkpoint was asked for.
    pub began: u64,
    /// The image was complete, in milliseconds since 1970.
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
    /// Whatever else the supervisor wants to find again.
    pub notes: BTreeMap<String, serde_json::Value>,
}

/// A library of Katydid's that processes had mapped. They keep it, whatever is installed where they are restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Library {
    /// The name under which the processes mapped it.
    pub path: String,
    /// Whether the file was removed or replaced before the checkpoint.
    pub deleted: bool,
    /// Mode of the file, `st_mode`.
    pub mode: u32,
    /// The build that it is of.
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

/// The GPU side of one process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Session {
    /// Unique in the checkpoint, and part of file names.
    pub name: String,
    /// The driver library that was in use.
    pub driver: String,
    /// Version of that library, from `cuDriverGetVersion`, such as 13000.
    pub driver_version: u32,
    /// Version of the wire protocol, which the journal's frames are in.
    pub protocol: u32,
    /// GPUs as the program sees them.
    pub devices: Vec<Device>,
    /// Ranges of addresses that must come back.
    pub arenas: Vec<Arena>,
    /// All memory with contents.
    pub regions: Vec<Region>,
    /// State files of the session, by what is in them (`journal`, ...).
    pub states: BTreeMap<String, FileEntry>,
    /// Whatever else its worker wants to find again.
    pub notes: BTreeMap<String, serde_json::Value>,
    /// Its worker's process, of a session that a replay does not bring back.
    pub worker: Option<WorkerImage>,
}

/// The process of a worker, as CRIU saved it: with all that only the driver knows, and without the memory of [`Session::regions`] that
/// lies in arenas.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerImage {
    /// Version of the CRIU that wrote the files.
    pub criu: String,
    /// What its driver calls itself.
    pub driver: String,
    /// Process id of the worker, in the server's namespace.
    pub pid: u32,
    /// Ids of its threads.
    pub ids: Vec<u32>,
    /// Socket to its server, as `/proc/PID/fd` names it.
    pub control: String,
    /// Pipes to its server, in the same way.
    pub outputs: Vec<String>,
    /// CRIU's files, by their names.
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

/// Memory with contents: the chunks one after the other are its bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Region {
    /// What it is: `arena`, `block`, `array`, `global`, `heap`, `graph`, `pinned`, ...
    pub kind: String,
    /// A name for people, such as that of a global.
    pub name: String,
    /// Id of the object it belongs to, where it has one.
    pub object: Option<u64>,
    /// GPU it lies on.
    pub gpu: Option<u32>,
    /// Address of the region in the program; 0 if it has none.
    pub address: u64,
    /// Its length; the last chunk may be shorter than the others.
    pub bytes: u64,
    /// Length of every chunk but the last.
    pub chunk_bytes: u32,
    /// Chunks with the region's bytes, in their order.
    pub chunks: Vec<ChunkId>,
}

impl Region {
    /// Length of chunk `index`, or `None` when the region has no such chunk or its numbers contradict each other.
    pub fn chunk_len(&self, index: usize) -> Option<usize> {
        let full = u64::from(self.chunk_bytes);
        let start = full.checked_mul(index as u64)?;
        let fits = full > 0 && self.bytes.div_ceil(full) == self.chunks.len() as u64 && start < self.bytes;
        fits.then(|| (self.bytes - start).min(full) as usize)
    }

    /// Whether as many chunks are there as its length takes.
    fn is_consistent(&self) -> bool {
        match self.bytes {
            0 => self.chunks.is_empty(),
            _ => self.chunk_bytes > 0 && self.bytes.div_ceil(self.chunk_bytes.into()) == self.chunks.len() as u64,
        }
    }
}

/// The outer object, with the inner one as it stands.
#[derive(Serialize, Deserialize)]
struct Envelope<'a> {
    format: u32,
    blake3: ChunkId,
    #[serde(borrow)]
    content: &'a RawValue,
}

/// All that is looked at before the version is known.
#[derive(Deserialize)]
struct VersionOnly {
    format: u32,
}

/// JSON with its version and its own hash.
pub(crate) fn seal(content: &(impl Serialize + ?Sized)) -> serde_json::Result<Vec<u8>> {
    let content = serde_json::value::to_raw_value(content)?;
    let blake3 = ChunkId::of(content.get().as_bytes());
    serde_json::to_vec(&Envelope { format: FORMAT_VERSION, blake3, content: &content })
}

/// Reads what [`seal`] wrote: version, then hash, then contents.
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
    /// Reads the bytes of a `manifest.json`.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, FormatFault> {
        let manifest: Self = unseal(bytes)?;
        manifest.check().map(|()| manifest)
    }

    /// What readers rely on, so that they need not look again.
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

    /// The memory of all sessions, their workers, and the libraries.
    fn regions(&self) -> impl Iterator<Item = &Region> {
        let sessions = self.sessions.iter().flat_map(|session| &session.regions);
        let workers = self.sessions.iter().filter_map(|session| session.worker.as_ref());
        let libraries = self.libraries.iter().map(|library| &library.contents);
        sessions.chain(workers.flat_map(|worker| &worker.files)).chain(libraries)
    }

    /// Every chunk of a session, as often as it is named, with its length.
    pub fn session_chunks(&self) -> impl Iterator<Item = (&ChunkId, usize)> {
        self.sessions.iter().flat_map(|session| &session.regions).flat_map(chunks_of)
    }

    /// Every chunk, as often as it is named, with its length.
    pub fn chunks(&self) -> impl Iterator<Item = (&ChunkId, usize)> {
        self.regions().flat_map(chunks_of)
    }
}

fn chunks_of(region: &Region) -> impl Iterator<Item = (&ChunkId, usize)> {
    region.chunks.iter().enumerate().map(|(index, id)| (id, region.chunk_len(index).unwrap_or(0)))
}

/// Whether a name is a file in or below the folder of a checkpoint: relative, without `.` and `..`.
pub(crate) fn is_file_name(name: &str) -> bool {
    let fine = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains('\0');
    name.len() <= 512 && name.split('/').all(fine)
}
