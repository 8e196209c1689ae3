//! Generates `opencl_entry.rs`, the exported symbols, and binds the library to its own symbols: a loader in the same process
//! exports the same names.

fn main() {
    katydid_api_codegen::build_script(&["opencl_entry.rs"]);
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libkatydid_opencl.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // The library's fork and exit handlers run even after a program's dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
