"""What people write with the Python client: typed calls, patches, watches, the dynamic client, leader election.

Usage: client.py KUBECONFIG. Ends with 0 when everything came out as Kubernetes' documentation says.
"""

import os
import sys
import threading

from kubernetes import client, config, dynamic, watch
from kubernetes.client.rest import ApiException
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock

NAMESPACE = "python-client"


def typed_objects_and_patches(core):
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=NAMESPACE)))
    made = core.create_namespaced_config_map(
        NAMESPACE, client.V1ConfigMap(metadata=client.V1ObjectMeta(generate_name="cm-"), data={"a": "1"})
    )
    assert made.metadata.name.startswith("cm-") and made.metadata.uid
    name = made.metadata.name
    patched = core.patch_namespaced_config_map(name, NAMESPACE, {"data": {"b": "2"}})
    assert patched.data == {"a": "1", "b": "2"}, patched.data
    patched = core.patch_namespaced_config_map(
        name, NAMESPACE, [{"op": "test", "path": "/data/a", "value": "1"}, {"op": "remove", "path": "/data/a"}]
    )
    assert patched.data == {"b": "2"}, patched.data
    stale = core.read_namespaced_config_map(name, NAMESPACE)
    stale.metadata.resource_version = made.metadata.resource_version
    try:
        core.replace_namespaced_config_map(name, NAMESPACE, stale)
        raise AssertionError("a stale write went through")
    except ApiException as error:
        assert error.status == 409 and error.reason == "Conflict", error
    try:
        core.read_namespaced_config_map("none", NAMESPACE)
        raise AssertionError("found what is not there")
    except ApiException as error:
        assert error.status == 404, error
    listed = core.list_namespaced_config_map(NAMESPACE, field_selector=f"metadata.name={name}")
    assert [item.metadata.name for item in listed.items] == [name]


def watches(core):
    start = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version
    labels = {"watched": "yes"}
    body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="watched", labels=labels))
    core.create_namespaced_config_map(NAMESPACE, body)
    core.patch_namespaced_config_map("watched", NAMESPACE, {"data": {"k": "v"}})
    core.delete_namespaced_config_map("watched", NAMESPACE)
    seen = []
    stream = watch.Watch()
    for event in stream.stream(
        core.list_namespaced_config_map,
        NAMESPACE,
        label_selector="watched=yes",
        resource_version=start,
        timeout_seconds=20,
    ):
        seen.append(event["type"])
        assert event["object"].metadata.name == "watched"
        if event["type"] == "DELETED":
            stream.stop()
    assert seen == ["ADDED", "MODIFIED", "DELETED"], seen
    # A revision older than the history gets the status Gone, and the client starts over.
    try:
        for event in watch.Watch().stream(
            core.list_namespaced_config_map, NAMESPACE, resource_version="1", timeout_seconds=5
        ):
            break
    except ApiException as error:
        assert error.status == 410, error


def dynamic_client(api):
    dyn = dynamic.DynamicClient(api)
    queues = dyn.resources.get(api_version="kueue.x-k8s.io/v1beta2", kind="ClusterQueue")
    body = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": "python"},
        "spec": {"namespaceSelector": {}},
    }
    applied = queues.server_side_apply(body=body, name="python", field_manager="python")
    assert applied.spec.queueingStrategy == "BestEffortFIFO", applied.spec
    patched = queues.patch(
        name="python",
        body={"spec": {"stopPolicy": "Hold"}},
        content_type="application/merge-patch+json",
    )
    assert patched.spec.stopPolicy == "Hold"
    assert any(event["object"].metadata.name == "python" for event in queues.watch(timeout=2))
    queues.delete(name="python")


def leader_election():
    led = threading.Event()

    class Done(Exception):
        pass

    lock = LeaseLock("python", NAMESPACE, "candidate-1")
    election = electionconfig.Config(
        lock, lease_duration=5, renew_deadline=3, retry_period=1, onstarted_leading=led.set, onstopped_leading=None
    )
    thread = threading.Thread(target=leaderelection.LeaderElection(election).run, daemon=True)
    thread.start()
    assert led.wait(20), "not elected"
    lease = client.CoordinationV1Api().read_namespaced_lease("python", NAMESPACE)
    assert lease.spec.holder_identity == "candidate-1", lease.spec


def main():
    api = config.new_client_from_config(sys.argv[1])
    config.load_kube_config(sys.argv[1])
    core = client.CoreV1Api(api)
    assert client.VersionApi(api).get_code().git_version.startswith("v1.")
    for check in (lambda: typed_objects_and_patches(core), lambda: watches(core), lambda: dynamic_client(api)):
        check()
    leader_election()
    core.delete_namespace(NAMESPACE)
    print("ok", flush=True)
    # The leader never stops, and runs on a thread: an interpreter that exits as usual may crash.
    os._exit(0)


main()
