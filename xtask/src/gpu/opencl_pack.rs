//! Files for OpenCL on a GPU machine beside the pack, in separate archives ([`crate::gpu::archive`]). They may be left behind, or
//! come in a later call.
//!
//! | archive | what | step of `run.sh opencl` |
//! |---|---|---|
//! | `pocl.tar.xz` | PoCL and the compiler that is in it, which programs move to and from | `figures` |
//! | `pocl-beside.tar.xz` | what these take: PoCL's own functions, other libraries | `figures` |
//! | `opencl-programs.tar.xz` | CLBlast, ViennaCL's, PyOpenCL's and OpenMM's programs, PyOpenCL's own tests | `programs`, `pyopencl`, `arrays` |

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::fetch::criu::clear;
use crate::fetch::{opencl, packages};
use crate::gpu::archive;
use crate::gpu::machine::PYTHON_VERSION;
use crate::opencl::{rates, third_party};
use crate::shell;
use crate::tree::Tree;

/// PoCL's library and the compiler in it, below its root: two thirds of the size.
const COMPILER_FILES: [&str; 4] = [
    "usr/lib/llvm-15",
    "usr/lib/x86_64-linux-gnu/libLLVM-15.so.1",
    "usr/lib/x86_64-linux-gnu/libpocl.so.2",
    "usr/lib/x86_64-linux-gnu/libpocl.so.2.10.0",
];

/// Files that a machine with the pack does not need.
const SUPERFLUOUS_FILES: [&str; 3] = ["usr/include", "*libOpenCL*", "*libicutest*"];
/// Kinds of processors whose PoCL functions are not packed: servers with GPUs use better ones.
const KINDS_LEFT_OUT: [&str; 7] = ["GENERIC", "avx", "avx_f16c", "avx_fma4", "sse2", "sse41", "ssse3"];
/// Files of the packed programs, below the folder that they were fetched to.
const PACKED_PROGRAMS: [&str; 15] = [
    "out/blas",
    "out/vienna",
    "out/vienna_custom-context",
    "out/vienna_custom-kernels",
    "out/vienna_fft",
    "out/vienna_matrix-free",
    "root/usr/bin/clinfo",
    "root/usr/bin/clblast_test_xaxpy",
    "root/usr/bin/clblast_test_xdot",
    "root/usr/bin/clblast_test_xgemv",
    "root/usr/lib/x86_64-linux-gnu/blas/libblas.so.3",
    "root/usr/lib/x86_64-linux-gnu/libclblast.so.1",
    "root/usr/lib/x86_64-linux-gnu/libgfortran.so.5",
    "root/usr/lib/x86_64-linux-gnu/libquadmath.so.0",
    "pyopencl-tests",
];
/// Scripts of the source tree that run the programs.
const RUN_SCRIPTS: [&str; 4] = ["run.sh", "arrays.py", "molecules.py", "sliced.py"];
/// Launcher that takes the machine's Python with the packages beside it, in place of an environment, which cannot be moved.
const PYTHON_LAUNCHER: &str =
    "#!/bin/sh\nPYTHONPATH=$(dirname \"$0\")/../packages${PYTHONPATH:+:$PYTHONPATH} exec python3 \"$@\"\n";
/// Option that leaves out three quarters of OpenMM, which the programs do not need.
const LEFT_OUT: &str = "--exclude=openmm/app/data";

/// Makes all archives in `folder`.
pub(crate) fn pack(tree: &Tree, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    pack_pocl(&opencl::root(tree), folder)?;
    pack_programs(tree, folder)
}

fn pack_pocl(root: &Path, folder: &Path) -> Result<()> {
    const TRANSFORM_OPTION: [&str; 2] = ["--transform", "s,^,opencl/,S"];
    archive::make(&folder.join("pocl.tar.xz"), root, TRANSFORM_OPTION.iter().chain(&COMPILER_FILES))?;
    let kinds = KINDS_LEFT_OUT.map(|kind| format!("usr/share/pocl/kernel-x86_64-pc-linux-gnu-{kind}.bc"));
    let others = SUPERFLUOUS_FILES.into_iter().chain(COMPILER_FILES).map(str::to_owned);
    let left_out = others.chain(kinds).map(|pattern| format!("--exclude={pattern}"));
    let chosen = left_out.chain(TRANSFORM_OPTION.into_iter().chain(["usr", "lib"]).map(str::to_owned));
    archive::make(&folder.join("pocl-beside.tar.xz"), root, chosen)
}

fn pack_programs(tree: &Tree, folder: &Path) -> Result<()> {
    third_party::fetch(tree)?;
    let (from, sources) = (third_party::folder(tree), tree.root.join("tests/opencl-programs"));
    let work = tree.target.join("opencl-programs-pack");
    shell::run(Command::new(sources.join("run.sh")).arg(&from).arg("build"))?;
    clear(&work)?;
    let programs = work.join("opencl/programs");
    for name in PACKED_PROGRAMS {
        copied(&from.join(name), &programs.join(name))?;
    }
    for name in RUN_SCRIPTS {
        copied(&sources.join(name), &programs.join(name))?;
    }
    link_others(&programs)?;
    packages(tree, &programs.join("python"))?;
    // This file tells the script that nothing has to be built.
    fs::write(programs.join("packed"), "").context("cannot mark the programs as packed")?;
    archive::make(&folder.join("opencl-programs.tar.xz"), &work, [LEFT_OUT, "opencl"])?;
    clear(&work)
}

/// Links clpeak and hashcat, which the pack itself holds, to where the script looks for them.
fn link_others(folder: &Path) -> Result<()> {
    for file in rates::PACKED_FILES {
        let (link, up) = (folder.join(file), "../".repeat(Path::new(file).components().count()));
        let parent = link.parent().context("a file in no folder")?;
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
        let target = format!("{up}{}/{file}", rates::PACKED_FOLDER);
        symlink(&target, &link).with_context(|| format!("cannot make {}", link.display()))?;
    }
    Ok(())
}

/// Unpacks PyOpenCL, the packages that its tests need, and OpenMM, for the machine's Python.
fn packages(tree: &Tree, folder: &Path) -> Result<()> {
    let launcher = folder.join("bin/python");
    fs::create_dir_all(folder.join("bin")).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::write(&launcher, PYTHON_LAUNCHER).context("cannot write the launcher")?;
    fs::set_permissions(&launcher, Permissions::from_mode(0o755)).context("cannot write the launcher")?;
    packages::unpack_for(PYTHON_VERSION, &folder.join("packages"), &tree.root.join("xtask/opencl-python.txt"))
}

/// Copies a file itself instead of a link to it.
fn copied(from: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().context("a file in no folder")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    let mut copy = Command::new("cp");
    shell::run(copy.args(["--recursive", "--dereference", "--no-target-directory"]).arg(from).arg(to))
}
