//! Mistakes of the command line, in one line.
//!
//! clap's own text spans several: what is wrong, names or possible values below it, tips, and the usage.

use clap::CommandFactory;

use crate::args::flags::Flags;

/// What clap says, with its names and tips, and the command whose help says more.
pub(crate) fn one_line(text: &str, arguments: &[String]) -> String {
    let said = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut whole = String::new();
    for line in said.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information")) {
        let between = match whole.chars().last() {
            None => "",
            Some(':') => " ",
            Some(_) if line.starts_with("tip:") => "; ",
            Some(_) => ", ",
        };
        whole.push_str(between);
        whole.push_str(line.strip_prefix("error: ").or(line.strip_prefix("tip: ")).unwrap_or(line));
    }
    format!("{whole}; `{} --help` tells more", command_of(arguments))
}

/// The command that was given, as far as it is one.
fn command_of(arguments: &[String]) -> String {
    let mut command = Flags::command();
    let mut name = command.get_name().to_owned();
    for word in arguments.iter().skip(1).filter(|word| !word.starts_with('-')) {
        let Some(below) = command.find_subcommand(word).cloned() else { break };
        name = format!("{name} {word}");
        command = below;
    }
    name
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn said(line: &str) -> String {
        let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
        one_line(&Flags::try_parse_from(&arguments).unwrap_err().to_string(), &arguments)
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
            ("katydid pss", &["'pss'", "'ps'", "`katydid --help`"]),
        ] {
            let said = said(line);
            assert!(!said.contains('\n') && !said.contains("Usage") && !said.starts_with("error"), "{said}");
            words.iter().for_each(|word| assert!(said.contains(word), "no {word} in {said}"));
        }
    }
}
