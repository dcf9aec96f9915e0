"""Fits a plane by gradient descent. Each host of a TPU slice computes the gradient of its own shard, on its CPUs."""
import os
import socket

import numpy as np
import ray

HOSTS = 4
EPOCHS = 50
TRUTH = np.array([3.0, -1.0, 0.5])


@ray.remote(num_cpus=1, resources={"TPU": 4})
class Host:
    """A host of the slice, with a shard of the data."""

    def __init__(self, number):
        points = np.random.default_rng(number).uniform(-1.0, 1.0, (256, 2))
        self.inputs = np.column_stack([points, np.ones(len(points))])
        self.wanted = self.inputs @ TRUTH

    def place(self):
        """The host's number in the slice, its name, and the addresses of all hosts of the slice."""
        slice_hosts = os.environ["TPU_WORKER_HOSTNAMES"].split(",")
        return os.environ["TPU_WORKER_ID"], socket.gethostname(), sorted(map(socket.gethostbyname, slice_hosts))

    def gradient(self, weights):
        error = self.inputs @ weights - self.wanted
        return self.inputs.T @ error / len(error), float(np.mean(error**2))


ray.init()
hosts = [Host.remote(number) for number in range(HOSTS)]
places = ray.get([host.place.remote() for host in hosts])
if sorted(number for number, _, _ in places) != [str(number) for number in range(HOSTS)]:
    raise SystemExit(f"the hosts are not one slice: {places}")
if len({tuple(addresses) for _, _, addresses in places}) != 1 or len(set(places[0][2])) != HOSTS:
    raise SystemExit(f"the hosts do not know each other: {places}")

print("Starting training...", flush=True)
weights = np.zeros(3)
for epoch in range(EPOCHS):
    parts = ray.get([host.gradient.remote(weights) for host in hosts])
    weights -= 1.2 * np.mean([gradient for gradient, _ in parts], axis=0)
    loss = np.mean([loss for _, loss in parts])
    if epoch % 10 == 0:
        print(f"Epoch {epoch}: Loss {loss:.4f}", flush=True)
if not np.allclose(weights, TRUTH, atol=0.01):
    raise SystemExit(f"did not converge: {weights}")
print(f"Training Complete! {len({name for _, name, _ in places})} hosts", flush=True)
