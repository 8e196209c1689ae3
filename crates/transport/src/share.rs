//! Memory that one worker lends to another on the same machine: descriptors, handed over a socket of the lender's.
//!
//! A lender listens on a socket without a place in any folder, whose name is random. For what it lends it makes a name of
//! 24 bytes: 8 that lead to the socket, 16 that nobody guesses. Whoever shows the name, and runs as the same user, gets
//! the descriptors. The connection stays as long as the borrower needs them, so that a lender knows whether anybody does.

use std::collections::HashMap;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::net::RecvFlags;
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::fdpass;

/// Bytes of a name.
pub const NAME: usize = 24;
/// Of them, those that lead to the socket.
const DOOR: usize = 8;
/// Pieces that one name may stand for.
const MOST: u32 = 4096;
/// How long either side waits for the other's next bytes.
const PATIENCE: Duration = Duration::from_secs(5);

/// A descriptor and the bytes behind it.
pub type Lent = (OwnedFd, u64);

/// What is lent under one name.
#[derive(Debug)]
struct Item {
    pieces: Arc<Vec<Lent>>,
    /// By what the lender takes it back.
    key: u64,
}

#[derive(Debug, Default)]
struct State {
    items: Mutex<HashMap<[u8; NAME - DOOR], Item>>,
    /// Borrowers that hold something.
    borrowers: AtomicUsize,
}

impl State {
    fn items(&self) -> MutexGuard<'_, HashMap<[u8; NAME - DOOR], Item>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lender. It lends as long as the process lives.
#[derive(Debug)]
pub struct Lender {
    door: [u8; DOOR],
    state: Arc<State>,
}

impl Lender {
    /// Opens the socket, and a thread that attends to it.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn open() -> io::Result<Self> {
        let door = random()?;
        let listener = UnixListener::bind_addr(&address(&door)?)?;
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        thread::Builder::new().name("lender".into()).spawn(move || attend(&listener, &shared))?;
        Ok(Self { door, state })
    }

    /// Lends pieces in their order; the name to pass on. `key` is the caller's.
    ///
    /// # Errors
    ///
    /// The system has no random bytes.
    pub fn lend(&self, pieces: Vec<Lent>, key: u64) -> io::Result<[u8; NAME]> {
        let secret = random()?;
        self.state.items().insert(secret, Item { pieces: Arc::new(pieces), key });
        let mut name = [0; NAME];
        name[..DOOR].copy_from_slice(&self.door);
        name[DOOR..].copy_from_slice(&secret);
        Ok(name)
    }

    /// Lends nothing under this key any more; who has it keeps it.
    pub fn end(&self, key: u64) {
        self.state.items().retain(|_, item| item.key != key);
    }

    /// Whether a name is one of this lender's.
    pub fn is_own(&self, name: &[u8]) -> bool {
        name.get(..DOOR) == Some(&self.door)
    }

    /// Borrowers that hold something at this moment.
    pub fn borrowers(&self) -> usize {
        self.state.borrowers.load(Ordering::Acquire)
    }
}

/// Something borrowed. The lender counts its borrowers by these.
#[derive(Debug)]
pub struct Borrowed {
    /// In the lender's order.
    pub pieces: Vec<Lent>,
    /// To be kept as long as the memory is used.
    pub lease: Lease,
}

/// Ends with the use of what was borrowed.
#[derive(Debug)]
pub struct Lease {
    _connection: UnixStream,
}

/// Borrows what a name stands for.
///
/// # Errors
///
/// The lender is gone, has taken it back, or belongs to another user.
pub fn borrow(name: &[u8; NAME]) -> io::Result<Borrowed> {
    let (door, secret) = name.split_at(DOOR);
    let mut connection = UnixStream::connect_addr(&address(door)?)?;
    check_user(connection.as_fd())?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.write_all(secret)?;
    let mut count = [0; 4];
    connection.read_exact(&mut count)?;
    let count = u32::from_le_bytes(count);
    if count > MOST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let one = |_| {
        let mut size = [0; 8];
        let (length, mut fds) = fdpass::receive(connection.as_fd(), &mut size, RecvFlags::WAITALL)?;
        let piece = fds.pop().filter(|_| length == size.len() && fds.is_empty());
        piece.map(|piece| (piece, u64::from_le_bytes(size))).ok_or_else(|| io::ErrorKind::InvalidData.into())
    };
    let pieces = (0..count).map(one).collect::<io::Result<Vec<_>>>()?;
    Ok(Borrowed { pieces, lease: Lease { _connection: connection } })
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let length = getrandom(&mut bytes, GetRandomFlags::empty())?;
    if length == N { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// The address of a socket that lies in no folder.
fn address(door: &[u8]) -> io::Result<SocketAddr> {
    let digits: String = door.iter().map(|byte| format!("{byte:02x}")).collect();
    SocketAddr::from_abstract_name(format!("katydid-lender-{digits}"))
}

/// Refuses a peer of another user.
fn check_user(peer: BorrowedFd<'_>) -> io::Result<()> {
    let same = socket_peercred(peer)?.uid == geteuid();
    if same { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

fn attend(listener: &UnixListener, state: &Arc<State>) {
    for connection in listener.incoming() {
        let Ok(connection) = connection else { continue };
        let state = Arc::clone(state);
        // Without a thread the borrower is turned away.
        let serve = move || drop(serve(&connection, &state));
        let _ = thread::Builder::new().name("borrower".into()).spawn(serve);
    }
}

/// Hands over what is asked for, and stays until the borrower is done with it.
fn serve(mut connection: &UnixStream, state: &State) -> io::Result<()> {
    check_user(connection.as_fd())?;
    connection.set_read_timeout(Some(PATIENCE))?;
    let mut secret = [0; NAME - DOOR];
    connection.read_exact(&mut secret)?;
    let found = state.items().get(&secret).map(|item| Arc::clone(&item.pieces));
    let pieces = found.ok_or(io::ErrorKind::NotFound)?;
    // Counted before anything is handed over.
    state.borrowers.fetch_add(1, Ordering::AcqRel);
    let outcome = hand_over(connection, &pieces);
    state.borrowers.fetch_sub(1, Ordering::AcqRel);
    outcome
}

fn hand_over(mut connection: &UnixStream, pieces: &[Lent]) -> io::Result<()> {
    connection.write_all(&(pieces.len() as u32).to_le_bytes())?;
    for (piece, size) in pieces {
        fdpass::send(connection.as_fd(), &[IoSlice::new(&size.to_le_bytes())], &[piece.as_fd()])?;
    }
    connection.set_read_timeout(None)?;
    // The borrower says nothing more: this ends with it.
    connection.read(&mut [0]).map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::time::Instant;

    use super::*;

    fn file(text: &str) -> Lent {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(text.as_bytes(), 0).unwrap();
        (file.into(), text.len() as u64)
    }

    /// Waits until as many hold something; the count follows a closed connection at once, but not before it.
    fn wait_for(lender: &Lender, count: usize) {
        let begin = Instant::now();
        while lender.borrowers() != count {
            assert!(begin.elapsed() < Duration::from_secs(30), "{} borrowers", lender.borrowers());
            thread::yield_now();
        }
    }

    #[test]
    fn what_is_lent_arrives_in_order_and_is_counted_until_it_is_given_back() {
        let lender = Lender::open().unwrap();
        let name = lender.lend(vec![file("first"), file("second one")], 7).unwrap();
        assert!(lender.is_own(&name) && lender.borrowers() == 0);
        let borrowed = borrow(&name).unwrap();
        wait_for(&lender, 1);
        let read = |(piece, size): &Lent| {
            let mut bytes = vec![0; *size as usize];
            File::from(piece.try_clone().unwrap()).read_exact_at(&mut bytes, 0).unwrap();
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(borrowed.pieces.iter().map(read).collect::<Vec<_>>(), ["first", "second one"]);
        drop(borrowed);
        wait_for(&lender, 0);
    }

    #[test]
    fn other_names_and_ended_ones_lead_to_nothing() {
        let lender = Lender::open().unwrap();
        let name = lender.lend(vec![file("text")], 7).unwrap();
        let mut other = name;
        other[NAME - 1] ^= 1;
        assert!(borrow(&other).is_err() && borrow(&[9; NAME]).is_err());
        lender.end(8);
        assert!(borrow(&name).is_ok());
        lender.end(7);
        assert!(borrow(&name).is_err());
    }
}
