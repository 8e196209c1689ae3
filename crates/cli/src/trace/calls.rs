//! Output of one line a call, in the order in which calls began, as `strace` does.

use std::io::{self, Write};

use katydid_client::trace::{Detail, Lookup, Trace, TracedCall};
use katydid_cuda_sys::CUresult;

use super::filter::Filter;
use super::summary::{describe_version, is_error, name};
use katydid_cli_core::args::size::Size;
use katydid_wire::printable::printable;

/// Writes the calls that the filter shows. A line has process and thread, seconds since the first trace began, the function with
/// details of its work, the result, the time inside, and the time on the GPU.
pub(super) fn write(out: &mut impl Write, traces: &[Trace], filter: &Filter) -> io::Result<()> {
    let Some(began) = traces.iter().map(|trace| trace.start).min() else { return Ok(()) };
    let mut all: Vec<(&Trace, &TracedCall)> =
        traces.iter().flat_map(|trace| trace.calls.iter().map(move |call| (trace, call))).collect();
    all.retain(|(_, call)| filter.shows(name(call.function), is_error(call.result)));
    all.sort_by_key(|(_, call)| call.start);
    for (trace, call) in all {
        let detail = trace.details.get(&(call.thread, call.start));
        // Names of kernels are those of the program's code.
        writeln!(out, "{}", printable(&line(trace, call, detail, began)))?;
    }
    Ok(())
}

fn line(trace: &Trace, call: &TracedCall, detail: Option<&Detail>, began: u64) -> String {
    let seconds = call.start.saturating_sub(began) as f64 / 1e9;
    let work = detail.map(|detail| detail_columns(trace, detail)).unwrap_or_default().join(", ");
    let took = call.duration as f64 / 1e3;
    let gpu = detail.and_then(|detail| detail.gpu);
    let gpu = gpu.map_or_else(String::new, |(_, took)| format!(" <gpu {:.1} us>", took as f64 / 1e3));
    let (pid, thread, function) = (trace.pid, call.thread, name(call.function));
    format!("[{pid} {thread}] {seconds:.6} {function}({work}) = {} <{took:.1} us>{gpu}", result(call.result))
}

/// Details of a call's work.
fn detail_columns(trace: &Trace, detail: &Detail) -> Vec<String> {
    let mut columns = Vec::new();
    if let Some(kernel) = &detail.kernel {
        columns.push(kernel.clone());
    }
    if let Some((grid, block)) = detail.shape {
        columns.push(format!("grid {}x{}x{}, block {}x{}x{}", grid[0], grid[1], grid[2], block[0], block[1], block[2]));
    }
    if detail.shared > 0 {
        columns.push(format!("shared {}", Size(detail.shared.into())));
    }
    if let Some(bytes) = detail.bytes {
        columns.push(format!("{bytes} bytes"));
    }
    if let Some(stream) = detail.stream {
        columns.push(stream_name(trace, stream));
    }
    columns.extend(detail.lookup.as_ref().map(describe_lookup));
    columns
}

/// The function that is looked up, with its version, and whether it exists.
fn describe_lookup(lookup: &Lookup) -> String {
    let Lookup { name, version, is_found } = lookup;
    let version = if *version == 0 { String::new() } else { format!(" of {}", describe_version(*version)) };
    format!("{name}{version}{}", if *is_found { "" } else { ", not found" })
}

/// Name of a stream: the default streams by their kind, others by the order in which their process used them.
pub(super) fn stream_name(trace: &Trace, handle: u64) -> String {
    match handle {
        0 => "default stream".to_owned(),
        1 => "legacy stream".to_owned(),
        2 => "per-thread stream".to_owned(),
        other => format!("stream {}", streams(trace).iter().position(|stream| *stream == other).unwrap_or(0) + 1),
    }
}

/// The streams of a process, in the order in which it used them.
fn streams(trace: &Trace) -> Vec<u64> {
    let mut streams = Vec::new();
    let used = trace.calls.iter().filter_map(|call| trace.details.get(&(call.thread, call.start))?.stream);
    for stream in used.filter(|stream| *stream > 2) {
        if !streams.contains(&stream) {
            streams.push(stream);
        }
    }
    streams
}

fn result(code: u32) -> String {
    match CUresult(code).name() {
        Some(name) => name.to_string_lossy().into_owned(),
        None => code.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use katydid_cuda_sys::Function;

    use super::*;

    #[test]
    fn a_call_is_a_line_with_what_it_has_the_gpu_do() {
        let call = |function: Function, start, result| TracedCall {
            function: function.number(),
            thread: 43,
            start,
            duration: 12_300,
            result,
            round_trips: 0,
        };
        let calls = vec![
            call(Function::cuLaunchKernel, 3_500_000, 0),
            call(Function::cuInit, 1_500_000, 100),
            call(Function::cuGetProcAddress, 4_500_000, 500),
        ];
        let kernel = Detail {
            stream: Some(0xabc),
            kernel: Some("saxpy".into()),
            shape: Some(([4, 1, 1], [256, 1, 1])),
            gpu: Some((4_000_000, 7_000)),
            ..Detail::default()
        };
        let lookup = Lookup { name: "cuInit".into(), version: 13_020, is_found: false };
        let lookup = Detail { lookup: Some(lookup), ..Detail::default() };
        let details = [((43, 3_500_000), kernel), ((43, 4_500_000), lookup)].into();
        let trace =
            Trace { pid: 42, program: "p".into(), wall_start: 0, start: 1_000_000, calls, left_out: 0, details };
        let mut text = Vec::new();
        write(&mut text, &[trace], &"all".parse().unwrap()).unwrap();
        let expected = "\
[42 43] 0.000500 cuInit() = CUDA_ERROR_NO_DEVICE <12.3 us>
[42 43] 0.002500 cuLaunchKernel(saxpy, grid 4x1x1, block 256x1x1, stream 1) = CUDA_SUCCESS <12.3 us> <gpu 7.0 us>
[42 43] 0.003500 cuGetProcAddress(cuInit of 13.2, not found) = CUDA_ERROR_NOT_FOUND <12.3 us>
";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }
}
