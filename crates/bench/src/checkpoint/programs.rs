//! Checkpoint and restore of small programs that compute, as in Figure 8 of the Cricket paper. It measures the checkpoint
//! command, the time from the restore command to the program's answer, and the sizes of both parts.
//!
//! The program computes freely when the checkpoint comes, ends with it, and goes on after the restore. Its step and result must
//! then be those of an undisturbed program.

use super::bench::{Bench, job_name};
use super::report::{CheckpointFigures, Measurement, ProgramRow};

use crate::flags::Computation;

/// Checkpoints and restores of each program, of which the medians count.
const ROUNDS_PER_PROGRAM: usize = 5;
const QUICK_PROGRAM_ROUNDS: usize = 1;

/// Measures all programs.
pub(super) fn measure(bench: &Bench<'_>, quick: bool) -> Vec<ProgramRow> {
    let rounds = if quick { QUICK_PROGRAM_ROUNDS } else { ROUNDS_PER_PROGRAM };
    Computation::ALL.iter().map(|kind| measure_program(bench, *kind, rounds)).collect()
}

fn measure_program(bench: &Bench<'_>, kind: Computation, rounds: usize) -> ProgramRow {
    let size = kind.size(bench.driver.soft);
    let title = kind.title(size);
    bench.show_progress(&title);
    let mut row = ProgramRow { program: title, checkpoints: Vec::new(), restore_us: Vec::new(), missing: None };
    for round in 0..rounds {
        let measured = bench.limits.check().and_then(|()| measure_round(bench, kind, size, round));
        match measured {
            Ok((figures, restore_us)) => {
                row.checkpoints.push(figures);
                row.restore_us.push(restore_us);
            }
            Err(reason) => {
                row.missing = Some(reason);
                break;
            }
        }
    }
    row
}

/// One checkpoint and one restore.
fn measure_round(
    bench: &Bench<'_>,
    kind: Computation,
    size: u32,
    round: usize,
) -> Measurement<(CheckpointFigures, u64)> {
    let work = bench.folder()?;
    let image = work.path().join("image");
    let what = ["--program".to_owned(), kind.name().to_owned(), "--size".to_owned(), size.to_string()];
    let name = job_name(&format!("{}-{round}", kind.name()));
    let mut program = bench.run(work.path(), &name, &what)?;
    program.ask("compute")?;
    let figures = bench.checkpoint(&name, &image, false)?;
    program.wait()?;
    let restore_us = bench.restore(&mut program, &image, "say")?;
    let result = program.ask("finish")?;
    program.end()?;
    let steps = result.split(' ').nth(1).unwrap_or_default();
    let mut other = bench.run(work.path(), &format!("{name}-undisturbed"), &what)?;
    let expected = other.ask(&format!("until {steps}"))?;
    other.end()?;
    if result == expected {
        Ok((figures, restore_us))
    } else {
        Err(format!("restored, it came to `{result}`; undisturbed, to `{expected}`"))
    }
}
