//! See `berth_fuzz::selectors`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| berth_fuzz::selectors(data));
