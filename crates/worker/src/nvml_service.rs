//! Answers questions about the machine's devices (NVML), in a process that holds none of them for long.
//!
//! The server starts such a process for each program that asks, and ends it with the program's connection. It opens the machine's
//! NVML, or describes softcuda's devices; it never makes a context. It calls only functions of the table in `katydid_wire::nvml`,
//! which are all queries. It ends when nothing was asked for a while, or when it has answered for long (`idle.rs`).

mod arguments;
mod idle;
mod library;
mod soft;
mod source;

use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use katydid_driver::DriverChoice;
use katydid_transport::{LinkEvent, OutgoingReply, Pending, WorkerLink};
use katydid_wire::SPEC_HASH;
use katydid_wire::facts::{DeviceFacts, Facts};
use katydid_wire::frame::Output;
use katydid_wire::handshake::{Build, Ready, RefusalCode, Refused, SessionKind};
use katydid_wire::key::SessionKey;
use katydid_wire::nvml::{Function, code, function};

use crate::control;
use crate::options::WorkerOptions;
use crate::os::log::Log;
use library::Library;
use soft::Soft;
use source::{NvmlSource, Processes};

/// Runs the service to its end.
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

/// Parses the server's note: pairs of a process and bytes.
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

/// Opens the machine's NVML, or softcuda if the server serves that.
fn open(driver: &DriverChoice, soft: Option<&Path>, processes: &Processes) -> Result<Box<dyn NvmlSource>, String> {
    let real = || Library::open().map(|library| Box::new(library) as Box<dyn NvmlSource>);
    let software =
        |choice: &DriverChoice| Soft::open(choice, soft, processes).map(|it| Box::new(it) as Box<dyn NvmlSource>);
    match driver {
        DriverChoice::Soft => software(driver),
        DriverChoice::Auto => real().or_else(|_| software(&DriverChoice::Soft)),
        // A file may be a driver of either kind.
        DriverChoice::Path(_) => software(driver).or_else(|_| real()),
    }
}

/// Answers until the program closes the connection.
fn answer_all(link: &mut dyn WorkerLink, source: &mut dyn NvmlSource) -> Result<(), String> {
    let replier = link.replier();
    let activity = idle::start().map_err(|error| format!("cannot start a thread: {error}"))?;
    loop {
        let frame = match link.next().map_err(|error| error.to_string())? {
            LinkEvent::Frame(frame) => frame,
            LinkEvent::Interrupted => continue,
            LinkEvent::Closed => return Ok(()),
        };
        let _answering = activity.begin();
        let head = frame.head;
        let nvml_function = function(head.opcode).ok_or("the program called a function that does not exist")?;
        let (status, written) = ask(source, nvml_function, frame.payload);
        if head.wants_reply {
            let (thread, sequence, payload) = (head.thread, head.sequence, written.concat());
            let output = Output { stdout: &[], stderr: &[] };
            let answer = OutgoingReply { thread, sequence, status, deferred: 0, payload: &payload, tail: &[], output };
            replier.reply(&answer).map_err(|error| error.to_string())?;
        }
    }
}

/// Returns a source's answer to one undecoded question.
fn ask(source: &mut dyn NvmlSource, function: &'static Function, payload: &[u8]) -> (u32, Vec<Vec<u8>>) {
    match arguments::read(function, payload) {
        Some(arguments) => source.call(function, &arguments),
        None => (code::INVALID_ARGUMENT, Vec::new()),
    }
}

/// Asks two made-up devices an untrusted question. Returns NVML's code, and how many bytes were written. Entry point of fuzzing.
pub fn check_call(opcode: u16, payload: &[u8]) -> Option<(u32, usize)> {
    // This function samples the processors for a while.
    let nvml_function =
        function(opcode).filter(|nvml_function| nvml_function.name != "nvmlDeviceGetUtilizationRates")?;
    let device = DeviceFacts { name: "a device".to_owned(), total_memory: 1 << 30, ..DeviceFacts::default() };
    let facts = Facts { devices: vec![device.clone(), device], ..Facts::default() };
    let (status, written) = ask(&mut Soft::of(facts, vec![(1, 4096)]), nvml_function, payload);
    Some((status, written.iter().map(Vec::len).sum()))
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

    /// A short run of the fuzz target `nvml`, without a fuzzer.
    #[test]
    fn made_up_questions_are_answered_within_their_bounds() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |bound: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % bound
        };
        let (mutation_count, mut good) =
            (std::env::var("KATYDID_MUTATIONS").ok().and_then(|count| count.parse().ok()), 0);
        for _ in 0..mutation_count.unwrap_or(100_000) {
            let opcode = random(256) as u16;
            // Words of small numbers, and sometimes another one; cut anywhere.
            let mut payload: Vec<u8> = Vec::new();
            for _ in 0..random(8) {
                let word = if random(4) == 0 {
                    random(1 << 32)
                } else {
                    [0, 1, 2, 4, 40, 64, 96, 2 << 24 | 40][random(8) as usize]
                };
                payload.extend((word as u32).to_le_bytes());
            }
            payload.truncate(random(payload.len() as u64 + 4) as usize);
            payload.extend(std::iter::repeat_n(1, random(3) as usize));
            let Some((status, written)) = check_call(opcode, &payload) else { continue };
            assert!(written <= katydid_wire::frame::MAX_PAYLOAD_BYTES);
            good += usize::from(status == code::SUCCESS);
        }
        assert!(good > 20, "only {good} questions were good");
    }
}
