//! Upstream's sample JobSets and their jobs are accepted.

use std::path::{Path, PathBuf};

use berth_api::jobset::v1alpha2::JobSet;
use berth_apimachinery::decode;
use berth_cluster::jobset::webhook::{default_jobset, validate_create};
use berth_cluster::jobset::{self, Gates};
use k8s_openapi::api::batch::v1::Job;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::Value;

use crate::world::{World, eventually};

/// All JobSets below a folder, each with its file, in path order.
fn read(folder: &Path, found: &mut Vec<(PathBuf, Value)>) {
    let mut paths: Vec<PathBuf> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            read(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            let text = std::fs::read_to_string(&path).unwrap();
            let documents = decode::documents(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let sets = documents.into_iter().filter(|document| document["kind"] == "JobSet");
            found.extend(sets.map(|set| (path.clone(), set)));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn upstreams_sample_jobsets_are_accepted_and_make_all_their_jobs() {
    let Some(samples) = berth_testing::shared("scenarios/upstream-samples/jobset") else { return };
    let mut found = Vec::new();
    read(&samples, &mut found);
    assert!(found.len() > 20, "only {} samples", found.len());
    let gates = Gates { restart_job: true, in_place_restart: true, elastic_jobset: true };
    let world = World::with_our_kinds().await;
    let sets: Api<JobSet> = Api::default_namespaced(world.client());
    let mut wanted = 0;
    for (number, (path, mut set)) in found.into_iter().enumerate() {
        default_jobset(&mut set);
        let mut set: JobSet = serde_json::from_value(set).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let errors = validate_create(&set, gates, &|_, _| None);
        assert!(errors.is_empty(), "{}: {errors:?}", path.display());
        // Files share names, and replicated jobs may wait for others: neither matters here.
        set.metadata.namespace = None;
        set.metadata.generate_name = None;
        set.metadata.name = Some(format!("s{number}"));
        set.spec.startup_policy = None;
        set.spec.replicated_jobs.iter_mut().for_each(|entry| entry.depends_on.clear());
        wanted += set.spec.replicated_jobs.iter().map(|entry| entry.replicas.unwrap_or(1)).sum::<i32>();
        sets.create(&PostParams::default(), &set).await.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    let jobs: Api<Job> = Api::default_namespaced(world.client());
    let count = async || jobs.list(&ListParams::default()).await.unwrap().items.len();
    world
        .run(|manager| jobset::install_with(manager, gates), async {
            eventually("all jobs are made", async || count().await == wanted as usize).await;
        })
        .await;
}
