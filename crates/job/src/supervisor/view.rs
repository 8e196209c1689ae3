//! The JSON that the control socket returns and accepts (`docs/reference/admin-api.md`).

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use katydid_wire::handshake::SessionKind;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::supervisor::members::{Member, MemberState};

/// The answer to `GET /v1/job`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobView {
    /// Name of the job.
    pub name: String,
    /// Process id of the supervisor.
    pub supervisor: u32,
    /// The program at the root of the tree; 0 until it is started.
    pub program: u32,
    /// Command line of the program: its name and arguments.
    pub command: Vec<String>,
    /// Name of the machine.
    pub host: String,
    /// Programs with a GPU side.
    pub members: Vec<MemberView>,
    /// The current stage of the running checkpoint; null if there is none.
    pub checkpoint: Option<StageProgress>,
    /// The last checkpoint that was completed.
    pub last: Option<Report>,
}

/// A program with a GPU side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberView {
    /// Process id of the program, as it sees itself.
    pub pid: u32,
    /// File name of the program.
    pub program: String,
    /// API of its session: `cuda` or `opencl`.
    pub api: String,
    /// `present`, `away`, `back` or `worker_lost`.
    pub state: MemberState,
    /// Number of frames that the program had sent at its last report.
    pub frames: u64,
    /// The frame at which the program holds itself, as `KATYDID_CHECKPOINT_AT` says; null if none.
    pub reached: Option<u64>,
    /// Transport of the frames: `shm` or `stream`.
    pub link: String,
    /// The server of its session.
    pub address: String,
}

impl From<Member> for MemberView {
    fn from(member: Member) -> Self {
        let link = if member.link == 1 { "shm" } else { "stream" };
        Self {
            pid: member.pid,
            program: member.program,
            api: if member.session == SessionKind::OPENCL { "opencl" } else { "cuda" }.to_owned(),
            state: member.state,
            frames: member.frames,
            reached: member.reached,
            link: link.to_owned(),
            address: member.address,
        }
    }
}

/// The body of `POST /v1/checkpoints`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The image: an absolute path, or `s3://BUCKET/PREFIX`.
    pub image: PathBuf,
    /// Whether the program goes on afterwards; else it is killed once the checkpoint is complete.
    #[serde(default)]
    pub leave_running: bool,
    /// Whether only the GPU side is saved; the program goes on.
    #[serde(default)]
    pub device_only: bool,
    /// Whether everything is saved, even if it seems unchanged since an earlier checkpoint.
    #[serde(default)]
    pub full: bool,
    /// How many checkpoints the image keeps, including this one, at least 1; null: all.
    #[serde(default, deserialize_with = "kept_checkpoints")]
    pub keep: Option<u32>,
    /// zstd level of chunks, 0 (not compressed) to 19; null: the usual one.
    #[serde(default, deserialize_with = "compression_level")]
    pub level: Option<u32>,
    /// How long the GPU may take to come to rest, in milliseconds; null: 30 s.
    #[serde(default, alias = "patience_ms")]
    pub quiesce_timeout_ms: Option<u32>,
    /// Whether the checkpoint is taken even if a rehearsal of the restore failed.
    #[serde(default)]
    pub force: bool,
}

/// Highest zstd level of an image's chunks.
pub const MAX_COMPRESSION_LEVEL: u32 = 19;

fn kept_checkpoints<'de, D: Deserializer<'de>>(source: D) -> Result<Option<u32>, D::Error> {
    within(source, "keep", 1..=u32::MAX)
}

fn compression_level<'de, D: Deserializer<'de>>(source: D) -> Result<Option<u32>, D::Error> {
    within(source, "level", 0..=MAX_COMPRESSION_LEVEL)
}

/// Reads an optional number that must lie in `range`.
fn within<'de, D: Deserializer<'de>>(
    source: D,
    field: &str,
    range: RangeInclusive<u32>,
) -> Result<Option<u32>, D::Error> {
    let number = Option::<u32>::deserialize(source)?;
    match number {
        Some(number) if !range.contains(&number) => {
            Err(D::Error::custom(format_args!("{field} must be from {} to {}", range.start(), range.end())))
        }
        number => Ok(number),
    }
}

/// The body of `POST /v1/migrations`, which moves the job's sessions while its processes stay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Migration {
    /// Address of the server, in any form of [`katydid_transport::Address`].
    pub to: String,
    /// OpenCL devices to use in place of the sessions' own: `NEW` or `OLD=NEW`, each a number, a type (`cpu`, `gpu`,
    /// `accelerator`) or a part of a name.
    #[serde(default)]
    pub devices: Vec<String>,
    /// Absolute path at which the checkpoint that carries the sessions is kept; null: it is removed.
    #[serde(default)]
    pub image: Option<PathBuf>,
    /// How long the GPU may take to come to rest, in milliseconds; null: 30 s.
    #[serde(default, alias = "patience_ms")]
    pub quiesce_timeout_ms: Option<u32>,
}

/// A migration that was completed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompletedMigration {
    /// Name of the job.
    pub job: String,
    /// Address of the server that has its sessions now.
    pub to: String,
    /// Process ids of the sessions' workers there.
    pub workers: Vec<u32>,
    /// How many of these made a session's objects while the program still ran.
    #[serde(default)]
    pub rehearsed: usize,
    /// Bytes of GPU memory that were moved.
    pub bytes_content: u64,
    /// How long the program was paused, in microseconds.
    pub stopped_us: u64,
    /// How long the migration took, in microseconds.
    pub took_us: u64,
    /// How long each stage took, in microseconds.
    #[serde(default)]
    pub stages_us: BTreeMap<String, u64>,
}

/// A line of the answer to `POST /v1/checkpoints` and `/v1/migrations`: the current stage. The last one is `done`, `moved` or
/// `failed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "snake_case")]
pub enum StageProgress {
    /// CRIU is found, the image opened, and the workers connected. The program runs.
    Prepare,
    /// The program's calls are held from here on.
    Hold,
    /// The GPU comes to rest.
    Pause,
    /// Memory of the GPU is copied aside.
    Capture,
    /// The programs let go of their workers.
    Leave,
    /// CRIU copies the processes.
    Dump {
        /// Bytes of files that CRIU has written.
        #[serde(default)]
        done: u64,
        /// Bytes of memory of the processes, about as many as CRIU will write.
        #[serde(default)]
        total: u64,
    },
    /// The programs take their sessions up again.
    Resume,
    /// The image is written.
    Write {
        /// Bytes of GPU memory processed.
        done: u64,
        /// Bytes of GPU memory in all.
        total: u64,
        /// Bytes added to the image.
        written: u64,
    },
    /// Other workers test whether the sessions come back.
    Rehearse,
    /// Workers of sessions that do not come back are saved as processes.
    KeepWorkers,
    /// The manifest is written, which completes the checkpoint.
    Commit,
    /// Sessions are rebuilt on another server.
    Rebuild,
    /// The processes are killed.
    Kill,
    /// The checkpoint is complete.
    Done(Report),
    /// The job's sessions are on the other server.
    Moved(CompletedMigration),
    /// The operation failed, and everything is as it was before.
    Failed {
        /// Text of the error, for users.
        error: String,
        /// Whether a server has no free slot for a session, has no driver, or cannot be reached.
        #[serde(default)]
        of_server: bool,
    },
}

impl StageProgress {
    /// Name of the stage, as on the control socket.
    #[must_use]
    pub fn name(&self) -> String {
        let line = serde_json::to_value(self).unwrap_or_default();
        line["stage"].as_str().unwrap_or_default().to_owned()
    }

    /// Whether this is the last line.
    #[must_use]
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Done(_) | Self::Moved(_) | Self::Failed { .. })
    }
}

/// A checkpoint that was completed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Number of the checkpoint in the image.
    pub checkpoint: u32,
    /// Path or address of the image.
    pub image: PathBuf,
    /// Name of the job.
    pub job: String,
    /// Processes of the job, the program first, as the supervisor sees them.
    pub pids: Vec<u32>,
    /// Process ids of the sessions' workers, on their machine.
    pub workers: Vec<u32>,
    /// Bytes of GPU memory in the checkpoint.
    pub bytes_content: u64,
    /// Bytes of it that were added to the image now; the image had the rest already.
    pub bytes_added: u64,
    /// Bytes of the processes' images and of the journals.
    pub bytes_files: u64,
    /// How long the program was paused, in microseconds.
    pub stopped_us: u64,
    /// How long the checkpoint took, in microseconds.
    pub took_us: u64,
    /// How long each stage took, in microseconds.
    #[serde(default)]
    pub stages_us: BTreeMap<String, u64>,
    /// Sessions that are saved as the processes of their workers, since no replay brings them back, with the reason: one a line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub worker_images: Vec<String>,
    /// Whether the program goes on.
    pub running: bool,
    /// What failed after the checkpoint was complete.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_a_flat_object() {
        let json = serde_json::to_value(StageProgress::Write { done: 1, total: 2, written: 3 }).unwrap();
        assert_eq!(json, serde_json::json!({"stage": "write", "done": 1, "total": 2, "written": 3}));
        let failed = StageProgress::Failed { error: "no".into(), of_server: true };
        assert_eq!(serde_json::from_value::<StageProgress>(serde_json::to_value(&failed).unwrap()).unwrap(), failed);
        assert!(failed.is_last() && !StageProgress::Hold.is_last());
    }

    #[test]
    fn only_the_image_must_be_said_and_nothing_unknown_may() {
        let request: Request = serde_json::from_str(r#"{"image":"/i"}"#).unwrap();
        assert!(!request.leave_running && request.keep.is_none());
        assert!(serde_json::from_str::<Request>(r#"{"image":"/i","leaverunning":true}"#).is_err());
    }

    #[test]
    fn numbers_have_the_bounds_of_the_command_line() {
        let keep = |number: u32| serde_json::from_str::<Request>(&format!(r#"{{"image":"/i","keep":{number}}}"#));
        let level = |number: u32| serde_json::from_str::<Request>(&format!(r#"{{"image":"/i","level":{number}}}"#));
        assert_eq!((keep(1).unwrap().keep, level(0).unwrap().level), (Some(1), Some(0)));
        assert!(keep(0).unwrap_err().to_string().contains("keep must be from 1 to"));
        assert!(level(20).unwrap_err().to_string().contains("level must be from 0 to 19"));
    }
}
