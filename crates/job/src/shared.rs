//! Shared memory with a name: files that a job's processes have mapped for others to see, such as those of POSIX and of MPI
//! in `/dev/shm` and in `/tmp`.
//!
//! CRIU takes a file with a name to be there at the restore, and to hold what the program last saw. These files are
//! memory: they are gone with the machine or with the program, and whatever runs on after a checkpoint changes them, locks
//! and all. Those of memory file systems count, and those of disks that the job writes, but for large ones, which are data.
//! The rule: they are copied while all processes stand still, and made anew before the job is restored; under their names
//! come new files, so that whoever still has the old ones keeps them. A job in namespaces of its own has `/dev/shm` for
//! itself.
//!
//! With them go small files that the job has open for writing, and FIFOs: whoever removes such files at its end, as MPI
//! does with those of its session, may have come to it since the checkpoint. They are made anew only where they are gone.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Gid, Mode, SeekFrom, Uid, chown, fstatfs, mknodat, seek};
use serde::{Deserialize, Serialize};

use crate::files;
use crate::stdio::Standard;
use crate::tree::Process;

/// Where POSIX's shared memory is.
pub(crate) const PLACE: &str = "/dev/shm";
/// `f_type` of a memory file system, from `linux/magic.h`.
const MEMORY: i64 = 0x0102_1994;
/// Largest file of a disk that counts.
const LARGEST: u64 = 1 << 30;
/// Largest file that counts because it is open.
const SMALL: u64 = 1 << 20;
/// Most files and FIFOs that count because they are open.
const MOST_OPEN: usize = 1024;
/// Where no file can be made.
const MADE_BY_THE_KERNEL: [&str; 2] = ["/proc", "/sys"];
/// Bytes that are copied at a time.
const PIECE: usize = 1 << 20;

/// A file of shared memory, or one that may be gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Its name, as the processes know it.
    path: PathBuf,
    /// The copy, in CRIU's folder.
    copy: String,
    mode: u32,
    owner: (u32, u32),
    #[serde(default)]
    kind: Kind,
}

/// Why a file is in an image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    /// It is mapped for others to see: always made anew.
    #[default]
    Mapped,
    /// It is open: made anew where it is gone.
    Open,
    /// It is a FIFO that is open: the same, and it has no copy.
    Fifo,
}

/// Copies what the tree has mapped or open into `folder`, but for the files behind its standard streams, which are the
/// restoring side's. All of its processes stand still.
///
/// # Errors
///
/// A file cannot be read, or its copy not be written.
pub(crate) fn save(tree: &[Process], stdio: &[Standard; 3], folder: &Path) -> io::Result<Vec<Segment>> {
    let mut segments = save_mapped(tree, folder)?;
    let is_known = |segments: &[Segment], path: &Path| segments.iter().any(|segment| segment.path == path);
    let is_standard = |path: &Path| stdio.iter().any(|standard| standard.path().map(Path::new) == Some(path));
    for (path, link) in files::named(tree).into_iter().take(MOST_OPEN) {
        let is_elsewhere = MADE_BY_THE_KERNEL.iter().any(|place| path.starts_with(place));
        if is_elsewhere || is_standard(&path) || is_known(&segments, &path) {
            continue;
        }
        // One that is closed meanwhile is the business of somebody whom we do not hold.
        let Ok(stat) = fs::metadata(&link) else { continue };
        let kind = if stat.is_file() { Kind::Open } else { Kind::Fifo };
        let copy = format!("katydid-shared-{}", segments.len());
        if kind == Kind::Open {
            if stat.len() > SMALL {
                continue;
            }
            copied(&mut File::open(&link)?, &mut File::create(folder.join(&copy))?)?;
        }
        segments.push(Segment { path, copy, mode: stat.mode() & 0o7777, owner: (stat.uid(), stat.gid()), kind });
    }
    Ok(segments)
}

fn save_mapped(tree: &[Process], folder: &Path) -> io::Result<Vec<Segment>> {
    let mut segments = Vec::new();
    for (path, (pid, is_written)) in mapped(tree) {
        // As the process sees it, which may be in a namespace of its own.
        let Ok(mut file) = File::open(format!("/proc/{pid}/root{}", path.display())) else { continue };
        let stat = file.metadata()?;
        let is_memory = fstatfs(&file)?.f_type == MEMORY || (is_written && stat.len() <= LARGEST);
        if !stat.is_file() || !is_memory {
            continue;
        }
        let copy = format!("katydid-shared-{}", segments.len());
        copied(&mut file, &mut File::create(folder.join(&copy))?)?;
        let (mode, owner) = (stat.mode() & 0o7777, (stat.uid(), stat.gid()));
        segments.push(Segment { path, copy, mode, owner, kind: Kind::Mapped });
    }
    Ok(segments)
}

/// Files with names that are mapped for others to see: a process that has each, and whether somebody can write to it.
fn mapped(tree: &[Process]) -> BTreeMap<PathBuf, (u32, bool)> {
    let mut found = BTreeMap::new();
    for pid in tree.iter().map(|process| process.pid) {
        // One that has ended meanwhile has mapped nothing.
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        for (path, is_written) in maps.lines().filter_map(shared_name) {
            found.entry(path).or_insert((pid, false)).1 |= is_written;
        }
    }
    found
}

/// `7f…-7f… rw-s 00000000 00:1a 12   /dev/shm/name` → the name, and whether there is a `w`; nothing for private mappings and
/// deleted files.
fn shared_name(line: &str) -> Option<(PathBuf, bool)> {
    let name = line.find('/').map(|at| &line[at..])?;
    let rights = line.split(' ').nth(1)?;
    (rights.ends_with('s') && !name.ends_with(" (deleted)")).then(|| (name.into(), rights.contains('w')))
}

/// Copies what a file has; holes stay holes.
fn copied(from: &mut File, to: &mut File) -> io::Result<()> {
    let length = from.metadata()?.len();
    to.set_len(length)?;
    let mut buffer = vec![0; PIECE];
    let mut at = 0;
    // Behind the last data there is none: the answer is an error then.
    while let Ok(data) = seek(&*from, SeekFrom::Data(at)) {
        let hole = seek(&*from, SeekFrom::Hole(data))?.min(length);
        from.seek(io::SeekFrom::Start(data))?;
        to.seek(io::SeekFrom::Start(data))?;
        let mut left = hole.saturating_sub(data);
        while left > 0 {
            let piece = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
            from.read_exact(&mut buffer[..piece])?;
            to.write_all(&buffer[..piece])?;
            left -= piece as u64;
        }
        at = hole;
    }
    Ok(())
}

/// Files that were made for a restore: removed with this value, unless they are kept.
#[derive(Debug, Default)]
pub(crate) struct Made(Vec<PathBuf>);

impl Made {
    /// The job has them now.
    pub(crate) fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for path in &self.0 {
            // The restore has failed for a reason that matters more.
            let _ = fs::remove_file(path);
        }
    }
}

/// Makes the files anew from their copies in `folder`.
///
/// # Errors
///
/// With the file's name.
pub(crate) fn make(segments: &[Segment], folder: &Path) -> Result<Made, (PathBuf, io::Error)> {
    let mut made = Made::default();
    for segment in segments.iter().filter(|segment| segment.kind == Kind::Mapped || !segment.path.exists()) {
        make_one(segment, folder).map_err(|error| (segment.path.clone(), error))?;
        made.0.push(segment.path.clone());
    }
    Ok(made)
}

fn make_one(segment: &Segment, folder: &Path) -> io::Result<()> {
    if let Some(above) = segment.path.parent() {
        fs::create_dir_all(above)?;
    }
    if segment.kind == Kind::Fifo {
        return make_fifo(segment);
    }
    let mut name = segment.path.clone().into_os_string();
    name.push(format!(".katydid-{}", std::process::id()));
    let mut fresh = File::create(&name)?;
    let filled = File::open(folder.join(&segment.copy)).and_then(|mut copy| copied(&mut copy, &mut fresh));
    let (owner, group) = segment.owner;
    let outcome = filled
        .and_then(|()| fchown(&fresh, Some(owner), Some(group)))
        .and_then(|()| fresh.set_permissions(Permissions::from_mode(segment.mode)))
        .and_then(|()| fs::rename(&name, &segment.path));
    if outcome.is_err() {
        // What failed first is told.
        let _ = fs::remove_file(&name);
    }
    outcome
}

fn make_fifo(segment: &Segment) -> io::Result<()> {
    mknodat(CWD, &segment.path, FileType::Fifo, Mode::from_raw_mode(segment.mode), 0)?;
    let (owner, group) = segment.owner;
    Ok(chown(&segment.path, Some(Uid::from_raw(owner)), Some(Gid::from_raw(group)))?)
}

/// Whether some of them are where POSIX's shared memory is.
pub(crate) fn is_posix(segments: &[Segment]) -> bool {
    segments.iter().any(|segment| segment.path.starts_with(PLACE))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn only_shared_mappings_of_files_with_names_count() {
        let line = |rights, name| format!("7f00-7f10 {rights} 00000000 00:1a 12     {name}");
        assert_eq!(shared_name(&line("rw-s", "/dev/shm/a b")), Some(("/dev/shm/a b".into(), true)));
        assert_eq!(shared_name(&line("r--s", "/dev/shm/a")), Some(("/dev/shm/a".into(), false)));
        for (rights, name) in [("rw-p", "/dev/shm/a"), ("rw-s", "/memfd:x (deleted)"), ("rw-s", ""), ("r--p", "[heap]")]
        {
            assert_eq!(shared_name(&line(rights, name)), None, "{rights} {name}");
        }
    }

    #[test]
    fn a_file_comes_back_with_its_holes_as_a_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("below/segment");
        let mut old = tempfile::tempfile().unwrap();
        old.set_len(1 << 30).unwrap();
        old.write_all_at(b"first", 0).unwrap();
        old.write_all_at(b"last", (1 << 30) - 4).unwrap();
        copied(&mut old, &mut File::create(folder.path().join("copy")).unwrap()).unwrap();
        let stat = fs::metadata(folder.path().join("copy")).unwrap();
        assert!(stat.blocks() < 1 << 12, "{} blocks", stat.blocks());
        let owner = (stat.uid(), stat.gid());
        let segment = Segment { path: path.clone(), copy: "copy".into(), mode: 0o640, owner, kind: Kind::Mapped };
        let made = make(&[segment], folder.path()).unwrap();
        let file = File::open(&path).unwrap();
        let (mut first, mut last) = ([0; 5], [0; 4]);
        file.read_exact_at(&mut first, 0).unwrap();
        file.read_exact_at(&mut last, (1 << 30) - 4).unwrap();
        assert_eq!((&first, &last, file.metadata().unwrap().mode() & 0o777), (b"first", b"last", 0o640));
        drop(made);
        assert!(!path.exists());
    }

    #[test]
    fn what_is_open_comes_back_where_it_is_gone() {
        let (folder, image) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = |name: &str| folder.path().join("session").join(name);
        fs::create_dir(folder.path().join("session")).unwrap();
        let mut written = File::create(path("written")).unwrap();
        written.write_all(b"then").unwrap();
        fs::write(path("read"), b"read").unwrap();
        let _read = File::open(path("read")).unwrap();
        mknodat(CWD, path("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let _fifo = File::options().read(true).write(true).open(path("fifo")).unwrap();
        let us = [Process { pid: std::process::id(), parent: 1, state: 'R' }];
        let stdio = [Standard::Other, Standard::Other, Standard::Other];
        let mut saved = save(&us, &stdio, image.path()).unwrap();
        saved.retain(|segment| segment.path.starts_with(folder.path()));
        assert_eq!(saved.len(), 2, "{saved:?}");
        written.write_all(b" and now").unwrap();
        assert!(make(&saved, image.path()).unwrap().0.is_empty(), "what is there stays");
        assert_eq!(fs::read(path("written")).unwrap(), b"then and now");
        fs::remove_dir_all(folder.path().join("session")).unwrap();
        make(&saved, image.path()).unwrap().keep();
        assert_eq!(fs::read(path("written")).unwrap(), b"then");
        assert!(!path("read").exists() && fs::metadata(path("fifo")).unwrap().mode() & 0o170_777 == 0o10_600);
    }
}
