//! Slots for connections that the server itself holds, before a worker has them.
//!
//! The rule: a full listener still has room for a newcomer if another connection can go. The one that goes is the oldest of the
//! peer that has the most. So a peer can drive out only its own connections, once it has more than others. A full listener does
//! not affect another one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::{Shutdown, shutdown};

/// Slots of one listener, where the system allows enough descriptors.
pub(crate) const MAX_SLOTS_PER_LISTENER: usize = 128;

/// The numbers of slots.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotLimits {
    pub(crate) of_listener: usize,
    /// Most slots of a listener for one peer over a network.
    pub(crate) of_peer: usize,
}

/// The origin of a connection, to which limits apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum PeerOrigin {
    /// A user of this machine, over a unix socket.
    User(u32),
    /// An IP address. Of IPv6 only the first half counts, since one host may have all addresses that begin with it. All
    /// addresses of loopback are one, since each user of this machine has all of them.
    Address(IpAddr),
    /// A virtual machine, by its vsock number (`cid`).
    Machine(u32),
}

impl PeerOrigin {
    /// Returns the origin of a peer with this address.
    pub(crate) fn of(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            loopback if loopback.is_loopback() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64))),
            other => other,
        })
    }

    /// Returns whether limits apply. Unix sockets have only one user, the server's own, and root.
    pub(crate) fn is_limited(self) -> bool {
        !matches!(self, Self::User(_))
    }
}

/// A connection with a slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotOwner {
    pub(crate) listener: usize,
    pub(crate) origin: PeerOrigin,
    /// Whether it may be closed for another connection.
    pub(crate) may_go: bool,
}

/// The slot for a newcomer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SlotAdmission {
    Free,
    /// The slot of this connection, which must go.
    Replacing(usize),
    None,
}

/// Finds a slot for a newcomer. `holders` are oldest first.
pub(crate) fn find_slot(
    holders: &[SlotOwner],
    listener: usize,
    origin: PeerOrigin,
    limits: SlotLimits,
) -> SlotAdmission {
    let of_listener = || holders.iter().enumerate().filter(move |(_, holder)| holder.listener == listener);
    let count = |of: PeerOrigin| of_listener().filter(|(_, holder)| holder.origin == of).count();
    let oldest = |of: PeerOrigin| of_listener().find(|(_, holder)| holder.origin == of && holder.may_go);
    let of =
        |found: Option<(usize, &SlotOwner)>| found.map_or(SlotAdmission::None, |(at, _)| SlotAdmission::Replacing(at));
    if origin.is_limited() && count(origin) >= limits.of_peer {
        return of(oldest(origin));
    }
    if of_listener().count() < limits.of_listener {
        return SlotAdmission::Free;
    }
    // The newcomer counts for its peer. Among equals, the peer with the oldest connection gives way.
    let weight = |of: PeerOrigin| count(of) + usize::from(of == origin);
    let candidates = of_listener().filter(|(_, holder)| holder.may_go).rev();
    let heaviest = candidates.max_by_key(|(_, holder)| weight(holder.origin)).map(|(_, holder)| holder.origin);
    of(heaviest.and_then(oldest))
}

/// Connections in their handshake, of all listeners.
#[derive(Debug, Default)]
pub(crate) struct Greetings(Arc<Mutex<GreetingTable>>);

#[derive(Debug, Default)]
struct GreetingTable {
    next: u64,
    /// Connections that have not sent their hello yet, oldest first.
    greetings: Vec<PendingGreeting>,
}

#[derive(Debug)]
struct PendingGreeting {
    number: u64,
    holder: SlotOwner,
    /// The connection, as long as it may be closed for another one.
    socket: Option<OwnedFd>,
}

/// The slot of a connection in its handshake. It is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct GreetingSlot {
    number: u64,
    table: Arc<Mutex<GreetingTable>>,
}

impl Greetings {
    /// Takes a slot for a connection that is known by `socket`. Returns none if all have connections that must stay. One that
    /// must go gets `farewell` first, and is closed.
    pub(crate) fn take(
        &self,
        (listener, origin): (usize, PeerOrigin),
        socket: OwnedFd,
        limits: SlotLimits,
        farewell: impl FnOnce(&OwnedFd),
    ) -> Option<GreetingSlot> {
        let mut table = lock(&self.0);
        let holders: Vec<SlotOwner> = table.greetings.iter().map(|greeting| greeting.holder).collect();
        match find_slot(&holders, listener, origin, limits) {
            SlotAdmission::Free => {}
            SlotAdmission::Replacing(at) => {
                if let Some(socket) = table.greetings.remove(at).socket {
                    farewell(&socket);
                    // The thread of that connection notices.
                    let _ = shutdown(&socket, Shutdown::Both);
                }
            }
            SlotAdmission::None => return None,
        }
        table.next += 1;
        let (number, holder) = (table.next, SlotOwner { listener, origin, may_go: true });
        table.greetings.push(PendingGreeting { number, holder, socket: Some(socket) });
        Some(GreetingSlot { number, table: Arc::clone(&self.0) })
    }
}

impl GreetingSlot {
    /// Notes that the hello has come: the connection is no longer closed for another one. Returns false if it was closed already.
    pub(crate) fn stay(&self) -> bool {
        let mut table = lock(&self.table);
        let Some(greeting) = table.greetings.iter_mut().find(|greeting| greeting.number == self.number) else {
            return false;
        };
        greeting.holder.may_go = false;
        greeting.socket = None;
        true
    }
}

impl Drop for GreetingSlot {
    fn drop(&mut self) {
        lock(&self.table).greetings.retain(|greeting| greeting.number != self.number);
    }
}

fn lock(table: &Mutex<GreetingTable>) -> MutexGuard<'_, GreetingTable> {
    // Each change is one statement, so a panic elsewhere leaves the table consistent.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> PeerOrigin {
        PeerOrigin::of(IpAddr::from([10, 0, 0, last]))
    }

    fn holders(of: &[(PeerOrigin, usize)]) -> Vec<SlotOwner> {
        let holder = |origin| SlotOwner { listener: 0, origin, may_go: true };
        of.iter().flat_map(|(origin, count)| vec![holder(*origin); *count]).collect()
    }

    fn limits(of_peer: usize) -> SlotLimits {
        SlotLimits { of_listener: MAX_SLOTS_PER_LISTENER, of_peer }
    }

    #[test]
    fn a_peer_that_has_its_share_gives_up_its_own_oldest() {
        let held = holders(&[(address(1), 2), (address(2), 8)]);
        assert_eq!(find_slot(&held, 0, address(2), limits(8)), SlotAdmission::Replacing(2));
        assert_eq!(find_slot(&held, 0, address(1), limits(8)), SlotAdmission::Free);
        assert_eq!(find_slot(&held, 1, address(2), limits(8)), SlotAdmission::Free, "another listener");
    }

    #[test]
    fn a_full_listener_takes_from_the_peer_that_has_the_most() {
        let held = holders(&[(address(1), 1), (address(2), MAX_SLOTS_PER_LISTENER - 1)]);
        assert_eq!(find_slot(&held, 0, address(3), limits(MAX_SLOTS_PER_LISTENER)), SlotAdmission::Replacing(1));
        assert_eq!(find_slot(&held, 0, address(1), limits(MAX_SLOTS_PER_LISTENER)), SlotAdmission::Replacing(1));
        assert_eq!(find_slot(&held, 0, address(2), limits(MAX_SLOTS_PER_LISTENER)), SlotAdmission::Replacing(1));
        let user = holders(&[(PeerOrigin::User(0), MAX_SLOTS_PER_LISTENER)]);
        assert_eq!(find_slot(&user, 0, PeerOrigin::User(0), limits(1)), SlotAdmission::Replacing(0));
    }

    #[test]
    fn connections_past_hello_are_not_evicted() {
        let mut held = holders(&[(address(1), MAX_SLOTS_PER_LISTENER)]);
        held.iter_mut().for_each(|holder| holder.may_go = false);
        assert_eq!(find_slot(&held, 0, address(2), limits(MAX_SLOTS_PER_LISTENER)), SlotAdmission::None);
        held[7].may_go = true;
        assert_eq!(find_slot(&held, 0, address(2), limits(MAX_SLOTS_PER_LISTENER)), SlotAdmission::Replacing(7));
    }

    #[test]
    fn a_host_of_ipv6_is_one_peer_whatever_its_address() {
        let of = |text: &str| PeerOrigin::of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.7"), address(7));
    }

    #[test]
    fn all_users_of_loopback_are_one_peer() {
        let of = |text: &str| PeerOrigin::of(text.parse().unwrap());
        for other in ["127.0.0.2", "127.255.255.254", "::1", "::ffff:127.0.0.3"] {
            assert_eq!(of(other), of("127.0.0.1"), "{other}");
        }
        assert_ne!(of("128.0.0.1"), of("127.0.0.1"));
    }

    #[test]
    fn slots_come_back_and_the_one_that_goes_is_closed() {
        let greetings = Greetings::default();
        let pair = || std::os::unix::net::UnixStream::pair().unwrap();
        let take =
            |socket: std::os::unix::net::UnixStream| greetings.take((0, address(1)), socket.into(), limits(1), |_| {});
        let ((client_end, server_end), (next, _next)) = (pair(), pair());
        let first = take(server_end.try_clone().unwrap()).unwrap();
        let second = take(next).unwrap();
        assert_eq!(std::io::Read::read(&mut &client_end, &mut [0]).unwrap(), 0);
        assert!(!first.stay() && second.stay());
        drop(first);
        assert!(take(server_end.try_clone().unwrap()).is_none());
        drop(second);
        assert!(take(server_end).is_some());
    }
}
