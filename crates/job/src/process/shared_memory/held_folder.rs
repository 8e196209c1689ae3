//! A folder that stays the same one between a look and a change, whatever becomes of the names above it.
//!
//! A folder may lie in one of another user, who can put a symbolic link in its place at any moment. The rule: who removes, renames or gives
//! away by a name that was looked at before does both by the same descriptor of the folder.

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
    /// The folder in which the last name of a path is; none that cannot be entered, or where the path is relative or has no last name.
    pub(super) fn of(path: &'a Path) -> Option<Self> {
        let above = path.parent().filter(|_| path.is_absolute() && path.file_name().is_some())?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(above, flags, Mode::empty()).ok()?.into();
        Some(Self { folder, above })
    }

    /// A name in it by its descriptor; none of a path that leads elsewhere.
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
