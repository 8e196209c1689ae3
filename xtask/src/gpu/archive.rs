//! Archives for a machine with a GPU. One call to such a machine carries 64 MiB, including the source tree, so packing fails if
//! an archive comes near that.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::output::line;
use crate::shell;

/// Limit of one archive in MiB: the limit of a call minus the tree.
const MAX_ARCHIVE_MIB: u64 = 45;

/// Makes `archive` from the files in `folder` that are chosen by names and options of tar.
pub(crate) fn make<S: AsRef<OsStr>>(archive: &Path, folder: &Path, chosen: impl IntoIterator<Item = S>) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--xz", "--file"]).arg(archive).arg("--directory").arg(folder).args(chosen);
    // xz uses as many threads as there are cores.
    shell::run(tar.env("XZ_OPT", "-T0"))?;
    let size = fs::metadata(archive).with_context(|| format!("cannot read {}", archive.display()))?.len();
    line(&fitting(archive, size)?);
    Ok(())
}

/// Returns the text with the archive and its size; an error if it is too large.
fn fitting(archive: &Path, size: u64) -> Result<String> {
    let shown = format!("{:.1} MiB  {}", size as f64 / f64::from(1 << 20), archive.display());
    ensure!(
        size <= MAX_ARCHIVE_MIB << 20,
        "{shown} is beyond the {MAX_ARCHIVE_MIB} MiB that a call to a GPU machine takes beside the tree; \
         leave something out, or give it an archive of its own"
    );
    Ok(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_beyond_the_bound_is_refused_with_its_size() {
        let archive = Path::new("pack/pocl.tar.xz");
        assert_eq!(fitting(archive, 3 << 19).unwrap(), "1.5 MiB  pack/pocl.tar.xz");
        assert!(fitting(archive, MAX_ARCHIVE_MIB << 20).is_ok());
        let refused = fitting(archive, (MAX_ARCHIVE_MIB << 20) + (1 << 19)).unwrap_err().to_string();
        assert!(refused.starts_with("45.5 MiB  pack/pocl.tar.xz is beyond the 45 MiB"), "{refused}");
    }
}
