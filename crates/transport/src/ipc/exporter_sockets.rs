//! The sockets over which workers export memory to each other. They have abstract names, in no folder.
//!
//! A worker that serves tenants may make no sockets, so it cannot connect to those of its user. Its server makes them, and only
//! under the names of exporters. A request is one packet; the answer is another one, with the socket:
//!
//! ```text
//! worker: what to make (1 byte), exporter id (8), generation (8) ─▶ server
//! worker ◀─ 0 and the socket, or the number of an error (4)  server
//! ```

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Mutex, OnceLock, PoisonError};

use katydid_wire::sharing::EXPORTER_ID_BYTES;
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::sockopt::{set_socket_send_buffer_size, socket_peercred};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recv, send, socket_with, socketpair,
};
use rustix::process::{Uid, geteuid};

use crate::os::fdpass;

/// Bytes of the generation of an exporter's job, a little-endian number; 0 outside of jobs.
pub const GENERATION_BYTES: usize = 8;
/// A socket to which importers connect.
const LISTENING_SOCKET: u8 = 1;
/// A socket that is connected to an exporter.
const CONNECTED_SOCKET: u8 = 2;
const REQUEST_BYTES: usize = 1 + EXPORTER_ID_BYTES + GENERATION_BYTES;
/// Bytes of a server's answers that a worker has not read. The kernel rounds this up to a few packets.
const MAX_UNREAD_BYTES: usize = 1;
/// Importers whose connections wait to be accepted.
const MAX_LISTEN_BACKLOG: i32 = 128;

/// The server that makes a worker's sockets.
#[derive(Debug)]
struct Broker {
    socket: Mutex<OwnedFd>,
    /// The server's user, who owns all exporters' sockets.
    user: Uid,
}

/// None in a worker that makes its own sockets.
static SOCKET_BROKER: OnceLock<Broker> = OnceLock::new();

/// Creates the two ends between a server and a worker, the server's first. Both are closed on exec.
///
/// # Errors
///
/// Error that the system returned.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (local, peer) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    set_socket_send_buffer_size(&local, MAX_UNREAD_BYTES)?;
    Ok((local, peer))
}

/// Has the server make this process's sockets for exporting memory.
///
/// # Errors
///
/// The system's error about the server's end.
pub fn ask(server: OwnedFd) -> io::Result<()> {
    let user = socket_peercred(&server)?.uid;
    let _ = SOCKET_BROKER.set(Broker { socket: Mutex::new(server), user });
    Ok(())
}

/// Returns the user that owns the sockets of exporters and importers.
pub(crate) fn user() -> Uid {
    SOCKET_BROKER.get().map_or_else(geteuid, |broker| broker.user)
}

/// Opens a listening socket of an exporter.
pub(crate) fn listen(exporter_id: &[u8], generation: &[u8]) -> io::Result<UnixListener> {
    match SOCKET_BROKER.get() {
        Some(broker) => Ok(broker.request(LISTENING_SOCKET, exporter_id, generation)?.into()),
        None => UnixListener::bind_addr(&SocketAddr::from_abstract_name(name(exporter_id, generation))?),
    }
}

/// Opens a socket that is connected to an exporter.
pub(crate) fn connect(exporter_id: &[u8], generation: &[u8]) -> io::Result<UnixStream> {
    match SOCKET_BROKER.get() {
        Some(broker) => Ok(broker.request(CONNECTED_SOCKET, exporter_id, generation)?.into()),
        None => UnixStream::connect_addr(&SocketAddr::from_abstract_name(name(exporter_id, generation))?),
    }
}

fn name(exporter_id: &[u8], generation: &[u8]) -> String {
    let digits = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("katydid-exporter-{}-{}", digits(exporter_id), digits(generation))
}

impl Broker {
    fn request(&self, what: u8, exporter_id: &[u8], generation: &[u8]) -> io::Result<OwnedFd> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let request = [&[what], exporter_id, generation].concat();
        send(&*socket, &request, SendFlags::NOSIGNAL)?;
        let mut code = [0; 4];
        let (length, mut fds) = fdpass::receive(socket.as_fd(), &mut code, RecvFlags::empty())?;
        match (length, i32::from_le_bytes(code), fds.pop()) {
            (4, 0, Some(fd)) => Ok(fd),
            (4, code, None) if code > 0 => Err(io::Error::from_raw_os_error(code)),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Answers one request of a worker, on the server's side. It waits for neither the worker nor an exporter. A worker that does not
/// read its answers loses them.
///
/// # Errors
///
/// The worker has closed its end, or broken the format.
pub fn answer(worker: BorrowedFd<'_>) -> io::Result<()> {
    // One byte more than a request, so that a longer one is detected.
    let mut request = [0; REQUEST_BYTES + 1];
    let length = match recv(worker, &mut request, RecvFlags::DONTWAIT) {
        Ok((_, length)) => length,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let Some(request) = request.get(..length).filter(|request| request.len() == REQUEST_BYTES) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let (exporter_id, generation) = request[1..].split_at(EXPORTER_ID_BYTES);
    let socket = match request[0] {
        LISTENING_SOCKET => make(&name(exporter_id, generation), listening),
        CONNECTED_SOCKET => make(&name(exporter_id, generation), connected),
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    let (code, fd) = match &socket {
        Ok(fd) => (0, Some(fd.as_fd())),
        Err(error) => (error.raw_os_error(), None),
    };
    let _ = fdpass::send_at_once(worker, &[IoSlice::new(&code.to_le_bytes())], fd.as_slice());
    Ok(())
}

fn make(name: &str, finish: fn(&OwnedFd, &SocketAddrUnix) -> Result<(), Errno>) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    finish(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    ioctl_fionbio(&socket, false)?;
    Ok(socket)
}

fn listening(socket: &OwnedFd, address: &SocketAddrUnix) -> Result<(), Errno> {
    rustix::net::bind(socket, address)?;
    rustix::net::listen(socket, MAX_LISTEN_BACKLOG)
}

fn connected(socket: &OwnedFd, address: &SocketAddrUnix) -> Result<(), Errno> {
    rustix::net::connect(socket, address)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::thread;

    use super::*;

    fn broker() -> (OwnedFd, Broker) {
        let (local, peer) = pair().unwrap();
        (local, Broker { socket: Mutex::new(peer), user: geteuid() })
    }

    #[test]
    fn a_server_makes_both_ends_and_passes_errors_on() {
        let (server, worker) = broker();
        let serve = thread::spawn(move || while answer(server.as_fd()).is_ok() {});
        let (exporter_id, generation) = ([0x5a; EXPORTER_ID_BYTES], std::process::id().to_le_bytes());
        let generation = [generation, [7; 4]].concat();
        let error = worker.request(CONNECTED_SOCKET, &exporter_id, &generation).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let listener = UnixListener::from(worker.request(LISTENING_SOCKET, &exporter_id, &generation).unwrap());
        let error = worker.request(LISTENING_SOCKET, &exporter_id, &generation).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let mut one = UnixStream::from(worker.request(CONNECTED_SOCKET, &exporter_id, &generation).unwrap());
        let (mut other, _) = listener.accept().unwrap();
        one.write_all(b"text").unwrap();
        let mut text = [0; 4];
        other.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"text");
        drop(worker);
        serve.join().unwrap();
    }

    #[test]
    fn a_request_of_another_form_ends_it_and_answers_that_are_not_read_are_few() {
        let (server, worker) = broker();
        let socket = worker.socket.lock().unwrap();
        for wrong in
            [&[LISTENING_SOCKET; REQUEST_BYTES - 1][..], &[LISTENING_SOCKET; REQUEST_BYTES + 1], &[9; REQUEST_BYTES]]
        {
            send(&*socket, wrong, SendFlags::empty()).unwrap();
            assert!(answer(server.as_fd()).is_err());
        }
        let mut unread = 0;
        for number in 0..64_u8 {
            let request = [&[LISTENING_SOCKET][..], &[number; EXPORTER_ID_BYTES], &[9; GENERATION_BYTES]].concat();
            send(&*socket, &request, SendFlags::empty()).unwrap();
            answer(server.as_fd()).unwrap();
        }
        while fdpass::receive(socket.as_fd(), &mut [0; 4], RecvFlags::DONTWAIT).is_ok() {
            unread += 1;
        }
        assert!((1..32).contains(&unread), "{unread}");
    }
}
