//! The job thread of a program under a supervisor that the test plays, over a real link.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on panics")]

use std::fs::File;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use katydid_client::job::{JobMembership, JobThread};
use katydid_client::session::Session;
use katydid_client::session::api_code::ApiCode;
use katydid_cuda_sys::CUresult;
use katydid_tests::deadline::hang::hang_limit;
use katydid_transport::connect;
use katydid_transport::{Address, ControlChannel, LinkControl, LinkEvent, OutgoingReply, Pending};
use katydid_wire::frame::Output;
use katydid_wire::handshake::{Build, Hello, LINK_TIMEOUT_SECONDS, LinkKind, Ready, SessionClaim, SessionKind};
use katydid_wire::job::{FromProgram, MAX_JOB_MESSAGE_BYTES, ToProgram};
use katydid_wire::key::SessionKey;
use katydid_wire::message::{cuCtxSynchronize, kdCopyIn};
use rustix::fs::{FlockOperation, flock};
use rustix::net::{Shutdown, shutdown};
use tempfile::TempDir;

const KEY: SessionKey = SessionKey([7; 16]);
const NOTHING: kdCopyIn<'_> = kdCopyIn { destination: 0, stream: 0, data: &[] };

/// A program in a session, its worker, and the socket where its supervisor listens.
struct Fixture {
    folder: TempDir,
    session: &'static Session<CUresult>,
    server: UnixListener,
    link_control: LinkControl,
    /// Frames that the worker has taken.
    frames: Mutex<Receiver<u64>>,
    listener: Option<UnixListener>,
    /// The supervisor's sign of life.
    lock: Option<File>,
}

fn build() -> Build {
    Build::current([1; 32])
}

fn ready() -> Ready {
    Ready { worker_pid: 1, key: KEY, driver: "none".into(), arenas: vec![] }
}

impl Fixture {
    fn new(kind: LinkKind, stops: Vec<u64>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server");
        let server = UnixListener::bind(&path).unwrap();
        let address = Address::Unix(path);
        let hello = Hello {
            session: SessionKind::CUDA,
            claim: SessionClaim::NEW,
            link: kind,
            pid: 1,
            memory_limit: None,
            program: "test".into(),
            name: String::new(),
            arenas: vec![],
            link_timeout: LINK_TIMEOUT_SECONDS,
            reservation: SessionKey::NONE,
        };
        let (connection, worker) = thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let pending = Pending::accept(server.accept().unwrap().0.into(), &build(), hang_limit()).unwrap();
                pending.open(&build(), &ready(), 0).unwrap()
            });
            (connect(&address, &hello, &build(), hang_limit()).unwrap(), worker.join().unwrap())
        });
        let link_control = worker.link_control().unwrap();
        let (sender, frames) = channel();
        thread::spawn(move || work(worker, &sender));
        let session: &'static Session<CUresult> = Box::leak(Box::new(Session::new(connection.link, |_, _| (), || ())));
        let listener = Some(UnixListener::bind(folder.path().join("job")).unwrap());
        let lock = Some(File::create(folder.path().join("lock")).unwrap());
        flock(lock.as_ref().unwrap(), FlockOperation::NonBlockingLockExclusive).unwrap();
        let job_thread =
            JobThread::new(session, JobMembership::new(folder.path().join("job"), stops), &address, kind).unwrap();
        thread::spawn(move || job_thread.run());
        Self { folder, session, server, link_control, frames: Mutex::new(frames), listener, lock }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("job")
    }

    /// Waits for the program's next connection. Returns it, and state and frames of its first message.
    fn member(&self) -> (Supervisor, u32, u64) {
        let socket = self.listener.as_ref().unwrap().accept().unwrap().0;
        let supervisor = Supervisor(ControlChannel::new(socket.into(), MAX_JOB_MESSAGE_BYTES).unwrap());
        match supervisor.receive() {
            FromProgram::Member { state, frames, key, .. } if key.matches(&KEY) => (supervisor, state, frames),
            other => panic!("{other:?}"),
        }
    }

    /// Resumes the program.
    fn take_back(&self) {
        let pending = Pending::accept(self.server.accept().unwrap().0.into(), &build(), hang_limit()).unwrap();
        self.link_control.attach(pending, &build(), &ready()).unwrap();
    }

    fn enqueue(&self) {
        self.session.enqueue(0, &NOTHING).unwrap();
    }
}

/// Takes frames, and answers those that want a reply, until the program closes.
fn work(mut link: Box<dyn katydid_transport::WorkerLink>, sender: &Sender<u64>) {
    let replier = link.replier();
    while let Ok(LinkEvent::Frame(frame)) = link.next() {
        let (thread, sequence) = (frame.head.thread, frame.head.sequence);
        if frame.head.wants_reply {
            let answer = OutgoingReply {
                thread,
                sequence,
                status: 0,
                deferred: 0,
                payload: &[],
                tail: &[],
                output: Output::default(),
            };
            replier.reply(&answer).unwrap();
        } else if sender.send(sequence).is_err() {
            return;
        }
    }
}

/// The supervisor's end.
struct Supervisor(ControlChannel);

impl Supervisor {
    fn receive(&self) -> FromProgram {
        FromProgram::decode(&self.0.receive(hang_limit()).unwrap().bytes).unwrap()
    }

    fn send(&self, order: &ToProgram) {
        self.0.send(&order.encode().unwrap(), &[]).unwrap();
    }

    fn order(&self, order: &ToProgram) -> FromProgram {
        self.send(order);
        self.receive()
    }
}

fn resume(fixture: &Fixture) -> ToProgram {
    ToProgram::Resume { address: format!("unix:{}", fixture.folder.path().join("server").display()), key: KEY }
}

const KINDS: [LinkKind; 2] = [LinkKind::SHM, LinkKind::STREAM];

#[test]
fn a_program_is_held_leaves_and_is_resumed() {
    for kind in KINDS {
        let fixture = Fixture::new(kind, vec![]);
        fixture.enqueue();
        let (supervisor, state, _) = fixture.member();
        assert_eq!(state, 0);
        // An order that is invalid now is refused, and changes nothing.
        assert!(matches!(supervisor.order(&ToProgram::Leave {}), FromProgram::Failed { .. }));
        assert!(matches!(supervisor.order(&resume(&fixture)), FromProgram::Failed { .. }));
        assert_eq!(supervisor.order(&ToProgram::Hold {}), FromProgram::Held { frames: 1 });
        let late = thread::spawn({
            let session = fixture.session;
            move || session.enqueue(0, &NOTHING)
        });
        fixture.link_control.detach();
        assert_eq!(supervisor.order(&ToProgram::Leave {}), FromProgram::Left { frames: 1 });
        drop(supervisor);
        let (supervisor, state, frames) = fixture.member();
        assert_eq!((state, frames), (1, 1));
        assert!(matches!(supervisor.order(&ToProgram::Hold {}), FromProgram::Failed { .. }));
        assert!(!late.is_finished());
        thread::scope(|scope| {
            scope.spawn(|| fixture.take_back());
            assert_eq!(supervisor.order(&resume(&fixture)), FromProgram::Resumed {});
        });
        late.join().unwrap().unwrap();
        fixture.session.call(0, &cuCtxSynchronize {}).unwrap();
        assert_eq!([(); 2].map(|()| fixture.frames.lock().unwrap().recv().unwrap()), [0, 1]);
        assert_eq!(supervisor.order(&ToProgram::Hold {}), FromProgram::Held { frames: 3 });
        assert_eq!(supervisor.order(&ToProgram::Release {}), FromProgram::Released {});
        fixture.enqueue();
    }
}

#[test]
fn a_program_that_is_held_goes_on_when_its_supervisor_ends() {
    for kind in KINDS {
        let fixture = Fixture::new(kind, vec![]);
        let (supervisor, _, _) = fixture.member();
        assert_eq!(supervisor.order(&ToProgram::Hold {}), FromProgram::Held { frames: 0 });
        let late = thread::spawn({
            let session = fixture.session;
            move || session.enqueue(0, &NOTHING)
        });
        drop(supervisor);
        late.join().unwrap().unwrap();
        // Another supervisor finds the program unchanged.
        assert_eq!(fixture.member().1, 0);
    }
}

#[test]
fn a_program_that_is_away_waits_for_a_supervisor_as_long_as_one_may_come() {
    for kind in KINDS {
        let mut fixture = Fixture::new(kind, vec![]);
        let (supervisor, _, _) = fixture.member();
        supervisor.order(&ToProgram::Hold {});
        fixture.link_control.detach();
        supervisor.order(&ToProgram::Leave {});
        // No supervisor listens, but the lock shows that one will.
        std::fs::remove_file(fixture.path()).unwrap();
        (fixture.listener, _) = (None, supervisor);
        let waiting = thread::spawn({
            let session = fixture.session;
            move || session.enqueue(0, &NOTHING)
        });
        thread::sleep(Duration::from_millis(1200));
        assert!(!waiting.is_finished());
        fixture.lock = None;
        assert_eq!(waiting.join().unwrap(), Err(CUresult::WORKER_LOST), "{kind:?}");
        assert!(fixture.session.is_lost());
    }
}

#[test]
fn a_program_that_lost_its_worker_waits_for_the_supervisors_word() {
    for kind in KINDS {
        let fixture = Fixture::new(kind, vec![]);
        let (supervisor, _, _) = fixture.member();
        // The order is answered after the link was told to wait for another worker.
        supervisor.order(&ToProgram::Release {});
        shutdown(&*fixture.link_control.socket().unwrap(), Shutdown::Both).unwrap();
        assert_eq!(supervisor.receive(), FromProgram::Lost { frames: 0 });
        let waiting = thread::spawn({
            let session = fixture.session;
            move || session.call(0, &cuCtxSynchronize {})
        });
        supervisor.send(&ToProgram::GiveUp { text: "there is no image".into() });
        assert_eq!(waiting.join().unwrap().map(drop), Err(CUresult::WORKER_LOST), "{kind:?}");
    }
}

#[test]
fn a_program_stops_at_the_frames_that_were_named() {
    for kind in KINDS {
        let fixture = Fixture::new(kind, vec![2, 5]);
        let program = thread::spawn({
            let session = fixture.session;
            move || (0..7).try_for_each(|_| session.enqueue(0, &NOTHING))
        });
        let (supervisor, _, _) = fixture.member();
        for stop in [2, 5] {
            assert_eq!(supervisor.receive(), FromProgram::Reached { frames: stop });
            assert_eq!(supervisor.order(&ToProgram::Hold {}), FromProgram::Held { frames: stop });
            assert!(!program.is_finished());
            assert_eq!(supervisor.order(&ToProgram::Release {}), FromProgram::Released {});
        }
        program.join().unwrap().unwrap();
    }
}
