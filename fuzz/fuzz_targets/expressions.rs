//! Runs [`berth_fuzz::expressions`] with libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| berth_fuzz::expressions(data));
