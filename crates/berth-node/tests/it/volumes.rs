//! Volumes and the root file system.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

use berth_node::Level;
use berth_pod_runtime::{
    ContainerConfig, FileContent, HostPathType, ImageRoot, Mount, PodRuntime, Propagation, RuntimeError, SandboxConfig,
    Volume,
};

use crate::harness::{LEVELS, Node};

fn files(entries: &[(&str, &str)]) -> Volume {
    let content = |data: &str| FileContent { data: data.as_bytes().to_vec(), mode: 0o644 };
    Volume::Files { files: entries.iter().map(|(name, data)| ((*name).to_owned(), content(data))).collect() }
}

fn empty(memory: bool) -> Volume {
    Volume::EmptyDir { memory, size_limit_bytes: None }
}

fn volumes(entries: &[(&str, Volume)]) -> impl FnOnce(&mut SandboxConfig) {
    let volumes: BTreeMap<String, Volume> =
        entries.iter().map(|(name, volume)| ((*name).to_owned(), volume.clone())).collect();
    move |config| config.volumes = volumes
}

fn mount(volume: &str, path: &str, sub_path: &str) -> impl Fn(&mut ContainerConfig) {
    let mount = Mount {
        volume: volume.to_owned(),
        path: path.to_owned(),
        sub_path: sub_path.to_owned(),
        read_only: false,
        propagation: Propagation::Private,
    };
    move |config| config.mounts.push(mount.clone())
}

#[tokio::test]
async fn files_are_updated_in_place_and_at_once() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let pod = node.sandbox_with(volumes(&[("config", files(&[("a", "1"), ("b", "1")]))])).await;
        let script = "while :; do x=$(cat /config/..data/a /config/..data/b 2>/dev/null); \
                      case $x in 12|21) echo mixed;; 22) echo updated; exit;; esac; done";
        let id = node.start_with(&pod, script, mount("config", "/config", "")).await.unwrap().id;
        node.runtime.update_files(&pod, "config", &files(&[("a", "2"), ("b", "2")])).await.unwrap();
        node.exit(&id).await;
        assert!(node.log(&id).await.ends_with("updated\n"), "{level}");
        let wrong = node.runtime.update_files(&pod, "none", &files(&[])).await;
        assert!(matches!(wrong, Err(RuntimeError::NotFound(_))), "{wrong:?}");
    }
}

#[tokio::test]
async fn files_from_the_api_cannot_be_written() {
    let Some(node) = Node::open(Level::Full).await else { return };
    let pod = node.sandbox_with(volumes(&[("config", files(&[("a", "1")]))])).await;
    let id =
        node.start_with(&pod, "echo 2 > /config/a || cat /config/a", mount("config", "/config", "")).await.unwrap().id;
    node.exit(&id).await;
    assert!(node.log(&id).await.ends_with("\n1"));
}

#[tokio::test]
async fn an_empty_dir_is_shared_by_the_containers_of_a_pod_and_outlives_them() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        for memory in [false, true] {
            let pod = node.sandbox_with(volumes(&[("data", empty(memory))])).await;
            let id = node.start_with(&pod, "echo kept > /data/file", mount("data", "/data", "")).await.unwrap().id;
            assert_eq!(node.exit(&id).await.exit_code, 0, "{level}: {}", node.log(&id).await);
            let id = node
                .start_with(&pod, "cat /shared/file", |config| {
                    config.id.name = "second".to_owned();
                    mount("data", "/shared", "")(config);
                })
                .await
                .unwrap()
                .id;
            node.exit(&id).await;
            assert_eq!(node.log(&id).await, "kept\n", "{level}");
        }
    }
}

#[tokio::test]
async fn a_sub_path_with_a_link_out_of_its_volume_is_rejected() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let pod = node.sandbox_with(volumes(&[("data", empty(false))])).await;
        let script = "ln -s /etc /data/escape; mkdir /data/real; echo in > /data/real/file; ln -s real /data/inside";
        let id = node.start_with(&pod, script, mount("data", "/data", "")).await.unwrap().id;
        assert_eq!(node.exit(&id).await.exit_code, 0);
        let escape = node
            .start_with(&pod, "cat /in/passwd", |config| {
                config.id.attempt = 1;
                mount("data", "/in", "escape")(config);
            })
            .await;
        let Err(RuntimeError::Config(message)) = escape else { panic!("{level}: {escape:?}") };
        assert!(message.contains("leads out of the volume"), "{message}");
        // The same run may be started again with a volume that can be mounted.
        let id = node
            .start_with(&pod, "cat /in/file", |config| {
                config.id.attempt = 1;
                mount("data", "/in", "inside")(config);
            })
            .await
            .unwrap()
            .id;
        node.exit(&id).await;
        assert_eq!(node.log(&id).await, "in\n", "{level}");
    }
}

#[tokio::test]
async fn a_volumes_group_may_write_to_it() {
    let Some(node) = Node::open(Level::Full).await else { return };
    for memory in [false, true] {
        let pod = node
            .sandbox_with(|config| {
                volumes(&[("data", empty(memory)), ("secret", files(&[("key", "s")]))])(config);
                config.fs_group = Some(4242);
            })
            .await;
        let id = node
            .start_with(&pod, "echo x > /data/file && stat -c %g /data/file && cat /secret/key", |config| {
                config.security.user = Some(1000);
                config.security.supplemental_groups = vec![4242];
                mount("data", "/data", "")(config);
                mount("secret", "/secret", "")(config);
            })
            .await
            .unwrap()
            .id;
        node.exit(&id).await;
        assert_eq!(node.log(&id).await, "4242\ns", "memory: {memory}");
    }
}

#[tokio::test]
async fn a_host_path_is_mounted_and_a_missing_one_is_rejected() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let folder = tempfile::tempdir().unwrap();
        let host = |path: PathBuf| Volume::HostPath { path, kind: HostPathType::Directory };
        let pod = node.sandbox_with(volumes(&[("host", host(folder.path().to_owned()))])).await;
        let id = node.start_with(&pod, "echo out > /host/file", mount("host", "/host", "")).await.unwrap().id;
        assert_eq!(node.exit(&id).await.exit_code, 0, "{level}: {}", node.log(&id).await);
        assert_eq!(std::fs::read_to_string(folder.path().join("file")).unwrap(), "out\n");
        let mut config = crate::harness::sandbox(crate::harness::uid());
        volumes(&[("host", host(folder.path().join("none")))])(&mut config);
        let refused = node.runtime.run_sandbox(&config).await;
        assert!(matches!(refused, Err(RuntimeError::Config(_))), "{refused:?}");
    }
}

#[tokio::test]
async fn an_image_is_the_root_and_stays_unchanged() {
    let Some(node) = Node::open(Level::Full).await else { return };
    let image = tempfile::tempdir().unwrap();
    let (lower, upper) = (image.path().join("lower"), image.path().join("upper"));
    for folder in ["bin", "etc"] {
        std::fs::create_dir_all(lower.join(folder)).unwrap();
    }
    std::fs::create_dir_all(upper.join("etc")).unwrap();
    std::fs::create_dir(lower.join("open")).unwrap();
    std::fs::set_permissions(lower.join("open"), PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::write(lower.join("etc/passwd"), "app:x:77:78::/home/app:/bin/sh\n").unwrap();
    std::fs::write(upper.join("etc/layer"), "upper\n").unwrap();
    // A link in the image cannot lead a mount to the host's files.
    symlink("/etc/../../../../../..", lower.join("sneaky")).unwrap();
    if !copy_program(&["/bin/sh", "/bin/cat", "/usr/bin/id"], &lower) {
        return;
    }
    let folders = vec![lower.clone(), upper.clone()];
    let pod = node.sandbox_with(volumes(&[("data", empty(false))])).await;
    let id = node
        .start_with(&pod, "cat /etc/layer; id -u; echo $HOME; echo new > /open/file; cat /etc/hostname", |config| {
            config.image.root = Some(ImageRoot::Layers { folders: folders.clone() });
            config.image.user = berth_pod_runtime::UserSpec("app".to_owned());
            config.image.env = vec!["PATH=/bin:/usr/bin".to_owned()];
            mount("data", "/sneaky/berth-test-data", "")(config);
        })
        .await
        .unwrap()
        .id;
    node.exit(&id).await;
    let log = node.log(&id).await;
    assert!(log.contains("upper\n") && log.contains("77\n/home/app\n") && log.ends_with("pod\n"), "{log}");
    assert!(!std::path::Path::new("/berth-test-data").exists());
    assert!(!lower.join("berth-test-data").exists());
    assert!(!lower.join("open/file").exists());
    let unknown = node
        .start_with(&pod, "", |config| {
            config.id.attempt = 1;
            config.image.root = Some(ImageRoot::Layers { folders });
            config.image.user = berth_pod_runtime::UserSpec("missing".to_owned());
        })
        .await;
    assert!(matches!(unknown, Err(RuntimeError::Config(_))), "{unknown:?}");
}

#[tokio::test]
async fn containers_write_to_a_copy_of_the_hosts_files() {
    let Some(node) = Node::open(Level::Full).await else { return };
    let name = format!("berth-test-{}", std::process::id());
    let (exit, log) = node.run(&format!("echo x > /etc/{name}; cat /etc/{name}; ls -A /tmp /run; touch /tmp/y")).await;
    assert_eq!(exit.exit_code, 0);
    assert_eq!(log, "x\n/run:\n\n/tmp:\n");
    assert!(!std::path::Path::new("/etc").join(&name).exists());
    let pod = node.sandbox().await;
    let id = node.start(&pod, "ls -A /tmp /run && echo ready && sleep 1000").await;
    node.wait_for_log(&id, "ready").await;
    let written = std::fs::read_dir(node.pod_folder(&pod).join("containers/main_0/upper")).unwrap();
    assert_eq!(written.count(), 0, "what covers the host's files is written to the disk for each container");
    let (exit, _) = node.run_with("echo x > /etc/new", |config| config.security.read_only_root_filesystem = true).await;
    assert_ne!(exit.exit_code, 0);
}

#[tokio::test]
async fn a_removed_pod_leaves_no_mounts() {
    let Some(node) = Node::open(Level::Full).await else { return };
    let pod = node.sandbox_with(volumes(&[("data", empty(true))])).await;
    let id = node.start_with(&pod, "touch /data/x; echo up; sleep 1000", mount("data", "/data", "")).await.unwrap().id;
    node.wait_for_log(&id, "up").await;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&pod.0), "mounts of a pod are seen outside of it");
    let folder = node.pod_folder(&pod);
    assert!(std::fs::metadata(&folder).unwrap().mode() & 0o066 == 0, "other users cannot list the pod's folder");
    node.runtime.remove_sandbox(&pod).await.unwrap();
    assert!(!folder.exists());
    assert!(std::fs::read_dir(node.folder.path().join("node/trash")).unwrap().next().is_none());
}

/// Copies programs with their libraries into an image. Skips the test if `ldd` is missing.
fn copy_program(programs: &[&str], image: &std::path::Path) -> bool {
    let Ok(output) = std::process::Command::new("ldd").args(programs).output() else {
        berth_testing::skip("ldd is not installed");
        return false;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let libraries = text.split_whitespace().filter(|word| word.starts_with('/') && !word.ends_with(':'));
    for path in programs.iter().copied().chain(libraries) {
        let target = image.join(path.trim_start_matches('/'));
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::copy(path, target).unwrap();
    }
    true
}

#[tokio::test]
async fn a_volume_of_an_image_has_the_files_of_all_layers_and_cannot_be_written() {
    let Some(node) = Node::open(Level::Full).await else { return };
    let images = tempfile::tempdir().unwrap();
    std::fs::set_permissions(images.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let layer = |name: &str, files: &[(&str, &str)]| {
        let folder = images.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        for (file, text) in files {
            std::fs::write(folder.join(file), text).unwrap();
        }
        folder
    };
    let folders = vec![layer("low", &[("a", "low"), ("b", "low")]), layer("high", &[("b", "high")])];
    let layered = Volume::Image { root: ImageRoot::Layers { folders: folders.clone() } };
    let one = Volume::Image { root: ImageRoot::Layers { folders: folders[..1].to_vec() } };
    let folder = Volume::Image { root: ImageRoot::Folder { path: folders[1].clone() } };
    for (volume, expected) in [(layered, "low high"), (one, "low low"), (folder, "none high")] {
        let pod = node.sandbox_with(volumes(&[("image", volume)])).await;
        let script = "cd /image; for f in a b; do cat $f 2>/dev/null || printf none; echo; done; : > x || :";
        let id = node.start_with(&pod, script, mount("image", "/image", "")).await.unwrap().id;
        node.exit(&id).await;
        let log = node.log(&id).await;
        let found: Vec<&str> = log.lines().take(2).collect();
        assert_eq!(found.join(" "), expected, "{log}");
        assert!(log.contains("Read-only file system"), "{log}");
    }
    assert!(!folders.iter().any(|folder| folder.join("x").exists()));
}
