//! A folder of certificates: this side's identity on a link, and the authority that it trusts.
//!
//! | file              | what                                                              |
//! |-------------------|-------------------------------------------------------------------|
//! | `authority.pem`   | the certificate of the authority whose certificates are believed  |
//! | `certificate.pem` | this side's own certificate, issued by that authority             |
//! | `key.pem`         | its key; only its owner may read it                              |
//!
//! `katydid certs` makes such folders. They are read for each connection, so that a certificate can be renewed while a
//! server runs.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{AlertDescription, CertificateError, RootCertStore};

use crate::tls::record::Alert;

/// File of the authority's certificate, in a folder of certificates.
pub const AUTHORITY_FILE: &str = "authority.pem";
/// File of this side's own certificate.
pub const CERTIFICATE_FILE: &str = "certificate.pem";
/// File of the certificate's key.
pub const KEY_FILE: &str = "key.pem";

/// Why TLS could not be set up on a connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The address does not name the folder of certificates.
    #[error("no certificates are known for TLS: say --certs DIR, or set KATYDID_CERTS (see `katydid certs --help`)")]
    NoFolder,
    /// A file of this side's certificates cannot be used.
    #[error("{path}: {problem}")]
    File {
        /// The file that is missing, unreadable or unfit.
        path: PathBuf,
        /// What is wrong with the file.
        problem: String,
    },
    /// The other side's certificate is refused.
    #[error("the certificate of the other side is refused: {reason}")]
    Peer {
        /// Why it is refused.
        reason: String,
    },
    /// The other side refuses this side's certificate.
    #[error("the other side refuses our certificate: {reason}")]
    Refused {
        /// Why, as far as TLS can tell.
        reason: String,
    },
    /// The host of an address cannot be named by a certificate.
    #[error("{host:?} is not a host name or IP address")]
    Host {
        /// Host name or number of the address.
        host: String,
    },
    /// The other side sends something other than TLS.
    #[error("the other side does not speak TLS")]
    Plain,
    /// The handshake failed for another reason; the text comes from rustls.
    #[error("the TLS handshake failed: {0}")]
    Failed(String),
    /// The connection broke during the handshake.
    #[error("the connection failed during the TLS handshake: {0}")]
    System(io::Error),
}

impl From<io::Error> for TlsError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<rustls::Error> for TlsError {
    fn from(error: rustls::Error) -> Self {
        match error {
            rustls::Error::InvalidCertificate(error) => Self::Peer { reason: reason(&error) },
            rustls::Error::NoCertificatesPresented => Self::Peer { reason: "it has none".to_owned() },
            rustls::Error::AlertReceived(alert) => Self::Refused { reason: Alert(number(alert)).reason() },
            rustls::Error::InvalidMessage(_) => Self::Plain,
            other => Self::Failed(other.to_string()),
        }
    }
}

fn number(alert: AlertDescription) -> u8 {
    alert.into()
}

/// Returns why a certificate is refused, in words that say what to do.
fn reason(error: &CertificateError) -> String {
    match error {
        CertificateError::ExpiredContext { time, not_after } => {
            format!("it expired {} ago", span(time.as_secs().saturating_sub(not_after.as_secs())))
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            let wait = span(not_before.as_secs().saturating_sub(time.as_secs()));
            format!("it is not valid before {wait} from now; are the clocks right?")
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            format!("it is of another authority than our {AUTHORITY_FILE}")
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names: Vec<_> = presented.iter().map(|name| bare(name)).collect();
            format!("it is for {} and not for {}", names.join(", "), expected.to_str())
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "it is for another purpose: servers and programs have certificates of different kinds".to_owned()
        }
        other => other.to_string(),
    }
}

/// Strips the kind that webpki puts around a name: `DnsName("gpu7")`, `IpAddress(10.0.0.7)`.
fn bare(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}

/// Formats a time span for error messages.
fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Returns rustls's provider, limited to the two suites whose records [`crate::tls::record`] supports.
pub(super) fn provider() -> Arc<CryptoProvider> {
    use ring::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256};
    let cipher_suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256];
    Arc::new(CryptoProvider { cipher_suites, ..ring::default_provider() })
}

/// The contents of a folder of certificates.
#[derive(Debug)]
pub struct Identity {
    pub(super) roots: Arc<RootCertStore>,
    /// This side's own certificate first, then the certificates that lead to the authority.
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    folder: PathBuf,
}

impl Identity {
    /// Reads a folder.
    ///
    /// # Errors
    /// [`TlsError::File`].
    pub fn read(folder: &Path) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&folder.join(AUTHORITY_FILE))? {
            roots.add(certificate).map_err(|error| file(&folder.join(AUTHORITY_FILE), error))?;
        }
        let chain = certificates(&folder.join(CERTIFICATE_FILE))?;
        let key = read_key(&folder.join(KEY_FILE))?;
        Ok(Self { roots: Arc::new(roots), chain, key, folder: folder.to_owned() })
    }

    /// Checks that the authority's clients or servers would accept this certificate now.
    ///
    /// # Errors
    /// [`TlsError::File`] with the reason.
    pub fn check(&self) -> Result<(), TlsError> {
        let checked = match self.verify_as_program() {
            // A certificate that is not for programs may be for servers.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. },
            )) => self.verify_as_server(),
            other => other,
        };
        checked.map_err(|error| self.refused(error))
    }

    /// Checks that the authority's programs would accept this certificate now. A program's certificate does not serve a server.
    ///
    /// # Errors
    /// [`TlsError::File`] with the reason.
    pub fn check_as_server(&self) -> Result<(), TlsError> {
        self.verify_as_server().map_err(|error| self.refused(error))
    }

    fn refused(&self, error: rustls::Error) -> TlsError {
        let path = self.folder.join(CERTIFICATE_FILE);
        match error {
            rustls::Error::InvalidCertificate(error) => file(&path, reason(&error)),
            error => file(&path, error),
        }
    }

    fn verify_as_program(&self) -> Result<(), rustls::Error> {
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&self.roots), provider()).build();
        let verifier = verifier.map_err(|error| rustls::Error::General(error.to_string()))?;
        verifier.verify_client_cert(&self.chain[0], &self.chain[1..], UnixTime::now()).map(drop)
    }

    fn verify_as_server(&self) -> Result<(), rustls::Error> {
        let own = ParsedCertificate::try_from(&self.chain[0])?;
        let algorithms = provider().signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&own, &self.roots, &self.chain[1..], UnixTime::now(), algorithms)
    }
}

fn file(path: &Path, problem: impl ToString) -> TlsError {
    TlsError::File { path: path.to_owned(), problem: problem.to_string() }
}

/// Opens a regular file. Refuses a pipe or a device, which may never end.
fn open(path: &Path) -> Result<File, TlsError> {
    let failed = |error| file(path, with_remedy(&error));
    let opened = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path);
    let opened = opened.map_err(failed)?;
    if opened.metadata().map_err(failed)?.is_file() {
        Ok(opened)
    } else {
        Err(file(path, "it is not a file: put one there"))
    }
}

fn with_remedy(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            format!("{error}; name a folder that `katydid certs server` or `katydid certs client` made")
        }
        _ => error.to_string(),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_reader_iter(open(path)?).collect();
    let certificates = certificates.map_err(|error| file(path, error))?;
    if certificates.is_empty() {
        return Err(file(path, "it holds no certificate"));
    }
    Ok(certificates)
}

/// Reads the key. Refuses one that other users can read, since it is no longer secret.
fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let mut opened = open(path)?;
    let mode = opened.metadata().map_err(|error| file(path, error))?.mode();
    if mode & 0o077 != 0 {
        return Err(file(path, "others can read this key: chmod 600 it, or make a new one"));
    }
    let mut bytes = Vec::new();
    opened.read_to_end(&mut bytes).map_err(|error| file(path, error))?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| file(path, error))
}
