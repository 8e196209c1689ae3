//! Measures the journal alone: the notes of some calls, as the dispatch makes them, without the rest of these calls. That
//! rest varies more from one run to the next than the journal takes.

use std::hint::black_box;
use std::time::Duration;

use katydid_wire::codec::Message;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{cuEventCreate, cuStreamCreate, kdLaunch};
use rustix::time::{ClockId, clock_gettime};

use super::entries::Journal;
use super::entry::{ObjectKind, only};

/// The program's only context.
const BENCH_CONTEXT: u32 = 1;
/// Rounds of one measurement, which take some milliseconds.
const BENCH_ROUNDS: u32 = 200_000;
/// The object that is made and ended.
const BENCH_OBJECT: u32 = 5;

/// Calls that are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BenchedCall {
    /// A launch of a module's function.
    Launch,
    /// An event that is made and ended.
    Event,
    /// A stream that is made and ended.
    Stream,
}

impl BenchedCall {
    /// Returns the processor time that the journal takes for these calls, in nanoseconds, without the time of the calling
    /// loop.
    pub fn nanoseconds(self) -> f64 {
        let (mut journal, head, message) = (Journal::default(), self.head(), self.message());
        // Its vectors are grown afterwards.
        self.note(&mut journal, &head, &message, true);
        let mut of_all = |is_noted| {
            let began = processor_time();
            for _ in 0..BENCH_ROUNDS {
                let (journal, head, message) = (black_box(&mut journal), black_box(&head), black_box(&message));
                self.note(journal, head, message, black_box(is_noted));
            }
            processor_time().saturating_sub(began)
        };
        let (noting_time, idle) = (of_all(true), of_all(false));
        noting_time.saturating_sub(idle).as_nanos() as f64 / f64::from(BENCH_ROUNDS)
    }

    fn head(self) -> FrameHead {
        let opcode = match self {
            Self::Launch => kdLaunch::OPCODE,
            Self::Event => cuEventCreate::OPCODE,
            Self::Stream => cuStreamCreate::OPCODE,
        };
        FrameHead { opcode, wants_reply: false, thread: 1, context: BENCH_CONTEXT, sequence: 0 }
    }

    /// Returns the bytes of the message that makes the object.
    fn message(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Launch => {}
            Self::Event => cuEventCreate { phEvent: BENCH_OBJECT, Flags: 2 }.encode(&mut bytes),
            Self::Stream => cuStreamCreate { phStream: BENCH_OBJECT, Flags: 1 }.encode(&mut bytes),
        }
        bytes
    }

    /// Notes the calls, or only runs the calling loop.
    fn note(self, journal: &mut Journal, head: &FrameHead, message: &[u8], is_noted: bool) {
        let mut pass = |kind| {
            let ids = black_box(only(BENCH_OBJECT.into()));
            if is_noted {
                black_box(journal.keep_compact(head, (kind, ids.start), BENCH_CONTEXT, message));
                journal.end_range(kind, ids);
            }
        };
        match self {
            Self::Launch if is_noted => journal.launched(black_box(0), BENCH_CONTEXT, 0),
            Self::Launch => drop(black_box(0)),
            Self::Event => pass(ObjectKind::Event),
            Self::Stream => pass(ObjectKind::Stream),
        }
    }
}

/// Returns the processor time of the calling thread.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journal_bench_leaves_no_entries() {
        for call in [BenchedCall::Event, BenchedCall::Stream] {
            let mut journal = Journal::default();
            call.note(&mut journal, &call.head(), &call.message(), true);
            assert!(ObjectKind::ALL.into_iter().all(|kind| journal.of(kind).next().is_none()), "{call:?}");
            assert!(call.nanoseconds() > 0.0, "{call:?}");
        }
    }
}
