//! Shell completions and man pages, made from the flags; `cargo xtask dist` installs them.

use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::builder::Resettable;
use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::args::flags::{CompletionsFlags, Flags, ManFlags};
use katydid_cli_core::output::failure::{Failure, Outcome};

/// Prints a shell's completions.
pub(crate) fn completions(flags: &CompletionsFlags) -> Outcome {
    let mut text = Vec::new();
    clap_complete::generate(flags.shell, &mut visible(), "katydid", &mut text);
    let mut out = io::stdout().lock();
    out.write_all(&text)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The command line without commands that only Katydid starts, since a shell would offer those too.
fn visible() -> Command {
    let all = Flags::command();
    let visible = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let shown = Command::new("katydid").version(env!("CARGO_PKG_VERSION")).disable_help_subcommand(true);
    shown.args(all.get_arguments().cloned()).subcommands(visible)
}

/// Writes `katydid.1` and a page for each command.
pub(crate) fn man(flags: &ManFlags) -> Outcome {
    let mut all = Flags::command().disable_help_subcommand(true);
    all.build();
    pages(&all).into_iter().try_for_each(|(name, text)| fs::write(flags.folder.join(name), text)).map_err(|error| {
        Failure::work(format!(
            "cannot write the man pages: {}: {error}: give an existing folder",
            flags.folder.display()
        ))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The pages of a command and of its subcommands, with the names of their files.
fn pages(command: &Command) -> Vec<(String, Vec<u8>)> {
    let below = command.get_subcommands().filter(|below| !below.is_hide_set());
    let mut all: Vec<(String, Vec<u8>)> = below.flat_map(pages).collect();
    let plain = command.clone().after_help(Resettable::Reset).after_long_help(Resettable::Reset);
    let (page, mut text) = (Man::new(plain), Vec::new());
    let more = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    // Writing to memory cannot fail.
    let _ = page.render(&mut text);
    text.extend(sections(&more.unwrap_or_default()).into_bytes());
    all.push((page.get_filename(), text));
    all
}

/// Converts the text after the flags in `--help` to sections of a man page. Otherwise its lines would be filled as one paragraph.
fn sections(text: &str) -> String {
    let mut page = String::new();
    let mut lines = text.lines().peekable();
    // Whether the line above is empty.
    let mut is_apart = true;
    while let Some(line) = lines.next() {
        let is_indented = |line: &&str| line.starts_with(' ');
        if let Some((title, rest)) = heading(line) {
            page.push_str(&format!(".SH {title}\n"));
            match rest {
                "" => {}
                command if title == EXAMPLES_HEADING => page.push_str(&verbatim(&[command])),
                sentence => page.push_str(&format!("{}\n", escaped(sentence))),
            }
        } else if is_indented(&line) {
            let further = std::iter::from_fn(|| lines.next_if(is_indented));
            let block: Vec<&str> = [line].into_iter().chain(further).map(str::trim).collect();
            page.push_str(&list(&block).unwrap_or_else(|| verbatim(&block)));
        } else if !line.is_empty() {
            let is_text = |line: &&str| !line.is_empty() && !is_indented(line) && heading(line).is_none();
            let further = std::iter::from_fn(|| lines.next_if(is_text));
            page.push_str(if is_apart { ".SH NOTES\n" } else { ".PP\n" });
            [line].into_iter().chain(further).for_each(|line| page.push_str(&format!("{}\n", escaped(line))));
        }
        is_apart = line.is_empty();
    }
    page
}

/// Title of the section of examples.
const EXAMPLES_HEADING: &str = "EXAMPLES";

/// The title of the section that a line begins, and the rest of the line.
fn heading(line: &str) -> Option<(String, &str)> {
    if let Some(rest) = line.strip_prefix("Examples:").or(line.strip_prefix("Example:")) {
        return Some((EXAMPLES_HEADING.to_owned(), rest.trim()));
    }
    let title = line.strip_suffix(':').filter(|title| !title.starts_with(' '))?;
    let end = title.find(" (").unwrap_or(title.len());
    Some((title[..end].to_uppercase(), title[end..].trim()))
}

/// Formats rows of two columns as a list, in which long texts are filled; `None` if a line is no such row.
fn list(block: &[&str]) -> Option<String> {
    let row = |line: &&str| {
        let (tag, text) = line.split_once("  ")?;
        Some(format!(".TP\n\\fB{}\\fR\n{}\n", escaped(tag), escaped(text.trim())))
    };
    block.iter().map(row).collect()
}

/// Formats lines that a page shows unchanged.
fn verbatim(block: &[&str]) -> String {
    let lines: String = block.iter().map(|line| format!("{}\n", escaped(line))).collect();
    format!(".PP\n.nf\n.RS 4\n{lines}.RE\n.fi\n")
}

/// Escapes a text that a page shows unchanged.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
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

    #[test]
    fn tables_are_lists_and_examples_are_left_as_they_are() {
        let text = "\
Exit status:
  0    success
  1    a long text-
KATYDID_LIB overrides.

Address (run), the first:
  1. --server ADDR
  .dot

Times have
a unit.";
        let expected = "\
.SH EXIT STATUS
.TP
\\fB0\\fR
success
.TP
\\fB1\\fR
a long text\\-
.PP
KATYDID_LIB overrides.
.SH ADDRESS
(run), the first
.PP
.nf
.RS 4
1. \\-\\-server ADDR
\\&.dot
.RE
.fi
.SH NOTES
Times have
a unit.
";
        assert_eq!(sections(text), expected);
        assert_eq!(sections("Example: katydid x"), ".SH EXAMPLES\n.PP\n.nf\n.RS 4\nkatydid x\n.RE\n.fi\n");
    }

    #[test]
    fn no_page_has_a_section_of_filled_lines() {
        let mut all = Flags::command().disable_help_subcommand(true);
        all.build();
        let pages = pages(&all);
        assert!(pages.iter().any(|(name, _)| name == "katydid-images-ls.1"));
        for (name, text) in pages {
            let text = String::from_utf8(text).unwrap();
            assert!(!text.contains(".SH EXTRA") && text.starts_with(".ie") || text.contains(".TH"), "{name}:\n{text}");
            if name == "katydid.1" {
                assert!(text.contains(".TP\n\\fB75\\fR\nrun, restore"), "{text}");
            }
        }
    }
}
