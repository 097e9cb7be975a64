//! libFuzzer's entry to the target `filters`; see `targets/filters.rs`.
#![no_main]

#[allow(dead_code, reason = "each entry uses one of the targets")]
#[path = "../targets/mod.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::filters::run(data));
