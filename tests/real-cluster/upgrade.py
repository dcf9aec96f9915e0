#!/usr/bin/env python3
"""Upgrades Berth from one version to another and back, with Jobs that run, wait and come, on the control
plane that `up` runs.

  upgrade.py DIR OLD NEW [OPTIONS OF INSTALL]   DIR is the folder of `build` and `up`; OLD, NEW the programs

`up` must be given the images berth:old=OLD,berth:new=NEW. Prints what the upgrade did to the Jobs, how long
new ones waited before, during and after it, and how fast the API server was meanwhile. Exits with 1 if a
Job was lost, restarted or not held. DIR/state/pods has the logs of the controllers.
"""

import json
import sys
import threading
import time

import check
import jobs

NAMED = ["-n", "berth-system"]
PERIOD = 30


class Probe:
    """Sends a request five times a second, and keeps the time and the status of each response."""

    def __init__(self, cluster, name, *request):
        self.cluster, self.name, self.request, self.answers = cluster, name, request, []
        threading.Thread(target=self.send, daemon=True).start()

    def send(self):
        while True:
            begun = time.time()
            try:
                status, answer = self.cluster.request(*self.request)
                message = (answer or {}).get("message", "")
            except OSError as error:
                status, message = 0, repr(error)
            self.answers.append((begun, time.time() - begun, status, message))
            time.sleep(0.2)

    def report(self, begun, ended):
        answers = [it for it in list(self.answers) if begun <= it[0] < ended]
        took = sorted(it[1] for it in answers) or [0]
        failed = [it for it in answers if it[2] not in (200, 201)]
        text = f"{self.name}: {took[len(took) // 2]:.3f} s at the median, {took[-1]:.3f} s at most; {len(failed)} of {len(took)} failed"
        return text + (f": {failed[0][2]} {failed[0][3][:200]}" if failed else "")


def probes(cluster):
    """The API server alone (an update that changes nothing); conversion; a webhook that must respond."""
    configmaps = "/api/v1/namespaces/default/configmaps"
    cluster.request("POST", configmaps, {"metadata": {"name": "probe"}})
    workloads = "/apis/kueue.x-k8s.io/v1beta1/namespaces/default/workloads?limit=1&resourceVersion="
    queues = "/apis/kueue.x-k8s.io/v1beta2/clusterqueues"
    found = cluster.request("GET", f"{queues}/free")[1]
    queue = {key: found[key] for key in ["apiVersion", "kind", "spec"]} | {"metadata": {"name": "asked"}}
    return [
        Probe(cluster, "update of a ConfigMap", "PUT", f"{configmaps}/probe", {"metadata": {"name": "probe"}, "data": {"a": "b"}}),
        Probe(cluster, "read in v1beta1", "GET", workloads),
        Probe(cluster, "write of a ClusterQueue", "POST", f"{queues}?dryRun=All", queue),
    ]


class Upgrade:
    def __init__(self, folder, old, new, options):
        self.programs = {"old": old, "new": new}
        self.folder, self.options = folder, options
        self.checks = check.Check(folder, old, options)
        self.cluster = jobs.Cluster(self.checks.kubeconfig)
        self.wrong = []

    def install(self, which):
        """Installs this version, and waits until its replicas have replaced the others."""
        options = [*self.options, "--image", f"berth-batch/berth:{which}"]
        check.Check(self.folder, self.programs[which], options).install()
        self.checks.kubectl("rollout", "status", "deployment", "berth-controller", *NAMED, "--timeout=300s")
        self.checks.until("one set of replicas", lambda: len(self.checks.get("pods", *NAMED)["items"]) == 2)

    def queues(self):
        """Ten full queues of one cohort, and one with free quota."""
        text = (check.ROOT / "tests/real-cluster/queues.yaml").read_text().replace("nominalQuota: 300", "nominalQuota: 40")
        self.checks.kubectl("apply", "--server-side", "-f", "-", text=text)
        first, *_ = (it for it in text.split("---\n") if "kind: ClusterQueue" in it)
        free = first.replace("queue-0", "free").replace("cohortName: all", "cohortName: free").replace(": 40", ": 4000")
        local = json.dumps({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
                            "metadata": {"name": "free", "namespace": "default"}, "spec": {"clusterQueue": "free"}})
        for text in [free, local]:
            self.checks.kubectl("apply", "--server-side", "-f", "-", text=text)

    def fill(self):
        jobs.create(self.cluster, "job", 500)
        self.checks.until("400 admitted jobs", lambda: self.admitted() == 400, 300)
        self.checks.until("400 pods", lambda: sum(
            it["status"]["phase"] == "Running" for it in self.cluster.list("/api/v1/namespaces/default/pods")) == 400, 300)

    def admitted(self):
        return sum(self.checks.admitted(f"queue-{it}")[0] for it in range(10))

    def compare(self, before, name):
        """Compares the Jobs that neither end nor start."""
        now = jobs.snapshot(self.cluster)
        wrong = jobs.compare(before, now)
        print(f"{name}: {jobs.describe(now)}; {len(wrong)} differences", *wrong[:10], sep="\n  ", flush=True)
        self.wrong += wrong

    def to(self, which, asked):
        before = jobs.snapshot(self.cluster)
        before = {key: {name: it for name, it in found.items() if "flow-" not in name} for key, found in before.items()}
        flow = jobs.Flow(self.cluster, f"flow-{which}", ["free"])
        times = [time.time()]
        time.sleep(PERIOD)
        times.append(time.time())
        self.install(which)
        times.append(time.time())
        time.sleep(PERIOD)
        times.append(time.time())
        flow.end(120)
        self.compare(before, f"to {which}")
        self.wrong += flow.failed + flow.missing()
        print(f"  {len(flow.failed)} Jobs not created or not held, {len(flow.missing())} not started", *flow.failed[:5], flush=True)
        for name, begun, ended in zip(["before", "during", "after"], times, times[1:]):
            print(f"  {name} ({ended - begun:.0f} s): {flow.report(begun, ended)}", *[it.report(begun, ended) for it in asked],
                  sep="\n    ", flush=True)

    def run(self):
        self.install("old")
        self.queues()
        self.fill()
        asked = probes(self.cluster)
        for which in ["new", "old"]:
            self.to(which, asked)


def main(folder, old, new, *options):
    upgrade = Upgrade(folder, old, new, options)
    upgrade.run()
    sys.exit(bool(upgrade.wrong))


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 3 else sys.exit(__doc__)
