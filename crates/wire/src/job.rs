//! The job protocol: the messages between a supervisor and the shim of each program of its job, over the job socket.
//!
//! ```text
//! program's shim                         supervisor
//!   ├── Member ──────────────────────────▶│  first on every connection
//!   │◀───────────────────────────── Hold ─┤
//!   ├── Held ────────────────────────────▶│  no frame leaves the program any more, but for upcalls that run
//!   │        (the worker is paused, asked over the companion connection)
//!   │◀──────────────────────────── Leave ─┤
//!   ├── Left, then closes ───────────────▶│  the shim has no open socket in the program: CRIU may dump it
//!   ├── Member ──────────────────────────▶│  every 2 ms it tries to connect again, here or where it was restored
//!   │◀─────────────────────────── Resume ─┤  with the address and key of a worker that knows the session
//!   ├── Resumed ─────────────────────────▶│  frames flow again
//! ```
//!
//! A process that may open the job socket can also request that one process of the job is locked, checkpointed, restored or
//! unlocked, as `cuCheckpointProcess*` does ([`FromProgram::Ask`]):
//!
//! ```text
//! asker                                  supervisor                     the process's shim
//!   ├── Ask ─────────────────────────────▶│  Hold, Leave, Rejoin, Release ──▶│
//!   │◀───────────────────────────── Answer ─┤  the asker hangs up
//! ```
//!
//! Messages travel in envelopes ([`crate::envelope`]) over a unix socket that only the job's user can reach. After
//! [`FromProgram::Failed`] everything is as before the order that it answers, and the supervisor may send another one.

use crate::codec::{Field as _, Reader};
use crate::envelope::{self, EnvelopeError, messages};
use crate::key::SessionKey;

/// Version of this protocol; [`FromProgram::Member`] names the program's.
pub const JOB_PROTOCOL_VERSION: u32 = 2;
/// Largest message in bytes.
pub const MAX_JOB_MESSAGE_BYTES: usize = 64 << 10;
/// The environment variable that names the job socket to the shims of a job.
pub const JOB_VARIABLE: &str = "KATYDID_JOB";
/// The environment variable of tests with the frames before which the program holds itself for a checkpoint, ascending, counted
/// from 1. While it is set, the supervisor leaves it to the test to ask for the checkpoint.
pub const HOLD_FRAMES_VARIABLE: &str = "KATYDID_CHECKPOINT_AT";
/// The file beside the job socket with the generations of the job, as hexadecimal numbers, one a line, the current one first.
pub const GENERATIONS_FILE: &str = "generations";
/// The extension of the job socket while it is hidden, because the job's processes are being dumped.
pub const HIDDEN_EXTENSION: &str = "hidden";

/// Name of the memory file that a process with a session has mapped, as a mark for its job's supervisor.
pub const SESSION_MARK: &str = "katydid-session";

/// Requests about a process: the numbers of [`FromProgram::Ask`].
pub mod ask {
    /// Get the state of the process, one of [`state`](super::state).
    pub const STATE: u32 = 0;
    /// Hold its calls, and wait for its submitted work.
    pub const LOCK: u32 = 1;
    /// Save its device memory, and release the device.
    pub const CHECKPOINT: u32 = 2;
    /// Restore its device memory.
    pub const RESTORE: u32 = 3;
    /// Release its calls.
    pub const UNLOCK: u32 = 4;
}

/// The state of a process, with the numbers of `CUprocessState`.
pub mod state {
    /// Its calls run (`CU_PROCESS_STATE_RUNNING`).
    pub const RUNNING: u32 = 0;
    /// Its calls wait (`CU_PROCESS_STATE_LOCKED`).
    pub const LOCKED: u32 = 1;
    /// Its calls wait, and it has no worker (`CU_PROCESS_STATE_CHECKPOINTED`).
    pub const CHECKPOINTED: u32 = 2;
    /// Its worker was lost while it was locked (`CU_PROCESS_STATE_FAILED`).
    pub const FAILED: u32 = 3;
}

messages! {
    /// An order of the supervisor.
    ToProgram at most MAX_JOB_MESSAGE_BYTES;
    /// Keep every thread from sending frames. Answer: `Held`.
    1 Hold {}
    /// Detach from the worker, after `Hold`. Answer: `Left`, and the end of this connection.
    2 Leave {}
    /// Resume the session, after `Left` or `Lost`. Answer: `Resumed`.
    3 Resume {
        /// Address of the worker's server now.
        address: String,
        /// The session's key there.
        key: SessionKey,
    }
    /// Resume without having left. Answer: `Released`.
    4 Release {}
    /// The session of a program that left, or lost its worker, will not come back: its calls fail from then on. No answer.
    5 GiveUp {
        /// Reason, for the program's user.
        text: String,
    }
    /// Does what `Resume` does, but no thread sends frames before `Release`. Answer: `Rejoined`.
    6 Rejoin {
        /// Address of the worker's server now.
        address: String,
        /// The session's key there.
        key: SessionKey,
    }
    /// The answer to [`FromProgram::Ask`], and the last message on its connection.
    7 Answer {
        /// A `CUresult`. `NOT_READY`: not now, but perhaps at a later request.
        code: u32,
        /// The state of the process now, as one of [`state`].
        state: u32,
        /// The obstacle, for the requesting program's user; empty if there is none.
        text: String,
    }
}

messages! {
    /// A message of the shim.
    FromProgram at most MAX_JOB_MESSAGE_BYTES;
    /// Introduces a process to its supervisor.
    1 Member {
        /// Version of the job protocol, [`JOB_PROTOCOL_VERSION`].
        protocol: u32,
        /// API of its session, as in the handshake's `SessionKind`: a process may have one of each.
        session: u32,
        /// The process id, in its own namespace. It stays the same after a restore.
        pid: u32,
        /// Key of its session; the former key, for a detached program that reconnects.
        key: SessionKey,
        /// The server of its session, as `unix:/path` or `tcp://host:port`.
        address: String,
        /// 1 shared memory, 2 stream, as in the handshake's `LinkKind`.
        link: u32,
        /// 0: connected to its worker, 1: detached and waiting for `Resume`, 2: has lost it, see `Lost`.
        state: u32,
        /// Frames sent since the session began.
        frames: u64,
        /// File name of the program.
        program: String,
    }
    /// No thread sends frames, except one that runs an upcall, until that has ended.
    2 Held {
        /// Frames sent so far, which the worker has to execute before it is paused.
        frames: u64,
    }
    /// The program has detached from its worker. This connection ends now.
    3 Left {
        /// Frames sent in all; no others are under way.
        frames: u64,
    }
    /// The session continues with the worker that the order named.
    4 Resumed {}
    /// The program's threads send frames again.
    5 Released {}
    /// The order was not carried out. Nothing has changed.
    6 Failed {
        /// Reason, as text for the user.
        text: String,
    }
    /// The worker is gone without a detach. Calls wait for `Resume` or `GiveUp`.
    7 Lost {
        /// Frames sent in all, whether or not they were executed.
        frames: u64,
    }
    /// The program has reached the frame at which it must hold itself, and holds. It waits for `Hold`, which it answers at once,
    /// or `Release`.
    8 Reached {
        /// The number of that frame, which was not sent yet.
        frames: u64,
    }
    /// The session will continue with the worker that the order named, once it is released.
    9 Rejoined {}
    /// Request to do something to a process of the job. It is the only message on its connection, from any process of the job's
    /// user. Answer: `Answer`.
    10 Ask {
        /// Version of the job protocol, [`JOB_PROTOCOL_VERSION`].
        protocol: u32,
        /// The process id, in the process's own namespace.
        process: u32,
        /// Requested action, one of the constants in [`ask`].
        what: u32,
        /// How long its device may take to come to rest, in milliseconds.
        timeout_ms: u32,
        /// Pairs of UUIDs, 32 bytes each: a GPU that it had, and the one to restore it to.
        gpus: Vec<u8>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::mutations::survive;

    const KEY: SessionKey = SessionKey([0x5a; 16]);

    #[test]
    fn orders_survive_encoding_and_damage_is_noticed() {
        let orders = [
            ToProgram::Hold {},
            ToProgram::Leave {},
            ToProgram::Resume { address: "unix:/run/katydid.sock".into(), key: KEY },
            ToProgram::Release {},
            ToProgram::GiveUp { text: "no image".into() },
            ToProgram::Rejoin { address: "tcp://gpu7:9923".into(), key: KEY },
            ToProgram::Answer { code: 401, state: state::LOCKED, text: "it is locked".into() },
        ];
        survive(&orders, ToProgram::encode, ToProgram::decode);
    }

    #[test]
    fn answers_survive_encoding_and_damage_is_noticed() {
        let (address, program) = ("tcp://gpu7:9923".to_owned(), "train".to_owned());
        let messages = [
            FromProgram::Member {
                protocol: JOB_PROTOCOL_VERSION,
                session: 2,
                pid: 7,
                key: KEY,
                address,
                link: 2,
                state: 1,
                frames: 9,
                program,
            },
            FromProgram::Held { frames: u64::MAX },
            FromProgram::Left { frames: 3 },
            FromProgram::Resumed {},
            FromProgram::Released {},
            FromProgram::Failed { text: "the memory's descriptor was closed".into() },
            FromProgram::Lost { frames: 17 },
            FromProgram::Reached { frames: 4 },
            FromProgram::Rejoined {},
            FromProgram::Ask {
                protocol: JOB_PROTOCOL_VERSION,
                process: 7,
                what: ask::RESTORE,
                timeout_ms: 250,
                gpus: vec![9; 32],
            },
        ];
        survive(&messages, FromProgram::encode, FromProgram::decode);
    }

    #[test]
    fn a_message_has_the_documented_bytes() {
        assert_eq!(ToProgram::Leave {}.encode().unwrap(), [8, 0, 0, 0, 2, 0, 0, 0]);
        let held = FromProgram::Held { frames: 0x0102 }.encode().unwrap();
        assert_eq!(held, [16, 0, 0, 0, 2, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ToProgram::decode(&[8, 0, 0, 0, 9, 0, 0, 0]), Err(EnvelopeError::Unknown { kind: 9 }));
    }

    #[test]
    fn a_text_beyond_the_envelope_is_not_written() {
        let text = "x".repeat(MAX_JOB_MESSAGE_BYTES);
        assert!(matches!(ToProgram::GiveUp { text }.encode(), Err(EnvelopeError::TooLarge { .. })));
    }
}
