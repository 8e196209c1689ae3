//! Takes a checkpoint of a job:
//!
//! ```text
//! prepare   CRIU found, image opened, workers connected            the program runs
//! hold      no frame leaves a program                              ┐
//! pause     the GPU rests                                          │ the program is stopped
//! capture   workers copy its state aside, while                    │
//!   leave     the programs let go of their workers, and            │
//!   dump      CRIU copies the processes                            ┘
//! resume    the programs take their sessions up again (if they go on)
//! write     workers write the image while the program may run on
//! rehearse  other workers rebuild the sessions from it, without contents
//! commit    the manifest gets its name: the checkpoint is complete
//! kill      the processes end (if they do not go on)
//! ```
//!
//! The rule: whatever fails before `commit`, the programs go on from where they are, and the image stays as it was.

use std::collections::{BTreeMap, HashMap};
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

use katydid_image::{
    CommittedCheckpoint, Criu as CriuPart, Image, ImageError, Job as JobPart, Library, Manifest, Program, Session,
    Times, Writer,
};

use crate::checkpoint::error::{CheckpointError, MAX_CHECKPOINT_ATTEMPTS};
use crate::checkpoint::frozen::FrozenProcesses;
use crate::checkpoint::image_notes::ImageNotes;
use crate::checkpoint::quiesce::{GPU_IDLE_TIMEOUT, Programs, QuiescedJob, Workers, session_name};
use crate::checkpoint::recovery::Recovery;
use crate::checkpoint::rehearsal::{RehearsalOutcome, rehearse};
use crate::checkpoint::request::{CRIU_FOLDER, image_of, keeps_stopped, micros, millis_since_epoch, options};
use crate::checkpoint::stages::Stages;
use crate::checkpoint::{fault_injection, obstacles, worker_images};
use crate::criu::files_img::FilesImage;
use crate::criu::options::AfterDump;
use crate::criu::tool::{Criu, Dumper};
use crate::criu::{dump_progress, files_img, link_remap, sk_queues_img};
use crate::process::attributes::ProcessAttributes;
use crate::process::descriptors::datagrams::UnsendableDatagram;
use crate::process::descriptors::{datagrams, peers, watches};
use crate::process::shared_memory::Segment;
use crate::process::stdio::StandardStream;
use crate::process::tcp::TcpConnections;
use crate::process::tree::Process;
use crate::process::written_files::WrittenFile;
use crate::process::{attributes, libraries, shared_memory, stdio, terminals, tree, unix_session, written_files};
use crate::supervisor::companion::{Plan, Questions};
use crate::supervisor::members::Member;
use crate::supervisor::state::JobState;
use crate::supervisor::view::{Report, Request, StageProgress};
use crate::sync::lock;

/// zstd level of chunks unless the request says.
const DEFAULT_ZSTD_LEVEL: u32 = 1;
/// How long connections may wait to be accepted, and how often the checkpoint looks again: CRIU cannot dump such connections.
const TRANSIENT_TIMEOUT: Duration = Duration::from_secs(5);
const CHECKPOINT_RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Takes a checkpoint; the caller makes sure that only one is taken at a time.
pub(crate) fn take(
    job: &JobState,
    request: &Request,
    notify: &(dyn Fn(&StageProgress) + Sync),
) -> Result<Report, CheckpointError> {
    let (began, since, stages) = (millis_since_epoch(), Instant::now(), Stages::default());
    let notify = &|stage: &StageProgress| {
        stages.enter(stage);
        notify(stage);
    };
    let path = image_of(request)?;
    notify(&StageProgress::Prepare);
    fault_injection::inject(&StageProgress::Prepare)?;
    let root = job.root.wait_for_start().ok_or(CheckpointError::NoProgram)?;
    let criu = if request.device_only { None } else { Some(job.criu()?) };
    if criu.is_some() {
        obstacles::check_whole(job)?;
    }
    let image = Image::create_or_open(path)?;
    let mut attempts_left = MAX_CHECKPOINT_ATTEMPTS;
    while attempts_left > 0 {
        let mut writer = image.begin(options(request))?;
        let member_count = job.members.list().len();
        let (criu, libraries, attributes) = (criu.as_ref(), OnceLock::new(), OnceLock::new());
        let attempt =
            Attempt { job, root, request, writer: &writer, criu, notify, stages: &stages, libraries, attributes };
        let outcome = match attempt.run() {
            Ok(Some(outcome)) => outcome,
            Ok(None) => {
                attempts_left -= 1;
                continue;
            }
            Err(error) if error.is_transient() && since.elapsed() < TRANSIENT_TIMEOUT => {
                thread::sleep(CHECKPOINT_RETRY_INTERVAL);
                continue;
            }
            Err(error) if error.is_of_ended_session() && since.elapsed() < TRANSIENT_TIMEOUT => {
                wait_for_end(job, member_count, error)?;
                continue;
            }
            Err(error) => return Err(error),
        };
        let (workers, members) = (outcome.workers(), outcome.members());
        let CheckpointParts { mut stop, sessions, processes, criu: part, frozen, stopped } = outcome;
        let libraries = attempt.libraries.into_inner().unwrap_or_default();
        let times = Times { began, written: millis_since_epoch(), stopped_us: micros(stopped) };
        let mut manifest = Manifest { libraries, ..manifest(job, &members, sessions, part, times) };
        let committed = rehearse_and_commit(job, request, &mut stop, (&mut writer, &mut manifest), notify);
        let (warning, worker_images, committed) = match committed {
            Ok(committed) => committed,
            Err(error) if keeps_stopped(request) => return Err(undo(&mut stop, frozen, Questions::Refused, error)),
            Err(error) => return Err(error),
        };
        *lock(&job.recovery) = Some(Recovery::of_stop(path.to_owned(), image.id(), committed.number, &stop));
        drop(writer);
        let (running, mut warnings) = clean_up(request, &image, frozen, warning, notify);
        if let Err(error) = worker_images::end(&mut stop) {
            warnings.push(format!("a worker that was saved has not been ended: {error}"));
        }
        return Ok(Report {
            checkpoint: committed.number.0,
            image: path.to_owned(),
            job: job.folder.name(),
            pids: processes.iter().map(|process| process.pid).collect(),
            workers,
            bytes_content: committed.sizes.content,
            bytes_added: committed.sizes.added,
            bytes_files: committed.sizes.files,
            stopped_us: micros(stopped),
            took_us: micros(since.elapsed()),
            stages_us: stages.end(),
            worker_images,
            running,
            warnings,
        });
    }
    Err(CheckpointError::ProgramsKeepArriving)
}

/// Waits a moment until a program that has ended is no member any more: the job is checkpointed without it. Returns `error` if
/// there are as many members as before.
fn wait_for_end(job: &JobState, member_count: usize, error: CheckpointError) -> Result<(), CheckpointError> {
    thread::sleep(CHECKPOINT_RETRY_INTERVAL);
    if job.members.list().len() < member_count { Ok(()) } else { Err(error) }
}

/// Rehearses the restore, saves workers as processes if the rehearsal asks for it, and commits. Returns a warning for the caller,
/// and the sessions of those workers.
fn rehearse_and_commit(
    job: &JobState,
    request: &Request,
    stop: &mut QuiescedJob<'_>,
    (writer, manifest): (&mut Writer, &mut Manifest),
    notify: &(dyn Fn(&StageProgress) + Sync),
) -> Result<(Option<String>, Vec<String>, CommittedCheckpoint), CheckpointError> {
    let (warning, saved_sessions) = match rehearse(job, request, stop, (writer, manifest), notify)? {
        RehearsalOutcome::Passed(warning) => (warning, Vec::new()),
        RehearsalOutcome::NoReplay(lost) => (None, worker_images::take(stop, (writer, manifest), lost, notify)?),
    };
    match commit(writer, manifest, notify) {
        Ok(committed) => Ok((warning, saved_sessions, committed)),
        Err(error) => Err(worker_images::give_back(stop, writer, manifest, error)),
    }
}

/// Ends the program if that is wanted, and removes old checkpoints. Returns whether the program runs on, and warnings. The
/// checkpoint is complete: a failure here does not fail it.
fn clean_up(
    request: &Request,
    image: &Image,
    frozen: Option<FrozenProcesses>,
    warning: Option<String>,
    notify: &(dyn Fn(&StageProgress) + Sync),
) -> (bool, Vec<String>) {
    let mut warnings: Vec<String> = warning.into_iter().collect();
    let mut running = !keeps_stopped(request);
    if let Some(frozen) = frozen.filter(|_| keeps_stopped(request)) {
        notify(&StageProgress::Kill);
        if let Err(error) = frozen.kill() {
            running = true;
            warnings.push(format!("the program was not ended: {error}"));
        }
    }
    if let Some(Err(error)) = request.keep.map(|keep| clear(image, keep)) {
        warnings.push(format!("older checkpoints were not removed: {error}"));
    }
    (running, warnings)
}

/// Commits the checkpoint.
fn commit(
    writer: &mut Writer,
    manifest: &Manifest,
    notify: &(dyn Fn(&StageProgress) + Sync),
) -> Result<CommittedCheckpoint, CheckpointError> {
    notify(&StageProgress::Commit);
    fault_injection::inject(&StageProgress::Commit)?;
    Ok(writer.complete(manifest.clone())?)
}

/// One attempt; another one follows if a program joined the job meanwhile.
pub(crate) struct Attempt<'j, 'a> {
    pub(crate) job: &'j JobState,
    pub(crate) root: u32,
    pub(crate) request: &'a Request,
    pub(crate) writer: &'a Writer,
    pub(crate) criu: Option<&'a Criu>,
    pub(crate) notify: &'a (dyn Fn(&StageProgress) + Sync),
    pub(crate) stages: &'a Stages,
    /// Katydid's libraries that the image already has.
    pub(crate) libraries: OnceLock<Vec<Library>>,
    /// Attributes of the processes that CRIU does not restore, as they were while the processes ran.
    pub(crate) attributes: OnceLock<Vec<ProcessAttributes>>,
}

/// Everything that the manifest needs; the contents are in the image already.
struct CheckpointParts<'j> {
    stop: QuiescedJob<'j>,
    sessions: Vec<Session>,
    processes: Vec<Process>,
    criu: Option<CriuPart>,
    frozen: Option<FrozenProcesses>,
    stopped: Duration,
}

impl CheckpointParts<'_> {
    fn workers(&self) -> Vec<u32> {
        self.stop.participants.iter().map(|participant| participant.companion.worker).collect()
    }

    /// The members at the time of the stop: a program that went on may have ended by now.
    fn members(&self) -> Vec<Member> {
        self.stop.members()
    }
}

/// Removes checkpoints that are too old. If a restore reads the image now, a later checkpoint does it.
fn clear(image: &Image, keep: u32) -> Result<(), ImageError> {
    match image.keep(keep as usize) {
        Err(ImageError::Locked { .. }) => Ok(()),
        cleared => cleared.map(drop),
    }
}

/// The result of the stop.
pub(crate) struct DumpOutcome {
    processes: Vec<Process>,
    criu: Option<CriuPart>,
    frozen: Option<FrozenProcesses>,
}

impl<'j> Attempt<'j, '_> {
    /// Runs the attempt. Returns `None` if a program joined the job; then everything goes on as before.
    fn run(&self) -> Result<Option<CheckpointParts<'j>>, CheckpointError> {
        self.wait_for_arrivals()?;
        obstacles::check_all_known(self.job, self.root)?;
        let arrivals = self.job.members.arrivals();
        // An attempt runs once, so this is unset.
        let _ = self.libraries.set(self.mapped_libraries()?);
        let dumper = self.criu.map(|criu| self.prepared(criu)).transpose()?;
        let mut stop = self.connected()?;
        let since = Instant::now();
        let questions = Questions::Write(self.writer);
        let dumped = match self.stand_still(&mut stop, dumper, arrivals) {
            Ok(Some(dumped)) => dumped,
            // Threads run again in the middle of this, so a program may have ended, as it would have without a checkpoint.
            Ok(None) => return stop.go_on_to_any_end(questions).map(|()| None),
            Err(error) => return Err(undo(&mut stop, None, questions, error)),
        };
        if !keeps_stopped(self.request) {
            if let Err(error) = self.begin(&StageProgress::Resume) {
                return Err(undo(&mut stop, dumped.frozen, questions, error));
            }
            if self.criu.is_some() {
                stop.go_on_to_any_end(questions)?;
            } else {
                stop.go_on(questions)?;
            }
            self.job.stopped.stop();
        }
        let stopped = since.elapsed();
        match self.write(&mut stop, dumped.criu.is_some()) {
            Ok(sessions) => {
                let DumpOutcome { processes, criu, frozen } = dumped;
                Ok(Some(CheckpointParts { stop, sessions, processes, criu, frozen, stopped }))
            }
            Err(error) if keeps_stopped(self.request) => Err(undo(&mut stop, dumped.frozen, questions, error)),
            Err(error) => Err(error),
        }
    }

    /// Saves Katydid's libraries of the processes while these run; none if the processes are not saved.
    fn mapped_libraries(&self) -> Result<Vec<Library>, CheckpointError> {
        match self.criu {
            Some(_) => Ok(libraries::save(&processes(self.root)?, self.writer)?),
            None => Ok(Vec::new()),
        }
    }

    /// Connects to all programs and workers; the image is open, and the programs run.
    pub(crate) fn connected(&self) -> Result<QuiescedJob<'j>, CheckpointError> {
        let mut stop = QuiescedJob::prepare(&self.job.members)?;
        stop.ready(self.plan(), self.writer)?;
        Ok(stop)
    }

    pub(crate) fn plan(&self) -> Plan {
        let Request { device_only, full, level, .. } = *self.request;
        Plan { device_only, full, level: level.unwrap_or(DEFAULT_ZSTD_LEVEL), outline: false }
    }

    /// Prepares a CRIU to dump the job as it is now.
    fn prepared(&self, criu: &Criu) -> Result<Dumper, CheckpointError> {
        let after = if keeps_stopped(self.request) { AfterDump::Stopped } else { AfterDump::Running };
        let folder = self.writer.folder(CRIU_FOLDER)?;
        let (root_pid_seen, list) = (tree::pid_in_own_namespace(self.root), processes(self.root)?);
        if let Some((pid, device)) = written_files::gpu_of(&list) {
            return Err(CheckpointError::Gpu { program: tree::name(pid), pid, device });
        }
        obstacles::check_segments(&list)?;
        obstacles::check_losses(&list)?;
        obstacles::check_namespaces(&list)?;
        let attributes = self.attributes.get_or_init(|| attributes::read_all(&list));
        if let Some(pid) = attributes::odd_personality(attributes) {
            return Err(CheckpointError::Personality { pid });
        }
        if unix_session::is_outside(self.root) {
            return Err(CheckpointError::Session { program: tree::name(self.root), pid: self.root });
        }
        Ok(criu.prepare(root_pid_seen, &list, &folder, &self.job.stdio, after)?)
    }

    /// Goes from hold to dump. Leaves processes frozen only on success, and only if they are to be killed.
    pub(crate) fn stand_still(
        &self,
        stop: &mut QuiescedJob<'_>,
        dumper: Option<Dumper>,
        arrivals: u64,
    ) -> Result<Option<DumpOutcome>, CheckpointError> {
        self.begin(&StageProgress::Hold)?;
        stop.hold()?;
        self.begin(&StageProgress::Pause)?;
        stop.pause(
            self.request.quiesce_timeout_ms.map_or(GPU_IDLE_TIMEOUT, |millis| Duration::from_millis(millis.into())),
        )?;
        self.begin(&StageProgress::Capture)?;
        let Some(dump) = self.criu.zip(dumper) else {
            self.capture_alone(stop)?;
            let is_complete = self.job.members.arrivals() == arrivals;
            return Ok(is_complete.then_some(DumpOutcome {
                processes: processes(self.root)?,
                criu: None,
                frozen: None,
            }));
        };
        locate(self.root, stop)?;
        let hidden = self.job.members.hide();
        let _hidden = hidden.map_err(|source| CheckpointError::System { doing: "hide the job socket", source })?;
        self.wait_for_arrivals()?;
        if self.job.members.arrivals() != arrivals {
            return Ok(None);
        }
        stop.detach(Questions::Write(self.writer))?;
        let mut dumped = self.captured_and_dumped(stop, dump)?;
        if self.job.members.arrivals() != arrivals {
            return Ok(None);
        }
        if let Some(frozen) = dumped.frozen.as_mut().filter(|_| !keeps_stopped(self.request)) {
            frozen.go_on()?;
        }
        Ok(Some(dumped))
    }

    /// Has the workers copy their state aside while the programs leave and CRIU copies their processes; neither touches what the
    /// other reads. Leaves processes frozen only on success.
    fn captured_and_dumped(
        &self,
        stop: &mut QuiescedJob<'_>,
        dump: (&Criu, Dumper),
    ) -> Result<DumpOutcome, CheckpointError> {
        let (programs, workers) = stop.split();
        let (captured, dumped) = thread::scope(|scope| {
            let capture = scope.spawn(|| self.capture(workers));
            let dumped = self.left_and_dumped(programs, dump);
            self.stages.close();
            (capture.join().unwrap_or(Err(CheckpointError::ThreadFailed)), dumped)
        });
        let dumped = dumped?;
        captured.and_then(|()| stop.check_sharing()).map(|()| dumped)
    }

    /// Has the workers copy their state aside while nothing else runs.
    pub(crate) fn capture_alone(&self, stop: &mut QuiescedJob<'_>) -> Result<(), CheckpointError> {
        self.capture(stop.split().1)?;
        stop.check_sharing()
    }

    fn capture(&self, workers: Workers<'_>) -> Result<(), CheckpointError> {
        self.stages.beside(&StageProgress::Capture, || workers.capture(self.plan(), self.writer))
    }

    fn left_and_dumped(
        &self,
        programs: Programs<'_>,
        (criu, dumper): (&Criu, Dumper),
    ) -> Result<DumpOutcome, CheckpointError> {
        self.begin(&StageProgress::Leave)?;
        programs.leave()?;
        let total = tree::memory(&processes(self.root)?);
        self.begin(&StageProgress::Dump { done: 0, total })?;
        let folder = self.writer.folder(CRIU_FOLDER)?;
        let notify = |done| (self.notify)(&StageProgress::Dump { done, total });
        dump_progress::watched(&folder, &notify, || self.dump(criu, dumper))
    }

    /// Dumps the processes, which CRIU then holds: shared memory is copied while no process changes it. If that fails, the
    /// processes go on.
    fn dump(&self, criu: &Criu, dumper: Dumper) -> Result<DumpOutcome, CheckpointError> {
        let processes_before = processes(self.root)?;
        let earlier = self.attributes.get().map(Vec::as_slice).unwrap_or_default();
        let notes = notes(self.job, &processes_before, earlier);
        let folder = self.writer.folder(CRIU_FOLDER)?;
        let dumped = dumper.dump();
        if let Err(error) = &dumped {
            self.job.criu_killed.fetch_or(error.tears(), SeqCst);
        }
        let after = match processes(self.root) {
            Ok(after) => tree::with_states_of(after, &processes_before),
            // CRIU's own error takes precedence.
            Err(error) => return Err(dumped.err().map_or(error, CheckpointError::from)),
        };
        let dumper = match dumped {
            Ok(dumper) => dumper,
            Err(error) => {
                tree::go_on(&after);
                return Err(error.into());
            }
        };
        let connections = TcpConnections::of(&after);
        let is_stopped = keeps_stopped(self.request);
        let mut frozen = FrozenProcesses::new(dumper, after.clone(), is_stopped, connections.have_others());
        obstacles::check_still_all_known(self.job, &after)?;
        let files_image = files_img::read(&folder);
        let files_image =
            files_image.map_err(|source| CheckpointError::System { doing: "read CRIU's list of files", source })?;
        let shared = self.shared(&after, &files_image, &folder)?;
        frozen.on_names_removed();
        let passing = sk_queues_img::have_descriptors(&folder);
        if passing.map_err(|source| CheckpointError::System { doing: "read what CRIU found in sockets", source })? {
            return Err(CheckpointError::Descriptors);
        }
        if let Some(pid) = connections.unsent() {
            return Err(CheckpointError::Unsent { program: tree::name(pid), pid });
        }
        if let Some(pid) = watches::with_events(&after) {
            return Err(CheckpointError::Events { program: tree::name(pid), pid });
        }
        let notes = self.beside_criu(&after, &folder, notes)?;
        let part = part(
            criu,
            tree::pid_in_own_namespace(self.root),
            ImageNotes { shared, connections: connections.into_addresses(), ..notes },
            &files_image,
        )?;
        Ok(DumpOutcome { processes: after, criu: Some(part), frozen: Some(frozen) })
    }

    /// Notes what CRIU leaves out of unread datagrams, watches and peers of sockets.
    fn beside_criu(&self, after: &[Process], folder: &Path, notes: ImageNotes) -> Result<ImageNotes, CheckpointError> {
        let failed = |source| CheckpointError::System { doing: "read what CRIU found open", source };
        let saved = sk_queues_img::counts(folder).map_err(failed)?;
        let replaced = |standard: &StandardStream| match standard {
            StandardStream::Socket { inode } => Some(*inode),
            _ => None,
        };
        let but: Vec<u64> = self.job.stdio.iter().filter_map(replaced).collect();
        let datagrams = datagrams::note(after, &saved, &but).map_err(|UnsendableDatagram { pid, why }| {
            CheckpointError::Datagrams { program: tree::name(pid), pid, why }
        })?;
        let watches = watches::note(after, &files_img::watched(folder).map_err(failed)?)
            .map_err(|pid| CheckpointError::Watches { program: tree::name(pid), pid })?;
        let makers = peers::makers(after, &files_img::unix_pairs(folder).map_err(failed)?);
        Ok(ImageNotes { datagrams, watches, makers, ..notes })
    }

    /// Copies shared memory, and removes the names that CRIU gave for the time of the dump.
    fn shared(
        &self,
        tree: &[Process],
        files_image: &FilesImage,
        folder: &Path,
    ) -> Result<Vec<Segment>, CheckpointError> {
        let link_names: Vec<PathBuf> = files_image.links.iter().map(|link| link.name.clone()).collect();
        let libraries = self.libraries.get().map(Vec::as_slice).unwrap_or_default();
        let is_kept = |of: &Path| libraries.iter().any(|library| library.deleted && Path::new(&library.path) == of);
        let others = files_image.links.iter().filter(|link| !is_kept(&link.of)).map(|link| link.name.clone());
        let saved = shared_memory::save(tree, &self.job.stdio, &others.collect::<Vec<_>>(), folder);
        link_remap::remove(self.root, &link_names);
        saved.map_err(|source| CheckpointError::System { doing: "copy the job's shared memory", source })
    }

    /// Waits for programs that are about to use the GPU.
    pub(crate) fn wait_for_arrivals(&self) -> Result<(), CheckpointError> {
        let doing = "wait for programs that begin to use the GPU";
        self.job.members.wait_for_hellos().map_err(|source| CheckpointError::System { doing, source })
    }

    /// Reports that a stage begins.
    pub(crate) fn begin(&self, stage: &StageProgress) -> Result<(), CheckpointError> {
        (self.notify)(stage);
        Ok(fault_injection::inject(stage)?)
    }

    /// Waits for the workers, and takes in what they and CRIU wrote.
    pub(crate) fn write(&self, stop: &mut QuiescedJob<'_>, is_dumped: bool) -> Result<Vec<Session>, CheckpointError> {
        self.begin(&StageProgress::Write { done: 0, total: 0, written: 0 })?;
        let parts = stop.write(self.writer, &|done, total, written| {
            (self.notify)(&StageProgress::Write { done, total, written });
        })?;
        if is_dumped {
            self.writer.adopt_folder(CRIU_FOLDER)?;
        }
        sessions(self.writer, stop, parts)
    }
}

/// The sessions that workers have written, as their answers say, or else as the image says.
pub(crate) fn sessions(
    writer: &Writer,
    stop: &QuiescedJob<'_>,
    parts: Vec<Vec<u8>>,
) -> Result<Vec<Session>, CheckpointError> {
    let sessions =
        stop.participants.iter().zip(parts).map(|(participant, part)| match serde_json::from_slice::<Session>(&part) {
            Ok(session) if session.name == participant.companion.session => Ok(session),
            _ => Ok(writer.take_session(&participant.companion.session)?),
        });
    sessions.collect()
}

/// Lets everything go on after `cause`, and returns it; with the error of that if it fails too.
pub(crate) fn undo(
    stop: &mut QuiescedJob<'_>,
    frozen: Option<FrozenProcesses>,
    questions: Questions<'_>,
    cause: CheckpointError,
) -> CheckpointError {
    drop(frozen);
    match stop.go_on(questions) {
        Ok(()) => cause,
        Err(also) => CheckpointError::Undo { cause: Box::new(cause), also: Box::new(also) },
    }
}

/// The processes of the job, the program first.
fn processes(root: u32) -> Result<Vec<Process>, CheckpointError> {
    let list = tree::tree(root).map_err(|source| CheckpointError::System { doing: "list the processes", source })?;
    if list.is_empty() { Err(CheckpointError::NoProgram) } else { Ok(list) }
}

/// Finds the process of every program with a session. All must be in the tree, because CRIU dumps nothing else.
fn locate(root: u32, stop: &mut QuiescedJob<'_>) -> Result<(), CheckpointError> {
    find_processes(root, stop)?;
    let stray = stop.participants.iter().find(|participant| participant.process.is_none());
    stray.map_or(Ok(()), |participant| Err(CheckpointError::Stray { pid: participant.member.pid }))
}

/// Finds the processes of programs with a session, as far as they are in the tree. A thread that waits for a program checks
/// whether its process has ended.
pub(crate) fn find_processes(root: u32, stop: &mut QuiescedJob<'_>) -> Result<(), CheckpointError> {
    let known: HashMap<u32, u32> =
        processes(root)?.iter().map(|process| (tree::pid_in_own_namespace(process.pid), process.pid)).collect();
    stop.participants
        .iter_mut()
        .for_each(|participant| participant.process = known.get(&participant.member.pid).copied());
    Ok(())
}

/// What a restore has to know beside CRIU's files. The lengths of files are not final, since the processes run.
fn notes(job: &JobState, processes: &[Process], earlier: &[ProcessAttributes]) -> ImageNotes {
    // The restoring side provides standard streams, so it does not need the files behind the old ones.
    let is_standard = |file: &WrittenFile| stdio::is_replaced(&job.stdio, Path::new(&file.path));
    ImageNotes {
        folder: job.known_folder.clone(),
        servers: lock(&job.servers).clone(),
        generations: job.generations.clone(),
        stdio: stdio::at_dump(&job.stdio),
        shared: Vec::new(),
        terminals: terminals::numbers(processes),
        connections: Vec::new(),
        datagrams: Vec::new(),
        watches: Vec::new(),
        makers: Vec::new(),
        written: written_files::written(processes).into_iter().filter(|file| !is_standard(file)).collect(),
        ids: processes.iter().flat_map(|process| tree::ids(process.pid)).collect(),
        stopped: tree::stopped(processes).into_iter().chain(job.stopped.ids()).collect(),
        attributes: attributes::read_after(earlier, processes),
    }
}

/// CRIU's part of the manifest, after a dump.
fn part(criu: &Criu, root_pid: u32, notes: ImageNotes, files_image: &FilesImage) -> Result<CriuPart, CheckpointError> {
    let notes = ImageNotes {
        written: written_files::with_lengths(notes.written, &lengths(files_image, &notes.shared)),
        ..notes
    };
    Ok(CriuPart {
        version: criu.version.clone(),
        folder: CRIU_FOLDER.to_owned(),
        root_pid,
        options: Vec::new(),
        notes: notes
            .encode()
            .map_err(|error| CheckpointError::System { doing: "write the notes", source: error.into() })?,
    })
}

/// The lengths of files as CRIU saw them. Files that have lost their names count by the names that they have now.
fn lengths(files_image: &FilesImage, shared: &[Segment]) -> BTreeMap<String, u64> {
    let mut lengths = files_image.lengths.clone();
    for link in &files_image.links {
        let names = Segment::names_of(shared, &link.name).filter_map(|name| name.to_str());
        lengths.extend(names.zip(iter::repeat(link.length)).filter_map(|(name, length)| Some((name.into(), length?))));
    }
    lengths
}

pub(crate) fn manifest(
    job: &JobState,
    members: &[Member],
    sessions: Vec<Session>,
    criu: Option<CriuPart>,
    times: Times,
) -> Manifest {
    let member = |session: &Session| {
        let member = members.iter().find(|member| session_name(member) == session.name);
        let (pid, name) = member.map_or((0, String::new()), |member| (member.pid, member.program.clone()));
        Program { pid, name, session: Some(session.name.clone()) }
    };
    Manifest {
        written_by: env!("CARGO_PKG_VERSION").to_owned(),
        job: JobPart { name: job.folder.name(), host: job.host.clone(), command: job.command.clone() },
        times,
        programs: sessions.iter().map(member).collect(),
        sessions,
        criu,
        ..Manifest::default()
    }
}
