//! Expected outputs of programs under test, one text per program.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use crate::catalog::files;

/// Suffix of the texts' file names.
const TEXT_SUFFIX: &str = ".txt";

/// The texts in all folders of one name below a root, such as `expected` in each topic's folder of `tests/apps`.
#[derive(Debug, Clone)]
pub struct Texts {
    root: PathBuf,
    folder: &'static str,
    /// All files below the root, read once: each program looks here, and `tests/apps` has hundreds. It misses texts that are
    /// written later.
    index: Arc<OnceLock<Vec<PathBuf>>>,
}

impl Texts {
    /// Finds the texts in each folder named `folder` at or below `root`.
    pub fn new(root: PathBuf, folder: &'static str) -> Self {
        Self { root, folder, index: Arc::default() }
    }

    /// Returns the texts of other folders below the same root.
    #[must_use]
    pub fn beside(&self, folder: &'static str) -> Self {
        Self { folder, ..self.clone() }
    }

    /// Returns the path of a program's text, or the path at which readers expect it.
    ///
    /// # Errors
    ///
    /// A folder cannot be read, or two texts have one name.
    pub fn path(&self, program: &str) -> io::Result<PathBuf> {
        let name = format!("{program}{TEXT_SUFFIX}");
        let all = match self.all() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            all => all?,
        };
        let found = all.into_iter().find(|path| path.ends_with(&name));
        Ok(found.unwrap_or_else(|| self.root.join(self.folder).join(name)))
    }

    /// Returns the names of the programs that have a text.
    ///
    /// # Errors
    ///
    /// A folder cannot be read, or two texts have one name.
    pub fn programs(&self) -> io::Result<Vec<String>> {
        let stems = self.all()?.into_iter().filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()));
        let mut programs: Vec<String> = stems.collect();
        programs.sort();
        Ok(programs)
    }

    fn all(&self) -> io::Result<Vec<PathBuf>> {
        let index = match self.index.get() {
            Some(index) => index,
            None => {
                let index = files::below(&self.root)?;
                self.index.get_or_init(|| index)
            }
        };
        let is_text = |path: &&PathBuf| path.parent().is_some_and(|parent| parent.ends_with(self.folder));
        let texts: Vec<PathBuf> = index.iter().filter(is_text).cloned().collect();
        files::check_names(&texts)?;
        Ok(texts)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_text_is_found_in_each_topic_and_in_a_folder_that_is_the_root() {
        let folder = tempfile::tempdir().unwrap();
        for topic in ["a/expected", "b/c/expected", "b/expected-else"] {
            fs::create_dir_all(folder.path().join(topic)).unwrap();
        }
        let texts = ["a/expected/one.txt", "b/c/expected/two.txt", "b/expected-else/three.txt", "a/four.txt"];
        texts.iter().for_each(|text| fs::write(folder.path().join(text), "").unwrap());
        let expected = Texts::new(folder.path().to_owned(), "expected");
        assert_eq!(expected.programs().unwrap(), ["one", "two"]);
        assert_eq!(expected.path("two").unwrap(), folder.path().join(texts[1]));
        assert_eq!(expected.path("three").unwrap(), folder.path().join("expected/three.txt"));
        assert_eq!(expected.beside("expected-else").programs().unwrap(), ["three"]);
        assert_eq!(Texts::new(folder.path().join("a/expected"), "expected").programs().unwrap(), ["one"]);
        let missing = folder.path().join("missing");
        assert_eq!(Texts::new(missing.clone(), "expected").path("one").unwrap(), missing.join("expected/one.txt"));
    }

    #[test]
    fn two_texts_of_one_name_are_refused_unless_for_another_driver() {
        let folder = tempfile::tempdir().unwrap();
        for topic in ["a/expected", "a/expected-else", "b/expected"] {
            fs::create_dir_all(folder.path().join(topic)).unwrap();
        }
        for text in ["a/expected/one.txt", "a/expected-else/one.txt"] {
            fs::write(folder.path().join(text), "").unwrap();
        }
        let texts = Texts::new(folder.path().to_owned(), "expected");
        assert_eq!(texts.programs().unwrap(), ["one"]);
        fs::write(folder.path().join("b/expected/one.txt"), "").unwrap();
        assert_eq!(texts.programs().unwrap(), ["one"], "the index is read once");
        let texts = Texts::new(folder.path().to_owned(), "expected");
        let refused = [texts.path("one").unwrap_err(), texts.path("two").unwrap_err(), texts.programs().unwrap_err()];
        assert!(refused.iter().all(|error| error.to_string().contains("a/expected/one.txt")), "{refused:?}");
    }
}
