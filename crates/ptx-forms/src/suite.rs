//! All cases: the catalogue's forms, the programs, and random ones, in groups with one file of answers each.

use crate::case::Case;
use crate::catalog::{self, CatalogError, Family};
use crate::form::Form;
use crate::program::{self, ProgramError};
use crate::random;
use crate::store::{RecordedAnswers, StoreError};
use std::path::{Path, PathBuf};

/// Why there are no cases.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SuiteError {
    /// A file of the catalogue is invalid.
    #[error("{}: {error}", path.display())]
    Catalog {
        /// Path of the file.
        path: PathBuf,
        /// The line that cannot be read, and why.
        error: CatalogError,
    },
    /// A program is invalid.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A folder or file cannot be read.
    #[error("{}: {error}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// Error that the system returned.
        error: std::io::Error,
    },
    /// Two lines have the same form.
    #[error("{0} is in the catalogue twice")]
    Twice(String),
}

/// Cases whose answers are in one file.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// Name of the file, without its ending.
    pub name: String,
    /// Cases of the group, in the order of the catalogue.
    pub cases: Vec<Case>,
    /// The lines of the catalogue that define the cases.
    pub(crate) families: Vec<Family>,
    /// What each case demonstrates, for programs.
    pub(crate) about: Vec<String>,
}

/// Reads the files at and below a folder with that ending, sorted by name.
fn files(folder: &Path, ending: &str) -> Result<Vec<(String, String)>, SuiteError> {
    let error = |path: &Path, error| SuiteError::File { path: path.to_owned(), error };
    let entries = std::fs::read_dir(folder).map_err(|cause| error(folder, cause))?;
    let mut out = Vec::new();
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() {
            out.extend(files(&path, ending)?);
        } else if path.extension().is_some_and(|found| found == ending) {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            out.push((name, std::fs::read_to_string(&path).map_err(|cause| error(&path, cause))?));
        }
    }
    out.sort();
    Ok(out)
}

/// Reads all groups below `root`, the folder of this crate or a copy of its `catalog` and `programs`.
///
/// # Errors
///
/// When a file cannot be read or is invalid, or a form occurs twice.
pub fn suite(root: &Path) -> Result<Vec<Group>, SuiteError> {
    let mut groups = Vec::new();
    for (name, text) in files(&root.join("catalog"), "forms")? {
        let path = root.join("catalog").join(&name);
        let families = catalog::parse(&text).map_err(|error| SuiteError::Catalog { path, error })?;
        let cases = families.iter().flat_map(|family| &family.forms).map(Form::case).collect();
        groups.push(Group { name, cases, families, about: Vec::new() });
    }
    let programs = files(&root.join("programs"), "ptx")?;
    let programs = programs.iter().map(|(name, text)| program::parse(name, text)).collect::<Result<Vec<_>, _>>()?;
    let (about, cases) = programs.into_iter().map(|program| (program.about, program.case)).unzip();
    groups.push(Group { name: "programs".to_owned(), cases, families: Vec::new(), about });
    groups.push(Group { name: "random".to_owned(), cases: random::cases(), families: Vec::new(), about: Vec::new() });
    check_unique_names(&groups)?;
    Ok(groups)
}

/// Checks that names are unique: they identify answers.
fn check_unique_names(groups: &[Group]) -> Result<(), SuiteError> {
    let mut seen = std::collections::HashSet::new();
    let duplicate = groups.iter().flat_map(|group| &group.cases).find(|case| !seen.insert(&case.name));
    duplicate.map_or(Ok(()), |case| Err(SuiteError::Twice(case.name.clone())))
}

/// Reads the recorded answers of a group, if there are any.
///
/// # Errors
///
/// When the file is damaged.
pub fn recorded(root: &Path, group: &Group) -> Result<Option<RecordedAnswers>, StoreError> {
    RecordedAnswers::read(&root.join("data").join(&group.name).with_extension("kept"))
}
