//! The files of a container: from mappings, from the store, and without either.

use std::sync::Arc;

use berth_images::{Config, Declared, Form, Mapping, NodeImages, Target};
use berth_pod_runtime::{Image, ImagePullPolicy, ImageRequest, ImageRoot, Images, RuntimeError};
use serde_json::json;

use crate::build::{Compressed, Layer, image};
use crate::view::Place;

fn request(reference: &str, policy: ImagePullPolicy) -> ImageRequest {
    ImageRequest { reference: reference.into(), policy, credentials: Vec::new() }
}

async fn ensure(images: &NodeImages, reference: &str, policy: ImagePullPolicy) -> Result<Image, RuntimeError> {
    images.ensure(&request(reference, policy)).await
}

fn refusal(result: Result<Image, RuntimeError>) -> (&'static str, String) {
    match result {
        Err(RuntimeError::Image { reason, message }) => (reason, message),
        other => panic!("no refusal: {other:?}"),
    }
}

fn mapping(image: &str, target: Target) -> Mapping {
    Mapping { image: image.into(), target, declared: Declared::default() }
}

#[tokio::test]
async fn an_image_that_is_not_imported_runs_on_the_host_with_a_notice() {
    let place = Place::new(Form::Flat);
    let images = NodeImages::new(place.store.clone(), Config::default());
    for policy in [ImagePullPolicy::Always, ImagePullPolicy::IfNotPresent, ImagePullPolicy::Never] {
        let found = ensure(&images, "python:3.12", policy).await.expect("the host");
        assert_eq!((found.id.as_str(), &found.root, found.reference.as_str()), ("host", &None, "python:3.12"));
        let notice = found.notice.expect("a notice");
        assert!(notice.contains("\"python:3.12\" is not imported and has no mapping"), "{notice}");
        assert!(notice.contains("berth image import FILE --name python:3.12"), "{notice}");
    }
}

#[tokio::test]
async fn an_imported_image_is_used_with_any_pull_policy() {
    let place = Place::new(Form::Flat);
    let run = json!({ "Cmd": ["/a"] });
    place.import(&image(&[Layer::new().file("a", "1").done()], &run, Compressed::No)).expect("imported");
    for otherwise in [Target::Host, Target::Refuse, Target::Pull] {
        let images = NodeImages::new(place.store.clone(), Config { otherwise, ..Config::default() });
        for policy in [ImagePullPolicy::Always, ImagePullPolicy::IfNotPresent, ImagePullPolicy::Never] {
            let found = ensure(&images, "example.com/app:1", policy).await.expect("the image");
            assert_eq!((found.cmd, found.notice), (vec!["/a".to_owned()], None));
            assert!(matches!(found.root, Some(ImageRoot::Layers { folders }) if folders.len() == 1));
        }
    }
}

#[tokio::test]
async fn the_first_mapping_that_matches_decides() {
    let place = Place::new(Form::Flat);
    place.import(&image(&[], &json!({}), Compressed::No)).expect("imported");
    let folder = place.folder.path().to_owned();
    let declared =
        Declared { entrypoint: vec!["/usr/bin/agnhost".into()], env: vec!["A=1".into()], ..Declared::default() };
    let agnhost = Mapping { image: "*/agnhost:*".into(), target: Target::Host, declared };
    let config = Config {
        mappings: vec![
            agnhost,
            mapping("pytorch/*", Target::Folder(folder.clone())),
            mapping("lost", Target::Folder("/no/such/folder".into())),
            mapping("example.com/*", Target::Host),
            mapping("*", Target::Refuse),
        ],
        ..Config::default()
    };
    let images = NodeImages::new(place.store.clone(), config);
    let policy = ImagePullPolicy::Always;
    let found = ensure(&images, "registry.k8s.io/e2e-test-images/agnhost:2.5", policy).await.expect("mapped");
    assert_eq!((found.entrypoint[0].as_str(), found.env[0].as_str()), ("/usr/bin/agnhost", "A=1"));
    assert_eq!((found.root, found.notice), (None, None));
    let found = ensure(&images, "pytorch/pytorch:2.9", policy).await.expect("mapped");
    assert_eq!(found.root, Some(ImageRoot::Folder { path: folder.clone() }));
    assert_eq!(found.id, format!("folder:{}", folder.display()));
    // A mapping comes before the store.
    assert_eq!(ensure(&images, "example.com/app:1", policy).await.expect("mapped").id, "host");
    let (reason, message) = refusal(ensure(&images, "lost", policy).await);
    assert_eq!(reason, "ErrImagePull");
    assert!(message.contains("/no/such/folder, which is not a folder"), "{message}");
    assert_eq!(refusal(ensure(&images, "other", policy).await).0, "ErrImagePull");
}

#[tokio::test]
async fn strict_images_are_rejected_with_the_remedy() {
    let place = Place::new(Form::Flat);
    let images = NodeImages::new(place.store.clone(), Config { otherwise: Target::Refuse, ..Config::default() });
    let (reason, message) = refusal(ensure(&images, "python", ImagePullPolicy::IfNotPresent).await);
    assert_eq!(reason, "ErrImagePull");
    assert!(message.contains("berth image import FILE --name python"), "{message}");
    let (reason, message) = refusal(ensure(&images, "python", ImagePullPolicy::Never).await);
    assert_eq!(reason, "ErrImageNeverPull");
    assert!(message.contains("berth image import FILE --name python"), "{message}");
}

#[tokio::test]
async fn a_name_that_is_no_reference_is_rejected() {
    let place = Place::new(Form::Flat);
    let images = NodeImages::new(place.store.clone(), Config::default());
    for reference in ["", "UPPER/Case", "a b", "x@sha256:1"] {
        let (reason, message) = refusal(ensure(&images, reference, ImagePullPolicy::Never).await);
        assert_eq!(reason, "InvalidImageName", "{reference:?}: {message}");
    }
}

#[tokio::test]
async fn an_unreachable_registry_is_an_image_pull_error() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let place = Place::new(Form::Flat);
    let images =
        Arc::new(NodeImages::new(place.store.clone(), Config { otherwise: Target::Pull, ..Config::default() }));
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let reference = format!("127.0.0.1:{port}/app:1");
    let (reason, message) = refusal(ensure(&images, &reference, ImagePullPolicy::IfNotPresent).await);
    assert_eq!(reason, "ErrImagePull");
    assert!(message.starts_with(&format!("cannot pull {reference}: ")), "{message}");
    let (reason, _) = refusal(ensure(&images, &reference, ImagePullPolicy::Never).await);
    assert_eq!(reason, "ErrImageNeverPull");
}
