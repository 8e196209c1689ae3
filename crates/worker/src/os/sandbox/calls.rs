//! System calls that no worker needs, refused by seccomp.
//!
//! Calls outside of these lists are allowed: drivers use more of the kernel with each release. The lists have calls that reach
//! into other processes, change the machine, leave the sandbox or bypass it.

#![expect(unsafe_code, reason = "installs filters with a flag that no library passes")]

use std::collections::BTreeMap;
use std::io;

use rustix::thread::set_no_new_privs;
use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, sock_filter,
};

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Refused with `EPERM`, whatever the arguments.
const FORBIDDEN_CALLS: &[i64] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // File systems and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_quotactl,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_fanotify_init,
    // Bypasses the path, by which files are restricted.
    libc::SYS_open_by_handle_at,
    // The kernel and the machine.
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    // Keys of the user.
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
];

/// Refused to a worker that serves other users, whatever the arguments: a file that it may only read can belong to its user.
const FORBIDDEN_TO_OTHERS: &[i64] = &[
    // Modes, owners, times and attributes of files.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    SYS_FCHMODAT2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    SYS_SETXATTRAT,
    SYS_REMOVEXATTRAT,
    // Memory that outlives the process.
    libc::SYS_shmget,
    libc::SYS_semget,
    libc::SYS_msgget,
    libc::SYS_mq_open,
    // Leaves the process group, which ends with the worker.
    libc::SYS_setsid,
    libc::SYS_setpgid,
];
/// Numbers missing from the C library's bindings; the same on every processor.
const SYS_FCHMODAT2: i64 = 452;
const SYS_SETXATTRAT: i64 = 463;
const SYS_REMOVEXATTRAT: i64 = 466;

/// Answered as if the kernel had no such call, so that callers do without. A filter cannot see the flags of `clone3`, nor what
/// `io_uring` does.
const UNKNOWN_CALLS: &[i64] =
    &[libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// Flags of `clone` that no worker needs: new namespaces, and children of the server, which would have to wait for them.
const CLONE_FLAGS: [i32; 8] = [
    libc::CLONE_PARENT,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];

/// The kernel's value for a process as the target of `ioprio_set`.
const IOPRIO_WHO_PROCESS: u32 = 1;
/// The part of a socket's type without its flags.
const SOCKET_TYPE_MASK: u64 = 0xf;
/// Queries the personality, and changes nothing.
const PERSONALITY_QUERY: u64 = 0xffff_ffff;
/// First call number of x32, this processor's other ABI, in which every call has another number.
const X32_CALL_BIT: u32 = 0x4000_0000;

/// Why there is no filter.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallsError {
    /// The filter cannot be built.
    #[error(transparent)]
    Filter(#[from] Error),
    /// The kernel refuses the filter.
    #[error("seccomp: {0}")]
    Kernel(#[from] io::Error),
}

/// Which users a worker serves, and beside which driver. That decides what it need not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SandboxPurpose {
    /// Its own user, whose sockets it may use.
    OwnUser,
    /// Other users. It has the sockets that it was given, and pairs of its own: unix sockets lead to services of its user.
    Tenants,
    /// Other users, with NVIDIA's driver, which makes one socket for itself: by it, it exports descriptors to processes that
    /// share memory.
    TenantsBesideNvidia {
        /// Whether the driver's service for several processes runs here (`nvidia-cuda-mps-control`), to which it connects.
        has_mps: bool,
    },
}

/// Restricts this thread, and all its descendants. With `children_only`, the system lets the process read only the memory of its
/// own children, which checkpoints of OpenCL on processors need. A worker that serves other users is refused
/// [`FORBIDDEN_TO_OTHERS`] too.
pub(super) fn restrict(children_only: bool, serves: SandboxPurpose) -> Result<(), CallsError> {
    set_no_new_privs(true).map_err(io::Error::from)?;
    let mut forbidden = forbidden()?;
    if serves != SandboxPurpose::OwnUser {
        forbidden.extend(FORBIDDEN_TO_OTHERS.iter().map(|call| (*call, Vec::new())));
        // Changing times of an open file is allowed, for the worker's own caches.
        forbidden.insert(libc::SYS_utimensat, vec![named_file()?]);
    }
    if serves == SandboxPurpose::Tenants {
        forbidden.extend(scheduling_of_others()?);
    }
    if !serves.may_connect() {
        forbidden.insert(libc::SYS_connect, Vec::new());
    }
    if !children_only {
        forbidden.insert(libc::SYS_process_vm_readv, Vec::new());
    }
    let filters =
        [(unknown(), libc::ENOSYS, true), (forbidden, libc::EPERM, false), (serves.sockets()?, libc::EACCES, false)];
    for (rules, errno, is_first) in filters {
        let refusal = SeccompAction::Errno(errno.unsigned_abs());
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refusal, architecture()?).map_err(Error::from)?;
        let program: BpfProgram = filter.try_into().map_err(Error::from)?;
        let program = if is_first { without_other_abi(program) } else { program };
        install(&program)?;
    }
    Ok(())
}

impl SandboxPurpose {
    /// Returns the sockets that may not be made: those that reach other machines, and for a worker that serves other users all
    /// but its own pairs. A datagram names its receiver, so a pair of datagram sockets would reach other processes.
    fn sockets(self) -> Result<Rules, Error> {
        let remote = || rule_for(0, SeccompCmpOp::Ne, u64::from(libc::AF_UNIX.unsigned_abs()));
        let of_kind = |kind: i32| rule_for(1, SeccompCmpOp::MaskedEq(SOCKET_TYPE_MASK), u64::from(kind.unsigned_abs()));
        // The kernel treats a raw unix socket as a datagram socket.
        let with_datagrams = || Ok::<_, Error>(vec![remote()?, of_kind(libc::SOCK_DGRAM)?, of_kind(libc::SOCK_RAW)?]);
        let mut rules = Rules::new();
        rules.insert(libc::SYS_socketpair, if self == Self::OwnUser { vec![remote()?] } else { with_datagrams()? });
        let alone = match self {
            Self::OwnUser => vec![remote()?],
            Self::Tenants => Vec::new(),
            // The driver's own socket carries packets.
            Self::TenantsBesideNvidia { .. } => {
                with_datagrams()?.into_iter().chain([of_kind(libc::SOCK_STREAM)?]).collect()
            }
        };
        rules.insert(libc::SYS_socket, alone);
        Ok(rules)
    }

    /// Returns whether the worker may connect a socket to another process's.
    fn may_connect(self) -> bool {
        matches!(self, Self::OwnUser | Self::TenantsBesideNvidia { has_mps: true })
    }
}

/// Installs a filter for this thread, and all its descendants.
///
/// Kernels before Linux 5.16 also turn off speculative stores for a filtered thread. That slows its code down and protects
/// nothing here: what a worker could learn that way is in its own memory. So this is not requested.
fn install(program: &[sock_filter]) -> io::Result<()> {
    let length = u16::try_from(program.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut().cast() };
    let (mode, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW);
    // SAFETY: the kernel copies `len` instructions from `filter`, which is imported for the call, and writes nothing there;
    // `sock_filter` is laid out as the C library's.
    match unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn architecture() -> Result<TargetArch, Error> {
    Ok(std::env::consts::ARCH.try_into()?)
}

fn unknown() -> Rules {
    UNKNOWN_CALLS.iter().map(|call| (*call, Vec::new())).collect()
}

fn forbidden() -> Result<Rules, Error> {
    let mut rules: Rules = FORBIDDEN_CALLS.iter().map(|call| (*call, Vec::new())).collect();
    let flag = |flag: i32| {
        let flag = u64::from(flag.unsigned_abs());
        rule_for(0, SeccompCmpOp::MaskedEq(flag), flag)
    };
    rules.insert(libc::SYS_clone, CLONE_FLAGS.into_iter().map(flag).collect::<Result<_, _>>()?);
    rules.insert(libc::SYS_personality, vec![rule_for(0, SeccompCmpOp::Ne, PERSONALITY_QUERY)?]);
    // Limits of another process.
    rules.insert(libc::SYS_prlimit64, vec![rule_for(0, SeccompCmpOp::Ne, 0)?]);
    // Input to the terminal that the server was started from.
    let typing = [libc::TIOCSTI, libc::TIOCLINUX].map(|request| rule_for(1, SeccompCmpOp::Eq, request));
    rules.insert(libc::SYS_ioctl, typing.into_iter().collect::<Result<_, _>>()?);
    Ok(rules)
}

/// Returns rules for priorities and processors of other processes of its user, such as the server. With NVIDIA's driver, which
/// was not tested without them, these calls stay allowed.
fn scheduling_of_others() -> Result<Rules, Error> {
    let of_others = |argument| rule_for(argument, SeccompCmpOp::Ne, 0);
    let calls =
        [libc::SYS_sched_setaffinity, libc::SYS_sched_setattr, libc::SYS_sched_setparam, libc::SYS_sched_setscheduler];
    let mut rules: Rules =
        calls.into_iter().map(|call| Ok((call, vec![of_others(0)?]))).collect::<Result<_, Error>>()?;
    // The first argument of these calls says what the second one names, for which 0 is the caller, its group or its user.
    rules.insert(libc::SYS_setpriority, vec![of_others(0)?, of_others(1)?]);
    let of_process = u64::from(IOPRIO_WHO_PROCESS);
    rules.insert(libc::SYS_ioprio_set, vec![rule_for(0, SeccompCmpOp::Ne, of_process)?, of_others(1)?]);
    Ok(rules)
}

/// Returns a rule for calls that name a file by path instead of an open one: the second argument is the path.
fn named_file() -> Result<SeccompRule, Error> {
    let condition = SeccompCondition::new(1, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0)?;
    Ok(SeccompRule::new(vec![condition])?)
}

/// Returns a rule about the low half of one argument.
fn rule_for(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompRule, Error> {
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?;
    Ok(SeccompRule::new(vec![condition])?)
}

/// Prepends three instructions to the program that refuse the call numbers of the other ABI.
fn without_other_abi(program: BpfProgram) -> BpfProgram {
    let load_number = sock_filter { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: 0 };
    let is_other =
        sock_filter { code: (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16, jt: 0, jf: 1, k: X32_CALL_BIT };
    let refuse = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs();
    let refuse = sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: refuse };
    [load_number, is_other, refuse].into_iter().chain(program).collect()
}
