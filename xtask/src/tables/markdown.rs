//! Markdown tables from columns and rows of JSON.

use anyhow::{Context, Result};
use serde_json::Value;

/// A column of a table.
pub(crate) struct Column {
    /// Path of keys inside a row, separated by dots.
    pub(crate) key: String,
    pub(crate) title: String,
    pub(crate) is_left: bool,
}

impl Column {
    /// Makes a column of text.
    pub(crate) fn left_aligned(key: &str, title: &str) -> Self {
        Self { key: key.to_owned(), title: title.to_owned(), is_left: true }
    }

    /// Makes a column of numbers.
    pub(crate) fn right(key: &str, title: &str) -> Self {
        Self { key: key.to_owned(), title: title.to_owned(), is_left: false }
    }
}

/// Returns the columns of a table: `[KEY, TITLE, "left" or "right"]` each.
pub(crate) fn columns(table: &Value) -> Result<Vec<Column>> {
    let columns = table.get("columns").and_then(Value::as_array).context("a table has no columns")?;
    let text = |column: &Value, index: usize| column.get(index).and_then(Value::as_str).map(str::to_owned);
    let column = |column: &Value| {
        let (key, title) = (text(column, 0)?, text(column, 1)?);
        Some(Column { key, title, is_left: text(column, 2)? == "left" })
    };
    columns.iter().map(column).collect::<Option<_>>().context("a column is not [key, title, side]")
}

/// Returns the rows in Markdown; columns without any value are left out.
pub(crate) fn markdown(columns: &[Column], rows: &[Value]) -> String {
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

/// Returns the text of a row's value at a path of keys.
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

/// Returns nanoseconds in a readable unit; other units follow their number.
pub(crate) fn with_unit(number: f64, unit: &str) -> String {
    match (unit, number) {
        ("ns", small) if small < 1e3 => format!("{small:.0} ns"),
        ("ns", micro) if micro < 1e6 => format!("{:.2} µs", micro / 1e3),
        ("ns", milli) if milli < 1e9 => format!("{:.2} ms", milli / 1e6),
        ("ns", large) => format!("{:.2} s", large / 1e9),
        _ => format!("{number} {unit}").trim_end().to_owned(),
    }
}

/// Returns a number with three significant digits.
pub(crate) fn significant(number: f64) -> String {
    let before_point = if number >= 1.0 { number.log10().floor() as usize + 1 } else { 0 };
    let digits = match number {
        large if large >= 1.0 => 3_usize.saturating_sub(before_point),
        part if part >= 0.1 => 3,
        _ => 4,
    };
    format!("{number:.digits$}")
}
