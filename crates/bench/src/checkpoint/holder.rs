//! The program under checkpoint: it holds device memory full of noise, or computes, as ordered.
//!
//! Orders and answers are files in a folder, each put there by a rename, so that a waiting program has no file open. Each is one
//! line: an increasing number, then words.
//!
//! | order        | what it does                                  | answer            |
//! |--------------|-----------------------------------------------|-------------------|
//! | `say`        | nothing                                       | `ready`           |
//! | `change`     | writes to one chunk of 2 MiB in a hundred     | `changed BYTES`   |
//! | `sum`        | reads everything                              | `sum NUMBER`      |
//! | `fill BYTES` | takes all memory of the device except so much | `filled BYTES`    |
//! | `compute`    | goes on computing, until another order        | `computing`       |
//! | `until STEP` | computes up to that step                      | `step N sum S`    |
//! | `finish`     | stops after this step                         | `step N sum S`    |
//! | `end`        | ends                                          | none              |
//!
//! Orders up to `compute` are for holders of memory, orders from `fill` on for programs that compute. A program that gets no
//! order for a long time ends by itself.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use super::computing::Computing;
use crate::cuda::{Cuda, CudaError};
use crate::flags::BenchHolderFlags;
use crate::noise::noise;
use katydid_cli_core::output::failure::{Failure, Outcome};

/// Bytes of a chunk of an image.
const IMAGE_CHUNK_BYTES: u64 = 2 << 20;
/// A change writes to one chunk in this many.
const CHUNKS_PER_CHANGE: usize = 100;
/// Bytes of one copy.
const FILL_PIECE_BYTES: usize = 64 << 20;
/// How often the program looks for an order.
const ORDER_POLL_INTERVAL: Duration = Duration::from_micros(500);
/// Time without an order after which the program ends.
const HOLDER_ORDER_TIMEOUT: Duration = Duration::from_secs(600);
/// Names of the two files.
pub(super) const ORDER_FILE: &str = "order";
pub(super) const ANSWER_FILE: &str = "answer";

/// Runs the program: executes orders.
pub(super) fn main(flags: &BenchHolderFlags) -> Outcome {
    let failed = |error: CudaError| Failure::work(format!("cannot hold memory: {error}"));
    let cuda = Cuda::open().map_err(failed)?;
    let mut program = match (flags.program, flags.size) {
        (Some(kind), Some(size)) => {
            Program::Computing { it: Computing::new(cuda, kind, size).map_err(failed)?, is_on: false }
        }
        _ => Program::Holding(Holder::new(cuda, flags.bytes.map_or(0, |bytes| bytes.0)).map_err(failed)?),
    };
    let (mut last, mut last_order, mut looked) = (0, Instant::now(), Instant::now());
    while last_order.elapsed() < HOLDER_ORDER_TIMEOUT {
        program.go_on().map_err(failed)?;
        if program.is_busy() && looked.elapsed() < ORDER_POLL_INTERVAL {
            continue;
        }
        looked = Instant::now();
        let Some((number, order)) = read(&flags.folder.join(ORDER_FILE)).filter(|(number, _)| *number > last) else {
            if !program.is_busy() {
                thread::sleep(ORDER_POLL_INTERVAL);
            }
            continue;
        };
        (last, last_order) = (number, Instant::now());
        if order == "end" {
            break;
        }
        let answer = program.obey(&order).map_err(failed)?;
        write(&flags.folder, ANSWER_FILE, number, &answer)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The two kinds of program.
enum Program {
    Holding(Holder),
    Computing { it: Computing, is_on: bool },
}

impl Program {
    fn is_busy(&self) -> bool {
        matches!(self, Self::Computing { is_on: true, .. })
    }

    /// Runs a step of a program that computes.
    fn go_on(&mut self) -> Result<(), CudaError> {
        match self {
            Self::Computing { it, is_on: true } => it.step(),
            _ => Ok(()),
        }
    }

    fn obey(&mut self, order: &str) -> Result<String, CudaError> {
        let (it, is_on) = match self {
            Self::Holding(holder) => return holder.obey(order),
            Self::Computing { it, is_on } => (it, is_on),
        };
        match order.split_once(' ').unwrap_or((order, "")) {
            ("compute", _) => {
                *is_on = true;
                return Ok("computing".to_owned());
            }
            ("until", last) => {
                let last = last.parse().unwrap_or(0);
                while it.steps() < last {
                    it.step()?;
                }
            }
            ("finish", _) => *is_on = false,
            _ => return Ok("ready".to_owned()),
        }
        Ok(format!("step {} sum {}", it.steps(), it.sum()?))
    }
}

/// Reads number and words of a file; `None` while it does not exist.
pub(super) fn read(path: &Path) -> Option<(u64, String)> {
    let text = fs::read_to_string(path).ok()?;
    let (number, text_after) = text.trim().split_once(' ')?;
    Some((number.parse().ok()?, text_after.to_owned()))
}

/// Writes a file to the folder atomically.
pub(super) fn write(folder: &Path, name: &str, number: u64, text: &str) -> io::Result<()> {
    let part = folder.join(format!("{name}.part"));
    fs::write(&part, format!("{number} {text}\n"))?;
    fs::rename(part, folder.join(name))
}

struct Holder {
    cuda: Cuda,
    start: u64,
    bytes: usize,
    /// Number of changes made so far.
    round: u32,
    /// Memory that `fill` took besides.
    more: Vec<u64>,
}

impl Holder {
    fn new(cuda: Cuda, bytes: u64) -> Result<Self, CudaError> {
        let start = cuda.allocate(bytes as usize)?;
        let holder = Self { cuda, start, bytes: bytes as usize, round: 0, more: Vec::new() };
        holder.make_noise().map(|()| holder)
    }

    fn obey(&mut self, order: &str) -> Result<String, CudaError> {
        match order.split_once(' ').unwrap_or((order, "")) {
            ("change", _) => self.change().map(|bytes| format!("changed {bytes}")),
            ("sum", _) => self.sum().map(|sum| format!("sum {sum}")),
            ("fill", leave) => self.fill(leave.parse().unwrap_or(0)).map(|bytes| format!("filled {bytes}")),
            _ => Ok("ready".to_owned()),
        }
    }

    /// Writes incompressible noise, in which no two chunks are the same.
    fn make_noise(&self) -> Result<(), CudaError> {
        let noise = noise(FILL_PIECE_BYTES);
        for from in (0..self.bytes).step_by(FILL_PIECE_BYTES) {
            self.cuda.copy_in(self.start + from as u64, &noise[..FILL_PIECE_BYTES.min(self.bytes - from)])?;
        }
        self.stamp(1, 0)
    }

    /// Writes a number to every chunk, or to one in `stride`.
    fn stamp(&self, stride: usize, round: u32) -> Result<(), CudaError> {
        for chunk in (0..self.bytes.div_ceil(IMAGE_CHUNK_BYTES as usize)).step_by(stride) {
            let at = self.start + chunk as u64 * IMAGE_CHUNK_BYTES;
            self.cuda.fill(at, chunk as u32)?;
            self.cuda.fill(at + 4, round)?;
        }
        self.cuda.synchronize()
    }

    fn change(&mut self) -> Result<usize, CudaError> {
        self.round += 1;
        self.stamp(CHUNKS_PER_CHANGE, self.round)?;
        Ok(self.bytes.div_ceil(IMAGE_CHUNK_BYTES as usize).div_ceil(CHUNKS_PER_CHANGE) * IMAGE_CHUNK_BYTES as usize)
    }

    /// Returns a sum over all words and their positions.
    fn sum(&self) -> Result<u64, CudaError> {
        let mut piece = vec![0; FILL_PIECE_BYTES.min(self.bytes)];
        let mut sum = 0_u64;
        for from in (0..self.bytes).step_by(FILL_PIECE_BYTES) {
            let length = FILL_PIECE_BYTES.min(self.bytes - from);
            self.cuda.copy_out(&mut piece[..length], self.start + from as u64)?;
            for word in piece[..length].as_chunks().0 {
                sum = sum.rotate_left(1).wrapping_add(u64::from_le_bytes(*word));
            }
        }
        Ok(sum)
    }

    /// Takes memory until no more than `leave` bytes are free.
    fn fill(&mut self, leave: usize) -> Result<usize, CudaError> {
        let mut total_bytes = 0;
        let mut piece: usize = 1 << 30;
        while piece >= 32 << 20 {
            let free = self.cuda.free_memory()?;
            if free < leave + piece {
                piece /= 2;
                continue;
            }
            match self.cuda.allocate(piece) {
                Ok(address) => {
                    self.more.push(address);
                    total_bytes += piece;
                }
                Err(_) => piece /= 2,
            }
        }
        Ok(total_bytes)
    }
}
