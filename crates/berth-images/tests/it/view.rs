//! An image as a container sees it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use berth_images::{Form, Imported, Name, Store, import};
use berth_pod_runtime::{Image, ImageRoot};

use crate::build::{Built, Compressed, LayerBytes, image, write_named};

/// Entries by path: `dir MODE`, `file MODE CONTENT` or `-> TARGET`.
pub type View = BTreeMap<String, String>;

/// A store in a temporary folder.
pub struct Place {
    pub folder: tempfile::TempDir,
    pub store: Store,
}

impl Place {
    pub fn new(form: Form) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open_as(&folder.path().join("images"), form).expect("a store");
        Self { folder, store }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn import(&self, image: &Built) -> berth_images::Result<Vec<Imported>> {
        let layout = tempfile::tempdir().expect("a folder");
        write_named(layout.path(), "example.com/app:1", image);
        import(&self.store, layout.path(), None)
    }

    pub fn get(&self, name: &str) -> Image {
        let name = Name::parse(name).expect("a name");
        let record = self.store.get(&name).expect("readable").expect("the image is in the store");
        self.store.image(&name, &record)
    }
}

/// The forms in which this machine can keep layers.
pub fn forms() -> Vec<Form> {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::open(&folder.path().join("images")).expect("a store");
    if store.form() == Form::Flat {
        berth_testing::skip("layers for overlayfs need root");
        return vec![Form::Flat];
    }
    vec![Form::Overlay, Form::Flat]
}

/// Imports an image of these layers in each form and compares it with a container's view.
#[track_caller]
pub fn check(layers: &[LayerBytes], expected: &[(&str, &str)]) {
    let expected: View = expected.iter().map(|(path, entry)| ((*path).to_owned(), (*entry).to_owned())).collect();
    for form in forms() {
        let place = Place::new(form);
        place.import(&image(layers, &serde_json::json!({}), Compressed::Gzip)).expect("imported");
        if let Some(found) = view(&place.get("example.com/app:1")) {
            assert_eq!(found, expected, "{form:?}");
        }
    }
}

/// Lists an image's files, through overlayfs if it has several layers. `None` if it cannot be
/// mounted.
pub fn view(image: &Image) -> Option<View> {
    let Some(ImageRoot::Layers { folders }) = &image.root else { panic!("no layers: {image:?}") };
    if let [folder] = folders.as_slice() {
        return Some(list(folder));
    }
    let place = tempfile::tempdir().expect("a folder");
    let lower: Vec<String> = folders.iter().rev().map(|folder| folder.display().to_string()).collect();
    let options = format!("ro,lowerdir={}", lower.join(":"));
    let mounted =
        Command::new("mount").args(["-t", "overlay", "-o", &options, "berth-test"]).arg(place.path()).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        berth_testing::skip("overlayfs cannot be mounted here");
        return None;
    }
    let found = list(place.path());
    let unmounted = Command::new("umount").arg(place.path()).status().expect("umount runs");
    assert!(unmounted.success(), "unmounted");
    Some(found)
}

fn list(root: &Path) -> View {
    fn walk(root: &Path, folder: &Path, view: &mut View) {
        for entry in fs::read_dir(folder).expect("readable") {
            let path = entry.expect("readable").path();
            let meta = fs::symlink_metadata(&path).expect("readable");
            let mode = meta.permissions().mode() & 0o7777;
            let shown = path.strip_prefix(root).expect("below").display().to_string();
            let text = if meta.is_symlink() {
                format!("-> {}", fs::read_link(&path).expect("a link").display())
            } else if meta.is_dir() {
                walk(root, &path, view);
                format!("dir {mode:o}")
            } else if meta.is_file() {
                format!("file {mode:o} {}", String::from_utf8_lossy(&fs::read(&path).expect("readable")))
            } else {
                format!("other {:?}", meta.file_type())
            };
            view.insert(shown, text);
        }
    }
    let mut view = View::new();
    walk(root, root, &mut view);
    view
}
