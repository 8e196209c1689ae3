//! What all commands have in common: whether a document is asked for, and whether variables of ours matter.

use crate::args::flags::{Command, ImagesCommand};
use crate::output::document::JsonDestination;

impl Command {
    /// Where the document of `--json` goes, if one is asked for.
    pub(crate) fn document(&self) -> Option<JsonDestination> {
        let is_wanted = match self {
            Self::Trace(flags) => return flags.json.clone(),
            Self::Restore(flags) => return flags.json.clone(),
            Self::Ps(flags) => flags.json,
            Self::Checkpoint(flags) => flags.json,
            Self::Migrate(flags) => flags.json,
            Self::Inspect(flags) => flags.json,
            Self::Bench(flags) => flags.json,
            Self::Doctor(flags) => flags.json,
            Self::Images(flags) => match &flags.command {
                ImagesCommand::Ls(flags) => flags.json,
                ImagesCommand::Verify(flags) => flags.json,
                ImagesCommand::Gc(flags) => flags.json,
            },
            _ => false,
        };
        is_wanted.then_some(JsonDestination::Output)
    }

    /// Whether people call it, not Katydid itself.
    pub(crate) fn is_for_users(&self) -> bool {
        matches!(
            self,
            Self::Run(_)
                | Self::Serve(_)
                | Self::Ps(_)
                | Self::Checkpoint(_)
                | Self::Restore(_)
                | Self::Migrate(_)
                | Self::Inspect(_)
                | Self::Images(_)
                | Self::Trace(_)
                | Self::Bench(_)
                | Self::Certs(_)
                | Self::Doctor(_)
        )
    }

    /// Whether what it starts reads variables of ours.
    pub(crate) fn starts_programs(&self) -> bool {
        matches!(self, Self::Run(_) | Self::Serve(_) | Self::Restore(_) | Self::Trace(_) | Self::Bench(_))
    }
}

/// Where the document goes that a command line asks for which cannot be read otherwise.
pub(crate) fn document_of(arguments: &[String]) -> Option<JsonDestination> {
    const FLAG: &str = "--json";
    let command = arguments.get(1)?;
    let mut words = arguments.iter().skip(2).take_while(|word| *word != "--");
    if command == "trace" || command == "restore" {
        let word = words.find(|word| word.starts_with(FLAG))?;
        return word.strip_prefix("--json=").or(words.next().map(String::as_str))?.parse().ok();
    }
    (command != "run" && words.any(|word| word == FLAG)).then_some(JsonDestination::Output)
}
