//! The files that a worker may use, by Landlock; and the other restrictions of Landlock.
//!
//! It may read programs and libraries, the system's information, and the folders of the chosen drivers. It may write to devices
//! of GPUs, its own temporary folder, and folders that a driver or the operator has named. It sees nothing of a home but the
//! drivers' caches, nothing of other users, and nothing of the server.

#![expect(unsafe_code, reason = "asks the kernel for its version of Landlock")]

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::ptr;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, Scope,
    path_beneath_rules,
};

use super::SandboxUser;

/// The ABI version that this module uses. An older kernel restricts less.
const WANTED_LANDLOCK_ABI: ABI = ABI::V6;
/// `LANDLOCK_CREATE_RULESET_VERSION`: asks for the ABI version (landlock_create_ruleset(2)).
const ASK_VERSION: u32 = 1;
/// Versions from which TCP, and signals, are restricted.
const FIRST_ABI_WITH_TCP: i64 = 4;
const FIRST_ABI_WITH_SIGNALS: i64 = 6;

/// Programs, libraries, and the system's information.
const SYSTEM_PATHS: [&str; 13] = [
    "/usr",
    "/lib",
    "/lib64",
    "/lib32",
    "/bin",
    "/sbin",
    "/opt",
    "/nix",
    "/gnu",
    "/snap",
    "/proc",
    "/sys",
    "/run/opengl-driver",
];
/// Folder of settings. Entries that every process may read are allowed, except [`PRIVATE_FOLDERS`].
const SETTINGS_FOLDER: &str = "/etc";
/// Its folders that may have keys of services.
const PRIVATE_FOLDERS: [&str; 13] = [
    "ssl",
    "pki",
    "ssh",
    "sudoers.d",
    "katydid",
    "letsencrypt",
    "kubernetes",
    "docker",
    "wireguard",
    "openvpn",
    "ipsec.d",
    "NetworkManager",
    "krb5.keytab",
];
/// The parent folder of homes.
const HOMES_FOLDER: &str = "/home";
/// The folder of devices.
const DEVICE_FOLDER: &str = "/dev";
/// Devices for any process.
const COMMON_DEVICES: [&str; 7] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/dri", "/dev/hugepages"];
/// Prefixes of the names of GPUs' devices.
const GPU_DEVICE_PREFIXES: [&str; 7] = ["nvidia", "nvhost", "nvmap", "dxg", "kfd", "gdrdrv", "infiniband"];
/// Paths that exist where NVIDIA's kernel module is loaded.
const NVIDIA_PATHS: [&str; 2] = ["/proc/driver/nvidia", "/dev/dxg"];
/// Paths that NVIDIA's driver writes to: memory between processes, and its services.
const NVIDIA_WRITES: [&str; 4] = ["/dev/shm", "/run/nvidia-persistenced", "/run/nvidia-fabricmanager", MPS_FOLDER];
/// Folder with the sockets of NVIDIA's service for several processes (MPS), unless the variable names another one.
const MPS_FOLDER: &str = "/tmp/nvidia-mps";
const MPS_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// Variables that name folders to which drivers write.
const WRITTEN_FOLDER_VARIABLES: [&str; 6] =
    ["TMPDIR", "CUDA_CACHE_PATH", "POCL_CACHE_DIR", MPS_VARIABLE, "CUDA_MPS_LOG_DIRECTORY", "KATYDID_SOFT_SHARED"];
/// Variables that name libraries or their folders, separated by colons.
const READ_PATH_VARIABLES: [&str; 6] =
    ["LD_LIBRARY_PATH", "LD_PRELOAD", "KATYDID_LIB", "OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "KATYDID_OPENCL_DRIVERS"];
/// Variables that make the driver write dumps of faults into the current folder.
const COREDUMP_VARIABLES: [&str; 3] =
    ["CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "CUDA_ENABLE_USER_TRIGGERED_COREDUMP", "CUDA_ENABLE_LIGHTWEIGHT_COREDUMP"];
/// Variables that name files to which drivers write.
const WRITTEN_FILE_VARIABLES: [&str; 3] = ["CUDA_COREDUMP_FILE", "CUDA_COREDUMP_PIPE", "KATYDID_SOFT_DISPLACE"];

/// Returns the version of the kernel's Landlock; none without Landlock.
fn version() -> Option<i64> {
    // SAFETY: with this flag the call takes no ruleset, and only returns the version.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, ptr::null::<u8>(), 0_usize, ASK_VERSION) };
    (version > 0).then_some(version)
}

/// Returns what the sandbox does not restrict on this kernel, in words.
#[must_use]
pub fn missing() -> Option<&'static str> {
    match version() {
        None => Some(
            "this kernel has no Landlock: workers are not kept from files, processes and signals of the server's user \
             (see SECURITY.md; Linux 5.13 and later have it, unless it is left out of lsm=)",
        ),
        Some(version) if version < FIRST_ABI_WITH_TCP => Some(
            "this kernel's Landlock is older than Linux 6.7: workers are not kept from reconnecting sockets that they were \
             given, nor from sending signals to processes of the server's user",
        ),
        Some(version) if version < FIRST_ABI_WITH_SIGNALS => Some(
            "this kernel's Landlock is older than Linux 6.12: workers are not kept from sending signals to processes of \
             the server's user",
        ),
        Some(_) => None,
    }
}

/// Files and folders that a worker may use.
pub(super) struct AllowedPaths {
    readable: Vec<PathBuf>,
    writable: Vec<PathBuf>,
    /// Folders in which regular files may be kept.
    stores: Vec<PathBuf>,
}

impl AllowedPaths {
    /// Allows writing everywhere.
    pub(super) fn everything() -> Self {
        Self { readable: Vec::new(), writable: vec![PathBuf::from("/")], stores: Vec::new() }
    }

    /// Allows what drivers need, according to the environment, and further files and folders. Creates folders that drivers would
    /// make themselves.
    pub(super) fn with(
        readable: &[PathBuf],
        writable: &[PathBuf],
        stores: &[PathBuf],
        user: Option<&SandboxUser>,
    ) -> Self {
        Self { readable: self::readable(readable), writable: self::writable(writable, user), stores: stores.to_vec() }
    }

    /// Returns all of them. The folders of settings and devices are whole; Landlock refuses the entries that are not allowed.
    pub(super) fn all(&self) -> Vec<PathBuf> {
        [SETTINGS_FOLDER, DEVICE_FOLDER]
            .iter()
            .map(PathBuf::from)
            .chain(self.readable.iter().chain(&self.writable).chain(&self.stores).cloned())
            .collect()
    }
}

/// Restricts this thread, and all its descendants. Returns whether the kernel has Landlock.
///
/// Whatever files are allowed, the memory of other processes, signals to them and TCP are refused. With `is_strict`, so are
/// abstract unix sockets.
pub(super) fn restrict(allowed: &AllowedPaths, is_strict: bool) -> Result<bool, RulesetError> {
    if version().is_none() {
        return Ok(false);
    }
    let everything = AccessFs::from_all(WANTED_LANDLOCK_ABI);
    let ruleset = Ruleset::default()
        .handle_access(everything)?
        .handle_access(AccessNet::from_all(WANTED_LANDLOCK_ABI))?
        .scope(if is_strict { Scope::Signal | Scope::AbstractUnixSocket } else { Scope::Signal.into() })?
        .create()?;
    let ruleset = ruleset.add_rules(path_beneath_rules(&allowed.readable, AccessFs::from_read(WANTED_LANDLOCK_ABI)))?;
    let ruleset = ruleset.add_rules(path_beneath_rules(&allowed.stores, in_stores()))?;
    ruleset.add_rules(path_beneath_rules(&allowed.writable, everything))?.restrict_self()?;
    Ok(true)
}

/// Returns the rights in folders that workers share: folders, links and sockets of one worker would disturb the others. Those
/// that exist all the same may be removed.
fn in_stores() -> BitFlags<AccessFs> {
    let files = AccessFs::MakeReg | AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::WriteFile;
    files | AccessFs::Truncate | AccessFs::RemoveFile | AccessFs::RemoveDir
}

/// Returns the paths that may be read and executed.
fn readable(further: &[PathBuf]) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = SYSTEM_PATHS.iter().map(PathBuf::from).collect();
    paths.extend(settings(Path::new(SETTINGS_FOLDER)));
    let named = READ_PATH_VARIABLES.iter().filter_map(env::var_os).collect::<Vec<_>>();
    let named = named.iter().flat_map(env::split_paths).filter(|path| path.is_absolute());
    for path in named.chain(further.iter().cloned()).chain(env::current_exe()) {
        paths.extend(Some(path.clone()).filter(|path| path.is_file()));
        paths.extend(around(&path));
        // A link may lead to a library that lies elsewhere with its data.
        paths.extend(fs::canonicalize(&path).ok().and_then(|real| around(&real)));
        paths.extend(libraries_named_in(&path));
    }
    paths
}

/// Returns the entries of the settings' folder that every process may read.
fn settings(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_private =
        |path: &Path| path.file_name().is_none_or(|name| PRIVATE_FOLDERS.iter().any(|it| name == OsStr::new(it)));
    let is_open = |path: &Path| fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o004 != 0);
    entries.map(|entry| entry.path()).filter(|path| !is_private(path) && is_open(path)).collect()
}

/// Returns a library's folder, or a folder itself. For one in a `lib`, returns everything that it was installed with, unless that
/// is a home.
fn around(path: &Path) -> Option<PathBuf> {
    let folder = if path.is_dir() { path } else { path.parent()? };
    let is_lib = |it: &&Path| it.file_name().is_some_and(|name| ["lib", "lib64", "bin"].iter().any(|lib| name == *lib));
    let root = folder.ancestors().take(3).find(is_lib).and_then(Path::parent).filter(|root| !holds_a_home(root));
    Some(root.unwrap_or(folder).to_owned()).filter(|found| !holds_a_home(found))
}

/// Returns whether the folder may have a user's own files: it is the root, in a home, or above one.
fn holds_a_home(folder: &Path) -> bool {
    let own = env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    let is_of_others =
        folder.parent().is_none_or(|above| above == Path::new(HOMES_FOLDER)) || folder == Path::new(HOMES_FOLDER);
    is_of_others || own.is_some_and(|home| home.starts_with(folder))
}

/// Returns the surroundings of libraries named in the files of a vendors' folder.
fn libraries_named_in(vendors: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(vendors).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = files.filter(|path| path.extension() == Some(OsStr::new("icd")));
    let lines = files.filter_map(|file| fs::read_to_string(file).ok());
    lines.filter_map(|text| around(Path::new(text.lines().next()?.trim()))).collect()
}

/// Returns the paths that may be written, too.
fn writable(further: &[PathBuf], user: Option<&SandboxUser>) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = COMMON_DEVICES.iter().map(PathBuf::from).collect();
    let devices = fs::read_dir(DEVICE_FOLDER).into_iter().flatten().flatten();
    let is_gpu =
        |name: &OsStr| GPU_DEVICE_PREFIXES.iter().any(|start| name.as_encoded_bytes().starts_with(start.as_bytes()));
    paths.extend(devices.filter(|entry| is_gpu(&entry.file_name())).map(|entry| entry.path()));
    // For names of threads.
    paths.push("/proc/self".into());
    if has_nvidia() {
        paths.extend(NVIDIA_WRITES.iter().map(PathBuf::from));
        paths.extend(compute_cache(user));
    }
    let named = |names: &[&str]| names.iter().filter_map(env::var_os).map(PathBuf::from).collect::<Vec<_>>();
    for path in named(&WRITTEN_FOLDER_VARIABLES) {
        // Drivers make a cache themselves, but in the sandbox they no longer could.
        let is_there = path.exists() || make(&path, user);
        let folder = if path.is_dir() { Some(path.as_path()) } else { path.parent() };
        paths.extend(folder.filter(|_| is_there).map(PathBuf::from));
    }
    paths.extend(named(&WRITTEN_FILE_VARIABLES).iter().filter_map(|file| file.parent()).map(PathBuf::from));
    if COREDUMP_VARIABLES.iter().any(|name| env::var_os(name).is_some_and(|value| value != "0")) {
        paths.extend(env::current_dir());
    }
    paths.extend(further.iter().cloned());
    paths
}

/// A folder that workers write to, named by a variable of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedFolder {
    /// Name of the environment variable.
    pub variable: &'static str,
    /// The folder; it need not exist.
    pub path: PathBuf,
    /// Whether workers of several users can share it, if its mode lets them. Drivers' caches and services belong to one user.
    pub may_share: bool,
}

/// Returns all named folders except those for temporary files, of which each worker has its own.
#[must_use]
pub fn named_folders() -> Vec<NamedFolder> {
    let set = |variable: &'static str| env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folders = WRITTEN_FOLDER_VARIABLES.iter().filter(|variable| **variable != "TMPDIR").filter_map(|variable| {
        Some(NamedFolder { variable, path: set(variable)?, may_share: *variable == "KATYDID_SOFT_SHARED" })
    });
    let files = WRITTEN_FILE_VARIABLES.iter().filter_map(|variable| {
        Some(NamedFolder { variable, path: set(variable)?.parent()?.to_owned(), may_share: true })
    });
    let is_on = |variable: &&&str| env::var_os(variable).is_some_and(|value| value != "0");
    let dumps = COREDUMP_VARIABLES
        .iter()
        .find(is_on)
        .and_then(|variable| Some(NamedFolder { variable, path: env::current_dir().ok()?, may_share: true }));
    folders.chain(files).chain(dumps).collect()
}

/// Returns whether NVIDIA's kernel module is loaded.
#[must_use]
pub fn has_nvidia() -> bool {
    NVIDIA_PATHS.iter().any(|path| Path::new(path).exists())
}

/// Returns whether NVIDIA's service for several processes (MPS) runs where a worker would find it.
pub(super) fn has_mps() -> bool {
    let folder = env::var_os(MPS_VARIABLE).filter(|value| !value.is_empty());
    folder.map_or_else(|| PathBuf::from(MPS_FOLDER), PathBuf::from).join("control").exists()
}

/// Returns the cache of NVIDIA's driver for compiled code. Creates it if it does not exist.
fn compute_cache(user: Option<&SandboxUser>) -> Option<PathBuf> {
    let folder = PathBuf::from(env::var_os("HOME")?).join(".nv");
    let cache = folder.join("ComputeCache");
    let is_there = cache.is_dir() || (make(&folder, user) && make(&cache, user));
    is_there.then_some(folder)
}

/// Creates a folder for the user that the worker becomes.
fn make(folder: &Path, user: Option<&SandboxUser>) -> bool {
    let result = fs::create_dir_all(folder);
    result.and_then(|()| user.map_or(Ok(()), |user| user.give(folder))).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_brings_what_it_was_installed_with() {
        let found = |path: &str| around(Path::new(path)).map(|path| path.display().to_string());
        assert_eq!(found("/x/pocl/lib/libpocl.so.2").as_deref(), Some("/x/pocl"));
        assert_eq!(found("/x/usr/lib/x86_64-linux-gnu/libpocl.so.2").as_deref(), Some("/x/usr"));
        assert_eq!(found("/home/u/lib/libpocl.so").as_deref(), Some("/home/u/lib"));
        assert_eq!(found("/home/u/libpocl.so"), None);
        assert_eq!(found("/lib/x.so").as_deref(), Some("/lib"));
        assert_eq!(found("/x.so"), None);
    }

    #[test]
    fn settings_are_files_that_every_user_may_read() {
        let folder = tempfile::tempdir().unwrap();
        for (name, mode) in [("hosts", 0o644), ("shadow", 0o640), ("ssl", 0o755)] {
            fs::write(folder.path().join(name), "").unwrap();
            fs::set_permissions(folder.path().join(name), PermissionsExt::from_mode(mode)).unwrap();
        }
        assert_eq!(settings(folder.path()), [folder.path().join("hosts")]);
    }
}
