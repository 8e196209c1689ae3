//! The glue for build scripts: products by their names.

use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::source::{SourceError, SpecFiles};
use crate::{dispatch, driver, function, implemented, message, opencl, soft, stub};

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
    let source = SpecFiles::read(&spec)?;
    let out = directory("OUT_DIR")?;
    for &product in products {
        let path = out.join(product);
        let text = generate(&source, product, &manifest)?;
        fs::write(&path, text).map_err(|source| SourceError::File { path, source })?;
    }
    Ok(())
}

fn generate(source: &SpecFiles, product: &str, manifest: &Path) -> Result<String, SourceError> {
    Ok(match product {
        "opencl_function.rs" => function::generate_plain(&source.opencl),
        "opencl_message.rs" => message::generate_messages(source.opencl_messages()),
        "opencl_entry.rs" => opencl::entries(&source.opencl),
        "opencl_dispatch.rs" => opencl::dispatch(source),
        "opencl_table.rs" => opencl::table(&source.opencl),
        "function.rs" => function::generate(&source.cuda),
        "handles.rs" => function::handles(&source.cuda),
        "message.rs" => message::generate(source),
        "entry.rs" => stub::generate(&source.cuda),
        "dispatch.rs" => dispatch::generate(source),
        "functions.rs" => driver::generate(&source.cuda),
        "soft_entry.rs" => {
            let root = manifest.join("../..");
            for path in implemented::DECLARATION_PATHS {
                println!("cargo::rerun-if-changed={}", root.join(path).display());
            }
            soft::generate(&source.cuda, &implemented::implemented(&root)?)
        }
        other => return Err(SourceError::Product(other.to_owned())),
    })
}

fn directory(variable: &'static str) -> Result<PathBuf, SourceError> {
    env::var_os(variable).map(PathBuf::from).ok_or(SourceError::Environment(variable))
}
