//! The list of programs under test, `tests/apps/catalog.txt`: names, builds and variants.
//!
//! A malformed line is an error that names it; no line is skipped silently.

pub mod files;
pub mod slice;

use std::fmt;

/// How a program is built, which determines its variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// By nvcc, with the static and with the shared CUDA runtime.
    Runtime,
    /// By g++, linked with `libcuda.so.1`.
    Driver,
    /// By g++, linked with no CUDA library.
    Plain,
    /// By g++ with the headers of CUDA 12, linked with the static runtime of CUDA 12.
    Cudart12,
    /// By nvcc with Open MPI's compiler as host compiler; runs as two ranks of one job.
    Mpi,
    /// Not built: a script for the Python that has numba and NVRTC.
    Python,
    /// By nvcc with the static runtime; used by other tests, but no test itself.
    Fixture,
}

/// Which CUDA runtime a built program uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// `-cudart static`, nvcc's default.
    Static,
    /// The shared runtime, `-cudart shared`.
    Shared,
    /// No runtime from nvcc.
    Plain,
    /// No runtime; Python runs it.
    Python,
    /// `-cudart static`, started by `mpirun`.
    Mpi,
}

impl fmt::Display for Variant {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Static => "static",
            Self::Shared => "shared",
            Self::Plain => "plain",
            Self::Python => "python",
            Self::Mpi => "mpi",
        })
    }
}

/// One line of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct App {
    /// Name of the program and of its expected output.
    pub name: String,
    /// How it is built.
    pub kind: Kind,
    /// Names of its source files, all in one folder below the list's.
    pub sources: Vec<String>,
    /// Further options of the compiler.
    pub options: Vec<String>,
}

impl App {
    /// Returns the variants that are built.
    pub fn variants(&self) -> &'static [Variant] {
        match self.kind {
            Kind::Runtime => &[Variant::Static, Variant::Shared],
            Kind::Driver | Kind::Plain | Kind::Cudart12 => &[Variant::Plain],
            Kind::Python => &[Variant::Python],
            Kind::Mpi => &[Variant::Mpi],
            Kind::Fixture => &[Variant::Static],
        }
    }

    /// Returns whether the built program runs on another machine too.
    pub fn travels(&self) -> bool {
        !matches!(self.kind, Kind::Python | Kind::Mpi)
    }

    /// Returns whether drivers can run it without Katydid. softcuda refuses functions of some programs by name, and NVIDIA's 580
    /// crashes in them with signal 11.
    pub fn runs_directly(&self) -> bool {
        self.name != "process_checkpoint"
    }

    /// Returns whether the program is a test itself.
    pub fn is_test(&self) -> bool {
        self.kind != Kind::Fixture
    }
}

/// Why the list is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CatalogError {
    /// A line without a name, a kind and a source.
    #[error("catalog.txt:{line}: expected `name kind source... [| option...]`")]
    Incomplete {
        /// Number of the line, counted from 1.
        line: usize,
    },
    /// A kind that does not exist.
    #[error(
        "catalog.txt:{line}: no such kind: {kind}; there are runtime, driver, plain, cudart12, python, mpi and fixture"
    )]
    UnknownKind {
        /// Number of the line, counted from 1.
        line: usize,
        /// Word in the place of the kind.
        kind: String,
    },
    /// Two programs with the same name.
    #[error("catalog.txt:{line}: {name} stands there twice")]
    Twice {
        /// Line of the second one, counted from 1.
        line: usize,
        /// Name that occurs twice.
        name: String,
    },
}

/// Returns the programs of this checkout, in the order of the list.
///
/// # Errors
///
/// See [`CatalogError`].
pub fn apps() -> Result<Vec<App>, CatalogError> {
    parse(include_str!("../apps/catalog.txt"))
}

fn parse(text: &str) -> Result<Vec<App>, CatalogError> {
    let mut apps: Vec<App> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let app = parse_line(index + 1, line)?;
        if apps.iter().any(|other| other.name == app.name) {
            return Err(CatalogError::Twice { line: index + 1, name: app.name });
        }
        apps.push(app);
    }
    Ok(apps)
}

fn parse_line(line: usize, text: &str) -> Result<App, CatalogError> {
    let (what, options) = text.split_once('|').unwrap_or((text, ""));
    let mut fields = what.split_whitespace().map(str::to_owned);
    let (Some(name), Some(kind)) = (fields.next(), fields.next()) else {
        return Err(CatalogError::Incomplete { line });
    };
    let kind = match kind.as_str() {
        "runtime" => Kind::Runtime,
        "driver" => Kind::Driver,
        "plain" => Kind::Plain,
        "cudart12" => Kind::Cudart12,
        "python" => Kind::Python,
        "mpi" => Kind::Mpi,
        "fixture" => Kind::Fixture,
        _ => return Err(CatalogError::UnknownKind { line, kind }),
    };
    let sources: Vec<String> = fields.collect();
    if sources.is_empty() {
        return Err(CatalogError::Incomplete { line });
    }
    Ok(App { name, kind, sources, options: options.split_whitespace().map(str::to_owned).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_this_checkout_is_understood() {
        let apps = apps().unwrap();
        assert!(apps.iter().filter(|app| app.is_test()).count() >= 16);
    }

    #[test]
    fn options_stand_behind_the_bar() {
        let apps = parse("# comment\n\na  runtime  a.cu b.cu | -rdc=true -x y\n").unwrap();
        assert_eq!(apps[0].sources, ["a.cu", "b.cu"]);
        assert_eq!(apps[0].options, ["-rdc=true", "-x", "y"]);
        assert_eq!(apps[0].variants(), [Variant::Static, Variant::Shared]);
    }

    #[test]
    fn a_line_that_is_not_understood_is_named() {
        assert_eq!(parse("a runtime"), Err(CatalogError::Incomplete { line: 1 }));
        assert_eq!(parse("\na b c"), Err(CatalogError::UnknownKind { line: 2, kind: "b".into() }));
        assert_eq!(parse("a plain b\na plain b"), Err(CatalogError::Twice { line: 2, name: "a".into() }));
    }
}
