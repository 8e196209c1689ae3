//! Brings all GPU sides of a job to rest, and lets them go on: hold, pause, detach, capture, leave, and the way back from each of
//! these stages.
//!
//! The rule: [`QuiescedJob::go_on`] is the way back from every stage, after success and after failure alike. It tries every
//! participant, even if others fail. Capture concerns only workers and leave only programs, so both can run at the same time
//! ([`QuiescedJob::split`]).

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use katydid_image::Writer;
use katydid_transport::Address;
use katydid_wire::handshake::SessionKind;
use katydid_wire::job::{FromProgram, ToProgram};
use katydid_wire::key::SessionKey;
use katydid_wire::sharing::Sharing;

use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::sharing_check;
use crate::process::tree;
use crate::supervisor::companion::{Catalogue, Companion, CompanionError, Plan, Progress, Questions};
use crate::supervisor::member_error::MemberError;
use crate::supervisor::members::{Member, MemberState, Members};

/// How long a program may take to answer an order; it answers between two instructions of one of its threads.
pub(crate) const MEMBER_ORDER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the GPU may take to come to rest, unless the request names another time.
pub(crate) const GPU_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a program may take to come back after CRIU has let it go, or made it anew.
const REJOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the supervisor retries for a program that cannot take its session up again: its server may have no slot for the
/// moment.
const REJOIN_RETRY_TIME: Duration = Duration::from_secs(10);
/// Time between two such attempts.
const REJOIN_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The stage that a participant has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QuiesceStage {
    /// The program and its worker run.
    Free,
    /// No frame leaves the program.
    Held,
    /// The worker has executed all frames and takes no more.
    Paused,
    /// The worker outlives the program's connection.
    Detached,
    /// The program has the order to leave its worker, and has not answered yet: it answers when it comes to the order.
    Leaving,
    /// The program has let go of the worker.
    Released,
}

/// One program and its worker.
#[derive(Debug)]
pub(crate) struct Participant {
    pub(crate) member: Member,
    pub(crate) companion: Companion,
    pub(crate) progress: Arc<Progress>,
    /// The participant's process, as the supervisor sees it, once that is known.
    pub(crate) process: Option<u32>,
    /// What the session shares with others, once that is captured.
    sharing: Sharing,
    reached: QuiesceStage,
    /// Whether the session has given up what no image of its worker has (`worker_images.rs`).
    pub(crate) is_suspended: bool,
    /// Whether its worker is being saved as a process; then the companion is the keeper's.
    pub(crate) is_kept: bool,
}

/// All participants of a job.
#[derive(Debug)]
pub(crate) struct QuiescedJob<'a> {
    members: &'a Members,
    pub(crate) participants: Vec<Participant>,
}

/// The programs of a quiesced job.
pub(crate) struct Programs<'s> {
    members: &'s Members,
    list: Vec<(&'s mut Member, &'s mut QuiesceStage)>,
}

/// The workers of a quiesced job.
pub(crate) struct Workers<'s>(Vec<(&'s mut Companion, &'s Progress, &'s mut Sharing)>);

impl Programs<'_> {
    /// Has all programs let go of their workers, which are detached.
    pub(crate) fn leave(self) -> Result<(), CheckpointError> {
        let members = self.members;
        let outcomes = in_parallel(self.list, |(member, reached)| {
            members.set_away(member.id);
            match members.order(member.id, &ToProgram::Leave {}, MEMBER_ORDER_TIMEOUT) {
                Ok(FromProgram::Left { frames }) => {
                    member.frames = frames;
                    *reached = QuiesceStage::Released;
                    members.wait_silent(member.id, MEMBER_ORDER_TIMEOUT)
                }
                Ok(other) => Err(unexpected(member, &other)),
                // The program leaves once it comes to the order, and has to be brought back.
                Err(error @ MemberError::Silent { .. }) => {
                    *reached = QuiesceStage::Leaving;
                    Err(error)
                }
                Err(error) => {
                    members.set_present(member.id);
                    Err(error)
                }
            }
        });
        Ok(outcomes.into_iter().collect::<Result<(), MemberError>>()?)
    }
}

impl Workers<'_> {
    /// Has all workers copy their state aside.
    pub(crate) fn capture(self, plan: Plan, writer: &Writer) -> Result<(), CheckpointError> {
        let captured = in_parallel(self.0, |(companion, progress, sharing)| {
            *sharing = companion.snapshot(plan, writer, progress)?;
            Ok::<(), CompanionError>(())
        });
        Ok(captured.into_iter().collect::<Result<(), CompanionError>>()?)
    }
}

/// Suffix of the names of OpenCL sessions, after the process.
const OPENCL_SUFFIX: &str = "-opencl";

/// The name of a program's session in an image.
pub(crate) fn session_name(member: &Member) -> String {
    let api = if member.session == SessionKind::OPENCL { OPENCL_SUFFIX } else { "" };
    format!("p{}{api}", member.pid)
}

/// The API of the session with this name.
pub(crate) fn session_kind(name: &str) -> SessionKind {
    if name.ends_with(OPENCL_SUFFIX) { SessionKind::OPENCL } else { SessionKind::CUDA }
}

impl<'a> QuiescedJob<'a> {
    /// Connects to all workers; nothing stops yet.
    pub(crate) fn prepare(members: &'a Members) -> Result<Self, CheckpointError> {
        Self::of(members, members.list())
    }

    /// Connects to the workers of some members only; nothing stops yet.
    pub(crate) fn of(members: &'a Members, list: Vec<Member>) -> Result<Self, CheckpointError> {
        for member in &list {
            let duplicates =
                list.iter().filter(|other| (other.pid, other.session) == (member.pid, member.session)).count();
            if member.state != MemberState::Present || duplicates > 1 {
                return Err(CheckpointError::Member { program: member.program.clone(), pid: member.pid, duplicates });
            }
        }
        let participants = in_parallel(list, |member| {
            let address = address(&member.address)?;
            let companion = Companion::connect(&address, member.key, &session_name(&member))?;
            let (progress, process, sharing, reached) = (Arc::default(), None, Sharing::default(), QuiesceStage::Free);
            let (is_suspended, is_kept) = (false, false);
            Ok::<_, CheckpointError>(Participant {
                member,
                companion,
                progress,
                process,
                sharing,
                reached,
                is_suspended,
                is_kept,
            })
        });
        let participants = participants.into_iter().collect::<Result<Vec<Participant>, CheckpointError>>()?;
        Ok(Self { members, participants })
    }

    /// Has all workers open the image, and do the work that takes time but no pause.
    pub(crate) fn ready(&mut self, plan: Plan, writer: &Writer) -> Result<(), CheckpointError> {
        let directory = writer.directory()?;
        self.each(|participant| Ok(participant.companion.prepare(plan, directory.as_ref().map(AsFd::as_fd), writer)?))
    }

    /// Has all workers write to the image how their sessions were made, while the programs run. Returns their parts of the
    /// manifest.
    pub(crate) fn outline(&mut self, plan: Plan, writer: &Writer) -> Result<Vec<Vec<u8>>, CheckpointError> {
        self.ready(plan, writer)?;
        self.split().1.capture(plan, writer)?;
        self.write(writer, &|_, _, _| ())
    }

    /// The members that take part.
    pub(crate) fn members(&self) -> Vec<Member> {
        self.participants.iter().map(|participant| participant.member.clone()).collect()
    }

    /// Keeps all programs from sending frames.
    pub(crate) fn hold(&mut self) -> Result<(), CheckpointError> {
        let members = self.members;
        self.each(|participant| {
            match members.order(participant.member.id, &ToProgram::Hold {}, MEMBER_ORDER_TIMEOUT)? {
                FromProgram::Held { frames } => participant.member.frames = frames,
                other => return Err(unexpected(&participant.member, &other).into()),
            }
            participant.reached = QuiesceStage::Held;
            Ok(())
        })
    }

    /// Brings all workers to rest.
    pub(crate) fn pause(&mut self, timeout: Duration) -> Result<(), CheckpointError> {
        self.each(|participant| {
            participant.companion.pause(participant.member.frames, timeout)?;
            participant.reached = QuiesceStage::Paused;
            Ok(())
        })
    }

    /// Detaches all workers: none ends with its program's connection any more.
    pub(crate) fn detach(&mut self, questions: Questions<'_>) -> Result<(), CheckpointError> {
        self.each(|participant| {
            participant.companion.detach(questions, &participant.progress)?;
            participant.reached = QuiesceStage::Detached;
            Ok(())
        })
    }

    /// Splits the programs from their workers, so that both can be ordered at the same time.
    pub(crate) fn split(&mut self) -> (Programs<'_>, Workers<'_>) {
        let (programs, workers) = self
            .participants
            .iter_mut()
            .map(|participant| {
                let worker = (&mut participant.companion, &*participant.progress, &mut participant.sharing);
                ((&mut participant.member, &mut participant.reached), worker)
            })
            .unzip();
        (Programs { members: self.members, list: programs }, Workers(workers))
    }

    /// Checks, after the capture, that the programs share memory and events only with each other.
    pub(crate) fn check_sharing(&self) -> Result<(), CheckpointError> {
        sharing_check::check(self.participants.iter().map(|participant| (&participant.member, &participant.sharing)))
    }

    /// Checks, after the capture, that the programs share nothing, so that each session can change workers by itself.
    pub(crate) fn check_no_sharing(&self) -> Result<(), CheckpointError> {
        sharing_check::check_alone(
            self.participants.iter().map(|participant| (&participant.member, &participant.sharing)),
        )
    }

    /// Lets all programs and workers go on from any stage. Tries all of them, and returns the first failure.
    pub(crate) fn go_on(&mut self, questions: Questions<'_>) -> Result<(), CheckpointError> {
        self.all_go_on(questions).into_iter().collect()
    }

    /// Lets programs and workers go on after all programs were kept. Threads run before their programs are back, so a program may
    /// have ended meanwhile, as it would have without a checkpoint.
    pub(crate) fn go_on_to_any_end(&mut self, questions: Questions<'_>) -> Result<(), CheckpointError> {
        let is_end = |outcome: &Result<(), CheckpointError>| {
            matches!(outcome, Err(CheckpointError::Order(MemberError::Gone { .. })))
        };
        self.all_go_on(questions).into_iter().filter(|outcome| !is_end(outcome)).collect()
    }

    fn all_go_on(&mut self, questions: Questions<'_>) -> Vec<Result<(), CheckpointError>> {
        let members = self.members;
        let outcomes =
            in_parallel(self.participants.iter_mut().collect(), |participant| participant.go_on(members, questions));
        for participant in self.participants.extract_if(.., |participant| participant.reached > QuiesceStage::Detached)
        {
            participant.go_on_later(members.clone());
        }
        outcomes
    }

    /// Goes back as far as held programs: programs that have left come back, the workers go on, and no frame leaves a program.
    pub(crate) fn go_back(&mut self, questions: Questions<'_>) -> Result<(), CheckpointError> {
        let members = self.members;
        self.each(|participant| participant.go_back(members, questions))
    }

    /// Has all programs, which have left, take up the sessions that were rebuilt at `address`. Programs that fail to do so stay
    /// as they are, to go on with their old workers.
    pub(crate) fn move_to(
        &mut self,
        rebuilt: &mut [Companion],
        catalogue: &Catalogue<'_>,
        address: &str,
    ) -> Result<(), CheckpointError> {
        let members = self.members;
        let pairs = self.participants.iter_mut().zip(rebuilt).collect();
        let moved = in_parallel(pairs, |(participant, companion): (&mut Participant, &mut Companion)| {
            let (key, process) = (companion.key, participant.process);
            let is_over = || process.is_some_and(tree::has_ended);
            answer_during(companion, catalogue, || resume(members, &participant.member, (address, key), &is_over))?;
            participant.reached = QuiesceStage::Free;
            Ok::<(), CheckpointError>(())
        });
        moved.into_iter().collect()
    }

    /// Has the workers write all snapshots to the image, and waits for that. `notify` hears the progress now and then.
    pub(crate) fn write(
        &mut self,
        writer: &Writer,
        notify: &dyn Fn(u64, u64, u64),
    ) -> Result<Vec<Vec<u8>>, CheckpointError> {
        const PROGRESS_TICK: Duration = Duration::from_millis(100);
        let (done, wait) = mpsc::channel::<()>();
        let progress: Vec<Arc<Progress>> =
            self.participants.iter().map(|participant| Arc::clone(&participant.progress)).collect();
        let sum = |count: fn(&Progress) -> u64| progress.iter().map(|progress| count(progress)).sum::<u64>();
        let notify = || {
            notify(
                sum(|progress| progress.done.load(Relaxed)),
                sum(|progress| progress.total.load(Relaxed)),
                sum(|progress| progress.written.load(Relaxed)),
            );
        };
        let companions =
            self.participants.iter_mut().map(|participant| (&mut participant.companion, &*participant.progress));
        thread::scope(|scope| {
            let threads: Vec<_> = companions
                .map(|(companion, progress)| {
                    let done = done.clone();
                    scope.spawn(move || {
                        let part = companion.write(writer, progress);
                        drop(done);
                        part
                    })
                })
                .collect();
            drop(done);
            // The channel carries nothing: it closes when the last thread ends.
            while let Err(RecvTimeoutError::Timeout) = wait.recv_timeout(PROGRESS_TICK) {
                notify();
            }
            notify();
            let joined = threads
                .into_iter()
                .map(|thread| thread.join().map_err(|_| CheckpointError::ThreadFailed)?.map_err(Into::into));
            joined.collect()
        })
    }

    /// Does `work` with all participants in parallel, because each of them waits.
    fn each(
        &mut self,
        work: impl Fn(&mut Participant) -> Result<(), CheckpointError> + Sync,
    ) -> Result<(), CheckpointError> {
        in_parallel(self.participants.iter_mut().collect(), work).into_iter().collect()
    }
}

impl Participant {
    /// Whether the session shares memory or events with others.
    pub(crate) fn shares(&self) -> bool {
        self.sharing.is_some()
    }

    fn go_on(&mut self, members: &Members, questions: Questions<'_>) -> Result<(), CheckpointError> {
        self.go(members, Rejoin::Free, questions)
    }

    fn go_back(&mut self, members: &Members, questions: Questions<'_>) -> Result<(), CheckpointError> {
        self.go(members, Rejoin::Held, questions)
    }

    /// Goes on from any stage. A program that does not come back in time stays at its stage.
    fn go(&mut self, members: &Members, rejoin_mode: Rejoin, questions: Questions<'_>) -> Result<(), CheckpointError> {
        let previous_stage = self.reached;
        // A worker that died meanwhile fails here. Its program must go on nevertheless, and learns it from its link. A program
        // that has yet to leave learns it when it is back; until then its leaving is expected.
        let proceeded = match previous_stage {
            QuiesceStage::Free | QuiesceStage::Held | QuiesceStage::Leaving => Ok(()),
            _ => self.companion.proceed(questions, &self.progress),
        };
        match previous_stage {
            QuiesceStage::Free => {}
            QuiesceStage::Leaving | QuiesceStage::Released => self.rejoin(members, rejoin_mode, proceeded.is_ok())?,
            _ if rejoin_mode == Rejoin::Held => {}
            _ => {
                members.order(self.member.id, &ToProgram::Release {}, MEMBER_ORDER_TIMEOUT)?;
            }
        }
        self.reached = rejoin_mode.reached();
        if previous_stage == QuiesceStage::Leaving {
            Ok(self.companion.proceed(questions, &self.progress)?)
        } else {
            Ok(proceeded?)
        }
    }

    /// Brings a program back that left. If that fails, the program learns that its session is lost, unless it is still on its
    /// way. `is_alive`: its worker has answered.
    fn rejoin(&mut self, members: &Members, rejoin_mode: Rejoin, is_alive: bool) -> Result<(), MemberError> {
        let id = self.member.id;
        let is_over = || self.process.is_some_and(tree::has_ended);
        let home = (self.member.address.as_str(), self.companion.key);
        let deadline = Instant::now() + REJOIN_RETRY_TIME;
        let resumed = loop {
            match rejoin(members, &self.member, home, rejoin_mode, &is_over) {
                Err(MemberError::Refused { .. }) if is_alive && Instant::now() < deadline => {
                    thread::sleep(REJOIN_RETRY_INTERVAL)
                }
                other => break other,
            }
        };
        match &resumed {
            Ok(()) | Err(MemberError::Silent { .. }) => {}
            Err(MemberError::Gone { .. }) => self.give_up(members),
            Err(error) => {
                // No other process can bring it back, so its calls must not wait for that. A program that does not listen has
                // ended, or learns it from the end of its supervisor.
                let text = format!("it was away for a checkpoint, and could not come back: {error}");
                let _ = members.send(id, &ToProgram::GiveUp { text });
                self.give_up(members);
            }
        }
        resumed
    }

    fn give_up(&mut self, members: &Members) {
        self.reached = QuiesceStage::Free;
        members.forget(self.member.id);
    }

    /// Brings a slow program back in another thread, such as one that a signal stopped meanwhile. Its worker waits as long as the
    /// program lives.
    fn go_on_later(mut self, members: Members) {
        // If no thread starts, the worker ends, and the program's next call reports it.
        let _ = thread::Builder::new().name("resume".into()).spawn(move || {
            while self.reached > QuiesceStage::Detached {
                // The program has the error, or is only slow.
                let _ = self.go_on(&members, Questions::Refused);
                thread::sleep(REJOIN_RETRY_INTERVAL);
            }
        });
    }
}

/// Does `work`, which brings a program back to the rebuilt session of `companion`, and answers the worker's questions meanwhile.
/// The worker reads the rest of the image once the program is there.
pub(crate) fn answer_during<R>(companion: &mut Companion, catalogue: &Catalogue<'_>, work: impl FnOnce() -> R) -> R {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // An error here reaches the program as well: the worker refuses it, or is gone.
        let questions = || companion.answer_until(catalogue, &|| is_over.load(SeqCst));
        let attending = thread::Builder::new().name("questions".into()).spawn_scoped(scope, questions);
        let outcome = work();
        is_over.store(true, SeqCst);
        drop(attending);
        outcome
    })
}

/// Has a program take up the session at an address and with a key. The program waits for a worker, or will soon, unless
/// `is_over`.
pub(crate) fn resume(
    members: &Members,
    member: &Member,
    (address, key): (&str, SessionKey),
    is_over: &dyn Fn() -> bool,
) -> Result<(), MemberError> {
    rejoin(members, member, (address, key), Rejoin::Free, is_over)
}

/// How a program comes back to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rejoin {
    /// The program sends frames at once.
    Free,
    /// The program sends frames once it is released.
    Held,
}

impl Rejoin {
    /// The stage that a participant has reached then.
    fn reached(self) -> QuiesceStage {
        match self {
            Self::Free => QuiesceStage::Free,
            Self::Held => QuiesceStage::Held,
        }
    }

    /// The order that makes a program come back this way.
    pub(crate) fn order(self, address: &str, key: SessionKey) -> ToProgram {
        let address = address.to_owned();
        match self {
            Self::Free => ToProgram::Resume { address, key },
            Self::Held => ToProgram::Rejoin { address, key },
        }
    }

    /// Whether `message` is the answer to that order.
    pub(crate) fn is_done(self, message: &FromProgram) -> bool {
        match self {
            Self::Free => matches!(message, FromProgram::Resumed {}),
            Self::Held => matches!(message, FromProgram::Rejoined {}),
        }
    }
}

/// Works as [`resume`], in either way.
pub(crate) fn rejoin(
    members: &Members,
    member: &Member,
    (address, key): (&str, SessionKey),
    rejoin_mode: Rejoin,
    is_over: &dyn Fn() -> bool,
) -> Result<(), MemberError> {
    members.wait_back(member.id, REJOIN_TIMEOUT, is_over)?;
    match members.order(member.id, &rejoin_mode.order(address, key), REJOIN_TIMEOUT)? {
        message if rejoin_mode.is_done(&message) => {
            members.set_home(member.id, address, key);
            Ok(())
        }
        other => Err(unexpected(member, &other)),
    }
}

/// Parses the address of a member's server.
pub(crate) fn address(text: &str) -> Result<Address, CheckpointError> {
    text.parse().map_err(|source| CheckpointError::Address { text: text.to_owned(), source })
}

fn unexpected(member: &Member, message: &FromProgram) -> MemberError {
    let name = format!("{message:?}");
    let reason = format!("{} was not asked for", name.split(' ').next().unwrap_or_default());
    MemberError::Refused { program: member.program.clone(), pid: member.pid, reason }
}

/// Does `work` for each entry, in one thread each, or in this thread for a single entry. Answers come in the order of the
/// entries.
pub(crate) fn in_parallel<T: Send, A: Send>(mut list: Vec<T>, work: impl Fn(T) -> A + Sync) -> Vec<A> {
    if list.len() <= 1 {
        return list.pop().map(work).into_iter().collect();
    }
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = list.into_iter().map(|one| scope.spawn(move || work(one))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}
