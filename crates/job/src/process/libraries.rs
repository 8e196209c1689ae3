//! Katydid's own libraries in the processes of a job: saves them in the image, and gives them to the restored job.
//!
//! A process goes on with the code that it has mapped, and CRIU maps the very same files again. An installation may be upgraded,
//! moved or removed meanwhile. So the image has those files, recognized by their note (`build_note`). If one is not at its path
//! any more at the restore, the job gets a copy in its folder, and CRIU's list of files names that.
//!
//! The rule: the restore compares first what a program was built against. An image of a build that this one does not understand
//! is refused before anything begins.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use katydid_image::{Build, ChunkId, ImageError, ImageSource, Library, Region, Sink};
use katydid_scratch::private;
use katydid_wire::build_note::LibraryBuild;
use rustix::fs::StatVfsMountFlags;

use crate::criu::files_img::RenamedFile;
use crate::criu::{files_img, link_remap};
use crate::process::memory::maps::{self, MemoryMapping};
use crate::process::tree::Process;
use crate::supervisor::folder;
use crate::system::why;

/// Bytes of a chunk of a library.
const LIBRARY_COPY_BYTES: usize = 1 << 20;
/// Largest library in bytes.
const MAX_LIBRARY_BYTES: u64 = 1 << 30;
/// Limits for reading an ELF file: most program headers, most bytes of one segment of notes.
const MAX_HEADERS: usize = 64;
const MAX_NOTES: usize = 1 << 16;
/// Lengths of an ELF file's header and of a program header, and the type of a segment of notes.
const ELF_HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const PT_NOTE: u32 = 4;

/// Why a restored job cannot have a library.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// A program has a library that this build does not understand.
    #[error(
        "its program runs with {saved_build}, which this {own_build} does not understand: restore it with `katydid` and a server of {}",
        saved_build.release
    )]
    OtherBuild {
        /// The library that the program has mapped.
        saved_build: Box<LibraryBuild>,
        /// The library of this build.
        own_build: Box<LibraryBuild>,
    },
    /// Code in the job's folder could not be executed.
    #[error(
        "{}: nothing that lies there may be executed (noexec), so the job cannot have its own {library}: mount it without noexec, or install that build of Katydid again where it was",
        folder.display()
    )]
    NoExec {
        /// Path of the job's folder.
        folder: PathBuf,
        /// Path of the library at the checkpoint.
        library: String,
    },
    /// The image cannot be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The operating system refused.
    #[error("{}: {}", path.display(), why(source))]
    System {
        /// Path of the library's file.
        path: PathBuf,
        /// Error that the system returned.
        source: io::Error,
    },
}

fn system(path: &Path) -> impl Fn(io::Error) -> LibraryError {
    move |source| LibraryError::System { path: path.to_owned(), source }
}

/// Saves Katydid's libraries that the processes of a tree have mapped.
///
/// # Errors
///
/// The image cannot be written. A process or file that vanishes meanwhile is skipped.
pub(crate) fn save(tree: &[Process], sink: &dyn Sink) -> Result<Vec<Library>, ImageError> {
    let mut libraries = Vec::new();
    for (mapping, file) in opened(tree) {
        let Some(build) = build_of(&file) else { continue };
        let (Ok(stat), Some(path)) = (file.metadata(), mapping.path().and_then(Path::to_str)) else { continue };
        let Some(contents) = put_library(path, &file, stat.len(), sink)? else { continue };
        let build = Build {
            protocol: build.protocol,
            job_protocol: build.job_protocol,
            interface: ChunkId::from_bytes(build.spec_hash),
            release: build.release,
        };
        libraries.push(Library {
            path: path.to_owned(),
            deleted: mapping.is_deleted(),
            mode: stat.mode(),
            build,
            contents,
        });
    }
    Ok(unambiguous(libraries))
}

/// Every file that a process of the tree has mapped as code, once: privately, and executable.
fn opened(tree: &[Process]) -> Vec<(MemoryMapping, File)> {
    let (mut names, mut files) = (BTreeSet::new(), Vec::new());
    for pid in tree.iter().map(|process| process.pid) {
        for mapping in maps::of(pid).into_iter().filter(|mapping| mapping.rights == "r-xp") {
            if let Some(path) = mapping.path()
                && names.insert((path.to_owned(), mapping.inode))
                && let Some(file) = open(&mapping, path, pid)
            {
                files.push((mapping, file));
            }
        }
    }
    files
}

/// Opens the very file that is mapped, if that is possible.
fn open(mapping: &MemoryMapping, path: &Path, pid: u32) -> Option<File> {
    let is_it = |file: &File| file.metadata().is_ok_and(|stat| stat.is_file() && stat.ino() == mapping.inode);
    let by_name = || fs::metadata(link_remap::rooted(pid, path)).is_ok_and(|stat| stat.is_file());
    let named = (!mapping.is_deleted() && by_name()).then(|| File::open(link_remap::rooted(pid, path)).ok());
    named.flatten().filter(is_it).or_else(|| File::open(mapping.link(pid)).ok().filter(is_it))
}

/// The build of one of Katydid's libraries; `None` for any other file.
fn build_of(file: &File) -> Option<LibraryBuild> {
    let header = piece(file, 0, ELF_HEADER_BYTES)?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (at, size) = (long(&header, 32)?, usize::from(short(&header, 54)?));
    let count = usize::from(short(&header, 56)?).min(MAX_HEADERS);
    if size != PROGRAM_HEADER_BYTES {
        return None;
    }
    let headers = piece(file, at, count * PROGRAM_HEADER_BYTES)?;
    let notes = headers.chunks_exact(PROGRAM_HEADER_BYTES).filter(|header| header.starts_with(&PT_NOTE.to_le_bytes()));
    notes.filter_map(|header| Some((long(header, 8)?, long(header, 32)?))).find_map(|(at, bytes)| {
        let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= MAX_NOTES)?;
        LibraryBuild::find(&piece(file, at, bytes)?)
    })
}

fn piece(file: &File, at: u64, bytes: usize) -> Option<Vec<u8>> {
    let mut piece = vec![0; bytes];
    file.read_exact_at(&mut piece, at).ok().map(|()| piece)
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))
}

/// Writes the bytes of a library to the image; `None` if it is too large, or becomes shorter meanwhile.
fn put_library(name: &str, file: &File, length: u64, sink: &dyn Sink) -> Result<Option<Region>, ImageError> {
    if length == 0 || length > MAX_LIBRARY_BYTES {
        return Ok(None);
    }
    let mut region = Region {
        kind: "library".to_owned(),
        name: name.to_owned(),
        bytes: length,
        chunk_bytes: LIBRARY_COPY_BYTES as u32,
        ..Region::default()
    };
    for at in (0..length).step_by(LIBRARY_COPY_BYTES) {
        let bytes = usize::try_from(length - at).unwrap_or(LIBRARY_COPY_BYTES).min(LIBRARY_COPY_BYTES);
        let Some(chunk) = piece(file, at, bytes) else { return Ok(None) };
        region.chunks.push(sink.put(&chunk)?);
    }
    Ok(Some(region))
}

/// Leaves out files that had the same name, since CRIU's list does not distinguish them.
fn unambiguous(libraries: Vec<Library>) -> Vec<Library> {
    let mut times: BTreeMap<(String, bool), u32> = BTreeMap::new();
    for library in &libraries {
        *times.entry((library.path.clone(), library.deleted)).or_default() += 1;
    }
    let is_one = |library: &Library| times.get(&(library.path.clone(), library.deleted)) == Some(&1);
    libraries.into_iter().filter(is_one).collect()
}

/// Checks that this build understands the programs of an image.
///
/// # Errors
///
/// [`LibraryError::OtherBuild`].
pub(crate) fn check(libraries: &[Library]) -> Result<(), LibraryError> {
    let builds = libraries.iter().map(|library| LibraryBuild {
        protocol: library.build.protocol,
        job_protocol: library.build.job_protocol,
        spec_hash: *library.build.interface.as_bytes(),
        release: library.build.release.clone(),
    });
    match builds.into_iter().find(|build| !build.is_understood()) {
        None => Ok(()),
        Some(saved_build) => Err(LibraryError::OtherBuild {
            saved_build: Box::new(saved_build),
            own_build: Box::new(LibraryBuild::current()),
        }),
    }
}

/// Files that CRIU restores from.
#[derive(Debug)]
pub(crate) struct RestoreFiles {
    /// The folder of CRIU's files.
    pub(crate) files: PathBuf,
    /// Libraries that are gone from their paths.
    pub(crate) missing: Vec<PathBuf>,
}

/// The folders of a restore.
#[derive(Debug)]
pub(crate) struct Folders<'a> {
    /// The files of the dump.
    pub(crate) files: &'a Path,
    /// The job's folder, and its path as the job's processes see it.
    pub(crate) folder: &'a Path,
    pub(crate) known_folder: &'a Path,
    /// Folder for files that CRIU reads in place of the dump's.
    pub(crate) work: &'a Path,
}

/// Gives the job each library that is gone from its path.
///
/// # Errors
///
/// See [`LibraryError`]. Files that were written lie in the job's folder, and go with it.
pub(crate) fn restore_files(
    libraries: &[Library],
    source: &dyn ImageSource,
    folders: &Folders<'_>,
) -> Result<RestoreFiles, LibraryError> {
    let (mut renamed, mut missing) = (Vec::new(), Vec::new());
    for library in libraries {
        let from = Path::new(&library.path);
        if !library.deleted && is_present(library) {
            continue;
        }
        let name = below_the_folder(library);
        write(library, source, &folders.folder.join(&name), folders.folder)?;
        let to = folders.known_folder.join(&name);
        if to != from || library.deleted {
            renamed.push(RenamedFile { from: from.to_owned(), is_lost: library.deleted, to });
        }
        if !from.exists() && !from.starts_with(folders.known_folder) {
            missing.push(from.to_owned());
        }
    }
    let files = if renamed.is_empty() { folders.files.to_owned() } else { with_names(folders, &renamed)? };
    Ok(RestoreFiles { files, missing })
}

/// Whether the file at a library's path is that library.
fn is_present(library: &Library) -> bool {
    let path = Path::new(&library.path);
    // Not a device or a FIFO, since opening one may block.
    let is_like_it = fs::metadata(path).is_ok_and(|stat| stat.is_file() && stat.len() == library.contents.bytes);
    let Some(file) = is_like_it.then(|| File::open(path).ok()).flatten() else { return false };
    let mut chunks = library.contents.chunks.iter().enumerate();
    chunks.all(|(index, id)| {
        let bytes = library.contents.chunk_len(index).and_then(|bytes| piece(&file, offset(library, index), bytes));
        bytes.is_some_and(|bytes| ChunkId::of(&bytes) == *id)
    })
}

fn offset(library: &Library, index: usize) -> u64 {
    u64::from(library.contents.chunk_bytes) * index as u64
}

/// The path of a library in the job's folder, which is the same for the same bytes.
fn below_the_folder(library: &Library) -> PathBuf {
    let names: Vec<u8> = library.contents.chunks.iter().flat_map(|id| *id.as_bytes()).collect();
    let digits: String = ChunkId::of(&names).as_bytes()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let name = Path::new(&library.path).file_name().unwrap_or_default();
    Path::new(folder::LIBRARIES_FOLDER).join(digits).join(name)
}

fn write(library: &Library, source: &dyn ImageSource, to: &Path, folder: &Path) -> Result<(), LibraryError> {
    let flags = rustix::fs::statvfs(folder).map_err(|error| system(folder)(error.into()))?.f_flag;
    if flags.contains(StatVfsMountFlags::NOEXEC) {
        return Err(LibraryError::NoExec { folder: folder.to_owned(), library: library.path.clone() });
    }
    let above = to.parent().unwrap_or(folder);
    private::folders(above).map_err(system(above))?;
    let mut file = private::create(to).map_err(system(to))?;
    for (index, id) in library.contents.chunks.iter().enumerate() {
        let mut chunk = vec![0; library.contents.chunk_len(index).unwrap_or(0)];
        source.read(id, &mut chunk)?;
        file.write_all(&chunk).map_err(system(to))?;
    }
    let mode = fs::Permissions::from_mode(library.mode & 0o700);
    file.set_permissions(mode).map_err(system(to))
}

/// Makes a folder with CRIU's files, in which those about names are rewritten.
fn with_names(folders: &Folders<'_>, renamed: &[RenamedFile]) -> Result<PathBuf, LibraryError> {
    let folder = folders.work.join("files");
    private::folder(&folder).map_err(system(&folder))?;
    for entry in fs::read_dir(folders.files).map_err(system(folders.files))? {
        let name = entry.map_err(system(folders.files))?.file_name();
        if !files_img::FILE_NAMES.iter().any(|own| name == **own) {
            symlink(folders.files.join(&name), folder.join(&name)).map_err(system(&folder))?;
        }
    }
    files_img::rename(folders.files, &folder, renamed).map_err(system(&folder))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use katydid_image::{CheckpointChoice, Image, Options};
    use katydid_wire::build_note::BuildNote;

    use super::*;

    fn library(path: &str, deleted: bool, release: &str) -> Library {
        let LibraryBuild { protocol, job_protocol, spec_hash, .. } = LibraryBuild::current();
        let interface = ChunkId::from_bytes(spec_hash);
        let build = Build { protocol, job_protocol, interface, release: release.to_owned() };
        Library { path: path.to_owned(), deleted, mode: 0o100_755, build, contents: Region::default() }
    }

    #[test]
    fn files_that_are_run_are_found_and_opened() {
        let us = [Process { pid: std::process::id(), parent: 1, state: 'R' }];
        let found = opened(&us);
        let exe = std::env::current_exe().unwrap();
        assert!(found.iter().all(|(mapping, _)| mapping.rights == "r-xp" && mapping.path().is_some()));
        let (mapping, file) = found.iter().find(|(mapping, _)| mapping.path() == Some(&exe)).unwrap();
        assert_eq!(file.metadata().unwrap().ino(), mapping.inode);
        assert_eq!(build_of(file), None, "it has no note");
    }

    /// An ELF file with nothing in it but a segment of notes.
    fn elf(notes: &[u8]) -> Vec<u8> {
        let mut file = vec![0; ELF_HEADER_BYTES + PROGRAM_HEADER_BYTES];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[32] = ELF_HEADER_BYTES as u8;
        (file[54], file[56]) = (PROGRAM_HEADER_BYTES as u8, 1);
        file[ELF_HEADER_BYTES] = PT_NOTE as u8;
        file[ELF_HEADER_BYTES + 8] = (ELF_HEADER_BYTES + PROGRAM_HEADER_BYTES) as u8;
        file[ELF_HEADER_BYTES + 32..ELF_HEADER_BYTES + 40].copy_from_slice(&(notes.len() as u64).to_le_bytes());
        file.extend(notes);
        file
    }

    #[test]
    fn a_library_is_known_by_its_note() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("library");
        let opened = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            build_of(&File::open(&path).unwrap())
        };
        let whole = elf(BuildNote::current().bytes());
        assert_eq!(opened(&whole), Some(LibraryBuild::current()));
        for length in 0..whole.len() {
            assert_eq!(opened(&whole[..length]), None, "{length}");
        }
    }

    #[test]
    fn a_build_that_is_not_understood_is_refused_by_name() {
        check(&[library("/a", false, "0.0.9")]).unwrap();
        let mut saved_build = library("/a", false, "0.0.8");
        saved_build.build.protocol += 1;
        let error = check(&[library("/b", false, "0.1.0"), saved_build]).unwrap_err().to_string();
        assert!(error.contains("katydid 0.0.8") && error.contains("a server of 0.0.8"), "{error}");
    }

    #[test]
    fn namesakes_are_left_to_criu() {
        let libraries =
            vec![library("/a", true, ""), library("/a", false, ""), library("/b", true, ""), library("/b", true, "")];
        let left: Vec<(String, bool)> =
            unambiguous(libraries).into_iter().map(|library| (library.path, library.deleted)).collect();
        assert_eq!(left, [("/a".to_owned(), true), ("/a".to_owned(), false)]);
    }

    #[test]
    fn a_changed_library_is_copied_to_the_job_folder() {
        let (folder, work, image) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = work.path().join("libcuda.so.1");
        fs::write(&path, vec![7; LIBRARY_COPY_BYTES + 5]).unwrap();
        let image = Image::create_or_open(image.path()).unwrap();
        let writer = image.begin(Options::default()).unwrap();
        let file = File::open(&path).unwrap();
        let contents = put_library("/l", &file, LIBRARY_COPY_BYTES as u64 + 5, &writer).unwrap().unwrap();
        let library = Library { contents, ..library(path.to_str().unwrap(), false, "0.1.0") };
        let libraries = vec![library.clone()];
        writer.commit(katydid_image::Manifest { libraries: libraries.clone(), ..Default::default() }).unwrap();
        let reader = image.checkpoint(CheckpointChoice::Latest).unwrap();
        let known_folder = Path::new("/known");
        let folders = Folders { files: Path::new("/none"), folder: folder.path(), known_folder, work: work.path() };
        let placed = restore_files(&libraries, &reader, &folders).unwrap();
        assert_eq!((placed.files.as_path(), placed.missing.len()), (Path::new("/none"), 0));
        fs::write(&path, vec![8; LIBRARY_COPY_BYTES + 5]).unwrap();
        assert!(!is_present(&library));
        write(&library, &reader, &folder.path().join(below_the_folder(&library)), folder.path()).unwrap();
        assert_eq!(fs::read(folder.path().join(below_the_folder(&library))).unwrap(), vec![7; LIBRARY_COPY_BYTES + 5]);
    }
}
