//! Concurrent programs: each launches the empty kernel and waits for it, for the same time. The figure is the time of one launch
//! with its wait over all programs: `window / sum of launches`.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use super::cuda::Cuda;
use super::empty_kernel::{EMPTY_KERNEL_NAME, EMPTY_KERNEL_PTX};
use super::setup::{Setup, prepared};
use katydid_cli_core::output::failure::{Failure, Outcome};

/// Time for which they work.
const WORK_TIME: Duration = Duration::from_millis(300);

/// Runs one of the programs. It reports that it is ready, waits for a line, works, and prints its number of launches.
pub(super) fn body(cuda: &mut Cuda, window: Duration) -> Outcome {
    let fail = |error| Failure::work(format!("cannot measure: {error}"));
    cuda.load(EMPTY_KERNEL_PTX, EMPTY_KERNEL_NAME).map_err(fail)?;
    let step = || cuda.launch().and_then(|()| cuda.synchronize());
    step().map_err(fail)?;
    writeln!(io::stdout(), "ready")?;
    io::stdin().lock().read_line(&mut String::new())?;
    let (start, mut steps) = (Instant::now(), 0_u64);
    while start.elapsed() < window {
        step().map_err(fail)?;
        steps += 1;
    }
    writeln!(io::stdout(), "{steps}")?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the nanoseconds of a launch with its wait, over `number` programs.
///
/// # Errors
///
/// Why one of them could not do its part.
pub(super) fn together(setup: &Setup, number: usize) -> Result<f64, String> {
    let window = WORK_TIME.as_millis().to_string();
    let arguments = ["--session", &window];
    let mut programs: Vec<Program> =
        (0..number).map(|_| Program::start(setup, &arguments)).collect::<io::Result<_>>().map_err(to_text)?;
    programs.iter_mut().try_for_each(|program| program.line().map(drop))?;
    programs.iter_mut().try_for_each(|program| program.send_line("go"))?;
    let mut steps = 0;
    for program in &mut programs {
        steps += program.line()?.parse::<u64>().map_err(|_| "a program printed no number".to_owned())?;
    }
    if steps == 0 {
        Err("no launch came to its end".to_owned())
    } else {
        Ok(WORK_TIME.as_nanos() as f64 / steps as f64)
    }
}

/// Returns the text of an error.
fn to_text(error: impl ToString) -> String {
    error.to_string()
}

/// A running measuring program, killed on drop.
pub(super) struct Program {
    process: Child,
    stdin: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Program {
    /// Starts a program with these further arguments.
    pub(super) fn start(setup: &Setup, arguments: &[&str]) -> io::Result<Self> {
        let mut command: Command = prepared(setup);
        let mut process = command.args(arguments).stdin(Stdio::piped()).spawn()?;
        let stdin = process.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let lines = process.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { process, stdin, lines: BufReader::new(lines) })
    }

    /// Sends a word, and returns the answer.
    pub(super) fn ask(&mut self, word: &str) -> Result<String, String> {
        self.send_line(word)?;
        self.line()
    }

    /// Reads the next line of its output.
    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(length) if length > 0 => Ok(line.trim_end().to_owned()),
            _ => Err("one of the programs ended (its message stands above)".to_owned()),
        }
    }

    fn send_line(&mut self, word: &str) -> Result<(), String> {
        writeln!(self.stdin, "{word}").map_err(to_text)
    }
}

impl Drop for Program {
    /// Kills the process: it has been measured, or is of no use any more.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
