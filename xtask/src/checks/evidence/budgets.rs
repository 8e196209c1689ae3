//! The promises of SPECIFICATION about speed, compared with a run.
//!
//! A row of `budgets.json` has `work` and `budget` for people. Where a run measures it, `of` says which figure of which report that is, and
//! `limit` what it may be; the check computes the rest. A row without `of` says all of it itself. Where that was measured in another run,
//! `taken` says when, and the row is in a table of its own.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

use crate::tables::markdown::{Column, markdown, significant, with_unit};

/// Name of the file with the promises.
pub(super) const BUDGETS_FILE: &str = "budgets";
/// The table of promises that the newest run was held against, and that of those taken in other runs.
const NEWEST_TABLE: &str = "budgets";
const EARLIER_TABLE: &str = "earlier";
/// Program that holds memory, in the report of `bench checkpoint`.
const HOLDER_PROGRAM: &str = "checkpoint-32g-native";

/// Katydid's figure and the native one, in nanoseconds; a share of a rate has no unit and no native figure.
struct Pair {
    native: Option<f64>,
    katydid: f64,
    unit: &'static str,
}

impl Pair {
    /// Returns the figure as in the table: a time, or a share in percent.
    fn show(&self) -> String {
        if self.unit.is_empty() { format!("{:.0} %", self.katydid * 100.0) } else { with_unit(self.katydid, self.unit) }
    }

    /// Returns Katydid's time divided by the native one.
    fn ratio(&self) -> Option<f64> {
        Some(self.katydid / self.native?)
    }
}

/// A table of promises, by the reports of the run `run`.
pub(super) fn table(files: &BTreeMap<String, Value>, id: &str, run: &str) -> Result<String> {
    let date_column = Column::left_aligned("taken", "taken");
    let (is_earlier, last_column) = match id {
        NEWEST_TABLE => (false, None),
        EARLIER_TABLE => (true, Some(date_column)),
        other => bail!("{BUDGETS_FILE}.json has no table {other}"),
    };
    let file = files.get(BUDGETS_FILE).with_context(|| format!("there is no {BUDGETS_FILE}.json"))?;
    let rows = file.get("rows").and_then(Value::as_array).context("the budgets have no rows")?;
    let rows = rows.iter().filter(|row| row.get("taken").is_some() == is_earlier);
    let rows = rows.map(|row| filled(row, files, run)).collect::<Result<Vec<_>>>()?;
    let columns = [
        Column::left_aligned("work", "work"),
        Column::left_aligned("budget", "budget"),
        Column::right("native", "native"),
        Column::left_aligned("katydid", "Katydid"),
        Column::left_aligned("ratio", "ratio"),
        Column::left_aligned("met", "met"),
        Column::left_aligned("note", "note"),
    ];
    Ok(markdown(&columns.into_iter().chain(last_column).collect::<Vec<_>>(), &rows))
}

/// Returns a row with the figures of the run.
fn filled(row: &Value, files: &BTreeMap<String, Value>, run: &str) -> Result<Value> {
    let Some(of) = row.get("of") else { return Ok(row.clone()) };
    let work = row.get("work").and_then(Value::as_str).unwrap_or_default();
    let limit = row.get("limit").and_then(Value::as_object).filter(|limit| !limit.is_empty());
    let limit = limit.with_context(|| format!("the budget of {work} has no limit"))?;
    let pairs = pairs(of, files, run).with_context(|| format!("the budget of {work}"))?;
    let mut full = row.as_object().cloned().unwrap_or_default();
    if pairs.is_empty() {
        full.insert("katydid".to_owned(), "not measured".into());
        return Ok(Value::Object(full));
    }
    show(&mut full, &pairs);
    let is_met = pairs.iter().map(|pair| is_within(pair, limit)).collect::<Result<Vec<bool>>>()?;
    full.insert("met".to_owned(), is_met.into_iter().all(|met| met).into());
    Ok(Value::Object(full))
}

/// Puts the figures into a row, separated by semicolons.
fn show(row: &mut Map<String, Value>, pairs: &[Pair]) {
    let joined = |texts: Vec<String>| Value::from(texts.join("; "));
    row.insert("katydid".to_owned(), joined(pairs.iter().map(Pair::show).collect()));
    let natives: Vec<String> = pairs.iter().filter_map(|pair| Some(with_unit(pair.native?, pair.unit))).collect();
    row.insert("native".to_owned(), joined(natives));
    row.insert("ratio".to_owned(), joined(pairs.iter().filter_map(Pair::ratio).map(significant).collect()));
}

/// Returns whether a figure is within every part of its limit. `ratio` and `ns` are maxima, `added_ns` is a maximum above native,
/// and `share` is a minimum.
fn is_within(pair: &Pair, limit: &Map<String, Value>) -> Result<bool> {
    let mut is_met = true;
    for (kind, value) in limit {
        let value = value.as_f64().context("a limit is not a number")?;
        is_met &= match kind.as_str() {
            "ratio" => pair.ratio().is_some_and(|ratio| ratio <= value),
            "ns" => pair.katydid <= value,
            "added_ns" => pair.native.is_some_and(|native| pair.katydid - native <= value),
            "share" => pair.katydid >= value,
            other => bail!("there is no kind of limit {other}"),
        };
    }
    Ok(is_met)
}

/// Returns the figures that `of` names; none if the run could not measure one of them.
fn pairs(of: &Value, files: &BTreeMap<String, Value>, run: &str) -> Result<Vec<Pair>> {
    let keys = of.as_object().context("`of` is not an object")?;
    let mut reports = keys.iter().filter(|(key, _)| *key != "way" && *key != "against");
    let (report, names) = reports.next().context("it names no figure")?;
    let names: Vec<&str> = match names {
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        name => name.as_str().into_iter().collect(),
    };
    if names.is_empty() {
        bail!("it names no figure");
    }
    let way = of.get("way").and_then(Value::as_str).unwrap_or("shm");
    let against = of.get("against").and_then(Value::as_str);
    let file = |name: &str| files.get(&format!("{run}/{name}")).with_context(|| format!("the run {run} has no {name}"));
    let find = |name: &&str| match report.as_str() {
        "calls" => call(file("calls")?, name, way, against),
        "share" => share(file("calls")?, name),
        "training" => training(file("training")?, name, way),
        "checkpoint" => checkpoint(file(HOLDER_PROGRAM)?, name),
        other => bail!("no report of a run is called {other}"),
    };
    let found = names.iter().map(find).collect::<Result<Vec<Option<Pair>>>>()?;
    Ok(found.into_iter().collect::<Option<Vec<Pair>>>().unwrap_or_default())
}

/// Returns the ways of a figure of `katydid bench --json`.
fn ways<'a>(report: &'a Value, key: &str) -> Result<&'a Value> {
    let figures = report.get("figures").and_then(Value::as_array).context("the report has no figures")?;
    let figure = figures.iter().find(|figure| figure.get("key").and_then(Value::as_str) == Some(key));
    figure.and_then(|figure| figure.get("ways")).with_context(|| format!("the report has no figure {key}"))
}

/// Returns a figure of `katydid bench --json`; `against` names another figure of the same way that serves as the native one.
fn call(report: &Value, key: &str, way: &str, against: Option<&str>) -> Result<Option<Pair>> {
    let median = |key: &str, way: &str| -> Result<Option<f64>> {
        let timing = ways(report, key)?.get(way).with_context(|| format!("the figure {key} has no way {way}"))?;
        Ok(timing.get("median_ns").and_then(Value::as_f64))
    };
    let native = against.map_or_else(|| median(key, "native"), |other| median(other, way))?;
    Ok(median(key, way)?.map(|katydid| Pair { native, katydid, unit: "ns" }))
}

/// Returns the rate of a copy over TCP as a share of the best plain copy.
fn share(report: &Value, key: &str) -> Result<Option<Pair>> {
    ways(report, key)?;
    let shares = report.get("of_path").context("the report has no of_path")?;
    Ok(shares.get(key).and_then(Value::as_f64).map(|katydid| Pair { native: None, katydid, unit: "" }))
}

/// Returns the time of a step of an item of the frameworks.
fn training(lines: &Value, item: &str, way: &str) -> Result<Option<Pair>> {
    let lines = lines.as_array().context("the trainings are not a list")?;
    let is = |line: &Value, key: &str, value: &str| line.get(key).and_then(Value::as_str) == Some(value);
    if !lines.iter().any(|line| is(line, "item", item)) {
        bail!("the trainings have no item {item}");
    }
    let nanoseconds = |way: &str| {
        let line = lines.iter().find(|line| is(line, "item", item) && is(line, "way", way))?;
        Some(line.get("times")?.get("step")?.as_f64()? * 1e9)
    };
    Ok(nanoseconds(way).map(|katydid| Pair { native: nanoseconds("native"), katydid, unit: "ns" }))
}

/// Returns a time of the only row of `bench checkpoint`, such as `first.stopped_us`.
fn checkpoint(report: &Value, path: &str) -> Result<Option<Pair>> {
    let mut value = report.get("rows").and_then(|rows| rows.get(0)).context("no size was measured")?;
    for key in path.split('.') {
        if value.get("reason").is_some() {
            return Ok(None);
        }
        value = value.get(key).with_context(|| format!("the report has no {path}"))?;
    }
    Ok(value.as_f64().map(|micros| Pair { native: None, katydid: micros * 1e3, unit: "ns" }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn files(rows: Value) -> BTreeMap<String, Value> {
        let ways = json!({"native": {"median_ns": 1000.0}, "shm": {"median_ns": 1200.0}, "tcp": null});
        let calls = json!({"figures": [{"key": "launch", "ways": ways}, {"key": "copy", "ways": {}}], "of_path": {"copy": 0.95}});
        let training = json!([{"gpu": "H200"}, {"item": "a", "way": "native", "times": {"step": 0.01}},
            {"item": "a", "way": "shm", "times": {"step": 0.008}}]);
        let held = json!({"rows": [{"first": {"stopped_us": 24_000}}]});
        let named = [("run/calls", calls), ("run/training", training), ("run/checkpoint-32g-native", held)];
        let mut files: BTreeMap<String, Value> = named.map(|(name, value)| (name.to_owned(), value)).into();
        files.insert(BUDGETS_FILE.to_owned(), json!({ "rows": rows }));
        files
    }

    #[test]
    fn verdicts_are_computed_from_the_run() {
        let rows = json!([
            {"work": "a", "budget": "x", "of": {"calls": "launch"}, "limit": {"ratio": 1.1}},
            {"work": "b", "budget": "x", "of": {"calls": "launch"}, "limit": {"added_ns": 300, "ns": 1200}},
            {"work": "c", "budget": "x", "of": {"training": "a"}, "limit": {"ratio": 0.9}},
            {"work": "d", "budget": "x", "of": {"checkpoint": "first.stopped_us"}, "limit": {"ns": 50_000_000}},
            {"work": "e", "budget": "x", "of": {"share": "copy"}, "limit": {"share": 0.98}},
            {"work": "f", "budget": "x", "of": {"calls": "launch", "way": "tcp"}, "limit": {"ratio": 2}},
            {"work": "g", "budget": "x", "katydid": "7", "taken": "2026-01-01"},
        ]);
        let files = files(rows);
        let newest = table(&files, NEWEST_TABLE, "run").unwrap();
        let lines: Vec<&str> = newest.lines().skip(2).collect();
        assert_eq!(lines[0], "| a | x | 1.00 µs | 1.20 µs | 1.20 | **missed** |");
        assert_eq!(lines[1], "| b | x | 1.00 µs | 1.20 µs | 1.20 | met |");
        assert_eq!(lines[2], "| c | x | 10.00 ms | 8.00 ms | 0.800 | met |");
        assert_eq!(lines[3], "| d | x |  | 24.00 ms |  | met |");
        assert_eq!(lines[4], "| e | x |  | 95 % |  | **missed** |");
        assert_eq!(lines[5], "| f | x |  | not measured |  |  |");
        assert_eq!(lines.len(), 6);
        let earlier = table(&files, EARLIER_TABLE, "run").unwrap();
        assert_eq!(earlier.lines().skip(2).collect::<Vec<_>>(), ["| g | x | 7 | 2026-01-01 |"]);
        assert!(table(&files, "later", "run").is_err());
    }

    #[test]
    fn a_budget_that_names_nothing_is_a_fault() {
        let limit = json!({"ratio": 1});
        for of in [
            json!({}),
            json!({"none": "x"}),
            json!({"calls": []}),
            json!({"calls": "lunch"}),
            json!({"calls": "launch", "way": "shn"}),
            json!({"share": "lunch"}),
            json!({"training": "b"}),
            json!({"checkpoint": "first.stopped"}),
        ] {
            assert!(table(&files(json!([{"of": of, "limit": limit}])), NEWEST_TABLE, "run").is_err(), "{of}");
        }
        for limit in [json!({}), json!({"none": 1}), Value::Null] {
            assert!(
                table(&files(json!([{"of": {"calls": "launch"}, "limit": limit}])), NEWEST_TABLE, "run").is_err(),
                "{limit}"
            );
        }
    }
}
