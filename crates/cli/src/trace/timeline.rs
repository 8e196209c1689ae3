//! A timeline in Trace Event JSON, which Perfetto opens: one track a thread, one slice a call.
//!
//! Times are microseconds since the trace began, with nanoseconds after the point. The file is written call by call,
//! since a trace can hold a hundred million of them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use katydid_client::trace::{Call, Trace};
use serde_json::json;

use super::summary::name;

/// Writes the timeline of one process.
pub(super) fn write(path: &Path, trace: &Trace) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    write_events(&mut out, trace)?;
    out.flush()
}

/// Names of process and threads first, then the calls.
fn write_events(out: &mut impl Write, trace: &Trace) -> io::Result<()> {
    let Trace { pid, program, .. } = trace;
    writeln!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    write!(out, "{}", json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": program}}))?;
    for thread in trace.calls.iter().map(|call| call.thread).collect::<BTreeSet<_>>() {
        let label = if thread == *pid { "main thread".to_owned() } else { format!("thread {thread}") };
        let event = json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": thread, "args": {"name": label}});
        write!(out, ",\n{event}")?;
    }
    trace.calls.iter().try_for_each(|call| write_call(out, trace, call))?;
    writeln!(out, "\n]}}")
}

/// By hand: names of functions need no escapes, and this runs once a call.
fn write_call(out: &mut impl Write, trace: &Trace, call: &Call) -> io::Result<()> {
    let name = name(call.function);
    let (start, duration) = (micros(call.start.saturating_sub(trace.start)), micros(call.duration));
    let (pid, tid, result) = (trace.pid, call.thread, call.result);
    write!(
        out,
        ",\n{{\"ph\":\"X\",\"cat\":\"cuda\",\"name\":\"{name}\",\"pid\":{pid},\"tid\":{tid},\
         \"ts\":{start},\"dur\":{duration},\"args\":{{\"result\":{result}}}}}"
    )
}

/// Exact: a double would lose nanoseconds in a trace of months.
fn micros(nanoseconds: u64) -> String {
    format!("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000)
}

#[cfg(test)]
mod tests {
    use katydid_cuda_sys::Function;
    use serde_json::Value;

    use super::*;

    fn events(calls: Vec<Call>) -> Vec<Value> {
        let trace = Trace { pid: 42, program: "a \"quoted\" name".into(), wall_start: 0, start: 1_000, calls };
        let mut text = Vec::new();
        write_events(&mut text, &trace).unwrap();
        let value: Value = serde_json::from_slice(&text).unwrap();
        value["traceEvents"].as_array().unwrap().clone()
    }

    #[test]
    fn each_call_is_a_slice_on_the_track_of_its_thread() {
        let call = |thread| Call {
            function: Function::cuInit.number(),
            thread,
            start: 3_500,
            duration: 1_234,
            result: 2,
            round_trips: 0,
        };
        let events = events(vec![call(42), call(43)]);
        let names: Vec<_> = events.iter().map(|event| event["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["process_name", "thread_name", "thread_name", "cuInit", "cuInit"]);
        assert_eq!(events[1]["args"]["name"], "main thread");
        let last = &events[4];
        assert_eq!(
            (last["tid"].as_u64(), last["ts"].as_f64(), last["dur"].as_f64()),
            (Some(43), Some(2.5), Some(1.234))
        );
        assert_eq!(last["args"]["result"], 2);
    }

    #[test]
    fn a_trace_without_calls_is_still_valid_json() {
        assert_eq!(events(Vec::new()).len(), 1);
    }
}
