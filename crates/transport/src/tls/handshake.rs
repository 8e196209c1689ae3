//! The handshake, by rustls. The socket is read one record at a time, so that no byte after the handshake is received.

use std::io::{self, IoSlice};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, ConnectionCommon, KeyLog, ServerConfig, ServerConnection, SideData,
};

use crate::ipc::connection::Connection;
use crate::os::socket::{Deadline, receive_by, send_all, wait_readable};
use crate::tls::identity::{Identity, TlsError, provider};
use crate::tls::record::{Seals, Suite, TRAFFIC_SECRET_BYTES, length};

/// How long a refused peer has to read the reason.
const TLS_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Keeps the secrets of application data out of a handshake.
#[derive(Debug, Default)]
struct Secrets(Mutex<TrafficSecrets>);

#[derive(Debug, Default, Clone)]
struct TrafficSecrets {
    client: Option<[u8; TRAFFIC_SECRET_BYTES]>,
    server: Option<[u8; TRAFFIC_SECRET_BYTES]>,
}

impl Secrets {
    fn secrets(&self) -> TrafficSecrets {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl KeyLog for Secrets {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        let mut secrets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match label {
            "CLIENT_TRAFFIC_SECRET_0" => secrets.client = secret.try_into().ok(),
            "SERVER_TRAFFIC_SECRET_0" => secrets.server = secret.try_into().ok(),
            _ => {}
        }
    }
}

/// Why a program got no encrypted connection.
#[derive(Debug)]
pub(crate) enum NoEncryption {
    /// The TLS handshake failed.
    Failed(TlsError),
    /// The server answers in plaintext, which is only good for a refusal: the sender is not authenticated.
    Plain(OwnedFd),
}

impl<E: Into<TlsError>> From<E> for NoEncryption {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// The program's side: the server must be `host`.
///
/// # Errors
/// The reason. A server that is not trusted has got it as well.
pub(crate) fn connect(
    socket: OwnedFd,
    host: &str,
    identity: Identity,
    deadline: Deadline,
) -> Result<Connection, NoEncryption> {
    let name = ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Host { host: host.to_owned() })?;
    let secrets = Arc::new(Secrets::default());
    let config = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
    let config = config.with_root_certificates(identity.roots);
    let mut config = config.with_client_auth_cert(identity.chain, identity.key)?;
    config.resumption = Resumption::disabled();
    config.key_log = Arc::clone(&secrets) as Arc<dyn KeyLog>;
    let mut connection = ClientConnection::new(Arc::new(config), name)?;
    speak(&mut connection, socket.as_fd())?;
    if first_byte(socket.as_fd(), deadline)? == Some(b'K') {
        return Err(NoEncryption::Plain(socket));
    }
    handshake(&mut connection, socket.as_fd(), deadline)?;
    let traffic = secrets.secrets();
    let seals = seals(&connection, traffic.client, traffic.server)?;
    Ok(Connection::new(socket, Some(seals)))
}

/// The server's side: the program must have a certificate of the authority.
///
/// # Errors
/// The reason. The program has got it as well.
pub(crate) fn accept(socket: BorrowedFd<'_>, identity: Identity, deadline: Deadline) -> Result<Seals, TlsError> {
    let secrets = Arc::new(Secrets::default());
    let verifier = WebPkiClientVerifier::builder_with_provider(identity.roots, provider()).build();
    let verifier = verifier.map_err(|error| TlsError::Failed(error.to_string()))?;
    let config = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
    let mut config = config.with_client_cert_verifier(verifier).with_single_cert(identity.chain, identity.key)?;
    config.send_tls13_tickets = 0;
    config.key_log = Arc::clone(&secrets) as Arc<dyn KeyLog>;
    let mut connection = ServerConnection::new(Arc::new(config))?;
    let outcome = handshake(&mut connection, socket, deadline);
    if outcome.is_err() {
        part(socket);
    }
    outcome?;
    let traffic = secrets.secrets();
    seals(&connection, traffic.server, traffic.client)
}

/// Ends sending, and reads the peer's remaining bytes: closing at once would drop what was sent to it.
pub(crate) fn part(socket: BorrowedFd<'_>) {
    let (deadline, mut scrap) = (Deadline::after(TLS_CLOSE_TIMEOUT), [0; 4096]);
    let mut most = 64 * scrap.len();
    if shutdown(socket, Shutdown::Write).is_err() {
        return;
    }
    while most > 0 && !deadline.has_passed() && wait_readable(socket, deadline).is_ok() {
        match recv(socket, &mut scrap[..], RecvFlags::DONTWAIT) {
            Ok((_, received @ 1..)) => most = most.saturating_sub(received),
            _ => return,
        }
    }
}

fn seals<D: SideData>(
    connection: &ConnectionCommon<D>,
    sending: Option<[u8; TRAFFIC_SECRET_BYTES]>,
    receiving: Option<[u8; TRAFFIC_SECRET_BYTES]>,
) -> Result<Seals, TlsError> {
    let suite = match connection.negotiated_cipher_suite().map(|suite| suite.suite()) {
        Some(CipherSuite::TLS13_AES_128_GCM_SHA256) => Suite::Aes128Gcm,
        Some(CipherSuite::TLS13_CHACHA20_POLY1305_SHA256) => Suite::ChaCha20Poly1305,
        other => return Err(TlsError::Failed(format!("Katydid does not use the cipher suite {other:?}"))),
    };
    let both = sending.zip(receiving).ok_or_else(|| TlsError::Failed("the handshake left no secrets".to_owned()))?;
    Ok(Seals::new(suite, both.0, both.1)?)
}

/// Makes the handshake: sends and receives records until it is complete.
fn handshake<C, D>(connection: &mut C, socket: BorrowedFd<'_>, deadline: Deadline) -> Result<(), TlsError>
where
    C: Deref<Target = ConnectionCommon<D>> + DerefMut,
    D: SideData,
{
    loop {
        speak(connection, socket)?;
        if !connection.is_handshaking() {
            return Ok(());
        }
        let record = receive_record(socket, deadline)?;
        connection.read_tls(&mut &record[..])?;
        if let Err(error) = connection.process_new_packets() {
            // The alert with the reason. It does not matter here whether it arrives.
            let _ = speak(connection, socket);
            return Err(error.into());
        }
    }
}

fn speak<D: SideData>(connection: &mut ConnectionCommon<D>, socket: BorrowedFd<'_>) -> io::Result<()> {
    let mut out = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut out)?;
    }
    send_all(socket, &mut [IoSlice::new(&out)])
}

fn receive_record(socket: BorrowedFd<'_>, deadline: Deadline) -> Result<Vec<u8>, TlsError> {
    let mut head = [0; 5];
    receive_by(socket, &mut head, deadline)?;
    let length = length(head).map_err(|_| TlsError::Plain)?;
    let mut record = head.to_vec();
    record.resize(head.len() + length, 0);
    receive_by(socket, &mut record[head.len()..], deadline)?;
    Ok(record)
}

/// Returns the first byte that the peer sends, without consuming it.
pub(crate) fn first_byte(socket: BorrowedFd<'_>, deadline: Deadline) -> io::Result<Option<u8>> {
    let mut byte = [0];
    loop {
        wait_readable(socket, deadline)?;
        match recv(socket, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Ok(None),
            Ok(_) => return Ok(Some(byte[0])),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
