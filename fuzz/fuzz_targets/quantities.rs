//! Runs [`berth_fuzz::quantities`] with libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| berth_fuzz::quantities(data));
