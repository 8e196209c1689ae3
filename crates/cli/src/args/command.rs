//! Properties of all commands: whether a document is wanted, and whether Katydid's variables matter.

use clap::{Arg, CommandFactory};

use crate::args::flags::{Command, Flags, ImagesCommand};
use katydid_cli_core::output::document::JsonDestination;

/// The flag of all commands that write a document, without and with a value.
const JSON_FLAG: &str = "--json";
const FLAG_WITH_VALUE: &str = "--json=";

impl Command {
    /// Destination of the document for `--json`, if one is wanted.
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

    /// Whether users call the command, and not Katydid itself.
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

    /// Whether a signal has to be handled before it ends the command: a document is still owed, or folders must be removed.
    /// `serve` handles signals itself.
    pub(crate) fn is_interruptible(&self) -> bool {
        self.document().is_some() || matches!(self, Self::Run(_) | Self::Restore(_) | Self::Trace(_) | Self::Bench(_))
    }

    /// Whether the command starts processes that read Katydid's variables.
    pub(crate) fn starts_programs(&self) -> bool {
        matches!(self, Self::Run(_) | Self::Serve(_) | Self::Restore(_) | Self::Trace(_) | Self::Bench(_))
    }
}

/// Destination of the document that an otherwise unparsable command line asks for. Standard output, if the named one is
/// malformed: no program has been started.
pub(crate) fn document_of(arguments: &[String]) -> Option<JsonDestination> {
    let is_command = |word: &&String| !word.starts_with('-');
    let command = arguments.iter().skip(1).position(|word| is_command(&word)).map_or(arguments.len(), |at| at + 1);
    let is_flag = |word: &&String| *word == JSON_FLAG || word.starts_with(FLAG_WITH_VALUE);
    if arguments.iter().take(command).any(|word| is_flag(&word)) {
        return Some(JsonDestination::Output);
    }
    let name = arguments.get(command)?;
    let words = own_arguments(name, arguments.get(command + 1..)?);
    let at = words.iter().position(|word| is_flag(&word))?;
    match name.as_str() {
        "run" => None,
        "trace" | "restore" => {
            let value = words[at].strip_prefix(FLAG_WITH_VALUE).or(words.get(at + 1).map(String::as_str));
            let named = value.filter(|value| !value.starts_with('-')).and_then(|value| value.parse().ok());
            Some(named.unwrap_or(JsonDestination::Output))
        }
        _ => Some(JsonDestination::Output),
    }
}

/// Katydid's own words of a command line: those before `--`, or before the program.
fn own_arguments<'a>(command: &str, arguments: &'a [String]) -> &'a [String] {
    let end = arguments.iter().position(|word| word == "--");
    let (arguments, has_end) = (&arguments[..end.unwrap_or(arguments.len())], end.is_some());
    let commands = Flags::command();
    let Some(command) = commands.find_subcommand(command).filter(|it| ["run", "trace"].contains(&it.get_name())) else {
        return arguments;
    };
    let is = |flag: &Arg, word: &str| {
        let is_long = flag.get_long().is_some_and(|long| word.strip_prefix("--") == Some(long));
        is_long || flag.get_short().is_some_and(|short| word == format!("-{short}"))
    };
    let takes_value = |word: &str| match command.get_arguments().find(|flag| is(flag, word)) {
        Some(flag) => flag.get_action().takes_values(),
        // An unknown flag: the next word is its value rather than the program, which follows `--`.
        None => has_end && !word.contains('='),
    };
    let mut at = 0;
    while let Some(word) = arguments.get(at).filter(|word| word.starts_with('-')) {
        at += 1 + usize::from(takes_value(word));
    }
    &arguments[..at.min(arguments.len())]
}

/// Katydid's own words of a whole command line; `None` without a command.
pub(crate) fn own_words_of(arguments: &[String]) -> Option<&[String]> {
    let command = arguments.iter().skip(1).position(|word| !word.starts_with('-'))? + 1;
    Some(own_arguments(&arguments[command], &arguments[command + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<JsonDestination> {
        document_of(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn a_document_is_owed_wherever_the_flag_is() {
        for line in ["katydid --json", "katydid --json images ls", "katydid ps --json=x", "katydid images --json ls x"]
        {
            assert_eq!(of(line), Some(JsonDestination::Output), "{line}");
        }
        for line in ["katydid trace --json", "katydid trace --json fd:x -- true", "katydid trace --json -- true"] {
            assert_eq!(of(line), Some(JsonDestination::Output), "{line}");
        }
        for line in [
            "katydid trace --servr x --json f -- true",
            "katydid trace --json=f --servr x",
            "katydid trace --lanes 99 -o x --json f true --json g",
            "katydid restore i --json f --no",
        ] {
            assert_eq!(of(line), Some(JsonDestination::File("f".into())), "{line}");
        }
        for line in ["katydid run --servr -- p --json", "katydid trace --lanes 99 p --json f", "katydid ps", "katydid"]
        {
            assert_eq!(of(line), None, "{line}");
        }
        // This `--` is the program's own.
        assert_eq!(of("katydid trace --lanes 99 echo --json f -- x"), None);
    }
}
