//! Checkpoints of a program that holds much memory: a first one, a second one after some of it has changed, a restore, a
//! checkpoint on a device without free memory, and NVIDIA's own.

use std::process::Command;

use katydid_driver::DriverChoice;

use super::bench::{Bench, job_name, katydid};
use super::native;
use super::report::{CheckpointFigures, Measurement, SizeRow};
use super::subject::Subject;

use crate::flags::Against;
use crate::setup::native_search;
use katydid_cli_core::args::size::Size;
use katydid_cli_core::layout;

/// Sizes in bytes, with a GPU and without one.
const GPU_SIZES: [u64; 4] = [64 << 20, 1 << 30, 8 << 30, 32 << 30];
const SOFT_SIZES: [u64; 2] = [16 << 20, 128 << 20];
/// Free memory of a crowded device: too little for a snapshot to take any.
const CROWDED_FREE_BYTES: u64 = 160 << 20;

/// Measures programs that hold memory of each size.
pub(super) fn measure(bench: &Bench<'_>, sizes: &[Size]) -> Vec<SizeRow> {
    let usual = if bench.driver.soft { &SOFT_SIZES[..] } else { &GPU_SIZES[..] };
    let sizes = match sizes {
        [] => usual.to_vec(),
        requested_sizes => requested_sizes.iter().map(|size| size.0).collect(),
    };
    sizes.into_iter().map(|bytes| SizeRun { bench, bytes }.row()).collect()
}

/// The measurement of one size.
struct SizeRun<'a> {
    bench: &'a Bench<'a>,
    /// Bytes of device memory that the program holds.
    bytes: u64,
}

impl SizeRun<'_> {
    fn row(&self) -> SizeRow {
        let mut row = SizeRow::new(self.bytes);
        if let Err(reason) = self.check_limits().and_then(|()| self.katydid(&mut row)) {
            // This reason is for the first missing figure.
            row.fail(reason);
        }
        self.show_progress("without free memory");
        row.crowded = self.check_limits().and_then(|()| self.crowded());
        // Last, since the driver takes half a minute for what Katydid does in two seconds.
        self.show_progress("natively");
        row.native = self.check_limits().and_then(|()| self.native());
        row
    }

    fn check_limits(&self) -> Measurement<()> {
        self.bench.limits.check()
    }

    fn show_progress(&self, what: &str) {
        self.bench.show_progress(&format!("{}: {what}", Size(self.bytes)));
    }

    fn name(&self, what: &str) -> String {
        job_name(&format!("{}-{what}", self.bytes))
    }

    /// Measures two checkpoints and a restore.
    fn katydid(&self, row: &mut SizeRow) -> Measurement<()> {
        let work = self.bench.folder()?;
        let image = work.path().join("image");
        let name = self.name("holder");
        self.show_progress("filling memory");
        let mut program = self.bench.run(work.path(), &name, &holder_arguments(self.bytes))?;
        let sum = program.ask("sum")?;
        self.show_progress("first checkpoint");
        row.first = self.bench.checkpoint(&name, &image, true);
        row.first.clone()?;
        let changed = program.ask("change")?;
        row.changed = changed.strip_prefix("changed ").and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
        let changed_sum = program.ask("sum")?;
        if sum == changed_sum {
            return Err("the program's memory did not change".to_owned());
        }
        self.show_progress("second checkpoint");
        row.second = self.bench.checkpoint(&name, &image, true);
        row.second.clone()?;
        self.show_progress("last checkpoint");
        self.bench.checkpoint(&name, &image, false)?;
        program.wait()?;
        self.show_progress("restore");
        let restored = self.bench.restore(&mut program, &image, "say")?;
        if program.ask("sum")? != changed_sum {
            return Err("the restored program found other bytes in its memory".to_owned());
        }
        row.restore_us = Ok(restored);
        program.end()
    }

    /// Measures a checkpoint while another program has taken the rest of the device.
    fn crowded(&self) -> Measurement<CheckpointFigures> {
        let work = self.bench.folder()?;
        let name = self.name("crowded");
        let mut program = self.bench.run(work.path(), &name, &holder_arguments(self.bytes))?;
        let mut other = self.bench.run(work.path(), &self.name("other"), &holder_arguments(1 << 20))?;
        other.ask(&format!("fill {CROWDED_FREE_BYTES}"))?;
        let measurement = self.bench.checkpoint(&name, &work.path().join("image"), true);
        other.end()?;
        program.ask("say")?;
        program.end()?;
        measurement
    }

    fn native(&self) -> Measurement<native::Native> {
        if self.bench.against == Against::None {
            return Err("not asked for".to_owned());
        }
        if self.bench.driver.soft {
            return Err("softcuda has no checkpoint of its own".to_owned());
        }
        let (work, driver) = (self.bench.folder()?, &self.bench.driver.path);
        let mut command: Command = katydid();
        match native_search(self.bench.layout, driver) {
            Some(search) => command.env(layout::SEARCH_PATH_VARIABLE, search),
            None => command.env_remove(layout::SEARCH_PATH_VARIABLE),
        };
        let folder = work.path().join("native");
        let mut program = Subject::start(command, &holder_arguments(self.bytes), &folder, &self.bench.limits)?;
        let sum = program.ask("sum")?;
        let measured = native::measure(&DriverChoice::Path(driver.clone()), program.id())?;
        if program.ask("sum")? != sum {
            return Err("the program found other bytes in its memory".to_owned());
        }
        program.end()?;
        Ok(measured)
    }
}

/// Arguments that make a program hold `bytes` bytes.
fn holder_arguments(bytes: u64) -> [String; 2] {
    ["--bytes".to_owned(), bytes.to_string()]
}
