//! Generates `entry.rs`, the exported symbols, and gives the library its name.

fn main() {
    katydid_api_codegen::build_script(&["entry.rs"]);
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Its fork and exit handlers are called after a program's dlclose, too.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
