//! Generates the exported symbols from `spec/cuda.api` and `src/api`, and names the library as programs know it.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Threads of the executor may still wait in this code when a program closes the library.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    katydid_api_codegen::build_script(&["soft_entry.rs"]);
}
