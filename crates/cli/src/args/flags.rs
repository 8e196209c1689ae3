//! Every command and flag, declared once: the parser, `--help`, the man page and the completions all come from here.
//!
//! Parsing has no effect beyond parsing. Each command's own file opens files and sockets.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use katydid_bench::flags::{BenchBodyFlags, BenchFlags, BenchHolderFlags, BenchOpenclBodyFlags, BenchSoftBodyFlags};

use crate::trace::Filter;
use katydid_cli_core::args::duration::{DurationArg, SilenceLimit};
use katydid_cli_core::args::size::Size;
use katydid_cli_core::output::document::JsonDestination;
use katydid_cli_core::server::isolation::{IsolationFlags, SandboxReach};
use katydid_driver_rules::state::settings::{MAX_SESSION_NAME_BYTES, MIN_DEVICE_MEMORY_BYTES};
use katydid_job::supervisor::view::MAX_COMPRESSION_LEVEL;
use katydid_worker::SandboxUser;

/// What `katydid --help` ends with.
const AFTER_HELP: &str = "\
Server address (run, restore, trace, doctor), the first that is set:
  1. --server ADDR
  2. KATYDID_SERVER
  3. server = \"ADDR\" in ~/.config/katydid/config.toml
  4. REMOTE_GPU_ADDRESS (a host, or host:port; port 9923 unless given)
  5. none: run, restore and trace start a private one for the program
ADDR is unix:PATH, tcp://HOST:PORT, tls://HOST:PORT or vsock://MACHINE:PORT.

Exit status:
  0     success; a reader that closes our output early is success too
  1     doctor found a failure, or a measurement, checkpoint or restore could not be made
  2     the command line, an environment variable or the config file is wrong, or certificates are missing
  3     a server could not be reached or started, is full or refuses, or has no GPU (--require-gpu)
  75    run, restore: the program was ended because it is in an image now; `katydid restore` goes on with it
  126   the program cannot be executed
  127   the program was not found
  else  what the program returned; 128 + N when signal N ended it

Files:
  bin/katydid                                      this command
  ../lib/katydid/shim/libcuda.so.1                 given to programs
  ../lib/katydid/soft/libcuda.so.1                 the GPU that is a CPU
  ../share/man/man1/katydid*.1                     man katydid, man katydid-run
  ../share/bash-completion/completions/katydid     completions for bash
  ../share/zsh/site-functions/_katydid             completions for zsh
  ../share/fish/vendor_completions.d/katydid.fish  completions for fish
KATYDID_LIB overrides ../lib/katydid.

Times have a unit (60s, 5m, 250ms), sizes may have one (512M, 16GiB). docs/reference/environment.md lists
all variables. --json writes one JSON document, a failure too: {\"error\": \"...\", \"status\": N} (docs/reference/command-line.md).";

/// Runs CUDA programs on a GPU of this or another machine, unmodified.
///
/// Katydid puts its own libcuda.so.1 under a program and carries the calls to a worker process that owns the GPU.
/// The program needs no driver, no GPU and no rebuild.
#[derive(Debug, Parser)]
#[command(name = "katydid", version, after_long_help = AFTER_HELP, max_term_width = 100)]
#[command(arg_required_else_help = true, subcommand_required = true, disable_help_subcommand = true)]
pub(crate) struct Flags {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands, in the order of `--help`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunFlags),
    Serve(ServeFlags),
    Ps(PsFlags),
    Checkpoint(CheckpointFlags),
    Restore(RestoreFlags),
    Migrate(MigrateFlags),
    Inspect(InspectFlags),
    Images(ImagesFlags),
    Trace(TraceFlags),
    Bench(BenchFlags),
    Certs(CertsFlags),
    Doctor(DoctorFlags),
    Worker(WorkerFlags),
    DriverCheckpoint(DriverCheckpointFlags),
    JobGuard(GuardFlags),
    JobRanks(RanksFlags),
    JobSpace(NamespaceFlags),
    JobInit(NamespaceFlags),
    JobEnter(EnterFlags),
    BenchBody(BenchBodyFlags),
    BenchHolder(BenchHolderFlags),
    BenchSoftBody(BenchSoftBodyFlags),
    BenchOpenclBody(BenchOpenclBodyFlags),
    ProbeDriver(ProbeDriverFlags),
    /// Looks for drivers of OpenCL, and prints their platforms as JSON; started by `doctor`.
    #[command(hide = true)]
    ProbeOpencl,
    Completions(CompletionsFlags),
    Man(ManFlags),
}

/// Runs CMD on a GPU here or elsewhere.
///
/// CMD finds Katydid's libcuda.so.1 first in LD_LIBRARY_PATH and reaches the server through KATYDID_SERVER. Without a
/// known server, katydid starts a private one, and ends it after CMD. katydid passes signals on, and ends as CMD does.
///
/// CMD and its children are a job. `katydid checkpoint` finds a job by the name of its session, or by the process id of any
/// of its processes. Within a job, katydid becomes CMD (exec), which is then part of that job.
///
/// Ranks of Open MPI on one machine, as in `mpirun -n 4 katydid run CMD`, are one job with their launcher.
#[derive(Debug, Args)]
#[command(after_help = "Example: katydid run --server tcp://127.0.0.1:9923 -- python3 train.py --epochs 3")]
pub(crate) struct RunFlags {
    #[command(flatten)]
    pub(crate) session: SessionFlags,
    /// Take checkpoints into this image as long as CMD runs, as often as --every says.
    #[arg(long, value_name = "DIR", requires = "every", value_hint = ValueHint::DirPath)]
    pub(crate) image: Option<PathBuf>,
    /// Time from one checkpoint's beginning to the next, such as 90s or 10m.
    #[arg(long, value_name = "TIME", requires = "image")]
    pub(crate) every: Option<DurationArg>,
    /// Checkpoints that the image keeps; all unless given.
    #[arg(long, value_name = "N", requires = "image", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keep: Option<u32>,
    /// Let CMD use io_uring, which CRIU cannot dump: no checkpoint is possible while it has such rings.
    ///
    /// Otherwise they are refused to it (ENOSYS), as in most containers, and it does without.
    #[arg(long)]
    pub(crate) io_uring: bool,
    /// The program and its arguments; after `--` a program whose name begins with `-`.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// A limit under which a server could serve no program is no limit but a mistake.
fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("it must be 1 or more, or every program would be refused".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("write a number from 1 on ({error})")),
    }
}

/// Parses a limit of memory, which has to be at least one byte.
fn some_bytes(text: &str) -> Result<Size, String> {
    match text.parse().map_err(|error: katydid_driver_rules::state::units::SizeError| error.to_string())? {
        Size(0) => Err("it must be more than nothing, or no program could run".to_owned()),
        size => Ok(size),
    }
}

/// A limit of device memory under which a program's first allocation would fail.
fn device_memory(text: &str) -> Result<Size, String> {
    match some_bytes(text)? {
        size if size.0 < MIN_DEVICE_MEMORY_BYTES => {
            let least = Size(MIN_DEVICE_MEMORY_BYTES);
            Err(format!("CUDA programs get device memory {least} at a time: give {least} or more"))
        }
        size => Ok(size),
    }
}

/// Workers kept ready: each is a process with a driver.
const MAX_WARM_WORKERS: usize = 1024;

/// More than any machine has room for is a mistake.
fn warm_workers(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > MAX_WARM_WORKERS => {
            Err(format!("each is a process that runs all the time: give at most {MAX_WARM_WORKERS}"))
        }
        Ok(number) => Ok(number),
        Err(error) => Err(format!("write a number from 0 on ({error})")),
    }
}

/// What a worker and its driver hold before any program has come: softcuda some 20 MiB, a GPU's driver more.
const MIN_HOST_MEMORY_BYTES: u64 = 64 << 20;

/// Under a limit below that a worker would be ended before it serves.
fn worker_memory(text: &str) -> Result<Size, String> {
    match some_bytes(text)? {
        size if size.0 < MIN_HOST_MEMORY_BYTES => Err(format!(
            "a worker and its driver need as much by themselves: give {} or more",
            Size(MIN_HOST_MEMORY_BYTES)
        )),
        size => Ok(size),
    }
}

/// A name that no server accepts.
fn session_name(text: &str) -> Result<String, String> {
    match text.len() {
        0..=MAX_SESSION_NAME_BYTES => Ok(text.to_owned()),
        long => Err(format!("it has {long} bytes: give one of at most {MAX_SESSION_NAME_BYTES}")),
    }
}

/// What `run` and `trace` can say about the session to come.
#[derive(Debug, Args)]
pub(crate) struct SessionFlags {
    /// Where the GPU is: unix:PATH, tcp://HOST:PORT, tls://HOST:PORT or vsock://MACHINE:PORT.
    #[arg(long, value_name = "ADDR")]
    pub(crate) server: Option<String>,
    /// Folder of the client certificates, for a server behind tls://; made by `katydid certs`.
    ///
    /// Unless given: KATYDID_CERTS, `certs = "DIR"` in the config file, ~/.config/katydid/certs.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) certs: Option<PathBuf>,
    /// Name of the session, shown by `katydid ps`; the program's name unless given.
    #[arg(long, value_name = "NAME", value_parser = session_name)]
    pub(crate) name: Option<String>,
    /// Most device memory the program may hold, such as 512M or 16GiB.
    ///
    /// Suffixes K, M, G and T count in powers of 1024; 2M is the least. An allocation beyond it fails with
    /// CUDA_ERROR_OUT_OF_MEMORY. A server can lower it (`serve --session-memory`), never raise it.
    #[arg(long, value_name = "SIZE", value_parser = device_memory)]
    pub(crate) memory: Option<Size>,
    /// How calls travel; chosen from the address unless given.
    #[arg(long, value_enum)]
    pub(crate) link: Option<Link>,
    /// How long the link may give no sign of life while a call waits, before that fails, such as 60s; 0s for ever.
    ///
    /// 3s at least, 277h at most; 60s unless given. A worker that is busy, with a long kernel too, gives one each second.
    #[arg(long, value_name = "TIME")]
    pub(crate) link_timeout: Option<SilenceLimit>,
    /// Connections that large copies may use beside the first one, where there is no shared memory; 0 for none.
    ///
    /// At most 16. Half as many as this machine has processors unless given, but 4 at least and 8 at most. They are opened
    /// when there is something to copy.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(..=16))]
    pub(crate) lanes: Option<u16>,
    /// Whether large copies are packed (LZ4), where there is no shared memory; off unless given.
    #[arg(long, value_enum, value_name = "WHEN")]
    pub(crate) packing: Option<Packing>,
    /// Start a private server with this driver, whatever else names a server: auto, soft, or the path of a libcuda.so.1.
    ///
    /// Ranks of MPI share a server: that of the one that begins first counts.
    #[arg(long, value_name = "DRIVER", conflicts_with = "server")]
    pub(crate) driver: Option<String>,
    /// Exit with 3, before CMD starts, where the server's driver is softcuda and not a GPU's.
    ///
    /// In CMD, cuInit then fails with CUDA_ERROR_NO_DEVICE on softcuda, also when the server is replaced later.
    #[arg(long)]
    pub(crate) require_gpu: bool,
}

/// Saves a running job: its processes and what they have on the GPU.
///
/// JOB is the name of a job, or the id of one of its processes. katydid stops the job between two calls, copies its GPU state
/// to spare memory, has CRIU copy its processes, and writes the image. What is in the image from earlier checkpoints already
/// is not written again. A checkpoint that fails leaves the job running and the image as it was.
///
/// Unless the job is left running, it is ended when the checkpoint is complete, and its `katydid run` exits with 75. A launcher
/// of ranks that is not below a `katydid run` is killed.
#[derive(Debug, Args)]
#[command(after_help = "Example: katydid checkpoint train -o /scratch/train.image --leave-running")]
pub(crate) struct CheckpointFlags {
    /// Name of a job, or id of one of its processes.
    pub(crate) job: String,
    #[command(flatten)]
    pub(crate) image: ImageFlags,
    /// Let the job go on after it.
    #[arg(long)]
    pub(crate) leave_running: bool,
    /// Save what is on the GPU only; needs no CRIU, and the job goes on.
    #[arg(long)]
    pub(crate) device_only: bool,
    /// Take it even if a rehearsal of the restore fails: the job may not come back.
    ///
    /// Without it such a checkpoint is refused and the job goes on.
    #[arg(long)]
    pub(crate) force: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where checkpoints go, and how they are written.
#[derive(Debug, Args)]
pub(crate) struct ImageFlags {
    /// The image: an empty or new folder, or one that has checkpoints already.
    #[arg(short = 'o', long = "output", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) image: PathBuf,
    /// Take one after the other for as long as the job runs, this long from one's beginning to the next, such as 10m.
    #[arg(long, value_name = "TIME")]
    pub(crate) every: Option<DurationArg>,
    /// Checkpoints that the image keeps; all unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keep: Option<u32>,
    /// Look at all memory, even what is known to be unchanged.
    #[arg(long)]
    pub(crate) full: bool,
    /// zstd level of what is written, 0 for none; the fastest ordinary one unless given.
    #[arg(long, value_name = "LEVEL", value_parser = clap::value_parser!(u32).range(0..=i64::from(MAX_COMPRESSION_LEVEL)))]
    pub(crate) level: Option<u32>,
    /// How long the GPU may take to come to rest, such as 2m; 30s unless given.
    #[arg(long, alias = "patience", value_name = "TIME")]
    pub(crate) quiesce_timeout: Option<DurationArg>,
}

/// Brings a job back from an image and stays with it, as `run` does.
///
/// The sessions are rebuilt in workers of the server, the processes by CRIU, with the ids that they had; where the server
/// has one of those, in a namespace of their own. The program reads and writes where this command does. Files that it had
/// open for writing are cut back to their length at the checkpoint. The exit status is the program's.
#[derive(Debug, Args)]
#[command(after_help = "Example: katydid restore /scratch/train.image --server tcp://gpu7:9923")]
pub(crate) struct RestoreFlags {
    /// Folder or s3:// address of the image.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) image: PathBuf,
    /// Number of the checkpoint; the newest unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) at: Option<u32>,
    /// Where the GPU is: unix:PATH, tcp://HOST:PORT, tls://HOST:PORT or vsock://MACHINE:PORT.
    #[arg(long, value_name = "ADDR")]
    pub(crate) server: Option<String>,
    /// Folder of the client certificates, for a server behind tls://; made by `katydid certs`.
    ///
    /// Unless given: KATYDID_CERTS, `certs = "DIR"` in the config file, ~/.config/katydid/certs.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) certs: Option<PathBuf>,
    /// Start a private server with this driver, whatever else names a server: auto, soft, or the path of a libcuda.so.1.
    #[arg(long, value_name = "DRIVER", conflicts_with = "server")]
    pub(crate) driver: Option<String>,
    /// Exit with 3, before anything is restored, where the server's driver is softcuda and not a GPU's.
    #[arg(long)]
    pub(crate) require_gpu: bool,
    /// Use this device in place of those that sessions of OpenCL had, or in place of one of them: a number, cpu, gpu,
    /// accelerator, or a part of a name.
    #[arg(long, value_name = "[OLD=]NEW")]
    pub(crate) device: Vec<String>,
    /// Take checkpoints into this image again, this long from one's beginning to the next, such as 10m.
    #[arg(long, value_name = "TIME")]
    pub(crate) every: Option<DurationArg>,
    /// Checkpoints that the image keeps; all unless given.
    #[arg(long, value_name = "N", requires = "every", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keep: Option<u32>,
    /// Write JSON to this file, or to the open descriptor N by fd:N, when the job runs again: its name, and the program's
    /// process id; or why it does not.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<JsonDestination>,
}

/// Moves the GPU side of a running job to another server, or to other devices.
///
/// The job's processes stay where they are and need no CRIU: they stand still while their sessions are saved, rebuilt by
/// workers of the other server, and taken up there. What cannot go on there is refused with the reason, and everything
/// goes on where it was. For programs of OpenCL most of that is found out before anything stops.
#[derive(Debug, Args)]
#[command(after_help = "Example: katydid migrate train --to unix:/run/katydid-2.sock --device gpu")]
pub(crate) struct MigrateFlags {
    /// Name of a job, or id of one of its processes.
    pub(crate) job: String,
    /// The server to go to, such as tls://HOST:PORT; the job's own one to change devices only.
    #[arg(long, value_name = "ADDR")]
    pub(crate) to: String,
    /// Folder of the client certificates, for a server behind tls://; made by `katydid certs`.
    ///
    /// Unless given: KATYDID_CERTS, `certs = "DIR"` in the config file, ~/.config/katydid/certs.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) certs: Option<PathBuf>,
    /// Use this device in place of those that sessions of OpenCL have, or in place of one of them: a number, cpu, gpu,
    /// accelerator, or a part of a name.
    #[arg(long, value_name = "[OLD=]NEW")]
    pub(crate) device: Vec<String>,
    /// Keep the checkpoint on the way in this image; without it there is one in the folder for temporary files as long
    /// as it is needed.
    #[arg(short = 'o', long = "output", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) image: Option<PathBuf>,
    /// How long the GPU may take to come to rest, such as 2m; 30s unless given.
    #[arg(long, alias = "patience", value_name = "TIME")]
    pub(crate) quiesce_timeout: Option<DurationArg>,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Ends a job with its supervisor; started by `run` and `restore`.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct GuardFlags {
    /// The descriptor by which the supervisor is known to be there.
    #[arg(long)]
    pub(crate) link: i32,
    /// The supervisor's process.
    #[arg(long)]
    pub(crate) supervisor: u32,
    /// A name that a file has for a restore only.
    #[arg(long)]
    pub(crate) name: Vec<PathBuf>,
    /// What to start.
    #[arg(required = true, last = true)]
    pub(crate) command: Vec<OsString>,
}

/// The supervisor of ranks of MPI whose launcher was not started by `run`; started by the first of them.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct RanksFlags {
    /// Process id of the launcher.
    #[arg(long)]
    pub(crate) launcher: u32,
    /// The process that has started it, and ends then.
    #[arg(long)]
    pub(crate) orphan_of: Option<u32>,
    /// As the rank was started.
    #[command(flatten)]
    pub(crate) run: RunFlags,
}

/// Namespaces of a job's own; started by `restore`.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct NamespaceFlags {
    /// Where the programs look for the job's folder.
    #[arg(long)]
    pub(crate) known_folder: PathBuf,
    /// The job's folder.
    #[arg(long)]
    pub(crate) folder: PathBuf,
    /// Where CRIU leaves the program's id.
    #[arg(long)]
    pub(crate) note: PathBuf,
    /// A process id above all that the program needs.
    #[arg(long)]
    pub(crate) last_id: u32,
    /// Folder with CRIU's image files.
    #[arg(long)]
    pub(crate) files: PathBuf,
    /// The list of the job's shared memory.
    #[arg(long)]
    pub(crate) shared: PathBuf,
    /// The journal of what of it was made.
    #[arg(long)]
    pub(crate) made: PathBuf,
    /// Numbers of the job's pseudo-terminals.
    #[arg(long = "terminal")]
    pub(crate) terminals: Vec<u32>,
    /// What restores the program.
    #[arg(required = true, last = true)]
    pub(crate) command: Vec<OsString>,
}

/// Runs a command in the namespaces of a job; started by `checkpoint`.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct EnterFlags {
    /// The process that made them.
    #[arg(long)]
    pub(crate) pid: u32,
    /// Command line to run there.
    #[arg(required = true, last = true)]
    pub(crate) command: Vec<OsString>,
}

/// The two ways frames travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Link {
    /// A ring in memory shared with the worker; needs a unix: address.
    Shm,
    /// Frames on the socket; works with every address.
    Stream,
}

impl Link {
    /// The word of the command line and of `KATYDID_LINK`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Stream => "stream",
        }
    }
}

/// When large copies are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Packing {
    /// Copies travel as they are.
    Off,
    /// What becomes shorter, where packing was measured to bring it over the link sooner.
    Auto,
    /// Whatever becomes shorter.
    Always,
}

impl Packing {
    /// The word of the command line and of `KATYDID_PACKING`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Auto => "auto",
            Self::Always => "always",
        }
    }
}

/// Serves the GPUs of this machine until SIGTERM or SIGINT.
///
/// Accepts programs, gives each a worker process of its own, and keeps warm ones ready so that a program need not wait
/// for the driver to start. On a unix socket only the same user and root are let in. A TCP address beyond loopback is
/// refused without --insecure, because anyone who reaches it could run code on the GPU; behind tls:// only programs with a
/// certificate are let in.
///
/// The first SIGTERM or SIGINT ends the sessions and removes the sockets; a second one ends at once.
#[derive(Debug, Args)]
pub(crate) struct ServeFlags {
    /// Address to listen on: unix:PATH, tcp://HOST:PORT, tls://HOST:PORT or vsock:PORT; may be given more than once.
    ///
    /// Unless given: unix:$XDG_RUNTIME_DIR/katydid.sock, else unix:/run/katydid.sock (root), else
    /// unix:/tmp/katydid-UID/katydid.sock. TCP port 0 takes a free port and says which.
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Vec<String>,
    /// Folder of the server's certificates, for tls://; made by `katydid certs`.
    ///
    /// Unless given: KATYDID_CERTS, `certs = "DIR"` in the config file, ~/.config/katydid/certs.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) certs: Option<PathBuf>,
    /// Driver library of the workers: auto, soft, or the path of a libcuda.so.1.
    ///
    /// auto takes NVIDIA's library when it initialises and shows a device, else softcuda.
    #[arg(long, value_name = "DRIVER", default_value = "auto")]
    pub(crate) driver: String,
    /// Exit with 3 where no GPU's driver works, and let no later worker take softcuda.
    #[arg(long)]
    pub(crate) require_gpu: bool,
    /// Workers kept ready for programs to come.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = warm_workers)]
    pub(crate) warm: usize,
    /// Sessions at a time; further programs are refused with a text.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    pub(crate) max_sessions: usize,
    /// Sessions at a time of one IP address (of IPv6 its first 64 bits) or virtual machine: three quarters of all, if not given.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) peer_sessions: Option<usize>,
    /// Connections of such a peer to one address that have no worker yet, 128 at most; beyond them its oldest silent one goes.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=128))]
    pub(crate) peer_connections: u16,
    /// Most memory of this machine that one session may hold, softcuda's devices included: three quarters of it, if not given.
    #[arg(long, value_name = "SIZE", value_parser = worker_memory)]
    pub(crate) host_memory: Option<Size>,
    /// Most device memory any one session may hold, such as 16GiB; 2MiB at least.
    #[arg(long, value_name = "SIZE", value_parser = device_memory)]
    pub(crate) session_memory: Option<Size>,
    #[command(flatten)]
    pub(crate) isolation: IsolationFlags,
    /// Folder of the module cache: code that programs have sent, which then need not send it again; only its user may write there.
    ///
    /// Unless given: `module_cache = "DIR"` in the config file, $KATYDID_CACHE/modules, $XDG_CACHE_HOME/katydid/modules,
    /// ~/.cache/katydid/modules. Servers of one user may share it. What has not been asked for the longest goes.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) module_cache: Option<PathBuf>,
    /// Most bytes of the module cache; no module is kept that takes more than a quarter of them.
    ///
    /// Unless given: `module_cache_size = "SIZE"` in the config file, 4G.
    #[arg(long, value_name = "SIZE")]
    pub(crate) module_cache_size: Option<Size>,
    /// Have the sessions' kernels run beside each other on a GPU (NVIDIA's Multi-Process Service), instead of time-slicing.
    ///
    /// The server starts nvidia-cuda-mps-control for itself, and ends it. A kernel that faults may then end the other
    /// sessions of its GPU as well, and the driver lets in 48 to 60 processes at a time, warm workers among them.
    #[arg(long)]
    pub(crate) mps: bool,
    /// Socket of the admin API (HTTP/JSON: GET /v1/server, /v1/sessions).
    ///
    /// Unless given: the first --listen path with `.admin` appended; for TCP, katydid-PORT.admin where the default
    /// socket would lie.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) admin: Option<PathBuf>,
    /// Allow TCP beyond loopback, and vsock, without encryption or authentication.
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Say nothing but errors.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// Makes certificates for links by TLS.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true, subcommand_required = true, disable_help_subcommand = true)]
#[command(after_help = "\
Example:
  katydid certs init ~/authority
  katydid certs server ~/authority -o gpu7 --name gpu7.example.org --name 10.0.0.7
  katydid certs client ~/authority -o ~/.config/katydid/certs --name alice
  gpu7$ katydid serve --listen tls://0.0.0.0:9923 --certs gpu7
  laptop$ katydid run --server tls://gpu7.example.org:9923 -- ./program")]
pub(crate) struct CertsFlags {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: CertsCommand,
}

/// The commands of `certs`.
#[derive(Debug, Subcommand)]
pub(crate) enum CertsCommand {
    Init(AuthorityFlags),
    /// Issues a certificate to a server, into a folder for `serve --certs`.
    Server(IssueFlags),
    /// Issues a certificate to a user that runs programs, into a folder for `run --certs`.
    Client(IssueFlags),
}

/// Makes an authority: a program with a certificate of it is let in, and believed.
#[derive(Debug, Args)]
pub(crate) struct AuthorityFlags {
    /// Its folder, which stays where certificates are issued.
    #[arg(value_name = "AUTHORITY", value_hint = ValueHint::DirPath)]
    pub(crate) authority: PathBuf,
    /// How long its certificate is valid.
    #[arg(long, value_name = "N", default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) days: u32,
}

/// What is issued to whom.
#[derive(Debug, Args)]
pub(crate) struct IssueFlags {
    /// The authority's folder.
    #[arg(value_name = "AUTHORITY", value_hint = ValueHint::DirPath)]
    pub(crate) authority: PathBuf,
    /// Where the certificate, its key and the authority's certificate go.
    #[arg(short = 'o', long = "output", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) output: PathBuf,
    /// Name or number that the certificate is for; may be given more than once.
    ///
    /// Of a server: the hosts of the addresses that programs connect to.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Vec<String>,
    /// How long it is valid.
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) days: u32,
    /// Issue another certificate for the key that is there. A server that runs shows it from its next connection on.
    #[arg(long)]
    pub(crate) renew: bool,
}

/// Lists what runs on this machine: jobs, and the sessions of its servers, private ones too.
///
/// Shown is what belongs to the user who asks; root sees all. With --server or --admin, only the sessions of that server.
#[derive(Debug, Args)]
pub(crate) struct PsFlags {
    /// Only this server: its first --listen address.
    #[arg(long, value_name = "ADDR")]
    pub(crate) server: Option<String>,
    /// Only this server: its admin socket, when it was started with --admin.
    #[arg(long, value_name = "PATH", conflicts_with = "server", value_hint = ValueHint::FilePath)]
    pub(crate) admin: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Shows what is in a checkpoint: programs, GPU memory, sizes.
#[derive(Debug, Args)]
pub(crate) struct InspectFlags {
    /// The folder that `katydid checkpoint -o` wrote, or the s3: address.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) image: PathBuf,
    /// Number of the checkpoint; the newest unless given.
    #[arg(long, value_name = "N")]
    pub(crate) at: Option<u32>,
    /// Write JSON: the whole manifest, with the names of all chunks.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Lists, verifies and clears up checkpoint images.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true, subcommand_required = true, disable_help_subcommand = true)]
pub(crate) struct ImagesFlags {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: ImagesCommand,
}

/// The commands of `images`.
#[derive(Debug, Subcommand)]
pub(crate) enum ImagesCommand {
    Ls(LsFlags),
    Verify(VerifyFlags),
    Gc(GcFlags),
}

/// Lists the images in folders.
#[derive(Debug, Args)]
pub(crate) struct LsFlags {
    /// Images, or folders with images right below.
    #[arg(value_name = "DIR", default_value = ".", value_hint = ValueHint::DirPath)]
    pub(crate) folders: Vec<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reads all of an image and compares every byte with its hash.
///
/// Says for each checkpoint whether it is whole. Exits 1 when one is not.
#[derive(Debug, Args)]
pub(crate) struct VerifyFlags {
    /// Folder or s3:// address of the image.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) image: PathBuf,
    /// Only this checkpoint.
    #[arg(long, value_name = "N")]
    pub(crate) at: Option<u32>,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Clears up an image: old checkpoints, and memory that none of the others needs.
///
/// Refused while a checkpoint of the image is being written or restored.
#[derive(Debug, Args)]
pub(crate) struct GcFlags {
    /// Folder or s3:// address of the image.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) image: PathBuf,
    /// Keep only the N newest checkpoints; all of them unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keep: Option<u32>,
    /// Remove this checkpoint, even if it is damaged; may be given more than once.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) remove: Vec<u32>,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs CMD as `run` does and tells what CUDA calls it made.
///
/// When CMD ends, a table of its CUDA functions goes to standard error, most time first, and one of its kernels, copies and
/// fills on the GPU. With several processes the tables are the sum over all of them.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  katydid trace -o calls.json -- ./saxpy          (open calls.json at ui.perfetto.dev)
  katydid trace -e launch,copy -- ./saxpy         (a line a call)
  katydid trace -e 'all,!cuGetProcAddress' --text calls.txt -- ./saxpy")]
pub(crate) struct TraceFlags {
    #[command(flatten)]
    pub(crate) session: SessionFlags,
    /// Write a timeline of all processes in Trace Event JSON, which Perfetto and chrome://tracing open.
    ///
    /// Each thread has a track with its calls, each stream one with its kernels, copies and fills on the GPU.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
    /// Write a line for each call that FILTER shows: process, thread, time, function, work, result.
    ///
    /// Names of functions with *, or launch, copy, fill, memory, stream, event, module, graph, error, all; with commas between,
    /// and ! before what is left out.
    #[arg(short = 'e', long = "calls", value_name = "FILTER")]
    pub(crate) calls: Option<Filter>,
    /// Write lines and tables to this file; to standard error unless given.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) text: Option<PathBuf>,
    /// Do not time work on the GPU, which takes two events for each piece of it.
    #[arg(long)]
    pub(crate) no_gpu: bool,
    /// Write the tables as JSON, to this file, or to the open descriptor N by fd:N.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<JsonDestination>,
    /// The program and its arguments; after `--` a program whose name begins with `-`.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// Tells what works here and what is missing, with the remedy.
///
/// Exits 1 when a check fails; warnings do not count.
#[derive(Debug, Args)]
pub(crate) struct DoctorFlags {
    /// The server to try; found as `run` finds it unless given.
    #[arg(long, value_name = "ADDR")]
    pub(crate) server: Option<String>,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Serves one program; started by the server.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct WorkerFlags {
    /// Number of the inherited socket to the server.
    #[arg(long, value_name = "N")]
    pub(crate) control_fd: i32,
    /// Number of the inherited socket by which the server makes sockets for exporting memory.
    #[arg(long, value_name = "N")]
    pub(crate) socket_broker_fd: Option<i32>,
    /// The user to become, as UID:GID:GROUPS.
    #[arg(long, value_name = "USER", requires = "sandbox")]
    pub(crate) user: Option<SandboxUser>,
    /// As in `serve`.
    #[arg(long, value_name = "DRIVER", default_value = "auto")]
    pub(crate) driver: String,
    /// As in `serve`.
    #[arg(long)]
    pub(crate) require_gpu: bool,
    /// The folder of the module cache.
    #[arg(long, value_name = "DIR", requires = "module_cache_size")]
    pub(crate) module_cache: Option<PathBuf>,
    /// Most bytes of them.
    #[arg(long, value_name = "BYTES", requires = "module_cache")]
    pub(crate) module_cache_size: Option<u64>,
    /// Most memory of this machine that it may hold.
    #[arg(long, value_name = "BYTES")]
    pub(crate) host_memory: u64,
    /// Only answer questions about the devices.
    #[arg(long)]
    pub(crate) watch: bool,
    /// Save or restore the worker of a session, as a process.
    #[arg(long)]
    pub(crate) keeper: bool,
    /// The process to save; without it a keeper restores.
    #[arg(long, value_name = "PID", requires = "keeper")]
    pub(crate) saves: Option<u32>,
    /// Give up what no worker needs that serves these.
    #[arg(long, value_name = "WHOM")]
    pub(crate) sandbox: Option<SandboxReach>,
    /// Folders to write to nevertheless.
    #[arg(long, value_name = "DIR", requires = "sandbox")]
    pub(crate) writable: Vec<PathBuf>,
    /// Keep no journal, so that what one costs can be measured: the session cannot be saved.
    #[arg(long)]
    pub(crate) no_journal: bool,
    /// Load the drivers of OpenCL before a program comes.
    #[arg(long)]
    pub(crate) loads_opencl: bool,
}

/// Takes a process off its GPUs by the driver's own checkpoint, or puts it back; started by keepers.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct DriverCheckpointFlags {
    /// As in `serve`.
    #[arg(long, value_name = "DRIVER")]
    pub(crate) driver: String,
    /// Process id of the program.
    #[arg(long)]
    pub(crate) pid: i32,
    /// UUID of a GPU that it had, in hexadecimal; each in its order.
    #[arg(long = "device", value_name = "UUID")]
    pub(crate) devices: Vec<String>,
    /// What to do.
    pub(crate) action: DriverAction,
}

/// What `driver-checkpoint` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DriverAction {
    /// Lock and checkpoint.
    Checkpoint,
    /// Restore and unlock.
    Restore,
}

/// Opens a driver library and prints what it is as JSON; started by `doctor` and `bench`.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct ProbeDriverFlags {
    /// As in `serve`.
    pub(crate) driver: String,
}

/// Prints a shell's completions; those of bash, zsh and fish are installed with katydid.
#[derive(Debug, Args)]
#[command(after_help = "Example: source <(katydid completions bash)")]
pub(crate) struct CompletionsFlags {
    /// bash, zsh, fish, elvish or powershell.
    pub(crate) shell: Shell,
}

/// Writes the man pages into a folder; they are installed with katydid, as katydid(1), katydid-run(1) and so on.
#[derive(Debug, Args)]
pub(crate) struct ManFlags {
    /// An existing folder.
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) folder: PathBuf,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parsed(line: &str) -> Command {
        Flags::try_parse_from(line.split(' ')).unwrap().command
    }

    #[test]
    fn the_declarations_are_consistent() {
        Flags::command().debug_assert();
    }

    #[test]
    fn flags_after_the_program_belong_to_the_program() {
        let Command::Run(run) = parsed("katydid run --name a prog --server x") else { unreachable!() };
        assert_eq!(run.session.name.as_deref(), Some("a"));
        assert_eq!(run.session.server, None);
        assert_eq!(run.command, ["prog", "--server", "x"]);
    }

    #[test]
    fn two_dashes_before_the_program_are_dropped() {
        let Command::Run(run) = parsed("katydid run -- prog -- x") else { unreachable!() };
        assert_eq!(run.command, ["prog", "--", "x"]);
    }

    #[test]
    fn hyphenated_words_are_flags_unless_two_dashes_come_first() {
        for command in ["run", "trace"] {
            let error = Flags::try_parse_from(["katydid", command, "--servr", "x", "--", "true"]).unwrap_err();
            assert!(error.exit_code() == 2 && error.to_string().contains("--servr"), "{error}");
            assert!(Flags::try_parse_from(["katydid", command, "-x"]).is_err());
            assert!(Flags::try_parse_from(["katydid", command, "--", "-x", "--servr"]).is_ok());
        }
    }

    #[test]
    fn limits_that_serve_no_program_are_refused() {
        for flag in ["--max-sessions", "--peer-sessions", "--peer-connections", "--session-memory", "--host-memory"] {
            assert_eq!(Flags::try_parse_from(["katydid", "serve", flag, "0"]).unwrap_err().exit_code(), 2, "{flag}");
            let least = match flag {
                "--host-memory" => "64M",
                "--session-memory" => "2M",
                _ => "1",
            };
            assert!(Flags::try_parse_from(["katydid", "serve", flag, least]).is_ok(), "{flag}");
        }
    }

    #[test]
    fn numbers_with_which_a_server_could_not_run_are_refused_with_the_remedy() {
        for (flag, value, remedy) in [
            ("--host-memory", "1", "64 MiB or more"),
            ("--host-memory", "63M", "64 MiB or more"),
            ("--session-memory", "1", "2 MiB or more"),
            ("--session-memory", "2047K", "2 MiB or more"),
            ("--warm", "1000000", "at most 1024"),
            ("--warm", "many", "from 0 on"),
        ] {
            let error = Flags::try_parse_from(["katydid", "serve", flag, value]).unwrap_err().to_string();
            [flag, value, remedy].iter().for_each(|word| assert!(error.contains(word), "no {word} in {error}"));
        }
        assert!(Flags::try_parse_from(["katydid", "serve", "--warm", "0"]).is_ok());
    }

    #[test]
    fn a_limit_of_device_memory_lets_a_program_have_some() {
        for command in ["run", "trace"] {
            let with = |memory: &str| Flags::try_parse_from(["katydid", command, "--memory", memory, "true"]);
            let error = with("1M").unwrap_err();
            assert!(error.exit_code() == 2 && error.to_string().contains("2 MiB or more"), "{error}");
            assert!(with("2M").is_ok());
        }
    }

    #[test]
    fn name_that_no_server_accepts_is_refused() {
        let long = "x".repeat(MAX_SESSION_NAME_BYTES + 1);
        for command in ["run", "trace"] {
            let with = |name: &str| Flags::try_parse_from(["katydid", command, "--name", name, "true"]);
            assert_eq!(with(&long).unwrap_err().exit_code(), 2);
            assert!(with(&long[1..]).is_ok());
        }
    }

    #[test]
    fn run_without_a_program_is_a_usage_error() {
        assert_eq!(Flags::try_parse_from(["katydid", "run"]).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn a_driver_is_for_private_servers_only() {
        let line = ["katydid", "run", "--driver", "soft", "--server", "unix:/a", "prog"];
        assert_eq!(Flags::try_parse_from(line).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn at_least_one_checkpoint_is_kept() {
        let line = ["katydid", "images", "gc", "--keep", "0", "image"];
        assert_eq!(Flags::try_parse_from(line).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn listening_on_several_addresses_keeps_their_order() {
        let Command::Serve(serve) = parsed("katydid serve --listen unix:/a --listen tcp://127.0.0.1:1") else {
            unreachable!()
        };
        assert_eq!(serve.listen, ["unix:/a", "tcp://127.0.0.1:1"]);
    }
}
