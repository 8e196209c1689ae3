//! `katydid run`: runs a program with Katydid's libcuda.so.1.
//!
//! katydid stays, above a guard that is the program's parent. It is the supervisor of the job, so that the job can be
//! checkpointed; if no server is named, it is the server too. It becomes the program (exec) in two cases: within a job that has a
//! supervisor, and as an MPI rank, whose job is that of its launcher (`ranks.rs`).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use katydid_driver_rules::state::settings;
use katydid_job::criu::io_uring_filter;
use katydid_job::process::stdio::StandardStream;
use katydid_job::supervisor::folder;
use katydid_job::supervisor::folder::{Folder, FolderError};
use katydid_job::supervisor::generations::Generations;
use katydid_job::supervisor::job::{Job, JobError, JobSettings};
use katydid_job::supervisor::ranks::{JobAddress, Launcher, LauncherTask};
use katydid_transport::{Address, ExpectedProgram, Reservation};
use katydid_wire::handshake::SOFTCUDA_DRIVER;
use katydid_wire::job;

use crate::args::flags::{Link, RunFlags, SessionFlags};
use crate::args::periodic::Periodic;
use crate::args::variables;
use crate::commands::checkpoint;
use crate::file_limit::{self, LinkUnderLimit};
use crate::rank_job;
use crate::supervise;
use katydid_cli_core::layout::{self, Layout};
use katydid_cli_core::output::failure::{Failure, Outcome, RunError, print_message};
use katydid_cli_core::server::address::{self, NamedServer};
use katydid_cli_core::server::private_server::PrivateServer;
use katydid_cli_core::server::start::{REQUIRE_GPU_VARIABLE, requires_gpu};

/// Variable for the link of a program.
const LINK_VARIABLE: &str = "KATYDID_LINK";

/// Exit code of a program that was ended because it is in an image: "try again" in sysexits.
const CHECKPOINTED_EXIT_STATUS: u8 = 75;

/// Exit codes of a program that ends by a signal because its CRIU was killed in the middle of a dump. The program may hit a
/// breakpoint that CRIU set behind its system calls. It may run CRIU's parasite code, which gets no more commands. Or it
/// may have its code back, but not its registers.
const LEFT_BY_CRIU: [(u8, &str); 3] = [(128 + 5, "SIGTRAP"), (128 + 11, "SIGSEGV"), (128 + 13, "SIGPIPE")];

/// Variable for hwloc, by which MPI's launchers and ranks learn the machine's topology. By default hwloc also asks OpenCL's
/// platforms. It finds nothing there that it can place, and each process would keep an OpenCL session, and a worker, for as long
/// as it lives.
const TOPOLOGY_VARIABLE: &str = "HWLOC_COMPONENTS";
const NO_OPENCL: &str = "-opencl";

/// Variables that make libraries ship PTX, which is all that softcuda runs. CuPy compiles to machine code otherwise. Its
/// reductions would call prebuilt machine code and ignore the refusal: their result would be 0.
const FOR_SOFTCUDA: [(&str, &str); 2] = [("CUPY_COMPILE_WITH_PTX", "1"), ("CUPY_ACCELERATORS", "")];

/// Variable with the name of a session.
const NAME_VARIABLE: &str = "KATYDID_NAME";
/// Longest program name that a server receives, in bytes.
const MAX_PROGRAM_NAME_BYTES: usize = 64;

/// Devices of NVIDIA's kernel module, and of the Windows one below WSL.
const GPU_DEVICES: [&str; 2] = ["/dev/nvidiactl", "/dev/dxg"];

/// A program that is ready to be started under Katydid.
#[derive(Debug)]
pub(crate) struct Launch {
    /// The command, whose environment lacks only the server.
    command: Command,
    /// The server to use; `None`: a private one is started.
    server: Option<NamedServer>,
    /// Name of its session, from the flags.
    name: Option<String>,
    /// The driver of a private server.
    driver: String,
    /// Whether a GPU is required.
    requires_gpu: bool,
    /// Paths of the libraries.
    layout: Layout,
    /// Whether the program may use io_uring; while it does, no checkpoint is possible.
    has_rings: bool,
    /// Whether this process starts the program, so that a slot at the server can be reserved for it meanwhile.
    reserves_slot: bool,
}

impl Launch {
    /// Finds the libraries and the server, and fails on anything that could not work before anything starts.
    pub(crate) fn prepare(session: &SessionFlags, line: &[OsString]) -> Result<Self, Failure> {
        let layout = Layout::find().map_err(Failure::server)?;
        layout.check_shim().map_err(Failure::server)?;
        let server = match session.driver {
            Some(_) => None,
            None => address::resolve(session.server.as_deref(), session.certs.as_deref()).map_err(Failure::usage)?,
        };
        let requires_gpu = requires_gpu(session.require_gpu);
        check_link(session.link, server.as_ref())?;
        let (program, arguments) = line.split_first().ok_or_else(|| Failure::usage("no program given"))?;
        let mut command = Command::new(program);
        command.args(arguments).env(layout::SEARCH_PATH_VARIABLE, layout.program_search());
        // The program's platforms are only those of the server.
        command.env(layout::VENDORS_VARIABLE, layout.vendors()).env_remove(layout::ICD_LIBRARIES_VARIABLE);
        if std::env::var_os(TOPOLOGY_VARIABLE).is_none() {
            command.env(TOPOLOGY_VARIABLE, NO_OPENCL);
        }
        describe(&mut command, session);
        limit_link(&mut command, session.link, server.as_ref())?;
        command.envs(variables::unknown_names());
        let driver = session.driver.clone().unwrap_or_else(|| "auto".to_owned());
        if server.is_none() && is_soft(&driver) {
            prepare_for_softcuda(&mut command);
        }
        let name = session.name.clone();
        Ok(Self { command, server, name, driver, requires_gpu, layout, has_rings: false, reserves_slot: true })
    }

    /// Sets a variable of the program.
    pub(crate) fn set(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.command.env(name, value);
    }

    /// Runs the program as a job; becomes the program within a job, and as an MPI rank.
    fn start(mut self, flags: &RunFlags) -> Outcome {
        self.has_rings = flags.io_uring;
        if let Some(image) = &flags.image {
            katydid_image::check_location(image).map_err(|error| Failure::usage(format!("--image: {error}")))?;
        }
        if std::env::var_os(job::JOB_VARIABLE).is_some_and(|job| !job.is_empty()) {
            return match self.server.take() {
                Some(server) => Err(self.exec(&server)),
                None => Ok(ExitCode::from(supervise::exit_code(self.run_private()?))),
            };
        }
        if let Some(job) = self.job_of_ranks()? {
            return Err(self.exec_in(&job));
        }
        let job = self.open_job(flags);
        let (ended, ended_by_checkpoint) =
            self.see_to(job.as_ref(), flags, |launch, started| launch.supervise(job.as_ref(), started))?;
        let code = supervise::exit_code(ended);
        if let Some(job) = &job {
            explain(job, code);
        }
        Ok(ended_by_checkpoint.unwrap_or(ExitCode::from(code)))
    }

    /// The job for this process, if it is an MPI rank.
    fn job_of_ranks(&mut self) -> Result<Option<JobAddress>, Failure> {
        if !katydid_job::supervisor::ranks::is_mpi_rank() {
            return Ok(None);
        }
        // Ranks join their job one by one, so none should wait there for an unreachable server.
        if let Some(server) = &self.server {
            reach(server, self.requires_gpu, &mut self.command)?;
        }
        Ok(rank_job::join())
    }

    /// Supervises MPI ranks until their launcher has ended; `ready` is called once they may begin.
    pub(crate) fn supervise_ranks(mut self, launcher: Launcher, flags: &RunFlags, ready: impl FnOnce()) -> Outcome {
        let end = launcher.end().map_err(Failure::work)?;
        // The launcher starts the ranks.
        self.reserves_slot = false;
        let name = flags.session.name.clone().unwrap_or_else(|| launcher.name());
        let job = self.open(&name, launcher.command(), launcher.stdio(), None).map_err(Failure::work)?;
        let supervise_ranks = |_: &mut Self, started: &dyn Fn(u32)| {
            started(launcher.pid());
            ready();
            end.wait();
            Ok(())
        };
        let ((), ended_by_checkpoint) = self.see_to(Some(&job), flags, supervise_ranks)?;
        Ok(ended_by_checkpoint.unwrap_or(ExitCode::SUCCESS))
    }

    /// Does `work`, which starts the job's program and waits for its end, beside periodic checkpoints. Also returns the exit code
    /// of a program that was ended because it is in an image.
    fn see_to<T>(
        &mut self,
        job: Option<&Job>,
        flags: &RunFlags,
        work: impl FnOnce(&mut Self, &dyn Fn(u32)) -> Result<T, Failure>,
    ) -> Result<(T, Option<ExitCode>), Failure> {
        let image = flags.image.as_deref().map(checkpoint::whole_path).transpose()?;
        let periodic = job.and_then(|job| periodic(job, image, flags));
        let ended = self.while_served(job, work);
        let ended_by_checkpoint = job.and_then(ended_by_checkpoint);
        drop(periodic);
        Ok((ended?, ended_by_checkpoint))
    }

    /// Runs the program as a child, and returns how it ended.
    pub(crate) fn wait(mut self) -> Result<ExitStatus, Failure> {
        self.while_served(None, |launch, started| launch.supervise(None, started))
    }

    /// Does `work` while there is a server; `work` reports the program that it has started.
    fn while_served<T>(
        &mut self,
        job: Option<&Job>,
        work: impl FnOnce(&mut Self, &dyn Fn(u32)) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let started = |pid| {
            if let Some(job) = job {
                job.started(pid);
            }
        };
        match self.server.take() {
            Some(server) => {
                let _reservation = match self.reserves_slot {
                    true => Some(self.reserve(&server)?),
                    false => {
                        reach(&server, self.requires_gpu, &mut self.command)?;
                        None
                    }
                };
                self.serve_by(&server.address.to_string(), job);
                work(self, &started)
            }
            None => {
                let server = self.private_server()?;
                self.serve_by(&server.address().to_string(), job);
                let done = work(self, &started);
                // The sessions of a job outlive its program while a checkpoint of it is being written.
                if let Some(job) = job {
                    job.finish_operations();
                }
                server.stop();
                done
            }
        }
    }

    /// As [`reach`], and reserves a slot for the program's session, as long as the returned value lives or until the session
    /// begins.
    fn reserve(&mut self, server: &NamedServer) -> Result<Reservation, Failure> {
        let program = PathBuf::from(self.command.get_program());
        let program = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy();
        let program = program.chars().take(MAX_PROGRAM_NAME_BYTES).collect();
        let name = self.name.clone().or_else(|| std::env::var(NAME_VARIABLE).ok()).unwrap_or_default();
        let reservation = server.reserve_for(ExpectedProgram { program, name }, self.requires_gpu)?;
        if reservation.driver == SOFTCUDA_DRIVER {
            prepare_for_softcuda(&mut self.command);
        }
        self.set(settings::RESERVATION_VARIABLE, reservation.key.spelled());
        Ok(reservation)
    }

    /// Names the server to the program, and to programs of its job that start after a restore.
    fn serve_by(&mut self, address: &str, job: Option<&Job>) {
        self.set(address::SERVER_VARIABLE, address);
        if let Some(Err(error)) = job.map(|job| job.set_server(address)) {
            print_message(format_args!(
                "a program that is restored before its first call will look for its old server: {error}"
            ));
        }
    }

    /// Opens the job whose root the program will be. Without a job the program runs all the same, but cannot be checkpointed.
    fn open_job(&mut self, flags: &RunFlags) -> Option<Job> {
        let program = Path::new(self.command.get_program());
        let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy();
        let name = flags.session.name.as_deref().unwrap_or(&name);
        let command = flags.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        match self.open(name, command, StandardStream::own_streams(), LauncherTask::of_this_process()) {
            Ok(job) => {
                self.set(job::JOB_VARIABLE, job.socket());
                tell_name(flags.session.name.as_deref(), &job.name());
                Some(job)
            }
            Err(error) => {
                print_message(format_args!("no checkpoint of this program will be possible: {error}"));
                None
            }
        }
    }

    /// Opens a new job, which may be one `task` of several.
    fn open(
        &self,
        name: &str,
        command: Vec<String>,
        stdio: [StandardStream; 3],
        task: Option<LauncherTask>,
    ) -> Result<Job, JobError> {
        let folder = Folder::take(name)?;
        Job::open(JobSettings {
            known_folder: folder.path().to_owned(),
            folder,
            command,
            private_criu: self.layout.criu(),
            servers: Vec::new(),
            generations: Generations::default().and_next(),
            enter: Vec::new(),
            stdio,
            task,
        })
    }

    /// Becomes the program; returns only on failure.
    fn exec(mut self, server: &NamedServer) -> Failure {
        match reach(server, self.requires_gpu, &mut self.command) {
            Ok(()) => self.exec_by(&server.address.to_string()),
            Err(failure) => failure,
        }
    }

    fn private_server(&self) -> Result<PrivateServer, Failure> {
        PrivateServer::start(&self.driver, self.requires_gpu)
    }

    /// Becomes a program of a job that has a supervisor, on the job's server unless another one is named, which has been reached.
    /// Returns only on failure.
    fn exec_in(mut self, job: &JobAddress) -> Failure {
        self.set(job::JOB_VARIABLE, &job.socket);
        if !self.has_rings {
            io_uring_filter::refuse(&mut self.command);
        }
        let server = self.server.as_ref().map_or_else(|| job.server.clone(), |server| server.address.to_string());
        self.exec_by(&server)
    }

    fn exec_by(mut self, server: &str) -> Failure {
        self.set(address::SERVER_VARIABLE, server);
        let source = self.command.exec();
        self.error(source).into()
    }

    /// Runs the program with a private server, whose first worker warms up while the program starts.
    fn run_private(mut self) -> Result<ExitStatus, Failure> {
        let server = self.private_server()?;
        self.set(address::SERVER_VARIABLE, server.address().to_string());
        let status = self.supervise(None, &|_| {});
        server.stop();
        status
    }

    /// Runs the program as a child; as the root of a job, below a guard.
    fn supervise(&mut self, job: Option<&Job>, started: &dyn Fn(u32)) -> Result<ExitStatus, Failure> {
        let run = match job {
            Some(_) => supervise::run_guarded(&self.command, self.has_rings, started),
            None => supervise::run(&mut self.command, started),
        };
        run.map_err(|source| self.error(source).into())
    }

    /// Adds the program's name to an error of the system.
    fn error(&self, source: io::Error) -> RunError {
        RunError { program: PathBuf::from(self.command.get_program()), source }
    }
}

/// Reports that a job does not have the `requested` name: a checkpoint by that name would be one of another job, or of none.
fn tell_name(requested: Option<&str>, name: &str) {
    if let Some(requested) = requested.filter(|requested| *requested != name) {
        let why = match folder::find(requested) {
            Ok(_) | Err(FolderError::Several { .. }) => "another job has that name",
            Err(_) => "that cannot be the name of a job",
        };
        print_message(format_args!("this job is called {name}, and not {requested:?}: {why}"));
    }
}

/// Whether a private server will use softcuda: it is chosen, or there is no GPU device.
fn is_soft(driver: &str) -> bool {
    driver == "soft" || (driver == "auto" && !GPU_DEVICES.iter().any(|device| Path::new(device).exists()))
}

/// Checks that a server admits a program, and has a GPU if one is required. Prepares the program for softcuda, if that is the
/// server's driver.
fn reach(server: &NamedServer, requires_gpu: bool, command: &mut Command) -> Result<(), Failure> {
    if server.greet_for(requires_gpu)? == SOFTCUDA_DRIVER {
        prepare_for_softcuda(command);
    }
    Ok(())
}

/// Sets the variables that libraries need for softcuda, unless the user has set them.
fn prepare_for_softcuda(command: &mut Command) {
    for (name, value) in FOR_SOFTCUDA.iter().filter(|(name, _)| std::env::var_os(name).is_none()) {
        command.env(name, value);
    }
}

/// Passes the flags for a session to the program's side.
fn describe(command: &mut Command, session: &SessionFlags) {
    if let Some(name) = &session.name {
        command.env(NAME_VARIABLE, name);
    }
    if session.require_gpu {
        command.env(REQUIRE_GPU_VARIABLE, "1");
    }
    if let Some(memory) = session.memory {
        command.env("KATYDID_MEMORY", memory.0.to_string());
    }
    if let Some(limit) = session.link_timeout {
        command.env("KATYDID_LINK_TIMEOUT", format!("{}ms", limit.0.as_millis()));
    }
    if let Some(lanes) = session.lanes {
        command.env("KATYDID_LANES", lanes.to_string());
    }
    if let Some(packing) = session.packing {
        command.env("KATYDID_PACKING", packing.word());
    }
    if let Some(link) = session.link {
        command.env(LINK_VARIABLE, link.word());
    }
}

/// Has a program under a low limit of files go without shared memory, and says so.
fn limit_link(command: &mut Command, link: Option<Link>, server: Option<&NamedServer>) -> Result<(), Failure> {
    let low = file_limit::too_low();
    let under = file_limit::link_under(low, link, server.map(|server| &server.address))?;
    let is_stream = || std::env::var_os(LINK_VARIABLE).is_some_and(|word| word == Link::Stream.word());
    if let LinkUnderLimit::Stream(reason) = under
        && !is_stream()
    {
        print_message(format_args!(
            "{reason}: the link is a stream, which is slower; lift `ulimit -f` for shared memory"
        ));
        command.env(LINK_VARIABLE, Link::Stream.word());
    }
    Ok(())
}

/// Refuses shared memory over a network.
fn check_link(link: Option<Link>, server: Option<&NamedServer>) -> Result<(), Failure> {
    match server {
        Some(NamedServer { address, .. }) if link == Some(Link::Shm) && !matches!(address, Address::Unix(_)) => {
            let address = address.without_certs();
            Err(Failure::usage(format!(
                "--link shm does not work with {address}: use --link stream, or a unix: address on one machine"
            )))
        }
        _ => Ok(()),
    }
}

/// Starts periodic checkpoints if the flags ask for them.
fn periodic(job: &Job, image: Option<PathBuf>, flags: &RunFlags) -> Option<Periodic> {
    Some(Periodic::start(job, image?, flags.every?, flags.keep))
}

/// Explains the end of a program, if a killed CRIU has left the signal in it.
pub(crate) fn explain(job: &Job, code: u8) {
    let left = LEFT_BY_CRIU.iter().find(|(left, _)| *left == code && job.was_criu_killed());
    if let Some((_, signal)) = left {
        print_message(format_args!(
            "{} was ended by {signal}, which a killed CRIU leaves behind; the checkpoints before that are whole",
            job.name()
        ));
    }
}

/// For a program that ended because its checkpoint is complete: prints that, and returns [`CHECKPOINTED_EXIT_STATUS`].
pub(crate) fn ended_by_checkpoint(job: &Job) -> Option<ExitCode> {
    let report = job.ended()?;
    print_message(format_args!(
        "{} was ended as checkpoint {}: `katydid restore {}` goes on with it",
        report.job,
        report.checkpoint,
        report.image.display()
    ));
    Some(ExitCode::from(CHECKPOINTED_EXIT_STATUS))
}

/// Runs `katydid run`.
pub(crate) fn main(flags: &RunFlags) -> Outcome {
    Launch::prepare(&flags.session, &flags.command)?.start(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_over_tcp_is_a_usage_error() {
        let server =
            NamedServer { address: "tcp://h:1".parse().unwrap(), origin: address::Origin::Flag(address::SERVER_FLAG) };
        assert!(matches!(check_link(Some(Link::Shm), Some(&server)), Err(Failure::Usage(_))));
        assert!(check_link(None, Some(&server)).is_ok() && check_link(Some(Link::Shm), None).is_ok());
    }
}
