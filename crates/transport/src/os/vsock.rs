//! Sockets between a virtual machine and its host (`AF_VSOCK`): machines are numbers, 2 is the host, 1 this machine.

#![expect(unsafe_code, reason = "the system's structure for these addresses is ours to lay out")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getpeername, getsockname, listen, socket_with};

/// Stands for every machine number, or port, of this machine.
pub(crate) const VMADDR_ANY: u32 = u32::MAX;

/// The kernel's `struct sockaddr_vm`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct SockaddrVm {
    family: u16,
    reserved: u16,
    port: u32,
    cid: u32,
    flags: u8,
    zero: [u8; 3],
}

const SOCKADDR_VM_BYTES: SocketAddrLen = size_of::<SockaddrVm>() as SocketAddrLen;

// SAFETY: the pointer is to a whole structure of the family that it names, which lives as long as the call.
unsafe impl SocketAddrArg for SockaddrVm {
    unsafe fn with_sockaddr<R>(&self, f: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R) -> R {
        f(std::ptr::from_ref(self).cast(), SOCKADDR_VM_BYTES)
    }
}

fn socket_address(cid: u32, port: u32) -> SockaddrVm {
    SockaddrVm { family: AddressFamily::VSOCK.as_raw(), cid, port, ..SockaddrVm::default() }
}

fn socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::VSOCK, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Connects to a port of a machine. The system bounds the wait by itself, with two seconds.
pub(crate) fn open(cid: u32, port: u32) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::connect(&socket, &socket_address(cid, port))?;
    Ok(socket)
}

/// Listens on a port for peers that reach this machine as `cid`. With port 0, the system chooses one.
///
/// # Errors
/// The system's error: most machines have no such sockets.
pub fn bind_vsock(cid: u32, port: u32, backlog: i32) -> io::Result<OwnedFd> {
    let socket = socket()?;
    bind(&socket, &socket_address(cid, if port == 0 { VMADDR_ANY } else { port }))?;
    listen(&socket, backlog)?;
    Ok(socket)
}

/// Returns the machine number and the port at the other end of a connection.
#[must_use]
pub fn vsock_peer(socket: impl AsFd) -> Option<(u32, u32)> {
    getpeername(socket).ok().flatten().and_then(|address| read(&address))
}

/// Returns the port that a socket listens on.
#[must_use]
pub fn vsock_port(socket: impl AsFd) -> Option<u32> {
    getsockname(socket).ok().and_then(|address| read(&address)).map(|(_, port)| port)
}

fn read(address: &rustix::net::SocketAddrAny) -> Option<(u32, u32)> {
    let is_whole = address.address_family() == AddressFamily::VSOCK && address.addr_len() >= SOCKADDR_VM_BYTES;
    // SAFETY: the system has filled in a structure of this family, and of at least its length; it is read as bytes that
    // need no alignment.
    let parsed = is_whole.then(|| unsafe { address.as_ptr().cast::<SockaddrVm>().read_unaligned() })?;
    Some((parsed.cid, parsed.port))
}
