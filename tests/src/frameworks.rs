//! The items of the compatibility run, `tests/frameworks/items.txt`: programs of PyTorch, JAX, CuPy, Triton, numba and others.
//! Each runs natively and through Katydid, and the results are compared line by line ([`item_result`]).
//!
//! A GPU machine is available for minutes only. So every run has its own time limit, and none starts that could not end in time.
//! If a framework is missing, its items are absent, never failed.

pub mod item_result;
pub mod trial;

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::paths::Paths;

/// Exit status of an item whose requirements are missing.
pub const ABSENT_STATUS: i32 = 77;
/// The machine's Python.
const PYTHON_PROGRAM: &str = "python3";

/// Tells an item its driver: `soft`, or anything else. The item then avoids what cannot run on softcuda.
pub const ITEM_DRIVER_VARIABLE: &str = "ITEM_DRIVER";

/// One line of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Name of the item, `framework.what`.
    pub name: String,
    /// Name of the framework, as its makers write it.
    pub framework: String,
    /// File in the folder of framework programs.
    pub script: String,
    /// Argument of the script.
    pub argument: String,
    /// Most seconds of one run.
    pub seconds: u64,
    /// Whether it makes sense on softcuda.
    pub is_soft: bool,
}

/// Why the list is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ItemsError {
    /// A malformed line.
    #[error("items.txt:{line}: expected `item | framework | script argument | seconds | any or gpu`")]
    Malformed {
        /// Number of the line, counted from 1.
        line: usize,
    },
    /// Two items with the same name.
    #[error("items.txt:{line}: {name} stands there twice")]
    Twice {
        /// Line of the second one, counted from 1.
        line: usize,
        /// Name that occurs twice.
        name: String,
    },
}

/// Returns the items, in the order of the list.
///
/// # Errors
///
/// See [`ItemsError`].
pub fn items() -> Result<Vec<Item>, ItemsError> {
    parse(include_str!("../frameworks/items.txt"))
}

fn parse(text: &str) -> Result<Vec<Item>, ItemsError> {
    let mut items: Vec<Item> = Vec::new();
    for (index, text) in text.lines().enumerate() {
        if text.trim().is_empty() || text.starts_with('#') {
            continue;
        }
        let line = index + 1;
        let item = parse_line(text).ok_or(ItemsError::Malformed { line })?;
        if items.iter().any(|other| other.name == item.name) {
            return Err(ItemsError::Twice { line, name: item.name });
        }
        items.push(item);
    }
    Ok(items)
}

fn parse_line(text: &str) -> Option<Item> {
    let mut fields = text.split('|').map(str::trim);
    let mut field = || fields.next().filter(|field| !field.is_empty()).map(str::to_owned);
    let (name, framework, program, seconds, drivers) = (field()?, field()?, field()?, field()?, field()?);
    let (script, argument) = program.split_once(' ')?;
    let is_soft = match drivers.as_str() {
        "any" => true,
        "gpu" => false,
        _ => return None,
    };
    let (script, argument) = (script.to_owned(), argument.trim().to_owned());
    Some(Item { name, framework, script, argument, seconds: seconds.parse().ok()?, is_soft })
}

/// Returns the Python that has the frameworks: in a checkout that of `cargo xtask setup`, in a pack the machine's.
pub fn python(paths: &Paths) -> PathBuf {
    let own = paths.apps.with_file_name("python/bin/python");
    if own.exists() { own } else { PYTHON_PROGRAM.into() }
}

/// Returns variables for items in a checkout: numba and CuPy find headers and libdevice by these.
pub fn toolkit(paths: &Paths) -> Vec<(String, String)> {
    let home = paths.apps.with_file_name("cuda-toolkit/nvidia/cu13");
    let names = if home.exists() { &["CUDA_HOME", "CUDA_PATH"][..] } else { &[] };
    names.iter().map(|&name| (name.to_owned(), home.display().to_string())).collect()
}

impl Item {
    /// Returns Python's arguments for it; `-B` leaves no compiled modules behind.
    pub fn arguments(&self, paths: &Paths) -> [String; 3] {
        let script = paths.frameworks.join(&self.script).display().to_string();
        ["-B".to_owned(), script, self.argument.clone()]
    }

    /// Returns the variables of every run; `driver` names the driver for the item.
    pub fn variables(driver: &str) -> [(&'static str, &str); 2] {
        [(ITEM_DRIVER_VARIABLE, driver), ("PYTHONUNBUFFERED", "1")]
    }

    /// Returns whether it runs a part of a framework's own tests.
    pub fn is_suite(&self) -> bool {
        self.script.ends_with("_suite.py")
    }

    /// Returns whether it measures times: nothing else may run at the same time.
    pub fn is_timed(&self) -> bool {
        self.name.split_once('.').is_some_and(|(_, what)| what.starts_with("speed"))
    }

    /// Returns whether one of `names` selects it: its own name, or a prefix before a dot. An empty list selects all.
    pub fn is_among(&self, names: &[String]) -> bool {
        let is_named_by = |word: &String| {
            let rest = self.name.strip_prefix(word.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        names.is_empty() || names.iter().any(is_named_by)
    }
}

/// Result of an item on a way.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// It succeeded, with the results of the native run.
    Passed,
    /// It failed: how it ended, and the end of its output.
    Failed(String),
    /// It succeeded with different results: which lines.
    Differing(String),
    /// Its results differ, but two native runs differ from each other in the same lines.
    Unsteady(String),
    /// Its requirements are missing on the machine.
    Absent(String),
    /// No time was left for it.
    Late,
}

impl Verdict {
    /// Returns one word for the verdict.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed(_) => "failed",
            Self::Differing(_) => "differing",
            Self::Unsteady(_) => "unsteady",
            Self::Absent(_) => "absent",
            Self::Late => "late",
        }
    }

    /// Returns the reason, if there is one.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Passed | Self::Late => None,
            Self::Failed(reason) | Self::Differing(reason) | Self::Unsteady(reason) | Self::Absent(reason) => {
                Some(reason)
            }
        }
    }

    /// Returns whether Katydid did something wrong.
    pub fn is_bad(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::Differing(_))
    }
}

/// Report of one item on one way.
#[derive(Debug, Clone)]
pub struct ItemReport {
    /// Name of the item.
    pub item: String,
    /// Name of the item's framework.
    pub framework: String,
    /// Name of the way that it ran on.
    pub way: String,
    /// Result of the item.
    pub verdict: Verdict,
    /// Seconds from start to end of its process.
    pub seconds: f64,
    /// Times that it reported, in seconds, by name.
    pub times: Vec<(String, f64)>,
    /// Versions that it reported, by name.
    pub versions: Vec<(String, String)>,
}

impl ItemReport {
    /// Encodes it as a line of the report.
    pub fn as_json(&self) -> Value {
        json!({
            "item": self.item,
            "framework": self.framework,
            "way": self.way,
            "result": self.verdict.word(),
            "reason": self.verdict.reason(),
            "seconds": self.seconds,
            "times": self.times.iter().map(|(name, time)| (name.clone(), json!(time))).collect::<serde_json::Map<_, _>>(),
            "versions": self.versions.iter().map(|(name, is)| (name.clone(), json!(is))).collect::<serde_json::Map<_, _>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_item_is_in_its_script() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("frameworks");
        let items = items().unwrap();
        assert!(items.len() > 50);
        for item in items {
            let text = fs::read_to_string(folder.join(&item.script)).unwrap();
            assert!(item.is_suite() || text.contains(&format!("@item\ndef {}():", item.argument)), "{}", item.name);
        }
    }

    #[test]
    fn every_item_of_a_script_is_in_the_list() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("frameworks");
        let items = items().unwrap();
        for file in fs::read_dir(folder).unwrap() {
            let file = file.unwrap();
            let (script, text) = (file.file_name(), fs::read_to_string(file.path()).unwrap());
            for name in text.split("@item\ndef ").skip(1).filter_map(|rest| rest.split('(').next()) {
                let is_listed = items.iter().any(|item| *item.script == *script && item.argument == name);
                assert!(is_listed, "{}: {name} is not in items.txt", script.display());
            }
        }
    }

    #[test]
    fn a_malformed_line_is_named() {
        assert_eq!(parse("# a\n\na | b | c.py d | 9 | most"), Err(ItemsError::Malformed { line: 3 }));
        assert_eq!(parse("a | b | c.py d | nine | any"), Err(ItemsError::Malformed { line: 1 }));
        assert_eq!(parse("a | b | c.py | 9 | any"), Err(ItemsError::Malformed { line: 1 }));
        let twice = "a.b | B | c.py d | 9 | any\na.b | B | c.py e | 9 | gpu";
        assert_eq!(parse(twice), Err(ItemsError::Twice { line: 2, name: "a.b".into() }));
    }

    #[test]
    fn a_word_wants_an_item_or_a_framework() {
        let item = &parse("torch.loader | PyTorch | t.py loader | 9 | gpu").unwrap()[0];
        let among = |words: &[&str]| item.is_among(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        assert!(among(&[]) && among(&["torch"]) && among(&["jax", "torch.loader"]));
        assert!(!item.is_timed() && parse("a.speed_of_b | A | a.py b | 9 | gpu").unwrap()[0].is_timed());
        assert!(!among(&["tor"]) && !among(&["torch.load"]) && !among(&["jax"]));
    }
}
