//! Server addresses as users write them: `unix:/path`, `tcp://host:port`, `host:port`, `tls://host:port`, `vsock://machine:port`.
//!
//! An address has all that is needed to connect. That of a server behind TLS names the folder of certificates too
//! (`tls://host:port?certs=/path`), so it can be passed to other processes, in a job and in its images. The planned form
//! `rdma://` is recognized, so that its error is "not built yet" and not "invalid address".

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use katydid_wire::handshake::LinkKind;
use thiserror::Error;

/// The longest path that fits the address of a unix socket, in bytes.
pub const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A unix socket of this machine.
    Unix(PathBuf),
    /// A TCP port, without encryption.
    Tcp {
        /// Name or number, an IPv6 number without its brackets.
        host: String,
        /// Port that the server listens on.
        port: u16,
    },
    /// A TCP port that speaks TLS, with certificates on both sides.
    Tls {
        /// As for TCP; the server's certificate must be for it.
        host: String,
        /// Port that the server listens on.
        port: u16,
        /// The folder of the client's certificates ([`crate::tls::identity::Identity`]).
        certs: Option<PathBuf>,
    },
    /// A port of a virtual machine, or of its host.
    Vsock {
        /// The machine's number: 2 is the host, 1 this machine. For servers, `u32::MAX` is every number of this machine.
        cid: u32,
        /// Port that the server listens on.
        port: u32,
    },
}

/// Every form of a server's address, for error messages.
const ADDRESS_FORMS: &str = "unix:PATH, tcp://HOST:PORT, tls://HOST:PORT or vsock://MACHINE:PORT";

/// Why a text is no address. Each message quotes the text.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AddressError {
    /// None of the forms.
    #[error("{text:?} is not a server address; write {ADDRESS_FORMS}")]
    Form {
        /// The text that was to be an address.
        text: String,
    },
    /// The path of a unix socket is not absolute. Programs change their working directory.
    #[error("{text:?}: the path must be absolute, as in unix:/run/katydid.sock")]
    RelativePath {
        /// The text that was to be an address.
        text: String,
    },
    /// The path does not fit `sockaddr_un`.
    #[error("{text:?}: a socket's path has at most 107 bytes; choose a shorter one")]
    LongPath {
        /// The text that was to be an address.
        text: String,
    },
    /// The host is not followed by a valid port.
    #[error("{text:?}: a port from 1 to 65535 must follow the host, as in tcp://host:9923")]
    Port {
        /// The text that was to be an address.
        text: String,
    },
    /// The folder of certificates is not absolute. Programs change their working directory.
    #[error("{text:?}: what may follow is ?certs= and an absolute path, as in tls://host:9923?certs=/etc/katydid")]
    Certs {
        /// The text that was to be an address.
        text: String,
    },
    /// A vsock address needs two numbers: machine and port.
    #[error("{text:?}: write vsock://MACHINE:PORT with two numbers; servers may write vsock:PORT")]
    Vsock {
        /// The text that was to be an address.
        text: String,
    },
    /// A form that a later release will support.
    #[error("{text:?}: {scheme} links are not built yet; write {ADDRESS_FORMS}")]
    NotBuiltYet {
        /// The text that was to be an address.
        text: String,
        /// The kind of link.
        scheme: &'static str,
    },
}

impl Address {
    /// Returns the best link to a server at this address. Shared memory works only on the same machine.
    #[must_use]
    pub fn best_link(&self) -> LinkKind {
        match self {
            Self::Unix(_) => LinkKind::SHM,
            Self::Tcp { .. } | Self::Tls { .. } | Self::Vsock { .. } => LinkKind::STREAM,
        }
    }

    /// Adds the folder of certificates, if this address needs one and names none.
    #[must_use]
    pub fn with_certs(self, folder: Option<&Path>) -> Self {
        match self {
            Self::Tls { host, port, certs: None } => Self::Tls { host, port, certs: folder.map(Path::to_owned) },
            other => other,
        }
    }

    /// Returns the address for a server's `--listen`: without the machine's number of vsock.
    #[must_use]
    pub fn to_listen(&self) -> Self {
        match self {
            Self::Vsock { port, .. } => Self::Vsock { cid: u32::MAX, port: *port },
            other => other.clone(),
        }
    }

    /// Returns the address for display, without the folder of certificates.
    #[must_use]
    pub fn without_certs(&self) -> Self {
        match self {
            Self::Tls { host, port, .. } => Self::Tls { host: host.clone(), port: *port, certs: None },
            other => other.clone(),
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let not_built = |scheme| AddressError::NotBuiltYet { text: text.to_owned(), scheme };
        if let Some(path) = text.strip_prefix("unix:") {
            return unix(text, path);
        }
        if let Some(tail) = text.strip_prefix("vsock:") {
            return vsock(tail).ok_or_else(|| AddressError::Vsock { text: text.to_owned() });
        }
        if let Some(tail) = text.strip_prefix("tls://") {
            return tls(text, tail);
        }
        if text.starts_with("rdma:") {
            return Err(not_built("RDMA"));
        }
        tcp(text, text.strip_prefix("tcp://").unwrap_or(text))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(out, "unix:{}", path.display()),
            Self::Tcp { host, port } => write!(out, "tcp://{}:{port}", Host(host)),
            Self::Tls { host, port, certs: None } => write!(out, "tls://{}:{port}", Host(host)),
            Self::Tls { host, port, certs: Some(certs) } => {
                write!(out, "tls://{}:{port}{CERTS_SEPARATOR}{}", Host(host), certs.display())
            }
            Self::Vsock { cid: u32::MAX, port } => write!(out, "vsock:{port}"),
            Self::Vsock { cid, port } => write!(out, "vsock://{cid}:{port}"),
        }
    }
}

/// Separates an address from its folder of certificates.
const CERTS_SEPARATOR: &str = "?certs=";

/// A host as addresses write it.
struct Host<'a>(&'a str);

impl fmt::Display for Host<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.contains(':') { write!(out, "[{}]", self.0) } else { out.write_str(self.0) }
    }
}

/// Parses what follows `tls://`. The folder is taken verbatim, to the end.
fn tls(text: &str, host_and_port: &str) -> Result<Address, AddressError> {
    let (host_and_port, certs) = match host_and_port.split_once('?') {
        None => (host_and_port, None),
        Some((host_and_port, option)) => match option.strip_prefix("certs=").filter(|path| path.starts_with('/')) {
            Some(path) => (host_and_port, Some(PathBuf::from(path))),
            None => return Err(AddressError::Certs { text: text.to_owned() }),
        },
    };
    match tcp(text, host_and_port)? {
        Address::Tcp { host, port } => Ok(Address::Tls { host, port, certs }),
        other => Ok(other),
    }
}

/// Parses what follows `vsock:`.
fn vsock(cid_and_port: &str) -> Option<Address> {
    match cid_and_port.strip_prefix("//") {
        None => Some(Address::Vsock { cid: u32::MAX, port: cid_and_port.parse().ok()? }),
        Some(cid_and_port) => {
            let (cid, port) = cid_and_port.split_once(':')?;
            Some(Address::Vsock { cid: cid.parse().ok()?, port: port.parse().ok()? })
        }
    }
}

/// Parses the path of a unix socket. Accepts `unix:///run/x` as well as `unix:/run/x`.
fn unix(text: &str, path: &str) -> Result<Address, AddressError> {
    let path = path.strip_prefix("//").unwrap_or(path);
    if !path.starts_with('/') {
        return Err(AddressError::RelativePath { text: text.to_owned() });
    }
    if path.len() > MAX_SOCKET_PATH_BYTES {
        return Err(AddressError::LongPath { text: text.to_owned() });
    }
    Ok(Address::Unix(path.into()))
}

/// Parses host and port. Accepts port 0: the system gives a server that listens there a port.
fn tcp(text: &str, host_and_port: &str) -> Result<Address, AddressError> {
    let form = || AddressError::Form { text: text.to_owned() };
    let (host, port) = host_and_port.rsplit_once(':').ok_or_else(form)?;
    let numeric = host.strip_prefix('[').and_then(|inner| inner.strip_suffix(']'));
    let valid = match numeric {
        Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && !host.contains([':', '/', ' ', '[', ']']),
    };
    if !valid {
        return Err(form());
    }
    let port = port.parse().map_err(|_| AddressError::Port { text: text.to_owned() })?;
    Ok(Address::Tcp { host: numeric.unwrap_or(host).to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Address, AddressError> {
        text.parse()
    }

    fn tcp(host: &str, port: u16) -> Result<Address, AddressError> {
        Ok(Address::Tcp { host: host.into(), port })
    }

    #[test]
    fn every_form_is_read() {
        assert_eq!(parse("unix:/run/katydid.sock"), Ok(Address::Unix("/run/katydid.sock".into())));
        assert_eq!(parse("unix:///run/katydid.sock"), Ok(Address::Unix("/run/katydid.sock".into())));
        assert_eq!(parse("tcp://gpu7:9923"), tcp("gpu7", 9923));
        assert_eq!(parse("gpu7.example.org:9923"), tcp("gpu7.example.org", 9923));
        assert_eq!(parse("tcp://[::1]:9"), tcp("::1", 9));
        assert_eq!(parse("127.0.0.1:0"), tcp("127.0.0.1", 0));
    }

    #[test]
    fn a_printed_address_parses_to_itself() {
        for text in [
            "unix:/a b",
            "tcp://host:1",
            "tcp://[fe80::1]:65535",
            "tls://host:1",
            "tls://[::1]:1?certs=/a b?c",
            "vsock://2:9923",
            "vsock:9923",
        ] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn each_mistake_has_its_own_answer() {
        assert!(matches!(parse("unix:run/x"), Err(AddressError::RelativePath { .. })));
        assert!(matches!(
            parse(&format!("unix:/{}", "x".repeat(MAX_SOCKET_PATH_BYTES))),
            Err(AddressError::LongPath { .. })
        ));
        for text in ["", "host", "tcp://", "http://host:80", ":80", "::1:80", "[x]:80", "a b:1"] {
            assert!(matches!(parse(text), Err(AddressError::Form { .. })), "{text}");
        }
        for text in ["host:", "host:port", "host:65536", "host:-1"] {
            assert!(matches!(parse(text), Err(AddressError::Port { .. })), "{text}");
        }
        for text in ["tls://h:1?certs=relative", "tls://h:1?timeout=1", "tls://h:1?"] {
            assert!(matches!(parse(text), Err(AddressError::Certs { .. })), "{text}");
        }
        for text in ["vsock:", "vsock:x", "vsock://2", "vsock://host:1", "vsock://-1:1"] {
            assert!(matches!(parse(text), Err(AddressError::Vsock { .. })), "{text}");
        }
    }

    #[test]
    fn certificates_are_named_where_they_are_needed_and_not_named_yet() {
        let with = |text: &str| parse(text).unwrap().with_certs(Some(Path::new("/c"))).to_string();
        assert_eq!(with("tls://h:1"), "tls://h:1?certs=/c");
        assert_eq!(with("tls://h:1?certs=/d"), "tls://h:1?certs=/d");
        assert_eq!(with("tcp://h:1"), "tcp://h:1");
        assert_eq!(parse("tls://h:1?certs=/d").unwrap().without_certs().to_string(), "tls://h:1");
    }

    #[test]
    fn a_server_of_vsock_listens_on_a_port_alone() {
        let listens = |text: &str| parse(text).unwrap().to_listen().to_string();
        assert_eq!([listens("vsock://9:7"), listens("tcp://h:1")], ["vsock:7", "tcp://h:1"]);
    }

    #[test]
    fn links_of_later_releases_are_named() {
        assert!(parse("rdma://host:1").unwrap_err().to_string().contains("RDMA"));
    }

    #[test]
    fn what_is_no_address_is_answered_with_every_form_that_is_one() {
        for text in ["", "pigeon", "rdma://host:1"] {
            let error = parse(text).unwrap_err().to_string();
            assert!(["unix:", "tcp:", "tls:", "vsock:"].iter().all(|form| error.contains(form)), "{error}");
        }
    }
}
