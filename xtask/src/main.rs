//! The checks and chores of the project, one command each: `cargo xtask COMMAND`.
//!
//! Everything is built below cargo's target folder; nothing is installed elsewhere but Debian packages that are
//! missing (g++, python3-pip, Open MPI), and each is named before it is installed.

mod apps;
mod bless;
mod book;
mod checks;
mod demo;
mod demo_checkpoint;
mod dist;
mod failures;
mod fetch;
mod gpu;
mod guest;
mod jobs;
mod lookups;
mod opencl;
mod output;
mod shell;
mod suites;
mod tables;
mod test;
mod tree;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::tree::Tree;

/// The checks and chores of the project.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Flags {
    #[command(subcommand)]
    command: Command,
}

/// What there is to do.
#[derive(Subcommand)]
enum Command {
    /// Runs a real CUDA program through Katydid on this machine, without a GPU; installs what is missing.
    Demo,
    /// Everything that must pass: the static checks, all tests, and every program on every way; long matrices in slices.
    Test {
        /// Every slice of the long matrices, in place of those that the commit chooses; takes an hour.
        #[arg(long)]
        all: bool,
    },
    /// The static part of `test`: formatting, lints, layers, style, documentation.
    Check,
    /// Fetches the CUDA toolkit that builds the programs under test.
    Setup,
    /// Installs the binaries into target/dist, or target/dist-release.
    Dist {
        /// With optimisation, for measurements.
        #[arg(long)]
        release: bool,
    },
    /// Builds the programs under test into target/apps; only what changed.
    Apps,
    /// Programs of other people that use OpenCL, natively on PoCL and through Katydid: all, or those that are named.
    OpenclPrograms {
        /// Measures what clpeak and hashcat reach on either way instead.
        #[arg(long, conflicts_with = "names")]
        rates: bool,
        /// Such as `hashcat` or `test_array`.
        names: Vec<String>,
    },
    /// Programs through vsock, on a machine in QEMU that has it; fetches QEMU and a kernel.
    Vsock {
        /// Runs `katydid bench` there too: vsock beside shared memory, a unix socket and TCP.
        #[arg(long)]
        measure: bool,
    },
    /// Workers' limits of memory by control groups, on a machine in QEMU that has those of version 2; fetches QEMU and a kernel.
    ControlGroups,
    /// Checks that every function of the driver API is called by a program under test.
    Coverage,
    /// Fetches each minor version of CUDA's shared runtime, and runs every program with each; takes half an hour.
    Cudart,
    /// Fetches releases of CUDA's runtime, NCCL and PyTorch, and records what each asks the driver for; takes two hours.
    Lookups {
        /// Such as `torch` or `torch==2.15.0`; all of xtask/releases.txt unless given.
        names: Vec<String>,
    },
    /// Checks that crates and modules depend on each other in the allowed directions only.
    Layers {
        /// Prints each use inside a cycle of modules.
        #[arg(long)]
        edges: bool,
    },
    /// Checks licences, sources and known weaknesses of dependencies, with cargo-deny where that is installed.
    Deny,
    /// Measures the sources against the targets of style; fails at the hard limits.
    Style,
    /// Checks the pages under docs and in the root: links, paths, variables, constants, flags, tables of figures.
    Pages {
        /// Rewrites the tables that docs/evidence gives, and checks then.
        #[arg(long)]
        write: bool,
    },
    /// Applies the change of docs/how-to/add-a-function.md to a copy of the tree, and compiles that.
    Walkthrough,
    /// Builds the documentation as a book into target/book, where mdbook is installed.
    Book,
    /// Rewrites the texts that tests compare with, from what the code says now.
    Bless,
    /// The programs on a machine with a GPU: `--pack` here makes a script, run.sh, and archives; the script does the rest there.
    GpuTest {
        /// Makes the folder.
        #[arg(long, value_name = "DIR", conflicts_with = "run")]
        pack: Option<PathBuf>,
        /// Makes only what travels beside the pack: PoCL, and other people's programs that use OpenCL.
        #[arg(long, requires = "pack")]
        beside: bool,
        /// Runs everything in the folder DIR and writes the report to $OUT, or to DIR/report.
        #[arg(long, value_name = "DIR", required_unless_present_any = ["pack", "part"])]
        run: Option<PathBuf>,
        /// Only this part of the run; `frameworks` and `programs` run out of a checkout too.
        #[arg(conflicts_with = "pack")]
        part: Option<gpu::RunPart>,
        #[command(flatten)]
        options: gpu::frameworks::Options,
    },
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    match run(flags.command) {
        Ok(code) => code,
        Err(error) => {
            output::problem(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    // The run on a GPU machine happens without a checkout.
    if let Command::GpuTest { run: Some(folder), part, options, .. } = &command {
        return gpu::run(folder, *part, options);
    }
    let tree = Tree::find()?;
    match command {
        Command::Demo => demo::run(&tree)?,
        Command::Test { all } => return test::run(&tree, all),
        Command::Check => checks::run(&tree)?,
        Command::Setup => fetch::setup::run(&tree)?,
        Command::Dist { release } => dist::run(&tree, release)?,
        Command::Apps => apps::run(&tree).and_then(|()| opencl::build::apps(&tree))?,
        Command::OpenclPrograms { rates: true, .. } => return opencl::rates::run_here(&tree),
        Command::OpenclPrograms { names, .. } => opencl::third_party::run_here(&tree, &names)?,
        Command::Vsock { measure } => guest::vsock::run(&tree, measure)?,
        Command::ControlGroups => guest::control_groups::run(&tree)?,
        Command::Coverage => checks::coverage::run(&tree)?,
        Command::Cudart => lookups::cudart::run(&tree)?,
        Command::Lookups { names } => lookups::run(&tree, &names)?,
        Command::Layers { edges } => checks::layers::check(&tree, edges)?,
        Command::Deny => checks::deny::run(&tree)?,
        Command::Style => checks::style::run(&tree)?,
        Command::Pages { write } => checks::pages::check(&tree, write)?,
        Command::Walkthrough => checks::walkthrough::run(&tree)?,
        Command::Book => book::run(&tree)?,
        Command::Bless => bless::run(&tree)?,
        Command::GpuTest { part: Some(gpu::RunPart::Frameworks), options, .. } => {
            return gpu::frameworks::run_here(&tree, &options);
        }
        Command::GpuTest { part: Some(gpu::RunPart::Programs), options, .. } => {
            return gpu::whole_programs::run_here(&tree, &options);
        }
        Command::GpuTest { pack: Some(folder), beside: true, .. } => gpu::opencl_pack::pack(&tree, &folder)?,
        Command::GpuTest { pack: Some(folder), .. } => gpu::pack(&tree, &folder)?,
        Command::GpuTest { .. } => anyhow::bail!("this part runs out of a pack: `gpu-test --pack DIR` makes one"),
    }
    Ok(ExitCode::SUCCESS)
}
