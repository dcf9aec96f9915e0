//! Runs [`berth_fuzz::http`] with libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| berth_fuzz::http(data));
