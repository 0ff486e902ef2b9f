"""A parameter server, as one writes it for Ray: workers compute gradients, a server keeps weights.

Any of these processes may be killed at any time, and the result is the same to the last bit: the
server keeps its weights in a file and knows which step it has taken, and a worker needs nothing but
its arguments. `python parameter_server.py [STEPS]`; with `import ray` it runs on Ray.
"""

import os
import sys
import tempfile

import numpy as np

import troupe as ray

WORKERS, FEATURES, ROWS, RATE = 4, 64, 1000, 0.05
TRUE_WEIGHTS = np.random.default_rng(0).normal(size=FEATURES)


@ray.remote(max_restarts=-1, max_task_retries=-1)
class ParameterServer:
    def __init__(self, path):
        self.path = path
        self.step, self.weights = 0, np.zeros(FEATURES)
        if os.path.exists(path):  # An earlier life has left it.
            with np.load(path) as saved:
                self.step, self.weights = int(saved["step"]), saved["weights"]

    def get_weights(self):
        return self.weights

    def apply(self, step, *gradients):
        """One step; a call that is sent again after a death finds its step taken."""
        if step == self.step:
            self.weights = self.weights - RATE * np.mean(gradients, axis=0)
            self.step += 1
            with open(self.path + ".new", "wb") as file:
                np.savez(file, step=self.step, weights=self.weights)
            os.replace(self.path + ".new", self.path)
        return self.weights

    def pid(self):
        return os.getpid()


@ray.remote(max_restarts=-1, max_task_retries=-1)
class Worker:
    def __init__(self, rank):
        random = np.random.default_rng(rank + 1)
        self.x = random.normal(size=(ROWS, FEATURES))
        self.y = self.x @ TRUE_WEIGHTS

    def gradient(self, weights):
        return self.x.T @ (self.x @ weights - self.y) / ROWS

    def pid(self):
        return os.getpid()


def main(steps):
    ray.init(num_cpus=WORKERS + 1)
    with tempfile.TemporaryDirectory() as folder:
        server = ParameterServer.remote(os.path.join(folder, "weights.npz"))
        workers = [Worker.remote(rank) for rank in range(WORKERS)]
        pids = ray.get([actor.pid.remote() for actor in [server, *workers]])
        print("server", pids[0], "workers", *pids[1:], flush=True)
        weights = server.get_weights.remote()
        for step in range(steps):
            # Refs are arguments: weights and gradients do not pass the driver.
            gradients = [worker.gradient.remote(weights) for worker in workers]
            weights = server.apply.remote(step, *gradients)
            if step % 20 == 0:
                error = np.abs(ray.get(weights) - TRUE_WEIGHTS).max()
                print(f"step {step}: off by {error:.6f}", flush=True)
        final = ray.get(weights)
        print(f"done: off by {np.abs(final - TRUE_WEIGHTS).max():.2e}, sum {float(final.sum())!r}")
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
