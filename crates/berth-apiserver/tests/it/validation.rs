//! Validation of built-in kinds: objects with one invalid field, and the causes of their rejection.
//! One table for each kind.

use serde_json::{Value, json};

use crate::harness::{Server, server};

/// Path of a field, its new value (null removes the field), and all causes of the rejection in
/// order. No causes mean that the object is accepted.
type Case<'a> = (&'a str, Value, &'a [&'a str]);

/// Creates the object with each changed field, and compares the causes.
async fn check(server: &Server, uri: &str, object: &Value, cases: &[Case<'_>]) {
    let uri = format!("{uri}?dryRun=All");
    for (pointer, value, expected) in cases {
        let mut changed = object.clone();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        let parent = changed.pointer_mut(parent).unwrap_or_else(|| panic!("no {parent}"));
        match parent {
            Value::Array(items) => items[field.parse::<usize>().unwrap()] = value.clone(),
            Value::Object(map) if value.is_null() => drop(map.remove(field)),
            other => other[field] = value.clone(),
        }
        let answer = server.post(&uri, changed).await;
        let causes = answer.body["details"]["causes"].as_array().cloned().unwrap_or_default();
        let reported: Vec<String> = causes
            .iter()
            .map(|cause| format!("{}: {}", cause["field"].as_str().unwrap(), cause["message"].as_str().unwrap()))
            .collect();
        // An expected message that ends with `…` is compared as a prefix.
        let same = reported.len() == expected.len()
            && reported.iter().zip(*expected).all(|(reported, expected)| {
                expected.strip_suffix('…').map_or(reported == expected, |start| reported.starts_with(start))
            });
        assert!(same, "{pointer} = {value}:\n{reported:#?}\n{expected:#?}");
        assert_eq!(answer.code, if expected.is_empty() { 201 } else { 422 }, "{pointer} = {value}: {}", answer.body);
    }
}

fn pod_spec() -> Value {
    json!({
        "volumes": [
            {"name": "work", "emptyDir": {}},
            {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
            {"name": "own", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}}}}}},
        ],
        "containers": [{
            "name": "main", "image": "shop:1",
            "ports": [{"containerPort": 80, "hostPort": 8080}],
            "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "volumeMounts": [{"name": "work", "mountPath": "/work"}],
            "livenessProbe": {"httpGet": {"port": 80}},
            "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
            "securityContext": {},
            "resources": {"limits": {"example.com/gpu": "1"}},
        }],
        "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}},
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
        "securityContext": {"sysctls": [{"name": "net.core.somaxconn", "value": "1"}]},
    })
}

fn object(version: &str, kind: &str, spec: Value) -> Value {
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": "a", "namespace": "default"}, "spec": spec})
}

fn named(version: &str, kind: &str) -> Value {
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": "a"}})
}

#[tokio::test(start_paused = true)]
async fn invalid_pods_are_rejected() {
    let server = server();
    let cases: &[Case<'_>] = &[
        ("/spec/hostname", "a".into(), &[]),
        (
            "/spec/restartPolicy",
            "Once".into(),
            &[
                "spec.restartPolicy: Unsupported value: \"Once\": supported values: \"Always\", \"OnFailure\", \"Never\"",
            ],
        ),
        (
            "/spec/dnsPolicy",
            "None".into(),
            &["spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"],
        ),
        (
            "/spec/dnsConfig",
            json!({"nameservers": ["x"]}),
            &[
                "spec.dnsConfig.nameservers[0]: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ],
        ),
        (
            "/spec/terminationGracePeriodSeconds",
            (-1).into(),
            &["spec.containers[0].lifecycle.preStop.sleep: Invalid value: 5: must be non-negative and less than \
             terminationGracePeriodSeconds (1)"],
        ),
        (
            "/spec/hostNetwork",
            true.into(),
            &[
                "spec.containers[0].ports[0].hostPort: Invalid value: 8080: must match `containerPort` when `hostNetwork` is true",
                "spec.securityContext.sysctls[0].name: Invalid value: \"net.core.somaxconn\": may not be specified when 'hostNetwork' is true",
            ],
        ),
        (
            "/spec/hostAliases",
            json!([{"ip": "x", "hostnames": ["_"]}]),
            &[
                "spec.hostAliases[0].ip: Invalid value: \"x\": must be a valid IP address…",
                "spec.hostAliases[0].hostnames[0]: Invalid value: \"_\": a lowercase RFC 1123 subdomain must…",
            ],
        ),
        (
            "/spec/tolerations",
            json!([{"operator": "Exists", "value": "x"}]),
            &["spec.tolerations[0].operator: Invalid value: \"x\": value must be empty when `operator` is 'Exists'"],
        ),
        (
            "/spec/schedulingGates",
            json!([{"name": "a"}, {"name": "a"}]),
            &["spec.schedulingGates[1]: Duplicate value: \"a\""],
        ),
        (
            "/spec/topologySpreadConstraints/0/whenUnsatisfiable",
            Value::Null,
            &["spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: \"\": supported values: \
             \"DoNotSchedule\", \"ScheduleAnyway\""],
        ),
        (
            "/spec/affinity/nodeAffinity",
            json!({"requiredDuringSchedulingIgnoredDuringExecution": {}}),
            &[
                "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value: \
             must have at least one node selector term",
            ],
        ),
        (
            "/spec/affinity/podAffinity/preferredDuringSchedulingIgnoredDuringExecution",
            json!([{"weight": 101, "podAffinityTerm": {"topologyKey": "zone"}}]),
            &[
                "spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 101: \
             must be in the range 1-100",
            ],
        ),
    ];
    check(&server, "/api/v1/namespaces/default/pods", &object("v1", "Pod", pod_spec()), cases).await;
}

#[tokio::test(start_paused = true)]
async fn volumes_need_one_source_with_its_required_fields() {
    let server = server();
    let cases: &[Case<'_>] = &[
        ("/spec/volumes/0/emptyDir", Value::Null, &[]),
        (
            "/spec/volumes/0/hostPath",
            json!({"path": "/x"}),
            &["spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"],
        ),
        (
            "/spec/volumes/0",
            json!({"name": "work", "hostPath": {"path": "/a/../b", "type": "Tape"}}),
            &[
                "spec.volumes[0].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
                "spec.volumes[0].hostPath.type: Unsupported value: \"Tape\": supported values: \"\", \"BlockDevice\", \
             \"CharDevice\", \"Directory\", \"DirectoryOrCreate\", \"File\", \"FileOrCreate\", \"Socket\"",
            ],
        ),
        (
            "/spec/volumes/0",
            json!({"name": "work", "configMap": {"items": [{"key": "k", "path": "/p", "mode": 512}]}}),
            &[
                "spec.volumes[0].configMap.name: Required value",
                "spec.volumes[0].configMap.items[0].path: Invalid value: \"/p\": must be a relative path",
                "spec.volumes[0].configMap.items[0].mode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive",
            ],
        ),
        (
            "/spec/volumes/0",
            json!({"name": "other"}),
            &["spec.containers[0].volumeMounts[0].name: Not found: \"work\""],
        ),
        (
            "/spec/volumes/1/projected/sources/0/serviceAccountToken/expirationSeconds",
            60.into(),
            &[
                "spec.volumes[1].projected.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 60: may not \
             specify a duration less than 10 minutes",
            ],
        ),
        (
            "/spec/volumes/2/ephemeral/volumeClaimTemplate/spec",
            json!({}),
            &[
                "spec.volumes[2].ephemeral.volumeClaimTemplate.spec.accessModes: Required value: at least 1 access mode is required",
                "spec.volumes[2].ephemeral.volumeClaimTemplate.spec.resources[storage]: Required value",
            ],
        ),
    ];
    check(&server, "/api/v1/namespaces/default/pods", &object("v1", "Pod", pod_spec()), cases).await;
}

#[tokio::test(start_paused = true)]
async fn containers_are_validated_in_pods_and_in_every_template() {
    let server = server();
    // Paths are relative to the first container.
    let cases: &[Case<'_>] = &[
        ("/ports/0/containerPort", 0.into(), &["ports[0].containerPort: Required value"]),
        (
            "/ports/0/protocol",
            "ICMP".into(),
            &["ports[0].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\""],
        ),
        (
            "/env/0/value",
            "x".into(),
            &["env[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty"],
        ),
        (
            "/env/0/valueFrom/fieldRef/fieldPath",
            "metadata.labels".into(),
            &["env[0].valueFrom.fieldRef.fieldPath: Unsupported value: \"metadata.labels\": supported values: \
             \"metadata.name\", \"metadata.namespace\", \"metadata.uid\", \"spec.nodeName\", \"spec.serviceAccountName\", \
             \"status.hostIP\", \"status.hostIPs\", \"status.podIP\", \"status.podIPs\""],
        ),
        (
            "/volumeMounts/0/subPath",
            "../x".into(),
            &["volumeMounts.subPath: Invalid value: \"../x\": must not contain '..'"],
        ),
        ("/livenessProbe/httpGet", Value::Null, &["livenessProbe: Required value: must specify a handler type"]),
        ("/livenessProbe/successThreshold", 2.into(), &["livenessProbe.successThreshold: Invalid value: 2: must be 1"]),
        (
            "/livenessProbe/tcpSocket",
            json!({"port": 1}),
            &["livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type"],
        ),
        (
            "/securityContext/runAsUser",
            (-1).into(),
            &["securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive"],
        ),
        (
            "/securityContext/seccompProfile",
            json!({"type": "Localhost"}),
            &[
                "securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost",
            ],
        ),
        (
            "/resources/limits",
            json!({"gpu": "1"}),
            &[
                "resources.limits[gpu]: Invalid value: \"gpu\": must be a standard resource type or fully qualified",
                "resources.limits[gpu]: Invalid value: \"gpu\": must be a standard resource for containers",
                "resources.requests[gpu]: Invalid value: \"gpu\": must be a standard resource type or fully qualified",
                "resources.requests[gpu]: Invalid value: \"gpu\": must be a standard resource for containers",
            ],
        ),
        (
            "/resources/requests",
            json!({"example.com/gpu": "2"}),
            &["resources.requests: Invalid value: \"2\": must be equal to example.com/gpu limit of 1"],
        ),
    ];
    let labels = json!({"app": "shop"});
    let template = || json!({"metadata": {"labels": labels}, "spec": pod_spec()});
    let selector = json!({"matchLabels": labels});
    let kinds = [
        ("/api/v1/namespaces/default/pods", "spec", object("v1", "Pod", pod_spec())),
        (
            "/api/v1/namespaces/default/replicationcontrollers",
            "spec.template.spec",
            object("v1", "ReplicationController", json!({"template": template()})),
        ),
        (
            "/api/v1/namespaces/default/podtemplates",
            "template.spec",
            json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "a"}, "template": template()}),
        ),
        (
            "/apis/apps/v1/namespaces/default/deployments",
            "spec.template.spec",
            object("apps/v1", "Deployment", json!({"selector": selector, "template": template()})),
        ),
        (
            "/apis/apps/v1/namespaces/default/statefulsets",
            "spec.template.spec",
            object("apps/v1", "StatefulSet", json!({"selector": selector, "template": template()})),
        ),
        (
            "/apis/apps/v1/namespaces/default/daemonsets",
            "spec.template.spec",
            object("apps/v1", "DaemonSet", json!({"selector": selector, "template": template()})),
        ),
    ];
    // The error paths depend on the position of the pod specification in the kind.
    for (uri, at, whole) in kinds {
        for (field, value, expected) in cases {
            let pointer = format!("/{}/containers/0{field}", at.replace('.', "/"));
            let expected: Vec<String> = expected.iter().map(|cause| format!("{at}.containers[0].{cause}")).collect();
            let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
            check(&server, uri, &whole, &[(&pointer, value.clone(), &expected)]).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn workload_kinds_are_validated() {
    let server = server();
    let template =
        json!({"metadata": {"labels": {"app": "shop"}}, "spec": {"containers": [{"name": "c", "image": "b"}]}});
    let spec = json!({"selector": {"matchLabels": {"app": "shop"}}, "template": template});
    let common: &[Case<'_>] = &[
        (
            "/spec/template/metadata/labels/app",
            "x".into(),
            &[
                "spec.template.metadata.labels: Invalid value: {\"app\":\"x\"}: `selector` does not match template `labels`",
            ],
        ),
        (
            "/spec/template/spec/restartPolicy",
            "Never".into(),
            &["spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\""],
        ),
        (
            "/spec/minReadySeconds",
            (-1).into(),
            &["spec.minReadySeconds: Invalid value: -1: must be greater than or equal to 0"],
        ),
    ];
    let uri = |plural: &str| format!("/apis/apps/v1/namespaces/default/{plural}");
    for (kind, plural) in [
        ("Deployment", "deployments"),
        ("ReplicaSet", "replicasets"),
        ("StatefulSet", "statefulsets"),
        ("DaemonSet", "daemonsets"),
    ] {
        check(&server, &uri(plural), &object("apps/v1", kind, spec.clone()), common).await;
    }
    let rolling = |surge: Value, unavailable: Value| json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}});
    check(&server, &uri("deployments"), &object("apps/v1", "Deployment", spec.clone()), &[
        ("/spec/strategy", rolling(0.into(), 0.into()), &[
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0"]),
        ("/spec/strategy", rolling("10".into(), "101%".into()), &[
            "spec.strategy.rollingUpdate.maxSurge: Invalid value: \"10\": a valid percent string must be…",
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"101%\": must not be greater than 100%"]),
        ("/spec/progressDeadlineSeconds", 0.into(), &[
            "spec.progressDeadlineSeconds: Invalid value: 0: must be greater than minReadySeconds"]),
    ]).await;
    check(&server, &uri("daemonsets"), &object("apps/v1", "DaemonSet", spec.clone()), &[
        ("/spec/updateStrategy", rolling(1.into(), 1.into()), &[
            "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero"]),
    ]).await;
    // Containers of a StatefulSet can mount its claim templates by name.
    let mut stateful = object("apps/v1", "StatefulSet", spec);
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    stateful["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}, "spec": claim}]);
    stateful["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "data", "mountPath": "/d"}]);
    check(
        &server,
        &uri("statefulsets"),
        &stateful,
        &[
            ("/spec/replicas", 2.into(), &[]),
            (
                "/spec/updateStrategy",
                rolling(Value::Null, 0.into()),
                &["spec.updateStrategy.rollingUpdate.maxUnavailable: Invalid value: 0: cannot be 0"],
            ),
            ("/spec/updateStrategy", rolling(Value::Null, "50%".into()), &[]),
            (
                "/spec/podManagementPolicy",
                "Any".into(),
                &["spec.podManagementPolicy: Invalid value: \"Any\": must be 'OrderedReady' or 'Parallel'"],
            ),
            (
                "/spec/volumeClaimTemplates/0/spec/accessModes/0",
                "Any".into(),
                &["spec.volumeClaimTemplates[0].spec.accessModes: Unsupported value: \"Any\": supported values: \
             \"ReadOnlyMany\", \"ReadWriteMany\", \"ReadWriteOnce\", \"ReadWriteOncePod\""],
            ),
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn claims_and_volumes_are_validated() {
    let server = server();
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    check(
        &server,
        "/api/v1/namespaces/default/persistentvolumeclaims",
        &object("v1", "PersistentVolumeClaim", claim),
        &[
            (
                "/spec/accessModes",
                Value::Null,
                &["spec.accessModes: Required value: at least 1 access mode is required"],
            ),
            (
                "/spec/resources/requests/storage",
                "0".into(),
                &["spec.resources[storage]: Invalid value: \"0\": must be greater than zero"],
            ),
            ("/spec/storageClassName", "".into(), &[]),
        ],
    )
    .await;
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "a"},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}}});
    check(&server, "/api/v1/persistentvolumes", &volume, &[
        ("/spec/hostPath", Value::Null, &["spec: Required value: must specify a volume type"]),
        ("/spec/nfs", json!({}), &["spec.nfs: Forbidden: may not specify more than 1 volume type"]),
        ("/spec/persistentVolumeReclaimPolicy", "Burn".into(), &[
            "spec.persistentVolumeReclaimPolicy: Unsupported value: \"Burn\": supported values: \"Delete\", \"Recycle\", \"Retain\""]),
    ]).await;
}

#[tokio::test(start_paused = true)]
async fn nodes_and_storage_kinds_are_validated() {
    let server = server();
    let mut node = named("v1", "Node");
    node["spec"] = json!({"taints": [{"key": "a", "effect": "NoSchedule"}]});
    check(&server, "/api/v1/nodes", &node, &[
        ("/spec/taints/0/effect", "Never".into(), &["metadata.taints[0].effect: Unsupported value: \"Never\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\""]),
        ("/spec/podCIDR", "x".into(), &["spec.podCIDRs[0]: Invalid value: \"x\": must be a valid CIDR value…"]),
    ]).await;
    let mut class = named("storage.k8s.io/v1", "StorageClass");
    class["provisioner"] = "example.com/disks".into();
    check(
        &server,
        "/apis/storage.k8s.io/v1/storageclasses",
        &class,
        &[
            ("/provisioner", Value::Null, &["provisioner: Required value"]),
            ("/volumeBindingMode", "WaitForFirstConsumer".into(), &[]),
        ],
    )
    .await;
    let mut attachment = named("storage.k8s.io/v1", "VolumeAttachment");
    attachment["spec"] = json!({"attacher": "example.com", "nodeName": "n", "source": {"persistentVolumeName": "v"}});
    check(
        &server,
        "/apis/storage.k8s.io/v1/volumeattachments",
        &attachment,
        &[
            ("/spec/attacher", "".into(), &["spec.attacher: Required value"]),
            (
                "/spec/source",
                json!({}),
                &["spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName"],
            ),
        ],
    )
    .await;
    let mut drivers = named("storage.k8s.io/v1", "CSINode");
    drivers["spec"] = json!({"drivers": [{"name": "d.example.com", "nodeID": "n"}]});
    check(
        &server,
        "/apis/storage.k8s.io/v1/csinodes",
        &drivers,
        &[
            ("/spec/drivers/0/nodeID", Value::Null, &["spec.drivers[0].nodeID: Required value"]),
            ("/spec/drivers/0/topologyKeys", json!(["a", "a"]), &["spec.drivers[0]: Duplicate value: \"a\""]),
        ],
    )
    .await;
    let mut slice = named("resource.k8s.io/v1", "ResourceSlice");
    slice["spec"] = json!({"driver": "d.example.com", "nodeName": "n",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "d"}]});
    check(&server, "/apis/resource.k8s.io/v1/resourceslices", &slice, &[
        ("/spec/nodeName", Value::Null, &["spec: Required value: exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"]),
        ("/spec/allNodes", true.into(), &["spec: Invalid value: \"{`nodeName`, `allNodes`}\": exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required, but multiple fields are set"]),
        ("/spec/allNodes", false.into(), &["spec.allNodes: Invalid value: false: must be either unset or set to true"]),
        ("/spec/pool/resourceSliceCount", 0.into(), &["spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero"]),
        ("/spec/devices", json!([{"name": "d"}, {"name": "d"}]), &["spec.devices[1]: Duplicate value: \"d\""]),
    ]).await;
}

const CLASSES: &str = "/apis/resource.k8s.io/v1/deviceclasses";

#[tokio::test(start_paused = true)]
async fn device_classes_are_validated() {
    let server = server();
    let mut class = named("resource.k8s.io/v1", "DeviceClass");
    let selector = json!({"cel": {"expression": "device.driver == 'd.example.com'"}});
    let opaque = json!({"driver": "d.example.com", "parameters": {"share": true}});
    class["spec"] =
        json!({"selectors": [selector], "config": [{"opaque": opaque}], "extendedResourceName": "example.com/gpu"});
    let resource = "/spec/extendedResourceName";
    let wrong = |name: &str| {
        format!("spec.extendedResourceName: Invalid value: \"{name}\": must be a valid extended resource name")
    };
    let long = format!("example.com/{}", "a".repeat(64));
    let names = ["gpu", "kubernetes.io/gpu", "x.kubernetes.io/gpu", "requests.example.com/gpu", "invalid_name", &long];
    for name in names {
        check(&server, CLASSES, &class, &[(resource, name.into(), &[wrong(name).as_str()])]).await;
    }
    check(
        &server,
        CLASSES,
        &class,
        &[
            (resource, Value::Null, &[]),
            (resource, "sub.example.com/my-gpu_1".into(), &[]),
            ("/spec/selectors/0", json!({}), &["spec.selectors[0].cel: Required value"]),
            (
                "/spec/selectors/0/cel/expression",
                "device.driver ==".into(),
                &["spec.selectors[0].cel.expression: Invalid value: \"device.driver ==\": compilation failed: …"],
            ),
            ("/spec/selectors", vec![selector.clone(); 33].into(), &["spec.selectors: Too many: 33: …"]),
            ("/spec/config/0", json!({}), &["spec.config[0].opaque: Required value"]),
            ("/spec/config/0/opaque/driver", "".into(), &["spec.config[0].opaque.driver: Required value"]),
            ("/spec/config/0/opaque/parameters", Value::Null, &["spec.config[0].opaque.parameters: Required value"]),
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_claims_in_a_pods_status_are_those_of_its_specification() {
    let server = server();
    let mut pod = named("v1", "Pod");
    let limits = json!({"example.com/gpu": "2"});
    pod["spec"] = json!({"resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "t"}],
        "containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}]});
    server.post("/api/v1/namespaces/default/pods", pod).await.expect(201);
    let status = json!({"resourceClaimStatuses": [{"name": "nic", "resourceClaimName": "a-nic-x"}],
        "extendedResourceClaimStatus": {"resourceClaimName": "a-extended-x", "requestMappings":
            [{"containerName": "c", "resourceName": "example.com/gpu", "requestName": "container-0-request-0"}]}});
    let mapping = &status["extendedResourceClaimStatus"]["requestMappings"][0];
    let mapped = "/extendedResourceClaimStatus/requestMappings";
    let cases: &[(&str, Value, &[&str])] = &[
        (mapped, json!([]), &["extendedResourceClaimStatus.requestMappings"]),
        (
            mapped,
            json!([mapping, mapping]),
            &[
                "extendedResourceClaimStatus.requestMappings[1].containerName",
                "extendedResourceClaimStatus.requestMappings[1].resourceName",
                "extendedResourceClaimStatus.requestMappings[1].requestName",
            ],
        ),
        (
            "/extendedResourceClaimStatus/requestMappings/0/containerName",
            "d".into(),
            &["extendedResourceClaimStatus.requestMappings[0].containerName"],
        ),
        (
            "/extendedResourceClaimStatus/requestMappings/0/resourceName",
            "example.com/nic".into(),
            &["extendedResourceClaimStatus.requestMappings[0].resourceName"],
        ),
        (
            "/extendedResourceClaimStatus/requestMappings/0/requestName",
            "A".into(),
            &["extendedResourceClaimStatus.requestMappings[0].requestName"],
        ),
        (
            "/extendedResourceClaimStatus/resourceClaimName",
            "".into(),
            &["extendedResourceClaimStatus.resourceClaimName"],
        ),
        (
            "/extendedResourceClaimStatus/resourceClaimName",
            "_".into(),
            &["extendedResourceClaimStatus.resourceClaimName"],
        ),
        ("/resourceClaimStatuses/0/name", "gpu".into(), &["resourceClaimStatuses[0].name"]),
        ("/resourceClaimStatuses/0/resourceClaimName", "_".into(), &["resourceClaimStatuses[0].resourceClaimName"]),
    ];
    for (pointer, value, expected) in cases {
        let mut changed = status.clone();
        *changed.pointer_mut(pointer).expect("a field") = value.clone();
        let answer = server
            .patch("/api/v1/namespaces/default/pods/a/status", "merge-patch", json!({"status": changed}))
            .await
            .expect(422);
        let causes = answer["details"]["causes"].as_array().expect("causes");
        let fields: Vec<&str> = causes.iter().map(|cause| cause["field"].as_str().expect("a field")).collect();
        let expected: Vec<String> = expected.iter().map(|field| format!("status.{field}")).collect();
        assert_eq!(fields, expected, "{pointer} = {value}");
    }
    let whole = json!({"status": status});
    let written = server.patch("/api/v1/namespaces/default/pods/a/status", "merge-patch", whole).await.expect(200);
    assert_eq!(written["status"]["extendedResourceClaimStatus"], status["extendedResourceClaimStatus"]);
}

#[tokio::test(start_paused = true)]
async fn endpoints_classes_bindings_and_schedules_are_validated() {
    let server = server();
    let mut endpoints = named("v1", "Endpoints");
    endpoints["subsets"] = json!([{"addresses": [{"ip": "1.2.3.4"}], "ports": [{"port": 80}]}]);
    check(
        &server,
        "/api/v1/namespaces/default/endpoints",
        &endpoints,
        &[
            (
                "/subsets/0/addresses",
                json!([]),
                &["subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`"],
            ),
            (
                "/subsets/0/ports/0/port",
                0.into(),
                &["subsets[0].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"],
            ),
        ],
    )
    .await;
    let mut class = named("networking.k8s.io/v1", "IngressClass");
    class["spec"] = json!({"controller": "example.com/x", "parameters": {"kind": "X", "name": "x"}});
    check(
        &server,
        "/apis/networking.k8s.io/v1/ingressclasses",
        &class,
        &[
            (
                "/spec/controller",
                "x".into(),
                &["spec.controller: Invalid value: \"x\": must be a domain-prefixed path…"],
            ),
            ("/spec/parameters/name", Value::Null, &["spec.parameters.name: Required value"]),
        ],
    )
    .await;
    let mut runtime = named("node.k8s.io/v1", "RuntimeClass");
    runtime["handler"] = "runc".into();
    check(
        &server,
        "/apis/node.k8s.io/v1/runtimeclasses",
        &runtime,
        &[("/handler", Value::Null, &["handler: Required value"])],
    )
    .await;
    let rbac = "rbac.authorization.k8s.io/v1";
    let mut binding = named(rbac, "ClusterRoleBinding");
    binding["roleRef"] = json!({"kind": "ClusterRole", "name": "cluster-admin"});
    binding["subjects"] = json!([{"kind": "Group", "name": "g"}]);
    check(&server, &format!("/apis/{rbac}/clusterrolebindings"), &binding, &[
        ("/roleRef/kind", "Role".into(), &["roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\""]),
        (
                "/subjects/0",
                json!({"kind": "User", "name": "u", "apiGroup": "x"}),
                &["subjects[0].apiGroup: Unsupported value: \"x\": supported values: \"rbac.authorization.k8s.io\""],
            ),
            (
                "/subjects/0",
                json!({"kind": "ServiceAccount", "name": "_", "namespace": "default"}),
                &["subjects[0].name: Invalid value: \"_\": a lowercase RFC 1123 subdomain must…"],
            ),
            (
                "/subjects/0",
                json!({"kind": "ServiceAccount", "name": "a", "apiGroup": "x"}),
                &["subjects[0].apiGroup: Unsupported value: \"x\": supported values: \"\"", "subjects[0].namespace: Required value"],
            ),
            ("/subjects/0/kind", "Team".into(), &["subjects[0].kind: Unsupported value: \"Team\": supported values: \"ServiceAccount\", \"User\", \"Group\""]),
    ]).await;
    let pod = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "b"}]});
    let cron = object(
        "batch/v1",
        "CronJob",
        json!({"schedule": "@daily", "jobTemplate": {"spec": {"template": {"spec": pod}}}}),
    );
    check(
        &server,
        "/apis/batch/v1/namespaces/default/cronjobs",
        &cron,
        &[
            (
                "/spec/schedule",
                "*/5 * * *".into(),
                &["spec.schedule: Invalid value: \"*/5 * * *\": expected exactly 5 fields, found 4: [*/5 * * *]"],
            ),
            (
                "/spec/schedule",
                "61 * * * *".into(),
                &["spec.schedule: Invalid value: \"61 * * * *\": end of range (61) above maximum (59): 61"],
            ),
            (
                "/spec/schedule",
                "CRON_TZ=UTC * * * * *".into(),
                &["spec.schedule: Invalid value: \"CRON_TZ=UTC * * * * *\": cannot use TZ or CRON_TZ in schedule, \
                    use timeZone field instead"],
            ),
            (
                "/metadata/name",
                "a-name-that-leaves-no-room-for-the-eleven-characters-x".into(),
                &["metadata.name: Invalid value: \"a-name-that-leaves-no-room-for-the-eleven-characters-x\": must be \
                    no more than 52 characters"],
            ),
            (
                "/spec/timeZone",
                "".into(),
                &["spec.timeZone: Invalid value: \"\": timeZone must be nil or non-empty string"],
            ),
            (
                "/spec/failedJobsHistoryLimit",
                (-1).into(),
                &["spec.failedJobsHistoryLimit: Invalid value: -1: must be greater than or equal to 0"],
            ),
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn ingresses_and_network_policies_are_validated() {
    let server = server();
    let path =
        json!({"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "s", "port": {"number": 80}}}});
    let mut ingress = object(
        "networking.k8s.io/v1",
        "Ingress",
        json!({"tls": [{"hosts": ["a.example.com"]}], "rules": [{"host": "a.example.com", "http": {"paths": [path]}}]}),
    );
    ingress["metadata"]["annotations"] = json!({"a": "b"});
    check(&server, "/apis/networking.k8s.io/v1/namespaces/default/ingresses", &ingress, &[
        ("/spec/rules", Value::Null, &["spec: Invalid value: null: either `defaultBackend` or `rules` must be specified"]),
        ("/spec/rules/0/host", "1.2.3.4".into(), &["spec.rules[0].host: Invalid value: \"1.2.3.4\": must be a DNS name, not an IP address"]),
        ("/spec/rules/0/http/paths", json!([]), &["spec.rules[0].http.paths: Required value"]),
        ("/spec/rules/0/http/paths/0/path", "/a//b/..".into(), &[
            "spec.rules[0].http.paths[0].path: Invalid value: \"/a//b/..\": must not contain '//'",
            "spec.rules[0].http.paths[0].path: Invalid value: \"/a//b/..\": cannot end with '/..'",
        ]),
        ("/spec/rules/0/http/paths/0/pathType", Value::Null, &["spec.rules[0].http.paths[0].pathType: Required value: pathType must be specified"]),
        ("/spec/rules/0/http/paths/0/backend/service/port", json!({}), &["spec.rules[0].http.paths[0].backend: Required value: port name or number is required"]),
        ("/spec/rules/0/http/paths/0/backend/resource", json!({"kind": "B", "name": "b"}), &["spec.rules[0].http.paths[0].backend: Invalid value: \"\": cannot set both resource and service backends"]),
        ("/spec/rules/0/http/paths/0/backend", json!({}), &["spec.rules[0].http.paths[0].backend: Invalid value: \"\": resource or service backend is required"]),
        ("/spec/tls/0/hosts/0", "*.*".into(), &["spec.tls[0].hosts[0]: Invalid value: \"*.*\": a wildcard DNS-1123 subdomain must…"]),
        ("/spec/tls/0/hosts/0", "*.example.com".into(), &[]),
    ])
    .await;
    let policy = object(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{
            "from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}],
            "ports": [{"protocol": "TCP", "port": 80, "endPort": 90}]}]}),
    );
    check(&server, "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies", &policy, &[
        ("/spec/policyTypes/0", "Both".into(), &["spec.policyTypes[0]: Unsupported value: \"Both\": supported values: \"Ingress\", \"Egress\""]),
        ("/spec/ingress/0/from/0", json!({}), &["spec.ingress[0].from[0]: Required value: must specify a peer"]),
        ("/spec/ingress/0/from/0/podSelector", json!({}), &["spec.ingress[0].from[0]: Forbidden: may not specify both ipBlock and another peer"]),
        ("/spec/ingress/0/from/0/ipBlock/except/0", "10.0.0.0/8".into(), &["spec.ingress[0].from[0].ipBlock.except[0]: Invalid value: \"10.0.0.0/8\": must be a strict subset of `cidr`"]),
        ("/spec/ingress/0/ports/0/endPort", 79.into(), &["spec.ingress[0].ports[0].endPort: Invalid value: 79: must be greater than or equal to `port`"]),
        ("/spec/ingress/0/ports/0/port", "http".into(), &["spec.ingress[0].ports[0].endPort: Invalid value: 90: may not be specified when `port` is non-numeric"]),
        ("/spec/ingress/0/ports/0/protocol", "".into(), &["spec.ingress[0].ports[0].protocol: Unsupported value: \"\": supported values: \"TCP\", \"UDP\", \"SCTP\""]),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn budgets_slices_classes_and_signing_requests_are_validated() {
    let server = server();
    let budget = object("policy/v1", "PodDisruptionBudget", json!({"minAvailable": 1, "selector": {}}));
    check(&server, "/apis/policy/v1/namespaces/default/poddisruptionbudgets", &budget, &[
        ("/spec/minAvailable", (-1).into(), &["spec.minAvailable: Invalid value: -1: must be greater than or equal to 0"]),
        ("/spec/minAvailable", "101%".into(), &["spec.minAvailable: Invalid value: \"101%\": must not be greater than 100%"]),
        ("/spec/unhealthyPodEvictionPolicy", "Never".into(), &["spec.unhealthyPodEvictionPolicy: Unsupported value: \"Never\": supported values: \"AlwaysAllow\", \"IfHealthyBudget\""]),
    ])
    .await;
    let mut slice = named("discovery.k8s.io/v1", "EndpointSlice");
    slice["addressType"] = "IPv4".into();
    slice["endpoints"] = json!([{"addresses": ["10.0.0.1"]}]);
    slice["ports"] = json!([{"name": "a", "port": 80}]);
    check(&server, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", &slice, &[
        ("/endpoints/0/addresses", json!([]), &["endpoints[0].addresses: Required value: must contain at least 1 address"]),
        ("/endpoints/0/addresses/0", "::1".into(), &["endpoints[0].addresses[0]: Invalid value: \"::1\": must be an IPv4 address"]),
        ("/endpoints/0/addresses/0", "127.0.0.1".into(), &[]),
        ("/endpoints/0/addresses/0", "169.254.0.1".into(), &["endpoints[0].addresses[0]: Invalid value: \"169.254.0.1\": may not be in the link-local range (169.254.0.0/16, fe80::/10)"]),
        ("/ports/0/protocol", "HTTP".into(), &["ports[0].protocol: Unsupported value: \"HTTP\": supported values: \"SCTP\", \"TCP\", \"UDP\""]),
    ])
    .await;
    let mut class = named("storage.k8s.io/v1", "StorageClass");
    class["provisioner"] = "example.com/disks".into();
    class["allowedTopologies"] = json!([{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]);
    check(
        &server,
        "/apis/storage.k8s.io/v1/storageclasses",
        &class,
        &[
            (
                "/allowedTopologies/0/matchLabelExpressions/0/values",
                json!([]),
                &["allowedTopologies[0].matchLabelExpressions[0].values: Required value"],
            ),
            ("/allowedTopologies/0", json!({}), &["allowedTopologies[0].matchLabelExpressions: Duplicate value: \"\""]),
        ],
    )
    .await;
    let mut request = named("certificates.k8s.io/v1", "CertificateSigningRequest");
    request["spec"] = json!({"request": "aGk=", "signerName": "example.com/a", "usages": ["client auth"]});
    let uri = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    check(
        &server,
        uri,
        &request,
        &[(
            "/spec/request",
            "aGk=".into(),
            &["spec.request: Invalid value: \"aGk=\": PEM block type must be CERTIFICATE REQUEST"],
        )],
    )
    .await;
    let answer = server.post(&format!("{uri}?dryRun=All"), request).await;
    assert_eq!(answer.code, 422, "{}", answer.body);
}

#[tokio::test(start_paused = true)]
async fn services_secrets_and_events_are_validated() {
    let server = server();
    let service = object("v1", "Service", json!({"ports": [{"port": 80}]}));
    check(&server, "/api/v1/namespaces/default/services", &service, &[
        ("/spec/sessionAffinity", "Always".into(), &["spec.sessionAffinity: Unsupported value: \"Always\": supported values: \"ClientIP\", \"None\""]),
        ("/spec/loadBalancerClass", "example.com/a".into(), &["spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'"]),
        ("/spec/ports/0/targetPort", 70_000.into(), &["spec.ports[0].targetPort: Invalid value: 70000: must be between 1 and 65535, inclusive"]),
        ("/spec/externalIPs", json!(["x"]), &["spec.externalIPs[0]: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"]),
        ("/spec/selector", json!({"a": "b c"}), &["spec.selector: Invalid value: \"b c\": a valid label must…"]),
    ])
    .await;
    let mut secret = named("v1", "Secret");
    secret["type"] = "kubernetes.io/dockerconfigjson".into();
    secret["data"] = json!({".dockerconfigjson": "e30="});
    check(
        &server,
        "/api/v1/namespaces/default/secrets",
        &secret,
        &[
            ("/data", json!({}), &["data[.dockerconfigjson]: Required value"]),
            (
                "/data/.dockerconfigjson",
                "aGk=".into(),
                &["data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\": …"],
            ),
            ("/data/.dockerconfigjson", "e30=".into(), &[]),
        ],
    )
    .await;
    let mut event = named("v1", "Event");
    event["involvedObject"] = json!({"kind": "Pod", "name": "p", "namespace": "default"});
    check(
        &server,
        "/api/v1/namespaces/default/events",
        &event,
        &[
            (
                "/involvedObject/namespace",
                "other".into(),
                &["involvedObject.namespace: Invalid value: \"other\": does not match event.namespace"],
            ),
            ("/message", "m".into(), &[]),
        ],
    )
    .await;
}
