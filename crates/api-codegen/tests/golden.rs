//! Every product is held to kept output. `cargo xtask bless` (or `KATYDID_BLESS=1`) rewrites it: read the
//! difference before committing it.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::{Path, PathBuf};
use std::{env, fs};

use katydid_api_codegen::{Source, coverage, dispatch, driver, function, message, opencl, soft, stub};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn source() -> Source {
    Source::read(&directory()).unwrap()
}

fn implemented() -> String {
    fs::read_to_string(directory().join("implemented.txt")).unwrap()
}

fn compare(name: &str, text: &str) {
    let path = directory().join(name);
    if env::var_os("KATYDID_BLESS").is_some() {
        fs::write(&path, text).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == text, "{name} differs from what the generator writes now; KATYDID_BLESS=1 rewrites it");
}

#[test]
fn functions_are_generated_as_kept() {
    compare("function.txt", &function::generate(&source().cuda));
}

#[test]
fn messages_are_generated_as_kept() {
    compare("message.txt", &message::generate(&source()));
}

#[test]
fn stubs_are_generated_as_kept() {
    compare("stub.txt", &stub::generate(&source().cuda));
}

#[test]
fn dispatch_is_generated_as_kept() {
    compare("dispatch.txt", &dispatch::generate(&source()));
}

#[test]
fn opencl_is_generated_as_kept() {
    let source = source();
    compare("opencl_entry.txt", &opencl::entries(&source.opencl));
    compare("opencl_dispatch.txt", &opencl::dispatch(&source));
    compare("opencl_table.txt", &opencl::table(&source.opencl));
}

#[test]
fn the_driver_table_is_generated_as_kept() {
    compare("driver.txt", &driver::generate(&source().cuda));
}

#[test]
fn softcuda_symbols_are_generated_as_kept() {
    compare("soft.txt", &soft::generate(&source().cuda, &implemented()));
}

#[test]
fn the_coverage_page_is_generated_as_kept() {
    compare("coverage.md", &coverage::generate(&source().cuda, &implemented()));
}

#[test]
fn the_published_coverage_page_is_true() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let soft = fs::read_to_string(root.join("crates/softcuda/implemented.txt")).unwrap();
    let page = coverage::generate(&Source::read(&root.join("spec")).unwrap().cuda, &soft);
    compare("../../../../docs/api-coverage.md", &page);
}

#[test]
fn the_published_coverage_of_opencl_is_true() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = opencl::coverage(&Source::read(&root.join("spec")).unwrap().opencl);
    compare("../../../../docs/opencl-coverage.md", &page);
}

#[test]
fn a_changed_line_changes_the_hash() {
    let hash = |opencl| Source::from_texts(["f (x: u32) call none 2.0", "g () call none -", opencl, ""]).unwrap().hash;
    assert_ne!(hash("clF (x: u32) call none 1.0"), hash("clF (x: u64) call none 1.0"));
    let hash = |cuda| Source::from_texts([cuda, "", "", ""]).unwrap().hash;
    assert_ne!(hash("f (x: u32) call none 2.0"), hash("f (x: u64) call none 2.0"));
}

#[test]
fn a_name_that_no_line_has_does_not_compile() {
    let text = soft::generate(&source().cuda, "cuNoSuchFunction\n");
    assert!(text.starts_with("compile_error!(\"implemented.txt: `cuNoSuchFunction` is not in spec/cuda.api\");"));
}
