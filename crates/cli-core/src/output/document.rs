//! The output of `--json`: exactly one document, whatever happens.
//!
//! It goes to standard output. For `trace` and `restore`, whose standard output is the program's, it goes to the file or
//! descriptor that the flag names. The rule: a command passes its result to [`write()`], or pieces of it to [`append`]. If a
//! command ends without a result, [`close`], which every way out of `main` calls, writes `{"error": "…", "status": N}` instead.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use katydid_scratch::private;
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use serde::Serialize;
use serde_json::json;

use crate::output::failure::Failure;

/// Destination of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JsonDestination {
    /// Standard output of the command.
    Output,
    /// A file of this name, which is created anew.
    File(PathBuf),
    /// A descriptor that is open in this process.
    Descriptor(i32),
}

impl FromStr for JsonDestination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(number) = text.strip_prefix("fd:") else {
            return if text.is_empty() { Err("name a file, or fd:N".to_owned()) } else { Ok(Self::File(text.into())) };
        };
        match number.parse() {
            Ok(number @ 3..) => Ok(Self::Descriptor(number)),
            _ => Err("a descriptor is fd:3 or more: 0 to 2 are the program's".to_owned()),
        }
    }
}

/// The document of this process.
#[derive(Debug)]
enum DocumentState {
    /// No document is wanted.
    None,
    /// Nothing is written yet.
    Wanted(Sink),
    /// A list is begun, and not complete.
    Begun(Sink),
    /// All of it is written.
    Written,
}

/// Open destination of the document.
#[derive(Debug)]
enum Sink {
    Output,
    /// The file or descriptor that the flag names, and its name for messages.
    File(File, String),
}

static DOCUMENT_STATE: Mutex<DocumentState> = Mutex::new(DocumentState::None);

fn state() -> MutexGuard<'static, DocumentState> {
    DOCUMENT_STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sink {
    fn write(&mut self, text: &str) -> Result<(), Failure> {
        match self {
            Self::Output => {
                let mut out = io::stdout().lock();
                out.write_all(text.as_bytes())?;
                Ok(out.flush()?)
            }
            Self::File(file, name) => file.write_all(text.as_bytes()).map_err(|error| {
                Failure::work(format!("--json: cannot write {name}: {error}; name a file system with free space"))
            }),
        }
    }
}

/// Sets the destination of the document, which this process must write from now on.
///
/// # Errors
///
/// A file cannot be created, or a descriptor is not open.
pub fn want(destination: &JsonDestination) -> Result<(), Failure> {
    let failed =
        |what: String, error: io::Error| Failure::usage(format!("--json: {what}: {error}; name another place"));
    let sink = match destination {
        JsonDestination::Output => Sink::Output,
        JsonDestination::File(path) => {
            let name = path.display().to_string();
            Sink::File(private::create(path).map_err(|error| failed(name.clone(), error))?, name)
        }
        JsonDestination::Descriptor(number) => {
            let name = format!("descriptor {number}");
            Sink::File(take_descriptor(*number).map_err(|error| failed(name.clone(), error))?, name)
        }
    };
    *state() = DocumentState::Wanted(sink);
    Ok(())
}

/// Takes a descriptor of the caller's, so that the program does not inherit it.
#[expect(unsafe_code, reason = "takes a descriptor by the number that the command line names")]
fn take_descriptor(number: i32) -> io::Result<File> {
    // A descriptor that is not open has no such link.
    fs::read_link(format!("/proc/self/fd/{number}"))?;
    // SAFETY: it is open, and the caller has opened it for this process, in which no other code knows the number.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(number) });
    if fcntl_getfl(&file)? & OFlags::ACCMODE == OFlags::RDONLY {
        return Err(io::Error::other("it is open for reading only"));
    }
    let flags = fcntl_getfd(&file)?;
    fcntl_setfd(&file, flags | FdFlags::CLOEXEC)?;
    Ok(file)
}

/// Writes a path of any bytes into a document, for `serialize_with`. Text shows bytes that are no UTF-8 as U+FFFD.
///
/// # Errors
///
/// Those of the serializer.
pub fn lossy_path<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// Writes the whole document.
pub fn write(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(Failure::work)?;
    let mut state = state();
    if let DocumentState::Wanted(mut sink) = std::mem::replace(&mut *state, DocumentState::Written) {
        sink.write(&format!("{text}\n"))?;
    }
    Ok(())
}

/// Writes one entry of a list.
pub fn append(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(Failure::work)?;
    let mut state = state();
    let (mut sink, before) = match std::mem::replace(&mut *state, DocumentState::Written) {
        DocumentState::Wanted(sink) => (sink, "[\n"),
        DocumentState::Begun(sink) => (sink, ",\n"),
        other => {
            *state = other;
            return Ok(());
        }
    };
    let written = sink.write(&format!("{before}{text}"));
    *state = DocumentState::Begun(sink);
    written
}

/// Completes the document of a command that a signal ends: a list ends as it is; without a document yet, `failure` and the exit
/// status are written instead. Returns whether they were.
pub fn interrupt(failure: &str, status: u8) -> bool {
    let has_nothing = matches!(*state(), DocumentState::Wanted(_));
    close(has_nothing.then_some(failure), status);
    has_nothing
}

/// Completes the document: a list ends; without a document yet, `failure` and the exit status are written instead.
pub fn close(failure: Option<&str>, status: u8) {
    let mut state = state();
    let (mut sink, end) = match std::mem::replace(&mut *state, DocumentState::Written) {
        DocumentState::Wanted(sink) => (sink, None),
        DocumentState::Begun(sink) => (sink, Some("\n]\n")),
        DocumentState::None | DocumentState::Written => return,
    };
    let error = || json!({"error": failure.unwrap_or("it ended without a result"), "status": status});
    let text = match (end, failure) {
        (None, _) => format!("{:#}\n", error()),
        (Some(end), None) => end.to_owned(),
        (Some(end), Some(_)) => format!(",\n{}{end}", error()),
    };
    // An error does not matter: no process reads the document then.
    let _ = sink.write(&text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_files_and_descriptors_beyond_the_program_s() {
        assert_eq!("fd:3".parse(), Ok(JsonDestination::Descriptor(3)));
        assert_eq!("./fd".parse(), Ok(JsonDestination::File("./fd".into())));
        for wrong in ["fd:1", "fd:x", "fd:-4", ""] {
            assert!(wrong.parse::<JsonDestination>().is_err(), "{wrong}");
        }
    }
}
