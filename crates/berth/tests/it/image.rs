//! `berth image`, as a user runs it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// SHA-256 of an empty tar archive: 1024 zero bytes.
const EMPTY: &str = "sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef";

/// Writes an image as `docker save` does, into a folder.
fn write_image(folder: &Path) {
    fs::create_dir(folder).expect("created");
    fs::write(folder.join("layer.tar"), [0; 1024]).expect("written");
    let config = format!(
        r#"{{"architecture":"amd64","os":"linux","config":{{}},"rootfs":{{"type":"layers","diff_ids":["{EMPTY}"]}}}}"#
    );
    fs::write(folder.join("config.json"), config).expect("written");
    let manifest = r#"[{"Config":"config.json","RepoTags":["app:1"],"Layers":["layer.tar"]}]"#;
    fs::write(folder.join("manifest.json"), manifest).expect("written");
}

fn berth(data: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.arg("image").arg("--data-dir").arg(data).args(arguments).output().expect("berth runs")
}

fn text(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn images_are_imported_listed_and_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (data, image) = (folder.path().join("data"), folder.path().join("image"));
    write_image(&image);
    let imported = berth(&data, &["import", &image.display().to_string()]);
    let (out, error) = text(&imported);
    assert!(imported.status.success() && out.starts_with("imported docker.io/library/app:1 (sha256:"), "{out}{error}");
    let (out, _) = text(&berth(&data, &["list"]));
    let rows: Vec<Vec<&str>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["IMAGE", "DIGEST", "SIZE", "ORIGIN"]);
    assert_eq!((rows.len(), rows[1][0], rows[1][2], rows[1][3]), (2, "docker.io/library/app:1", "0.0Mi", "imported"));
    let removed = berth(&data, &["rm", "app:1"]);
    assert!(removed.status.success(), "{:?}", text(&removed));
    let again = berth(&data, &["rm", "app:1"]);
    let (_, error) = text(&again);
    assert!(!again.status.success() && error.contains("image docker.io/library/app:1 is not in the store"), "{error}");
}

#[test]
fn a_file_that_is_no_image_is_rejected_with_the_expected_formats() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notes.txt");
    fs::write(&path, "text").expect("written");
    let refused = berth(&folder.path().join("data"), &["import", &path.display().to_string()]);
    let (_, error) = text(&refused);
    assert!(!refused.status.success() && error.contains("notes.txt"), "{error}");
    let refused = berth(&folder.path().join("data"), &["pull", "Not An Image"]);
    let (_, error) = text(&refused);
    assert!(!refused.status.success() && error.contains("is not an image reference"), "{error}");
}
