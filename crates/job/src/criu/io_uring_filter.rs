//! Keeps io_uring from the programs of a job, because CRIU cannot dump its rings.
//!
//! libuv makes a ring for every loop, so each process of PyTorch's `TCPStore` would have one, and no environment variable
//! prevents that. Programs ask for a ring and do without if the kernel refuses, as in most containers. So a seccomp filter
//! refuses the call here. A program has the filter from its start, and passes it on to its children; CRIU saves and restores it.

#![expect(unsafe_code, reason = "the filter is given to the kernel by a call that has no safe form")]

use std::io;
use std::mem::offset_of;
use std::os::unix::process::CommandExt;
use std::process::Command;

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, seccomp_data, sock_filter, sock_fprog};

/// `AUDIT_ARCH_X86_64` of the kernel: 64-bit system calls.
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const RETURN_ERROR_ACTION: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

/// Refuses `io_uring_setup` with ENOSYS, as a kernel without io_uring does, and allows every other call.
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

/// Continues with the next statement if the value is `k`; else skips `count` statements.
const fn skip_unless(k: u32, count: u8) -> sock_filter {
    sock_filter { code: (BPF_JMP | BPF_JEQ | BPF_K) as u16, jt: 0, jf: count, k }
}

/// Makes the command, and all its descendants, run without io_uring. A user who may not filter (without `CAP_SYS_ADMIN`) starts
/// it all the same. The other way to be allowed, `no_new_privs`, would take privileges from it.
pub fn refuse(command: &mut Command) {
    let filter = || {
        // If the kernel cannot filter, or refuses, a dump will say what CRIU cannot save.
        let _ = install();
        Ok(())
    };
    // SAFETY: between fork and exec it makes one system call, and allocates nothing.
    unsafe { command.pre_exec(filter) };
}

/// Installs the filter for this thread, and for the threads and processes that it starts.
fn install() -> io::Result<()> {
    let program = sock_fprog { len: IO_URING_FILTER.len() as u16, filter: IO_URING_FILTER.as_ptr().cast_mut() };
    // SAFETY: the kernel reads the program and its statements, which outlive the call, and writes nothing.
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            // Without the flag, older kernels slow a filtered process down, as if it ran untrusted code.
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

    /// The kernel's error for a ring without parameters, which no process can have.
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
            // A process that may not filter can use io_uring as before.
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
