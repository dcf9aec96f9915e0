//! Import of archives of all forms, names, platforms, and removal.

use std::fs;

use berth_images::{Form, Name, Store, import};
use serde_json::json;

use crate::build::{
    Built, Compressed, Layer, architecture, image, image_for, pack, write_layout, write_named, write_saved,
};
use crate::view::{Place, view};

fn app() -> Built {
    let run = json!({
        "Entrypoint": ["/bin/app"], "Cmd": ["serve"], "Env": ["A=1", "PATH=/bin"], "User": "1000:100",
        "WorkingDir": "/srv", "StopSignal": "SIGINT",
    });
    let base = Layer::new().file("bin/app", "#!").done();
    image(&[base, Layer::new().file("srv/data", "x").done()], &run, Compressed::Gzip)
}

#[track_caller]
fn check_app(place: &Place, name: &str) {
    let found = place.get(name);
    assert_eq!(found.entrypoint, ["/bin/app"]);
    assert_eq!(found.cmd, ["serve"]);
    assert_eq!(found.env, ["A=1", "PATH=/bin"]);
    assert_eq!((found.user.0.as_str(), found.working_dir.as_str()), ("1000:100", "/srv"));
    assert_eq!(found.stop_signal, "SIGINT");
    assert_eq!(found.notice, None);
    let files = view(&found).expect("one folder");
    assert_eq!(files.get("srv/data").map(String::as_str), Some("file 644 x"));
}

#[test]
fn an_oci_image_layout_is_imported_from_a_folder_and_from_archives() {
    let place = Place::new(Form::Flat);
    let layout = place.path("layout");
    write_named(&layout, "example.com/app:1", &app());
    let imported = import(&place.store, &layout, None).expect("imported");
    assert_eq!((imported[0].name.as_str(), &imported[0].digest), ("example.com/app:1", &app().digest()));
    check_app(&place, "example.com/app:1");
    for (i, compressed) in [Compressed::No, Compressed::Gzip, Compressed::Zstd].into_iter().enumerate() {
        let archive = pack(&layout, &place.path("app.tar"), compressed);
        let name = Name::parse(&format!("app:{i}")).expect("a name");
        import(&place.store, &archive, Some(&name)).expect("imported");
        check_app(&place, &format!("docker.io/library/app:{i}"));
    }
}

#[test]
fn a_docker_save_file_is_imported_with_repeated_layers() {
    let place = Place::new(Form::Flat);
    let built = app();
    let mut layers = built.layers.clone();
    layers.push(built.layers[0].clone());
    let run = serde_json::from_slice::<serde_json::Value>(&built.config).expect("json")["config"].clone();
    write_saved(&place.path("app.tar"), "app:2", &image(&layers, &run, Compressed::No));
    let imported = import(&place.store, &place.path("app.tar"), None).expect("imported");
    assert_eq!(imported[0].name, "docker.io/library/app:2");
    check_app(&place, "app:2");
}

#[test]
fn the_image_for_this_machine_is_chosen_from_an_index() {
    let place = Place::new(Form::Flat);
    let foreign = image_for("s390x", &[Layer::new().file("foreign", "1").done()], &json!({}), Compressed::No);
    let own = app();
    let with_platform = |image: &Built, architecture: &str| {
        let mut entry = image.descriptor();
        entry["platform"] = json!({ "os": "linux", "architecture": architecture });
        entry
    };
    let index = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [with_platform(&foreign, "s390x"), with_platform(&own, architecture())],
    });
    let bytes = index.to_string().into_bytes();
    let digest = crate::build::digest(&bytes);
    let layout = place.path("layout");
    let entry = json!({
        "mediaType": "application/vnd.oci.image.index.v1+json", "digest": digest, "size": bytes.len(),
        "annotations": { "io.containerd.image.name": "example.com/multi:1" },
    });
    write_layout(&layout, &[&foreign, &own], &[entry]);
    fs::write(layout.join("blobs/sha256").join(&digest[7..]), bytes).expect("written");
    import(&place.store, &layout, None).expect("imported");
    check_app(&place, "example.com/multi:1");

    write_layout(&layout, &[&foreign], &[with_platform(&foreign, "s390x")]);
    let name = Name::parse("foreign").expect("a name");
    let error = import(&place.store, &layout, Some(&name)).expect_err("refused").to_string();
    assert!(error.ends_with("only for: linux/s390x"), "{error}");
}

#[test]
fn an_image_for_another_architecture_has_a_notice() {
    let place = Place::new(Form::Flat);
    let foreign = image_for("s390x", &[Layer::new().file("a", "1").done()], &json!({}), Compressed::No);
    place.import(&foreign).expect("imported");
    let notice = place.get("example.com/app:1").notice.expect("a notice");
    assert!(notice.contains("is for s390x"), "{notice}");
}

#[test]
fn an_image_without_a_name_needs_one() {
    let place = Place::new(Form::Flat);
    let (layout, built) = (place.path("layout"), app());
    write_layout(&layout, &[&built], &[built.descriptor()]);
    let error = import(&place.store, &layout, None).expect_err("no name").to_string();
    assert!(error.ends_with("has no name; set one with --name"), "{error}");
    fs::write(place.path("notes"), "text").expect("written");
    assert!(import(&place.store, &place.path("notes"), None).is_err());
    fs::create_dir(place.path("empty")).expect("created");
    let error = import(&place.store, &place.path("empty"), None).expect_err("empty").to_string();
    assert!(error.contains("it contains no image"), "{error}");
}

#[test]
fn images_share_layers_and_removal_keeps_layers_of_other_images() {
    for form in crate::view::forms() {
        let place = Place::new(form);
        let base = Layer::new().file("base", "b").done();
        let one = image(&[base.clone(), Layer::new().file("one", "1").done()], &json!({}), Compressed::Gzip);
        let two = image(&[base, Layer::new().file("two", "2").done()], &json!({}), Compressed::Gzip);
        let (name_one, name_two) = (Name::parse("one").expect("a name"), Name::parse("two").expect("a name"));
        for (name, built) in [(&name_one, &one), (&name_two, &two)] {
            let layout = tempfile::tempdir().expect("a folder");
            write_named(layout.path(), "x:1", built);
            import(&place.store, layout.path(), Some(name)).expect("imported");
        }
        let layers = || fs::read_dir(place.path("images/layers")).expect("readable").count();
        assert_eq!(layers(), if form == Form::Overlay { 3 } else { 2 });
        let (removed, unknown) = place.store.remove(std::slice::from_ref(&name_one)).expect("removed");
        assert_eq!((unknown.len(), removed.layers_in_use, removed.is_postponed), (0, 0, false));
        assert_eq!(removed.bytes, if form == Form::Overlay { 1 } else { 2 });
        assert_eq!(place.store.get(&name_one).expect("readable"), None);
        assert_eq!(view(&place.get("two")).map(|files| files.len()).unwrap_or(2), 2);
        let (_, unknown) = place.store.remove(&[name_one.clone(), name_two]).expect("removed");
        assert_eq!(unknown, [name_one]);
        assert_eq!(layers(), 0);
    }
}

#[test]
fn a_layer_that_is_mounted_is_removed_later() {
    let place = Place::new(Form::Overlay);
    if !crate::view::forms().contains(&Form::Overlay) {
        return;
    }
    let layers = [Layer::new().file("a", "1").done(), Layer::new().file("b", "1").done()];
    place.import(&image(&layers, &json!({}), Compressed::No)).expect("imported");
    let Some(berth_pod_runtime::ImageRoot::Layers { folders }) = place.get("example.com/app:1").root else {
        panic!("no layers")
    };
    let mount = place.path("mount");
    fs::create_dir(&mount).expect("created");
    let options = format!("ro,lowerdir={}:{}", folders[1].display(), folders[0].display());
    let run = |program: &str, arguments: &[&str]| {
        let status = std::process::Command::new(program).args(arguments).arg(&mount).status();
        status.is_ok_and(|status| status.success())
    };
    if !run("mount", &["-t", "overlay", "-o", &options, "berth-test"]) {
        berth_testing::skip("overlayfs cannot be mounted here");
        return;
    }
    let name = Name::parse("example.com/app:1").expect("a name");
    let (removed, _) = place.store.remove(&[name]).expect("removed");
    let was_kept = folders.iter().all(|folder| folder.is_dir());
    assert!(run("umount", &[]));
    assert_eq!((removed.layers_in_use, was_kept), (2, true));
    assert_eq!(place.store.collect_garbage().expect("removed").bytes, 2);
    assert!(folders.iter().all(|folder| !folder.exists()));
}

#[test]
fn a_new_import_replaces_the_image_of_its_name() {
    let place = Place::new(Form::Flat);
    place.import(&app()).expect("imported");
    let second = image(&[Layer::new().file("second", "2").done()], &json!({}), Compressed::No);
    place.import(&second).expect("imported");
    let files = view(&place.get("example.com/app:1")).expect("one folder");
    assert_eq!(files.keys().collect::<Vec<_>>(), ["second"]);
    assert_eq!(fs::read_dir(place.path("images/layers")).expect("readable").count(), 1);
}

#[test]
fn remains_of_an_interrupted_import_are_removed() {
    let place = Place::new(Form::Flat);
    let leftover = place.path("images/tmp/layer-x/fs");
    fs::create_dir_all(&leftover).expect("created");
    fs::create_dir_all(place.path("images/layers/0000-flat/fs")).expect("created");
    fs::write(place.path("images/blobs/sha256-x"), "part").expect("written");
    place.import(&app()).expect("imported");
    let count = |name: &str| fs::read_dir(place.path("images").join(name)).expect("readable").count();
    assert_eq!((count("tmp"), count("blobs"), count("layers")), (0, 0, 1));
    // A name whose layers are missing is not an image.
    fs::remove_dir_all(place.path("images/layers")).expect("removed");
    let name = Name::parse("example.com/app:1").expect("a name");
    assert_eq!(place.store.get(&name).expect("readable"), None);
    place.import(&app()).expect_err("the folder of layers does not exist");
    Store::open(&place.path("images")).expect("made again");
    place.import(&app()).expect("imported again");
}

#[test]
fn imports_at_the_same_time_keep_all_names() {
    let place = Place::new(Form::Flat);
    let layout = place.path("layout");
    write_named(&layout, "x:1", &app());
    std::thread::scope(|scope| {
        for i in 0..8 {
            let (store, layout) = (place.store.clone(), layout.clone());
            scope.spawn(move || {
                let name = Name::parse(&format!("app:{i}")).expect("a name");
                import(&store, &layout, Some(&name)).expect("imported");
            });
        }
    });
    assert_eq!(place.store.list().expect("readable").len(), 8);
    check_app(&place, "app:7");
}
