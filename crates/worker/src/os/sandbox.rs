//! What a worker gives up before it meets a program: most files, most of the kernel, all privileges.
//!
//! A worker runs code that others wrote: a driver's, which reads what programs send, and on processors the programs' own.
//! Whatever that code does, it can do only what is allowed here. Both layers apply to every thread and child of the process for
//! good, so they are set up before there is any other thread.
//!
//! | layer | what it holds |
//! |---|---|
//! | [`root`] (mount namespace) | names of files and of unix sockets outside of the lists; of a server that runs as root |
//! | [`files`] (Landlock) | files outside of the lists; the memory and environment of other processes; signals to them; TCP |
//! | [`calls`] (seccomp) | sockets other than unix sockets; modes, owners and times of files; objects and processes that outlive the worker; system calls that no driver needs |
//! | no new privileges | set-user-id programs |
//! | [`user`] | other workers, where root runs the server: each has a user of its own |
//! | no capabilities | of a server that runs as root |
//!
//! A worker that serves only its own user keeps access to that user's files, which its programs can use as well.
//!
//! The rule: a refused call returns an error to its caller, and ends nothing.

#![expect(unsafe_code, reason = "gives capabilities up")]

mod calls;
mod files;
mod root;
mod user;

use std::io;
use std::path::PathBuf;

pub use files::{NamedFolder, has_nvidia, missing, named_folders};
pub use user::SandboxUser;
pub(crate) use user::is_own as has_own_user;

use rustix::fs::Mode;
use rustix::process::{geteuid, umask};

use calls::SandboxPurpose;
use files::AllowedPaths;

/// Files that a sandboxed worker may use, and the user that it becomes.
#[derive(Debug, Clone)]
pub enum Sandbox {
    /// Everything that its user may use: it serves only that user. A layer that the kernel refuses is left out.
    OwnUser,
    /// What drivers need, and these: it serves other users.
    Tenants {
        /// Folders to write to.
        writable: Vec<PathBuf>,
        /// Folders in which to keep regular files: nothing else can be made there.
        stores: Vec<PathBuf>,
        /// Files and folders to read.
        readable: Vec<PathBuf>,
        /// The user that it becomes; none if it stays the user that started it.
        user: Option<SandboxUser>,
    },
}

/// Why a worker cannot enter its sandbox.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SandboxError {
    /// The worker may have its own root folder, and the system refuses a part of it.
    #[error("cannot give a worker a root folder of its own: {0}; --no-sandbox starts workers without restrictions")]
    Root(io::Error),
    /// The system refuses to change the user.
    #[error("cannot run a worker as a user of its own: {0}; --worker-user root runs workers as the server's user")]
    User(io::Error),
    /// Landlock is available and fails.
    #[error("cannot restrict the files that a worker uses: {0}; --no-sandbox starts workers without restrictions")]
    Files(#[from] landlock::RulesetError),
    /// Seccomp is not available, or fails.
    #[error("cannot restrict the system calls of a worker: {0}; --no-sandbox starts workers without restrictions")]
    Calls(#[from] calls::CallsError),
    /// The process keeps capabilities of root.
    #[error("cannot give up root's capabilities: {0}; --no-sandbox starts workers without restrictions")]
    Capabilities(io::Error),
}

/// Returns whether this process can give workers their own root folder, in which they find what they need wherever it lies.
#[must_use]
pub fn has_own_root() -> bool {
    root::may_mount()
}

impl Sandbox {
    /// Enters the sandbox. The process must have one thread.
    pub(crate) fn enter(&self) -> Result<(), SandboxError> {
        let user = self.user();
        // Folders made here must be accessible to another user.
        let previous_umask = user.map(|_| umask(Mode::from_raw_mode(0o022)));
        let allowed = self.allowed();
        let serves = self.serves();
        let is_strict = serves != SandboxPurpose::OwnUser;
        if is_strict {
            root::enter(&allowed.all()).map_err(SandboxError::Root)?;
        }
        if let (Some(user), Some(previous_umask)) = (user, previous_umask) {
            umask(previous_umask);
            user.enter().map_err(SandboxError::User)?;
        }
        let children_only = self.require(files::restrict(&allowed, is_strict))?.unwrap_or(false);
        self.require(give_up_capabilities().map_err(SandboxError::Capabilities))?;
        self.require(calls::restrict(children_only, serves))?;
        Ok(())
    }

    fn allowed(&self) -> AllowedPaths {
        match self {
            Self::OwnUser => AllowedPaths::everything(),
            Self::Tenants { writable, stores, readable, user } => {
                AllowedPaths::with(readable, writable, stores, user.as_ref())
            }
        }
    }

    fn serves(&self) -> SandboxPurpose {
        match self {
            Self::OwnUser => SandboxPurpose::OwnUser,
            Self::Tenants { .. } if has_nvidia() => SandboxPurpose::TenantsBesideNvidia { has_mps: files::has_mps() },
            Self::Tenants { .. } => SandboxPurpose::Tenants,
        }
    }

    /// Returns the user that it has yet to become. After a re-exec it is that user already.
    fn user(&self) -> Option<&SandboxUser> {
        match self {
            Self::Tenants { user, .. } => user.as_ref().inspect(|user| user.note()).filter(|_| geteuid().is_root()),
            Self::OwnUser => None,
        }
    }

    /// The output of a layer; `None` where it failed and is optional.
    fn require<T, E: Into<SandboxError>>(&self, layer: Result<T, E>) -> Result<Option<T>, SandboxError> {
        match (layer, self) {
            (Ok(output), _) => Ok(Some(output)),
            (Err(_), Self::OwnUser) => Ok(None),
            (Err(error), Self::Tenants { .. }) => Err(error.into()),
        }
    }
}

/// The head of `capset`'s arguments: version 3, this thread.
#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

/// Version 3 of the interface, with 64 capabilities.
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

/// Drops all capabilities, so that a process of root has only the rights that owner and mode of files grant. With no new
/// privileges, a child gets no capabilities back.
fn give_up_capabilities() -> io::Result<()> {
    let head = CapHeader { version: CAPABILITY_VERSION_3, pid: 0 };
    // Effective, permitted and inheritable, for two words of capabilities.
    let none = [[0_u32; 3]; 2];
    // SAFETY: both arguments have version 3's layout and outlive the call.
    match unsafe { libc::syscall(libc::SYS_capset, &raw const head, none.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
