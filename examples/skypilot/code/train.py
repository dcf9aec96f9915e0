"""Fits a line by gradient descent, with the standard library alone."""

import argparse
import os
import random

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
steps = parser.parse_args().steps

generator = random.Random(7)
points = [(x, 3 * x - 2) for x in (generator.uniform(-1, 1) for _ in range(64))]
slope = offset = 0.0
for _ in range(steps):
    errors = [(slope * x + offset - y, x) for x, y in points]
    slope -= 0.5 * sum(error * x for error, x in errors) / len(points)
    offset -= 0.5 * sum(error for error, _ in errors) / len(points)
loss = sum((slope * x + offset - y) ** 2 for x, y in points) / len(points)
print(f"node {os.environ.get('SKYPILOT_NODE_RANK')} of {os.environ.get('SKYPILOT_NUM_NODES')}: "
      f"{os.environ.get('SKYPILOT_NUM_GPUS_PER_NODE')} GPU, slope {slope:.2f}, offset {offset:.2f}, loss {loss:.2g}")
assert loss < 1e-3, "the training did not converge"
print("converged")
