//! Runs [`berth_fuzz::schemas`] with libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| berth_fuzz::schemas(data));
