"""A pipeline with back-pressure, as one writes it for Ray: bounded queues between the stages.

A fast reader, several slower parsers, one writer. The reader waits when the first queue is full, so
that however long the input is, few of its pieces are in memory. `python pipeline.py [PIECES]`; with
`import ray` and `from ray.util.queue import Queue` it runs on Ray.
"""

import sys
import time

import troupe as ray
from troupe.util.queue import Queue

PARSERS, WAITING = 3, 4
END = None


@ray.remote
class Meter:
    """How many pieces are between the reader and the writer."""

    def __init__(self):
        self.inside = self.most = 0

    def add(self, count):
        self.inside += count
        self.most = max(self.most, self.inside)

    def peak(self):
        return self.most


@ray.remote
def read(pieces, queue, meter):
    for number in range(pieces):
        ray.get(meter.add.remote(1))
        queue.put((number, f"{number} {number + 1} {number + 2}"))  # Waits while it is full.
    for _ in range(PARSERS):
        queue.put(END)


@ray.remote
def parse(source, target):
    done = 0
    while (piece := source.get()) is not END:
        number, text = piece
        time.sleep(0.002)  # Work.
        target.put((number, sum(map(int, text.split()))))
        done += 1
    target.put(END)
    return done


@ray.remote
def write(queue, meter):
    total, seen, open_parsers = 0, 0, PARSERS
    while open_parsers:
        piece = queue.get()
        if piece is END:
            open_parsers -= 1
            continue
        ray.get(meter.add.remote(-1))
        total += piece[1]
        seen += 1
    return seen, total


def main(pieces):
    ray.init(num_cpus=PARSERS + 2)
    meter = Meter.remote()
    texts, sums = Queue(maxsize=WAITING), Queue(maxsize=WAITING)
    reader = read.remote(pieces, texts, meter)
    parsers = [parse.remote(texts, sums) for _ in range(PARSERS)]
    seen, total = ray.get(write.remote(sums, meter))
    ray.get(reader)
    shares = ray.get(parsers)
    print(f"{seen} pieces, sum {total}, parsed by {len(shares)} tasks: {sum(shares)}")
    print(f"at most {ray.get(meter.peak.remote())} pieces were on their way")
    texts.shutdown()
    sums.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
