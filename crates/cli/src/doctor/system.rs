//! Checks what the kernel and the limits of this shell allow.

#![expect(unsafe_code, reason = "asking for the personality of this process has no safe interface")]

use std::fs;

use katydid_arena::Offers;
use katydid_wire::handshake::{ArenaKind, ArenaRange};
use katydid_worker::missing_from_sandbox;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::process::{Resource, Rlimit, getrlimit};

use crate::doctor::finding::Finding;
use crate::file_limit::SESSION_FILE_BYTES;
use katydid_cli_core::args::size::Size;

/// Open files of a server with many sessions.
const MANY_SESSIONS_FILES: u64 = 1024;
/// Addresses that the arenas of a program reserve, without memory.
const ARENA_ADDRESS_BYTES: u64 = 20 << 40;
/// Memory that a program may lock. Drivers pin outside this limit; the little that others lock fits into it.
const MIN_LOCKABLE_BYTES: u64 = 64 << 10;

/// Runs all checks of this file.
pub(super) fn checks() -> Vec<Finding> {
    vec![
        shared_memory(),
        addresses(),
        randomization(),
        overcommit(),
        open_files(),
        address_space(),
        locked_memory(),
        sandbox(),
    ]
}

/// Checks what the shared-memory link needs: a sealed, sparse memory file.
fn shared_memory() -> Finding {
    let tried = memfd_create("katydid-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .and_then(|file| ftruncate(&file, SESSION_FILE_BYTES).map(|()| file))
        .and_then(|file| fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW));
    let remedy = "allow memfd_create in the sandbox and lift `ulimit -f`, or use --link stream";
    match tried {
        Ok(()) => Finding::ok("shared memory", "sealed memory files work"),
        Err(error) => Finding::fail("shared memory", format!("memory files do not work: {error}"), remedy),
    }
}

/// Checks whether a program here finds addresses for each arena.
fn addresses() -> Finding {
    let remedy = "run without sanitizers and `ulimit -v`; no other tool may map these ranges";
    match Offers::reserve() {
        Ok(offers) => Finding::ok("address ranges", describe(&offers.arenas())),
        Err(error) => Finding::fail("address ranges", error.to_string(), remedy),
    }
}

/// Lists all free candidates: if one is taken, the next is used, so that is no warning.
fn describe(arenas: &[ArenaRange]) -> String {
    let of = |kind: ArenaKind| {
        arenas.iter().filter(move |arena| arena.kind == kind).map(|arena| format!("{:#x}", arena.base))
    };
    let list = |kind| of(kind).collect::<Vec<_>>().join(", ");
    format!("free for device memory: {}; for pinned memory: {}", list(ArenaKind::DEVICE), list(ArenaKind::PINNED))
}

/// Checks whether a worker can disable address randomisation; restoring needs that, running does not.
fn randomization() -> Finding {
    // SAFETY: `personality` takes and returns integers; this value asks and changes nothing.
    let current = unsafe { libc::personality(0xffff_ffff) };
    // SAFETY: as above; this process starts nothing that depends on the order of its mappings, and its value is put back.
    let changed = unsafe { libc::personality(current as libc::c_ulong | libc::ADDR_NO_RANDOMIZE as libc::c_ulong) };
    // SAFETY: as above.
    unsafe { libc::personality(current as libc::c_ulong) };
    match changed {
        -1 => Finding::warn(
            "address randomisation",
            "cannot be switched off for workers: global variables of programs may move between runs",
            "allow personality(2) in the sandbox (docker: --security-opt seccomp=unconfined, or a profile with it)",
        ),
        _ => Finding::ok("address randomisation", "can be switched off for workers"),
    }
}

/// Checks the overcommit mode. Reservations cost nothing in any mode; sparse memory files may, in the strict one.
fn overcommit() -> Finding {
    let mode = fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    match mode.trim() {
        "2" => Finding::warn(
            "memory overcommit",
            "is forbidden: large sparse allocations can fail early",
            "sysctl vm.overcommit_memory=0",
        ),
        _ => Finding::ok("memory overcommit", "is allowed"),
    }
}

/// Checks the limit of open files: a server holds about five descriptors a session.
fn open_files() -> Finding {
    at_least("open files", Resource::Nofile, MANY_SESSIONS_FILES, |files| files.to_string(), "ulimit -n 65536")
}

/// Checks the limit of the address space: a program reserves terabytes of addresses for device arenas, without memory.
fn address_space() -> Finding {
    at_least("address space", Resource::As, ARENA_ADDRESS_BYTES, |bytes| Size(bytes).to_string(), "ulimit -v unlimited")
}

/// Checks the limit of locked memory against [`MIN_LOCKABLE_BYTES`].
fn locked_memory() -> Finding {
    at_least(
        "locked memory",
        Resource::Memlock,
        MIN_LOCKABLE_BYTES,
        |bytes| Size(bytes).to_string(),
        "ulimit -l unlimited",
    )
}

/// Checks what the sandbox of workers cannot enforce on this kernel.
fn sandbox() -> Finding {
    match missing_from_sandbox() {
        None => Finding::ok("sandbox", "workers are kept from files, processes and the network"),
        Some(missing) => Finding::warn("sandbox", missing, "take a newer kernel, or boot it with landlock among lsm="),
    }
}

/// Checks a limit that should allow `needed`.
fn at_least(
    check: &'static str,
    resource: Resource,
    needed: u64,
    show: impl Fn(u64) -> String,
    remedy: &str,
) -> Finding {
    let Rlimit { current, .. } = getrlimit(resource);
    match current {
        None => Finding::ok(check, "unlimited"),
        Some(allowed) if allowed >= needed => Finding::ok(check, format!("up to {}", show(allowed))),
        Some(allowed) => {
            let detail = format!("only {} allowed, {} recommended", show(allowed), show(needed));
            Finding::warn(check, detail, remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn a_limit_that_is_too_low_comes_with_its_remedy() {
        let finding = at_least("open files", Resource::Nofile, u64::MAX, |n| n.to_string(), "ulimit -n 65536");
        let unlimited = getrlimit(Resource::Nofile).current.is_none();
        assert!(unlimited || finding.status == Status::Warn && finding.remedy.as_deref() == Some("ulimit -n 65536"));
    }

    #[test]
    fn the_test_machine_has_shared_memory_and_addresses() {
        assert_eq!(shared_memory().status, Status::Ok);
        assert_eq!(addresses().status, Status::Ok);
    }

    #[test]
    fn asking_for_the_personality_leaves_it_as_it_was() {
        let before = fs::read_to_string("/proc/self/personality").unwrap();
        randomization();
        assert_eq!(fs::read_to_string("/proc/self/personality").unwrap(), before);
    }
}
