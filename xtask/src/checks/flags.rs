//! Checks that flags of `katydid` in code blocks of pages exist, by the command's section on the page of all commands.

use std::collections::BTreeMap;

/// Page that `katydid` itself writes.
pub(crate) const COMMANDS_PAGE: &str = "docs/reference/commands.md";
/// Flags that every command takes.
const GENERAL_FLAGS: [&str; 2] = ["--help", "--version"];
/// Words that end the arguments of a command in a shell.
const ARGUMENT_ENDS: [&str; 6] = ["--", "|", "||", "&&", "&", "#"];

/// Flags by command, such as `images ls`.
pub(crate) struct Flags<'t>(BTreeMap<&'t str, &'t str>);

impl<'t> Flags<'t> {
    /// Reads the flags from the text of [`COMMANDS_PAGE`].
    pub(crate) fn of_page(text: &'t str) -> Self {
        let sections = text.split("\n## katydid ").skip(1).filter_map(|section| section.split_once('\n'));
        Self(sections.map(|(command, section)| (command.trim(), section)).collect())
    }

    /// Returns flags in the code blocks of a page that their commands do not have, with the line numbers.
    pub(crate) fn faults(&self, text: &str) -> Vec<(usize, String)> {
        let mut faults = Vec::new();
        for (number, line) in code_lines(text) {
            let words: Vec<&str> = line.split_whitespace().collect();
            for (at, _) in words.iter().enumerate().filter(|(_, word)| is_katydid(word)) {
                let lost = self.lost(words.get(at + 1..).unwrap_or_default());
                faults.extend(lost.into_iter().map(|fault| (number, fault)));
            }
        }
        faults
    }

    /// Returns flags of one call that its command does not have; none for words that are no command, such as a program's output.
    fn lost(&self, arguments: &[&str]) -> Vec<String> {
        let two = arguments.get(..2).map(|words| words.join(" "));
        let name = two.as_deref().filter(|name| self.0.contains_key(name)).or_else(|| arguments.first().copied());
        let Some((name, section)) = name.and_then(|name| self.0.get_key_value(name)) else { return Vec::new() };
        let own = arguments.iter().take_while(|word| !ARGUMENT_ENDS.contains(word));
        let flags =
            own.filter(|word| word.starts_with("--")).map(|word| word.split(['=', ';', '`']).next().unwrap_or(word));
        let is_lost = |flag: &&str| !GENERAL_FLAGS.contains(flag) && !section.contains(&format!("`{flag}`"));
        flags.filter(is_lost).map(|flag| format!("`katydid {name}` has no flag {flag}")).collect()
    }
}

fn is_katydid(word: &str) -> bool {
    word == "katydid" || word.ends_with("/katydid")
}

/// Returns the lines of the code blocks; a line that continues is joined with the next one.
fn code_lines(text: &str) -> Vec<(usize, String)> {
    let (mut lines, mut is_code, mut goes_on) = (Vec::<(usize, String)>::new(), false, false);
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            (is_code, goes_on) = (!is_code, false);
        } else if is_code {
            let part = line.trim_end_matches('\\');
            match lines.last_mut().filter(|_| goes_on) {
                Some((_, before)) => *before += part,
                None => lines.push((index + 1, part.to_owned())),
            }
            goes_on = line.ends_with('\\');
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Commands\n\n## katydid run\n\n| `--memory` | |\n\n## katydid images ls\n\n| `--json` | |\n";

    #[test]
    fn flags_that_a_command_does_not_have_are_named() {
        let flags = Flags::of_page(PAGE);
        let text = "```\n$ A=1 katydid run --memory=1G -- ./x --mine\n$ katydid images ls \\\n    --json --all\nkatydid: no --such\n```\nkatydid run --none\n";
        assert_eq!(flags.faults(text), [(3, "`katydid images ls` has no flag --all".to_owned())]);
        assert_eq!(flags.faults("```console\n$ bin/katydid run --sessions 2 | grep --x\n```\n").len(), 1);
    }
}
