//! The spec files as the generator takes them.

use std::path::{Path, PathBuf};
use std::{fs, io};

use katydid_api_spec::{Api, SpecError, parse, parse_with};

/// The spec files, parsed, with the hash that shim and worker compare.
pub struct SpecFiles {
    /// The functions of the CUDA driver.
    pub cuda: Api,
    /// The messages besides them.
    pub session: Api,
    /// The functions of OpenCL.
    pub opencl: Api,
    /// The messages that carry them.
    pub opencl_session: Api,
    /// BLAKE3 over all files: two builds understand each other exactly when it is equal.
    pub hash: [u8; 32],
}

/// Why nothing was generated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// A spec file breaks the grammar.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error that the system returned.
        source: io::Error,
    },
    /// A build script asked for a product that does not exist.
    #[error("no product is called `{0}`")]
    Product(String),
    /// A build script runs outside of cargo.
    #[error("{0} is not set: this runs as a build script only")]
    Environment(&'static str),
}

impl SpecFiles {
    /// Reads all spec files from `directory`.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or the first line that breaks the grammar.
    pub fn read(directory: &Path) -> Result<Self, SourceError> {
        let text = |name: &str| read(&directory.join(name));
        Ok(Self::from_texts([
            &text("cuda.api")?,
            &text("session.api")?,
            &text("opencl.api")?,
            &text("opencl-session.api")?,
        ])?)
    }

    /// Parses all files from memory: `cuda.api`, `session.api`, `opencl.api`, `opencl-session.api`.
    ///
    /// # Errors
    ///
    /// The first line that breaks the grammar.
    pub fn from_texts(texts: [&str; 4]) -> Result<Self, SpecError> {
        let mut hasher = blake3::Hasher::new();
        texts.iter().for_each(|text| {
            hasher.update(text.as_bytes());
        });
        let [cuda, session, opencl, opencl_session] = texts;
        let (cuda, opencl) = (parse("cuda.api", cuda)?, parse("opencl.api", opencl)?);
        Ok(Self {
            session: parse_with("session.api", session, &cuda.types)?,
            opencl_session: parse_with("opencl-session.api", opencl_session, &opencl.types)?,
            cuda,
            opencl,
            hash: *hasher.finalize().as_bytes(),
        })
    }

    /// All messages of a CUDA session in the order of their opcodes, which start at 1.
    pub fn messages(&self) -> impl Iterator<Item = (u16, &katydid_api_spec::Function)> + Clone {
        let session = self.session.functions.iter();
        let cuda = self.cuda.functions.iter().filter(|function| function.has_message());
        (1..).zip(session.chain(cuda))
    }

    /// Messages of an OpenCL session, each with its opcode.
    pub fn opencl_messages(&self) -> impl Iterator<Item = (u16, &katydid_api_spec::Function)> + Clone {
        (1..).zip(self.opencl_session.functions.iter())
    }
}

pub(crate) fn read(path: &Path) -> Result<String, SourceError> {
    fs::read_to_string(path).map_err(|source| SourceError::File { path: path.to_owned(), source })
}
