//! Installs the binaries as users have them: `bin/katydid`, the libraries beside it, and CRIU if `setup` fetched it.
//!
//! Files are replaced by renaming, so that a running server or program keeps its open file.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::fetch::criu;
use crate::output::step;
use crate::shell;
use crate::tree::Tree;

/// Built files, and where each is installed.
const INSTALLED_FILES: [(&str, &str); 6] = [
    ("katydid", "bin/katydid"),
    ("katydid-criu", "lib/katydid/katydid-criu"),
    ("libkatydid_shim_cuda.so", "lib/katydid/shim/libcuda.so.1"),
    ("libkatydid_opencl.so", "lib/katydid/shim/libkatydid_opencl.so"),
    ("libkatydid_nvml.so", "lib/katydid/shim/libnvidia-ml.so.1"),
    ("libkatydid_softcuda.so", "lib/katydid/soft/libcuda.so.1"),
];

/// Shells, and where each looks for completions below `share`.
const COMPLETION_FILES: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/katydid"),
    ("zsh", "zsh/site-functions/_katydid"),
    ("fish", "fish/vendor_completions.d/katydid.fish"),
];

/// Builds and installs into `target/dist` or `target/dist-release`.
pub(crate) fn run(tree: &Tree, release: bool) -> Result<()> {
    let (profile, folder) = if release { ("release", "dist-release") } else { ("debug", "dist") };
    step(&format!("building Katydid into {}", tree.target.join(folder).display()));
    let mut cargo = shell::cargo(&tree.root, &["build-installed"]);
    if release {
        cargo.arg("--release");
    }
    shell::run(&mut cargo)?;
    for (built, installed) in INSTALLED_FILES {
        install(&tree.target.join(profile).join(built), &tree.target.join(folder).join(installed))?;
    }
    pages(&tree.target.join(folder))?;
    second_names(&tree.target.join(folder).join("lib/katydid"))?;
    opencl(&tree.target.join(folder).join("lib/katydid"))?;
    install_criu(tree, &tree.target.join(folder).join("lib/katydid/criu"))
}

/// Writes the completions and man pages that the installed command prints.
pub(crate) fn pages(dist: &Path) -> Result<()> {
    let katydid = dist.join("bin/katydid");
    for (shell, target) in COMPLETION_FILES {
        let outcome = Command::new(&katydid).args(["completions", shell]).output();
        let outcome = outcome.with_context(|| format!("cannot start {}", katydid.display()))?;
        anyhow::ensure!(
            outcome.status.success(),
            "katydid completions {shell}: {}",
            String::from_utf8_lossy(&outcome.stderr)
        );
        write(&dist.join("share").join(target), &outcome.stdout)?;
    }
    let folder = dist.join("share/man/man1");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    shell::run(Command::new(&katydid).arg("man").arg(&folder))
}

/// Writes a file, and makes its folder if necessary.
fn write(path: &Path, content: &[u8]) -> Result<()> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// Links the project's CUDA libraries below `lib/katydid` under the name that numba asks for, since it would load the system's
/// library otherwise.
pub(crate) fn second_names(folder: &Path) -> Result<()> {
    ["shim", "soft"].iter().try_for_each(|library| link("libcuda.so.1", &folder.join(library).join("libcuda.so")))
}

/// Makes the other ways to find the library for OpenCL programs, below `lib/katydid`.
pub(crate) fn opencl(folder: &Path) -> Result<()> {
    vendors(&folder.join("shim/vendors"))?;
    loader(&folder.join("loader"))
}

/// Makes the folder by which OpenCL loaders find the library. Its name is enough, since programs look beside libcuda.so.1.
fn vendors(folder: &Path) -> Result<()> {
    let file = folder.join("katydid.icd");
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::write(&file, "libkatydid_opencl.so\n").with_context(|| format!("cannot write {}", file.display()))
}

/// Links the library for OpenCL programs under the names of a loader, for machines that have none.
fn loader(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut names = ["libOpenCL.so.1", "libOpenCL.so"].iter();
    names.try_for_each(|name| link("../shim/libkatydid_opencl.so", &folder.join(name)))
}

/// Copies CRIU's root into place, unless it is already there.
fn install_criu(tree: &Tree, target: &Path) -> Result<()> {
    let Some(root) = criu::root(tree) else { return Ok(()) };
    let version = |folder: &Path| fs::read(folder.join("version.txt")).ok();
    if version(target).is_some_and(|there| Some(there) == version(&root)) {
        return Ok(());
    }
    let fresh = target.with_extension("new");
    for old in [&fresh, &target.to_owned()] {
        match fs::remove_dir_all(old) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", old.display()));
            }
            _ => {}
        }
    }
    // Links among the libraries stay links.
    shell::run(Command::new("cp").arg("--archive").arg(&root).arg(&fresh))?;
    fs::rename(&fresh, target).with_context(|| format!("cannot place {}", target.display()))
}

/// Installs a copy of a file, unless an equal one is in place.
fn install(built: &Path, installed: &Path) -> Result<()> {
    let content = fs::read(built).with_context(|| format!("cannot read {}", built.display()))?;
    if fs::read(installed).is_ok_and(|old| old == content) {
        return Ok(());
    }
    let folder = installed.parent().map_or_else(PathBuf::new, Path::to_owned);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let fresh = folder.join(".new");
    fs::copy(built, &fresh).with_context(|| format!("cannot write {}", fresh.display()))?;
    fs::rename(&fresh, installed).with_context(|| format!("cannot replace {}", installed.display()))
}

/// Makes a link, such as `libcuda.so` for linkers and for programs that ask for that name.
fn link(to: &str, link: &Path) -> Result<()> {
    if link.symlink_metadata().is_ok() {
        return Ok(());
    }
    symlink(to, link).with_context(|| format!("cannot make {}", link.display()))
}
