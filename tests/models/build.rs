//! Sets `cfg(loom)` for this package alone; in RUSTFLAGS it would be one of every dependency.

fn main() {
    println!("cargo:rustc-cfg=loom");
    println!("cargo:rerun-if-changed=build.rs");
}
