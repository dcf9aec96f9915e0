//! `cargo xtask definitions`: writes the CustomResourceDefinitions of berth-api from its types.

use std::process::ExitCode;

use anyhow::Context;

/// Writes the files of `crates/berth-api/definitions`, and prints the names of those that changed.
pub fn main() -> ExitCode {
    match write() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask definitions: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn write() -> anyhow::Result<()> {
    let folder = crate::workspace_root().join("crates/berth-api/definitions");
    for (name, text) in berth_api::schema::files() {
        let path = folder.join(name);
        if std::fs::read_to_string(&path).is_ok_and(|present| present == text) {
            continue;
        }
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        println!("{}", path.display());
    }
    Ok(())
}
