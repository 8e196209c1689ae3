//! Runs every program under test, in every variant, on every way: directly on softcuda, through Katydid over shared memory,
//! over TCP, and over frames on a unix socket. Some run over TLS as well. Each combination is a test named
//! `way::variant::program`.
//!
//! An ordinary run takes a slice, which its commit chooses. Of a program that links CUDA's runtime in two ways, it takes one of
//! them on each way. Of the programs over frames on a unix socket, it takes a quarter. `cargo xtask test --all`, a pack and a
//! named test take all.

use std::process::ExitCode;
use std::time::Duration;

use katydid_tests::catalog::slice::Slice;
use katydid_tests::catalog::{self, App, Variant};
use katydid_tests::paths::Paths;
use katydid_tests::program::run;
use katydid_tests::server::Server;
use katydid_tests::verdict::judge;
use katydid_tests::way::Way;
use libtest_mimic::{Arguments, Failed, Trial};

/// Far more than any program needs, even on a busy machine; only a hang takes longer.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(180);

/// The ways in which a program links CUDA's runtime.
const LINKED_VARIANTS: [Variant; 2] = [Variant::Shared, Variant::Static];
/// Slices of the programs over a unix socket, whose frames are those of TCP.
const STREAM_SLICES: u64 = 4;

/// Programs that also run over TLS. Together they do everything a program can do on a link, so the others would add nothing.
const TLS_PROGRAMS: [&str; 10] = [
    "vector_add",
    "big_copy",
    "async_pipeline",
    "host_threads",
    "host_callbacks",
    "fork_child",
    "pinned_memory",
    "pageable_async",
    "device_printf",
    "jit_and_link",
];

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let prepared = Paths::of_this_test().map_err(|error| error.to_string()).and_then(|paths| {
        let server = Server::start_tls(&paths, "soft", &[]).map_err(|error| error.to_string())?;
        let apps = catalog::apps().map_err(|error| error.to_string())?;
        Ok((paths, server, apps))
    });
    let (paths, server, apps) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut trials = all_trials(&paths, &ways(&paths, &server), &apps);
    let slice = Slice::of_this_run(arguments.filter.is_some());
    println!("programs on each way: {slice}");
    trials.retain(|trial| is_chosen(trial.name(), &slice));
    let conclusion = libtest_mimic::run(&arguments, trials);
    drop(server);
    conclusion.exit_code()
}

fn ways(paths: &Paths, server: &Server) -> Vec<Way> {
    let [shm, tcp] = Way::through(server);
    let mut ways = vec![Way::Direct { name: "soft", folder: Some(paths.soft()) }, shm, tcp, Way::as_stream(server)];
    ways.extend(Way::tls(server));
    ways
}

/// Whether a run without `--all` includes this test.
fn is_chosen(test: &str, slice: &Slice) -> bool {
    let [way, variant, program] = test.splitn(3, "::").collect::<Vec<&str>>()[..] else { return true };
    let combination = format!("{way}::{program}");
    let linked = LINKED_VARIANTS.iter().position(|other| other.to_string() == variant);
    linked.is_none_or(|index| slice.chooses(&combination, index, LINKED_VARIANTS.len()))
        && (way != "unix" || slice.has(&combination, STREAM_SLICES))
}

/// Whether a program runs on a way.
fn is_tried(way: &Way, app: &App) -> bool {
    match way {
        Way::Served { name: "tls", .. } => TLS_PROGRAMS.contains(&app.name.as_str()),
        Way::Direct { .. } => app.runs_directly(),
        _ => true,
    }
}

fn all_trials(paths: &Paths, ways: &[Way], apps: &[App]) -> Vec<Trial> {
    let mut trials = Vec::new();
    for app in apps.iter().filter(|app| app.is_test()) {
        for &variant in app.variants() {
            let why_not = paths.why_not_built(&app.name, variant);
            if let Some(why) = why_not {
                println!("{}: {why}", app.name);
            }
            for way in ways.iter().filter(|way| is_tried(way, app)) {
                let (paths, way, name) = (paths.clone(), way.clone(), app.name.clone());
                let title = format!("{way}::{variant}::{name}");
                let trial = Trial::test(title, move || run_one(&paths, &way, &name, variant));
                trials.push(trial.with_ignored_flag(why_not.is_some()));
            }
        }
    }
    trials
}

fn run_one(paths: &Paths, way: &Way, name: &str, variant: Variant) -> Result<(), Failed> {
    let outcome = run(&mut way.command(paths, &paths.program(name, variant)), PROGRAM_TIMEOUT)?;
    judge(paths, name, &outcome)?;
    Ok(())
}
