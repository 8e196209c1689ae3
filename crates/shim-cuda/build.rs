//! Generates `entry.rs`, the exported symbols, and gives the library its name.

fn main() {
    katydid_api_codegen::build_script(&["entry.rs"]);
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Its fork and exit handlers run even after a program's dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
