//! Bringing all GPU sides of a job to rest, and letting them go on: hold, pause, detach, capture, leave, and the way back
//! from whichever of these each one has reached.
//!
//! The rule: [`QuiescedJob::go_on`] is the way back from everywhere, after success and after failure alike, and it tries each
//! side whatever became of the others. Capture is the workers' alone and leave the programs' alone, so that they can
//! happen participant by participant ([`QuiescedJob::split`]).

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

/// How long a program may take to answer an order; it does so between two instructions of a thread of its own.
pub(crate) const MEMBER_ORDER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the GPU may take to come to rest, unless the request names another time.
pub(crate) const GPU_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a program may take to come back after CRIU has let it go, or made it anew.
const REJOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a program that cannot take its session up again is asked once more: its server may have no room just now.
const REJOIN_RETRY_TIME: Duration = Duration::from_secs(10);
/// Between two such attempts.
const REJOIN_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// How far a participant has been brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QuiesceStage {
    /// The program and its worker run.
    Free,
    /// No frame leaves the program.
    Held,
    /// The worker has executed all frames and takes no more.
    Paused,
    /// The worker does not end with the program's connection.
    Detached,
    /// The program has the order to leave its worker, and has not answered: it does so when it comes to the order.
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
    /// Its process, as we see it, once that is known.
    pub(crate) process: Option<u32>,
    /// What its session shares with others, once that is captured.
    sharing: Sharing,
    reached: QuiesceStage,
    /// Its session has given up what no image of its worker has (`worker_images.rs`).
    pub(crate) is_suspended: bool,
    /// Its worker is being saved as a process: the companion is the keeper's.
    pub(crate) is_kept: bool,
}

/// All of a job's participants.
#[derive(Debug)]
pub(crate) struct QuiescedJob<'a> {
    members: &'a Members,
    pub(crate) participants: Vec<Participant>,
}

/// The programs of a stop.
pub(crate) struct Programs<'s> {
    members: &'s Members,
    list: Vec<(&'s mut Member, &'s mut QuiesceStage)>,
}

/// The workers of a stop.
pub(crate) struct Workers<'s>(Vec<(&'s mut Companion, &'s Progress, &'s mut Sharing)>);

impl Programs<'_> {
    /// Has all of them let go of their workers, which are detached.
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
                // It will leave once it comes to the order, and has to be brought back.
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
    /// Has all of them copy their state aside.
    pub(crate) fn capture(self, plan: Plan, writer: &Writer) -> Result<(), CheckpointError> {
        let captured = in_parallel(self.0, |(companion, progress, sharing)| {
            *sharing = companion.snapshot(plan, writer, progress)?;
            Ok::<(), CompanionError>(())
        });
        Ok(captured.into_iter().collect::<Result<(), CompanionError>>()?)
    }
}

/// What follows the process in the name of a session of OpenCL.
const OPENCL_SUFFIX: &str = "-opencl";

/// The name of a program's session in an image.
pub(crate) fn session_name(member: &Member) -> String {
    let api = if member.session == SessionKind::OPENCL { OPENCL_SUFFIX } else { "" };
    format!("p{}{api}", member.pid)
}

/// Which API the session of this name speaks.
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

    /// Has all workers open the image, and does what takes time but no pause.
    pub(crate) fn ready(&mut self, plan: Plan, writer: &Writer) -> Result<(), CheckpointError> {
        let directory = writer.directory()?;
        self.each(|participant| Ok(participant.companion.prepare(plan, directory.as_ref().map(AsFd::as_fd), writer)?))
    }

    /// Has all workers bring to the image how their sessions were made, while the programs run; their parts of the manifest.
    pub(crate) fn outline(&mut self, plan: Plan, writer: &Writer) -> Result<Vec<Vec<u8>>, CheckpointError> {
        self.ready(plan, writer)?;
        self.split().1.capture(plan, writer)?;
        self.write(writer, &|_, _, _| ())
    }

    /// The members whose sessions they are.
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

    /// From now on no worker ends with its program's connection.
    pub(crate) fn detach(&mut self, questions: Questions<'_>) -> Result<(), CheckpointError> {
        self.each(|participant| {
            participant.companion.detach(questions, &participant.progress)?;
            participant.reached = QuiesceStage::Detached;
            Ok(())
        })
    }

    /// The programs and their workers, of whom different things can be asked at the same time.
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

    /// After the capture: all that the programs share they share among each other.
    pub(crate) fn check_sharing(&self) -> Result<(), CheckpointError> {
        sharing_check::check(self.participants.iter().map(|participant| (&participant.member, &participant.sharing)))
    }

    /// After the capture: the programs share nothing, so every session may change workers by itself.
    pub(crate) fn check_no_sharing(&self) -> Result<(), CheckpointError> {
        sharing_check::check_alone(
            self.participants.iter().map(|participant| (&participant.member, &participant.sharing)),
        )
    }

    /// Lets all programs and workers go on from wherever they are. Returns the first failure; the others are tried all the same.
    pub(crate) fn go_on(&mut self, questions: Questions<'_>) -> Result<(), CheckpointError> {
        self.all_go_on(questions).into_iter().collect()
    }

    /// Lets programs and workers go on after all programs were kept. Their threads run before they are back: one may have
    /// come to its end meanwhile, as it would have without us.
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

    /// Goes back as far as programs that are held: programs that have left come back, the workers go on, and no frame leaves a
    /// program.
    pub(crate) fn go_back(&mut self, questions: Questions<'_>) -> Result<(), CheckpointError> {
        let members = self.members;
        self.each(|participant| participant.go_back(members, questions))
    }

    /// Has all programs, which have left, take up the sessions that were rebuilt at `address`. Those that do not are left
    /// as they are, to go on with the workers that they had.
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

    /// Has all snapshots brought to the image, and waits for that. `tell` hears now and then how far they are.
    pub(crate) fn write(
        &mut self,
        writer: &Writer,
        tell: &dyn Fn(u64, u64, u64),
    ) -> Result<Vec<Vec<u8>>, CheckpointError> {
        const PROGRESS_TICK: Duration = Duration::from_millis(100);
        let (done, wait) = mpsc::channel::<()>();
        let progress: Vec<Arc<Progress>> =
            self.participants.iter().map(|participant| Arc::clone(&participant.progress)).collect();
        let sum = |count: fn(&Progress) -> u64| progress.iter().map(|progress| count(progress)).sum::<u64>();
        let tell = || {
            tell(
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
            // The channel carries nothing: its end is that of the last thread.
            while let Err(RecvTimeoutError::Timeout) = wait.recv_timeout(PROGRESS_TICK) {
                tell();
            }
            tell();
            let joined = threads
                .into_iter()
                .map(|thread| thread.join().map_err(|_| CheckpointError::ThreadFailed)?.map_err(Into::into));
            joined.collect()
        })
    }

    /// Does the same with all participants at once, because each of them waits.
    fn each(
        &mut self,
        work: impl Fn(&mut Participant) -> Result<(), CheckpointError> + Sync,
    ) -> Result<(), CheckpointError> {
        in_parallel(self.participants.iter_mut().collect(), work).into_iter().collect()
    }
}

impl Participant {
    /// Whether its session shares anything with others.
    pub(crate) fn shares(&self) -> bool {
        self.sharing.is_some()
    }

    fn go_on(&mut self, members: &Members, questions: Questions<'_>) -> Result<(), CheckpointError> {
        self.go(members, Rejoin::Free, questions)
    }

    fn go_back(&mut self, members: &Members, questions: Questions<'_>) -> Result<(), CheckpointError> {
        self.go(members, Rejoin::Held, questions)
    }

    /// From wherever it is. One that does not come back in time stays on its way.
    fn go(&mut self, members: &Members, rejoin_mode: Rejoin, questions: Questions<'_>) -> Result<(), CheckpointError> {
        let previous_stage = self.reached;
        // A worker that died meanwhile fails here; its program must go on nevertheless, and learns it from its link. A program
        // that has yet to leave learns it when it is back: until then its leaving is expected.
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

    /// Brings a program that left back. If that fails, and not because the program is still on its way, the program learns that
    /// its session is lost. `is_alive`: its worker has answered.
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
                // No other process can bring it back: its calls must not wait for that. One that does not listen has ended,
                // or learns it with the end of its supervisor.
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

    /// Brings a program back that is slow to come, as one is that was stopped by a signal meanwhile. Its worker waits for it as long
    /// as it lives.
    fn go_on_later(mut self, members: Members) {
        // Without a thread its worker ends, and its next call tells it.
        let _ = thread::Builder::new().name("resume".into()).spawn(move || {
            while self.reached > QuiesceStage::Detached {
                // The program has the error, or is only slow.
                let _ = self.go_on(&members, Questions::Refused);
                thread::sleep(REJOIN_RETRY_INTERVAL);
            }
        });
    }
}

/// Does `work`, which takes a program back to the rebuilt session of `companion`, and answers meanwhile what the worker
/// asks: it reads the rest of the image when the program is there.
pub(crate) fn answer_during<R>(companion: &mut Companion, catalogue: &Catalogue<'_>, work: impl FnOnce() -> R) -> R {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // What goes wrong here goes wrong for the program as well: the worker refuses it, or is gone.
        let questions = || companion.answer_until(catalogue, &|| is_over.load(SeqCst));
        let attending = thread::Builder::new().name("questions".into()).spawn_scoped(scope, questions);
        let outcome = work();
        is_over.store(true, SeqCst);
        drop(attending);
        outcome
    })
}

/// Has a program that waits for a worker, or will unless `is_over`, take up the session at an address and with a key.
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
    /// They do so once it is released.
    Held,
}

impl Rejoin {
    /// How far a participant has been brought then.
    fn reached(self) -> QuiesceStage {
        match self {
            Self::Free => QuiesceStage::Free,
            Self::Held => QuiesceStage::Held,
        }
    }

    /// The order for it.
    pub(crate) fn order(self, address: &str, key: SessionKey) -> ToProgram {
        let address = address.to_owned();
        match self {
            Self::Free => ToProgram::Resume { address, key },
            Self::Held => ToProgram::Rejoin { address, key },
        }
    }

    /// Whether that is its answer.
    pub(crate) fn is_done(self, word: &FromProgram) -> bool {
        match self {
            Self::Free => matches!(word, FromProgram::Resumed {}),
            Self::Held => matches!(word, FromProgram::Rejoined {}),
        }
    }
}

/// As [`resume`], in either manner.
pub(crate) fn rejoin(
    members: &Members,
    member: &Member,
    (address, key): (&str, SessionKey),
    rejoin_mode: Rejoin,
    is_over: &dyn Fn() -> bool,
) -> Result<(), MemberError> {
    members.wait_back(member.id, REJOIN_TIMEOUT, is_over)?;
    match members.order(member.id, &rejoin_mode.order(address, key), REJOIN_TIMEOUT)? {
        word if rejoin_mode.is_done(&word) => {
            members.set_home(member.id, address, key);
            Ok(())
        }
        other => Err(unexpected(member, &other)),
    }
}

/// The address of a member's server.
pub(crate) fn address(text: &str) -> Result<Address, CheckpointError> {
    text.parse().map_err(|source| CheckpointError::Address { text: text.to_owned(), source })
}

fn unexpected(member: &Member, word: &FromProgram) -> MemberError {
    let name = format!("{word:?}");
    let reason = format!("{} was not asked for", name.split(' ').next().unwrap_or_default());
    MemberError::Refused { program: member.program.clone(), pid: member.pid, reason }
}

/// One thread for each, but for a single one; the answers in the order of the questions.
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
