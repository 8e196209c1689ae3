//! Messages that a program's user reads beside the program's own: why code is refused, which variables have no effect, and that
//! no GPU is used where the user might expect one.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::commands::katydid;
use katydid_tests::frameworks;
use katydid_tests::paths::Paths;
use katydid_tests::program::{self, Outcome};
use katydid_tests::server::Server;
use katydid_tests::watch::WAIT_TIMEOUT;
use katydid_tests::way::Way;

/// A driver of a GPU that does not start.
const BROKEN: &str = "
    unsigned cuDriverGetVersion(int *version) { *version = 13000; return 0; }
    unsigned cuInit(unsigned flags) { return 999; }
    unsigned cuDeviceGetCount(int *count) { *count = 0; return 0; }
";
/// Nothing here says a line without being asked for one.
const NO_GPU: &str = "no GPU is used";

fn run(command: &mut Command) -> Result<Outcome> {
    Ok(program::run(command, WAIT_TIMEOUT)?)
}

fn program(paths: &Paths, name: &str) -> std::path::PathBuf {
    let variant = if name == "vector_add" { Variant::Static } else { Variant::Plain };
    paths.program(name, variant)
}

fn lines_with<'a>(text: &'a str, texts: &str) -> Vec<&'a str> {
    text.lines().filter(|line| line.contains(texts)).collect()
}

#[test]
fn the_reason_for_refused_code_is_said_once_on_the_programs_standard_error() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = Server::start(&paths, "soft", &[])?;
    let [shm, tcp] = Way::through(&server);
    for way in [Way::Direct { name: "soft", folder: Some(paths.soft()) }, shm, tcp] {
        let outcome = run(way.command(&paths, &program(&paths, "refused_code")).arg("logs"))?;
        let stderr = outcome.errors();
        ensure!(outcome.status.success(), "{way}: {}\n{stderr}", outcome.text());
        // Reasons from a module and a linker, from a library, and for code that has nothing for this device,
        // however it is loaded.
        for reason in ["frobnicate", "befuddle", "PTX for 120", "PTX for 121", "PTX for 129"] {
            ensure!(lines_with(&stderr, reason).len() == 1, "{way}, {reason}: {stderr}");
        }
    }
    Ok(())
}

/// The thread of host functions would end with such a child, and connections for large copies would be the child's alone.
#[test]
fn children_with_their_parents_memory_leave_it_its_threads_and_connections() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = Server::start(&paths, "soft", &[])?;
    for way in Way::through(&server).into_iter().chain([Way::as_stream(&server)]) {
        let outcome = run(way.command(&paths, &paths.program("raw_children", Variant::Static)).arg("functions"))?;
        ensure!(outcome.status.success(), "{way}: {}\n{}", outcome.text(), outcome.errors());
    }
    Ok(())
}

/// What CuPy's wheel has as machine code alone, and does not look at the answer of.
const SUM: &str = "import cupy; print(int(cupy.arange(10).sum()))";

#[test]
fn code_that_a_gpu_would_run_is_refused_once_and_fails_its_context() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = Server::start(&paths, "soft", &[])?;
    let [shm, tcp] = Way::through(&server);
    // Code for another device is refused as on a GPU, and the program goes on.
    let cases = [("machine_code", "209, then 209: -1\n", 1), ("machine_code_80", "209, then 0: 0\n", 0)];
    let direct = Way::Direct { name: "soft", folder: Some(paths.soft()) };
    for way in [&direct, &shm, &tcp] {
        for ((name, text, failures), how) in cases.into_iter().flat_map(|case| [(case, "launch"), (case, "ask")]) {
            let outcome = run(way.command(&paths, &paths.program(name, Variant::Static)).arg(how))?;
            let errors = outcome.errors();
            ensure!(outcome.text() == text, "{way}, {name}, {how}: {}\n{errors}", outcome.text());
            ensure!(lines_with(&errors, "has no PTX").len() == 1, "{way}, {name}, {how}: {errors}");
            ensure!(lines_with(&errors, "the context fails").len() == failures, "{way}, {name}, {how}: {errors}");
        }
    }
    let python = frameworks::python(&paths);
    if python.is_absolute() {
        let mut command = direct.command(&paths, &python);
        command.args(["-c", SUM]).envs([("CUPY_COMPILE_WITH_PTX", "1"), ("CUPY_ACCELERATORS", "cub")]);
        let outcome = run(command.envs(frameworks::toolkit(&paths)))?;
        let errors = outcome.errors();
        ensure!(!outcome.status.success() && errors.contains("NoKernelImage"), "{}\n{errors}", outcome.text());
    }
    Ok(())
}

#[test]
fn a_variable_without_effect_is_named_and_no_other() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = Server::start(&paths, "soft", &[])?;
    let [shm, tcp] = Way::through(&server);
    for way in [Way::Direct { name: "soft", folder: Some(paths.soft()) }, shm, tcp] {
        let stderr_with = |settings: &[(&str, &str)]| -> Result<String> {
            let mut command = way.command(&paths, &program(&paths, "vector_add"));
            Ok(run(command.envs(settings.iter().copied()))?.errors())
        };
        let in_vain = stderr_with(&[("CUDA_DEVICE_MAX_CONNECTIONS", "1"), ("CUDA_BINARY_LOADER_THREAD_COUNT", "2")])?;
        let line = "without effect: CUDA_BINARY_LOADER_THREAD_COUNT=2, CUDA_DEVICE_MAX_CONNECTIONS=1";
        ensure!(lines_with(&in_vain, line).len() == 1, "{way}: {in_vain}");
        let done =
            stderr_with(&[("CUDA_FORCE_PTX_JIT", "1"), ("CUDA_MODULE_LOADING", "EAGER"), ("CUDA_DISABLE_JIT", "0")])?;
        ensure!(lines_with(&done, "without effect").is_empty(), "{way}: {done}");
    }
    Ok(())
}

/// softcuda under an unknown name, so that it passes for the driver of a GPU.
fn disguised_softcuda(paths: &Paths, folder: &Path) -> Result<String> {
    const MARKER: &[u8] = b"katydid_softcuda_marker\0";
    let mut library = fs::read(paths.soft().join("libcuda.so.1"))?;
    // The first occurrence is among the names of exported symbols.
    let offset = library.windows(MARKER.len()).position(|window| window == MARKER).context("softcuda has no marker")?;
    library[offset] = b'K';
    let disguised = folder.join("libcuda.so.1");
    fs::write(&disguised, library)?;
    Ok(disguised.display().to_string())
}

#[test]
fn a_cache_that_the_driver_of_a_server_does_not_share_is_named_once() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let folder = tempfile::tempdir()?;
    let driver = disguised_softcuda(&paths, folder.path())?;
    let server = Server::start_with(&paths, &driver, &[], &[("CUDA_CACHE_MAXSIZE", "4096".into())])?;
    for way in Way::through(&server) {
        let stderr_with = |settings: &[(&str, &str)]| -> Result<String> {
            let mut command = way.command(&paths, &program(&paths, "vector_add"));
            let outcome = run(command.envs(settings.iter().copied()))?;
            ensure!(outcome.status.success(), "{way}: {}", outcome.errors());
            Ok(outcome.errors())
        };
        let divided = stderr_with(&[("CUDA_CACHE_DISABLE", "1"), ("CUDA_CACHE_MAXSIZE", "4096")])?;
        ensure!(lines_with(&divided, "for NVRTC alone: CUDA_CACHE_DISABLE=1:").len() == 1, "{way}: {divided}");
        let shared = stderr_with(&[("CUDA_CACHE_MAXSIZE", "4096")])?;
        ensure!(lines_with(&shared, "NVRTC").is_empty(), "{way}: {shared}");
    }
    Ok(())
}

#[test]
fn updates_that_may_be_lost_between_host_and_device_are_warned_of_once() -> Result<()> {
    const WARNING: &str = "atomic operations of system scope";
    let paths = Paths::of_this_test()?;
    let server = Server::start(&paths, "soft", &[])?;
    let [shm, tcp] = Way::through(&server);
    // Over shared memory, both sides map the same pages for softcuda's managed blocks and host memory.
    let cases = [(&shm, "managed", 0), (&tcp, "managed", 1), (&shm, "registered", 1), (&tcp, "registered", 1)];
    for (way, kind, count) in cases {
        let mut command = way.command(&paths, &paths.program("host_atomics", Variant::Static));
        command.args(Some(kind).filter(|kind| *kind != "managed"));
        let outcome = run(&mut command)?;
        let errors = outcome.errors();
        ensure!(outcome.status.success(), "{way}, {kind}: {}\n{errors}", outcome.ending());
        ensure!(lines_with(&errors, WARNING).len() == count, "{way}, {kind}: {errors}");
    }
    for (name, count) in [("managed_variables", 1), ("vector_add", 0)] {
        let outcome = run(&mut shm.command(&paths, &paths.program(name, Variant::Static)))?;
        let errors = outcome.errors();
        ensure!(outcome.status.success() && lines_with(&errors, WARNING).len() == count, "{name}: {errors}");
    }
    Ok(())
}

#[test]
fn failed_calls_go_to_the_log_that_the_environment_names() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = Server::start(&paths, "soft", &[])?;
    let [shm, tcp] = Way::through(&server);
    let folder = tempfile::tempdir()?;
    for way in [Way::Direct { name: "soft", folder: Some(paths.soft()) }, shm, tcp] {
        let log = folder.path().join(way.to_string());
        run(way.command(&paths, &program(&paths, "refused_code")).env("CUDA_LOG_FILE", &log))?;
        let text = fs::read_to_string(&log)?;
        let expected = "[CUDA][E] Returning 218 (CUDA_ERROR_INVALID_PTX) from cuModuleLoadData\n";
        ensure!(text.contains(expected), "{way}: {text}");
    }
    Ok(())
}

#[test]
fn a_gpu_can_be_required() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = Server::start(&paths, "soft", &[])?;
    let [unix, tcp] = [server.unix(), server.tcp().to_owned()];
    let soft = paths.soft().join("libcuda.so.1").display().to_string();
    let vector_add = program(&paths, "vector_add").display().to_string();
    for (arguments, status, texts) in [
        (&["run", "--require-gpu", "--server", &unix, "--", &vector_add][..], 3, "is softcuda"),
        (&["run", "--require-gpu", "--server", &tcp, "--", &vector_add], 3, "is softcuda"),
        (&["run", "--require-gpu", "--driver", &soft, "--", &vector_add], 3, "no GPU is used"),
        (&["run", "--require-gpu", "--driver", "soft", "--", &vector_add], 2, "exclude each other"),
        (&["serve", "--require-gpu", "--driver", &soft, "--listen", "tcp://127.0.0.1:0"], 3, "no GPU is used"),
    ] {
        let folder = tempfile::tempdir()?;
        let outcome = run(katydid(&paths, arguments).env("XDG_RUNTIME_DIR", folder.path()))?;
        let stderr = outcome.errors();
        ensure!(outcome.status.code() == Some(status) && outcome.text().is_empty(), "{arguments:?}: {stderr}");
        ensure!(stderr.lines().count() <= 2 && stderr.contains(texts), "{arguments:?}: {stderr}");
    }
    // The session's requirement also holds in the program.
    let mut command = Way::through(&server)[0].command(&paths, &program(&paths, "vector_add"));
    let outcome = run(command.env("KATYDID_REQUIRE_GPU", "1"))?;
    ensure!(!outcome.status.success() && outcome.errors().contains("KATYDID_REQUIRE_GPU"), "{}", outcome.errors());
    Ok(())
}

#[test]
fn fallback_to_softcuda_is_reported() -> Result<()> {
    if Path::new("/dev/nvidiactl").exists() {
        // A machine with a GPU has a working driver elsewhere.
        return Ok(());
    }
    let paths = Paths::of_this_test()?;
    let folder = tempfile::tempdir()?;
    let (source, library) = (folder.path().join("broken.c"), folder.path().join("libcuda.so.1"));
    fs::write(&source, BROKEN)?;
    ensure!(Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status()?.success());
    let reason = "libcuda.so.1: cuInit returned CUDA_ERROR_UNKNOWN (999)";
    let mut command = Way::Private { driver: "auto".to_owned() }.command(&paths, &program(&paths, "vector_add"));
    let outcome = run(command.env("LD_LIBRARY_PATH", folder.path()))?;
    let stderr = outcome.errors();
    ensure!(outcome.status.success() && lines_with(&stderr, NO_GPU).len() == 1 && stderr.contains(reason), "{stderr}");
    // Where the user chose softcuda, there is no message.
    let chosen = run(&mut Way::Private { driver: "soft".to_owned() }.command(&paths, &program(&paths, "vector_add")))?;
    ensure!(chosen.status.success() && lines_with(&chosen.errors(), NO_GPU).is_empty(), "{}", chosen.errors());
    let variables = [("LD_LIBRARY_PATH", folder.path().as_os_str().to_owned())];
    let server = Server::start_with(&paths, "auto", &[Server::FALLS_BACK], &variables)?;
    for way in Way::through(&server) {
        let outcome = run(&mut way.command(&paths, &program(&paths, "vector_add")))?;
        ensure!(outcome.status.success(), "{}", outcome.errors());
    }
    let log = server.log();
    let driver_lines = lines_with(&log, "driver softcuda");
    ensure!(
        driver_lines.len() == 1 && driver_lines[0].contains(reason) && driver_lines[0].contains("--require-gpu"),
        "{log}"
    );
    Ok(())
}
