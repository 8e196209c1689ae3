//! Rings of the kernel for input and output (io_uring), without which the programs of a job do: CRIU cannot dump them.
//!
//! libuv makes one for every loop, so that each process of PyTorch's `TCPStore` would have one, and no variable of its
//! environment prevents that. Programs ask for a ring and do without where there is none, as in most containers, where
//! the same call is refused. So it is refused here: by a filter of system calls that a program has from its beginning,
//! and passes on to its children; CRIU saves it and brings it back.

#![expect(unsafe_code, reason = "the filter is given to the kernel by a call that has no safe form")]

use std::io;
use std::mem::offset_of;
use std::os::unix::process::CommandExt;
use std::process::Command;

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, seccomp_data, sock_filter, sock_fprog};

/// `AUDIT_ARCH_X86_64` of the kernel: calls of 64 bits.
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const RETURN_ERROR_ACTION: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

/// Refuses `io_uring_setup` with ENOSYS, as a kernel that has none, and lets every other call be.
static IO_URING_FILTER: [sock_filter; 6] = [
    statement(BPF_LD | BPF_W | BPF_ABS, offset_of!(seccomp_data, arch) as u32),
    skip_unless(AUDIT_ARCH_X86_64, 3),
    statement(BPF_LD | BPF_W | BPF_ABS, offset_of!(seccomp_data, nr) as u32),
    skip_unless(libc::SYS_io_uring_setup as u32, 1),
    statement(BPF_RET | BPF_K, RETURN_ERROR_ACTION),
    statement(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW),
];

const fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Goes on with the next statement if the value is `k`, else `count` behind it.
const fn skip_unless(k: u32, count: u8) -> sock_filter {
    sock_filter { code: (BPF_JMP | BPF_JEQ | BPF_K) as u16, jt: 0, jf: count, k }
}

/// Has what is started, and all that it starts, do without rings. A user who may not filter (without `CAP_SYS_ADMIN`) starts
/// it all the same: the other way to be allowed, `no_new_privs`, would take from it what it may do.
pub fn refuse(command: &mut Command) {
    let filter = || {
        // A kernel that cannot filter, or does not let us, refuses: a dump will say what CRIU cannot keep.
        let _ = install();
        Ok(())
    };
    // SAFETY: between fork and exec it makes one system call, and allocates nothing.
    unsafe { command.pre_exec(filter) };
}

/// From here on, for this thread and the threads and processes that it starts.
fn install() -> io::Result<()> {
    let program = sock_fprog { len: IO_URING_FILTER.len() as u16, filter: IO_URING_FILTER.as_ptr().cast_mut() };
    // SAFETY: the kernel reads the program and its statements, which outlive the call, and writes nothing.
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            // Older kernels slow a filtered process down otherwise, as if it ran untrusted code.
            libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW,
            &raw const program,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// What the kernel says of a ring that no process could have: there is no room for what it would tell of it.
    fn ring_error() -> Option<i32> {
        // SAFETY: without parameters the kernel makes nothing and writes nothing.
        unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, std::ptr::null_mut::<u8>()) };
        io::Error::last_os_error().raw_os_error()
    }

    #[test]
    fn a_ring_is_refused_as_by_a_kernel_that_has_none() {
        let (installed, asked_then, others) = thread::spawn(|| {
            let installed = install();
            (installed, ring_error(), std::fs::metadata("/").is_ok())
        })
        .join()
        .unwrap();
        match installed {
            Ok(()) => assert_eq!((asked_then, others), (Some(libc::ENOSYS), true)),
            // A process that may not filter has io_uring as before.
            Err(error) => assert_eq!((error.raw_os_error(), asked_then), (Some(libc::EACCES), ring_error())),
        }
    }

    #[test]
    fn a_program_runs_whether_or_not_it_can_be_refused() {
        let mut command = Command::new("/bin/true");
        refuse(&mut command);
        assert!(command.status().unwrap().success());
    }
}
