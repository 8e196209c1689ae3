//! Starts servers in this process: their defaults, and the command of their workers.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs, io};

use katydid_server::{Server, ServerConfig, Verbosity, WorkerCommand};
use katydid_transport::Address;
use katydid_wire::SPEC_HASH;
use katydid_wire::handshake::Build;

use crate::layout::{self, Layout};
use crate::output::failure::Failure;
use crate::server::isolation::make_devices;

/// How long a program may take to say hello.
const SERVER_HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Default limits of a server.
const MAX_SESSIONS: usize = 256;
const MAX_PEER_CONNECTIONS: usize = 64;
/// Variable that marks workers.
const WORKER_VARIABLE: &str = "KATYDID_WORKER";
/// Variable with glibc's tunables (ld.so(8)).
const GLIBC_TUNABLES_VARIABLE: &str = "GLIBC_TUNABLES";
/// Variable that keeps programs from softcuda.
pub const REQUIRE_GPU_VARIABLE: &str = "KATYDID_REQUIRE_GPU";
/// Flag that keeps a worker from softcuda.
const REQUIRE_GPU_FLAG: &str = "--require-gpu";
/// How long a GPU's driver may take to start if a GPU is required.
const REQUIRED_DRIVER_TIMEOUT: Duration = Duration::from_secs(120);
/// Variables meant for programs, which are removed from the environment of workers.
const PROGRAM_VARIABLES: [&str; 8] = [
    "KATYDID_SERVER",
    "KATYDID_NAME",
    "KATYDID_MEMORY",
    "KATYDID_LINK",
    "KATYDID_TRACE",
    REQUIRE_GPU_VARIABLE,
    // Blocking launches and the log of failed calls are the program's side's work.
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_LOG_FILE",
];

/// Whether a GPU is required, by the flag or the variable.
pub fn requires_gpu(flag: bool) -> bool {
    flag || env::var_os(REQUIRE_GPU_VARIABLE).is_some_and(|value| value == "1")
}

/// Values that `--driver` takes, for messages.
const DRIVER_VALUES: &str = "give auto, soft, or the path of a libcuda.so.1";

/// Whether `--driver` names a library, which must be one that a worker can open.
pub fn names_library(driver: &str) -> bool {
    !["auto", "soft"].contains(&driver)
}

/// The reason why a worker did not open its driver, with the name of the library, and with the remedy if the worker could not say
/// it.
fn of_named(driver: &str, reason: String) -> String {
    match reason {
        reason if !names_library(driver) => reason,
        reason if reason.contains(driver) => format!("--driver: {reason}"),
        reason => format!("--driver: {driver}: {reason}; {DRIVER_VALUES}"),
    }
}

/// Starts a server. If a GPU is required, or the server needs its driver, waits until a first worker has opened the driver,
/// unless the wait `is_given_up`.
pub fn start(mut config: ServerConfig, requires_gpu: bool, is_given_up: &dyn Fn() -> bool) -> Result<Server, Failure> {
    let driver = config.driver.clone();
    if driver != "soft" {
        make_devices();
    }
    if requires_gpu {
        if driver == "soft" {
            return Err(Failure::usage(format!(
                "--require-gpu (or {REQUIRE_GPU_VARIABLE}=1) and --driver soft exclude each other: leave one of them out"
            )));
        }
        config.worker.arguments.push(REQUIRE_GPU_FLAG.into());
    }
    config.needs_driver |= requires_gpu;
    let needs_driver = config.needs_driver;
    let server = Server::start(config).map_err(Failure::server)?;
    if needs_driver {
        let driven = server.wait_for_driver(REQUIRED_DRIVER_TIMEOUT, is_given_up);
        driven.map_err(|reason| Failure::server(of_named(&driver, reason)))?;
    }
    Ok(server)
}

/// Default limit of sessions of one peer over a network, which leaves slots for others.
pub fn peer_sessions(max_sessions: usize) -> usize {
    max_sessions - max_sessions / 4
}

/// Configuration of a server with one warm worker and default limits; the caller changes the rest.
pub fn config(listen: Vec<Address>, admin: PathBuf, driver: &str) -> Result<ServerConfig, Failure> {
    let layout = Layout::find().map_err(Failure::server)?;
    check_driver(driver)?;
    Ok(ServerConfig {
        listen,
        admin,
        insecure: false,
        worker: worker_command(&layout, driver),
        driver: driver.to_owned(),
        warm: 1,
        max_sessions: MAX_SESSIONS,
        peer_sessions: peer_sessions(MAX_SESSIONS),
        peer_connections: MAX_PEER_CONNECTIONS,
        session_memory: None,
        host_memory: None,
        cpu_opencl: true,
        worker_images: false,
        build: Build::current(SPEC_HASH),
        hello_timeout: SERVER_HELLO_TIMEOUT,
        needs_driver: false,
        verbosity: Verbosity::Everything,
    })
}

/// Checks the path of a driver library, since a wrong one would only show when the first worker ends.
fn check_driver(driver: &str) -> Result<(), Failure> {
    let problem = match fs::metadata(driver) {
        _ if driver.is_empty() => return Err(Failure::usage(format!("--driver: it is empty; {DRIVER_VALUES}"))),
        // The system searches its folders for a name.
        _ if !driver.contains('/') => return Ok(()),
        Ok(there) if there.is_file() => return Ok(()),
        Ok(there) if there.is_dir() => "it is a folder".to_owned(),
        Ok(_) => "it is not a regular file".to_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => "no such file".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(Failure::usage(format!("--driver: {driver}: {problem}; {DRIVER_VALUES}")))
}

/// The command of a worker: this very executable, even if its file is replaced while the server runs.
fn worker_command(layout: &Layout, driver: &str) -> WorkerCommand {
    let mut set: Vec<(OsString, OsString)> =
        vec![(layout::LIBRARY_FOLDER_VARIABLE.into(), layout.folder.clone().into())];
    if let Some(path) = layout.driver_search() {
        set.push((layout::SEARCH_PATH_VARIABLE.into(), path));
    }
    // softcuda recognizes a worker's environment by it.
    set.push((WORKER_VARIABLE.into(), "1".into()));
    set.push((GLIBC_TUNABLES_VARIABLE.into(), tunables(env::var_os(GLIBC_TUNABLES_VARIABLE))));
    WorkerCommand {
        program: "/proc/self/exe".into(),
        arguments: vec!["worker".into(), "--driver".into(), driver.into()],
        set,
        unset: PROGRAM_VARIABLES.map(OsString::from).to_vec(),
        ..WorkerCommand::default()
    }
}

/// Adds a worker's settings of the C library to the present ones.
fn tunables(inherited: Option<OsString>) -> OsString {
    let mut all = inherited.filter(|inherited| !inherited.is_empty()).unwrap_or_default();
    if !all.is_empty() {
        all.push(":");
    }
    all.push(katydid_worker::STACKS_KEPT);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_librarys_settings_of_others_stay() {
        let (own, others) = (katydid_worker::STACKS_KEPT, "glibc.malloc.check=3");
        assert_eq!(tunables(None), own);
        assert_eq!(tunables(Some("".into())), own);
        assert_eq!(tunables(Some(others.into())), format!("{others}:{own}").as_str());
    }

    #[test]
    fn driver_errors_name_the_library_once() {
        let message = |driver, reason: &str| of_named(driver, reason.to_owned());
        assert_eq!(message("auto", "no driver works"), "no driver works");
        assert_eq!(message("/x", "/x: is not a driver; give another"), "--driver: /x: is not a driver; give another");
        assert_eq!(message("/x", "its process ended"), format!("--driver: /x: its process ended; {DRIVER_VALUES}"));
    }

    #[test]
    fn a_driver_that_does_not_exist_is_refused_before_any_worker_starts() {
        let cases =
            [("", "empty"), ("/", "a folder"), ("/dev/null", "not a regular file"), ("/no/such", "no such file")];
        for (driver, words) in cases {
            let failure = check_driver(driver).unwrap_err();
            assert!(failure.status() == 2 && failure.to_string().contains(words), "{failure:?}");
        }
        assert!(matches!(check_driver("/no/such/libcuda.so.1"), Err(Failure::Usage(_))));
        assert!(check_driver("auto").is_ok() && check_driver("libcuda.so.1").is_ok());
    }
}
