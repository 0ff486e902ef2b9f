"""A supervisor, as one writes it for Ray: it gives jobs to workers and replaces those that die.

A job that was running when its worker died runs again on another one. The supervisor is found by
its name; it may be killed as well, and its next life begins with what it has written down.
`python supervisor.py [JOBS]`; with `import ray` it runs on Ray.
"""

import json
import os
import sys
import tempfile
import time

import troupe as ray

WORKERS = 3


@ray.remote
class Worker:
    def run(self, job):
        time.sleep(0.02)  # Work.
        return job * job

    def pid(self):
        return os.getpid()


@ray.remote(max_restarts=-1, max_task_retries=-1)
class Supervisor:
    def __init__(self, path):
        self.path = path
        self.results, self.replaced, self.life = {}, 0, 1
        if os.path.exists(path):
            with open(path) as file:
                saved = json.load(file)
            self.results = {int(job): value for job, value in saved["results"].items()}
            self.replaced, self.life = saved["replaced"], saved["life"] + 1
        self._save()
        self.workers = [Worker.remote() for _ in range(WORKERS)]

    def _save(self):
        with open(self.path + ".new", "w") as file:
            json.dump({"results": self.results, "replaced": self.replaced, "life": self.life}, file)
        os.replace(self.path + ".new", self.path)

    def run_some(self, jobs, limit):
        """Runs up to `limit` of the jobs that have no result yet; how many have one now."""
        todo = [job for job in jobs if job not in self.results][:limit]
        idle, running = list(range(WORKERS)), {}
        while todo or running:
            while todo and idle:
                place, job = idle.pop(), todo.pop()
                running[self.workers[place].run.remote(job)] = (place, job)
            done, _ = ray.wait(list(running), num_returns=1)
            place, job = running.pop(done[0])
            try:
                self.results[job] = ray.get(done[0])
            except ray.exceptions.RayActorError:
                self.workers[place] = Worker.remote()
                self.replaced += 1
                todo.append(job)
            idle.append(place)
        self._save()
        return len(self.results)

    def pids(self):
        return os.getpid(), ray.get([worker.pid.remote() for worker in self.workers])

    def report(self):
        return self.results, self.replaced, self.life


def main(jobs):
    ray.init(num_cpus=WORKERS + 1)
    with tempfile.TemporaryDirectory() as folder:
        supervisor = Supervisor.remote(os.path.join(folder, "journal.json"))
        own, workers = ray.get(supervisor.pids.remote())
        print("supervisor", own, "workers", *workers, flush=True)
        finished = 0
        while finished < jobs:
            finished = ray.get(supervisor.run_some.remote(list(range(jobs)), 10))
            print(f"{finished} of {jobs} jobs", flush=True)
        results, replaced, life = ray.get(supervisor.report.remote())
        right = all(results[job] == job * job for job in range(jobs))
        print(f"done: {len(results)} results, right: {right}, workers replaced: {replaced}, "
              f"lives of the supervisor: {life}")
        ray.kill(supervisor)
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
