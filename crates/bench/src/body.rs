//! The measuring program, which runs once per way and round, and prints its figures as JSON.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::cuda::{Cuda, CudaError};
use super::sampling::{Body, Plan, Report, now, resident};
use super::{journal, parts, sessions};
use crate::flags::BenchBodyFlags;
use katydid_cli_core::output::failure::{Failure, Outcome};

/// Measures and prints the figures as JSON.
pub(super) fn main(flags: &BenchBodyFlags) -> Outcome {
    let fail = |error: CudaError| Failure::work(format!("cannot measure: {error}"));
    let cuda = Cuda::open().map_err(fail)?;
    let started = now().saturating_sub(flags.started);
    let mut body = Body { cuda, plan: Plan::new(flags), begun: Instant::now(), figures: BTreeMap::new(), lost: None };
    if flags.started != 0 {
        let key = if flags.only_start { "first_call_cold" } else { "first_call" };
        body.note(key, Ok(vec![started as f64]));
    }
    body.cuda.prepare().map_err(fail)?;
    if flags.on_request {
        return journal::body(&mut body.cuda);
    }
    if let Some(window) = flags.session {
        return sessions::body(&mut body.cuda, Duration::from_millis(window));
    }
    let wants_idle = !flags.only_start && (flags.quick || flags.heavy);
    let idle = if wants_idle { body.idle() } else { None };
    if !flags.only_start {
        parts::measure(&mut body);
    }
    let report = Report { idle, resident_after: (!flags.only_start).then(resident).flatten(), figures: body.figures };
    writeln!(io::stdout(), "{}", serde_json::to_string(&report).map_err(Failure::work)?)?;
    Ok(ExitCode::SUCCESS)
}
