//! Options of CRIU's command line: of both actions, of a dump, and of a restore.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// Options of dump and restore.
///
/// Terminals, sessions and groups of the shell that started the job stay with it. CRIU assumes that the peer of a connection, a
/// unix socket or TCP, is still there. File locks are kept; control groups are the restoring side's. A file counts as the same
/// one if its mode has changed: a native program that has it open does not notice either.
const SHARED_OPTIONS: [&str; 8] = [
    "-v2",
    "--skip-file-rwx-check",
    "--shell-job",
    "--file-locks",
    "--ext-unix-sk",
    "--tcp-established",
    "--manage-cgroups=ignore",
    "--ghost-limit=1G",
];
/// Name of a dump's log.
pub(super) const DUMP_LOG: &str = "dump.log";
/// Name of a restore's log.
pub(super) const RESTORE_LOG: &str = "restore.log";
/// CRIU's option for users without root.
pub(super) const UNPRIVILEGED_OPTION: &str = "--unprivileged";

/// How CRIU keeps connections silent during a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum NetworkLock {
    Nftables,
    Skip,
}

impl NetworkLock {
    fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Skip => "skip",
        }
    }
}

/// The state of the processes once CRIU lets go after a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterDump {
    /// The processes go on running.
    Running,
    /// The processes are stopped, and their connections stay silent, because they are to be killed.
    Stopped,
}

impl AfterDump {
    fn option(self) -> &'static str {
        match self {
            Self::Running => "--leave-running",
            Self::Stopped => "--leave-stopped",
        }
    }
}

/// Adds the options of a dump into `folder`, whose steps a connection at standard input orders. `external` lists resources that
/// CRIU treats as external. Unless it `opens_files`, CRIU identifies programs and libraries only by their sizes, not by their
/// build ids.
pub(super) fn dump(
    command: &mut Command,
    folder: &Path,
    work: &Path,
    (lock, after): (NetworkLock, AfterDump),
    external: &[String],
    opens_files: bool,
) {
    both(command, folder, work, DUMP_LOG);
    // A file that has lost its name gets one for the time of the dump.
    command.args(["--link-remap", "--network-lock", lock.name(), after.option()]);
    for external in external {
        command.args(["--external", external]);
    }
    if !opens_files {
        command.args(["--file-validation", "filesize"]);
    }
    command.args(["swrk", "0"]);
}

/// Adds the options of a restore from `folder`, which leaves all processes stopped, and writes the root's id to `pid_file`.
pub(super) fn restore(command: &mut Command, folder: &Path, work: &Path, pid_file: &Path, inherit: &[OsString]) {
    both(command, folder, work, RESTORE_LOG);
    command.arg("--pidfile").arg(pid_file);
    command.args(["--restore-detached", "--restore-sibling", "--leave-stopped"]).args(inherit);
}

fn both(command: &mut Command, folder: &Path, work: &Path, log: &str) {
    command.args(SHARED_OPTIONS).arg("--images-dir").arg(folder).arg("--log-file").arg(log);
    // The plugins of a system's CRIU handle devices that no program under Katydid has.
    command.arg("--libdir").arg(folder).arg("--work-dir").arg(work);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(command: &Command) -> String {
        command.get_args().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_dump_names_its_folders_its_lock_and_what_it_leaves_out() {
        let mut command = Command::new("criu");
        let external = ["tty[1:2]".to_owned()];
        dump(&mut command, Path::new("/i"), Path::new("/w"), (NetworkLock::Skip, AfterDump::Stopped), &external, false);
        let text = text(&command);
        assert!(text.contains("--images-dir /i --log-file dump.log --libdir /i --work-dir /w --link-remap"), "{text}");
        assert!(text.contains("--network-lock skip --leave-stopped --external tty[1:2]"), "{text}");
        assert!(text.ends_with("--file-validation filesize swrk 0"), "{text}");
    }

    #[test]
    fn a_restore_leaves_all_stopped_and_tells_the_root() {
        let mut command = Command::new("criu");
        restore(&mut command, Path::new("/i"), Path::new("/w"), Path::new("/w/pid"), &["--inherit-fd".into()]);
        let text = text(&command);
        assert!(text.contains("--log-file restore.log --libdir /i --work-dir /w --pidfile /w/pid"), "{text}");
        assert!(text.ends_with("--restore-detached --restore-sibling --leave-stopped --inherit-fd"), "{text}");
    }
}
