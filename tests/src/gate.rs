//! TCP addresses of this process: a proxy whose connections can be cut, an address without a listener, and ports that no process
//! gets by chance.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

/// A proxy from one address to another. Open connections outlive this value, and new ones are accepted for the life of the
/// process.
#[derive(Debug)]
pub struct ProxyGate {
    address: String,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl ProxyGate {
    /// Starts a proxy to the server at `to`, `tcp://…`. It calls `on_connection` with the number of earlier connections before it
    /// forwards each one.
    ///
    /// # Errors
    ///
    /// Error that the system returned.
    pub fn to(to: &str, mut on_connection: impl FnMut(usize) + Send + 'static) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = format!("tcp://{}", listener.local_addr()?);
        let (open, to) = (Arc::<Mutex<Vec<TcpStream>>>::default(), to.trim_start_matches("tcp://").to_owned());
        let streams = Arc::clone(&open);
        thread::spawn(move || {
            for (number, near) in listener.incoming().flatten().enumerate() {
                on_connection(number);
                // If the server cannot be reached, the connection ends, as if the server were gone.
                let Ok(far) = TcpStream::connect(&to) else { continue };
                // Small writes are sent at once.
                let _ = near.set_nodelay(true).and_then(|()| far.set_nodelay(true));
                let ends = [near.try_clone(), far.try_clone()].into_iter().flatten();
                streams.lock().unwrap_or_else(PoisonError::into_inner).extend(ends);
                both_ways(near, far);
            }
        });
        Ok(Self { address, open })
    }

    /// Returns the address of the proxy.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Cuts all open connections, in the middle of any transfer.
    pub fn cut(&self) {
        for end in self.open.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // A connection that has ended needs no cut.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

fn both_ways(near: TcpStream, far: TcpStream) {
    let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) else { return };
    for (mut from, mut to) in [(near, far), (far_too, near_too)] {
        thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
    }
}

/// An address without a listener: no process can listen there while this lives.
#[derive(Debug)]
pub struct SilentAddress {
    address: SocketAddr,
    _socket: OwnedFd,
}

impl SilentAddress {
    /// Reserves an address on loopback.
    ///
    /// # Errors
    ///
    /// Error that the system returned.
    pub fn new() -> io::Result<Self> {
        // Closed in programs of other tests: they could not be restored beside this process otherwise.
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
        let address = getsockname(&socket)?.try_into()?;
        Ok(Self { address, _socket: socket })
    }

    /// Returns the address at which connections fail.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Ports that the system never assigns on its own: after the process with such a port has ended, another can take the port.
const UNASSIGNED_PORTS: std::ops::Range<u32> = 20_000..32_000;

/// Returns a loopback port without a listener. It stays free except for processes that request this very port.
#[must_use]
pub fn lasting_port() -> u32 {
    // Each process starts at another port.
    static NEXT_PORT_OFFSET: LazyLock<AtomicU32> =
        LazyLock::new(|| AtomicU32::new(RandomState::new().build_hasher().finish() as u32));
    loop {
        let port = UNASSIGNED_PORTS.start
            + NEXT_PORT_OFFSET.fetch_add(1, Ordering::Relaxed) % (UNASSIGNED_PORTS.end - UNASSIGNED_PORTS.start);
        let is_taken = |port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        if !u16::try_from(port).is_ok_and(is_taken) {
            return port;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_peer_is_reached_in_silence_and_none_breaks_it() {
        let silence = SilentAddress::new().unwrap();
        assert_eq!(TcpStream::connect(silence.address()).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(TcpListener::bind(silence.address()).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
