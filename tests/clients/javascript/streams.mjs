// Streams of pods with the JavaScript client: exec, attach, port-forward, copies and logs.
// Usage: node streams.mjs KUBECONFIG PODS. PODS is a file with the pods: "real" runs as processes, "simulated" has none.
// Ends with 0 when everything came out as Kubernetes' documentation says.

import assert from "node:assert/strict";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { PassThrough } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import * as k8s from "@kubernetes/client-node";

const namespace = "default";
const config = new k8s.KubeConfig();
config.loadFromFile(process.argv[2]);
const core = config.makeApiClient(k8s.CoreV1Api);

async function until(what, condition) {
  for (let i = 0; i < 600; i += 1) {
    if (await condition()) return;
    await sleep(100);
  }
  assert.fail(`waited for ${what}`);
}

// A stream that remembers what was written to it.
function sink() {
  const stream = new PassThrough();
  const chunks = [];
  stream.on("data", (chunk) => chunks.push(chunk));
  stream.text = () => Buffer.concat(chunks).toString();
  return stream;
}

const pods = JSON.parse(fs.readFileSync(process.argv[3], "utf8")).items;
for (const body of pods) await core.createNamespacedPod({ namespace, body });
for (const { metadata } of pods) {
  await until(`pod ${metadata.name}`, async () => {
    const { status } = await core.readNamespacedPod({ namespace, name: metadata.name });
    return status.conditions?.some((condition) => condition.type === "Ready" && condition.status === "True");
  });
}

// Input, separate outputs, and the exit code.
const exec = new k8s.Exec(config);
async function run(command, { stdin = null, tty = false } = {}) {
  const [out, err] = [sink(), sink()];
  const status = await new Promise((resolve, reject) => {
    exec.exec(namespace, "real", "main", command, out, tty ? null : err, stdin, tty, resolve).catch(reject);
  });
  return { out: out.text(), err: err.text(), status };
}
const done = await run(["sh", "-c", "echo out; echo err >&2"]);
assert.deepEqual([done.out, done.err, done.status.status], ["out\n", "err\n", "Success"]);
const input = new PassThrough();
input.write("hello\n");
const failed = await run(["sh", "-c", "read line; echo got $line; exit 3"], { stdin: input });
assert.equal(failed.out, "got hello\n");
assert.deepEqual(failed.status.details.causes, [{ reason: "ExitCode", message: "3" }]);
assert.match((await run(["tty"], { tty: true })).out, /^\/dev\/pts\/\d+\r\n$/);

// The main program reads the client's input.
const [typed, printed] = [new PassThrough(), sink()];
const attached = await new k8s.Attach(config).attach(namespace, "real", "main", printed, null, typed, false);
typed.write("hello\n");
await until("the answer of the main program", () => printed.text() === "main: hello\n");
attached.close();

// A connection to a port, until the server closes it.
const [request, response] = [new PassThrough(), sink()];
const forwarded = await new k8s.PortForward(config).portForward(namespace, "real", [8080], response, null, request);
const closed = new Promise((resolve) => forwarded.on("close", resolve));
request.write("GET / HTTP/1.0\r\n\r\n");
await closed;
assert.match(response.text(), /^HTTP\/1.0 200 [^]*Directory listing/);

// Copies to a pod. (This client's cpFromPod unpacks compressed files as if they were not.)
const folder = fs.mkdtempSync(path.join(os.tmpdir(), "streams-"));
fs.writeFileSync(path.join(folder, "file"), "copied\n");
await new k8s.Cp(config).cpToPod(namespace, "real", "main", folder, "/tmp");
await until("the copy", async () => (await run(["cat", "/tmp/file"])).out === "copied\n");
fs.rmSync(folder, { recursive: true });

// No program is behind a simulated pod.
await assert.rejects(
  exec.exec(namespace, "simulated", "main", ["true"], sink(), sink(), null, false),
  (error) => JSON.stringify([error, error.message]).includes("400"),
);

// A log that is followed ends with its pod.
const log = sink();
const ended = new Promise((resolve) => log.on("end", resolve));
await new k8s.Log(config).log(namespace, "real", "main", log, { follow: true });
await until("the log", () => log.text().includes("main: hello\n"));
await core.deleteNamespacedPod({ namespace, name: "real" });
await ended;
assert.match(log.text(), /^ready\n/);
console.log("ok");
process.exit(0);
