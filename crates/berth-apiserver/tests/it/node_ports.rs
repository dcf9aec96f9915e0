//! Node ports and address families of Services. The expected responses were recorded from
//! kube-apiserver 1.36.

use serde_json::{Value, json};

use crate::harness::{Server, server};

const SERVICES: &str = "/api/v1/namespaces/default/services";

fn service(name: &str, mut spec: Value) -> Value {
    if spec.get("ports").is_none() {
        spec["ports"] = json!([{"port": 80}]);
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
}

async fn made(server: &Server, name: &str, spec: Value) -> Value {
    server.post(SERVICES, service(name, spec)).await.expect(201)["spec"].clone()
}

async fn rejected(server: &Server, code: u16, spec: Value) -> String {
    let answer = server.post(SERVICES, service("rejected", spec)).await.expect(code);
    answer["message"].as_str().unwrap().to_owned()
}

async fn changed(server: &Server, name: &str, spec: Value) -> Value {
    let path = format!("{SERVICES}/{name}");
    server.patch(&path, "merge-patch", json!({"spec": spec})).await.expect(200)["spec"].clone()
}

fn node_ports(spec: &Value) -> Vec<i64> {
    spec["ports"].as_array().unwrap().iter().filter_map(|port| port["nodePort"].as_i64()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_node_port_is_assigned_kept_and_released() {
    let server = server();
    let first = node_ports(&made(&server, "a", json!({"type": "NodePort"})).await);
    let second = node_ports(&made(&server, "b", json!({"type": "LoadBalancer"})).await);
    assert!(first.len() == 1 && second.len() == 1 && first != second);
    assert!(first.iter().chain(&second).all(|port| (30_000..=32_767).contains(port)));
    let none = made(&server, "c", json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false})).await;
    assert!(node_ports(&none).is_empty());
    // An update that omits the node port keeps it, by the name of the port.
    let mut whole = server.get(&format!("{SERVICES}/a")).await.expect(200);
    whole["spec"]["ports"] = json!([{"port": 81}]);
    let put = server.put(&format!("{SERVICES}/a"), whole).await.expect(200);
    assert_eq!((node_ports(&put["spec"]), &put["spec"]["ports"][0]["port"]), (first.clone(), &json!(81)));
    let other = changed(&server, "a", json!({"ports": [{"port": 81, "nodePort": 30090}]})).await;
    assert_eq!(node_ports(&other), [30090]);
    // The previous port is free again, and so are the ports of a Service that became a ClusterIP
    // Service or was deleted.
    let again = made(&server, "d", json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": first[0]}]})).await;
    assert_eq!(node_ports(&again), first);
    let inside = changed(&server, "a", json!({"type": "ClusterIP"})).await;
    assert!(node_ports(&inside).is_empty() && inside["externalTrafficPolicy"].is_null());
    made(&server, "e", json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30090}]})).await;
    server.delete(&format!("{SERVICES}/e"), Value::Null).await.expect(200);
    made(&server, "e", json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30090}]})).await;
    // A change to ClusterIP may also remove ports, but not add node ports.
    let ports = json!([{"name": "a", "port": 80}, {"name": "b", "port": 81}]);
    let two = made(&server, "two", json!({"type": "NodePort", "ports": ports})).await;
    let kept = json!([two["ports"][0]]);
    let other = json!({"type": "ClusterIP", "ports": [{"name": "a", "port": 80, "nodePort": 30091}]});
    server.patch(&format!("{SERVICES}/two"), "merge-patch", json!({"spec": other})).await.expect(422);
    let inside = changed(&server, "two", json!({"type": "ClusterIP", "ports": kept})).await;
    assert_eq!((node_ports(&inside), inside["ports"].as_array().unwrap().len()), (vec![], 1));
    // External IPs also make a Service reachable from outside.
    let reached = changed(&server, "two", json!({"externalIPs": ["1.2.3.4"]})).await;
    assert_eq!(reached["externalTrafficPolicy"], "Cluster");
    // A dry run reserves no port.
    let dry = server.post(&format!("{SERVICES}?dryRun=All"), service("f", json!({"type": "NodePort"}))).await;
    let would = node_ports(&dry.expect(201)["spec"]);
    assert_eq!(node_ports(&made(&server, "f", json!({"type": "NodePort"})).await), would);
    // No manager owns assigned values.
    let stored = server.get(&format!("{SERVICES}/f")).await.expect(200);
    let owned = stored["metadata"]["managedFields"].to_string();
    assert!(!owned.contains("nodePort") && !owned.contains("ipFamilies"), "{owned}");
}

#[tokio::test(start_paused = true)]
async fn a_service_may_share_a_node_port_between_protocols_but_two_services_may_not() {
    let server = server();
    let of = |one: Value, other: Value| {
        let mut ports = json!([{"name": "a"}, {"name": "b", "protocol": "UDP"}]);
        for (port, given) in ports.as_array_mut().unwrap().iter_mut().zip([one, other]) {
            port["port"] = given[0].clone();
            port["nodePort"] = given[1].clone();
        }
        json!({"type": "NodePort", "ports": ports})
    };
    let shared = node_ports(&made(&server, "a", of(json!([53, null]), json!([53, null]))).await);
    assert_eq!(shared[0], shared[1]);
    let own = node_ports(&made(&server, "b", of(json!([53, null]), json!([54, null]))).await);
    assert_ne!(own[0], own[1]);
    assert_eq!(node_ports(&made(&server, "c", of(json!([53, null]), json!([53, 30100]))).await), [30100, 30100]);
    assert_eq!(node_ports(&made(&server, "d", of(json!([53, 30101]), json!([53, 30102]))).await), [30101, 30102]);
    let taken = |index: usize, port: i64| {
        format!(
            "Service \"rejected\" is invalid: spec.ports[{index}].nodePort: Invalid value: {port}: \
             provided port is already allocated"
        )
    };
    assert_eq!(rejected(&server, 422, of(json!([53, 30099]), json!([54, 30099]))).await, taken(1, 30099));
    let udp = json!({"type": "NodePort", "ports": [{"port": 80, "protocol": "UDP", "nodePort": 30100}]});
    assert_eq!(rejected(&server, 422, udp.clone()).await, taken(0, 30100));
    let path = format!("{SERVICES}?dryRun=All");
    let dry = server.post(&path, service("rejected", udp)).await.expect(422);
    assert_eq!(dry["message"], taken(0, 30100));
    for port in [80, 70_000, -1] {
        let message = format!(
            "Service \"rejected\" is invalid: spec.ports[0].nodePort: Invalid value: {port}: provided port is not in \
             the valid range. The range of valid ports is 30000-32767"
        );
        let spec = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]});
        assert_eq!(rejected(&server, 422, spec).await, message);
    }
    // An update shares a node port only if the client requests it.
    made(&server, "e", json!({"ports": [{"name": "a", "port": 53}, {"name": "b", "port": 53, "protocol": "UDP"}]}))
        .await;
    let drawn = node_ports(&changed(&server, "e", json!({"type": "NodePort"})).await);
    assert!(drawn.len() == 2 && drawn[0] != drawn[1]);
    let same = node_ports(&changed(&server, "e", of(json!([53, 30500]), json!([54, 30500]))).await);
    assert_eq!(same, [30500, 30500]);
}

#[tokio::test(start_paused = true)]
async fn concurrent_creates_get_different_node_ports() {
    let server = server();
    let creates = (0..30).map(|n| server.post(SERVICES, service(&format!("s{n}"), json!({"type": "NodePort"}))));
    let answers = futures::future::join_all(creates).await;
    let mut ports: Vec<i64> = answers.into_iter().flat_map(|answer| node_ports(&answer.expect(201)["spec"])).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 30);
    let fixed = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 32000}]});
    let creates = (0..10).map(|n| server.post(SERVICES, service(&format!("f{n}"), fixed.clone())));
    let answers = futures::future::join_all(creates).await;
    assert_eq!(answers.iter().filter(|answer| answer.code == 201).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_load_balancer_with_local_traffic_policy_gets_a_health_check_port() {
    let server = server();
    let local = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"});
    let spec = made(&server, "a", local.clone()).await;
    let drawn = spec["healthCheckNodePort"].as_i64().unwrap();
    assert!((30_000..=32_767).contains(&drawn) && node_ports(&spec) != [drawn]);
    let kept = changed(&server, "a", json!({"sessionAffinity": "ClientIP"})).await;
    assert_eq!(kept["healthCheckNodePort"], drawn);
    let path = format!("{SERVICES}/a");
    let other = json!({"spec": {"healthCheckNodePort": 31000}});
    let answer = server.patch(&path, "merge-patch", other).await.expect(422);
    let message = "Service \"a\" is invalid: spec.healthCheckNodePort: Forbidden: field is immutable";
    assert_eq!(answer["message"], message);
    assert_eq!(
        changed(&server, "a", json!({"externalTrafficPolicy": "Cluster"})).await["healthCheckNodePort"],
        json!(null)
    );
    let mut asked = local.clone();
    asked["healthCheckNodePort"] = 30111.into();
    assert_eq!(made(&server, "b", asked.clone()).await["healthCheckNodePort"], 30111);
    let message = "Internal error occurred: failed to allocate requested HealthCheck NodePort 30111: provided port is \
                   already allocated";
    assert_eq!(rejected(&server, 500, asked).await, message);
    let message = "Service \"rejected\" is invalid: spec.healthCheckNodePort: Invalid value: 30112: may only be set when \
                   `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
    assert_eq!(rejected(&server, 422, json!({"type": "LoadBalancer", "healthCheckNodePort": 30112})).await, message);
    let named = json!({"type": "NodePort"});
    let node = changed(&server, "b", named).await;
    assert_eq!((&node["healthCheckNodePort"], &node["allocateLoadBalancerNodePorts"]), (&json!(null), &json!(null)));
    assert_eq!(node["externalTrafficPolicy"], "Local");
}

#[tokio::test(start_paused = true)]
async fn fields_of_other_service_types_are_rejected() {
    let server = server();
    for (spec, message) in [
        (
            json!({"ports": [{"port": 80, "nodePort": 30081}]}),
            "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
        ),
        (
            json!({"externalTrafficPolicy": "Local"}),
            "spec.externalTrafficPolicy: Invalid value: \"Local\": may only be set for externally-accessible services",
        ),
        (
            json!({"allocateLoadBalancerNodePorts": true}),
            "spec.allocateLoadBalancerNodePorts: Forbidden: may only be used when `type` is 'LoadBalancer'",
        ),
        (
            json!({"type": "NodePort", "clusterIP": "None"}),
            "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services",
        ),
        (
            json!({"type": "NodePort", "externalTrafficPolicy": "Foo"}),
            "spec.externalTrafficPolicy: Unsupported value: \"Foo\": supported values: \"Cluster\", \"Local\"",
        ),
    ] {
        assert_eq!(rejected(&server, 422, spec).await, format!("Service \"rejected\" is invalid: {message}"));
    }
}

#[tokio::test(start_paused = true)]
async fn the_cluster_has_only_ipv4_addresses() {
    let server = server();
    const NOT_DUAL: &str = "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for \
                            dual-stack services";
    const SEVERAL: &str = "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or \
                           'PreferDualStack' when multiple IP families are specified";
    for (spec, message) in [
        (json!({"ipFamilyPolicy": "RequireDualStack"}), NOT_DUAL),
        (
            json!({"ipFamilies": ["IPv6"]}),
            "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
        ),
        (json!({"ipFamilies": ["IPv4", "IPv6"]}), SEVERAL),
        (json!({"ipFamilies": ["IPv4", "IPv4"]}), "spec.ipFamilies[1]: Duplicate value: \"IPv4\""),
        (
            json!({"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack"}),
            "spec.ipFamilies[1]: Invalid value: \"IPv6\": not configured on this cluster",
        ),
        (
            json!({"ipFamilies": ["IPv7"]}),
            "spec.ipFamilies[0]: Unsupported value: \"IPv7\": supported values: \"IPv4\", \"IPv6\"",
        ),
        (
            json!({"type": "ExternalName", "externalName": "x.y", "ipFamilies": ["IPv4"]}),
            "spec.ipFamilies: Forbidden: may not be set for ExternalName services",
        ),
    ] {
        assert_eq!(rejected(&server, 422, spec).await, format!("Service \"rejected\" is invalid: {message}"));
    }
    let headless =
        |policy: Value, families: Value| json!({"clusterIP": "None", "ipFamilyPolicy": policy, "ipFamilies": families});
    let mut selecting = headless(json!(null), json!(null));
    selecting["selector"] = json!({"a": "b"});
    for (number, (spec, policy, families)) in [
        (json!({}), "SingleStack", json!(["IPv4"])),
        (json!({"ipFamilyPolicy": "PreferDualStack"}), "PreferDualStack", json!(["IPv4"])),
        (selecting, "SingleStack", json!(["IPv4"])),
        // Headless Services without a selector may have addresses of either family.
        (headless(json!(null), json!(null)), "RequireDualStack", json!(["IPv4", "IPv6"])),
        (headless(json!(null), json!(["IPv6"])), "RequireDualStack", json!(["IPv6", "IPv4"])),
        (headless(json!("SingleStack"), json!(null)), "SingleStack", json!(["IPv4"])),
    ]
    .into_iter()
    .enumerate()
    {
        let spec = made(&server, &format!("s{number}"), spec).await;
        assert_eq!((&spec["ipFamilyPolicy"], &spec["ipFamilies"]), (&json!(policy), &families));
    }
    let kept = changed(&server, "s1", json!({"ipFamilyPolicy": null, "ipFamilies": null})).await;
    assert_eq!((&kept["ipFamilyPolicy"], &kept["ipFamilies"]), (&json!("PreferDualStack"), &json!(["IPv4"])));
    let name = json!({"type": "ExternalName", "externalName": "x.y"});
    let named = changed(&server, "s1", name).await;
    assert_eq!(named["ipFamilies"].as_array().or(named["clusterIPs"].as_array()), None);
    assert_eq!(named["internalTrafficPolicy"], Value::Null);
}
