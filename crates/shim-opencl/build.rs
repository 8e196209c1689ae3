//! Generates `opencl_entry.rs`, the exported symbols, and binds the library to its own ones: a loader in the same
//! process exports the same names.

fn main() {
    katydid_api_codegen::build_script(&["opencl_entry.rs"]);
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libkatydid_opencl.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Its fork and exit handlers are called after a program's dlclose, too.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
