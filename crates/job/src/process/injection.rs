//! Makes a thread of another process execute system calls that only the thread itself can make.
//!
//! The thread is traced (`ptrace`) meanwhile, and runs a system call instruction of its vDSO. The rule: afterwards it has its old
//! registers, signal mask and stop again, and no signal reaches it meanwhile.

#![expect(unsafe_code, reason = "tracing has no safe interface")]

use std::fs::File;
use std::io;
use std::mem::zeroed;
use std::os::unix::fs::FileExt as _;
use std::ptr::null_mut;

use libc::{c_long, c_uint, c_void, pid_t, user_regs_struct};

use crate::process::memory::maps;

/// The instruction of a system call.
const SYSCALL_INSTRUCTION: [u8; 2] = [0x0f, 0x05];
/// Bytes of a signal mask.
const MASK_SIZE: usize = 8;
/// Marks the stops at the entry and exit of a system call (`PTRACE_O_TRACESYSGOOD`).
const SYSCALL_STOP_SIGNAL: i32 = libc::SIGTRAP | 0x80;
/// Most other stops that are skipped on the way to such a stop.
const MAX_STOPS: u32 = 16;
/// Bytes of memory for arguments.
const SCRATCH_SIZE: u64 = 4096;

/// A thread that is traced. Dropping it lets the thread stand or run as before.
pub(crate) struct Tracee {
    tid: pid_t,
    saved: user_regs_struct,
    mask: u64,
    /// Address of a system call instruction.
    gate: u64,
    memory: File,
    /// Memory for arguments in the thread's process; 0 for none.
    scratch: u64,
}

impl Tracee {
    /// Attaches to a thread with `ptrace`.
    pub(crate) fn attach(pid: u32, tid: u32) -> io::Result<Self> {
        let tid = pid_t::try_from(tid).map_err(io::Error::other)?;
        seize(tid)?;
        Self::of_seized(pid, tid).inspect_err(|_| drop(trace(libc::PTRACE_DETACH, tid, 0, null_mut())))
    }

    /// Inspects the memory once the thread is stopped: until then it may still execute another program (`execve`).
    fn of_seized(pid: u32, tid: pid_t) -> io::Result<Self> {
        let (saved, mask) = stopped(tid)?;
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"));
        let found = memory.and_then(|memory| Ok((gate(pid, &memory)?, memory)));
        let (gate, memory) = found.inspect_err(|_| drop(set_mask(tid, mask)))?;
        Ok(Self { tid, saved, mask, gate, memory, scratch: 0 })
    }

    /// Makes the thread execute a system call.
    pub(crate) fn call(&self, number: c_long, arguments: [u64; 6]) -> io::Result<u64> {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        // Without a system call number in `orig_rax` the kernel restarts no interrupted call.
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

    /// Copies bytes into the process, and returns their address there.
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

    /// Restores the state of the thread.
    fn put_back(&mut self) -> io::Result<()> {
        if self.scratch != 0 {
            self.call(libc::SYS_munmap, [self.scratch, SCRATCH_SIZE, 0, 0, 0, 0])?;
        }
        trace(libc::PTRACE_SETREGS, self.tid, 0, (&raw mut self.saved).cast())?;
        // The kernel restarts an interrupted call on the way back from a stop, not from a system call.
        trace(libc::PTRACE_INTERRUPT, self.tid, 0, null_mut())?;
        trace(libc::PTRACE_CONT, self.tid, 0, null_mut())?;
        wait(self.tid)?;
        set_mask(self.tid, self.mask)
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        // A thread that has ended needs no state.
        let _ = self.put_back();
        let _ = trace(libc::PTRACE_DETACH, self.tid, 0, null_mut());
    }
}

/// Starts tracing, with seccomp filters suspended if this process may do so.
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

/// Stops the thread and blocks all its signals. Returns its registers and its signal mask.
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

/// Waits for the thread's next stop, and returns the signal of that.
fn wait(tid: pid_t) -> io::Result<i32> {
    loop {
        let mut status = 0;
        // SAFETY: the output is a local. A tracer may wait for its tracees.
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
    // SAFETY: the callers pass a structure of the request's kind, or none if it takes none.
    let done = unsafe { libc::ptrace(request, tid, address, data) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Finds a system call instruction in the vDSO.
fn gate(pid: u32, memory: &File) -> io::Result<u64> {
    let none = || io::Error::other("the process has no vDSO");
    let mappings = maps::read(pid)?;
    let vdso = mappings.iter().find(|mapping| mapping.name() == "[vdso]").ok_or_else(none)?;
    let mut code = vec![0; usize::try_from(vdso.end.saturating_sub(vdso.start)).map_err(io::Error::other)?];
    memory.read_exact_at(&mut code, vdso.start)?;
    let at = code.windows(SYSCALL_INSTRUCTION.len()).position(|bytes| bytes == SYSCALL_INSTRUCTION).ok_or_else(none)?;
    Ok(vdso.start + at as u64)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Command, Stdio};

    use rustix::process::{Signal, kill_process};

    use super::*;
    use crate::process::tree;

    /// A process that was just started may still be about to execute its program, which replaces its memory.
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
            // The shell gets it when the thread is released.
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
}
