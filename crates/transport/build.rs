//! Tells the compiler about `cfg(loom)`, under which the ring's interleavings are explored.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(loom)");
    println!("cargo::rerun-if-changed=build.rs");
}
