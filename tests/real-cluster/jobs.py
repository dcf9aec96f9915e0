#!/usr/bin/env python3
"""Jobs of queues on a real cluster, and what became of them.

  jobs.py KUBECONFIG create PREFIX COUNT [QUEUES]   Jobs of one pod and one CPU, which never end
  jobs.py KUBECONFIG snapshot FILE                  jobs, pods and workloads
  jobs.py KUBECONFIG compare BEFORE                 what a change of controllers must not change
  jobs.py KUBECONFIG reads FILE                     reads workloads in v1beta1 ten times a second
  jobs.py KUBECONFIG flow PREFIX SECONDS            five short Jobs a second, and how long each waits
"""

import collections
import concurrent.futures
import http.client
import json
import ssl
import subprocess
import sys
import threading
import time

QUEUE = "kueue.x-k8s.io/queue-name"
local = threading.local()


class Cluster:
    def __init__(self, kubeconfig):
        command = ["kubectl", "--kubeconfig", kubeconfig, "config", "view", "--raw", "-o", "json"]
        config = json.loads(subprocess.check_output(command))
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.context = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self.context.load_cert_chain(user["client-certificate"], user["client-key"])
        self.host = cluster["server"].removeprefix("https://")

    def request(self, method, path, body=None):
        for attempt in range(2):
            if not hasattr(local, "connection"):
                local.connection = http.client.HTTPSConnection(self.host, context=self.context, timeout=60)
            try:
                data = json.dumps(body) if body is not None else None
                local.connection.request(method, path, data, {"content-type": "application/json"})
                response = local.connection.getresponse()
                return response.status, json.loads(response.read() or b"null")
            except (http.client.HTTPException, OSError):
                del local.connection
                if attempt:
                    raise

    def list(self, path):
        status, found = self.request("GET", path + "?resourceVersion=0" if "kueue" not in path else path)
        if status != 200:
            raise SystemExit(f"{path}: {status} {found}")
        return found["items"]


def job(name, queue):
    container = {"name": "c", "image": "work", "resources": {"requests": {"cpu": "1"}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "labels": {QUEUE: queue}},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }


def create(cluster, prefix, count, queues=10):
    def one(number):
        status, answer = cluster.request(
            "POST", "/apis/batch/v1/namespaces/default/jobs", job(f"{prefix}-{number}", f"queue-{number % queues}")
        )
        return (status, answer.get("spec", {}).get("suspend"), answer.get("message", "")[:200])

    started = time.time()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        results = collections.Counter(pool.map(one, range(count)))
    print(f"created {count} in {time.time() - started:.1f} s:", dict(results))


class Flow:
    """Short Jobs, five a second, in queues with free quota, and the times at which each is admitted and started."""

    def __init__(self, cluster, prefix, queues):
        self.cluster, self.prefix, self.queues = cluster, prefix, queues
        self.created, self.queued, self.admitted, self.started, self.failed = {}, {}, {}, {}, []
        self.ended = threading.Event()
        jobs = "/apis/batch/v1/namespaces/default/jobs"
        workloads = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads"
        for path, seen in [(jobs, self.job_seen), (workloads, self.workload_seen)]:
            threading.Thread(target=self.follow, args=(path, seen), daemon=True).start()
        time.sleep(1)
        self.creator = threading.Thread(target=self.create, daemon=True)
        self.creator.start()

    def follow(self, path, seen):
        version = ""
        while True:
            connection = http.client.HTTPSConnection(self.cluster.host, context=self.cluster.context, timeout=600)
            try:
                if not version:
                    version = self.cluster.request("GET", path + "?limit=1")[1]["metadata"]["resourceVersion"]
                connection.request("GET", f"{path}?watch=1&resourceVersion={version}")
                for line in connection.getresponse():
                    event = json.loads(line)
                    if event.get("type") == "ERROR":
                        version = ""
                        break
                    version = event["object"]["metadata"]["resourceVersion"]
                    seen(event["object"], time.time())
            except (http.client.HTTPException, OSError, KeyError, TypeError, ValueError):
                time.sleep(0.2)

    def job_seen(self, job, now):
        name = job["metadata"]["name"]
        if name.startswith(self.prefix) and job["spec"].get("suspend") is False:
            self.started.setdefault(name, now)

    def workload_seen(self, workload, now):
        name = workload["metadata"].get("ownerReferences", [{"name": ""}])[0]["name"]
        if name.startswith(self.prefix):
            self.queued.setdefault(name, now)
            if conditions(workload).get("Admitted") == "True":
                self.admitted.setdefault(name, now)

    def create(self):
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            number = 0
            while not self.ended.wait(0.2):
                pool.submit(self.create_one, number)
                number += 1

    def create_one(self, number):
        name = f"{self.prefix}-{number}"
        body = job(name, self.queues[number % len(self.queues)])
        body["spec"]["template"]["metadata"] = {"annotations": {"real-cluster/run-seconds": "2"}}
        begun = time.time()
        try:
            status, answer = self.cluster.request("POST", "/apis/batch/v1/namespaces/default/jobs", body)
        except (http.client.HTTPException, OSError) as error:
            status, answer = 0, {"message": repr(error)}
        if status == 201 and answer["spec"].get("suspend"):
            self.created[name] = (begun, time.time())
        else:
            text = answer.get("message", "")[:200]
            self.failed.append((time.strftime("%T"), status, answer.get("spec", {}).get("suspend"), text))

    def end(self, seconds=20):
        """Ends the creation, and waits until all have started, for this long at most."""
        self.ended.set()
        self.creator.join()
        end = time.time() + seconds
        while time.time() < end and self.missing():
            time.sleep(0.2)

    def missing(self):
        return [name for name in list(self.created) if name not in self.started]

    def pause(self, begun, ended):
        """The longest time in this period in which no Job started, and when it began."""
        times = [begun, *sorted(at for at in list(self.started.values()) if begun < at < ended), ended]
        return max((after - before, before) for before, after in zip(times, times[1:]))

    def report(self, begun, ended):
        """What became of the Jobs that were created in this period."""
        of = {name: at for name, at in list(self.created.items()) if begun <= at[0] < ended and name in self.started}
        if not of:
            return "no Job started"
        last, stages = {name: at[0] for name, at in of.items()}, []
        times = {name: at[1] for name, at in of.items()}
        for stage, seen in [("created", times), ("queued", self.queued), ("admitted", self.admitted), ("started", self.started)]:
            took = sorted(max(0, seen.get(name, last[name]) - last[name]) for name in of)
            last = {name: max(last[name], seen.get(name, last[name])) for name in of}
            stages.append(f"{stage} {took[len(took) // 2]:.2f}/{took[-1]:.2f}")
        waits = sorted(self.started[name] - at[0] for name, at in of.items())
        pause, at = self.pause(begun, ended)
        at = time.strftime("%T", time.localtime(at))
        return (f"{len(of)} Jobs, wait {waits[len(waits) // 2]:.2f} s at the median, {waits[-1]:.2f} s at most "
                f"({', '.join(stages)}); no start for {pause:.2f} s at most, from {at}")


def flow(cluster, prefix, seconds):
    begun = time.time()
    flow = Flow(cluster, prefix, [f"queue-{it}" for it in range(10)])
    time.sleep(float(seconds))
    ended = time.time()
    flow.end()
    print(f"{len(flow.failed)} not created or not held, {len(flow.missing())} not started", *flow.failed[:5], *flow.missing()[:5])
    print(flow.report(begun, ended))


def conditions(workload):
    return {it["type"]: it["status"] for it in workload.get("status", {}).get("conditions") or []}


def snapshot(cluster):
    state = {"jobs": {}, "pods": {}, "workloads": {}}
    for it in cluster.list("/apis/batch/v1/namespaces/default/jobs"):
        state["jobs"][it["metadata"]["name"]] = [it["metadata"]["uid"], it["spec"].get("suspend", False)]
    for it in cluster.list("/api/v1/namespaces/default/pods"):
        restarts = sum(c.get("restartCount", 0) for c in it["status"].get("containerStatuses", []))
        owner = it["metadata"]["ownerReferences"][0]["name"]
        start = it["status"].get("startTime")
        state["pods"][it["metadata"]["name"]] = [it["metadata"]["uid"], it["status"]["phase"], restarts, owner, start]
    for it in cluster.list("/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads"):
        meta, status = it["metadata"], it.get("status", {})
        owner = meta["ownerReferences"][0]["name"]
        state["workloads"][meta["name"]] = [meta["uid"], owner, status.get("admission"), conditions(it)]
    return state


def describe(state):
    admitted = sum(1 for it in state["workloads"].values() if it[3].get("Admitted") == "True")
    phases = collections.Counter(it[1] for it in state["pods"].values())
    held = sum(1 for it in state["jobs"].values() if it[1])
    return f"{len(state['jobs'])} jobs, {held} held; {len(state['workloads'])} workloads, {admitted} admitted; pods {dict(phases)}"


def compare(before, now):
    wrong = []
    for name, pod in before["pods"].items():
        after = now["pods"].get(name)
        if after is None or after[0] != pod[0] or after[2] != pod[2] or after[4] != pod[4]:
            wrong.append(f"pod {name} was restarted: {pod} {after}")
    for name, (uid, suspended) in before["jobs"].items():
        if now["jobs"].get(name, [None])[0] != uid:
            wrong.append(f"job {name} was lost")
    for name, workload in before["workloads"].items():
        after = now["workloads"].get(name)
        if after is None or after[0] != workload[0]:
            wrong.append(f"workload {name} was lost")
        elif workload[2] and workload[2] != after[2]:
            wrong.append(f"workload {name} lost its admission: {workload[2]} {after[2]}")
        elif after[3].get("Evicted") == "True" and workload[3].get("Evicted") != "True":
            wrong.append(f"workload {name} was evicted")
    admitted = {it[1] for it in now["workloads"].values() if it[3].get("Admitted") == "True"}
    for name, (_, suspended) in now["jobs"].items():
        if not suspended and name not in admitted:
            wrong.append(f"job {name} runs without admission")
    for name, pod in now["pods"].items():
        if pod[3] not in admitted:
            wrong.append(f"pod {name} exists without admission")
    return wrong


def reads(cluster, path):
    """Logs each change between reads that work and reads that fail."""
    with open(path, "w", buffering=1) as log:
        since, state = time.time(), None
        while True:
            try:
                status, _ = cluster.request(
                    "GET", "/apis/kueue.x-k8s.io/v1beta1/namespaces/default/workloads?limit=1&resourceVersion="
                )
            except OSError as error:
                status = repr(error)
            if status != state:
                log.write(f"{time.strftime('%T')} {state} for {time.time() - since:.1f} s, now {status}\n")
                since, state = time.time(), status
            time.sleep(0.1)


def main(kubeconfig, command, *arguments):
    cluster = Cluster(kubeconfig)
    if command == "create":
        create(cluster, arguments[0], *map(int, arguments[1:]))
    elif command == "snapshot":
        state = snapshot(cluster)
        print(describe(state))
        with open(arguments[0], "w") as file:
            json.dump(state, file)
    elif command == "compare":
        with open(arguments[0]) as file:
            before = json.load(file)
        now = snapshot(cluster)
        wrong = compare(before, now)
        print(f"{describe(now)}; {len(wrong)} differences", *wrong[:10], sep="\n  ")
        sys.exit(bool(wrong))
    elif command == "flow":
        flow(cluster, *arguments)
    elif command == "reads":
        reads(cluster, arguments[0])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 2 else sys.exit(__doc__)
