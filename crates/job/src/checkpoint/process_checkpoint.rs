//! Locks, checkpoints, restores and unlocks one process of a job at the request of a peer on the job socket, as
//! `cuCheckpointProcess*` does:
//!
//! ```text
//! lock         hold, pause, and proceed: the program's calls wait, and all work that it has submitted is done
//! checkpoint   pause, capture, write, commit, leave: its session goes to an image in a temporary folder, and its worker ends
//! restore      rebuild, rejoin: it has a worker again, and its calls wait
//! unlock       release
//! ```
//!
//! The rule: between two of these calls, only the table of this module controls the process. A call that fails leaves the process
//! as it was. While a process is in the table, the job is not checkpointed or moved as a whole.

use std::collections::HashSet;
use std::fmt::Display;
use std::sync::{Arc, OnceLock, TryLockError};
use std::time::{Duration, Instant};

use katydid_image::{CheckpointChoice, CheckpointNumber, Image, Session, Times, Writer};
use katydid_scratch::Scratch;
use katydid_wire::handshake::SessionKind;
use katydid_wire::job::{ToProgram, ask, state};

use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::fault_injection;
use crate::checkpoint::locked_processes::SavedSession;
use crate::checkpoint::quiesce::{GPU_IDLE_TIMEOUT, MEMBER_ORDER_TIMEOUT, Participant, QuiescedJob, Rejoin};
use crate::checkpoint::request::{millis_since_epoch, options};
use crate::checkpoint::run::{Attempt, manifest};
use crate::checkpoint::stages::Stages;
use crate::process::tree;
use crate::supervisor::companion::{CompanionError, Questions};
use crate::supervisor::member_error::MemberError;
use crate::supervisor::members::{Member, MemberState};
use crate::supervisor::question::{Answerer, Question};
use crate::supervisor::state::JobState;
use crate::supervisor::view::{Request, StageProgress};

/// Bytes of a UUID.
const UUID_BYTES: usize = 16;

/// Result codes of CUDA, as these functions use them.
mod code {
    pub(super) const SUCCESS: u32 = 0;
    pub(super) const INVALID_VALUE: u32 = 1;
    pub(super) const NOT_INITIALIZED: u32 = 3;
    pub(super) const OPERATING_SYSTEM: u32 = 304;
    pub(super) const ILLEGAL_STATE: u32 = 401;
    pub(super) const NOT_READY: u32 = 600;
    pub(super) const NOT_SUPPORTED: u32 = 801;
}

/// Why a call was refused: a result code, and a text for the user.
#[derive(Debug)]
struct CallRefusal(u32, String);

impl CallRefusal {
    fn new(code: u32, text: impl Display) -> Self {
        Self(code, text.to_string())
    }

    /// A refusal whose code says all.
    fn plain(code: u32) -> Self {
        Self(code, String::new())
    }
}

impl From<CheckpointError> for CallRefusal {
    /// A worker's refusal to save a session becomes "not supported"; any other error is one of the operating system.
    fn from(error: CheckpointError) -> Self {
        let is_refused = matches!(
            error,
            CheckpointError::Companion(CompanionError::Refused { .. }) | CheckpointError::Shared { .. }
        );
        Self::new(if is_refused { code::NOT_SUPPORTED } else { code::OPERATING_SYSTEM }, error)
    }
}

impl From<MemberError> for CallRefusal {
    fn from(error: MemberError) -> Self {
        Self::new(code::OPERATING_SYSTEM, error)
    }
}

/// Answers questions on the job socket.
pub(crate) fn answer(job: &Arc<JobState>) {
    let weak = Arc::downgrade(job);
    job.members.answer_with(Answerer(Box::new(move |question| {
        let Some(job) = weak.upgrade() else {
            return ToProgram::Answer { code: code::OPERATING_SYSTEM, state: 0, text: "the job has ended".to_owned() };
        };
        let done = job.handle(question);
        let state = job.state_of(question.process).unwrap_or(state::RUNNING);
        let CallRefusal(code, text) = done.err().unwrap_or(CallRefusal::plain(code::SUCCESS));
        ToProgram::Answer { code, state, text }
    })));
}

impl JobState {
    fn handle(&self, question: &Question) -> Result<(), CallRefusal> {
        drop(self.locked_processes.swept(&self.members));
        if question.what == ask::STATE {
            return self.state_of(question.process).map(drop);
        }
        let _exclusive = match self.exclusive.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(CallRefusal::new(
                    code::NOT_READY,
                    "a checkpoint of its job, or another call like this, is under way",
                ));
            }
        };
        let required_state = match question.what {
            ask::LOCK => state::RUNNING,
            ask::CHECKPOINT | ask::UNLOCK => state::LOCKED,
            ask::RESTORE => state::CHECKPOINTED,
            other => return Err(CallRefusal::new(code::NOT_SUPPORTED, format_args!("request {other} is not known"))),
        };
        if self.state_of(question.process)? != required_state {
            return Err(CallRefusal::plain(code::ILLEGAL_STATE));
        }
        let member = self.member_of(question.process)?;
        match question.what {
            ask::LOCK => self.lock_member(member, question.timeout),
            ask::CHECKPOINT => self.checkpoint_member(member),
            ask::RESTORE => self.restore_member(&member, &question.gpus),
            _ => self.unlock_member(&member),
        }
    }

    /// The CUDA session of a process.
    fn member_of(&self, process: u32) -> Result<Member, CallRefusal> {
        let is_it = |member: &Member| (member.pid, member.session) == (process, SessionKind::CUDA);
        let mut found: Vec<Member> = self.members.list().into_iter().filter(is_it).collect();
        if found.len() > 1 {
            let text = format!("{} processes of the job have the id {process}, in different namespaces", found.len());
            return Err(CallRefusal::new(code::NOT_SUPPORTED, text));
        }
        found.pop().ok_or(CallRefusal::plain(code::NOT_INITIALIZED))
    }

    /// Returns the state of a process, one of the constants in [`state`].
    fn state_of(&self, process: u32) -> Result<u32, CallRefusal> {
        match self.member_of(process) {
            Ok(member) => Ok(self.locked_processes.state(member.id)),
            // The process lost its session, so it is no member any more.
            Err(_) if self.locked_processes.is_lost(process, self.started(process)) => Ok(state::FAILED),
            Err(refusal) => Err(refusal),
        }
    }

    /// Returns the start time of the job's process with this number, as the process sees itself.
    pub(crate) fn started(&self, process: u32) -> Option<u64> {
        let all = tree::tree(self.root.wait_for_start()?).ok()?;
        let found = all.iter().find(|found| tree::pid_in_own_namespace(found.pid) == process)?;
        tree::started(found.pid)
    }

    /// Holds the program's calls, and waits for its submitted work. If that takes longer than `timeout`, the program goes on.
    fn lock_member(&self, member: Member, timeout: Duration) -> Result<(), CallRefusal> {
        if member.state != MemberState::Present {
            return Err(CallRefusal::new(code::NOT_READY, "it is not with its worker"));
        }
        let mut stop = QuiescedJob::of(&self.members, vec![member.clone()])?;
        let start = Instant::now();
        let held = stop.hold().and_then(|()| Ok(fault_injection::inject_at("lock")?));
        let rested = held.and_then(|()| stop.pause(timeout)).and_then(|()| stop.go_back(Questions::Refused));
        let Err(error) = rested else {
            self.locked_processes.put(&member, None);
            return Ok(());
        };
        let is_late =
            matches!(error, CheckpointError::Companion(CompanionError::Refused { .. })) && start.elapsed() >= timeout;
        // A program that waited at a point of its own waits there still, as before. If going on fails, the program's own calls
        // report it.
        let is_at_point = self.members.list().iter().any(|now| now.id == member.id && now.reached.is_some());
        let _ = if is_at_point { stop.go_back(Questions::Refused) } else { stop.go_on(Questions::Refused) };
        Err(if is_late { CallRefusal::new(code::NOT_READY, error) } else { error.into() })
    }

    /// Lets the program make calls again.
    fn unlock_member(&self, member: &Member) -> Result<(), CallRefusal> {
        fault_injection::inject_at("unlock").map_err(CheckpointError::from)?;
        // From here on, tests may wait for it at a point of its own.
        self.locked_processes.remove(member.id);
        let released = self.members.order(member.id, &ToProgram::Release {}, MEMBER_ORDER_TIMEOUT);
        released.map(drop).inspect_err(|_| self.locked_processes.put(member, None)).map_err(Into::into)
    }

    /// Writes the session to a temporary image, and ends its worker.
    fn checkpoint_member(&self, member: Member) -> Result<(), CallRefusal> {
        let image = Scratch::new("process");
        let image = image.map_err(|error| CallRefusal::new(code::OPERATING_SYSTEM, error))?;
        let request = Request {
            image: image.path().to_owned(),
            leave_running: true,
            device_only: false,
            full: false,
            keep: None,
            // The image is only temporary.
            level: Some(0),
            quiesce_timeout_ms: None,
            force: false,
        };
        let number = self.checkpoint_session(&request, &member)?;
        self.locked_processes.put(&member, Some(SavedSession { image, number }));
        Ok(())
    }

    fn checkpoint_session(&self, request: &Request, member: &Member) -> Result<CheckpointNumber, CheckpointError> {
        let root = self.root.wait_for_start().ok_or(CheckpointError::NoProgram)?;
        let image = Image::create_or_open(&request.image)?;
        let writer = image.begin(options(request))?;
        let mut stop = QuiescedJob::of(&self.members, vec![member.clone()])?;
        let stages = Stages::default();
        let attempt = Attempt {
            job: self,
            root,
            request,
            writer: &writer,
            criu: None,
            notify: &|_| (),
            stages: &stages,
            libraries: OnceLock::new(),
            attributes: OnceLock::new(),
        };
        let sessions = match written(&attempt, &mut stop) {
            Ok(sessions) => sessions,
            Err(error) => return Err(self.undone(&mut stop, Questions::Write(&writer), error)),
        };
        let number = self.committed(writer, sessions, member).and_then(|number| {
            self.detach(&mut stop)?;
            Ok(number)
        });
        // Unless that failed, the worker ends here, with the connection to it.
        number.map_err(|error| self.undone(&mut stop, Questions::Refused, error))
    }

    /// Has the program let go of its worker, and waits until the program is back to wait for another. From then on the supervisor
    /// notices its end.
    fn detach(&self, stop: &mut QuiescedJob<'_>) -> Result<(), CheckpointError> {
        fault_injection::inject(&StageProgress::Leave)?;
        stop.detach(Questions::Refused)?;
        let hidden = self.members.hide();
        let hidden = hidden.map_err(|source| CheckpointError::System { doing: "hide the job socket", source })?;
        stop.split().0.leave()?;
        drop(hidden);
        stop.participants.iter().try_for_each(|participant| {
            Ok(self.members.wait_back(participant.member.id, MEMBER_ORDER_TIMEOUT, &|| false)?)
        })
    }

    fn committed(
        &self,
        writer: Writer,
        sessions: Vec<Session>,
        member: &Member,
    ) -> Result<CheckpointNumber, CheckpointError> {
        fault_injection::inject(&StageProgress::Commit)?;
        let times = Times { began: millis_since_epoch(), written: millis_since_epoch(), stopped_us: 0 };
        let manifest = manifest(self, std::slice::from_ref(member), sessions, None, times);
        Ok(writer.commit(manifest)?.number)
    }

    /// Goes back, after a failure, to a locked program that has its worker.
    fn undone(&self, stop: &mut QuiescedJob<'_>, questions: Questions<'_>, cause: CheckpointError) -> CheckpointError {
        match stop.go_back(questions) {
            Ok(()) => cause,
            Err(also) => {
                // A program that is there and has no worker waits for `rebuild_lost_session`, which runs after this.
                let gone = |participant: &&Participant| {
                    !self.members.list().iter().any(|member| member.id == participant.member.id)
                };
                stop.participants.iter().filter(gone).for_each(|participant| {
                    self.locked_processes.fail(&participant.member, self.started(participant.member.pid))
                });
                CheckpointError::Undo { cause: Box::new(cause), also: Box::new(also) }
            }
        }
    }

    /// Rebuilds the member's session in another worker of its server.
    fn restore_member(&self, member: &Member, gpus: &[u8]) -> Result<(), CallRefusal> {
        let saved = self.locked_processes.saved(member.id).ok_or(CallRefusal::plain(code::ILLEGAL_STATE))?;
        let opened =
            Image::open(saved.image.path()).and_then(|image| image.checkpoint(CheckpointChoice::Number(saved.number)));
        let reader = opened.map_err(CheckpointError::from)?;
        let devices = reader.manifest().sessions.iter().flat_map(|session| &session.devices);
        let known: Vec<&str> = devices.map(|device| device.uuid.as_str()).collect();
        let devices = gpus_of_session(&known, &self.locked_processes.devices(member.id), gpus)?;
        let result = self.give_worker(member, &reader, Rejoin::Held, &devices);
        result.map_err(|error| CallRefusal::new(code::OPERATING_SYSTEM, error))?;
        self.locked_processes.note_devices(member.id, devices);
        self.locked_processes.put(member, None);
        Ok(())
    }
}

/// Writes the session to the image while its worker rests.
fn written(attempt: &Attempt<'_, '_>, stop: &mut QuiescedJob<'_>) -> Result<Vec<Session>, CheckpointError> {
    // Nothing has been submitted since the lock, so the device comes to rest well within the limit.
    stop.pause(GPU_IDLE_TIMEOUT)?;
    stop.ready(attempt.plan(), attempt.writer)?;
    attempt.begin(&StageProgress::Capture)?;
    attempt.capture_alone(stop)?;
    attempt.write(stop, false)
}

/// Returns the GPUs for a session that knows `process_gpus`, one UUID a line; empty: those that it knows. `current_gpus` are the
/// ones that it was on, unless empty; each pair in `gpus` replaces one of these.
fn gpus_of_session(process_gpus: &[&str], current_gpus: &str, gpus: &[u8]) -> Result<String, CallRefusal> {
    let invalid = || CallRefusal::new(code::INVALID_VALUE, "a pair names no GPU of the process, or one again");
    let hex = |uuid: &[u8]| uuid.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let current_gpus: Vec<&str> =
        if current_gpus.is_empty() { process_gpus.to_vec() } else { current_gpus.lines().collect() };
    let position = |uuid: &[u8]| current_gpus.iter().position(|gpu| *gpu == hex(uuid)).ok_or_else(invalid);
    let (mut chosen, mut moved) = (current_gpus.clone(), HashSet::new());
    for pair in gpus.chunks(2 * UUID_BYTES) {
        let (old, new) = pair.split_at_checked(UUID_BYTES).ok_or(CallRefusal::plain(code::INVALID_VALUE))?;
        let at = position(old)?;
        chosen[at] = current_gpus[position(new)?];
        if !moved.insert(at) {
            return Err(invalid());
        }
    }
    // Two of its GPUs cannot become one.
    if chosen.iter().collect::<HashSet<_>>().len() < chosen.len() {
        return Err(invalid());
    }
    Ok(if chosen == process_gpus { String::new() } else { chosen.join("\n") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uuid(byte: u8) -> String {
        format!("{byte:02x}").repeat(UUID_BYTES)
    }

    fn lines(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| uuid(*byte)).collect::<Vec<String>>().join("\n")
    }

    fn pairs(pairs: &[(u8, u8)]) -> Vec<u8> {
        pairs.iter().flat_map(|(old, new)| [[*old; UUID_BYTES], [*new; UUID_BYTES]].concat()).collect()
    }

    /// The GPUs of a session that knows the GPUs 1, 2 and 3.
    fn placed_from(current_gpus: &[u8], gpus: &[u8]) -> Result<String, u32> {
        let known = [1, 2, 3].map(uuid);
        gpus_of_session(&known.each_ref().map(String::as_str), &lines(current_gpus), gpus).map_err(|refusal| refusal.0)
    }

    #[test]
    fn a_process_is_restored_to_gpus_of_its_own_in_any_order() {
        assert_eq!(placed_from(&[], &[]), Ok(String::new()));
        assert_eq!(placed_from(&[], &pairs(&[(1, 1), (2, 2)])), Ok(String::new()));
        assert_eq!(placed_from(&[], &pairs(&[(1, 2), (2, 1)])), Ok(lines(&[2, 1, 3])));
        assert_eq!(placed_from(&[], &pairs(&[(1, 2), (2, 3), (3, 1)])), Ok(lines(&[2, 3, 1])));
    }

    #[test]
    fn where_it_was_last_is_where_it_stays_and_what_pairs_name() {
        assert_eq!(placed_from(&[2, 3, 1], &[]), Ok(lines(&[2, 3, 1])));
        assert_eq!(placed_from(&[2, 3, 1], &pairs(&[(2, 1), (1, 2)])), Ok(lines(&[1, 3, 2])));
        assert_eq!(placed_from(&[2, 1, 3], &pairs(&[(2, 1), (1, 2)])), Ok(String::new()));
    }

    #[test]
    fn gpus_that_are_not_its_own_or_become_one_are_refused() {
        for wrong in [&[(4, 4)][..], &[(1, 4)], &[(4, 1)], &[(1, 1), (1, 1)], &[(1, 2)], &[(1, 3), (2, 3), (3, 1)]] {
            assert_eq!(placed_from(&[], &pairs(wrong)), Err(code::INVALID_VALUE), "{wrong:?}");
        }
        for length in [1, UUID_BYTES, UUID_BYTES + 1] {
            assert_eq!(placed_from(&[], &pairs(&[(1, 1)])[..length]), Err(code::INVALID_VALUE));
        }
    }
}
