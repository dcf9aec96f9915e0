//! See `berth_fuzz::schemas`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| berth_fuzz::schemas(data));
