//! Answers questions about the machine's devices (NVML), in a process that holds none of them for long.
//!
//! The daemon starts such a process for each program that asks, and ends it with the program's connection. It opens the
//! NVML of the machine, or tells what softcuda's devices are; it never makes a context. Only functions of the table in
//! `katydid_wire::nvml` are called, and all of those only ask. It ends when nothing is asked for a while, or has been for long
//! (`patience.rs`).

mod given;
mod library;
mod patience;
mod soft;

use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use katydid_driver::DriverChoice;
use katydid_transport::{Answer, Event, Pending, WorkerLink};
use katydid_wire::SPEC_HASH;
use katydid_wire::frame::Output;
use katydid_wire::handshake::{Build, Ready, RefusalCode, Refused, SessionKind};
use katydid_wire::key::SessionKey;
use katydid_wire::nvml::{Function, code, function};

use crate::log::Log;
use crate::{WorkerOptions, control};
use given::Given;
use library::Library;
use soft::Soft;

/// What answers.
trait Source {
    /// Calls a function with what was given: NVML's code, and the bytes of each thing that it wrote, in order.
    fn call(&mut self, function: &'static Function, given: &[Given]) -> (u32, Vec<Vec<u8>>);
}

/// A process that uses the device as far as the server knows, and the bytes that it holds.
type Processes = Vec<(u32, u64)>;

/// Runs a watcher to its end.
pub(crate) fn run(options: &WorkerOptions) -> ExitCode {
    let log = Log::early();
    let (control, build) = (options.control.as_fd(), Build::current(SPEC_HASH));
    let (program, note) = match Pending::receive(control, &build) {
        Ok(Some(received)) => received,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            log.line(format_args!("no program could be taken over: {error}"));
            return ExitCode::FAILURE;
        }
    };
    match serve(options, program, &processes(&note), &build) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            control::refused(control, &error);
            ExitCode::FAILURE
        }
    }
}

/// What the daemon's note says: pairs of a process and bytes.
fn processes(note: &[u8]) -> Processes {
    let (records, _) = note.as_chunks::<12>();
    let read = |record: &[u8; 12]| {
        let (process, bytes) = record.split_first_chunk::<4>()?;
        Some((u32::from_le_bytes(*process), u64::from_le_bytes(bytes.try_into().ok()?)))
    };
    records.iter().filter_map(read).collect()
}

fn serve(options: &WorkerOptions, program: Pending, processes: &Processes, build: &Build) -> Result<(), String> {
    let source = match program.hello().session {
        SessionKind::NVML => open(&options.driver, options.soft.as_deref(), processes),
        _ => Err("only questions about devices are answered here".to_owned()),
    };
    let mut source = match source {
        Ok(source) => source,
        Err(reason) => {
            program.refuse(build, &Refused::new(RefusalCode::DRIVER, reason.clone()));
            return Err(reason);
        }
    };
    let driver = "NVML".to_owned();
    let ready = Ready { worker_pid: std::process::id(), key: SessionKey::NONE, driver, arenas: Vec::new() };
    let mut link = program.open(build, &ready, 0).map_err(|error| error.to_string())?;
    answer_all(&mut *link, &mut *source)
}

/// The machine's NVML, unless softcuda is what the server serves.
fn open(driver: &DriverChoice, soft: Option<&Path>, processes: &Processes) -> Result<Box<dyn Source>, String> {
    let real = || Library::open().map(|library| Box::new(library) as Box<dyn Source>);
    let software =
        |choice: &DriverChoice| Soft::open(choice, soft, processes).map(|it| Box::new(it) as Box<dyn Source>);
    match driver {
        DriverChoice::Soft => software(driver),
        DriverChoice::Auto => real().or_else(|_| software(&DriverChoice::Soft)),
        // A file may be either.
        DriverChoice::Path(_) => software(driver).or_else(|_| real()),
    }
}

/// Answers until the program closes.
fn answer_all(link: &mut dyn WorkerLink, source: &mut dyn Source) -> Result<(), String> {
    let replier = link.replier();
    let activity = patience::start().map_err(|error| format!("cannot start a thread: {error}"))?;
    loop {
        let frame = match link.next().map_err(|error| error.to_string())? {
            Event::Frame(frame) => frame,
            Event::Interrupted => continue,
            Event::Closed => return Ok(()),
        };
        let _answering = activity.begin();
        let head = frame.head;
        let asked = function(head.opcode).ok_or("the program asks for a function that is none")?;
        let given = given::read(asked, frame.payload);
        let (status, written) = match &given {
            Some(given) => source.call(asked, given),
            None => (code::INVALID_ARGUMENT, Vec::new()),
        };
        if head.wants_reply {
            let (thread, sequence, payload) = (head.thread, head.sequence, written.concat());
            let output = Output { stdout: &[], stderr: &[] };
            let answer = Answer { thread, sequence, status, deferred: 0, payload: &payload, tail: &[], output };
            replier.reply(&answer).map_err(|error| error.to_string())?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_hold_whole_records_only() {
        let mut note = 7_u32.to_le_bytes().to_vec();
        note.extend(4096_u64.to_le_bytes());
        note.push(1);
        assert_eq!(processes(&note), [(7, 4096)]);
        assert!(processes(&[]).is_empty());
    }
}
