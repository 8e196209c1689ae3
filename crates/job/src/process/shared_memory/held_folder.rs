//! A folder that stays the same one between a check and a change, even if the names above it change.
//!
//! A folder may lie in another user's, who can replace it by a symbolic link at any moment. The rule: code that checks a name,
//! and then removes, renames or gives it away, does both by the same descriptor of the folder.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// The folder of a path.
#[derive(Debug)]
pub(super) struct HeldFolder<'a> {
    folder: File,
    above: &'a Path,
}

impl<'a> HeldFolder<'a> {
    /// Opens the folder of the last name in a path; `None` if it cannot be entered, or if the path is relative or has no last
    /// name.
    pub(super) fn of(path: &'a Path) -> Option<Self> {
        let above = path.parent().filter(|_| path.is_absolute() && path.file_name().is_some())?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(above, flags, Mode::empty()).ok()?.into();
        Some(Self { folder, above })
    }

    /// The path of an entry by the folder's descriptor; `None` for a path in another folder.
    pub(super) fn entry(&self, path: &Path) -> Option<PathBuf> {
        let is_here = path.parent() == Some(self.above);
        let name = path.components().next_back().filter(|last| is_here && matches!(last, Component::Normal(_)))?;
        Some(PathBuf::from(format!("/proc/self/fd/{}", self.folder.as_raw_fd())).join(name))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_folder_is_the_same_one_when_a_link_has_its_name() {
        let root = tempfile::tempdir().unwrap();
        let [folder, other] = ["folder", "other"].map(|name| root.path().join(name));
        for path in [&folder, &other] {
            fs::create_dir(path).unwrap();
            fs::write(path.join("file"), path.to_str().unwrap()).unwrap();
        }
        let path = folder.join("file");
        let held = HeldFolder::of(&path).unwrap();
        fs::rename(&folder, root.path().join("moved")).unwrap();
        symlink(&other, &folder).unwrap();
        assert_eq!(fs::read_to_string(held.entry(&path).unwrap()).unwrap(), folder.to_str().unwrap());
    }

    #[test]
    fn names_in_other_folders_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        let held = HeldFolder::of(&path).unwrap();
        assert!(held.entry(&root.path().join("other")).is_some());
        for elsewhere in ["..", "../file", "below/file", "/file"] {
            assert_eq!(held.entry(&root.path().join(elsewhere)), None, "{elsewhere}");
        }
        for none in ["file", "../file", "/", "/..", "/no/such/file"] {
            assert!(HeldFolder::of(Path::new(none)).is_none(), "{none}");
        }
    }
}
