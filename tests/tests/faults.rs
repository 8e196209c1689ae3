//! Parts of the system die at the worst moment. Nothing hangs, no other program is harmed, and nothing is left behind.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program::{self, Outcome, Running};
use katydid_tests::server::Server;
use katydid_tests::verdict::judge;
use katydid_tests::watch::{
    WAIT_TIMEOUT, ask_to_end, children, exists, memory_files, resident_kib, runs, ticks, tree, until,
};
use katydid_tests::way::Way;
use rustix::process::{Pid, Signal, kill_process};

/// A server, and how to start the fixture with it.
struct Bench {
    paths: Paths,
    server: Server,
}

impl Bench {
    fn new() -> Result<Self> {
        Self::with(&[])
    }

    fn with(options: &[&str]) -> Result<Self> {
        let paths = Paths::of_this_test()?;
        let server = Server::start(&paths, &driver_under_test(), options)?;
        Ok(Self { paths, server })
    }

    /// Returns the two ways to this server, for tests that hold on both.
    fn ways(&self) -> [Way; 2] {
        Way::through(&self.server)
    }

    fn fixture(&self, way: &Way, arguments: &[&str]) -> Command {
        let mut command = way.command(&self.paths, &self.paths.program("fixture", Variant::Static));
        command.args(arguments);
        command
    }

    /// Starts the fixture and waits until it prints that it is ready.
    fn ready(&self, way: &Way, arguments: &[&str]) -> Result<Running> {
        let mut running = Running::start(&mut self.fixture(way, arguments), Stdio::piped())?;
        running.wait_for("ready", WAIT_TIMEOUT)?;
        Ok(running)
    }
}

fn kill(pid: u32) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| anyhow::anyhow!("no process {pid}"))?;
    Ok(kill_process(pid, Signal::KILL)?)
}

/// Checks that the fixture ended because a CUDA call failed, and said so.
fn ended_with_an_error(outcome: &Outcome) -> Result<()> {
    let text = outcome.text();
    ensure!(
        outcome.status.code() == Some(3) && text.contains("\nerror "),
        "{}\n{text}{}",
        outcome.ending(),
        outcome.errors()
    );
    Ok(())
}

/// Ends the fixture's input, after which it uses the GPU once more, and checks that it succeeds.
fn ended_well(mut running: Running) -> Result<()> {
    running.close_input();
    let outcome = running.finish(WAIT_TIMEOUT)?;
    ensure!(outcome.status.success() && outcome.text() == "ready\ndone\n", "{}\n{}", outcome.ending(), outcome.text());
    Ok(())
}

#[test]
fn a_worker_killed_in_the_middle_of_a_call_gives_the_program_an_error() -> Result<()> {
    let bench = Bench::new()?;
    for way in bench.ways() {
        let running = bench.ready(&way, &["stuck"])?;
        let worker = bench.server.workers_of(1)?[0];
        kill(worker)?;
        ended_with_an_error(&running.finish(WAIT_TIMEOUT)?)?;
        bench.server.workers_of(0)?;
        until("the worker is reaped", || !exists(worker))?;
    }
    Ok(())
}

#[test]
fn a_worker_killed_under_a_busy_program_gives_it_an_error_and_no_hang() -> Result<()> {
    let bench = Bench::new()?;
    for way in bench.ways() {
        let running = bench.ready(&way, &["endless"])?;
        kill(bench.server.workers_of(1)?[0])?;
        ended_with_an_error(&running.finish(WAIT_TIMEOUT)?)?;
    }
    Ok(())
}

#[test]
fn a_worker_killed_while_its_program_rests_is_noticed_at_the_next_call() -> Result<()> {
    let bench = Bench::new()?;
    for way in bench.ways() {
        let mut running = bench.ready(&way, &["idle"])?;
        kill(bench.server.workers_of(1)?[0])?;
        bench.server.workers_of(0)?;
        running.close_input();
        ended_with_an_error(&running.finish(WAIT_TIMEOUT)?)?;
    }
    Ok(())
}

#[test]
fn a_program_killed_leaves_no_worker_no_session_and_no_shared_memory() -> Result<()> {
    let bench = Bench::new()?;
    let names_before = shared_memory()?;
    for way in bench.ways() {
        for what in ["idle", "stuck", "endless"] {
            let mut running = bench.ready(&way, &[what])?;
            let worker = bench.server.workers_of(1)?[0];
            running.kill();
            until(&format!("the worker of a killed `{what}` over {way} is gone"), || !exists(worker))?;
            bench.server.workers_of(0)?;
        }
    }
    ensure!(
        memory_files(bench.server.pid()) == 0,
        "the server keeps {} memory files",
        memory_files(bench.server.pid())
    );
    let new: Vec<PathBuf> = shared_memory()?.into_iter().filter(|path| !names_before.contains(path)).collect();
    // Files of programs that run beside this test disappear with those programs.
    until("what is new in /dev/shm is gone", || !new.iter().any(|path| path.exists()))
        .with_context(|| format!("{new:?}"))
}

/// Returns the named files in shared memory, of all processes.
fn shared_memory() -> Result<Vec<PathBuf>> {
    Ok(fs::read_dir("/dev/shm")?.flatten().map(|entry| entry.path()).collect())
}

#[test]
fn a_program_that_ends_without_a_word_is_forgotten() -> Result<()> {
    let bench = Bench::new()?;
    for way in bench.ways() {
        let outcome = program::run(&mut bench.fixture(&way, &["count", "5"]), WAIT_TIMEOUT)?;
        ensure!(outcome.text() == "5\n", "{}{}", outcome.text(), outcome.errors());
        bench.server.workers_of(0)?;
    }
    Ok(())
}

#[test]
fn a_killed_neighbour_does_not_disturb_a_session() -> Result<()> {
    let bench = Bench::new()?;
    let [shm, tcp] = bench.ways();
    let (first, mut second) = (bench.ready(&shm, &["idle"])?, bench.ready(&tcp, &["endless"])?);
    let workers = bench.server.workers_of(2)?;
    ensure!(workers[0] != workers[1], "two sessions share the worker {}", workers[0]);
    second.kill();
    bench.server.workers_of(1)?;
    let third = bench.ready(&shm, &["stuck"])?;
    kill(bench.server.workers_of(2)?[1])?;
    ended_with_an_error(&third.finish(WAIT_TIMEOUT)?)?;
    ended_well(first)
}

#[test]
fn a_server_told_to_stop_ends_its_sessions_and_itself() -> Result<()> {
    let mut bench = Bench::new()?;
    let [shm, _] = bench.ways();
    let running = bench.ready(&shm, &["stuck"])?;
    let worker = bench.server.workers_of(1)?[0];
    ensure!(bench.server.stop()?, "the server does not stop: {}", bench.server.log());
    ended_with_an_error(&running.finish(WAIT_TIMEOUT)?)?;
    until("the worker is gone", || !exists(worker))?;
    Ok(())
}

#[test]
fn a_killed_server_leaves_no_worker_behind() -> Result<()> {
    let bench = Bench::new()?;
    let [shm, tcp] = bench.ways();
    let (first, second) = (bench.ready(&shm, &["stuck"])?, bench.ready(&tcp, &["endless"])?);
    bench.server.workers_of(2)?;
    let workers = children(bench.server.pid());
    ensure!(workers.len() >= 2, "the server's children are {workers:?}");
    kill(bench.server.pid())?;
    ended_with_an_error(&first.finish(WAIT_TIMEOUT)?)?;
    ended_with_an_error(&second.finish(WAIT_TIMEOUT)?)?;
    // The process that adopts them may reap them late, or never.
    until("all workers are gone", || workers.iter().all(|worker| !runs(*worker)))?;
    Ok(())
}

#[test]
fn an_idle_session_uses_no_processor_time_and_little_memory() -> Result<()> {
    let bench = Bench::new()?;
    // A program that holds much idle memory has a thread that listens for reclaim notices.
    for (way, what) in bench.ways().iter().flat_map(|way| [(way, &["idle"][..]), (way, &["idles", "100000000"])]) {
        let running = bench.ready(way, what)?;
        let worker = bench.server.workers_of(1)?[0];
        let processes = [&tree(running.pid())[..], &[worker, bench.server.pid()]].concat();
        let of_all = || processes.iter().map(|pid| ticks(*pid)).collect::<Vec<u64>>();
        // Threads started with the session may settle first. A thread that spins would use 100 ticks each time.
        until("no process uses processor time for doing nothing", || {
            let names_before = of_all();
            std::thread::sleep(Duration::from_secs(1));
            // A process that has ended meanwhile has no ticks any more, and must not lower the sum.
            of_all().iter().zip(names_before).map(|(now, then)| now.saturating_sub(then)).sum::<u64>() <= 5
        })
        .with_context(|| way.to_string())?;
        let resident = resident_kib(processes[processes.len() - 3]);
        ensure!(resident < 50 << 10, "the program holds {resident} KiB");
        ended_well(running)?;
    }
    Ok(())
}

#[test]
fn sessions_are_listed_with_their_programs_and_then_forgotten() -> Result<()> {
    let bench = Bench::new()?;
    let [shm, tcp] = bench.ways();
    let (first, second) = (bench.ready(&shm, &["idle"])?, bench.ready(&tcp, &["hold", "3000000"])?);
    bench.server.workers_of(2)?;
    let ps = |json: bool| -> Result<String> {
        let mut command = Command::new(bench.paths.katydid());
        command.arg("ps").arg("--admin").arg(bench.server.admin_socket()).args(json.then_some("--json"));
        let outcome = program::run(&mut command, WAIT_TIMEOUT)?;
        ensure!(outcome.status.success(), "{}{}", outcome.text(), outcome.errors());
        Ok(outcome.text())
    };
    let listed = ps(false)?;
    ensure!(listed.lines().filter(|line| line.contains("fixture")).count() == 2, "{listed}");
    let json: serde_json::Value = serde_json::from_str(&ps(true)?)?;
    let driver = bench.server.admin("/v1/server")?["driver_found"].clone();
    ensure!(driver.is_string() && json["sessions"][0]["driver"] == driver, "{driver} is not in {json}");
    let text = json.to_string();
    // Below the supervisor is the job's guard, and below that the program.
    let programs: [Vec<u32>; 2] =
        [&first, &second].map(|running| children(running.pid()).into_iter().flat_map(children).collect());
    for program in programs {
        ensure!(program.len() == 1 && text.contains(&program[0].to_string()), "{program:?} are not in {text}");
    }
    ended_well(first)?;
    ended_well(second)?;
    bench.server.workers_of(0)?;
    ensure!(!ps(false)?.contains("fixture"), "a session that ended is still listed");
    Ok(())
}

#[test]
fn many_programs_at_once_are_each_served_by_their_own_worker() -> Result<()> {
    let bench = Bench::new()?;
    let ways = bench.ways();
    let started = (0..8).map(|i| bench.ready(&ways[i % 2], &["idle"])).collect::<Result<Vec<_>>>()?;
    let mut workers = bench.server.workers_of(started.len())?;
    workers.sort_unstable();
    workers.dedup();
    ensure!(workers.len() == started.len(), "{} workers for {} programs", workers.len(), started.len());
    started.into_iter().try_for_each(ended_well)?;
    bench.server.workers_of(0)?;
    Ok(())
}

#[test]
fn more_launches_than_any_queue_holds_all_arrive() -> Result<()> {
    let bench = Bench::new()?;
    for way in bench.ways() {
        let outcome = program::run(&mut bench.fixture(&way, &["count", "150000"]), WAIT_TIMEOUT)?;
        ensure!(outcome.text() == "150000\n", "{}\n{}{}", outcome.ending(), outcome.text(), outcome.errors());
    }
    Ok(())
}

#[test]
fn a_session_cannot_take_more_memory_than_it_was_given() -> Result<()> {
    let bench = Bench::with(&["--session-memory", "64M"])?;
    for way in bench.ways() {
        let outcome = program::run(&mut bench.fixture(&way, &["hold", "1000000000"]), WAIT_TIMEOUT)?;
        let text = outcome.text();
        ensure!(text == "error 2 cudaErrorMemoryAllocation\n", "{}\n{text}{}", outcome.ending(), outcome.errors());
        ended_well(bench.ready(&way, &["hold", "16000000"])?)?;
    }
    Ok(())
}

#[test]
fn after_a_fault_of_the_gpu_the_next_session_of_the_server_is_well() -> Result<()> {
    let bench = Bench::new()?;
    let [shm, tcp] = bench.ways();
    for way in [shm, tcp, Way::as_stream(&bench.server)] {
        for name in ["illegal_address", "vector_add"] {
            let program = bench.paths.program(name, Variant::Static);
            let outcome = program::run(&mut way.command(&bench.paths, &program), WAIT_TIMEOUT)?;
            judge(&bench.paths, name, &outcome).with_context(|| format!("{name} over {way}"))?;
            bench.server.workers_of(0)?;
        }
    }
    Ok(())
}

#[test]
fn a_signal_to_all_processes_of_a_job_leaves_the_program_its_gpu() -> Result<()> {
    let bench = Bench::new()?;
    let ways = bench.ways().into_iter().chain([Way::Private { driver: driver_under_test() }]);
    for way in ways {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("go");
        let running = bench.ready(&way, &["saves", &file.display().to_string()])?;
        let workers = if matches!(way, Way::Served { .. }) { bench.server.workers_of(1)? } else { Vec::new() };
        let processes: Vec<u32> = tree(running.pid()).into_iter().chain(workers).collect();
        ask_to_end(&processes)?;
        fs::write(&file, "")?;
        let outcome = running.finish(WAIT_TIMEOUT)?;
        let (ending, text, errors) = (outcome.ending(), outcome.text(), outcome.errors());
        ensure!(outcome.status.success() && text == "ready\n100\n", "{way}: {ending}\n{text}{errors}");
        until("nothing of the job is left", || !processes.iter().take(1).any(|pid| exists(*pid)))?;
    }
    bench.server.workers_of(0)?;
    Ok(())
}

#[test]
fn a_private_server_ends_with_its_program() -> Result<()> {
    let paths = Paths::of_this_test()?;
    // A setting in their environment, which children inherit, identifies the processes of this test.
    let mark = format!("KATYDID_TEST_MARK={}", std::process::id());
    let mut command =
        Way::Private { driver: driver_under_test() }.command(&paths, &paths.program("fixture", Variant::Static));
    command.args(["count", "3"]).env("KATYDID_TEST_MARK", std::process::id().to_string());
    let outcome = program::run(&mut command, WAIT_TIMEOUT)?;
    ensure!(outcome.text() == "3\n" && outcome.status.success(), "{}{}", outcome.text(), outcome.errors());
    until("no process of the private server is left", || !any_process_has(&mark))?;
    Ok(())
}

/// Whether any process has `setting` in its environment.
fn any_process_has(setting: &str) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut environments = processes.filter_map(|process| fs::read(process.path().join("environ")).ok());
    environments.any(|environment| environment.split(|byte| *byte == 0).any(|one| one == setting.as_bytes()))
}
