//! Finds the OpenCL drivers of this machine.
//!
//! If [`DRIVERS_VARIABLE`] is set, it names the only libraries. Otherwise the search follows OpenCL loaders: the libraries of
//! `OCL_ICD_FILENAMES`, then those that a vendors folder names. That folder is `OCL_ICD_VENDORS`, else `/etc/OpenCL/vendors`; its
//! files hold one line each. Unless the operator chose a folder, well-known library names are tried too: containers have NVIDIA's
//! library without its file among the vendors.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Variable with paths of drivers' libraries, separated by colons.
pub(crate) const DRIVERS_VARIABLE: &str = "KATYDID_OPENCL_DRIVERS";
/// Folder in which vendors put the names of their libraries.
const VENDORS_FOLDER: &str = "/etc/OpenCL/vendors";
/// NVIDIA's library and PoCL's.
const KNOWN_LIBRARIES: [&str; 2] = ["libnvidia-opencl.so.1", "libpocl.so.2"];
/// Folders of these libraries that the loader may not search.
const LIBRARY_FOLDERS: [&str; 5] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib"];

/// Libraries that may hold an OpenCL driver, in the order in which they are tried.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Candidates {
    /// Each library once, in order.
    pub(crate) libraries: Vec<PathBuf>,
    /// The locations that named no library, as text.
    pub(crate) empty: Vec<String>,
}

/// The environment variables that choose drivers.
#[derive(Debug, Default)]
struct DriverVariables {
    libraries: Option<OsString>,
    icd_libraries: Option<OsString>,
    vendors: Option<OsString>,
}

/// Returns the value of a variable that is set and not empty.
fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Returns whether a variable names libraries, or the folder of their names.
pub(crate) fn is_chosen() -> bool {
    [DRIVERS_VARIABLE, "OCL_ICD_FILENAMES", "OCL_ICD_VENDORS"].into_iter().any(|name| variable(name).is_some())
}

/// Returns the libraries to try on this machine.
pub(crate) fn candidates() -> Candidates {
    let choice = DriverVariables {
        libraries: variable(DRIVERS_VARIABLE),
        icd_libraries: variable("OCL_ICD_FILENAMES"),
        vendors: variable("OCL_ICD_VENDORS"),
    };
    choose(&choice, Path::new(VENDORS_FOLDER), &LIBRARY_FOLDERS.map(Path::new))
}

fn choose(choice: &DriverVariables, usual: &Path, folders: &[&Path]) -> Candidates {
    let mut candidates = Candidates::default();
    if let Some(list) = &choice.libraries {
        env::split_paths(list).for_each(|path| candidates.add(path));
        return candidates;
    }
    env::split_paths(choice.icd_libraries.as_deref().unwrap_or_default()).for_each(|path| candidates.add(path));
    let vendors = choice.vendors.as_deref().map_or(usual, Path::new);
    match named_in(vendors) {
        Ok(named) if named.is_empty() => candidates.empty.push(format!("{} names none", vendors.display())),
        Ok(named) => named.into_iter().for_each(|path| candidates.add(path)),
        Err(error) => candidates.empty.push(format!("{}: {error}", vendors.display())),
    }
    if choice.vendors.is_none() {
        KNOWN_LIBRARIES.iter().flat_map(|name| paths_of(name, folders)).for_each(|path| candidates.add(path));
    }
    candidates
}

impl Candidates {
    fn add(&mut self, path: PathBuf) {
        if !path.as_os_str().is_empty() && !self.libraries.contains(&path) {
            self.libraries.push(path);
        }
    }
}

/// Returns the bare name of a library, for the loader to find, and each path where it exists.
fn paths_of(name: &str, folders: &[&Path]) -> Vec<PathBuf> {
    let existing = folders.iter().map(|directory| directory.join(name)).filter(|path| path.exists());
    [PathBuf::from(name)].into_iter().chain(existing).collect()
}

/// Returns the libraries that a path names. A folder names those of its `.icd` files, in the order of file names; an `.icd` file
/// names its own. Any other file is a library itself, as for ocl-icd.
fn named_in(vendors: &Path) -> std::io::Result<Vec<PathBuf>> {
    let is_icd = |path: &PathBuf| path.extension() == Some(OsStr::new("icd"));
    let mut files: Vec<PathBuf> = match fs::metadata(vendors)?.is_dir() {
        true => fs::read_dir(vendors)?.flatten().map(|entry| entry.path()).filter(is_icd).collect(),
        false if is_icd(&vendors.to_owned()) => vec![vendors.to_owned()],
        false => return Ok(vec![vendors.to_owned()]),
    };
    files.sort();
    let lines = files.iter().filter_map(|file| fs::read(file).ok()).map(|text| first_line(&text));
    Ok(lines.filter(|line| !line.is_empty()).map(|line| PathBuf::from(OsString::from_vec(line))).collect())
}

fn first_line(text: &[u8]) -> Vec<u8> {
    text.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: &str = "/no/such/folder";

    fn candidates(choice: &DriverVariables, usual: &Path) -> Vec<PathBuf> {
        choose(choice, usual, &[]).libraries
    }

    #[test]
    fn icd_files_name_libraries_in_order() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("b.icd", "libb.so\n"), ("a.icd", " /x/liba.so \nmore"), ("c.txt", "no"), ("d.icd", "\n")]
        {
            fs::write(folder.path().join(name), text).unwrap();
        }
        assert_eq!(named_in(folder.path()).unwrap(), [Path::new("/x/liba.so"), Path::new("libb.so")]);
        assert_eq!(named_in(&folder.path().join("b.icd")).unwrap(), [Path::new("libb.so")]);
        assert_eq!(named_in(&folder.path().join("c.txt")).unwrap(), [folder.path().join("c.txt")]);
        assert!(named_in(Path::new(NONE)).is_err());
    }

    #[test]
    fn a_machine_without_a_vendors_folder_is_searched_for_what_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let there = folder.path().join(KNOWN_LIBRARIES[0]);
        fs::write(&there, "").unwrap();
        let found = choose(&DriverVariables::default(), Path::new(NONE), &[folder.path(), Path::new("/no/other")]);
        assert_eq!(found.libraries, [PathBuf::from(KNOWN_LIBRARIES[0]), there, PathBuf::from(KNOWN_LIBRARIES[1])]);
        assert!(found.empty[0].contains(NONE), "{found:?}");
    }

    #[test]
    fn a_library_that_is_named_twice_is_tried_once() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("n.icd"), KNOWN_LIBRARIES[0]).unwrap();
        assert_eq!(candidates(&DriverVariables::default(), folder.path()), KNOWN_LIBRARIES.map(PathBuf::from));
    }

    #[test]
    fn driver_variables_replace_the_default_candidates() {
        let vendors = DriverVariables { vendors: Some(NONE.into()), ..DriverVariables::default() };
        assert!(candidates(&vendors, Path::new(NONE)).is_empty());
        let libraries = DriverVariables { libraries: Some("/a.so:b.so".into()), vendors: Some("/v".into()), ..vendors };
        assert_eq!(candidates(&libraries, Path::new(NONE)), [Path::new("/a.so"), Path::new("b.so")]);
        let icd = DriverVariables { icd_libraries: Some("c.so".into()), ..DriverVariables::default() };
        assert_eq!(candidates(&icd, Path::new(NONE))[0], Path::new("c.so"));
    }
}
