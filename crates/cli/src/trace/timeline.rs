//! A timeline of all processes in one file of Trace Event JSON, which Perfetto and chrome://tracing open. Each thread has a track
//! with a slice a call. Beside each process, its streams on the GPU have a slice for each piece of work.
//!
//! Times are microseconds since the first trace began, with nanoseconds after the point. The file is written call by call, since
//! a trace can hold a hundred million calls.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};

use katydid_client::trace::{Detail, Trace, TracedCall};
use serde_json::{Value, json};

use super::calls::stream_name;
use super::summary::{name, work_name};

/// Added to a process id for the rows of its GPU. It is above all ids that the kernel gives (4,194,304), and the sum fits into
/// the 32 bits that Perfetto supports. Rows of streams are numbered from here.
const GPU_TRACK_BASE: u32 = 1 << 30;

/// Writes the timeline as JSON that Perfetto reads.
pub(super) fn write(file: File, traces: &[Trace]) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    write_events(&mut out, traces)?;
    out.flush()
}

/// Writes names of processes, threads and streams first, then the calls.
fn write_events(out: &mut impl Write, traces: &[Trace]) -> io::Result<()> {
    let began = traces.iter().map(|trace| trace.start).min().unwrap_or(0);
    writeln!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    let rows = rows(traces);
    let names = traces.iter().zip(&rows).flat_map(|(trace, rows)| names(trace, rows));
    let names: Vec<String> = names.map(|event| event.to_string()).collect();
    write!(out, "{}", names.join(",\n"))?;
    for (trace, rows) in traces.iter().zip(&rows) {
        trace.calls.iter().try_for_each(|call| write_call(out, trace, rows, call, began))?;
    }
    writeln!(out, "\n]}}")
}

/// The streams of a process that had timed work, by handle, with the numbers of their rows.
type StreamRows = BTreeMap<u64, u32>;

/// The rows of each process. Numbers are unique in the file: Perfetto identifies a row by its number, whatever its process.
fn rows(traces: &[Trace]) -> Vec<StreamRows> {
    let mut numbers = GPU_TRACK_BASE..;
    let of_one = |trace: &Trace| {
        let timed = trace.details.values().filter(|detail| detail.gpu.is_some());
        let streams: BTreeSet<u64> = timed.map(|detail| detail.stream.unwrap_or(0)).collect();
        streams.into_iter().zip(numbers.by_ref()).collect()
    };
    traces.iter().map(of_one).collect()
}

/// Names of the rows of a process.
fn names(trace: &Trace, rows: &StreamRows) -> Vec<Value> {
    let Trace { pid, program, .. } = trace;
    let gpu = GPU_TRACK_BASE + pid;
    let mut events = vec![json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": program}})];
    for thread in trace.calls.iter().map(|call| call.thread).collect::<BTreeSet<_>>() {
        let label = if thread == *pid { "main thread".to_owned() } else { format!("thread {thread}") };
        events.push(json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": thread, "args": {"name": label}}));
    }
    if !rows.is_empty() {
        let label = format!("GPU of {program} ({pid})");
        events.push(json!({"ph": "M", "name": "process_name", "pid": gpu, "args": {"name": label}}));
    }
    for (stream, row) in rows {
        let label = stream_name(trace, *stream);
        events.push(json!({"ph": "M", "name": "thread_name", "pid": gpu, "tid": row, "args": {"name": label}}));
    }
    events
}

/// Written without a JSON library: names of functions need no escapes, and this runs once a call.
fn write_call(out: &mut impl Write, trace: &Trace, rows: &StreamRows, call: &TracedCall, began: u64) -> io::Result<()> {
    let name = name(call.function);
    let (start, duration) = (micros(call.start.saturating_sub(began)), micros(call.duration));
    let (pid, tid) = (trace.pid, call.thread);
    let detail = trace.details.get(&(call.thread, call.start));
    let args = detail.map_or_else(|| json!({"result": call.result}), |detail| args(trace, call, detail));
    write!(
        out,
        ",\n{{\"ph\":\"X\",\"cat\":\"cuda\",\"name\":\"{name}\",\"pid\":{pid},\"tid\":{tid},\
         \"ts\":{start},\"dur\":{duration},\"args\":{args}}}"
    )?;
    match detail.and_then(|detail| Some((detail, detail.gpu?))) {
        Some((detail, (start, took))) => {
            let (work, pid) = (json!(work_name(trace, call)), GPU_TRACK_BASE + pid);
            let tid = rows.get(&detail.stream.unwrap_or(0)).copied().unwrap_or(GPU_TRACK_BASE);
            let (start, duration) = (micros(start.saturating_sub(began)), micros(took));
            write!(
                out,
                ",\n{{\"ph\":\"X\",\"cat\":\"gpu\",\"name\":{work},\"pid\":{pid},\"tid\":{tid},\
                 \"ts\":{start},\"dur\":{duration},\"args\":{args}}}"
            )
        }
        None => Ok(()),
    }
}

/// Details of a call's work.
fn args(trace: &Trace, call: &TracedCall, detail: &Detail) -> Value {
    let mut args = json!({"result": call.result});
    let mut put = |name: &str, value: Value| args[name] = value;
    if let Some(kernel) = &detail.kernel {
        put("kernel", json!(kernel));
    }
    if let Some((grid, block)) = detail.shape {
        put("grid", json!(grid));
        put("block", json!(block));
        put("shared_bytes", json!(detail.shared));
    }
    if let Some(bytes) = detail.bytes {
        put("bytes", json!(bytes));
    }
    if let Some(stream) = detail.stream {
        put("stream", json!(stream_name(trace, stream)));
    }
    args
}

/// Formats microseconds exactly: a double would lose nanoseconds in a trace of months.
fn micros(nanoseconds: u64) -> String {
    format!("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000)
}

#[cfg(test)]
mod tests {
    use katydid_cuda_sys::Function;
    use serde_json::Value;

    use super::*;

    fn trace(pid: u32, start: u64, calls: Vec<TracedCall>) -> Trace {
        let kernel = Detail {
            stream: Some(9),
            kernel: Some("a<\"b\">".into()),
            shape: Some(([2, 1, 1], [32, 1, 1])),
            bytes: Some(64),
            gpu: Some((5_000, 700)),
            ..Detail::default()
        };
        let details = calls.iter().map(|call| ((call.thread, call.start), kernel.clone())).collect();
        Trace { pid, program: "a \"quoted\" name".into(), wall_start: 0, start, calls, left_out: 0, details }
    }

    fn events(traces: &[Trace]) -> Vec<Value> {
        let mut text = Vec::new();
        write_events(&mut text, traces).unwrap();
        let value: Value = serde_json::from_slice(&text).unwrap();
        value["traceEvents"].as_array().unwrap().clone()
    }

    fn call(thread: u32) -> TracedCall {
        let function = Function::cuLaunchKernel.number();
        TracedCall { function, thread, start: 3_500, duration: 1_234, result: 2, round_trips: 0 }
    }

    #[test]
    fn each_call_is_a_slice_on_the_track_of_its_thread_and_its_work_one_on_that_of_its_stream() {
        let events = events(&[trace(42, 1_000, vec![call(42)]), trace(50, 2_000, vec![call(51)])]);
        let names: Vec<_> = events.iter().map(|event| event["name"].as_str().unwrap()).collect();
        let of_one = ["process_name", "thread_name", "process_name", "thread_name"];
        assert_eq!(
            names,
            [&of_one[..], &of_one, &["cuLaunchKernel", "a<\"b\">", "cuLaunchKernel", "a<\"b\">"]].concat()
        );
        assert_eq!(events[1]["args"]["name"], "main thread");
        assert_eq!(events[2]["args"]["name"], "GPU of a \"quoted\" name (42)");
        assert_eq!(events[3]["args"]["name"], "stream 1");
        let last = &events[10];
        assert_eq!(
            (last["tid"].as_u64(), last["ts"].as_f64(), last["dur"].as_f64()),
            (Some(51), Some(2.5), Some(1.234))
        );
        assert_eq!((&last["args"]["result"], &last["args"]["bytes"]), (&json!(2), &json!(64)));
        let gpu = &events[11];
        assert_eq!(
            (gpu["ts"].as_f64(), gpu["dur"].as_f64(), &gpu["args"]["grid"][0]),
            (Some(4.0), Some(0.7), &json!(2))
        );
        assert_eq!(gpu["pid"].as_u64(), Some(u64::from(GPU_TRACK_BASE) + 50));
        // The one stream of each process has a row of its own, whose number Perfetto supports.
        let rows: BTreeSet<u64> = events.iter().filter_map(|event| event["tid"].as_u64()).collect();
        assert_eq!(rows, [42, 51, u64::from(GPU_TRACK_BASE), u64::from(GPU_TRACK_BASE) + 1].into());
    }

    #[test]
    fn a_trace_without_calls_is_still_valid_json() {
        assert_eq!(events(&[trace(42, 0, Vec::new())]).len(), 1);
        assert_eq!(events(&[]).len(), 0);
    }
}
