//! Chooses the process that makes a connection of unix sockets at a restore: each end reports its id as that of its peer
//! (`SO_PEERCRED`).
//!
//! CRIU has one process make both ends: the lowest id that has the end which is last in its list of files. So the end that has to
//! be last is noted. The two ends of `socketpair` report the process that made them. This comes out right again if that process
//! still has an end, and has the lowest id that does. Of a listener's connection, one end reports the process that listened. The
//! accepted end, which has the listener's name, reports the one that connected. If that process makes both ends, the accepted end
//! reports it again.

use std::collections::BTreeMap;

use rustix::net::getsockname;

use crate::process::descriptors::datagrams::Name;
use crate::process::descriptors::remote::{descriptor, sockets};
use crate::process::losses::peer;
use crate::process::tree;
use crate::process::tree::Process;

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ConnectionEnd {
    /// The lowest id of a process that has this end, as that process sees itself.
    holder: u32,
    /// The process that this end reports, as that process sees itself; `None` if it has ended.
    reported_peer: Option<u32>,
    has_name: bool,
}

/// Inodes of the ends of stopped processes that have to be last. `pairs`: the peer of each end, by inodes.
pub(crate) fn makers(processes: &[Process], pairs: &BTreeMap<u64, u64>) -> Vec<u64> {
    let mut ends: BTreeMap<u64, ConnectionEnd> = BTreeMap::new();
    for Process { pid, .. } in processes {
        let pid_seen = tree::pid_in_own_namespace(*pid);
        for (number, inode) in sockets(*pid).filter(|(_, inode)| pairs.contains_key(inode)) {
            if let Some(end) = ends.get_mut(&inode) {
                end.holder = end.holder.min(pid_seen);
            } else if let Some(fd) = descriptor(*pid, number) {
                let reported_peer = peer(&fd).and_then(|peer| u32::try_from(peer.pid).ok());
                let reported_peer =
                    reported_peer.filter(|reported_peer| processes.iter().any(|process| process.pid == *reported_peer));
                let has_name = !Name::of(getsockname(&fd).ok()).is_none();
                ends.insert(
                    inode,
                    ConnectionEnd {
                        holder: pid_seen,
                        reported_peer: reported_peer.map(tree::pid_in_own_namespace),
                        has_name,
                    },
                );
            }
        }
    }
    let found = pairs.iter().filter(|(one, other)| one < other).filter_map(|(one, other)| {
        let is_one = is_first_the_maker(ends.get(one)?, ends.get(other)?)?;
        Some(if is_one { *one } else { *other })
    });
    found.collect()
}

/// Whether the first of two ends has to be last; `None` if that changes nothing.
fn is_first_the_maker(first: &ConnectionEnd, other: &ConnectionEnd) -> Option<bool> {
    let right =
        |maker: &ConnectionEnd| [first, other].iter().filter(|end| end.reported_peer == Some(maker.holder)).count();
    match right(first).cmp(&right(other)) {
        std::cmp::Ordering::Equal => (first.has_name != other.has_name).then_some(other.has_name),
        order => Some(order.is_gt()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(holder: u32, reported_peer: u32, has_name: bool) -> ConnectionEnd {
        ConnectionEnd { holder, reported_peer: Some(reported_peer), has_name }
    }

    #[test]
    fn the_process_that_made_a_pair_makes_it_again() {
        let (parents, childs) = (end(7, 7, false), end(9, 7, false));
        assert_eq!(is_first_the_maker(&parents, &childs), Some(true));
        assert_eq!(is_first_the_maker(&childs, &parents), Some(false));
        assert_eq!(is_first_the_maker(&end(8, 7, false), &childs), None, "it has neither");
    }

    #[test]
    fn an_accepted_end_tells_again_who_connected() {
        let (client, server) = (end(9, 7, false), end(7, 9, true));
        assert_eq!(is_first_the_maker(&client, &server), Some(true));
        assert_eq!(is_first_the_maker(&server, &client), Some(false));
    }

    #[test]
    fn ends_of_ours_are_looked_at() {
        use std::os::unix::net::UnixStream;
        let (one, other) = UnixStream::pair().unwrap();
        let inode = |end: &UnixStream| rustix::fs::fstat(end).unwrap().st_ino;
        let pairs = BTreeMap::from([(inode(&one), inode(&other)), (inode(&other), inode(&one))]);
        let us = [Process { pid: std::process::id(), parent: 1, state: 'R' }];
        assert_eq!(makers(&us, &pairs), Vec::<u64>::new(), "either is right");
    }
}
