//! `katydid trace`: shows the CUDA calls of a program, the time inside them, and their work on the GPU.
//!
//! The program's side writes one file a process (`katydid_client::trace`) into a temporary folder. When the program has ended, in
//! whatever way, the files become tables ([`summary`]). On request they also become a line a call ([`calls`]), and a timeline of
//! all processes ([`timeline`]).

mod calls;
mod filter;
mod summary;
mod timeline;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cpp_demangle::Symbol;
use katydid_client::trace::Trace;
use katydid_scratch::{Scratch, private};

use crate::args::flags::TraceFlags;
use crate::commands::run::Launch;
use crate::interrupt;
use crate::supervise;
pub(crate) use filter::Filter;
use katydid_cli_core::output::document::{self, JsonDestination};
use katydid_cli_core::output::failure::{Failure, Outcome, print_message};
use katydid_cli_core::output::report::report;
use summary::TraceSummary;

/// Runs the command; its exit status is the program's.
pub(crate) fn main(flags: &TraceFlags) -> Outcome {
    let files = Files::open(flags)?;
    let folder = Scratch::new("trace").map_err(|error| {
        Failure::work(format!("cannot make a folder for the trace: {error}; set TMPDIR to one with free space"))
    })?;
    let mut launch = Launch::prepare(&flags.session, &flags.command)?;
    launch.set("KATYDID_TRACE", folder.path().join("trace"));
    launch.set("KATYDID_TRACE_GPU", if flags.no_gpu { "0" } else { "1" });
    let status = launch.wait()?;
    // The program has ended: signals are for this command again.
    interrupt::watch()?;
    let result = write_outputs(flags, files, folder.path());
    // The caller must learn of the program's own failure; the command's is on standard error.
    let failed = result.err().map(|failure| report(&failure)).filter(|_| status.success());
    Ok(failed.unwrap_or_else(|| ExitCode::from(supervise::exit_code(status))))
}

/// Writes all outputs that the flags ask for.
fn write_outputs(flags: &TraceFlags, files: Files, folder: &Path) -> Result<(), Failure> {
    let traces = read_all(folder)?;
    if traces.is_empty() {
        print_message(
            "the program made no CUDA call (or its libcuda.so.1 is not Katydid's: is it set-user-id, or statically linked?)",
        );
    }
    write_tables(flags, files.text, &traces)?;
    if let (Some(path), Some(file)) = (&flags.output, files.timeline) {
        timeline::write(file, &traces).map_err(|error| unwritten("-o", path, &error))?;
    }
    traces.iter().find(|trace| trace.left_out > 0).map_or(Ok(()), |trace| Err(incomplete(trace, folder)))
}

/// The message for a trace that had no room for all calls.
fn incomplete(trace: &Trace, folder: &Path) -> Failure {
    let Trace { pid, program, calls, left_out, .. } = trace;
    let (count, path) = (calls.len(), folder.display());
    Failure::work(format!(
        "{path}: no free space for {left_out} calls of {program} (process {pid}), {count} were recorded; set TMPDIR to a folder with free space, and record it again"
    ))
}

/// The files that the flags name, created before the program begins: otherwise its run would be lost if they could not be.
#[derive(Debug)]
struct Files {
    timeline: Option<File>,
    text: Option<File>,
}

impl Files {
    fn open(flags: &TraceFlags) -> Result<Self, Failure> {
        let document = match &flags.json {
            Some(JsonDestination::File(path)) => Some(path),
            _ => None,
        };
        let named = [("-o", flags.output.as_ref()), ("--text", flags.text.as_ref()), ("--json", document)];
        let named: Vec<_> =
            named.into_iter().filter_map(|(flag, path)| Some((flag, std::path::absolute(path?).ok()?))).collect();
        for (at, (flag, path)) in named.iter().enumerate() {
            if let Some((other, _)) = named[..at].iter().find(|(_, earlier)| earlier == path) {
                let shown = path.display();
                return Err(Failure::usage(format!("{other} and {flag} both name {shown}: name a file for each")));
            }
        }
        let file = |flag: &str, path: &Option<PathBuf>| {
            let refused = |path: &Path, error: io::Error| {
                Failure::usage(format!("{flag}: {}: {error}; name another file", path.display()))
            };
            path.as_deref().map(|path| private::open(path).map_err(|error| refused(path, error))).transpose()
        };
        let files = Self { timeline: file("-o", &flags.output)?, text: file("--text", &flags.text)? };
        // Where one is refused, the other keeps its contents.
        files.timeline.iter().chain(&files.text).try_for_each(private::empty)?;
        Ok(files)
    }
}

/// The error for a file that could be created, but not written.
fn unwritten(flag: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::work(format!(
        "{flag}: cannot write {}: {error}; name a file on a file system with free space",
        path.display()
    ))
}

/// Reads the traces of all processes, in the order in which they began.
fn read_all(folder: &Path) -> Result<Vec<Trace>, Failure> {
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = entries.map_err(|error| {
        Failure::work(format!("cannot list the trace files: {error}; set TMPDIR to a folder that nothing else clears"))
    })?;
    let traces = entries.iter().map(|entry| Trace::read(&entry.path()));
    let mut traces: Vec<Trace> = traces.collect::<Result<_, _>>().map_err(Failure::work)?;
    for kernel in traces.iter_mut().flat_map(|trace| trace.details.values_mut()).filter_map(|it| it.kernel.as_mut()) {
        *kernel = readable(kernel);
    }
    traces.sort_by_key(|trace| trace.start);
    Ok(traces)
}

/// A kernel's name as in its source: modules have mangled C++ names.
fn readable(name: &str) -> String {
    Symbol::new(name).ok().and_then(|symbol| symbol.demangle().ok()).unwrap_or_else(|| name.to_owned())
}

/// Writes the tables to standard error, since standard output is the program's, or to where the flags say.
fn write_tables(flags: &TraceFlags, file: Option<File>, traces: &[Trace]) -> Result<(), Failure> {
    let summary = TraceSummary::of(traces);
    if flags.json.is_some() {
        document::write(&summary)?;
    }
    let mut text = Vec::new();
    if let Some(filter) = &flags.calls {
        calls::write(&mut text, traces, filter)?;
    }
    if !traces.is_empty() && (flags.json.is_none() || flags.text.is_some()) {
        summary.write(&mut text)?;
    }
    match (&flags.text, file) {
        (Some(path), Some(mut file)) => file.write_all(&text).map_err(|error| unwritten("--text", path, &error)),
        _ => Ok(io::stderr().write_all(&text)?),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::flags::{Command, Flags};

    #[test]
    fn names_of_kernels_are_those_of_the_source() {
        assert_eq!(readable("_Z5saxpyfPKfPf"), "saxpy(float, float const*, float*)");
        assert_eq!(readable("plain_name"), "plain_name");
        assert_eq!(readable("_Zbroken"), "_Zbroken");
    }

    #[test]
    fn a_file_keeps_its_contents_if_another_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (output, text) = (folder.path().join("trace.json"), folder.path().join("none/trace.txt"));
        fs::write(&output, "older").unwrap();
        let words =
            ["katydid", "trace", "-o", output.to_str().unwrap(), "--text", text.to_str().unwrap(), "--", "true"];
        let Command::Trace(flags) = Flags::try_parse_from(words).unwrap().command else { unreachable!() };
        assert!(Files::open(&flags).unwrap_err().to_string().contains("--text"));
        assert_eq!(fs::read(&output).unwrap(), b"older");
    }
}
