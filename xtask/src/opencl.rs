//! OpenCL under test: PoCL, a loader and headers out of Debian's packages, unpacked below the target folder without
//! touching the system; and the programs of `tests/apps-opencl`, built against them.
//!
//! PoCL finds its own files from where its library is. The rule is that of CRIU (`criu.rs`): all of it or none, and
//! nothing where there is no apt or no network; the tests of OpenCL say so then.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::apps::MPI_RUN;
use crate::criu::{clear, configure};
use crate::output::{line, step};
use crate::tree::Tree;
use crate::{opencl_intel, opencl_loader, setup, shell};

/// The pins: packages, each with its version.
const PINS: &str = include_str!("../opencl.txt");
/// Where they are sought, in this order.
pub(crate) const SOURCES: [&str; 2] = [
    "http://deb.debian.org/debian bookworm main",
    "http://snapshot.debian.org/archive/debian/20261120T000000Z bookworm main",
];
/// What nobody needs of them.
const SUPERFLUOUS: [&str; 3] = ["usr/share/doc", "usr/share/man", "etc"];
/// What the names of programs with ranks of MPI begin with.
pub(crate) const RANKED: &str = "mpi_";
/// What is built: a program that finds a loader, or a driver's library.
const PROGRAM: [&str; 2] = ["-l:libOpenCL.so.1", "-lpthread"];
const LIBRARY: [&str; 3] = ["-shared", "-fPIC", "-fvisibility=hidden"];
/// Libraries, below the root.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// The root, below the target folder.
pub(crate) fn root(tree: &Tree) -> PathBuf {
    tree.target.join("opencl")
}

/// Fetches what is missing. What keeps it from being fetched is said, and is no failure.
pub(crate) fn fetch(tree: &Tree) -> Result<()> {
    fetch_driver(tree)?;
    opencl_loader::fetch(tree)?;
    opencl_intel::fetch(tree)
}

/// Whether Debian's packages can be fetched and unpacked here.
pub(crate) fn has_apt() -> bool {
    shell::works("apt-get", &["--version"]) && shell::works("dpkg-deb", &["--version"])
}

fn fetch_driver(tree: &Tree) -> Result<()> {
    let (root, work) = (root(tree), tree.target.join("opencl.new"));
    if fs::read_to_string(root.join("pins.txt")).is_ok_and(|text| text == PINS) {
        return Ok(());
    }
    if !has_apt() {
        line("no OpenCL driver was fetched: this takes apt-get and dpkg-deb; programs of OpenCL are not tested");
        return Ok(());
    }
    step("fetching PoCL (16 packages of Debian, 73 MB)");
    if let Err(said) = from_one_of(&SOURCES, |source| from(source, &work, &root)) {
        line(&format!("no OpenCL driver was fetched, so programs of OpenCL are not tested:\n{said}"));
        return clear(&work);
    }
    clear(&root)?;
    fs::rename(work.join("root"), &root).with_context(|| format!("cannot place {}", root.display()))?;
    clear(&work)
}

/// Does `work` with one source after the other until it succeeds. Where it does not, what each said, on lines of their own.
pub(crate) fn from_one_of(sources: &[&str], mut work: impl FnMut(&str) -> Result<()>) -> Result<(), String> {
    let mut said = Vec::new();
    for source in sources {
        match work(source) {
            Ok(()) => return Ok(()),
            Err(error) => said.push(format!("{source}: {error:#}")),
        }
    }
    Err(said.join("\n"))
}

/// Makes `work/root`, which will be `root`, out of what `source` has.
fn from(source: &str, work: &Path, root: &Path) -> Result<()> {
    unpack(source, work, PINS)?;
    let driver = Path::new(LIBRARIES).join("libpocl.so.2");
    if !work.join("root").join(&driver).exists() {
        bail!("the packages hold no {}", driver.display());
    }
    let named = format!("{}\n", root.join(&driver).display());
    fs::create_dir_all(work.join("root/vendors")).context("cannot name the driver")?;
    fs::write(work.join("root/vendors/pocl.icd"), named).context("cannot name the driver")?;
    fs::write(work.join("root/pins.txt"), PINS).context("cannot write the stamp")
}

/// Unpacks the packages of `pins` below `work/root`, as `source` has them.
pub(crate) fn unpack(source: &str, work: &Path, pins: &str) -> Result<()> {
    clear(work)?;
    for folder in ["state/lists/partial", "cache/archives/partial", "packages", "root"] {
        fs::create_dir_all(work.join(folder)).with_context(|| format!("cannot make {}", work.display()))?;
    }
    let config = configure(source, work)?;
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(arguments).env("APT_CONFIG", &config).env("DEBIAN_FRONTEND", "noninteractive");
        shell::read(command.current_dir(work.join("packages")))
    };
    apt(&["update", "-qq"])?;
    let pins: Vec<&str> = pins.lines().filter(|line| !line.starts_with('#')).collect();
    apt(&[&["download", "-qq"], &pins[..]].concat())?;
    for entry in fs::read_dir(work.join("packages")).context("cannot read the packages")? {
        let path = entry.context("cannot read the packages")?.path();
        shell::run(Command::new("dpkg-deb").arg("--extract").arg(&path).arg(work.join("root")))?;
    }
    SUPERFLUOUS.iter().try_for_each(|path| clear(&work.join("root").join(path)))
}

/// Builds the programs that changed.
pub(crate) fn apps(tree: &Tree) -> Result<()> {
    fetch(tree)?;
    let root = root(tree);
    if !root.exists() {
        return Ok(());
    }
    let (sources, programs) = (tree.root.join("tests/apps-opencl"), tree.target.join("apps/opencl"));
    fs::create_dir_all(&programs).with_context(|| format!("cannot make {}", programs.display()))?;
    let headers = [headers(&sources)?, headers(&sources.join("random"))?].concat();
    for entry in fs::read_dir(&sources).with_context(|| format!("cannot read {}", sources.display()))? {
        let path = entry.context("cannot read the programs")?.path();
        if path.extension().is_none_or(|extension| extension != "c") {
            continue;
        }
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let program = programs.join(path.file_stem().unwrap_or_default());
        let is_ranked = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(RANKED));
        if is_ranked && !setup::has_open_mpi() {
            continue;
        }
        if_changed(&program, &[&headers, &text], || {
            if !is_ranked {
                return build(&root, "gcc", &PROGRAM, &path, &program);
            }
            let ranked = program.with_extension("ranked");
            build(&root, "mpicc", &PROGRAM, &path, &ranked)?;
            launcher(&program, &format!("#!/bin/sh\nexec {MPI_RUN} -n 4 '{}' \"$@\"\n", ranked.display()))
        })?;
    }
    let (source, library) = (sources.join("drivers/memory.c"), programs.join("memory.so"));
    let text = fs::read(&source).with_context(|| format!("cannot read {}", source.display()))?;
    if_changed(&library, &[&text], || build(&root, "gcc", &LIBRARY, &source, &library))
}

/// The text of all headers of a folder.
fn headers(folder: &Path) -> Result<Vec<u8>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "h"));
    paths.sort();
    let texts = paths.iter().map(|path| fs::read(path).with_context(|| format!("cannot read {}", path.display())));
    Ok(texts.collect::<Result<Vec<_>>>()?.concat())
}

/// Does `work`, which makes a file out of these texts, unless it has made it of the same ones before.
fn if_changed(made: &Path, texts: &[&[u8]], work: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(PINS.as_bytes());
    for text in texts {
        hasher.update(text);
    }
    let (print, stamp) = (hasher.finalize().to_hex(), made.with_extension("stamp"));
    if made.exists() && fs::read_to_string(&stamp).is_ok_and(|old| old == print.as_str()) {
        return Ok(());
    }
    work()?;
    fs::write(&stamp, print.as_str()).with_context(|| format!("cannot write {}", stamp.display()))
}

/// The script that a program with ranks is started by.
fn launcher(path: &Path, script: &str) -> Result<()> {
    fs::write(path, script).with_context(|| format!("cannot write {}", path.display()))?;
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(path, executable).with_context(|| format!("cannot set the mode of {}", path.display()))
}

/// `way`: what the compiler makes of the source.
fn build(root: &Path, compiler: &str, way: &[&str], source: &Path, made: &Path) -> Result<()> {
    let mut gcc = Command::new(compiler);
    gcc.args(["-O2", "-Wall", "-Wextra", "-Wno-deprecated-declarations", "-I"]).arg(root.join("usr/include"));
    gcc.arg(source).arg("-o").arg(made).arg("-L").arg(root.join(LIBRARIES)).args(way);
    shell::read(&mut gcc).map(drop).with_context(|| format!("cannot build {}", source.display()))
}
