//! `docs/evidence/DATE-releases.json`: results of each release on softcuda, in a row each. `DATE` is the day of the newest row.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::checks::evidence::EVIDENCE_FOLDER;
use crate::lookups::release::Release;
use crate::lookups::trial::Trial;
use crate::shell;

/// End of the file's name, after its date.
const RELEASES_SUFFIX: &str = "-releases.json";

/// CUDA's message if softcuda refuses machine code.
const NO_KERNEL_IMAGE_TEXT: &str = "no kernel image is available";

/// Rows with the name of each release.
#[derive(Debug, Default)]
pub(super) struct Outcomes(Vec<(String, Value)>);

impl Outcomes {
    /// Reads the rows of earlier runs, if there are any.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let Some(path) = file(root)? else { return Ok(Self::default()) };
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let value: Value = serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))?;
        let rows = value["tables"][0]["rows"].as_array().into_iter().flatten();
        Ok(Self(rows.map(|row| (row["release"].as_str().unwrap_or_default().to_owned(), row.clone())).collect()))
    }

    /// Replaces the row of a release.
    pub(super) fn replace(&mut self, release: &Release, trial: &Trial) {
        let date = shell::read(Command::new("date").args(["-u", "+%F"])).unwrap_or_default();
        let name = title(release);
        self.0.retain(|(other, _)| *other != name);
        self.0.push((name.clone(), row(name, date.trim(), trial)));
    }

    /// Writes all rows in the order of the releases.
    pub(super) fn write(&self, root: &Path, releases: &[Release]) -> Result<()> {
        let order = |name: &String| releases.iter().position(|release| title(release) == *name);
        let mut rows: Vec<(usize, &Value)> =
            self.0.iter().filter_map(|(name, row)| Some((order(name)?, row))).collect();
        rows.sort_by_key(|(order, _)| *order);
        let dates = rows.iter().filter_map(|(_, row)| row["date"].as_str());
        let date = dates.max().unwrap_or_default();
        let columns = json!([
            ["release", "release", "left"],
            ["with", "with", "left"],
            ["date", "date", "left"],
            ["lookups", "asked for", "right"],
            ["absent", "not there", "right"],
            ["passed", "passed", "right"],
            ["failed", "did not pass, or was refused", "left"]
        ]);
        let lines: Vec<String> = rows.iter().map(|(_, row)| format!("    {row}")).collect();
        let text = format!(
            "{{\n \"title\": \"Releases of CUDA’s runtime, NCCL and PyTorch on softcuda\",\n \"date\": \"{date}\",\n \"tables\": [\n  \
             {{\n   \"id\": \"releases\",\n   \"columns\": {columns},\n   \"rows\": [\n{}\n   ]\n  }}\n ]\n}}\n",
            lines.join(",\n")
        );
        // The file of earlier rows has their date, and a second one beside it is refused.
        if let Some(earlier) = file(root)? {
            fs::remove_file(&earlier).with_context(|| format!("cannot remove {}", earlier.display()))?;
        }
        let path = root.join(EVIDENCE_FOLDER).join(format!("{date}{RELEASES_SUFFIX}"));
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Returns the file of rows in the checkout.
fn file(root: &Path) -> Result<Option<PathBuf>> {
    let folder = root.join(EVIDENCE_FOLDER);
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths = entries.map_while(Result::ok).map(|entry| entry.path());
    Ok(paths.find(|path| path.to_string_lossy().ends_with(RELEASES_SUFFIX)))
}

/// Returns the name of a release on the page: `NCCL 2.32.3 (cu13)` for `nvidia-nccl-cu13==2.32.3`.
fn title(release: &Release) -> String {
    let (package, version) = release.parts();
    match package {
        "torch" => format!("PyTorch {version}"),
        "nvidia-cuda-runtime" | "nvidia-cuda-runtime-cu12" => format!("cudart {version}"),
        _ => match package.strip_prefix("nvidia-nccl-") {
            Some(cuda) => format!("NCCL {version} ({cuda})"),
            None => format!("{} {version}", package.trim_start_matches("nvidia-")),
        },
    }
}

fn row(name: String, date: &str, trial: &Trial) -> Value {
    let report = &trial.report;
    let versions = report["versions"].as_object().into_iter().flatten();
    let versions: Vec<String> =
        versions.map(|(name, version)| format!("{name} {}", version.as_str().unwrap_or_default())).collect();
    let failed = report["failed"].as_object().cloned().unwrap_or_default();
    let passed = report["passed"].as_array().map_or(0, Vec::len);
    let (code, other): (Vec<_>, Vec<_>) = failed
        .iter()
        .map(|(step, why)| (step, why.as_str().unwrap_or_default()))
        .partition(|(_, why)| why.contains(NO_KERNEL_IMAGE_TEXT));
    let code: Vec<String> = code.iter().map(|(step, _)| format!("`{step}`")).collect();
    let mut troubles: Vec<String> =
        other.iter().map(|(step, why)| format!("`{step}`: {}", why.replace('|', "/"))).collect();
    if !code.is_empty() {
        troubles.push(format!("machine code: {}", code.join(", ")));
    }
    troubles.extend(trial.refused.iter().map(|name| format!("`{name}` refused")));
    json!({
        "release": name,
        "with": versions.join(", "),
        "date": date,
        "lookups": trial.lookups.len(),
        "absent": trial.absent.len(),
        "passed": format!("{passed} of {}", passed + failed.len()),
        "failed": troubles.join("; "),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_row_says_what_passed_and_why_the_rest_did_not() {
        let release = Release { program: "nccl", requirement: "nvidia-nccl-cu13==2.32.3" };
        let report = json!({"versions": {"NCCL": "2.32.3"}, "passed": ["one"], "failed": {"three": "a | b", "two": "CUDA error: no kernel image is available for execution"}});
        let lookups = BTreeSet::from([("cuInit".to_owned(), 0), ("cuNew".to_owned(), 13_020)]);
        let absent = BTreeSet::from([("cuNew".to_owned(), 13_020)]);
        let trial = Trial { lookups, absent, report, refused: BTreeSet::from(["cuOld".to_owned()]) };
        let row = row(title(&release), "2026-11-29", &trial);
        let expected = json!({
            "release": "NCCL 2.32.3 (cu13)", "with": "NCCL 2.32.3", "date": "2026-11-29", "lookups": 2, "absent": 1,
            "passed": "1 of 3", "failed": "`three`: a / b; machine code: `two`; `cuOld` refused",
        });
        assert_eq!(row, expected);
    }
}
