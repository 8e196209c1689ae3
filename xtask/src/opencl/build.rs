//! The programs of `tests/apps-opencl`, built against the headers and the loader that `fetch::opencl` unpacks.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use katydid_tests::catalog::files;

use crate::apps::MPI_RUN;
use crate::fetch::opencl::{LIBRARY_FOLDER, OPENCL_PINS, fetch, root};
use crate::fetch::packages;
use crate::shell;
use crate::tree::Tree;

/// Prefix of the names of programs with ranks of MPI.
pub(crate) const RANKED_PREFIX: &str = "mpi_";
/// Flags for a program that finds a loader, and for a driver's library.
const PROGRAM_FLAGS: [&str; 2] = ["-l:libOpenCL.so.1", "-lpthread"];
/// Source of a driver for tests, which is not a program.
const DRIVER_SOURCE: &str = "drivers/memory.c";
const LIBRARY_FLAGS: [&str; 3] = ["-shared", "-fPIC", "-fvisibility=hidden"];

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
    let headers = headers(&sources)?;
    for path in program_sources(&sources)? {
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let program = programs.join(path.file_stem().unwrap_or_default());
        let is_ranked = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(RANKED_PREFIX));
        if is_ranked && !packages::has_open_mpi() {
            continue;
        }
        if_changed(&program, &[&headers, &text], || {
            if !is_ranked {
                return build(tree, "gcc", &PROGRAM_FLAGS, &path, &program);
            }
            let ranked = program.with_extension("ranked");
            build(tree, "mpicc", &PROGRAM_FLAGS, &path, &ranked)?;
            launcher(&program, &format!("#!/bin/sh\nexec {MPI_RUN} -n 4 '{}' \"$@\"\n", ranked.display()))
        })?;
    }
    let (source, library) = (sources.join(DRIVER_SOURCE), programs.join("memory.so"));
    let text = fs::read(&source).with_context(|| format!("cannot read {}", source.display()))?;
    if_changed(&library, &[&text], || build(tree, "gcc", &LIBRARY_FLAGS, &source, &library))
}

/// Returns the sources of all topics' programs; each has the name of its program.
fn program_sources(sources: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = with_end(sources, "c")?;
    files::check_names(&paths)?;
    paths.retain(|path| *path != sources.join(DRIVER_SOURCE));
    Ok(paths)
}

/// Returns the files of all topics with this extension.
fn with_end(sources: &Path, end: &str) -> Result<Vec<PathBuf>> {
    let mut paths = files::below(sources)?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == end));
    Ok(paths)
}

/// Returns the text of all headers.
fn headers(sources: &Path) -> Result<Vec<u8>> {
    let paths = with_end(sources, "h")?;
    let texts = paths.iter().map(|path| fs::read(path).with_context(|| format!("cannot read {}", path.display())));
    Ok(texts.collect::<Result<Vec<_>>>()?.concat())
}

/// Runs `work`, which makes a file from these texts, unless the file was made from the same ones.
fn if_changed(output: &Path, texts: &[&[u8]], work: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(OPENCL_PINS.as_bytes());
    for text in texts {
        hasher.update(text);
    }
    let (print, stamp) = (hasher.finalize().to_hex(), output.with_extension("stamp"));
    if output.exists() && fs::read_to_string(&stamp).is_ok_and(|old| old == print.as_str()) {
        return Ok(());
    }
    work()?;
    fs::write(&stamp, print.as_str()).with_context(|| format!("cannot write {}", stamp.display()))
}

/// Writes the script that starts a program with ranks.
fn launcher(path: &Path, script: &str) -> Result<()> {
    fs::write(path, script).with_context(|| format!("cannot write {}", path.display()))?;
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(path, executable).with_context(|| format!("cannot set the mode of {}", path.display()))
}

/// Compiles `source` to `output`; `way` has the flags for the kind of output.
fn build(tree: &Tree, compiler: &str, way: &[&str], source: &Path, output: &Path) -> Result<()> {
    let root = root(tree);
    let mut gcc = Command::new(compiler);
    gcc.args(["-O2", "-Wall", "-Wextra", "-Wno-deprecated-declarations", "-I"]).arg(root.join("usr/include"));
    gcc.arg("-I").arg(tree.root.join("tests/apps-opencl/common"));
    gcc.arg(source).arg("-o").arg(output).arg("-L").arg(root.join(LIBRARY_FOLDER)).args(way);
    shell::read(&mut gcc).map(drop).with_context(|| format!("cannot build {}", source.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_programs_of_one_name_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let sources = folder.path();
        for path in ["drivers/memory.c", "memory/svm.c", "common/check.h", "queues/check.h"] {
            fs::create_dir_all(sources.join(path).parent().unwrap()).unwrap();
            fs::write(sources.join(path), "").unwrap();
        }
        assert_eq!(program_sources(sources).unwrap(), [sources.join("memory/svm.c")]);
        fs::write(sources.join("queues/svm.c"), "").unwrap();
        let refused = program_sources(sources).unwrap_err().to_string();
        assert!(refused.contains("memory/svm.c") && refused.contains("queues/svm.c"), "{refused}");
    }
}
