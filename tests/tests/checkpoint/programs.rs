//! Every program of `tests/apps`, with checkpoints at random calls, each restored later. The output must equal that of an
//! undisturbed run, both where the program went on and where it was killed and restored.

use std::env;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::slice::hash;
use katydid_tests::catalog::{App, Variant};
use katydid_tests::job::{CHECKPOINTED_EXIT_STATUS, Job, Plan};
use katydid_tests::opencl::{RANDOM_PROGRAM, is_pocl};
use katydid_tests::paths::{PACK_VARIABLE, Paths, driver_under_test};
use katydid_tests::program::Outcome;
use katydid_tests::trial;
use katydid_tests::way::Way;
use libtest_mimic::{Failed, Trial};

use crate::frameworks::{UndisturbedRun, most_calls};
use crate::is_sweep;
use crate::stage::{CHECKPOINT_TIMEOUT, Checkpoint, Stage, WAY_NAMES, continues, describe, undisturbed_output};

/// The error for a program that ended while its supervisor retried after a temporary failure. The program must have ended well.
const ENDED_MEANWHILE: &str = "the program has ended";
/// Number of checkpoints of a run, unless the environment sets it.
const CHECKPOINT_COUNT: u64 = 3;
/// Prefixes of programs made for these tests: they run on every way, in every run.
const LONG_LIVED: [&str; 2] = ["kept_", "long_"];

/// Words of the refusal for an OpenCL queue that waits for the program, which is held. The checkpoint waits for the
/// queue's work, or for frames or calls of the program after that work. Which of these it waits for at its deadline
/// depends on the machine's speed.
const GATED: &str = "in time";
/// How long a checkpoint waits for such a queue in tests. The event that it waits for never comes, however slow the machine is.
const GATED_QUIESCE_TIMEOUT: [&str; 2] = ["--quiesce-timeout", "3s"];

/// Programs that at times are in a state that no checkpoint saves, and words of the refusals. A refusal must name the state,
/// and the program must go on as if the checkpoint had never been asked for.
const REFUSALS: [(&str, &[&str]); 21] = [
    // These programs corrupt a context on purpose before they end.
    ("device_assert", &["has the sticky error 710"]),
    ("illegal_address", &["has the sticky error 700"]),
    ("launch_blocking", &["has the sticky error 700"]),
    ("torch.device_assertion", &["has the sticky error 710"]),
    // Streams of these programs wait for values that the program writes later, which it cannot do while it is held.
    ("stream_values", &["waits for a value that is never written"]),
    ("context_events", &["waits for a value that is never written"]),
    ("long_jump", &["waits for a value that is never written"]),
    // Functions in their streams wait for later steps of the program; one program maps host memory by itself.
    ("functions_memory", &["waits for a value that is never written", "its memory is the host's"]),
    ("full_queues", &["waits for a value that is never written"]),
    ("graph_nodes", &["waits for a value that is never written"]),
    // One process of this program locks the other, whose stream waits at times.
    ("process_checkpoint", &["was locked by cuCheckpointProcessLock", "waits for a value that is never written"]),
    // The program's processes send each other descriptors.
    ("kept_shared", &["descriptors are on their way"]),
    // At times, one process of this program has a block open that the other one has released.
    ("shared_memory", &["that another program still has open"]),
    // The same holds for one of its ranks when NCCL ends.
    ("torch.collectives_of_two", &["that another program still has open"]),
    // These programs map the memory of their arrays by themselves.
    ("sparse_arrays", &["its memory is mapped piece by piece", "it is a pool of tiles"]),
    ("own_streams", &["its memory is mapped piece by piece", "it is a pool of tiles"]),
    // This program maps host memory by itself.
    ("host_blocks", &["its memory is the host's"]),
    // Queues of these programs wait for events that the program sets later.
    ("user_events", &[GATED]),
    ("out_of_order", &[GATED]),
    ("kept_failures", &[GATED]),
    ("random_calls", &[GATED]),
];
/// Programs that must be refused on a real GPU: no process can read the heap of its kernels.
const REFUSALS_OF_GPUS: [(&str, &[&str]); 3] = [
    ("kept_heap", &["allocate memory in kernels"]),
    ("device_malloc", &["allocate memory in kernels"]),
    ("virtual_functions", &["allocate memory in kernels"]),
];

/// Whether queues of a program wait for the program at times.
fn is_gated(program: &str) -> bool {
    REFUSALS.iter().any(|(name, words)| *name == program && words.contains(&GATED))
}

/// Programs with another setting than the usual one, and the ways on which it matters: large copies are compressed for a network.
const OTHERWISE: [(&str, (&str, &str), &str, &str); 2] = [
    ("packed_copies", ("KATYDID_PACKING", "always"), "tcp", "bandwidth"),
    ("packed_copies", ("KATYDID_PACKING", "always"), "unix", "big_copy"),
];

/// The program that keeps state on all of its devices.
const DEVICES: &str = "kept_devices";

/// Number of steps of random calls.
const RANDOM_STEPS: &str = "100";

/// Words of a restore that cannot place shared virtual memory at its old address.
const MOVED: &[&str] = &["the driver here does not give that address"];

/// Whether a program was made to hold state across checkpoints.
pub(crate) fn is_long_lived(program: &str) -> bool {
    LONG_LIVED.iter().any(|start| program.starts_with(start))
}

/// Returns a test for each program and variant, on one way or on all.
pub(crate) fn trials(paths: &Paths, apps: &[App]) -> Vec<Trial> {
    let all = env::var("KATYDID_CHECKPOINT_WAYS").is_ok_and(|ways| ways == "all");
    // A pack has only what also runs on another machine.
    let is_pack = env::var_os(PACK_VARIABLE).is_some();
    let tests = apps.iter().filter(|app| app.is_test() && (app.travels() || !is_pack));
    let mut trials = Vec::new();
    for (index, app) in tests.enumerate() {
        let everywhere = all || is_long_lived(&app.name);
        // One variant and one way each, so that each way gets many programs.
        let variants = if all { app.variants() } else { &app.variants()[..1] };
        let ways: Vec<&str> = if everywhere { WAY_NAMES.to_vec() } else { vec![WAY_NAMES[index % WAY_NAMES.len()]] };
        for (&variant, way) in variants.iter().flat_map(|variant| ways.iter().map(move |way| (variant, *way))) {
            let is_missing = paths.why_not_built(&app.name, variant).is_some();
            let (paths, app) = (paths.clone(), app.clone());
            let title = format!("{way}::{variant}::{}", app.name);
            let trial = trial::test(title, move || run_one(&paths, &app, variant, way, &[]));
            trials.push(trial.with_ignored_flag(is_missing));
        }
    }
    trials.extend(apps.iter().flat_map(|app| otherwise(paths, app)));
    trials.extend(apps.iter().find(|app| app.name == DEVICES).map(|app| hashed(paths, app)));
    trials
}

/// Returns a test of the program with several devices in which kernels hash memory, each that of its own device. For softcuda,
/// host code does so otherwise.
fn hashed(paths: &Paths, app: &App) -> Trial {
    const VARIABLES: [(&str, &str); 2] = [("KATYDID_SOFT_DEVICES", "3"), ("KATYDID_SNAPSHOT_HASH", "kernel")];
    let (paths, app, variant) = (paths.clone(), app.clone(), app.variants()[0]);
    let is_missing = paths.why_not_built(&app.name, variant).is_some();
    let trial = trial::test(format!("shm::{DEVICES}_hashed_by_kernels"), move || {
        let stage = Stage::of_driver(&paths, "shm", "soft", &VARIABLES.map(|(name, value)| (name, value.into())));
        run_on(&stage.map_err(show)?, &app, variant, choice(DEVICES)?, &[])
    });
    trial.with_ignored_flag(is_missing)
}

fn otherwise(paths: &Paths, app: &App) -> impl Iterator<Item = Trial> {
    let its = OTHERWISE.into_iter().filter(|(_, _, _, name)| *name == app.name);
    its.map(move |(title, variable, way, name)| {
        let (paths, app, variant) = (paths.clone(), app.clone(), app.variants()[0]);
        let is_missing = paths.why_not_built(name, variant).is_some();
        let trial =
            trial::test(format!("{way}::{title}_of_{name}"), move || run_one(&paths, &app, variant, way, &[variable]));
        trial.with_ignored_flag(is_missing)
    })
}

/// Whether a second point could keep a program from what the first checkpoint waits for. On a GPU, a wait for a value in one
/// stream also holds up copies of other streams, such as those of a checkpoint. It lasts until the program writes the value,
/// which the program does not do while it is held.
fn is_held_once(program: &str) -> bool {
    driver_under_test() != "soft" && ["context_events", "stream_values"].contains(&program)
}

/// Runs a program with checkpoints; `variables` are the program's.
fn run_one(paths: &Paths, app: &App, variant: Variant, way: &str, variables: &[(&str, &str)]) -> Result<(), Failed> {
    let usual = if is_sweep() || is_long_lived(&app.name) { CHECKPOINT_COUNT } else { 1 };
    let (random, count) = choice_of(&format!("{way}{variant}{}", app.name), usual)?;
    let count = if is_held_once(&app.name) { 1 } else { count };
    run_on(&stage_for(paths, way, &app.name)?, app, variant, (random, count), variables)
}

fn run_on(
    stage: &Stage,
    app: &App,
    variant: Variant,
    (random, count): (Random, usize),
    variables: &[(&str, &str)],
) -> Result<(), Failed> {
    let start = |plan: &Plan<'_>| stage.start_by("job", (&app.name, variant), &Plan { variables, ..*plan });
    let expected = ExpectedOutput::Text(undisturbed_output(&stage.paths, app)?);
    Run::of(&app.name, expected, random, count).through(stage, &start).map_err(show)
}

/// Returns the stage for a program. A program with several devices gets some where a variable sets the
/// driver's number of devices.
fn stage_for(paths: &Paths, way: &str, program: &str) -> Result<Stage> {
    match driver_under_test().as_str() {
        driver @ "soft" if program.ends_with("_devices") => {
            Stage::of_driver(paths, way, driver, &[("KATYDID_SOFT_DEVICES", "3".into())])
        }
        _ => Stage::new(paths, way),
    }
}

/// Checkpoints a program of OpenCL; `further` are variables of the server.
pub(crate) fn run_opencl(paths: &Paths, name: &str, way: &str, further: &[(&'static str, &str)]) -> Result<(), Failed> {
    let (random, count) = choice(&format!("{way}opencl{name}"))?;
    let stage = Stage::with_opencl(paths, way, further)?;
    let start = |plan: &Plan<'_>| stage.start_opencl("job", name, plan);
    let expected = ExpectedOutput::Text(stage.expected_of_opencl(name).map_err(show)?);
    let may_move = name.ends_with("svm") && !is_pocl(paths);
    let run = Run::of(name, expected, random, count).accepting(if may_move { MOVED } else { &[] });
    run.through(&stage, &start).with_context(|| format!("{way}::opencl::{name}")).map_err(show)
}

/// Runs the program of random calls with one seed, with points spread over all of its frames. `variables` are the program's.
pub(crate) fn run_random(paths: &Paths, way: &str, variables: &[(&str, &str)], seed: u64) -> Result<(), Failed> {
    let title = format!("{way}::random_calls of seed {seed}");
    random_calls(paths, way, variables, seed).context(title).map_err(show)
}

fn random_calls(paths: &Paths, way: &str, variables: &[(&str, &str)], seed: u64) -> Result<()> {
    let stage = Stage::with_opencl(paths, way, &[])?;
    let (seed, title) = (seed.to_string(), format!("{way}{RANDOM_PROGRAM}{seed}"));
    let arguments = [seed.as_str(), "1", RANDOM_STEPS];
    let start = |plan: &Plan<'_>| {
        stage.start_opencl("job", RANDOM_PROGRAM, &Plan { arguments: &arguments, variables, ..*plan })
    };
    let undisturbed = start(&Plan::default())?.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(undisturbed.status.success(), "undisturbed: {}", describe(&undisturbed));
    let frames = most_calls(&stage)?;
    Run::with_frame_count(
        RANDOM_PROGRAM,
        ExpectedOutput::Text(undisturbed.text()),
        choice(&title)?,
        frames,
        CHECKPOINT_TIMEOUT,
    )
    .through(&stage, &start)
}

/// Starts the program under test.
pub(crate) type Start<'a, 's> = &'a dyn Fn(&Plan<'_>) -> Result<Job<'s>>;

/// Returns the random generator of a run and its number of checkpoints. Both are the same for the same `title`, unless the
/// environment sets them.
pub(crate) fn choice(title: &str) -> Result<(Random, usize)> {
    choice_of(title, CHECKPOINT_COUNT)
}

fn choice_of(title: &str, usual: u64) -> Result<(Random, usize)> {
    let seed = number("KATYDID_CHECKPOINT_SEED", 1)? ^ hash(title);
    Ok((Random(seed), number("KATYDID_CHECKPOINT_COUNT", usual)? as usize))
}

/// Returns a failure for the end of the test run. In a pack, which may be cut off at its time limit before that, also
/// prints it at once.
pub(crate) fn show(error: anyhow::Error) -> Failed {
    let text = format!("{error:#}");
    if env::var_os(PACK_VARIABLE).is_some() {
        eprintln!("failed: {text}");
    }
    text.into()
}

/// A checkpoint, with the output around it.
pub(crate) struct TakenCheckpoint {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) written: (usize, usize),
    /// The output up to the checkpoint.
    pub(crate) printed: String,
}

/// The expected output of a program.
pub(crate) enum ExpectedOutput<'a> {
    /// Exactly this text, in every run.
    Text(String),
    /// The output of an item's undisturbed run.
    ItemResults(&'a UndisturbedRun<'a>),
}

impl ExpectedOutput<'_> {
    /// Checks the output of a program that ran to its end.
    fn whole(&self, outcome: &Outcome) -> Result<()> {
        ensure!(outcome.status.success(), "the program that went on: {}", describe(outcome));
        match self {
            Self::Text(expected) => {
                ensure!(outcome.text() == *expected, "the program that went on: {}", describe(outcome));
                Ok(())
            }
            Self::ItemResults(undisturbed) => undisturbed.agrees(&outcome.text()).context("the program that went on"),
        }
    }

    /// Checks the output of a restored program.
    fn check_rest(&self, checkpoint: &TakenCheckpoint, outcome: &Outcome) -> Result<()> {
        match self {
            Self::Text(expected) => continues(expected, checkpoint.written, outcome),
            Self::ItemResults(undisturbed) => undisturbed.is_continued(checkpoint, outcome),
        }
    }
}

pub(crate) struct Run<'a> {
    name: &'a str,
    expected: ExpectedOutput<'a>,
    random: Random,
    points: Vec<u64>,
    checkpoints: Vec<TakenCheckpoint>,
    refusals: usize,
    /// Whether the points are among the frames that the program is known to send.
    is_known: bool,
    /// Time limit of the program, from its start or from one point to the next.
    limit: Duration,
    /// Words of refusals of a restore that are accepted: a driver that chooses addresses by itself may choose others.
    accepted: &'a [&'a str],
    /// Accepted refusals that occurred.
    refused: Vec<String>,
}

impl<'a> Run<'a> {
    fn new(name: &'a str, expected: ExpectedOutput<'a>, random: Random, points: Vec<u64>) -> Self {
        let checkpoints = Vec::new();
        Self {
            name,
            expected,
            random,
            points,
            checkpoints,
            refusals: 0,
            is_known: false,
            limit: CHECKPOINT_TIMEOUT,
            accepted: &[],
            refused: Vec::new(),
        }
    }

    /// Sets the words of refusals of a restore that are accepted.
    pub(crate) fn accepting(self, accepted: &'a [&'a str]) -> Self {
        Self { accepted, ..self }
    }

    /// Returns a run of a program that sends an unknown number of frames.
    pub(crate) fn of(name: &'a str, expected: ExpectedOutput<'a>, mut random: Random, count: usize) -> Self {
        let points = random.points(count);
        Self::new(name, expected, random, points)
    }

    /// Returns a run of a program that sends about `frames` frames, with a point in each of `count` equal parts of them.
    pub(crate) fn with_frame_count(
        name: &'a str,
        expected: ExpectedOutput<'a>,
        (mut random, count): (Random, usize),
        frames: u64,
        limit: Duration,
    ) -> Self {
        let points = random.points_among(count, frames);
        Self { limit, is_known: true, ..Self::new(name, expected, random, points) }
    }

    /// Takes checkpoints and restores them on a stage.
    pub(crate) fn through(mut self, stage: &Stage, start: Start<'_, '_>) -> Result<()> {
        let points = format!("frames {:?}", self.points);
        let all = self
            .checkpoints(stage, start)
            .and_then(|()| self.has_shown_something())
            .and_then(|()| self.restores(&RestoreServer::on_same_machine(stage)))
            .and_then(|()| stage.is_clean());
        // Only the server's log says why a worker is gone.
        all.with_context(|| format!("the server said: {}", stage.server.log())).context(points)
    }

    /// Takes checkpoints on one stage, and restores them with the server of another, or with the first one's
    /// if the other refuses.
    pub(crate) fn and_restored_by(mut self, stage: &Stage, other: &Stage, start: Start<'_, '_>) -> Result<()> {
        let points = format!("frames {:?}", self.points);
        self.checkpoints(stage, start).context(points)?;
        self.restores(&RestoreServer { stage, way: &other.way }).context("elsewhere")?;
        if !self.refused.is_empty() {
            let refused = std::mem::take(&mut self.refused);
            println!("{}: {}", self.name, refused.join("; "));
            self.accepting(&[]).restores(&RestoreServer::on_same_machine(stage)).context("where it was")?;
        }
        stage.is_clean()?;
        other.is_clean()
    }

    /// Runs the program and takes the checkpoints. The program ends by itself or with the last checkpoint: stopped, or killed.
    fn checkpoints(&mut self, stage: &Stage, start: Start<'_, '_>) -> Result<()> {
        let mut job = start(&Plan { points: &self.points.clone(), ..Plan::default() })?;
        let (stops, mut left) = (self.random.below(2) == 0, self.points.len());
        while job.holds_itself_within(self.limit)? {
            left = left.saturating_sub(1);
            let is_last = left == 0;
            let checkpoint = self.checkpoint(stage, &job, is_last && stops)?;
            if is_last && checkpoint {
                return self.last(stage, job, stops);
            }
        }
        self.ended(job)
    }

    /// Takes one checkpoint. Returns false when the program has ended meanwhile, or was refused in a state in
    /// which that may happen.
    fn checkpoint(&mut self, stage: &Stage, job: &Job<'_>, stops: bool) -> Result<bool> {
        let bytes_before = job.output_so_far()?.len();
        let leaves = (!stops).then_some("--leave-running");
        let hurries = is_gated(self.name).then_some(GATED_QUIESCE_TIMEOUT).into_iter().flatten();
        let options: Vec<&str> = leaves.into_iter().chain(hurries).collect();
        let outcome = job.checkpoint(&stage.image("image"), &options).with_context(|| whereabouts(stage, job))?;
        if outcome.errors().contains(ENDED_MEANWHILE) {
            return Ok(false);
        }
        if !outcome.status.success() {
            let (printed, errors) = (job.output_so_far()?, job.errors_so_far()?);
            return self.refused(&format!("{}--- the job\n{printed}{errors}", describe(&outcome)));
        }
        let checkpoint = Checkpoint::read(&outcome)?;
        // Threads that have not come to a call of the GPU may have written until the dump.
        let printed = job.output_so_far()?;
        self.checkpoints.push(TakenCheckpoint { checkpoint, written: (bytes_before, printed.len()), printed });
        Ok(true)
    }

    fn refused(&mut self, errors: &str) -> Result<bool> {
        let of_gpus = if driver_under_test() == "soft" { &[][..] } else { &REFUSALS_OF_GPUS };
        let known = REFUSALS.iter().chain(of_gpus).find(|(name, _)| *name == self.name);
        ensure!(
            known.is_some_and(|(_, words)| words.iter().any(|word| errors.contains(word))),
            "the checkpoint failed: {errors}"
        );
        self.refusals += 1;
        Ok(false)
    }

    /// Checks that a program whose frames were counted came to one of its points.
    fn has_shown_something(&self) -> Result<()> {
        ensure!(!self.is_known || self.checkpoints.len() + self.refusals > 0, "it ended before its first point");
        Ok(())
    }

    /// Ends the job after the last checkpoint: the checkpoint stopped it, or this function kills everything.
    fn last(&self, stage: &Stage, job: Job<'_>, stopped: bool) -> Result<()> {
        if stopped {
            let outcome = job.finish(self.limit * 2)?;
            ensure!(
                outcome.status.code() == Some(CHECKPOINTED_EXIT_STATUS),
                "a job that was stopped: {}",
                describe(&outcome)
            );
            return Ok(());
        }
        job.kill_everything(&stage.server)?;
        Ok(())
    }

    /// Checks that the program came to its end through all checkpoints.
    fn ended(&self, job: Job<'_>) -> Result<()> {
        self.expected.whole(&job.finish(self.limit * 2)?)
    }

    fn restores(&mut self, server: &RestoreServer<'_>) -> Result<()> {
        for checkpoint in &self.checkpoints {
            let number = checkpoint.checkpoint.number.to_string();
            let outcome = server.restore("job", &["--at", &number])?.finish(self.limit)?;
            let errors = outcome.errors();
            let reason = self.accepted.iter().find_map(|word| errors.lines().find(|line| line.contains(word)));
            if let Some(reason) = reason.filter(|_| !outcome.status.success() && outcome.stdout.is_empty()) {
                self.refused.push(format!("checkpoint {number}: {reason}"));
                continue;
            }
            self.expected.check_rest(checkpoint, &outcome).with_context(|| format!("checkpoint {number}"))?;
        }
        Ok(())
    }
}

/// Describes the state of a checkpoint that does not end.
fn whereabouts(stage: &Stage, job: &Job<'_>) -> String {
    let (view, errors) = (job.view().unwrap_or_default(), job.errors_so_far().unwrap_or_default());
    format!("a checkpoint: {view}\n--- the job\n{errors}--- the server\n{}", stage.server.log())
}

/// The server with which a stage's checkpoint is restored.
struct RestoreServer<'a> {
    stage: &'a Stage,
    way: &'a Way,
}

impl<'a> RestoreServer<'a> {
    fn on_same_machine(stage: &'a Stage) -> Self {
        Self { stage, way: &stage.way }
    }

    fn restore(&self, name: &str, options: &[&str]) -> Result<Job<'a>> {
        let Stage { paths, home, .. } = self.stage;
        let plan = Plan { arguments: options, ..Plan::default() };
        Ok(Job::restore(paths, home, self.way, name, &self.stage.image("image"), &plan)?)
    }
}

/// A small generator of random numbers with a fixed seed (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns frame numbers at growing distances, since the number of frames is unknown. The first is early, so that even a
    /// short program comes to it.
    fn points(&mut self, count: usize) -> Vec<u64> {
        let mut at = 1 + self.below(8);
        let mut points = vec![at];
        while points.len() < count {
            at += 1 + self.below(3 * at + 10);
            points.push(at);
        }
        points
    }

    /// Returns a frame number in each of `count` equal parts of `frames`, or fewer if there are fewer frames.
    fn points_among(&mut self, count: usize, frames: u64) -> Vec<u64> {
        let count = (count as u64).min(frames);
        (0..count)
            .map(|part| {
                let (from, to) = (part * frames / count, (part + 1) * frames / count);
                1 + from + self.below(to - from)
            })
            .collect()
    }
}

pub(crate) fn number(variable: &str, otherwise: u64) -> Result<u64> {
    let Ok(text) = env::var(variable) else { return Ok(otherwise) };
    text.parse().with_context(|| format!("{variable}={text} is not a number"))
}
