"""Streams of pods with the Python client: exec, attach, port-forward, logs, and copying with tar.

Usage: streams.py KUBECONFIG PODS. PODS is a file with the pods: "real" runs as processes, "simulated" has none. Ends
with 0 when everything came out as Kubernetes' documentation says.
"""

import io
import json
import sys
import tarfile
import time

from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException
from kubernetes.stream import portforward, stream
from kubernetes.stream.ws_client import ERROR_CHANNEL, RESIZE_CHANNEL

NAMESPACE = "default"
PATIENCE = 60


def create_pods(core, pods):
    for pod in pods:
        core.create_namespaced_pod(NAMESPACE, pod)
    for pod in pods:
        name = pod["metadata"]["name"]
        for _ in range(PATIENCE * 10):
            conditions = core.read_namespaced_pod(name, NAMESPACE).status.conditions or []
            if any(condition.type == "Ready" and condition.status == "True" for condition in conditions):
                break
            time.sleep(0.1)
        else:
            raise AssertionError(f"pod {name} is not ready")


def run(core, command, pod="real", **options):
    options = {"stderr": True, "stdin": False, "stdout": True, "tty": False, "container": "main", **options}
    return stream(core.connect_get_namespaced_pod_exec, pod, NAMESPACE, command=command, **options)


def commands(core):
    assert run(core, ["sh", "-c", "echo out; echo err >&2"]) in ("out\nerr\n", "err\nout\n")

    shell = run(core, ["sh", "-c", "cat; exit 3"], stdin=True, _preload_content=False)
    shell.write_stdin("x" * 100_000 + "\n")
    shell.write_stdin("the end\n")
    text = ""
    while not text.endswith("the end\n"):
        shell.update(timeout=1)
        text += shell.read_stdout(timeout=1) if shell.peek_stdout() else ""
        assert shell.is_open(), text
    assert len(text) == 100_009, len(text)
    shell.close()

    # The program ends by itself: the exit code is that of the program.
    shell = run(core, ["sh", "-c", "read line; echo $line >&2; exit 3"], stdin=True, _preload_content=False)
    shell.write_stdin("hello\n")
    shell.run_forever(timeout=PATIENCE)
    assert (shell.read_stderr(), shell.returncode) == ("hello\n", 3), shell.returncode
    failed = run(core, ["no-such-program"], _preload_content=False)
    failed.run_forever(timeout=PATIENCE)
    status = json.loads(failed.read_channel(ERROR_CHANNEL))
    assert status["reason"] == "InternalError" and "not found" in status["message"], status


def terminal(core):
    script = "until test \"$(stty size)\" = '40 120'; do sleep 0.05; done; echo resized"
    shell = run(core, ["sh", "-c", script], stdin=True, tty=True, _preload_content=False)
    shell.write_channel(RESIZE_CHANNEL, json.dumps({"Width": 120, "Height": 40}))
    shell.run_forever(timeout=PATIENCE)
    assert shell.read_stdout().strip() == "resized" and shell.returncode == 0


def copies(core):
    """As `kubectl cp`: tar in the container, over standard input and output."""
    content = bytes(range(256)) * 1000
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo("copied")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    upload = run(core, ["tar", "xf", "-", "-C", "/tmp"], stdin=True, binary=True, _preload_content=False)
    upload.write_stdin(packed.getvalue())
    upload.run_forever(timeout=PATIENCE)
    assert upload.returncode == 0, upload.read_stderr()

    download = run(core, ["tar", "cf", "-", "-C", "/tmp", "copied"], binary=True, _preload_content=False)
    download.run_forever(timeout=PATIENCE)
    with tarfile.open(fileobj=io.BytesIO(download.read_stdout())) as tar:
        assert tar.extractfile("copied").read() == content


def attached(core):
    session = stream(
        core.connect_get_namespaced_pod_attach,
        "real",
        NAMESPACE,
        container="main",
        stdin=True,
        stdout=True,
        stderr=True,
        tty=False,
        _preload_content=False,
    )
    session.write_stdin("hello\n")
    assert session.readline_stdout(timeout=PATIENCE) == "main: hello"
    session.close()


def forwarded(core):
    forward = portforward(core.connect_get_namespaced_pod_portforward, "real", NAMESPACE, ports="8080,9")
    server = forward.socket(8080)
    server.setblocking(True)
    server.sendall(b"GET / HTTP/1.0\r\n\r\n")
    answer = b""
    while chunk := server.recv(65536):
        answer += chunk
    server.close()
    assert answer.startswith(b"HTTP/1.0 200") and b"Directory listing" in answer, answer
    assert forward.error(8080) is None, forward.error(8080)
    refused = forward.socket(9)
    refused.setblocking(True)
    assert refused.recv(10) == b""
    assert "refused" in forward.error(9), forward.error(9)


def refused(core):
    for connect in (core.connect_get_namespaced_pod_exec, core.connect_get_namespaced_pod_attach):
        options = {"command": ["true"]} if connect == core.connect_get_namespaced_pod_exec else {}
        try:
            stream(connect, "simulated", NAMESPACE, **options)
            raise AssertionError("a program ran in a simulated pod")
        except ApiException as error:
            assert "400" in str(error), error
    try:
        portforward(core.connect_get_namespaced_pod_portforward, "simulated", NAMESPACE, ports="8080")
        raise AssertionError("a port of a simulated pod was forwarded")
    except ApiException as error:
        assert "400" in str(error), error


def logs(core):
    assert "main: hello" in core.read_namespaced_pod_log("real", NAMESPACE, container="main").splitlines()
    follow = watch.Watch()
    lines = []
    for line in follow.stream(core.read_namespaced_pod_log, name="real", namespace=NAMESPACE, container="main"):
        lines.append(line)
        if line == "main: hello":
            # The log ends with the pod.
            core.delete_namespaced_pod("real", NAMESPACE)
    assert lines[0] == "ready", lines


def main():
    config.load_kube_config(sys.argv[1])
    core = client.CoreV1Api()
    with open(sys.argv[2]) as pods:
        create_pods(core, json.load(pods)["items"])
    for check in (commands, terminal, copies, attached, forwarded, refused, logs):
        check(core)
        print(check.__name__, flush=True)
    print("ok", flush=True)


main()
