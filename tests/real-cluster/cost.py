#!/usr/bin/env python3
"""What queueing controllers cost an API server that many programs share.

  cost.py run DIR FILE LOAD [OPTIONS] -- PROGRAM ARGUMENTS...
  cost.py compare FILE...

`run` starts the control plane that `build DIR` built, creates the definitions and starts the
controllers: PROGRAM, with {kubeconfig} in its arguments replaced by the kubeconfig of a user of their
own. It then runs the load, and writes figures to FILE. Needs root, as `up` does. LOAD is one of

  plan=FILE      a generator file, by `berth bench load`: workloads without jobs
  jobs=COUNT     Jobs of one pod that runs for a second, in ten queues with 1,500 CPUs together;
                 Kubernetes' own controllers and scheduler run them on fake nodes
  waiting=COUNT  Jobs that wait, because the queues have no quota

Jobs are created suspended, because no webhooks are installed. OPTIONS:

  --definitions FILE   CustomResourceDefinitions (a list in JSON or YAML)
  --berth PROGRAM      the program of `plan=`
  --bodies             count status writes of workloads by the conditions that they change

Requests are counted in the audit log, and bytes by the kernel, for each connection of the controllers.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
import jobs

HERE = pathlib.Path(__file__).resolve().parent
USER = "queueing-controllers"
NOT_WRITES = {"get", "list", "watch"}
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/workloads"
QUIET_SECONDS = 4
# Berth packs objects that were not used for ten seconds.
SETTLE_SECONDS = 11


class Plane:
    """The control plane, from its start to its end."""

    def __init__(self, folder, api_only, bodies):
        self.folder = pathlib.Path(folder).resolve()
        environment = dict(os.environ, AUDIT="bodies" if bodies else "1")
        if api_only:
            environment["API_ONLY"] = "1"
        self.process = subprocess.Popen(
            [HERE / "up", self.folder], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        if not self.process.stdout.readline().startswith("kubeconfig:"):
            raise SystemExit("the control plane did not start")
        self.kubeconfig = str(self.folder / "kubeconfig")
        self.audit = open(self.folder / "state/audit.log")

    def kubectl(self, *arguments, text=None):
        command = [self.folder / "bin/kubectl", "--kubeconfig", self.kubeconfig, *arguments]
        if not command[0].exists():
            command[0] = "kubectl"
        return subprocess.run(command, input=text, check=True, capture_output=True, text=True).stdout

    def wait_for(self, kind, condition):
        """Waits until this condition of all objects of a kind is true."""
        for _ in range(60):
            found = json.loads(self.kubectl("get", kind, "-o", "json"))["items"]
            if all(jobs.conditions(it).get(condition) == "True" for it in found):
                return
            time.sleep(1)
        raise SystemExit(f"some {kind} did not become {condition}")

    def identity(self):
        """The kubeconfig of a user for the controllers. The audit log has the name of the user."""
        state = self.folder / "state"
        commands = (
            f"openssl req -newkey rsa:2048 -nodes -keyout {USER}.key -out {USER}.csr -subj /O=system:masters/CN={USER} &&"
            f"echo extendedKeyUsage=clientAuth >{USER}.ext &&"
            f"openssl x509 -req -in {USER}.csr -CA ca.crt -CAkey ca.key -out {USER}.crt -days 30 -extfile {USER}.ext"
        )
        subprocess.run(commands, shell=True, cwd=state, check=True, capture_output=True)
        text = (self.folder / "kubeconfig").read_text()
        path = self.folder / "controllers.kubeconfig"
        path.write_text(text.replace("/admin.", f"/{USER}."))
        return str(path)

    def requests(self):
        """The requests of the controllers since the last call."""
        while line := self.audit.readline():
            while not line.endswith("\n"):
                time.sleep(0.01)
                line += self.audit.readline()
            # Most requests are those of others.
            if USER in line and (request := json.loads(line))["user"]["username"] == USER:
                yield request

    def stop(self):
        os.kill(self.process.pid, signal.SIGTERM)
        self.process.wait()


class Controllers(threading.Thread):
    """A process, and what it uses: processor time, memory, bytes of its connections."""

    def __init__(self, command, log):
        super().__init__(daemon=True)
        self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        self.peak = 0
        self.connections = {}
        self.start()

    def run(self):
        while self.process.poll() is None:
            self.peak = max(self.peak, self.memory()["VmRSS"])
            self.count_bytes()
            time.sleep(0.5)

    def memory(self):
        """Resident memory in MiB, and which part of it is no file's."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        found = dict(re.findall(r"(VmRSS|RssAnon):\s*(\d+)", status))
        # A process that has ended has no memory.
        return {name: int(found.get(name, 0)) // 1024 for name in ("VmRSS", "RssAnon")}

    def seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def count_bytes(self):
        lines = subprocess.run(["ss", "-tinpHO", "dport", "6443"], capture_output=True, text=True).stdout
        for line in lines.splitlines():
            if f"pid={self.process.pid}," in line:
                found = dict(re.findall(r"bytes_(received|sent):(\d+)", line))
                self.connections[line.split()[3]] = [int(found.get(name, 0)) for name in ("received", "sent")]

    def figures(self):
        received, sent = (sum(column) for column in zip(*self.connections.values()))
        return {"cpu": self.seconds(), "received": received, "sent": sent}

    def stop(self):
        self.process.terminate()
        self.process.wait()


def queues(plane, quota):
    plane.kubectl("apply", "--server-side", "-f", "-", text=(HERE / "queues.yaml").read_text().replace("300", str(quota)))
    plane.wait_for("clusterqueues", "Active")


def run_plan(plane, path, program):
    command = [program, "bench", "load", path, "--kubeconfig", plane.kubeconfig, "--output", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    report = json.loads(done.stdout)
    ideal, classes = report["idealWithPolicy"], report["classes"].values()
    return {
        "workloads": report["finished"],
        "wall": report["wallSeconds"],
        "wall of the ideal with policy": report["idealWithPolicySeconds"],
        "admissions": report["admissions"],
        "evictions": sum(it["evictions"] for it in classes),
        "evictions of the ideal": sum(it["evictions"] for it in ideal["classes"].values()),
        "work lost to evictions, s": sum(it["lostSeconds"] for it in classes),
        "violations": report["violations"]["count"],
        "mean seconds to admission": {name: it["secondsToAdmission"]["mean"] for name, it in report["classes"].items()},
    }


def submit(cluster, count, annotations):
    def one(number):
        body = jobs.job(f"job-{number}", f"queue-{number % 10}")
        body["spec"]["suspend"] = True
        body["spec"]["template"]["metadata"] = {"annotations": annotations}
        at = time.time()
        status, answer = cluster.request("POST", "/apis/batch/v1/namespaces/default/jobs", body)
        if status != 201:
            raise SystemExit(f"job-{number}: {status} {answer}")
        return body["metadata"]["name"], at

    with jobs.concurrent.futures.ThreadPoolExecutor(16) as pool:
        return dict(pool.map(one, range(count)))


class Follower(threading.Thread):
    """When each Job was first seen released and complete."""

    def __init__(self, cluster):
        super().__init__(daemon=True)
        self.cluster, self.released, self.complete = cluster, {}, {}
        self.start()

    def run(self):
        version = self.cluster.request("GET", "/apis/batch/v1/jobs?limit=1")[1]["metadata"]["resourceVersion"]
        while True:
            path = f"/apis/batch/v1/jobs?watch=1&resourceVersion={version}"
            connection = jobs.http.client.HTTPSConnection(self.cluster.host, context=self.cluster.context, timeout=600)
            try:
                connection.request("GET", path)
                for line in connection.getresponse():
                    job = json.loads(line)["object"]
                    name, version = job["metadata"].get("name"), job["metadata"]["resourceVersion"]
                    if job.get("spec", {}).get("suspend") is False:
                        self.released.setdefault(name, time.time())
                    if jobs.conditions(job).get("Complete") == "True":
                        self.complete.setdefault(name, time.time())
            except OSError:
                time.sleep(0.2)


def run_jobs(plane, count):
    cluster = jobs.Cluster(plane.kubeconfig)
    follower = Follower(cluster)
    time.sleep(1)
    begun = time.time()
    created = submit(cluster, count, {"real-cluster/run-seconds": "1"})
    submitted = time.time()
    while len(follower.complete) < count:
        if time.time() > max([submitted, *follower.complete.copy().values()]) + 120:
            raise SystemExit(f"no Job completed for two minutes, {len(follower.complete)} before")
        time.sleep(0.2)
    waits = sorted(follower.released[name] - at for name, at in created.items())
    last = max(follower.released.values())
    return {
        "workloads": count,
        "wall": max(follower.complete.values()) - begun,
        "submission, s": submitted - begun,
        "admissions": len(follower.released),
        "admissions a second": count / (last - begun),
        "median seconds to release": waits[count // 2],
    }


def run_waiting(plane, count):
    begun = time.time()
    submit(jobs.Cluster(plane.kubeconfig), count, {})
    return {"workloads": count, "submission, s": time.time() - begun}


def requests_until_quiet(plane):
    """The requests of the controllers so far, and the seconds until they wrote nothing more."""
    begun = last = time.time()
    requests = []
    while time.time() - last < QUIET_SECONDS and time.time() - begun < 120:
        found = list(plane.requests())
        if any(it["verb"] not in NOT_WRITES for it in found):
            last = time.time()
        requests += found
        time.sleep(0.5)
    return requests, last - begun


def changed(known, request):
    """The conditions of a workload that a status write changed."""
    reference, body = request["objectRef"], request.get("requestObject") or {}
    states = known.setdefault((reference.get("namespace"), reference["name"]), {})
    found = []
    for it in (body.get("status") or {}).get("conditions") or []:
        state = f"{it['type']} {it['status']}/{it.get('reason')}"
        if states.get(it["type"]) != state:
            states[it["type"]] = state
            found.append(state)
    return ", ".join(sorted(found)) or "no condition"


def count(requests):
    writes, reads, rejected, stories = (collections.Counter() for _ in range(4))
    known = {}
    for request in requests:
        reference = request.get("objectRef") or {}
        name = "/".join(filter(None, [reference.get("resource", request["requestURI"]), reference.get("subresource")]))
        verb, code = request["verb"], request.get("responseStatus", {}).get("code", 0)
        if verb in NOT_WRITES:
            reads[f"{verb} {name}"] += 1
        elif code >= 300:
            rejected[f"{verb} {name} {code}"] += 1
        else:
            writes[f"{verb} {name}"] += 1
            if name == "workloads/status" and request.get("requestObject"):
                stories[changed(known, request)] += 1
    return {"writes": writes, "reads": reads, "rejected": rejected, "status writes of workloads": stories}


def events(plane):
    found = collections.Counter()
    listed = json.loads(plane.kubectl("get", "events", "--all-namespaces", "-o", "json"))["items"]
    for event in listed:
        source = event.get("reportingComponent") or event.get("source", {}).get("component")
        if source not in ("job-controller", "default-scheduler"):
            found[f"{event['involvedObject']['kind']} {event['reason']}"] += 1
    return found


def run(options):
    kind, _, value = options.load.partition("=")
    plane = Plane(options.folder, kind != "jobs", options.bodies)
    controllers = None
    try:
        if options.definitions:
            plane.kubectl("apply", "--server-side", "-f", options.definitions)
            plane.wait_for("crd", "Established")
        kubeconfig = plane.identity()
        log = plane.folder / "state/controllers.log"
        with open(log, "w") as output:
            controllers = Controllers([it.replace("{kubeconfig}", kubeconfig) for it in options.command], output)
        time.sleep(6)
        if controllers.process.poll() is not None:
            raise SystemExit(f"the controllers ended: {log.read_text()[-2000:]}")
        if kind != "plan":
            queues(plane, 150 if kind == "jobs" else 0)
        idle = controllers.memory()
        list(plane.requests())
        before = controllers.figures()
        figures = {
            "plan": lambda: run_plan(plane, value, options.berth),
            "jobs": lambda: run_jobs(plane, int(value)),
            "waiting": lambda: run_waiting(plane, int(value)),
        }[kind]()
        requests, figures["writes after, s"] = requests_until_quiet(plane)
        time.sleep(SETTLE_SECONDS)
        after = controllers.figures()
        figures |= {
            "cpu, s": after["cpu"] - before["cpu"],
            "received, MB": (after["received"] - before["received"]) / 1e6,
            "sent, MB": (after["sent"] - before["sent"]) / 1e6,
            "memory idle, MiB": idle,
            "memory peak, MiB": controllers.peak,
            "memory after, MiB": controllers.memory(),
            "events": events(plane),
            "load average": os.getloadavg(),
        }
        figures |= count(requests)
        pathlib.Path(options.file).write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")
    finally:
        if controllers:
            controllers.stop()
        plane.stop()


def flat(figures, prefix=""):
    for name, value in figures.items():
        if isinstance(value, dict):
            if all(isinstance(it, int) for it in value.values()) and "MiB" not in name:
                yield f"{prefix}{name}", sum(value.values())
            yield from flat(value, f"{prefix}{name}: ")
        else:
            yield prefix + name, value


def compare(files):
    columns = [dict(flat(json.loads(pathlib.Path(file).read_text()))) for file in files]
    names = sorted({name for column in columns for name in column})
    print("| | " + " | ".join(pathlib.Path(file).stem for file in files) + " |")
    print("|---" * (len(files) + 1) + "|")
    for name in names:
        cells = [column.get(name, 0) for column in columns]
        print(f"| {name} | " + " | ".join(f"{it:.1f}" if isinstance(it, float) else str(it) for it in cells) + " |")


def main():
    if sys.argv[1:2] == ["compare"] and len(sys.argv) > 2:
        return compare(sys.argv[2:])
    if sys.argv[1:2] != ["run"] or "--" not in sys.argv:
        sys.exit(__doc__)
    split = sys.argv.index("--")
    parser = argparse.ArgumentParser(usage=__doc__)
    for name in ("folder", "file", "load"):
        parser.add_argument(name)
    parser.add_argument("--definitions")
    parser.add_argument("--berth", default="berth")
    parser.add_argument("--bodies", action="store_true")
    options = parser.parse_args(sys.argv[2:split])
    options.command = sys.argv[split + 1 :]
    run(options)


if __name__ == "__main__":
    main()
