//! `katydid serve`: runs the server in the foreground, until a signal ends it.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use katydid_job::process::shared_memory;
use katydid_job::supervisor::folder;
use katydid_job::supervisor::registry::ServerRegistration;
use katydid_server::{Server, ServerConfig, Verbosity, raise_descriptors};
use katydid_transport::{Address, Identity, TlsError};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::flags::ServeFlags;
use crate::file_limit;
use katydid_cli_core::layout::Layout;
use katydid_cli_core::output::failure::{Failure, Outcome, print_message};
use katydid_cli_core::server::address::{admin_path, certified, default_listen, prepare_runtime_folder};
use katydid_cli_core::server::isolation::tell_of_missing_layers;
use katydid_cli_core::server::module_cache::ServerModuleCache;
use katydid_cli_core::server::mps::Mps;
use katydid_cli_core::server::start::{config, names_library, peer_sessions, start};
use katydid_cli_core::server::{worker_env, worker_user};

/// Runs `katydid serve`.
pub(crate) fn main(flags: ServeFlags) -> Outcome {
    let (quiet, requires_gpu, driver) = (flags.quiet, flags.require_gpu, flags.driver.clone());
    check_mps(&flags)?;
    check_warm(flags.warm, flags.max_sessions)?;
    check_folders(&flags.isolation.worker_folder)?;
    worker_env::check(&flags.isolation.worker_env)?;
    raise_descriptors();
    if let Some(reason) = file_limit::too_low().filter(|_| !quiet) {
        print_message(format_args!("{reason}: lift `ulimit -f`, or have programs use --link stream"));
    }
    // Caught before anything exists that a signal could leave behind.
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(Failure::server)?;
    let is_signalled = flagged([SIGTERM, SIGINT]).map_err(Failure::server)?;
    folder::clear_away();
    shared_memory::undo_abandoned();
    let wants_mps = flags.mps;
    let (module_cache, module_cache_size) = (flags.module_cache.clone(), flags.module_cache_size);
    // The MPS service belongs to the server's user, and so must its clients.
    let may_have_own_users = flags.isolation.worker_user.is_none() && !wants_mps;
    let mut config = requested(flags)?;
    if config.worker.serves_tenants && may_have_own_users {
        config.worker.runs_as = worker_user::own_users(&driver, &opened_by_workers(&driver)?, quiet);
    }
    let modules = ServerModuleCache::prepare(module_cache, module_cache_size, quiet, &config.worker.runs_as)?;
    let serves_tenants = config.worker.serves_tenants;
    // It ends after the workers.
    let mps = wants_mps.then(Mps::start).transpose()?;
    config.worker.set.extend(mps.iter().flat_map(Mps::variables));
    config.worker.arguments.extend(modules.iter().flat_map(ServerModuleCache::arguments));
    let server = match start(config, requires_gpu, &|| is_signalled.load(Ordering::Relaxed)) {
        // A signal ends the server even while a driver takes long.
        Err(_) if is_signalled.load(Ordering::Relaxed) => return Ok(ExitCode::SUCCESS),
        started => started?,
    };
    if serves_tenants && !quiet {
        tell_of_missing_layers();
    }
    if let Some(mps) = &mps {
        mps.when_revived(server.renewal());
    }
    let registered = ServerRegistration::new(server.admin());
    if let Err(error) = &registered {
        print_message(format_args!("`katydid ps` finds this server by --admin only: {error}"));
    }
    if !quiet {
        announce(&server);
    }
    let first = signals.forever().next();
    if !quiet && first.is_some() {
        print_message("stopping; a second signal ends at once");
    }
    end_at_the_next(signals)?;
    server.stop();
    drop(registered);
    Ok(ExitCode::SUCCESS)
}

/// Returns a flag that becomes true with the first of these signals.
fn flagged(signals: [i32; 2]) -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    signals.into_iter().try_for_each(|signal| signal_hook::flag::register(signal, Arc::clone(&flag)).map(drop))?;
    Ok(flag)
}

/// Files that workers open and that may lie anywhere: folders and libraries of the installation, the driver, temporary files.
fn opened_by_workers(driver: &str) -> Result<Vec<PathBuf>, Failure> {
    let soft = Layout::find().map_err(Failure::server)?.soft();
    let named = Some(PathBuf::from(driver)).filter(|path| path.is_absolute());
    Ok([soft, std::env::temp_dir().join("worker")].into_iter().chain(std::env::current_exe()).chain(named).collect())
}

/// Ends the process at the next signal. The first one lets the server stop properly, but the user who sends another does not want
/// to wait.
fn end_at_the_next(mut signals: Signals) -> Result<(), Failure> {
    let wait = move || {
        if let Some(signal) = signals.forever().next() {
            std::process::exit(128 + signal);
        }
    };
    thread::Builder::new().name("second-signal".to_owned()).spawn(wait).map(drop).map_err(Failure::server)
}

/// Prints one line for each address, for users and for scripts that wait for the server.
fn announce(server: &Server) {
    for address in server.addresses() {
        print_message(format_args!("listening on {address}"));
    }
    print_message(format_args!("admin socket {}", server.admin().display()));
}

/// The configuration that the flags ask for.
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
    config.needs_driver = names_library(&flags.driver);
    config.insecure = flags.insecure;
    config.warm = flags.warm;
    config.max_sessions = flags.max_sessions;
    config.peer_sessions = flags.peer_sessions.unwrap_or_else(|| peer_sessions(flags.max_sessions));
    config.peer_connections = flags.peer_connections.into();
    config.host_memory = flags.host_memory.map(|size| size.0);
    config.session_memory = flags.session_memory.map(|size| size.0);
    config.verbosity = if flags.quiet { Verbosity::Problems } else { Verbosity::Everything };
    flags.isolation.apply(&mut config)?;
    Ok(config)
}

/// Checks the certificates of a TLS address, which the server reads again at each connection.
fn check_certs(address: &Address) -> Result<(), Failure> {
    match address {
        Address::Tls { certs: None, .. } => Err(Failure::usage(TlsError::NoFolder)),
        Address::Tls { certs: Some(folder), .. } => Identity::read(folder).map(drop).map_err(Failure::usage),
        _ => Ok(()),
    }
}

/// The addresses of `--listen`, or the default one, whose folder is made safe first.
fn addresses(texts: &[String]) -> Result<Vec<Address>, Failure> {
    if texts.is_empty() {
        prepare_runtime_folder().map_err(Failure::server)?;
        return Ok(vec![default_listen()]);
    }
    let parsed = texts.iter().map(|text| text.parse::<Address>());
    parsed.collect::<Result<_, _>>().map_err(|error| Failure::usage(format!("--listen: {error}")))
}

/// Refuses MPS with softcuda, whose work runs side by side anyway.
fn check_mps(flags: &ServeFlags) -> Result<(), Failure> {
    match flags.mps && flags.driver == "soft" {
        true => Err(Failure::usage("--mps needs NVIDIA's driver: leave out --mps or --driver soft")),
        false
            if flags.mps
                && flags.isolation.worker_user.as_deref().is_some_and(|name| name != worker_user::SERVER_USER) =>
        {
            Err(Failure::usage(
                "--mps and --worker-user exclude each other, since the service is the server's user's: leave one of them out",
            ))
        }
        false => Ok(()),
    }
}

/// Refuses more warm workers than sessions, since they would never get a program.
fn check_warm(warm: usize, max_sessions: usize) -> Result<(), Failure> {
    match warm > max_sessions {
        true => Err(Failure::usage(format!(
            "--warm {warm}: only {max_sessions} sessions are allowed at a time, so more workers would never be used; give {max_sessions} at most, or raise --max-sessions"
        ))),
        false => Ok(()),
    }
}

/// Refuses missing folders, which would be left out silently.
fn check_folders(folders: &[PathBuf]) -> Result<(), Failure> {
    match folders.iter().find(|folder| !folder.is_dir()) {
        Some(folder) => Err(Failure::usage(format!(
            "--worker-folder: {}: no such folder; make it, or name another one",
            folder.display()
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_workers_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let lost = folder.path().join("lost");
        assert!(check_folders(&[folder.path().to_owned()]).is_ok());
        let error = check_folders(&[folder.path().to_owned(), lost.clone()]).unwrap_err();
        assert!(matches!(&error, Failure::Usage(text) if text.contains(lost.to_str().unwrap())), "{error}");
    }

    #[test]
    fn no_more_workers_wait_than_there_may_be_sessions() {
        assert!(check_warm(1, 1).is_ok() && check_warm(0, 1).is_ok());
        let error = check_warm(2, 1).unwrap_err();
        assert!(matches!(&error, Failure::Usage(text) if text.contains("--max-sessions")), "{error}");
    }

    #[test]
    fn a_wrong_address_is_a_usage_error() {
        assert!(matches!(addresses(&["nowhere".into()]), Err(Failure::Usage(_))));
    }
}
