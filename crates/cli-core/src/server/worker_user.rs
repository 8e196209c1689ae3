//! The user that workers run as, where a server of root's is told one.

#![expect(unsafe_code, reason = "asks the system's library for a user")]

use std::ffi::{CStr, CString, OsString};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStringExt;
use std::ptr;

use katydid_daemon::WorkerUser;
use rustix::process::geteuid;

use crate::output::failure::Failure;

/// Room for the strings of an entry.
const ENTRY_BYTES: usize = 64 << 10;
/// Groups of a user at most.
const GROUPS: usize = 4096;

/// The user of a name, and its home.
///
/// # Errors
///
/// There is none, or the server is not root and cannot become another user.
pub fn find(name: &str) -> Result<(WorkerUser, OsString), Failure> {
    if !geteuid().is_root() {
        return Err(Failure::usage("--worker-user: only a server that runs as root can start workers as another user"));
    }
    let unknown = || Failure::usage(format!("--worker-user: there is no user {name} here"));
    let spelled = CString::new(name).map_err(|_| unknown())?;
    let mut entry = MaybeUninit::<libc::passwd>::zeroed();
    let (mut room, mut found) = (vec![0; ENTRY_BYTES], ptr::null_mut());
    // SAFETY: the name ends with a NUL, the room is as large as said, and all outlive the call.
    let code = unsafe {
        libc::getpwnam_r(spelled.as_ptr(), entry.as_mut_ptr(), room.as_mut_ptr(), room.len(), &raw mut found)
    };
    if code != 0 || found.is_null() {
        return Err(unknown());
    }
    // SAFETY: the call has filled the entry in.
    let libc::passwd { pw_uid: uid, pw_gid: gid, pw_dir, .. } = unsafe { entry.assume_init() };
    // SAFETY: a string in the room, which is still there.
    let home = unsafe { CStr::from_ptr(pw_dir) }.to_bytes().to_vec();
    if uid == 0 {
        return Err(Failure::usage("--worker-user: root is what the server runs as; name a user with fewer rights"));
    }
    let mut groups = vec![0; GROUPS];
    let mut count = i32::try_from(GROUPS).unwrap_or(0);
    // SAFETY: the name ends with a NUL, and there is room for so many groups.
    let listed = unsafe { libc::getgrouplist(spelled.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) };
    groups.truncate(if listed < 0 { 0 } else { usize::try_from(count).unwrap_or(0) });
    Ok((WorkerUser { uid, gid, groups }, OsString::from_vec(home)))
}
