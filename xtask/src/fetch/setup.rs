//! The CUDA toolkit for the programs under test, and a Python with numba, NVRTC and CuPy. They are pinned wheels of PyPI,
//! unpacked below the target folder. CRIU (`criu.rs`) and an OpenCL driver (`opencl.rs`) come from Debian.
//!
//! Nothing is done if the stamp holds the same pins. A new toolkit or Python replaces the old one only when it is complete, so an
//! interrupted fetch leaves no partial one.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::fetch::packages::{MPI_COMPILES, OPEN_MPI, environment, has_open_mpi, pip, remove};
use crate::fetch::{criu, cudart, opencl};
use crate::output::{line, step};
use crate::shell;
use crate::tree::Tree;

/// Pins, with the content's hash of each wheel.
const TOOLKIT_PINS: &str = include_str!("../../toolkit.txt");

/// Pins of the Python packages; each has wheels for every supported version of Python.
const PYTHON_PINS: &str = include_str!("../../python.txt");

/// Fetches the missing parts.
pub(crate) fn run(tree: &Tree) -> Result<()> {
    toolkit(tree)?;
    cudart::fetch_ends(tree)?;
    open_mpi();
    python(tree)?;
    criu::fetch(tree)?;
    opencl::fetch(tree)
}

/// Checks Open MPI, which comes from the distribution: its daemons and libraries find each other by the paths they were built
/// for. Prints a reason why it cannot be used, which is not an error.
fn open_mpi() {
    let result = need_program("mpirun", &["--version"], "openmpi-bin")
        .and_then(|()| need_program("mpicxx", &MPI_COMPILES, "libopenmpi-dev"));
    if let Err(error) = result {
        line(&format!("programs with ranks of MPI are neither built nor tested: {error:#}"));
    } else if !has_open_mpi() {
        let known = OPEN_MPI.join(" or ");
        line(&format!("programs with ranks of MPI are neither built nor tested: `mpirun` is not Open MPI {known}"));
    }
}

/// Makes a virtual environment of the system's Python. It is made in its final place, since its scripts contain their path.
fn python(tree: &Tree) -> Result<()> {
    let python = tree.target.join("python");
    let stamp = python.join("pins.txt");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == PYTHON_PINS) {
        return Ok(());
    }
    step("fetching numba, NVRTC, CuPy and bindings of NVML (11 wheels of PyPI, 260 MB)");
    environment(&python, &tree.root.join("xtask/python.txt"))?;
    link_packages(tree, &python.join("bin/python"))?;
    fs::write(&stamp, PYTHON_PINS).context("cannot write the stamp")
}

/// Links files of the toolkit that numba also needs to where numba looks for them, beside NVRTC.
fn link_packages(tree: &Tree, python: &Path) -> Result<()> {
    let ask = "import sysconfig; print(sysconfig.get_path('purelib'), end='')";
    let packages = shell::read(Command::new(python).args(["-c", ask]))?;
    for library in ["lib/libnvvm.so.4", "lib/libcudart.so.13"] {
        let link = Path::new(&packages).join("nvidia/cu13").join(library);
        symlink(tree.cuda().join(library), &link).with_context(|| format!("cannot link {}", link.display()))?;
    }
    Ok(())
}

fn toolkit(tree: &Tree) -> Result<()> {
    need_program("g++", &["--version"], "g++")?;
    let toolkit = tree.target.join("cuda-toolkit");
    let stamp = toolkit.join("pins.txt");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == TOOLKIT_PINS) {
        return Ok(());
    }
    need_program("python3", &["--version"], "python3")?;
    need_program("python3", &["-m", "pip", "--version"], "python3-pip")?;
    step("fetching the CUDA toolkit (6 wheels of PyPI, 108 MB, under NVIDIA's licence)");
    let fresh = tree.target.join("cuda-toolkit.new");
    remove(&fresh)?;
    fs::create_dir_all(&tree.target).with_context(|| format!("cannot make {}", tree.target.display()))?;
    shell::run(&mut pip(&fresh, &tree.root.join("xtask/toolkit.txt")))?;
    complete(&fresh)?;
    fs::write(fresh.join("pins.txt"), TOOLKIT_PINS).context("cannot write the stamp")?;
    remove(&toolkit)?;
    fs::rename(&fresh, &toolkit).with_context(|| format!("cannot put {} in place", toolkit.display()))
}

/// Adds what nvcc expects beside the wheels' content: `lib64`, and the plain name of the shared runtime.
fn complete(toolkit: &Path) -> Result<()> {
    let cuda = toolkit.join("nvidia/cu13");
    for (to, link) in [("lib", "lib64"), ("libcudart.so.13", "lib/libcudart.so")] {
        symlink(to, cuda.join(link)).with_context(|| format!("cannot link {link}"))?;
    }
    Ok(())
}

/// Installs a Debian package if its program does not work.
fn need_program(program: &str, arguments: &[&str], package: &str) -> Result<()> {
    if shell::works(program, arguments) {
        return Ok(());
    }
    if !shell::works("apt-get", &["--version"]) {
        bail!("{program} {} does not work here; install {package}", arguments.join(" "));
    }
    step(&format!("installing the Debian package {package}"));
    let result =
        apt(&["update", "-qq"]).and_then(|()| apt(&["install", "-y", "-qq", "--no-install-recommends", package]));
    result.with_context(|| format!("{program} is missing; install {package} as root and try again"))
}

fn apt(arguments: &[&str]) -> Result<()> {
    shell::read(Command::new("apt-get").args(arguments).env("DEBIAN_FRONTEND", "noninteractive")).map(drop)
}
