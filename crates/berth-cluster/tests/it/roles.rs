//! Aggregated roles contain their rules.

use berth_cluster::roles;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::world::{World, eventually};

fn role(name: &str, labels: Value, rules: Value) -> ClusterRole {
    serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}, "rules": rules})).unwrap()
}

fn rule(resource: &str) -> Value {
    json!({"apiGroups": ["example.com"], "resources": [resource], "verbs": ["get"]})
}

#[tokio::test(start_paused = true)]
async fn an_aggregated_role_has_only_the_rules_of_the_selected_roles() {
    let world = World::new().await;
    let roles: Api<ClusterRole> = Api::all(world.client());
    let rules = async |name: &str| serde_json::to_value(roles.get(name).await.unwrap().rules).unwrap();
    let until = async {
        let before = roles.get("admin").await.unwrap();
        let mut sum = role("sum", json!({"to": "all"}), json!([rule("mine")]));
        let selectors = json!({"clusterRoleSelectors": [{"matchLabels": {"to": "sum"}}]});
        sum.aggregation_rule = serde_json::from_value(selectors).unwrap();
        let mut all = role("all", json!({}), json!(null));
        let selectors = json!({"clusterRoleSelectors": [{"matchLabels": {"to": "all"}}]});
        all.aggregation_rule = serde_json::from_value(selectors).unwrap();
        let parts = [
            role("b", json!({"to": "sum"}), json!([rule("b"), rule("shared")])),
            role("a", json!({"to": "sum"}), json!([rule("shared"), rule("a")])),
        ];
        for made in [&sum, &all].into_iter().chain(&parts) {
            roles.create(&PostParams::default(), made).await.unwrap();
        }
        let both = json!([rule("shared"), rule("a"), rule("b")]);
        eventually("the sum is written", async || rules("sum").await == both).await;
        eventually("and is updated", async || rules("all").await == both).await;
        let written = roles.get("sum").await.unwrap();
        let managers: Vec<_> =
            written.metadata.managed_fields.into_iter().flatten().filter_map(|it| it.manager).collect();
        assert!(managers.iter().any(|it| it == "clusterrole-aggregation-controller"), "{managers:?}");
        roles.delete("a", &DeleteParams::default()).await.unwrap();
        eventually("and reverted", async || rules("all").await == json!([rule("b"), rule("shared")])).await;
        // The initial roles of a cluster already have their aggregated rules.
        let after = roles.get("admin").await.unwrap();
        assert_eq!(after.metadata.resource_version, before.metadata.resource_version);
    };
    world.run(roles::install, until).await;
}
