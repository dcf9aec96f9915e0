//! The walks agree with the embedded API server over TLS.

use std::process::Command;

use crate::print_uncaptured;

#[test]
fn the_embedded_server_follows_the_api_conventions() {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask")).arg("http-conformance").output();
    let output = output.expect("cargo builds the command before this test");
    print_uncaptured(&format!("walks over HTTP:\n{}", String::from_utf8_lossy(&output.stdout)));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
