//! Bounds lines that others can provoke: a peer that is refused a thousand times a second must not fill the disk with lines.
//!
//! Each source has a burst of lines of a kind, and a rate per minute. All sources together have a bound too, since an attacker
//! may have many addresses. Lines left out are counted, and the next line that is written reports their number.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use crate::slots::PeerOrigin;

/// The subject of a line whose number others decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LineKind {
    /// A connection that was refused.
    Refused,
    /// The beginning or the end of a session.
    Session,
    /// A line that a worker wrote.
    Worker,
    /// A line that a worker wrote before it ended, and that had been left out.
    LastWords,
    /// A resource that the system refused, because others have taken it.
    System,
}

/// Peer or process that causes a line, to which limits apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LineSource {
    Peer(PeerOrigin),
    /// A worker, by its process id.
    Worker(u32),
    /// A part of the server.
    Server(&'static str),
    /// All further sources for which there is no room.
    Others,
}

/// Lines at once, and lines per minute after that.
#[derive(Debug, Clone, Copy)]
struct Rate {
    burst: u32,
    per_minute: u32,
}

impl LineKind {
    /// Returns the limits of one source, and of all sources.
    fn rates(self) -> [Rate; 2] {
        let rate = |burst, per_minute| Rate { burst, per_minute };
        match self {
            Self::Refused => [rate(20, 6), rate(200, 60)],
            Self::Session => [rate(500, 60), rate(2000, 300)],
            Self::Worker => [rate(100, 30), rate(1000, 120)],
            Self::LastWords => [rate(5, 1), rate(200, 60)],
            Self::System => [rate(10, 6), rate(50, 12)],
        }
    }

    /// Returns the name of left-out lines of this kind, in the plural.
    fn plural(self) -> &'static str {
        match self {
            Self::Refused => "lines about refused connections",
            Self::Session => "lines about sessions",
            Self::Worker => "lines of workers",
            Self::LastWords => "last lines of workers",
            Self::System => "lines about what the system refuses",
        }
    }
}

/// Most sources that are counted separately.
const MAX_LOG_SOURCES: usize = 1024;
/// When left-out lines are reported if no further line follows.
const SUMMARY_INTERVAL: Duration = Duration::from_secs(60);

/// A token bucket: the lines that may still be written.
#[derive(Debug)]
struct Bucket {
    /// Units left. A line costs [`UNITS_PER_LINE`], so that a fraction of a minute counts.
    available: u64,
    filled: Instant,
    /// Lines that were left out.
    left_out: u64,
}

/// Units that a line costs: a rate of one line a minute adds one unit a millisecond.
const UNITS_PER_LINE: u64 = 60_000;

impl Bucket {
    fn new(rate: Rate, now: Instant) -> Self {
        Self { available: u64::from(rate.burst) * UNITS_PER_LINE, filled: now, left_out: 0 }
    }

    fn fill(&mut self, rate: Rate, now: Instant) {
        let passed = now.saturating_duration_since(self.filled);
        let more = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX).saturating_mul(rate.per_minute.into());
        if more > 0 {
            self.filled = now;
        }
        self.available = self.available.saturating_add(more).min(u64::from(rate.burst) * UNITS_PER_LINE);
    }

    fn is_full(&self, rate: Rate) -> bool {
        self.available == u64::from(rate.burst) * UNITS_PER_LINE && self.left_out == 0
    }
}

/// Counts written and left-out lines, by source.
#[derive(Debug, Default)]
pub(crate) struct LineLimits {
    sources: HashMap<(LineKind, LineSource), Bucket>,
    by_kind: HashMap<LineKind, Bucket>,
    /// When unreported lines are due for a summary.
    summary_due: Option<Instant>,
}

impl LineLimits {
    /// Returns none if a line must be left out. Otherwise returns how many like it were left out before.
    pub(crate) fn admit(&mut self, kind: LineKind, source: LineSource, now: Instant) -> Option<u64> {
        let [of_source, of_all] = kind.rates();
        let of_kind = self.by_kind.entry(kind).or_insert_with(|| Bucket::new(of_all, now));
        of_kind.fill(of_all, now);
        let source = limited_source(&mut self.sources, kind, source, now);
        let bucket = self.sources.entry((kind, source)).or_insert_with(|| Bucket::new(of_source, now));
        bucket.fill(of_source, now);
        if of_kind.available < UNITS_PER_LINE || bucket.available < UNITS_PER_LINE {
            bucket.left_out += 1;
            self.summary_due.get_or_insert(now + SUMMARY_INTERVAL);
            return None;
        }
        of_kind.available -= UNITS_PER_LINE;
        bucket.available -= UNITS_PER_LINE;
        Some(std::mem::take(&mut bucket.left_out))
    }

    /// Forgets a source that is gone. Returns how many of its lines were left out.
    pub(crate) fn forget(&mut self, kind: LineKind, source: LineSource) -> u64 {
        self.sources.remove(&(kind, source)).map_or(0, |bucket| bucket.left_out)
    }

    /// Returns when [`LineLimits::summary_at`] may have something to report: another thread may leave lines out meanwhile.
    pub(crate) fn summary_due(&self) -> Instant {
        self.summary_due.unwrap_or_else(|| Instant::now() + SUMMARY_INTERVAL)
    }

    /// Returns [`LineLimits::summary`] once it is due, and nothing before.
    pub(crate) fn summary_at(&mut self, now: Instant) -> Vec<OmittedLines> {
        if self.summary_due.is_some_and(|due| due <= now) { self.summary() } else { Vec::new() }
    }

    /// Returns the unreported left-out lines, by kind, with the number of sources.
    pub(crate) fn summary(&mut self) -> Vec<OmittedLines> {
        self.summary_due = None;
        let kinds = [LineKind::Refused, LineKind::Session, LineKind::Worker, LineKind::LastWords, LineKind::System];
        let mut summaries = kinds.map(|kind| OmittedLines { kind, lines: 0, sources: 0 });
        for ((kind, _), bucket) in self.sources.iter_mut().filter(|(_, bucket)| bucket.left_out > 0) {
            let summary = summaries.iter_mut().find(|summary| summary.kind == *kind);
            if let Some(summary) = summary {
                summary.lines += std::mem::take(&mut bucket.left_out);
                summary.sources += 1;
            }
        }
        summaries.into_iter().filter(|summary| summary.lines > 0).collect()
    }
}

/// Returns the source itself, if it is known or there is room for it.
fn limited_source(
    sources: &mut HashMap<(LineKind, LineSource), Bucket>,
    kind: LineKind,
    source: LineSource,
    now: Instant,
) -> LineSource {
    if sources.len() >= MAX_LOG_SOURCES && !sources.contains_key(&(kind, source)) {
        // Sources that have been quiet for long need no entry.
        sources.retain(|(kind, _), bucket| {
            let rate = kind.rates()[0];
            bucket.fill(rate, now);
            !bucket.is_full(rate)
        });
    }
    let is_listed = sources.len() < MAX_LOG_SOURCES || sources.contains_key(&(kind, source));
    if is_listed { source } else { LineSource::Others }
}

/// The left-out lines of one kind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OmittedLines {
    kind: LineKind,
    lines: u64,
    sources: usize,
}

impl fmt::Display for OmittedLines {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sources = if self.sources == 1 { "source" } else { "sources" };
        write!(out, "{} {} were left out, of {} {sources}", self.lines, self.kind.plural(), self.sources)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn peer(last: u32) -> LineSource {
        LineSource::Peer(PeerOrigin::of(IpAddr::from((0x0a00_0000 + last).to_be_bytes())))
    }

    /// How many of `lines` lines are written.
    fn written(limits: &mut LineLimits, of: impl Fn(u32) -> LineSource, lines: u32, now: Instant) -> usize {
        (0..lines).filter(|at| limits.admit(LineKind::Refused, of(*at), now).is_some()).count()
    }

    #[test]
    fn a_source_has_its_lines_and_others_have_theirs() {
        let (mut limits, now) = (LineLimits::default(), Instant::now());
        assert_eq!(written(&mut limits, |_| peer(1), 1000, now), 20);
        assert_eq!(written(&mut limits, |_| peer(2), 1000, now), 20);
        let later = now + Duration::from_secs(10);
        assert_eq!(limits.admit(LineKind::Refused, peer(1), later), Some(980), "what was left out is told");
        assert_eq!(limits.admit(LineKind::Refused, peer(1), later), None);
        assert_eq!(written(&mut limits, |_| peer(1), 1000, now + Duration::from_hours(1)), 20);
    }

    #[test]
    fn many_sources_have_a_bound_together() {
        let (mut limits, now) = (LineLimits::default(), Instant::now());
        assert_eq!(written(&mut limits, peer, 100_000, now), 200);
        assert!(limits.sources.len() <= MAX_LOG_SOURCES + 1, "{}", limits.sources.len());
        assert_eq!(written(&mut limits, peer, 100_000, now + Duration::from_secs(60)), 60);
        assert_eq!(limits.admit(LineKind::System, LineSource::Server("accept"), now), Some(0), "another kind");
    }

    #[test]
    fn omitted_lines_are_summarised_in_one() {
        let (mut limits, now) = (LineLimits::default(), Instant::now());
        written(&mut limits, |_| peer(1), 30, now);
        written(&mut limits, |_| peer(2), 25, now);
        let due = limits.summary_due();
        assert_eq!((due, limits.summary_at(now)), (now + SUMMARY_INTERVAL, vec![]));
        let summary = limits.summary_at(due);
        assert_eq!(summary, [OmittedLines { kind: LineKind::Refused, lines: 15, sources: 2 }]);
        assert_eq!(summary[0].to_string(), "15 lines about refused connections were left out, of 2 sources");
        assert_eq!(limits.summary_at(due + SUMMARY_INTERVAL), []);
    }

    #[test]
    fn a_fraction_of_a_minute_counts_however_often_it_is_looked_at() {
        let (mut limits, now) = (LineLimits::default(), Instant::now());
        written(&mut limits, |_| peer(1), 1000, now);
        let step = Duration::from_micros(100);
        let admissions =
            (0..600_000_u32).filter(|at| limits.admit(LineKind::Refused, peer(1), now + step * *at).is_some());
        assert_eq!(admissions.count(), 5, "the sixth is due at the end of the minute");
    }
}
