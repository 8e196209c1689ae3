//! Measures how long each stage of a checkpoint took, from the reported progress. A stage lasts until another one begins. A
//! stage that runs beside the others is timed by its own thread.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::supervisor::view::StageProgress;
use crate::sync::lock;

/// The stages of one checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Stages(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    current: Option<(String, Instant)>,
    finished: BTreeMap<String, Duration>,
}

impl Stages {
    /// Records reported progress. More of the same stage starts no new one; a stage that comes again adds to its time.
    pub(crate) fn enter(&self, stage: &StageProgress) {
        let name = stage.name();
        let mut inner = lock(&self.0);
        if inner.current.as_ref().is_none_or(|(now, _)| *now != name) {
            inner.close();
            inner.current = Some((name, Instant::now()));
        }
    }

    /// Times work that runs beside the reported stages. This time replaces the time until the next stage began.
    pub(crate) fn beside<T>(&self, stage: &StageProgress, work: impl FnOnce() -> T) -> T {
        let since = Instant::now();
        let done = work();
        lock(&self.0).finished.insert(stage.name(), since.elapsed());
        done
    }

    /// Ends the current stage; the time after it belongs to no stage.
    pub(crate) fn close(&self) {
        lock(&self.0).close();
    }

    /// Ends the last stage. Returns microseconds by name.
    pub(crate) fn end(&self) -> BTreeMap<String, u64> {
        let mut inner = lock(&self.0);
        inner.close();
        let micros = |time: &Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        inner.finished.iter().map(|(name, time)| (name.clone(), micros(time))).collect()
    }
}

impl Inner {
    fn close(&mut self) {
        if let Some((name, since)) = self.current.take() {
            *self.finished.entry(name).or_default() += since.elapsed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_lasts_until_another_begins() {
        let stages = Stages::default();
        let write = |done| StageProgress::Write { done, total: 2, written: 0 };
        for stage in [StageProgress::Hold, StageProgress::Pause, write(1), write(2), StageProgress::Hold] {
            stages.enter(&stage);
        }
        let over = stages.end();
        assert_eq!(over.keys().collect::<Vec<_>>(), ["hold", "pause", "write"]);
        assert_eq!(stages.end(), over);
    }

    #[test]
    fn parallel_stages_are_timed_separately() {
        let stages = Stages::default();
        stages.enter(&StageProgress::Capture);
        stages.enter(&StageProgress::Dump { done: 0, total: 0 });
        stages.beside(&StageProgress::Capture, || std::thread::sleep(Duration::from_millis(3)));
        stages.close();
        let over = stages.end();
        assert_eq!(over.keys().collect::<Vec<_>>(), ["capture", "dump"]);
        assert!(over["capture"] >= 3000);
    }
}
