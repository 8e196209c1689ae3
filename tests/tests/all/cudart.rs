//! Runs programs with other minor versions of the shared runtime than the toolkit's. Each version asks the driver for other
//! functions and private tables.
//!
//! `cargo xtask setup` fetches the oldest and the newest version, which every run tries with a few programs. `cargo xtask
//! cudart` fetches all versions and tries every program with each.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::{self, Kind, Variant};
use katydid_tests::paths::Paths;
use katydid_tests::program::run;
use katydid_tests::server::Server;
use katydid_tests::verdict::judge;
use katydid_tests::watch::WAIT_TIMEOUT;
use katydid_tests::way::Way;

/// Set to anything: tries all programs with every version that is there.
const ALL: &str = "KATYDID_CUDART_ALL";
/// Programs that each run tries: registration, streams, graphs, errors, host functions, a child, managed memory, several modules.
const FEW: [&str; 8] = [
    "vector_add",
    "streams_events",
    "graph_nodes",
    "errors",
    "host_callbacks",
    "fork_child",
    "managed_memory",
    "multi_module",
];
/// The program for the runtime of CUDA 12, for which the toolkit compiles nothing.
const OF_12: &str = "cudart12_dlopen";

/// A version such as 13.5, and the folder of its library.
type Runtime = (String, PathBuf);

/// The folder, beside the programs, into which `xtask` puts the versions.
fn cudart(paths: &Paths) -> PathBuf {
    paths.apps.parent().unwrap_or(&paths.apps).join("cudart")
}

/// Returns the fetched versions, the oldest first.
fn runtimes(paths: &Paths) -> Result<Vec<Runtime>> {
    let mut runtimes = Vec::new();
    for entry in fs::read_dir(cudart(paths)).into_iter().flatten() {
        let path = entry?.path();
        let version = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let libraries = ["nvidia/cu13/lib", "nvidia/cuda_runtime/lib"].map(|folder| path.join(folder));
        runtimes.extend(libraries.into_iter().find(|folder| folder.is_dir()).map(|folder| (version, folder)));
    }
    let number =
        |(version, _): &Runtime| -> Vec<u32> { version.split('.').filter_map(|part| part.parse().ok()).collect() };
    runtimes.sort_by_key(number);
    Ok(runtimes)
}

/// Returns the programs to try with a version.
fn programs(version: &str, has_all: bool) -> Result<Vec<(String, Variant)>> {
    if version.starts_with("12.") {
        return Ok(vec![(OF_12.to_owned(), Variant::Plain)]);
    }
    let apps = catalog::apps()?.into_iter().filter(|app| app.kind == Kind::Runtime && app.is_test());
    let names = apps.map(|app| app.name).filter(|name| has_all || FEW.contains(&name.as_str()));
    Ok(names.map(|name| (name, Variant::Shared)).collect())
}

/// Runs a program with the runtime in `folder` before any other.
fn run_one(paths: &Paths, way: &Way, (name, variant): &(String, Variant), folder: &Path) -> Result<()> {
    let mut command = way.command(paths, &paths.program(name, *variant));
    let driver = matches!(way, Way::Direct { .. }).then(|| paths.soft());
    command.env("LD_LIBRARY_PATH", env::join_paths(driver.iter().map(PathBuf::as_path).chain([folder]))?);
    let outcome = run(&mut command, WAIT_TIMEOUT)?;
    Ok(judge(paths, name, &outcome)?)
}

#[test]
fn every_minor_version_of_the_runtime_is_served() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let has_all = env::var_os(ALL).is_some();
    let runtimes = runtimes(&paths)?;
    if runtimes.is_empty() {
        println!("no runtime was fetched, so none is tried: see `cargo xtask setup`");
        return Ok(());
    }
    let server = Server::start(&paths, "soft", &[])?;
    let [shm, tcp] = Way::through(&server);
    let mut not_served = Vec::new();
    for (version, folder) in &runtimes {
        for way in [Way::Direct { name: "soft", folder: Some(paths.soft()) }, shm.clone(), tcp.clone()] {
            let programs = programs(version, has_all)?;
            let outcome = |program| {
                run_one(&paths, &way, program, folder).with_context(|| format!("{version}: {way}: {program:?}"))
            };
            let failed: Vec<_> = programs.iter().filter_map(|program| outcome(program).err()).collect();
            println!("{version} {way}: {} of {} programs", programs.len() - failed.len(), programs.len());
            not_served.extend(failed);
        }
    }
    ensure!(
        not_served.is_empty(),
        "not served:\n{}",
        not_served.iter().map(|error| format!("{error:#}\n")).collect::<String>()
    );
    Ok(())
}
