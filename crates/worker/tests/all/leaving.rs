//! A held program whose session comes to rest leaves its worker and comes back to it. This runs over every link, with a worker
//! process and softcuda, while its threads are busy.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use crate::support::{KEY, Program, Way, on_every_way};
use katydid_tests::deadline::hang::hang_limit;
use katydid_transport::{ConnectError, ControlChannel, ProgramLink, bypass_gate, companion};
use katydid_wire::codec::{Message, Reply};
use katydid_wire::companion::{FromWorker, ToWorker};
use katydid_wire::handshake::{HandshakeError, RefusalCode};
use katydid_wire::message::{
    cuStreamCreate, cuStreamSynchronize, kdCopyIn, kdCopyOut, kdDeviceGrow, kdFacts, kdFill, kdHostFunction,
    kdUpcallNext,
};

const GRANULE_BYTES: u64 = 2 << 20;
const LEAVE_ROUND_COUNT: u32 = 50;

/// A link that several threads use.
#[derive(Clone, Copy)]
struct Caller<'a>(&'a dyn ProgramLink);

impl Caller<'_> {
    fn enqueue<M: Message>(self, message: &M) {
        let mut fields = Vec::new();
        message.encode(&mut fields);
        self.0.enqueue(M::OPCODE, 1, &[&fields, message.tail()]).unwrap();
    }

    fn call<M: Message>(self, message: &M) -> M::Reply {
        let (mut fields, mut reply) = (Vec::new(), Vec::new());
        message.encode(&mut fields);
        let head = self.0.call(M::OPCODE, 1, &[&fields, message.tail()], &mut reply).unwrap();
        assert_eq!((head.status, head.deferred), (0, 0), "{}", M::NAME);
        M::Reply::decode(head.split(&reply).unwrap().0).unwrap()
    }
}

/// A supervisor of one session.
struct Supervisor<'a> {
    program: &'a Program,
    channel: ControlChannel,
}

impl<'a> Supervisor<'a> {
    fn new(program: &'a Program) -> Self {
        let (channel, ready) = companion(&program.address, KEY, hang_limit()).unwrap();
        assert!(ready.key.matches(&KEY));
        Self { program, channel }
    }

    fn order(&self, order: &ToWorker) -> FromWorker {
        self.channel.send(&order.encode().unwrap(), &[]).unwrap();
        FromWorker::decode(&self.channel.receive(hang_limit()).unwrap().bytes).unwrap()
    }

    /// Brings the session to rest. Returns the number of frames at that point.
    fn pause(&self) -> u64 {
        let frames = self.program.link.quiesce_gate().unwrap().hold();
        match self.order(&ToWorker::Pause { frames, timeout_ms: 30_000 }) {
            FromWorker::Paused { frames: executed } => executed,
            other => panic!("{other:?}"),
        }
    }

    fn go_on(&self) {
        assert_eq!(self.order(&ToWorker::Resume {}), FromWorker::Resumed {});
    }

    /// Runs all steps: hold, rest, leave, come back.
    fn round(&self) {
        let gate = self.program.link.quiesce_gate().unwrap();
        let executed = self.pause();
        assert_eq!(self.order(&ToWorker::Detach {}), FromWorker::Detached {});
        assert_eq!(gate.detach().unwrap(), executed);
        self.go_on();
        gate.resume(&self.program.address, KEY, hang_limit()).unwrap();
        let message = FromWorker::decode(&self.channel.receive(hang_limit()).unwrap().bytes).unwrap();
        assert_eq!(message, FromWorker::Attached {});
        gate.release();
    }
}

/// Copies, fills and reads back until it is over.
fn copies(caller: Caller<'_>, address: u64, over: &AtomicBool) -> u32 {
    let mut rounds = 0_u32;
    // Once at least: all rounds of the supervisor may be over before this thread first runs.
    while rounds == 0 || !over.load(Ordering::Relaxed) {
        let data: Vec<u8> = (0..1000_u32).map(|at| (at + rounds) as u8).collect();
        caller.enqueue(&kdCopyIn { destination: address, stream: 0, data: &data });
        caller.enqueue(&kdFill {
            destination: address + 500,
            pitch: 0,
            value: 7,
            elementSize: 1,
            width: 100,
            height: 1,
            stream: 0,
        });
        let read = caller.call(&kdCopyOut { source: address, size: 1000, stream: 0 }).data;
        assert_eq!((&read[..500], &read[500..600], &read[600..]), (&data[..500], &[7; 100][..], &data[600..]));
        rounds += 1;
    }
    rounds
}

/// Host functions in a stream of its own, each awaited.
fn functions(caller: Caller<'_>, ran: &AtomicU32, sent: &Barrier, over: &AtomicBool) -> u32 {
    caller.enqueue(&cuStreamCreate { phStream: 3, Flags: 1 });
    let mut rounds = 0;
    // Once at least: a thread that waits for the first function would wait for ever.
    while rounds == 0 || !over.load(Ordering::Relaxed) {
        rounds += 1;
        caller.enqueue(&kdHostFunction { stream: 3, token: rounds.into() });
        if rounds == 1 {
            sent.wait();
        }
        caller.call(&cuStreamSynchronize { hStream: 3 });
        assert_eq!(ran.load(Ordering::Relaxed), rounds);
    }
    rounds
}

/// The token that ends the thread of host functions.
const LAST_TOKEN: u64 = 1 << 40;

/// Runs host functions as a shim does.
fn upcalls(caller: Caller<'_>, ran: &AtomicU32, sent: &Barrier) {
    sent.wait();
    bypass_gate();
    let mut done = 0;
    loop {
        let next = caller.call(&kdUpcallNext { done });
        if next.token == LAST_TOKEN {
            return;
        }
        ran.store(next.token as u32, Ordering::Relaxed);
        done = next.token;
    }
}

on_every_way! {
    fn threads_do_not_notice_that_their_program_leaves_and_comes_back(program: Program) {
        let address = program.arenas.map.device(0).unwrap().start;
        let caller = Caller(&*program.link);
        caller.call(&kdDeviceGrow { device: 0, address, size: GRANULE_BYTES });
        let (over, ran, sent) = (AtomicBool::new(false), AtomicU32::new(0), Barrier::new(2));
        thread::scope(|scope| {
            let copies: Vec<_> = (0..3)
                .map(|number| scope.spawn({ let over = &over; move || copies(caller, address + number * 4096, over) }))
                .collect();
            let functions = scope.spawn(|| functions(caller, &ran, &sent, &over));
            scope.spawn(|| upcalls(caller, &ran, &sent));
            let supervisor = Supervisor::new(&program);
            (0..LEAVE_ROUND_COUNT).for_each(|_| supervisor.round());
            over.store(true, Ordering::Relaxed);
            assert!(copies.into_iter().all(|thread| thread.join().unwrap() > 0));
            assert!(functions.join().unwrap() > 0);
            caller.enqueue(&kdHostFunction { stream: 0, token: LAST_TOKEN });
        });
    }

    fn a_pause_is_over_when_the_companion_goes(program: Program) {
        let address = program.arenas.map.device(0).unwrap().start;
        let caller = Caller(&*program.link);
        caller.call(&kdDeviceGrow { device: 0, address, size: GRANULE_BYTES });
        let supervisor = Supervisor::new(&program);
        supervisor.pause();
        // A second companion at the same time would make two of one checkpoint.
        let refused = companion(&program.address, KEY, hang_limit()).unwrap_err();
        assert!(refused.to_string().contains("has a companion already"), "{refused}");
        let is_in_use = |source: &HandshakeError| {
            matches!(source, HandshakeError::Refused(refused) if refused.code == RefusalCode::IN_USE)
        };
        assert!(matches!(&refused, ConnectError::Handshake { source, .. } if is_in_use(source)), "not full: {refused}");
        drop(supervisor);
        program.link.quiesce_gate().unwrap().release();
        let data = caller.call(&kdCopyOut { source: address, size: 10, stream: 0 }).data;
        assert_eq!(data.len(), 10);
    }

    fn a_stream_that_does_not_end_is_named_and_everything_goes_on(program: Program) {
        let caller = Caller(&*program.link);
        caller.enqueue(&cuStreamCreate { phStream: 5, Flags: 1 });
        caller.enqueue(&kdHostFunction { stream: 5, token: 9 });
        // Both have been executed when this one is answered: only the stream does not finish.
        caller.call(&kdFacts {});
        let supervisor = Supervisor::new(&program);
        let frames = program.link.quiesce_gate().unwrap().hold();
        let refused = supervisor.order(&ToWorker::Pause { frames, timeout_ms: 50 });
        let FromWorker::Failed { text } = refused else { panic!("{refused:?}") };
        assert!(text.contains("stream 5 of context 1 did not finish"), "{text}");
        // Nor may the program leave a session that is not paused.
        assert!(matches!(supervisor.order(&ToWorker::Detach {}), FromWorker::Failed { .. }));
        let late = supervisor.order(&ToWorker::Pause { frames: frames + 1000, timeout_ms: 50 });
        let FromWorker::Failed { text } = late else { panic!("{late:?}") };
        assert!(text.contains("frames were executed in time"), "{text}");
        program.link.quiesce_gate().unwrap().release();
        assert_eq!(caller.call(&kdUpcallNext { done: 0 }).token, 9);
    }
}

#[test]
fn a_detached_session_ends_with_its_companion() {
    let mut program = Program::start(Way::Shm);
    let supervisor = Supervisor::new(&program);
    supervisor.pause();
    assert_eq!(supervisor.order(&ToWorker::Detach {}), FromWorker::Detached {});
    program.link.quiesce_gate().unwrap().detach().unwrap();
    drop(supervisor);
    assert!(program.worker.wait().unwrap().success());
}
