//! Server addresses as people write them: `unix:/path`, `tcp://host:port`, `host:port`.
//!
//! Forms of links to come (`vsock:`, `rdma://`) are recognised, so that the answer is "not built yet" and not a riddle.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use katydid_wire::handshake::LinkKind;
use thiserror::Error;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A unix socket of this machine.
    Unix(PathBuf),
    /// A TCP port.
    Tcp {
        /// Name or number, an IPv6 number without its brackets.
        host: String,
        /// The port.
        port: u16,
    },
}

/// Why a text is no address. The text itself stands in each message.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AddressError {
    /// None of the forms.
    #[error("{text:?} is no server address; write unix:/path or tcp://host:port")]
    Form {
        /// As given.
        text: String,
    },
    /// The path of a unix socket has to start at the root, since programs change their folder.
    #[error("{text:?}: the path must be absolute, as in unix:/run/katydid.sock")]
    RelativePath {
        /// As given.
        text: String,
    },
    /// The path does not fit the operating system's structure.
    #[error("{text:?}: a socket's path has at most 107 bytes; choose a shorter one")]
    LongPath {
        /// As given.
        text: String,
    },
    /// There is a host, but no port that could be one.
    #[error("{text:?}: a port from 1 to 65535 must follow the host, as in tcp://host:9923")]
    Port {
        /// As given.
        text: String,
    },
    /// A form that a later release will have.
    #[error("{text:?}: {scheme} links are not built yet; use unix:/path or tcp://host:port")]
    NotBuiltYet {
        /// As given.
        text: String,
        /// The kind of link.
        scheme: &'static str,
    },
}

impl Address {
    /// The best link to a server there: shared memory reaches the same machine only.
    #[must_use]
    pub fn best_link(&self) -> LinkKind {
        match self {
            Self::Unix(_) => LinkKind::SHM,
            Self::Tcp { .. } => LinkKind::STREAM,
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
        if text.starts_with("vsock:") {
            return Err(not_built("vsock"));
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
            Self::Tcp { host, port } if host.contains(':') => write!(out, "tcp://[{host}]:{port}"),
            Self::Tcp { host, port } => write!(out, "tcp://{host}:{port}"),
        }
    }
}

/// `unix:///run/x` is taken as well as `unix:/run/x`.
fn unix(text: &str, path: &str) -> Result<Address, AddressError> {
    let path = path.strip_prefix("//").unwrap_or(path);
    if !path.starts_with('/') {
        return Err(AddressError::RelativePath { text: text.to_owned() });
    }
    if path.len() > 107 {
        return Err(AddressError::LongPath { text: text.to_owned() });
    }
    Ok(Address::Unix(path.into()))
}

/// Port 0 is taken: a server that listens there gets one from the system.
fn tcp(text: &str, rest: &str) -> Result<Address, AddressError> {
    let form = || AddressError::Form { text: text.to_owned() };
    let (host, port) = rest.rsplit_once(':').ok_or_else(form)?;
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
    fn what_is_written_is_read_back() {
        for text in ["unix:/a b", "tcp://host:1", "tcp://[fe80::1]:65535"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn each_mistake_has_its_own_answer() {
        assert!(matches!(parse("unix:run/x"), Err(AddressError::RelativePath { .. })));
        assert!(matches!(parse(&format!("unix:/{}", "x".repeat(107))), Err(AddressError::LongPath { .. })));
        for text in ["", "host", "tcp://", "http://host:80", ":80", "::1:80", "[x]:80", "a b:1"] {
            assert!(matches!(parse(text), Err(AddressError::Form { .. })), "{text}");
        }
        for text in ["host:", "host:port", "host:65536", "host:-1"] {
            assert!(matches!(parse(text), Err(AddressError::Port { .. })), "{text}");
        }
    }

    #[test]
    fn links_of_later_releases_are_named() {
        let text = parse("vsock:9923").unwrap_err().to_string();
        assert!(text.contains("vsock links are not built yet"), "{text}");
        assert!(parse("rdma://host:1").unwrap_err().to_string().contains("RDMA"));
    }
}
