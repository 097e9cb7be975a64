//! libFuzzer's entry to the target `vduse`; see `targets/vduse.rs`.
#![no_main]

#[allow(dead_code, reason = "each entry uses one of the targets")]
#[path = "../targets/mod.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::vduse::run(data));
