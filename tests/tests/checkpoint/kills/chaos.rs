//! Each process of a job is killed, stopped or cut off at any moment, while the job runs, is checkpointed, restored or
//! moved.
//!
//! The same must hold after every fault:
//!
//! - A program that has lost nothing is right; one that has lost something reports that.
//! - The last whole checkpoint verifies, and comes to the right end.
//! - No process, session or file stays.
//! - The server serves the next program.
//!
//! Each round draws the fault, its target and its moment from a seed. The moment is one of the clock, so the same round may
//! hit something else another time; whatever it hits, the above holds. `KATYDID_CHAOS_ROUNDS` runs more rounds on each way,
//! and `KATYDID_CHAOS_SEED` begins with another seed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::gate::ProxyGate;
use katydid_tests::job::{CHECKPOINTED_EXIT_STATUS, Job, Plan};
use katydid_tests::opencl;
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program::{Outcome, Running};
use katydid_tests::server::Server;
use katydid_tests::watch::{children, go_on, kill, runs, stand_still, tree, until};
use katydid_tests::way::Way;

use crate::programs::{Random, number};
use crate::scenarios::{LOOP, Scenario, SmallFileSystem, images, was_stopped};
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, describe, opencl_server, way_to};

/// Default number of rounds on each way.
const CHAOS_ROUND_COUNT: u64 = 4;
const CHAOS_WAY_NAMES: [&str; 4] = ["shm", "unix", "tcp", "private"];
/// Exit codes of a program in which a killed CRIU was at work (`katydid run` reports them).
const LEFT_BY_CRIU: [i32; 3] = [128 + 5, 128 + 11, 128 + 13];
/// The most polls for a CRIU; the interval between two of them follows.
const MAX_POLLS: usize = 100;
const CHAOS_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The most jobs that a round starts until one lives long enough for a checkpoint, on a busy machine too.
const MAX_CHAOS_ATTEMPTS: usize = 20;
/// Upper limit of the moment of a fault, in milliseconds from the start of a checkpoint, a restore or a move: none takes longer.
const KILL_SPAN_MS: u64 = 300;

/// The trials' names and ways.
pub(crate) fn trials() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    CHAOS_WAY_NAMES.into_iter().map(|way| ("random_kills_and_cuts_lose_nothing", chaos as Scenario, way))
}

fn chaos(paths: &Paths, way: &str) -> Result<()> {
    let (rounds, first) = (number("KATYDID_CHAOS_ROUNDS", CHAOS_ROUND_COUNT)?, number("KATYDID_CHAOS_SEED", 1)?);
    let has_opencl = opencl::has_driver(paths);
    let (mut field, mut failures) = (None, Vec::new());
    for seed in first..first + rounds {
        let mut random = Random(seed ^ way.bytes().fold(0, |sum, byte| (sum << 8) | u64::from(byte)));
        let plan = Round::draw(&mut random, way, has_opencl);
        let here = match field.take() {
            Some(field) => field,
            None => ChaosField::new(paths, way, has_opencl)?,
        };
        match ChaosField::round(here, &plan) {
            Ok(next) => field = Some(next),
            Err(error) => {
                let failure = format!("seed {seed}: {plan:?}: {error:#}");
                eprintln!("{way}: {failure}");
                failures.push(failure);
            }
        }
    }
    ensure!(failures.is_empty(), "{} of {rounds} rounds failed:\n{}", failures.len(), failures.join("\n"));
    Ok(())
}

/// The program that a round disturbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Cuda,
    Heavy,
    Family,
    Ranks,
    Opencl,
}

/// What the job is doing when the fault comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Running,
    Checkpoint { full: bool, stops: bool },
    Restore,
    Migrate,
    Every,
}

/// The process that the fault hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Program,
    Worker,
    Server,
    Supervisor,
    Guard,
    /// Supervisor and guard at once.
    Both,
    Asker,
    Criu,
}

/// The fault of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill(Victim),
    /// Stops the victim for this duration in milliseconds.
    Pause(Victim, u64),
    /// Cuts all connections to the server.
    Cut,
    /// Fills the disk of the image.
    Full,
}

/// One round of the test, as drawn from the seed.
#[derive(Debug)]
struct Round {
    subject: Subject,
    action: Action,
    fault: Fault,
    /// Milliseconds from the start of the action.
    after: u64,
    /// Chooses among several processes.
    choice: u64,
}

impl Round {
    fn draw(random: &mut Random, way: &str, has_opencl: bool) -> Self {
        let subjects = [Subject::Cuda, Subject::Heavy, Subject::Family, Subject::Ranks, Subject::Opencl];
        let victims = [
            Victim::Program,
            Victim::Worker,
            Victim::Server,
            Victim::Supervisor,
            Victim::Guard,
            Victim::Both,
            Victim::Asker,
            Victim::Criu,
        ];
        let subject = subjects[random.below(if has_opencl { 5 } else { 4 }) as usize];
        let action = match random.below(8) {
            0 => Action::Running,
            1 => Action::Checkpoint { full: true, stops: false },
            2 => Action::Checkpoint { full: false, stops: false },
            3 => Action::Checkpoint { full: false, stops: true },
            4 | 5 => Action::Restore,
            6 if way != "private" => Action::Migrate,
            _ => Action::Every,
        };
        let mut victim = victims[random.below(victims.len() as u64) as usize];
        // A half-made restore that no living process ends has TCP connections that the next restore needs again.
        if (subject, action, victim) == (Subject::Ranks, Action::Restore, Victim::Both) {
            victim = Victim::Supervisor;
        }
        let fault = match random.below(10) {
            0..=5 => Fault::Kill(victim),
            6 | 7 => Fault::Pause(victim, 20 + random.below(400)),
            8 if way == "tcp" => Fault::Cut,
            8 => Fault::Kill(victim),
            _ => Fault::Full,
        };
        // Early moments are more often within the action than late ones.
        let span = KILL_SPAN_MS >> random.below(4);
        Self { subject, action, fault, after: random.below(span), choice: random.next() }
    }

    /// Whether the program may come to another end than its own.
    fn is_fatal(&self) -> bool {
        match self.fault {
            Fault::Kill(victim) => !matches!(victim, Victim::Asker | Victim::Criu) || self.asker_is_supervisor(victim),
            Fault::Cut => true,
            Fault::Pause(..) | Fault::Full => false,
        }
    }

    /// Whether the asker is the supervisor: only the supervisor itself does the restore.
    fn asker_is_supervisor(&self, victim: Victim) -> bool {
        victim == Victim::Asker && matches!(self.action, Action::Restore)
    }

    fn kills_server(&self) -> bool {
        self.fault == Fault::Kill(Victim::Server)
    }
}

/// The place of rounds, one after the other: a stage with folders that nothing else uses.
struct ChaosField {
    stage: Stage,
    /// The server that jobs move to.
    other_server: Server,
    name: String,
    gate: Option<ProxyGate>,
    has_opencl: bool,
    /// Prefix of the names that programs make.
    names: String,
    /// The output of each subject in an undisturbed run.
    right: BTreeMap<Subject, String>,
}

impl ChaosField {
    fn new(paths: &Paths, way: &str, has_opencl: bool) -> Result<Self> {
        let named = if way == "private" { "shm" } else { way };
        let mut stage = if has_opencl {
            Stage::with_opencl(paths, named, &[opencl::WITHOUT_CACHE])?
        } else {
            Stage::new(paths, named)?
        };
        let other_server = server(paths, has_opencl)?;
        let gate = (way == "tcp").then(|| ProxyGate::to(stage.server.tcp(), |_| {})).transpose()?;
        if let Some(gate) = &gate {
            stage.way = Way::Served { name: "tcp", address: gate.address().to_owned(), as_stream: false };
        } else if way == "private" {
            stage.way = Way::Private { driver: driver_under_test() };
        }
        fs::create_dir(stage.image("temporary"))?;
        let names = format!("katydid-chaos-{}-{way}-", std::process::id());
        Ok(Self { stage, other_server, name: way.to_owned(), gate, has_opencl, names, right: BTreeMap::new() })
    }

    /// Runs one round; returns the field if everything is right afterwards.
    fn round(mut self, round: &Round) -> Result<Self> {
        let right = self.undisturbed(round.subject)?;
        let folder = self.stage.image("disk");
        let small = SmallFileSystem::mount_of(&folder, "96m")?;
        let image = folder.join("image");
        self.disturb(round, &image, &right)?;
        if round.kills_server() && self.name != "private" {
            self.succeed()?;
        }
        self.is_whole(round, &image, &right).context("afterwards")?;
        drop(small);
        fs::remove_dir(&folder)?;
        self.is_clean().context("at last")?;
        self.has_no_names(round).context("names")?;
        Ok(self)
    }

    /// Starts a server in place of the killed one.
    fn succeed(&mut self) -> Result<()> {
        until("the killed server is gone", || !runs(self.stage.server.pid()))?;
        let (paths, variables) = (&self.stage.paths, self.variables());
        self.stage.server = self.stage.server.successor(paths, &driver_under_test(), &[], &variables)?;
        Ok(())
    }

    fn variables(&self) -> Vec<(&'static str, std::ffi::OsString)> {
        if self.has_opencl { opencl::driver_without_cache(&self.stage.paths) } else { Vec::new() }
    }

    fn undisturbed(&mut self, subject: Subject) -> Result<String> {
        if let Some(text) = self.right.get(&subject) {
            return Ok(text.clone());
        }
        let outcome = self.start(subject, &[])?.finish(CHECKPOINT_TIMEOUT)?;
        ensure!(outcome.status.success(), "undisturbed: {}", describe(&outcome));
        self.right.insert(subject, outcome.text());
        Ok(outcome.text())
    }

    /// Returns the variables of a supervisor, which may also be the server, and of its program.
    fn settings(&self) -> Vec<(&'static str, String)> {
        let opencl = self.variables().into_iter().map(|(name, value)| (name, value.to_string_lossy().into_owned()));
        opencl.chain([("TMPDIR", self.stage.image("temporary").display().to_string())]).collect()
    }

    fn start(&self, subject: Subject, options: &[&str]) -> Result<Job<'_>> {
        let settings = self.settings();
        let variables: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let (program, arguments): (PathBuf, &[&str]) = match subject {
            Subject::Cuda => (self.stage.paths.program(LOOP.0, LOOP.1), &["60", "15"]),
            Subject::Heavy => (self.stage.paths.program(LOOP.0, LOOP.1), &["40", "20", "16"]),
            Subject::Family => (self.stage.paths.program("kept_processes", LOOP.1), &["2000"]),
            Subject::Ranks => (self.stage.paths.program("kept_ranks", Variant::Plain), &["1000", &self.names]),
            Subject::Opencl => (opencl::program(&self.stage.paths, "kept_large"), &["8", "50", "15"]),
        };
        let plan = Plan { arguments, options, variables: &variables, ..Plan::default() };
        let Stage { paths, home, way, .. } = &self.stage;
        Ok(Job::start(paths, home, way, "victim", &program, &plan)?)
    }

    fn restore(&self, image: &Path) -> Result<Job<'_>> {
        let settings = self.settings();
        let variables: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
        self.stage.restore_from("victim", image, &Plan { variables: &variables, ..Plan::default() })
    }

    /// Starts a job with the round's action, and injects the round's fault.
    fn disturb(&self, round: &Round, image: &Path, right: &str) -> Result<()> {
        let path = image.display().to_string();
        let every = ["--image", path.as_str(), "--every", "100ms", "--keep", "2"];
        let job = match round.action {
            Action::Running => self.start_job(round.subject, &[], right)?,
            Action::Every => {
                let job = self.start_job(round.subject, &every, right)?;
                until("there is a checkpoint", || image.join("latest").exists() || !runs(job.pid()))?;
                job
            }
            Action::Restore => {
                was_stopped(self.first_checkpoint(round.subject, image, &[], right)?)?;
                self.restore(image)?
            }
            Action::Checkpoint { .. } | Action::Migrate => {
                self.first_checkpoint(round.subject, image, &["--leave-running"], right)?
            }
        };
        let asker = self.ask(round, &job, image)?;
        sleep(Duration::from_millis(round.after));
        self.inject(round, &job, asker.as_ref(), image)?;
        let asker_outcome = asker.map(|asker| asker.finish(CHECKPOINT_TIMEOUT)).transpose()?;
        let filler = image.with_file_name("filler");
        let _ = fs::remove_file(filler);
        let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
        self.judge(round, &outcome, asker_outcome.as_ref(), right)
    }

    /// Starts a job, and waits for its first line.
    fn start_job(&self, subject: Subject, options: &[&str], right: &str) -> Result<Job<'_>> {
        let mut job = self.start(subject, options)?;
        let first = right.lines().next().context("it says nothing")?;
        job.wait_for(&format!("{first}\n"))?;
        Ok(job)
    }

    /// Starts a job with a checkpoint. Programs are short: if one ends before its checkpoint, its output must be right, and
    /// another job is tried.
    fn first_checkpoint(&self, subject: Subject, image: &Path, options: &[&str], right: &str) -> Result<Job<'_>> {
        for _ in 0..MAX_CHAOS_ATTEMPTS {
            let job = self.start_job(subject, &[], right)?;
            let checkpoint_outcome = job.checkpoint(image, options)?;
            if checkpoint_outcome.status.success() {
                return Ok(job);
            }
            ensure!(outcome_came_first(&checkpoint_outcome), "the first checkpoint: {}", describe(&checkpoint_outcome));
            let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
            ensure!(outcome.status.success() && outcome.text() == right, "before a checkpoint: {}", describe(&outcome));
        }
        bail!("no job of {MAX_CHAOS_ATTEMPTS} lived to be checkpointed")
    }

    /// Starts the round's action.
    fn ask(&self, round: &Round, job: &Job<'_>, image: &Path) -> Result<Option<Running>> {
        let mut command = match round.action {
            Action::Checkpoint { full, stops } => {
                let options = [(!stops).then_some("--leave-running"), full.then_some("--full")];
                job.checkpoint_command(image, &options.into_iter().flatten().collect::<Vec<_>>())
            }
            Action::Migrate => {
                let to = match way_to(&self.name, &self.other_server)? {
                    Way::Served { address, .. } => address,
                    _ => bail!("no such way"),
                };
                job.migrate_command(&to, &[])
            }
            _ => return Ok(None),
        };
        command.env("TMPDIR", self.stage.image("temporary"));
        Ok(Some(Running::start(&mut command, Stdio::null())?))
    }

    /// Kills or stops the victim, cuts the connection, or fills the disk.
    fn inject(&self, round: &Round, job: &Job<'_>, asker: Option<&Running>, image: &Path) -> Result<()> {
        match round.fault {
            Fault::Kill(victim) => self.victims(round, victim, job, asker).into_iter().for_each(kill),
            Fault::Pause(victim, long) => {
                let victims = self.victims(round, victim, job, asker);
                victims.iter().copied().for_each(stand_still);
                sleep(Duration::from_millis(long));
                victims.into_iter().for_each(go_on);
            }
            Fault::Cut => self.gate.iter().for_each(ProxyGate::cut),
            Fault::Full => {
                // Writes as much as there is room for.
                let _ = fs::write(image.with_file_name("filler"), vec![1; 96 << 20]);
            }
        }
        Ok(())
    }

    /// Returns the current pids of the victim; none if there is no such process.
    fn victims(&self, round: &Round, victim: Victim, job: &Job<'_>, asker: Option<&Running>) -> Vec<u32> {
        let processes = tree(job.pid());
        let guard = processes.iter().copied().find(|pid| line(*pid).contains("\0job-guard\0"));
        let is_criu = |pid: &u32| Some(*pid) != guard && line(*pid).contains("/criu\0");
        let choose = |mut from: Vec<u32>| {
            from.sort_unstable();
            let index = round.choice.checked_rem(from.len() as u64);
            index.map(|index| from[index as usize]).into_iter().collect::<Vec<u32>>()
        };
        match victim {
            Victim::Program => {
                let below = guard.map(tree).unwrap_or_default();
                choose(below.into_iter().skip(1).filter(|pid| !is_criu(pid)).collect())
            }
            Victim::Worker if self.name == "private" => {
                choose(processes.into_iter().filter(|pid| line(*pid).contains("\0worker\0")).collect())
            }
            Victim::Worker => {
                let sessions = self.stage.server.sessions().unwrap_or_default();
                let pids = sessions.iter().filter_map(|session| session["worker_pid"].as_u64());
                choose(pids.filter_map(|pid| u32::try_from(pid).ok()).collect())
            }
            Victim::Server if self.name != "private" => vec![self.stage.server.pid()],
            Victim::Server | Victim::Supervisor => vec![job.pid()],
            Victim::Guard => guard.into_iter().collect(),
            Victim::Both => guard.into_iter().chain([job.pid()]).collect(),
            Victim::Asker => {
                asker.map(Running::pid).or((round.action == Action::Restore).then(|| job.pid())).into_iter().collect()
            }
            Victim::Criu => {
                let found = || tree(job.pid()).into_iter().filter(is_criu).collect::<Vec<u32>>();
                // The victim exists for a part of the action only.
                let looks = std::iter::repeat_with(found).inspect(|_| sleep(CHAOS_POLL_INTERVAL)).take(MAX_POLLS);
                looks.into_iter().find(|found| !found.is_empty()).unwrap_or_default()
            }
        }
    }

    /// Checks that the job has come to an end that this round allows.
    fn judge(&self, round: &Round, outcome: &Outcome, checkpoint: Option<&Outcome>, right: &str) -> Result<()> {
        let report = || {
            format!("the job: {}\n=== the asker: {}", describe(outcome), checkpoint.map(describe).unwrap_or_default())
        };
        let text = outcome.text();
        let is_right = |text: &str| match round.action {
            Action::Restore => right.ends_with(text),
            _ => right == text,
        };
        let is_stopped = matches!(round.action, Action::Checkpoint { stops: true, .. })
            && outcome.status.code() == Some(CHECKPOINTED_EXIT_STATUS)
            && right.starts_with(&text);
        let is_begun = right.contains(text.trim_end_matches(|letter| letter != '\n'));
        let of_criu = round.fault == Fault::Kill(Victim::Criu)
            && (outcome.status.code().is_some_and(|code| LEFT_BY_CRIU.contains(&code))
                || round.action == Action::Restore)
            && is_begun
            && !outcome.errors().is_empty();
        let of_disk = round.fault == Fault::Full && round.action == Action::Restore && !outcome.errors().is_empty();
        let went_well = outcome.status.success() && is_right(&text);
        let is_excused =
            round.is_fatal() && !outcome.status.success() && (names_a_cause(outcome) || self.kills_outright(round));
        ensure!(went_well || is_stopped || of_criu || of_disk || is_excused, "a wrong end: {}", report());
        if let Some(checkpoint) = checkpoint {
            let is_told =
                checkpoint.status.success() || !checkpoint.errors().is_empty() || checkpoint.text().contains("error");
            ensure!(is_told || round.fault == Fault::Kill(Victim::Asker), "it failed without a word: {}", report());
            let is_harmless = matches!(round.fault, Fault::Pause(..));
            ensure!(
                checkpoint.status.success() || !is_harmless || outcome_came_first(checkpoint),
                "a pause is not a failure: {}",
                report()
            );
        }
        Ok(())
    }

    /// Whether the victim dies without a message, its own or another process's.
    fn kills_outright(&self, round: &Round) -> bool {
        match round.fault {
            Fault::Kill(Victim::Worker) => false,
            Fault::Kill(Victim::Server) => self.name == "private",
            Fault::Kill(_) => true,
            _ => false,
        }
    }

    /// Checks that the image is whole and comes to the right end, and that nothing is left.
    fn is_whole(&self, round: &Round, image: &Path, right: &str) -> Result<()> {
        if round.action != Action::Running && (round.action != Action::Every || image.join("latest").exists()) {
            let outcome = images(&self.stage.paths, "verify", image)?;
            ensure!(outcome.status.success(), "the image is damaged: {}", describe(&outcome));
            let outcome = self.restore(image)?.finish(CHECKPOINT_TIMEOUT)?;
            let mut is_right = outcome.status.success() && right.ends_with(&outcome.text());
            // A killed process is missing in later checkpoints, and the others may end early without it.
            let has_several = matches!(round.subject, Subject::Family | Subject::Ranks);
            if has_several && round.fault == Fault::Kill(Victim::Program) {
                is_right |= right.contains(&outcome.text());
            }
            ensure!(is_right, "it did not come to the right end: {}", describe(&outcome));
        } else {
            let outcome = self.start(round.subject, &[])?.finish(CHECKPOINT_TIMEOUT)?;
            ensure!(outcome.status.success() && outcome.text() == right, "the next program: {}", describe(&outcome));
        }
        Ok(())
    }

    fn is_clean(&self) -> Result<()> {
        self.stage.is_clean()?;
        self.other_server.workers_of(0)?;
        let mark = self.stage.image("").display().to_string();
        until("no process of the job is left", || marked(&mark).is_empty())
            .with_context(|| format!("there are {:?}", marked(&mark).into_iter().map(line).collect::<Vec<_>>()))?;
        let temporary = self.stage.image("temporary");
        let left = || fs::read_dir(&temporary).into_iter().flatten().flatten().map(|entry| entry.path());
        until("nothing temporary is left", || left().next().is_none())
            .with_context(|| format!("there are {:?}", left().collect::<Vec<_>>()))?;
        for server in [&self.stage.server, &self.other_server] {
            until("all children of the server run", || children(server.pid()).into_iter().all(runs))?;
        }
        Ok(())
    }

    /// Checks that no file made for CRIU is left. If supervisor and guard are killed at once, one may stay until another
    /// process has its turn there. Files that a program named and did not live to remove are the program's.
    fn has_no_names(&self, round: &Round) -> Result<()> {
        let is_excused = round.fault == Fault::Kill(Victim::Both);
        for folder in ["/dev/shm", "/tmp"].map(Path::new) {
            for entry in fs::read_dir(folder)?.flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.trim_start_matches("sem.").starts_with(&self.names) {
                    // A second name of a file of the round is one that was made for CRIU.
                    let links = entry.metadata()?.nlink();
                    fs::remove_file(entry.path())?;
                    ensure!(links == 1 || is_excused, "{name} has {links} names");
                }
            }
        }
        Ok(())
    }
}

fn server(paths: &Paths, has_opencl: bool) -> Result<Server> {
    if has_opencl {
        opencl_server(paths, &[opencl::WITHOUT_CACHE])
    } else {
        Ok(Server::start(paths, &driver_under_test(), &[])?)
    }
}

/// Whether a process gives a reason.
fn names_a_cause(outcome: &Outcome) -> bool {
    !outcome.errors().is_empty() || outcome.text().lines().any(|line| line.contains("returned"))
}

/// Whether a checkpoint failed because the job had ended before it.
fn outcome_came_first(checkpoint: &Outcome) -> bool {
    let text = checkpoint.errors() + &checkpoint.text();
    // The last case: the control socket disappeared between lookup and connect. How the job ended is judged as well.
    ["no job", "has ended", "is ending", "no program", "cannot reach"].iter().any(|words| text.contains(words))
}

/// Returns the command line of a process.
fn line(pid: u32) -> String {
    String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).into_owned()
}

/// Returns processes whose environment names a folder of the round.
fn marked(folder: &str) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let names = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(folder)
    };
    ids.filter(|pid| runs(*pid) && names(pid)).collect()
}
