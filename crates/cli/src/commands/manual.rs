//! Shell completions and man pages, made from the flags; `cargo xtask dist` installs them.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Command, CommandFactory};

use crate::args::flags::{CompletionsFlags, Flags, ManFlags};
use katydid_cli_core::output::failure::{Failure, Outcome};

/// Prints a shell's completions.
pub(crate) fn completions(flags: &CompletionsFlags) -> Outcome {
    let mut text = Vec::new();
    clap_complete::generate(flags.shell, &mut visible(), "katydid", &mut text);
    io::stdout().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The command line without what Katydid itself starts: a shell would offer that too.
fn visible() -> Command {
    let all = Flags::command();
    let visible = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let shown = Command::new("katydid").version(env!("CARGO_PKG_VERSION")).disable_help_subcommand(true);
    shown.args(all.get_arguments().cloned()).subcommands(visible)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_is_offered_what_users_start() {
        let mut shown = visible();
        shown.build();
        let names: Vec<String> = shown.get_subcommands().map(|command| command.get_name().to_owned()).collect();
        assert!(names.iter().any(|name| name == "checkpoint"));
        assert!(!names.iter().any(|name| ["worker", "job-guard", "help"].contains(&name.as_str())), "{names:?}");
        visible().debug_assert();
    }
}
