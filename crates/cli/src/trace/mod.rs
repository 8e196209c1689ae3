//! `katydid trace`: what CUDA calls a program makes, and how long it is inside them.
//!
//! The program's side writes one file a process (`katydid_client::trace`) into a folder of ours; when the program has
//! ended, however it ended, the files become a table ([`summary`]) and, if asked for, timelines ([`timeline`]).

mod summary;
mod timeline;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use katydid_client::trace::Trace;
use katydid_scratch::Scratch;

use crate::failure::{Failure, Outcome, say};
use crate::flags::TraceFlags;
use crate::run::Launch;
use crate::supervise;
use summary::Summary;

/// Runs the command; its status is the program's.
pub(crate) fn main(flags: &TraceFlags) -> Outcome {
    let folder = Scratch::new("trace").map_err(|error| {
        Failure::work(format!("cannot make a folder for the trace: {error}; set TMPDIR to one with room"))
    })?;
    let mut launch = Launch::prepare(&flags.session, &flags.command)?;
    launch.set("KATYDID_TRACE", folder.path().join("trace"));
    let status = launch.wait()?;
    let traces = read_all(folder.path())?;
    if traces.is_empty() {
        say(
            "the program made no CUDA call (or its libcuda.so.1 is not Katydid's: is it set-user-id, or statically linked?)",
        );
    } else {
        write_table(flags.json, &traces)?;
    }
    if let Some(output) = &flags.output {
        write_timelines(output, &traces)?;
    }
    Ok(ExitCode::from(supervise::exit_code(status)))
}

/// The traces of all processes, in the order in which they began.
fn read_all(folder: &Path) -> Result<Vec<Trace>, Failure> {
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = entries.map_err(|error| Failure::work(format!("cannot list the trace files: {error}")))?;
    let traces = entries.iter().map(|entry| Trace::read(&entry.path()));
    let mut traces: Vec<Trace> = traces.collect::<Result<_, _>>().map_err(Failure::work)?;
    traces.sort_by_key(|trace| trace.start);
    Ok(traces)
}

/// Standard output is the program's, so ours goes to standard error.
fn write_table(json: bool, traces: &[Trace]) -> Result<(), Failure> {
    let summary = Summary::of(traces.iter().flat_map(|trace| &trace.calls));
    let mut text = Vec::new();
    if json {
        let json = serde_json::to_string_pretty(&summary).map_err(Failure::work)?;
        writeln!(text, "{json}")?;
    } else {
        summary.write(&mut text)?;
    }
    Ok(io::stderr().write_all(&text)?)
}

/// A file a process: Perfetto shows one process best, and several traces can be opened side by side.
fn write_timelines(output: &Path, traces: &[Trace]) -> Result<(), Failure> {
    for (index, trace) in traces.iter().enumerate() {
        let path = if index == 0 { output.to_owned() } else { beside(output, trace.pid) };
        timeline::write(&path, trace).map_err(|error| {
            Failure::work(format!("cannot write the timeline: {}: {error}: give -o another file", path.display()))
        })?;
    }
    Ok(())
}

/// `calls.json` of process 42 is `calls.42.json`.
fn beside(path: &Path, pid: u32) -> PathBuf {
    match path.extension() {
        Some(extension) => path.with_extension(format!("{pid}.{}", extension.to_string_lossy())),
        None => path.with_extension(pid.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_processes_get_their_number_before_the_extension() {
        assert_eq!(beside(Path::new("/x/calls.json"), 42), Path::new("/x/calls.42.json"));
        assert_eq!(beside(Path::new("calls"), 42), Path::new("calls.42"));
    }
}
