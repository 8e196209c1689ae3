//! `katydid inspect`: shows the contents of a checkpoint, as a tree with sizes.

use std::io::{self, Write};
use std::process::ExitCode;

use katydid_image::{CheckpointChoice, CheckpointNumber, Manifest, Region, Session};
use serde::Serialize;

use crate::args::flags::InspectFlags;
use crate::commands::images;
use katydid_cli_core::args::size::Size;
use katydid_cli_core::output::date::date;
use katydid_cli_core::output::document;
use katydid_cli_core::output::failure::{Failure, Outcome};
use katydid_wire::printable::printable;

/// Regions of one kind above this number are summed up.
const MAX_REGIONS_SHOWN: usize = 12;

/// Document that `katydid inspect --json` writes.
#[derive(Debug, Serialize)]
struct View {
    location: String,
    checkpoints: Vec<CheckpointNumber>,
    manifest: Manifest,
}

/// Runs `katydid inspect`.
pub(crate) fn main(flags: &InspectFlags) -> Outcome {
    let image = images::open(&flags.image)?;
    let which = flags.at.map_or(CheckpointChoice::Latest, |number| CheckpointChoice::Number(CheckpointNumber(number)));
    let manifest = image.manifest(which).map_err(Failure::work)?;
    let checkpoints = image.checkpoints().map_err(Failure::work)?;
    let view = View { location: image.location(), checkpoints, manifest };
    if flags.json {
        document::write(&view)?;
    } else {
        view.tree().write(&mut io::stdout().lock(), "", "")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A line and the lines below it.
#[derive(Debug, Default)]
struct Node {
    line: String,
    below: Vec<Node>,
}

impl Node {
    fn new(line: impl Into<String>) -> Self {
        Self { line: line.into(), below: Vec::new() }
    }

    /// Writes the node, with `first` before its line, and `rest` before the lines below.
    fn write(&self, out: &mut impl Write, first: &str, rest: &str) -> io::Result<()> {
        // Names and arguments in the image are a program's.
        writeln!(out, "{first}{}", printable(&self.line))?;
        for (at, node) in self.below.iter().enumerate() {
            let (branch, under) = if at + 1 < self.below.len() { ("├─ ", "│  ") } else { ("└─ ", "   ") };
            node.write(out, &format!("{rest}{branch}"), &format!("{rest}{under}"))?;
        }
        Ok(())
    }
}

impl View {
    /// The tree from the job down to the regions, with the total at the end.
    fn tree(&self) -> Node {
        let manifest = &self.manifest;
        let mut root = Node::new(self.title());
        root.below.push(Node::new(self.job()));
        root.below.extend(manifest.programs.iter().map(|program| {
            let session = program.session.as_ref().map_or_else(String::new, |name| format!(", session {name}"));
            Node::new(format!("process {} {}{session}", program.pid, program.name))
        }));
        root.below.extend(manifest.sessions.iter().map(session));
        root.below.extend(self.files());
        root.below.push(Node::new(self.stored()));
        root
    }

    /// Names the image, and which of its checkpoints this is.
    fn title(&self) -> String {
        let number = self.manifest.identity.map_or(CheckpointNumber(0), |identity| identity.number);
        let others = self.checkpoints.len().saturating_sub(1);
        format!("{}: checkpoint {number}, and {others} more", self.location.trim_end_matches('/'))
    }

    /// Says what ran, when, and how long it was paused.
    fn job(&self) -> String {
        let Manifest { job, times, written_by, .. } = &self.manifest;
        let stopped = times.stopped_us as f64 / 1e3;
        let command = job.command.join(" ");
        let when = date(times.began / 1000);
        format!("job {} on {}: {command}; {when}, stopped {stopped:.1} ms, katydid {written_by}", job.name, job.host)
    }

    /// The files of the processes, which belong to no session.
    fn files(&self) -> Vec<Node> {
        let Some(criu) = &self.manifest.criu else { return Vec::new() };
        let prefix = format!("{}/", criu.folder);
        let files: Vec<u64> =
            self.manifest.files.iter().filter(|file| file.name.starts_with(&prefix)).map(|file| file.bytes).collect();
        let bytes = Size(files.iter().sum());
        vec![Node::new(format!("processes by CRIU {}: {bytes} in {} files", criu.version, files.len()))]
    }

    /// Compares the program's memory with the bytes on disk.
    fn stored(&self) -> String {
        let sizes = self.manifest.sizes;
        format!(
            "{} of GPU memory; with libraries {} of different chunks, kept in {} of {} packs; this checkpoint added {}",
            Size(sizes.content),
            Size(sizes.chunks),
            Size(sizes.stored),
            self.manifest.packs.len(),
            Size(sizes.added)
        )
    }
}

/// The GPU side of one process.
fn session(session: &Session) -> Node {
    let bytes = Size(session.regions.iter().map(|region| region.bytes).sum());
    let driver = format!("{} (CUDA {})", session.driver, version(session.driver_version));
    let mut node = Node::new(format!("session {}: {bytes} of memory, driver {driver}", session.name));
    node.below.extend(session.devices.iter().map(|device| {
        let (major, minor) = device.capability;
        let memory = Size(device.memory);
        Node::new(format!("GPU {}: {}, {memory}, compute capability {major}.{minor}", device.index, device.name))
    }));
    node.below.extend(
        session
            .arenas
            .iter()
            .map(|arena| Node::new(format!("{} addresses from {:#x}: {}", arena.kind, arena.base, Size(arena.bytes)))),
    );
    node.below.extend(regions(&session.regions));
    node.below.extend(session.states.iter().map(|(what, file)| Node::new(format!("{what}: {}", Size(file.bytes)))));
    node
}

/// Formats a version of CUDA: 12040 is 12.4.
fn version(number: u32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// A node for each region, or for the sum of a kind with many.
fn regions(regions: &[Region]) -> Vec<Node> {
    let mut kinds: Vec<&str> = Vec::new();
    for region in regions {
        if !kinds.contains(&region.kind.as_str()) {
            kinds.push(&region.kind);
        }
    }
    let of_kind = |kind: &&str| {
        let of_kind: Vec<&Region> = regions.iter().filter(|region| region.kind == *kind).collect();
        if of_kind.len() <= MAX_REGIONS_SHOWN {
            return of_kind.into_iter().map(|region| Node::new(line(region))).collect();
        }
        let bytes = Size(of_kind.iter().map(|region| region.bytes).sum());
        vec![Node::new(format!("{kind} × {}: {bytes}", of_kind.len()))]
    };
    kinds.iter().flat_map(of_kind).collect()
}

/// A region's kind, name, location and size.
fn line(region: &Region) -> String {
    let name = if region.name.is_empty() { String::new() } else { format!(" {}", region.name) };
    let gpu = region.gpu.map_or_else(String::new, |gpu| format!(" on GPU {gpu}"));
    format!("{}{name}{gpu} at {:#x}: {}", region.kind, region.address, Size(region.bytes))
}

#[cfg(test)]
mod tests {
    use katydid_image::{Criu, FileEntry, Identity, ImageId, Job, Program, Times};

    use super::*;

    fn manifest() -> Manifest {
        let zero = katydid_image::ChunkId::from_bytes([0; 32]);
        let file = |name: &str, bytes| FileEntry { name: name.into(), bytes, blake3: zero };
        let region = |kind: &str, address, bytes| Region { kind: kind.into(), address, bytes, ..Region::default() };
        let regions = [region("arena", 0x2000_0000_0000, 64 << 20)].into_iter();
        let session = Session {
            name: "0".into(),
            driver: "softcuda".into(),
            driver_version: 12080,
            regions: regions.chain((0..20).map(|at| region("global", at, 4))).collect(),
            states: [("journal".to_owned(), file("state-0.bin", 1536))].into(),
            ..Session::default()
        };
        Manifest {
            identity: Some(Identity { image: ImageId::from_bytes([0; 16]), number: CheckpointNumber(2), parent: None }),
            job: Job { name: "train".into(), host: "gpu7".into(), command: vec!["./train".into()] },
            times: Times { began: 86_400_000, written: 86_400_500, stopped_us: 4200 },
            written_by: "0.1.0".into(),
            programs: vec![Program { pid: 7, name: "train".into(), session: Some("0".into()) }],
            sessions: vec![session],
            criu: Some(Criu { version: "4.2.1".into(), folder: "criu".into(), ..Criu::default() }),
            files: vec![file("criu/core-7.img", 1024), file("state-0.bin", 1536)],
            ..Manifest::default()
        }
    }

    #[test]
    fn a_checkpoint_is_a_tree() {
        let checkpoints = vec![CheckpointNumber(1), CheckpointNumber(2)];
        let view = View { location: "/images/train/".into(), checkpoints, manifest: manifest() };
        let mut text = Vec::new();
        view.tree().write(&mut text, "", "").unwrap();
        let expected = "\
/images/train: checkpoint 2, and 1 more
├─ job train on gpu7: ./train; 1970-01-02 00:00:00 UTC, stopped 4.2 ms, katydid 0.1.0
├─ process 7 train, session 0
├─ session 0: 64.0 MiB of memory, driver softcuda (CUDA 12.8)
│  ├─ arena at 0x200000000000: 64 MiB
│  ├─ global × 20: 80 B
│  └─ journal: 1.5 KiB
├─ processes by CRIU 4.2.1: 1 KiB in 1 files
└─ 0 B of GPU memory; with libraries 0 B of different chunks, kept in 0 B of 0 packs; this checkpoint added 0 B
";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    #[test]
    fn json_has_all_of_the_manifest() {
        let view = View { location: "/a".into(), checkpoints: Vec::new(), manifest: manifest() };
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!(json["manifest"]["sessions"][0]["regions"][0]["address"], 0x2000_0000_0000_u64);
        assert_eq!(json["manifest"]["identity"]["number"], 2);
    }
}
