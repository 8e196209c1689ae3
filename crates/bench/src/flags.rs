//! Flags of `katydid bench`, and of the measuring programs that it starts.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

use katydid_cli_core::args::duration::DurationArg;
use katydid_cli_core::args::size::Size;
use katydid_cli_core::output::failure::Failure;

/// The driver that is measured unless another one is named.
const DEFAULT_DRIVER: &str = "auto";

/// Measures Katydid beside the native driver on this machine.
///
/// The same measuring program runs on the driver directly, and through Katydid over shared memory, over a unix socket
/// and over TCP on loopback, in turns, so that drift of the machine meets all four alike. Each figure is a median;
/// ratios are to native, and below 1 is faster than native.
#[derive(Debug, Args)]
pub struct BenchFlags {
    /// `soft` measures how fast the software device computes, beside OpenCL on this CPU, `checkpoint` what checkpoints
    /// and restores cost, beside the driver's own, `opencl` OpenCL's calls and copies, and `journal` what being ready for
    /// checkpoints costs, instead of what calls cost.
    #[arg(value_enum)]
    pub subject: Option<Subject>,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
    /// Fewer rounds and repetitions, no copies above 64 MiB, no million of objects, no 64 sessions: seconds instead of
    /// minutes, and wider scatter.
    #[arg(long)]
    pub quick: bool,
    /// Rounds in which the ways take turns; the figures are medians over them. As many as there is time for, 4 at most
    /// (quick: 2), unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// What to compare with; none leaves the native runs out.
    #[arg(long, value_enum, default_value_t = Against::Native)]
    pub against: Against,
    /// Measure a fifth way: TCP behind TLS, with certificates made for this.
    #[arg(long)]
    pub tls: bool,
    /// Measure another way: vsock of this machine itself, which takes the kernel's module `vsock_loopback`.
    #[arg(long)]
    pub vsock: bool,
    /// Measure several sessions at once also with a server like that of `serve --mps`.
    #[arg(long)]
    pub mps: bool,
    /// Driver library of all ways: auto, soft, or the path of a libcuda.so.1.
    #[arg(long, value_name = "DRIVER", default_value = DEFAULT_DRIVER)]
    pub driver: String,
    /// Of `checkpoint`: device memory that the holder has, such as 64M,1G,32G.
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    pub sizes: Vec<Size>,
    /// Of `checkpoint`: which of its two tables.
    #[arg(long, value_enum, default_value_t = Tables::Both)]
    pub tables: Tables,
    /// Begin nothing more after so long, such as 90s or 8m; what is missing is named. 70s unless given, and no limit with
    /// --rounds; of `checkpoint` 15m.
    #[arg(long, value_name = "TIME")]
    pub within: Option<DurationArg>,
    /// Of `checkpoint`: where the images go; /dev/shm unless given, which is memory.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub folder: Option<PathBuf>,
}

impl BenchFlags {
    /// Refuses flags that what is measured has no use for: their user takes them to count.
    ///
    /// # Errors
    ///
    /// The first such flag.
    pub fn check(&self) -> Result<(), Failure> {
        use Subject::{Checkpoint, Journal, Opencl};
        let cases: [(&str, bool, &[Option<Subject>]); 10] = [
            ("--driver", self.driver != DEFAULT_DRIVER, &[None, Some(Checkpoint), Some(Opencl), Some(Journal)]),
            ("--against", self.against != Against::Native, &[None, Some(Checkpoint), Some(Opencl)]),
            ("--within", self.within.is_some(), &[None, Some(Checkpoint)]),
            ("--rounds", self.rounds.is_some(), &[None]),
            ("--tls", self.tls, &[None]),
            ("--vsock", self.vsock, &[None]),
            ("--mps", self.mps, &[None]),
            ("--sizes", !self.sizes.is_empty(), &[Some(Checkpoint)]),
            ("--tables", self.tables != Tables::Both, &[Some(Checkpoint)]),
            ("--folder", self.folder.is_some(), &[Some(Checkpoint)]),
        ];
        let unused = cases.iter().find(|(_, is_given, takers)| *is_given && !takers.contains(&self.subject));
        let Some((flag, _, takers)) = unused else { return Ok(()) };
        let name = |subject: &Option<Subject>| {
            let value = subject.and_then(|subject| subject.to_possible_value());
            value.map_or("katydid bench".to_owned(), |value| format!("katydid bench {}", value.get_name()))
        };
        let takers: Vec<String> = takers.iter().map(name).collect();
        Err(Failure::usage(format!(
            "{flag} has no meaning for {}: leave it out, or use it with {}",
            name(&self.subject),
            takers.join(", ")
        )))
    }
}

/// What `katydid bench` measures besides calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Subject {
    /// The software device.
    Soft,
    /// Checkpoints and restores.
    Checkpoint,
    /// This machine's OpenCL.
    Opencl,
    /// What keeping a journal adds to calls, which the whole measurement has too.
    Journal,
}

/// The tables of `bench checkpoint`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Tables {
    /// Programs that hold memory, by size.
    Sizes,
    /// Small programs that compute.
    Programs,
    /// The one, then the other.
    Both,
}

impl Tables {
    /// Whether the table of sizes is measured.
    pub fn includes_sizes(self) -> bool {
        self != Self::Programs
    }

    /// Whether the table of programs is measured.
    pub fn includes_programs(self) -> bool {
        self != Self::Sizes
    }
}

/// The other side of `katydid bench`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Against {
    /// The same driver library without Katydid.
    Native,
    /// Nothing: only Katydid is measured.
    None,
}

/// Measures whatever libcuda.so.1 the loader finds and prints JSON; started by `bench`.
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct BenchBodyFlags {
    /// As in `bench`.
    #[arg(long)]
    pub quick: bool,
    /// CLOCK_MONOTONIC in nanoseconds when `bench` started this process.
    #[arg(long, value_name = "NS", default_value_t = 0)]
    pub started: u64,
    /// What takes seconds too: copies of a GiB, a million objects.
    #[arg(long)]
    pub heavy: bool,
    /// Copies over TCP too that the program makes itself.
    #[arg(long)]
    pub by_hand: bool,
    /// Nothing but the first call.
    #[arg(long)]
    pub only_start: bool,
    /// Nothing but launches and waits for so long, in milliseconds, from a line on the standard input on.
    #[arg(long, value_name = "MS")]
    pub session: Option<u64>,
    /// Nothing but what lines on the standard input ask for, each once.
    #[arg(long)]
    pub on_request: bool,
}

/// Holds device memory and obeys orders; started by `bench checkpoint`.
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct BenchHolderFlags {
    /// Bytes of device memory to hold.
    #[arg(long, value_name = "SIZE", required_unless_present = "program")]
    pub bytes: Option<Size>,
    /// Compute this instead.
    #[arg(long, value_enum, requires = "size", conflicts_with = "bytes")]
    pub program: Option<Computation>,
    /// Rows, bodies or cells in a row of that.
    #[arg(long, value_name = "N")]
    pub size: Option<u32>,
    /// Where orders come from, and answers go to.
    #[arg(long, value_name = "DIR")]
    pub folder: PathBuf,
}

/// What programs under checkpoint compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Computation {
    /// Products of dense matrices.
    Matrix,
    /// Bodies that pull at each other.
    Bodies,
    /// Heat in a box.
    Heat,
    /// Eigenvalues of symmetric matrices with three diagonals.
    Eigenvalues,
}

/// Measures one device on some cores and prints figures as JSON; started by `bench soft`.
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct BenchSoftBodyFlags {
    /// Software device to measure.
    #[arg(value_enum)]
    pub device: SoftDevice,
    /// On how many cores.
    pub cores: usize,
    /// As in `bench`.
    #[arg(long)]
    pub quick: bool,
}

/// Measures the device of OpenCL that a loader finds first and prints figures as JSON; started by `bench opencl`.
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct BenchOpenclBodyFlags {
    /// As in `bench`.
    #[arg(long)]
    pub quick: bool,
}

/// What `bench soft` compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum SoftDevice {
    /// softcuda, the software device of this project.
    Softcuda,
    /// The CPU device of an OpenCL.
    Opencl,
}

impl SoftDevice {
    /// On the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Softcuda => "softcuda",
            Self::Opencl => "opencl",
        }
    }

    /// Name of the device in tables.
    pub fn title(self) -> &'static str {
        match self {
            Self::Softcuda => "softcuda",
            Self::Opencl => "OpenCL",
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Bench {
        #[command(flatten)]
        flags: BenchFlags,
    }

    #[test]
    fn a_flag_without_meaning_for_what_is_measured_is_refused() {
        let check = |line: &str| Bench::parse_from(["bench"].into_iter().chain(line.split_whitespace())).flags.check();
        for line in [
            "",
            "--driver soft --tls --rounds 1 --within 60s",
            "soft --json --quick",
            "journal --driver soft",
            "opencl --driver soft --against none",
            "checkpoint --driver soft --tables sizes --sizes 64M --against none --within 20s --folder /tmp",
        ] {
            assert!(check(line).is_ok(), "{line}");
        }
        for (line, flag) in [
            ("soft --driver /nonexistent", "--driver"),
            ("soft --within 1s", "--within"),
            ("journal --rounds 1", "--rounds"),
            ("opencl --tls", "--tls"),
            ("checkpoint --mps", "--mps"),
            ("--sizes 1M", "--sizes"),
            ("--tables sizes", "--tables"),
            ("opencl --folder /tmp", "--folder"),
        ] {
            let refused = check(line).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("{flag} has no meaning for katydid bench")), "{line}: {refused}");
        }
    }
}
