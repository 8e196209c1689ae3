//! The spec files as the generator takes them, and the glue for build scripts.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use katydid_api_spec::{Api, SpecError, parse};

/// Both spec files, parsed, with the hash that shim and worker compare.
pub struct Source {
    /// The functions of the CUDA driver.
    pub cuda: Api,
    /// The messages besides them.
    pub session: Api,
    /// BLAKE3 over both files: two builds understand each other exactly when it is equal.
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
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A build script asked for a product that does not exist.
    #[error("no product is called `{0}`")]
    Product(String),
    /// A build script runs outside of cargo.
    #[error("{0} is not set: this runs as a build script only")]
    Environment(&'static str),
}

impl Source {
    /// Reads `cuda.api` and `session.api` from `directory`.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or the first line that breaks the grammar.
    pub fn read(directory: &Path) -> Result<Self, SourceError> {
        let cuda = read(&directory.join("cuda.api"))?;
        let session = read(&directory.join("session.api"))?;
        Ok(Self::from_texts(&cuda, &session)?)
    }

    /// Parses both files from memory.
    ///
    /// # Errors
    ///
    /// The first line that breaks the grammar.
    pub fn from_texts(cuda: &str, session: &str) -> Result<Self, SpecError> {
        let hash = *blake3::Hasher::new().update(cuda.as_bytes()).update(session.as_bytes()).finalize().as_bytes();
        Ok(Self { cuda: parse("cuda.api", cuda)?, session: parse("session.api", session)?, hash })
    }

    /// All messages in the order of their opcodes, which start at 1.
    pub fn messages(&self) -> impl Iterator<Item = (u16, &katydid_api_spec::Function)> {
        let session = self.session.functions.iter();
        let cuda = self.cuda.functions.iter().filter(|function| function.has_message());
        (1..).zip(session.chain(cuda))
    }
}

/// Body of a build script: writes the named products to `OUT_DIR` and tells cargo what they depend on. A fault
/// is printed where cargo shows it, and ends the build.
pub fn build_script(products: &[&str]) {
    if let Err(error) = run(products) {
        println!("cargo::error={error}");
    }
}

fn run(products: &[&str]) -> Result<(), SourceError> {
    let manifest = directory("CARGO_MANIFEST_DIR")?;
    let spec = manifest.join("../../spec");
    println!("cargo::rerun-if-changed={}", spec.display());
    let source = Source::read(&spec)?;
    let out = directory("OUT_DIR")?;
    for &product in products {
        let path = out.join(product);
        let text = generate(&source, product, &manifest)?;
        fs::write(&path, text).map_err(|source| SourceError::File { path, source })?;
    }
    Ok(())
}

fn generate(source: &Source, product: &str, manifest: &Path) -> Result<String, SourceError> {
    Ok(match product {
        "function.rs" => crate::function::generate(&source.cuda),
        "message.rs" => crate::message::generate(source),
        "entry.rs" => crate::stub::generate(&source.cuda),
        "dispatch.rs" => crate::dispatch::generate(source),
        "functions.rs" => crate::driver::generate(&source.cuda),
        "soft_entry.rs" => {
            let list = manifest.join("implemented.txt");
            println!("cargo::rerun-if-changed={}", list.display());
            crate::soft::generate(&source.cuda, &read(&list)?)
        }
        other => return Err(SourceError::Product(other.to_owned())),
    })
}

fn directory(variable: &'static str) -> Result<PathBuf, SourceError> {
    env::var_os(variable).map(PathBuf::from).ok_or(SourceError::Environment(variable))
}

fn read(path: &Path) -> Result<String, SourceError> {
    fs::read_to_string(path).map_err(|source| SourceError::File { path: path.to_owned(), source })
}
