//! Generates `docs/reference/commands.md` from the flags. The test below compares the page, and `cargo xtask bless` rewrites it.

use std::fmt::Write as _;

use clap::builder::{PossibleValue, StyledStr};
use clap::{Arg, Command, CommandFactory};

use crate::args::flags::Flags;

/// Head of the page.
const PAGE_HEAD: &str = "\
# Commands and flags

Every command of `katydid`, as `katydid COMMAND --help` describes it. [Command line](command-line.md) has the exit statuses and the JSON, and
[Environment variables](environment.md) the variables behind some flags.

`cargo xtask bless` writes this page from `crates/cli/src/args/flags.rs`.
";

/// Text of the reference page of the command line.
fn page() -> String {
    let mut all = Flags::command().disable_help_subcommand(true);
    all.build();
    let mut page = PAGE_HEAD.to_owned();
    all.get_subcommands().for_each(|command| add_command(&mut page, command));
    page
}

/// Adds a command and its subcommands, except those that only Katydid starts.
fn add_command(page: &mut String, command: &Command) {
    if command.is_hide_set() {
        return;
    }
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let usage = command.clone().render_usage().to_string();
    let _ = write!(page, "\n## {name}\n\n");
    for paragraph in text_of(command.get_long_about().or(command.get_about())).split("\n\n") {
        let _ = write!(page, "{}\n\n", sentences(paragraph));
    }
    let _ = write!(page, "```text\n{}\n```\n", usage.trim().trim_start_matches("Usage: "));
    let shown: Vec<&Arg> = command.get_arguments().filter(|argument| is_shown(argument)).collect();
    let (arguments, flags): (Vec<&Arg>, Vec<&Arg>) = shown.into_iter().partition(|argument| argument.is_positional());
    add_table(page, "argument", &arguments);
    add_table(page, "flag", &flags);
    if let Some(examples) = command.get_after_long_help().or(command.get_after_help()) {
        let _ = write!(page, "\n```text\n{examples}\n```\n");
    }
    command.get_subcommands().for_each(|below| add_command(page, below));
}

/// Whether an argument belongs to this command itself.
fn is_shown(argument: &Arg) -> bool {
    !argument.is_hide_set() && !["help", "version"].contains(&argument.get_id().as_str())
}

/// Adds a table with a row for each argument; a positional argument is its own value.
fn add_table(page: &mut String, title: &str, arguments: &[&Arg]) {
    let Some(first) = arguments.first() else { return };
    let (heads, line) = if first.is_positional() { ("", "") } else { (" value |", "---|") };
    let _ = write!(page, "\n| {title} |{heads} default | meaning |\n|---|{line}---|---|\n");
    for argument in arguments {
        let takes_value = argument.get_action().takes_values();
        let names = argument.get_value_names().unwrap_or_default().iter().filter(|_| takes_value);
        let defaults = argument.get_default_values().iter().filter(|_| takes_value);
        let value = match argument.is_positional() {
            true => String::new(),
            false => format!(" {} |", code(names.map(|name| name.as_str()))),
        };
        let default = code(defaults.filter_map(|default| default.to_str()));
        let meaning = text_of(argument.get_long_help().or(argument.get_help()));
        let meaning: Vec<String> = meaning.split("\n\n").map(sentences).chain(choices(argument)).collect();
        let cell = meaning.join(" ").replace('|', "\\|");
        let _ = writeln!(page, "| {} |{value} {default} | {cell} |", name_of(argument));
    }
}

/// An argument's spelling: both names of a flag, or the name of the value.
fn name_of(argument: &Arg) -> String {
    let short = argument.get_short().map(|letter| format!("-{letter}"));
    let long = argument.get_long().map(|name| format!("--{name}"));
    let value = argument.get_value_names().unwrap_or_default().first().map(ToString::to_string);
    match (short, long) {
        (None, None) => code(value.as_deref()),
        (short, long) => code(short.as_deref().into_iter().chain(long.as_deref())),
    }
}

/// The values that a flag accepts, each with its meaning if it has one.
fn choices(argument: &Arg) -> Option<String> {
    let values = argument.get_possible_values();
    let is_shown = |value: &&PossibleValue| !value.is_hide_set() && argument.get_action().takes_values();
    let shown: Vec<&PossibleValue> = values.iter().filter(is_shown).collect();
    if shown.iter().all(|value| value.get_help().is_none()) {
        let names = code(shown.iter().map(|value| value.get_name()));
        return (!names.is_empty()).then(|| format!("One of {names}."));
    }
    let meaning = |value: &PossibleValue| value.get_help().map(|help| sentences(&help.to_string()));
    let choice = |value: &&PossibleValue| format!("`{}`: {}", value.get_name(), meaning(value).unwrap_or_default());
    Some(shown.iter().map(choice).collect::<Vec<_>>().join(" "))
}

/// Formats words as spans of code.
fn code<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

fn text_of(text: Option<&StyledStr>) -> String {
    text.map(ToString::to_string).unwrap_or_default()
}

/// Formats a paragraph as Markdown: flags become code, stars are escaped, and the full stop that clap removes from short texts is
/// back.
fn sentences(paragraph: &str) -> String {
    let mut text = String::new();
    for (at, piece) in paragraph.trim().split('`').enumerate() {
        if at % 2 == 1 {
            let _ = write!(text, "`{piece}`");
            continue;
        }
        for word in piece.split_inclusive(char::is_whitespace) {
            let start = word.find(|letter| letter != '(').unwrap_or(0);
            let flag = &word[start..];
            let length =
                flag.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-').unwrap_or(flag.len());
            if flag.starts_with('-') && length > 1 {
                let _ = write!(text, "{}`{}`{}", &word[..start], &flag[..length], &flag[length..]);
            } else {
                text.push_str(&word.replace('*', "\\*"));
            }
        }
    }
    if !text.ends_with(['.', '!', '?', ':', ')']) {
        text.push('.');
    }
    text
}

#[test]
fn the_page_has_every_command_and_flag() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/commands.md");
    if std::env::var_os("KATYDID_BLESS").is_some() {
        std::fs::write(path, page()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap_or_default(), page(), "`cargo xtask bless` writes it anew");
}

#[test]
fn flags_are_code_and_texts_end_with_a_full_stop() {
    assert_eq!(sentences("As --every says (-o), `a --b` and *"), "As `--every` says (`-o`), `a --b` and \\*.");
}

#[test]
fn commands_of_katydid_itself_are_left_out() {
    let page = page();
    assert!(page.contains("\n## katydid images gc\n") && page.contains("| `--listen` | `ADDR` |"));
    assert!(!page.contains("katydid worker") && !page.contains("`--help`"));
}
