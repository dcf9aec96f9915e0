//! The semantics of layers: whiteouts, links, folders of lower layers, attributes.

use std::os::unix::fs::MetadataExt;

use berth_images::Form;
use berth_pod_runtime::ImageRoot;
use tar::EntryType;

use crate::build::{Compressed, Layer, image};
use crate::view::{Place, check, forms};

#[test]
fn upper_layers_replace_files_of_lower_ones() {
    let lower = Layer::new().folder("etc", 0o755).file("etc/a", "one").file("etc/b", "one").done();
    let upper = Layer::new().file("etc/a", "two").done();
    check(&[lower, upper], &[("etc", "dir 755"), ("etc/a", "file 644 two"), ("etc/b", "file 644 one")]);
}

#[test]
fn a_whiteout_removes_files_and_folders_of_lower_layers() {
    let lower =
        Layer::new().file("a", "1").file("d/x", "1").file("d/y", "1").folder("e", 0o755).file("e/z", "1").done();
    let upper = Layer::new().file(".wh.a", "").file("d/.wh.x", "").file(".wh.e", "").done();
    check(&[lower, upper], &[("d", "dir 755"), ("d/y", "file 644 1")]);
}

#[test]
fn an_opaque_folder_has_entries_of_its_own_layer_only() {
    let lower = Layer::new().file("d/old", "1").file("d/s/old", "1").file("e", "1").done();
    // In either order within the layer.
    let before = Layer::new().file("d/.wh..wh..opq", "").file("d/new", "2").file("d/s/new", "2").done();
    let after = Layer::new().file("d/new", "2").file("d/s/new", "2").file("d/.wh..wh..opq", "").done();
    let expected =
        [("d", "dir 755"), ("d/new", "file 644 2"), ("d/s", "dir 755"), ("d/s/new", "file 644 2"), ("e", "file 644 1")];
    check(&[lower.clone(), before], &expected);
    check(&[lower, after], &expected);
}

#[test]
fn a_folder_that_is_deleted_and_created_again_hides_the_lower_one() {
    let lower = Layer::new().file("d/old", "1").done();
    let expected = [("d", "dir 700"), ("d/new", "file 644 2")];
    let before = Layer::new().file(".wh.d", "").folder("d", 0o700).file("d/new", "2").done();
    check(&[lower.clone(), before], &expected);
    let after = Layer::new().folder("d", 0o700).file("d/new", "2").file(".wh.d", "").done();
    check(&[lower.clone(), after], &expected);
    // The whiteout is in a separate layer.
    let gone = Layer::new().file(".wh.d", "").done();
    let again = Layer::new().folder("d", 0o700).file("d/new", "2").done();
    check(&[lower, gone, again], &expected);
}

#[test]
fn a_whiteout_does_not_remove_an_entry_of_its_own_layer() {
    let lower = Layer::new().file("a", "1").done();
    let upper = Layer::new().file("a", "2").file(".wh.a", "").done();
    check(&[lower, upper], &[("a", "file 644 2")]);
}

#[test]
fn files_and_folders_replace_each_other() {
    let lower = Layer::new().file("a", "1").file("b/x", "1").link("c", "b").done();
    let upper = Layer::new().folder("a", 0o755).file("a/y", "2").file("b", "2").file("c", "2").done();
    check(&[lower, upper], &[("a", "dir 755"), ("a/y", "file 644 2"), ("b", "file 644 2"), ("c", "file 644 2")]);
}

#[test]
fn an_entry_below_a_symbolic_link_of_a_lower_layer_goes_to_its_target() {
    let lower = Layer::new().folder("usr/bin", 0o755).file("usr/bin/sh", "1").link("bin", "usr/bin").done();
    let upper = Layer::new().file("bin/tool", "2").done();
    check(
        &[lower, upper],
        &[
            ("bin", "-> usr/bin"),
            ("usr", "dir 755"),
            ("usr/bin", "dir 755"),
            ("usr/bin/sh", "file 644 1"),
            ("usr/bin/tool", "file 644 2"),
        ],
    );
}

#[test]
fn absolute_links_and_links_upwards_stay_in_the_image() {
    let layer = Layer::new()
        .folder("run", 0o755)
        .link("var/run", "/run")
        .file("var/run/a", "1")
        .link("up", "../../../../run")
        .file("up/b", "1")
        .done();
    check(
        &[layer],
        &[
            ("run", "dir 755"),
            ("run/a", "file 644 1"),
            ("run/b", "file 644 1"),
            ("up", "-> ../../../../run"),
            ("var", "dir 755"),
            ("var/run", "-> /run"),
        ],
    );
}

#[test]
fn a_folder_that_a_layer_only_writes_into_keeps_its_permissions() {
    let lower = Layer::new().folder("tmp", 0o1777).folder("s", 0o700).folder("s/t", 0o750).done();
    let upper = Layer::new().file("tmp/x", "2").file("s/t/y", "2").done();
    check(
        &[lower, upper],
        &[("s", "dir 700"), ("s/t", "dir 750"), ("s/t/y", "file 644 2"), ("tmp", "dir 1777"), ("tmp/x", "file 644 2")],
    );
}

#[test]
fn hard_links_refer_to_files_of_this_and_of_lower_layers() {
    let lower = Layer::new().file("a", "1").done();
    let upper = Layer::new().file("b", "2").hard_link("c", "b").hard_link("d", "/a").done();
    check(&[lower, upper], &[("a", "file 644 1"), ("b", "file 644 2"), ("c", "file 644 2"), ("d", "file 644 1")]);
    let place = Place::new(Form::Flat);
    let layer = Layer::new().file("b", "2").hard_link("c", "b").done();
    place.import(&image(&[layer], &serde_json::json!({}), Compressed::No)).expect("imported");
    let Some(ImageRoot::Layers { folders }) = place.get("example.com/app:1").root else { panic!("no layers") };
    let inode = |name: &str| std::fs::metadata(folders[0].join(name)).expect("a file").ino();
    assert_eq!(inode("b"), inode("c"));
}

#[test]
fn modes_owners_and_times_are_those_of_the_archive() {
    let layer = Layer::new()
        .owned(EntryType::Regular, "su", "", 0o4755, b"x", 0)
        .owned(EntryType::Regular, "mine", "", 0o640, b"x", 1000)
        .owned(EntryType::Directory, "closed", "", 0o555, b"", 1000)
        .owned(EntryType::Regular, "closed/in", "", 0o400, b"x", 1000)
        .done();
    for form in forms() {
        let place = Place::new(form);
        place.import(&image(std::slice::from_ref(&layer), &serde_json::json!({}), Compressed::No)).expect("imported");
        let image = place.get("example.com/app:1");
        let Some(ImageRoot::Layers { folders }) = &image.root else { panic!("no layers") };
        let meta = |name: &str| std::fs::metadata(folders[0].join(name)).expect("a file");
        assert_eq!(meta("su").mode() & 0o7777, 0o4755);
        assert_eq!(meta("mine").mode() & 0o7777, 0o640);
        assert_eq!(meta("closed").mtime(), 1_700_000_000);
        let is_owner_kept = meta("mine").uid() == 1000 && meta("closed").gid() == 1000;
        assert_eq!(is_owner_kept, form == Form::Overlay, "{form:?}");
        // Otherwise its user could not read or remove it.
        assert_eq!(meta("closed").mode() & 0o777, if form == Form::Overlay { 0o555 } else { 0o755 });
        assert_eq!(image.size_bytes, 3);
    }
}

#[test]
fn a_layer_of_either_compression_is_unpacked() {
    for compressed in [Compressed::No, Compressed::Gzip, Compressed::Zstd] {
        let place = Place::new(Form::Flat);
        let layers = [Layer::new().file("a", "1").done(), Layer::new().file("b", "2").done()];
        place.import(&image(&layers, &serde_json::json!({}), compressed)).expect("imported");
        let found = crate::view::view(&place.get("example.com/app:1")).expect("one folder");
        assert_eq!(found.keys().collect::<Vec<_>>(), ["a", "b"]);
    }
}
