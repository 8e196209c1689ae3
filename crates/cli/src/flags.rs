//! Every command and flag, declared once: the parser, `--help`, the man page and the completions all come from here.
//!
//! Parsing has no effect beyond parsing. Each command's own file opens files and sockets.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;

use crate::size::Size;

/// What `katydid --help` ends with.
const AFTER_HELP: &str = "\
Server address (run, trace, ps, doctor), the first that is set:
  1. --server ADDR
  2. KATYDID_SERVER
  3. server = \"ADDR\" in ~/.config/katydid/config.toml
  4. REMOTE_GPU_ADDRESS (a host, or host:port; port 9923 unless given)
  5. none: run and trace start a private server and end it with the program
ADDR is unix:PATH or tcp://HOST:PORT.

Exit status:
  0    success; a reader that closes our output early is success too
  1    doctor found a failure, or a measurement could not be made
  2    the command line, an environment variable or the config file is wrong
  3    a server could not be reached or started
  126  the program cannot be executed        127  the program was not found
  else what the program returned; 128 + N when signal N ended it

Files:
  bin/katydid, ../lib/katydid/shim/libcuda.so.1 (given to programs),
  ../lib/katydid/soft/libcuda.so.1 (the GPU that is a CPU); KATYDID_LIB overrides ../lib/katydid";

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
    Trace(TraceFlags),
    Bench(BenchFlags),
    Doctor(DoctorFlags),
    Worker(WorkerFlags),
    BenchBody(BenchBodyFlags),
    BenchSoftBody(BenchSoftBodyFlags),
    ProbeDriver(ProbeDriverFlags),
    Completions(CompletionsFlags),
    Man(ManFlags),
}

/// Runs CMD on a GPU here or elsewhere.
///
/// CMD finds Katydid's libcuda.so.1 first in LD_LIBRARY_PATH and reaches the server through KATYDID_SERVER. When the
/// server is known, katydid becomes CMD (exec). Otherwise it starts a private server, waits for CMD, passes signals
/// on, and ends the server after it.
#[derive(Debug, Args)]
#[command(after_help = "Example: katydid run --server tcp://127.0.0.1:9923 -- python3 train.py --epochs 3")]
pub(crate) struct RunFlags {
    #[command(flatten)]
    pub(crate) session: SessionFlags,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// What `run` and `trace` can say about the session to come.
#[derive(Debug, Args)]
pub(crate) struct SessionFlags {
    /// Where the GPU is: unix:PATH or tcp://HOST:PORT.
    #[arg(long, value_name = "ADDR")]
    pub(crate) server: Option<String>,
    /// Name of the session, shown by `katydid ps`; the program's name unless given.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Most device memory the program may hold, such as 512M or 16GiB.
    ///
    /// Suffixes K, M, G and T count in powers of 1024. An allocation beyond it fails with CUDA_ERROR_OUT_OF_MEMORY.
    /// A server can lower it (`serve --session-memory`), never raise it.
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Size>,
    /// How calls travel; chosen from the address unless given.
    #[arg(long, value_enum)]
    pub(crate) link: Option<Link>,
    /// Start a private server with this driver, whatever else names a server: auto, soft, or the path of a libcuda.so.1.
    #[arg(long, value_name = "DRIVER", conflicts_with = "server")]
    pub(crate) driver: Option<String>,
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

/// Serves the GPUs of this machine until SIGTERM or SIGINT.
///
/// Accepts programs, gives each a worker process of its own, and keeps warm ones ready so that a program need not wait
/// for the driver to start. On a unix socket only the same user and root are let in. A TCP address beyond loopback is
/// refused without --insecure, because anyone who reaches it could run code on the GPU.
///
/// The first SIGTERM or SIGINT ends the sessions and removes the sockets; a second one ends at once.
#[derive(Debug, Args)]
pub(crate) struct ServeFlags {
    /// Address to listen on: unix:PATH or tcp://HOST:PORT; may be given more than once.
    ///
    /// Unless given: unix:$XDG_RUNTIME_DIR/katydid.sock, else unix:/run/katydid.sock (root), else
    /// unix:/tmp/katydid-UID/katydid.sock. TCP port 0 takes a free port and says which.
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Vec<String>,
    /// Driver library of the workers: auto, soft, or the path of a libcuda.so.1.
    ///
    /// auto takes NVIDIA's library when it initialises and shows a device, else softcuda.
    #[arg(long, value_name = "DRIVER", default_value = "auto")]
    pub(crate) driver: String,
    /// Workers kept ready for programs to come.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) warm: usize,
    /// Sessions at a time; further programs are refused with a text.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) max_sessions: usize,
    /// Most device memory any one session may hold, such as 16GiB.
    #[arg(long, value_name = "SIZE")]
    pub(crate) session_memory: Option<Size>,
    /// Socket of the admin API (HTTP/JSON: GET /v1/server, /v1/sessions).
    ///
    /// Unless given: the first --listen path with `.admin` appended; for TCP, katydid-PORT.admin where the default
    /// socket would lie.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) admin: Option<PathBuf>,
    /// Allow TCP beyond loopback without encryption or authentication.
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Say nothing but errors.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// Lists the sessions of a server on this machine.
#[derive(Debug, Args)]
pub(crate) struct PsFlags {
    /// The server's first --listen address.
    #[arg(long, value_name = "ADDR")]
    pub(crate) server: Option<String>,
    /// The server's admin socket, when it was started with --admin.
    #[arg(long, value_name = "PATH", conflicts_with = "server", value_hint = ValueHint::FilePath)]
    pub(crate) admin: Option<PathBuf>,
    /// Write JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs CMD as `run` does and tells what CUDA calls it made.
///
/// When CMD ends, a table of its CUDA functions goes to standard error, most time first. With several processes the
/// table is the sum over all of them.
#[derive(Debug, Args)]
#[command(after_help = "Example: katydid trace -o calls.json -- ./saxpy    (open calls.json at ui.perfetto.dev)")]
pub(crate) struct TraceFlags {
    #[command(flatten)]
    pub(crate) session: SessionFlags,
    /// Write a timeline in Trace Event JSON, which Perfetto and chrome://tracing open; one track a thread.
    ///
    /// When several processes made CUDA calls, each gets a file: FILE of the first, then FILE with its process id
    /// before the extension.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
    /// Write the table as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// Measures Katydid beside the native driver on this machine.
///
/// The same measuring program runs on the driver directly, through Katydid over shared memory, and through Katydid
/// over TCP on loopback, in turns, so that drift of the machine meets all three alike. Each figure is a median; ratios
/// are to native, and below 1 is faster than native.
#[derive(Debug, Args)]
pub(crate) struct BenchFlags {
    /// `soft` measures how fast the software device computes, beside OpenCL on this CPU, instead of what calls cost.
    #[arg(value_enum)]
    pub(crate) subject: Option<Subject>,
    /// Write JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Fewer rounds and repetitions: seconds instead of minutes, and wider scatter.
    #[arg(long)]
    pub(crate) quick: bool,
    /// What to compare with; none leaves the native runs out.
    #[arg(long, value_enum, default_value_t = Against::Native)]
    pub(crate) against: Against,
    /// Driver library of all three ways: auto, soft, or the path of a libcuda.so.1.
    #[arg(long, value_name = "DRIVER", default_value = "auto")]
    pub(crate) driver: String,
}

/// What `katydid bench` measures besides calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Subject {
    /// The software device.
    Soft,
}

/// The other side of `katydid bench`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Against {
    /// The same driver library without Katydid.
    Native,
    /// Nothing.
    None,
}

/// Tells what works here and what is missing, with the remedy.
///
/// Exits 1 when a check fails; warnings do not count.
#[derive(Debug, Args)]
pub(crate) struct DoctorFlags {
    /// The server to try; found as `run` finds it unless given.
    #[arg(long, value_name = "ADDR")]
    pub(crate) server: Option<String>,
    /// Write JSON.
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
    /// As in `serve`.
    #[arg(long, value_name = "DRIVER", default_value = "auto")]
    pub(crate) driver: String,
}

/// Measures whatever libcuda.so.1 the loader finds and prints JSON; started by `bench`.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct BenchBodyFlags {
    /// As in `bench`.
    #[arg(long)]
    pub(crate) quick: bool,
    /// CLOCK_MONOTONIC in nanoseconds when `bench` started this process.
    #[arg(long, value_name = "NS", default_value_t = 0)]
    pub(crate) started: u64,
}

/// Measures one device on some cores and prints figures as JSON; started by `bench soft`.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct BenchSoftBodyFlags {
    /// What computes.
    #[arg(value_enum)]
    pub(crate) device: SoftDevice,
    /// On how many cores.
    pub(crate) cores: usize,
    /// As in `bench`.
    #[arg(long)]
    pub(crate) quick: bool,
}

/// What `bench soft` compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum SoftDevice {
    /// This project's.
    Softcuda,
    /// The CPU device of an OpenCL.
    Opencl,
}

impl SoftDevice {
    /// On the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Softcuda => "softcuda",
            Self::Opencl => "opencl",
        }
    }

    /// For people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Softcuda => "softcuda",
            Self::Opencl => "OpenCL",
        }
    }
}

/// Opens a driver library and prints what it is as JSON; started by `doctor` and `bench`.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct ProbeDriverFlags {
    /// As in `serve`.
    pub(crate) driver: String,
}

/// Prints a shell's completions.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct CompletionsFlags {
    /// bash, zsh, fish, elvish or powershell.
    pub(crate) shell: Shell,
}

/// Writes the man pages into a folder.
#[derive(Debug, Args)]
#[command(hide = true)]
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
    fn run_without_a_program_is_a_usage_error() {
        assert_eq!(Flags::try_parse_from(["katydid", "run"]).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn a_driver_is_for_private_servers_only() {
        let line = ["katydid", "run", "--driver", "soft", "--server", "unix:/a", "prog"];
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
