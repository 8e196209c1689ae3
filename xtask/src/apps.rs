//! Builds the programs under test as a user would, with nvcc and g++: only those that changed, two at a time.
//!
//! Each topic has a folder of sources, and `common` has the headers of all topics; file names are unique. A program is up to date
//! if its stamp holds the right hash. The hash covers its command lines, the toolkit's pins, its sources and every header.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use katydid_tests::catalog::{self, App, Kind, Variant, files};

use crate::fetch::{packages, setup};
use crate::output::step;
use crate::tree::Tree;
use crate::{jobs, shell};

/// Machine code for the H200, and PTX for every other device, softcuda included. A program's own options may name other
/// architectures.
const CODE_FLAG: &str = "arch=compute_90,code=[sm_90,compute_90]";

/// Starts ranks on this machine that communicate through shared memory only, which a checkpoint can include. Ranks are not tied
/// to cores, of which there may be fewer than ranks.
pub(crate) const MPI_RUN: &str = "mpirun --allow-run-as-root --oversubscribe --bind-to none --mca btl self,vader \
    --mca btl_vader_single_copy_mechanism none";

/// File name extensions of sources.
const APP_SOURCE_ENDS: [&str; 4] = ["cu", "cpp", "py", "h"];

/// Number of compilers that run at a time.
const PARALLEL_COMPILERS: usize = 2;

/// Brings `target/apps` up to date.
pub(crate) fn run(tree: &Tree) -> Result<()> {
    bring_up_to_date(tree, |_| true)
}

/// Brings all programs up to date except those that link with the shim.
pub(crate) fn run_unlinked(tree: &Tree) -> Result<()> {
    bring_up_to_date(tree, |app| app.kind != Kind::Driver)
}

/// Brings one program up to date.
pub(crate) fn build_only(tree: &Tree, name: &str) -> Result<()> {
    bring_up_to_date(tree, |app| app.name == name)
}

/// Returns the folder of a program's sources.
pub(crate) fn folder(tree: &Tree, app: &App) -> Result<PathBuf> {
    read_sources(&tree.app_sources())?.folder(app).map(Path::to_owned)
}

fn bring_up_to_date(tree: &Tree, is_wanted: impl Fn(&App) -> bool) -> Result<()> {
    setup::run(tree)?;
    let can_build = |app: &App| app.kind != Kind::Mpi || packages::has_open_mpi();
    let apps: Vec<App> = catalog::apps()?.into_iter().filter(is_wanted).filter(can_build).collect();
    let sources = read_sources(&tree.app_sources())?;
    let mut old = Vec::new();
    for app in &apps {
        let folder = sources.folder(app)?;
        if !is_up_to_date(tree, app, folder, &sources) {
            old.push((app, folder));
        }
    }
    if old.is_empty() {
        return Ok(());
    }
    if old.iter().any(|(app, _)| app.kind == Kind::Driver) && !tree.paths().shim().join("libcuda.so").exists() {
        bail!("programs link with the shim, which is not built; run `cargo xtask dist` first");
    }
    step(&format!("building {} of {} programs", old.len(), apps.len()));
    jobs::each(old, PARALLEL_COMPILERS, |(app, folder)| rebuild(tree, app, folder, &sources)).into_iter().collect()
}

/// Source files by name; each may include any header.
#[derive(Default)]
struct Sources(BTreeMap<String, Source>);

struct Source {
    folder: PathBuf,
    content: Vec<u8>,
}

impl Sources {
    /// Returns the folder of a program's sources.
    fn folder(&self, app: &App) -> Result<&Path> {
        let mut folders = Vec::new();
        for name in &app.sources {
            let source = self.0.get(name).with_context(|| format!("{}: there is no {name} in tests/apps", app.name))?;
            folders.push(&source.folder);
        }
        folders.dedup();
        match folders[..] {
            [folder] => Ok(folder),
            _ => bail!("{}: its sources must lie in one folder", app.name),
        }
    }
}

fn read_sources(folder: &Path) -> Result<Sources> {
    let mut sources = Sources::default();
    for path in files::below(folder)? {
        if !path.extension().is_some_and(|end| APP_SOURCE_ENDS.iter().any(|known| end == *known)) {
            continue;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let content = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let folder = path.parent().unwrap_or(folder).to_owned();
        if let Some(duplicate) = sources.0.insert(name, Source { folder, content }) {
            bail!("{} has the name of a file in {}", path.display(), duplicate.folder.display());
        }
    }
    Ok(sources)
}

fn rebuild(tree: &Tree, app: &App, folder: &Path, sources: &Sources) -> Result<()> {
    build(tree, app, folder).with_context(|| format!("cannot build {}", app.name))?;
    let stamp = stamp_path(tree, app);
    fs::write(&stamp, fingerprint(tree, app, folder, sources))
        .with_context(|| format!("cannot write {}", stamp.display()))
}

fn is_up_to_date(tree: &Tree, app: &App, folder: &Path, sources: &Sources) -> bool {
    let built = app.variants().iter().all(|variant| tree.paths().program(&app.name, *variant).exists());
    built
        && fs::read_to_string(stamp_path(tree, app)).is_ok_and(|stamp| stamp == fingerprint(tree, app, folder, sources))
}

fn stamp_path(tree: &Tree, app: &App) -> PathBuf {
    tree.target.join("apps/stamps").join(&app.name)
}

fn fingerprint(tree: &Tree, app: &App, folder: &Path, sources: &Sources) -> String {
    let mut hash = blake3::Hasher::new();
    for command in commands(tree, app, folder) {
        hash.update(shell::show_command(&command).as_bytes());
    }
    hash.update(include_bytes!("../toolkit.txt"));
    hash.update(launcher(tree, app, folder).unwrap_or_default().as_bytes());
    for (name, Source { content, .. }) in &sources.0 {
        if name.ends_with(".h") || app.sources.contains(name) {
            hash.update(name.as_bytes()).update(&(content.len() as u64).to_le_bytes()).update(content);
        }
    }
    hash.finalize().to_hex().to_string()
}

fn build(tree: &Tree, app: &App, sources: &Path) -> Result<()> {
    for folder in ["static", "shared", "plain", "python", "mpi", "objects", "stamps"] {
        let folder = tree.target.join("apps").join(folder);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    commands(tree, app, sources).iter_mut().try_for_each(|command| shell::read(command).map(drop))?;
    launcher(tree, app, sources).map_or(Ok(()), |script| write_launcher(tree, app, &script))
}

/// Returns the script that starts a program, if it is not started directly.
fn launcher(tree: &Tree, app: &App, sources: &Path) -> Option<String> {
    match app.kind {
        Kind::Python => Some(python_launcher(tree, app, sources)),
        Kind::Mpi => Some(format!("#!/bin/sh\nexec {MPI_RUN} -n 2 '{}' \"$@\"\n", ranked(tree, app).display())),
        _ => None,
    }
}

fn python_launcher(tree: &Tree, app: &App, sources: &Path) -> String {
    let texts: Vec<String> = app.sources.iter().map(|name| sources.join(name).display().to_string()).collect();
    let (cuda, python) = (tree.cuda(), tree.target.join("python/bin/python"));
    // numba finds libdevice by this variable, and NVRTC by its own location.
    let home = format!("CUDA_HOME='{}'", cuda.display());
    format!("#!/bin/sh\n{home} exec '{}' -B '{}' \"$@\"\n", python.display(), texts.join("' '"))
}

fn write_launcher(tree: &Tree, app: &App, script: &str) -> Result<()> {
    let path = tree.paths().program(&app.name, app.variants()[0]);
    fs::write(&path, script).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("cannot let {} be run", path.display()))
}

/// Returns the commands that make the program, in order: an object file for each source, then a link for each variant.
fn commands(tree: &Tree, app: &App, folder: &Path) -> Vec<Command> {
    if app.kind == Kind::Python {
        return Vec::new();
    }
    let objects: Vec<PathBuf> = app.sources.iter().map(|source| object(tree, app, source)).collect();
    let compile = app.sources.iter().zip(&objects).map(|(source, object)| {
        let mut command = compiler(tree, app, folder);
        command.args(["-Wall", "-Wextra"].iter().flat_map(|flag| through(app, flag)));
        command.args(["-c", source, "-o"]).arg(object);
        command
    });
    let link = app.variants().iter().map(|variant| {
        let mut command = compiler(tree, app, folder);
        command.args(&objects).arg("-o").arg(match variant {
            Variant::Mpi => ranked(tree, app),
            _ => tree.paths().program(&app.name, *variant),
        });
        match (app.kind, variant) {
            (Kind::Driver, _) => command.arg("-L").arg(tree.paths().shim()).arg("-lcuda"),
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

/// Returns an option for the host's compiler, passed through nvcc where nvcc calls it.
fn through<'a>(app: &App, flag: &'a str) -> Vec<&'a str> {
    match app.kind {
        Kind::Runtime | Kind::Fixture | Kind::Mpi => vec!["-Xcompiler", flag],
        Kind::Driver | Kind::Plain | Kind::Cudart12 | Kind::Python => vec![flag],
    }
}

/// Returns the program that `mpirun` starts as a process for each rank.
fn ranked(tree: &Tree, app: &App) -> PathBuf {
    tree.target.join("apps/objects").join(format!("{}-ranked", app.name))
}

fn object(tree: &Tree, app: &App, source: &str) -> PathBuf {
    tree.target.join("apps/objects").join(format!("{}-{source}.o", app.name))
}

/// Returns the compiler in the folder of the sources, so that device code knows its files by their bare names.
fn compiler(tree: &Tree, app: &App, folder: &Path) -> Command {
    let mut command = match app.kind {
        Kind::Runtime | Kind::Fixture | Kind::Mpi => {
            let mut nvcc = Command::new(tree.cuda().join("bin/nvcc"));
            if !app.options.iter().any(|option| option == "-gencode") {
                nvcc.args(["-gencode", CODE_FLAG]);
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
                // The other folder has the headers of the compiler that do not belong to the runtime.
                gcc.arg("-I").arg(tree.cuda12().join("include"));
            }
            gcc.arg("-I").arg(tree.cuda().join("include")).args(&app.options);
            gcc
        }
    };
    command.arg("-I").arg(tree.app_sources().join("common")).arg("-std=c++17").current_dir(folder);
    command
}
