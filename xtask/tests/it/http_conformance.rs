//! The walks over HTTP agree with the embedded server, over TLS.

use std::process::Command;

use crate::say;

#[test]
fn the_embedded_server_answers_as_the_api_conventions_say() {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask")).arg("http-conformance").output();
    let output = output.expect("the runner was built with this test");
    say(&format!("walks over HTTP:\n{}", String::from_utf8_lossy(&output.stdout)));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
