//! Connecting to a server: its address, this program's hello, and the addresses that the program can spare.
//!
//! Every failure is one sentence with its remedy, because a program that gets only an error code cannot say more than "no
//! CUDA-capable device is detected".

use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use katydid_arena::{NegotiatedArenas, Offers, Reservation};
use katydid_cuda_sys::CUresult;
use katydid_driver_rules::state::{settings, units};
use katydid_transport::compression::CompressionMode;
use katydid_transport::{Address, ProgramLink, connect};
use katydid_wire::SPEC_HASH;
use katydid_wire::handshake::{
    Build, Hello, LINK_TIMEOUT_SECONDS, LinkKind, SOFTCUDA_DRIVER, SessionClaim, SessionKind,
};
use katydid_wire::key::SessionKey;

use crate::environment::{OpenError, program_name, setting, variable};
use crate::session::{FaultHandler, Session, session_mark};
use crate::{compression, threads};

/// A session that has begun, and what both sides agreed on.
pub struct OpenedSession {
    /// Carries the session's calls.
    pub session: Session<CUresult>,
    /// The agreed address map, and the reservations that keep its ranges free.
    pub arenas: NegotiatedArenas,
    /// The memory of the pinned arena; none on stream links.
    pub pinned: Option<OwnedFd>,
    /// Address of the server that accepted the session.
    pub address: Address,
    /// Kind of link: shared memory or a stream.
    pub link: LinkKind,
}

/// Returns the server to use instead of the one in the environment, which differs if this job was restored since. The supervisor
/// notes beside the job socket the current server, and the former ones, one a line.
fn server_now(named: String) -> String {
    let note = || {
        let socket = variable(katydid_wire::job::JOB_VARIABLE)?;
        std::fs::read_to_string(Path::new(&socket).parent()?.join("server")).ok()
    };
    let note = note().unwrap_or_default();
    let current = note.lines().next().filter(|_| note.lines().any(|line| line == named));
    current.map_or(named.clone(), str::to_owned)
}

/// Reports variables with Katydid's prefix that do not exist, once, unless the command that started the program has done so.
fn tell_unknown() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for unknown in settings::unknown_here() {
            // A closed standard error loses the line.
            let _ = std::io::stderr().write_all(format!("katydid: {unknown}\n").as_bytes());
        }
    });
}

/// Returns the server to use, with its certificates if those are needed.
fn server() -> Result<Address, OpenError> {
    let server = setting("KATYDID_SERVER")?.ok_or(OpenError::NoServer)?;
    let address: Address = server_now(server).parse()?;
    let certs = std::env::var_os("KATYDID_CERTS").filter(|folder| !folder.is_empty());
    Ok(address.with_certs(certs.map(PathBuf::from).as_deref()))
}

/// Connects to the server that the environment names.
///
/// # Errors
///
/// [`OpenError`], whose text says what to do.
pub fn open(on_fault: FaultHandler<CUresult>) -> Result<OpenedSession, OpenError> {
    tell_unknown();
    let address = server()?;
    let offers = Offers::reserve()?;
    let hello = Hello {
        session: SessionKind::CUDA,
        claim: SessionClaim::NEW,
        link: link_kind(&address)?,
        pid: std::process::id(),
        memory_limit: memory_limit()?,
        program: program_name(),
        name: setting("KATYDID_NAME")?.unwrap_or_default(),
        arenas: offers.arenas(),
        link_timeout: link_timeout()?,
        reservation: reservation(),
    };
    let requires_gpu = setting("KATYDID_REQUIRE_GPU")?.is_some_and(|value| value == "1");
    let connection = connect(&address, &hello, &Build::current(SPEC_HASH), connect_timeout()?)?;
    if connection.ready.driver == SOFTCUDA_DRIVER && requires_gpu {
        return Err(OpenError::NoGpu { address });
    }
    adjust(&*connection.link)?;
    let arenas = offers.settle(&connection.ready.arenas)?;
    let session = Session::new(connection.link, on_fault, || ());
    session_mark::set();
    Ok(OpenedSession { session, arenas, pinned: connection.pinned, address, link: hello.link })
}

/// Memory that the worker has at the same addresses: the range, and the file to map there.
pub type PinnedMemory = (Reservation, OwnedFd);

/// A session that has begun without agreed addresses for devices.
pub struct PlainSession {
    /// Carries the session's calls.
    pub link: Box<dyn ProgramLink>,
    /// Address of the server that accepted the session.
    pub address: Address,
    /// Kind of link: shared memory or a stream.
    pub kind: LinkKind,
    /// Pinned memory; none on stream links, or where both sides have no range in common.
    pub pinned: Option<PinnedMemory>,
}

/// Connects for a session without agreed addresses for devices.
///
/// # Errors
///
/// [`OpenError`], whose text says what to do.
pub fn open_plain(session: SessionKind) -> Result<PlainSession, OpenError> {
    tell_unknown();
    let address = server()?;
    let kind = link_kind(&address)?;
    // Without shared memory there is nothing to place at such addresses.
    let offers = (kind == LinkKind::SHM).then(Offers::reserve_pinned);
    let hello = Hello {
        session,
        claim: SessionClaim::NEW,
        link: kind,
        pid: std::process::id(),
        memory_limit: memory_limit()?,
        program: program_name(),
        name: setting("KATYDID_NAME")?.unwrap_or_default(),
        arenas: offers.as_ref().map(Offers::arenas).unwrap_or_default(),
        link_timeout: link_timeout()?,
        reservation: reservation(),
    };
    let connection = connect(&address, &hello, &Build::current(SPEC_HASH), connect_timeout()?)?;
    adjust(&*connection.link)?;
    let chosen = &connection.ready.arenas;
    let range = offers.map_or(Ok(None), |offers| offers.settle_pinned(chosen))?;
    session_mark::set();
    Ok(PlainSession { link: connection.link, address, kind, pinned: range.zip(connection.pinned) })
}

/// Most bulk connections, unless the environment says otherwise. On a machine with an H200, 8 carry 64 MiB in a sixth of the time
/// of one.
const MAX_DEFAULT_BULK_CONNECTIONS: usize = 8;

/// Returns how long a link may be silent; zero is no limit.
fn silence() -> Result<Duration, OpenError> {
    let silence = setting("KATYDID_LINK_TIMEOUT")?.and_then(|text| settings::silence(&text));
    Ok(silence.unwrap_or(Duration::from_secs(LINK_TIMEOUT_SECONDS.into())))
}

/// Returns how long a server may take to answer a hello.
fn connect_timeout() -> Result<Duration, OpenError> {
    Ok(settings::connect_timeout(setting("KATYDID_CONNECT_TIMEOUT")?.as_deref()))
}

/// Returns the limit of silence for a hello, in whole seconds.
fn link_timeout() -> Result<u32, OpenError> {
    Ok(u32::try_from(silence()?.as_millis().div_ceil(1000)).unwrap_or(u32::MAX))
}

/// Applies the environment's settings to the link: its limit of silence, compression, and the number of bulk connections.
fn adjust(link: &dyn ProgramLink) -> Result<(), OpenError> {
    // If the connection is lost already, the first call reports it.
    let _ = link.limit_silence(silence()?);
    let requested = setting("KATYDID_PACKING")?.and_then(|word| CompressionMode::named(&word));
    compression::choose(requested.unwrap_or_default());
    let lanes = setting("KATYDID_LANES")?.and_then(|number| number.parse().ok());
    link.allow_bulk_connections(lanes.unwrap_or_else(bulk_connections_here));
    Ok(())
}

/// Returns the default number of bulk connections. Each keeps a processor busy on either side; four helped on two busy
/// processors, too.
fn bulk_connections_here() -> usize {
    (threads::processors() / 2).clamp(MAX_DEFAULT_BULK_CONNECTIONS / 2, MAX_DEFAULT_BULK_CONNECTIONS)
}

/// Returns the key of the slot that `katydid run` reserved at the server for the program's first session. A slot already taken
/// counts as none.
fn reservation() -> SessionKey {
    variable(settings::RESERVATION_VARIABLE)
        .and_then(|text| SessionKey::from_spelled(&text))
        .unwrap_or(SessionKey::NONE)
}

/// Returns whether the environment names a server.
pub fn has_server() -> bool {
    variable("KATYDID_SERVER").is_some()
}

/// Connects to query the server's devices: this needs no session, and no worker's GPU.
///
/// # Errors
///
/// [`OpenError`].
pub fn open_nvml() -> Result<Box<dyn ProgramLink>, OpenError> {
    let address = server()?;
    let hello = Hello {
        session: SessionKind::NVML,
        claim: SessionClaim::NEW,
        link: LinkKind::STREAM,
        pid: std::process::id(),
        memory_limit: None,
        program: program_name(),
        name: setting("KATYDID_NAME")?.unwrap_or_default(),
        arenas: Vec::new(),
        link_timeout: link_timeout()?,
        reservation: SessionKey::NONE,
    };
    let link = connect(&address, &hello, &Build::current(SPEC_HASH), connect_timeout()?)?.link;
    adjust(&*link)?;
    Ok(link)
}

fn link_kind(address: &Address) -> Result<LinkKind, OpenError> {
    Ok(match setting("KATYDID_LINK")?.as_deref() {
        None => address.best_link(),
        Some("shm") => LinkKind::SHM,
        Some(_) => LinkKind::STREAM,
    })
}

fn memory_limit() -> Result<Option<u64>, OpenError> {
    Ok(setting("KATYDID_MEMORY")?.and_then(|text| units::size(&text).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_device_memory_is_what_programs_get_at_a_time() {
        assert_eq!(settings::MIN_DEVICE_MEMORY_BYTES, katydid_arena::GROWTH_GRANULE_BYTES);
    }
}
