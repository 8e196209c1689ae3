//! The module cache: the folder in which a server keeps the code that programs have sent, and its size limit. The first of the
//! flags, the config file and the environment that sets a value decides.
//!
//! Only this user may write to the folder; if each worker has a user of its own, the group of all workers may. A named folder
//! that cannot be used is an error. If the default one cannot be used, code is kept for as long as the server runs, among
//! temporary files.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, DirEntry, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, fchown};
use std::path::{Path, PathBuf};

use katydid_client::cache;
use katydid_scratch::Scratch;
use katydid_server::RunsAs;
use katydid_worker::ModuleCache;

use crate::args::config::{self, ConfigFile};
use crate::args::size::Size;
use crate::output::failure::{Failure, print_message};

/// Default size limit: the code of a framework for one kind of GPU is some hundred megabytes.
const DEFAULT_SIZE: Size = Size(4 << 30);

/// Folder for caches of a machine's services.
const SYSTEM_CACHE: &str = "/var/cache/katydid";

/// Why a folder is refused.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The folder cannot be made, read or written to.
    #[error("{path}: cannot be the module cache: {source}; name another folder with --module-cache")]
    System {
        /// The file or folder.
        path: PathBuf,
        /// Error that the system returned.
        source: io::Error,
    },
    /// Another user could put files there, or remove them.
    #[error(
        "{path}: is not a folder that only you can write to; correct that, or name another one with --module-cache"
    )]
    Open {
        /// The file or folder.
        path: PathBuf,
    },
    /// It has another purpose, and workers must not get its files.
    #[error(
        "{path}: cannot be the module cache: {entry} lies there, which is not a module; name an empty or new folder with --module-cache"
    )]
    Foreign {
        /// Path of the folder.
        path: PathBuf,
        /// Name of the file that is not a module.
        entry: String,
    },
}

/// The module cache of a server.
pub struct ServerModuleCache {
    folder: PathBuf,
    size: Size,
    /// A temporary folder, which is removed with the server.
    _scratch: Option<Scratch>,
}

impl ServerModuleCache {
    /// Prepares the folder. Returns `None` if code cannot be kept at all; then programs send it each time.
    ///
    /// # Errors
    ///
    /// The config file is wrong, or a folder that the user named cannot be used.
    pub fn prepare(
        named: Option<PathBuf>,
        size_flag: Option<Size>,
        quiet: bool,
        runs_as: &RunsAs,
    ) -> Result<Option<Self>, Failure> {
        let file = config::own().map_err(Failure::usage)?.unwrap_or_default();
        let size = size(size_flag, &file)?;
        if let Some(named) = named.or(file.config.module_cache) {
            let folder = std::path::absolute(&named).unwrap_or(named);
            make_private(&folder, runs_as).map_err(Failure::usage)?;
            return Ok(Some(Self { folder, size, _scratch: None }));
        }
        // The caller's default folder stays the caller's: without a named folder, the cache of workers of another user is removed
        // with the server.
        let lasting = match runs_as {
            RunsAs::Server => default_folder(|name| env::var_os(name)),
            RunsAs::User(_) => None,
            RunsAs::OwnUser(_) => Some(tenants_folder(|name| env::var_os(name))),
        };
        match lasting.map(|folder| make_private(&folder, runs_as).map(|()| folder)) {
            Some(Ok(folder)) => return Ok(Some(Self { folder, size, _scratch: None })),
            Some(Err(error)) if !quiet => print_message(format_args!("{error}; it goes with this server")),
            _ => {}
        }
        let scratch = Scratch::new("modules").ok().filter(|scratch| give(scratch.path(), runs_as).is_ok());
        Ok(scratch.map(|scratch| Self { folder: scratch.path().to_owned(), size, _scratch: Some(scratch) }))
    }

    /// Arguments that make a worker use this cache.
    pub fn arguments(&self) -> [OsString; 4] {
        let (folder, size) = (self.folder.clone().into(), self.size.0.to_string().into());
        ["--module-cache".into(), folder, "--module-cache-size".into(), size]
    }
}

/// Refuses a config file with a malformed size of the module cache.
pub fn check_config(file: &ConfigFile) -> Result<(), Failure> {
    size(None, file).map(drop)
}

fn size(flag: Option<Size>, ConfigFile { path, config }: &ConfigFile) -> Result<Size, Failure> {
    let config_size = config.module_cache_size.as_deref().map(str::parse::<Size>).transpose();
    let config_size =
        config_size.map_err(|error| Failure::usage(format!("{}: module_cache_size: {error}", path.display())))?;
    Ok(flag.or(config_size).unwrap_or(DEFAULT_SIZE))
}

/// The default folder, if none is named.
fn default_folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    Some(cache::folder(variable)?.join("modules"))
}

/// Default folder if workers have users of their own, which cannot enter root's home.
fn tenants_folder(variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let named = variable("KATYDID_CACHE").map(PathBuf::from).filter(|path| path.is_absolute());
    named.map_or_else(|| PathBuf::from(SYSTEM_CACHE), |cache| cache.join("tenants")).join("modules")
}

/// Gives a folder to the users of the workers, if those differ from this one.
fn give(path: &Path, runs_as: &RunsAs) -> io::Result<()> {
    match runs_as {
        RunsAs::Server => Ok(()),
        RunsAs::User(user) => chown(path, Some(user.uid), Some(user.gid)),
        RunsAs::OwnUser(users) => {
            share(path, users.group(), 0o770)?;
            // Also the files of former workers, whose user numbers others have by now, or of a former group.
            for file in fs::read_dir(path)?.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
            {
                share(&file.path(), users.group(), 0o660)?;
            }
            Ok(())
        }
    }
}

/// Gives a file or folder to root and to its group. A link that a worker has put in its place meanwhile stays as it is.
fn share(path: &Path, group: u32, mode: u32) -> io::Result<()> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        // A worker of another server has removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let found = file.metadata()?;
    // A second name of another file would give away that file.
    if !found.is_dir() && (!found.is_file() || found.nlink() != 1) {
        return Ok(());
    }
    fchown(&file, Some(0), Some(group))?;
    file.set_permissions(Permissions::from_mode(mode))
}

/// Makes the folder if it is missing, and refuses one to which others than the workers' users could write.
fn make_private(path: &Path, runs_as: &RunsAs) -> Result<(), FolderError> {
    let system = |source| FolderError::System { path: path.to_owned(), source };
    // Workers must be able to pass through the folders above.
    if let (RunsAs::OwnUser(_), Some(above)) = (runs_as, path.parent()) {
        DirBuilder::new().recursive(true).mode(0o755).create(above).map_err(system)?;
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(system)?;
    let metadata = fs::metadata(path).map_err(system)?;
    let (owner, group) = match runs_as {
        RunsAs::Server => (None, None),
        RunsAs::User(user) => (Some(user.uid), None),
        RunsAs::OwnUser(users) => (None, Some(users.group())),
    };
    let is_ours = metadata.uid() == rustix::process::geteuid().as_raw() || owner == Some(metadata.uid());
    let may_others = metadata.mode() & if group == Some(metadata.gid()) { 0o002 } else { 0o022 };
    if !is_ours || may_others != 0 {
        return Err(FolderError::Open { path: path.to_owned() });
    }
    let foreign = fs::read_dir(path).map_err(system)?.flatten().find(|entry| is_foreign(entry, runs_as));
    if let Some(foreign) = foreign {
        let entry = foreign.file_name().to_string_lossy().into_owned();
        return Err(FolderError::Foreign { path: path.to_owned(), entry });
    }
    check_writable(path).and_then(|()| give(path, runs_as)).map_err(system)
}

/// Whether an entry shows that the folder is not a module cache. If its files are given to the workers' group, only entries of
/// file systems and other servers are accepted besides modules. Otherwise folders and hidden files are accepted too.
fn is_foreign(entry: &DirEntry, runs_as: &RunsAs) -> bool {
    let name = entry.file_name();
    let is_left =
        name == "lost+found" || [".nfs", ".tmp"].iter().any(|start| name.as_bytes().starts_with(start.as_bytes()));
    let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
    let passes = is_left || (!matches!(runs_as, RunsAs::OwnUser(_)) && (!is_file || name.as_bytes().starts_with(b".")));
    !ModuleCache::owns(&name) && !passes
}

/// Checks that files can be created in a folder, or, if it is missing, in the nearest existing one above.
///
/// # Errors
///
/// The system's error: the folder is another user's, or its file system is mounted read-only.
pub fn check_writable(path: &Path) -> io::Result<()> {
    let there = path.ancestors().find(|above| above.exists()).unwrap_or(Path::new("."));
    // Only creating a file finds all obstacles. The file has no name if the file system has such files.
    tempfile::tempfile_in(there).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::config::Config;

    #[test]
    fn the_cache_of_the_desktop_standard_comes_before_home() {
        let with = |names: &'static [&str]| move |name: &str| names.contains(&name).then(|| format!("/{name}").into());
        let folder = |names| default_folder(with(names));
        assert_eq!(folder(&["KATYDID_CACHE", "XDG_CACHE_HOME"]), Some("/KATYDID_CACHE/modules".into()));
        assert_eq!(folder(&["XDG_CACHE_HOME", "HOME"]), Some("/XDG_CACHE_HOME/katydid/modules".into()));
        assert_eq!(folder(&["HOME"]), Some("/HOME/.cache/katydid/modules".into()));
        assert_eq!(folder(&[]), None);
        assert_eq!(default_folder(|_| Some("relative".into())), None);
    }

    #[test]
    fn a_folder_is_made_for_us_alone_and_one_of_others_is_refused() {
        let above = tempfile::tempdir().unwrap();
        let folder = above.path().join("a/b");
        make_private(&folder, &RunsAs::Server).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o770)).unwrap();
        assert!(matches!(make_private(&folder, &RunsAs::Server), Err(FolderError::Open { .. })));
        let file = above.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(matches!(make_private(&file, &RunsAs::Server), Err(FolderError::System { .. })));
    }

    #[test]
    fn a_folder_that_is_for_something_else_is_refused_and_one_of_modules_is_not() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a".repeat(64), "new-x".to_owned()] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        // Names that file systems and other servers leave in a folder.
        [".nfs0001", ".tmpAbc"].iter().for_each(|name| fs::write(folder.path().join(name), "").unwrap());
        fs::create_dir(folder.path().join("lost+found")).unwrap();
        make_private(folder.path(), &RunsAs::Server).unwrap();
        fs::write(folder.path().join("letter.txt"), "").unwrap();
        let error = make_private(folder.path(), &RunsAs::Server).unwrap_err().to_string();
        assert!(error.contains("letter.txt") && error.contains("--module-cache"), "{error}");
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_is_refused_with_the_reason() {
        let above = tempfile::tempdir().unwrap();
        assert!(check_writable(above.path()).is_ok() && check_writable(&above.path().join("a/b")).is_ok());
        let file = above.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(check_writable(&file).is_err() && check_writable(&file.join("below")).is_err());
        assert_eq!(fs::read_dir(above.path()).unwrap().count(), 1, "a trial has left something");
        // Not even root can create files there.
        let kernel_s = Path::new("/proc/self/fdinfo");
        assert!(check_writable(kernel_s).is_err() && make_private(kernel_s, &RunsAs::Server).is_err());
    }

    #[test]
    fn a_wrong_size_in_the_config_file_is_named() {
        let with = |size: &str| ConfigFile {
            path: "config.toml".into(),
            config: Config { module_cache_size: Some(size.into()), ..Config::default() },
        };
        let Err(error) = size(None, &with("much")) else { unreachable!() };
        assert!(error.to_string().starts_with("config.toml: module_cache_size: "), "{error}");
        assert_eq!(size(None, &with("2G")).unwrap(), Size(2 << 30));
        assert_eq!(size(Some(Size(5)), &with("2G")).unwrap(), Size(5));
    }
}
