//! Memory that one worker lends to another on the same machine: descriptors, handed over a socket of the lender's.
//!
//! A lender listens on a socket without a place in any folder. For what it lends it makes a name of 32 bytes: 8 of the
//! id of the lender, which is random; 8 of the generation of its job, which is another one after each restore; and 16 that no process
//! guesses. The first two lead to the socket. A process of the same user that shows the name gets the descriptors; so do
//! workers of tenants, whose sockets are their server's ([`lender_sockets`]).
//! The connection stays as long as the borrower needs them, so that a lender knows whether a borrower does.
//!
//! A lender out of an image listens under the same id again, in the generation that it is restored in. What it lends is found
//! by a session that was restored with it, and not taken for what another restore of the image, or the first run, lends.
//!
//! While a lender's session is paused, borrowers wait; where it goes on in another worker, they wait for that one.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

pub use crate::ipc::lender_sockets::GENERATION_BYTES;
use katydid_wire::sharing::{Borrowing, SharedHolding};
pub use katydid_wire::sharing::{LENDER_ID_BYTES, SECRET_BYTES};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::RecvFlags;
use rustix::net::sockopt::socket_peercred;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::ipc::lender_sockets;
use crate::os::fdpass;

/// Bytes of a name: which lender, which generation of its job, and which of the things that it lends.
pub const SHARE_NAME_BYTES: usize = LENDER_ID_BYTES + GENERATION_BYTES + SECRET_BYTES;
/// Pieces that one name may stand for.
const MAX_PIECES: u32 = 4096;
/// Those that hold something of a lender, each with a thread; further ones are turned away.
const MAX_BORROWERS: usize = 1024;
/// Those that have shown no name yet, each with a thread; the oldest goes for a newcomer.
const MAX_UNKNOWN_BORROWERS: usize = 64;
/// In place of their number: the lender knows no such name.
const UNKNOWN_NAME: u32 = u32::MAX;
/// How long either side waits for the other's next bytes.
const SHARE_ANSWER_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 5 });
/// How long a borrower waits for a lender that is paused, or has hung up and may open its socket elsewhere.
const LENDER_PAUSE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a borrower looks for a socket that it finds closed: between two workers of one session it is closed.
const CLOSED_DOOR_TIMEOUT: Duration = Duration::from_secs(1);
/// Between two attempts to open a socket that another worker has, to find one open, or to let a borrower in.
const DOOR_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// A descriptor and the bytes behind it.
pub type LentPiece = (OwnedFd, u64);

#[derive(Debug, Default)]
struct LenderState {
    items: HashMap<[u8; SECRET_BYTES], Arc<Vec<LentPiece>>>,
    /// Borrowers, each by a number of its own: what it holds, and its connection.
    borrowers: HashMap<u64, ([u8; SECRET_BYTES], UnixStream)>,
    /// Those that have shown no name yet, oldest first, by numbers of the same kind.
    unknown_peers: BTreeMap<u64, UnixStream>,
    /// Connections accepted so far.
    came: u64,
    /// Nothing is handed over at this moment.
    stands_still: bool,
}

#[derive(Debug, Default)]
struct ShareState {
    inner: Mutex<LenderState>,
    /// Notified when the lender goes on.
    goes_on: Condvar,
}

impl ShareState {
    fn lock(&self) -> MutexGuard<'_, LenderState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a connection in that has shown no name yet; its number. One that has to go for it learns so by its end.
    fn enter(&self, connection: UnixStream) -> u64 {
        let mut state = self.lock();
        if state.unknown_peers.len() >= MAX_UNKNOWN_BORROWERS
            && let Some((_, oldest)) = state.unknown_peers.pop_first()
        {
            let _ = oldest.shutdown(Shutdown::Both);
        }
        state.came += 1;
        let number = state.came;
        state.unknown_peers.insert(number, connection);
        number
    }

    /// What a secret stands for, once the lender is not paused; from here on that connection is a borrower's.
    fn take(&self, secret: [u8; SECRET_BYTES], number: u64) -> Option<Arc<Vec<LentPiece>>> {
        // While the lender is paused, these peers wait as well. They do not count as unknown: their names are known.
        let connection = self.lock().unknown_peers.remove(&number)?;
        let state = self.goes_on.wait_while(self.lock(), |state| state.stands_still);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let pieces = state.items.get(&secret).map(Arc::clone).filter(|_| state.borrowers.len() < MAX_BORROWERS)?;
        state.borrowers.insert(number, (secret, connection));
        Some(pieces)
    }

    /// The connection is over.
    fn leave(&self, number: u64) {
        let mut state = self.lock();
        state.unknown_peers.remove(&number);
        state.borrowers.remove(&number);
    }
}

/// A lender. It lends as long as the process lives.
#[derive(Debug)]
pub struct Lender {
    lender_id: [u8; LENDER_ID_BYTES],
    generation: u64,
    state: Arc<ShareState>,
}

impl Lender {
    /// Opens a new socket, in a generation of the program's job, and starts a thread that attends to it.
    ///
    /// # Errors
    ///
    /// Error that the system returned.
    pub fn open(generation: u64) -> io::Result<Self> {
        let lender_id = random()?;
        let listener = lender_sockets::listen(&lender_id, &generation.to_le_bytes())?;
        let lender = Self { lender_id, generation, state: Arc::default() };
        let state = Arc::clone(&lender.state);
        thread::Builder::new().name("lender".into()).spawn(move || serve_listener(&listener, &state))?;
        Ok(lender)
    }

    /// Opens the socket of an earlier worker: at once, or as soon as that has left it. Behind it is what that has lent, under
    /// the same secrets.
    ///
    /// # Errors
    ///
    /// Error that the system returned.
    pub fn open_again(
        lender_id: [u8; LENDER_ID_BYTES],
        generation: u64,
        lent: impl IntoIterator<Item = ([u8; SECRET_BYTES], Vec<LentPiece>)>,
    ) -> io::Result<Self> {
        let bytes = generation.to_le_bytes();
        let mut listener = unless_address_in_use(lender_sockets::listen(&lender_id, &bytes))?;
        let lender = Self { lender_id, generation, state: Arc::default() };
        lender.state.lock().items = lent.into_iter().map(|(secret, pieces)| (secret, Arc::new(pieces))).collect();
        let state = Arc::clone(&lender.state);
        let listen = move || {
            loop {
                match listener {
                    Some(listener) => return serve_listener(&listener, &state),
                    // A worker that its session has left ends soon.
                    None => thread::sleep(DOOR_RETRY_INTERVAL),
                }
                let Ok(next) = unless_address_in_use(lender_sockets::listen(&lender_id, &bytes)) else { return };
                listener = next;
            }
        };
        thread::Builder::new().name("lender".into()).spawn(listen)?;
        Ok(lender)
    }

    /// Id by which borrowers know the lender; the generation is not part of it.
    pub fn lender_id(&self) -> [u8; LENDER_ID_BYTES] {
        self.lender_id
    }

    /// Lends pieces in their order, under a new secret.
    ///
    /// # Errors
    ///
    /// The system has no random bytes.
    pub fn lend(&self, pieces: Vec<LentPiece>) -> io::Result<[u8; SECRET_BYTES]> {
        let secret = random()?;
        self.state.lock().items.insert(secret, Arc::new(pieces));
        Ok(secret)
    }

    /// The name to pass on of what is lent under a secret.
    pub fn name(&self, secret: &[u8; SECRET_BYTES]) -> [u8; SHARE_NAME_BYTES] {
        let mut name = [0; SHARE_NAME_BYTES];
        let parts = self
            .lender_id
            .iter()
            .chain(self.generation.to_le_bytes().as_slice())
            .chain(secret)
            .copied()
            .collect::<Vec<u8>>();
        name.copy_from_slice(&parts);
        name
    }

    /// Lends nothing under this secret any more; who has it keeps it.
    pub fn end(&self, secret: &[u8; SECRET_BYTES]) {
        self.state.lock().items.remove(secret);
    }

    /// Whether a name is one of this lender's.
    pub fn is_own(&self, name: &[u8; SHARE_NAME_BYTES]) -> bool {
        name.starts_with(&self.lender_id) && name[LENDER_ID_BYTES..].starts_with(&self.generation.to_le_bytes())
    }

    /// Hands nothing over until [`Lender::resume`]; what others hold at this moment.
    pub fn pause(&self) -> Vec<SharedHolding> {
        let mut state = self.state.lock();
        state.stands_still = true;
        let mut holders = BTreeMap::<[u8; SECRET_BYTES], u32>::new();
        // The thread that attends to one which has hung up may not have noticed yet.
        for (secret, _) in state.borrowers.values().filter(|(_, connection)| !is_over(connection)) {
            *holders.entry(*secret).or_default() += 1;
        }
        let held = |(secret, holders)| SharedHolding { secret, holders, is_lent: state.items.contains_key(&secret) };
        holders.into_iter().map(held).collect()
    }

    /// Lends again after [`Lender::pause`].
    pub fn resume(&self) {
        self.state.lock().stands_still = false;
        self.state.goes_on.notify_all();
    }
}

/// Something borrowed. The lender counts its borrowers by these.
#[derive(Debug)]
pub struct BorrowedMemory {
    /// Pieces of the memory, in the lender's order.
    pub pieces: Vec<LentPiece>,
    /// To be kept as long as the memory is used.
    pub lease: BorrowLease,
}

/// Ends with the use of what was borrowed.
#[derive(Debug)]
pub struct BorrowLease {
    /// The session that lends, and the memory or event that it lends.
    pub borrowing: Borrowing,
    _connection: UnixStream,
}

/// Borrows what a name stands for. With `may_move` its socket may be closed for a moment, since the lender's session changes
/// workers: then it is looked for again.
///
/// # Errors
///
/// The lender is gone, has taken it back, or belongs to another user.
pub fn borrow(name: &[u8; SHARE_NAME_BYTES], may_move: bool) -> io::Result<BorrowedMemory> {
    let (generation, borrowing) = parts(name);
    let (since, mut limit) = (Instant::now(), if may_move { CLOSED_DOOR_TIMEOUT } else { Duration::ZERO });
    loop {
        let connection = lender_sockets::connect(&borrowing.lender_id, &generation);
        let outcome = connection.and_then(|connection| borrow_over(connection, borrowing));
        match outcome.as_ref().map_err(io::Error::kind) {
            // The worker has ended without an answer: its session may go on in another one.
            Err(ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
                limit = LENDER_PAUSE_TIMEOUT
            }
            // So many wait to be let in that one more would have to wait for that.
            Err(ErrorKind::WouldBlock) => limit = limit.max(CLOSED_DOOR_TIMEOUT),
            Err(ErrorKind::ConnectionRefused) => {}
            _ => return outcome,
        }
        if since.elapsed() >= limit {
            return outcome;
        }
        thread::sleep(DOOR_RETRY_INTERVAL);
    }
}

fn borrow_over(mut connection: UnixStream, borrowing: Borrowing) -> io::Result<BorrowedMemory> {
    check_user(connection.as_fd())?;
    connection.set_read_timeout(Some(LENDER_PAUSE_TIMEOUT))?;
    connection.write_all(&borrowing.secret)?;
    let mut count = [0; 4];
    connection.read_exact(&mut count)?;
    connection.set_read_timeout(Some(SHARE_ANSWER_TIMEOUT))?;
    let count = match u32::from_le_bytes(count) {
        UNKNOWN_NAME => return Err(ErrorKind::NotFound.into()),
        count if count > MAX_PIECES => return Err(ErrorKind::InvalidData.into()),
        count => count,
    };
    let receive_piece = |_| {
        let mut size = [0; 8];
        let (length, mut fds) = fdpass::receive(connection.as_fd(), &mut size, RecvFlags::WAITALL)?;
        let piece = fds.pop().filter(|_| length == size.len() && fds.is_empty());
        piece.map(|piece| (piece, u64::from_le_bytes(size))).ok_or_else(|| ErrorKind::InvalidData.into())
    };
    let pieces = (0..count).map(receive_piece).collect::<io::Result<Vec<_>>>()?;
    Ok(BorrowedMemory { pieces, lease: BorrowLease { borrowing, _connection: connection } })
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let length = getrandom(&mut bytes, GetRandomFlags::empty())?;
    if length == N { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// The generation that a name leads to, and what it names there.
fn parts(name: &[u8; SHARE_NAME_BYTES]) -> ([u8; GENERATION_BYTES], Borrowing) {
    let mut borrowing = Borrowing { lender_id: [0; LENDER_ID_BYTES], secret: [0; SECRET_BYTES] };
    let mut generation = [0; GENERATION_BYTES];
    let (lender_id, tail) = name.split_at(LENDER_ID_BYTES);
    let (number, secret) = tail.split_at(GENERATION_BYTES);
    borrowing.lender_id.copy_from_slice(lender_id);
    borrowing.secret.copy_from_slice(secret);
    generation.copy_from_slice(number);
    (generation, borrowing)
}

/// None: another process has the address.
fn unless_address_in_use(bound: io::Result<UnixListener>) -> io::Result<Option<UnixListener>> {
    match bound {
        Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(None),
        bound => bound.map(Some),
    }
}

/// Refuses a peer of another user.
fn check_user(peer: BorrowedFd<'_>) -> io::Result<()> {
    let same = socket_peercred(peer)?.uid == lender_sockets::user();
    if same { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// Whether the other end has hung up.
fn is_over(connection: &UnixStream) -> bool {
    let mut ends = [PollFd::new(connection, PollFlags::empty())];
    poll(&mut ends, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

fn serve_listener(listener: &UnixListener, state: &Arc<ShareState>) {
    loop {
        let Some(connection) = next(listener) else { continue };
        // A process of another user costs no thread.
        let checked = check_user(connection.as_fd()).and_then(|()| connection.try_clone());
        let Ok(number) = checked.map(|connection| state.enter(connection)) else { continue };
        let of_thread = Arc::clone(state);
        let serve = move || {
            let _ = serve(&connection, &of_thread, number);
            of_thread.leave(number);
        };
        // Without a thread the borrower is turned away.
        if thread::Builder::new().name("borrower".into()).spawn(serve).is_err() {
            state.leave(number);
        }
    }
}

/// The next borrower. Where none can be had, for want of descriptors, it is a pause before the next is asked for.
fn next(listener: &UnixListener) -> Option<UnixStream> {
    let accepted = listener.accept();
    if accepted.is_err() {
        thread::sleep(DOOR_RETRY_INTERVAL);
    }
    accepted.ok().map(|(connection, _)| connection)
}

/// Hands over what is asked for, and stays until the borrower is done with it.
fn serve(mut connection: &UnixStream, state: &ShareState, number: u64) -> io::Result<()> {
    connection.set_read_timeout(Some(SHARE_ANSWER_TIMEOUT))?;
    let mut secret = [0; SECRET_BYTES];
    connection.read_exact(&mut secret)?;
    let Some(pieces) = state.take(secret, number) else { return connection.write_all(&UNKNOWN_NAME.to_le_bytes()) };
    hand_over(connection, &pieces)
}

fn hand_over(mut connection: &UnixStream, pieces: &[LentPiece]) -> io::Result<()> {
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

    use katydid_tests::deadline::hang::hang_limit;

    use super::*;

    fn file(text: &str) -> LentPiece {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(text.as_bytes(), 0).unwrap();
        (file.into(), text.len() as u64)
    }

    fn text_of((piece, size): &LentPiece) -> String {
        let mut bytes = vec![0; *size as usize];
        File::from(piece.try_clone().unwrap()).read_exact_at(&mut bytes, 0).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    fn borrowed_text(name: &[u8; SHARE_NAME_BYTES]) -> String {
        text_of(&borrow(name, false).unwrap().pieces[0])
    }

    fn lend_text(lender: &Lender, text: &str) -> [u8; SHARE_NAME_BYTES] {
        lender.name(&lender.lend(vec![file(text)]).unwrap())
    }

    fn secret_of(name: &[u8; SHARE_NAME_BYTES]) -> [u8; SECRET_BYTES] {
        *name.last_chunk().unwrap()
    }

    /// How many hold each secret.
    fn holder_counts(lender: &Lender) -> Vec<([u8; SECRET_BYTES], u32, bool)> {
        let held = lender.pause();
        lender.resume();
        held.into_iter().map(|held| (held.secret, held.holders, held.is_lent)).collect()
    }

    #[test]
    fn lent_files_arrive_in_order_and_are_counted_until_returned() {
        let lender = Lender::open(0).unwrap();
        let name = lender.name(&lender.lend(vec![file("first"), file("second one")]).unwrap());
        assert!(lender.is_own(&name));
        let (borrowed, again) = (borrow(&name, false).unwrap(), borrow(&name, false).unwrap());
        assert_eq!(borrowed.lease.borrowing, Borrowing { lender_id: lender.lender_id(), secret: secret_of(&name) });
        assert_eq!(holder_counts(&lender), [(secret_of(&name), 2, true)]);
        drop(again);
        lender.end(&secret_of(&name));
        assert_eq!(holder_counts(&lender), [(secret_of(&name), 1, false)]);
        assert_eq!(borrowed.pieces.iter().map(text_of).collect::<Vec<_>>(), ["first", "second one"]);
        drop(borrowed);
        assert_eq!(holder_counts(&lender), []);
    }

    #[test]
    fn other_names_and_ended_ones_lead_to_nothing() {
        let lender = Lender::open(0).unwrap();
        let (name, kept_name) = (lend_text(&lender, "text"), lend_text(&lender, "kept"));
        let mut other = name;
        other[SHARE_NAME_BYTES - 1] ^= 1;
        assert!(borrow(&other, false).is_err() && borrow(&[9; SHARE_NAME_BYTES], false).is_err());
        lender.end(&secret_of(&name));
        assert_eq!(borrow(&name, false).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(borrowed_text(&kept_name), "kept");
    }

    /// As two restores of one image beside each other, and the first run beside both.
    #[test]
    fn generations_of_a_lender_do_not_meet() {
        let first = Lender::open(1).unwrap();
        let name = lend_text(&first, "first");
        let in_generation = |number: u64| {
            let mut name = name;
            name[LENDER_ID_BYTES..LENDER_ID_BYTES + GENERATION_BYTES].copy_from_slice(&number.to_le_bytes());
            name
        };
        let restored = [2, 3].map(|number| {
            let lent = [(secret_of(&name), vec![file(&format!("restored {number}"))])];
            Lender::open_again(first.lender_id(), number, lent).unwrap()
        });
        assert!(restored.iter().all(|other| !other.is_own(&name)) && restored[0].is_own(&in_generation(2)));
        let texts = [2, 3].map(|number| borrowed_text(&in_generation(number)));
        assert_eq!(texts, ["restored 2", "restored 3"]);
        assert_eq!(borrowed_text(&name), "first");
        assert_eq!(borrow(&in_generation(4), true).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }

    #[test]
    fn unidentified_peers_use_a_bounded_number_of_threads_and_block_no_borrower() {
        let lender = Lender::open(0).unwrap();
        let name = lend_text(&lender, "text");
        let connect = || lender_sockets::connect(&lender.lender_id(), &0_u64.to_le_bytes()).unwrap();
        let silent: Vec<UnixStream> = (0..4 * MAX_UNKNOWN_BORROWERS)
            .map(|count| {
                let connection = connect();
                let came = count as u64 + 1;
                while lender.state.lock().came < came {
                    thread::sleep(Duration::from_millis(1));
                }
                connection
            })
            .collect();
        assert_eq!(lender.state.lock().unknown_peers.len(), MAX_UNKNOWN_BORROWERS);
        let gone = &silent[..3 * MAX_UNKNOWN_BORROWERS];
        assert!(gone.iter().all(|mut connection| connection.read(&mut [0]).is_ok_and(|length| length == 0)));
        assert_eq!(borrowed_text(&name), "text");
    }

    #[test]
    fn a_borrower_waits_while_the_lender_is_paused() {
        let lender = Lender::open(0).unwrap();
        let name = lend_text(&lender, "text");
        assert_eq!(lender.pause(), []);
        thread::scope(|scope| {
            let (came, comes) = std::sync::mpsc::channel();
            scope.spawn(move || came.send(borrowed_text(&name)).unwrap());
            // It cannot come, however long this waits.
            assert!(comes.recv_timeout(Duration::from_millis(50)).is_err());
            lender.state.lock().items.insert(secret_of(&name), Arc::new(vec![file("later")]));
            lender.resume();
            assert_eq!(comes.recv_timeout(hang_limit()).unwrap(), "later");
        });
    }

    /// The old worker hangs up, and the socket is closed for a while.
    #[test]
    fn a_borrower_follows_a_lender_that_changes_workers() {
        let lender = Lender { lender_id: random().unwrap(), generation: 5, state: Arc::default() };
        let name = lender.name(&[7; SECRET_BYTES]);
        let old = lender_sockets::listen(&lender.lender_id, &5_u64.to_le_bytes()).unwrap();
        let _new = Lender::open_again(lender.lender_id, 5, [([7; SECRET_BYTES], vec![file("moved")])]).unwrap();
        let borrower = thread::spawn(move || borrowed_text(&name));
        drop(old.accept().unwrap());
        drop(old);
        assert_eq!(borrower.join().unwrap(), "moved");
    }

    #[test]
    fn a_door_through_which_no_borrower_can_come_is_not_polled() {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("lender_id")).unwrap();
        // As where there are no descriptors left: it fails at once.
        listener.set_nonblocking(true).unwrap();
        let begun = Instant::now();
        assert!(next(&listener).is_none() && begun.elapsed() >= DOOR_RETRY_INTERVAL);
    }
}
