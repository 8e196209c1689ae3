//! Builds the programs under test: nvcc and g++ as a user would call them, only what changed, two at a time.
//!
//! A program is up to date when its stamp holds the hash of its command lines, of the toolkit's pins and of every file
//! beside its sources that it could include.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use katydid_tests::catalog::{self, App, Kind, Variant};

use crate::fetch::{packages, setup};
use crate::output::step;
use crate::tree::Tree;
use crate::{jobs, shell};

/// One machine code for the H200 and the text for every other device, softcuda included; unless a program's own
/// options name other architectures.
const CODE: &str = "arch=compute_90,code=[sm_90,compute_90]";

/// Ranks on this machine, that speak through shared memory only: what a checkpoint can take along. Ranks are not tied
/// to cores, of which there may be fewer than ranks.
pub(crate) const MPI_RUN: &str = "mpirun --allow-run-as-root --oversubscribe --bind-to none --mca btl self,vader \
    --mca btl_vader_single_copy_mechanism none";

/// Compilers at a time.
const AT_A_TIME: usize = 2;

/// Brings `target/apps` up to date.
pub(crate) fn run(tree: &Tree) -> Result<()> {
    bring_up_to_date(tree, |_| true)
}

/// Brings all programs up to date but those that link with the shim.
pub(crate) fn run_unlinked(tree: &Tree) -> Result<()> {
    bring_up_to_date(tree, |app| app.kind != Kind::Driver)
}

/// Brings one program up to date.
pub(crate) fn build_only(tree: &Tree, name: &str) -> Result<()> {
    bring_up_to_date(tree, |app| app.name == name)
}

fn bring_up_to_date(tree: &Tree, wanted: impl Fn(&App) -> bool) -> Result<()> {
    setup::run(tree)?;
    let can_build = |app: &App| app.kind != Kind::Mpi || packages::has_open_mpi();
    let apps: Vec<App> = catalog::apps()?.into_iter().filter(wanted).filter(can_build).collect();
    let sources = read_sources(&tree.app_sources())?;
    let old: Vec<&App> = apps.iter().filter(|app| !is_up_to_date(tree, app, &sources)).collect();
    if old.is_empty() {
        return Ok(());
    }
    if old.iter().any(|app| app.kind == Kind::Driver) && !tree.places().shim().join("libcuda.so").exists() {
        bail!("programs link with the shim, which is not built; run `cargo xtask dist` first");
    }
    step(&format!("building {} of {} programs", old.len(), apps.len()));
    jobs::each(old, AT_A_TIME, |app| build_anew(tree, app, &sources)).into_iter().collect()
}

/// Name and content of every source file; any of them may include any header.
type Sources = BTreeMap<String, Vec<u8>>;

fn read_sources(folder: &Path) -> Result<Sources> {
    let mut sources = Sources::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_file() {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            sources.insert(name, fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?);
        }
    }
    Ok(sources)
}

fn build_anew(tree: &Tree, app: &App, sources: &Sources) -> Result<()> {
    build(tree, app).with_context(|| format!("cannot build {}", app.name))?;
    let stamp = stamp_path(tree, app);
    fs::write(&stamp, fingerprint(tree, app, sources)).with_context(|| format!("cannot write {}", stamp.display()))
}

fn is_up_to_date(tree: &Tree, app: &App, sources: &Sources) -> bool {
    let built = app.variants().iter().all(|variant| tree.places().program(&app.name, *variant).exists());
    built && fs::read_to_string(stamp_path(tree, app)).is_ok_and(|stamp| stamp == fingerprint(tree, app, sources))
}

fn stamp_path(tree: &Tree, app: &App) -> PathBuf {
    tree.target.join("apps/stamps").join(&app.name)
}

fn fingerprint(tree: &Tree, app: &App, sources: &Sources) -> String {
    let mut hash = blake3::Hasher::new();
    for command in commands(tree, app) {
        hash.update(shell::shown(&command).as_bytes());
    }
    hash.update(include_bytes!("../toolkit.txt"));
    hash.update(launcher(tree, app).unwrap_or_default().as_bytes());
    for (name, content) in sources {
        if name.ends_with(".h") || app.sources.contains(name) {
            hash.update(name.as_bytes()).update(&(content.len() as u64).to_le_bytes()).update(content);
        }
    }
    hash.finalize().to_hex().to_string()
}

fn build(tree: &Tree, app: &App) -> Result<()> {
    for folder in ["static", "shared", "plain", "python", "mpi", "objects", "stamps"] {
        let folder = tree.target.join("apps").join(folder);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    commands(tree, app).iter_mut().try_for_each(|command| shell::read(command).map(drop))?;
    launcher(tree, app).map_or(Ok(()), |script| write_launcher(tree, app, &script))
}

/// The script that a program is started by, where it is not the program itself.
fn launcher(tree: &Tree, app: &App) -> Option<String> {
    match app.kind {
        Kind::Python => Some(python_launcher(tree, app)),
        Kind::Mpi => Some(format!("#!/bin/sh\nexec {MPI_RUN} -n 2 '{}' \"$@\"\n", ranked(tree, app).display())),
        _ => None,
    }
}

fn python_launcher(tree: &Tree, app: &App) -> String {
    let texts: Vec<String> =
        app.sources.iter().map(|source| tree.app_sources().join(source).display().to_string()).collect();
    let (cuda, python) = (tree.cuda(), tree.target.join("python/bin/python"));
    // numba finds libdevice by this variable, and NVRTC by where it is itself.
    let home = format!("CUDA_HOME='{}'", cuda.display());
    format!("#!/bin/sh\n{home} exec '{}' -B '{}' \"$@\"\n", python.display(), texts.join("' '"))
}

fn write_launcher(tree: &Tree, app: &App, script: &str) -> Result<()> {
    let path = tree.places().program(&app.name, app.variants()[0]);
    fs::write(&path, script).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("cannot let {} be run", path.display()))
}

/// Every command that makes the program, in order: an object file a source, then a link a variant.
fn commands(tree: &Tree, app: &App) -> Vec<Command> {
    if app.kind == Kind::Python {
        return Vec::new();
    }
    let objects: Vec<PathBuf> = app.sources.iter().map(|source| object(tree, app, source)).collect();
    let compile = app.sources.iter().zip(&objects).map(|(source, object)| {
        let mut command = compiler(tree, app);
        command.args(["-Wall", "-Wextra"].iter().flat_map(|flag| through(app, flag)));
        command.args(["-c", source, "-o"]).arg(object);
        command
    });
    let link = app.variants().iter().map(|variant| {
        let mut command = compiler(tree, app);
        command.args(&objects).arg("-o").arg(match variant {
            Variant::Mpi => ranked(tree, app),
            _ => tree.places().program(&app.name, *variant),
        });
        match (app.kind, variant) {
            (Kind::Driver, _) => command.arg("-L").arg(tree.places().shim()).arg("-lcuda"),
            (Kind::Plain, _) => command.arg("-ldl"),
            (Kind::Cudart12, _) => {
                command.arg(tree.cuda12().join("lib/libcudart_static.a")).args(["-ldl", "-lrt", "-lpthread"])
            }
            (_, Variant::Shared) => command.args(["-cudart", "shared"]),
            _ => command.args(["-cudart", "static"]),
        };
        command
    });
    compile.chain(link).collect()
}

/// An option of the host's compiler, handed through nvcc where it is in between.
fn through<'a>(app: &App, flag: &'a str) -> Vec<&'a str> {
    match app.kind {
        Kind::Runtime | Kind::Fixture | Kind::Mpi => vec!["-Xcompiler", flag],
        Kind::Driver | Kind::Plain | Kind::Cudart12 | Kind::Python => vec![flag],
    }
}

/// The program of which `mpirun` starts a process a rank.
fn ranked(tree: &Tree, app: &App) -> PathBuf {
    tree.target.join("apps/objects").join(format!("{}-ranked", app.name))
}

fn object(tree: &Tree, app: &App, source: &str) -> PathBuf {
    tree.target.join("apps/objects").join(format!("{}-{source}.o", app.name))
}

/// The compiler in the folder of the sources, so that device code knows its files by their bare names.
fn compiler(tree: &Tree, app: &App) -> Command {
    let mut command = match app.kind {
        Kind::Runtime | Kind::Fixture | Kind::Mpi => {
            let mut nvcc = Command::new(tree.cuda().join("bin/nvcc"));
            if !app.options.iter().any(|option| option == "-gencode") {
                nvcc.args(["-gencode", CODE]);
            }
            if app.kind == Kind::Mpi {
                nvcc.args(["-ccbin", "mpicxx"]);
            }
            nvcc.arg("-O2").args(&app.options);
            nvcc
        }
        Kind::Driver | Kind::Plain | Kind::Cudart12 | Kind::Python => {
            let mut gcc = Command::new("g++");
            gcc.arg("-O2");
            if app.kind == Kind::Cudart12 {
                // What is the compiler's and not the runtime's it finds in the other folder.
                gcc.arg("-I").arg(tree.cuda12().join("include"));
            }
            gcc.arg("-I").arg(tree.cuda().join("include")).args(&app.options);
            gcc
        }
    };
    command.arg("-std=c++17").current_dir(tree.app_sources());
    command
}
