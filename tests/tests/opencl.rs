//! Runs every OpenCL program on every way: directly on PoCL, through Katydid over shared memory, over TCP, and over frames on a
//! unix socket. Each combination is a test named `way::program`; one expected text serves for all of them.
//!
//! The driver is the one that `cargo xtask setup` fetched. Without it, the run says so and tests nothing. In a pack it is the
//! machine's. Tests `drivers::…` are about finding drivers, and about programs without a loader. All of these use ocl-icd as
//! the loader; `khronos::…` and `khronos_shm::…` use Khronos' own.
//!
//! An ordinary run takes a slice of the programs over frames and with Khronos' loader, which its commit chooses. `cargo xtask
//! test --all`, a pack and a named test take all.
//!
//! `random_calls` generates its calls from seeds. Every run has the same few seeds, also on a way that packs. Tests `random::…`
//! take those of `KATYDID_OPENCL_SEEDS` (`100-199`), each on all ways.

use std::error::Error;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use katydid_tests::catalog::slice::Slice;
use katydid_tests::opencl::{
    self, Intel, OF_INTEL, RANDOM_PROGRAM, driver, driver_without_cache, has_driver, is_pocl, khronos, libraries,
    library, memory_driver, program, programs, with_first,
};
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program::{Outcome, run};
use katydid_tests::server::{Server, ServerError};
use katydid_tests::traffic::{DelayModel, counting};
use katydid_tests::trial;
use katydid_tests::verdict::{judge, judge_beside};
use katydid_tests::watch::{runs, until};
use katydid_tests::way::Way;
use libtest_mimic::{Arguments, Failed, Trial};

/// A test other than a program on all ways.
type Test = fn(&Paths) -> Result<(), Box<dyn Error>>;

const DRIVERS: [(&str, Test); 17] = [
    ("a_library_is_named_outright", named),
    ("what_was_tried_is_said", reports_broken_driver),
    ("a_program_without_a_loader_gets_our_library", without_loader),
    ("a_queue_of_the_device_itself_is_refused_where_it_has_none", device_queue),
    ("logs_of_compilers_come_through_unchanged", logs),
    ("platforms_of_two_drivers_are_used_side_by_side", two_platforms),
    ("platforms_are_found_by_khronos_loader", which_loader),
    ("doctor_names_the_remedy_where_there_is_no_driver_or_device", doctor),
    ("what_drivers_may_do_beside_pocl_goes_through", memory_alone),
    ("what_is_known_or_cannot_be_wrong_is_waited_for_once", asked_once),
    ("every_function_answers_as_the_driver_does", answers),
    ("images_programs_and_wrong_commands_are_answered_as_by_the_driver", edges),
    ("shared_virtual_memory_is_fine_grained_where_program_and_worker_share_memory", fine_grains),
    ("a_kernel_on_a_processor_reaches_nothing_beyond_its_worker", intruder),
    ("without_a_sandbox_a_kernel_does_what_its_worker_may", free_intruder),
    ("processors_are_shown_to_others_only_where_that_is_asked_for", own_processors),
    ("our_library_is_beside_a_machines_own_drivers_with_a_server_and_silent_without", beside_others),
];
/// The variable that names drivers' libraries.
const DRIVERS_VARIABLE: &str = "KATYDID_OPENCL_DRIVERS";
/// A small program, one that makes wrong calls, and one that prints the compiler's messages.
const SMALL_PROGRAM: &str = "vector_add";
const CODES_PROGRAM: &str = "error_codes";
const LOGS_PROGRAM: &str = "logs_and_names";

/// Ways of which a run takes a slice. Frames on a unix socket are those of TCP, and a loader only finds the driver.
const SLICED_TESTS: [&str; 3] = ["unix", "khronos", "khronos_shm"];
const SLICE_COUNT: u64 = 4;
/// The driver itself, without Katydid.
const DIRECT: Way = Way::Direct { name: "direct", folder: None };
/// Programs that do not run on PoCL 3.1 without Katydid. The first dies of SIGSEGV in about half of its runs, due to that
/// driver's handling of lifetimes. Children of the second wait for threads that only their parent has.
const NOT_NATIVE: [&str; 2] = ["lifetimes", "raw_children"];

/// Far more than any program needs, even on a busy machine; only a hang takes longer.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(180);

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let paths = match Paths::of_this_test() {
        Ok(found) => opencl::paths(&found),
        Err(error) => return failed(&error),
    };
    if !has_driver(&paths) {
        println!("not tested: no OpenCL driver in {}; `cargo xtask setup` fetches one", paths.opencl().display());
        return ExitCode::SUCCESS;
    }
    // Each program runs on several ways at the same time.
    let started = Server::start_with(&paths, &driver_under_test(), &[], &driver_without_cache(&paths));
    let (server, programs) = match (started, programs(&paths)) {
        (Ok(server), Ok(programs)) => (server, programs),
        (Err(error), _) => return failed(&error),
        (_, Err(error)) => return failed(&error),
    };
    let mut trials = Vec::new();
    for name in &programs {
        for way in ways(&server).into_iter().filter(|way| survives(name, way)) {
            let (paths, way, name) = (paths.clone(), way.clone(), name.clone());
            trials.push(trial::test(format!("{way}::{name}"), move || run_one(&paths, &way, &name)));
        }
    }
    match random_trials(&paths, &server) {
        Ok(more) => trials.extend(more),
        Err(error) => return failed(&error),
    }
    let intel = match opencl::intel(&paths).map(|intel| IntelServer::start(&paths, intel)).transpose() {
        Ok(intel) => intel,
        Err(error) => return failed(&error),
    };
    match &intel {
        Some(intel) => trials.extend(intel.trials()),
        None => println!("not tested: SPIR-V, on Intel's runtime; `cargo xtask setup` fetches it"),
    }
    match khronos(&paths) {
        Some(folder) => trials.extend(khronos_trials(&paths, &server, &folder, &programs)),
        None => println!("not tested: Khronos' loader; `cargo xtask setup` fetches it"),
    }
    for (name, test) in DRIVERS {
        let paths = paths.clone();
        trials.push(trial::test(format!("drivers::{name}"), move || Ok(test(&paths)?)));
    }
    let slice = Slice::of_this_run(arguments.filter.is_some());
    println!("programs over frames and with Khronos' loader: {slice}");
    trials.retain(|trial| is_chosen(trial.name(), &slice));
    let conclusion = libtest_mimic::run(&arguments, trials);
    drop((server, intel));
    conclusion.exit_code()
}

/// Whether a run without `--all` includes this test.
fn is_chosen(test: &str, slice: &Slice) -> bool {
    let is_sliced = SLICED_TESTS.iter().any(|way| test.strip_prefix(way).is_some_and(|rest| rest.starts_with("::")));
    !is_sliced || slice.has(test, SLICE_COUNT)
}

/// A server with Intel's driver.
struct IntelServer {
    intel: Intel,
    server: Server,
}

impl IntelServer {
    fn start(paths: &Paths, intel: Intel) -> Result<Self, ServerError> {
        let variables = [&driver(paths)[..], &[(DRIVERS_VARIABLE, intel.library.clone().into())]].concat();
        Ok(Self { intel, server: Server::start_with(paths, &driver_under_test(), &[], &variables)? })
    }

    /// Returns the tests of its programs on every way.
    fn trials(&self) -> Vec<Trial> {
        let all = OF_INTEL.iter().flat_map(|name| ways(&self.server).map(|way| (way, *name)));
        let trial = |(way, name): (Way, &'static str)| {
            let intel = self.intel.clone();
            trial::test(format!("intel_{way}::{name}"), move || on_intel(&intel, &way, name))
        };
        all.map(trial).collect()
    }
}

fn on_intel(intel: &Intel, way: &Way, name: &str) -> Result<(), Failed> {
    let mut command = with_driver(&intel.paths, way, name);
    if matches!(way, Way::Direct { .. }) {
        command.env("OCL_ICD_VENDORS", &intel.vendors);
    }
    Ok(judge(&intel.paths, name, &run(&mut command, PROGRAM_TIMEOUT)?)?)
}

/// Whether a program comes to its end on a way, regardless of Katydid.
fn survives(name: &str, way: &Way) -> bool {
    !NOT_NATIVE.contains(&name) || !matches!(way, Way::Direct { .. })
}

/// Returns tests of every program natively and over shared memory, with Khronos' loader.
fn khronos_trials(paths: &Paths, server: &Server, folder: &Path, programs: &[String]) -> Vec<Trial> {
    let [shm, _] = Way::through(server);
    let ways = [("khronos", DIRECT), ("khronos_shm", shm)];
    let trials = ways.into_iter().flat_map(|way| programs.iter().map(move |name| (way.clone(), name.clone())));
    let trials = trials.filter(|((_, way), name)| survives(name, way));
    let trial = |((title, way), name): ((&str, Way), String)| {
        let (paths, folder, title) = (paths.clone(), folder.to_owned(), format!("{title}::{name}"));
        trial::test(title, move || judged(&paths, &way, &name, |way| by_khronos(&paths, way, &name, &folder)))
    };
    trials.map(trial).collect()
}

/// The way over TCP that compresses all payloads.
const PACKED_WAY: &str = "packed";

/// Returns tests of random calls: the kept seeds on the way that compresses, and the seeds that the environment asks for.
fn random_trials(paths: &Paths, server: &Server) -> std::io::Result<Vec<Trial>> {
    let ways = ways(server);
    let [_, tcp, ..] = &ways;
    let (of, way) = (paths.clone(), tcp.clone());
    let packed = move || judged(&of, &way, RANDOM_PROGRAM, |way| random(&of, PACKED_WAY, way, &[]));
    let mut trials = vec![trial::test(format!("{PACKED_WAY}::{RANDOM_PROGRAM}"), packed)];
    let named = ways.iter().map(|way| (way.to_string(), way)).chain([(PACKED_WAY.to_owned(), tcp)]);
    let named: Vec<(String, &Way)> = named.collect();
    for seed in opencl::seeds()?.into_iter().flatten() {
        for (name, way) in &named {
            let (paths, name, way) = (paths.clone(), name.clone(), (*way).clone());
            trials.push(trial::test(format!("random::{name}::{seed}"), move || one_seed(&paths, &name, &way, seed)));
        }
    }
    Ok(trials)
}

/// Returns the command for the program of random calls on the way `name`.
fn random(paths: &Paths, name: &str, way: &Way, arguments: &[&str]) -> Command {
    let mut command = with_driver(paths, way, RANDOM_PROGRAM);
    if name == PACKED_WAY {
        command.env("KATYDID_PACKING", "always");
    }
    command.args(arguments);
    command
}

/// Checks that the calls of one seed give the required results, and the same results as without Katydid.
fn one_seed(paths: &Paths, name: &str, way: &Way, seed: u64) -> Result<(), Failed> {
    let seed = seed.to_string();
    let mut texts = Vec::new();
    for (name, way) in [("direct", &DIRECT), (name, way)] {
        let outcome = run(&mut random(paths, name, way, &[&seed, "1"]), PROGRAM_TIMEOUT)?;
        if !outcome.status.success() {
            return Err(format!("{name}: {}{}", outcome.text(), outcome.errors()).into());
        }
        texts.push(outcome.text());
    }
    if texts[0] == texts[1] { Ok(()) } else { Err(texts.concat().into()) }
}

fn failed(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("{error}");
    ExitCode::FAILURE
}

fn ways(server: &Server) -> [Way; 4] {
    let [shm, tcp] = Way::through(server);
    let unix = Way::Served { name: "unix", address: server.unix(), as_stream: true };
    [DIRECT, shm, tcp, unix]
}

fn run_one(paths: &Paths, way: &Way, name: &str) -> Result<(), Failed> {
    judged(paths, way, name, |way| with_driver(paths, way, name))
}

/// Runs a program on a way, by the command that `command` makes for it.
fn judged(paths: &Paths, way: &Way, name: &str, command: impl Fn(&Way) -> Command) -> Result<(), Failed> {
    let outcome = run(&mut command(way), PROGRAM_TIMEOUT)?;
    if is_pocl(paths) {
        return Ok(judge(paths, name, &outcome)?);
    }
    // Another driver may answer unlike PoCL where the standard leaves the answer open, or where a driver violates it.
    let direct = match way {
        Way::Direct { .. } => None,
        _ => Some(run(&mut command(&DIRECT), PROGRAM_TIMEOUT)?),
    };
    Ok(judge_beside(paths, name, &outcome, direct.as_ref().unwrap_or(&outcome))?)
}

/// Returns the command of a program with the variables that it needs on a way.
fn with_driver(paths: &Paths, way: &Way, name: &str) -> Command {
    let mut command: Command = way.command(paths, &program(paths, name));
    // Every way needs the loader. The driver is the server's, except on the direct way.
    match way {
        Way::Direct { .. } => drop(command.envs(driver(paths))),
        _ => drop(command.env("LD_LIBRARY_PATH", libraries(paths))),
    }
    command
}

/// Returns the command of a program that finds Khronos' loader, which lies in `folder`, before the usual one.
fn by_khronos(paths: &Paths, way: &Way, name: &str, folder: &Path) -> Command {
    let mut command = with_driver(paths, way, name);
    let search = command.get_envs().find_map(|(name, value)| value.filter(|_| name == "LD_LIBRARY_PATH"));
    let search = with_first(folder, search.unwrap_or_default());
    command.env("LD_LIBRARY_PATH", search);
    command
}

/// Khronos' loader stands between programs and Katydid, and finds as many platforms as without Katydid.
fn which_loader(paths: &Paths) -> Result<(), Box<dyn Error>> {
    let Some(folder) = khronos(paths) else { return Ok(()) };
    let server = Server::start_with(paths, &driver_under_test(), &[], &driver(paths))?;
    let [shm, tcp] = Way::through(&server);
    let mut without_us = None;
    for way in [DIRECT, shm, tcp] {
        let outcome = run(&mut by_khronos(paths, &way, "which_loader", &folder), PROGRAM_TIMEOUT)?;
        let text = outcome.text();
        let is_khronos = text.starts_with("Khronos OpenCL ICD Loader, platforms: ") && !text.ends_with(" 0\n");
        if !is_khronos || *without_us.get_or_insert_with(|| text.clone()) != text {
            return Err(format!("{way}: {text}{}", outcome.errors()).into());
        }
    }
    Ok(())
}

/// Runs a program with a server of its own, whose workers see these variables beside the driver's.
fn small(
    paths: &Paths,
    name: &str,
    variables: &[(&'static str, OsString)],
    libraries: OsString,
) -> Result<Outcome, Box<dyn Error>> {
    let variables = [&driver(paths)[..], variables].concat();
    let server = Server::start_with(paths, &driver_under_test(), &[], &variables)?;
    let [shm, _] = Way::through(&server);
    let mut command = shm.command(paths, &program(paths, name));
    Ok(run(command.env("LD_LIBRARY_PATH", libraries), PROGRAM_TIMEOUT)?)
}

/// With drivers named by the variable, the vendors' files count for nothing.
fn named(paths: &Paths) -> Result<(), Box<dyn Error>> {
    let variables = [(DRIVERS_VARIABLE, library(paths)?.into()), ("OCL_ICD_VENDORS", "/no/such/folder".into())];
    Ok(judge(paths, SMALL_PROGRAM, &small(paths, SMALL_PROGRAM, &variables, libraries(paths).into())?)?)
}

fn reports_broken_driver(paths: &Paths) -> Result<(), Box<dyn Error>> {
    let outcome = small(paths, SMALL_PROGRAM, &[(DRIVERS_VARIABLE, "/etc/passwd".into())], libraries(paths).into())?;
    let is_said = ["no OpenCL driver works here (/etc/passwd:", DRIVERS_VARIABLE]
        .iter()
        .all(|word| outcome.errors().contains(word));
    if outcome.status.success() || !is_said { Err(outcome.errors().into()) } else { Ok(()) }
}

/// A compiler's log of a wrong program and of an odd one is the native one, except for the name of the compiler's own file.
fn logs(paths: &Paths) -> Result<(), Box<dyn Error>> {
    let server = Server::start_with(paths, &driver_under_test(), &[], &driver(paths))?;
    let [shm, tcp] = Way::through(&server);
    let of = |way: &Way| -> Result<String, Box<dyn Error>> {
        let mut command = with_driver(paths, way, LOGS_PROGRAM);
        let outcome = run(command.arg("whole"), PROGRAM_TIMEOUT)?;
        if outcome.status.success() { Ok(outcome.text()) } else { Err(outcome.errors().into()) }
    };
    let native = of(&DIRECT)?;
    for way in [shm, tcp] {
        let through = of(&way)?;
        if through != native {
            return Err(format!("natively:\n{native}over {way}:\n{through}").into());
        }
    }
    Ok(())
}

/// Two vendors' files name the machine's driver and one of Katydid's, for the program itself and for workers.
fn two_platforms(paths: &Paths) -> Result<(), Box<dyn Error>> {
    const EXPECTED: &str =
        "two platforms, a context of each\nextensions: those that go through\ndata went to both and back\n";
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("a.icd"), library(paths)?)?;
    fs::write(folder.path().join("b.icd"), memory_driver(paths).to_string_lossy().as_bytes())?;
    let vendors = [&driver(paths)[..], &[("OCL_ICD_VENDORS", folder.path().into())]].concat();
    let server = Server::start_with(paths, &driver_under_test(), &[], &vendors)?;
    for way in ways(&server) {
        let mut command = with_driver(paths, &way, "two_platforms");
        if matches!(way, Way::Direct { .. }) {
            command.envs(vendors.clone());
        }
        let outcome = run(&mut command, PROGRAM_TIMEOUT)?;
        if !outcome.status.success() || outcome.text() != EXPECTED {
            let output = [outcome.text(), outcome.errors()].concat();
            let found = found_with(paths, &vendors)?;
            let log = server.log();
            return Err(format!(
                "{way}: {output}--- the server\n{log}--- the drivers\n{found}--- their files\n{}",
                named_by(folder.path())?
            )
            .into());
        }
    }
    Ok(())
}

/// Returns the output of `katydid doctor` with the variables of a server.
fn found_with(paths: &Paths, variables: &[(&'static str, OsString)]) -> Result<String, Box<dyn Error>> {
    let mut command = Command::new(paths.katydid());
    let outcome = run(command.arg("doctor").envs(variables.iter().cloned()), PROGRAM_TIMEOUT)?;
    let chosen = std::env::vars().filter(|(name, _)| name.contains("OPENCL") || name.contains("OCL"));
    let all = outcome.text() + &outcome.errors();
    let lines: Vec<&str> = all.lines().filter(|line| line.contains("OpenCL")).collect();
    Ok(format!("{}\nof the caller: {:?}\n", lines.join("\n"), chosen.collect::<Vec<_>>()))
}

/// Returns the contents of the files in a folder.
fn named_by(folder: &Path) -> Result<String, Box<dyn Error>> {
    let files = fs::read_dir(folder)?.map(|file| Ok(format!("{}\n", fs::read_to_string(file?.path())?)));
    files.collect()
}

/// `katydid doctor` reports the OpenCL drivers and the loader, and what to do about problems.
fn doctor(paths: &Paths) -> Result<(), Box<dyn Error>> {
    let memory: OsString = memory_driver(paths).into();
    let none: [(&'static str, OsString); 1] = [(DRIVERS_VARIABLE, "/no/such.so".into())];
    check_doctor(
        paths,
        &none,
        "OpenCL drivers",
        &["/no/such.so", "warn", "pocl-opencl-icd", "only where they are served"],
    )?;
    let empty = [(DRIVERS_VARIABLE, memory.clone()), ("KATYDID_TEST_DEVICES", "0".into())];
    check_doctor(paths, &empty, "OpenCL drivers", &["memory.so: it has no device", "warn", "nvidia-smi"])?;
    check_doctor(paths, &[(DRIVERS_VARIABLE, memory)], "OpenCL drivers", &["Memory of a test", "ok"])?;
    let found = [("LD_LIBRARY_PATH", libraries(paths).into())];
    check_doctor(paths, &found, "OpenCL loader", &["libOpenCL.so.1 is found", "ok"])
}

/// Checks that one finding of `katydid doctor` with these variables contains these words.
fn check_doctor(
    paths: &Paths,
    variables: &[(&'static str, OsString)],
    check: &str,
    texts: &[&str],
) -> Result<(), Box<dyn Error>> {
    let mut command = Command::new(paths.katydid());
    command.args(["doctor", "--json"]).env("LD_LIBRARY_PATH", libraries(paths)).envs(variables.iter().cloned());
    let outcome = run(&mut command, PROGRAM_TIMEOUT)?;
    let found: serde_json::Value = serde_json::from_str(&outcome.text())?;
    let finding = found.as_array().into_iter().flatten().find(|finding| finding["check"] == check);
    let text = finding.map(ToString::to_string).unwrap_or_default();
    match texts.iter().find(|word| !text.contains(**word)) {
        Some(word) => Err(format!("no word of {word:?} in {text:?} of {found}").into()),
        None => Ok(()),
    }
}

/// Katydid's library takes the loader's place: the program is linked with that name. It refuses what a loader refuses.
fn without_loader(paths: &Paths) -> Result<(), Box<dyn Error>> {
    let folder = paths.dist.join("lib/katydid/loader");
    judge(paths, SMALL_PROGRAM, &small(paths, SMALL_PROGRAM, &[], folder.clone().into())?)?;
    let codes = small(paths, CODES_PROGRAM, &[], folder.into())?;
    if is_pocl(paths) {
        return Ok(judge(paths, CODES_PROGRAM, &codes)?);
    }
    Ok(judge_beside(
        paths,
        CODES_PROGRAM,
        &codes,
        &run(&mut with_driver(paths, &DIRECT, CODES_PROGRAM), PROGRAM_TIMEOUT)?,
    )?)
}

/// The tests' own driver is the only one, natively and for workers.
fn memory_alone(paths: &Paths) -> Result<(), Box<dyn Error>> {
    const EXPECTED: &str = "within another: 77, 77 78 79, others 19 255\n\
        CL_MEM_OBJECT_ALLOCATION_FAILURE, told 1: a buffer of 268435457 bytes: 268435456 at most\n\
        CL_MEM_OBJECT_ALLOCATION_FAILURE, told 2: a buffer of 268435458 bytes: 268435456 at most\n\
        properties, none: CL_SUCCESS\n\
        without 2: CL_SUCCESS, 2 before, 0 now; 0\nwithout 1: CL_SUCCESS, 0 before, 0 now; 1\n\
        without 3: CL_SUCCESS, 0 before, 0 now; 2\nwithout 512: CL_INVALID_VALUE, 0 before, 0 now; 3\n\
        with 2: CL_SUCCESS, 0 before, 2 now; 4\nwith 1: CL_SUCCESS, 2 before, 3 now; 5\n\
        with 3: CL_SUCCESS, 3 before, 3 now; 6\nwith 512: CL_INVALID_VALUE, 0 before, 3 now; 7\n";
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("memory.icd"), memory_driver(paths).to_string_lossy().as_bytes())?;
    let vendors = [&driver(paths)[..], &[("OCL_ICD_VENDORS", folder.path().into())]].concat();
    let server = Server::start_with(paths, &driver_under_test(), &[], &vendors)?;
    for way in ways(&server) {
        let mut command = with_driver(paths, &way, "memory_driver");
        if matches!(way, Way::Direct { .. }) {
            command.envs(vendors.clone());
        }
        let outcome = run(&mut command, PROGRAM_TIMEOUT)?;
        if !outcome.status.success() || outcome.text() != EXPECTED {
            return Err(format!("{way}: {}{}{}", outcome.ending(), outcome.text(), outcome.errors()).into());
        }
    }
    Ok(())
}

/// Counts replies over a network, of a program that asks once and of one that asks often. The program prints what it prints
/// natively, some of which may not be known beforehand.
fn asked_once(paths: &Paths) -> Result<(), Box<dyn Error>> {
    const NAME: &str = "asked_once";
    let native = run(with_driver(paths, &DIRECT, NAME).arg("3"), PROGRAM_TIMEOUT)?;
    let server = Server::start_with(paths, &driver_under_test(), &[], &driver(paths))?;
    let mut waits = [0; 2];
    for (rounds, waits) in ["1", "40"].into_iter().zip(&mut waits) {
        let traffic = Arc::default();
        let way = Way::Served {
            name: "tcp",
            address: counting(server.tcp(), DelayModel::AtOnce, &traffic)?,
            as_stream: false,
        };
        let outcome = run(with_driver(paths, &way, NAME).arg(rounds), PROGRAM_TIMEOUT)?;
        if !outcome.status.success() || outcome.text() != native.text() {
            return Err(format!("natively:\n{}{}{}", native.text(), outcome.text(), outcome.errors()).into());
        }
        *waits = traffic.replies.load(Ordering::Relaxed);
    }
    let [once, often] = waits;
    if once == often { Ok(()) } else { Err(format!("once: {once} replies, often: {often}").into()) }
}

/// Calls with arguments at the edges, and all queries with sizes and values, return the codes that PoCL itself returns.
fn answers(paths: &Paths) -> Result<(), Box<dyn Error>> {
    compare_answers(paths, "answers")
}

fn edges(paths: &Paths) -> Result<(), Box<dyn Error>> {
    compare_answers(paths, "edges")
}

/// Compares every line of a program that prints answers with what PoCL has it print.
fn compare_answers(paths: &Paths, name: &str) -> Result<(), Box<dyn Error>> {
    // Other drivers end the program at some of these arguments.
    if !is_pocl(paths) {
        return Ok(());
    }
    let server = Server::start_with(paths, &driver_under_test(), &[], &driver(paths))?;
    let native = run(&mut with_driver(paths, &DIRECT, name), PROGRAM_TIMEOUT)?;
    for way in Way::through(&server).into_iter().chain([Way::as_stream(&server)]) {
        let outcome = run(&mut with_driver(paths, &way, name), PROGRAM_TIMEOUT)?;
        let (native, through) = (native.text(), outcome.text());
        let differ = native.lines().zip(through.lines()).enumerate().filter(|(_, (native, through))| native != through);
        let first: Vec<String> =
            differ.take(20).map(|(at, (native, through))| format!("{}: {native} | {through}", at + 1)).collect();
        if !outcome.status.success() || native != through {
            return Err(format!("{way}: {}\n{}{}", outcome.ending(), first.join("\n"), outcome.errors()).into());
        }
    }
    Ok(())
}

/// The program's kernel and the host meet while the kernel runs. The machine's own driver need not have such memory.
fn fine_grains(paths: &Paths) -> Result<(), Box<dyn Error>> {
    const NAME: &str = "kept_fine_svm";
    if !is_pocl(paths) {
        return Ok(());
    }
    let server = Server::start_with(paths, &driver_under_test(), &[], &driver(paths))?;
    let [shm, tcp] = Way::through(&server);
    for way in [DIRECT, shm] {
        judge(paths, NAME, &run(with_driver(paths, &way, NAME).arg("fine"), PROGRAM_TIMEOUT)?)?;
    }
    let outcome = run(with_driver(paths, &tcp, NAME).arg("fine"), PROGRAM_TIMEOUT)?;
    if outcome.text().contains("not so") { Ok(()) } else { Err(outcome.text().into()) }
}

/// A vendors' file names Katydid's library beside the machine's driver, and programs run without `katydid run`. With a server,
/// its platforms appear as well, and programs work. Without one, none appear, and programs see no error.
fn beside_others(paths: &Paths) -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("a.icd"), library(paths)?)?;
    let of = |variable: Option<&str>| {
        let mut command = with_driver(paths, &DIRECT, "which_loader");
        command.env("OCL_ICD_VENDORS", folder.path()).envs(variable.map(|address| ("KATYDID_SERVER", address)));
        run(&mut command, PROGRAM_TIMEOUT)
    };
    let native = of(None)?;
    let shim = paths.dist.join("lib/katydid/shim/libkatydid_opencl.so");
    fs::write(folder.path().join("b.icd"), shim.to_string_lossy().as_bytes())?;
    let silent = of(None)?;
    if (silent.text(), silent.errors()) != (native.text(), native.errors()) {
        return Err(format!("without a server: {}{}", silent.text(), silent.errors()).into());
    }
    let server = Server::start_with(paths, &driver_under_test(), &[], &driver(paths))?;
    let address = server.unix();
    let both = of(Some(&address))?;
    let count =
        |outcome: &Outcome| outcome.text().trim().rsplit(' ').next().and_then(|count| count.parse::<u32>().ok());
    let (alone, together) = (count(&native).unwrap_or(0), count(&both).unwrap_or(0));
    if alone == 0 || together != 2 * alone {
        return Err(format!("with a server: {}{}", both.text(), both.errors()).into());
    }
    // Katydid's library alone, found by the loader in the same way.
    fs::remove_file(folder.path().join("a.icd"))?;
    let mut command = with_driver(paths, &DIRECT, SMALL_PROGRAM);
    command.env("OCL_ICD_VENDORS", folder.path()).env("KATYDID_SERVER", &address);
    let outcome = run(&mut command, PROGRAM_TIMEOUT)?;
    Ok(judge(paths, SMALL_PROGRAM, &outcome)?)
}

/// A variable of an operator that a worker must not have. The test also uses a file that no worker may read.
const OPERATOR_VARIABLE: (&str, &str) = ("AN_OPERATORS_SECRET", "hunter2");

/// Returns what the kernel of a program could do on a way, through a server with these arguments; `None` where the driver's
/// device is no processor.
fn tried_by_intruder(
    paths: &Paths,
    further: &[&str],
    way: impl Fn(&Server) -> Way,
) -> Result<Option<String>, Box<dyn Error>> {
    if !is_pocl(paths) {
        return Ok(None);
    }
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("file");
    fs::write(&file, "of another user")?;
    let _listener = UnixListener::bind(folder.path().join("socket"))?;
    // The folder of the drivers' libraries, which a worker may read.
    let open = tempfile::NamedTempFile::new_in(libraries(paths))?;
    fs::set_permissions(open.path(), fs::Permissions::from_mode(0o644))?;
    // A named cache belongs to one user, and each worker needs a user of its own.
    let mut variables = driver(paths);
    variables.retain(|(name, _)| *name != "POCL_CACHE_DIR");
    variables.push((OPERATOR_VARIABLE.0, OPERATOR_VARIABLE.1.into()));
    let server = Server::start_with(paths, &driver_under_test(), further, &variables)?;
    let mut command = with_driver(paths, &way(&server), "intruder");
    command.arg(&file).arg(OPERATOR_VARIABLE.1).arg(folder.path().join("socket")).arg(open.path()).arg(server.images());
    let outcome = run(&mut command, PROGRAM_TIMEOUT)?;
    let output = outcome.text();
    let Some((text, child)) = output.rsplit_once("child ").filter(|_| outcome.status.success()) else {
        return Err([outcome.text(), outcome.errors()].concat().into());
    };
    let child: u32 = child.trim().parse()?;
    until("the worker's child ends with its worker", || !runs(child))?;
    Ok(Some(text.to_owned()))
}

/// Whether this process has `CAP_SYS_RESOURCE`, which containers may take from root.
fn has_resource_privilege() -> Result<bool, Box<dyn Error>> {
    const RESOURCE_PRIVILEGE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status")?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).ok_or("no line CapEff")?;
    Ok(u64::from_str_radix(effective.trim(), 16)? >> RESOURCE_PRIVILEGE & 1 == 1)
}

/// Every attempt is refused, and the program and its worker go on.
fn intruder(paths: &Paths) -> Result<(), Box<dyn Error>> {
    const EXPECTED: &str = "a file: refused\nthe server's environment: refused\nthe server's memory: refused\n\
        tracing the server: refused\na signal to the server: refused\na socket of TCP: refused\n\
        a socket of the kernel's: refused\na namespace: refused\nthe variable: not found\n\
        privileges: no new ones\ncapabilities: none\n\
        a file that it may read: done\na socket with a name: refused\na unix socket: refused\n\
        a pair of datagrams: refused\na raw pair, which is one of datagrams: refused\na pair of streams: done\nanother end for it: refused\nits mode: refused\nits mode by folder: refused\nits mode by descriptor: refused\n\
        its times: refused\na file of the system, to write: refused\na file in the system's folder: refused\n\
        keys: refused\nanother terminal: refused\n\
        a folder in the module cache: refused\na pipe in the module cache: refused\na socket in the module cache: refused\n\
        a link in the module cache: refused\na file in the module cache: done\n\
        priorities of its user: refused\nthe server's processors: refused\n\
        a child of the server's: refused\nmemory that stays: refused\n\
        a lower score for want of memory: refused\nfurther calls: refused\nanother process group for a child: refused\n";
    // A worker that runs as root has only the sandbox: file modes do not bind root.
    let is_root = rustix::process::geteuid().is_root();
    // A server with this privilege sets an OOM score that the kernel lets no worker lower.
    let lowered = if has_resource_privilege()? { "refused" } else { "done" };
    let expected = EXPECTED.replace("memory: refused\nfurther", &format!("memory: {lowered}\nfurther"));
    for (way, further) in [(0, &[][..]), (1, &[]), (1, &["--worker-user", "root"])] {
        if !further.is_empty() && !is_root {
            continue;
        }
        let text = tried_by_intruder(paths, further, |server| Way::through(server)[way].clone())?;
        let Some(text) = text else { return Ok(()) };
        if text != expected {
            return Err(text.into());
        }
    }
    Ok(())
}

/// Without the sandbox the refused attempts succeed, so it is the sandbox that refuses them. The environment is clean in any
/// case.
fn free_intruder(paths: &Paths) -> Result<(), Box<dyn Error>> {
    let text = tried_by_intruder(paths, &["--no-sandbox"], |server| Way::through(server)[0].clone())?;
    let Some(text) = text else { return Ok(()) };
    let expected = [
        "a file: done",
        "the server's environment: done",
        "a socket of TCP: done",
        "the variable: not found",
        "a socket with a name: done",
        "a unix socket: done",
        "a pair of datagrams: done",
        "a raw pair, which is one of datagrams: done",
        "another end for it: done",
        "its mode: done",
        "its times: done",
        "a folder in the module cache: done",
        "a socket in the module cache: done",
        "a link in the module cache: done",
        "further calls: done",
        "another process group for a child: done",
    ];
    let is_free = expected.iter().all(|line| text.lines().any(|found| found == *line));
    let has_all =
        tried_by_intruder(paths, &["--worker-env", OPERATOR_VARIABLE.0], |server| Way::through(server)[0].clone())?;
    let is_passed = has_all.is_some_and(|text| text.contains("the variable: found"));
    if is_free && is_passed { Ok(()) } else { Err(text.into()) }
}

/// A program over TCP gets the reason why it has no device. A program over the unix socket has the device, and so does one over
/// TCP if TCP is allowed.
fn own_processors(paths: &Paths) -> Result<(), Box<dyn Error>> {
    if !is_pocl(paths) {
        return Ok(());
    }
    let server = Server::start_with(paths, &driver_under_test(), &[Server::STRICT], &driver(paths))?;
    let [shm, tcp] = Way::through(&server);
    judge(paths, SMALL_PROGRAM, &run(&mut with_driver(paths, &shm, SMALL_PROGRAM), PROGRAM_TIMEOUT)?)?;
    judge(
        paths,
        SMALL_PROGRAM,
        &run(&mut with_driver(paths, &Way::as_stream(&server), SMALL_PROGRAM), PROGRAM_TIMEOUT)?,
    )?;
    let outcome = run(&mut with_driver(paths, &tcp, SMALL_PROGRAM), PROGRAM_TIMEOUT)?;
    let is_said = ["processors alone", "--allow-cpu-opencl"].iter().all(|word| outcome.errors().contains(word));
    if outcome.status.success() || !is_said { Err(outcome.errors().into()) } else { Ok(()) }
}

/// PoCL itself would end the process that asks for such a queue: the program, or its worker.
fn device_queue(paths: &Paths) -> Result<(), Box<dyn Error>> {
    let outcome = small(paths, "device_queue", &[], libraries(paths).into())?;
    let is_right = outcome.status.success() && outcome.text() == "CL_INVALID_QUEUE_PROPERTIES, then CL_SUCCESS\n";
    if is_right { Ok(()) } else { Err(format!("{}{}", outcome.text(), outcome.errors()).into()) }
}
