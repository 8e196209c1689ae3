//! Runs on softcuda what the pages tell a user to type: each `console` block of the README, the tutorials and the how-to pages.
//!
//! A page is one shell in a terminal. Its empty home folder has the programs of the first tutorial. A line after `$ ` is a
//! command, a line after `> ` continues it, and all others are output. Each command must succeed, and the lines that the page
//! shows must appear in their order; `...` stands for anything. Further output is fine: a page need not show all. A user may
//! try a page again, so the test types each page twice in the same folder.
//!
//! Pages name ports. The test replaces each with a free one, so that pages can run at once, and beside a server.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, anyhow, bail, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::gate::lasting_port;
use katydid_tests::paths::Paths;
use katydid_tests::program;
use katydid_tests::trial::ignorable_test;
use katydid_tests::watch::{WAIT_TIMEOUT, why_no_checkpoint};
use libtest_mimic::{Arguments, Completion, Trial};

/// Marks the start of a command's output in the terminal; the command's number follows.
const COMMAND_BEGIN_MARK: char = '\u{1}';
/// Marks the end of a command's output; its number and exit status follow.
const COMMAND_END_MARK: char = '\u{2}';
/// Ports that pages name.
const PORTS: [&str; 2] = [":9923", ":9924"];
/// The escape sequence that clears a line, as progress bars send it.
const CLEAR: &str = "\u{1b}[K";
/// The start of each page's script. It closes the descriptors that the test inherited beside the standard streams, since a user's
/// terminal has no more; 255 is the script itself. Jobs have groups of their own, as in an interactive shell, and end with it.
const PREPARED: &str = "for fd in /proc/$$/fd/*; do
    fd=${fd##*/}
    [ $fd -le 2 ] || [ $fd = 255 ] || eval \"exec $fd>&-\"
done
trap 'for job in $(jobs -p); do kill -KILL -- -$job; done 2> /dev/null' EXIT
set -m
";
/// The names that pages use for the programs under test.
const PROGRAMS: [(&str, &str); 2] = [("my-cuda-program", "static/nbody"), ("train", "static/long_loop")];
/// The program with ranks, present if Open MPI is.
const RANKED: (&str, &str) = ("mpi-program", "objects/mpi_ring-ranked");

/// A command of a page with its output, as far as the page shows it.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    /// Line number in the page, from 1.
    line: usize,
    command: String,
    expected_output: Vec<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    match trials() {
        Ok(trials) => libtest_mimic::run(&arguments, trials).exit_code(),
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn trials() -> Result<Vec<Trial>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no root")?;
    let mut pages = vec![root.join("README.md")];
    for folder in ["docs/tutorials", "docs/how-to"] {
        for entry in fs::read_dir(root.join(folder)).with_context(|| folder.to_owned())? {
            pages.push(entry?.path());
        }
    }
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    let mut trials: Vec<Trial> = self_tests();
    for page in pages {
        let name = page.strip_prefix(root)?.display().to_string();
        trials.push(ignorable_test(name, move || Ok(try_page(&page)?)));
    }
    Ok(trials)
}

/// Runs a page, or returns what it needs and this machine lacks.
fn try_page(page: &Path) -> Result<Completion> {
    let paths = Paths::of_this_test()?;
    let steps = steps(&fs::read_to_string(page)?)?;
    if let Some(why) = why_not(&paths, &steps) {
        return Ok(Completion::ignored_with(why));
    }
    if !steps.is_empty() {
        run(&paths, &steps)?;
    }
    Ok(Completion::Completed)
}

/// Returns what the steps need and this machine lacks.
fn why_not(paths: &Paths, steps: &[Step]) -> Option<String> {
    let any = |word: &str| steps.iter().any(|step| step.command.contains(word));
    if any("mpirun") && paths.why_not_built("mpi_ring", Variant::Mpi).is_some() {
        return Some("there is no Open MPI".to_owned());
    }
    (any("katydid checkpoint") || any("--every")).then(|| why_no_checkpoint(paths)).flatten()
}

/// Returns the steps of all `console` blocks of a page.
fn steps(page: &str) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    let mut is_inside = false;
    for (index, text) in page.lines().enumerate() {
        let text = text.trim_start();
        if let Some(kind) = text.strip_prefix("```") {
            is_inside = !is_inside && kind == "console";
        } else if !is_inside {
        } else if let Some(command) = text.strip_prefix("$ ") {
            steps.push(Step { line: index + 1, command: command.to_owned(), expected_output: Vec::new() });
        } else {
            let step = steps.last_mut().with_context(|| format!("line {}: output of no command", index + 1))?;
            match text.strip_prefix("> ") {
                Some(more) if step.expected_output.is_empty() => step.command = format!("{}\n{more}", step.command),
                _ => step.expected_output.push(text.to_owned()),
            }
        }
    }
    Ok(steps)
}

/// Runs the steps in one shell, and compares the output with what the page shows.
fn run(paths: &Paths, steps: &[Step]) -> Result<()> {
    let home = tempfile::Builder::new().prefix("katydid-docs-").tempdir()?;
    let ports: BTreeMap<&str, String> = PORTS.iter().map(|&port| (port, format!(":{}", lasting_port()))).collect();
    furnish(paths, home.path())?;
    fs::write(home.path().join("page.sh"), script(steps, &ports))?;
    for time in ["first", "second"] {
        let typed = type_page(paths, home.path(), steps, &ports);
        typed.map_err(|error| anyhow!("{error:#}\n(typed for the {time} time)"))?;
    }
    Ok(())
}

/// Types the script in the folder `home`, and compares its output with what the page shows.
fn type_page(paths: &Paths, home: &Path, steps: &[Step], ports: &BTreeMap<&str, String>) -> Result<()> {
    // script(1) gives the shell a terminal, and the shell leads its session.
    let mut command = Command::new("script");
    command.args(["--quiet", "--flush", "--command", "exec bash --norc page.sh", "/dev/null"]).current_dir(home);
    let path = format!("{}:{}", paths.dist.join("bin").display(), std::env::var("PATH").unwrap_or_default());
    command.env_clear().env("PATH", path).env("HOME", home).env("SHELL", "/bin/sh");
    command.env("XDG_RUNTIME_DIR", home.join("run")).env("TERM", "xterm").env("LANG", "C.UTF-8");
    command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    let outcome = program::run(&mut command, WAIT_TIMEOUT)?;
    let text = outcome.text();
    steps.iter().enumerate().try_for_each(|(number, step)| judge(number, step, ports, &text))
}

/// Puts into the home folder what a user has there after the first tutorial.
fn furnish(paths: &Paths, home: &Path) -> io::Result<()> {
    fs::create_dir(home.join("run"))?;
    let program = |path: &str| -> PathBuf { paths.apps.join(path) };
    for (name, path) in PROGRAMS.into_iter().chain(program(RANKED.1).exists().then_some(RANKED)) {
        symlink(program(path), home.join(name))?;
    }
    Ok(())
}

/// Returns a script that marks where the output of each step begins and ends. The script ends at the first step that fails,
/// since later ones would wait.
fn script(steps: &[Step], ports: &BTreeMap<&str, String>) -> String {
    let mut text = PREPARED.to_owned();
    for (number, step) in steps.iter().enumerate() {
        let command = replaced(&step.command, ports);
        text += &format!("printf '\\n{COMMAND_BEGIN_MARK}%d\\n' {number}\n{command}\n");
        text +=
            &format!("status=$?; printf '\\n{COMMAND_END_MARK}%d %d\\n' {number} $status; [ $status = 0 ] || exit\n");
    }
    text
}

fn replaced(text: &str, ports: &BTreeMap<&str, String>) -> String {
    ports.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Whether a step succeeded and its output has the lines shown.
fn judge(number: usize, step: &Step, ports: &BTreeMap<&str, String>, shown_output: &str) -> Result<()> {
    let Step { line, command, .. } = step;
    let (_, after) = shown_output
        .split_once(&format!("{COMMAND_BEGIN_MARK}{number}\r\n"))
        .with_context(|| format!("line {line}: never came to `{command}`:\n{shown_output}"))?;
    let (output, after) = after
        .split_once(&format!("{COMMAND_END_MARK}{number} "))
        .with_context(|| format!("line {line}: `{command}` did not end:\n{after}"))?;
    let status = after.lines().next().unwrap_or_default();
    ensure!(status == "0", "line {line}: `{command}` ended with {status}:\n{output}");
    let lines = shown_lines(output);
    let mut rest = lines.iter();
    for expected_line in &step.expected_output {
        let expected_line = replaced(expected_line, ports);
        if expected_line != "..." && !rest.any(|got| fits(&expected_line, got)) {
            bail!("line {line}: `{command}` did not print, or not in this place: {expected_line}\n{output}");
        }
    }
    Ok(())
}

/// Lines as a user sees them. Text that a progress bar overwrote counts as a line of its own.
fn shown_lines(output: &str) -> Vec<&str> {
    output.split(['\n', '\r']).flat_map(|line| line.split(CLEAR)).map(str::trim_end).collect()
}

/// Whether a line matches the page's, in which `...` stands for anything.
fn fits(expected: &str, got: &str) -> bool {
    let parts: Vec<&str> = expected.trim_end().split("...").collect();
    let [first, .., last] = parts.as_slice() else { return expected.trim_end() == got };
    let Some(mut remaining) = got.strip_prefix(first) else { return false };
    for part in &parts[1..parts.len() - 1] {
        match remaining.split_once(part) {
            Some((_, after)) => remaining = after,
            None => return false,
        }
    }
    remaining.ends_with(last)
}

/// Tests of this file's own parts.
fn self_tests() -> Vec<Trial> {
    let own = |name: &str, test: fn() -> Result<()>| katydid_tests::trial::test(name, move || Ok(test()?));
    vec![
        own("a_block_is_commands_with_their_output", a_block_is_commands_with_their_output),
        own("three_dots_stand_for_anything", three_dots_stand_for_anything),
        own("a_page_that_is_wrong_is_found", a_page_that_is_wrong_is_found),
    ]
}

fn a_block_is_commands_with_their_output() -> Result<()> {
    let page = "```console\n$ a \\\n>   b\none\n$ c\n```\n$ no\n```bash\n$ no\n```\n";
    let step = |line, command: &str, expected_output: &[&str]| Step {
        line,
        command: command.to_owned(),
        expected_output: expected_output.iter().map(|&line| line.to_owned()).collect(),
    };
    ensure!(steps(page)? == [step(2, "a \\\n  b", &["one"]), step(5, "c", &[])]);
    ensure!(steps("```console\noutput\n```\n").is_err());
    Ok(())
}

fn three_dots_stand_for_anything() -> Result<()> {
    ensure!(
        fits("a ... c", "a b c") && fits("a", "a") && fits("...", "") && fits("x...", "xyz") && fits("... z", "y z")
    );
    ensure!(!fits("a ... d", "a b c") && !fits("a", "a b") && !fits("b...", "a b") && !fits("aa...aa", "aaa"));
    Ok(())
}

fn a_page_that_is_wrong_is_found() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let tried = |block: &str| run(&paths, &steps(&format!("```console\n{block}\n```\n"))?);
    tried("$ echo one; test -t 0 && test -t 1\none\n$ sleep 600 &\n$ kill $!; wait $! || echo $?\n143")?;
    let text = |block: &str| tried(block).err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(text("$ echo one\ntwo").contains("did not print"), "{}", text("$ echo one\ntwo"));
    ensure!(text("$ echo one; echo two\ntwo\none").contains("in this place"));
    ensure!(text("$ true\n$ (exit 3)").contains("line 3: `(exit 3)` ended with 3"));
    ensure!(text("$ exit 0").contains("did not end"));
    Ok(())
}
