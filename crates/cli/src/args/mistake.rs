//! Formats mistakes on the command line in one line.
//!
//! clap's own text spans several lines: the mistake, names or possible values below it, tips, and the usage.

use clap::{Arg, Command, CommandFactory};
use katydid_driver_rules::state::units;

use crate::args::command::own_words_of;
use crate::args::flags::Flags;

/// Names of the values of options that take numbers, times or sizes.
const NUMBER_VALUE_NAMES: [&str; 5] = ["TIME", "SIZE", "N", "NUMBER", "LEVEL"];

/// Most characters of a word of the command line that a message repeats.
const MAX_WORD_CHARS: usize = 200;

/// Joins clap's text with its names and tips, and names the command whose help says more. Handles negative numbers itself, since
/// clap takes them for flags.
pub(crate) fn one_line(text: &str, arguments: &[String]) -> String {
    if let Some(message) = negative(arguments) {
        return format!("{message}; `{} --help` tells more", name(&below(arguments)));
    }
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut whole = String::new();
    for line in lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information")) {
        let between = match whole.chars().last() {
            None => "",
            Some(':') => " ",
            Some(_) if line.starts_with("tip:") => "; ",
            Some(_) => ", ",
        };
        whole.push_str(between);
        whole.push_str(line.strip_prefix("error: ").or(line.strip_prefix("tip: ")).unwrap_or(line));
    }
    let mut whole = about_numbers(&whole);
    for long in arguments.iter().filter(|word| word.len() > MAX_WORD_CHARS) {
        let end = long.floor_char_boundary(MAX_WORD_CHARS);
        whole = whole.replace(long.as_str(), &format!("{}…", &long[..end]));
    }
    format!("{whole}; `{} --help` tells more", name(&below(arguments)))
}

/// Replaces the texts of Rust's library and clap about numbers by ones in terms of the command line.
fn about_numbers(text: &str) -> String {
    const WORDS: [(&str, &str); 3] = [
        ("invalid digit found in string", "write a whole number"),
        ("number too large to fit in target type", "it is too large"),
        ("cannot parse integer from empty string", "write a whole number"),
    ];
    let text = WORDS.iter().fold(text.to_owned(), |text, (phrase, words)| text.replace(phrase, words));
    // `99 is not in 0..=16`
    let Some((before, range)) = text.rsplit_once(" is not in ") else { return text };
    let before = before.rsplit_once(": ").map_or(before, |(before, _)| before);
    match range.split_once("..=").map(|(least, most)| (least.parse::<u64>(), most.parse::<u64>())) {
        // A bound that is no more than that of the type says nothing to those who are below the other one.
        Some((Ok(least), Ok(most))) if most >= u64::from(u32::MAX) && !is_above(before, most) => {
            format!("{before}: it must be {least} or more")
        }
        Some((Ok(least), Ok(most))) => format!("{before}: it must be from {least} to {most}"),
        _ => text,
    }
}

/// Whether the value that a message begins with, in quotes, is above a bound.
fn is_above(message: &str, most: u64) -> bool {
    let value = message.split('\'').nth(1).and_then(|value| value.parse::<u128>().ok());
    value.is_some_and(|value| value > u128::from(most))
}

/// The mistake in the first option whose value is a negative number, if any.
fn negative(arguments: &[String]) -> Option<String> {
    let (command, words) = (below(arguments), own_words_of(arguments)?);
    let is = |option: &&Arg, word: &str| {
        let is_long = option.get_long().is_some_and(|long| word.strip_prefix("--") == Some(long));
        is_long || option.get_short().is_some_and(|short| word == format!("-{short}"))
    };
    words.windows(2).filter(|pair| units::is_negative(&pair[1])).find_map(|pair| {
        let option = command.get_arguments().find(|option| is(option, &pair[0]))?;
        let value = option.get_value_names()?.first().filter(|name| NUMBER_VALUE_NAMES.contains(&name.as_str()))?;
        Some(format!(
            "invalid value '{}' for '{} <{value}>': it is negative, write one without a sign",
            pair[1], pair[0]
        ))
    })
}

/// The command on the command line, as far as it exists.
fn below(arguments: &[String]) -> Command {
    let mut command = Flags::command();
    for word in arguments.iter().skip(1).filter(|word| !word.starts_with('-')) {
        let Some(below) = command.find_subcommand(word).cloned() else { break };
        command = below.bin_name(format!("{} {word}", name(&command)));
    }
    command
}

/// Name of a command, with those of its parents.
fn name(command: &Command) -> &str {
    command.get_bin_name().unwrap_or_else(|| command.get_name())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use clap::error::ErrorKind;

    use super::*;

    fn parse_error(line: &str) -> String {
        let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
        one_line(&Flags::try_parse_from(&arguments).unwrap_err().to_string(), &arguments)
    }

    #[test]
    fn every_option_that_takes_a_number_is_known_by_the_name_of_its_value() {
        let mut all = vec![Flags::command()];
        while let Some(command) = all.pop() {
            for option in command.get_arguments().filter(|option| !option.is_positional()) {
                let parses = |text: &str| {
                    let line = [command.get_name().to_owned(), format!("--{}={text}", option.get_long().unwrap_or(""))];
                    let parsed = command.clone().ignore_errors(false).try_get_matches_from(line);
                    !parsed.is_err_and(|error| error.kind() == ErrorKind::ValueValidation)
                };
                let is_text = !option.get_action().takes_values() || command.is_hide_set() || parses("text");
                let is_number = !is_text && ["3", "3s", "1G"].into_iter().any(parses);
                let names = option.get_value_names().unwrap_or_default();
                let is_known = names.iter().any(|name| NUMBER_VALUE_NAMES.contains(&name.as_str()));
                assert_eq!(is_number, is_known && !is_text, "{} {:?}", command.get_name(), option.get_long());
            }
            all.extend(command.get_subcommands().cloned());
        }
    }

    #[test]
    fn a_mistake_is_one_line_with_all_that_clap_says() {
        for (line, words) in [
            ("katydid migrate --json", &["<JOB>", "--to <ADDR>", "`katydid migrate --help`"][..]),
            ("katydid inspect --json", &["<DIR>", "`katydid inspect --help`"]),
            ("katydid run --servr x -- true", &["'--servr'", "'--server'", "`katydid run --help`"]),
            ("katydid run --link smoke -- true", &["'smoke'", "shm, stream"]),
            ("katydid --json images ls", &["'--json'", "`katydid images ls --help`"]),
            ("katydid ps --json=x", &["'x'", "--json"]),
            ("katydid checkpoint j -o i --quiesce-timeout -5s", &["'-5s'", "--quiesce-timeout <TIME>", "negative"]),
            ("katydid run --link-timeout -5s -- true", &["'-5s'", "--link-timeout <TIME>", "negative"]),
            ("katydid run --memory -1G -- true --memory -2G", &["'-1G'", "--memory <SIZE>", "negative"]),
            ("katydid run --memory=-1G -- true", &["'-1G'", "--memory <SIZE>", "negative"]),
            ("katydid images gc i --keep -1", &["'-1'", "--keep <N>", "negative", "`katydid images gc --help`"]),
            ("katydid bench --sizes -1G", &["'-1G'", "--sizes <SIZE>", "negative"]),
            ("katydid checkpoint j -o i --level -3", &["'-3'", "--level <LEVEL>", "negative"]),
            ("katydid checkpoint j -o i --quiesce-timeout --json", &["--quiesce-timeout <TIME>", "value is required"]),
            ("katydid run --lanes 99 -- true", &["'99'", "--lanes <NUMBER>", "it must be from 0 to 16;"]),
            ("katydid images gc i --keep 0", &["'0'", "--keep <N>", "it must be 1 or more;"]),
            ("katydid images gc i --keep 4294967296", &["--keep <N>", "it must be from 1 to 4294967295;"]),
            ("katydid images gc i --keep x", &["'x'", "--keep <N>", "write a whole number;"]),
            ("katydid pss", &["'pss'", "'ps'", "`katydid --help`"]),
        ] {
            let message = parse_error(line);
            assert!(
                !message.contains('\n') && !message.contains("Usage") && !message.starts_with("error"),
                "{message}"
            );
            words.iter().for_each(|word| assert!(message.contains(word), "no {word} in {message}"));
        }
    }
}
