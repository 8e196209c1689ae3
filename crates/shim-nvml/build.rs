//! Names the library as programs look for it.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    // Its thread may still run when a program lets go of the library.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
