//! Moves the sessions of a running job to another server, or to other devices. Its processes stay where they are, so CRIU has no
//! part in it:
//!
//! ```text
//! rehearse                  the objects of OpenCL sessions are made there, or refused: the programs run
//! hold, pause, capture      as for a checkpoint                     ┐
//! write, commit             an image of the GPU side                │ the programs are paused
//! rebuild                   each session in a worker there, in the  │
//!                           one that has rehearsed it if it can be  │
//! leave, resume             the programs change to these workers    ┘
//! ```
//!
//! The rule: whatever the other side refuses, it refuses before a program leaves its worker, and everything goes on where it was.
//! What can be known before the pause is refused before the pause, as is a server that does not answer a greeting. The old
//! workers end when their programs have gone.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Instant;

use katydid_image::{CheckpointChoice, CheckpointReader, Compression, Image, Manifest, Options, Times, Writer};
use katydid_scratch::Scratch;
use katydid_transport::Address;
use katydid_wire::handshake::SessionKind;

use crate::checkpoint::error::{CheckpointError, MAX_CHECKPOINT_ATTEMPTS};
use crate::checkpoint::quiesce::{QuiescedJob, address, in_parallel, session_name};
use crate::checkpoint::recovery::Recovery;
use crate::checkpoint::request::{image_of, micros, millis_since_epoch, options};
use crate::checkpoint::run::{Attempt, find_processes, manifest, sessions, undo};
use crate::checkpoint::stages::Stages;
use crate::checkpoint::{fault_injection, obstacles};
use crate::supervisor::companion::{self, Catalogue, Companion, GREETING_TIMEOUT, Plan, Progress, Questions, Rebuild};
use crate::supervisor::members::Member;
use crate::supervisor::state::JobState;
use crate::supervisor::view::{CompletedMigration, Migration, Request, StageProgress};
use crate::sync::lock;

/// The link of a member that shares memory with its worker.
const SHARED_MEMORY_LINK: u32 = 1;

/// The folder of the checkpoint that carries the sessions.
struct MigrationImage {
    path: PathBuf,
    /// A temporary folder, which this value removes.
    own: Option<Scratch>,
}

impl MigrationImage {
    fn new(requested: Option<&Path>) -> Result<Self, CheckpointError> {
        if let Some(path) = requested {
            return Ok(Self { path: path.to_owned(), own: None });
        }
        let scratch = Scratch::new("migrate");
        let scratch = scratch.map_err(|source| CheckpointError::System {
            doing: "make a folder for the checkpoint on the way",
            source,
        })?;
        Ok(Self { path: scratch.path().to_owned(), own: Some(scratch) })
    }
}

/// Moves all sessions of a job. The caller makes sure that no other operation on the job runs meanwhile.
pub(crate) fn migrate(
    job: &JobState,
    requested: &Migration,
    notify: &(dyn Fn(&StageProgress) + Sync),
) -> Result<CompletedMigration, CheckpointError> {
    let (since, stages) = (Instant::now(), Stages::default());
    let notify = &|stage: &StageProgress| {
        stages.enter(stage);
        notify(stage);
    };
    let server = address(&requested.to)?;
    let request = request(requested)?;
    notify(&StageProgress::Prepare);
    fault_injection::inject(&StageProgress::Prepare)?;
    let root = job.root.wait_for_start().ok_or(CheckpointError::NoProgram)?;
    let migration_image = MigrationImage::new(requested.image.as_deref())?;
    let image = Image::create_or_open(&migration_image.path)?;
    let run = MoveRun {
        job,
        requested,
        server: &server,
        migration_image: &migration_image,
        image: &image,
        notify,
        stages: &stages,
    };
    let mut rehearsed = run.rehearse()?;
    let ahead: Vec<u32> = rehearsed.iter().map(|companion| companion.worker).collect();
    for _ in 0..MAX_CHECKPOINT_ATTEMPTS {
        let writer = image.begin(options(&request))?;
        let Some((mut stop, manifest, quiesce_start)) = run.prepare(&writer, root, &request, &mut rehearsed)? else {
            continue;
        };
        let (workers, bytes_content) = match run.go(&mut stop, writer, manifest, &mut rehearsed) {
            Ok(moved) => moved,
            Err(error) => return Err(undo(&mut stop, None, Questions::Refused, error)),
        };
        return Ok(CompletedMigration {
            job: job.folder.name(),
            to: requested.to.clone(),
            rehearsed: workers.iter().filter(|worker| ahead.contains(worker)).count(),
            workers,
            bytes_content,
            stopped_us: micros(quiesce_start.elapsed()),
            took_us: micros(since.elapsed()),
            stages_us: stages.end(),
        });
    }
    Err(CheckpointError::ProgramsKeepArriving)
}

/// The request for the checkpoint that carries the sessions. A temporary image is not compressed.
fn request(requested: &Migration) -> Result<Request, CheckpointError> {
    let request = Request {
        image: requested.image.clone().unwrap_or_default(),
        leave_running: true,
        device_only: false,
        full: false,
        keep: None,
        level: requested.image.is_none().then_some(0),
        quiesce_timeout_ms: requested.quiesce_timeout_ms,
        force: false,
    };
    if requested.image.is_some() {
        image_of(&request)?;
    }
    Ok(request)
}

/// Times of an image for which no program is paused.
fn times() -> Times {
    Times { began: millis_since_epoch(), written: millis_since_epoch(), stopped_us: 0 }
}

/// One move from server to server.
struct MoveRun<'a> {
    job: &'a JobState,
    requested: &'a Migration,
    server: &'a Address,
    migration_image: &'a MigrationImage,
    image: &'a Image,
    notify: &'a (dyn Fn(&StageProgress) + Sync),
    stages: &'a Stages,
}

impl<'a> MoveRun<'a> {
    /// Quiesces the job and writes its sessions to the image. Returns `None` if a program joined meanwhile; then everything goes
    /// on as before. Drops the workers in `rehearsed` whose sessions are gone.
    fn prepare(
        &self,
        writer: &Writer,
        root: u32,
        request: &Request,
        rehearsed: &mut Vec<Companion>,
    ) -> Result<Option<(QuiescedJob<'a>, Manifest, Instant)>, CheckpointError> {
        let attempt = Attempt {
            job: self.job,
            root,
            request,
            writer,
            criu: None,
            notify: self.notify,
            stages: self.stages,
            libraries: OnceLock::new(),
            attributes: OnceLock::new(),
        };
        attempt.wait_for_arrivals()?;
        obstacles::check_all_known(self.job, root)?;
        let arrivals = self.job.members.arrivals();
        let mut stop = attempt.connected()?;
        self.check(&stop.members())?;
        rehearsed.retain(|companion| {
            stop.participants.iter().any(|participant| session_name(&participant.member) == companion.session)
        });
        find_processes(root, &mut stop)?;
        let quiesce_start = Instant::now();
        let questions = Questions::Write(writer);
        match attempt.stand_still(&mut stop, None, arrivals) {
            Ok(Some(_)) => stop.check_no_sharing().map_err(|error| undo(&mut stop, None, questions, error))?,
            Ok(None) => return stop.go_on(questions).map(|()| None),
            Err(error) => return Err(undo(&mut stop, None, questions, error)),
        }
        match attempt.write(&mut stop, false) {
            Ok(sessions) => {
                let manifest = manifest(self.job, &stop.members(), sessions, None, times());
                Ok(Some((stop, manifest, quiesce_start)))
            }
            Err(error) => Err(undo(&mut stop, None, questions, error)),
        }
    }

    /// Greets the other server, and has it make the objects of all OpenCL sessions, without contents, and returns the workers that made them. A
    /// device that is too small, a program that does not build, or a missing server refuses the move now, while the programs run.
    fn rehearse(&self) -> Result<Vec<Companion>, CheckpointError> {
        let mut members = self.job.members.list();
        self.check(&members)?;
        companion::greet(self.server, GREETING_TIMEOUT)?;
        members.retain(|member| member.session == SessionKind::OPENCL);
        if members.is_empty() {
            return Ok(Vec::new());
        }
        let folder = MigrationImage::new(None)?;
        let image = Image::create_or_open(&folder.path)?;
        let writer = image.begin(Options { compression: Compression::None, ..Options::default() })?;
        let mut stop = QuiescedJob::of(&self.job.members, members)?;
        let plan = Plan { device_only: true, full: true, level: 0, outline: true };
        let parts = stop.outline(plan, &writer)?;
        let manifest = manifest(self.job, &stop.members(), sessions(&writer, &stop, parts)?, None, times());
        let committed = writer.commit(manifest)?;
        let reader = image.checkpoint(CheckpointChoice::Number(committed.number))?;
        self.rebuild(&stop, &reader, &Catalogue::new(&reader), &mut Vec::new())
    }

    /// Refuses what is known to be impossible, before anything is paused.
    fn check(&self, members: &[Member]) -> Result<(), CheckpointError> {
        if !matches!(self.server, Address::Unix(_))
            && let Some(member) = members.iter().find(|member| member.link == SHARED_MEMORY_LINK)
        {
            let (program, pid, to) = (member.program.clone(), member.pid, self.requested.to.clone());
            return Err(CheckpointError::Link { program, pid, to });
        }
        let has_choice = members.iter().any(|member| member.session == SessionKind::OPENCL);
        if self.requested.devices.is_empty() || has_choice { Ok(()) } else { Err(CheckpointError::NoChoice) }
    }

    /// Reports that a stage begins.
    fn begin(&self, stage: &StageProgress) -> Result<(), CheckpointError> {
        (self.notify)(stage);
        Ok(fault_injection::inject(stage)?)
    }

    /// Completes the image, rebuilds the sessions from it, and moves the programs over. Returns the new workers, and the bytes
    /// that were moved.
    fn go(
        &self,
        stop: &mut QuiescedJob<'_>,
        writer: Writer,
        manifest: Manifest,
        rehearsed: &mut Vec<Companion>,
    ) -> Result<(Vec<u32>, u64), CheckpointError> {
        self.begin(&StageProgress::Commit)?;
        let committed = writer.commit(manifest)?;
        let reader = self.image.checkpoint(CheckpointChoice::Number(committed.number))?;
        let catalogue = Catalogue::new(&reader);
        self.begin(&StageProgress::Rebuild)?;
        let mut rebuilt = self.rebuild(stop, &reader, &catalogue, rehearsed)?;
        let workers = rebuilt.iter().map(|companion| companion.worker).collect();
        self.begin(&StageProgress::Leave)?;
        stop.detach(Questions::Refused)?;
        self.leave(stop)?;
        self.begin(&StageProgress::Resume)?;
        stop.move_to(&mut rebuilt, &catalogue, &self.requested.to)?;
        self.job.locked_processes.forget_gpus();
        // Later programs read the server from here; without it they would use the old one.
        let result = self.job.set_server(&self.requested.to);
        result.map_err(|source| CheckpointError::System { doing: "note the server", source })?;
        if self.migration_image.own.is_none() {
            *lock(&self.job.recovery) =
                Some(Recovery::of_stop(self.migration_image.path.clone(), self.image.id(), committed.number, stop));
        }
        Ok((workers, committed.sizes.content))
    }

    /// Has the programs let go of their workers. No program comes back before all have left: the last message of each is read
    /// first.
    fn leave(&self, stop: &mut QuiescedJob<'_>) -> Result<(), CheckpointError> {
        let hidden = self.job.members.hide();
        let _hidden = hidden.map_err(|source| CheckpointError::System { doing: "hide the job socket", source })?;
        stop.split().0.leave()
    }

    /// Rebuilds each session in the worker that `rehearsed` it, or in a new one.
    fn rebuild(
        &self,
        stop: &QuiescedJob<'_>,
        reader: &CheckpointReader,
        catalogue: &Catalogue<'_>,
        rehearsed: &mut Vec<Companion>,
    ) -> Result<Vec<Companion>, CheckpointError> {
        let directory = reader.directory()?;
        let devices = self.requested.devices.join("\n");
        let mut with_worker = |name: String| {
            let worker = rehearsed.iter().position(|companion| companion.session == name);
            (name, worker.map(|worker| rehearsed.swap_remove(worker)))
        };
        let sessions =
            stop.participants.iter().map(|participant| with_worker(session_name(&participant.member))).collect();
        let directory = directory.as_ref().map(AsFd::as_fd);
        let generations = &self.job.generations;
        let (device_only, rehearsal, memory, devices) = (true, false, None, &*devices);
        let plan = Rebuild { catalogue, directory, device_only, rehearsal, memory, generations, devices };
        let companions = in_parallel(sessions, |(name, worker): (String, Option<Companion>)| {
            let companion = Companion::rebuild_on(worker, self.server, &name, &plan, &Progress::default());
            Ok::<_, CheckpointError>(companion?)
        });
        companions.into_iter().collect()
    }
}
