//! Runs [`berth_fuzz::patches`] with libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| berth_fuzz::patches(data));
