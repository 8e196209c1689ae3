//! Memory that one worker exports to another on the same machine. The exporter hands descriptors over a socket of its own.
//!
//! An exporter listens on an abstract socket, in no folder. For each export it makes a name of 32 bytes: 8 bytes are the
//! exporter's random id, and 8 are its job's generation, which changes with each restore. The other 16 are a secret that no
//! process can guess. Id and generation lead to the socket. A process of the same user that shows the name gets the descriptors;
//! so do workers of tenants, whose sockets are their server's ([`exporter_sockets`]). The connection stays as long as the
//! importer needs the descriptors, so an exporter knows whether an importer does.
//!
//! A restored exporter listens under the same id again, in the generation of the restore. Sessions restored with it find its
//! exports. They cannot mistake them for exports of another restore of the image, or of the first run.
//!
//! While an exporter's session is paused, importers wait. If the session moves to another worker, they wait for that worker.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

pub use crate::ipc::exporter_sockets::GENERATION_BYTES;
pub use katydid_wire::sharing::{EXPORTER_ID_BYTES, SECRET_BYTES};
use katydid_wire::sharing::{Import, SharedHolding};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::RecvFlags;
use rustix::net::sockopt::socket_peercred;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::ipc::exporter_sockets;
use crate::os::fdpass;

/// Bytes of a name: the exporter, the generation of its job, and which of its exports.
pub const SHARE_NAME_BYTES: usize = EXPORTER_ID_BYTES + GENERATION_BYTES + SECRET_BYTES;
/// Most pieces that one name may stand for.
const MAX_NAME_PIECES: u32 = 4096;
/// Most importers that hold something of an exporter, each with a thread. Further ones are turned away.
const MAX_IMPORTERS: usize = 1024;
/// Most connections that have shown no name yet, each with a thread. A newcomer replaces the oldest.
const MAX_UNKNOWN_IMPORTERS: usize = 64;
/// In place of the number of pieces: the exporter knows no such name.
const UNKNOWN_NAME: u32 = u32::MAX;
/// How long either side waits for the other's next bytes.
const SHARE_ANSWER_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 5 });
/// How long an importer waits for an exporter that is paused, or has hung up and may reopen its socket elsewhere.
const EXPORTER_PAUSE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long an importer retries a closed socket. It is closed while a session changes workers.
const SOCKET_REOPEN_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause between attempts to open a socket that another worker has, to find one open, or to admit an importer.
const SOCKET_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// A descriptor and the bytes behind it.
pub type ExportedPiece = (OwnedFd, u64);

#[derive(Debug, Default)]
struct ExporterState {
    items: HashMap<[u8; SECRET_BYTES], Arc<Vec<ExportedPiece>>>,
    /// Importers by their numbers: the secret that each holds, and its connection.
    importers: HashMap<u64, ([u8; SECRET_BYTES], UnixStream)>,
    /// Connections that have shown no name yet, oldest first, by numbers of the same kind.
    unknown_peers: BTreeMap<u64, UnixStream>,
    /// Connections accepted so far.
    accepted: u64,
    /// While set, nothing is handed over.
    is_paused: bool,
}

#[derive(Debug, Default)]
struct ShareState {
    inner: Mutex<ExporterState>,
    /// Notified when the exporter resumes.
    resumed: Condvar,
}

impl ShareState {
    fn lock(&self) -> MutexGuard<'_, ExporterState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection that has shown no name yet, and returns its number. A connection dropped for it sees its own end.
    fn enter(&self, connection: UnixStream) -> u64 {
        let mut state = self.lock();
        if state.unknown_peers.len() >= MAX_UNKNOWN_IMPORTERS
            && let Some((_, oldest)) = state.unknown_peers.pop_first()
        {
            let _ = oldest.shutdown(Shutdown::Both);
        }
        state.accepted += 1;
        let number = state.accepted;
        state.unknown_peers.insert(number, connection);
        number
    }

    /// Returns the export of a secret once the exporter is not paused. From here on that connection is an importer's.
    fn take(&self, secret: [u8; SECRET_BYTES], number: u64) -> Option<Arc<Vec<ExportedPiece>>> {
        // While the exporter is paused, these peers wait as well. They do not count as unknown: their names are known.
        let connection = self.lock().unknown_peers.remove(&number)?;
        let state = self.resumed.wait_while(self.lock(), |state| state.is_paused);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let pieces = state.items.get(&secret).map(Arc::clone).filter(|_| state.importers.len() < MAX_IMPORTERS)?;
        state.importers.insert(number, (secret, connection));
        Some(pieces)
    }

    /// Forgets a connection that has ended.
    fn leave(&self, number: u64) {
        let mut state = self.lock();
        state.unknown_peers.remove(&number);
        state.importers.remove(&number);
    }
}

/// An exporter. It exports for as long as the process lives.
#[derive(Debug)]
pub struct Exporter {
    exporter_id: [u8; EXPORTER_ID_BYTES],
    generation: u64,
    state: Arc<ShareState>,
}

impl Exporter {
    /// Opens a new socket, in a generation of the program's job, and starts a thread that serves it.
    ///
    /// # Errors
    ///
    /// Error that the system returned.
    pub fn open(generation: u64) -> io::Result<Self> {
        let exporter_id = random()?;
        let listener = exporter_sockets::listen(&exporter_id, &generation.to_le_bytes())?;
        let exporter = Self { exporter_id, generation, state: Arc::default() };
        let state = Arc::clone(&exporter.state);
        thread::Builder::new().name("exporter".into()).spawn(move || serve_listener(&listener, &state))?;
        Ok(exporter)
    }

    /// Opens the socket of an earlier worker: at once, or as soon as that worker has left it. Its exports keep their secrets.
    ///
    /// # Errors
    ///
    /// Error that the system returned.
    pub fn open_again(
        exporter_id: [u8; EXPORTER_ID_BYTES],
        generation: u64,
        exported: impl IntoIterator<Item = ([u8; SECRET_BYTES], Vec<ExportedPiece>)>,
    ) -> io::Result<Self> {
        let bytes = generation.to_le_bytes();
        let mut listener = unless_address_in_use(exporter_sockets::listen(&exporter_id, &bytes))?;
        let exporter = Self { exporter_id, generation, state: Arc::default() };
        exporter.state.lock().items = exported.into_iter().map(|(secret, pieces)| (secret, Arc::new(pieces))).collect();
        let state = Arc::clone(&exporter.state);
        let listen = move || {
            loop {
                match listener {
                    Some(listener) => return serve_listener(&listener, &state),
                    // A worker whose session has left it ends soon.
                    None => thread::sleep(SOCKET_RETRY_INTERVAL),
                }
                let Ok(next) = unless_address_in_use(exporter_sockets::listen(&exporter_id, &bytes)) else { return };
                listener = next;
            }
        };
        thread::Builder::new().name("exporter".into()).spawn(listen)?;
        Ok(exporter)
    }

    /// Returns the id by which importers know the exporter, without the generation.
    pub fn exporter_id(&self) -> [u8; EXPORTER_ID_BYTES] {
        self.exporter_id
    }

    /// Exports pieces in their order, under a new secret.
    ///
    /// # Errors
    ///
    /// The system has no random bytes.
    pub fn export(&self, pieces: Vec<ExportedPiece>) -> io::Result<[u8; SECRET_BYTES]> {
        let secret = random()?;
        self.state.lock().items.insert(secret, Arc::new(pieces));
        Ok(secret)
    }

    /// Returns the name of the export under a secret, to be passed on.
    pub fn name(&self, secret: &[u8; SECRET_BYTES]) -> [u8; SHARE_NAME_BYTES] {
        let mut name = [0; SHARE_NAME_BYTES];
        let parts = self
            .exporter_id
            .iter()
            .chain(self.generation.to_le_bytes().as_slice())
            .chain(secret)
            .copied()
            .collect::<Vec<u8>>();
        name.copy_from_slice(&parts);
        name
    }

    /// Withdraws the export under this secret. Importers that have it keep it.
    pub fn end(&self, secret: &[u8; SECRET_BYTES]) {
        self.state.lock().items.remove(secret);
    }

    /// Whether this exporter made a name.
    pub fn is_own(&self, name: &[u8; SHARE_NAME_BYTES]) -> bool {
        name.starts_with(&self.exporter_id) && name[EXPORTER_ID_BYTES..].starts_with(&self.generation.to_le_bytes())
    }

    /// Hands nothing over until [`Exporter::resume`]. Returns what importers hold at this moment.
    pub fn pause(&self) -> Vec<SharedHolding> {
        let mut state = self.state.lock();
        state.is_paused = true;
        let mut holders = BTreeMap::<[u8; SECRET_BYTES], u32>::new();
        // The thread that serves an importer may not have noticed yet that it hung up.
        for (secret, _) in state.importers.values().filter(|(_, connection)| !is_over(connection)) {
            *holders.entry(*secret).or_default() += 1;
        }
        let held =
            |(secret, holders)| SharedHolding { secret, holders, is_exported: state.items.contains_key(&secret) };
        holders.into_iter().map(held).collect()
    }

    /// Exports again after [`Exporter::pause`].
    pub fn resume(&self) {
        self.state.lock().is_paused = false;
        self.state.resumed.notify_all();
    }
}

/// An import. The exporter counts its importers by these.
#[derive(Debug)]
pub struct ImportedMemory {
    /// Pieces of the memory, in the exporter's order.
    pub pieces: Vec<ExportedPiece>,
    /// Must be kept as long as the memory is used.
    pub lease: ImportLease,
}

/// Ends when the import is no longer used.
#[derive(Debug)]
pub struct ImportLease {
    /// The session that exports, and the memory or event that it exports.
    pub import: Import,
    _connection: UnixStream,
}

/// Imports what a name stands for. With `may_move` a closed socket is retried: it is closed for a moment while the exporter's
/// session changes workers.
///
/// # Errors
///
/// The exporter is gone, has withdrawn the export, or belongs to another user.
pub fn import(name: &[u8; SHARE_NAME_BYTES], may_move: bool) -> io::Result<ImportedMemory> {
    let (generation, import) = parts(name);
    let (since, mut limit) = (Instant::now(), if may_move { SOCKET_REOPEN_TIMEOUT } else { Duration::ZERO });
    loop {
        let connection = exporter_sockets::connect(&import.exporter_id, &generation);
        let outcome = connection.and_then(|connection| import_over(connection, import));
        match outcome.as_ref().map_err(io::Error::kind) {
            // The worker ended without an answer: its session may continue in another one.
            Err(ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
                limit = EXPORTER_PAUSE_TIMEOUT
            }
            // The exporter's queue of connections is full.
            Err(ErrorKind::WouldBlock) => limit = limit.max(SOCKET_REOPEN_TIMEOUT),
            Err(ErrorKind::ConnectionRefused) => {}
            _ => return outcome,
        }
        if since.elapsed() >= limit {
            return outcome;
        }
        thread::sleep(SOCKET_RETRY_INTERVAL);
    }
}

fn import_over(mut connection: UnixStream, import: Import) -> io::Result<ImportedMemory> {
    check_user(connection.as_fd())?;
    connection.set_read_timeout(Some(EXPORTER_PAUSE_TIMEOUT))?;
    connection.write_all(&import.secret)?;
    let mut count = [0; 4];
    connection.read_exact(&mut count)?;
    connection.set_read_timeout(Some(SHARE_ANSWER_TIMEOUT))?;
    let count = match u32::from_le_bytes(count) {
        UNKNOWN_NAME => return Err(ErrorKind::NotFound.into()),
        count if count > MAX_NAME_PIECES => return Err(ErrorKind::InvalidData.into()),
        count => count,
    };
    let receive_piece = |_| {
        let mut size = [0; 8];
        let (length, mut fds) = fdpass::receive(connection.as_fd(), &mut size, RecvFlags::WAITALL)?;
        let piece = fds.pop().filter(|_| length == size.len() && fds.is_empty());
        piece.map(|piece| (piece, u64::from_le_bytes(size))).ok_or_else(|| ErrorKind::InvalidData.into())
    };
    let pieces = (0..count).map(receive_piece).collect::<io::Result<Vec<_>>>()?;
    Ok(ImportedMemory { pieces, lease: ImportLease { import, _connection: connection } })
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let length = getrandom(&mut bytes, GetRandomFlags::empty())?;
    if length == N { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Splits a name into its generation, and the import that it names there.
fn parts(name: &[u8; SHARE_NAME_BYTES]) -> ([u8; GENERATION_BYTES], Import) {
    let mut import = Import { exporter_id: [0; EXPORTER_ID_BYTES], secret: [0; SECRET_BYTES] };
    let mut generation = [0; GENERATION_BYTES];
    let (exporter_id, tail) = name.split_at(EXPORTER_ID_BYTES);
    let (number, secret) = tail.split_at(GENERATION_BYTES);
    import.exporter_id.copy_from_slice(exporter_id);
    import.secret.copy_from_slice(secret);
    generation.copy_from_slice(number);
    (generation, import)
}

/// Returns none if another process has the address.
fn unless_address_in_use(bound: io::Result<UnixListener>) -> io::Result<Option<UnixListener>> {
    match bound {
        Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(None),
        bound => bound.map(Some),
    }
}

/// Refuses a peer of another user.
fn check_user(peer: BorrowedFd<'_>) -> io::Result<()> {
    let same = socket_peercred(peer)?.uid == exporter_sockets::user();
    if same { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// Returns whether the other end has hung up.
fn is_over(connection: &UnixStream) -> bool {
    let mut ends = [PollFd::new(connection, PollFlags::empty())];
    poll(&mut ends, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

fn serve_listener(listener: &UnixListener, state: &Arc<ShareState>) {
    loop {
        let Some(connection) = next(listener) else { continue };
        // A process of another user takes no thread.
        let checked = check_user(connection.as_fd()).and_then(|()| connection.try_clone());
        let Ok(number) = checked.map(|connection| state.enter(connection)) else { continue };
        let of_thread = Arc::clone(state);
        let serve = move || {
            let _ = serve(&connection, &of_thread, number);
            of_thread.leave(number);
        };
        // Without a thread the importer is turned away.
        if thread::Builder::new().name("importer".into()).spawn(serve).is_err() {
            state.leave(number);
        }
    }
}

/// Accepts the next importer. If accepting fails, for want of descriptors, pauses before the next attempt.
fn next(listener: &UnixListener) -> Option<UnixStream> {
    let accepted = listener.accept();
    if accepted.is_err() {
        thread::sleep(SOCKET_RETRY_INTERVAL);
    }
    accepted.ok().map(|(connection, _)| connection)
}

/// Hands over what an importer asks for, and stays until the importer is done with it.
fn serve(mut connection: &UnixStream, state: &ShareState, number: u64) -> io::Result<()> {
    connection.set_read_timeout(Some(SHARE_ANSWER_TIMEOUT))?;
    let mut secret = [0; SECRET_BYTES];
    connection.read_exact(&mut secret)?;
    let Some(pieces) = state.take(secret, number) else { return connection.write_all(&UNKNOWN_NAME.to_le_bytes()) };
    hand_over(connection, &pieces)
}

fn hand_over(mut connection: &UnixStream, pieces: &[ExportedPiece]) -> io::Result<()> {
    connection.write_all(&(pieces.len() as u32).to_le_bytes())?;
    for (piece, size) in pieces {
        fdpass::send(connection.as_fd(), &[IoSlice::new(&size.to_le_bytes())], &[piece.as_fd()])?;
    }
    connection.set_read_timeout(None)?;
    // The importer sends nothing more: the read ends when the importer does.
    connection.read(&mut [0]).map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use katydid_tests::deadline::hang::hang_limit;

    use super::*;

    fn file(text: &str) -> ExportedPiece {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(text.as_bytes(), 0).unwrap();
        (file.into(), text.len() as u64)
    }

    fn text_of((piece, size): &ExportedPiece) -> String {
        let mut bytes = vec![0; *size as usize];
        File::from(piece.try_clone().unwrap()).read_exact_at(&mut bytes, 0).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    fn imported_text(name: &[u8; SHARE_NAME_BYTES]) -> String {
        text_of(&import(name, false).unwrap().pieces[0])
    }

    fn export_text(exporter: &Exporter, text: &str) -> [u8; SHARE_NAME_BYTES] {
        exporter.name(&exporter.export(vec![file(text)]).unwrap())
    }

    fn secret_of(name: &[u8; SHARE_NAME_BYTES]) -> [u8; SECRET_BYTES] {
        *name.last_chunk().unwrap()
    }

    /// How many hold each secret.
    fn holder_counts(exporter: &Exporter) -> Vec<([u8; SECRET_BYTES], u32, bool)> {
        let held = exporter.pause();
        exporter.resume();
        held.into_iter().map(|held| (held.secret, held.holders, held.is_exported)).collect()
    }

    #[test]
    fn exported_files_arrive_in_order_and_are_counted_until_returned() {
        let exporter = Exporter::open(0).unwrap();
        let name = exporter.name(&exporter.export(vec![file("first"), file("second one")]).unwrap());
        assert!(exporter.is_own(&name));
        let (imported, again) = (import(&name, false).unwrap(), import(&name, false).unwrap());
        assert_eq!(imported.lease.import, Import { exporter_id: exporter.exporter_id(), secret: secret_of(&name) });
        assert_eq!(holder_counts(&exporter), [(secret_of(&name), 2, true)]);
        drop(again);
        exporter.end(&secret_of(&name));
        assert_eq!(holder_counts(&exporter), [(secret_of(&name), 1, false)]);
        assert_eq!(imported.pieces.iter().map(text_of).collect::<Vec<_>>(), ["first", "second one"]);
        drop(imported);
        assert_eq!(holder_counts(&exporter), []);
    }

    #[test]
    fn other_names_and_ended_ones_lead_to_nothing() {
        let exporter = Exporter::open(0).unwrap();
        let (name, kept_name) = (export_text(&exporter, "text"), export_text(&exporter, "kept"));
        let mut other = name;
        other[SHARE_NAME_BYTES - 1] ^= 1;
        assert!(import(&other, false).is_err() && import(&[9; SHARE_NAME_BYTES], false).is_err());
        exporter.end(&secret_of(&name));
        assert_eq!(import(&name, false).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(imported_text(&kept_name), "kept");
    }

    /// As two restores of one image beside each other, and the first run beside both.
    #[test]
    fn generations_of_a_exporter_do_not_meet() {
        let first = Exporter::open(1).unwrap();
        let name = export_text(&first, "first");
        let in_generation = |number: u64| {
            let mut name = name;
            name[EXPORTER_ID_BYTES..EXPORTER_ID_BYTES + GENERATION_BYTES].copy_from_slice(&number.to_le_bytes());
            name
        };
        let restored = [2, 3].map(|number| {
            let exported = [(secret_of(&name), vec![file(&format!("restored {number}"))])];
            Exporter::open_again(first.exporter_id(), number, exported).unwrap()
        });
        assert!(restored.iter().all(|other| !other.is_own(&name)) && restored[0].is_own(&in_generation(2)));
        let texts = [2, 3].map(|number| imported_text(&in_generation(number)));
        assert_eq!(texts, ["restored 2", "restored 3"]);
        assert_eq!(imported_text(&name), "first");
        assert_eq!(import(&in_generation(4), true).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }

    #[test]
    fn unidentified_peers_use_a_bounded_number_of_threads_and_block_no_importer() {
        let exporter = Exporter::open(0).unwrap();
        let name = export_text(&exporter, "text");
        let connect = || exporter_sockets::connect(&exporter.exporter_id(), &0_u64.to_le_bytes()).unwrap();
        let silent: Vec<UnixStream> = (0..4 * MAX_UNKNOWN_IMPORTERS)
            .map(|count| {
                let connection = connect();
                let came = count as u64 + 1;
                while exporter.state.lock().accepted < came {
                    thread::sleep(Duration::from_millis(1));
                }
                connection
            })
            .collect();
        assert_eq!(exporter.state.lock().unknown_peers.len(), MAX_UNKNOWN_IMPORTERS);
        let gone = &silent[..3 * MAX_UNKNOWN_IMPORTERS];
        assert!(gone.iter().all(|mut connection| connection.read(&mut [0]).is_ok_and(|length| length == 0)));
        assert_eq!(imported_text(&name), "text");
    }

    #[test]
    fn a_importer_waits_while_the_exporter_is_paused() {
        let exporter = Exporter::open(0).unwrap();
        let name = export_text(&exporter, "text");
        assert_eq!(exporter.pause(), []);
        thread::scope(|scope| {
            let (came, comes) = std::sync::mpsc::channel();
            scope.spawn(move || came.send(imported_text(&name)).unwrap());
            // It cannot come, however long this waits.
            assert!(comes.recv_timeout(Duration::from_millis(50)).is_err());
            exporter.state.lock().items.insert(secret_of(&name), Arc::new(vec![file("later")]));
            exporter.resume();
            assert_eq!(comes.recv_timeout(hang_limit()).unwrap(), "later");
        });
    }

    /// The old worker hangs up, and the socket is closed for a while.
    #[test]
    fn a_importer_follows_a_exporter_that_changes_workers() {
        let exporter = Exporter { exporter_id: random().unwrap(), generation: 5, state: Arc::default() };
        let name = exporter.name(&[7; SECRET_BYTES]);
        let old = exporter_sockets::listen(&exporter.exporter_id, &5_u64.to_le_bytes()).unwrap();
        let _new = Exporter::open_again(exporter.exporter_id, 5, [([7; SECRET_BYTES], vec![file("moved")])]).unwrap();
        let importer = thread::spawn(move || imported_text(&name));
        drop(old.accept().unwrap());
        drop(old);
        assert_eq!(importer.join().unwrap(), "moved");
    }

    #[test]
    fn a_socket_that_cannot_accept_is_not_polled() {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("exporter_id")).unwrap();
        // As where there are no descriptors left: it fails at once.
        listener.set_nonblocking(true).unwrap();
        let start = Instant::now();
        assert!(next(&listener).is_none() && start.elapsed() >= SOCKET_RETRY_INTERVAL);
    }
}
