//! Flags of the measuring programs that `bench` starts.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::args::size::Size;

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
    /// What takes seconds too: copies of a GiB, a million objects.
    #[arg(long)]
    pub(crate) heavy: bool,
    /// Copies over TCP too that the program makes itself.
    #[arg(long)]
    pub(crate) by_hand: bool,
    /// Nothing but the first call.
    #[arg(long)]
    pub(crate) only_start: bool,
    /// Nothing but launches and waits for so long, in milliseconds, from a line on the standard input on.
    #[arg(long, value_name = "MS")]
    pub(crate) session: Option<u64>,
    /// Nothing but what lines on the standard input ask for, each once.
    #[arg(long)]
    pub(crate) turns: bool,
}

/// Holds device memory and obeys orders; started by `bench checkpoint`.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct BenchHolderFlags {
    /// How much.
    #[arg(long, value_name = "SIZE", required_unless_present = "program")]
    pub(crate) bytes: Option<Size>,
    /// Compute this instead.
    #[arg(long, value_enum, requires = "size", conflicts_with = "bytes")]
    pub(crate) program: Option<Computation>,
    /// Rows, bodies or cells in a row of that.
    #[arg(long, value_name = "N")]
    pub(crate) size: Option<u32>,
    /// Where orders come from, and answers go to.
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: PathBuf,
}

/// What programs under checkpoint compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Computation {
    /// Products of matrices.
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

/// Measures the device of OpenCL that a loader finds first and prints figures as JSON; started by `bench opencl`.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct BenchOpenclBodyFlags {
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
