//! Tables of the reports of tools: `katydid bench --json`, `katydid bench checkpoint --json`, and `gpu-test`.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::tables::markdown::{Column, markdown, significant, with_unit};

/// Ways of `katydid bench --json`, in the order of the table.
const BENCH_WAYS: [&str; 7] = ["native", "shm", "unix", "tcp", "tls", "vsock", "mps"];
/// Ways of programs and trainings, the native one first.
const PROGRAM_WAYS: [&str; 3] = ["native", "shm", "tcp"];
const MIB_BYTES: f64 = 1_048_576.0;
/// Kinds of copies: the key of each, its name, and the share in percent that Cricket reached in its paper.
pub(crate) const COPY_KINDS: [(&str, &str, Option<f64>); 4] = [
    ("htod_pageable", "to the device, pageable", Some(33.0)),
    ("dtoh_pageable", "from the device, pageable", Some(42.0)),
    ("htod_pinned", "to the device, pinned", None),
    ("dtoh_pinned", "from the device, pinned", None),
];

/// Returns the table `id` of a report.
pub(crate) fn table(report: &Value, id: &str) -> Result<String> {
    match id {
        "machine" => machine(report),
        "figures" => figures(report),
        "sizes" => sizes(report),
        "programs" => programs(report),
        "bandwidth" => bandwidth(report),
        "training" => training(report),
        _ => bail!("no report has a table {id}"),
    }
}

/// Returns one line: card, driver, kernel, processors, date.
fn machine(report: &Value) -> Result<String> {
    let machine = report.get("machine").unwrap_or(report);
    let of = |key: &str| machine.get(key).and_then(Value::as_str).with_context(|| format!("the machine has no {key}"));
    let (gpu, driver, kernel) = (of("gpu")?, of("driver")?, of("kernel")?);
    let kernel = kernel.split('-').next().unwrap_or(kernel);
    Ok(format!("{gpu}, driver {driver}, Linux {kernel}, {} processors, {}.\n", of("processors")?, of("date")?))
}

/// Returns a table with a row for each figure, a column for each way, and the ratios.
fn figures(report: &Value) -> Result<String> {
    let mut columns = vec![Column::left_aligned("name", "work")];
    columns.extend(BENCH_WAYS.map(|way| Column::right(&format!("ways.{way}.median_ns"), way)));
    columns.extend(["shm", "tcp"].map(|way| Column::right(&format!("ratio.{way}"), &format!("{way} / native"))));
    let mut rows = list(report, "figures")?.clone();
    for row in rows.iter_mut().filter_map(Value::as_object_mut) {
        row.insert("unit".to_owned(), "ns".into());
    }
    Ok(markdown(&columns, &rows))
}

/// Returns a table of the only size of `bench checkpoint`, with a row for each figure.
fn sizes(report: &Value) -> Result<String> {
    let row = list(report, "rows")?.first().context("no size was measured")?;
    let number = |path: &str| path.split('.').try_fold(row, |value, key| value.get(key)).and_then(Value::as_f64);
    let time = |path: &str| number(path).map(|micros| with_unit(micros * 1e3, "ns"));
    let mib = |path: &str| number(path).map(|bytes| format!("{:.2} MiB", bytes / MIB_BYTES));
    let rate = || Some(format!("{:.1} GB/s", number("first.content")? / number("first.took_us")?.max(1.0) / 1e3));
    let figures = [
        ("first checkpoint: stop", time("first.stopped_us")),
        ("first checkpoint: all of it", time("first.took_us")),
        ("first checkpoint: rate", rate()),
        ("second checkpoint, one chunk in a hundred changed: stop", time("second.stopped_us")),
        ("second checkpoint: all of it", time("second.took_us")),
        ("bytes that had changed", mib("changed")),
        ("second checkpoint: bytes written", mib("second.added")),
        ("no free memory on the GPU: stop", time("crowded.stopped_us")),
        ("restore, until the program answers", time("restore_us")),
        ("host memory that server, supervisor and program take more at most", mib("first.growth")),
        ("`cuCheckpointProcess*`, lock and checkpoint", time("native.out_us")),
        ("`cuCheckpointProcess*`, restore and unlock", time("native.in_us")),
    ];
    let rows: Vec<Value> =
        figures.into_iter().filter_map(|(work, figure)| Some(json!({"work": work, "figure": figure?}))).collect();
    let held = number("held").map_or_else(String::new, |bytes| format!("{:.0} GiB", bytes / MIB_BYTES / 1024.0));
    Ok(markdown(&[Column::left_aligned("work", "work"), Column::right("figure", &held)], &rows))
}

/// Returns a table with a row for each program: first call and work in milliseconds, and the added cost of a call.
fn programs(report: &Value) -> Result<String> {
    let mut columns = vec![Column::left_aligned("program", "program"), Column::right("calls", "calls")];
    columns.extend([Column::right("mb_in", "MB in"), Column::right("mb_out", "MB out")]);
    columns.extend(PROGRAM_WAYS.map(|way| Column::right(way, way)));
    columns
        .extend(["shm", "tcp"].map(|way| Column::right(&format!("added_{way}"), &format!("{way}: added to a call"))));
    let rows = list(report, "programs")?.iter().map(|program| {
        let mut row = json!({
            "program": format!("`{}`", program.get("program").and_then(Value::as_str).unwrap_or_default()),
            "calls": program.get("calls"),
            "mb_in": megabytes(program, "bytes_in"),
            "mb_out": megabytes(program, "bytes_out"),
        });
        for way in PROGRAM_WAYS {
            row[way] = program_cell(program, way).into();
            let added = seconds(program, way, "added_to_a_call_s").map(|added| format!("{:.2} µs", added * 1e6));
            row[format!("added_{way}")] = added.into();
        }
        row
    });
    Ok(markdown(&columns, &rows.collect::<Vec<_>>()))
}

/// Returns first call and work of a program on a way, and the ratio of its work to the native one.
fn program_cell(program: &Value, way: &str) -> Option<String> {
    let (first, work) = (seconds(program, way, "first_call_s")?, seconds(program, way, "work_s")?);
    let native = seconds(program, "native", "work_s").filter(|_| way != "native");
    let ratio = native.map_or_else(String::new, |native| format!(" = {:.2}×", work / native));
    Some(format!("{:.1} + {:.1}{ratio}", first * 1e3, work * 1e3))
}

/// Returns the bytes that a program copies, in millions.
fn megabytes(program: &Value, key: &str) -> Option<String> {
    program.get(key)?.as_f64().map(|bytes| format!("{:.2}", bytes / 1e6))
}

fn seconds(program: &Value, way: &str, key: &str) -> Option<f64> {
    program.get("ways")?.get(way)?.get(key)?.as_f64()
}

/// Returns the rates of the program `bandwidth` in GB/s.
fn bandwidth(report: &Value) -> Result<String> {
    let programs = list(report, "programs")?;
    let is_it = |program: &&Value| program.get("program").and_then(Value::as_str) == Some("bandwidth");
    let program = programs.iter().find(is_it).context("the program bandwidth was not measured")?;
    let rate = |way: &str, key: &str| program.get("ways")?.get(way)?.get("bytes_per_s")?.get(key)?.as_f64();
    let rows = COPY_KINDS.map(|(key, title, cricket)| {
        let mut row = json!({"copies": title, "cricket": cricket.map(|percent| format!("{percent:.0} %"))});
        for way in PROGRAM_WAYS {
            let share = rate("native", key).filter(|_| way != "native");
            let cell = rate(way, key).map(|rate| {
                let share = share.map_or_else(String::new, |native| format!(" = {:.0} %", rate / native * 100.0));
                format!("{:.1}{share}", rate / 1e9)
            });
            row[way] = cell.into();
        }
        row
    });
    let mut columns = vec![Column::left_aligned("copies", "copies, GB/s")];
    columns.extend(PROGRAM_WAYS.map(|way| Column::right(way, way)));
    columns.push(Column::right("cricket", "Cricket kept"));
    Ok(markdown(&columns, &rows))
}

/// Returns a table with a row for each item of the frameworks: the time of a step, or of the first call.
fn training(report: &Value) -> Result<String> {
    let lines = report.as_array().context("the trainings are not a list")?;
    let text = |line: &Value, key: &str| line.get(key).and_then(Value::as_str).map(str::to_owned);
    let time = |item: &str, way: &str, name: &str| {
        let is_it =
            |line: &&Value| text(line, "item").as_deref() == Some(item) && text(line, "way").as_deref() == Some(way);
        lines.iter().find(is_it)?.get("times")?.get(name)?.as_f64()
    };
    let mut items: Vec<String> = Vec::new();
    for item in lines.iter().filter_map(|line| text(line, "item")) {
        if !items.contains(&item) {
            items.push(item);
        }
    }
    let mut rows = Vec::new();
    for (item, name) in items.iter().flat_map(|item| [(item, "step"), (item, "first_call")]) {
        let Some(native) = time(item, "native", name) else { continue };
        let mut row = json!({"item": format!("`{item}`"), "time": name.replace('_', " ")});
        row["native"] = with_unit(native * 1e9, "ns").into();
        for way in &PROGRAM_WAYS[1..] {
            let cell = time(item, way, name)
                .map(|time| format!("{} = {}×", with_unit(time * 1e9, "ns"), significant(time / native)));
            row[*way] = cell.into();
        }
        rows.push(row);
    }
    let mut columns = vec![Column::left_aligned("item", "item"), Column::left_aligned("time", "time")];
    columns.extend(PROGRAM_WAYS.map(|way| Column::right(way, way)));
    Ok(markdown(&columns, &rows))
}

fn list<'a>(report: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    report.get(key).and_then(Value::as_array).with_context(|| format!("the report has no list {key}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_the_bench_is_a_table_as_it_is() {
        let bench = json!({"driver": {}, "figures": [{"key": "launch", "name": "enqueue a launch", "bytes": 0,
            "ways": {"native": {"median_ns": 3720.0, "p99_ns": 1.0}, "tcp": null}, "ratio": {"shm": 0.04}}]});
        let expected = "| work | native | shm / native |\n|---|---:|---:|\n| enqueue a launch | 3.72 µs | 0.0400 |\n";
        assert_eq!(table(&bench, "figures").unwrap(), expected);
    }

    #[test]
    fn programs_and_their_rates_are_tables() {
        let way = |work: f64, added: Option<f64>| {
            json!({"first_call_s": 0.1, "work_s": work, "added_to_a_call_s": added,
            "bytes_per_s": {"htod_pinned": 1e9 / work}})
        };
        let report = json!({"programs": [{"program": "bandwidth", "calls": 10, "ways": {"native": way(1.0, None), "shm": way(0.5, Some(-1e-6))}}]});
        let text = table(&report, "programs").unwrap();
        assert!(text.ends_with("| `bandwidth` | 10 | 100.0 + 1000.0 | 100.0 + 500.0 = 0.50× | -1.00 µs |\n"), "{text}");
        let text = table(&report, "bandwidth").unwrap();
        assert!(text.contains("| to the device, pinned | 1.0 | 2.0 = 200 % |  |"), "{text}");
    }

    #[test]
    fn trainings_have_their_steps_and_first_calls() {
        let lines = json!([{"gpu": "H200"}, {"item": "a", "way": "native", "times": {"step": 0.01, "first_call": 0.2}},
            {"item": "a", "way": "shm", "times": {"step": 0.008}}]);
        let text = table(&lines, "training").unwrap();
        assert!(text.contains("| `a` | step | 10.00 ms | 8.00 ms = 0.800× |"), "{text}");
        assert!(text.contains("| `a` | first call | 200.00 ms |  |"), "{text}");
    }

    #[test]
    fn report_describes_checkpoint_and_machine() {
        let report = json!({"rows": [{"held": 34_359_738_368_u64, "first": {"stopped_us": 24_000, "took_us": 3_000_000, "content": 34_000_000_000_u64},
            "native": {"reason": "not asked"}}]});
        let text = table(&report, "sizes").unwrap();
        assert!(
            text.starts_with("| work | 32 GiB |") && text.contains("| first checkpoint: rate | 11.3 GB/s |"),
            "{text}"
        );
        assert!(!text.contains("cuCheckpointProcess"), "{text}");
        let described = json!({"gpu": "NVIDIA H200", "driver": "580.1", "kernel": "6.18.44-x", "processors": "16", "date": "2026-11-29 18:00 UTC"});
        assert_eq!(
            table(&described, "machine").unwrap(),
            "NVIDIA H200, driver 580.1, Linux 6.18.44, 16 processors, 2026-11-29 18:00 UTC.\n"
        );
        assert!(table(&described, "none").is_err());
    }
}
