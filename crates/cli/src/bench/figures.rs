//! What `katydid bench` measures, and the statistics of it.

use serde::{Deserialize, Serialize};

/// One figure: its key in JSON, its name in the table, and the bytes it moves (0: none).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Figure {
    /// For programs; never changed once released.
    pub(super) key: &'static str,
    /// For people.
    pub(super) name: &'static str,
    /// What one repetition moves, for the rate.
    pub(super) bytes: u64,
}

/// A figure that moves no data.
const fn figure(key: &'static str, name: &'static str) -> Figure {
    Figure { key, name, bytes: 0 }
}

/// A figure that moves data.
const fn copy(key: &'static str, name: &'static str, bytes: u64) -> Figure {
    Figure { key, name, bytes }
}

const KIB64: u64 = 64 << 10;
const MIB64: u64 = 64 << 20;

/// All figures, in the order of the table. `body.rs` measures each by its key.
pub(super) const FIGURES: [Figure; 21] = [
    figure("first_call", "process start to context"),
    figure("stream_query", "round trip: cuStreamQuery, idle"),
    figure("context_sync", "round trip: cuCtxSynchronize, idle"),
    figure("launch", "enqueue a launch"),
    figure("launch_sync", "launch + synchronise"),
    figure("event_record", "record an event"),
    figure("malloc_256", "allocate + free 256 B"),
    figure("malloc_64m", "allocate + free 64 MiB"),
    copy("htod_4_pageable", "HtoD 4 B pageable", 4),
    copy("htod_64k_pageable", "HtoD 64 KiB pageable", KIB64),
    copy("htod_64m_pageable", "HtoD 64 MiB pageable", MIB64),
    copy("htod_4_pinned", "HtoD 4 B pinned", 4),
    copy("htod_64k_pinned", "HtoD 64 KiB pinned", KIB64),
    copy("htod_64m_pinned", "HtoD 64 MiB pinned", MIB64),
    copy("dtoh_4_pageable", "DtoH 4 B pageable", 4),
    copy("dtoh_64k_pageable", "DtoH 64 KiB pageable", KIB64),
    copy("dtoh_64m_pageable", "DtoH 64 MiB pageable", MIB64),
    copy("dtoh_4_pinned", "DtoH 4 B pinned", 4),
    copy("dtoh_64k_pinned", "DtoH 64 KiB pinned", KIB64),
    copy("dtoh_64m_pinned", "DtoH 64 MiB pinned", MIB64),
    figure("htod_4_async", "enqueue HtoD 4 B async"),
];

/// One figure of one way, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Timing {
    /// Half of the repetitions were faster.
    pub(super) median_ns: f64,
    /// One in a hundred was slower.
    pub(super) p99_ns: f64,
}

impl Timing {
    /// Of samples in nanoseconds, in any order; `None` without any.
    pub(super) fn of(mut samples: Vec<f64>) -> Option<Self> {
        samples.sort_by(f64::total_cmp);
        let at = |share: f64| samples.get(((samples.len() as f64 - 1.0) * share).round() as usize).copied();
        Some(Self { median_ns: at(0.5)?, p99_ns: at(0.99)? })
    }

    /// Of several runs: the median of each number.
    pub(super) fn over_runs(runs: &[Self]) -> Option<Self> {
        let median =
            |field: fn(&Self) -> f64| Self::of(runs.iter().map(field).collect()).map(|timing| timing.median_ns);
        Some(Self { median_ns: median(|run| run.median_ns)?, p99_ns: median(|run| run.p99_ns)? })
    }
}

/// What an idle session costs the program.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Idle {
    /// CPU time used in an idle while, in percent of one CPU.
    pub(super) cpu_percent: f64,
    /// Resident memory of the program, in bytes.
    pub(super) resident: u64,
}

/// Nanoseconds as people read them.
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
