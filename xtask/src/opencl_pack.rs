//! What of OpenCL travels to a GPU machine beside the pack, in archives of its own, each of which may be left behind: a call to such
//! a machine carries 64 MiB.
//!
//! | archive | what | step of `run.sh opencl` |
//! |---|---|---|
//! | `pocl.tar.xz` | PoCL, which programs move to and from | `figures` |
//! | `opencl-programs.tar.xz` | CLBlast, ViennaCL's and PyOpenCL's programs, PyOpenCL's own tests | `programs` |

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::criu::clear;
use crate::gpu::PYTHON;
use crate::output::line;
use crate::tree::Tree;
use crate::{opencl, opencl_programs, setup, shell};

/// Kinds of processors whose functions of PoCL stay here: servers that have GPUs know better ones.
const KINDS_LEFT_OUT: [&str; 7] = ["GENERIC", "avx", "avx_f16c", "avx_fma4", "sse2", "sse41", "ssse3"];
/// What the packed programs are, below the folder that they were fetched to.
const PROGRAMS: [&str; 5] = [
    "out/blas",
    "out/vienna",
    "root/usr/bin/clinfo",
    "root/usr/lib/x86_64-linux-gnu/libclblast.so.1",
    "pyopencl-tests",
];
/// What runs them, from the source tree.
const SCRIPTS: [&str; 2] = ["run.sh", "arrays.py"];
/// A Python of the machine's with the packages beside it, in place of an environment, which does not travel.
const LAUNCHER: &str = "#!/bin/sh\nPYTHONPATH=$(dirname \"$0\")/../packages exec python3 \"$@\"\n";
/// Large, and no part of what is run there.
const LEFT_OUT: &str = "OpenMM==";

/// Makes both archives in `folder`.
pub(crate) fn pack(tree: &Tree, folder: &Path) -> Result<()> {
    pack_pocl(tree, folder)?;
    pack_programs(tree, folder)
}

fn pack_pocl(tree: &Tree, folder: &Path) -> Result<()> {
    let mut tar = tar(&folder.join("pocl.tar.xz"), &opencl::root(tree));
    tar.args(["--transform", "s,^,opencl/,S"]);
    tar.args(["usr/include", "*libOpenCL*", "*libicutest*"].map(|pattern| format!("--exclude={pattern}")));
    tar.args(KINDS_LEFT_OUT.map(|kind| format!("--exclude=usr/share/pocl/kernel-x86_64-pc-linux-gnu-{kind}.bc")));
    finish(tar.args(["usr", "lib"]), &folder.join("pocl.tar.xz"))
}

/// Makes the second one.
pub(crate) fn pack_programs(tree: &Tree, folder: &Path) -> Result<()> {
    opencl_programs::fetch(tree)?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let (from, sources) = (opencl_programs::folder(tree), tree.root.join("tests/opencl-programs"));
    let (work, archive) = (tree.target.join("opencl-programs-pack"), folder.join("opencl-programs.tar.xz"));
    shell::run(Command::new(sources.join("run.sh")).arg(&from).arg("build"))?;
    clear(&work)?;
    let place = work.join("opencl/programs");
    for name in PROGRAMS {
        copied(&from.join(name), &place.join(name))?;
    }
    for name in SCRIPTS {
        copied(&sources.join(name), &place.join(name))?;
    }
    packages(tree, &place.join("python"))?;
    // Says that nothing is to be built.
    fs::write(place.join("packed"), "").context("cannot mark the programs as packed")?;
    finish(tar(&archive, &work).arg("opencl"), &archive)?;
    clear(&work)
}

/// PyOpenCL and what its tests need, for the machine's Python.
fn packages(tree: &Tree, place: &Path) -> Result<()> {
    let pins = tree.root.join("xtask/opencl-python.txt");
    let text = fs::read_to_string(&pins).with_context(|| format!("cannot read {}", pins.display()))?;
    let few: Vec<&str> = text.lines().filter(|line| !line.starts_with(LEFT_OUT)).collect();
    let launcher = place.join("bin/python");
    fs::create_dir_all(place.join("bin")).with_context(|| format!("cannot make {}", place.display()))?;
    fs::write(&launcher, LAUNCHER).context("cannot write the launcher")?;
    fs::set_permissions(&launcher, Permissions::from_mode(0o755)).context("cannot write the launcher")?;
    let list = place.join("pins.txt");
    fs::write(&list, few.join("\n")).context("cannot write the list of packages")?;
    setup::unpack_for(PYTHON, &place.join("packages"), &list)
}

/// What it is, not a link to it.
fn copied(from: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().context("a file in no folder")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    let mut copy = Command::new("cp");
    shell::run(copy.args(["--recursive", "--dereference", "--no-target-directory"]).arg(from).arg(to))
}

/// An archive of what lies in a folder.
fn tar(archive: &Path, folder: &Path) -> Command {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--xz", "--file"]).arg(archive).arg("--directory").arg(folder);
    // As many threads as there are cores.
    tar.env("XZ_OPT", "-T0");
    tar
}

fn finish(tar: &mut Command, archive: &Path) -> Result<()> {
    shell::run(tar)?;
    line(shell::read(Command::new("du").arg("-h").arg(archive))?.trim_end());
    Ok(())
}
