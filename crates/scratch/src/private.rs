//! Files and folders that only their owner can access, whatever the umask of the parent process.
//!
//! Files with a program's contents are made by these functions, with their mode from the start. They are never made by
//! `File::create` or `create_dir`, whose modes depend on the umask.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Mode of a private file.
const PRIVATE_FILE_MODE: u32 = 0o600;
/// Mode of a private folder.
const PRIVATE_FOLDER_MODE: u32 = 0o700;

/// Creates a file, or empties an existing one, which becomes private too. A device or a pipe keeps its mode: `/dev/null`
/// belongs to all users. A file that cannot become private keeps its contents.
///
/// # Errors
///
/// Error that the system returned.
pub fn create(path: &Path) -> io::Result<File> {
    let file = open(path)?;
    empty(&file)?;
    Ok(file)
}

/// Creates a file, or opens an existing one, which becomes private too but keeps its contents until [`empty`].
///
/// # Errors
///
/// Error that the system returned.
pub fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(PRIVATE_FILE_MODE).open(path)?;
    // An existing file, or a umask that restricts the owner. Sandboxed workers may not change modes.
    let there = file.metadata()?;
    if there.is_file() && there.permissions().mode() & 0o777 != PRIVATE_FILE_MODE {
        file.set_permissions(Permissions::from_mode(PRIVATE_FILE_MODE))?;
    }
    Ok(file)
}

/// Removes the contents of a file. A device or a pipe has none, and sandboxed workers may not truncate new files.
///
/// # Errors
///
/// Error that the system returned.
pub fn empty(file: &File) -> io::Result<()> {
    let there = file.metadata()?;
    if there.is_file() && there.len() != 0 { file.set_len(0) } else { Ok(()) }
}

/// Creates a file if the name is free; even a symbolic link counts as taken, since another user may write to the folder.
///
/// # Errors
///
/// Error that the system returned; `AlreadyExists` if the name is taken.
pub fn create_new(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE_FILE_MODE).open(path)?;
    file.set_permissions(Permissions::from_mode(PRIVATE_FILE_MODE))?;
    Ok(file)
}

/// Creates a file with these contents.
///
/// # Errors
///
/// Error that the system returned.
pub fn write(path: &Path, contents: impl AsRef<[u8]>) -> io::Result<()> {
    create(path)?.write_all(contents.as_ref())
}

/// Copies only the contents of a file.
///
/// # Errors
///
/// Error that the system returned.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    io::copy(&mut File::open(from)?, &mut create(to)?).map(drop)
}

/// Creates a private folder.
///
/// # Errors
///
/// Error that the system returned, also if the folder exists.
pub fn folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(PRIVATE_FOLDER_MODE).create(path)?;
    give_back(path)
}

/// Restores the owner's rights to a new folder after a umask. Sandboxed workers may not change modes, and need not with other
/// umasks. A folder that another process has removed meanwhile fails at its next use.
pub(crate) fn give_back(path: &Path) -> io::Result<()> {
    let changed = fs::metadata(path).and_then(|there| match there.permissions().mode() & 0o777 {
        PRIVATE_FOLDER_MODE => Ok(()),
        _ => fs::set_permissions(path, Permissions::from_mode(PRIVATE_FOLDER_MODE)),
    });
    match changed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        changed => changed,
    }
}

/// Creates a folder and its missing parents.
///
/// # Errors
///
/// Error that the system returned.
pub fn folders(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
        folders(above)?;
    }
    match folder(path) {
        // Another process was first.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        result => result,
    }
}

/// Makes a socket's name private. Call it before a process listens there, or in a folder of [`folder`]; otherwise another user
/// may have connected before.
///
/// # Errors
///
/// Error that the system returned.
pub fn close(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(PRIVATE_FILE_MODE))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::Scratch;

    #[test]
    fn mode_of_a_special_file_stays() {
        let folder = Scratch::new("katydid-private-test").unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::empty(), 0).unwrap();
        fs::set_permissions(&pipe, Permissions::from_mode(0o644)).unwrap();
        let _reader = OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
        create(&pipe).unwrap();
        assert_eq!(fs::metadata(&pipe).unwrap().permissions().mode() & 0o777, 0o644);
    }

    #[test]
    fn a_file_becomes_private_before_it_is_emptied() {
        let folder = Scratch::new("katydid-private-test").unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "older").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        let file = open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read(&path).unwrap(), b"older");
        empty(&file).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn only_the_owner_has_access_under_any_umask() {
        let above = tempfile::tempdir().unwrap();
        for umask in [0, 0o700, 0o777] {
            under(umask, above.path());
        }
    }

    fn under(umask: u32, above: &Path) {
        let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(umask));
        let scratch = Scratch::below(above, "test").unwrap();
        let at = |name: &str| scratch.path().join(name);
        folder(&at("a")).unwrap();
        folders(&at("b/c")).unwrap();
        write(&at("d"), "text").unwrap();
        fs::write(at("e"), "older").unwrap();
        fs::set_permissions(at("e"), Permissions::from_mode(0o666)).unwrap();
        copy(&at("d"), &at("e")).unwrap();
        rustix::process::umask(before);
        assert_eq!(fs::read(at("e")).unwrap(), b"text");
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(scratch.path()), 0o700);
        assert_eq!(["a", "b", "b/c"].map(|name| mode(&at(name))), [0o700; 3]);
        assert_eq!(["d", "e"].map(|name| mode(&at(name))), [0o600; 2]);
    }
}
