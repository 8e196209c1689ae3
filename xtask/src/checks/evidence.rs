//! Tables of measured figures: pages under docs show them, and `docs/evidence` holds their data.
//!
//! A page has `<!-- evidence FILE TABLE -->`, the table, and `<!-- end of evidence -->`. The table between the marks is generated
//! from the data: the check compares it, and `cargo xtask pages --write` rewrites it. A file is one of these:
//!
//! - a summary of runs, `docs/evidence/DATE-NAME.json`, with `tables`, each with `columns` and `rows`. `DATE` is the last day of the
//!   runs, so a summary that grows gets another name; pages name it without the date;
//! - a report of a run, `docs/evidence/DATE-MACHINE/NAME.json` (or `.jsonl`), as the tool wrote it ([`crate::tables::reports`]);
//! - `docs/evidence/budgets.json`, the promises that a run is held against ([`budgets`]).
//!
//! `newest/NAME` stands for the report of the newest run.

mod budgets;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::output::line;
use crate::tables::markdown::{columns, markdown};
use crate::tables::reports;

/// Folder of the data.
pub(crate) const EVIDENCE_FOLDER: &str = "docs/evidence";
const BEGIN_MARK: &str = "<!-- evidence ";
const END_MARK: &str = "<!-- end of evidence -->";
/// Name that stands for the folder of the newest run.
const NEWEST_RUN: &str = "newest";
/// Keys that every summary has.
const REQUIRED_KEYS: [&str; 3] = ["title", "date", "tables"];

/// All files of the folder, by their names without `.json`; names of summaries also lack the date.
pub(crate) struct Evidence(BTreeMap<String, Value>);

impl Evidence {
    /// Reads and checks all files.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let mut read = BTreeMap::new();
        collect(&root.join(EVIDENCE_FOLDER), "", &mut read)?;
        let mut files = BTreeMap::new();
        for (name, value) in read {
            let is_summary = !name.contains('/') && name != budgets::BUDGETS_FILE;
            let key = match is_summary {
                true => summary_name(&name, &value)
                    .with_context(|| format!("{EVIDENCE_FOLDER}/{name}.json is not evidence"))?,
                false => name.clone(),
            };
            if files.insert(key, value).is_some() {
                bail!("{EVIDENCE_FOLDER}/{name}.json is there a second time, with another date: remove the older file");
            }
        }
        Ok(Self(files))
    }

    /// Returns a page with every table generated anew.
    pub(crate) fn fill(&self, text: &str) -> Result<String> {
        let mut page = String::new();
        let mut remaining = text;
        while let Some((before, after)) = remaining.split_once(BEGIN_MARK) {
            let (name, after) = after.split_once(" -->").context("a mark of evidence does not end")?;
            let (_, after) = after.split_once(END_MARK).with_context(|| format!("the evidence {name} has no end"))?;
            let (file, table) = name.split_once(' ').with_context(|| format!("the evidence {name} names no table"))?;
            let table = self.table(file, table)?;
            page += &format!("{before}{BEGIN_MARK}{name} -->\n\n{table}\n{END_MARK}");
            remaining = after;
        }
        Ok(page + remaining)
    }

    /// Returns a table of a file in Markdown.
    fn table(&self, file: &str, id: &str) -> Result<String> {
        let newest = || self.newest().context("there is no run");
        if file == budgets::BUDGETS_FILE {
            return budgets::table(&self.0, id, newest()?);
        }
        let name = match file.split_once('/') {
            Some((NEWEST_RUN, report)) => format!("{}/{report}", newest()?),
            _ => file.to_owned(),
        };
        let value = self.0.get(&name).with_context(|| format!("there is no {EVIDENCE_FOLDER}/{name}.json"))?;
        if name.contains('/') {
            return reports::table(value, id).with_context(|| name.clone());
        }
        let tables = value.get("tables").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let table = tables.iter().find(|table| table.get("id").and_then(Value::as_str) == Some(id));
        let table = table.with_context(|| format!("{EVIDENCE_FOLDER}/{name}.json has no table {id}"))?;
        let rows = table.get("rows").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        Ok(markdown(&columns(table)?, rows))
    }

    /// Returns the folder of the newest run, since folders begin with a date.
    fn newest(&self) -> Option<&str> {
        self.0.keys().filter_map(|name| Some(name.split_once('/')?.0)).max()
    }
}

/// Reads the files of a folder and its subfolders; a file `NAME.jsonl` is a list of its lines.
fn collect(folder: &Path, prefix: &str, files: &mut BTreeMap<String, Value>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let Some(name) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
        if path.is_dir() {
            collect(&path, &format!("{name}/"), files)?;
            continue;
        }
        let read = || fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()));
        let value = match path.extension().and_then(|extension| extension.to_str()) {
            Some("json") => serde_json::from_str(&read()?),
            Some("jsonl") => read()?.lines().map(serde_json::from_str).collect::<Result<_, _>>().map(Value::Array),
            _ => continue,
        };
        let value = value.with_context(|| format!("{} is not JSON", path.display()))?;
        files.insert(format!("{prefix}{name}"), value);
    }
    Ok(())
}

/// Rewrites the tables of all pages under `docs`.
pub(crate) fn write(root: &Path, pages: &[(impl AsRef<Path>, &str)]) -> Result<()> {
    let evidence = Evidence::read(root)?;
    for (path, text) in pages {
        let path = root.join(path);
        let filled = evidence.fill(text).with_context(|| path.display().to_string())?;
        if filled != *text {
            line(&format!("    {}", path.display()));
            fs::write(&path, filled).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(())
}

/// Returns the name of a summary without its date. Fails if the date is not the last one of its runs, or a key is missing.
fn summary_name(name: &str, value: &Value) -> Result<String> {
    check(value)?;
    let dates = value.get("date").and_then(Value::as_str).unwrap_or_default();
    let last = dates.rsplit(' ').next().unwrap_or_default();
    let bare = name.strip_prefix(last).and_then(|rest| rest.strip_prefix('-'));
    bare.map(str::to_owned).with_context(|| format!("its name does not begin with the last day of its runs, {last}"))
}

/// Fails if a summary lacks a required key.
fn check(value: &Value) -> Result<()> {
    if let Some(key) = REQUIRED_KEYS.iter().find(|key| value.get(**key).is_none()) {
        bail!("it has no key {key}");
    }
    for table in value.get("tables").and_then(Value::as_array).context("tables is not a list")? {
        columns(table)?;
        table.get("rows").and_then(Value::as_array).context("a table has no rows")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(json: &str) -> Evidence {
        Evidence([("run".to_owned(), serde_json::from_str(json).unwrap())].into())
    }

    #[test]
    fn a_table_is_what_the_data_give() {
        let run = r#"{"title":"","date":"","tables":[{"id":"t",
            "columns":[["work","work","left"],["katydid.shm","shm","right"],["ratio.shm","ratio","right"],["met","met","left"],["note","note","left"]],
            "rows":[{"work":"launch","katydid":{"shm":151},"ratio":{"shm":0.0405},"unit":"ns","met":true},
                    {"work":"trip","katydid":{"shm":1030},"ratio":{"shm":3.41},"unit":"ns","met":false}]}]}"#;
        let page = "A\n<!-- evidence run t -->\nold\n<!-- end of evidence -->\nB\n";
        let table = "| work | shm | ratio | met |\n|---|---:|---:|---|\n| launch | 151 ns | 0.0405 | met |\n| trip | 1.03 µs | 3.41 | **missed** |\n";
        let filled = evidence(run).fill(page).unwrap();
        assert_eq!(filled, format!("A\n<!-- evidence run t -->\n\n{table}\n<!-- end of evidence -->\nB\n"));
        assert_eq!(evidence(run).fill(&filled).unwrap(), filled);
    }

    #[test]
    fn the_newest_run_is_the_one_with_the_latest_date() {
        let machine =
            |date: &str| serde_json::json!({"gpu": "A", "driver": "1", "kernel": "6", "processors": "2", "date": date});
        let runs = ["2026-11-25-h200", "2026-11-29-h200"].map(|run| (format!("{run}/machine"), machine(run)));
        let table = Evidence(runs.into()).table("newest/machine", "machine").unwrap();
        assert!(table.contains("2026-11-29"), "{table}");
        assert!(evidence("{}").table("newest/machine", "machine").is_err());
    }

    #[test]
    fn a_summary_is_named_after_the_last_day_of_its_runs() {
        let summary = serde_json::json!({"title": "", "date": "2026-11-22 to 2026-11-25", "tables": []});
        assert_eq!(summary_name("2026-11-25-links", &summary).unwrap(), "links");
        for other in ["links", "2026-11-22-links", "2026-11-25"] {
            assert!(summary_name(other, &summary).unwrap_err().to_string().ends_with("2026-11-25"), "{other}");
        }
    }

    #[test]
    fn missing_evidence_is_named() {
        let page = "<!-- evidence run none -->\n<!-- end of evidence -->";
        let run = evidence(r#"{"title":"","date":"","tables":[]}"#);
        assert!(run.fill(page).unwrap_err().to_string().contains("has no table none"));
        assert!(check(&serde_json::from_str(r#"{"title":""}"#).unwrap()).is_err());
    }
}
