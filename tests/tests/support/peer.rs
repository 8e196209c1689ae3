//! A client other than a shim: a connection without TLS on which a test sends any bytes.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use katydid_tests::deadline::PatientStream;
use katydid_tests::watch::WAIT_TIMEOUT;
use katydid_wire::SPEC_HASH;
use katydid_wire::handshake::{
    ArenaKind, ArenaRange, Build, Hello, LINK_TIMEOUT_SECONDS, LinkKind, SessionClaim, SessionKind,
};
use katydid_wire::key::SessionKey;

/// A connection over any family of sockets.
pub(crate) trait Connection: Read + Write + Send {}
impl<T: Read + Write + Send> Connection for T {}

/// Connects to `unix:PATH`, or to the TCP port of any other address.
pub(crate) fn connect(address: &str) -> io::Result<Box<dyn Connection>> {
    if let Some(path) = address.strip_prefix("unix:") {
        return Ok(Box::new(PatientStream::new(UnixStream::connect(path)?, WAIT_TIMEOUT)?));
    }
    let (_, endpoint) = address.split_once("://").ok_or(io::ErrorKind::InvalidInput)?;
    let stream = TcpStream::connect(endpoint.split('?').next().unwrap_or_default())?;
    Ok(Box::new(PatientStream::new(stream, WAIT_TIMEOUT)?))
}

/// Returns this build, which a server accepts.
pub(crate) fn build() -> Build {
    Build::current(SPEC_HASH)
}

/// Returns the hello that a shim would send on a link of frames.
pub(crate) fn hello(session: SessionKind, claim: SessionClaim) -> Hello {
    let range = |kind, base, length| ArenaRange { kind, base, length };
    let ranges =
        [range(ArenaKind::DEVICE, 0x2000_0000_0000, 16 << 40), range(ArenaKind::PINNED, 0x3000_0000_0000, 256 << 30)];
    Hello {
        session,
        claim,
        link: LinkKind::STREAM,
        pid: std::process::id(),
        memory_limit: None,
        program: "peer".to_owned(),
        name: "peer".to_owned(),
        arenas: if session == SessionKind::CUDA { ranges.to_vec() } else { Vec::new() },
        link_timeout: LINK_TIMEOUT_SECONDS,
        reservation: SessionKey::NONE,
    }
}
