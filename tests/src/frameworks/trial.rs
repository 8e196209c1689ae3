//! Runs an item on its ways: natively first, then on each other way for comparison.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::item_result::ItemResults;
use super::{ABSENT_STATUS, Item, ItemReport, Verdict};
use crate::deadline::Limit;
use crate::paths::Paths;
use crate::program::{self, Outcome};
use crate::way::Way;

/// If less time than this is left, no further run starts.
const MIN_ITEM_TIME: Duration = Duration::from_secs(3);
/// Most characters of the end of a program's output in a report.
const MAX_LAST_WORDS_CHARS: usize = 600;
/// Most differences in a report.
const MAX_SHOWN_DIFFERENCES: usize = 4;

/// Settings of all trials.
#[derive(Debug, Clone)]
pub struct Fixture {
    /// Folders of the build and of the tests.
    pub paths: Paths,
    /// The Python that has the frameworks.
    pub python: PathBuf,
    /// The way without Katydid.
    pub native: Way,
    /// Ways through Katydid to compare with the native one.
    pub ways: Vec<Way>,
    /// The driver's name for items.
    pub driver: String,
    /// Further variables of every run.
    pub variables: Vec<(String, String)>,
    /// When everything must have ended, on a machine that is available for a limited time. Seconds of an item are then a total
    /// limit, otherwise a limit without progress.
    pub deadline: Option<Instant>,
}

/// How a run ended, from the item's view.
enum RunEnding {
    Well(ItemResults),
    Absent(String),
    Badly(String),
    Late,
}

impl Fixture {
    /// Runs an item on every way, and reports each result as it arrives. Without a native result, no other way runs.
    pub fn run(&self, item: &Item, report: &dyn Fn(ItemReport)) {
        let result = |way: &Way, verdict, seconds, results: ItemResults| ItemReport {
            item: item.name.clone(),
            framework: item.framework.clone(),
            way: way.to_string(),
            verdict,
            seconds,
            times: results.times,
            versions: results.versions,
        };
        let (ending, seconds) = self.once(item, &self.native);
        let native = match ending {
            RunEnding::Well(results) if results.count() == 0 => {
                return report(result(
                    &self.native,
                    Verdict::Failed("it showed no result".to_owned()),
                    seconds,
                    results,
                ));
            }
            RunEnding::Well(results) => results,
            other => return report(result(&self.native, unlike(other), seconds, ItemResults::default())),
        };
        report(result(&self.native, Verdict::Passed, seconds, native.clone()));
        for way in &self.ways {
            let (ending, seconds) = self.once(item, way);
            match ending {
                RunEnding::Well(results) => {
                    let verdict = self.judge(item, &native, &results);
                    report(result(way, verdict, seconds, results));
                }
                other => report(result(way, unlike(other), seconds, ItemResults::default())),
            }
        }
    }

    /// Compares results. If they differ, a second native run shows whether native results are steady.
    fn judge(&self, item: &Item, native: &ItemResults, results: &ItemResults) -> Verdict {
        let differing = native.differences(results);
        if differing.is_empty() {
            return Verdict::Passed;
        }
        let differences: Vec<String> = differing
            .iter()
            .take(MAX_SHOWN_DIFFERENCES)
            .map(|name| format!("{name}: {} natively, {} here", native.text(name), results.text(name)))
            .collect();
        let rest = differing.len().saturating_sub(MAX_SHOWN_DIFFERENCES);
        let more = if rest > 0 { format!("; {rest} more") } else { String::new() };
        let reason = format!("{}{more}", differences.join("; "));
        match self.once(item, &self.native).0 {
            RunEnding::Well(again) => {
                let unsteady = native.differences(&again);
                match differing.iter().all(|name| unsteady.contains(name)) {
                    true => Verdict::Unsteady(reason),
                    false => Verdict::Differing(reason),
                }
            }
            _ => Verdict::Differing(reason),
        }
    }

    /// Runs the item once; also returns the seconds.
    fn once(&self, item: &Item, way: &Way) -> (RunEnding, f64) {
        let time_left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if time_left.is_some_and(|time_left| time_left < MIN_ITEM_TIME) {
            return (RunEnding::Late, 0.0);
        }
        let mut command = way.command(&self.paths, &self.python);
        command.args(item.arguments(&self.paths)).envs(Item::variables(&self.driver));
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let (own, start) = (Duration::from_secs(item.seconds), Instant::now());
        let limit = time_left.map_or(Limit::Standstill(own), |time_left| Limit::Budget(own.min(time_left)));
        match program::run(&mut command, limit) {
            Ok(outcome) => {
                let seconds = outcome.took.as_secs_f64();
                (ending(&outcome), seconds)
            }
            // The total deadline ended it, not its own limit.
            Err(_) if time_left.is_some_and(|time_left| time_left < own) => {
                (RunEnding::Late, start.elapsed().as_secs_f64())
            }
            Err(error) => (RunEnding::Badly(last_words(&error.to_string())), start.elapsed().as_secs_f64()),
        }
    }
}

fn ending(outcome: &Outcome) -> RunEnding {
    match outcome.status.code() {
        Some(0) => RunEnding::Well(ItemResults::of(&outcome.text())),
        Some(ABSENT_STATUS) => RunEnding::Absent(outcome.errors().lines().last().unwrap_or_default().to_owned()),
        _ => RunEnding::Badly(last_words(&format!("{}\n{}", outcome.errors(), outcome.ending()))),
    }
}

/// Returns the verdict on a run without results.
fn unlike(ending: RunEnding) -> Verdict {
    match ending {
        RunEnding::Well(_) => Verdict::Passed,
        RunEnding::Absent(reason) => Verdict::Absent(reason),
        RunEnding::Badly(reason) => Verdict::Failed(reason),
        RunEnding::Late => Verdict::Late,
    }
}

/// Returns the end of a text, which usually shows the error.
fn last_words(text: &str) -> String {
    let text = text.trim_end();
    let from = text.char_indices().rev().nth(MAX_LAST_WORDS_CHARS - 1).map_or(0, |(offset, _)| offset);
    text[from..].to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Mutex;

    use tempfile::TempDir;

    use super::*;
    use crate::script;

    /// Items are shell scripts here. Ways are folders in the loader's path, by which the scripts distinguish them.
    fn results(item: &str, seconds: u64, time_left: Option<Duration>) -> Vec<(String, Verdict)> {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("item"), item).unwrap();
        // The runner calls `python -B SCRIPT ARGUMENT`; the wrapper drops the `-B`.
        let shell = folder.path().join("python");
        script::write(&shell, "#!/bin/sh\nshift\nexec sh \"$@\"\n").unwrap();
        let paths = Paths { frameworks: folder.path().to_owned(), ..Paths::of_pack(folder.path()) };
        let way = |name: &'static str| Way::Direct { name, folder: Some(format!("/{name}").into()) };
        let fixture = Fixture {
            paths,
            python: shell,
            native: way("native"),
            ways: vec![way("other")],
            driver: "soft".to_owned(),
            variables: vec![("FOLDER".to_owned(), folder.path().display().to_string())],
            deadline: time_left.map(|time_left| Instant::now() + time_left),
        };
        let item = Item {
            name: "a.b".to_owned(),
            framework: "A".to_owned(),
            script: "item".to_owned(),
            argument: "b".to_owned(),
            seconds,
            is_soft: true,
        };
        let verdicts = Mutex::new(Vec::new());
        fixture.run(&item, &|result| verdicts.lock().unwrap().push((result.way, result.verdict)));
        verdicts.into_inner().unwrap()
    }

    fn long(script: &str) -> Vec<(String, Verdict)> {
        results(script, 60, None)
    }

    /// True on the way that is not native.
    const OTHER: &str = "case $LD_LIBRARY_PATH in /other*)";

    #[test]
    fn equal_words_pass() {
        let verdicts = long("echo same driver $ITEM_DRIVER; echo time a 0.5");
        assert_eq!(verdicts, [("native".to_owned(), Verdict::Passed), ("other".to_owned(), Verdict::Passed)]);
    }

    #[test]
    fn other_words_differ() {
        let verdicts = long(&format!("{OTHER} echo same a 2;; *) echo same a 1;; esac"));
        assert_eq!(verdicts[1].1, Verdict::Differing("a: 1 natively, 2 here".to_owned()));
    }

    #[test]
    fn native_differences_are_unsteady() {
        let verdicts = long("echo x >> $FOLDER/runs; echo same runs $(wc -l < $FOLDER/runs)");
        assert_eq!(verdicts[1].1.word(), "unsteady");
    }

    #[test]
    fn failure_is_reported_with_its_last_words() {
        let verdicts = long(&format!("{OTHER} echo broken >&2; exit 3;; *) echo same a 1;; esac"));
        assert_eq!(verdicts[1].1, Verdict::Failed("broken\n\nexit status 3".to_owned()));
    }

    #[test]
    fn natively_absent_items_are_not_tried_elsewhere() {
        let verdicts = long("echo no such framework >&2; exit 77");
        assert_eq!(verdicts, [("native".to_owned(), Verdict::Absent("no such framework".to_owned()))]);
    }

    #[test]
    fn an_item_that_shows_nothing_has_failed() {
        assert_eq!(long("echo all is well")[0].1.word(), "failed");
    }

    #[test]
    fn a_hang_costs_its_own_limit_and_nothing_else() {
        let verdicts = results(&format!("echo same a 1; {OTHER} sleep 600;; esac"), 5, None);
        assert_eq!(verdicts[0].1, Verdict::Passed);
        assert_eq!(verdicts[1].1.word(), "failed");
    }

    #[test]
    fn nothing_begins_when_the_time_is_up() {
        assert_eq!(results("echo same a 1", 60, Some(Duration::ZERO)), [("native".to_owned(), Verdict::Late)]);
    }
}
