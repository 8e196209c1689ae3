//! The figures of `katydid bench`, and their statistics.

use serde::{Deserialize, Serialize};

/// One figure: its key in JSON, its name in the table, and the bytes it moves (0: none).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Figure {
    /// Key in JSON, never changed once released.
    pub(super) key: &'static str,
    /// Name of the figure in tables.
    pub(super) name: &'static str,
    /// Bytes that one repetition moves, for the rate.
    pub(super) bytes: u64,
}

/// Returns a figure that moves no data.
const fn figure(key: &'static str, name: &'static str) -> Figure {
    Figure { key, name, bytes: 0 }
}

/// Returns a figure that moves data.
const fn copy(key: &'static str, name: &'static str, bytes: u64) -> Figure {
    Figure { key, name, bytes }
}

const KIB_64: u64 = 64 << 10;
const MIB_16: u64 = 16 << 20;
const MIB_64: u64 = 64 << 20;
const MIB_256: u64 = 256 << 20;
const BYTES_PER_GIB: u64 = 1 << 30;
/// Bytes of the rows, and of the box, without their gaps.
const ROWS_BYTES: u64 = 4_000 * 4_001;
const SLICES_BYTES: u64 = 40 * 400 * 1_001;

/// All figures, in the order of the table. The parts of the measuring program refer to each by its key.
pub(super) const FIGURES: [Figure; 71] = [
    figure("first_call", "process start to context, warm server"),
    figure("first_call_cold", "process start to context, no worker ready"),
    figure("stream_query", "round trip: cuStreamQuery, idle"),
    figure("stream_query_loaded", "the same beside a thread that launches"),
    figure("context_sync", "round trip: cuCtxSynchronize, idle"),
    figure("launch", "enqueue a launch"),
    figure("launch_sync", "launch + synchronise"),
    figure("launch_rate_1", "launches of 1 thread, each"),
    figure("launch_rate_8", "launches of 8 threads, each"),
    figure("sessions_1", "launch + synchronise, 1 session, each"),
    figure("sessions_8", "launch + synchronise, 8 sessions, each"),
    figure("sessions_64", "launch + synchronise, 64 sessions, each"),
    figure("event_record", "record an event"),
    figure("event_query", "query an event that is done"),
    figure("event_sync", "wait for an event that is done"),
    figure("event_create", "create + destroy an event"),
    figure("stream_create", "create + destroy a stream"),
    figure("objects_make", "create an event among very many"),
    figure("objects_use", "record one among very many"),
    figure("objects_end", "destroy one among very many"),
    figure("graph_1", "launch + wait for a graph of 1 kernel"),
    figure("graph_100", "of 100 kernels"),
    figure("graph_10000", "of 10,000 kernels"),
    figure("module_load", "load + unload PTX of 1 kernel"),
    figure("module_load_200", "of 200 kernels"),
    figure("malloc_256", "allocate + free 256 B"),
    figure("malloc_64m", "allocate + free 64 MiB"),
    figure("malloc_1g", "allocate + free 1 GiB"),
    figure("malloc_pools", "as PyTorch's allocator asks, each"),
    figure("malloc_cupy", "as CuPy's pool asks, each"),
    figure("malloc_jax", "as JAX's allocator grows, each"),
    figure("malloc_mixed", "256 B to 128 MiB, all held at once, each"),
    figure("malloc_host_64k", "allocate + free 64 KiB pinned, cleared"),
    figure("malloc_host_64m", "allocate + free 64 MiB pinned, cleared"),
    figure("memset_4k", "enqueue a memset of 4 KiB"),
    copy("memset_64m", "memset of 64 MiB + synchronise", MIB_64),
    copy("htod_4_pageable", "HtoD 4 B pageable", 4),
    copy("htod_4_pageable_beside", "the same beside a non-blocking stream", 4),
    copy("htod_64k_pageable", "HtoD 64 KiB pageable", KIB_64),
    copy("htod_64m_pageable", "HtoD 64 MiB pageable", MIB_64),
    copy("htod_256m_pageable", "HtoD 256 MiB pageable", MIB_256),
    copy("htod_1g_pageable", "HtoD 1 GiB pageable", BYTES_PER_GIB),
    copy("htod_4x16m_pageable", "HtoD 16 MiB pageable by 4 threads", MIB_64),
    copy("htod_odd_pageable", "HtoD 16 MiB pageable, odd addresses", MIB_16),
    copy("htod_2d_pageable", "HtoD 4,000 rows of 4,001 B, pageable", ROWS_BYTES),
    copy("htod_3d_pageable", "HtoD 40 slices of 400 rows of 1,001 B, pageable", SLICES_BYTES),
    copy("htod_4_pinned", "HtoD 4 B pinned", 4),
    copy("htod_64k_pinned", "HtoD 64 KiB pinned", KIB_64),
    copy("htod_64m_pinned", "HtoD 64 MiB pinned", MIB_64),
    copy("htod_256m_pinned", "HtoD 256 MiB pinned", MIB_256),
    copy("htod_1g_pinned", "HtoD 1 GiB pinned", BYTES_PER_GIB),
    copy("dtoh_4_pageable", "DtoH 4 B pageable", 4),
    copy("dtoh_64k_pageable", "DtoH 64 KiB pageable", KIB_64),
    copy("dtoh_64m_pageable", "DtoH 64 MiB pageable", MIB_64),
    copy("dtoh_256m_pageable", "DtoH 256 MiB pageable", MIB_256),
    copy("dtoh_1g_pageable", "DtoH 1 GiB pageable", BYTES_PER_GIB),
    copy("dtoh_4x16m_pageable", "DtoH 16 MiB pageable by 4 threads", MIB_64),
    copy("dtoh_odd_pageable", "DtoH 16 MiB pageable, odd addresses", MIB_16),
    copy("dtoh_2d_pageable", "DtoH 4,000 rows of 4,001 B, pageable", ROWS_BYTES),
    copy("dtoh_3d_pageable", "DtoH 40 slices of 400 rows of 1,001 B, pageable", SLICES_BYTES),
    copy("dtoh_4_pinned", "DtoH 4 B pinned", 4),
    copy("dtoh_64k_pinned", "DtoH 64 KiB pinned", KIB_64),
    copy("dtoh_64m_pinned", "DtoH 64 MiB pinned", MIB_64),
    copy("dtoh_256m_pinned", "DtoH 256 MiB pinned", MIB_256),
    copy("dtoh_1g_pinned", "DtoH 1 GiB pinned", BYTES_PER_GIB),
    copy("both_64m_pinned", "64 MiB each way at once, pinned", 2 * MIB_64),
    figure("htod_4_async", "enqueue HtoD 4 B async"),
    copy("plain_64m_1", "plain TCP, 64 MiB over 1 connection", MIB_64),
    copy("plain_64m_4", "plain TCP, 64 MiB over 4 connections", MIB_64),
    copy("plain_64m_8", "plain TCP, 64 MiB over 8 connections", MIB_64),
    copy("by_hand_64m_8", "64 MiB of the device sent over 8 connections by hand", MIB_64),
];

/// Returns the median of figures in any order. For an even number it is the mean of the middle two, since the later one alone
/// would be the worse of two rounds.
pub(super) fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let upper = figures.len() / 2;
    let lower = figures.len().checked_sub(1)? / 2;
    Some(figures.get(lower)?.midpoint(*figures.get(upper)?))
}

/// One figure of one way, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Timing {
    /// Half of the repetitions were faster.
    pub(super) median_ns: f64,
    /// One in a hundred was slower.
    pub(super) p99_ns: f64,
}

impl Timing {
    /// Returns the figures of samples in nanoseconds, in any order; `None` without samples.
    pub(super) fn of(mut samples: Vec<f64>) -> Option<Self> {
        samples.sort_by(f64::total_cmp);
        let most = ((samples.len() as f64 - 1.0) * 0.99).round() as usize;
        let p99_ns = *samples.get(most)?;
        Some(Self { median_ns: median(samples)?, p99_ns })
    }

    /// Returns the figures of several runs: the median of each number.
    pub(super) fn over_runs(runs: &[Self]) -> Option<Self> {
        let of = |field: fn(&Self) -> f64| median(runs.iter().map(field).collect());
        Some(Self { median_ns: of(|run| run.median_ns)?, p99_ns: of(|run| run.p99_ns)? })
    }
}

/// Cost of an idle session for the program.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Idle {
    /// CPU time of an idle period, in percent of one CPU.
    pub(super) cpu_percent: f64,
    /// Resident memory of the program, in bytes.
    pub(super) resident: u64,
}

/// Formats nanoseconds for people.
pub(super) fn duration(nanoseconds: f64) -> String {
    match nanoseconds {
        small if small < 100_000.0 => format!("{:.2} us", small / 1e3),
        middle if middle < 100_000_000.0 => format!("{:.2} ms", middle / 1e6),
        large => format!("{:.2} s", large / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_tail_of_samples_in_any_order() {
        let samples = (0..=100).rev().map(f64::from).collect();
        assert_eq!(Timing::of(samples), Some(Timing { median_ns: 50.0, p99_ns: 99.0 }));
        assert_eq!(Timing::of(Vec::new()), None);
    }

    #[test]
    fn several_runs_become_one_by_their_medians() {
        let run = |median_ns, p99_ns| Timing { median_ns, p99_ns };
        let runs = [run(1.0, 9.0), run(3.0, 7.0), run(2.0, 8.0)];
        assert_eq!(Timing::over_runs(&runs), Some(run(2.0, 8.0)));
        assert_eq!(Timing::over_runs(&runs[..2]), Some(run(2.0, 8.0)));
    }

    #[test]
    fn keys_are_unique() {
        let mut keys = FIGURES.map(|figure| figure.key);
        keys.sort_unstable();
        assert!(keys.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn times_are_shown_in_a_fitting_unit() {
        for (ns, text) in [(20.0, "0.02 us"), (8_250.0, "8.25 us"), (1_400_000.0, "1.40 ms"), (2.5e9, "2.50 s")] {
            assert_eq!(duration(ns), text);
        }
    }
}
