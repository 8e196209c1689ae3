//! Errors of the system, with what a user can do about them.

use std::io;

use rustix::io::Errno;

/// Returns the system's text, and the remedy if one is known.
pub(crate) fn why(source: &io::Error) -> String {
    match remedy(source) {
        Some(remedy) => format!("{source}; {remedy}"),
        None => source.to_string(),
    }
}

fn remedy(source: &io::Error) -> Option<&'static str> {
    Some(match Errno::from_io_error(source)? {
        Errno::NOSPC | Errno::DQUOT => "free some space there, or set TMPDIR to a folder with free space",
        Errno::MFILE | Errno::NFILE => "allow more open files (ulimit -n)",
        Errno::AGAIN => "allow more processes (ulimit -u, or the control group's pids.max)",
        Errno::NOMEM => "free memory",
        Errno::ROFS => "that file system is mounted read-only: name another place",
        Errno::PERM | Errno::ACCESS => "it takes root, or the rights of docs/how-to/checkpoint-rights.md",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_the_system_has_its_remedy() {
        for (number, word) in [(Errno::MFILE, "ulimit -n"), (Errno::NOSPC, "free some space"), (Errno::PERM, "root")] {
            let message = why(&number.into());
            assert!(message.contains(word) && message.contains(';'), "{message}");
        }
        assert_eq!(why(&io::Error::other("as it is")), "as it is");
    }
}
