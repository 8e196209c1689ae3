//! Shell completions and man pages, made from the flags; `cargo xtask dist` installs them.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::CommandFactory;

use crate::args::flags::{CompletionsFlags, Flags, ManFlags};
use katydid_cli_core::output::failure::{Failure, Outcome};

/// Prints a shell's completions.
pub(crate) fn completions(flags: &CompletionsFlags) -> Outcome {
    let mut text = Vec::new();
    clap_complete::generate(flags.shell, &mut Flags::command(), "katydid", &mut text);
    io::stdout().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes `katydid.1` and a page for each command.
pub(crate) fn man(flags: &ManFlags) -> Outcome {
    let written = clap_mangen::generate_to(Flags::command(), &flags.folder);
    written.map_err(|error| {
        Failure::work(format!(
            "cannot write the man pages: {}: {error}: give an existing folder",
            flags.folder.display()
        ))
    })?;
    Ok(ExitCode::SUCCESS)
}
