#!/usr/bin/env python3
"""Checks an installation of Berth on the control plane that `up` runs.

  check.py DIR BERTH [OPTIONS OF INSTALL]   DIR is the folder of `build` and `up`, BERTH the program

Installs Berth; runs the quickstart and the platform of examples/gke-batch-refarch; asks webhooks and
conversion; takes the controllers, the leader and the API server away. `up` must be given the image
berth-batch/berth. Prints a line for each check, and exits with 1 if one fails.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import jobs

ROOT = pathlib.Path(__file__).resolve().parents[2]
HELD = "berth.dev/held"
DOWN_SECONDS = 40


class Check:
    def __init__(self, folder, program, options):
        self.folder, self.program, self.options = pathlib.Path(folder), program, options
        self.kubeconfig = str(self.folder / "kubeconfig")
        self.failed = False

    def kubectl(self, *arguments, text=None):
        command = ["kubectl", "--kubeconfig", self.kubeconfig, *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def get(self, *arguments):
        return json.loads(self.kubectl("get", "-o", "json", *arguments))

    def apply(self, path, **values):
        text = (ROOT / path).read_text()
        for name, value in values.items():
            text = text.replace("${%s}" % name, value)
        self.kubectl("apply", "--server-side", "-f", "-", text=text)

    def until(self, what, condition, seconds=120):
        """Waits, and returns the seconds that it took."""
        started, last = time.time(), None
        while time.time() - started < seconds:
            try:
                if condition():
                    return time.time() - started
            except (RuntimeError, KeyError) as error:
                last = error
            time.sleep(0.2)
        raise RuntimeError(f"waited {seconds} s for {what}" + (f": {last}" if last else ""))

    def run(self, name, check):
        try:
            print(f"ok      {name}: {check()}", flush=True)
        except (RuntimeError, KeyError, AssertionError) as error:
            self.failed = True
            print(f"FAILED  {name}: {error}", flush=True)

    def ready(self):
        return self.get("deployment", "berth-controller", "-n", "berth-system")["status"].get("readyReplicas", 0)

    def admitted(self, queue):
        status = self.get("clusterqueue", queue)["status"]
        return status["admittedWorkloads"], status["pendingWorkloads"]

    def install(self):
        version = json.loads(self.kubectl("get", "--raw", "/version"))
        command = [self.program, "install", "--apply", "--kubeconfig", self.kubeconfig, *self.options]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        seconds = self.until("two replicas", lambda: self.ready() == 2)
        for name in ["v1beta1.visibility.kueue.x-k8s.io", "v1beta2.visibility.kueue.x-k8s.io", "v1alpha1.explain.berth.dev"]:
            self.until(name, lambda: self.get("apiservice", name)["status"]["conditions"][0]["status"] == "True")
        return f"{version['gitVersion']}, {done.stdout.count('applied')} objects, ready after {seconds:.0f} s"

    def quickstart(self):
        self.apply("examples/quickstart/queues.yaml")
        self.apply("examples/quickstart/blue-jobs.yaml")
        self.until("two admitted jobs and one that waits", lambda: self.admitted("blue") == (2, 1))
        self.apply("examples/quickstart/green-job.yaml")
        self.until("the preemption", lambda: self.admitted("blue") == (1, 2) and self.admitted("green") == (1, 0))
        explained = self.kubectl("get", "--raw", "/apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/blue/pendingworkloads")
        assert len(json.loads(explained)["items"]) == 2, explained
        return "a job borrows, one waits, and one is preempted; both that wait are listed"

    def platform(self):
        base = "examples/gke-batch-refarch/"
        for file in ["priorities", "flavors"]:
            self.apply(f"{base}platform/{file}.yaml")
        for team in ["red", "blue"]:
            self.apply(f"{base}platform/team.yaml", team=team)
        # Each queue of the other team exists before a job can borrow from it.
        time.sleep(2)
        for index in "012":
            for team in ["red", "blue"]:
                self.kubectl("create", "-f", "-", text=(ROOT / f"{base}jobs/everyday.yaml").read_text()
                             .replace("${team}", team).replace("${index}", index))
                time.sleep(0.5)
        queues = ["red-everyday", "blue-everyday"]
        self.until("six admitted jobs", lambda: [self.admitted(it) for it in queues] == [(3, 0), (3, 0)])
        flavors = {}
        for item in self.get("workloads", "-A")["items"]:
            for podset in item.get("status", {}).get("admission", {}).get("podSetAssignments", []):
                flavor = podset["flavors"].get("nvidia.com/gpu")
                if flavor:
                    flavors[flavor] = flavors.get(flavor, 0) + 1
        assert flavors == {"l4-reserved": 2, "l4-spot": 4}, flavors
        return f"six jobs admitted: {flavors}"

    def webhooks(self):
        queue = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "ClusterQueue", "metadata": {"name": "old"},
                 "spec": {"cohort": "all", "namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [
                     {"name": "default", "resources": [{"name": "cpu", "nominalQuota": "-1"}]}]}]}}
        try:
            self.kubectl("create", "-f", "-", text=json.dumps(queue))
            raise AssertionError("a negative quota was accepted")
        except RuntimeError as error:
            assert "validate.berth.dev" in str(error), error
        queue["spec"]["resourceGroups"] = []
        self.kubectl("create", "-f", "-", text=json.dumps(queue))
        assert self.get("clusterqueues.v1beta2.kueue.x-k8s.io", "old")["spec"]["cohortName"] == "all"
        new = self.get("workloads.v1beta2.kueue.x-k8s.io", "-A")["items"]
        old = self.get("workloads.v1beta1.kueue.x-k8s.io", "-A")["items"]
        assert new and len(new) == len(old), (len(new), len(old))
        annotations = self.job("asked")["metadata"].get("annotations", {})
        assert HELD not in annotations, "the webhook did not remove the mark of the policy"
        self.until("the job to start", lambda: self.get("job", "asked")["spec"]["suspend"] is False)
        return f"a rejection, a default, {len(old)} workloads read in both versions"

    def job(self, name):
        created = json.loads(self.kubectl("create", "-o", "json", "-f", "-", text=json.dumps(jobs.job(name, "queue-0"))))
        assert created["spec"]["suspend"] is True, f"job {name} was not held"
        return created

    def queues(self):
        text = (ROOT / "tests/real-cluster/queues.yaml").read_text().replace("nominalQuota: 300", "nominalQuota: 5")
        self.kubectl("apply", "--server-side", "-f", "-", text=text)
        return "ten queues of 5 CPUs"

    def controllers_down(self):
        before = jobs.snapshot(jobs.Cluster(self.kubeconfig))
        scale = ["scale", "deployment", "berth-controller", "-n", "berth-system"]
        self.kubectl(*scale, "--replicas=0")
        self.kubectl("wait", "--for=delete", "pod", "-l", "app.kubernetes.io/name=berth", "-n", "berth-system", "--timeout=60s")
        assert HELD in self.job("held")["metadata"].get("annotations", {}), "no policy held the job"
        time.sleep(5)
        wrong = jobs.compare(before, jobs.snapshot(jobs.Cluster(self.kubeconfig)))
        assert not wrong, wrong[:3]
        self.kubectl(*scale, "--replicas=2")
        self.until("two replicas", lambda: self.ready() == 2)
        seconds = self.until("the held job to start", lambda: self.get("job", "held")["spec"]["suspend"] is False)
        return f"a policy holds a new job, which starts {seconds:.1f} s after the controllers are ready; nothing else changed"

    def leader_killed(self):
        holder = self.get("lease", "berth-controller", "-n", "berth-system")["spec"]["holderIdentity"]
        pod = next(it["metadata"]["name"] for it in self.get("pods", "-n", "berth-system")["items"] if it["metadata"]["name"] in holder)
        os.kill(process_of(pod), signal.SIGKILL)
        self.job("after-the-leader")
        seconds = self.until("a job to start", lambda: self.get("job", "after-the-leader")["spec"]["suspend"] is False)
        now = self.get("lease", "berth-controller", "-n", "berth-system")["spec"]["holderIdentity"]
        assert now != holder, "the same replica leads"
        self.until("two replicas", lambda: self.ready() == 2)
        return f"another replica starts a job {seconds:.1f} s later"

    def api_down(self):
        cluster = jobs.Cluster(self.kubeconfig)
        jobs.create(cluster, "outage", 60)
        self.until("the queues to be full", lambda: sum(self.admitted(f"queue-{it}")[0] for it in range(10)) >= 50)
        time.sleep(3)
        before = jobs.snapshot(cluster)
        state = self.folder / "state"
        (state / "down").touch()
        os.kill(int((state / "apiserver.pid").read_text()), signal.SIGKILL)
        time.sleep(DOWN_SECONDS)
        (state / "down").unlink()
        self.until("the API server", lambda: self.kubectl("get", "--raw", "/readyz") == "ok")
        started = time.time()
        self.until("two replicas", lambda: self.ready() == 2)
        self.until("all workloads to be served", lambda: jobs.snapshot(jobs.Cluster(self.kubeconfig)))
        wrong = jobs.compare(before, jobs.snapshot(jobs.Cluster(self.kubeconfig)))
        assert not wrong, wrong[:3]
        running = [name for name, it in before["jobs"].items() if not it[1]]
        self.kubectl("delete", "job", *[name for name in running if name.startswith("outage")][:5])
        waiting = {name for name, it in before["jobs"].items() if it[1]}
        resumed = lambda: any(not self.get("job", name)["spec"]["suspend"] for name in waiting)
        self.until("freed quota to be used", resumed)
        seconds = time.time() - started
        pods = self.get("pods", "-n", "berth-system")["items"]
        restarts = sum(it["restartCount"] for pod in pods for it in pod["status"].get("containerStatuses", []))
        return f"{DOWN_SECONDS} s: no job lost or unheld; {seconds:.1f} s later freed quota is used; {restarts} restarts of controllers"


def process_of(pod):
    """The process of a pod, which `nodes` gives the pod's name."""
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"POD_NAME={pod}".encode() in variables and b"controller" in words and b"unshare" not in words:
            return int(folder.name)
    raise RuntimeError(f"pod {pod} has no process")


def main(folder, program, *options):
    check = Check(folder, program, options)
    for name in ["install", "quickstart", "platform", "queues", "webhooks", "controllers_down", "leader_killed", "api_down"]:
        check.run(name.replace("_", " "), getattr(check, name))
    sys.exit(check.failed)


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 2 else sys.exit(__doc__)
