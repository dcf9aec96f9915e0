use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use berth_pod_runtime::{DnsConfig, HostPathType, HostPort, Limits, Propagation, Protocol, Volume};
use berth_runtime::Cache;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::kubelet::lifecycle::members;
use crate::kubelet::options::{ClusterIps, KubeletOptions, ServiceAddresses};

fn list<K: DeserializeOwned>(values: Value) -> Vec<K> {
    serde_json::from_value(values).expect("objects")
}

fn in_namespace(mut value: Value) -> Value {
    for object in value.as_array_mut().expect("a list") {
        object["metadata"]["namespace"] = object["metadata"]["namespace"].as_str().unwrap_or("ns").into();
    }
    value
}

/// Objects by kind: `configMaps`, `secrets`, `services`, `claims`, `volumes`.
fn objects(mut by_kind: Value) -> Objects {
    let mut take = |kind: &str| match by_kind[kind].take() {
        Value::Null => json!([]),
        value => value,
    };
    Objects {
        config_maps: Cache::for_tests(list::<ConfigMap>(in_namespace(take("configMaps")))),
        secrets: Cache::for_tests(list::<Secret>(in_namespace(take("secrets")))),
        services: Cache::for_tests(list::<Service>(in_namespace(take("services")))),
        claims: Cache::for_tests(list::<PersistentVolumeClaim>(in_namespace(take("claims")))),
        volumes: Cache::for_tests(list::<PersistentVolume>(take("volumes"))),
    }
}

fn pod(spec: Value) -> Pod {
    let metadata = json!({"name": "p", "namespace": "ns", "uid": "u", "labels": {"app": "x", "b": "say \"hi\""}});
    let status = json!({"podIP": "10.1.0.2", "podIPs": [{"ip": "10.1.0.2"}], "hostIP": "192.0.2.1"});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).expect("a pod")
}

/// Calls `check` with the context of a pod.
fn with<T>(spec: Value, by_kind: Value, check: impl Fn(&Context<'_>) -> T) -> T {
    let (pod, objects) = (pod(spec), objects(by_kind));
    let quantity = |text: &str| serde_json::from_value(json!(text)).expect("a quantity");
    let allocatable = Amounts::from([("cpu".to_owned(), quantity("4")), ("memory".to_owned(), quantity("8Gi"))]);
    let status = pod.status.clone().expect("a status");
    check(&Context { pod: &pod, status: &status, objects: &objects, allocatable: &allocatable, services: &ClusterIps })
}

/// The environment of the first container.
fn env(container: Value, by_kind: Value) -> Result<Vec<(String, String)>, String> {
    let mut container = container;
    container["name"] = "c".into();
    with(json!({"containers": [container]}), by_kind, |context| {
        environment(context, &context.pod.spec.as_ref().expect("a spec").containers[0])
    })
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn later_variables_replace_earlier_ones_and_refer_to_them() {
    let maps = json!({"configMaps": [{"metadata": {"name": "m"}, "data": {"A": "1", "B": "2"}}]});
    let container = json!({
        "envFrom": [{"prefix": "P_", "configMapRef": {"name": "m"}}, {"configMapRef": {"name": "m"}},
            {"secretRef": {"name": "no", "optional": true}}],
        "env": [{"name": "B", "value": "$(A)$(P_B)"}, {"name": "C", "value": "$(B) $(UNKNOWN) $$(A)"}]});
    let expected = [("P_A", "1"), ("P_B", "2"), ("A", "1"), ("B", "12"), ("C", "12 $(UNKNOWN) $(A)")];
    assert_eq!(env(container, maps), Ok(pairs(&expected)));
}

#[test]
fn names_of_variables_need_not_be_identifiers() {
    let objects = json!({"configMaps": [{"metadata": {"name": "m"}, "data": {"data-1": "1"}}],
        "secrets": [{"metadata": {"name": "s"}, "data": {"1.key": "dg=="}}]});
    let container = json!({
        "envFrom": [{"prefix": "$_-", "configMapRef": {"name": "m"}}, {"secretRef": {"name": "s"}}],
        "env": [{"name": "my-name", "value": "$($_-data-1)"}]});
    let expected = [("$_-data-1", "1"), ("1.key", "v"), ("my-name", "1")];
    assert_eq!(env(container, objects), Ok(pairs(&expected)));
}

#[test]
fn missing_references_are_errors_unless_they_are_optional() {
    let maps = || {
        json!({"configMaps": [{"metadata": {"name": "m"}, "data": {"A": "1"}}],
        "secrets": [{"metadata": {"name": "s"}, "data": {"k": "dg=="}}]})
    };
    let from = |kind: &str, name: &str, key: &str, optional: bool| {
        let source = json!({kind: {"name": name, "key": key, "optional": optional}});
        env(json!({"env": [{"name": "V", "valueFrom": source}]}), maps())
    };
    assert_eq!(from("secretKeyRef", "s", "k", false), Ok(pairs(&[("V", "v")])));
    assert_eq!(from("configMapKeyRef", "m", "A", false), Ok(pairs(&[("V", "1")])));
    for (kind, name, key, message) in [
        ("configMapKeyRef", "no", "A", "configmap \"no\" not found"),
        ("configMapKeyRef", "m", "no", "couldn't find key no in ConfigMap ns/m"),
        ("secretKeyRef", "no", "k", "secret \"no\" not found"),
        ("secretKeyRef", "s", "no", "couldn't find key no in Secret ns/s"),
    ] {
        assert_eq!(from(kind, name, key, false), Err(message.to_owned()));
        assert_eq!(from(kind, name, key, true), Ok(Vec::new()), "{kind} {name} {key}");
    }
    let all = env(json!({"envFrom": [{"configMapRef": {"name": "no"}}]}), maps());
    assert_eq!(all, Err("configmap \"no\" not found".to_owned()));
}

#[test]
fn fields_and_resources_become_variables() {
    let field = |path: &str| json!({"name": path, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let resource = |name: &str, divisor: &str| json!({"name": name, "valueFrom": {"resourceFieldRef": {"resource": name, "divisor": divisor}}});
    let container = json!({
        "env": [field("metadata.name"), field("metadata.labels['app']"), field("metadata.annotations['no']"),
            field("status.podIP"), field("status.hostIP"), resource("limits.cpu", "1m"), resource("requests.memory", "1Mi"),
            resource("limits.memory", "1Gi"), resource("requests.cpu", "")],
        "resources": {"limits": {"cpu": "1500m"}, "requests": {"memory": "1500k"}}});
    let expected = [
        ("metadata.name", "p"),
        ("metadata.labels['app']", "x"),
        ("metadata.annotations['no']", ""),
        ("status.podIP", "10.1.0.2"),
        ("status.hostIP", "192.0.2.1"),
        ("limits.cpu", "1500"),
        ("requests.memory", "2"),
        // Without a limit, the allocatable amount of the node.
        ("limits.memory", "8"),
        ("requests.cpu", "2"),
    ];
    assert_eq!(env(container, json!({})), Ok(pairs(&expected)));
    let unknown = env(json!({"env": [field("spec.nope")]}), json!({}));
    assert_eq!(unknown, Err("unsupported fieldPath \"spec.nope\"".to_owned()));
}

#[test]
fn services_are_variables_unless_links_are_off() {
    let services = || {
        json!({"services": [
            {"metadata": {"name": "kubernetes", "namespace": "default"},
             "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443}]}},
            {"metadata": {"name": "my-db"}, "spec": {"clusterIP": "10.96.0.9", "ports": [{"port": 5432}]}},
            {"metadata": {"name": "headless"}, "spec": {"clusterIP": "None", "ports": [{"port": 1}]}},
        ]})
    };
    let names = |links: bool| -> Vec<String> {
        let spec = json!({"enableServiceLinks": links, "containers": [{"name": "c"}]});
        let env = with(spec, services(), |context| {
            environment(context, &context.pod.spec.as_ref().expect("a spec").containers[0])
        });
        env.expect("no error").into_iter().map(|(name, value)| format!("{name}={value}")).collect()
    };
    let api = [
        "KUBERNETES_SERVICE_HOST=10.96.0.1",
        "KUBERNETES_SERVICE_PORT=443",
        "KUBERNETES_SERVICE_PORT_HTTPS=443",
        "KUBERNETES_PORT=tcp://10.96.0.1:443",
        "KUBERNETES_PORT_443_TCP=tcp://10.96.0.1:443",
        "KUBERNETES_PORT_443_TCP_PROTO=tcp",
        "KUBERNETES_PORT_443_TCP_PORT=443",
        "KUBERNETES_PORT_443_TCP_ADDR=10.96.0.1",
    ];
    assert_eq!(names(false), api);
    let all = names(true);
    assert!(all.contains(&"MY_DB_SERVICE_HOST=10.96.0.9".to_owned()) && all.iter().all(|it| !it.contains("HEADLESS")));
    assert!(api.iter().all(|it| all.contains(&(*it).to_owned())));
}

#[test]
fn service_variables_have_the_addresses_that_pods_reach() {
    #[derive(Debug)]
    struct Loopback;
    impl ServiceAddresses for Loopback {
        fn service(&self, cluster_ip: Ipv4Addr) -> Ipv4Addr {
            let [.., third, fourth] = cluster_ip.octets();
            Ipv4Addr::new(127, 65, third, fourth)
        }
        fn api_server(&self, _: SocketAddr) -> SocketAddr {
            ([127, 0, 0, 1], 6443).into()
        }
    }
    let services = json!({"services": [
        {"metadata": {"name": "kubernetes", "namespace": "default"},
         "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443}]}},
        {"metadata": {"name": "kubernetes-x"}, "spec": {"clusterIP": "10.96.3.9", "ports": [{"port": 53, "protocol": "UDP"}]}},
    ]});
    let variables = with(json!({"containers": [{"name": "c"}]}), services, |context| {
        services::variables(&Context { services: &Loopback, ..*context })
    });
    let shown: Vec<String> = variables.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    for expected in [
        "KUBERNETES_SERVICE_HOST=127.0.0.1",
        "KUBERNETES_SERVICE_PORT=6443",
        "KUBERNETES_SERVICE_PORT_HTTPS=6443",
        "KUBERNETES_PORT_443_TCP=tcp://127.0.0.1:6443",
        "KUBERNETES_X_SERVICE_HOST=127.65.3.9",
        "KUBERNETES_X_SERVICE_PORT=53",
        "KUBERNETES_X_PORT_53_UDP=udp://127.65.3.9:53",
    ] {
        assert!(shown.contains(&expected.to_owned()), "{expected} is not in {shown:?}");
    }
}

fn volume_of(source: Value, by_kind: Value) -> Result<Volume, String> {
    let mut spec = source;
    spec["name"] = "v".into();
    with(json!({"containers": [], "volumes": [spec]}), by_kind, |context| {
        let tokens = token_sources(context.pod).into_iter().map(|source| (source, "TOKEN".to_owned())).collect();
        volumes(context, &tokens).map(|mut all| all.remove("v").expect("a volume"))
    })
}

/// `path=content:mode` of each file.
fn files(volume: Result<Volume, String>) -> Vec<String> {
    let Ok(Volume::Files { files }) = volume else { panic!("{volume:?}") };
    let shown =
        files.into_iter().map(|(path, file)| format!("{path}={}:{:o}", String::from_utf8_lossy(&file.data), file.mode));
    shown.collect()
}

#[test]
fn files_have_chosen_keys_paths_and_modes() {
    let maps = || {
        json!({"configMaps": [{"metadata": {"name": "m"}, "data": {"a": "1", "b": "2"}, "binaryData": {"c": "Mw=="}}],
        "secrets": [{"metadata": {"name": "s"}, "data": {"k": "dg=="}}]})
    };
    let all = volume_of(json!({"configMap": {"name": "m"}}), maps());
    assert_eq!(files(all), ["a=1:644", "b=2:644", "c=3:644"]);
    let items = json!([{"key": "a", "path": "x/a", "mode": 0o400}, {"key": "b", "path": "b"}]);
    let some = volume_of(json!({"configMap": {"name": "m", "items": items, "defaultMode": 0o600}}), maps());
    assert_eq!(files(some), ["b=2:600", "x/a=1:400"]);
    let secret = volume_of(json!({"secret": {"secretName": "s"}}), maps());
    assert_eq!(files(secret), ["k=v:644"]);
    let absent = json!([{"key": "no", "path": "no"}]);
    let missing = volume_of(json!({"configMap": {"name": "m", "items": absent}}), maps());
    let message = "MountVolume.SetUp failed for volume \"v\" : references non-existent config key: no";
    assert_eq!(missing, Err(message.to_owned()));
    assert_eq!(files(volume_of(json!({"secret": {"secretName": "no", "optional": true}}), maps())), [""; 0]);
}

#[test]
fn a_projected_volume_joins_its_sources() {
    let maps = json!({"configMaps": [{"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "PEM"}}]});
    let sources = json!([
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}},
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
    ]);
    let volume = volume_of(json!({"projected": {"sources": sources, "defaultMode": 0o444}}), maps);
    assert_eq!(
        files(volume),
        ["ca.crt=PEM:444", "labels=app=\"x\"\nb=\"say \\\"hi\\\"\":444", "namespace=ns:444", "token=TOKEN:444"]
    );
}

#[test]
fn claims_become_folders_and_other_types_are_refused() {
    let bound = || {
        json!({
            "claims": [
                {"metadata": {"name": "local"}, "spec": {"volumeName": "pv1"}, "status": {"phase": "Bound"}},
                {"metadata": {"name": "path"}, "spec": {"volumeName": "pv2"}, "status": {"phase": "Bound"}},
                {"metadata": {"name": "pending"}, "spec": {}, "status": {"phase": "Pending"}},
                {"metadata": {"name": "p-v"}, "spec": {"volumeName": "pv1"}, "status": {"phase": "Bound"}},
            ],
            "volumes": [
                {"metadata": {"name": "pv1"}, "spec": {"local": {"path": "/data/1"}}},
                {"metadata": {"name": "pv2"}, "spec": {"hostPath": {"path": "/data/2", "type": "DirectoryOrCreate"}}},
            ],
        })
    };
    let claim = |name: &str| volume_of(json!({"persistentVolumeClaim": {"claimName": name}}), bound());
    assert_eq!(claim("local"), Ok(Volume::Folder { path: "/data/1".into() }));
    let kind = HostPathType::DirectoryOrCreate;
    assert_eq!(claim("path"), Ok(Volume::HostPath { path: "/data/2".into(), kind }));
    assert!(claim("pending").unwrap_err().ends_with("persistentvolumeclaim \"pending\" is not bound"));
    assert!(claim("no").unwrap_err().ends_with("persistentvolumeclaim \"no\" not found"));
    let foreign = volume_of(json!({"ephemeral": {}}), bound());
    assert!(foreign.unwrap_err().ends_with("PVC ns/p-v was not created for pod p"));
    let nfs = volume_of(json!({"nfs": {"server": "s", "path": "/"}}), json!({}));
    assert!(nfs.unwrap_err().contains("volumes of type nfs are not supported"));
    let memory = volume_of(json!({"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}), json!({}));
    assert_eq!(memory, Ok(Volume::EmptyDir { memory: true, size_limit_bytes: Some(1 << 20) }));
}

fn sandbox_of(spec: Value) -> Result<berth_pod_runtime::SandboxConfig, String> {
    let options = KubeletOptions {
        cluster_dns: vec!["10.96.0.10".parse().expect("an address")],
        cluster_dns_on_host: vec!["127.64.0.1".parse().expect("an address")],
        host_dns: DnsConfig {
            nameservers: vec!["192.0.2.53".into()],
            searches: vec!["lan".into()],
            options: Vec::new(),
        },
        ..KubeletOptions::default()
    };
    sandbox(&pod(spec), "machine", &options, BTreeMap::new())
}

#[test]
fn host_names_follow_the_spec() {
    let names = |spec: Value| sandbox_of(spec).map(|it| (it.hostname, it.fqdn));
    assert_eq!(names(json!({"containers": []})), Ok(("p".into(), None)));
    let fqdn = Some("w-0.train.ns.svc.cluster.local".to_owned());
    let spec = json!({"containers": [], "hostname": "w-0", "subdomain": "train"});
    assert_eq!(names(spec), Ok(("w-0".into(), fqdn.clone())));
    let spec = json!({"containers": [], "hostname": "w-0", "subdomain": "train", "setHostnameAsFQDN": true});
    assert_eq!(names(spec), Ok(("w-0.train.ns.svc.cluster.local".into(), fqdn)));
    let long = "a".repeat(50);
    let spec = json!({"containers": [], "hostname": long, "subdomain": "train", "setHostnameAsFQDN": true});
    assert!(names(spec).unwrap_err().contains("64 characters is the max"));
    assert_eq!(names(json!({"containers": [], "hostNetwork": true})), Ok(("machine".into(), None)));
}

#[test]
fn resolver_configurations_follow_the_policy() {
    let dns = |more: Value| {
        let mut spec = json!({"containers": []});
        spec.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        sandbox_of(spec).expect("a sandbox").dns
    };
    let cluster = dns(json!({})).expect("the cluster's");
    assert_eq!(cluster.nameservers, ["10.96.0.10"]);
    assert_eq!(cluster.searches, ["ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "lan"]);
    assert_eq!(cluster.options, ["ndots:5"]);
    assert_eq!(dns(json!({"dnsPolicy": "Default"})), None);
    assert_eq!(dns(json!({"hostNetwork": true})), None);
    let on_host = DnsConfig { nameservers: vec!["127.64.0.1".into()], ..cluster };
    assert_eq!(dns(json!({"hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet"})), Some(on_host));
    let config = json!({"nameservers": ["1.1.1.1"], "searches": ["example.com"],
        "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}]});
    let own = dns(json!({"dnsPolicy": "None", "dnsConfig": config})).expect("its own");
    assert_eq!(
        (own.nameservers.len(), own.options.as_slice()),
        (1, ["ndots:2".to_owned(), "edns0".to_owned()].as_slice())
    );
    let both = dns(json!({"dnsConfig": config})).expect("both");
    assert_eq!(both.nameservers, ["10.96.0.10", "1.1.1.1"]);
    assert_eq!(both.options, ["ndots:2", "edns0"]);
    let host = dns(json!({"dnsPolicy": "Default", "dnsConfig": config})).expect("the host's and more");
    assert_eq!(host.nameservers, ["192.0.2.53", "1.1.1.1"]);
}

#[test]
fn ports_of_the_host_are_forwarded_except_on_its_network() {
    let containers = json!([{"name": "c", "ports": [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81}]}]);
    let expected = HostPort { host_ip: String::new(), host_port: 8080, container_port: 80, protocol: Protocol::Tcp };
    assert_eq!(sandbox_of(json!({"containers": containers})).map(|it| it.host_ports), Ok(vec![expected]));
    let own = sandbox_of(json!({"containers": containers, "hostNetwork": true}));
    assert_eq!(own.map(|it| it.host_ports), Ok(Vec::new()));
}

#[test]
fn limits_of_a_pod_cover_its_largest_phase() {
    let limits = |milli: &str| json!({"limits": {"cpu": milli, "memory": "1Gi"}, "requests": {"cpu": "100m"}});
    let spec = json!({
        "initContainers": [{"name": "i", "resources": limits("3")},
            {"name": "s", "restartPolicy": "Always", "resources": limits("500m")}],
        "containers": [{"name": "a", "resources": limits("1")}, {"name": "b", "resources": limits("1")}]});
    let total = pod_limits(&serde_json::from_value(spec).expect("a spec"));
    assert_eq!((total.cpu_milli, total.memory_bytes), (Some(3000), Some(3 << 30)));
    assert_eq!(total.cpu_request_milli, 300);
    let open = json!({"containers": [{"name": "a", "resources": limits("1")}, {"name": "b"}]});
    let open = pod_limits(&serde_json::from_value(open).expect("a spec"));
    assert_eq!((open.cpu_milli, open.memory_bytes, open.cpu_request_milli), (None, None, 100));
    let own = json!({"name": "c", "resources": {"limits": {"cpu": "250m", "ephemeral-storage": "1k"}}});
    let own = container_limits(&serde_json::from_value(own).expect("a container"));
    let expected = Limits {
        cpu_milli: Some(250),
        cpu_request_milli: 250,
        ephemeral_storage_bytes: Some(1000),
        ..Limits::default()
    };
    assert_eq!(own, expected);
}

/// The configuration of the first container.
fn config_of(spec: Value) -> Result<berth_pod_runtime::ContainerConfig, String> {
    with(spec, json!({}), |context| {
        let spec = context.pod.spec.as_ref().expect("a spec");
        config(context, &members(spec)[0], 2, Default::default(), Vec::new())
    })
}

#[test]
fn a_container_is_configured_from_its_spec() {
    let config = config_of(json!({
        "securityContext": {"runAsUser": 1000, "runAsGroup": 100, "fsGroup": 200, "supplementalGroups": [300, 200]},
        "volumes": [{"name": "v", "emptyDir": {}}],
        "containers": [{"name": "c", "command": ["run", "$(WHAT)"], "args": ["$(NO)"], "workingDir": "/w",
            "env": [{"name": "WHAT", "value": "this"}],
            "securityContext": {"runAsUser": 7, "capabilities": {"add": ["CAP_NET_ADMIN"], "drop": ["all"]},
                "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false},
            "volumeMounts": [{"name": "v", "mountPath": "/v", "subPathExpr": "runs/$(WHAT)", "readOnly": true,
                "mountPropagation": "HostToContainer"}]}]}));
    let config = config.expect("a configuration");
    assert_eq!((config.command, config.args), (vec!["run".into(), "this".into()], vec!["$(NO)".to_owned()]));
    assert_eq!((config.id.to_string(), config.working_dir.as_str()), ("u_c_2".to_owned(), "/w"));
    let mount = &config.mounts[0];
    assert_eq!(
        (mount.sub_path.as_str(), mount.read_only, mount.propagation),
        ("runs/this", true, Propagation::HostToContainer)
    );
    let security = config.security;
    assert_eq!((security.user, security.group, security.supplemental_groups), (Some(7), Some(100), vec![300, 200]));
    assert_eq!(
        (security.capabilities.add, security.capabilities.drop),
        (vec!["NET_ADMIN".into()], vec!["ALL".to_owned()])
    );
    assert!(security.read_only_root_filesystem && !security.allow_privilege_escalation && !security.privileged);
}

#[test]
fn impossible_configurations_are_refused() {
    let container = |more: Value| {
        let mut container = json!({"name": "c"});
        container.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        config_of(json!({"volumes": [{"name": "v"}], "containers": [container]})).map(drop)
    };
    let mount = |more: Value| {
        let mut mount = json!({"name": "v", "mountPath": "/v"});
        mount.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        container(json!({"volumeMounts": [mount]}))
    };
    assert_eq!(mount(json!({})), Ok(()));
    assert!(mount(json!({"subPathExpr": "$(NO)"})).unwrap_err().contains("missing value for \"NO\""));
    assert!(mount(json!({"subPath": "../x"})).unwrap_err().contains("must be a relative path"));
    assert!(mount(json!({"name": "no"})).unwrap_err().contains("cannot find volume \"no\""));
    let root = container(json!({"securityContext": {"runAsUser": 0, "runAsNonRoot": true}}));
    assert_eq!(root, Err("container's runAsUser breaks non-root policy".to_owned()));
}

#[test]
fn pull_secrets_of_both_types_are_read() {
    let config =
        |text: Value| serde_json::to_string(&k8s_openapi::ByteString(text.to_string().into_bytes())).expect("text");
    let data = |key: &str, text: Value| {
        let encoded: Value = serde_json::from_str(&config(text)).expect("a string");
        json!({key: encoded})
    };
    // "dXNlcjpwYXNz" is "user:pass".
    let new = data(".dockerconfigjson", json!({"auths": {"https://index.docker.io/v1/": {"auth": "dXNlcjpwYXNz"}}}));
    let old = data(".dockercfg", json!({"registry.example.com/team": {"username": "u", "password": "p"}}));
    let secrets =
        json!({"secrets": [{"metadata": {"name": "new"}, "data": new}, {"metadata": {"name": "old"}, "data": old}]});
    let spec = json!({"containers": [], "imagePullSecrets": [{"name": "new"}, {"name": "old"}, {"name": "no"}]});
    let (credentials, missing) = with(spec, secrets, pull_secrets);
    let shown: Vec<_> =
        credentials.iter().map(|it| (it.registry.as_str(), it.username.as_str(), it.password.as_str())).collect();
    assert_eq!(shown, [("index.docker.io", "user", "pass"), ("registry.example.com/team", "u", "p")]);
    assert_eq!(missing, ["no"]);
}
