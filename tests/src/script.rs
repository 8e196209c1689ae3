//! Script files for tests.

use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes a script that can be run at once. Another process writes it: a child that another thread has just forked would inherit
/// this process's open file, and until it execs the system refuses to run the file.
///
/// # Errors
///
/// Error that the system returned.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut writer =
        Command::new("sh").args(["-c", r#"cat > "$0" && chmod 755 "$0""#]).arg(path).stdin(Stdio::piped()).spawn()?;
    if let Some(mut input) = writer.stdin.take() {
        input.write_all(text.as_bytes())?;
    }
    let status = writer.wait()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("cannot write {}: {status}", path.display()))) }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_script_runs_at_once_whatever_is_started_meanwhile() {
        let folder = TempDir::new().unwrap();
        let run = |number: usize| {
            let path = folder.path().join(number.to_string());
            for _ in 0..50 {
                write(&path, "#!/bin/sh\nexit 7\n").unwrap();
                assert_eq!(Command::new(&path).status().unwrap().code(), Some(7));
            }
        };
        thread::scope(|scope| (0..4).for_each(|number| drop(scope.spawn(move || run(number)))));
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        let folder = TempDir::new().unwrap();
        assert!(write(&folder.path().join("none/script"), "").is_err());
    }
}
