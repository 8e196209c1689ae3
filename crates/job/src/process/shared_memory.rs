//! Shared memory with a name: files that a job's processes have mapped as shared, such as those of POSIX and MPI in `/dev/shm`
//! and `/tmp`.
//!
//! CRIU expects a file with a name to be there at the restore, and to hold what the program last saw. These files are memory:
//! they are gone with the machine or with the program, and programs that run on after a checkpoint change them, locks and all.
//! Files of memory file systems count, and files of disks that the job writes, except large ones, which are data. The rule: they
//! are copied while all processes are stopped, and made anew before the job is restored. New files get their names, so that
//! processes with the old files keep those. The old files lie beside them until the job goes on, and come back if the restore
//! fails. A job in namespaces of its own has `/dev/shm` for itself.
//!
//! The image also has small files that the job has open for writing, and FIFOs. A program that removes such files at its end, as
//! MPI does with those of its session, may have ended since the checkpoint. They are made anew only if they are gone. So are
//! folders in which the job has sockets, which CRIU binds again.
//!
//! A file that has lost the name under which it was opened comes back under its other names. During the restore it also has the
//! name by which CRIU finds it (`criu/link_remap.rs`).

mod change_journal;
mod held_folder;
mod made_files;

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use katydid_scratch::private;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom, Uid, chownat, fstatfs, mknodat, renameat_with,
    seek,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

pub(crate) use self::change_journal::Journal;
use self::held_folder::HeldFolder;
use self::made_files::beside;
pub(crate) use self::made_files::{MadeFiles, undo_after_exit};
pub use self::made_files::{undo_abandoned, undo_all};
use crate::criu::link_remap::UnlinkedFile;
use crate::criu::{files_img, link_remap, link_remap_lock};
use crate::process::descriptors::leases;
use crate::process::file_id::{DatedFileId, FileId};
use crate::process::memory::maps::{self, MemoryMapping};
use crate::process::stdio::StandardStream;
use crate::process::tree::Process;
use crate::process::{stdio, written_files};

/// Folder of POSIX shared memory.
pub(crate) const SHM_FOLDER: &str = "/dev/shm";
/// Largest file of a disk that is saved.
const MAX_SEGMENT_BYTES: u64 = 1 << 30;
/// Largest file that is saved because it is open.
const SMALL_SEGMENT_BYTES: u64 = 1 << 20;
/// Most files and FIFOs that are saved because they are open.
const MAX_OPEN_FILES: usize = 1024;
/// Folders in which no file can be made.
const MADE_BY_THE_KERNEL: [&str; 2] = ["/proc", "/sys"];
/// Bytes that are copied at a time.
const SHARED_FILE_COPY_BYTES: usize = 1 << 20;

/// A file of shared memory, or one that may be gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Its name, as the processes see it.
    path: PathBuf,
    /// Name of the copy, in CRIU's folder.
    copy: String,
    mode: u32,
    owner: (u32, u32),
    #[serde(default)]
    kind: SharedFileKind,
    /// Other paths of the same file (hard links).
    #[serde(default)]
    links: Vec<PathBuf>,
    /// Names by which CRIU finds it; CRIU removes them when it has restored the job.
    #[serde(default, rename = "given")]
    criu_names: Vec<PathBuf>,
}

/// Why a file is in an image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SharedFileKind {
    /// It is mapped as shared: always made anew.
    #[default]
    Mapped,
    /// It is open: made anew if it is gone.
    Open,
    /// It is an open FIFO: made anew if it is gone; it has no copy.
    Fifo,
    /// It is a folder in which a socket is bound: made anew if it is gone.
    Folder,
    /// It is large and on a disk, and is expected to be there: only the names that CRIU needs are made.
    Linked,
}

/// Copies files that the tree has mapped or open into `folder`, except the files behind its standard streams, which the restoring
/// side replaces. `criu_names` are the names that CRIU gave files that had lost theirs. All processes are stopped.
///
/// # Errors
///
/// A file cannot be read, or its copy cannot be written; or one has names that cannot be found.
pub(crate) fn save(
    tree: &[Process],
    stdio: &[StandardStream; 3],
    criu_names: &[PathBuf],
    folder: &Path,
) -> io::Result<Vec<Segment>> {
    let mut saving = SharedFileCopy { tree, folder, segments: Vec::new(), by_id: BTreeMap::new() };
    saving.mapped()?;
    saving.add_criu_names(criu_names)?;
    saving.open(stdio)?;
    saving.folders()?;
    Ok(saving.segments)
}

/// The files that are being saved.
struct SharedFileCopy<'a> {
    tree: &'a [Process],
    folder: &'a Path,
    segments: Vec<Segment>,
    /// Index of each file in `segments`.
    by_id: BTreeMap<FileId, usize>,
}

impl SharedFileCopy<'_> {
    fn mapped(&mut self) -> io::Result<()> {
        for (path, (pid, is_written)) in mapped(self.tree) {
            // The path as the process sees it, which may be in another mount namespace.
            let Ok(mut file) = File::open(link_remap::rooted(pid, &path)) else { continue };
            let stat = file.metadata()?;
            if let Some(known) = self.by_id.get(&FileId::of(&stat)) {
                self.segments[*known].links.push(path);
            } else if stat.is_file() && is_restored_with_contents(&file, &stat, is_written)? {
                self.add(SharedFileKind::Mapped, path, &stat, Some(&mut file))?;
            }
        }
        Ok(())
    }

    /// Adds the files to which CRIU gave names, with all names of each file.
    fn add_criu_names(&mut self, criu_names: &[PathBuf]) -> io::Result<()> {
        let Some(root) = self.tree.first().filter(|_| !criu_names.is_empty()).map(|process| process.pid) else {
            return Ok(());
        };
        let mut files: BTreeMap<FileId, Vec<PathBuf>> = BTreeMap::new();
        for name in criu_names {
            let stat = fs::symlink_metadata(link_remap::rooted(root, name))?;
            files.entry(FileId::of(&stat)).or_default().push(name.clone());
        }
        let lost = link_remap::lost(self.tree);
        files.into_iter().try_for_each(|(id, names)| self.add_names_of_file(root, id, names, &lost))
    }

    fn add_names_of_file(
        &mut self,
        root: u32,
        id: FileId,
        criu_names: Vec<PathBuf>,
        lost: &[UnlinkedFile],
    ) -> io::Result<()> {
        let mut file = File::open(link_remap::rooted(root, &criu_names[0]))?;
        let stat = file.metadata()?;
        let mut names = link_remap::names_beside(root, &criu_names[0], id);
        let index = match self.by_id.get(&id) {
            Some(index) => *index,
            None => {
                let is_written = lost.iter().any(|lost| lost.id == id && lost.is_written);
                let kind = if is_restored_with_contents(&file, &stat, is_written)? {
                    SharedFileKind::Mapped
                } else if stat.len() <= SMALL_SEGMENT_BYTES {
                    SharedFileKind::Open
                } else {
                    SharedFileKind::Linked
                };
                let first = names.first().unwrap_or(&criu_names[0]).clone();
                self.add(kind, first, &stat, Some(&mut file))?
            }
        };
        let segment = &mut self.segments[index];
        names.retain(|name| *name != segment.path && !segment.links.contains(name));
        segment.links.append(&mut names);
        segment.criu_names = criu_names;
        let found = segment.names().count() + segment.criu_names.len();
        if stat.nlink() > found as u64 {
            let path = segment.path.display();
            return Err(io::Error::other(format!("{path} has another name, in a folder that is not known here")));
        }
        Ok(())
    }

    fn open(&mut self, stdio: &[StandardStream; 3]) -> io::Result<()> {
        let is_standard = |path: &Path| stdio::is_replaced(stdio, path);
        for (path, link) in written_files::named(self.tree).into_iter().take(MAX_OPEN_FILES) {
            let is_elsewhere = MADE_BY_THE_KERNEL.iter().any(|subfolder| path.starts_with(subfolder));
            // If it is closed now, a process that is not stopped changes it.
            let Some(stat) = fs::metadata(&link).ok().filter(|_| !is_elsewhere && !is_standard(&path)) else {
                continue;
            };
            if self.by_id.contains_key(&FileId::of(&stat)) {
                continue;
            }
            if !stat.is_file() {
                self.add(SharedFileKind::Fifo, path, &stat, None)?;
            } else if stat.len() <= SMALL_SEGMENT_BYTES
                && let Some(mut file) = opened(&link, &stat)?
            {
                self.add(SharedFileKind::Open, path, &stat, Some(&mut file))?;
            }
        }
        Ok(())
    }

    fn folders(&mut self) -> io::Result<()> {
        for (path, pid) in written_files::folders_of_sockets(self.tree).into_iter().take(MAX_OPEN_FILES) {
            // A folder that is gone must be gone at the restore as well.
            let stat = fs::symlink_metadata(link_remap::rooted(pid, &path));
            if let Some(stat) = stat.ok().filter(Metadata::is_dir) {
                self.add(SharedFileKind::Folder, path, &stat, None)?;
            }
        }
        Ok(())
    }

    /// Adds a file, and returns its index in `segments`.
    fn add(
        &mut self,
        kind: SharedFileKind,
        path: PathBuf,
        stat: &Metadata,
        file: Option<&mut File>,
    ) -> io::Result<usize> {
        let number = self.segments.len();
        let copy = format!("katydid-shared-{number}");
        if let Some(file) = file.filter(|_| kind != SharedFileKind::Linked) {
            copied(file, &mut private::create(&self.folder.join(&copy))?)?;
        }
        let (mode, owner) = (stat.mode() & 0o7777, (stat.uid(), stat.gid()));
        let (links, criu_names) = (Vec::new(), Vec::new());
        self.segments.push(Segment { path, copy, mode, owner, kind, links, criu_names });
        self.by_id.insert(FileId::of(stat), number);
        Ok(number)
    }
}

/// Opens the file of a descriptor, if that is still the file with this `stat`. A process that is not stopped may have closed it
/// meanwhile, and opened another one. A file with a lease is copied instead.
fn opened(link: &Path, stat: &Metadata) -> io::Result<Option<File>> {
    let is_it = |found: io::Result<Metadata>| found.is_ok_and(|found| FileId::of(&found) == FileId::of(stat));
    let is_leased = leases::is_leased(link);
    match if is_leased { leases::copy_descriptor(link) } else { File::open(link) } {
        Ok(file) if !is_it(file.metadata()) => Ok(None),
        Ok(file) if is_leased => leases::contents(&file, stat.len()),
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() != io::ErrorKind::NotFound && is_it(fs::metadata(link)) => Err(error),
        _ => Ok(None),
    }
}

/// Whether a mapped file is restored with its contents: it is in memory, or the job writes it.
fn is_restored_with_contents(file: &File, stat: &Metadata, is_written: bool) -> io::Result<bool> {
    Ok(fstatfs(file)?.f_type == libc::TMPFS_MAGIC || (is_written && stat.len() <= MAX_SEGMENT_BYTES))
}

impl Segment {
    /// Names by which other processes may know it.
    fn names(&self) -> impl Iterator<Item = &PathBuf> {
        std::iter::once(&self.path).chain(&self.links).filter(|name| !self.criu_names.contains(name))
    }

    /// All names of the file to which CRIU gave this name.
    pub(crate) fn names_of<'s>(segments: &'s [Self], criu_name: &Path) -> impl Iterator<Item = &'s PathBuf> {
        let segment = segments.iter().find(|segment| segment.criu_names.iter().any(|name| name == criu_name));
        segment.into_iter().flat_map(Self::names)
    }
}

/// Files with names that are mapped as shared: for each, a process that has it mapped, and whether any process can write to it.
fn mapped(tree: &[Process]) -> BTreeMap<PathBuf, (u32, bool)> {
    let mut mappings = BTreeMap::new();
    for pid in tree.iter().map(|process| process.pid) {
        for (path, is_written) in maps::of(pid).iter().filter_map(shared_name) {
            mappings.entry(path).or_insert((pid, false)).1 |= is_written;
        }
    }
    mappings
}

/// The path of a shared file, and whether the mapping can be written to; `None` for private mappings and deleted files.
fn shared_name(mapping: &MemoryMapping) -> Option<(PathBuf, bool)> {
    let is_named = mapping.is_shared() && !mapping.is_deleted();
    mapping.path().filter(|_| is_named).map(|path| (path.to_owned(), mapping.rights.contains('w')))
}

/// Copies the contents of a file; holes stay holes.
fn copied(from: &mut File, to: &mut File) -> io::Result<()> {
    let length = from.metadata()?.len();
    copied_up_to(length, from, to)
}

/// Copies the first `length` bytes of a file; holes stay holes. A process outside the job may still write, or may have made the
/// file shorter.
fn copied_up_to(length: u64, from: &mut File, to: &mut File) -> io::Result<()> {
    to.set_len(length)?;
    let mut buffer = vec![0; SHARED_FILE_COPY_BYTES];
    let mut at = 0;
    // Behind the last data `seek` fails.
    while at < length
        && let Ok(data) = seek(&*from, SeekFrom::Data(at))
    {
        let hole = match seek(&*from, SeekFrom::Hole(data)) {
            // The file has just become shorter.
            Err(Errno::NXIO) => break,
            hole => hole?.min(length),
        };
        from.seek(io::SeekFrom::Start(data))?;
        to.seek(io::SeekFrom::Start(data))?;
        let mut remaining = hole.saturating_sub(data);
        while remaining > 0 {
            let piece = usize::try_from(remaining).unwrap_or(SHARED_FILE_COPY_BYTES).min(SHARED_FILE_COPY_BYTES);
            let got = from.read(&mut buffer[..piece])?;
            if got == 0 {
                return Ok(());
            }
            to.write_all(&buffer[..got])?;
            remaining -= got as u64;
        }
        at = hole;
    }
    Ok(())
}

/// Makes the files anew from their copies in `folder`. The changes are noted in the `journal`, or in a new one.
///
/// # Errors
///
/// The error, with the file's name; everything is as it was then.
pub(crate) fn make(
    segments: &[Segment],
    folder: &Path,
    journal: Option<Journal>,
) -> Result<MadeFiles, (PathBuf, io::Error)> {
    let made_files = MadeFiles::new(journal);
    for segment in segments {
        make_files(segment, folder, &made_files).map_err(|error| (segment.path.clone(), error))?;
    }
    hold_sockets(folder, &made_files);
    Ok(made_files)
}

/// Gives second names to sockets whose names CRIU takes for the job's: another process may listen there by now. Errors do not
/// matter: CRIU reports an unreadable list, and a socket of another user is that user's risk.
fn hold_sockets(folder: &Path, made_files: &MadeFiles) {
    for name in files_img::bound_names(folder).unwrap_or_default() {
        if fs::symlink_metadata(&name).is_ok_and(|stat| stat.file_type().is_socket()) {
            made_files.hold_socket(&name);
        }
    }
}

/// Makes a file with all its names.
fn make_files(segment: &Segment, folder: &Path, made_files: &MadeFiles) -> io::Result<()> {
    let is_anew = match segment.kind {
        SharedFileKind::Mapped => true,
        SharedFileKind::Open | SharedFileKind::Fifo | SharedFileKind::Folder => !segment.path.exists(),
        SharedFileKind::Linked => false,
    };
    if is_anew {
        make_file(segment, folder, made_files)?;
    }
    if !segment.criu_names.is_empty() {
        link_remap_lock::mark(&segment.path);
    }
    for name in segment.links.iter().filter(|link| is_anew || !link.exists()).filter(|name| **name != segment.path) {
        if fs::symlink_metadata(name).is_ok_and(|stat| stat.is_dir()) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        match made_files.rename_original(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        made_files.note(name, DatedFileId::new(&fs::symlink_metadata(&segment.path)?))?;
        fs::hard_link(&segment.path, name)?;
    }
    for name in segment.criu_names.iter().filter(|name| **name != segment.path) {
        match fs::remove_file(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        made_files.note_criu_name(name, DatedFileId::new(&fs::symlink_metadata(&segment.path)?))?;
        fs::hard_link(&segment.path, name)?;
    }
    Ok(())
}

/// Names that CRIU needs for these files, and that others might need too.
pub(crate) fn criu_names(segments: &[Segment]) -> impl Iterator<Item = &Path> {
    segments.iter().flat_map(|segment| &segment.criu_names).map(PathBuf::as_path)
}

/// Those of the names that a job in namespaces of its own shares with other jobs: it has `/dev/shm` for itself.
pub(crate) fn criu_names_outside(segments: &[Segment]) -> impl Iterator<Item = &Path> {
    criu_names(segments).filter(|name| !name.starts_with(SHM_FOLDER))
}

/// Names that CRIU needs and the job shares with others, made in namespaces of the job. Dropping the value removes them; after a
/// successful restore CRIU has done so already.
#[derive(Debug)]
pub(crate) struct OutsideFiles<'a>(pub(crate) &'a [Segment]);

impl Drop for OutsideFiles<'_> {
    fn drop(&mut self) {
        for name in criu_names_outside(self.0) {
            // The name may not exist.
            let _ = fs::remove_file(name);
        }
    }
}

fn make_file(segment: &Segment, folder: &Path, made_files: &MadeFiles) -> io::Result<()> {
    if let Some(above) = segment.path.parent() {
        make_folders(above, made_files)?;
    }
    match segment.kind {
        SharedFileKind::Fifo => make_new(&segment.path, made_files, |path| make_fifo(segment, path)),
        SharedFileKind::Folder => make_new(&segment.path, made_files, |path| make_folder(segment, path)),
        SharedFileKind::Mapped | SharedFileKind::Open | SharedFileKind::Linked => {
            let (fresh, file) = beside(&segment.path, private::create_new)?;
            let id = DatedFileId::new(&file.metadata()?);
            made_files.note(&fresh, id)?;
            fill(file, segment, folder)?;
            name_file(&fresh, id, &segment.path, made_files)
        }
    }
}

/// Makes the missing folders of a path. Folders that another process makes meanwhile belong to that process.
fn make_folders(above: &Path, made_files: &MadeFiles) -> io::Result<()> {
    let missing: Vec<&Path> = above.ancestors().take_while(|folder| !folder.exists()).collect();
    for folder in missing.into_iter().rev() {
        match make_new(folder, made_files, |path| DirBuilder::new().mode(0o755).create(path)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
            result => result?,
        }
    }
    Ok(())
}

/// Makes an entry under a free name, and notes it. It never notes an entry that had the name before, nor one in another folder.
fn make_new(path: &Path, made_files: &MadeFiles, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let held = HeldFolder::of(path).ok_or(io::ErrorKind::NotFound)?;
    let entry = held.entry(path).ok_or(io::ErrorKind::InvalidInput)?;
    make(&entry)?;
    DatedFileId::of(&entry).map_or(Ok(()), |id| made_files.note(path, id))
}

fn fill(mut file: File, segment: &Segment, folder: &Path) -> io::Result<()> {
    copied(&mut File::open(folder.join(&segment.copy))?, &mut file)?;
    let (owner, group) = segment.owner;
    fchown(&file, Some(owner), Some(group))?;
    file.set_permissions(Permissions::from_mode(segment.mode))
}

/// Gives a new file its name. A file that had the name then lies beside it.
fn name_file(fresh: &Path, id: DatedFileId, path: &Path, made_files: &MadeFiles) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            made_files.note(path, id)?;
            return fs::rename(fresh, path);
        }
        Ok(stat) if stat.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        Ok(stat) => made_files.note_renamed(path, fresh, DatedFileId::new(&stat))?,
        Err(error) => return Err(error),
    }
    made_files.note(path, id)?;
    if renameat_with(CWD, fresh, CWD, path, RenameFlags::EXCHANGE).is_ok() {
        return Ok(());
    }
    // Not every file system can exchange names (NFS).
    made_files.rename_original(path)?;
    made_files.note(path, id)?;
    fs::rename(fresh, path)
}

fn make_fifo(segment: &Segment, path: &Path) -> io::Result<()> {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(segment.mode), 0)?;
    let (owner, group) = segment.owner;
    let ids = (Some(Uid::from_raw(owner)), Some(Gid::from_raw(group)));
    Ok(chownat(CWD, path, ids.0, ids.1, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Uses the folder's descriptor, since another user may put a symbolic link in its place.
fn make_folder(segment: &Segment, path: &Path) -> io::Result<()> {
    private::folder(path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let (owner, group) = segment.owner;
    fchown(&folder, Some(owner), Some(group))?;
    folder.set_permissions(Permissions::from_mode(segment.mode))
}

/// Whether any of these files is in the folder of POSIX shared memory.
pub(crate) fn is_posix(segments: &[Segment]) -> bool {
    segments.iter().any(|segment| segment.path.starts_with(SHM_FOLDER))
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::os::unix::fs::FileExt;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;
    use crate::criu::protobuf::Message;
    use crate::process::memory::maps::tests::mapping;

    #[test]
    fn only_shared_mappings_of_files_with_names_count() {
        let shared = |rights, name| shared_name(&mapping(&format!("7f00-7f10 {rights} 00000000 00:1a 12     {name}")));
        assert_eq!(shared("rw-s", "/dev/shm/a b"), Some(("/dev/shm/a b".into(), true)));
        assert_eq!(shared("r--s", "/dev/shm/a"), Some(("/dev/shm/a".into(), false)));
        for (rights, name) in [("rw-p", "/dev/shm/a"), ("rw-s", "/memfd:x (deleted)"), ("rw-s", ""), ("r--p", "[heap]")]
        {
            assert_eq!(shared(rights, name), None, "{rights} {name}");
        }
    }

    #[test]
    fn file_that_grows_or_shrinks_meanwhile_is_copied_to_its_length() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"text and more").unwrap();
        for (length, expected) in [(4, &b"text"[..]), (13, b"text and more"), (15, b"text and more\0\0")] {
            let mut copy = tempfile::tempfile().unwrap();
            copied_up_to(length, &mut file, &mut copy).unwrap();
            let mut found = Vec::new();
            copy.rewind().unwrap();
            copy.read_to_end(&mut found).unwrap();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_descriptor_that_is_of_another_file_meanwhile_is_passed_over() {
        let (file, other) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let (socket, _peer) = UnixStream::pair().unwrap();
        let socket = File::from(OwnedFd::from(socket));
        let link = |file: &File| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let stat = file.metadata().unwrap();
        assert!(opened(&link(&file), &stat).unwrap().is_some());
        for path in [link(&other), link(&socket), "/proc/self/fd/none".into()] {
            assert!(opened(&path, &stat).unwrap().is_none(), "{}", path.display());
        }
        assert!(opened(&link(&socket), &socket.metadata().unwrap()).is_err(), "what it is cannot be opened");
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
        let (links, criu_names) = (Vec::new(), Vec::new());
        let (copy, kind) = ("copy".into(), SharedFileKind::Mapped);
        let segment = Segment { path: path.clone(), copy, mode: 0o640, owner, kind, links, criu_names };
        let made_files = make(&[segment], folder.path(), None).unwrap();
        let file = File::open(&path).unwrap();
        let (mut first, mut last) = ([0; 5], [0; 4]);
        file.read_exact_at(&mut first, 0).unwrap();
        file.read_exact_at(&mut last, (1 << 30) - 4).unwrap();
        assert_eq!((&first, &last, file.metadata().unwrap().mode() & 0o777), (b"first", b"last", 0o640));
        drop(made_files);
        assert!(!path.exists());
    }

    #[test]
    fn missing_open_files_are_recreated() {
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
        let stdio = [StandardStream::Other, StandardStream::Other, StandardStream::Other];
        let mut saved = save(&us, &stdio, &[], image.path()).unwrap();
        saved.retain(|segment| segment.path.starts_with(folder.path()));
        assert_eq!(saved.len(), 2, "{saved:?}");
        written.write_all(b" and now").unwrap();
        assert!(make(&saved, image.path(), None).unwrap().is_empty(), "what is there stays");
        assert_eq!(fs::read(path("written")).unwrap(), b"then and now");
        fs::remove_dir_all(folder.path().join("session")).unwrap();
        make(&saved, image.path(), None).unwrap().keep();
        assert_eq!(fs::read(path("written")).unwrap(), b"then");
        assert!(!path("read").exists() && fs::metadata(path("fifo")).unwrap().mode() & 0o170_777 == 0o10_600);
    }

    /// Two segments whose contents in an image are `then`. One has a name and a link of a file of other processes, whose contents
    /// are `now`. The other one's folders are missing.
    fn segments_beside_others(folder: &Path, image: &Path) -> [Segment; 2] {
        let path = |name: &str| folder.join(name);
        fs::write(image.join("copy"), "then").unwrap();
        let stat = fs::metadata(image.join("copy")).unwrap();
        fs::write(path("data"), "now").unwrap();
        fs::hard_link(path("data"), path("link")).unwrap();
        let linked = Segment { path: path("data"), links: vec![path("link")], ..segment_of(&stat) };
        [linked, Segment { path: path("none/below/data"), ..segment_of(&stat) }]
    }

    #[test]
    fn replaced_file_returns_when_a_restore_fails() {
        let (folder, image) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = |name: &str| folder.path().join(name);
        let text = |name: &str| fs::read_to_string(path(name)).unwrap_or_default();
        let segments = segments_beside_others(folder.path(), image.path());
        let is_as_before = || {
            assert_eq!((text("data"), text("link")), ("now".into(), "now".into()));
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left over");
        };
        let made_files = make(&segments, image.path(), None).unwrap();
        assert_eq!(
            (text("data"), text("link"), text("none/below/data")),
            ("then".into(), "then".into(), "then".into())
        );
        drop(made_files);
        is_as_before();
        let made_files = make(&segments, image.path(), None).unwrap();
        made_files.interrupt();
        is_as_before();
        drop(made_files);
        is_as_before();
        let journal = Journal::create_below(&image.path().join("journals")).unwrap();
        make(&segments, image.path(), Some(Journal::open(journal.path()).unwrap())).unwrap().hand_over();
        assert_eq!(text("data"), "then");
        drop(MadeFiles::handed_over(journal).unwrap());
        is_as_before();
        let missing = Segment { path: path("other"), copy: "none".into(), ..segments[1].clone() };
        assert!(make(&[segments.to_vec(), vec![missing]].concat(), image.path(), None).is_err());
        is_as_before();
        make(&segments, image.path(), None).unwrap().keep();
        assert_eq!((text("data"), text("link")), ("then".into(), "then".into()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "what was there is gone");
    }

    #[test]
    fn journal_undoes_changes_of_a_killed_restore() {
        let (folder, image) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (path, journals) = (|name: &str| folder.path().join(name), image.path().join("journals"));
        let text = |name: &str| fs::read_to_string(path(name)).unwrap_or_default();
        let segments = segments_beside_others(folder.path(), image.path());
        let restore = || make(&segments, image.path(), Some(Journal::create_below(&journals).unwrap())).unwrap();
        let undo = || change_journal::abandoned_below(&journals).map(made_files::undo_journal).count();
        let living = restore();
        assert_eq!((undo(), text("data")), (0, "then".into()), "it lives");
        living.kill();
        assert_eq!((undo(), text("data"), text("link")), (1, "now".into(), "now".into()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left over");
        assert_eq!(fs::read_dir(&journals).unwrap().count(), 0);
        // It was killed after it noted a change, and before it made it.
        let journal = restore().kill();
        File::options().append(true).open(&journal).unwrap().write_all(b"{\"made\":{\"path\":\"/").unwrap();
        assert_eq!((undo(), text("data"), text("link")), (1, "now".into(), "now".into()));
        // The job of this one went on.
        let made_files = restore();
        made_files.note_committed().unwrap();
        made_files.kill();
        assert_eq!((undo(), text("data"), text("link")), (1, "then".into(), "then".into()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "what was there is gone");
    }

    #[test]
    fn undo_spares_files_made_after_a_killed_restore() {
        let (folder, image) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (path, journals) = (folder.path().join("data"), image.path().join("journals"));
        fs::write(image.path().join("copy"), "then").unwrap();
        let stat = fs::metadata(image.path().join("copy")).unwrap();
        let segment = Segment { path: path.clone(), ..segment_of(&stat) };
        make(&[segment], image.path(), Some(Journal::create_below(&journals).unwrap())).unwrap().kill();
        // In most file systems a new file gets the inode number at once.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "newer").unwrap();
        assert_eq!(change_journal::abandoned_below(&journals).map(made_files::undo_journal).count(), 1);
        assert_eq!(fs::read_to_string(path).unwrap(), "newer");
    }

    #[test]
    fn a_socket_whose_name_criu_takes_has_it_again_unless_the_job_goes_on() {
        let (folder, image) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = folder.path().join("socket");
        let name = [path.to_str().unwrap().as_bytes(), b"\0"].concat();
        let socket = Message::default().number(1, 1).number(2, 7).bytes(11, &name).encoded();
        let entry = Message::default().number(1, 6).number(2, 1).bytes(files_img::UNIX_SOCKET_FIELD, &socket).encoded();
        let length = u32::try_from(entry.len()).unwrap().to_le_bytes();
        let list = [&files_img::IMAGE_FILE_MAGIC[..], &files_img::FILES_MAGIC, &length, &entry].concat();
        fs::write(image.path().join("files.img"), list).unwrap();
        let bind = || (fs::remove_file(&path).unwrap_or_default(), UnixListener::bind(&path).unwrap()).1;
        let inode = || fs::metadata(&path).unwrap().ino();
        let _listener = bind();
        let first = inode();
        let is_alone = || assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left over");
        // CRIU has not replaced the socket, or has failed after that.
        drop(make(&[], image.path(), None).unwrap());
        assert_eq!(inode(), first);
        is_alone();
        let made_files = make(&[], image.path(), None).unwrap();
        drop(bind());
        drop(made_files);
        assert_eq!(inode(), first);
        is_alone();
        // CRIU has restored the job.
        let made_files = make(&[], image.path(), None).unwrap();
        let _of_the_job = bind();
        drop(made_files.restored().unwrap());
        assert_eq!(inode(), first);
        is_alone();
        // The owner has bound another socket meanwhile.
        let made_files = make(&[], image.path(), None).unwrap();
        let _of_the_job = bind();
        let made_files = made_files.restored().unwrap();
        let _second = bind();
        let second = inode();
        drop(made_files);
        assert_eq!(inode(), second);
        is_alone();
        let made_files = make(&[], image.path(), None).unwrap();
        let _of_the_job = bind();
        let of_the_job = inode();
        made_files.restored().unwrap().keep();
        assert_eq!(inode(), of_the_job);
        is_alone();
    }

    #[test]
    fn undo_spares_names_taken_by_another_process() {
        let (folder, image) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = |name: &str| folder.path().join(name);
        fs::write(image.path().join("copy"), "then").unwrap();
        let stat = fs::metadata(image.path().join("copy")).unwrap();
        let segment = Segment { path: path("data"), ..segment_of(&stat) };
        fs::write(path("data"), "now").unwrap();
        // Another user guesses the name beside it.
        let beside = path(&format!("data.katydid-{}-0", std::process::id()));
        std::os::unix::fs::symlink(image.path().join("copy"), &beside).unwrap();
        let made_files = make(&[segment], image.path(), None).unwrap();
        assert_eq!(fs::read_to_string(path("data")).unwrap(), "then");
        fs::write(path("saved"), "newer").unwrap();
        fs::rename(path("saved"), path("data")).unwrap();
        drop(made_files);
        assert_eq!(fs::read_to_string(path("data")).unwrap(), "newer");
        let other = path(&format!("data.katydid-{}-1", std::process::id()));
        assert_eq!(fs::read_to_string(other).unwrap(), "now", "nothing is lost");
        assert!(fs::symlink_metadata(beside).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(image.path().join("copy")).unwrap(), "then");
    }

    #[test]
    fn a_link_to_nothing_on_the_way_to_a_file_stays() {
        let (folder, image) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path().join("none"), &link).unwrap();
        fs::write(image.path().join("copy"), "then").unwrap();
        let stat = fs::metadata(image.path().join("copy")).unwrap();
        let segment = Segment { path: link.join("below/data"), ..segment_of(&stat) };
        make(&[segment], image.path(), None).unwrap_err();
        assert!(fs::symlink_metadata(&link).is_ok_and(|stat| stat.is_symlink()), "the restore has not made it");
    }

    fn segment_of(stat: &Metadata) -> Segment {
        let (kind, owner) = (SharedFileKind::Mapped, (stat.uid(), stat.gid()));
        let (copy, links, criu_names) = ("copy".into(), Vec::new(), Vec::new());
        Segment { path: PathBuf::new(), copy, mode: 0o600, owner, kind, links, criu_names }
    }

    #[test]
    fn a_folder_of_a_socket_comes_back_where_it_is_gone() {
        let (folder, image) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let subfolder = folder.path().join("with a space");
        fs::create_dir(&subfolder).unwrap();
        fs::set_permissions(&subfolder, Permissions::from_mode(0o770)).unwrap();
        let _bound = UnixListener::bind(subfolder.join("listener")).unwrap();
        let us = [Process { pid: std::process::id(), parent: 1, state: 'R' }];
        let stdio = [StandardStream::Other, StandardStream::Other, StandardStream::Other];
        let mut saved = save(&us, &stdio, &[], image.path()).unwrap();
        saved.retain(|segment| segment.path.starts_with(folder.path()));
        assert_eq!(saved.len(), 1, "{saved:?}");
        assert!(make(&saved, image.path(), None).unwrap().is_empty(), "what is there stays");
        fs::remove_dir_all(&subfolder).unwrap();
        let made_files = make(&saved, image.path(), None).unwrap();
        assert_eq!(fs::metadata(&subfolder).unwrap().mode() & 0o170_777, 0o40_770);
        drop(made_files);
        assert!(!subfolder.exists(), "a restore that fails leaves nothing");
    }

    #[test]
    fn a_file_that_has_lost_its_name_comes_back_under_all_others() {
        let (folder, image) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = |name: &str| folder.path().join(name);
        let mut file = File::create(path("lost")).unwrap();
        file.write_all(b"then").unwrap();
        for name in ["one", "other", "link_remap.9"] {
            fs::hard_link(path("lost"), path(name)).unwrap();
        }
        fs::remove_file(path("lost")).unwrap();
        let us = [Process { pid: std::process::id(), parent: 1, state: 'R' }];
        let stdio = [StandardStream::Other, StandardStream::Other, StandardStream::Other];
        let mut saved = save(&us, &stdio, &[path("link_remap.9")], image.path()).unwrap();
        saved.retain(|segment| segment.path.starts_with(folder.path()));
        assert_eq!(saved.len(), 1, "{saved:?}");
        let names: Vec<&PathBuf> = Segment::names_of(&saved, &path("link_remap.9")).collect();
        assert_eq!(names, [&path("one"), &path("other")]);
        fs::remove_file(path("link_remap.9")).unwrap();
        // A file that exists stays.
        file.write_all(b" and now").unwrap();
        drop(make(&saved, image.path(), None).unwrap());
        assert!(!path("link_remap.9").exists());
        assert_eq!(fs::read(path("one")).unwrap(), b"then and now");
        fs::remove_file(path("one")).unwrap();
        fs::remove_file(path("other")).unwrap();
        let made_files = make(&saved, image.path(), None).unwrap();
        let inodes: Vec<u64> =
            ["one", "other", "link_remap.9"].map(|name| fs::metadata(path(name)).unwrap().ino()).into();
        assert!(inodes.iter().all(|inode| *inode == inodes[0]));
        assert_eq!(fs::read(path("other")).unwrap(), b"then");
        drop(made_files);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_with_an_unknown_name_is_refused() {
        let (folder, image) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = |name: &str| folder.path().join(name);
        let _file = File::create(path("lost")).unwrap();
        fs::create_dir(path("elsewhere")).unwrap();
        for name in ["link_remap.9", "elsewhere/one"] {
            fs::hard_link(path("lost"), path(name)).unwrap();
        }
        fs::remove_file(path("lost")).unwrap();
        let us = [Process { pid: std::process::id(), parent: 1, state: 'R' }];
        let stdio = [StandardStream::Other, StandardStream::Other, StandardStream::Other];
        let error = save(&us, &stdio, &[path("link_remap.9")], image.path()).unwrap_err();
        assert!(error.to_string().contains("another name"), "{error}");
    }
}
