// What people write with the JavaScript client: typed calls, patches, informers that survive a dropped connection.
// Usage: node client.mjs KUBECONFIG. Ends with 0 when everything came out as Kubernetes' documentation says.

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import * as k8s from "@kubernetes/client-node";

const namespace = "javascript-client";
const config = new k8s.KubeConfig();
config.loadFromFile(process.argv[2]);
const core = config.makeApiClient(k8s.CoreV1Api);
const objects = k8s.KubernetesObjectApi.makeApiClient(config);

async function until(what, condition) {
  for (let i = 0; i < 200; i += 1) {
    if (condition()) return;
    await sleep(50);
  }
  assert.fail(`waited for ${what}`);
}

await core.createNamespace({ body: { metadata: { name: namespace } } });
await assert.rejects(
  core.readNamespacedConfigMap({ name: "none", namespace }),
  (error) => error.code === 404 && JSON.parse(error.body).reason === "NotFound",
);

const seen = [];
const informer = k8s.makeInformer(config, `/api/v1/namespaces/${namespace}/configmaps`, () =>
  core.listNamespacedConfigMap({ namespace }),
);
for (const verb of ["add", "update", "delete"]) {
  informer.on(verb, (object) => seen.push(`${verb} ${object.metadata.name}`));
}
informer.on("error", (error) => {
  // Stopping an informer aborts its watch, which is reported as an error.
  if (error.name !== "AbortError") throw error;
});
await informer.start();
await core.createNamespacedConfigMap({ namespace, body: { metadata: { name: "one" }, data: { a: "1" } } });
await until("the addition", () => seen.includes("add one"));
await core.patchNamespacedConfigMap(
  { name: "one", namespace, body: [{ op: "replace", path: "/data/a", value: "2" }] },
  k8s.setHeaderOptions("Content-Type", k8s.PatchStrategy.JsonPatch),
);
await until("the change", () => informer.get("one", namespace)?.data?.a === "2");
await core.deleteNamespacedConfigMap({ name: "one", namespace });
await until("the deletion", () => seen.includes("delete one"));
assert.equal(informer.list().filter((object) => object.metadata.name === "one").length, 0);
await informer.stop();

// The generic client finds paths by discovery and applies server-side.
const queue = {
  apiVersion: "kueue.x-k8s.io/v1beta2",
  kind: "ClusterQueue",
  metadata: { name: "javascript" },
  spec: { namespaceSelector: {} },
};
const applied = await objects.patch(queue, undefined, undefined, "javascript", true, k8s.PatchStrategy.ServerSideApply);
assert.equal(applied.spec.queueingStrategy, "BestEffortFIFO");
assert.equal((await objects.read(queue)).metadata.name, "javascript");
await objects.delete(queue);
await core.deleteNamespace({ name: namespace });
console.log("ok");
process.exit(0);
