//! Gives the library the name that programs look for.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    // Its thread may still run after a program unloads the library.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
