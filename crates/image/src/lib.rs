//! Images of jobs: numbered checkpoints in a folder, which share their chunks.
//!
//! ```text
//! Image ── begin ──▶ Writer ── put, session_state, adopt_folder … commit ──▶ a checkpoint
//!   │                   ▲
//!   ├── join ──▶ CheckpointPart: the worker of a session writes its share itself
//!   └── checkpoint ──▶ CheckpointReader ── read, state, folder
//! ```
//!
//! A chunk is named by the BLAKE3 hash of its bytes, and stored once for all checkpoints of an image. So a checkpoint writes only
//! what has changed. A checkpoint exists once its manifest does, which is written last; until then, whatever goes wrong, the
//! image is unchanged. Every byte is compared with its hash when it is read. `docs/reference/image-format.md` describes the
//! layout to the byte.

mod checkpoint;
mod chunks;
mod codec;
mod error;
mod files;
mod format;
mod fuzz_entry;
mod gc;
mod id;
mod image;
mod index;
mod manifest;
mod reader;
mod store;
mod threads;
mod verify;

pub use checkpoint::{CheckpointPart, CommittedCheckpoint, Sink, Writer};
pub use chunks::{Options, WriteTotals};
pub use codec::Compression;
pub use error::{ImageError, Result};
pub use files::MAX_SESSION_STATE_BYTES;
pub use format::{FORMAT_VERSION, MAX_CHUNK_BYTES};
pub use fuzz_entry::parse_all;
pub use gc::{CollectReport, RetentionPolicy};
pub use id::{CheckpointNumber, ChunkId, ImageId, NotHex};
pub use image::{CheckpointChoice, Image, absolute, check_address, check_location, is_address};
pub use manifest::{
    Arena, Build, Criu, Device, FileEntry, Identity, Job, Library, Manifest, PackUse, Program, Region, Session, Sizes,
    Times, WorkerImage,
};
pub use reader::{CheckpointReader, ImageSource};
pub use store::faults::{Faults, InjectedFault};
#[cfg(feature = "objects")]
pub use store::lease_terms::LeaseTerms;
pub use verify::{Progress, Report};
