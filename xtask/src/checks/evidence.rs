//! Tables of measured figures: pages under docs show them, and `docs/evidence/*.json` holds what they are made of.
//!
//! A page has `<!-- evidence FILE TABLE -->`, the table, and `<!-- end of evidence -->`. The table between the marks is
//! what the data give: the check compares, `cargo xtask pages --write` rewrites. A file is a run (`tables`, each with
//! `columns` and `rows`), or what `katydid bench --json` wrote (`figures`, its one table is `figures`).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::output::line;

/// Where the data lie.
const FOLDER: &str = "docs/evidence";
const BEGIN: &str = "<!-- evidence ";
const END: &str = "<!-- end of evidence -->";
/// Keys that every run has.
const REQUIRED: [&str; 3] = ["title", "date", "tables"];
/// Ways of `katydid bench --json`, in the order of the table.
const WAYS: [&str; 7] = ["native", "shm", "unix", "tcp", "tls", "vsock", "mps"];

/// All files of the folder, by the name without `.json`.
pub(crate) struct Evidence(BTreeMap<String, Value>);

/// A column of a table.
struct Column {
    /// Path of keys inside a row, with dots between.
    key: String,
    title: String,
    is_left: bool,
}

impl Evidence {
    /// Reads and checks all files.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let folder = root.join(FOLDER);
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let path = entry?.path();
            let Some(name) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let value = serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))?;
            check(&value).with_context(|| format!("{} is no evidence", path.display()))?;
            files.insert(name.to_owned(), value);
        }
        Ok(Self(files))
    }

    /// A page with every table made anew.
    pub(crate) fn fill(&self, text: &str) -> Result<String> {
        let mut page = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once(BEGIN) {
            let (name, after) = after.split_once(" -->").context("a mark of evidence does not end")?;
            let (_, after) = after.split_once(END).with_context(|| format!("the evidence {name} has no end"))?;
            let (file, table) = name.split_once(' ').with_context(|| format!("the evidence {name} names no table"))?;
            let table = self.table(file, table)?;
            page += &format!("{before}{BEGIN}{name} -->\n\n{table}\n{END}");
            rest = after;
        }
        Ok(page + rest)
    }

    /// A table of a file in Markdown.
    fn table(&self, file: &str, id: &str) -> Result<String> {
        let value = self.0.get(file).with_context(|| format!("there is no {FOLDER}/{file}.json"))?;
        if value.get("figures").is_some() && id == "figures" {
            return Ok(of_bench(value));
        }
        let tables = value.get("tables").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let table = tables.iter().find(|table| table.get("id").and_then(Value::as_str) == Some(id));
        let table = table.with_context(|| format!("{FOLDER}/{file}.json has no table {id}"))?;
        let rows = table.get("rows").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let rows = rows.iter().map(|row| resolved(row, tables)).collect::<Result<Vec<_>>>()?;
        Ok(markdown(&columns(table)?, &rows))
    }
}

/// A row whose figures stand in another one of its file: `from` names that one's work, `way` which of its ways is meant (`shm`).
fn resolved(row: &Value, tables: &[Value]) -> Result<Value> {
    let Some(from) = row.get("from").and_then(Value::as_str) else { return Ok(row.clone()) };
    let way = row.get("way").and_then(Value::as_str).unwrap_or("shm");
    let rows = tables.iter().filter_map(|table| table.get("rows")?.as_array()).flatten();
    let is_source = |row: &&Value| row.get("work").and_then(Value::as_str) == Some(from) && row.get("from").is_none();
    let source = rows.into_iter().find(is_source).with_context(|| format!("no row has the work {from}"))?;
    let mut merged = source.as_object().cloned().unwrap_or_default();
    for key in ["katydid", "ratio"] {
        let value = source.get(key).and_then(|ways| ways.get(way)).cloned().unwrap_or_default();
        merged.insert(key.to_owned(), value);
    }
    merged.extend(row.as_object().cloned().unwrap_or_default());
    Ok(Value::Object(merged))
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

/// Whether a file can be read as a run, or as the bench's own output.
fn check(value: &Value) -> Result<()> {
    if value.get("figures").is_some_and(Value::is_array) {
        return Ok(());
    }
    if let Some(key) = REQUIRED.iter().find(|key| value.get(**key).is_none()) {
        bail!("it has no key {key}");
    }
    for table in value.get("tables").and_then(Value::as_array).context("tables is no list")? {
        columns(table)?;
        table.get("rows").and_then(Value::as_array).context("a table has no rows")?;
    }
    Ok(())
}

/// The columns of a table: `[KEY, TITLE, "left" or "right"]` each.
fn columns(table: &Value) -> Result<Vec<Column>> {
    let columns = table.get("columns").and_then(Value::as_array).context("a table has no columns")?;
    let text = |column: &Value, index: usize| column.get(index).and_then(Value::as_str).map(str::to_owned);
    let column = |column: &Value| {
        let (key, title) = (text(column, 0)?, text(column, 1)?);
        Some(Column { key, title, is_left: text(column, 2)? == "left" })
    };
    columns.iter().map(column).collect::<Option<_>>().context("a column is no [key, title, side]")
}

/// The rows in Markdown; columns that no row fills are left out.
fn markdown(columns: &[Column], rows: &[Value]) -> String {
    let is_filled = |column: &&Column| rows.iter().any(|row| !cell(row, &column.key).is_empty());
    let columns: Vec<&Column> = columns.iter().filter(is_filled).collect();
    let titles: Vec<&str> = columns.iter().map(|column| column.title.as_str()).collect();
    let sides: String = columns.iter().map(|column| if column.is_left { "---|" } else { "---:|" }).collect();
    let mut text = format!("| {} |\n|{sides}\n", titles.join(" | "));
    for row in rows {
        let cells: Vec<String> = columns.iter().map(|column| cell(row, &column.key)).collect();
        text += &format!("| {} |\n", cells.join(" | "));
    }
    text
}

/// What a row says at a path of keys.
fn cell(row: &Value, key: &str) -> String {
    let value = key.split('.').try_fold(row, |value, key| value.get(key));
    let unit = row.get("unit").and_then(Value::as_str).unwrap_or("");
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(true)) => "met".to_owned(),
        Some(Value::Bool(false)) => "**missed**".to_owned(),
        Some(Value::Number(number)) => {
            let number = number.as_f64().unwrap_or(0.0);
            if key.starts_with("ratio") { significant(number) } else { with_unit(number, unit) }
        }
        _ => String::new(),
    }
}

/// Nanoseconds as people read them; other units behind their number.
fn with_unit(number: f64, unit: &str) -> String {
    match (unit, number) {
        ("ns", small) if small < 1e3 => format!("{small:.0} ns"),
        ("ns", micro) if micro < 1e6 => format!("{:.2} µs", micro / 1e3),
        ("ns", milli) if milli < 1e9 => format!("{:.2} ms", milli / 1e6),
        ("ns", large) => format!("{:.2} s", large / 1e9),
        _ => format!("{number} {unit}").trim_end().to_owned(),
    }
}

/// Formats a number with three significant digits.
fn significant(number: f64) -> String {
    let before_point = if number >= 1.0 { number.log10().floor() as usize + 1 } else { 0 };
    let places = if number >= 1.0 { 3_usize.saturating_sub(before_point) } else { 4 };
    format!("{number:.places$}")
}

/// What `katydid bench --json` wrote, as the same table.
fn of_bench(value: &Value) -> String {
    let mut columns = vec![Column { key: "name".to_owned(), title: "work".to_owned(), is_left: true }];
    columns.extend(WAYS.map(|way| Column {
        key: format!("ways.{way}.median_ns"),
        title: way.to_owned(),
        is_left: false,
    }));
    let ratios = WAYS.iter().skip(1);
    columns.extend(ratios.map(|way| Column {
        key: format!("ratio.{way}"),
        title: format!("{way} / native"),
        is_left: false,
    }));
    let mut rows = value.get("figures").and_then(Value::as_array).cloned().unwrap_or_default();
    for row in rows.iter_mut().filter_map(Value::as_object_mut) {
        row.insert("unit".to_owned(), "ns".into());
    }
    markdown(&columns, &rows)
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
    fn a_figure_stands_in_one_row_and_is_shown_in_two() {
        let run = r#"{"title":"","date":"","tables":[
            {"id":"calls","columns":[],"rows":[{"work":"launch","native":3720,"katydid":{"shm":151},"ratio":{"shm":0.04},"unit":"ns"}]},
            {"id":"budgets","columns":[["work","work","left"],["katydid","Katydid","left"],["ratio","ratio","right"]],
             "rows":[{"work":"enqueue","from":"launch"}]}]}"#;
        let table = evidence(run).table("run", "budgets").unwrap();
        assert_eq!(table, "| work | Katydid | ratio |\n|---|---|---:|\n| enqueue | 151 ns | 0.0400 |\n");
        assert!(evidence(&run.replace("\"from\":\"launch\"", "\"from\":\"none\"")).table("run", "budgets").is_err());
    }

    #[test]
    fn the_output_of_the_bench_is_a_table_as_it_is() {
        let bench = r#"{"driver":{},"figures":[{"key":"launch","name":"enqueue a launch","bytes":0,
            "ways":{"native":{"median_ns":3720.0,"p99_ns":1.0},"tcp":null},"ratio":{"shm":0.04}}]}"#;
        assert!(check(&serde_json::from_str(bench).unwrap()).is_ok());
        let table = evidence(bench).table("run", "figures").unwrap();
        assert_eq!(
            table,
            "| work | native | shm / native |\n|---|---:|---:|\n| enqueue a launch | 3.72 µs | 0.0400 |\n"
        );
    }

    #[test]
    fn what_is_missing_is_named() {
        let page = "<!-- evidence run none -->\n<!-- end of evidence -->";
        let run = evidence(r#"{"title":"","date":"","tables":[]}"#);
        assert!(run.fill(page).unwrap_err().to_string().contains("has no table none"));
        assert!(check(&serde_json::from_str(r#"{"title":""}"#).unwrap()).is_err());
    }
}
