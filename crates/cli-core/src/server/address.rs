//! Chooses the server that a program uses, and the default address of a server.
//!
//! The order is that of `katydid --help`. The first source that names an address decides. A malformed address there is an error,
//! never a reason to look further.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use katydid_driver_rules::state::settings;
use katydid_transport::{Address, ConnectError, ExpectedProgram, Reservation, TlsError, driver_at, reserve};
use katydid_wire::handshake::SOFTCUDA_DRIVER;
use katydid_wire::key::SessionKey;

use crate::args::config::{self, ConfigError, ConfigFile};
use crate::output::failure::Failure;
use crate::server::start::REQUIRE_GPU_VARIABLE;

/// Variable that names the server to programs and commands.
pub const SERVER_VARIABLE: &str = "KATYDID_SERVER";
/// The flag that names a server.
pub const SERVER_FLAG: &str = "--server";
/// The variable that names the folder of certificates.
const CERTS_VARIABLE: &str = "KATYDID_CERTS";
/// Cricket's variable for a server, so that its users need not relearn it.
const CRICKET_VARIABLE: &str = "REMOTE_GPU_ADDRESS";
/// Katydid's TCP port if an address has none.
const DEFAULT_PORT: u16 = 9923;
/// Variable that says, to programs as well, how long a server may take to answer a hello.
const CONNECT_TIMEOUT_VARIABLE: &str = "KATYDID_CONNECT_TIMEOUT";

/// Where the address of the server comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A flag: `--server`, or `--to` of a migration.
    Flag(&'static str),
    /// A variable of the environment, Katydid's or Cricket's.
    Variable(&'static str),
    /// The config file at this path.
    File(PathBuf),
}

impl fmt::Display for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => out.write_str(name),
            Self::Variable(name) => out.write_str(name),
            Self::File(path) => write!(out, "{}", path.display()),
        }
    }
}

/// A server that the user named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedServer {
    /// Address that the server listens on.
    pub address: Address,
    /// Source of the address, for errors.
    pub origin: Origin,
}

/// Why no address was found.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// A source has a malformed address.
    #[error("{origin}: {source}")]
    Malformed {
        /// The source of the address.
        origin: Origin,
        /// What is wrong with the address.
        source: katydid_transport::AddressError,
    },
    /// A source has an address at which servers can listen, and to which programs cannot connect.
    #[error(
        "{origin}: {text:?}: only a server can listen there; name its machine and port, as in tcp://host:9923 or vsock://2:9923"
    )]
    ToListenOnly {
        /// The address as it is written.
        text: String,
        /// The source of the address.
        origin: Origin,
    },
    /// The config file is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The folder of the default socket cannot be made, or others can write to it.
    #[error("{path}: {problem}; set XDG_RUNTIME_DIR, or say --listen")]
    Folder {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with the folder.
        problem: String,
    },
}

/// A server did not accept a connection.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}", self.reason(), self.remedy())]
pub struct ReachError {
    address: Address,
    origin: Origin,
    source: io::Error,
}

/// Returns the server that a flag, a variable or the config file names, with certificates if it needs them; `None` if nothing
/// names one.
pub fn resolve(flag: Option<&str>, certs: Option<&Path>) -> Result<Option<NamedServer>, AddressError> {
    let known = resolve_with(flag, |name| std::env::var_os(name), config::own)?;
    let certified = |known: NamedServer| Ok(NamedServer { address: certified(known.address, certs)?, ..known });
    known.map(certified).transpose()
}

/// Adds the folder of certificates to an address that needs one and names none.
pub fn certified(address: Address, flag: Option<&Path>) -> Result<Address, AddressError> {
    match &address {
        Address::Tls { certs: None, .. } => {
            let folder = certs_with(flag, |name| std::env::var_os(name), config::own)?;
            // Absolute, since programs may change their folder.
            let folder = folder.map(|folder| std::path::absolute(&folder).unwrap_or(folder));
            Ok(address.with_certs(folder.as_deref()))
        }
        _ => Ok(address),
    }
}

/// The folder of certificates that a flag or a variable names, or the default one.
fn certs_with(
    flag: Option<&Path>,
    variable: impl Fn(&str) -> Option<OsString>,
    file: impl FnOnce() -> Result<Option<ConfigFile>, ConfigError>,
) -> Result<Option<PathBuf>, AddressError> {
    let named = flag.map(Path::to_owned);
    let named = named.or_else(|| variable(CERTS_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from));
    if named.is_some() {
        return Ok(named);
    }
    let Some(ConfigFile { path, config }) = file()? else { return Ok(None) };
    let beside = || path.parent().map(|folder| folder.join("certs")).filter(|folder| folder.is_dir());
    Ok(config.certs.or_else(beside))
}

/// The server that a flag of another name names.
pub fn named_by(flag: &'static str, text: &str, certs: Option<&Path>) -> Result<NamedServer, AddressError> {
    let known = named_server(text, Origin::Flag(flag))?;
    Ok(NamedServer { address: certified(known.address, certs)?, ..known })
}

/// Works as [`resolve`] with the given environment, so that tests need not change that of the process.
fn resolve_with(
    flag: Option<&str>,
    variable: impl Fn(&str) -> Option<OsString>,
    file: impl FnOnce() -> Result<Option<ConfigFile>, ConfigError>,
) -> Result<Option<NamedServer>, AddressError> {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(|value| value.to_string_lossy().into_owned());
    if let Some(text) = flag {
        return named_server(text, Origin::Flag(SERVER_FLAG)).map(Some);
    }
    if let Some(text) = set(SERVER_VARIABLE) {
        return named_server(&text, Origin::Variable(SERVER_VARIABLE)).map(Some);
    }
    if let Some(ConfigFile { path, config }) = file()?
        && let Some(text) = config.server
    {
        return named_server(&text, Origin::File(path)).map(Some);
    }
    set(CRICKET_VARIABLE).map(|text| named_server(&cricket(&text), Origin::Variable(CRICKET_VARIABLE))).transpose()
}

/// Refuses a config file with a malformed server, even if another server is used.
pub fn check_config(file: &ConfigFile) -> Result<(), AddressError> {
    file.config.server.as_deref().map_or(Ok(()), |text| named_server(text, Origin::File(file.path.clone())).map(drop))
}

/// Parses an address with its source, so that an error names that.
fn named_server(text: &str, origin: Origin) -> Result<NamedServer, AddressError> {
    match text.parse::<Address>() {
        Ok(Address::Tcp { port: 0, .. } | Address::Tls { port: 0, .. } | Address::Vsock { cid: u32::MAX, .. }) => {
            Err(AddressError::ToListenOnly { text: text.to_owned(), origin })
        }
        Ok(address) => Ok(NamedServer { address, origin }),
        Err(source) => Err(AddressError::Malformed { origin, source }),
    }
}

/// Converts a Cricket address: a host, with Katydid's port unless it names one. A Katydid address stays as it is.
fn cricket(text: &str) -> String {
    let has_port =
        text.rsplit_once(':').is_some_and(|(host, port)| !host.ends_with(':') && port.parse::<u16>().is_ok());
    match text {
        uri if ["unix:", "tcp:", "tls:", "vsock:"].iter().any(|form| uri.starts_with(form)) => uri.to_owned(),
        with_port if has_port => format!("tcp://{with_port}"),
        host => format!("tcp://{host}:{DEFAULT_PORT}"),
    }
}

impl ReachError {
    /// What failed, and at which address.
    #[must_use]
    pub fn reason(&self) -> String {
        let Self { address, origin, source } = self;
        format!("cannot reach the server: {address} (from {origin}): {source}")
    }

    /// What a user can do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        let Self { address, origin, source } = self;
        if source.kind() == io::ErrorKind::PermissionDenied && matches!(address, Address::Unix(_)) {
            return format!(
                "only root and the user of the server may connect there: start a server of your own with `katydid serve`, or have \
                 theirs listen on TLS and name that address in place of {origin}"
            );
        }
        format!("start it with `katydid serve --listen {}` on its machine, or correct {origin}", address.to_listen())
    }
}

impl NamedServer {
    /// "No server answers there" if `error` means that; any other error comes back unchanged.
    pub fn unreachable(&self, error: ConnectError) -> Result<ReachError, ConnectError> {
        match error {
            ConnectError::Unreachable { source, .. } => {
                Ok(ReachError { address: self.address.without_certs(), origin: self.origin.clone(), source })
            }
            other => Err(other),
        }
    }

    /// The failure, for the user, if the server does not admit this process or its program.
    fn failure(&self, error: ConnectError) -> Failure {
        self.unreachable(error).map_or_else(refusal, Failure::server)
    }

    /// As [`NamedServer::greet`], but refuses softcuda if a GPU is required.
    pub fn greet_for(&self, requires_gpu: bool) -> Result<String, Failure> {
        let driver = self.greet()?;
        self.check_gpu(&driver, requires_gpu).map(|()| driver)
    }

    /// Has the server reserve a slot for the session of a program that the caller is about to start. If two callers ask at once
    /// for one free slot, the server refuses one of them before a program runs.
    pub fn reserve_for(&self, expected: ExpectedProgram, requires_gpu: bool) -> Result<Reservation, Failure> {
        let reserved = reserve(&self.address, expected, own_reservation(), connect_timeout());
        let reserved = reserved.map_err(|error| self.failure(error))?;
        self.check_gpu(&reserved.driver, requires_gpu).map(|()| reserved)
    }

    /// Refuses softcuda if a GPU is required.
    fn check_gpu(&self, driver: &str, requires_gpu: bool) -> Result<(), Failure> {
        if driver != SOFTCUDA_DRIVER || !requires_gpu {
            return Ok(());
        }
        let (address, origin) = (self.address.without_certs(), &self.origin);
        let flag = if let Origin::Flag(flag) = origin { flag } else { SERVER_FLAG };
        Err(Failure::server(format!(
            "a GPU is required (--require-gpu or {REQUIRE_GPU_VARIABLE}=1), and the driver of {address} (from {origin}) is softcuda: give \
             {flag} one that has a GPU, or see that server's messages"
        )))
    }

    /// Says hello as a program would, without a session, and returns the name of the driver. If the server would refuse the
    /// program, this reports it in one line with an exit status of its own. The server is full, has no driver or is of another
    /// build; or certificates are missing or not trusted.
    pub fn greet(&self) -> Result<String, Failure> {
        driver_at(&self.address, own_reservation(), connect_timeout()).map_err(|error| self.failure(error))
    }
}

/// Key of the slot that a server has reserved for the program of this process.
fn own_reservation() -> SessionKey {
    let spelled = std::env::var(settings::RESERVATION_VARIABLE).ok();
    spelled.and_then(|spelled| SessionKey::from_spelled(&spelled)).unwrap_or(SessionKey::NONE)
}

/// How long a server may take to accept a connection, and to answer a hello.
fn connect_timeout() -> Duration {
    settings::connect_timeout(std::env::var(CONNECT_TIMEOUT_VARIABLE).ok().as_deref())
}

/// The failure for a reachable server that admits no program. Missing certificates of this side are a mistake of the caller.
fn refusal(error: ConnectError) -> Failure {
    match &error {
        ConnectError::Tls { source: TlsError::NoFolder | TlsError::File { .. }, .. } => Failure::usage(error),
        _ => Failure::server(error),
    }
}

/// Default folder of sockets, to which only this user can write.
pub fn runtime_folder() -> PathBuf {
    let uid = rustix::process::getuid();
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty()) {
        Some(folder) => folder.into(),
        None if uid.is_root() => "/run".into(),
        None => format!("/tmp/katydid-{}", uid.as_raw()).into(),
    }
}

/// The address of `katydid serve` without `--listen`.
pub fn default_listen() -> Address {
    Address::Unix(runtime_folder().join("katydid.sock"))
}

/// Creates [`runtime_folder`] if it is below `/tmp`, and refuses one that another user could have made.
pub fn prepare_runtime_folder() -> Result<(), AddressError> {
    let path = runtime_folder();
    if !path.starts_with("/tmp") {
        return Ok(());
    }
    let refuse = |problem: String| AddressError::Folder { path: path.clone(), problem };
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(refuse(error.to_string())),
        _ => {}
    }
    let found = fs::symlink_metadata(&path).map_err(|error| refuse(error.to_string()))?;
    let private = found.is_dir() && found.uid() == rustix::process::getuid().as_raw() && found.mode() & 0o022 == 0;
    if private { Ok(()) } else { Err(refuse("is not a folder that only you can write to".to_owned())) }
}

/// The admin socket of the server whose first address is `listen`.
pub fn admin_path(listen: &Address) -> PathBuf {
    match listen {
        Address::Unix(path) => with_suffix(path, ".admin"),
        Address::Tcp { port, .. } | Address::Tls { port, .. } => runtime_folder().join(format!("katydid-{port}.admin")),
        Address::Vsock { port, .. } => runtime_folder().join(format!("katydid-vsock-{port}.admin")),
    }
}

/// Appends to the whole name: the extension must stay, or two sockets could share one admin socket.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resolves in an environment of the given variables, with a config file that names `unix:/file` if asked.
    fn resolved(flag: Option<&str>, file: bool, variables: &[(&str, &str)]) -> Option<(String, Origin)> {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("katydid");
        fs::create_dir(&folder).unwrap();
        if file {
            fs::write(folder.join("config.toml"), "server = \"unix:/file\"").unwrap();
        }
        let variable = |name: &str| match name {
            "XDG_CONFIG_HOME" => Some(home.path().as_os_str().to_owned()),
            _ => variables.iter().find(|(found, _)| *found == name).map(|(_, value)| OsString::from(value)),
        };
        let known = resolve_with(flag, variable, || config::of(variable)).unwrap()?;
        Some((known.address.to_string(), known.origin))
    }

    #[test]
    fn the_first_source_that_says_something_decides() {
        let all = [(SERVER_VARIABLE, "unix:/variable"), (CRICKET_VARIABLE, "gpu-host")];
        assert_eq!(resolved(Some("unix:/flag"), true, &all).unwrap(), ("unix:/flag".into(), Origin::Flag(SERVER_FLAG)));
        assert_eq!(resolved(None, true, &all).unwrap().0, "unix:/variable");
        let (address, origin) = resolved(None, true, &all[1..]).unwrap();
        assert!(address == "unix:/file" && matches!(origin, Origin::File(_)));
        assert_eq!(resolved(None, false, &all[1..]).unwrap().0, "tcp://gpu-host:9923");
        assert_eq!(resolved(None, false, &[]), None);
    }

    #[test]
    fn certificates_are_where_the_first_source_says_that_knows() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("katydid");
        fs::create_dir_all(folder.join("certs")).unwrap();
        let found = |flag: Option<&str>, variable: Option<&str>| {
            let variable = variable.map(OsString::from);
            let variables = |name: &str| match name {
                "XDG_CONFIG_HOME" => Some(home.path().as_os_str().to_owned()),
                CERTS_VARIABLE => variable.clone(),
                _ => None,
            };
            certs_with(flag.map(Path::new), variables, || config::of(variables)).unwrap().unwrap()
        };
        assert_eq!(found(None, None), folder.join("certs"));
        fs::write(folder.join("config.toml"), "certs = \"/file\"").unwrap();
        assert_eq!(found(None, None), Path::new("/file"));
        assert_eq!(found(None, Some("/variable")), Path::new("/variable"));
        assert_eq!(found(Some("/flag"), Some("/variable")), Path::new("/flag"));
    }

    #[test]
    fn an_empty_variable_says_nothing() {
        assert_eq!(resolved(None, false, &[(SERVER_VARIABLE, "")]), None);
    }

    #[test]
    fn crickets_addresses_get_our_port_unless_they_name_one() {
        for (text, address) in [
            ("gpu-host", "tcp://gpu-host:9923"),
            ("10.0.0.7:4000", "tcp://10.0.0.7:4000"),
            ("unix:/a", "unix:/a"),
            ("tcp://b:1", "tcp://b:1"),
        ] {
            assert_eq!(cricket(text), address);
        }
    }

    #[test]
    fn a_malformed_address_names_its_source() {
        let error = resolve_with(None, |name| (name == SERVER_VARIABLE).then(|| "ftp://x".into()), || Ok(None));
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("KATYDID_SERVER: \"ftp://x\""), "{error}");
    }

    #[test]
    fn an_address_for_servers_alone_is_refused() {
        for text in ["tcp://h:0", "tls://h:0", "h:0", "vsock:1"] {
            let error = named_server(text, Origin::Flag(SERVER_FLAG)).unwrap_err().to_string();
            assert!(error.starts_with("--server") && error.contains("only a server"), "{error}");
        }
        assert!(named_server("vsock://2:1", Origin::Flag(SERVER_FLAG)).is_ok());
    }

    #[test]
    fn a_server_that_is_not_there_is_an_error_with_the_remedy() {
        let known = NamedServer { address: "unix:/no/such.sock".parse().unwrap(), origin: Origin::Flag(SERVER_FLAG) };
        let error = known.greet().unwrap_err().to_string();
        assert!(error.contains("unix:/no/such.sock") && error.contains("katydid serve"), "{error}");
    }

    #[test]
    fn the_admin_socket_lies_beside_the_servers() {
        assert_eq!(admin_path(&Address::Unix("/x/a.sock".into())), Path::new("/x/a.sock.admin"));
        let tcp = admin_path(&"tcp://127.0.0.1:9923".parse().unwrap());
        assert!(tcp.ends_with("katydid-9923.admin"));
    }
}
