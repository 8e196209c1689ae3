//! Running other programs: a failure is an error that shows the command line.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Returns a command line as a person would type it.
pub(crate) fn show_command(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Runs a command with its output shown.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = show_command(command);
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot start: {line}"))?;
    if !status.success() {
        bail!("failed ({status}): {line}");
    }
    Ok(())
}

/// Runs a command and returns its standard output; its standard error is part of an error.
pub(crate) fn read(command: &mut Command) -> Result<String> {
    let line = show_command(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start: {line}"))?;
    if !output.status.success() {
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        bail!("failed ({}): {line}\n{out}{err}", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("no text came from: {line}"))
}

/// Returns whether a program exists and succeeds with `arguments`.
pub(crate) fn works(program: impl AsRef<OsStr>, arguments: &[&str]) -> bool {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    output.is_ok_and(|output| output.status.success())
}

/// Returns the output of git in the checkout.
pub(crate) fn git(root: &Path, arguments: &[&str]) -> Result<String> {
    read(Command::new("git").current_dir(root).args(arguments))
}

/// Returns a command for the cargo that runs this program, in the checkout.
pub(crate) fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = katydid_tests::cargo::cargo();
    command.current_dir(root).args(arguments);
    command
}
