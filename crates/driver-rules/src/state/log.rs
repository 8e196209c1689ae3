//! The error log (`cuLogs*`): failed calls, for programs that query it or register a callback.
//!
//! A line is one failed call, in the form of driver 580: `[08:20:33.377][THREAD][CUDA][E] Returning 400
//! (CUDA_ERROR_INVALID_HANDLE) from cuCtxRecordEvent`. The driver's lines that explain the code are not imitated. The last
//! hundred lines are kept. Lines are counted from the start of the process, and an iterator is such a count.

use std::collections::VecDeque;
use std::ffi::{CString, OsStr, c_void};
use std::fmt::Write;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use katydid_cuda_sys::{CUlogsCallback, CUresult};

use crate::caller::check_no_flags;
use crate::outcome::{Outcome, check};

/// Number of lines that are kept.
const MAX_LOG_LINES: usize = 100;
/// The first line of a dump with too little room for all lines.
const TRUNCATED_TEXT: &str =
    "The provided buffer is not large enough to hold all messages. Some messages will be missing\n";
/// Severity of a line, for callbacks.
const LOG_LEVEL_ERROR: u32 = 0;

/// The lines so far.
static ERROR_LOG: Mutex<Log> = Mutex::new(Log { lines: VecDeque::new(), count: 0, listeners: Vec::new(), next: 1 });

#[derive(Debug)]
struct Log {
    /// The last lines, each with its line end.
    lines: VecDeque<String>,
    /// Number of all lines so far.
    count: u32,
    /// Callbacks by number: function and argument.
    listeners: Vec<(usize, usize, usize)>,
    /// Number of the next callback.
    next: usize,
}

fn log() -> MutexGuard<'static, Log> {
    ERROR_LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Logs a failed call and calls the registered callbacks. "Not ready" is an answer, not a failure.
#[cold]
#[expect(unsafe_code, reason = "calls functions of the program")]
pub fn note(function: &str, code: CUresult) {
    if code == CUresult::ERROR_NOT_READY {
        return;
    }
    let (line, callbacks) = failed(function, code);
    write_to_file(&line);
    let Ok(message) = CString::new(line.trim_end()) else { return };
    for (function, data) in callbacks {
        // SAFETY: the program registered this address as a function of this type; null is none.
        let function: CUlogsCallback = unsafe { std::mem::transmute(function) };
        if let Some(function) = function {
            let data = std::ptr::with_exposed_provenance_mut(data);
            // SAFETY: the text lives until the call is over; the program answers for its own argument.
            unsafe { function(data, LOG_LEVEL_ERROR, message.as_ptr().cast_mut(), message.count_bytes()) };
        }
    }
}

/// Appends a line to the file in `CUDA_LOG_FILE`, if that is set: `stdout` and `stderr` are the program's own.
fn write_to_file(line: &str) {
    enum LogTarget {
        Stdout,
        Stderr,
        File(File),
    }
    static TARGET: LazyLock<Option<LogTarget>> = LazyLock::new(|| {
        let name = std::env::var_os("CUDA_LOG_FILE").filter(|name| !name.is_empty())?;
        match name.to_str() {
            Some("stdout") => Some(LogTarget::Stdout),
            Some("stderr") => Some(LogTarget::Stderr),
            // A file that cannot be written to loses the lines, as the driver's own does.
            _ => File::options().create(true).append(true).open(name).ok().map(LogTarget::File),
        }
    });
    match &*TARGET {
        // A lost line is no reason to fail.
        Some(LogTarget::Stdout) => _ = std::io::stdout().write_all(line.as_bytes()),
        Some(LogTarget::Stderr) => _ = std::io::stderr().write_all(line.as_bytes()),
        Some(LogTarget::File(file)) => _ = (&*file).write_all(line.as_bytes()),
        None => {}
    }
}

/// Logs that `function` returns `code`. Returns the line and the callbacks, function and argument each, to be called without
/// a lock.
fn failed(function: &str, code: CUresult) -> (String, Vec<(usize, usize)>) {
    let mut line = stamp(SystemTime::now());
    let name = code.name().map_or("?".into(), std::ffi::CStr::to_string_lossy);
    let _ = writeln!(line, "[CUDA][E] Returning {} ({name}) from {function}", code.0);
    let mut log = log();
    log.count += 1;
    log.lines.push_back(line.clone());
    if log.lines.len() > MAX_LOG_LINES {
        log.lines.pop_front();
    }
    (line, log.listeners.iter().map(|(_, function, data)| (*function, *data)).collect())
}

/// Returns `[hours:minutes:seconds.milliseconds][thread]`; the hours are those of UTC.
fn stamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs() % 86400;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("[{hours:02}:{minutes:02}:{seconds:02}.{:03}][{}]", since.subsec_millis(), thread())
}

/// Returns the calling thread's number in the C library.
#[expect(unsafe_code, reason = "calls the C library")]
fn thread() -> u64 {
    // SAFETY: without a precondition.
    unsafe { libc::pthread_self() }
}

/// Registers a callback of the program; returns its number, which ends it. Any thread whose call fails may call it, until it
/// is unregistered.
///
/// # Errors
///
/// `ERROR_INVALID_VALUE` without a function.
pub fn listen(function: CUlogsCallback, data: *mut c_void) -> Result<usize, CUresult> {
    let function = function.ok_or(CUresult::ERROR_INVALID_VALUE)? as usize;
    let data = data.expose_provenance();
    let mut log = log();
    let number = log.next;
    log.next += 1;
    log.listeners.push((number, function, data));
    Ok(number)
}

/// Unregisters a callback of [`listen`].
///
/// # Errors
///
/// `ERROR_INVALID_VALUE` for an invalid number.
pub fn unlisten(number: usize) -> Result<(), CUresult> {
    let mut log = log();
    let at = log.listeners.iter().position(|(other, ..)| *other == number).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    log.listeners.remove(at);
    Ok(())
}

/// Returns the end of the log now.
pub fn current() -> u32 {
    log().count
}

/// Returns the lines from `from` on (all kept ones without it) that fit into `capacity` bytes with their NUL, the last ones
/// if not all fit, and the end of the log now.
pub fn dump(from: Option<u32>, capacity: usize) -> (String, u32) {
    let log = log();
    let first = log.count - log.lines.len() as u32;
    let skipped = from.map_or(0, |from| from.saturating_sub(first)) as usize;
    let lines: Vec<&str> = log.lines.iter().skip(skipped).map(String::as_str).collect();
    (fitting(&lines, capacity), log.count)
}

/// Returns the lines from a caller's iterator on, and moves that to the end.
///
/// # Safety
///
/// `iterator` is null, or readable and writable.
#[expect(unsafe_code, reason = "reads and writes the iterator of a C caller")]
unsafe fn advance(iterator: *mut u32, capacity: usize) -> String {
    // SAFETY: not null where it is read and written.
    let from = (!iterator.is_null()).then(|| unsafe { iterator.read_unaligned() });
    let (lines, end) = dump(from, capacity);
    if !iterator.is_null() {
        // SAFETY: as above.
        unsafe { iterator.write_unaligned(end) };
    }
    lines
}

/// Answers `cuLogsDumpToFile`: appends the lines from the iterator on. There are no flags.
///
/// # Errors
///
/// `ERROR_INVALID_VALUE`, also for a file that cannot be written.
///
/// # Safety
///
/// `iterator` is null, or readable and writable.
#[expect(unsafe_code, reason = "reads and writes the iterator of a C caller")]
pub unsafe fn dump_to_file(iterator: *mut u32, path: &[u8], flags: u32) -> Outcome {
    check_no_flags(flags.into())?;
    // SAFETY: handed on.
    let lines = unsafe { advance(iterator, usize::MAX) };
    let file = File::options().create(true).append(true).open(OsStr::from_bytes(path));
    let written = file.and_then(|mut file| file.write_all(lines.as_bytes()));
    written.map_err(|_| CUresult::ERROR_INVALID_VALUE)
}

/// Answers `cuLogsDumpToMemory`: copies the last lines that fit, with a NUL; the size becomes that of the text. There are no
/// flags.
///
/// # Errors
///
/// `ERROR_INVALID_VALUE`.
///
/// # Safety
///
/// `iterator` is null, or readable and writable, `size` the same, `buffer` null or writable for `size` bytes.
#[expect(unsafe_code, reason = "writes buffers of C callers")]
pub unsafe fn dump_to_memory(iterator: *mut u32, buffer: *mut u8, size: *mut usize, flags: u32) -> Outcome {
    check(!buffer.is_null() && !size.is_null() && flags == 0)?;
    // SAFETY: by the contract; the text with its NUL is no longer than the buffer.
    unsafe {
        let capacity = size.read_unaligned();
        let lines = advance(iterator, capacity);
        if capacity > 0 {
            buffer.copy_from_nonoverlapping(lines.as_ptr(), lines.len());
            buffer.add(lines.len()).write(0);
        }
        size.write_unaligned(lines.len());
    }
    Ok(())
}

fn fitting(lines: &[&str], capacity: usize) -> String {
    let total: usize = lines.iter().map(|line| line.len()).sum();
    if total < capacity {
        return lines.concat();
    }
    let mut left = capacity.saturating_sub(TRUNCATED_TEXT.len() + 1);
    let last_lines = lines.iter().rev().take_while(|line| {
        let fits = line.len() <= left;
        left -= if fits { line.len() } else { 0 };
        fits
    });
    let from = lines.len() - last_lines.count();
    if TRUNCATED_TEXT.len() < capacity { TRUNCATED_TEXT.to_owned() + &lines[from..].concat() } else { String::new() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lines_are_as_the_drivers() {
        let at = UNIX_EPOCH + Duration::from_millis((86400 * 3 + 8 * 3600 + 20 * 60 + 33) * 1000 + 377);
        assert!(stamp(at).starts_with("[08:20:33.377]["));
        let (line, _) = failed("cuCtxRecordEvent", CUresult::ERROR_INVALID_HANDLE);
        assert!(
            line.ends_with("][CUDA][E] Returning 400 (CUDA_ERROR_INVALID_HANDLE) from cuCtxRecordEvent\n"),
            "{line}"
        );
    }

    #[test]
    #[expect(unsafe_code, reason = "is called as C calls")]
    fn a_dump_begins_where_it_is_asked_to_and_listeners_are_named() {
        static MESSAGES: Mutex<Vec<String>> = Mutex::new(Vec::new());
        unsafe extern "C" fn record(data: *mut c_void, level: u32, message: *mut std::ffi::c_char, length: usize) {
            // SAFETY: the log gives a text that ends with a NUL.
            let message = unsafe { std::ffi::CStr::from_ptr(message) };
            assert_eq!((data.addr(), level, length), (6, LOG_LEVEL_ERROR, message.count_bytes()));
            MESSAGES.lock().unwrap().push(message.to_string_lossy().into_owned());
        }
        let number = listen(Some(record), std::ptr::without_provenance_mut(6)).unwrap();
        let from = current();
        note("cuA", CUresult::ERROR_INVALID_VALUE);
        note("cuB", CUresult::ERROR_NOT_READY);
        assert!(MESSAGES.lock().unwrap().iter().any(|line| line.ends_with("from cuA")));
        assert!(!MESSAGES.lock().unwrap().iter().any(|line| line.ends_with("from cuB")));
        let (text, end) = dump(Some(from), 4096);
        assert!(text.contains("from cuA\n") && end > from);
        assert!(dump(None, 1 << 20).0.len() >= text.len());
        assert_eq!((unlisten(number), unlisten(number)), (Ok(()), Err(CUresult::ERROR_INVALID_VALUE)));
    }

    #[test]
    fn a_log_that_does_not_fit_is_marked_truncated_and_keeps_its_last_lines() {
        let lines = ["a line of some length\n"; 10];
        let text = fitting(&lines, TRUNCATED_TEXT.len() + 1 + 2 * lines[0].len() + 3);
        assert_eq!(text, TRUNCATED_TEXT.to_owned() + &lines[..2].concat());
        assert_eq!(fitting(&lines, 10), "");
        assert_eq!(fitting(&lines, 1000), lines.concat());
    }
}
