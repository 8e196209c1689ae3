//! System calls that a thread makes for itself, and that no other process can make for it.
//!
//! The thread is traced (`ptrace`) for as long as that takes, and runs an instruction for system calls that its vDSO has. The rule: it
//! comes back to the registers, the signal mask and the stop that it had, and no signal reaches it meanwhile.

#![expect(unsafe_code, reason = "tracing has no safe interface")]

use std::fs::{self, File};
use std::io;
use std::mem::zeroed;
use std::os::unix::fs::FileExt as _;
use std::ptr::null_mut;

use libc::{c_long, c_uint, c_void, pid_t, user_regs_struct};

/// The instruction of a system call.
const SYSCALL_INSTRUCTION: [u8; 2] = [0x0f, 0x05];
/// Bytes of a signal mask.
const MASK_SIZE: usize = 8;
/// What marks the stops at the begin and at the end of a system call (`PTRACE_O_TRACESYSGOOD`).
const SYSCALL_STOP_SIGNAL: i32 = libc::SIGTRAP | 0x80;
/// Stops on the way to one of these that are passed over.
const MAX_STOPS: u32 = 16;
/// Bytes of memory for arguments.
const SCRATCH_SIZE: u64 = 4096;

/// A thread that is traced. Dropped: it stands or runs as before.
pub(crate) struct Tracee {
    tid: pid_t,
    saved: user_regs_struct,
    mask: u64,
    /// The address of an instruction for system calls.
    gate: u64,
    memory: File,
    /// Memory of its process for arguments; 0 for none.
    scratch: u64,
}

impl Tracee {
    /// Attaches to a thread with `ptrace`.
    pub(crate) fn attach(pid: u32, tid: u32) -> io::Result<Self> {
        let tid = pid_t::try_from(tid).map_err(io::Error::other)?;
        seize(tid)?;
        Self::of_seized(pid, tid).inspect_err(|_| drop(trace(libc::PTRACE_DETACH, tid, 0, null_mut())))
    }

    /// Looks at the memory once the thread is stopped: until then it may be about to have another program's (`execve`).
    fn of_seized(pid: u32, tid: pid_t) -> io::Result<Self> {
        let (saved, mask) = stopped(tid)?;
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"));
        let found = memory.and_then(|memory| Ok((gate(pid, &memory)?, memory)));
        let (gate, memory) = found.inspect_err(|_| drop(set_mask(tid, mask)))?;
        Ok(Self { tid, saved, mask, gate, memory, scratch: 0 })
    }

    /// Has the thread make a system call.
    pub(crate) fn call(&self, number: c_long, arguments: [u64; 6]) -> io::Result<u64> {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        // Without a number of its own: nothing that was interrupted before is begun again.
        let (rip, rax, orig_rax) = (self.gate, number.cast_unsigned(), u64::MAX);
        let mut registers = user_regs_struct { rip, rax, orig_rax, rdi, rsi, rdx, r10, r8, r9, ..self.saved };
        trace(libc::PTRACE_SETREGS, self.tid, 0, (&raw mut registers).cast())?;
        for _begin_and_end in 0..2 {
            self.run_to_syscall()?;
        }
        trace(libc::PTRACE_GETREGS, self.tid, 0, (&raw mut registers).cast())?;
        match registers.rax.cast_signed() {
            code @ -4095..0 => Err(io::Error::from_raw_os_error(i32::try_from(-code).unwrap_or(libc::EINVAL))),
            _ => Ok(registers.rax),
        }
    }

    /// Where in the memory of the process these bytes are now.
    pub(crate) fn copy_in(&mut self, bytes: &[u8]) -> io::Result<u64> {
        if self.scratch == 0 {
            let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
            let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
            self.scratch = self.call(libc::SYS_mmap, [0, SCRATCH_SIZE, protection, flags, u64::MAX, 0])?;
        }
        self.memory.write_all_at(bytes, self.scratch)?;
        Ok(self.scratch)
    }

    fn run_to_syscall(&self) -> io::Result<()> {
        for _ in 0..MAX_STOPS {
            trace(libc::PTRACE_SYSCALL, self.tid, 0, null_mut())?;
            if wait(self.tid)? == SYSCALL_STOP_SIGNAL {
                return Ok(());
            }
        }
        Err(io::Error::other("the thread does not come to its system call"))
    }

    /// Has the thread be where it was.
    fn put_back(&mut self) -> io::Result<()> {
        if self.scratch != 0 {
            self.call(libc::SYS_munmap, [self.scratch, SCRATCH_SIZE, 0, 0, 0, 0])?;
        }
        trace(libc::PTRACE_SETREGS, self.tid, 0, (&raw mut self.saved).cast())?;
        // What it was in the middle of is begun again by the kernel on the way back from a stop, not from a system call.
        trace(libc::PTRACE_INTERRUPT, self.tid, 0, null_mut())?;
        trace(libc::PTRACE_CONT, self.tid, 0, null_mut())?;
        wait(self.tid)?;
        set_mask(self.tid, self.mask)
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        // A thread that has ended is where it will be.
        let _ = self.put_back();
        let _ = trace(libc::PTRACE_DETACH, self.tid, 0, null_mut());
    }
}

/// Begins to trace. Filters of system calls do not count meanwhile, where we may have it so.
fn seize(tid: pid_t) -> io::Result<()> {
    let options = [libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_SUSPEND_SECCOMP, libc::PTRACE_O_TRACESYSGOOD];
    let mut outcome = Ok(());
    for option in options {
        let data = std::ptr::without_provenance_mut::<c_void>(option as usize);
        outcome = trace(libc::PTRACE_SEIZE, tid, 0, data);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// Waits until the thread is stopped, and has it hear no signal; its registers and its signal mask.
fn stopped(tid: pid_t) -> io::Result<(user_regs_struct, u64)> {
    trace(libc::PTRACE_INTERRUPT, tid, 0, null_mut())?;
    wait(tid)?;
    // SAFETY: plain numbers, of which every bit pattern is a value.
    let (mut registers, mut mask): (user_regs_struct, u64) = (unsafe { zeroed() }, 0);
    trace(libc::PTRACE_GETREGS, tid, 0, (&raw mut registers).cast())?;
    trace(libc::PTRACE_GETSIGMASK, tid, MASK_SIZE, (&raw mut mask).cast())?;
    set_mask(tid, u64::MAX).map(|()| (registers, mask))
}

fn set_mask(tid: pid_t, mut mask: u64) -> io::Result<()> {
    trace(libc::PTRACE_SETSIGMASK, tid, MASK_SIZE, (&raw mut mask).cast())
}

/// The signal by which the thread stops next.
fn wait(tid: pid_t) -> io::Result<i32> {
    loop {
        let mut status = 0;
        // SAFETY: the output is a local. A thread that is traced is ours to wait for.
        let found = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL) };
        match found {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            -1 => return Err(io::Error::last_os_error()),
            _ if libc::WIFSTOPPED(status) => return Ok(libc::WSTOPSIG(status)),
            _ => return Err(io::Error::other("the thread has ended")),
        }
    }
}

fn trace(request: c_uint, tid: pid_t, address: usize, data: *mut c_void) -> io::Result<()> {
    let address = std::ptr::without_provenance_mut::<c_void>(address);
    // SAFETY: the callers give a structure of the request's kind, or none where it takes none.
    let done = unsafe { libc::ptrace(request, tid, address, data) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// An instruction for system calls in the vDSO, where the kernel has the program make some.
fn gate(pid: u32, memory: &File) -> io::Result<u64> {
    let none = || io::Error::other("the process has no vDSO");
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let line = maps.lines().find(|line| line.ends_with("[vdso]")).ok_or_else(none)?;
    let (start, end) = range(line).ok_or_else(none)?;
    let mut code = vec![0; usize::try_from(end.saturating_sub(start)).map_err(io::Error::other)?];
    memory.read_exact_at(&mut code, start)?;
    let at = code.windows(SYSCALL_INSTRUCTION.len()).position(|bytes| bytes == SYSCALL_INSTRUCTION).ok_or_else(none)?;
    Ok(start + at as u64)
}

/// Begin and end of a line of `maps`.
pub(crate) fn range(line: &str) -> Option<(u64, u64)> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Command, Stdio};

    use rustix::process::{Signal, kill_process};

    use super::*;
    use crate::process::tree;

    /// A process that was just started may still be about to run its program, whose memory is then another one.
    #[test]
    fn a_process_that_begins_a_program_is_attached_to() {
        for _ in 0..50 {
            let mut sleep = std::process::Command::new("/bin/sleep").arg("1000").spawn().unwrap();
            let traced = Tracee::attach(sleep.id(), sleep.id());
            assert_eq!(traced.unwrap().call(libc::SYS_getpid, [0; 6]).unwrap(), u64::from(sleep.id()));
            sleep.kill().unwrap();
            sleep.wait().unwrap();
        }
    }

    #[test]
    fn a_thread_makes_a_call_and_goes_on_where_it_was() {
        let mut command = Command::new("/bin/sh");
        // A shell whose `read` was interrupted by a signal reads again.
        command.args(["-c", "trap 'echo heard' USR1; echo ready; until read line; do :; done; echo $line"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let pid = tree::raw(child.id()).unwrap();
        for is_stopped in [false, true] {
            if is_stopped {
                kill_process(pid, Signal::STOP).unwrap();
            }
            let mut tracee = Tracee::attach(child.id(), child.id()).unwrap();
            assert_eq!(tracee.call(libc::SYS_getpid, [0; 6]).unwrap(), u64::from(child.id()));
            let refused = tracee.call(libc::SYS_close, [u64::MAX, 0, 0, 0, 0, 0]).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EBADF));
            let name = tracee.copy_in(b"traced\0").unwrap();
            tracee.call(libc::SYS_prctl, [libc::PR_SET_NAME as u64, name, 0, 0, 0, 0]).unwrap();
            // It is heard when the thread is let go.
            kill_process(pid, Signal::USR1).unwrap();
            assert_eq!(tracee.call(libc::SYS_getppid, [0; 6]).unwrap(), u64::from(std::process::id()));
            drop(tracee);
            assert_eq!(fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap(), "traced\n");
        }
        kill_process(pid, Signal::CONT).unwrap();
        child.stdin.take().unwrap().write_all(b"line\n").unwrap();
        let rest: Vec<String> = lines.map(Result::unwrap).collect();
        assert!(rest.contains(&"heard".to_owned()), "{rest:?}");
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn a_range_is_read_of_a_line() {
        assert_eq!(range("7ffd1000-7ffd3000 r-xp 00000000 00:00 0  [vdso]"), Some((0x7ffd_1000, 0x7ffd_3000)));
        assert_eq!(range("7ffd1000"), None);
    }
}
