//! The programs of `tests/apps-opencl`, built against the headers and the loader that `fetch::opencl` unpacks.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::apps::MPI_RUN;
use crate::fetch::opencl::{LIBRARIES, PINS, fetch, root};
use crate::fetch::packages;
use crate::shell;
use crate::tree::Tree;

/// What the names of programs with ranks of MPI begin with.
pub(crate) const RANKED: &str = "mpi_";
/// What is built: a program that finds a loader, or a driver's library.
const PROGRAM: [&str; 2] = ["-l:libOpenCL.so.1", "-lpthread"];
const LIBRARY: [&str; 3] = ["-shared", "-fPIC", "-fvisibility=hidden"];

/// Builds the programs that changed, and removes what drivers compiled in earlier runs.
pub(crate) fn apps(tree: &Tree) -> Result<()> {
    fetch(tree)?;
    let root = root(tree);
    if !root.exists() {
        return Ok(());
    }
    let caches = root.join("cache");
    if caches.exists() {
        fs::remove_dir_all(&caches).with_context(|| format!("cannot remove {}", caches.display()))?;
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
        if is_ranked && !packages::has_open_mpi() {
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
