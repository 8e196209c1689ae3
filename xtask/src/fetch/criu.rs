//! CRIU for machines that lack it or have an old one. Debian's package and its libraries are unpacked into a folder of the
//! project, without touching the system.
//!
//! apt fetches and checks (by Debian's signature) with separate lists and state; `dpkg-deb` unpacks. The result is started
//! through its own loader, so it works beside an older C library. The first source is Debian's current release, the second its
//! archive as of the day of the pin. The former drops a package when the next version comes. The result is a complete root or
//! none, and none at all without apt or a network. Everything works without it, except checkpoints of a program's processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::output::{line, step};
use crate::shell;
use crate::tree::Tree;

/// Pinned version. 4.1 cannot dump a process that owns a TCP socket on Linux 6.18; 4.2.1 can.
const CRIU_VERSION: &str = "4.2.1-1";
/// Sources of the package, in the order in which they are tried.
pub(crate) const CRIU_SOURCES: [&str; 2] =
    ["http://deb.debian.org/debian sid main", "http://snapshot.debian.org/archive/debian/20261120T000000Z sid main"];
/// Files of the packages that CRIU does not need: 12 of 29 MiB.
const CRIU_SUPERFLUOUS_FILES: [&str; 3] =
    ["usr/share", "usr/lib/x86_64-linux-gnu/gconv", "usr/lib/x86_64-linux-gnu/libc_malloc_debug.so.0"];
/// Folder of the root, below the target folder.
const CRIU_FOLDER: &str = "criu";

/// Returns the root, if it was fetched.
pub(crate) fn root(tree: &Tree) -> Option<PathBuf> {
    let root = tree.target.join(CRIU_FOLDER);
    root.join("usr/sbin/criu").is_file().then_some(root)
}

/// Fetches CRIU unless it is there. A reason why it cannot be fetched is printed, and is not an error.
pub(crate) fn fetch(tree: &Tree) -> Result<()> {
    let root = tree.target.join(CRIU_FOLDER);
    let stamp = root.join("version.txt");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == CRIU_VERSION) {
        return Ok(());
    }
    if !shell::works("apt-get", &["--version"]) || !shell::works("dpkg-deb", &["--version"]) {
        line("no CRIU was fetched: this takes apt-get and dpkg-deb; install criu 4.2 or later to checkpoint programs");
        return Ok(());
    }
    step("fetching CRIU (27 packages of Debian, 9 MB)");
    let work = tree.target.join("criu.new");
    let mut failures = Vec::new();
    for source in CRIU_SOURCES {
        match from(source, &work) {
            Ok(()) => {
                fs::write(work.join("root/version.txt"), CRIU_VERSION).context("cannot write the stamp")?;
                clear(&root)?;
                fs::rename(work.join("root"), &root).with_context(|| format!("cannot place {}", root.display()))?;
                return clear(&work);
            }
            Err(error) => failures.push(format!("{source}: {error:#}")),
        }
    }
    clear(&work)?;
    line(&format!(
        "no CRIU was fetched, so programs are checkpointed only where the system has one:\n{}",
        failures.join("\n")
    ));
    Ok(())
}

/// Makes `work/root` from the packages of `source`.
fn from(source: &str, work: &Path) -> Result<()> {
    clear(work)?;
    for folder in ["state/lists/partial", "cache/archives/partial", "root"] {
        fs::create_dir_all(work.join(folder)).with_context(|| format!("cannot make {}", work.display()))?;
    }
    let config = configure(source, work)?;
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(arguments).env("APT_CONFIG", &config).env("DEBIAN_FRONTEND", "noninteractive");
        shell::read(&mut command)
    };
    apt(&["update", "-qq"])?;
    let package = format!("criu={CRIU_VERSION}");
    apt(&["install", "-y", "-qq", "--download-only", "--no-install-recommends", &package])?;
    unpack(&work.join("cache/archives"), &work.join("root"))
}

/// Configures an apt with one source and an empty system, which writes only below `work`.
pub(crate) fn configure(source: &str, work: &Path) -> Result<PathBuf> {
    let keyring = Path::new("/usr/share/keyrings/debian-archive-keyring.gpg");
    if !keyring.is_file() {
        bail!("{} is missing, by which packages are checked; install debian-archive-keyring", keyring.display());
    }
    let list = format!("deb [arch=amd64 check-valid-until=no signed-by={}] {source}\n", keyring.display());
    fs::write(work.join("sources.list"), list).context("cannot write the list of sources")?;
    fs::write(work.join("status"), "").context("cannot write the state")?;
    let at = work.display();
    let text = format!(
        "Dir::Etc::sourcelist \"{at}/sources.list\";\nDir::Etc::sourceparts \"/dev/null\";\n\
         Dir::Etc::preferencesparts \"/dev/null\";\nDir::State \"{at}/state\";\nDir::State::status \"{at}/status\";\n\
         Dir::Cache \"{at}/cache\";\nAPT::Architecture \"amd64\";\nAPT::Architectures \"amd64\";\n\
         Acquire::Languages \"none\";\nAPT::Sandbox::User \"root\";\nAPT::Update::Post-Invoke \"\";\n"
    );
    let config = work.join("apt.conf");
    fs::write(&config, text).context("cannot write apt's configuration")?;
    Ok(config)
}

fn unpack(archives: &Path, root: &Path) -> Result<()> {
    for entry in fs::read_dir(archives).with_context(|| format!("cannot read {}", archives.display()))? {
        let path = entry.context("cannot read the packages")?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            shell::run(Command::new("dpkg-deb").arg("--extract").arg(&path).arg(root))?;
        }
    }
    CRIU_SUPERFLUOUS_FILES.iter().try_for_each(|path| clear(&root.join(path)))?;
    if !root.join("usr/sbin/criu").is_file() {
        bail!("the packages hold no usr/sbin/criu");
    }
    Ok(())
}

/// Removes a file or folder, if it exists.
pub(crate) fn clear(path: &Path) -> Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
