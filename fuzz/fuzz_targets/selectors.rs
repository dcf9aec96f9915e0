//! Runs [`berth_fuzz::selectors`] with libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| berth_fuzz::selectors(data));
