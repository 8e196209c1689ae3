//! `katydid serve`: the server in the foreground, until a signal ends it.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use katydid_daemon::{Server, ServerConfig, Verbosity, WorkerCommand, raise_descriptors};
use katydid_job::supervisor::folder;
use katydid_job::supervisor::registry::Registered;
use katydid_transport::{Address, Identity, TlsError};
use katydid_wire::SPEC_HASH;
use katydid_wire::handshake::Build;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::flags::ServeFlags;
use crate::layout::{self, Layout};
use crate::output::failure::{Failure, Outcome, say};
use crate::server::address::{admin_path, certified, default_listen, prepare_runtime_folder};
use crate::server::isolation::{make_devices, tell_of_missing_layers};
use crate::server::module_cache::ModuleCache;
use crate::server::mps::Mps;
use crate::server::{worker_env, worker_user};

/// How long a program may take to say hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Limits of a server that is not told any.
const MAX_SESSIONS: usize = 256;
const PEER_CONNECTIONS: usize = 64;
/// Set in workers.
const WORKER: &str = "KATYDID_WORKER";
/// Settings of glibc.
const TUNABLES: &str = "GLIBC_TUNABLES";
/// Tells the program's side that softcuda will not do.
pub(crate) const REQUIRE_GPU: &str = "KATYDID_REQUIRE_GPU";
/// Tells a worker the same.
const REQUIRE_GPU_FLAG: &str = "--require-gpu";
/// How long a GPU's driver may take to start where one is required.
const DRIVER_START_TIMEOUT: Duration = Duration::from_secs(120);
/// What the program's side is told by; a worker must not take it for its own.
const PROGRAM_VARIABLES: [&str; 8] = [
    "KATYDID_SERVER",
    "KATYDID_NAME",
    "KATYDID_MEMORY",
    "KATYDID_LINK",
    "KATYDID_TRACE",
    REQUIRE_GPU,
    // What launches wait for, and which calls failed, is the program's side's to see to.
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_LOG_FILE",
];

/// Runs the command.
pub(crate) fn main(flags: ServeFlags) -> Outcome {
    let (quiet, requires_gpu, driver) = (flags.quiet, flags.require_gpu, flags.driver.clone());
    check_mps(&flags)?;
    check_folders(&flags.isolation.worker_folder)?;
    worker_env::check(&flags.isolation.worker_env)?;
    raise_descriptors();
    // Caught before anything exists that a signal could leave behind.
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(Failure::server)?;
    folder::clear_away();
    let wants_mps = flags.mps;
    let (user, home) = flags.isolation.worker_user.as_deref().map(worker_user::find).transpose()?.unzip();
    let modules = ModuleCache::prepare(&flags, user.as_ref())?;
    let mut config = requested(flags)?;
    config.worker.user = user;
    config.worker.set.extend(home.map(|home| ("HOME".into(), home)));
    if config.worker.own_folder && !quiet {
        tell_of_missing_layers();
    }
    // Ends behind the workers.
    let mps = wants_mps.then(Mps::start).transpose()?;
    config.worker.set.extend(mps.iter().flat_map(Mps::variables));
    config.worker.arguments.extend(modules.iter().flat_map(ModuleCache::arguments));
    let server = start(config, requires_gpu)?;
    check_named(&server, &driver)?;
    if let Some(mps) = &mps {
        mps.when_revived(server.renewal());
    }
    let registered = Registered::new(server.admin());
    if let Err(error) = &registered {
        say(format_args!("`katydid ps` finds this server by --admin only: {error}"));
    }
    if !quiet {
        announce(&server);
    }
    let first = signals.forever().next();
    if !quiet && first.is_some() {
        say("stopping; a second signal ends at once");
    }
    end_at_the_next(signals)?;
    server.stop();
    drop(registered);
    Ok(ExitCode::SUCCESS)
}

/// Starts a server. Where a GPU is required, its first worker must have opened the driver of one.
pub(crate) fn start(mut config: ServerConfig, requires_gpu: bool) -> Result<Server, Failure> {
    if config.driver != "soft" {
        make_devices();
    }
    if !requires_gpu {
        return Server::start(config).map_err(Failure::server);
    }
    if config.driver == "soft" {
        return Err(Failure::usage("--require-gpu and --driver soft exclude each other"));
    }
    config.worker.arguments.push(REQUIRE_GPU_FLAG.into());
    let server = Server::start(config).map_err(Failure::server)?;
    server.driver(DRIVER_START_TIMEOUT).map_err(Failure::server)?;
    Ok(server)
}

/// A library that another process named must be one that a worker can open.
pub(crate) fn check_named(server: &Server, driver: &str) -> Result<(), Failure> {
    if ["auto", "soft"].contains(&driver) {
        return Ok(());
    }
    let failed = |error| Failure::server(format!("--driver: {driver}: {error}"));
    server.driver(DRIVER_START_TIMEOUT).map(drop).map_err(failed)
}

/// The first signal let the server stop in order; the process that sends another does not want to wait for that.
fn end_at_the_next(mut signals: Signals) -> Result<(), Failure> {
    let wait = move || {
        if let Some(signal) = signals.forever().next() {
            std::process::exit(128 + signal);
        }
    };
    thread::Builder::new().name("second-signal".to_owned()).spawn(wait).map(drop).map_err(Failure::server)
}

/// One line an address, for people and for scripts that wait for the server.
fn announce(server: &Server) {
    for address in server.addresses() {
        say(format_args!("listening on {address}"));
    }
    say(format_args!("admin socket {}", server.admin().display()));
}

/// What the flags ask for.
fn requested(flags: ServeFlags) -> Result<ServerConfig, Failure> {
    let listen = addresses(&flags.listen)?.into_iter().map(|address| certified(address, flags.certs.as_deref()));
    let listen: Vec<Address> = listen.collect::<Result<_, _>>().map_err(Failure::usage)?;
    listen.iter().try_for_each(check_certs)?;
    let admin = match (flags.admin, listen.first()) {
        (Some(path), _) => path,
        (None, Some(first)) => admin_path(first),
        (None, None) => return Err(Failure::usage("no address to listen on")),
    };
    let mut config = config(listen, admin, &flags.driver)?;
    config.insecure = flags.insecure;
    config.warm = flags.warm;
    config.max_sessions = flags.max_sessions;
    config.peer_sessions = flags.peer_sessions.unwrap_or_else(|| peer_sessions(flags.max_sessions));
    config.peer_connections = flags.peer_connections.into();
    if let Some(size) = flags.host_memory {
        config.worker.arguments.extend(["--host-memory".into(), size.0.to_string().into()]);
    }
    config.session_memory = flags.session_memory.map(|size| size.0);
    config.verbosity = if flags.quiet { Verbosity::Problems } else { Verbosity::Everything };
    flags.isolation.apply(&mut config);
    Ok(config)
}

/// Behind TLS a server has certificates, which are read again at each connection.
fn check_certs(address: &Address) -> Result<(), Failure> {
    match address {
        Address::Tls { certs: None, .. } => Err(Failure::usage(TlsError::NoFolder)),
        Address::Tls { certs: Some(folder), .. } => Identity::read(folder).map(drop).map_err(Failure::usage),
        _ => Ok(()),
    }
}

/// What `--listen` says, or the default place, made safe before a socket is put there.
fn addresses(texts: &[String]) -> Result<Vec<Address>, Failure> {
    if texts.is_empty() {
        prepare_runtime_folder().map_err(Failure::server)?;
        return Ok(vec![default_listen()]);
    }
    let parsed = texts.iter().map(|text| text.parse::<Address>());
    parsed.collect::<Result<_, _>>().map_err(|error| Failure::usage(format!("--listen: {error}")))
}

/// Sessions of one peer over a network, unless told otherwise: others find a place, too.
fn peer_sessions(max_sessions: usize) -> usize {
    max_sessions - max_sessions / 4
}

/// A server of one warm worker without limits; the caller changes what it wants otherwise.
pub(crate) fn config(listen: Vec<Address>, admin: PathBuf, driver: &str) -> Result<ServerConfig, Failure> {
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
        peer_connections: PEER_CONNECTIONS,
        session_memory: None,
        cpu_opencl: true,
        build: Build::current(SPEC_HASH),
        hello_patience: HELLO_TIMEOUT,
        verbosity: Verbosity::Everything,
    })
}

/// What softcuda computes runs beside everything else as it is.
fn check_mps(flags: &ServeFlags) -> Result<(), Failure> {
    match flags.mps && flags.driver == "soft" {
        true => Err(Failure::usage("--mps is for NVIDIA's driver, and --driver soft is none")),
        false if flags.mps && flags.isolation.worker_user.is_some() => {
            Err(Failure::usage("--mps and --worker-user exclude each other: the service is the server's user's"))
        }
        false => Ok(()),
    }
}

/// A folder that is not there would be left out without a word.
fn check_folders(folders: &[PathBuf]) -> Result<(), Failure> {
    match folders.iter().find(|folder| !folder.is_dir()) {
        Some(folder) => Err(Failure::usage(format!(
            "--worker-folder: {}: no such folder; make it, or name another one",
            folder.display()
        ))),
        None => Ok(()),
    }
}

/// A path that leads nowhere would only show when the first worker dies of it.
fn check_driver(driver: &str) -> Result<(), Failure> {
    if driver.contains('/') && !Path::new(driver).is_file() {
        return Err(Failure::usage(format!(
            "--driver: {driver}: no such file; give auto, soft, or the path of a libcuda.so.1"
        )));
    }
    Ok(())
}

/// This very executable, even if its file is replaced while the server runs.
fn worker_command(layout: &Layout, driver: &str) -> WorkerCommand {
    let mut set: Vec<(OsString, OsString)> = vec![(layout::VARIABLE.into(), layout.folder.clone().into())];
    if let Some(path) = layout.driver_search() {
        set.push((layout::SEARCH.into(), path));
    }
    // For softcuda, which tells a program's environment from a server's by it.
    set.push((WORKER.into(), "1".into()));
    set.push((TUNABLES.into(), tunables(env::var_os(TUNABLES))));
    WorkerCommand {
        program: "/proc/self/exe".into(),
        arguments: vec!["worker".into(), "--driver".into(), driver.into()],
        set,
        unset: PROGRAM_VARIABLES.map(OsString::from).to_vec(),
        ..WorkerCommand::default()
    }
}

/// A worker's settings of the C library, besides those that are there.
fn tunables(there: Option<OsString>) -> OsString {
    let mut all = there.filter(|there| !there.is_empty()).unwrap_or_default();
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
    fn a_driver_that_does_not_exist_is_refused_before_any_worker_starts() {
        assert!(matches!(check_driver("/no/such/libcuda.so.1"), Err(Failure::Usage(_))));
        assert!(check_driver("auto").is_ok() && check_driver("libcuda.so.1").is_ok());
    }

    #[test]
    fn folders_of_workers_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let lost = folder.path().join("lost");
        assert!(check_folders(&[folder.path().to_owned()]).is_ok());
        let error = check_folders(&[folder.path().to_owned(), lost.clone()]).unwrap_err();
        assert!(matches!(&error, Failure::Usage(text) if text.contains(lost.to_str().unwrap())), "{error}");
    }

    #[test]
    fn a_wrong_address_is_a_usage_error() {
        assert!(matches!(addresses(&["nowhere".into()]), Err(Failure::Usage(_))));
    }
}
