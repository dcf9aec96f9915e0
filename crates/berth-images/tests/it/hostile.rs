//! Archives that try to reach files outside of their image.

use std::fs;
use std::os::unix::fs::MetadataExt;

use berth_images::{Form, import};
use berth_pod_runtime::ImageRoot;
use serde_json::json;
use tar::EntryType;

use crate::build::{Compressed, Layer, LayerBytes, image, write_layout, write_named};
use crate::view::{Place, forms};

/// Imports a hostile image in each form, and requires that nothing outside the store changes.
#[track_caller]
fn check_refused(layers: &[LayerBytes], expected: &str) {
    for form in forms() {
        let place = Place::new(form);
        fs::write(place.path("outside"), "safe").expect("written");
        let error = place.import(&image(layers, &json!({}), Compressed::Gzip)).expect_err("refused").to_string();
        assert!(error.contains(expected), "{form:?}: {error}");
        check_untouched(&place);
        assert!(place.store.list().expect("readable").is_empty());
        let left = fs::read_dir(place.path("images/tmp")).expect("a folder").count();
        assert_eq!(left, 0, "unfinished files are left");
    }
}

#[track_caller]
fn check_untouched(place: &Place) {
    assert_eq!(fs::read_to_string(place.path("outside")).expect("the file"), "safe");
    let mut names: Vec<_> = fs::read_dir(place.folder.path())
        .expect("readable")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["images", "outside"]);
}

/// Imports an unusual but harmless image, and requires that nothing outside the store changes.
fn check_contained(layers: &[LayerBytes]) -> Vec<Place> {
    let contained = forms().into_iter().map(|form| {
        let place = Place::new(form);
        fs::write(place.path("outside"), "safe").expect("written");
        place.import(&image(layers, &json!({}), Compressed::Gzip)).expect("imported");
        check_untouched(&place);
        place
    });
    contained.collect()
}

#[test]
fn paths_that_lead_up_are_rejected() {
    let expected = "its path has the component \"..\"";
    check_refused(&[Layer::new().file("../../../outside", "evil").done()], expected);
    check_refused(&[Layer::new().file("a/../../../../outside", "evil").done()], expected);
    check_refused(&[Layer::new().hard_link("a", "../../../../outside").done()], expected);
    check_refused(&[Layer::new().file(".wh...", "").done()], expected);
}

#[test]
fn symbolic_links_do_not_lead_writes_out_of_the_image() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("victim"), "safe").expect("written");
    let target = folder.path().display().to_string();
    // An absolute link is resolved within the image, where its target is created.
    let layer = Layer::new().link("esc", &target).file("esc/victim", "evil").done();
    check_contained(&[layer]);
    // The same in two layers: by whiteout, by hard link, and by a link in place of the file.
    let link = Layer::new().link("esc", &target).done();
    check_contained(&[link.clone(), Layer::new().file("esc/victim", "evil").done()]);
    check_contained(&[link.clone(), Layer::new().file("esc/.wh.victim", "").done()]);
    check_contained(&[link.clone(), Layer::new().file("esc/.wh..wh..opq", "").done()]);
    let victim = format!("{target}/victim");
    check_contained(&[Layer::new().link("esc", &victim).file("esc", "evil").done()]);
    check_contained(&[Layer::new().link("esc", &victim).hard_link("h", "esc").file("h", "evil").done()]);
    check_refused(&[link, Layer::new().hard_link("h", "esc/victim").file("h", "evil").done()], "does not exist");
    assert_eq!(fs::read_to_string(folder.path().join("victim")).expect("the file"), "safe");
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 1);
}

#[test]
fn cycles_of_symbolic_links_are_rejected() {
    check_refused(&[Layer::new().link("a", "b").link("b", "a").file("a/x", "evil").done()], "which is not a folder");
}

#[test]
fn device_nodes_and_attributes_of_overlayfs_are_not_created() {
    let layer = Layer::new()
        .entry(EntryType::Block, "disk", "", 0o666, b"")
        .entry(EntryType::Char, "null", "", 0o666, b"")
        .pax(&[
            ("SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
            ("SCHILY.xattr.user.overlay.opaque", b"y"),
            ("SCHILY.xattr.user.note", b"kept"),
        ])
        .folder("d", 0o755)
        .file("f", "1")
        .done();
    for place in check_contained(&[layer]) {
        let Some(ImageRoot::Layers { folders }) = place.get("example.com/app:1").root else { panic!("no layers") };
        let found: Vec<_> = fs::read_dir(&folders[0]).expect("readable").map(|e| e.expect("e").file_name()).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        let has = |name: &str| rustix::fs::lgetxattr(folders[0].join("d"), name, &mut [0u8; 64][..]).is_ok();
        assert!(!has("trusted.overlay.redirect") && !has("user.overlay.opaque"));
        // The attribute `user.note` shows that attributes are read at all.
        assert!(has("user.note") || !can_have_attributes(&place), "user.note is missing");
    }
}

/// True if the file system supports user attributes.
fn can_have_attributes(place: &Place) -> bool {
    rustix::fs::lsetxattr(place.path("outside"), "user.probe", b"y", rustix::fs::XattrFlags::empty()).is_ok()
}

#[test]
fn huge_headers_are_rejected_before_they_fill_the_memory() {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(EntryType::XHeader);
    header.set_size(1 << 40);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.resize(4 << 20, b'0');
    check_refused(&[LayerBytes(bytes)], "the headers of an entry exceed");
}

#[test]
fn damaged_blobs_are_rejected() {
    let place = Place::new(Form::Flat);
    let built = image(&[Layer::new().file("a", "1").done()], &json!({}), Compressed::Gzip);
    for (position, part) in [(0, "blobs/sha256/"), (1, "layer 1")] {
        let layout = tempfile::tempdir().expect("a folder");
        write_named(layout.path(), "example.com/app:1", &built);
        let (name, _) = &built.blobs[position];
        let other = if position == 0 {
            let other = image(&[], &json!({}), Compressed::No);
            other.config
        } else {
            Compressed::Gzip.apply(&Layer::new().file("a", "evil").done().0)
        };
        fs::write(layout.path().join("blobs/sha256").join(&name[7..]), other).expect("written");
        let error = import(&place.store, layout.path(), None).expect_err("refused").to_string();
        assert!(error.contains(part) && error.ends_with("the image is damaged"), "{error}");
    }
}

#[test]
fn an_archive_reads_no_file_outside_of_it() {
    let place = Place::new(Form::Flat);
    let secret = Layer::new().file("etc/shadow", "secret").done();
    let path = place.path("secret.tar");
    fs::write(&path, &secret.0).expect("written");
    let built = image(&[secret], &json!({}), Compressed::No);
    // `docker save` archives name the files of their layers.
    for layer in [path.display().to_string(), "link".into(), "../secret.tar".into()] {
        let manifest = json!([{ "Config": "c.json", "RepoTags": ["evil:1"], "Layers": [layer] }]);
        let archive = Layer::new()
            .file("c.json", std::str::from_utf8(&built.config).expect("text"))
            .link("link", &path.display().to_string())
            .file("manifest.json", &manifest.to_string())
            .done();
        fs::write(place.path("evil.tar"), archive.0).expect("written");
        let error = import(&place.store, &place.path("evil.tar"), None).expect_err("refused").to_string();
        let is_refused = error.contains("leads out of the archive") || error.contains("No such file");
        assert!(is_refused, "{layer}: {error}");
    }
}

#[test]
fn digests_that_are_paths_are_rejected() {
    let place = Place::new(Form::Flat);
    let mut built = image(&[Layer::new().file("a", "1").done()], &json!({}), Compressed::No);
    built.manifest["layers"][0]["digest"] = json!("sha512:..");
    let layout = tempfile::tempdir().expect("a folder");
    write_layout(layout.path(), &[&built], &[built.descriptor()]);
    assert!(import(&place.store, layout.path(), None).is_err());
    let mut entry = built.descriptor();
    entry["digest"] = json!(format!("sha384:{}", "0".repeat(96)));
    write_layout(layout.path(), &[&built], &[entry]);
    let error = import(&place.store, layout.path(), None).expect_err("refused").to_string();
    assert!(error.contains("is not a digest that can be verified"), "{error}");
}

#[test]
fn no_other_user_can_reach_the_files_of_images() {
    let place = Place::new(Form::Flat);
    let mode = fs::metadata(place.path("images")).expect("the folder").mode();
    assert_eq!(mode & 0o777, 0o700);
}
