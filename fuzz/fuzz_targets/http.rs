//! See `berth_fuzz::http`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| berth_fuzz::http(data));
