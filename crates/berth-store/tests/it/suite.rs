//! Tests that every implementation of the store passes.

use std::sync::Arc;

use berth_store::{
    Change, CommitError, ListQuery, MemoryStore, ReadError, SqliteOptions, SqliteStore, Store, WatchEnd, Write,
};
use serde_json::{Value, json};

fn create(key: &str, value: Value) -> Write {
    Write::Create { key: key.to_owned(), value }
}

fn update(key: &str, expected: u64, value: Value) -> Write {
    Write::Update { key: key.to_owned(), expected, value }
}

fn delete(key: &str, expected: u64) -> Write {
    Write::Delete { key: key.to_owned(), expected, last: None }
}

fn keys(store: &dyn Store, query: &ListQuery<'_>) -> Vec<String> {
    store.list(query).unwrap().records.iter().map(|record| record.key.to_string()).collect()
}

/// Runs a test on both stores, with a history of `history` changes and watchers that may lag 8
/// changes behind.
async fn on_both_stores<F: Future<Output = ()>>(history: usize, test: impl Fn(Arc<dyn Store>) -> F) {
    test(Arc::new(MemoryStore::with_limits(history, Some(8)))).await;
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions { history, watcher_buffer: Some(8), bytes_max: None };
    test(Arc::new(SqliteStore::open(&folder.path().join("store.db"), options).unwrap())).await;
}

#[tokio::test]
async fn writes_are_guarded_and_stamped() {
    on_both_stores(100, |store| async move {
        let first = store.commit(create("/a/x", json!({"n": 1}))).await.unwrap();
        assert_eq!(first.record.revision, 1);
        assert_eq!(*first.value, json!({"n": 1, "metadata": {"resourceVersion": "1"}}));
        assert_eq!(*store.get("/a/x").unwrap().value(), *first.value);
        let exists = store.commit(create("/a/x", json!({}))).await.unwrap_err();
        assert_eq!(exists, CommitError::Exists { key: "/a/x".into(), revision: 1 });
        let conflict = store.commit(update("/a/x", 7, json!({}))).await.unwrap_err();
        assert_eq!(conflict, CommitError::Conflict { key: "/a/x".into(), expected: 7, actual: 1 });
        assert_eq!(store.revision(), 1);
        let second = store.commit(update("/a/x", 1, json!({"n": 2}))).await.unwrap();
        assert_eq!(second.record.revision, 2);
        let gone = store.commit(delete("/a/x", 2)).await.unwrap();
        assert_eq!(*gone.value, json!({"n": 2, "metadata": {"resourceVersion": "3"}}));
        assert!(store.get("/a/x").is_none());
        let missing = store.commit(delete("/a/x", 2)).await.unwrap_err();
        assert_eq!(missing, CommitError::NotFound { key: "/a/x".into() });
    })
    .await;
}

#[tokio::test]
async fn pages_of_a_list_are_from_one_revision() {
    on_both_stores(100, |store| async move {
        for key in ["/b/3", "/a/1", "/a/2", "/a/3"] {
            store.commit(create(key, json!({}))).await.unwrap();
        }
        assert_eq!(keys(&*store, &ListQuery::all("/a/")), ["/a/1", "/a/2", "/a/3"]);
        assert_eq!(keys(&*store, &ListQuery::all("")).len(), 4);
        let page = store.list(&ListQuery { limit: 2, ..ListQuery::all("/a/") }).unwrap();
        assert_eq!((page.records.len(), page.remaining, page.revision), (2, 1, 4));
        // The objects change, but the later pages of the list do not.
        store.commit(delete("/a/3", 4)).await.unwrap();
        store.commit(create("/a/25", json!({}))).await.unwrap();
        store.commit(update("/a/2", 3, json!({"new": true}))).await.unwrap();
        let rest = ListQuery { start_after: Some("/a/1"), at_revision: Some(4), ..ListQuery::all("/a/") };
        assert_eq!(keys(&*store, &rest), ["/a/2", "/a/3"]);
        assert_eq!(store.list(&rest).unwrap().records[0].revision, 3);
        assert_eq!(keys(&*store, &ListQuery::all("/a/")), ["/a/1", "/a/2", "/a/25"]);
        // The remaining count comes from the page before, or is computed if that was not listed.
        let page = |after, limit| {
            let query = ListQuery { start_after: Some(after), limit, at_revision: Some(4), ..ListQuery::all("/a/") };
            let page = store.list(&query).unwrap();
            (page.records.iter().map(|record| record.key.to_string()).collect::<Vec<_>>(), page.remaining)
        };
        assert_eq!(page("/a/", 1), (vec!["/a/1".to_owned()], 2));
        assert_eq!(page("/a/1", 1), (vec!["/a/2".to_owned()], 1));
        assert_eq!(page("/a/2", 1), (vec!["/a/3".to_owned()], 0));
        assert_eq!(page("/a/0", 2), (vec!["/a/1".to_owned(), "/a/2".to_owned()], 1));
        assert_eq!(page("/a/2", 5), (vec!["/a/3".to_owned()], 0));
        let early = store.list(&ListQuery { at_revision: Some(99), ..ListQuery::all("") }).unwrap_err();
        assert_eq!(early, ReadError::Future { requested: 99, current: 7 });
    })
    .await;
}

#[tokio::test]
async fn watchers_get_all_changes_after_their_revision_in_order() {
    on_both_stores(100, |store| async move {
        for key in ["/a/1", "/b/1", "/a/2"] {
            store.commit(create(key, json!({"labels": key}))).await.unwrap();
        }
        let mut watcher = store.watch("/a/", 1).unwrap();
        let mut single = store.watch("/a/2", 0).unwrap();
        store.commit(update("/a/2", 3, json!({}))).await.unwrap();
        store.commit(delete("/a/1", 1)).await.unwrap();
        let mut seen = Vec::new();
        while let Some(event) = watcher.try_next().unwrap() {
            let kind = match &event.change {
                Change::Created => "created",
                Change::Updated(_) => "updated",
                Change::Deleted(_) => "deleted",
            };
            seen.push(format!("{} {kind} {}", event.revision(), event.record.key));
        }
        assert_eq!(seen, ["3 created /a/2", "4 updated /a/2", "5 deleted /a/1"]);
        assert_eq!(single.next().await.unwrap().revision(), 3);
        let update = single.next().await.unwrap();
        assert_eq!(update.previous().unwrap()["labels"], "/a/2");
        assert_eq!(update.value()["metadata"]["resourceVersion"], "4");
    })
    .await;
}

#[tokio::test]
async fn reading_compacted_history_is_an_error() {
    on_both_stores(3, |store| async move {
        for number in 1..=6 {
            store.commit(create(&format!("/a/{number}"), json!({}))).await.unwrap();
        }
        assert_eq!(store.compacted(), 3);
        let error = store.watch("/a/", 2).unwrap_err();
        assert_eq!(error, ReadError::Compacted { requested: 2, oldest: 3 });
        assert!(store.list(&ListQuery { at_revision: Some(2), ..ListQuery::all("/a/") }).is_err());
        assert_eq!(keys(&*store, &ListQuery { at_revision: Some(3), ..ListQuery::all("/a/") }).len(), 3);
        assert!(store.watch("/a/", 3).is_ok());
        store.compact(6);
        // The durable store compacts before the next write at the latest.
        store.commit(create("/a/7", json!({}))).await.unwrap();
        assert!(store.watch("/a/", 5).is_err());
        assert_eq!(keys(&*store, &ListQuery::all("/a/")).len(), 7);
    })
    .await;
}

#[tokio::test]
async fn slow_watchers_are_dropped_with_an_error() {
    on_both_stores(100, |store| async move {
        let mut slow = store.watch("/a/", 0).unwrap();
        let mut other = store.watch("/b/", 0).unwrap();
        for number in 0..20 {
            store.commit(create(&format!("/a/{number}"), json!({}))).await.unwrap();
        }
        let mut seen = 0;
        let end = loop {
            match slow.next().await {
                Ok(_) => seen += 1,
                Err(end) => break end,
            }
        };
        assert_eq!((seen, end), (8, WatchEnd::Dropped));
        assert!(other.try_next().unwrap().is_none());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn racing_writers_lose_no_update() {
    on_both_stores(10_000, |store| async move {
        store.commit(create("/counter", json!({"n": 0}))).await.unwrap();
        let mut watcher = store.watch("", 1).unwrap();
        let reader = tokio::spawn(async move {
            let mut last = 1;
            while last < 1 + 4 * 50 {
                // The watcher may be dropped, as it lags at most 8 changes; then this check ends
                // early.
                let Ok(event) = watcher.next().await else { return };
                assert_eq!(event.revision(), last + 1);
                last += 1;
            }
        });
        let writers: Vec<_> = (0..4)
            .map(|_| {
                let store = store.clone();
                tokio::spawn(async move {
                    let mut done = 0;
                    while done < 50 {
                        let record = store.get("/counter").unwrap();
                        let n = record.value()["n"].as_i64().unwrap();
                        let write = update("/counter", record.revision, json!({"n": n + 1}));
                        match store.commit(write).await {
                            Ok(_) => done += 1,
                            Err(CommitError::Conflict { .. }) => tokio::task::yield_now().await,
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap();
        }
        reader.await.unwrap();
        assert_eq!(store.get("/counter").unwrap().value()["n"], 200);
        assert_eq!(store.revision(), 201);
    })
    .await;
}

#[tokio::test]
async fn condensed_objects_are_read_unchanged() {
    on_both_stores(4, |store| async move {
        let object = |number: u64| {
            let managed_fields = json!([{"manager": "kubectl", "operation": "Update"}]);
            json!({"metadata": {"managedFields": managed_fields, "name": format!("n{number}")},
                "spec": {"number": number, "text": "common filler ".repeat(20)}})
        };
        let without_managed_fields = |object: &Value| {
            let mut object = object.clone();
            object["metadata"].as_object_mut().unwrap().remove("managedFields");
            object.to_string().into_bytes()
        };
        let mut written = Vec::new();
        for number in 0..20 {
            let key = format!("/a/things/{number:02}");
            let created = store.commit(create(&key, object(number))).await.unwrap();
            written.push((created.record.bytes(), created.value));
        }
        let listing = store.list(&ListQuery::all("/a/")).unwrap();
        for (record, (bytes, value)) in listing.records.iter().zip(&written) {
            assert_eq!((record.bytes(), record.value()), (bytes.clone(), value.clone()));
            let [before, after] = record.without_managed_fields();
            assert_eq!([&before[..], &after[..]].concat(), without_managed_fields(value));
        }
        let changed = store.commit(update("/a/things/00", 1, object(100))).await.unwrap();
        assert_eq!(changed.value["spec"]["number"], 100);
        let gone = store.commit(delete("/a/things/01", 2)).await.unwrap();
        assert_eq!(gone.value["spec"]["number"], 1);
    })
    .await;
}
