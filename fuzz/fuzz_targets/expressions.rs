//! See `berth_fuzz::expressions`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| berth_fuzz::expressions(data));
